//! Counted barriers by polling, because a thread at a barrier of the hardware reads no flag.
//!
//! A barrier that counts its threads (`bar.sync 1, 64`) is never passed where a thread leaves
//! before it, or where the program's counts do not fit. The GPU then runs the CTA for ever. A word
//! of shared memory therefore stands for each such barrier: its low 16 bits count the threads that
//! have come, and its high 16 bits count how often the barrier has opened. The threads of a warp
//! that wait read the word in a loop, in which [`mod@crate::cancel`] looks at the abort flag.
//!
//! A barrier without a count waits for the CTA's threads that have not exited. It opens when the
//! others exit, so it stays the hardware's, as long as a kernel waits at one such barrier only.
//!
//! # What stays the hardware's
//!
//! - Barriers without a count, and counted barriers that share a number with one.
//! - Counted reductions, and barriers that threads of a warp reach apart (`barrier.sync`): which
//!   threads come together is not known. Where such a barrier's number is in a register, nothing
//!   changes.
//! - All barriers below `sm_70` and PTX 6.3, which has `nanosleep`.

use std::collections::BTreeSet;

use crate::cancel::label;
use crate::carry::{declare, emit};
use crate::ir::{
    Base, Body, Dim, FuncId, Guard, Inst, Item, LabelId, Linkage, Mod, Module, Op, Operand, Part,
    Pos, Reg, Space, Special, Stmt, Symbol, Type, VarId, Variable, Version,
};
use crate::kernels::Calls;

/// The words of the barriers, as the pass names them.
const WORDS: &str = "pw_barriers";
/// Barriers of a CTA (PTX ISA, "bar, barrier").
const BARRIERS: u64 = 16;
/// What a word counts when its barrier opens.
const OPENED: u64 = 1 << 16;
/// All lanes of a warp.
const ALL: Operand = Operand::Int(0xffff_ffff);

/// What becomes of an instruction's barrier.
enum Kind {
    /// It has no barrier of the CTA.
    None,
    /// The hardware's.
    Kept(Operand),
    /// A counted one: its number and its threads.
    Counted(Operand, Operand),
}

fn kind(module: &Module, body: &Body, inst: &Inst) -> Kind {
    let form = module.form(inst);
    let kept = match form.barrier_operands(body.operands(inst.operands)) {
        [Some(number), Some(count)] => {
            let is_aligned = form.op == Op::Bar || form.has(Mod::Aligned);
            if is_aligned && !form.has(Mod::Red) {
                return Kind::Counted(number, count);
            }
            number
        }
        [Some(number), None] => number,
        // Without a number it is barrier 0.
        [None, _] if matches!(form.op, Op::Bar | Op::Barrier) => {
            if form.has(Mod::Warp) || form.has(Mod::Cluster) {
                return Kind::None;
            }
            Operand::Int(0)
        }
        [None, _] => return Kind::None,
    };
    Kind::Kept(kept)
}

fn number(operand: Operand) -> Option<u64> {
    match operand {
        Operand::Int(number) | Operand::Uint(number) => Some(number),
        _ => None,
    }
}

/// The numbers of the barriers that stay the hardware's. `None` where no barrier changes.
fn kept(module: &Module) -> Option<BTreeSet<u64>> {
    let (mut kept, mut counted) = (BTreeSet::new(), Vec::new());
    for body in module.funcs.iter().filter_map(|func| func.body.as_ref()) {
        for (_, inst) in body.insts() {
            match kind(module, body, inst) {
                Kind::None => {}
                Kind::Kept(operand) => drop(kept.insert(number(operand)?)),
                Kind::Counted(operand, _) => counted.push(operand),
            }
        }
    }
    let changes = |operand: &Operand| number(*operand).is_none_or(|number| !kept.contains(&number));
    let is_new = module.sm()? >= 70 && module.version >= Version { major: 6, minor: 3 };
    (is_new && counted.iter().any(changes)).then_some(kept)
}

/// Makes loops of counted barriers.
pub(super) fn poll(module: &mut Module) {
    let Some(kept) = kept(module) else { return };
    let words = words(module);
    let mut polling = BTreeSet::new();
    for index in 0..module.funcs.len() {
        if let Some(mut body) = module.funcs[index].body.take() {
            if (Poller { words, kept: &kept }).body(module, &mut body) {
                polling.insert(FuncId(u32::try_from(index).expect("fewer than source bytes")));
            }
            module.funcs[index].body = Some(body);
        }
    }
    let mut calls = Calls::new(module);
    let polls = |id: FuncId, calls: &mut Calls<'_>| !calls.reach(id).funcs.is_disjoint(&polling);
    let kernels = module.kernels().into_iter().map(|kernel| kernel.func);
    let kernels: Vec<FuncId> = kernels.filter(|&id| polls(id, &mut calls)).collect();
    for id in kernels {
        if let Some(mut body) = module.funcs[id.0 as usize].body.take() {
            begin(module, &mut body, words);
            module.funcs[id.0 as usize].body = Some(body);
        }
    }
}

/// Declares the words.
fn words(module: &mut Module) -> VarId {
    let name = module.names.fresh(WORDS);
    let words = module.add_var(Variable {
        name,
        space: Space::Shared,
        bank: None,
        linkage: Linkage::Private,
        align: Some(16),
        vector: 1,
        ty: Type::B8,
        dims: vec![Dim::Count(4 * BARRIERS)],
        pointer: None,
        attribute: None,
        init: None,
        pos: Pos::default(),
    });
    let first = module.items.iter().position(|item| matches!(item, Item::Function(_)));
    module.items.insert(first.unwrap_or(0), Item::Variable(words));
    words
}

/// A kernel begins with words of zero: its first thread writes them, and all wait for it.
fn begin(module: &mut Module, body: &mut Body, words: VarId) {
    let mut out = Vec::with_capacity(body.stmts.len() + 16);
    let mut reg = |stem: &str, ty, out: &mut Vec<Stmt>| {
        let name = module.names.fresh(stem);
        declare(body, name, ty, out)
    };
    let [tid, part] = ["%pw_tid", "%pw_tid_part"].map(|stem| reg(stem, Type::B32, &mut out));
    let first = reg("%pw_first", Type::Pred, &mut out);
    let [tid, part] = [tid, part].map(Operand::Reg);
    let of = |part| Operand::Special(Special::Tid, part);
    emit(module, body, &mut out, "mov.u32", &[tid, of(Part::X)]);
    for other in [Part::Y, Part::Z] {
        emit(module, body, &mut out, "mov.u32", &[part, of(other)]);
        emit(module, body, &mut out, "or.b32", &[tid, tid, part]);
    }
    emit(module, body, &mut out, "setp.eq.u32", &[Operand::Reg(first), tid, Operand::Int(0)]);
    emit(module, body, &mut out, "mov.u32", &[part, Operand::Int(0)]);
    for word in 0..BARRIERS {
        let at = i32::try_from(4 * word).expect("there are 16");
        let to = Operand::Mem(Base::Symbol(Symbol::Var(words)), at);
        emit(module, body, &mut out, "st.shared.u32", &[to, part]);
        guard(&mut out, Guard { reg: first, negated: false }, Pos::default());
    }
    emit(module, body, &mut out, "bar.sync", &[Operand::Int(0)]);
    out.append(&mut body.stmts);
    body.stmts = out;
}

/// Guards the last instruction, and says where in the program's text it stands.
fn guard(out: &mut [Stmt], guard: Guard, pos: Pos) {
    if let Some(Stmt::Inst(inst)) = out.last_mut() {
        (inst.guard, inst.pos) = (Some(guard), pos);
    }
}

struct Poller<'a> {
    words: VarId,
    kept: &'a BTreeSet<u64>,
}

/// Registers of one body.
struct Regs {
    cell: Operand,
    limit: Operand,
    /// How often the barrier had opened when the thread came.
    opened: Operand,
    old: Operand,
    new: Operand,
    is: Reg,
    leads: Reg,
    at: Base,
}

impl Regs {
    fn new(module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) -> Regs {
        let mut reg = |stem: &str, ty| {
            let name = module.names.fresh(stem);
            declare(body, name, ty, out)
        };
        let cell = reg("%pw_cell", Type::B32);
        let mut word = |stem: &str| Operand::Reg(reg(stem, Type::B32));
        let [limit, opened, old, new] =
            ["%pw_limit", "%pw_opened", "%pw_old", "%pw_new"].map(&mut word);
        let (is, leads) = (reg("%pw_is", Type::Pred), reg("%pw_leads", Type::Pred));
        let at = Base::Reg(cell);
        Regs { cell: Operand::Reg(cell), limit, opened, old, new, is, leads, at }
    }
}

impl Poller<'_> {
    /// Whether a barrier of the body has changed.
    fn body(&self, module: &mut Module, body: &mut Body) -> bool {
        let changes = |inst: &Inst| match kind(module, body, inst) {
            Kind::Counted(operand, count) => match number(operand) {
                Some(number) => (!self.kept.contains(&number)).then_some((operand, count)),
                None => Some((operand, count)),
            },
            _ => None,
        };
        let sites = body.insts().filter_map(|(at, inst)| Some((at, changes(inst)?)));
        let sites: Vec<(usize, (Operand, Operand))> = sites.collect();
        if sites.is_empty() {
            return false;
        }
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + 40 * sites.len());
        let regs = Regs::new(module, body, &mut out);
        let mut sites = sites.into_iter().peekable();
        for (index, stmt) in stmts.into_iter().enumerate() {
            match (stmt, sites.next_if(|(at, _)| *at == index)) {
                (Stmt::Inst(inst), Some((_, barrier))) => {
                    self.barrier(module, body, &regs, (inst, barrier), &mut out);
                }
                (stmt, _) => out.push(stmt),
            }
        }
        body.stmts = out;
        true
    }

    fn barrier(
        &self,
        module: &mut Module,
        body: &mut Body,
        regs: &Regs,
        (inst, (operand, count)): (Inst, (Operand, Operand)),
        out: &mut Vec<Stmt>,
    ) {
        let past = label(module, body);
        if let Some(own) = inst.guard {
            branch(module, body, out, past);
            guard(out, Guard { negated: !own.negated, ..own }, Pos::default());
        }
        if number(operand).is_none() {
            self.keep(module, body, regs, (inst, operand, past), out);
        }
        let words = Operand::Symbol(Symbol::Var(self.words), 0);
        emit(module, body, out, "mov.u32", &[regs.limit, count]);
        emit(module, body, out, "mov.u32", &[regs.cell, words]);
        emit(module, body, out, "mov.u32", &[regs.new, operand]);
        emit(module, body, out, "shl.b32", &[regs.new, regs.new, Operand::Int(2)]);
        emit(module, body, out, "add.u32", &[regs.cell, regs.cell, regs.new]);
        come(module, body, regs, out);
        if !module.form(&inst).has(Mod::Arrive) {
            wait(module, body, regs, inst.pos, out);
        }
        out.push(Stmt::Label(past));
    }

    /// A barrier whose number is in a register stays where the number is one of the hardware's.
    fn keep(
        &self,
        module: &mut Module,
        body: &mut Body,
        regs: &Regs,
        (inst, operand, past): (Inst, Operand, LabelId),
        out: &mut Vec<Stmt>,
    ) {
        for &number in self.kept {
            let other = label(module, body);
            let operands = [Operand::Reg(regs.is), operand, Operand::Int(number)];
            emit(module, body, out, "setp.ne.u32", &operands);
            branch(module, body, out, other);
            guard(out, Guard { reg: regs.is, negated: false }, Pos::default());
            out.push(Stmt::Inst(Inst { guard: None, ..inst }));
            branch(module, body, out, past);
            out.push(Stmt::Label(other));
        }
    }
}

fn branch(module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>, to: LabelId) {
    emit(module, body, out, "bra", &[Operand::Symbol(Symbol::Label(to), 0)]);
}

/// One lane counts its warp. Every thread has read before how often the barrier had opened, and has
/// made its stores visible.
fn come(module: &mut Module, body: &mut Body, regs: &Regs, out: &mut Vec<Stmt>) {
    let &Regs { limit, opened, old, new, at, .. } = regs;
    let [is, leads] = [regs.is, regs.leads].map(Operand::Reg);
    let lane = Operand::Special(Special::Laneid, Part::Whole);
    let cell = Operand::Mem(at, 0);
    emit(module, body, out, "ld.volatile.shared.u32", &[opened, cell]);
    emit(module, body, out, "shr.u32", &[opened, opened, Operand::Int(16)]);
    emit(module, body, out, "mov.u32", &[old, lane]);
    emit(module, body, out, "setp.lt.u32", &[is, old, Operand::Int(32)]);
    emit(module, body, out, "vote.sync.ballot.b32", &[new, is, ALL]);
    emit(module, body, out, "bfind.u32", &[new, new]);
    emit(module, body, out, "setp.ne.u32", &[leads, old, new]);
    emit(module, body, out, "bar.warp.sync", &[ALL]);
    emit(module, body, out, "fence.acq_rel.cta", &[]);
    let (again, done) = (label(module, body), label(module, body));
    branch(module, body, out, done);
    guard(out, Guard { reg: regs.leads, negated: false }, Pos::default());
    out.push(Stmt::Label(again));
    emit(module, body, out, "ld.volatile.shared.u32", &[old, cell]);
    emit(module, body, out, "add.u32", &[new, old, Operand::Int(32)]);
    // The last one opens the barrier, and begins to count anew.
    let (count, clear) = (Operand::Int(OPENED - 1), Operand::Int(!(OPENED - 1) & 0xffff_ffff));
    let last = Guard { reg: regs.leads, negated: false };
    emit(module, body, out, "and.b32", &[new, new, count]);
    emit(module, body, out, "setp.ge.u32", &[leads, new, limit]);
    emit(module, body, out, "add.u32", &[new, old, Operand::Int(32)]);
    emit(module, body, out, "and.b32", &[new, old, clear]);
    guard(out, last, Pos::default());
    emit(module, body, out, "add.u32", &[new, new, Operand::Int(OPENED)]);
    guard(out, last, Pos::default());
    emit(module, body, out, "atom.shared.cas.b32", &[new, cell, old, new]);
    emit(module, body, out, "setp.ne.u32", &[is, new, old]);
    branch(module, body, out, again);
    guard(out, Guard { reg: regs.is, negated: false }, Pos::default());
    out.push(Stmt::Label(done));
}

/// Waits until the barrier has opened once more. The loop has a place in the program's text, so it
/// gets a look at the abort flag.
fn wait(module: &mut Module, body: &mut Body, regs: &Regs, pos: Pos, out: &mut Vec<Stmt>) {
    let again = label(module, body);
    let waits = Guard { reg: regs.is, negated: false };
    let seen = [regs.old, Operand::Mem(regs.at, 0)];
    out.push(Stmt::Label(again));
    emit(module, body, out, "ld.volatile.shared.u32", &seen);
    emit(module, body, out, "shr.u32", &[regs.old, regs.old, Operand::Int(16)]);
    emit(module, body, out, "setp.eq.u32", &[Operand::Reg(regs.is), regs.old, regs.opened]);
    emit(module, body, out, "nanosleep.u32", &[Operand::Int(20)]);
    guard(out, waits, Pos::default());
    branch(module, body, out, again);
    guard(out, waits, pos);
    emit(module, body, out, "fence.acq_rel.cta", &[]);
    emit(module, body, out, "bar.warp.sync", &[ALL]);
}
