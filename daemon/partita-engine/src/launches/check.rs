//! What CUDA checks at a launch, and which form the launch takes.
//!
//! Most kernels are workers, some tickets. Some have their original beside it, and launches that
//! the form cannot serve take that ([`crate::Fallback`]).

use super::params::{Hidden, Params};
use super::spec::{AsWritten, Barrier, Form, Pending, Sliced, Spec};
use crate::handover::ledger::{Ledger, Usage};
use crate::kernel::Kernel;
use crate::sessions::{LoadedInstance, Refusal};
use crate::{Fence, KernelForm};
use partita_device::{Guards, KernelFacts};
use partita_model::{
    CudaResult, DeviceAddress, DeviceFacts, Dim3, LaunchId, Nanos, TenantId, cluster, request,
};

/// Limits of CUDA's grids and blocks ("Technical Specifications per Compute Capability").
const MAX_GRID: Dim3 = Dim3::new((1 << 31) - 1, 65_535, 65_535);
const MAX_BLOCK: Dim3 = Dim3::new(1024, 1024, 64);

/// Why a kernel that runs in slices runs whole.
const COOPERATIVE: &str =
    "launched cooperatively, all its CTAs must be resident at once, so it does not run in slices";

/// What launches are checked against.
pub(crate) struct Checker<'a> {
    pub(crate) facts: &'a DeviceFacts,
    pub(crate) ledger: &'a Ledger,
}

impl Checker<'_> {
    /// What CUDA checks at a launch, with CUDA's codes. `id` is the launch's.
    pub(crate) fn check(
        &self,
        id: LaunchId,
        instance: &LoadedInstance,
        mut request: request::Launch,
    ) -> Result<Box<Pending>, Refusal> {
        let kernel =
            usize::try_from(request.kernel).ok().and_then(|index| instance.kernels.get(index));
        let kernel = kernel.ok_or(CudaResult::ERROR_INVALID_HANDLE)?.clone();
        self.check_extents(&request)?;
        check_cluster(&kernel, &request)?;
        if request.params.len() != usize::try_from(kernel.param_bytes).unwrap_or(usize::MAX) {
            let (name, has, wants) = (&kernel.name, request.params.len(), kernel.param_bytes);
            return Err(invalid(format!(
                "kernel `{name}` takes {wants} bytes of parameters, not {has}"
            )));
        }
        request.dynamic_shared = request.dynamic_shared.saturating_add(kernel.hidden_shared);
        let (cta, form) = self.choose_form(&kernel, &request)?;
        let grid = request.grid;
        let cluster = cluster_of(&kernel, request.cluster, &form);
        let spec = Spec {
            id,
            asked: Nanos(0),
            module: kernel.module,
            lines: kernel.lines.clone(),
            kernel,
            grid,
            first: 0,
            end: u64::try_from(grid.count()).expect("a grid within CUDA's limits"),
            block: request.block,
            dynamic_shared: request.dynamic_shared,
            params: Params::new(request.params),
            cooperative: request.cooperative,
            cluster,
            awaits_host: false,
            profile: None,
            cta,
        };
        Ok(Box::new(Pending { spec, form }))
    }

    fn check_extents(&self, request: &request::Launch) -> Result<(), Refusal> {
        let (grid, block) = (request.grid, request.block);
        if grid.is_empty() || exceeds(grid, MAX_GRID) {
            return Err(invalid(format!("grid {grid} is outside 1,1,1 to {MAX_GRID}")));
        }
        let most = self.facts.threads_per_cta;
        if block.is_empty() || exceeds(block, MAX_BLOCK) || block.count() > most.into() {
            return Err(invalid(format!("block {block} is empty or has more than {most} threads")));
        }
        Ok(())
    }

    /// What a CTA takes up, and the form.
    fn choose_form(
        &self,
        kernel: &Kernel,
        request: &request::Launch,
    ) -> Result<(Usage, Form), Refusal> {
        let (block, dynamic_shared) = (request.block, request.dynamic_shared);
        let worker = known(&kernel.facts, &kernel.name)?;
        let as_written = |entry: &std::sync::Arc<str>, reason: Option<String>, barrier, abort| {
            let (entry, keeps_to) = (entry.clone(), None);
            Form::Original(AsWritten { entry, reason, barrier, abort, keeps_to })
        };
        let check = |facts| self.check_resources(kernel, facts, block, dynamic_shared);
        let as_worker = check(worker);
        if kernel.is_machine_code && request.cooperative {
            let why = "machine code, launched cooperatively: all its CTAs must be resident at once";
            let form = as_written(&kernel.entry, Some(why.to_owned()), Barrier::None, false);
            return Ok((as_worker?, form));
        }
        let own = match &kernel.form {
            KernelForm::Worker { .. } => Form::Worker(None),
            KernelForm::Ticket { .. } => Form::Ticket,
            KernelForm::MachineCode => Form::MachineCode,
            KernelForm::Original { workspace, abort, .. } => {
                let barrier = match (workspace, request.cooperative) {
                    (false, _) => Barrier::None,
                    (true, false) => Barrier::Unused,
                    (true, true) => Barrier::Used,
                };
                as_written(&kernel.entry, None, barrier, *abort)
            }
        };
        let (Some(fallback), Some(original)) = (kernel.form.fallback(), &kernel.fallback_facts)
        else {
            return Ok(self.in_slices(kernel, request, (as_worker?, own)));
        };
        let why = if request.cooperative && fallback.for_cooperative {
            "it is launched cooperatively, so all its CTAs must be resident at once".to_owned()
        } else if fallback.for_broken_rows && !rows_fill_warps(block) {
            format!(
                "its lanes synchronise after an exit, and the worker form is right only for \
                 blocks whose rows fill warps; one of {block} is launched (make x a multiple of 32)"
            )
        } else {
            match as_worker {
                Ok(cta) => return Ok((cta, own)),
                Err(_) => "with what its form adds, its CTA does not fit an SM".to_owned(),
            }
        };
        let cta = check(known(original, &kernel.name)?)?;
        Ok((cta, as_written(&fallback.entry, Some(why), Barrier::None, fallback.abort)))
    }

    /// The `slice` form for a launch that would run alone, where the form serves the launch.
    fn in_slices(
        &self,
        kernel: &Kernel,
        request: &request::Launch,
        (cta, mut form): (Usage, Form),
    ) -> (Usage, Form) {
        let (Form::Original(whole), Some(slice)) = (&mut form, &kernel.slice) else {
            return (cta, form);
        };
        if request.cooperative {
            let why = match (&whole.reason, &kernel.form) {
                (Some(reason), _) | (None, KernelForm::Original { reason, .. }) => reason,
                _ => "",
            };
            whole.reason = Some(format!("{why}; {COOPERATIVE}"));
            return (cta, form);
        }
        let facts = kernel.slice_facts.as_ref().and_then(|facts| facts.as_ref().ok());
        let (block, shared) = (request.block, request.dynamic_shared);
        let fits = |facts| self.check_resources(kernel, facts, block, shared).ok();
        let Some(cta_of_slice) = facts.and_then(fits) else { return (cta, form) };
        let (entry, whole) = (slice.entry.clone(), whole.clone());
        let sliced = Sliced { entry, abort: slice.abort, whole, ticket: None };
        (cta_of_slice, Form::Slice(sliced))
    }

    /// What one CTA takes up, if an SM can hold it. `facts`: those of the kernel's code that runs.
    pub(crate) fn check_resources(
        &self,
        kernel: &Kernel,
        facts: &KernelFacts,
        block: Dim3,
        dynamic_shared: u32,
    ) -> Result<Usage, Refusal> {
        let threads = u32::try_from(block.count()).map_err(|_| CudaResult::ERROR_INVALID_VALUE)?;
        let shared = facts.static_shared.0 + u64::from(dynamic_shared);
        if shared > self.facts.shared_per_cta_optin.0 {
            let most = self.facts.shared_per_cta_optin;
            let guards = match kernel.hidden_shared {
                0 => String::new(),
                bytes => format!(", {bytes} B of them for the kernel's guards,"),
            };
            let text = format!("{shared} B of shared memory per CTA{guards} are more than {most}");
            return Err(invalid(text));
        }
        let cta = Usage::of_cta(self.facts, facts, threads, dynamic_shared);
        if threads > facts.max_threads || self.ledger.occupancy(cta) == 0 {
            let text =
                format!("no SM can hold a CTA of {threads} threads of kernel `{}`", facts.name);
            return Err(Refusal::Explained(CudaResult::ERROR_LAUNCH_OUT_OF_RESOURCES, text));
        }
        Ok(cta)
    }
}

/// Gives a kernel that keeps to its window by its own code the window. Refuses a kernel that
/// nothing keeps there, or whose faults may reach others, and handles that are no objects of the
/// program (`is_object`), unless its tenant may run such kernels.
pub(crate) fn fence(
    guards: Guards,
    window: DeviceAddress,
    (tenant, may_run_unfenced): (TenantId, bool),
    spec: &mut Spec,
    is_object: impl Fn(u64) -> bool,
) -> Result<(), Refusal> {
    let name = &spec.kernel.name;
    let reason = match &spec.kernel.fence {
        _ if may_run_unfenced => None,
        Fence::Device | Fence::Code => None,
        Fence::Uncontained(why) => {
            Some((format!("faults of kernel `{name}` may end or stop everybody's work"), why))
        }
        Fence::None(why) => {
            Some((format!("kernel `{name}` cannot be held to its program's memory"), why))
        }
    };
    if let Some((what, why)) = reason {
        let text = format!(
            "{what}, and {tenant} may not run such kernels: {why}; an administrator may allow it \
             by `[[policy.unfenced]]`"
        );
        return Err(Refusal::Explained(CudaResult::ERROR_NOT_PERMITTED, text));
    }
    if let (Fence::Code | Fence::Uncontained(_), Some(bits)) =
        (&spec.kernel.fence, guards.cell_bits)
    {
        let is_own = |handle: Option<u64>| {
            may_run_unfenced || handle.is_some_and(|handle| handle == 0 || is_object(handle))
        };
        if let Some((at, handle)) = handles(spec).find(|&(_, handle)| !is_own(handle)) {
            let handle = handle.map_or("none".to_owned(), |handle| format!("{handle:#x}"));
            let text = format!(
                "kernel `{name}`: the handle at byte {at} of its parameters, {handle}, is no \
                 texture or surface object of this program"
            );
            return Err(Refusal::Explained(CudaResult::ERROR_INVALID_HANDLE, text));
        }
        spec.params.push(Hidden::Cell, window.0 & !((1 << bits) - 1));
    }
    Ok(())
}

/// The handles among a launch's parameters, with their places; `None` where parameters end before.
fn handles(spec: &Spec) -> impl Iterator<Item = (u32, Option<u64>)> {
    let params = spec.params.bytes();
    spec.kernel.handles.iter().map(|&at| {
        let bytes = usize::try_from(at).ok().and_then(|at| params.get(at..)?.first_chunk());
        (at, bytes.map(|bytes| u64::from_le_bytes(*bytes)))
    })
}

/// What the device said of a kernel when it loaded it.
fn known<'f>(
    facts: &'f Result<KernelFacts, String>,
    name: &str,
) -> Result<&'f KernelFacts, Refusal> {
    facts.as_ref().map_err(|reason| {
        let text = format!("kernel `{name}` cannot run on this device: {reason}");
        Refusal::Explained(CudaResult::ERROR_NOT_SUPPORTED, text)
    })
}

/// What CUDA checks of clusters.
fn check_cluster(kernel: &Kernel, request: &request::Launch) -> Result<(), Refusal> {
    let (grid, cluster, name) = (request.grid, request.cluster, &kernel.name);
    if cluster.count() == 1 {
        return Ok(());
    }
    if !cluster::fills(cluster, grid) {
        let text = format!("kernel `{name}`: clusters of {cluster} do not fill a grid of {grid}");
        return Err(Refusal::Explained(CudaResult::ERROR_INVALID_CLUSTER_SIZE, text));
    }
    let required = kernel.required_cluster();
    if let Some(required) = required.filter(|required| *required != cluster) {
        let text = format!("kernel `{name}`: clusters of {cluster}; its code requires {required}");
        return Err(Refusal::Explained(CudaResult::ERROR_INVALID_CLUSTER_SIZE, text));
    }
    Ok(())
}

/// The clusters in which a launch runs. A kernel that has a form and knows no clusters reaches no
/// other CTA of its own ([`partita_device::GridSpec::cluster`]), so its CTAs run one by one.
fn cluster_of(kernel: &Kernel, asked: Dim3, form: &Form) -> Dim3 {
    match (form, &kernel.form) {
        (Form::Ticket, KernelForm::Ticket { clusters: true, .. }) if asked.count() == 1 => {
            kernel.required_cluster().unwrap_or(asked)
        }
        (Form::Ticket, KernelForm::Ticket { clusters: true, .. })
        | (Form::Original(_) | Form::Grouped(_) | Form::MachineCode, _) => asked,
        (Form::Worker(_) | Form::Ticket | Form::Slice(_), _) => Dim3::linear(1),
    }
}

fn invalid(text: String) -> Refusal {
    Refusal::Explained(CudaResult::ERROR_INVALID_VALUE, text)
}

/// Whether every warp of a block lies in one row, or the block is a row.
const fn rows_fill_warps(block: Dim3) -> bool {
    block.x.is_multiple_of(32) || (block.y == 1 && block.z == 1)
}

fn exceeds(extent: Dim3, limit: Dim3) -> bool {
    extent.x > limit.x || extent.y > limit.y || extent.z > limit.z
}
