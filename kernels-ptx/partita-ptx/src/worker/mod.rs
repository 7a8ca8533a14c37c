//! The `worker` form: a persistent kernel whose CTAs claim the original's CTAs from a queue.
//!
//! The form follows Slate (Listings 1 and 2). The rewritten kernel keeps its name and parameters
//! and gets one more, last parameter: the address of the [control block](crate::control), with the
//! number of a helper grid in its lowest bits. `frame.ptx`, beside this file, is the code around
//! the body; its comments describe the protocol:
//!
//! - one thread of the CTA gates, claims and publishes, and two barriers guard what it publishes;
//! - the thread looks at range, stall and abort before it claims, so no claimed task is lost;
//! - claims are in order, by one counter of the launch;
//! - `%ctaid` and `%nctaid` become the original's, also in functions that the kernel calls (`grid`,
//!   `copies`);
//! - `ret` and `exit` lead to the frame's tail;
//! - `griddepcontrol` goes away, and its launch attribute must go too;
//! - `cp.async` is drained before the next CTA starts.
//!
//! `checks` finds kernels that cannot take the form; such a kernel stays as it is, with the
//! reasons. A kernel that can take the form for some launches only needs its original beside the
//! worker ([`WorkerOptions::keep_originals`]).
//!
//! # Assumptions
//!
//! The module has passed [`crate::verify()`]. The program is free of data races. A launch has at
//! least as many workers as its CTAs must run at once: one, unless the CTAs wait for each other.

pub(crate) mod checks;
pub(crate) mod copies;
pub(crate) mod grid;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::graft::{self, Graft};
use crate::ir::{
    Body, Directive, FuncId, Inst, LabelId, Mod, Module, Name, Op, Operand, Pos, Stmt, Symbol,
    Type, VarId,
};
use crate::kernels::Kernel;
use crate::params;
use crate::report::{KernelForm, KernelReport, Outcome, Reason, Refusal, Rewrite};

use checks::{Beside, Checker, Facts, Kind};
use copies::Copies;
use grid::Grid;

/// Bytes of static shared memory that the form adds at least.
pub const SLOT_BYTES: u64 = 48;
/// The same of a ticket that claims for a whole cluster.
pub(crate) const CLUSTER_SLOT_BYTES: u64 = 128;

/// Options of the pass.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Static shared memory that a kernel may have; the architecture's limit is 48 KiB.
    pub static_shared_limit: u64,
    /// Keeps the original, under another name, beside each worker that cannot serve every launch.
    /// Three kinds of workers cannot: a worker that is right for some blocks only; a worker whose
    /// shared memory may be too much beside a launch's dynamic shared memory; a worker whose
    /// program may want all CTAs at once, because they may wait for each other.
    pub keep_originals: bool,
    /// Kernels whose original stays beside any form, for launches that need no gate. A kernel that
    /// keeps state in variables of its own body is excepted: two entries would have two states.
    pub beside: BTreeSet<String>,
    /// Gives kernels of cooperative grids a parameter with the address of their barrier.
    pub grid_workspace: bool,
    /// Registers of originals by kernel name, where they are known (`ptxas -v`,
    /// `cuFuncGetAttribute`). The form of such a kernel has no more registers, so every block of
    /// the original can be launched, and as many are resident. A kernel that calls functions
    /// through registers may break the bound; with `keep_originals` its original stays beside it.
    pub registers: BTreeMap<String, u32>,
    /// Address bits of the cells in which windows lie, for `fence` ([`crate::fence::cell_bits`]).
    pub cell_bits: u32,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let cell_bits = crate::fence::LEAST_CELL_BITS;
        Self {
            static_shared_limit: 48 * 1024,
            keep_originals: false,
            beside: BTreeSet::new(),
            grid_workspace: false,
            registers: BTreeMap::new(),
            cell_bits,
        }
    }
}

/// Result of a pass.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The module; kernels that refused are as they were.
    pub module: Module,
    /// One report for each kernel that the module defines, in order.
    pub reports: Vec<KernelReport>,
}

/// Brings every kernel that can take it into the `worker` form.
#[must_use]
pub fn worker(module: &Module, options: &WorkerOptions) -> Rewritten {
    rewrite(module.clone(), check_all(module, options), options, &|_| false)
}

/// Leaves every kernel in its form, and does what else [`worker`] does for kernels that are not
/// workers. It changes the module in its place, which may be very large.
#[must_use]
pub fn originals(module: Module, options: &WorkerOptions) -> Rewritten {
    let refuse = |kernel: Kernel| {
        let refusal = Refusal { pos: Pos::default(), reason: Reason::NotWanted };
        (kernel, Err(vec![refusal]))
    };
    let refused = module.kernels().into_iter().map(refuse).collect();
    rewrite(module, refused, options, &|_| false)
}

/// A kernel with the facts that the frame needs, or the reasons why it cannot be a worker.
pub(crate) type Checked = (Kernel, Result<Facts, Vec<Refusal>>);

/// Checks every kernel that the module defines.
pub(crate) fn check_all(module: &Module, options: &WorkerOptions) -> Vec<Checked> {
    let mut checker = Checker::new(module, Kind::Worker);
    let check = |kernel: Kernel| {
        let result = checker.check(&kernel, options);
        (kernel, result)
    };
    module.kernels().into_iter().map(check).collect()
}

/// As [`worker`], for kernels that are checked already. Kernels that refuse and are `settled` stay
/// as they are.
pub(crate) fn rewrite(
    mut out: Module,
    checked: Vec<Checked>,
    options: &WorkerOptions,
    settled: &dyn Fn(FuncId) -> bool,
) -> Rewritten {
    let was_valid = !cfg!(debug_assertions) || crate::verify(&out).is_ok();
    let mut frame = None;
    let mut copies = Copies::default();
    let mut reports = Vec::new();
    for (kernel, result) in checked {
        let mut workspace = false;
        let outcome = match result {
            Err(refusals) => {
                let room = !settled(kernel.func) && checks::has_parameter_room(&out, &kernel, 8);
                workspace = options.grid_workspace && room && workspace::add(&mut out, kernel.func);
                Outcome::Refused(refusals)
            }
            Ok(facts) => {
                let frame = frame.get_or_insert_with(|| Frame::new(&mut out));
                let original =
                    facts.original.is_kept().then(|| copies.original(&mut out, kernel.func));
                let (control, slot) = frame.rewrite(&mut out, kernel.func, &facts, &mut copies);
                bound_registers(&mut out, &kernel, options);
                Outcome::Rewritten(Box::new(Rewrite {
                    form: KernelForm::Worker,
                    control,
                    slot,
                    original: original.map(|id| out.text(out.func(id).name).to_owned()),
                    needs_original: facts.original == Beside::Needed,
                    control_param: out.text(frame.param).to_owned(),
                    control_offset: kernel.param_bytes.next_multiple_of(8),
                    shared_added: 0,
                    clusters: false,
                    blocks: facts.blocks,
                    cta_values: frame.cta_values(&out, out.var(slot).name),
                }))
            }
        };
        reports.push(KernelReport { workspace, ..KernelReport::new(&kernel, outcome) });
    }
    checks::report_slots(&out, &mut reports);
    copies.place(&mut out);
    crate::verify::check_pass(&out, || was_valid);
    Rewritten { module: out, reports }
}

/// Registers that the frame itself takes.
const LEAST_BOUND: u32 = 24;
/// Registers are given out in eights a thread (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability").
const REGISTER_UNIT: u32 = 8;

/// Bounds the registers of a kernel, unless the program bounds them itself (PTX ISA,
/// "Performance-Tuning Directives: .maxnreg"). Around a loop an assembler keeps values in registers
/// that it computes anew in a kernel without one.
pub(crate) fn bound_registers(module: &mut Module, kernel: &Kernel, options: &WorkerOptions) {
    let Some(&registers) =
        options.registers.get(&kernel.name).filter(|_| kernel.max_registers.is_none())
    else {
        return;
    };
    let most = registers.next_multiple_of(REGISTER_UNIT).max(LEAST_BOUND);
    let name = module.names.intern("maxnreg");
    let function = &mut module.funcs[kernel.func.0 as usize];
    let pos = function.pos;
    function.directives.push(Directive { name, values: vec![most], text: None, pos });
}

static FRAME: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("frame.ptx")));

/// The frame, bound to a module.
struct Frame {
    graft: Graft,
    param: Name,
}

impl Frame {
    fn new(module: &mut Module) -> Self {
        Self { graft: Graft::new(&FRAME, module), param: module.names.fresh("pw_control") }
    }

    /// Rewrites one kernel; returns the parameter and the slot.
    fn rewrite(
        &self,
        module: &mut Module,
        func: FuncId,
        facts: &Facts,
        copies: &mut Copies,
    ) -> (VarId, VarId) {
        let control = params::append(module, func, self.param, Type::U64);
        let mut outside = vec![("control", control)];
        if !facts.grid_functions.is_empty() {
            outside.push(("slot", copies.functions(module, &self.graft, &facts.grid_functions)));
        }
        let publish = outside.len() > 1;
        let mut body = module.funcs[func.0 as usize].body.take().unwrap_or_default();
        let stmts = std::mem::take(&mut body.stmts);
        let grafted = self.graft.put_into(module, &mut body, &outside);
        let mut stmts = Some(stmts);
        let fill =
            |mark: &str, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>| match mark {
                "BODY" => {
                    let scope = Scope {
                        grid: Grid::of_kernel(&self.graft, &grafted),
                        tail: self.graft.label(&grafted, "TAIL"),
                        copies,
                    };
                    if publish {
                        scope.grid.publish(module, body, out);
                    }
                    let mut stmts = stmts.take().unwrap_or_default();
                    scope.grid.absorb(module, body, &mut stmts);
                    scope.body(module, body, stmts, out);
                }
                other => out.extend(facts.fill(other, module, body)),
            };
        body.stmts = self.graft.stmts(module, &mut body, &grafted, fill);
        debug_assert!(body.stmts.len() > 1, "the frame has statements");
        module.funcs[func.0 as usize].body = Some(body);
        let slot = self.graft.var(&grafted, "slot");
        facts.size_slot(module, slot);
        (control, slot)
    }

    /// The place of the original `%ctaid` while the body runs.
    fn cta_values(&self, module: &Module, slot: Name) -> [String; 3] {
        let slot = module.text(slot);
        [
            module.text(self.graft.reg_name("%x")).to_owned(),
            format!("{slot}+8"),
            format!("{slot}+12"),
        ]
    }
}

/// Statements of the frame after the body, at most, and some of the pass among the body's.
const ROOM: usize = 64;

/// The values of the frame that the body's own statements need.
struct Scope<'a> {
    grid: Grid,
    tail: LabelId,
    copies: &'a Copies,
}

impl Scope<'_> {
    /// Appends the original's statements with grid registers and ways out replaced.
    fn body(&self, module: &mut Module, body: &mut Body, stmts: Vec<Stmt>, out: &mut Vec<Stmt>) {
        let last = stmts.iter().rposition(|stmt| matches!(stmt, Stmt::Inst(_) | Stmt::Close));
        out.reserve(stmts.len() + ROOM);
        let reads_grid = Grid::is_read(body);
        for (index, stmt) in stmts.into_iter().enumerate() {
            let Stmt::Inst(inst) = stmt else {
                out.push(stmt);
                continue;
            };
            match module.form(&inst).op {
                // The last statement falls into the tail.
                Op::Ret | Op::Exit if Some(index) == last && inst.guard.is_none() => {}
                Op::Ret | Op::Exit => {
                    let uniform = module.form(&inst).has(Mod::Uni);
                    let form = module
                        .forms
                        .intern(if uniform { "bra.uni" } else { "bra" }, &mut module.names);
                    let operands =
                        body.add_operands(&[Operand::Symbol(Symbol::Label(self.tail), 0)]);
                    out.push(Stmt::Inst(Inst { form, operands, ..inst }));
                }
                Op::Griddepcontrol => {}
                _ => {
                    self.copies.redirect(module, body, &inst);
                    if reads_grid {
                        self.grid.instruction(module, body, inst, out);
                    } else {
                        out.push(Stmt::Inst(inst));
                    }
                }
            }
        }
    }
}
