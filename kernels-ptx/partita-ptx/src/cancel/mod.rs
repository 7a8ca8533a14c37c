//! The `cancel` pass: a launch can be stopped while its kernels run, and a trap ends only its
//! launch.
//!
//! Workers and tickets look at the abort flag before they claim. A launch therefore stops by itself
//! once the running CTAs are over. A CTA that waits for memory may never be over. The pass
//! therefore adds a look at the abort flag to each loop whose way out depends on what others write,
//! and to each loop without a way out. The loop looks in every [`PERIOD`]th round, in every
//! [`TRIES`]th where it has an atomic, or in every [`SLEEPS`]th where it sleeps. Its threads exit
//! when the flag is set.
//!
//! `trap` and `__assertfail` would end the whole context, and every tenant with it. The pass makes
//! them write the fault into the [control block](crate::control), and to the word that it names,
//! set the abort flag and exit.
//!
//! A loop sees what others write by these reads ([`waits`]):
//!
//! - atomics and strong loads;
//! - any load, where the loop acquires (barriers, fences, acquiring atomics and loads);
//! - a plain load that looks at one place again and again, or goes where memory leads it.
//!
//! Other plain loads see it only in a race. A binary search, or a string that is read to its end,
//! walks through data that nobody writes. Such loops are the innermost loops of real kernels, and
//! get no look.
//!
//! The pass comes after the others and finds the control block by the parameter that they added; a
//! kernel without one gets its own. Threads really exit, so no thread at a barrier waits for them.
//! A worker's slot then says that there is no run, so the worker's other threads leave too. CTAs
//! that end this way are not counted in `completed`, and never leave in telemetry: the end of the
//! grids is what holds.
//!
//! A loop that only computes or walks stays as it was: it ends in its own time or never. Where the
//! device cannot end grids ([`Ends::Always`]), every loop looks whose rounds no number of the text
//! bounds ([`rounds`]), and functions of much work look at their beginning ([`work`]).

mod loops;
mod rounds;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::hazard::callee;
use crate::carry::{self, Carry, declare, emit};
use crate::contain;
use crate::control;
use crate::ir::{
    Base, Body, FuncId, Guard, Inst, Label, LabelId, Module, Name, Op, Operand, Pos, Reg, Stmt,
    Symbol, Type, VarId,
};
use crate::kernels::{Calls, Kernel, Param};
use crate::params;
use crate::report::{KernelReport, Outcome, Reason, Refusal};
use crate::worker::Rewritten;
use crate::worker::checks::has_parameter_room;

use loops::waits;
use work::Works;

/// Rounds of a loop between two looks at the abort flag. Lanes that have parted look in rounds of
/// their own, and the whole warp waits for each look, so the number is many times a warp.
pub const PERIOD: u64 = 1024;
/// The same for loops that sleep, which they do for 1 ms at most (PTX ISA, "nanosleep"). A look
/// takes as long as the load that such a loop consists of, and whole chains of CTAs wait for one
/// another in such loops (decoupled look-back), so not every round looks.
pub const SLEEPS: u64 = 16;
/// The same for loops with an atomic that has a result. A round waits for a trip to the LLC, and
/// where all threads of a launch try one word, their atomics are made one after the other: 28,800
/// threads that look in every 1,024th round make 29 million. It is still some times a warp.
pub const TRIES: u64 = 128;

/// The effect of `trap` and of failed assertions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// A trap ends its launch, by the control block.
    Launch,
    /// The same, and every loop can be stopped: for devices that cannot end grids.
    Always,
    /// A trap stays as it is: for devices where it ends only its grid.
    Kept,
}

/// Makes every kernel stoppable that can be. `forms` are the reports of the pass that surrounded
/// the bodies, if any.
#[must_use]
pub fn cancel(module: &Module, forms: &[KernelReport]) -> Rewritten {
    cancel_with(module.clone(), forms, Ends::Launch)
}

/// The same as [`cancel()`], with a choice of what traps do. It changes the module in its place,
/// which may be very large.
#[must_use]
pub fn cancel_with(module: Module, forms: &[KernelReport], ends: Ends) -> Rewritten {
    let was_valid = !cfg!(debug_assertions) || crate::verify(&module).is_ok();
    let works = Works::of(&module, ends);
    let mut looked = Looked { calls: Calls::new(&module), works: &works, needing: BTreeMap::new() };
    let known: BTreeMap<FuncId, &KernelReport> =
        forms.iter().map(|report| (report.func, report)).collect();
    let control_of = |kernel: &Kernel| {
        let form = known.get(&kernel.func).and_then(|report| report.rewritten());
        form.map(|form| (form.control, form.slot))
    };
    let own = module.kernels().into_iter();
    let checked: Vec<_> = own
        .filter(|kernel| forms.is_empty() || known.contains_key(&kernel.func))
        .map(|kernel| {
            let has_control = control_of(&kernel).is_some();
            let functions = check(&module, &mut looked, &kernel, has_control, ends);
            (kernel, functions)
        })
        .collect();
    drop(looked);
    let mut out = module;
    let mut reports = Vec::with_capacity(checked.len());
    let mut state: Option<Cancel<'_>> = None;
    for (kernel, functions) in checked {
        let control = control_of(&kernel);
        let report = match functions {
            Ok(functions) => {
                let state = state.get_or_insert_with(|| Cancel::new(&mut out, ends, &works));
                let added = state.kernel(&mut out, &kernel, control, functions.as_ref());
                KernelReport { added, ..KernelReport::new(&kernel, Outcome::Applied) }
            }
            Err(refusals) => KernelReport::new(&kernel, Outcome::Refused(refusals)),
        };
        reports.push(report);
    }
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    crate::verify::check_pass(&out, || was_valid);
    Rewritten { module: out, reports }
}

/// The facts of a module's functions.
struct Looked<'m> {
    calls: Calls<'m>,
    works: &'m Works,
    /// For each function, whether its own body needs the control block.
    needing: BTreeMap<FuncId, bool>,
}

/// The functions that must get the control block, or why they cannot; `None` where no function has
/// to look at it.
fn check(
    module: &Module,
    looked: &mut Looked<'_>,
    kernel: &Kernel,
    has_control: bool,
    ends: Ends,
) -> Result<Option<BTreeSet<FuncId>>, Vec<Refusal>> {
    let pos = module.func(kernel.func).pos;
    if module.stop.is_asked() {
        return Err(vec![Refusal { pos, reason: Reason::Stopped }]);
    }
    if module.address_size != Some(64) || module.sm().is_none() {
        return Err(vec![Refusal { pos, reason: Reason::Target }]);
    }
    if !has_control && !has_parameter_room(module, kernel, 8) {
        let limit = crate::worker::checks::parameter_limit(module);
        return Err(vec![Refusal {
            pos,
            reason: Reason::ParametersFull { bytes: kernel.param_bytes, limit },
        }]);
    }
    let Looked { calls, works, needing } = looked;
    let reach = calls.reach(kernel.func);
    let needs = |id: FuncId| {
        module.func(id).body.as_ref().is_some_and(|body| {
            works.looks(id)
                || waits(module, body, ends, works).at.iter().any(Option::is_some)
                || body.insts().any(|(_, inst)| end_of(module, body, (inst, None), ends).is_some())
        })
    };
    let funcs = reach.funcs.iter().copied();
    let needing: BTreeSet<FuncId> =
        funcs.filter(|&id| *needing.entry(id).or_insert_with(|| needs(id))).collect();
    let functions =
        carry::wanted(module, calls, &reach, &needing).map_err(|refusal| vec![refusal])?;
    Ok((!needing.is_empty()).then_some(functions))
}

/// The value of the fault word where the instruction ends the launch. `label`: the label right
/// before it.
fn end_of(
    module: &Module,
    body: &Body,
    (inst, label): (&Inst, Option<LabelId>),
    ends: Ends,
) -> Option<u32> {
    if ends == Ends::Kept {
        return None;
    }
    match module.form(inst).op {
        Op::Trap => {
            let label = label.map(|label| module.text(body.labels[label.0 as usize].name));
            Some(contain::fault_of(inst, label).unwrap_or(control::FAULT_TRAP))
        }
        // Without a debugger it is a trap.
        Op::Brkpt => Some(control::FAULT_TRAP),
        Op::Call => {
            let function = callee(body.operands(inst.operands))?;
            (module.text(module.func(function).name) == "__assertfail")
                .then_some(control::FAULT_ASSERT)
        }
        _ => None,
    }
}

/// The pass on one module.
struct Cancel<'w> {
    carry: Carry,
    control: Name,
    temporaries: [(Name, Type); 4],
    ends: Ends,
    works: &'w Works,
}

/// The values that the pass has in one body.
#[derive(Clone, Copy)]
struct Scope {
    control: Reg,
    /// A register with the address of the slot, -1 for none; or the slot itself.
    slot: Slot,
    rounds: Reg,
    word: Reg,
    flag: Reg,
    to: Reg,
}

#[derive(Clone, Copy)]
enum Slot {
    None,
    Variable(VarId),
    Register(Reg),
}

impl<'w> Cancel<'w> {
    fn new(module: &mut Module, ends: Ends, works: &'w Works) -> Self {
        let carry = Carry::new(module, &[("block_of", Type::B64), ("slot_of", Type::B32)]);
        let mut name = |stem: &str, ty| (module.names.fresh(stem), ty);
        let temporaries = [
            name("%pw_rounds", Type::B32),
            name("%pw_word", Type::B32),
            name("%pw_go", Type::Pred),
            name("%pw_to", Type::B64),
        ];
        Self { carry, control: module.names.fresh("pw_control"), temporaries, ends, works }
    }

    fn kernel(
        &mut self,
        module: &mut Module,
        kernel: &Kernel,
        form: Option<(VarId, VarId)>,
        functions: Option<&BTreeSet<FuncId>>,
    ) -> Vec<Param> {
        let mut added = Vec::new();
        let control = form.map_or_else(
            || {
                let offset = kernel.param_bytes.next_multiple_of(8);
                let name = module.text(self.control).to_owned();
                added.push(Param { name, offset, size: 8, align: 8 });
                params::append(module, kernel.func, self.control, Type::U64)
            },
            |(control, _)| control,
        );
        let Some(functions) = functions else { return added };
        for (id, copy) in self.carry.copy(module, functions) {
            self.function(module, copy, self.works.looks(id));
        }
        let Some(mut body) = module.funcs[kernel.func.0 as usize].body.take() else { return added };
        let mut out = Vec::new();
        let [block, slot] = self.carry.declare(&mut body, &mut out)[..] else { return added };
        let from = Operand::Mem(Base::Symbol(Symbol::Var(control)), 0);
        emit(module, &mut body, &mut out, "ld.param.u64", &[Operand::Reg(block), from]);
        let pointer = Operand::Int(!control::NUMBER);
        emit(
            module,
            &mut body,
            &mut out,
            "and.b64",
            &[Operand::Reg(block), Operand::Reg(block), pointer],
        );
        let own = form.map_or(Operand::Int(u64::from(u32::MAX)), |(_, slot)| {
            Operand::Symbol(Symbol::Var(slot), 0)
        });
        let kind = form.map_or(Slot::None, |(_, slot)| Slot::Variable(slot));
        // A variable is declared before it is named: the frame's code does that first.
        let declared =
            form.and_then(|(_, slot)| body.stmts.iter().position(|stmt| *stmt == Stmt::Var(slot)));
        if let Some(at) = declared {
            out.push(body.stmts.remove(at));
        }
        emit(module, &mut body, &mut out, "mov.u32", &[Operand::Reg(slot), own]);
        self.body(module, &mut body, (block, slot, kind), false, out);
        module.funcs[kernel.func.0 as usize].body = Some(body);
        added
    }

    fn function(&self, module: &mut Module, func: FuncId, begins: bool) {
        let Some(mut body) = module.funcs[func.0 as usize].body.take() else { return };
        let mut out = Vec::new();
        let [block, slot] = self.carry.load(module, func, &mut body, None, &mut out)[..] else {
            return;
        };
        self.body(module, &mut body, (block, slot, Slot::Register(slot)), begins, out);
        module.funcs[func.0 as usize].body = Some(body);
    }

    /// Rewrites one body; `slot` is the register that functions get. `begins`: whether it looks at
    /// its beginning.
    fn body(
        &self,
        module: &mut Module,
        body: &mut Body,
        (block, slot, kind): (Reg, Reg, Slot),
        begins: bool,
        mut out: Vec<Stmt>,
    ) {
        let waits = waits(module, body, self.ends, self.works).at;
        let [rounds, word, flag, to] =
            self.temporaries.map(|(name, ty)| declare(body, name, ty, &mut out));
        emit(module, body, &mut out, "mov.u32", &[Operand::Reg(rounds), Operand::Int(PERIOD)]);
        let scope = Scope { control: block, slot: kind, rounds, word, flag, to };
        if begins {
            scope.look(module, body, PERIOD, &mut out);
        }
        let mut before = None;
        for (stmt, waits) in std::mem::take(&mut body.stmts).into_iter().zip(waits) {
            let Stmt::Inst(inst) = stmt else {
                if let Stmt::Label(label) = stmt {
                    before = Some(label);
                }
                out.push(stmt);
                continue;
            };
            if let Some(fault) = end_of(module, body, (&inst, before.take()), self.ends) {
                scope.fault(module, body, &inst, fault, &mut out);
                continue;
            }
            if let Some(counts) = waits {
                scope.look(module, body, counts, &mut out);
            }
            if module.form(&inst).op == Op::Call {
                self.carry.call(module, body, inst, &[block, slot], &mut out);
            } else {
                out.push(stmt);
            }
        }
        body.stmts = out;
    }
}

impl Scope {
    /// Exits every so many rounds when the abort flag is set.
    fn look(&self, module: &mut Module, body: &mut Body, counts: u64, out: &mut Vec<Stmt>) {
        let [rounds, word, flag] = [self.rounds, self.word, self.flag].map(Operand::Reg);
        let on = label(module, body);
        let go_on = Guard { reg: self.flag, negated: false };
        emit(module, body, out, "sub.s32", &[rounds, rounds, Operand::Int(counts)]);
        emit(module, body, out, "setp.gt.s32", &[flag, rounds, Operand::Int(0)]);
        branch(module, body, out, go_on, on);
        emit(module, body, out, "mov.u32", &[rounds, Operand::Int(PERIOD)]);
        emit(module, body, out, "ld.volatile.global.u32", &[word, self.at(control::ABORT)]);
        emit(module, body, out, "setp.eq.u32", &[flag, word, Operand::Int(0)]);
        branch(module, body, out, go_on, on);
        self.end_run(module, body, out);
        // The exit is guarded, though the guard always holds: lanes that leave the loop earlier
        // then meet the others behind it, as in a loop without this way out.
        emit(module, body, out, "setp.eq.u32", &[flag, word, Operand::Int(0)]);
        emit(module, body, out, "exit", &[]);
        if let Some(Stmt::Inst(exit)) = out.last_mut() {
            exit.guard = Some(Guard { reg: self.flag, negated: false });
        }
        out.push(Stmt::Label(on));
    }

    /// Marks the launch as faulted (the first fault stays, and goes to the block's word), stops it,
    /// and exits.
    fn fault(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: &Inst,
        fault: u32,
        out: &mut Vec<Stmt>,
    ) {
        drop_arguments(module, body, inst, out);
        let [word, flag, to] = [self.word, self.flag, self.to].map(Operand::Reg);
        let on = label(module, body);
        if let Some(guard) = inst.guard {
            branch(module, body, out, Guard { negated: !guard.negated, ..guard }, on);
        }
        let first =
            [word, self.at(control::FAULT), Operand::Int(0), Operand::Int(u64::from(fault))];
        emit(module, body, out, "atom.global.cas.b32", &first);
        emit(module, body, out, "ld.global.u64", &[to, self.at(control::FAULT_TO)]);
        emit(module, body, out, "setp.eq.u32", &[flag, word, Operand::Int(0)]);
        emit(module, body, out, "setp.ne.and.u64", &[flag, to, Operand::Int(0), flag]);
        emit(module, body, out, "mov.u32", &[word, Operand::Int(u64::from(fault))]);
        let there = Operand::Mem(Base::Reg(self.to), 0);
        emit(module, body, out, "st.volatile.global.u32", &[there, word]);
        if let Some(Stmt::Inst(store)) = out.last_mut() {
            store.guard = Some(Guard { reg: self.flag, negated: false });
        }
        // The main grid may end when it sees the flag, and the host reads the word at that end.
        emit(module, body, out, "membar.sys", &[]);
        emit(module, body, out, "mov.u32", &[word, Operand::Int(1)]);
        emit(module, body, out, "st.volatile.global.u32", &[self.at(control::ABORT), word]);
        let none_left = [self.at(control::NEXT), Operand::Int(control::EXHAUSTED)];
        emit(module, body, out, "red.global.or.b64", &none_left);
        self.end_run(module, body, out);
        emit(module, body, out, "exit", &[]);
        out.push(Stmt::Label(on));
    }

    /// Tells the other threads of a worker that there is no run. The word is 0 afterwards.
    fn end_run(&self, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) {
        let (word, flag) = (Operand::Reg(self.word), Operand::Reg(self.flag));
        emit(module, body, out, "mov.u32", &[word, Operand::Int(0)]);
        match self.slot {
            Slot::None => {}
            Slot::Variable(slot) => {
                let at = Operand::Mem(Base::Symbol(Symbol::Var(slot)), 4);
                emit(module, body, out, "st.shared.u32", &[at, word]);
            }
            Slot::Register(slot) => {
                let none = Operand::Int(u64::from(u32::MAX));
                emit(module, body, out, "setp.ne.u32", &[flag, Operand::Reg(slot), none]);
                let operands = [Operand::Mem(Base::Reg(slot), 4), word];
                emit(module, body, out, "st.shared.u32", &operands);
                if let Some(Stmt::Inst(store)) = out.last_mut() {
                    store.guard = Some(Guard { reg: self.flag, negated: false });
                }
            }
        }
    }

    fn at(&self, offset: u64) -> Operand {
        Operand::Mem(Base::Reg(self.control), i32::try_from(offset).expect("offsets are small"))
    }
}

/// Removes the stores of arguments for a call that is gone.
fn drop_arguments(module: &Module, body: &Body, inst: &Inst, out: &mut Vec<Stmt>) {
    let arguments: Vec<Symbol> = body
        .operands(inst.operands)
        .iter()
        .filter_map(|operand| match operand {
            Operand::List(slice) => Some(*slice),
            _ => None,
        })
        .flat_map(|slice| body.operands(slice))
        .filter_map(|operand| match operand {
            Operand::Symbol(symbol, _) => Some(*symbol),
            _ => None,
        })
        .collect();
    if arguments.is_empty() {
        return;
    }
    // Arguments are stored in the call's own block.
    let start = out.iter().rposition(|stmt| matches!(stmt, Stmt::Label(_))).unwrap_or(0);
    let tail = out.split_off(start);
    out.extend(tail.into_iter().filter(|stmt| match stmt {
        Stmt::Inst(inst) if module.form(inst).op == Op::St => !matches!(
            body.operands(inst.operands).first(),
            Some(Operand::Mem(Base::Symbol(symbol), _)) if arguments.contains(symbol)
        ),
        _ => true,
    }));
}

pub(crate) fn label(module: &mut Module, body: &mut Body) -> LabelId {
    let index = u32::try_from(body.labels.len()).expect("fewer labels than source bytes");
    let name = module.names.fresh(&format!("$pw_on{index}"));
    body.labels.push(Label { name, pos: Pos::default() });
    LabelId(index)
}

fn branch(module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>, guard: Guard, to: LabelId) {
    emit(module, body, out, "bra", &[Operand::Symbol(Symbol::Label(to), 0)]);
    if let Some(Stmt::Inst(inst)) = out.last_mut() {
        inst.guard = Some(guard);
    }
}
