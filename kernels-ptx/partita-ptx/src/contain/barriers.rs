//! Barriers by polling, because a thread at a barrier of the hardware reads no flag.
//!
//! A barrier that counts its threads (`bar.sync 1, 64`) is never passed where a thread leaves
//! before it, or where the program's counts do not fit. The GPU then runs the CTA for ever. Words
//! of shared memory therefore stand for each such barrier ([`super::openings`]). The threads that
//! wait read a word in a loop, in which [`mod@crate::cancel`] looks at the abort flag.
//!
//! A barrier without a count waits for the CTA's threads that have not exited. It opens when the
//! others exit, so it stays the hardware's where threads can wait at one such barrier only. Else it
//! is polled, too: it opens when as many threads have come as have not exited.
//!
//! The threads of a warp come together at an aligned barrier, where one lane comes for all. At
//! another one (`barrier.sync`) a warp comes when the last of its threads does.
//!
//! All barriers stay the hardware's below `sm_70` and PTX 6.3, which has `nanosleep`
//! ([`endless_barriers`]).

use std::collections::BTreeSet;

use crate::exits;
use crate::ir::{Body, FuncId, Guard, Inst, Mod, Module, Op, Operand, Stmt, Version};
use crate::kernels::Calls;
use crate::report::Reason;

use super::code::{Code, Tells};
use super::openings::{Barrier, Needs, Reduction, Regs};
use super::words::Place;

/// The barrier of an instruction. A reduction of which not everything is known has none.
fn barrier(module: &Module, body: &Body, inst: &Inst) -> Option<Barrier> {
    let form = module.form(inst);
    if !matches!(form.op, Op::Bar | Op::Barrier) || form.has(Mod::Warp) || form.has(Mod::Cluster) {
        return None;
    }
    let operands = body.operands(inst.operands);
    let reduction = match form.has(Mod::Red) {
        true => Some(Reduction::of(form, operands)?),
        false => None,
    };
    // Without a number it is barrier 0.
    let [number, count] = form.barrier_operands(operands);
    Some(Barrier {
        number: number.unwrap_or(Operand::Int(0)),
        count,
        reduction,
        is_aligned: form.op == Op::Bar || form.has(Mod::Aligned),
        waits: !form.has(Mod::Arrive),
    })
}

/// The barriers of all bodies, with the functions' indices.
fn barriers(module: &Module) -> impl Iterator<Item = (usize, Barrier)> {
    let bodies = module.funcs.iter().enumerate();
    let bodies = bodies.filter_map(|(index, func)| Some((index, func.body.as_ref()?)));
    bodies.flat_map(move |(index, body)| {
        let barriers = body.insts().filter_map(move |(_, inst)| barrier(module, body, inst));
        barriers.map(move |barrier| (index, barrier))
    })
}

/// Whether a module can have loops in which threads wait.
pub(super) fn are_loops_possible(module: &Module) -> bool {
    let is_new = module.version >= Version { major: 6, minor: 3 };
    is_new && module.sm().is_some_and(|sm| sm >= 70)
}

/// Which barriers are polled. Barriers that count their threads always are.
pub(super) struct Plan {
    /// Whether barriers without a count are polled, too.
    wholes: bool,
    /// What the polled barriers need.
    needs: Needs,
}

impl Plan {
    /// `None` where threads cannot wait for one another. Only functions with these indices count.
    fn of(module: &Module, within: impl Fn(usize) -> bool) -> Option<Plan> {
        let barriers = |module| barriers(module).filter(|(index, _)| within(*index));
        let number = |(_, barrier): (usize, Barrier)| match barrier.number {
            Operand::Int(number) | Operand::Uint(number) => Some(number),
            _ => None,
        };
        let counts = |(_, barrier): &(usize, Barrier)| barrier.count.is_some();
        let counted: BTreeSet<Option<u64>> = barriers(module).filter(counts).map(number).collect();
        let whole: BTreeSet<Option<u64>> =
            barriers(module).filter(|barrier| !counts(barrier)).map(number).collect();
        // Threads may wait for each other at two barriers, or at one that others count. A number
        // in a register may be any.
        let is_met = |one: &Option<u64>| one.is_none() || counted.contains(one);
        let wholes = whole.len() > 1
            || whole.iter().any(is_met)
            || !whole.is_empty() && counted.contains(&None);
        let polled = || barriers(module).filter(|barrier| wholes || counts(barrier));
        let needs = Needs {
            votes: polled().any(|(_, barrier)| barrier.reduction.is_some()),
            apart: polled().any(|(_, barrier)| !barrier.is_aligned),
        };
        (wholes || !counted.is_empty()).then_some(Plan { wholes, needs })
    }

    /// The plan for a whole module; `None` where nothing is polled.
    pub(super) fn of_module(module: &Module) -> Option<Plan> {
        Plan::of(module, |_| true).filter(|_| are_loops_possible(module))
    }

    /// Whether a warp's threads come together at an instruction, to a barrier that is polled.
    pub(super) fn comes(&self, module: &Module, body: &Body, inst: &Inst) -> bool {
        let barrier = barrier(module, body, inst);
        barrier.is_some_and(|barrier| barrier.is_aligned && self.polls(&barrier))
    }

    fn polls(&self, barrier: &Barrier) -> bool {
        barrier.count.is_some() || self.wholes
    }

    /// The functions with polled barriers.
    pub(super) fn polling(&self, module: &Module) -> BTreeSet<FuncId> {
        barriers(module)
            .filter(|(_, barrier)| self.polls(barrier))
            .map(|(index, _)| FuncId(u32::try_from(index).expect("fewer than source bytes")))
            .collect()
    }

    /// The bytes of the barriers' words.
    pub(super) fn bytes(&self) -> u32 {
        self.needs.bytes()
    }
}

/// Why threads of kernels that reach these functions may wait at barriers for ever: the module is
/// too old for loops.
#[must_use]
pub(super) fn endless_barriers(module: &Module, functions: &BTreeSet<FuncId>) -> Option<Reason> {
    if are_loops_possible(module) {
        return None;
    }
    let is_reached =
        |index: usize| u32::try_from(index).is_ok_and(|id| functions.contains(&FuncId(id)));
    Plan::of(module, is_reached).map(|_| Reason::EndlessWaits)
}

/// Makes loops of barriers.
pub(super) fn poll(module: &mut Module, plan: &Plan, words: Place) {
    let polling = plan.polling(module);
    let mut calls = Calls::new(module);
    let kernels: Vec<FuncId> = module.kernels().into_iter().map(|kernel| kernel.func).collect();
    let mut changed = polling.clone();
    let mut beginning = BTreeSet::new();
    for kernel in kernels {
        let reached = &calls.reach(kernel).funcs;
        if reached.is_disjoint(&polling) {
            continue;
        }
        beginning.insert(kernel);
        changed.insert(kernel);
        // Where exits count, each function that a thread may exit from tells of them.
        changed.extend(reached.iter().filter(|_| plan.wholes || plan.needs.apart));
    }
    for id in changed {
        let index = id.0 as usize;
        let Some(mut body) = module.funcs[index].body.take() else { continue };
        let begins = beginning.contains(&id);
        (Poller { words, plan, begins }).body(module, &mut body);
        module.funcs[index].body = Some(body);
    }
}

struct Poller<'a> {
    words: Place,
    plan: &'a Plan,
    /// Whether the body is a kernel's.
    begins: bool,
}

impl Poller<'_> {
    fn body(&self, module: &mut Module, body: &mut Body) {
        let ways = if self.begins { exits::OF_KERNELS } else { exits::OF_FUNCTIONS };
        let leaves = body.insts().any(|(_, inst)| ways.contains(&module.form(inst).op));
        let tells = (self.plan.wholes || self.plan.needs.apart) && (leaves || self.begins);
        let site = |(at, inst): (usize, &Inst)| {
            let barrier = barrier(module, body, inst);
            Some((at, barrier.filter(|barrier| self.plan.polls(barrier))?))
        };
        let sites: Vec<(usize, Barrier)> = body.insts().filter_map(site).collect();
        if sites.is_empty() && !self.begins && !tells {
            return;
        }
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + 60 * sites.len());
        let mut code = Code { module, body, out: &mut out };
        let regs = Regs::new(&mut code, self.words, self.plan.needs);
        regs.begin(&mut code, self.begins);
        let mut sites = sites.into_iter().peekable();
        for (index, stmt) in stmts.into_iter().enumerate() {
            match (stmt, sites.next_if(|(at, _)| *at == index)) {
                (Stmt::Inst(inst), Some((_, barrier))) => {
                    Self::barrier(&mut code, &regs, &inst, &barrier);
                }
                (stmt, _) => code.out.push(stmt),
            }
        }
        body.stmts = match tells {
            true => exits::split(
                module,
                body,
                (out, ways),
                &mut Tells { tell: &|code| regs.exit(code), ways },
            ),
            false => out,
        };
    }

    fn barrier(code: &mut Code<'_>, regs: &Regs, inst: &Inst, barrier: &Barrier) {
        let past = code.label();
        if let Some(own) = inst.guard {
            code.go_if(Guard { negated: !own.negated, ..own }, past);
        }
        regs.pass(code, barrier, inst.pos);
        code.place(past);
    }
}

#[cfg(test)]
mod tests {
    use super::endless_barriers;
    use crate::report::Reason;
    use std::collections::BTreeSet;

    fn of(head: &str, barriers: &str) -> Option<Reason> {
        // The second kernel's barriers count for that kernel only.
        let source = format!(
            "{head}\n.address_size 64\n.visible .entry k()\n{{\n{barriers}\nret;\n}}\n.visible \
             .entry other()\n{{\nbar.sync 0, 64;\nbar.sync 1;\nret;\n}}\n"
        );
        let module = crate::parse(&source).unwrap();
        let reached = BTreeSet::from([module.kernels()[0].func]);
        endless_barriers(&module, &reached)
    }

    #[test]
    fn old_modules_with_counted_barriers_are_named() {
        let old = [".version 6.0\n.target sm_70", ".version 8.0\n.target sm_60"];
        for head in old {
            assert!(of(head, "bar.sync 1, 64;").is_some());
            assert!(of(head, "bar.sync 0;\nbar.sync 1;").is_some());
            assert!(of(head, "bar.sync 0;\nbar.sync 0;").is_none());
        }
        assert!(of(".version 6.3\n.target sm_70", "bar.sync 1, 64;").is_none());
    }
}
