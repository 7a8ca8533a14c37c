//! Barriers by polling, because a thread at a barrier of the hardware reads no flag.
//!
//! A barrier that counts its threads (`bar.sync 1, 64`) is never passed where a thread leaves
//! before it, or where the program's counts do not fit. The GPU then runs the CTA for ever. A word
//! of shared memory therefore stands for each such barrier: its low 16 bits count the threads that
//! have come, and its high 16 bits count how often the barrier has opened. The threads of a warp
//! that wait read the word in a loop, in which [`mod@crate::cancel`] looks at the abort flag.
//!
//! A barrier without a count waits for the CTA's threads that have not exited. It opens when the
//! others exit, so it stays the hardware's where threads can wait at one such barrier only. Else it
//! is polled, too: it opens when as many threads have come as a further word counts, from which
//! each thread takes itself before it exits.
//!
//! A reduction without a count (`bar.red.popc`) adds up its votes, too ([`reductions`]).
//!
//! # What stays the hardware's
//!
//! - Reductions that count their threads, because others of the CTA may open the barrier again
//!   before these have read the sum.
//! - Barriers that threads of a warp reach apart (`barrier.sync`): which threads come together is
//!   not known.
//! - Other barriers with the numbers of these. Where such a number is in a register, nothing
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

use super::reductions::{self, Reduction, reduction};
use super::{falls_off, threads};

/// The words of the barriers, as the pass names them.
const WORDS: &str = "pw_barriers";
/// Barriers of a CTA (PTX ISA, "bar, barrier").
const BARRIERS: u64 = 16;
/// Where the number of threads that have not exited stands among the words, in bytes.
const LIVE: i32 = 64;
/// What a word counts when its barrier opens.
const OPENED: u64 = 1 << 16;
/// All lanes of a warp.
pub(super) const ALL: Operand = Operand::Int(0xffff_ffff);

/// What may become of an instruction's barrier.
enum Kind {
    /// It has no barrier of the CTA.
    None,
    /// It stays the hardware's.
    Kept(Operand),
    /// It may be polled.
    Sync(Barrier),
}

/// A barrier that may be polled.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    number: Operand,
    /// Its threads, if it counts them.
    count: Option<Operand>,
    reduction: Option<Reduction>,
}

fn kind(module: &Module, body: &Body, inst: &Inst) -> Kind {
    let form = module.form(inst);
    let (number, count) = match form.barrier_operands(body.operands(inst.operands)) {
        [Some(number), count] => (number, count),
        // Without a number it is barrier 0.
        [None, _] if matches!(form.op, Op::Bar | Op::Barrier) => {
            if form.has(Mod::Warp) || form.has(Mod::Cluster) {
                return Kind::None;
            }
            (Operand::Int(0), None)
        }
        [None, _] => return Kind::None,
    };
    let is_aligned = form.op == Op::Bar || form.has(Mod::Aligned);
    let is_reduction = form.has(Mod::Red);
    let reduction = reduction(form, body.operands(inst.operands)).filter(|_| is_reduction);
    if !is_aligned || is_reduction && (reduction.is_none() || count.is_some()) {
        return Kind::Kept(number);
    }
    Kind::Sync(Barrier { number, count, reduction })
}

fn number(operand: Operand) -> Option<u64> {
    match operand {
        Operand::Int(number) | Operand::Uint(number) => Some(number),
        _ => None,
    }
}

/// Which barriers are polled.
struct Plan {
    /// The numbers of barriers that stay the hardware's.
    kept: BTreeSet<u64>,
    /// Whether barriers without a count are polled.
    wholes: bool,
    /// The numbers of barriers whose votes are added up.
    reductions: BTreeSet<u64>,
}

impl Plan {
    /// `None` where no barrier changes.
    fn of(module: &Module) -> Option<Plan> {
        let is_new = module.sm()? >= 70 && module.version >= Version { major: 6, minor: 3 };
        let (mut kept, mut wholes, mut counted) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut reductions = BTreeSet::new();
        for body in module.funcs.iter().filter_map(|func| func.body.as_ref()) {
            for (_, inst) in body.insts() {
                match kind(module, body, inst) {
                    Kind::None => {}
                    Kind::Kept(operand) => drop(kept.insert(number(operand)?)),
                    Kind::Sync(barrier) if barrier.count.is_some() => {
                        counted.push(number(barrier.number));
                    }
                    Kind::Sync(Barrier { number: operand, reduction, .. }) => {
                        wholes.push(number(operand));
                        match number(operand).filter(|_| reduction.is_some()) {
                            Some(number) => drop(reductions.insert(number)),
                            None if reduction.is_some() => reductions.extend(0..BARRIERS),
                            None => {}
                        }
                    }
                }
            }
        }
        let is_free = |number: &Option<u64>, kept: &BTreeSet<u64>| {
            number.is_none_or(|number| !kept.contains(&number))
        };
        // Threads may wait for each other at two barriers, or at one that others count.
        let is_met = |whole: &Option<u64>| {
            let others = |numbers: &[Option<u64>]| numbers.contains(&None) || whole.is_none();
            others(&counted)
                || others(&wholes)
                || counted.contains(whole)
                || wholes.iter().any(|other| other != whole)
        };
        let polls_wholes = wholes.iter().any(|whole| is_free(whole, &kept) && is_met(whole));
        if !polls_wholes {
            kept.extend(wholes.into_iter().flatten());
        }
        let changes = polls_wholes || counted.iter().any(|number| is_free(number, &kept));
        if !polls_wholes {
            reductions.clear();
        }
        (is_new && changes).then_some(Plan { kept, wholes: polls_wholes, reductions })
    }

    /// A barrier that is polled.
    fn polled(&self, module: &Module, body: &Body, inst: &Inst) -> Option<Barrier> {
        let Kind::Sync(barrier) = kind(module, body, inst) else { return None };
        let is_kept = number(barrier.number).is_some_and(|number| self.kept.contains(&number));
        (!is_kept && (barrier.count.is_some() || self.wholes)).then_some(barrier)
    }
}

/// Makes loops of barriers.
pub(super) fn poll(module: &mut Module) {
    let Some(plan) = Plan::of(module) else { return };
    let words = words(module, &plan);
    let mut polling = BTreeSet::new();
    for index in 0..module.funcs.len() {
        if let Some(mut body) = module.funcs[index].body.take() {
            if (Poller { words, plan: &plan }).body(module, &mut body) {
                polling.insert(FuncId(u32::try_from(index).expect("fewer than source bytes")));
            }
            module.funcs[index].body = Some(body);
        }
    }
    let mut calls = Calls::new(module);
    let polls = |id: FuncId, calls: &mut Calls<'_>| !calls.reach(id).funcs.is_disjoint(&polling);
    let kernels = module.kernels().into_iter().map(|kernel| kernel.func);
    let kernels: Vec<FuncId> = kernels.filter(|&id| polls(id, &mut calls)).collect();
    if plan.wholes {
        let mut reached = BTreeSet::new();
        for &kernel in &kernels {
            reached.extend(calls.reach(kernel).funcs.iter().copied());
        }
        for id in reached {
            let is_kernel = kernels.contains(&id);
            if let Some(mut body) = module.funcs[id.0 as usize].body.take() {
                count_exits(module, &mut body, is_kernel, words);
                module.funcs[id.0 as usize].body = Some(body);
            }
        }
    }
    for id in kernels {
        if let Some(mut body) = module.funcs[id.0 as usize].body.take() {
            begin(module, &mut body, words, &plan);
            module.funcs[id.0 as usize].body = Some(body);
        }
    }
}

/// Declares the words.
fn words(module: &mut Module, plan: &Plan) -> VarId {
    let name = module.names.fresh(WORDS);
    let sums = plan.reductions.last().and_then(|&last| reductions::sums(last).last());
    let end = sums.map_or(LIVE.unsigned_abs().into(), |last| last) + 4;
    let words = module.add_var(Variable {
        name,
        space: Space::Shared,
        bank: None,
        linkage: Linkage::Private,
        align: Some(16),
        vector: 1,
        ty: Type::B8,
        dims: vec![Dim::Count(end)],
        pointer: None,
        attribute: None,
        init: None,
        pos: Pos::default(),
    });
    let first = module.items.iter().position(|item| matches!(item, Item::Function(_)));
    module.items.insert(first.unwrap_or(0), Item::Variable(words));
    words
}

/// Before a thread exits, it lowers the number of threads that have not exited by one.
fn count_exits(module: &mut Module, body: &mut Body, is_kernel: bool, words: VarId) {
    let stmts = std::mem::take(&mut body.stmts);
    let mut out = Vec::with_capacity(stmts.len() + 4);
    let live = Operand::Mem(Base::Symbol(Symbol::Var(words)), LIVE);
    let less = Operand::Int(0xffff_ffff);
    for stmt in stmts {
        if let Stmt::Inst(inst) = &stmt {
            let op = module.form(inst).op;
            if op == Op::Exit || (is_kernel && op == Op::Ret) {
                emit(module, body, &mut out, "red.shared.add.u32", &[live, less]);
                if let Some(own) = inst.guard {
                    guard(&mut out, own, Pos::default());
                }
            }
        }
        out.push(stmt);
    }
    if is_kernel && falls_off(module, &out) {
        emit(module, body, &mut out, "red.shared.add.u32", &[live, less]);
    }
    body.stmts = out;
}

/// A kernel begins with words of zero, and the number of its threads: its first thread writes them,
/// and all wait for it.
fn begin(module: &mut Module, body: &mut Body, words: VarId, plan: &Plan) {
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
    let words_of_barriers = (0..BARRIERS).map(|word| 4 * word);
    for at in words_of_barriers.chain(plan.reductions.iter().flat_map(|&of| reductions::sums(of))) {
        let at = i32::try_from(at).expect("there are 16 barriers");
        let to = Operand::Mem(Base::Symbol(Symbol::Var(words)), at);
        emit(module, body, &mut out, "st.shared.u32", &[to, part]);
        guard(&mut out, Guard { reg: first, negated: false }, Pos::default());
    }
    if plan.wholes {
        threads(module, body, [tid, part], &mut out);
        let live = Operand::Mem(Base::Symbol(Symbol::Var(words)), LIVE);
        emit(module, body, &mut out, "st.shared.u32", &[live, tid]);
        guard(&mut out, Guard { reg: first, negated: false }, Pos::default());
    }
    emit(module, body, &mut out, "bar.sync", &[Operand::Int(0)]);
    out.append(&mut body.stmts);
    body.stmts = out;
}

/// Guards the last instruction, and says where in the program's text it stands.
pub(super) fn guard(out: &mut [Stmt], guard: Guard, pos: Pos) {
    if let Some(Stmt::Inst(inst)) = out.last_mut() {
        (inst.guard, inst.pos) = (Some(guard), pos);
    }
}

struct Poller<'a> {
    words: VarId,
    plan: &'a Plan,
}

/// Registers of one body.
pub(super) struct Regs {
    cell: Operand,
    limit: Operand,
    /// The threads that come with this one.
    share: Operand,
    /// How often the barrier had opened when the thread came.
    pub(super) opened: Operand,
    pub(super) old: Operand,
    pub(super) new: Operand,
    /// The sum of this opening's votes, and that of the opening after the next.
    pub(super) sums: [Reg; 2],
    is: Reg,
    pub(super) leads: Reg,
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
        let [limit, share, opened, old, new] =
            ["%pw_limit", "%pw_share", "%pw_opened", "%pw_old", "%pw_new"].map(&mut word);
        let sums = ["%pw_sum", "%pw_next"].map(|stem| reg(stem, Type::B32));
        let (is, leads) = (reg("%pw_is", Type::Pred), reg("%pw_leads", Type::Pred));
        let at = Base::Reg(cell);
        Regs { cell: Operand::Reg(cell), limit, share, opened, old, new, sums, is, leads, at }
    }
}

impl Poller<'_> {
    /// Whether a barrier of the body has changed.
    fn body(&self, module: &mut Module, body: &mut Body) -> bool {
        let polled = |inst: &Inst| self.plan.polled(module, body, inst);
        let sites = body.insts().filter_map(|(at, inst)| Some((at, polled(inst)?)));
        let sites: Vec<(usize, Barrier)> = sites.collect();
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
                    self.barrier(module, body, &regs, (inst, &barrier), &mut out);
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
        (inst, barrier): (Inst, &Barrier),
        out: &mut Vec<Stmt>,
    ) {
        let &Barrier { number: operand, count, reduction } = barrier;
        let past = label(module, body);
        if let Some(own) = inst.guard {
            branch(module, body, out, past);
            guard(out, Guard { negated: !own.negated, ..own }, Pos::default());
        }
        if number(operand).is_none() {
            self.keep(module, body, regs, (inst, operand, past), out);
        }
        let words = Operand::Symbol(Symbol::Var(self.words), 0);
        let live = Operand::Mem(Base::Symbol(Symbol::Var(self.words)), LIVE);
        match count {
            Some(count) => emit(module, body, out, "mov.u32", &[regs.limit, count]),
            None => emit(module, body, out, "ld.volatile.shared.u32", &[regs.limit, live]),
        }
        emit(module, body, out, "mov.u32", &[regs.cell, words]);
        emit(module, body, out, "mov.u32", &[regs.new, operand]);
        emit(module, body, out, "shl.b32", &[regs.new, regs.new, Operand::Int(2)]);
        emit(module, body, out, "add.u32", &[regs.cell, regs.cell, regs.new]);
        come(module, body, regs, (barrier, words), out);
        if !module.form(&inst).has(Mod::Arrive) {
            let live = count.is_none().then_some(live);
            wait(module, body, regs, (live, inst.pos, reduction.is_some()), out);
        }
        if let Some(reduction) = reduction {
            reductions::tell(module, body, regs, reduction, out);
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
        for &number in &self.plan.kept {
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
fn come(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    (barrier, words): (&Barrier, Operand),
    out: &mut Vec<Stmt>,
) {
    let &Regs { limit, share, opened, old, new, at, .. } = regs;
    let [is, leads] = [regs.is, regs.leads].map(Operand::Reg);
    let lane = Operand::Special(Special::Laneid, Part::Whole);
    let cell = Operand::Mem(at, 0);
    emit(module, body, out, "ld.volatile.shared.u32", &[opened, cell]);
    emit(module, body, out, "shr.u32", &[opened, opened, Operand::Int(16)]);
    if barrier.reduction.is_some() {
        reductions::find_sums(module, body, regs, (barrier.number, words), out);
    }
    emit(module, body, out, "mov.u32", &[old, lane]);
    emit(module, body, out, "setp.lt.u32", &[is, old, Operand::Int(32)]);
    emit(module, body, out, "vote.sync.ballot.b32", &[new, is, ALL]);
    match barrier.count.is_some() {
        true => emit(module, body, out, "mov.u32", &[share, Operand::Int(32)]),
        false => emit(module, body, out, "popc.b32", &[share, new]),
    }
    emit(module, body, out, "bfind.u32", &[new, new]);
    emit(module, body, out, "setp.ne.u32", &[leads, old, new]);
    if let Some(reduction) = barrier.reduction {
        reductions::vote(module, body, regs, reduction, out);
    }
    emit(module, body, out, "bar.warp.sync", &[ALL]);
    emit(module, body, out, "fence.acq_rel.cta", &[]);
    let (again, done) = (label(module, body), label(module, body));
    branch(module, body, out, done);
    guard(out, Guard { reg: regs.leads, negated: false }, Pos::default());
    out.push(Stmt::Label(again));
    emit(module, body, out, "ld.volatile.shared.u32", &[old, cell]);
    emit(module, body, out, "add.u32", &[new, old, share]);
    // The last one opens the barrier, and begins to count anew.
    let (count, clear) = (Operand::Int(OPENED - 1), Operand::Int(!(OPENED - 1) & 0xffff_ffff));
    let last = Guard { reg: regs.leads, negated: false };
    emit(module, body, out, "and.b32", &[new, new, count]);
    emit(module, body, out, "setp.ge.u32", &[leads, new, limit]);
    emit(module, body, out, "add.u32", &[new, old, share]);
    emit(module, body, out, "and.b32", &[new, old, clear]);
    guard(out, last, Pos::default());
    emit(module, body, out, "add.u32", &[new, new, Operand::Int(OPENED)]);
    guard(out, last, Pos::default());
    if barrier.reduction.is_some() {
        reductions::clear_next(module, body, regs, out);
    }
    emit(module, body, out, "atom.shared.cas.b32", &[new, cell, old, new]);
    emit(module, body, out, "setp.ne.u32", &[is, new, old]);
    branch(module, body, out, again);
    guard(out, Guard { reg: regs.is, negated: false }, Pos::default());
    out.push(Stmt::Label(done));
}

/// Waits until the barrier has opened once more. The loop has a place in the program's text, so it
/// gets a look at the abort flag.
fn wait(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    (live, pos, reduces): (Option<Operand>, Pos, bool),
    out: &mut Vec<Stmt>,
) {
    let again = label(module, body);
    let waits = Guard { reg: regs.is, negated: false };
    let seen = [regs.old, Operand::Mem(regs.at, 0)];
    out.push(Stmt::Label(again));
    emit(module, body, out, "ld.volatile.shared.u32", &seen);
    if let Some(live) = live {
        open_for_the_rest(module, body, regs, (live, reduces), out);
    }
    emit(module, body, out, "shr.u32", &[regs.old, regs.old, Operand::Int(16)]);
    emit(module, body, out, "setp.eq.u32", &[Operand::Reg(regs.is), regs.old, regs.opened]);
    emit(module, body, out, "nanosleep.u32", &[Operand::Int(20)]);
    guard(out, waits, Pos::default());
    branch(module, body, out, again);
    guard(out, waits, pos);
    emit(module, body, out, "fence.acq_rel.cta", &[]);
    emit(module, body, out, "bar.warp.sync", &[ALL]);
}

/// The threads that have not come may have exited meanwhile: then one that waits opens the barrier.
fn open_for_the_rest(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    (live, reduces): (Operand, bool),
    out: &mut Vec<Stmt>,
) {
    let &Regs { limit, share, old, new, at, .. } = regs;
    let is_full = Operand::Reg(regs.leads);
    let (count, clear) = (Operand::Int(OPENED - 1), Operand::Int(!(OPENED - 1) & 0xffff_ffff));
    emit(module, body, out, "ld.volatile.shared.u32", &[limit, live]);
    emit(module, body, out, "and.b32", &[new, old, count]);
    emit(module, body, out, "setp.ge.u32", &[is_full, new, limit]);
    emit(module, body, out, "and.b32", &[new, old, clear]);
    emit(module, body, out, "add.u32", &[new, new, Operand::Int(OPENED)]);
    if reduces {
        reductions::clear_next(module, body, regs, out);
    }
    let cell = Operand::Mem(at, 0);
    emit(module, body, out, "atom.shared.cas.b32", &[share, cell, old, new]);
    guard(out, Guard { reg: regs.leads, negated: false }, Pos::default());
}
