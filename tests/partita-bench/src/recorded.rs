//! Applications from recordings of real programs ([`partita_emu::record`]): one for each kernel,
//! its largest launch.
//!
//! The recording is followed without time. Before a launch the memory that it can reach is kept,
//! which is what its parameters lead to, at once or through other memory; that, the module and the
//! launch are the application. Where a second run of the launch changes something again, or fails
//! on what the first has left (as those that count their CTAs in memory do), what the launch
//! changes is put back before each pass.
//!
//! Addresses are found by their values: eight aligned bytes in parameters or memory that lie in
//! live memory count as a pointer. Windows begin where no other number is likely to.

use crate::application::{Application, Buffer, Pointer, Restored, Step, Variable};
use partita_device::{Activity, AddressRange, Device, Event, GridSpec, Horizon, Outcome, Work};
use partita_emu::record::Entry;
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::{DeviceAddress, ModuleId, OperationId, StreamId, WindowId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const STREAM: StreamId = StreamId(0);
/// A launch that takes more warp instructions is not tried: with time it would take minutes.
const MOST_INSTRUCTIONS: u64 = 1 << 26;

/// The applications of a recording, and why there are not more, where something is missing.
///
/// Kernels with fewer CTAs than `least_ctas` are left out: a GPU that they do not fill says nothing
/// of their class.
#[must_use]
pub fn applications(
    name: &str,
    entries: &[Entry],
    least_ctas: u128,
) -> (Vec<Application>, Option<String>) {
    let followed = Spec::named("h200").map_err(|error| error.to_string()).and_then(Follower::new);
    let mut follower = match followed {
        Ok(follower) => follower,
        Err(reason) => return (Vec::new(), Some(reason)),
    };
    let wanted = largest(entries, least_ctas);
    for (index, entry) in entries.iter().enumerate() {
        let taken = wanted.contains(&index).then_some(name);
        if let Err(reason) = follower.follow(entry, taken) {
            return (follower.found.into_values().collect(), Some(reason));
        }
    }
    (follower.found.into_values().collect(), None)
}

/// The largest launch of each kernel among those that are large enough, the first of several, by
/// its place in the recording.
fn largest(entries: &[Entry], least_ctas: u128) -> BTreeSet<usize> {
    let mut largest: BTreeMap<&str, (u128, usize)> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Entry::Launch { kernel, grid, .. } = entry {
            let ctas = grid.count();
            let known = largest.get(kernel.as_str()).map_or(0, |(known, _)| *known);
            if ctas >= least_ctas && ctas > known {
                largest.insert(kernel, (ctas, index));
            }
        }
    }
    largest.into_values().map(|(_, index)| index).collect()
}

struct LoadedText {
    text: Arc<str>,
    /// Name, address and size of each.
    variables: Vec<(String, DeviceAddress, u64)>,
}

struct Follower {
    gpu: EmulatedGpu,
    windows: BTreeMap<WindowId, AddressRange>,
    live: BTreeMap<DeviceAddress, u64>,
    modules: BTreeMap<ModuleId, LoadedText>,
    operations: u64,
    found: BTreeMap<String, Application>,
}

type Memory = Vec<(DeviceAddress, Vec<u8>)>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Follower {
    fn new(spec: Spec) -> Result<Follower, String> {
        let mut gpu = EmulatedGpu::new(spec, Options { timing: Timing::Off, ..Options::default() });
        gpu.create_stream(STREAM).map_err(text)?;
        Ok(Follower {
            gpu,
            windows: BTreeMap::new(),
            live: BTreeMap::new(),
            modules: BTreeMap::new(),
            operations: 0,
            found: BTreeMap::new(),
        })
    }

    /// Keeps a window that must lie where it was recorded.
    fn reserved(
        &mut self,
        window: WindowId,
        range: AddressRange,
        base: DeviceAddress,
    ) -> Result<(), String> {
        if range.start != base {
            return Err(format!("the window recorded at {base} lies at {} here", range.start));
        }
        self.windows.insert(window, range);
        Ok(())
    }

    /// Does what the recording says; a launch that is `taken` becomes an application of that
    /// recording.
    fn follow(&mut self, entry: &Entry, taken: Option<&str>) -> Result<(), String> {
        match entry {
            Entry::Reserve { window, bytes, base } => {
                let start = self.gpu.reserve(*window, *bytes).map_err(text)?;
                self.reserved(*window, AddressRange { start, bytes: *bytes }, *base)
            }
            Entry::ReserveSmall { window, base } => {
                let range = self.gpu.reserve_small(*window).map_err(text)?.range;
                self.reserved(*window, range, *base)
            }
            Entry::Release { window } => {
                if let Some(range) = self.windows.remove(window) {
                    self.live.retain(|start, bytes| !range.contains(*start, *bytes));
                }
                self.gpu.release(*window).map_err(text)
            }
            Entry::Allocate { window, start, bytes } => {
                self.live.insert(*start, *bytes);
                self.gpu
                    .allocate(*window, AddressRange { start: *start, bytes: *bytes })
                    .map_err(text)
            }
            Entry::Free { start } => {
                self.live.remove(start);
                self.gpu.free(*start).map_err(text)
            }
            Entry::Load { module, window, ptx } => self.load(*module, *window, ptx),
            Entry::Unload { module } => {
                self.modules.remove(module);
                self.gpu.unload_module(*module).map_err(text)
            }
            Entry::Write { to, bytes } => self.gpu.poke(*to, bytes).map_err(text),
            Entry::Read { .. } => Ok(()),
            Entry::Copy { to, from, bytes } => {
                self.enqueue(Work::CopyOnDevice { to: *to, from: *from, bytes: *bytes })
            }
            Entry::Fill { to, value, width, count } => {
                self.enqueue(Work::Fill { to: *to, value: *value, width: *width, count: *count })
            }
            Entry::Launch {
                module,
                kernel,
                grid,
                block,
                cluster,
                dynamic_shared,
                access,
                params,
                ..
            } => {
                let launch = GridSpec {
                    cooperative: false,
                    cluster: cluster.unwrap_or(partita_model::Dim3::linear(1)),
                    module: *module,
                    kernel: kernel.as_str().into(),
                    grid: *grid,
                    block: *block,
                    dynamic_shared: *dynamic_shared,
                    params: params.clone(),
                    access: access
                        .iter()
                        .map(|&(start, bytes)| AddressRange { start, bytes })
                        .collect(),
                };
                match taken {
                    Some(name) => self.take(name, launch),
                    None => self.enqueue(Work::Launch(launch)),
                }
            }
            Entry::Unsupported { what } => {
                Err(format!("{what} is used, which recordings do not keep"))
            }
        }
    }

    fn load(&mut self, module: ModuleId, window: WindowId, ptx: &str) -> Result<(), String> {
        let ptx: Arc<str> = ptx.into();
        self.gpu.load_module(module, window, Arc::clone(&ptx)).map_err(text)?;
        let mut events = Vec::new();
        self.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
        for event in events {
            match event {
                Event::ModuleRefused { reason, .. } => return Err(reason),
                Event::ModuleLoaded { facts, .. } => {
                    let variables = facts.variables.into_iter();
                    let variables =
                        variables.map(|v| (v.name.to_string(), v.address, v.size.0)).collect();
                    self.modules.insert(module, LoadedText { text: Arc::clone(&ptx), variables });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Does something and waits until it is done.
    fn enqueue(&mut self, work: Work) -> Result<(), String> {
        self.operations += 1;
        let operation = OperationId(self.operations);
        self.gpu.enqueue(STREAM, operation, work).map_err(text)?;
        let (mut executed, mut too_long) = (0, false);
        loop {
            const TURN: u64 = 1 << 20;
            let mut events = Vec::new();
            let activity =
                self.gpu.poll(Horizon { until: None, warp_instructions: TURN }, &mut events);
            for event in events {
                if let Event::Done { outcome: Outcome::Fault(fault), .. } = event {
                    return Err(fault.to_string());
                }
            }
            executed += TURN;
            if activity == Activity::Idle {
                return if too_long { Err("a launch takes too long".to_owned()) } else { Ok(()) };
            }
            if executed > MOST_INSTRUCTIONS && !too_long {
                too_long = true;
                self.gpu.cancel(operation).map_err(text)?;
            }
        }
    }

    /// What a launch can reach by its parameters and the module's variables.
    fn reach(&mut self, params: &[u8], variables: &[Variable]) -> Result<Memory, String> {
        let live: Vec<(DeviceAddress, u64)> =
            self.live.iter().map(|(&start, &bytes)| (start, bytes)).collect();
        let mut found = pointers(params, &live);
        found.extend(variables.iter().flat_map(|variable| pointers(&variable.contents, &live)));
        let mut reached: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        while let Some(pointer) = found.pop() {
            if reached.contains_key(&pointer.buffer) {
                continue;
            }
            let (start, bytes) = live[pointer.buffer];
            let contents = self.contents(start, bytes)?;
            found.extend(pointers(&contents, &live));
            reached.insert(pointer.buffer, contents);
        }
        Ok(reached.into_iter().map(|(index, contents)| (live[index].0, contents)).collect())
    }

    /// The present contents of the same memory.
    fn again(&mut self, memory: &Memory) -> Result<Memory, String> {
        let contents = |(start, old): &(DeviceAddress, Vec<u8>)| {
            Ok((*start, self.contents(*start, old.len() as u64)?))
        };
        memory.iter().map(contents).collect()
    }

    fn contents(&mut self, start: DeviceAddress, bytes: u64) -> Result<Vec<u8>, String> {
        let mut contents = vec![0; usize::try_from(bytes).map_err(text)?];
        self.gpu.peek(start, &mut contents).map_err(text)?;
        Ok(contents)
    }

    /// Runs a launch and keeps it as an application.
    fn take(&mut self, name: &str, launch: GridSpec) -> Result<(), String> {
        let variables = self.variables(launch.module)?;
        let before = self.reach(&launch.params, &variables)?;
        self.enqueue(Work::Launch(launch.clone()))?;
        let after = self.again(&before)?;
        let variables_after = self.variables(launch.module)?;
        let harmless = self.enqueue(Work::Launch(launch.clone())).is_ok();
        let harmless = harmless && self.again(&after)? == after;
        for (start, contents) in &after {
            self.gpu.poke(*start, contents).map_err(text)?;
        }
        let addresses =
            self.modules.get(&launch.module).map_or(&[][..], |module| &module.variables);
        for ((_, address, _), variable) in addresses.iter().zip(&variables_after) {
            self.gpu.poke(*address, &variable.contents).map_err(text)?;
        }
        let restored = if harmless { Vec::new() } else { changed(&before, &after) };
        let places: Vec<(DeviceAddress, u64)> =
            before.iter().map(|(start, contents)| (*start, contents.len() as u64)).collect();
        let buffers = before.into_iter().map(|(_, contents)| {
            let pointers = pointers(&contents, &places);
            Buffer { bytes: contents.len() as u64, contents, pointers }
        });
        let module = self.modules.get(&launch.module).ok_or("a launch of no module")?;
        let application = Application {
            name: format!("{name}:{}", launch.kernel),
            modules: vec![Arc::clone(&module.text)],
            variables,
            buffers: buffers.collect(),
            pass: vec![Step {
                module: 0,
                kernel: launch.kernel.to_string(),
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.dynamic_shared,
                pointers: pointers(&launch.params, &places),
                params: launch.params,
            }],
            streams: 0,
            restored,
            answer: None,
        };
        self.found.insert(launch.kernel.to_string(), application);
        Ok(())
    }

    fn variables(&mut self, module: ModuleId) -> Result<Vec<Variable>, String> {
        let known = self.modules.get(&module).map_or(Vec::new(), |module| module.variables.clone());
        let variable = |(name, address, bytes)| {
            Ok(Variable { module: 0, name, contents: self.contents(address, bytes)? })
        };
        known.into_iter().map(variable).collect()
    }
}

/// The ranges in which two states of the same memory differ, in pages: few pokes, and little more
/// than what differs.
fn changed(before: &Memory, after: &Memory) -> Vec<Restored> {
    const PAGE: usize = 4096;
    let mut ranges: Vec<Restored> = Vec::new();
    for (buffer, ((_, old), (_, new))) in before.iter().zip(after).enumerate() {
        for (index, (old, new)) in old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate() {
            if old == new {
                continue;
            }
            let (offset, bytes) = ((index * PAGE) as u64, old.len() as u64);
            match ranges.last_mut() {
                Some(last) if last.buffer == buffer && last.offset + last.bytes == offset => {
                    last.bytes += bytes
                }
                _ => ranges.push(Restored { buffer, offset, bytes }),
            }
        }
    }
    ranges
}

/// What among these bytes points into live memory.
fn pointers(bytes: &[u8], places: &[(DeviceAddress, u64)]) -> Vec<Pointer> {
    let mut found = Vec::new();
    let first = places.first().map_or(u64::MAX, |(start, _)| start.0);
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let value = word.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        if value < first {
            continue;
        }
        let after = places.partition_point(|(start, _)| start.0 <= value);
        let Some(buffer) = after.checked_sub(1) else { continue };
        let (start, size) = places[buffer];
        // One past the end is how ends are told.
        if value - start.0 <= size {
            found.push(Pointer { at: index as u64 * 8, buffer, offset: value - start.0 });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrangement, Run, run};
    use partita_model::Dim3;

    /// Adds one to each number that a pointer in memory leads to.
    const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.global .u32 step = 1;
.visible .entry bump(.param .u64 cell)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [cell];
    ld.global.u64 %d1, [%d1];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r1, %r1, %r3, %r2;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.u32 %r4, [step];
    ld.global.u32 %r5, [%d3];
    add.u32 %r5, %r5, %r4;
    st.global.u32 [%d3], %r5;
    ret;
}
";

    fn recording() -> Vec<Entry> {
        let mut gpu = EmulatedGpu::new(Spec::named("h200").unwrap(), Options::default());
        let window = WindowId(3);
        let base = gpu.reserve(window, 1 << 22).unwrap();
        let data = DeviceAddress(base.0 + 4096);
        let grid = Dim3::linear(64);
        vec![
            Entry::Reserve { window, bytes: 1 << 22, base },
            Entry::Allocate { window, start: base, bytes: 8 },
            Entry::Allocate { window, start: data, bytes: 64 * 64 * 4 },
            // Nothing leads here.
            Entry::Allocate { window, start: DeviceAddress(base.0 + (1 << 20)), bytes: 4096 },
            Entry::Load { module: ModuleId(1), window, ptx: PTX.to_owned() },
            Entry::Write { to: base, bytes: data.0.to_le_bytes().to_vec() },
            Entry::Fill { to: data, value: 7, width: 4, count: 64 * 64 },
            Entry::Launch {
                module: ModuleId(1),
                kernel: "bump".to_owned(),
                grid,
                block: Dim3::linear(64),
                cluster: None,
                dynamic_shared: 0,
                access: vec![(base, 1 << 22)],
                params: base.0.to_le_bytes().to_vec(),
                sms: None,
            },
        ]
    }

    #[test]
    fn a_launch_becomes_an_application_with_its_memory() {
        let (found, reason) = applications("test", &recording(), 1);
        assert_eq!(reason, None);
        let [bump] = &found[..] else { panic!("one kernel: {found:?}") };
        assert_eq!(bump.name, "test:bump");
        assert_eq!(bump.buffers.len(), 2, "what the parameters lead to");
        assert_eq!(bump.buffers[0].pointers, [Pointer { at: 0, buffer: 1, offset: 0 }]);
        assert_eq!(
            bump.buffers[1].contents[..4],
            7_u32.to_le_bytes(),
            "as it was before the launch"
        );
        assert_eq!(bump.pass[0].pointers, [Pointer { at: 0, buffer: 0, offset: 0 }]);
        assert_eq!(bump.variables[0].contents, 1_u32.to_le_bytes());
        let all = Restored { buffer: 1, offset: 0, bytes: 64 * 64 * 4 };
        assert_eq!(bump.restored, [all], "twice is not once");
        assert!(applications("test", &recording(), 65).0.is_empty());

        // It runs elsewhere, beside another of its kind.
        let spec = Spec::named("cd-search-24").unwrap();
        let profiles = crate::Profiles::new();
        let how = Run {
            spec: &spec,
            arrangement: Arrangement::Even,
            seed: 1,
            cycles: 50_000,
            launches: Vec::new(),
            arrivals: Vec::new(),
            profiles,
            outputs: false,
        };
        let shared = run(&[bump, bump], &how).unwrap();
        assert!(shared.shares.iter().all(|share| share.track.ctas() >= 64));
    }
}
