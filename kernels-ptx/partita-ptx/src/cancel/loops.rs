//! The loops of a body that look at the abort flag, and how often.

use super::work::Works;
use super::{Ends, PERIOD, SLEEPS, TRIES, rounds};
use crate::analysis::hazard::callee;
use crate::ir::{
    Base, Body, Form, Inst, Mod, Module, Op, Operand, Reg, Slice, Space, Stmt, Symbol,
};
use std::cmp::Reverse;

/// Statements that the search for loops visits in one body at most; beyond it every loop counts as
/// a waiting one.
const BUDGET: usize = 1 << 24;

/// Statements that count for one, as a part of [`PERIOD`]: a loop of more statements looks in fewer
/// rounds.
pub(super) const STATEMENTS: u64 = 64;

/// Statements that a body executes in short loops and in calls without a look, at most.
const MOST_WITHOUT: u64 = 4 * STATEMENTS * PERIOD;

/// Where a body looks at the abort flag.
pub(super) struct Looks {
    /// For each statement before which the body looks, the branch at the end of a loop or what
    /// begins a call: what it counts for, as a part of [`PERIOD`].
    pub at: Vec<Option<u64>>,
    /// The most statements that a call of the body executes without a look.
    pub work: u64,
}

/// A short loop or a call, which need not look.
struct Unlooked {
    /// The first statement.
    from: usize,
    /// Where it would look, and what that would count for.
    at: usize,
    counts: u64,
    /// The statements that it executes, beside those of the text.
    work: u64,
}

/// Finds the loops of a body that look, and its work. Where grids cannot be ended, `nanosleep`
/// looks, too, and a round counts for all that it does.
pub(super) fn waits(module: &Module, body: &Body, ends: Ends, works: &Works) -> Looks {
    let mut place = vec![usize::MAX; body.labels.len()];
    let mut result = vec![None; body.stmts.len()];
    let mut budget = BUDGET;
    let branches = rounds::Branches::of(module, body);
    let is_always = ends == Ends::Always;
    // The statements that are done before each one, those of short loops in all their rounds.
    let mut before = Vec::with_capacity(body.stmts.len());
    let mut done = 0_u64;
    // In the order of the text; none lies in another one.
    let mut unlooked: Vec<Unlooked> = Vec::new();
    for (index, stmt) in body.stmts.iter().enumerate() {
        before.push(done);
        let Stmt::Inst(inst) = stmt else {
            if let Stmt::Label(label) = stmt {
                place[label.0 as usize] = index;
            }
            continue;
        };
        done = done.saturating_add(1);
        let op = module.form(inst).op;
        if op == Op::Call {
            let called = callee(body.operands(inst.operands));
            let called = called.and_then(|id| module.definition(id));
            let work = called.map_or(0, |id| works.of_call(id));
            done = done.saturating_add(work);
            if work > 1 {
                let at = beginning(module, body, index);
                unlooked.push(Unlooked { from: at, at, counts: part(work), work });
            }
        }
        // A frame has looks of its own; only the program's instructions have a place in its text.
        if inst.pos.line == 0 {
            continue;
        }
        match op {
            Op::Bra => {
                let target =
                    body.operands(inst.operands).iter().find_map(|operand| match operand {
                        Operand::Symbol(Symbol::Label(label), _) => Some(place[label.0 as usize]),
                        _ => None,
                    });
                let Some(start) = target.filter(|&start| start != usize::MAX) else { continue };
                let visits = (index - start).saturating_mul(4);
                let range = Loop { module, body, start, end: index };
                let round = done - before[start];
                let rounds = match is_always {
                    true => rounds::most(module, body, &branches, (start, index)),
                    false => None,
                };
                let work = rounds.map(|rounds| rounds.saturating_mul(round));
                let is_short = rounds.is_some_and(|rounds| rounds <= PERIOD)
                    && work.is_some_and(|work| work <= STATEMENTS * PERIOD);
                let counts = range.counts(is_always.then_some(round));
                if budget < visits || is_always && !is_short || range.waits() {
                    result[index] = Some(counts);
                } else if let Some(work) = work {
                    done = done.saturating_add(work);
                    while unlooked.pop_if(|inner| inner.from >= start).is_some() {}
                    unlooked.push(Unlooked { from: start, at: index, counts, work });
                }
                budget = budget.saturating_sub(visits);
            }
            // Loops by tables are rare; each round of them counts, and may go through the whole
            // body.
            Op::Brx => result[index] = Some(1),
            Op::Nanosleep if is_always => result[index] = Some(PERIOD / SLEEPS),
            _ => {}
        }
    }
    if is_always {
        done = look_at_most_work(unlooked, done, &mut result);
    }
    let work = match result.iter().any(Option::is_some) {
        true => done.saturating_add(PERIOD * STATEMENTS),
        false => done,
    };
    for (index, inst) in body.insts().filter(|_| is_always) {
        if module.form(inst).op == Op::Brx && result[index].is_some() {
            result[index] = Some(part(done));
        }
    }
    Looks { at: result, work }
}

/// Lets loops and calls look, those with the most work first, until the rest has no more work than
/// a body may have. A look elsewhere helps nothing: control may go past it. Returns the statements
/// that the body executes without a look.
fn look_at_most_work(mut unlooked: Vec<Unlooked>, all: u64, result: &mut [Option<u64>]) -> u64 {
    let mut left = unlooked.iter().fold(0_u64, |sum, one| sum.saturating_add(one.work));
    let mut done = all;
    unlooked.sort_by_key(|one| Reverse(one.work));
    for Unlooked { at, counts, work, .. } in unlooked {
        if left <= MOST_WITHOUT {
            break;
        }
        result[at] = result[at].max(Some(counts));
        (left, done) = (left.saturating_sub(work), done.saturating_sub(work));
    }
    done
}

/// The first statement of a call: the first store of one of its arguments, which must stay in the
/// call's own block, or the call itself.
fn beginning(module: &Module, body: &Body, call: usize) -> usize {
    let mut first = call;
    for at in (0..call).rev() {
        match &body.stmts[at] {
            Stmt::Inst(inst) => match module.form(inst).op {
                Op::St if module.access_space(body, inst).is_some_and(Space::is_param) => {
                    first = at
                }
                Op::Call | Op::Bra | Op::Brx => break,
                _ => {}
            },
            Stmt::Label(_) => break,
            _ => {}
        }
    }
    first
}

/// The part of [`PERIOD`] for which a number of statements counts.
fn part(statements: u64) -> u64 {
    statements.div_ceil(STATEMENTS).clamp(1, PERIOD)
}

/// The statements from a label to a branch back to it.
struct Loop<'a> {
    module: &'a Module,
    body: &'a Body,
    start: usize,
    end: usize,
}

/// The facts of one register in a loop.
#[derive(Clone, Copy, Default)]
struct Told {
    /// The value comes from memory by a read that counts.
    seen: bool,
    /// The value comes from any memory.
    loaded: bool,
    /// The value changes in each round.
    moves: bool,
}

impl Loop<'_> {
    fn insts(&self) -> impl Iterator<Item = &Inst> {
        self.body.stmts[self.start..=self.end].iter().filter_map(|stmt| match stmt {
            Stmt::Inst(inst) => Some(inst),
            _ => None,
        })
    }

    /// What a round counts for. `round`: the statements of one, where each counts.
    fn counts(&self, round: Option<u64>) -> u64 {
        let has = |op: Op| self.insts().any(|inst| self.module.form(inst).op == op);
        let least = if has(Op::Atom) { PERIOD / TRIES } else { 1 };
        match round {
            Some(round) => part(round).max(least),
            None if has(Op::Nanosleep) => PERIOD / SLEEPS,
            None => least,
        }
    }

    /// Whether a branch depends on what others may write, or there is none that could leave.
    fn waits(&self) -> bool {
        let (module, told) = (self.module, self.told());
        // A result parameter of a call is read by `ld.param`.
        let calls = self.insts().any(|inst| module.form(inst).op == Op::Call);
        let leaving =
            |inst: &&Inst| matches!(module.form(inst).op, Op::Bra | Op::Brx | Op::Ret | Op::Exit);
        let mut guarded = self.insts().filter(leaving).filter_map(|inst| inst.guard).peekable();
        guarded.peek().is_none() || calls || guarded.any(|guard| told[guard.reg.index()].seen)
    }

    fn told(&self) -> Vec<Told> {
        let Loop { module, body, .. } = *self;
        let synchronises = self.insts().any(|inst| is_acquiring(module.form(inst)));
        let stores = |inst: &Inst| {
            let form = module.form(inst);
            form.op == Op::St && module.access_space(body, inst) == Some(Space::Local)
        };
        let keeps = self.insts().any(stores);
        let (mut told, mut results) = (vec![Told::default(); body.regs.len()], Vec::new());
        // Two rounds see what a value goes through in the order of the text, and once around the
        // loop. That an address moves must be known before it is looked at.
        for decides in [false, false, true, true] {
            for inst in self.insts() {
                let form = module.form(inst);
                let operands = body.operands(inst.operands);
                let space = module.access_space(body, inst);
                let own = space.is_some_and(|space| {
                    space.is_param() || matches!(space, Space::Const | Space::Local)
                });
                let from = operands.get(1..).unwrap_or(&[]);
                let from = from.iter().flat_map(|operand| registers(body, *operand));
                let guard = inst.guard.map(|guard| guard.reg);
                results.clear();
                body.each_result(inst, &mut |reg| results.push(reg));
                let mut all = Told::default();
                for reg in from.chain(guard) {
                    let source = told[reg.index()];
                    let again = results.contains(&reg);
                    all.seen |= source.seen;
                    all.loaded |= source.loaded;
                    all.moves |= source.moves || again;
                }
                if matches!(form.op, Op::Ld) && matches!(space, Some(Space::Local)) {
                    // The local memory may hold a loaded value.
                    all.seen |= decides && keeps;
                } else if matches!(form.op, Op::Ld | Op::Ldu) && !own {
                    let leads = all.loaded && !space.is_some_and(Space::is_shared);
                    all.seen |= decides && (is_strong(form) || synchronises || !all.moves || leads);
                    (all.loaded, all.moves) = (true, true);
                } else if is_strong(form) {
                    all = Told { seen: true, loaded: true, moves: true };
                }
                for &reg in &results {
                    let told = &mut told[reg.index()];
                    told.seen |= all.seen;
                    told.loaded |= all.loaded;
                    told.moves |= all.moves;
                }
            }
        }
        told
    }
}

/// Whether the instruction may read what others wrote, without a race (PTX ISA, "Memory Consistency
/// Model": strong operations).
fn is_strong(form: &Form) -> bool {
    let strong = [Mod::Volatile, Mod::Relaxed, Mod::Acquire, Mod::Mmio, Mod::Cv];
    match form.op {
        Op::Atom | Op::Call | Op::Mbarrier => true,
        Op::Ld | Op::Ldu => strong.iter().any(|&modifier| form.has(modifier)),
        _ => false,
    }
}

/// Whether plain reads after the instruction see what others wrote, without a race. An atomic by
/// itself is relaxed and orders nothing (PTX ISA, "Memory Consistency Model": acquire patterns).
fn is_acquiring(form: &Form) -> bool {
    let orders = [Op::Bar, Op::Barrier, Op::Fence, Op::Membar, Op::Mbarrier, Op::Call];
    orders.contains(&form.op) || form.has(Mod::Acquire) || form.has(Mod::AcqRel)
}

fn registers(body: &Body, operand: Operand) -> impl Iterator<Item = Reg> + '_ {
    let (own, parts) = match operand {
        Operand::Reg(reg)
        | Operand::Not(reg)
        | Operand::Neg(reg)
        | Operand::Mem(Base::Reg(reg), _) => (Some(reg), Slice::EMPTY),
        Operand::Part { reg, .. } | Operand::RegPlus(reg, _) => (Some(reg), Slice::EMPTY),
        Operand::Vector(slice)
        | Operand::List(slice)
        | Operand::Tuple(slice)
        | Operand::Pair(slice) => (None, slice),
        _ => (None, Slice::EMPTY),
    };
    let parts = body.operands(parts).iter().filter_map(|part| match part {
        Operand::Reg(reg) | Operand::Not(reg) | Operand::Part { reg, .. } => Some(*reg),
        _ => None,
    });
    own.into_iter().chain(parts)
}
