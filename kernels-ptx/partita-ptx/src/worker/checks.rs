//! Checks whether a kernel can be a worker or a ticket, and collects the facts that the frame
//! needs.
//!
//! The checks collect all reasons, not only the first, so that `explain` can show them together.
//! They look at the kernel and at every function in its reach.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::hazard::{Callees, Waits, hazards};
use crate::analysis::spin::{Looks, looks_in_loop};
use crate::analysis::sync::sync_of;
use crate::analysis::{Masks, Sync};
use crate::ir::{
    Body, Dim, Form, FuncId, Inst, Mod, Module, Op, Operand, Part, Pos, Slice, Space, Special,
    Stmt, VarId, Version,
};
use crate::kernels::{Calls, Kernel, Reach};
use crate::report::{Blocks, KernelReport, Outcome, Reason, Refusal};

use super::copies::keeps_state;
use super::{CLUSTER_SLOT_BYTES, SLOT_BYTES, WorkerOptions};

/// The form for which a kernel is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Threads stay and run the next CTA.
    Worker,
    /// Threads exit where the original's do.
    Ticket,
    /// As a ticket; each CTA runs exactly one CTA of the original, without shared memory of the
    /// form.
    Slice,
}

impl Kind {
    /// Bytes of parameters that the form adds.
    const fn param_bytes(self) -> u64 {
        match self {
            Self::Worker | Self::Ticket => 8,
            Self::Slice => crate::slice::PARAM_BYTES,
        }
    }
}

/// Hardware barriers of a CTA (PTX ISA, `bar`).
const BARRIERS: u64 = 16;

/// The facts of a kernel that the frame needs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Blocks that the form is right for.
    pub blocks: Blocks,
    /// Whether the original stays beside the form.
    pub original: Beside,
    /// Functions that read the grid, and the functions through which the kernel reaches them.
    pub grid_functions: BTreeSet<FuncId>,
    /// Number of the barrier that the frame uses.
    barrier: u64,
    /// Threads of a warp may arrive at the frame's barrier one by one.
    unaligned: bool,
    /// The body starts asynchronous copies.
    drain: bool,
    /// Threads may go from one CTA to the next by themselves.
    independent: bool,
    /// PTX 6.3 for `sm_70`: `nanosleep` and `fence`.
    modern: bool,
    /// The kernel knows clusters: a ticket claims for a whole one.
    pub clusters: bool,
    /// Bytes of shared memory that the frame takes.
    slot_bytes: u64,
}

/// Bytes of a line of shared memory, one word of each bank. Copies of rows fill whole lines.
pub(crate) const LINE_BYTES: u64 = 128;
/// Bytes after which the pattern of a swizzle repeats (PTX ISA, "Asynchronous Warpgroup Level
/// Matrix Shared Memory Layout").
pub(crate) const SWIZZLE_BYTES: u64 = 1024;

/// Whether the original of a kernel stays beside its form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beside {
    /// It goes.
    Gone,
    /// It stays, and the form serves every launch too.
    Wanted,
    /// It stays, and serves launches that the form cannot.
    Needed,
}

impl Beside {
    pub(crate) fn is_kept(self) -> bool {
        self != Beside::Gone
    }
}

impl Facts {
    /// Gives the frame's slot its size. Kernels that call functions share a slot, so it grows only.
    pub fn size_slot(&self, module: &mut Module, slot: VarId) {
        let bytes = slot_bytes(module, slot).max(self.slot_bytes);
        module.vars[slot.0 as usize].dims = vec![Dim::Count(bytes)];
    }

    /// The statements for a mark of the frame.
    pub fn fill(&self, mark: &str, module: &mut Module, body: &mut Body) -> Option<Stmt> {
        let mark = match mark {
            "CTA BARRIER" if !self.independent => "BARRIER",
            "RUN BARRIER" if self.independent => "BARRIER",
            other => other,
        };
        let (text, operand) = match mark {
            // PTX ISA, ".pragma": "nounroll".
            "NOUNROLL" => return Some(Stmt::Pragma(module.names.intern("\"nounroll\""))),
            "SLEEP" if self.modern => ("nanosleep.u32", Some(Operand::Int(1000))),
            "FENCE SC" if self.modern => ("fence.sc.sys", None),
            "FENCE SC" => ("membar.sys", None),
            "FENCE" if self.modern => ("fence.acq_rel.gpu", None),
            "FENCE" => ("membar.gl", None),
            "FENCE CTA" if self.modern => ("fence.acq_rel.cta", None),
            "FENCE CTA" => ("membar.cta", None),
            "BARRIER" if self.unaligned && self.modern => {
                ("barrier.sync", Some(Operand::Int(self.barrier)))
            }
            "BARRIER" => ("bar.sync", Some(Operand::Int(self.barrier))),
            "DRAIN" if self.drain => ("cp.async.wait_all", None),
            _ => return None,
        };
        let form = module.forms.intern(text, &mut module.names);
        let operands = operand.map_or(Slice::EMPTY, |operand| body.add_operands(&[operand]));
        Some(Stmt::Inst(Inst { guard: None, form, operands, pos: Pos::default() }))
    }
}

/// Bytes of shared memory that a slot takes.
pub(crate) fn slot_bytes(module: &Module, slot: VarId) -> u64 {
    match module.var(slot).dims.as_slice() {
        [Dim::Count(bytes)] => *bytes,
        _ => 0,
    }
}

/// Tells the reports what their slots take, when every kernel has sized them.
pub(crate) fn report_slots(module: &Module, reports: &mut [KernelReport]) {
    for report in reports {
        if let Outcome::Rewritten(rewrite) = &mut report.outcome {
            rewrite.shared_added = slot_bytes(module, rewrite.slot);
        }
    }
}

/// Checks the kernels of a module, and each function once, however many kernels reach it.
pub(crate) struct Checker<'m> {
    module: &'m Module,
    kind: Kind,
    calls: RefCell<Calls<'m>>,
    /// The findings in functions that are not kernels.
    functions: BTreeMap<FuncId, Found>,
    /// What each function and its reach wait for, by callee; `None` for calls through registers.
    waits: RefCell<BTreeMap<Option<FuncId>, Waits>>,
    /// What each function itself waits for.
    own_waits: RefCell<BTreeMap<FuncId, Waits>>,
}

impl<'m> Checker<'m> {
    pub fn new(module: &'m Module, kind: Kind) -> Self {
        Self {
            module,
            kind,
            calls: RefCell::new(Calls::new(module)),
            functions: BTreeMap::new(),
            waits: RefCell::default(),
            own_waits: RefCell::default(),
        }
    }

    fn look(&self, id: FuncId, is_kernel: bool) -> Found {
        let mut checks =
            Checks { shared: self, module: self.module, kind: self.kind, found: Found::default() };
        checks.function(id, is_kernel);
        checks.found
    }

    /// The facts for the frame where the kernel can take the form, else the reasons.
    pub fn check(
        &mut self,
        kernel: &Kernel,
        options: &WorkerOptions,
    ) -> Result<Facts, Vec<Refusal>> {
        if self.module.stop.is_asked() {
            let pos = self.module.func(kernel.func).pos;
            return Err(vec![Refusal { pos, reason: Reason::Stopped }]);
        }
        let reach = self.calls.borrow_mut().reach(kernel.func);
        let mut found = self.look(kernel.func, true);
        for &func in reach.funcs.iter().filter(|&&func| func != kernel.func) {
            if !self.functions.contains_key(&func) {
                let in_function = self.look(func, false);
                self.functions.insert(func, in_function);
            }
            found.add(&self.functions[&func]);
        }
        let checks = Checks { shared: self, module: self.module, kind: self.kind, found };
        checks.conclude(kernel, &reach, options)
    }
}

/// The findings in a function, or in the reach of a kernel.
#[derive(Clone, Debug, Default)]
struct Found {
    refusals: Vec<Refusal>,
    drain: bool,
    full_rows: bool,
    plain_barriers: BTreeSet<u64>,
    counted_barriers: BTreeSet<u64>,
    /// Grid registers that functions read: the function, the place, the register.
    grid_reads: Vec<(FuncId, Pos, String)>,
    /// Whether a thread may find out which CTA another thread is in.
    together: bool,
    /// Whether functions look at what other CTAs may write ([`crate::analysis::spin`]).
    looks: bool,
    /// Whether the code names its cluster. A ticket may.
    clusters: bool,
    /// Whether an instruction swizzles by the bits of an address in shared memory.
    swizzles: bool,
}

impl Found {
    fn add(&mut self, other: &Self) {
        self.refusals.extend_from_slice(&other.refusals);
        self.drain |= other.drain;
        self.full_rows |= other.full_rows;
        self.plain_barriers.extend(&other.plain_barriers);
        self.counted_barriers.extend(&other.counted_barriers);
        self.grid_reads.extend_from_slice(&other.grid_reads);
        self.together |= other.together;
        self.looks |= other.looks;
        self.clusters |= other.clusters;
        self.swizzles |= other.swizzles;
    }
}

/// Whether a bound on registers may fail. `ptxas` holds a function to the bound where the kernel
/// calls it by name; it does not know the target of a call through a register.
fn may_exceed(kernel: &Kernel, reach: &Reach, options: &WorkerOptions) -> bool {
    reach.indirect && options.registers.contains_key(&kernel.name) && !kernel.is_bounded()
}

/// `.reqntid` that settles the question.
fn rows_are_full(kernel: &Kernel) -> bool {
    kernel.required_threads.is_some_and(|block| Blocks::FullRows.fit(block))
}

/// More than one way out, or a guarded one.
fn has_early_exit(module: &Module, body: &Body) -> bool {
    let leaving = |inst: &Inst| matches!(module.form(inst).op, Op::Ret | Op::Exit);
    let mut ways = body.insts().filter(|(_, inst)| leaving(inst));
    let first = ways.next();
    ways.next().is_some() || first.is_some_and(|(_, inst)| inst.guard.is_some())
}

struct Checks<'a, 'm> {
    shared: &'a Checker<'m>,
    module: &'m Module,
    kind: Kind,
    found: Found,
}

impl Checks<'_, '_> {
    /// Concludes from the findings in a kernel's reach.
    fn conclude(
        mut self,
        kernel: &Kernel,
        reach: &Reach,
        options: &WorkerOptions,
    ) -> Result<Facts, Vec<Refusal>> {
        let (module, kind) = (self.module, self.kind);
        let entry = module.func(kernel.func);
        for directive in &entry.directives {
            let word = module.text(directive.name);
            if matches!(word, "reqnctapercluster" | "explicitcluster" | "maxclusterrank") {
                self.cluster(directive.pos, || format!(".{word}"));
            }
            // A ticket would have to claim a grid that is counted in clusters.
            if word == "blocksareclusters" {
                self.refuse(directive.pos, Reason::Cluster { what: format!(".{word}") });
            }
        }
        let slot_bytes = self.slot_bytes(kernel);
        self.limits(kernel, slot_bytes, options);
        let barrier = self.free_barrier(entry.pos);
        let grid_functions = self.grid_functions(reach);
        let blocks = if self.found.full_rows && !rows_are_full(kernel) {
            Blocks::FullRows
        } else {
            Blocks::Any
        };
        let needed = kind != Kind::Slice
            && options.keep_originals
            && (blocks != Blocks::Any
                || kernel.dynamic_shared
                || self.found.looks
                || self.found.clusters
                || entry.body.as_ref().is_some_and(|body| looks_in_loop(module, body))
                || may_exceed(kernel, reach, options));
        let state = entry.body.as_ref().and_then(|body| keeps_state(module, body));
        if needed && let Some(variable) = state {
            let name = module.text(variable.name).to_owned();
            self.refuse(variable.pos, Reason::StateInKernel { variable: name });
        }
        let wanted = kind != Kind::Slice && options.beside.contains(&kernel.name);
        let original = match (needed, wanted && state.is_none()) {
            (true, _) => Beside::Needed,
            (false, true) => Beside::Wanted,
            (false, false) => Beside::Gone,
        };
        let mut refusals = self.found.refusals;
        if !refusals.is_empty() {
            refusals.sort_by_key(|refusal| refusal.pos);
            return Err(refusals);
        }
        let modern = module.version >= Version { major: 6, minor: 3 } && module.sm() >= Some(70);
        let unaligned = kind == Kind::Worker
            && entry.body.as_ref().is_some_and(|body| has_early_exit(module, body));
        // Threads that do nothing together cannot tell which CTA another one runs.
        let independent = kind == Kind::Worker
            && modern
            && grid_functions.is_empty()
            && kernel.static_shared == 0
            && !kernel.dynamic_shared
            && !reach.indirect
            && !self.found.together;
        let Found { drain, clusters, .. } = self.found;
        Ok(Facts {
            blocks,
            original,
            grid_functions,
            barrier,
            unaligned,
            drain,
            independent,
            modern,
            clusters,
            slot_bytes,
        })
    }

    /// Bytes of shared memory that the frame takes. Dynamic shared memory begins behind it, and
    /// programs rely on more than its declared alignment: alone it begins at a multiple of 1,024.
    fn slot_bytes(&self, kernel: &Kernel) -> u64 {
        let least = if self.found.clusters { CLUSTER_SLOT_BYTES } else { SLOT_BYTES };
        match (kernel.dynamic_shared, self.found.swizzles) {
            (false, _) => least,
            (true, false) => least.next_multiple_of(LINE_BYTES),
            (true, true) => least.next_multiple_of(SWIZZLE_BYTES),
        }
    }

    fn refuse(&mut self, pos: Pos, reason: Reason) {
        self.found.refusals.push(Refusal { pos, reason });
    }

    /// The code names its cluster.
    fn cluster(&mut self, pos: Pos, what: impl FnOnce() -> String) {
        if self.kind == Kind::Ticket {
            self.found.clusters = true;
        } else {
            self.refuse(pos, Reason::Cluster { what: what() });
        }
    }

    fn limits(&mut self, kernel: &Kernel, added: u64, options: &WorkerOptions) {
        let pos = self.module.func(kernel.func).pos;
        if self.module.address_size != Some(64) || self.module.sm().is_none() {
            self.refuse(pos, Reason::Target);
        }
        let limit = parameter_limit(self.module);
        if !has_parameter_room(self.module, kernel, self.kind.param_bytes()) {
            self.refuse(pos, Reason::ParametersFull { bytes: kernel.param_bytes, limit });
        }
        let (bytes, limit) = (kernel.static_shared, options.static_shared_limit);
        if self.kind != Kind::Slice && bytes.next_multiple_of(16).saturating_add(added) > limit {
            self.refuse(pos, Reason::SharedFull { bytes, added, limit });
        }
    }

    fn function(&mut self, id: FuncId, is_kernel: bool) {
        let module = self.module;
        let function = module.func(id);
        let name = module.text(function.name);
        let Some(body) = &function.body else {
            self.external(function.pos, name);
            self.found.together = true;
            return;
        };
        let looks = Looks::of(module, body);
        for (_, inst) in body.insts() {
            self.found.together = self.found.together || is_together(module, body, inst);
            self.found.looks = self.found.looks || (!is_kernel && looks.looks(inst));
            self.instruction(body, inst, (!is_kernel).then_some((id, name)));
        }
        if self.kind != Kind::Worker {
            return;
        }
        // All threads see a kernel's parameters alike, and a device function's differ for all that
        // is known.
        let params = if is_kernel { function.params.as_slice() } else { &[] };
        match hazards(module, body, params, self) {
            Err(too_large) => self.refuse(function.pos, Reason::TooLarge { blocks: too_large.0 }),
            Ok(found) => {
                self.found.full_rows |= found.full_rows;
                for hazard in found.list {
                    let branch = hazard.branch.line;
                    let reason = match &body.stmts[hazard.stmt] {
                        _ if hazard.cta => Reason::ExitBeforeBarrier { branch },
                        Stmt::Inst(inst) => Reason::ExitBeforeWarpSync {
                            instruction: self.spelling(module.form(inst)),
                            branch,
                        },
                        _ => continue,
                    };
                    self.refuse(hazard.pos, reason);
                }
            }
        }
    }

    fn spelling(&self, form: &Form) -> String {
        self.module.text(form.text).to_owned()
    }

    fn external(&mut self, pos: Pos, name: &str) {
        if name.starts_with("cuda") || name.starts_with("__cudaCDP") {
            self.refuse(pos, Reason::DeviceLaunch { function: name.to_owned() });
        } else if !matches!(name, "vprintf" | "malloc" | "free" | "__assertfail") {
            self.refuse(pos, Reason::UnknownFunction { function: name.to_owned() });
        }
    }

    /// `inside` is the device function with its name; `None` in the kernel.
    fn instruction(&mut self, body: &Body, inst: &Inst, inside: Option<(FuncId, &str)>) {
        let module = self.module;
        let form = module.form(inst);
        let pos = inst.pos;
        let what = || module.text(form.text).to_owned();
        self.operands(body, inst, inst.operands, inside);
        self.found.swizzles |= matches!(form.op, Op::Wgmma | Op::Tcgen05)
            || form.op == Op::Cp && form.has(Mod::Tensor);
        let names_cluster = form.mods.contains(&Mod::Space(Space::SharedCluster));
        if names_cluster && form.op != Op::Cp || form.has(Mod::Multicast) {
            self.cluster(pos, what);
        }
        match form.op {
            Op::Exit => {
                if self.kind != Kind::Slice
                    && let Some((_, function)) = inside
                {
                    self.refuse(pos, Reason::ExitInFunction { function: function.to_owned() });
                }
            }
            Op::Bar | Op::Barrier => self.barrier(body, inst),
            Op::Mapa | Op::Getctarank => self.cluster(pos, what),
            Op::Clusterlaunchcontrol => self.refuse(pos, Reason::Cluster { what: what() }),
            _ if self.kind != Kind::Worker => {}
            Op::Mbarrier | Op::Setmaxnreg | Op::Tcgen05 => {
                self.refuse(pos, Reason::StateOutlives { instruction: what() });
            }
            Op::Cp if form.has(Mod::Bulk) || form.has(Mod::Mbarrier) => {
                self.refuse(pos, Reason::StateOutlives { instruction: what() });
            }
            Op::Cp => self.found.drain = true,
            Op::Alloca if inside.is_none() => self.refuse(pos, Reason::Alloca),
            _ => {}
        }
    }

    fn barrier(&mut self, body: &Body, inst: &Inst) {
        let module = self.module;
        let form = module.form(inst);
        let what = || module.text(form.text).to_owned();
        if form.has(Mod::Warp) {
            return;
        }
        if form.has(Mod::Cluster) {
            self.cluster(inst.pos, what);
            return;
        }
        if self.kind != Kind::Worker {
            return;
        }
        if form.has(Mod::Arrive) {
            self.refuse(inst.pos, Reason::PendingBarrier { instruction: what() });
            return;
        }
        let operands = body.operands(inst.operands);
        match operands.get(usize::from(form.has(Mod::Red))) {
            Some(&(Operand::Int(number) | Operand::Uint(number))) => {
                let counted = sync_of(module, body, inst) == Some(Sync::Counted);
                let set = if counted {
                    &mut self.found.counted_barriers
                } else {
                    &mut self.found.plain_barriers
                };
                set.insert(number);
            }
            _ => self.refuse(inst.pos, Reason::BarrierInRegister),
        }
    }

    fn operands(&mut self, body: &Body, inst: &Inst, slice: Slice, inside: Option<(FuncId, &str)>) {
        for operand in body.operands(slice) {
            match *operand {
                Operand::Special(special, part) => self.special(inst, special, part, inside),
                Operand::Vector(slice)
                | Operand::List(slice)
                | Operand::Tuple(slice)
                | Operand::Pair(slice) => {
                    self.operands(body, inst, slice, inside);
                }
                _ => {}
            }
        }
    }

    fn special(
        &mut self,
        inst: &Inst,
        special: Special,
        part: Part,
        inside: Option<(FuncId, &str)>,
    ) {
        let mut register = String::new();
        special.write(&mut register);
        let pos = inst.pos;
        match special {
            Special::Ctaid | Special::Nctaid => {
                if !matches!(part, Part::X | Part::Y | Part::Z) {
                    self.refuse(pos, Reason::GridVector { register });
                } else if let Some((function, _)) = inside {
                    self.found.grid_reads.push((function, pos, register));
                }
            }
            Special::Gridid => self.refuse(pos, Reason::GridId),
            Special::Envreg(_) => self.refuse(pos, Reason::Cooperative),
            Special::IsExplicitCluster | Special::ClusterCtarank | Special::ClusterNctarank => {
                self.cluster(pos, || register);
            }
            Special::Clusterid
            | Special::Nclusterid
            | Special::ClusterCtaid
            | Special::ClusterNctaid => {
                // Copies of functions for workers know the grid, and no cluster.
                if inside.is_some() || !matches!(part, Part::X | Part::Y | Part::Z) {
                    self.refuse(pos, Reason::Cluster { what: register });
                } else {
                    self.cluster(pos, || register);
                }
            }
            _ => {}
        }
    }

    /// The functions that need a copy that knows the original's grid. A call through a register
    /// goes to the function as it is.
    fn grid_functions(&mut self, reach: &Reach) -> BTreeSet<FuncId> {
        let module = self.module;
        let reads = std::mem::take(&mut self.found.grid_reads);
        if reads.is_empty() {
            return BTreeSet::new();
        }
        let readers: BTreeSet<FuncId> = reads.iter().map(|(id, ..)| *id).collect();
        let mut calls = self.shared.calls.borrow_mut();
        let functions = calls.callers(&reach.funcs, &readers);
        let stateful = functions.iter().any(|&id| calls.keeps_state(id));
        drop(calls);
        if reach.indirect || stateful {
            for (id, pos, register) in reads {
                let function = module.text(module.func(id).name).to_owned();
                self.refuse(pos, Reason::GridInFunction { function, register });
            }
        }
        functions
    }

    /// Barrier 0, unless the body uses it for a part of the threads; then a barrier that is not in
    /// use.
    fn free_barrier(&mut self, pos: Pos) -> u64 {
        let Found { counted_barriers, plain_barriers, .. } = &self.found;
        if !counted_barriers.contains(&0) {
            return 0;
        }
        let used =
            |number: &u64| counted_barriers.contains(number) || plain_barriers.contains(number);
        let free = (1..BARRIERS).find(|number| !used(number));
        free.unwrap_or_else(|| {
            self.refuse(pos, Reason::NoBarrierLeft);
            0
        })
    }
}

impl Callees for Checks<'_, '_> {
    fn waits(&self, callee: Option<FuncId>) -> Waits {
        let shared = self.shared;
        if let Some(&waits) = shared.waits.borrow().get(&callee) {
            return waits;
        }
        let module = self.module;
        let all = || {
            (0..module.funcs.len())
                .map(|index| FuncId(u32::try_from(index).expect("counted by u32")))
        };
        let funcs: BTreeSet<FuncId> = match callee {
            Some(callee) => shared.calls.borrow_mut().reach(callee).funcs,
            None => all().collect(),
        };
        let mut waits = Waits::default();
        for id in funcs {
            let own =
                *shared.own_waits.borrow_mut().entry(id).or_insert_with(|| own_waits(module, id));
            waits.cta |= own.cta;
            waits.warp |= own.warp;
        }
        shared.waits.borrow_mut().insert(callee, waits);
        waits
    }
}

/// What a function waits for, without the functions that it calls.
fn own_waits(module: &Module, id: FuncId) -> Waits {
    let mut waits = Waits::default();
    let Some(body) = &module.func(id).body else { return waits };
    let masks = Masks::new(module, body);
    for (_, inst) in body.insts() {
        match masks.sync_of(module, body, inst) {
            Some(Sync::Cta) => waits.cta = true,
            None | Some(Sync::Active | Sync::Cluster) => {}
            Some(_) => waits.warp = true,
        }
    }
    waits
}

/// Whether the instruction lets threads share memory of the CTA, or wait for, count or look at each
/// other.
fn is_together(module: &Module, body: &Body, inst: &Inst) -> bool {
    let form = module.form(inst);
    matches!(
        form.op,
        Op::Shfl
            | Op::Vote
            | Op::Match
            | Op::Redux
            | Op::Elect
            | Op::Activemask
            | Op::Mbarrier
            | Op::Cp
            | Op::Tcgen05
    ) || form.has(Mod::Async)
        || module.access_space(body, inst).is_some_and(Space::is_shared)
        || sync_of(module, body, inst).is_some()
}

/// Whether the kernel has room for so many more bytes of parameters.
pub(crate) fn has_parameter_room(module: &Module, kernel: &Kernel, bytes: u64) -> bool {
    kernel.param_bytes.next_multiple_of(8).saturating_add(bytes) <= parameter_limit(module)
}

/// The limit of kernel parameters, in bytes (CUDA C++ Programming Guide, "`__global__` function
/// parameters"): 32,764 since PTX 8.1 on `sm_70` and later, 4,096 before.
pub(crate) fn parameter_limit(module: &Module) -> u64 {
    let large = module.version >= Version { major: 8, minor: 1 } && module.sm() >= Some(70);
    if large { 32_764 } else { 4_096 }
}
