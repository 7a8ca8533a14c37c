//! What is known of the low bits of integers, and to which variable an address belongs.
//!
//! The analysis looks at registers, not at places: a register's value is the join of all its
//! definitions. It assumes nothing of the program, so a register that may be read before any
//! definition has any value. A register that is defined once, outside of every loop, and whose
//! value is otherwise not known is its own *atom*: other values are then known relative to it, and
//! a check of the atom decides for all of them.

use super::same;
use crate::analysis::Cfg;
use crate::ir::{
    Body, Form, Inst, Mod, Module, Op, Operand, Reg, Space, Stmt, Symbol, Type, VarId,
};

/// The low bits that are followed.
const BITS: u32 = 7;
const MASK: u32 = (1 << BITS) - 1;
/// The most definitions before a place that are looked at.
const MOST_LAST: usize = 8;
/// The most registers whose origins are looked up for one address.
const MOST_LOOKS: usize = 64;
/// The most words of the sets of registers that all blocks together have.
const MOST_WORDS: usize = 1 << 22;

/// A value modulo a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// The register to which the value is known relatively; `None` is zero.
    pub atom: Option<Reg>,
    /// What is added to the atom.
    pub plus: u32,
    /// Low bits that are known.
    pub bits: u32,
}

/// The variable that an address belongs to, in right programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub var: VarId,
    /// The distance from its first byte, where it is known.
    pub offset: Option<i64>,
    /// Whether it is a generic address, and none of the variable's space.
    pub is_generic: bool,
}

impl Origin {
    /// Whether an access of a space, or by a generic address, is one of the variable. Addresses of
    /// global memory are generic ones as well.
    pub(super) fn fits(self, module: &Module, space: Option<Space>) -> bool {
        let own = module.var(self.var).space;
        match space {
            _ if own == Space::Global => space.is_none_or(|space| space == own),
            None => self.is_generic,
            Some(space) => !self.is_generic && same(space, own),
        }
    }
}

impl Value {
    const UNKNOWN: Self = Self { atom: None, plus: 0, bits: 0 };

    const fn number(value: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "masked before")]
        Self { atom: None, plus: (value & MASK as u64) as u32, bits: BITS }
    }

    const fn of(self, bits: u32) -> Self {
        if bits < self.bits { Self { bits, ..self } } else { self }
    }

    fn join(self, other: Self) -> Self {
        let same = (self.plus ^ other.plus).trailing_zeros();
        let bits = self.bits.min(other.bits).min(same);
        if self.atom == other.atom { Self { bits, ..self } } else { Self::UNKNOWN }
    }

    fn plus(self, other: Self) -> Self {
        let atom = match (self.atom, other.atom) {
            (atom, None) | (None, atom) => atom,
            _ => return Self::UNKNOWN,
        };
        let plus = self.plus.wrapping_add(other.plus) & MASK;
        Self { atom, plus, bits: self.bits.min(other.bits) }
    }

    fn minus(self, other: Self) -> Self {
        let atom = match (self.atom, other.atom) {
            (atom, None) => atom,
            (one, two) if one == two => None,
            _ => return Self::UNKNOWN,
        };
        let plus = self.plus.wrapping_sub(other.plus) & MASK;
        Self { atom, plus, bits: self.bits.min(other.bits) }
    }

    /// The product with a number that the program writes.
    fn times(self, factor: u64) -> Self {
        let zeros = factor.trailing_zeros().min(BITS);
        match self.atom {
            None => {
                let product = u64::from(self.plus).wrapping_mul(factor);
                Self::number(product).of((self.bits + zeros).min(BITS))
            }
            Some(_) => Self { atom: None, plus: 0, bits: zeros },
        }
    }
}

/// The result of the analysis of one body.
pub(super) struct Values<'a> {
    module: &'a Module,
    body: &'a Body,
    /// Statements that define each register.
    definitions: Vec<Vec<usize>>,
    /// Whether each register is defined once, outside of every loop, before every use.
    is_stable: Vec<bool>,
    values: Vec<Option<Value>>,
    origins: Vec<Option<Option<Origin>>>,
}

impl<'a> Values<'a> {
    pub(super) fn new(module: &'a Module, body: &'a Body, cfg: &Cfg) -> Self {
        let definitions = definitions(body);
        let undefined = undefined(body, cfg, &definitions);
        let in_loop = in_loop(cfg);
        let is_stable = (0..body.regs.len())
            .map(|reg| match definitions[reg].as_slice() {
                &[stmt] => !undefined[reg] && !in_loop[cfg.block_of[stmt].index()],
                // A parameter of a function in a register.
                [] => reg < body.formals as usize,
                _ => false,
            })
            .collect();
        let mut values = Self {
            module,
            body,
            definitions,
            is_stable,
            values: vec![None; body.regs.len()],
            origins: vec![None; body.regs.len()],
        };
        values.settle(&undefined);
        values
    }

    /// Goes over the definitions until nothing changes. A value loses bits only, so that ends.
    fn settle(&mut self, undefined: &[bool]) {
        for (reg, &is_undefined) in (0..).map(Reg).zip(undefined) {
            let formal = self.definitions[reg.index()].is_empty();
            if is_undefined || formal {
                self.values[reg.index()] = Some(self.opaque(reg));
                self.origins[reg.index()] = Some(None);
            }
        }
        let mut changed = true;
        while changed {
            changed = false;
            for (_, inst) in self.body.insts() {
                let (mut results, single) = (Vec::new(), self.result(inst));
                self.body.each_result(inst, &mut |reg| results.push(reg));
                for reg in results {
                    let known = single == Some(reg);
                    let value =
                        if known { self.evaluate(inst, None) } else { Some(Value::UNKNOWN) };
                    let value = value.map(|value| match value.bits {
                        0 => self.opaque(reg),
                        _ => value,
                    });
                    let origin = match known {
                        true => self.origin_of(inst, &mut |reg| self.origins[reg.index()]),
                        false => Some(None),
                    };
                    changed |= merge(&mut self.values[reg.index()], value, Value::join);
                    changed |= merge(&mut self.origins[reg.index()], origin, join_origins);
                }
            }
        }
    }

    fn opaque(&self, reg: Reg) -> Value {
        let ty = self.body.reg(reg).ty;
        let is_whole = matches!(ty.bits(), 32 | 64) && (ty.is_integer() || ty.is_untyped());
        match self.is_stable[reg.index()] && is_whole {
            true => Value { atom: Some(reg), plus: 0, bits: BITS },
            false => Value::UNKNOWN,
        }
    }

    /// The one register that an instruction defines whatever happens.
    fn result(&self, inst: &Inst) -> Option<Reg> {
        match self.body.operands(inst.operands).first() {
            Some(&Operand::Reg(reg)) => Some(reg),
            _ => None,
        }
    }

    /// The definition of an atom; `None` where it is a parameter.
    pub(super) fn definition(&self, atom: Reg) -> Option<usize> {
        self.definitions[atom.index()].first().copied()
    }

    pub(super) fn is_stable(&self, reg: Reg) -> bool {
        self.is_stable[reg.index()]
    }

    /// The low bits of a register at a statement. A register of several definitions has the value
    /// of the one that stands before it in its block.
    pub(super) fn at(&self, cfg: &Cfg, stmt: usize, reg: Reg) -> Value {
        let mut known = self.values[reg.index()];
        let definitions = self.definitions[reg.index()].len();
        for (_, inst) in self.last(cfg, stmt, reg).into_iter().filter(|_| definitions > 1) {
            known = self.evaluate(inst, Some((reg, known)));
        }
        known.unwrap_or(Value::UNKNOWN)
    }

    /// The origin of an address at a statement.
    pub(super) fn origin_at(&self, cfg: &Cfg, stmt: usize, reg: Reg) -> Option<Origin> {
        let mut looks = MOST_LOOKS;
        self.origin_before(cfg, stmt, reg, &mut looks).flatten()
    }

    /// The origin of a register at a statement. The registers that it is made of count as they are
    /// where it is made: elsewhere they may be addresses of other memory.
    fn origin_before(
        &self,
        cfg: &Cfg,
        stmt: usize,
        reg: Reg,
        looks: &mut usize,
    ) -> Option<Option<Origin>> {
        let mut known = self.origins[reg.index()];
        if *looks == 0 {
            return known;
        }
        *looks -= 1;
        for (at, inst) in self.last(cfg, stmt, reg) {
            known = self.origin_of(inst, &mut |other| match other == reg {
                true => known,
                false => self.origin_before(cfg, at, other, looks),
            });
        }
        known
    }

    /// The last definitions of a register before a statement, in its block: from one that does not
    /// read the register on.
    fn last(&self, cfg: &Cfg, stmt: usize, reg: Reg) -> Vec<(usize, &'a Inst)> {
        let definitions = &self.definitions[reg.index()];
        let start = cfg.blocks[cfg.block_of[stmt].index()].stmts.start;
        let before = definitions.partition_point(|&at| at < stmt);
        let mut found = Vec::new();
        let in_block = definitions[..before].iter().rev().take_while(|at| **at >= start);
        for &at in in_block.take(MOST_LAST) {
            let Stmt::Inst(inst) = &self.body.stmts[at] else { break };
            if inst.guard.is_some() || self.result(inst) != Some(reg) {
                break;
            }
            found.push((at, inst));
            if !self.body.operands(inst.operands)[1..].contains(&Operand::Reg(reg)) {
                found.reverse();
                return found;
            }
        }
        Vec::new()
    }

    /// The value of an operand; `None` where nothing has come yet.
    fn operand(&self, operand: Operand) -> Option<Value> {
        Some(match operand {
            Operand::Reg(reg) => return self.values[reg.index()],
            Operand::Int(value) | Operand::Uint(value) => Value::number(value),
            Operand::Symbol(Symbol::Var(id), offset) => {
                let bits = self.module.var(id).alignment().trailing_zeros();
                Value::number(i64::from(offset).cast_unsigned()).of(bits)
            }
            _ => Value::UNKNOWN,
        })
    }

    /// The value that an instruction gives. `own`: what is known of one register before it.
    fn evaluate(&self, inst: &Inst, own: Option<(Reg, Option<Value>)>) -> Option<Value> {
        let form = self.module.form(inst);
        let operands = self.body.operands(inst.operands);
        if !is_plain(form) || !is_integer(form) {
            return Some(Value::UNKNOWN);
        }
        let of = |operand: Operand| match own {
            Some((reg, value)) if operand == Operand::Reg(reg) => value,
            _ => self.operand(operand),
        };
        let number = |operand: Operand| match operand {
            Operand::Int(value) | Operand::Uint(value) => Some(value),
            _ => None,
        };
        let product = |a: Operand, b: Operand| match (number(a), number(b)) {
            (_, Some(factor)) => Some(of(a)?.times(factor)),
            (Some(factor), _) => Some(of(b)?.times(factor)),
            _ => Some(Value::UNKNOWN),
        };
        Some(match (form.op, operands) {
            (Op::Mov | Op::Cvta | Op::Cvt, &[_, a]) => of(a)?,
            (Op::Add, &[_, a, b]) => of(a)?.plus(of(b)?),
            (Op::Sub, &[_, a, b]) => of(a)?.minus(of(b)?),
            (Op::Neg, &[_, a]) => Value::number(0).minus(of(a)?),
            (Op::Mul, &[_, a, b]) => product(a, b)?,
            (Op::Mad, &[_, a, b, c]) => product(a, b)?.plus(of(c)?),
            (Op::Shl, &[_, a, b]) => match number(b) {
                Some(by) if by < 64 => of(a)?.times(1 << by),
                _ => Value::UNKNOWN,
            },
            (Op::And, &[_, a, b]) => match number(b) {
                Some(mask) => masked(of(a)?, mask),
                None => Value::UNKNOWN,
            },
            (Op::Or | Op::Xor, &[_, a, b]) => {
                let (a, b) = (of(a)?, of(b)?);
                let plus = if form.op == Op::Or { a.plus | b.plus } else { a.plus ^ b.plus };
                match (a.atom, b.atom) {
                    (None, None) => Value { atom: None, plus, bits: a.bits.min(b.bits) },
                    _ => Value::UNKNOWN,
                }
            }
            (Op::Min | Op::Max, &[_, a, b]) | (Op::Selp, &[_, a, b, _]) => of(a)?.join(of(b)?),
            (Op::Bfi, &[_, a, _, Operand::Int(0), Operand::Int(bits)])
                if bits >= u64::from(BITS) =>
            {
                of(a)?
            }
            _ => Value::UNKNOWN,
        })
    }

    /// The origin that an instruction gives. `origin`: those of the registers that it reads.
    fn origin_of(
        &self,
        inst: &Inst,
        origin: &mut dyn FnMut(Reg) -> Option<Option<Origin>>,
    ) -> Option<Option<Origin>> {
        let form = self.module.form(inst);
        let operands = self.body.operands(inst.operands);
        let mut of = |operand: Operand| match operand {
            Operand::Reg(reg) => origin(reg),
            Operand::Symbol(Symbol::Var(var), offset) => {
                Some(Some(Origin { var, offset: Some(offset.into()), is_generic: false }))
            }
            _ => Some(None),
        };
        let number = |operand: Operand| match operand {
            Operand::Int(value) | Operand::Uint(value) => Some(value.cast_signed()),
            _ => None,
        };
        let moved = |origin: Origin, by: Option<i64>| {
            let offset = origin.offset.zip(by).and_then(|(offset, by)| offset.checked_add(by));
            Origin { offset, ..origin }
        };
        // What an operation on other types makes of an address is none.
        if !is_integer(form) || form.types().any(|ty| ty.bits() < 32) || !is_plain(form) {
            return Some(None);
        }
        Some(match (form.op, operands) {
            (Op::Mov | Op::Cvt, &[_, a]) => of(a)?,
            (Op::Cvta, &[_, a]) => of(a)?.and_then(|origin| {
                let is_to = form.has(Mod::To);
                let own = self.module.var(origin.var).space;
                let is_own = form.space().is_some_and(|space| same(space, own));
                let is_right = is_own && (origin.is_generic == is_to || own == Space::Global);
                is_right.then_some(Origin { is_generic: !is_to, ..origin })
            }),
            (Op::Add, &[_, a, b]) => match (of(a)?, of(b)?) {
                (Some(origin), None) => Some(moved(origin, number(b))),
                (None, Some(origin)) => Some(moved(origin, number(a))),
                _ => None,
            },
            (Op::Sub, &[_, a, b]) => {
                of(b)?;
                of(a)?.map(|origin| moved(origin, number(b).and_then(i64::checked_neg)))
            }
            (Op::Mad, &[_, _, _, c]) => of(c)?.map(|origin| Origin { offset: None, ..origin }),
            (Op::Selp, &[_, a, b, _]) => join_origins(of(a)?, of(b)?),
            // The fence moves wrong addresses only.
            (Op::Bfi, &[_, a, _, Operand::Int(0), _]) => {
                of(a)?.map(|origin| Origin { offset: None, ..origin })
            }
            _ => None,
        })
    }
}

fn join_origins(one: Option<Origin>, two: Option<Origin>) -> Option<Origin> {
    let (one, two) = (one?, two?);
    let offset = one.offset.filter(|_| one.offset == two.offset);
    let is_same = one.var == two.var && one.is_generic == two.is_generic;
    is_same.then_some(Origin { offset, ..one })
}

/// Joins a value to what is known; returns whether that changes it.
fn merge<T: Copy + PartialEq>(
    known: &mut Option<T>,
    value: Option<T>,
    join: fn(T, T) -> T,
) -> bool {
    let Some(value) = value else { return false };
    let joined = known.map_or(value, |known| join(known, value));
    known.replace(joined) != Some(joined)
}

fn masked(value: Value, mask: u64) -> Value {
    let zeros = mask.trailing_zeros().min(BITS);
    match (value.atom, mask & u64::from(MASK) == u64::from(MASK)) {
        (_, true) => value,
        (None, _) if value.bits >= zeros => {
            let kept = Value::number(u64::from(value.plus) & mask);
            kept.of(value.bits)
        }
        _ => Value { atom: None, plus: 0, bits: zeros },
    }
}

/// Whether all words of a form say how it computes on low bits.
fn is_plain(form: &Form) -> bool {
    form.mods
        .iter()
        .all(|word| matches!(word, Mod::Type(_) | Mod::Space(_) | Mod::Lo | Mod::Wide | Mod::To))
}

/// Whether all types are integers that have the low bits.
fn is_integer(form: &Form) -> bool {
    let fits = |ty: Type| (ty.is_integer() || ty.is_untyped()) && (8..=64).contains(&ty.bits());
    let mut types = form.types().peekable();
    let narrow =
        form.types().any(|ty| matches!(ty, Type::U8x4 | Type::S8x4 | Type::U16x2 | Type::S16x2));
    types.peek().is_some() && types.all(fits) && !narrow && !form.has(Mod::Space(Space::Param))
}

/// The blocks that may be on a cycle: a cycle lies within the spans of the edges that go back.
fn in_loop(cfg: &Cfg) -> Vec<bool> {
    let mut depth = vec![0_i64; cfg.blocks.len() + 1];
    for (index, block) in cfg.blocks.iter().enumerate() {
        for succ in block.succs.iter().map(|succ| succ.index()).filter(|succ| *succ <= index) {
            depth[succ] += 1;
            depth[index + 1] -= 1;
        }
    }
    let mut now = 0;
    let spans = depth[..cfg.blocks.len()].iter().map(|change| {
        now += change;
        now > 0
    });
    spans.collect()
}

/// The statements that define each register.
pub(super) fn definitions(body: &Body) -> Vec<Vec<usize>> {
    let mut definitions = vec![Vec::new(); body.regs.len()];
    for (stmt, inst) in body.insts() {
        body.each_result(inst, &mut |reg| definitions[reg.index()].push(stmt));
    }
    definitions
}

/// Registers that may be read before they are defined, or whose only definition may not happen.
/// Where the sets of registers are too large, these are all.
pub(super) fn undefined(body: &Body, cfg: &Cfg, definitions: &[Vec<usize>]) -> Vec<bool> {
    let words = body.regs.len().div_ceil(64);
    let blocks = cfg.blocks.len();
    if words.saturating_mul(blocks) > MOST_WORDS {
        return vec![true; body.regs.len()];
    }
    let mut used = vec![vec![0_u64; words]; blocks];
    let mut defined = vec![vec![0_u64; words]; blocks];
    let mut undefined = vec![false; body.regs.len()];
    for (stmt, inst) in body.insts() {
        let block = cfg.block_of[stmt].index();
        let mut results = Vec::new();
        body.each_result(inst, &mut |reg| results.push(reg));
        let mut read = |reg: Reg| {
            let (word, bit) = (reg.index() / 64, 1 << (reg.index() % 64));
            used[block][word] |= bit & !defined[block][word];
        };
        inst.guard.iter().for_each(|guard| read(guard.reg));
        for (index, operand) in body.operands(inst.operands).iter().enumerate() {
            if index > 0 || matches!(operand, Operand::Mem(..)) {
                body.each_reg(*operand, &mut read);
            }
        }
        if inst.guard.is_some() {
            for &reg in &results {
                undefined[reg.index()] |= definitions[reg.index()].len() == 1;
            }
            continue;
        }
        for &reg in &results {
            defined[block][reg.index() / 64] |= 1 << (reg.index() % 64);
        }
    }
    let mut changed = true;
    while changed {
        changed = false;
        for block in (0..blocks).rev() {
            for word in 0..words {
                let out = cfg.blocks[block].succs.iter().filter(|succ| succ.index() < blocks);
                let out = out.fold(0, |all, succ| all | used[succ.index()][word]);
                let now = used[block][word] | (out & !defined[block][word]);
                changed |= now != used[block][word];
                used[block][word] = now;
            }
        }
    }
    if let Some(first) = used.first() {
        for reg in body.formals as usize..body.regs.len() {
            undefined[reg] |= first[reg / 64] & (1 << (reg % 64)) != 0;
        }
    }
    undefined
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_register_is_an_address_of_what_it_holds_at_its_use() {
        let source = ".version 8.0
.target sm_80
.address_size 64
.entry k() {
.local .align 16 .b8 stack[64];
.reg .b32 %r;
.reg .b64 %y, %z;
mov.u64 %y, stack;
cvta.local.u64 %y, %y;
add.s64 %z, %y, 8000;
ld.u32 %r, [%z];
mov.u64 %y, 4096;
ld.u32 %r, [%y];
ret;
}";
        let out = super::super::contain(&crate::parse(source).unwrap());
        let text = crate::print(&out.module);
        assert!(text.contains("cvta.to.local.u64"), "{text}");
    }

    /// An address of the wrong space, or of which an operation has left a part, is none of the
    /// variable's.
    #[test]
    fn an_access_is_proved_only_where_its_address_is_the_variables() {
        let is_checked = |code: &str| {
            let source = format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{\n.local .align 16 \
                 .b8 arr[64];\n.shared .align 16 .b8 sh[640];\n.reg .b32 %r<9>;\n.reg .b64 \
                 %d<9>;\n{code}\nret;\n}}"
            );
            let out = super::super::contain(&crate::parse(&source).unwrap());
            crate::print(&out.module).contains("$pw_beyond")
        };
        let arr = "mov.u64 %d1, arr; cvta.local.u64 %d2, %d1;";
        assert!(!is_checked(&format!("{arr} st.u32 [%d2+60], %r1; ld.local.u32 %r1, [%d1];")));
        for wrong in [
            "cvta.shared.u64 %d3, %d1; st.u32 [%d3], %r1;",
            "ld.local.u32 %r1, [%d2];",
            "cvta.local.u64 %d3, %d2; ld.u32 %r1, [%d3];",
            "cvta.to.local.u64 %d3, %d1; ld.local.u32 %r1, [%d3];",
        ] {
            assert!(is_checked(&format!("{arr} {wrong}")), "{wrong}");
        }
        let sh = "mov.u32 %r1, sh; add.u32 %r2, %r1, 256;";
        assert!(!is_checked(&format!("{sh} st.shared.u32 [%r2], %r1;")));
        for wrong in ["cvt.u32.u8 %r3, %r2;", "cvt.rn.f32.u32 %r3, %r2;"] {
            assert!(is_checked(&format!("{sh} {wrong} st.shared.u32 [%r3], %r1;")), "{wrong}");
        }
    }
}
