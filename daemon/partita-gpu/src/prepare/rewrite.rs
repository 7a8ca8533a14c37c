//! From a module's text to the text that the device loads: the forms of its kernels, and what the
//! engine must know of each.
//!
//! A form adds some kilobytes to a kernel, however small the kernel is ([`Sizes`]). So the kernels
//! of a module with very many small ones get their forms when they are first launched
//! ([`super::later`]). Every step replaces the module of the step before, which is dropped.

use super::later::later;
use super::{Bounds, KernelShape, MEMORY_PER_BYTE, Prepared, Target, refused};
use partita_engine::{
    Fallback, Fence, KernelForm, PrepareError, PreparedKernel, PreparedModule, Purpose,
    RegisterBound, Slice,
};
use partita_model::{CudaResult, Limits, Originals, ParamLayout, Sharing};
use partita_ptx::analysis::spin::Spins;
use partita_ptx::count::{Beside, beside};
use partita_ptx::output::output_of;
use partita_ptx::{
    Blocks, Calls, Ends, Errors, FuncId, Kernel, KernelReport, Module, Outcome, Printed, Reach,
    Refusal, Rewrite, Rewritten, WorkerOptions, cancel_with, choose, contain, originals, slice,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The largest text, in bytes, whose kernels get counting forms. These take three times as long to
/// prepare and load. A program of 37 algorithms of Thrust has 4 MB. Other kernels are classified by
/// probing.
const MOST_COUNTED_TEXT: usize = 8 << 20;

/// Bytes of text that a worker adds to its kernel.
const WORKER_BYTES: u64 = 12 << 10;
/// Bytes of text that a counting worker beside it adds.
const COUNTING_BYTES: u64 = 16 << 10;
/// Bytes that all forms of a module may add, beside [`GROWTH`].
const LEAST_ROOM: u64 = 8 << 20;
/// Bytes that all forms of a module may add for each byte of its text.
const GROWTH: u64 = 4;
/// Bytes of memory for each byte that forms add to a text, while they are prepared.
const MEMORY_PER_ADDED_BYTE: u64 = 12;

/// Why a kernel that is neither worker nor ticket does not run in slices either.
const WAITS: &str = "its CTAs may wait for each other, so it does not run in slices";

/// What a module has room for.
struct Sizes {
    /// Forms of all kernels.
    forms: bool,
    /// Forms that count.
    counts: bool,
    /// Bytes of text that forms may have which come later.
    room_bytes: u64,
}

impl Sizes {
    fn of(kernels: usize, text_bytes: usize, limits: &Limits) -> Sizes {
        let (kernels, text) = (kernels as u64, text_bytes as u64);
        let memory = u64::from(limits.prepare_mib) << 20;
        let left = memory.saturating_sub(text.saturating_mul(MEMORY_PER_BYTE));
        let most = left / MEMORY_PER_ADDED_BYTE;
        let room = LEAST_ROOM.saturating_add(text.saturating_mul(GROWTH)).min(most);
        // Each form has the kernel's own text again.
        let fits = |bytes: u64, forms: u64| {
            let frames = kernels.saturating_mul(bytes);
            frames <= room && frames.saturating_add(text.saturating_mul(forms)) <= most
        };
        let counts = text_bytes <= MOST_COUNTED_TEXT && fits(WORKER_BYTES + COUNTING_BYTES, 3);
        Sizes { forms: fits(WORKER_BYTES, 1), counts, room_bytes: room }
    }
}

/// What is known of a kernel as it was written.
struct Facts {
    hash: Arc<str>,
    spins: Spins,
    gives_up: bool,
}

/// Brings the kernels of a text into their forms.
pub(super) fn rewrite(
    text: &str,
    target: Target,
    purpose: &Purpose,
    bounds: &Bounds,
) -> Result<Prepared, PrepareError> {
    bounds.check_size(text.len())?;
    let invalid_ptx = |error: Errors| refused(CudaResult::ERROR_INVALID_PTX, error.to_string());
    let parsed = partita_ptx::parse_until(text, &bounds.stop);
    let verified = parsed.and_then(|module| partita_ptx::verify(&module).map(|()| module));
    bounds.check()?;
    let original = verified.map_err(invalid_ptx)?;
    let original = match target.guards.prints {
        true => output_of(original).module,
        false => original,
    };
    let kernels = original.kernels();
    let facts = facts(&original, &kernels, target, bounds)?;

    let confined = target.sharing == Sharing::Spatial && !matches!(purpose, Purpose::Registers(_));
    let sizes = Sizes::of(kernels.len(), text.len(), &bounds.limits);
    let later = (confined && !sizes.forms).then(|| later(&original, text, &kernels));
    let (module, fences) = fenced(original, &kernels, target, confined);
    bounds.check()?;
    let Contained { module, guarded, hidden } = contained(module, &kernels, target, confined);
    bounds.check()?;
    let Beside { module, counting } = match confined && sizes.counts {
        true => counted(module),
        false => Beside { module, counting: vec![None; kernels.len()] },
    };
    bounds.check()?;
    let options = options(&kernels, target, purpose, &sizes);
    let Rewritten { module, reports } = match confined && sizes.forms {
        true => formed(module, &options),
        false => originals(module, &options),
    };
    bounds.check()?;
    let slices = match confined && sizes.forms {
        true => sliced(module, &kernels, &facts, &reports),
        false => slice::Beside { module, entries: BTreeMap::new() },
    };
    bounds.check()?;
    let slice::Beside { module, entries: slices } = slices;
    let (module, reports, Stops { stoppable, unstoppable }) = match confined {
        true => stoppable(module, reports, &slices, target),
        false => (module, reports, Stops::default()),
    };
    bounds.check()?;

    let report_of: HashMap<&str, &KernelReport> =
        reports.iter().map(|report| (report.name.as_str(), report)).collect();
    let mut prepared = Vec::with_capacity(kernels.len());
    let mut shapes = Vec::with_capacity(kernels.len());
    let each = kernels.iter().zip(facts).zip(fences).zip(counting);
    for ((((kernel, facts), (fence, handles)), counting), index) in each.zip(0..) {
        let when = later.as_ref().map(|later| later.check(index));
        let Some(report) = report_of.get(kernel.name.as_str()) else { continue };
        let launches = partita_ptx::nested::launches(kernel);
        let hidden_shared = hidden.get(&kernel.func).copied().unwrap_or(0);
        let own_added = if launches { partita_ptx::nested::SHARED_BYTES } else { 0 };
        let (shape, form) = match report.rewritten() {
            Some(form) => {
                // Where the original is kept beside the worker, the engine reports the original's
                // facts.
                let shared_added = if form.original.is_none() { form.shared_added } else { 0 };
                let shared_added = shared_added + own_added;
                let (name, form) = confined_form(report, form, |entry| stoppable.contains(entry));
                (KernelShape { form: name, shared_added, hidden_shared, launches }, form)
            }
            None => {
                let reason = match when {
                    None if facts.spins.waits => format!("{}; {WAITS}", reasons(report.refusals())),
                    None => reasons(report.refusals()),
                    Some(Ok(())) => "its form is not prepared yet".to_owned(),
                    Some(Err(bound)) => format!("its module has very many kernels, and {bound}"),
                };
                let form = if matches!(when, Some(Ok(()))) { "later" } else { "original" };
                let form = if slices.contains_key(&kernel.name) { "slice" } else { form };
                let shape = KernelShape { form, shared_added: own_added, hidden_shared, launches };
                let abort = stoppable.contains(kernel.name.as_str());
                (shape, KernelForm::Original { reason, workspace: report.workspace, abort })
            }
        };
        // The first CTAs of a counted launch run before the others, so they must not wait for them.
        let counting = counting.filter(|name| {
            let report = report_of.get(name.as_str()).copied();
            let form = report.and_then(KernelReport::rewritten);
            !facts.spins.waits
                && form.is_some_and(|form| form.form == partita_ptx::KernelForm::Worker)
        });
        // What cannot be stopped ends the context when it fails, or occupies the device for ever.
        let unstoppable = unstoppable.get(kernel.name.as_str());
        let fence = match (fence, unstoppable.filter(|_| target.guards.contains)) {
            (Fence::Code, Some(why)) => Fence::Uncontained(why.clone()),
            (fence, _) => fence,
        };
        prepared.push(PreparedKernel {
            fence,
            hash: Some(facts.hash),
            awaits: facts.spins.waits,
            follows: facts.spins.follows,
            gives_up: facts.gives_up || guarded.contains(&kernel.func),
            hidden_shared: shape.hidden_shared,
            handles,
            loops: facts.spins.loops,
            counting: counting.map(Into::into),
            slice: slices.get(&kernel.name).map(|entry| Slice {
                entry: entry.as_str().into(),
                abort: stoppable.contains(entry),
            }),
            registers: register_bound(kernel, purpose),
            later: when.is_some_and(|when| when.is_ok()),
            ..prepared_kernel(kernel, form)?
        });
        shapes.push(shape);
    }
    drop(reports);
    let Printed { text, lines } = partita_ptx::print_with_lines(&module);
    let module = PreparedModule {
        ptx: text.into(),
        code: None,
        kernels: prepared,
        lines: Some(lines.into()),
        later: later.map(|later| later.keep(sizes.room_bytes)),
    };
    Ok(Prepared { module, shapes })
}

/// What is known of the kernels as they were written.
fn facts(
    original: &Module,
    kernels: &[Kernel],
    target: Target,
    bounds: &Bounds,
) -> Result<Vec<Facts>, PrepareError> {
    let mut calls = Calls::new(original);
    kernels
        .iter()
        .map(|kernel| {
            bounds.check()?;
            let reach = calls.reach(kernel.func);
            Ok(Facts {
                hash: hash(original, &reach).into(),
                spins: Spins::of(original, kernel.func, &reach),
                gives_up: target.guards.ends && gives_up(original, &reach),
            })
        })
        .collect()
}

/// How a kernel keeps to its window, and where its parameters hold handles.
type Held = (Fence, Arc<[u32]>);

/// The module with fences where the device asks for them, and what holds each kernel.
fn fenced(
    original: Module,
    kernels: &[Kernel],
    target: Target,
    confined: bool,
) -> (Module, Vec<Held>) {
    let Some(cell_bits) = target.guards.cell_bits.filter(|_| confined) else {
        return (original, vec![(Fence::Device, [].into()); kernels.len()]);
    };
    let options = WorkerOptions { cell_bits, ..WorkerOptions::default() };
    let Rewritten { module, reports } = partita_ptx::fence(&original, &options);
    let by_func: BTreeMap<_, _> = reports.iter().map(|report| (report.func, report)).collect();
    let mut calls = Calls::new(&module);
    let mut rights = target.guards.contains.then(|| contain::Rights::new(&module));
    let mut uncontained =
        |kernel: &Kernel| rights.as_mut()?.uncontained(&calls.reach(kernel.func).funcs);
    let fence_of = |kernel: &Kernel| match by_func.get(&kernel.func) {
        Some(report) if report.refusals().is_empty() => match uncontained(kernel) {
            Some(reason) => Fence::Uncontained(reason.to_string()),
            None => Fence::Code,
        },
        report => Fence::None(report.map(|report| reasons(report.refusals())).unwrap_or_default()),
    };
    let handles_of = |kernel: &Kernel| {
        let handles = by_func.get(&kernel.func).into_iter().flat_map(|report| &report.handles);
        // No launch has parameters there.
        handles.map(|&at| u32::try_from(at).unwrap_or(u32::MAX)).collect()
    };
    let fences = kernels.iter().map(fence_of).zip(kernels.iter().map(handles_of)).collect();
    (module, fences)
}

/// A module with guards where the hardware would refuse an access.
struct Contained {
    module: Module,
    /// The kernels that have some.
    guarded: HashSet<FuncId>,
    /// Bytes of dynamic shared memory that launches have beside what the program asks for, of
    /// kernels with some.
    hidden: HashMap<FuncId, u32>,
}

/// The module with these guards, where the device asks for them.
fn contained(module: Module, kernels: &[Kernel], target: Target, confined: bool) -> Contained {
    if !target.guards.contains || !confined {
        return Contained { module, guarded: HashSet::new(), hidden: HashMap::new() };
    }
    let Rewritten { module, reports } = contain(&module);
    let hidden = reports.iter().map(|report| (report.func, report.hidden_shared)).collect();
    let mut calls = Calls::new(&module);
    let mut is_guarded = |kernel: &&Kernel| {
        contain::is_guarded(&module, calls.reach(kernel.func).funcs.iter().copied())
    };
    let guarded =
        kernels.iter().filter(|kernel| is_guarded(kernel)).map(|kernel| kernel.func).collect();
    Contained { module, guarded, hidden }
}

/// Adds to the module a counting kernel beside each kernel.
fn counted(module: Module) -> Beside {
    beside(&module, &|_| true)
}

/// The module with its kernels in another form.
fn formed(module: Module, options: &WorkerOptions) -> Rewritten {
    choose(&module, options)
}

/// The module with a `slice` form beside each kernel that can be neither worker nor ticket. CTAs of
/// two slices never run at once, so kernels whose CTAs may wait for others get none; nor do those
/// with a barrier for cooperative launches.
fn sliced(
    module: Module,
    kernels: &[Kernel],
    facts: &[Facts],
    reports: &[KernelReport],
) -> slice::Beside {
    let waits: HashMap<&str, bool> = kernels
        .iter()
        .zip(facts)
        .map(|(kernel, facts)| (&*kernel.name, facts.spins.waits || facts.spins.follows))
        .collect();
    let wanted: HashSet<&str> = reports
        .iter()
        .filter(|report| report.rewritten().is_none() && !report.workspace)
        .map(|report| &*report.name)
        .filter(|name| waits.get(name) == Some(&false))
        .collect();
    let is_wanted = |kernel: &Kernel| wanted.contains(&*kernel.name);
    slice::beside(module, &WorkerOptions::default(), &is_wanted)
}

fn options(kernels: &[Kernel], target: Target, purpose: &Purpose, sizes: &Sizes) -> WorkerOptions {
    let registers = match purpose {
        Purpose::RunWithin(registers) => {
            registers.iter().map(|(name, count)| (name.to_string(), *count)).collect()
        }
        Purpose::Run | Purpose::Registers(_) => BTreeMap::new(),
    };
    // Counting forms, which stand beside the program's kernels by now, need no originals.
    let beside_forms = match target.originals {
        Originals::Short | Originals::Alone if sizes.forms => {
            kernels.iter().map(|kernel| kernel.name.clone()).collect()
        }
        _ => BTreeSet::new(),
    };
    WorkerOptions {
        keep_originals: true,
        beside: beside_forms,
        grid_workspace: true,
        registers,
        ..WorkerOptions::default()
    }
}

/// The entries that [`stoppable()`] has given the control block, and the entries that it refuses,
/// with the reasons.
#[derive(Default)]
struct Stops {
    stoppable: HashSet<String>,
    unstoppable: HashMap<String, String>,
}

/// Makes kernels stoppable, and names those that look at the control block for it. Traps stay as
/// they are where a fault ends only its grid. A kernel that spins must be stopped by the flag.
fn stoppable(
    module: Module,
    mut reports: Vec<KernelReport>,
    slices: &BTreeMap<String, String>,
    target: Target,
) -> (Module, Vec<KernelReport>, Stops) {
    let ends = match (target.guards.ends, target.guards.contains) {
        (true, true) => Ends::Always,
        (true, false) => Ends::Launch,
        (false, _) => Ends::Kept,
    };
    // Originals and slices beside other entries have no control block.
    let original = |report: &KernelReport| report.rewritten()?.original.clone();
    let mut beside: HashSet<String> = reports.iter().filter_map(original).collect();
    beside.extend(slices.values().cloned());
    let own = reports.len();
    if !beside.is_empty() {
        let entries = module.kernels();
        let beside = entries.iter().filter(|kernel| beside.contains(&kernel.name));
        reports.extend(beside.map(|kernel| KernelReport::new(kernel, Outcome::Applied)));
    }
    let stopped = cancel_with(module, &reports, ends);
    reports.truncate(own);
    let refused = stopped.reports.iter().filter(|report| !report.refusals().is_empty());
    let unstoppable =
        refused.map(|report| (report.name.clone(), reasons(report.refusals()))).collect();
    let changed = stopped.reports.into_iter().filter(|report| !report.added.is_empty());
    let stoppable = changed.map(|report| report.name).collect();
    (stopped.module, reports, Stops { stoppable, unstoppable })
}

fn register_bound(kernel: &Kernel, purpose: &Purpose) -> RegisterBound {
    match purpose {
        Purpose::RunWithin(_) => RegisterBound::Settled,
        _ if kernel.max_registers.is_some() => RegisterBound::Settled,
        _ if kernel.is_bounded() => RegisterBound::Blocks,
        _ => RegisterBound::Nothing,
    }
}

/// The form that confines a kernel to its application's SMs, and the form's name.
fn confined_form(
    report: &KernelReport,
    form: &Rewrite,
    stops: impl Fn(&str) -> bool,
) -> (&'static str, KernelForm) {
    let fallback = form.original.as_deref().map(|entry| Fallback {
        entry: entry.into(),
        for_broken_rows: form.blocks == Blocks::FullRows,
        for_cooperative: form.needs_original,
        abort: stops(entry),
    });
    let cta_values = Some(form.cta_values.clone());
    match form.form {
        partita_ptx::KernelForm::Worker => ("worker", KernelForm::Worker { cta_values, fallback }),
        partita_ptx::KernelForm::Ticket => {
            let reason = reasons(&report.passed_over);
            let clusters = form.clusters;
            ("ticket", KernelForm::Ticket { cta_values, fallback, reason, clusters })
        }
    }
}

/// Whether a kernel of this reach may execute `trap`, or fail an assertion.
fn gives_up(module: &Module, reach: &Reach) -> bool {
    reach.funcs.iter().any(|&id| {
        let function = module.func(id);
        let body = function.body.as_ref();
        module.text(function.name) == "__assertfail"
            || body.is_some_and(|body| {
                body.insts().any(|(_, inst)| module.form(inst).op == partita_ptx::Op::Trap)
            })
    })
}

fn prepared_kernel(kernel: &Kernel, form: KernelForm) -> Result<PreparedKernel, PrepareError> {
    let small = |bytes: u64| {
        u32::try_from(bytes).map_err(|_| {
            let text = format!("kernel `{}` has parameters of {bytes} bytes", kernel.name);
            refused(CudaResult::ERROR_INVALID_PTX, text)
        })
    };
    let params = kernel
        .params
        .iter()
        .map(|param| Ok(ParamLayout { offset: small(param.offset)?, bytes: small(param.size)? }))
        .collect::<Result<_, PrepareError>>()?;
    // The pass keeps parameter names and appends its own parameter.
    let name: Arc<str> = kernel.name.as_str().into();
    Ok(PreparedKernel {
        entry: Arc::clone(&name),
        registers: RegisterBound::Nothing,
        fence: Fence::Device,
        hash: None,
        awaits: false,
        follows: false,
        gives_up: false,
        hidden_shared: 0,
        handles: [].into(),
        loops: true,
        counting: None,
        slice: None,
        later: false,
        name,
        params,
        param_bytes: small(kernel.param_bytes)?,
        form,
    })
}

/// A name for a kernel's code. Equal code has the same name in every module and at every place.
fn hash(module: &Module, reach: &Reach) -> String {
    let digest = Sha256::digest(partita_ptx::print_kernel(module, reach));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The most reasons that a form's refusal names: a large kernel may have thousands.
const MOST_REASONS: usize = 4;

/// Why a form does not serve a kernel: the first reasons that differ, each with its first line.
fn reasons(refusals: &[Refusal]) -> String {
    let mut named: Vec<&Refusal> = Vec::new();
    for refusal in refusals {
        let is_new = named.iter().all(|known| known.reason != refusal.reason);
        if is_new && named.len() < MOST_REASONS {
            named.push(refusal);
        }
    }
    let mut said: Vec<String> = named.iter().map(ToString::to_string).collect();
    if refusals.len() > named.len() {
        said.push(format!("further places: {}", refusals.len() - named.len()));
    }
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::Guards;
    use partita_ptx::{Pos, Reason};

    /// Only where kernels are fenced by their code, launches are held to the program's objects.
    #[test]
    fn handles_are_known_where_kernels_are_fenced() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u32 n, .param \
                    .u64 a, .param .u64 b)\n{\n.reg .b64 %d; .reg .f32 %f<5>;\nld.param.u64 %d, \
                    [b];\ntex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d, {%f1}];\nret;\n}\n";
        let module = partita_ptx::parse(text).unwrap();
        let kernels = module.kernels();
        let of = |cell_bits| {
            let guards = Guards { cell_bits, ends: true, prints: false, contains: false };
            let target = Target { guards, ..Target::from(Sharing::Spatial) };
            fenced(module.clone(), &kernels, target, true).1
        };
        assert_eq!(of(Some(39)), [(Fence::Code, [16].into())]);
        assert_eq!(of(None), [(Fence::Device, [].into())]);
    }

    #[test]
    fn reasons_are_named_once_and_few() {
        let refusal = |line, what: &str| Refusal {
            pos: Pos { line, col: 1 },
            reason: Reason::Cluster { what: what.to_owned() },
        };
        let said = reasons(&[refusal(3, "mapa"), refusal(4, "mapa"), refusal(5, "getctarank")]);
        assert!(said.starts_with("line 3: `mapa`"), "{said}");
        assert!(
            said.contains("line 5: `getctarank`") && said.ends_with("; further places: 1"),
            "{said}"
        );
        let many: Vec<Refusal> = (1..=9).map(|line| refusal(line, &format!("x{line}"))).collect();
        assert!(reasons(&many).ends_with("; further places: 5"), "{}", reasons(&many));
        assert_eq!(reasons(&many[..2]).matches(';').count(), 1);
    }
}
