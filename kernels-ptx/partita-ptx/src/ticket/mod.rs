//! The `ticket` form: each CTA claims one CTA of the original, runs it once and exits.
//!
//! The form is the fallback for every control flow. Where the original's threads exit early, before
//! a barrier or beside lanes that synchronise, a ticket's threads do so too. `frame.ptx` comes
//! before the body, and `leave.ptx` at every way out ([`crate::exits`]).
//!
//! The kernel keeps its name and parameters and gets one more, last parameter: the address of the
//! [control block](crate::control). Bit 0 of it means nothing here, because a ticket never waits
//! for others. The launcher sends *waves* until `completed` equals `total`: grids of the original's
//! block, not larger than the number of CTAs that can be resident at once. A ticket
//! registers, and exits without claiming where its SM is not allowed or stalled, or the launch is
//! aborted. A ticket that finds nothing left claims in vain. A wave may therefore complete fewer
//! CTAs than it has. Waves of one launch may overlap.
//!
//! A kernel that knows clusters has `cluster.ptx` as its frame: a cluster of tickets claims a
//! cluster of CTAs. Its waves have clusters of one dimension with as many CTAs as the original's,
//! and a `.reqnctapercluster` of the kernel becomes one of one dimension.
//!
//! # Assumptions
//!
//! The assumptions are those of [`crate::worker`](mod@crate::worker).

use std::sync::LazyLock;

use crate::exits::{self, Leave};
use crate::graft::{self, Graft, Grafted};
use crate::ir::{Body, FuncId, Inst, Module, Name, Op, Stmt, Type, VarId};
use crate::params;
use crate::report::{KernelForm, KernelReport, Outcome, Rewrite};
use crate::worker::checks::{Beside, Checker, Facts, Kind, report_slots};
use crate::worker::copies::Copies;
use crate::worker::grid::Grid;
use crate::worker::{Rewritten, WorkerOptions, bound_registers};

/// Brings every kernel that can take it into the `ticket` form.
#[must_use]
pub fn ticket(module: &Module, options: &WorkerOptions) -> Rewritten {
    rewrite(module, options, &|_| true)
}

/// As [`ticket`], for kernels for which `wanted` holds; only these have reports.
pub(crate) fn rewrite(
    module: &Module,
    options: &WorkerOptions,
    wanted: &dyn Fn(FuncId) -> bool,
) -> Rewritten {
    let kernels = module.kernels().into_iter().filter(|kernel| wanted(kernel.func));
    let mut checker = Checker::new(module, Kind::Ticket);
    let checked: Vec<_> = kernels
        .map(|kernel| {
            let result = checker.check(&kernel, options);
            (kernel, result)
        })
        .collect();
    let mut out = module.clone();
    let (mut frame, mut of_clusters) = (None, None);
    let mut copies = Copies::default();
    let mut reports = Vec::new();
    for (kernel, result) in checked {
        let outcome = match result {
            Err(refusals) => Outcome::Refused(refusals),
            Ok(facts) => {
                let frame = match facts.clusters {
                    false => frame.get_or_insert_with(|| Frame::new(&mut out, &FRAME)),
                    true => of_clusters.get_or_insert_with(|| Frame::new(&mut out, &OF_CLUSTERS)),
                };
                let original =
                    facts.original.is_kept().then(|| copies.original(&mut out, kernel.func));
                let (control, slot_id) = frame.rewrite(&mut out, kernel.func, &facts, &mut copies);
                bound_registers(&mut out, &kernel, options);
                let slot = out.text(out.var(slot_id).name);
                Outcome::Rewritten(Box::new(Rewrite {
                    form: KernelForm::Ticket,
                    control,
                    slot: slot_id,
                    original: original.map(|id| out.text(out.func(id).name).to_owned()),
                    needs_original: facts.original == Beside::Needed,
                    control_param: out.text(frame.param).to_owned(),
                    control_offset: kernel.param_bytes.next_multiple_of(8),
                    shared_added: 0,
                    clusters: facts.clusters,
                    blocks: facts.blocks,
                    cta_values: [
                        out.text(frame.graft.reg_name("%x")).to_owned(),
                        format!("{slot}+8"),
                        format!("{slot}+12"),
                    ],
                }))
            }
        };
        reports.push(KernelReport::new(&kernel, outcome));
    }
    report_slots(&out, &mut reports);
    copies.place(&mut out);
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    Rewritten { module: out, reports }
}

static FRAME: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("frame.ptx")));
static OF_CLUSTERS: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("cluster.ptx")));
static LEAVE: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("leave.ptx")));

/// The frame, bound to a module.
struct Frame {
    graft: Graft,
    leave: Graft,
    param: Name,
}

impl Frame {
    fn new(module: &mut Module, frame: &'static Module) -> Self {
        Self {
            graft: Graft::new(frame, module),
            leave: Graft::new(&LEAVE, module),
            param: module.names.fresh("pw_control"),
        }
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
        let slot = self.graft.var(&grafted, "slot");
        let left = self.leave.put_into(module, &mut body, &[("control", control), ("slot", slot)]);
        let mut leaves = Leaves { graft: &self.leave, grafted: left, facts };
        let stmts = exits::split(module, &mut body, (stmts, exits::OF_KERNELS), &mut leaves);
        let grid = match facts.clusters {
            false => Grid::of_kernel(&self.graft, &grafted),
            true => Grid::of_clusters(&self.graft, &grafted),
        };
        let mut stmts = Some(stmts);
        let fill =
            |mark: &str, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>| match mark {
                "BODY" => {
                    if publish {
                        grid.publish(module, body, out);
                    }
                    let mut stmts = stmts.take().unwrap_or_default();
                    grid.absorb(module, body, &mut stmts);
                    for stmt in stmts {
                        put(module, body, stmt, &grid, copies, out);
                    }
                }
                other => out.extend(facts.fill(other, module, body)),
            };
        let mut stmts = self.leave.declarations(&mut body, &leaves.grafted);
        stmts.extend(self.graft.stmts(module, &mut body, &grafted, fill));
        body.stmts = stmts;
        let function = &mut module.funcs[func.0 as usize];
        function.body = Some(body);
        let required = module.names.intern("reqnctapercluster");
        for directive in &mut function.directives {
            if directive.name == required {
                directive.values = vec![directive.values.iter().product(), 1, 1];
            }
        }
        facts.size_slot(module, slot);
        (control, slot)
    }
}

/// Appends a statement of the body with grid registers replaced.
fn put(
    module: &mut Module,
    body: &mut Body,
    stmt: Stmt,
    grid: &Grid,
    copies: &Copies,
    out: &mut Vec<Stmt>,
) {
    let Stmt::Inst(inst @ Inst { .. }) = stmt else {
        out.push(stmt);
        return;
    };
    if module.form(&inst).op != Op::Griddepcontrol {
        copies.redirect(module, body, &inst);
        grid.instruction(module, body, inst, out);
    }
}

struct Leaves<'a> {
    graft: &'a Graft,
    grafted: Grafted,
    facts: &'a Facts,
}

impl Leave for Leaves<'_> {
    fn leave(&mut self, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) {
        let fill = |mark: &str, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>| {
            out.extend(self.facts.fill(mark, module, body));
        };
        self.graft.code(module, body, &self.grafted, fill, out);
    }
}
