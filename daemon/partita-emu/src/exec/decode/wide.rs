//! Registers of 128 bits, each two rows of 64, and atomics on several registers.

use super::{Decoder, Result};
use crate::exec::atomics::WideAtomicOp;
use crate::exec::inst::{AtomicKind, AtomicOp, AtomicType, Op, Source, Target};
use partita_ptx::{Form, Mod, Operand, Reg, Type};

impl Decoder<'_> {
    /// Whether an operand is a register of 128 bits.
    pub(super) fn is_wide(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Reg(reg) if self.scope().body.reg(reg).ty.bits() == 128)
    }

    fn wide_register(&mut self, reg: Reg) -> [u32; 2] {
        if let Some(&rows) = self.scope().wide.get(&reg) {
            return rows;
        }
        let rows = [self.fresh64(), self.fresh64()];
        self.scope_mut().wide.insert(reg, rows);
        rows
    }

    /// The rows of a value of 128 bits, the lower half first.
    pub(super) fn wide_rows(&mut self, operand: Operand) -> Result<[u32; 2]> {
        match operand {
            Operand::Reg(reg) if self.is_wide(operand) => Ok(self.wide_register(reg)),
            Operand::Sink => Ok([self.fresh64(), self.fresh64()]),
            _ => match self.parts(operand).as_deref() {
                Some(&[low, high]) => {
                    Ok([self.source64(low, Type::B64)?, self.source64(high, Type::B64)?])
                }
                Some(_) => self.refuse("a value of 128 bits from other than two registers of 64"),
                None => self.refuse("a value of 128 bits that is no register"),
            },
        }
    }

    /// `mov.b128` between registers, or registers and pairs of 64 bits.
    pub(super) fn move_wide(&mut self, d: Operand, a: Operand) -> Result<()> {
        if let Some(parts) = self.parts(d) {
            let [low, high] = parts[..] else {
                return self.refuse("a value of 128 bits to other than two registers of 64");
            };
            let rows = self.wide_rows(a)?;
            for (part, row) in [low, high].into_iter().zip(rows) {
                let target = self.target(part, Type::B64)?;
                self.move_to(target, Source::R64(row))?;
            }
            return Ok(());
        }
        let (rows, targets) = (self.wide_rows(a)?, self.wide_rows(d)?);
        for (target, row) in targets.into_iter().zip(rows) {
            self.emit(Op::Mov64, target, row, 0, 0, 0);
        }
        Ok(())
    }

    /// The elements of a vector or a value of 128 bits.
    fn wide_sources(&mut self, operand: Operand, ty: Type) -> Result<Vec<Source>> {
        if ty == Type::B128 {
            return Ok(self.wide_rows(operand)?.map(Source::R64).to_vec());
        }
        self.elements(operand).into_iter().map(|part| self.source(part, ty)).collect()
    }

    /// `atom` and `red` on vectors and on 128 bits.
    pub(super) fn wide_atomic(
        &mut self,
        form: &Form,
        kind: AtomicKind,
        result: Option<Operand>,
        operands: &[Operand],
    ) -> Result<()> {
        let Some(form_type) = form.last_type() else { return self.unsupported(form) };
        let whole = form_type == Type::B128;
        let ty = if whole { Some(AtomicType::U64) } else { Self::atomic_type(form) };
        let allowed = if whole {
            matches!(kind, AtomicKind::Exch | AtomicKind::Cas)
        } else {
            matches!(kind, AtomicKind::Add | AtomicKind::Min | AtomicKind::Max)
        };
        let (Some(ty), true, [at, b, rest @ ..]) = (ty, allowed, operands) else {
            return self.unsupported(form);
        };
        let space = self.space_at(form, *at)?;
        let address = self.whole_address(*at)?;
        let b = self.wide_sources(*b, form_type)?;
        let c = match (kind, rest.first()) {
            (AtomicKind::Cas, Some(&c)) => self.wide_sources(c, form_type)?,
            _ => Vec::new(),
        };
        if b.len() * ty.bytes() as usize > 32 {
            return self.unsupported(form);
        }
        let targets = match result {
            None => Vec::new(),
            Some(d) if whole => self.wide_rows(d)?.map(Target::R64).to_vec(),
            Some(d) => {
                let parts = self.elements(d);
                parts.into_iter().map(|part| self.target(part, form_type)).collect::<Result<_>>()?
            }
        };
        let (none, target) = (Source::None, Target::None);
        let element = AtomicOp { kind, ty, space, address, offset: 0, b: none, c: none, target };
        self.program.wide_atomics.push(WideAtomicOp { element, whole, b, c, targets });
        let index = self.program.wide_atomics.len() as i64 - 1;
        self.emit_aux(Op::AtomicWide, Self::order_bits(form), 0, 0, 0, index);
        Ok(())
    }

    /// The operation of an atomic, by its spelling.
    pub(super) fn atomic_kind(form: &Form) -> Option<AtomicKind> {
        form.mods.iter().find_map(|modifier| {
            Some(match modifier {
                Mod::Add => AtomicKind::Add,
                Mod::Min => AtomicKind::Min,
                Mod::Max => AtomicKind::Max,
                Mod::Inc => AtomicKind::Inc,
                Mod::Dec => AtomicKind::Dec,
                Mod::And => AtomicKind::And,
                Mod::Or => AtomicKind::Or,
                Mod::Xor => AtomicKind::Xor,
                Mod::Exch => AtomicKind::Exch,
                Mod::Cas => AtomicKind::Cas,
                _ => return None,
            })
        })
    }

    /// The type of an atomic, by its spelling.
    pub(super) fn atomic_type(form: &Form) -> Option<AtomicType> {
        Some(match form.last_type()? {
            Type::B16 | Type::U16 => AtomicType::U16,
            Type::B32 | Type::U32 => AtomicType::U32,
            Type::S32 => AtomicType::S32,
            Type::B64 | Type::U64 => AtomicType::U64,
            Type::S64 => AtomicType::S64,
            Type::F32 => AtomicType::F32,
            Type::F64 => AtomicType::F64,
            Type::F16 => AtomicType::F16,
            Type::F16x2 => AtomicType::F16x2,
            Type::Bf16 => AtomicType::Bf16,
            Type::Bf16x2 => AtomicType::Bf16x2,
            _ => return None,
        })
    }
}
