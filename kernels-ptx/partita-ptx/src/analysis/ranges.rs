//! Bounds the distance of 64-bit values from a cell of the address space, or from zero.
//!
//! The analysis goes forward in the order of instructions, over the scalar 64-bit registers of one
//! body. The [fence](mod@crate::fence) rests on it, so it assumes nothing of the program. A value
//! without a definition on every way is unknown, and a guarded definition may not happen.
//! Arithmetic that may wrap gives an unknown value, and so does every instruction that is not in
//! the tables. The analysis does not follow 32-bit values: any index is possible.
//!
//! The *cell* is a range of addresses ([`crate::fence::cell_bits`]). `bfi.b64 d, a, base, 0, bits`
//! forces a value into it, where `base` is a register that the program cannot name ([`Cell`]).

use crate::ir::{
    Base, Body, Form, Inst, Mod, Module, Op, Operand, Reg, Register, Space, Stmt, Symbol, Type,
};

use super::cfg::Cfg;

/// The knowledge of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Nothing is known.
    Unknown,
    /// An integer, as signed, from the first to the last.
    Number(i64, i64),
    /// An address of the cell plus an integer from the first to the last.
    Near(i64, i64),
}

/// The largest distance from zero up to which numbers are followed, either way; nothing wraps in
/// between.
const FARTHEST: i64 = 1 << 40;

impl Range {
    /// The range, if it lies within [`FARTHEST`].
    fn bounded(self) -> Self {
        match self {
            Self::Number(low, high) | Self::Near(low, high)
                if low < -FARTHEST || high > FARTHEST =>
            {
                Self::Unknown
            }
            range => range,
        }
    }

    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number(a, b), Self::Number(c, d)) => Self::Number(a.min(c), b.max(d)),
            (Self::Near(a, b), Self::Near(c, d)) => Self::Near(a.min(c), b.max(d)),
            _ => Self::Unknown,
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number(a, b), Self::Number(c, d)) => Self::Number(a + c, b + d).bounded(),
            (Self::Near(a, b), Self::Number(c, d)) | (Self::Number(a, b), Self::Near(c, d)) => {
                Self::Near(a + c, b + d).bounded()
            }
            _ => Self::Unknown,
        }
    }

    fn negated(self) -> Self {
        match self {
            Self::Number(low, high) => Self::Number(-high, -low),
            _ => Self::Unknown,
        }
    }

    fn times(self, other: Self) -> Self {
        let (Self::Number(a, b), Self::Number(c, d)) = (self, other) else { return Self::Unknown };
        let ends = [(a, c), (a, d), (b, c), (b, d)].map(|(x, y)| x.checked_mul(y));
        match ends {
            [Some(a), Some(b), Some(c), Some(d)] => {
                Self::Number(a.min(b).min(c).min(d), a.max(b).max(c).max(d)).bounded()
            }
            _ => Self::Unknown,
        }
    }

    /// The greatest value of a number that is never negative.
    const fn natural(self) -> Option<i64> {
        match self {
            Self::Number(low, high) if low >= 0 => Some(high),
            _ => None,
        }
    }
}

/// The cell into which values are forced.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The register with the cell's first address.
    pub base: Reg,
    /// The address bits below the first address.
    pub bits: u32,
}

/// Every integer of a type of at most 32 bits.
fn all_of(ty: Type) -> Range {
    let (signed, bits) = (ty.is_signed(), ty.bits());
    match bits {
        _ if !(ty.is_integer() || ty.is_untyped()) || !(8..=32).contains(&bits) => Range::Unknown,
        _ if signed => Range::Number(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => Range::Number(0, (1 << bits) - 1),
    }
}

/// For each block's beginning, the ranges of the crossing registers; `None` where control never
/// comes.
type Entries = Vec<Option<Vec<Range>>>;

/// Result of the analysis.
#[derive(Debug)]
pub struct Ranges {
    /// The place of a register's range in a state; [`NONE`] where the register is not followed.
    places: Vec<u32>,
    /// Places of a state, of which the first `width` are of registers whose values cross the
    /// beginnings of blocks.
    count: usize,
    width: usize,
    /// `None` where nothing is known at any beginning.
    entries: Option<Entries>,
    cell: Option<Cell>,
}

/// The knowledge while the instructions of a block are gone through.
struct State {
    ranges: Vec<Range>,
    /// Places that have been set in this block.
    touched: Vec<u32>,
}

impl State {
    /// Begins a block. Registers that do not cross are defined in each block before their use
    /// there, so their old values are harmless.
    fn begin(&mut self, entries: Option<&Entries>, block: usize, width: usize) {
        match entries.map(|entries| &entries[block]) {
            Some(Some(entry)) => self.ranges[..width].copy_from_slice(entry),
            Some(None) => self.ranges[..width].fill(Range::Unknown),
            None => {
                self.touched.iter().for_each(|&place| self.ranges[place as usize] = Range::Unknown)
            }
        }
        self.touched.clear();
    }

    fn set(&mut self, place: u32, range: Range) {
        self.ranges[place as usize] = range;
        self.touched.push(place);
    }
}

const NONE: u32 = u32::MAX;
/// The most ranges that all blocks together keep, for each statement.
const KEPT_PER_STMT: usize = 64;
/// The most visits of statements, for each statement.
const VISITS_PER_STMT: usize = 256;
/// The number of visits of a block after which a value that still changes becomes unknown.
const PATIENCE: u8 = 3;

impl Ranges {
    /// Analyses a body. A body that takes too long is known within its blocks only.
    #[must_use]
    pub fn new(module: &Module, body: &Body, cfg: &Cfg, cell: Option<Cell>) -> Self {
        let followed =
            |reg: &Register| reg.vector == 1 && reg.ty.bits() == 64 && !reg.ty.is_opaque();
        let crossing = crossing(module, body, cfg);
        let mut ranges =
            Self { places: vec![NONE; body.regs.len()], count: 0, width: 0, entries: None, cell };
        // Crossing registers come first: a state begins with the ranges of a block's beginning.
        for wanted in [true, false] {
            for (index, reg) in body.regs.iter().enumerate() {
                if followed(reg) && crossing[index] == wanted {
                    ranges.places[index] = u32::try_from(ranges.count).expect("counted by u32");
                    ranges.count += 1;
                    ranges.width += usize::from(wanted);
                }
            }
        }
        let kept = ranges.width.saturating_mul(cfg.blocks.len());
        if kept <= KEPT_PER_STMT * body.stmts.len() + (1 << 16) {
            ranges.entries = ranges.flow(module, body, cfg);
        }
        ranges
    }

    /// The ranges at the blocks' beginnings; `None` when the analysis takes too long.
    fn flow(&self, module: &Module, body: &Body, cfg: &Cfg) -> Option<Entries> {
        let mut entries: Entries = vec![None; cfg.blocks.len()];
        let mut visits = vec![0_u8; cfg.blocks.len()];
        let mut waiting = vec![false; cfg.blocks.len()];
        if let (Some(entry), Some(waits)) = (entries.first_mut(), waiting.first_mut()) {
            *entry = Some(vec![Range::Unknown; self.width]);
            *waits = true;
        }
        let mut budget = VISITS_PER_STMT * (body.stmts.len() + 1);
        let mut state = self.state();
        while waiting.contains(&true) {
            for (index, block) in cfg.blocks.iter().enumerate() {
                if !std::mem::take(&mut waiting[index]) {
                    continue;
                }
                budget =
                    budget.checked_sub(block.stmts.len() + self.width * (1 + block.succs.len()))?;
                visits[index] = visits[index].saturating_add(1);
                state.begin(Some(&entries), index, self.width);
                for stmt in &body.stmts[block.stmts.clone()] {
                    self.step(module, body, stmt, &mut state);
                }
                for &succ in block.succs.iter().filter(|succ| **succ != cfg.exit()) {
                    let widen = visits[succ.index()] > PATIENCE;
                    waiting[succ.index()] |=
                        merge(&mut entries[succ.index()], &state.ranges[..self.width], widen);
                }
            }
        }
        Some(entries)
    }

    /// A state in which nothing is known.
    fn state(&self) -> State {
        State { ranges: vec![Range::Unknown; self.count], touched: Vec::new() }
    }

    /// Shows every instruction with the knowledge before it.
    pub fn each(
        &self,
        module: &Module,
        body: &Body,
        cfg: &Cfg,
        mut see: impl FnMut(usize, &Inst, &Known<'_>),
    ) {
        let mut state = self.state();
        for (index, block) in cfg.blocks.iter().enumerate() {
            state.begin(self.entries.as_ref(), index, self.width);
            for stmt in block.stmts.clone() {
                if let Stmt::Inst(inst) = &body.stmts[stmt] {
                    see(stmt, inst, &Known { ranges: self, state: &state.ranges, module });
                }
                self.step(module, body, &body.stmts[stmt], &mut state);
            }
        }
    }

    fn step(&self, module: &Module, body: &Body, stmt: &Stmt, state: &mut State) {
        let Stmt::Inst(inst) = stmt else { return };
        let operands = body.operands(inst.operands);
        let Some(first) = operands.first() else { return };
        let form = module.form(inst);
        match *first {
            Operand::Reg(reg) => {
                let place = self.places[reg.index()];
                if place == NONE || !is_result(form) {
                    return;
                }
                let value = Known { ranges: self, state: &state.ranges, module }
                    .result(form, operands)
                    .bounded();
                let before = state.ranges[place as usize];
                state.set(place, if inst.guard.is_some() { before.join(value) } else { value });
            }
            _ => forget(body, *first, &mut |reg| {
                let place = self.places[reg.index()];
                if place != NONE {
                    state.set(place, Range::Unknown);
                }
            }),
        }
    }
}

/// Whether the first operand is written. An operand that is not is forgotten all the same where it
/// is no plain register.
fn is_result(form: &Form) -> bool {
    !matches!(form.op, Op::Brx | Op::Nanosleep | Op::Setmaxnreg | Op::Stackrestore)
}

fn forget(body: &Body, operand: Operand, tell: &mut impl FnMut(Reg)) {
    match operand {
        Operand::Reg(reg) | Operand::Part { reg, .. } | Operand::Not(reg) | Operand::Neg(reg) => {
            tell(reg)
        }
        Operand::Vector(slice) | Operand::List(slice) | Operand::Pair(slice) => {
            body.operands(slice).iter().for_each(|part| forget(body, *part, tell));
        }
        _ => {}
    }
}

/// The registers that a block may use as its predecessors left them.
fn crossing(module: &Module, body: &Body, cfg: &Cfg) -> Vec<bool> {
    let mut crossing = vec![false; body.regs.len()];
    let mut defined_in = vec![usize::MAX; body.regs.len()];
    for (index, block) in cfg.blocks.iter().enumerate() {
        for stmt in &body.stmts[block.stmts.clone()] {
            let Stmt::Inst(inst) = stmt else { continue };
            let operands = body.operands(inst.operands);
            let result = match operands.first() {
                Some(&Operand::Reg(reg))
                    if inst.guard.is_none() && is_result(module.form(inst)) =>
                {
                    Some(reg)
                }
                _ => None,
            };
            let used = if result.is_some() { &operands[1..] } else { operands };
            each_reg(body, used, &mut |reg| {
                crossing[reg.index()] |= defined_in[reg.index()] != index
            });
            if let Some(reg) = result {
                defined_in[reg.index()] = index;
            }
        }
    }
    crossing
}

/// Every register among operands.
fn each_reg(body: &Body, operands: &[Operand], tell: &mut impl FnMut(Reg)) {
    for operand in operands {
        match *operand {
            Operand::Mem(Base::Reg(reg), _) | Operand::RegPlus(reg, _) => tell(reg),
            Operand::Tuple(slice)
            | Operand::Vector(slice)
            | Operand::List(slice)
            | Operand::Pair(slice) => {
                each_reg(body, body.operands(slice), tell);
            }
            other => forget(body, other, tell),
        }
    }
}

/// Joins a state into a block's beginning; returns whether that changes it.
fn merge(entry: &mut Option<Vec<Range>>, state: &[Range], widen: bool) -> bool {
    let Some(entry) = entry else {
        *entry = Some(state.to_vec());
        return true;
    };
    let mut changed = false;
    for (before, now) in entry.iter_mut().zip(state) {
        let joined = before.join(*now);
        if joined != *before {
            *before = if widen { Range::Unknown } else { joined };
            changed = true;
        }
    }
    changed
}

/// The knowledge at one place.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    ranges: &'a Ranges,
    state: &'a [Range],
    module: &'a Module,
}

impl Known<'_> {
    /// The range of a register.
    #[must_use]
    pub fn reg(&self, reg: Reg) -> Range {
        let place = self.ranges.places[reg.index()];
        self.state.get(place as usize).copied().unwrap_or(Range::Unknown)
    }

    /// The range of an operand that is used as 64 bits.
    #[must_use]
    pub fn operand(&self, operand: Operand) -> Range {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Int(value) | Operand::Uint(value) => {
                Range::Number(value.cast_signed(), value.cast_signed()).bounded()
            }
            // The module's variables are in the window.
            Operand::Symbol(Symbol::Var(id), offset)
                if self.module.var(id).space == Space::Global =>
            {
                Range::Near(offset.into(), offset.into())
            }
            _ => Range::Unknown,
        }
    }

    /// The range of an operand that is used as the type says.
    fn narrow(&self, operand: Operand, ty: Type) -> Range {
        match operand {
            Operand::Int(value) | Operand::Uint(value) if ty.bits() <= 32 && ty.is_integer() => {
                let beyond = 64 - ty.bits();
                let value = (value << beyond).cast_signed();
                let value = if ty.is_signed() {
                    value >> beyond
                } else {
                    (value.cast_unsigned() >> beyond).cast_signed()
                };
                Range::Number(value, value)
            }
            _ => all_of(ty),
        }
    }

    /// The range of the product of a `mul` or `mad` with these factors.
    #[must_use]
    pub fn product(&self, form: &Form, a: Operand, b: Operand) -> Range {
        match form.types().next() {
            Some(ty @ (Type::U32 | Type::S32)) if form.has(Mod::Wide) => {
                self.narrow(a, ty).times(self.narrow(b, ty))
            }
            Some(Type::U64 | Type::S64) if form.has(Mod::Lo) => {
                self.operand(a).times(self.operand(b))
            }
            _ => Range::Unknown,
        }
    }

    /// The range of the value that an instruction writes to its first operand, a 64-bit register.
    #[must_use]
    pub fn result(&self, form: &Form, operands: &[Operand]) -> Range {
        use Range::{Number, Unknown};
        let mut types = form.types();
        let (Some(ty), second) = (types.next(), types.next()) else { return Unknown };
        let integer = matches!(ty, Type::B64 | Type::U64 | Type::S64);
        let of = |operand: Operand| self.operand(operand);
        match (form.op, operands) {
            (Op::Mov, &[_, a]) if integer => of(a),
            (Op::Cvta, &[_, a]) if form.has(Mod::Space(Space::Global)) => of(a),
            (Op::Add, &[_, a, b]) if integer => of(a).plus(of(b)),
            (Op::Sub, &[_, a, b]) if integer => of(a).plus(of(b).negated()),
            (Op::Neg, &[_, a]) if integer => of(a).negated(),
            (Op::Mul, &[_, a, b]) => self.product(form, a, b),
            (Op::Mad, &[_, a, b, c]) => self.product(form, a, b).plus(of(c)),
            (Op::Shl, &[_, a, Operand::Int(by) | Operand::Uint(by)]) if integer && by <= 40 => {
                of(a).times(Number(1 << by, 1 << by))
            }
            (Op::Shr, &[_, a, Operand::Int(by) | Operand::Uint(by)]) if integer && by < 64 => {
                match (of(a), ty) {
                    (Number(low, high), _) if low >= 0 => Number(low >> by, high >> by),
                    (Number(low, high), Type::S64) => Number(low >> by, high >> by),
                    (_, Type::S64) => Number(i64::MIN >> by, i64::MAX >> by),
                    _ if by > 0 => Number(0, (u64::MAX >> by).cast_signed()),
                    _ => Unknown,
                }
            }
            (Op::And, &[_, a, b]) if integer => match (of(a).natural(), of(b).natural()) {
                (Some(a), Some(b)) => Number(0, a.min(b)),
                (Some(most), None) | (None, Some(most)) => Number(0, most),
                _ => Unknown,
            },
            (Op::Or | Op::Xor, &[_, a, b]) if integer => match (of(a).natural(), of(b).natural()) {
                (Some(a), Some(b)) => Number(
                    0,
                    ((a.max(b) + 1).cast_unsigned().next_power_of_two() - 1).cast_signed(),
                ),
                _ => Unknown,
            },
            (Op::Min, &[_, a, b]) if integer => match (of(a), of(b)) {
                (Number(a, b), Number(c, d)) if ty == Type::S64 || (a >= 0 && c >= 0) => {
                    Number(a.min(c), b.min(d))
                }
                (a, b) if ty == Type::U64 => match a.natural().or(b.natural()) {
                    Some(most) => Number(0, most),
                    None => Unknown,
                },
                _ => Unknown,
            },
            (Op::Max, &[_, a, b]) if integer => match (of(a), of(b)) {
                (Number(a, b), Number(c, d)) if ty == Type::S64 || (a >= 0 && c >= 0) => {
                    Number(a.max(c), b.max(d))
                }
                _ => Unknown,
            },
            (Op::Selp, &[_, a, b, _]) if integer => of(a).join(of(b)),
            (Op::Cvt, &[_, a]) if integer => match second {
                Some(Type::U64 | Type::S64) => of(a),
                Some(from) if from.is_signed() && ty == Type::U64 => {
                    all_of(from).join(all_of(Type::U32))
                }
                Some(from) if from.is_integer() => all_of(from),
                _ => Unknown,
            },
            (Op::Ld | Op::Ldu, &[_, _]) if form.vector() == 1 => all_of(ty),
            (Op::Bfi, &[_, a, base, at, bits]) if ty == Type::B64 => match self.ranges.cell {
                Some(cell)
                    if base == Operand::Reg(cell.base)
                        && at == Operand::Int(0)
                        && bits == Operand::Int(cell.bits.into())
                        && matches!(a, Operand::Reg(_)) =>
                {
                    Range::Near(0, 0)
                }
                _ => Unknown,
            },
            _ => Unknown,
        }
    }
}
