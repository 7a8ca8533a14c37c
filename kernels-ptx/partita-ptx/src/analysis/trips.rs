//! Counts the dependent round trips to memory that a form adds to a kernel.
//!
//! The leader of a rewritten CTA (`%tid` = 0, 0, 0) talks to the control block before the body,
//! between two tasks and at the end. A load or an atomic operation whose result the leader needs
//! costs a round trip; those that are in flight together cost one. A fence waits for what is in
//! flight and is counted by itself.
//!
//! The count walks the paths of the leader through the rewritten code: instructions issue in order,
//! and the first use of a result waits for the result. What follows from the thread's index, from
//! the main grid's number and from what the leader stored in shared memory decides branches;
//! contents of global memory decide none. The result is the path with the fewest round trips and
//! fences. Paths that sleep wait for others and do not count.
//!
//! The program's own instructions are told from the form's by their place in the source
//! ([`crate::ir::Inst::pos`]). Waits of the program's own body do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{
    Base, Body, Form, FuncId, Inst, Mod, Module, Op, Operand, Reg, Space, Special, Stmt, Symbol,
    Type, VarId,
};

/// What the leader waits for on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trips {
    /// Dependent round trips: loads and atomic operations in global memory.
    pub trips: u32,
    /// Fences of the GPU or the system.
    pub fences: u32,
}

/// What a form costs a leader, each part at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormTrips {
    /// From the kernel's entry to the body.
    pub before: Trips,
    /// From the end of a body to the next body over global memory: from task to task. `None` where
    /// a CTA runs one body.
    pub between: Option<Trips>,
    /// From the end of a body to the end of the CTA, with the report that the CTA's work is done.
    pub after: Option<Trips>,
}

/// A control block's address: a multiple of 32, as the main grid gets it.
const CONTROL: u64 = 1 << 40;
/// Instructions that the walk over all paths may take. Frames take some thousands.
const MOST_STEPS: u32 = 1 << 20;

/// Counts what the form of a kernel costs. `None` where the body has no instruction of its own, or
/// where the paths are too many.
#[must_use]
pub fn form_trips(module: &Module, kernel: FuncId, control: VarId) -> Option<FormTrips> {
    let body = module.func(kernel).body.as_ref()?;
    let walk = Walk::new(module, body, control)?;
    let mut steps = MOST_STEPS;
    let entry = walk.from(0, &State::default(), &mut steps)?;
    let (before, at_body) = entry.body?;
    let resumed = at_body.resumed();
    let (mut between, mut after) = (None, None);
    for start in walk.ends() {
        let found = walk.from(start, &resumed, &mut steps)?;
        let again = found.body.map(|(trips, _)| trips);
        between = least(between, again);
        after = least(after, found.exit);
    }
    Some(FormTrips { before, between, after })
}

/// The cheaper one.
fn least(one: Option<Trips>, other: Option<Trips>) -> Option<Trips> {
    one.into_iter().chain(other).min_by_key(|trips| (trips.trips + trips.fences, trips.trips))
}

/// What is known of a register.
#[derive(Clone, Copy, Default)]
struct Value {
    constant: Option<u64>,
    /// The round trip, counted from the path's start, that brings the value.
    ready: u32,
}

/// The leader at one point of a path.
#[derive(Clone, Default)]
struct State {
    regs: BTreeMap<Reg, Value>,
    /// Words of shared memory whose contents are known.
    shared: BTreeMap<(VarId, i32), u64>,
    /// Round trips that are over.
    now: u32,
    /// The latest round trip in flight.
    in_flight: u32,
    fences: u32,
    /// Whether the path has used global memory.
    is_global: bool,
    /// Whether the path has left the body's stretch of the text.
    is_outside: bool,
    /// Decisions that the path has made: it makes none twice, so it ends.
    taken: BTreeSet<(usize, bool)>,
}

impl State {
    /// The leader after a body: what was in flight has come.
    fn resumed(&self) -> State {
        let known = |(reg, value): (&Reg, &Value)| (*reg, Value { ready: 0, ..*value });
        let regs = self.regs.iter().map(known).collect();
        State { regs, shared: self.shared.clone(), ..State::default() }
    }

    fn trips(&self) -> Trips {
        Trips { trips: self.now, fences: self.fences }
    }

    fn value(&self, reg: Reg) -> Value {
        self.regs.get(&reg).copied().unwrap_or_default()
    }

    fn wait_for(&mut self, reg: Reg) {
        self.now = self.now.max(self.value(reg).ready);
    }
}

/// The cheapest ways from one place.
#[derive(Default)]
struct Found {
    body: Option<(Trips, State)>,
    exit: Option<Trips>,
}

impl Found {
    /// Whether a path that has cost so much is no better than those found, wherever it goes.
    fn is_beyond(&self, trips: Trips) -> bool {
        let body = self.body.as_ref().map(|(trips, _)| *trips);
        let no_better = |best: Option<Trips>| best.is_some() && least(best, Some(trips)) == best;
        no_better(body) && no_better(self.exit)
    }

    /// A path leaves the kernel. One that uses no global memory reports nothing: another thread of
    /// the CTA does.
    fn leave(&mut self, state: &State) {
        if state.is_global {
            self.exit = least(self.exit, Some(state.trips()));
        }
    }
}

/// The code of one kernel.
struct Walk<'a> {
    module: &'a Module,
    body: &'a Body,
    control: VarId,
    /// The statement of each label.
    label_at: Vec<usize>,
    /// First and last statement of the program's own.
    own: (usize, usize),
}

impl<'a> Walk<'a> {
    fn new(module: &'a Module, body: &'a Body, control: VarId) -> Option<Self> {
        let mut label_at = vec![body.stmts.len(); body.labels.len()];
        for (index, stmt) in body.stmts.iter().enumerate() {
            if let Stmt::Label(label) = stmt {
                label_at[label.0 as usize] = index;
            }
        }
        let mut own = body.insts().filter(|(_, inst)| is_own(inst)).map(|(index, _)| index);
        let first = own.next()?;
        let last = own.last().unwrap_or(first);
        Some(Self { module, body, control, label_at, own: (first, last) })
    }

    /// The statements of the form at which the program's own code ends.
    fn ends(&self) -> BTreeSet<usize> {
        let mut ends = BTreeSet::new();
        for (index, inst) in self.body.insts().filter(|(_, inst)| is_own(inst)) {
            let op = self.module.form(inst).op;
            let never_falls = matches!(op, Op::Bra | Op::Brx | Op::Ret | Op::Exit | Op::Trap);
            let falls = (!never_falls || inst.guard.is_some()).then_some(index + 1);
            for place in self.target(inst).into_iter().chain(falls) {
                let next = self.body.stmts.get(place..).unwrap_or_default();
                let next = next.iter().position(|stmt| matches!(stmt, Stmt::Inst(_)));
                ends.extend(next.map(|offset| place + offset).filter(
                    |&at| matches!(&self.body.stmts[at], Stmt::Inst(inst) if !is_own(inst)),
                ));
            }
        }
        ends
    }

    /// Where a branch goes.
    fn target(&self, inst: &Inst) -> Option<usize> {
        let is_branch = self.module.form(inst).op == Op::Bra;
        let mut operands = self.body.operands(inst.operands).iter().filter(|_| is_branch);
        operands.find_map(|operand| match operand {
            Operand::Symbol(Symbol::Label(label), _) => Some(self.label_at[label.0 as usize]),
            _ => None,
        })
    }

    /// Walks every path from a statement. `None` where there are too many.
    fn from(&self, start: usize, state: &State, steps: &mut u32) -> Option<Found> {
        let mut found = Found::default();
        let mut todo = vec![(start, state.clone())];
        while let Some((mut at, mut state)) = todo.pop() {
            loop {
                *steps = steps.checked_sub(1)?;
                let Some(stmt) = self.body.stmts.get(at) else {
                    found.leave(&state);
                    break;
                };
                state.is_outside |= at < self.own.0 || at > self.own.1;
                let Stmt::Inst(inst) = stmt else {
                    at += 1;
                    continue;
                };
                if is_own(inst) {
                    self.arrive(&mut found, state);
                    break;
                }
                let op = self.module.form(inst).op;
                let leaves = matches!(op, Op::Ret | Op::Exit);
                if op == Op::Nanosleep {
                    break;
                }
                if op != Op::Bra && !leaves {
                    self.step(inst, &mut state);
                    at += 1;
                    continue;
                }
                let ways = self.decide(inst, at, &mut state);
                if found.is_beyond(state.trips()) {
                    break;
                }
                for goes in ways.into_iter().flatten() {
                    let mut state = state.clone();
                    state.taken.insert((at, goes));
                    match (goes, leaves) {
                        (true, true) => found.leave(&state),
                        (true, false) => todo.extend(self.target(inst).map(|to| (to, state))),
                        (false, _) => todo.push((at + 1, state)),
                    }
                }
                break;
            }
        }
        Some(found)
    }

    /// A path has come to the program's own code. Instructions of a pass among the program's are
    /// part of the body, and so is the next CTA of a task, for which the leader asks nobody.
    fn arrive(&self, found: &mut Found, state: State) {
        if !state.is_outside || !state.is_global {
            return;
        }
        let best = found.body.as_ref().map(|(trips, _)| *trips);
        if least(best, Some(state.trips())) != best {
            found.body = Some((state.trips(), state));
        }
    }

    /// The ways on from a guarded or plain branch or exit.
    fn decide(&self, inst: &Inst, at: usize, state: &mut State) -> [Option<bool>; 2] {
        let Some(guard) = inst.guard else { return [Some(true), None] };
        state.wait_for(guard.reg);
        let is_new = |goes: &bool| !state.taken.contains(&(at, *goes));
        match state.value(guard.reg).constant {
            Some(value) => [Some((value != 0) != guard.negated).filter(is_new), None],
            None => [Some(true).filter(is_new), Some(false).filter(is_new)],
        }
    }

    /// Issues one instruction that is no branch.
    fn step(&self, inst: &Inst, state: &mut State) {
        let form = self.module.form(inst);
        let operands = self.body.operands(inst.operands);
        let is_store = matches!(form.op, Op::St | Op::Red);
        let (results, sources) = if is_store || operands.is_empty() {
            (&operands[..0], operands)
        } else {
            operands.split_at(1)
        };
        for source in sources {
            self.body.each_reg(*source, &mut |reg| state.wait_for(reg));
        }
        if let Some(guard) = inst.guard {
            state.wait_for(guard.reg);
        }
        let is_wide = [Mod::Gpu, Mod::Sys, Mod::Gl].into_iter().any(|scope| form.has(scope));
        if matches!(form.op, Op::Fence | Op::Membar) && is_wide {
            state.now = state.now.max(state.in_flight);
            state.fences += 1;
        }
        let space = self.module.access_space(self.body, inst);
        let is_access = matches!(form.op, Op::Ld | Op::Atom | Op::St | Op::Red);
        let is_global = is_access && space.is_none_or(|space| space == Space::Global);
        state.is_global |= is_global;
        let mut ready = state.now;
        if is_global && !is_store {
            ready += 1;
            state.in_flight = state.in_flight.max(ready);
        }
        if is_store && space.is_some_and(Space::is_shared) {
            self.store(form, sources, state);
        }
        let words: Vec<Operand> = results.iter().flat_map(|result| self.words(*result)).collect();
        for (index, word) in words.iter().enumerate() {
            let Operand::Reg(reg) = *word else { continue };
            let constant = match (form.op, space) {
                (Op::Ld, Some(space)) => self.loaded(form, sources, space, index, state),
                _ => fold(form, &self.constants(sources, state)),
            };
            let constant = constant.filter(|_| inst.guard.is_none());
            state.regs.insert(reg, Value { constant, ready });
        }
    }

    /// The elements of a vector, or the operand itself.
    fn words(&self, operand: Operand) -> Vec<Operand> {
        match operand {
            Operand::Vector(slice) => self.body.operands(slice).to_vec(),
            other => vec![other],
        }
    }

    fn constants(&self, operands: &[Operand], state: &State) -> Vec<Option<u64>> {
        let constant = |operand: &Operand| match *operand {
            Operand::Reg(reg) => state.value(reg).constant,
            Operand::Int(value) | Operand::Uint(value) => Some(value),
            Operand::Special(Special::Tid, _) => Some(0),
            _ => None,
        };
        operands.iter().map(constant).collect()
    }

    /// Notes what a store leaves in shared memory.
    fn store(&self, form: &Form, operands: &[Operand], state: &mut State) {
        let [Operand::Mem(Base::Symbol(Symbol::Var(id)), offset), value] = *operands else {
            return state.shared.clear();
        };
        let constants = self.constants(&self.words(value), state);
        for (place, constant) in places(form, offset).zip(constants) {
            match constant {
                Some(constant) => state.shared.insert((id, place), constant),
                None => state.shared.remove(&(id, place)),
            };
        }
    }

    /// What is known of word `index` of a load.
    fn loaded(
        &self,
        form: &Form,
        address: &[Operand],
        space: Space,
        index: usize,
        state: &State,
    ) -> Option<u64> {
        let [Operand::Mem(Base::Symbol(Symbol::Var(id)), offset)] = *address else { return None };
        if space.is_param() {
            return (id == self.control && offset == 0).then_some(CONTROL & mask(form));
        }
        let place = places(form, offset).nth(index)?;
        state.shared.get(&(id, place)).copied().filter(|_| space.is_shared())
    }
}

/// Whether the program wrote an instruction.
const fn is_own(inst: &Inst) -> bool {
    inst.pos.line != 0
}

/// The offsets of the words that an access moves.
fn places(form: &Form, offset: i32) -> impl Iterator<Item = i32> {
    let bytes = form.last_type().map_or(4, Type::bytes).cast_signed();
    (0..form.vector().cast_signed()).map(move |word| offset + word * bytes)
}

/// The bits that the operation's type has.
fn mask(form: &Form) -> u64 {
    match form.last_type().map_or(64, Type::bits) {
        bits @ 1..64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// The result of an operation of which only constants are operands: those that decide branches in
/// frames. Comparisons of signed numbers are left open.
fn fold(form: &Form, operands: &[Option<u64>]) -> Option<u64> {
    let mask = mask(form);
    let values: Option<Vec<u64>> =
        operands.iter().map(|value| value.map(|value| value & mask)).collect();
    match (form.op, values?.as_slice()) {
        (Op::Mov | Op::Cvt, &[a]) => Some(a),
        (Op::And, &[a, b]) => Some(a & b),
        (Op::Or, &[a, b]) => Some(a | b),
        (Op::Add, &[a, b]) => Some(a.wrapping_add(b) & mask),
        (Op::Setp, &[a, b]) if form.last_type().is_none_or(|ty| !ty.is_signed()) => {
            let is_true = match form.mods.first()? {
                Mod::Eq => a == b,
                Mod::Ne => a != b,
                Mod::Lt | Mod::Lo => a < b,
                Mod::Le | Mod::Ls => a <= b,
                Mod::Gt | Mod::Hi => a > b,
                Mod::Ge | Mod::Hs => a >= b,
                _ => return None,
            };
            Some(u64::from(is_true))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pass, WorkerOptions};

    const KERNEL: &str = ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p) \
        {\n.reg .b64 %a;\n.reg .b32 %b;\n.shared .b32 tile[64];\nld.param.u64 %a, [p];\nmov.u32 \
        %b, 1;\nst.shared.u32 [tile], %b;\nbar.sync 0;\nst.global.u32 [%a], %b;\nret;\n}";

    const fn trips(trips: u32, fences: u32) -> Trips {
        Trips { trips, fences }
    }

    fn of_form(source: &str, pass: Pass) -> Option<FormTrips> {
        let rewritten = pass.apply(&crate::parse(source).unwrap(), &WorkerOptions::default());
        let report = &rewritten.reports[0];
        form_trips(&rewritten.module, report.func, report.rewritten().unwrap().control)
    }

    /// The frames are held to these numbers: another number is another price of every launch.
    #[test]
    fn frames_cost_what_they_cost() {
        let worker = of_form(KERNEL, Pass::Worker).unwrap();
        assert_eq!(worker.before, trips(1, 0));
        assert_eq!(worker.between, Some(trips(1, 0)));
        assert_eq!(worker.after, Some(trips(0, 0)));
        let ticket = of_form(KERNEL, Pass::Ticket).unwrap();
        assert_eq!(ticket.before, trips(2, 0));
        assert_eq!((ticket.between, ticket.after), (None, Some(trips(0, 1))));
    }

    /// A frame by hand, around the one instruction that has a place in the source.
    fn by_hand(code: &str) -> Option<FormTrips> {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u64 control) {{\n.reg \
             .b64 %a, %b, %c;\n.reg .b32 %n;\n.reg .pred %p;\n.shared .b32 \
             slot[4];\nld.param.u64 %a, [control];\n{code}\n}}"
        );
        let mut module = crate::parse(&source).unwrap();
        let control = module.funcs[0].params[0];
        let forms = module.forms.clone();
        for stmt in &mut module.funcs[0].body.as_mut().unwrap().stmts {
            if let Stmt::Inst(inst) = stmt
                && forms[inst.form].op != Op::Sub
            {
                inst.pos = crate::ir::Pos::default();
            }
        }
        form_trips(&module, FuncId(0), control)
    }

    #[test]
    fn loads_in_flight_together_cost_one_trip_and_dependent_ones_one_each() {
        let body = "sub.u64 %c, %c, %c; ret;";
        let before = |code: &str| by_hand(&format!("{code} {body}")).unwrap().before;
        assert_eq!(before("ld.global.u64 %b, [%a]; ld.global.u64 %c, [%a+8];"), trips(0, 0));
        let used = "ld.global.u64 %b, [%a]; ld.global.u64 %c, [%a+8]; add.u64 %b, %b, %c;";
        assert_eq!(before(used), trips(1, 0));
        let chained = "ld.global.u64 %b, [%a]; atom.global.add.u64 %c, [%b], 1; add.u64 %c, %c, 1;";
        assert_eq!(before(chained), trips(2, 0));
        // A reduction brings nothing that anyone could wait for, and a fence waits for all.
        assert_eq!(before("red.global.add.u64 [%a], 1; fence.sc.gpu;"), trips(0, 1));
        assert_eq!(before("ld.global.u64 %b, [%a]; fence.acq_rel.gpu;"), trips(1, 1));
        assert_eq!(before("ld.global.u64 %b, [%a]; fence.acq_rel.cta;"), trips(0, 0));
    }

    #[test]
    fn the_leaders_cheapest_path_counts_and_what_is_known_decides_branches() {
        let found = by_hand(
            "mov.u32 %n, %tid.x; setp.ne.u32 %p, %n, 0; @%p bra BODY; ld.global.u64 %b, [%a]; \
             setp.eq.u64 %p, %b, 0; @%p bra STOP; mov.u32 %n, 1; st.shared.u32 [slot], %n; bra \
             WAIT; STOP: mov.u32 %n, 0; st.shared.u32 [slot], %n; WAIT: bar.sync 0; ld.shared.u32 \
             %n, [slot]; setp.eq.u32 %p, %n, 0; @%p ret; BODY: sub.u64 %c, %c, %c; NEXT: \
             ld.global.u64 %b, [%a]; setp.eq.u64 %p, %b, 0; @%p bra LAST; atom.global.add.u64 %b, \
             [%a], 1; setp.eq.u64 %p, %b, 0; @%p bra BODY; nanosleep.u32 9; bra NEXT; LAST: \
             fence.acq_rel.gpu; ret;",
        );
        let found = found.unwrap();
        assert_eq!(found.before, trips(1, 0));
        assert_eq!(found.between, Some(trips(2, 0)));
        assert_eq!(found.after, Some(trips(1, 1)));
    }

    #[test]
    fn a_body_without_instructions_has_no_count() {
        let empty = ".version 8.4\n.target sm_90\n.address_size 64\n.entry k() { ret; }";
        assert_eq!(of_form(empty, Pass::Worker), None);
    }
}
