//! Checks of modules, launches and ranges, before anything begins.

use super::ahead::Lookahead;
use super::clusters;
use super::grid::{Footprint, Grid, Stays};
use super::reader::{Code, Read};
use super::{EmulatedGpu, LoadedModule};
use crate::exec::access::weak;
use crate::exec::decode::{self, Image};
use crate::memory::Grants;
use crate::timing::memory::MemoryCounts;
use partita_device::{
    AddressRange, DeviceError, GridSpec, KernelFacts, ModuleFacts, RefusedKernel, VariableFacts,
    Work,
};
use partita_model::{Bytes, DeviceAddress, GridCounters, OperationId, SmSet, WindowId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl EmulatedGpu {
    pub(super) fn load(
        &mut self,
        window: WindowId,
        ptx: &Arc<str>,
    ) -> Result<(LoadedModule, ModuleFacts), String> {
        let read = self.reader.take(ptx).map_or_else(|| Read::new(ptx), Ok)?;
        let Read { target, mut image, code } = read;
        if let Some(refusal) =
            target.and_then(|target| target.refusal(self.spec.compute_capability))
        {
            return Err(refusal);
        }
        let mut loaded = LoadedModule {
            window,
            variables: None,
            managed: None,
            constants: None,
            programs: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        if image.managed_bytes > 0 {
            let address = self
                .memory
                .allocate_managed(window, image.managed_bytes, image.alignment)
                .map_err(|error| format!("the module's managed variables: {error}"))?;
            image.managed_base = address.0;
            loaded.managed = Some(address);
        }
        let kernels = match code {
            Code::Decoded(kernels) => kernels,
            Code::Parsed(module) => {
                if let Err(error) = self.place_image(&module, &mut image, &mut loaded) {
                    loaded.managed.into_iter().for_each(|at| self.memory.free_managed(at));
                    return Err(error);
                }
                decode::decode(*module, &image)
            }
        };
        let mut facts = ModuleFacts {
            variables: image
                .variables
                .iter()
                .map(|variable| VariableFacts {
                    name: variable.name.clone(),
                    address: DeviceAddress(image.place(variable)),
                    size: Bytes(variable.bytes),
                })
                .collect(),
            ..ModuleFacts::default()
        };
        for (name, refusal) in kernels.refused {
            loaded.refused.insert(name.clone(), refusal.to_string());
            facts.refused.push(RefusedKernel {
                name,
                line: Some(refusal.line),
                what: refusal.what,
            });
        }
        if kernels.programs.iter().any(|program| program.allocates()) {
            self.memory.provide_heap(window);
        }
        for mut program in kernels.programs {
            if self.weak.is_some() {
                weak::through_side_table(Arc::make_mut(&mut program));
            }
            facts.kernels.push(KernelFacts {
                name: program.name.clone(),
                registers: program.registers_per_thread,
                static_shared: Bytes(u64::from(program.static_shared)),
                local: Bytes(u64::from(program.local)),
                max_threads: program.max_threads,
                required_cluster: program.cluster.required,
            });
            loaded.programs.insert(program.name.clone(), program);
        }
        Ok((loaded, facts))
    }

    /// Finds room for a module's variables and writes their initial contents.
    fn place_image(
        &mut self,
        module: &partita_ptx::Module,
        image: &mut Image,
        loaded: &mut LoadedModule,
    ) -> Result<(), String> {
        if image.bytes > 0 {
            let address = self
                .memory
                .allocate_variables(loaded.window, image.bytes, image.alignment)
                .map_err(|error| format!("the module's variables: {error}"))?;
            image.base = address.0;
            loaded.variables = Some(address);
            if image.constant_bytes > 0 {
                loaded.constants =
                    Some(AddressRange { start: address, bytes: image.constant_bytes });
            }
        }
        let written = image.contents(module).and_then(|pieces| {
            pieces.into_iter().try_for_each(|piece| {
                let start = if piece.managed { loaded.managed } else { loaded.variables };
                let Some(start) = start else { return Ok(()) };
                let address = DeviceAddress(start.0 + piece.offset);
                self.memory.write(address, &piece.bytes).map_err(|error| error.to_string())
            })
        });
        if let (Err(_), Some(address)) = (&written, loaded.variables) {
            self.memory.free(address).expect("allocated above");
        }
        written
    }

    pub(super) fn check_launch(
        &mut self,
        operation: OperationId,
        launch: GridSpec,
    ) -> Result<Grid, DeviceError> {
        let bad = |text: String| DeviceError::BadLaunch(text);
        let module = self
            .modules
            .get(&launch.module)
            .ok_or_else(|| DeviceError::BadId(launch.module.to_string()))?;
        let name = &launch.kernel;
        let Some(program) = module.programs.get(name.as_ref()) else {
            return Err(bad(match module.refused.get(name.as_ref()) {
                Some(reason) => format!("kernel `{name}` cannot run: {reason}"),
                None => {
                    let known: Vec<&str> = module.programs.keys().map(String::as_str).collect();
                    format!("no kernel is named `{name}`; there are {}", known.join(", "))
                }
            }));
        };
        let threads = launch.block.count();
        if launch.grid.is_empty() || launch.block.is_empty() {
            return Err(bad("grid or block has an extent of zero".to_owned()));
        }
        if launch.grid.x > 0x7fff_ffff || launch.grid.y > 65_535 || launch.grid.z > 65_535 {
            return Err(bad(format!("grid {} is larger than 2147483647,65535,65535", launch.grid)));
        }
        let limit = program.max_threads.min(self.facts.threads_per_cta);
        if threads > u128::from(limit) || launch.block.z > 64 {
            return Err(bad(format!(
                "a block of {threads} threads; `{name}` allows {limit}, and 64 in z"
            )));
        }
        if let Some(required) = program.required_block
            && required != launch.block
        {
            return Err(bad(format!("block {}; `{name}` requires {required}", launch.block)));
        }
        let wanted = program.param_bytes() as usize;
        if launch.params.len() < wanted {
            return Err(bad(format!(
                "{} bytes of parameters; `{name}` takes {wanted}",
                launch.params.len()
            )));
        }
        let shared = u64::from(program.static_shared) + u64::from(launch.dynamic_shared);
        if shared > self.spec.shared_per_cta_optin_bytes {
            return Err(bad(format!(
                "{shared} bytes of shared memory per CTA; this GPU has {}",
                self.spec.shared_per_cta_optin_bytes
            )));
        }
        let footprint = Footprint::of(program, threads as u32, launch.dynamic_shared, &self.spec);
        if footprint.threads > self.spec.threads_per_sm {
            return Err(bad(format!("a block of {threads} threads does not fit into an SM")));
        }
        let cluster = clusters::extent(&program.cluster, (launch.cluster, launch.grid), &self.spec)
            .map_err(|why| bad(format!("`{name}`: {why}")))?;
        let ctas = cluster.count() as u32;
        let all = SmSet::range(0, self.spec.sms);
        if ctas > 1 && !clusters::can_hold(&self.spec, &all, &footprint, ctas) {
            return Err(bad(format!("`{name}`: no GPC holds {ctas} CTAs of its size at once")));
        }
        self.grid_ids += 1;
        let sites = program.code.len();
        Ok(Grid {
            operation,
            program: program.clone(),
            grid: launch.grid,
            block: launch.block,
            cluster,
            clusters: BTreeMap::new(),
            spare_shared: Vec::new(),
            dynamic_shared: launch.dynamic_shared,
            params: launch.params.into(),
            grants: Grants::new(launch.access, module.constants.into_iter().collect(), sites),
            footprint,
            total: u64::try_from(launch.grid.count()).expect("checked against CUDA's limits"),
            next: 0,
            resident: 0,
            start: 0,
            end: 0,
            counters: GridCounters::default(),
            memory_counts: MemoryCounts::default(),
            stays: Stays::default(),
            sms: SmSet::range(0, self.spec.sms),
            priority: 0,
            window: module.window,
            output: Vec::new(),
            assertion: None,
            spare: Vec::new(),
            rooms: Vec::new(),
            lookahead: Lookahead::default(),
            id: self.grid_ids,
        })
    }

    pub(super) fn check_range(
        &self,
        address: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        if self.memory.is_live(address, bytes) {
            Ok(())
        } else {
            Err(DeviceError::BadRange { address, bytes })
        }
    }

    pub(super) fn check_work(&self, work: &Work) -> Result<(), DeviceError> {
        match work {
            Work::CopyToDevice { to, from } => self.check_range(*to, from.bytes()),
            Work::CopyToHost { to, from } => self.check_range(*from, to.bytes()),
            Work::CopyOnDevice { to, from, bytes } => {
                self.check_range(*from, *bytes)?;
                self.check_range(*to, *bytes)
            }
            Work::Fill { to, width, count, .. } => {
                if !matches!(width, 1 | 2 | 4) {
                    return Err(DeviceError::Unsupported(format!("a fill of width {width}")));
                }
                self.check_range(*to, count.saturating_mul(u64::from(*width)))
            }
            Work::WaitValue { address, word } => {
                let width = u64::from(word.width);
                if !matches!(width, 4 | 8) {
                    return Err(DeviceError::Unsupported(format!(
                        "waiting for a word of {width} bytes"
                    )));
                }
                self.check_range(
                    *address,
                    if address.0.is_multiple_of(width) { width } else { u64::MAX },
                )
            }
            Work::Launch(_) | Work::LaunchOn { .. } | Work::Marker | Work::Wait { .. } => Ok(()),
        }
    }
}
