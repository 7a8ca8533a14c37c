//! Finds the values and branches that may differ between the threads of a CTA.
//!
//! The analysis goes forward over definitions. A use of a register has the join of the levels of
//! the definitions that reach it ([`super::reach`]). Each definition is raised to the level of
//! every branch that decides whether it happens.
//!
//! The analysis assumes programs without data races: a plain load from a uniform address under
//! uniform control gives all threads the same value (PTX ISA, "Memory Consistency Model": racing
//! weak operations have no defined value).
//!
//! [`Level::Warp`] values are equal within each warp of a block whose rows fill warps: a
//! one-dimensional block, or one whose x extent is a multiple of 32. A caller that uses that level
//! must check the block.

use crate::ir::{
    Base, Body, Form, Inst, Mod, Module, Op, Operand, Part, Reg, Space, Special, Stmt, Symbol,
    VarId,
};

use super::cfg::{BlockId, Cfg, Decision, is_uniform_by_word};
use super::reach::{Definition, Reaching};
use super::sync::{Masks, Sync};

/// The degree to which a value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Zero in all threads of the CTA.
    Zero,
    /// Equal in all threads of the CTA.
    Uniform,
    /// Equal in all lanes of a warp.
    Warp,
    /// Exactly `%tid.x`, from which some operations get a value of level `Warp`.
    TidX,
    /// May differ from lane to lane.
    Varying,
}

impl Level {
    /// The level of a value that depends on both. `%tid.x` itself survives only beside uniform
    /// values.
    fn join(self, other: Self) -> Self {
        match (self.min(other), self.max(other)) {
            (Self::Warp, Self::TidX) => Self::Varying,
            (_, most) => most,
        }
    }

    /// The level of a value that is one of both.
    fn either(self, other: Self) -> Self {
        match (self.min(other), self.max(other)) {
            (least, most) if least == most => most,
            // A value that is `%tid.x` or another value is not exactly `%tid.x`.
            (_, Self::TidX) => Self::Varying,
            (_, most) => most,
        }
    }
}

/// Result of the analysis.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// The level of each definition; `None` as long as nothing was found.
    levels: Vec<Option<Level>>,
    reaching: Reaching,
    /// For each block, the level of the branches that decide whether it runs.
    control: Vec<Level>,
    /// See [`Body::formals`].
    formals: u32,
}

/// Block visits that the analysis may take before it gives up; 16,000 branches in as many blocks
/// stay below.
const BUDGET: usize = 1 << 28;

impl Divergence {
    /// Analyses a body. `None` when it is too large to be analysed in reasonable time.
    #[must_use]
    pub fn new(
        module: &Module,
        body: &Body,
        params: &[VarId],
        cfg: &Cfg,
        masks: &Masks,
    ) -> Option<Self> {
        let (pending, definitions) = writers(module, body);
        let reaching = Reaching::new(cfg, body.regs.len(), definitions)?;
        let mut state = State {
            module,
            body,
            params,
            cfg,
            result: Self {
                levels: vec![None; reaching.len()],
                reaching,
                control: vec![Level::Uniform; cfg.blocks.len()],
                formals: body.formals,
            },
            spread: vec![Level::Uniform; cfg.blocks.len()],
            budget: BUDGET,
            masks,
            pending,
        };
        while state.values() | state.branches()? {}
        Some(state.result)
    }

    /// The level that a statement sees in a register. A register without a definition so far may
    /// still be anything.
    fn seen(&self, cfg: &Cfg, stmt: usize, reg: Reg) -> Level {
        // A function's own `.reg` parameters have a value that nothing here defines.
        if self.formals > reg.0 {
            return Level::Varying;
        }
        let mut found: Option<Level> = None;
        self.reaching.seen(cfg, stmt, reg, |index| {
            if let Some(level) = self.levels[index] {
                found = Some(found.map_or(level, |found| found.either(level)));
            }
        });
        found.unwrap_or(Level::Zero)
    }

    /// The level of the decision at a block's end; `Uniform` when there is none.
    #[must_use]
    pub fn decision(&self, module: &Module, body: &Body, cfg: &Cfg, block: BlockId) -> Level {
        let decisions = cfg.blocks[block.index()].decisions.iter();
        let levels = decisions.map(|decision| self.of(module, body, cfg, decision));
        levels.max().unwrap_or(Level::Uniform)
    }

    fn of(&self, module: &Module, body: &Body, cfg: &Cfg, decision: &Decision) -> Level {
        let Stmt::Inst(inst) = &body.stmts[decision.stmt] else { return Level::Uniform };
        let seen = |reg| self.seen(cfg, decision.stmt, reg);
        let level = match decision.guard {
            // `.uni` is the program's promise that the threads of a warp agree.
            Some(guard) if is_uniform_by_word(module, inst) => seen(guard.reg).min(Level::Warp),
            Some(guard) => seen(guard.reg),
            None => match body.operands(inst.operands).first() {
                Some(Operand::Reg(reg)) => seen(*reg),
                _ => Level::Uniform,
            },
        };
        if level == Level::TidX { Level::Varying } else { level.max(Level::Uniform) }
    }

    /// The level of the branches that decide whether a block runs.
    #[must_use]
    pub fn control(&self, block: BlockId) -> Level {
        self.control[block.index()]
    }
}

/// The blocks whose execution a block's decision governs: from its successors up to where all ways
/// meet again.
#[must_use]
pub fn region(cfg: &Cfg, block: BlockId) -> Vec<bool> {
    let meet = cfg.ipdom[block.index()];
    cfg.reachable(&cfg.blocks[block.index()].succs, |other| other == meet)
}

struct State<'a> {
    module: &'a Module,
    body: &'a Body,
    params: &'a [VarId],
    cfg: &'a Cfg,
    result: Divergence,
    /// The level with which each block's decision has been spread over its region.
    spread: Vec<Level>,
    budget: usize,
    masks: &'a Masks,
    /// Instructions whose results may still rise.
    pending: Vec<Pending>,
}

/// An instruction that writes registers.
#[derive(Clone, Copy)]
struct Pending {
    stmt: u32,
    /// The number of leading operands that the instruction writes, at least 1.
    results: u32,
}

/// The instructions that write registers, and their definitions.
fn writers(module: &Module, body: &Body) -> (Vec<Pending>, Vec<Definition>) {
    let (mut pending, mut definitions) = (Vec::new(), Vec::new());
    for (stmt, inst) in body.insts() {
        let operands = body.operands(inst.operands);
        let count = results(module.form(inst), operands).unwrap_or(0).min(operands.len());
        if count == 0 {
            continue;
        }
        let stmt = u32::try_from(stmt).expect("fewer statements than source bytes");
        pending.push(Pending { stmt, results: u32::try_from(count).expect("as above") });
        let whole = inst.guard.is_none();
        let mut define = |reg: Reg, hides: bool| definitions.push(Definition { reg, stmt, hides });
        for operand in &operands[..count] {
            match *operand {
                Operand::Reg(reg) => define(reg, whole),
                Operand::Part { reg, .. } => define(reg, false),
                Operand::Vector(slice) | Operand::Pair(slice) | Operand::List(slice) => {
                    for part in body.operands(slice) {
                        match *part {
                            Operand::Reg(reg) => define(reg, whole),
                            Operand::Part { reg, .. } => define(reg, false),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }
    (pending, definitions)
}

impl State<'_> {
    /// Runs one round over the instructions whose results are not known to vary yet; returns
    /// whether a level rose.
    fn values(&mut self) -> bool {
        let mut rose = false;
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&Pending { stmt, results }| {
            let at = stmt as usize;
            let Stmt::Inst(inst) = &self.body.stmts[at] else { return false };
            let block = self.cfg.block_of[at];
            let form = self.module.form(inst);
            let (written, sources) = self.body.operands(inst.operands).split_at(results as usize);
            let mut level = self.result.control[block.index()];
            if level != Level::Varying {
                let value = self.value(at, form, inst, sources);
                // Where threads part within the CTA, some of them keep the old value.
                level = if level == Level::Uniform { value } else { value.join(level) };
            }
            if let Some(guard) = inst.guard {
                level = level.join(self.level(at, guard.reg).max(Level::Uniform));
            }
            for operand in written {
                rose |= self.raise(stmt, operand, level);
            }
            // No level is higher, and every result has it now.
            level != Level::Varying
        });
        self.pending = pending;
        rose
    }

    fn level(&self, stmt: usize, reg: Reg) -> Level {
        self.result.seen(self.cfg, stmt, reg)
    }

    fn raise(&mut self, stmt: u32, operand: &Operand, level: Level) -> bool {
        match *operand {
            Operand::Reg(reg) | Operand::Part { reg, .. } => {
                let Some(index) = self.result.reaching.at(stmt, reg) else { return false };
                // A part of a register is not all of it.
                let level = if matches!(operand, Operand::Part { .. }) && level < Level::Uniform {
                    Level::Uniform
                } else {
                    level
                };
                let place = &mut self.result.levels[index];
                let after = Some(place.map_or(level, |before| before.either(level)));
                std::mem::replace(place, after) != after
            }
            Operand::Vector(slice) | Operand::Pair(slice) | Operand::List(slice) => {
                let body = self.body;
                let mut rose = false;
                for part in body.operands(slice) {
                    rose |= self.raise(stmt, part, level);
                }
                rose
            }
            _ => false,
        }
    }

    /// The level of an instruction's result.
    fn value(&self, at: usize, form: &Form, inst: &Inst, sources: &[Operand]) -> Level {
        let joined = sources
            .iter()
            .fold(Level::Zero, |level, operand| level.join(self.operand(at, operand)));
        match form.op {
            Op::Ld | Op::Ldu => self.load(inst, sources, joined.max(Level::Uniform)),
            // Warps ask mbarriers, and memory that others write, at different times.
            Op::Mbarrier | Op::Multimem => Level::Varying,
            Op::Atom | Op::Activemask | Op::Elect | Op::Call | Op::Other(_) => Level::Varying,
            // The carry flag is an operand without a name.
            Op::Addc | Op::Subc | Op::Madc => Level::Varying,
            // Each lane gets its own part of a matrix.
            Op::Ldmatrix | Op::Mma | Op::Movmatrix | Op::Tcgen05 | Op::Wgmma | Op::Wmma => {
                Level::Varying
            }
            Op::Bar | Op::Barrier | Op::Vote | Op::Redux | Op::Shfl | Op::Match => {
                self.collective(at, form, inst, sources)
            }
            Op::Mov | Op::Cvt if joined == Level::TidX && sources.len() == 1 => copy(form),
            _ if joined == Level::TidX => self.of_tid(at, form, sources),
            Op::Mov | Op::Cvt | Op::Shr | Op::Shl
                if joined <= Level::Uniform
                    && sources.first().is_some_and(|source| self.is_zero(at, source)) =>
            {
                Level::Zero
            }
            _ => joined.max(Level::Uniform),
        }
    }

    fn is_zero(&self, at: usize, operand: &Operand) -> bool {
        matches!(*operand, Operand::Reg(reg) if self.level(at, reg) == Level::Zero)
    }

    /// The level of a result that all participating lanes get; it is equal beyond them only when
    /// all lanes take part.
    fn collective(&self, at: usize, form: &Form, inst: &Inst, sources: &[Operand]) -> Level {
        let alike = match form.op {
            Op::Shfl => form.has(Mod::Idx) && self.is_broadcast(at, sources),
            Op::Match => form.has(Mod::All),
            _ => true,
        };
        match self.masks.sync_of(self.module, self.body, inst) {
            Some(Sync::Cta) => Level::Uniform,
            Some(Sync::Warp) if alike => Level::Warp,
            _ => Level::Varying,
        }
    }

    /// Operations on `%tid.x` and a constant that give all lanes of a warp the same value: whole
    /// multiples of 32. A division of signed numbers uses their sign, and `%tid.x` has none: blocks
    /// have at most 1,024 threads.
    fn of_tid(&self, at: usize, form: &Form, sources: &[Operand]) -> Level {
        let [first, second, ..] = sources else { return Level::Varying };
        let constant = |operand: &Operand| match operand {
            Operand::Int(value) | Operand::Uint(value) => Some(*value),
            _ => None,
        };
        if form.op == Op::Add && (self.is_zero(at, first) || self.is_zero(at, second)) {
            return copy(form);
        }
        if self.operand(at, first) != Level::TidX {
            return Level::Varying;
        }
        let Some(value) = constant(second) else { return Level::Varying };
        let whole = match form.op {
            Op::Shr if value >= 10 => return Level::Zero,
            Op::Shr => value >= 5,
            Op::Div => value > 0 && value.is_multiple_of(32),
            Op::And => value & 31 == 0,
            Op::Setp
                if sources.len() == 2 && form.last_type().is_some_and(|ty| ty.is_integer()) =>
            {
                // `tid < 32k` and `tid > 32k-1` part between warps.
                let is = |modifier| form.has(modifier);
                if is(Mod::Lt) || is(Mod::Lo) || is(Mod::Ge) || is(Mod::Hs) {
                    value.is_multiple_of(32)
                } else if is(Mod::Gt) || is(Mod::Hi) || is(Mod::Le) || is(Mod::Ls) {
                    value.wrapping_add(1).is_multiple_of(32)
                } else {
                    false
                }
            }
            _ => false,
        };
        if whole { Level::Warp } else { Level::Varying }
    }

    /// `shfl.idx` from one lane of the whole warp.
    fn is_broadcast(&self, at: usize, sources: &[Operand]) -> bool {
        let [_, lane, clamp, ..] = sources else { return false };
        matches!(clamp, Operand::Int(31) | Operand::Uint(31))
            && self.operand(at, lane) <= Level::Warp
    }

    fn load(&self, inst: &Inst, sources: &[Operand], address: Level) -> Level {
        let form = self.module.form(inst);
        let strong =
            [Mod::Volatile, Mod::Relaxed, Mod::Acquire, Mod::Mmio].into_iter().any(|m| form.has(m));
        let own_param = sources.iter().any(|operand| match operand {
            Operand::Mem(Base::Symbol(Symbol::Var(id)), _) => self.params.contains(id),
            _ => false,
        });
        match self.module.access_space(self.body, inst) {
            Some(space) if space.is_param() => {
                if own_param {
                    address
                } else {
                    Level::Varying
                }
            }
            Some(Space::Local) => Level::Varying,
            _ if strong => Level::Varying,
            _ => address.join(Level::Uniform),
        }
    }

    fn operand(&self, at: usize, operand: &Operand) -> Level {
        match *operand {
            Operand::Reg(reg)
            | Operand::Not(reg)
            | Operand::Neg(reg)
            | Operand::RegPlus(reg, _) => self.level(at, reg),
            Operand::Part { reg, .. } | Operand::Mem(Base::Reg(reg), _) => {
                match self.level(at, reg) {
                    Level::TidX => Level::Varying,
                    level => level,
                }
            }
            Operand::Special(special, part) => special_level(special, part),
            // Threads may share a local variable's address, and its contents still differ.
            Operand::Symbol(Symbol::Var(id), _) if self.module.var(id).space == Space::Local => {
                Level::Varying
            }
            Operand::Vector(slice)
            | Operand::List(slice)
            | Operand::Tuple(slice)
            | Operand::Pair(slice) => {
                let parts = self.body.operands(slice).iter();
                parts.fold(Level::Uniform, |level, part| level.join(self.operand(at, part)))
            }
            _ => Level::Uniform,
        }
    }

    /// Spreads decisions over their regions; returns whether a level rose, or `None` when the
    /// budget is spent.
    fn branches(&mut self) -> Option<bool> {
        let mut rose = false;
        for index in 0..self.cfg.blocks.len() {
            let block = BlockId(u32::try_from(index).expect("counted by u32"));
            // A uniform decision that only some threads reach parts none of these threads.
            let level = self.result.decision(self.module, self.body, self.cfg, block);
            if level <= self.spread[index] {
                continue;
            }
            self.spread[index] = level;
            self.budget = self.budget.checked_sub(self.cfg.blocks.len())?;
            if self.module.stop.is_asked() {
                return None;
            }
            for (inside, control) in region(self.cfg, block).iter().zip(&mut self.result.control) {
                if *inside && *control < level {
                    *control = level;
                    rose = true;
                }
            }
        }
        Some(rose)
    }
}

/// The level of a copy of `%tid.x`: it stays `%tid.x` as long as no bit that matters is lost, and
/// blocks have at most 1,024 threads.
fn copy(form: &Form) -> Level {
    let wide = form.types().all(|ty| ty.bits() >= 16 && !ty.is_float());
    if wide { Level::TidX } else { Level::Varying }
}

fn special_level(special: Special, part: Part) -> Level {
    match special {
        Special::Tid if part == Part::X => Level::TidX,
        Special::Warpid => Level::Warp,
        Special::Tid
        | Special::Laneid
        | Special::LanemaskEq
        | Special::LanemaskLe
        | Special::LanemaskLt
        | Special::LanemaskGe
        | Special::LanemaskGt
        | Special::Clock
        | Special::ClockHi
        | Special::Clock64
        | Special::Globaltimer
        | Special::GlobaltimerLo
        | Special::GlobaltimerHi
        | Special::Pm(_)
        | Special::Pm64(_) => Level::Varying,
        _ => Level::Uniform,
    }
}

/// The number of leading operands that the instruction writes; `None` when it writes none.
pub(crate) fn results(form: &Form, operands: &[Operand]) -> Option<usize> {
    match form.op {
        Op::St
        | Op::Red
        | Op::Bra
        | Op::Brx
        | Op::Membar
        | Op::Fence
        | Op::Nanosleep
        | Op::Cp
        | Op::Prefetch
        | Op::Prefetchu
        | Op::Ret
        | Op::Exit
        | Op::Trap
        | Op::Brkpt
        | Op::Sust
        | Op::Sured
        | Op::Discard
        | Op::Applypriority
        | Op::Stmatrix
        | Op::Griddepcontrol
        | Op::Setmaxnreg
        | Op::Pmevent
        | Op::Stackrestore => None,
        Op::Bar | Op::Barrier => form.has(Mod::Red).then_some(1),
        // Of all operations of tensor memory only a load has a result.
        Op::Tcgen05 => {
            let address = |one: &Operand| matches!(one, Operand::Mem(..) | Operand::Absolute(_));
            operands.iter().position(address).filter(|&results| results > 0)
        }
        Op::Call => matches!(operands.first(), Some(Operand::List(_))).then_some(1),
        _ if operands.is_empty() => None,
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    /// Checks the level of `%r1` to `%r4`, spelt `z`, `u`, `w`, `t`, `v`, over all its definitions.
    fn check(body: &str, expected: &str) {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.shared .b32 s[4];\n.entry k(.param \
             .u32 n) {{ \
             .reg .pred %p<9>; .reg .b32 %r<9>; .local .b32 l; mov.u32 %r1, 0; mov.u32 %r2, 0; \
             mov.u32 %r3, 0; \
             mov.u32 %r4, 0;\n{body}\nret; }}"
        );
        let module = parse(&source).unwrap();
        let function = &module.funcs[0];
        let body_ir = function.body.as_ref().unwrap();
        let cfg = Cfg::new(&module, body_ir);
        let divergence = Divergence::new(
            &module,
            body_ir,
            &function.params,
            &cfg,
            &Masks::new(&module, body_ir),
        )
        .unwrap();
        let letters: String = (0..4)
            .map(|i| {
                let name = module.names.get(&format!("%r{}", i + 1)).unwrap();
                let reg = body_ir.regs.iter().position(|reg| reg.name == name).unwrap();
                let definitions = divergence.reaching.of(Reg(u32::try_from(reg).unwrap()));
                let levels = divergence.levels[definitions].iter().flatten();
                match levels.copied().reduce(Level::either).unwrap() {
                    Level::Zero => 'z',
                    Level::Uniform => 'u',
                    Level::Warp => 'w',
                    Level::TidX => 't',
                    Level::Varying => 'v',
                }
            })
            .collect();
        assert_eq!(letters, expected, "{body}");
    }

    #[test]
    fn levels() {
        check("ld.param.u32 %r1, [n]; add.u32 %r2, %r1, %tid.y; mov.u32 %r3, %ctaid.x;", "uvuu");
        check(
            "mov.u32 %r5, %tid.x; shr.u32 %r1, %r5, 5; and.b32 %r2, %r5, 31; add.u32 %r3, %r5, 1;",
            "wvvu",
        );
        check(
            "ld.shared.u32 %r1, [s]; ld.volatile.shared.u32 %r2, [s]; ld.local.u32 %r3, [l];",
            "uvvu",
        );
        check("mov.u32 %r5, %tid.x; setp.lt.u32 %p1, %r5, 64; @%p1 mov.u32 %r1, 1;", "wuuu");
        check(
            "mov.u32 %r5, %tid.x; setp.lt.u32 %p1, %r5, 65; @%p1 bra A; mov.u32 %r1, 1; A: \
             mov.u32 %r2, 1;",
            "vuuu",
        );
        check(
            "L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %laneid; @%p1 bra L; \
             add.u32 %r2, %r2, 1;",
            "vuuu",
        );
        check("vote.sync.ballot.b32 %r1, %p1, -1; vote.sync.ballot.b32 %r2, %p1, %r5;", "wvuu");
        // `tid / 32` of signed numbers, and the multiple of 32 below.
        check(
            "mov.u32 %r5, %tid.x; shr.s32 %r6, %r5, 31; shr.u32 %r7, %r6, 27; add.s32 %r8, %r5, \
             %r7; \
             shr.s32 %r1, %r8, 5; and.b32 %r2, %r8, -32; add.s32 %r3, %r8, %r1; sub.s32 %r4, %r8, \
             %r2;",
            "wwvv",
        );
        check(
            "bar.red.popc.u32 %r1, 0, %p1; activemask.b32 %r2; atom.shared.add.u32 %r3, [s], 1;",
            "uvvu",
        );
    }

    #[test]
    fn parts_of_vectors_and_nameless_spaces() {
        check(
            ".reg .v2 .b32 v; ld.shared.v2.b32 {v.x, %r1}, [s]; mov.b32 v.y, %laneid; \
             mov.b32 %r2, v.x; mov.b32 %r3, v.y;",
            "uvvu",
        );
        check(
            ".reg .v2 .b32 v; mov.b64 {v.x, v.y}, 7; mov.b32 %r1, v.x; \
             mov.v2.b32 {v.y, %r2}, {%laneid, 1}; mov.b32 %r3, v.x;",
            "uvvu",
        );
        // What the address names says where it is: local memory is each thread's own.
        check("ld.u32 %r1, [l]; ld.u32 %r2, [s]; ld.u32 %r3, [s+4];", "vuuu");
    }

    #[test]
    fn each_lane_has_its_part_of_a_matrix() {
        check("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [s];", "vvuu");
        check("mov.u32 %r5, 1; movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r5;", "vuuu");
        check(
            "mov.u32 %r5, 1; mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r5}, \
             {%r5}, {%r5, %r5};",
            "vvuu",
        );
        check("wmma.load.a.sync.aligned.row.m8n8k32.shared.u4 {%r1}, [s], 32;", "vuuu");
        check(
            ".reg .b64 d; mov.b64 d, 1; wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1, \
             %r2, %r3, %r5}, d, d, 1;",
            "vvvu",
        );
    }

    #[test]
    fn a_use_sees_what_reaches_it() {
        check("mov.u32 %r2, %r1; mov.u32 %r1, %laneid;", "vuuu");
        check("L: mov.u32 %r2, %r1; mov.u32 %r1, %laneid; @%p1 bra L;", "vvuu");
        check("mov.u32 %r1, %laneid; mov.u32 %r1, 1; mov.u32 %r2, %r1;", "vuuu");
        check("mov.u32 %r1, %laneid; @%p1 mov.u32 %r1, 1; mov.u32 %r2, %r1;", "vvuu");
        check("@%p1 bra A; mov.u32 %r1, %laneid; mov.u32 %r2, 1; A: mov.u32 %r3, %r1;", "vuvu");
        check("mov.u32 %r5, %tid.x; @%p1 mov.u32 %r5, 32; shr.u32 %r1, %r5, 5;", "vuuu");
    }

    #[test]
    fn a_carry_differs_as_its_operands_do() {
        check(
            "mov.u32 %r1, %tid.x; add.cc.u32 %r2, %r1, -16; addc.u32 %r3, 0, 0; mov.u32 %r4, 1;",
            "vvvu",
        );
    }
}
