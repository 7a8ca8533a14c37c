//! Loads, stores, atomics, asynchronous copies.

use super::{Decoder, Result};
use crate::exec::access::{ACQUIRE, PAST_L1, RELEASE, STRONG_STORE, WITHIN_CTA};
use crate::exec::inst::{AtomicKind, AtomicOp, FRAME, MemoryOp, Op, Source, Space, Target};
use crate::exec::program::Constant;
use partita_ptx::{Base, Form, Mod, Op as P, Operand, Space as PtxSpace, Symbol, Type};

/// A memory operand: the row of its base, its offset in bytes, and whether the base is a kernel
/// parameter.
struct Address {
    base: Source,
    offset: i64,
    /// Byte offset among the kernel's parameters, where it is constant.
    param: Option<u32>,
}

impl Decoder<'_> {
    pub(super) fn memory_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        match form.op {
            P::St | P::Red if form.has(Mod::Async) => self.async_store(form, operands),
            P::St if form.has(Mod::Bulk) => self.bulk_fill(form, operands),
            P::Mapa | P::Getctarank => self.cluster_address(form, operands),
            P::Ld | P::Ldu => self.load(form, operands),
            P::St => self.store(form, operands),
            P::Atom => self.atomic(form, operands, true),
            P::Red => self.atomic(form, operands, false),
            P::Prefetch | P::Prefetchu | P::Discard | P::Applypriority => {
                self.emit(Op::Nop, 0, 0, 0, 0, 0);
                Ok(())
            }
            P::Createpolicy => {
                let d = self.target64(operands[0])?;
                let zero = self.constant64(Constant::Bits(0));
                self.emit(Op::Mov64, d, zero, 0, 0, 0);
                Ok(())
            }
            P::Cp if form.has(Mod::Mbarrier) => self.mbarrier(form, operands),
            P::Cp if form.has(Mod::Bulk) => self.bulk_copy(form, operands),
            P::Cp if form.has(Mod::Async) => self.async_copy(form, operands),
            P::Mbarrier => self.mbarrier(form, operands),
            P::Clusterlaunchcontrol => self.launch_control(form, operands),
            P::Tensormap => self.tensormap(form, operands),
            P::Tex | P::Tld4 | P::Txq | P::Suld | P::Sust | P::Sured | P::Suq => {
                self.texture_operation(form, operands)
            }
            _ => self.control_operation(form, operands),
        }
    }

    pub(super) fn space_of(&self, form: &Form) -> Result<Space> {
        Ok(match form.space() {
            None => Space::Generic,
            Some(PtxSpace::Global | PtxSpace::Const) => Space::Global,
            Some(space) if space.is_shared() || space == PtxSpace::SharedCluster => Space::Shared,
            Some(PtxSpace::Local) => Space::Local,
            Some(space) if space.is_param() => Space::Param,
            Some(_) => return self.unsupported(form),
        })
    }

    /// The state space of an access: the form's, or else that of the variable whose name is the
    /// address ([`partita_ptx::Module::access_space`]).
    pub(super) fn space_at(&self, form: &Form, address: Operand) -> Result<Space> {
        let Operand::Mem(Base::Symbol(Symbol::Var(var)), _) = address else {
            return self.space_of(form);
        };
        if form.space().is_some() {
            return self.space_of(form);
        }
        let variable = self.module.var(var);
        match variable.space {
            PtxSpace::Global => Ok(Space::Global),
            PtxSpace::Local => Ok(Space::Local),
            space if space.is_shared() => Ok(Space::Shared),
            space => self.refuse(format!(
                "`{}` of `{}`, which lies in .{}: name the space in the instruction",
                self.module.text(form.text),
                self.module.text(variable.name),
                space.text()
            )),
        }
    }

    fn address(&mut self, operand: Operand) -> Result<Address> {
        match operand {
            Operand::Mem(Base::Reg(reg), offset) => {
                let base = self.register(reg)?;
                Ok(Address { base, offset: i64::from(offset), param: None })
            }
            Operand::Mem(Base::Symbol(symbol), offset) => {
                if let Symbol::Var(var) = symbol
                    && let Some(parameter) = self.kernel_params.get(&var)
                    && !self.scope().params.contains_key(&var)
                {
                    let at = i64::from(parameter.offset) + i64::from(offset);
                    let base = self.constant(Constant::Bits(0), 64);
                    return Ok(Address { base, offset: at, param: u32::try_from(at).ok() });
                }
                if let Symbol::Var(var) = symbol
                    && let Some((base, place)) = self.place_in_frame(var)
                {
                    let offset = i64::from(place) + i64::from(offset);
                    return Ok(Address { base: Source::R64(base), offset, param: None });
                }
                let bits = match symbol {
                    Symbol::Var(var) if self.module.var(var).space.is_shared() => 32,
                    _ => 64,
                };
                let base = self.symbol(symbol, 0, bits)?;
                Ok(Address { base, offset: i64::from(offset), param: None })
            }
            Operand::Absolute(address) => {
                let base = self.constant(Constant::Bits(address), 64);
                Ok(Address { base, offset: 0, param: None })
            }
            _ => self.refuse("an address of this kind"),
        }
    }

    /// Parameters of device functions and of calls lie in local memory.
    fn real_space(&self, space: Space, operand: Operand) -> Space {
        if space != Space::Param {
            return space;
        }
        match operand {
            Operand::Mem(Base::Symbol(Symbol::Var(var)), _)
                if self.scope().params.contains_key(&var) =>
            {
                Space::Local
            }
            Operand::Mem(Base::Reg(_), _) if self.scope().returns_to.is_some() => Space::Local,
            _ => Space::Param,
        }
    }

    pub(super) fn elements(&self, operand: Operand) -> Vec<Operand> {
        self.parts(operand).unwrap_or_else(|| vec![operand])
    }

    fn past_l1(form: &Form) -> bool {
        [Mod::Volatile, Mod::Relaxed, Mod::Acquire, Mod::Cg, Mod::Cv, Mod::Mmio]
            .iter()
            .any(|&m| form.has(m))
    }

    /// The scope of a memory order, as a bit of `aux`.
    pub(super) fn scope_bits(form: &Form) -> u16 {
        if form.has(Mod::Cta) { WITHIN_CTA } else { 0 }
    }

    /// The memory order of an access, as bits of `aux`.
    pub(super) fn order_bits(form: &Form) -> u16 {
        let both = form.has(Mod::AcqRel);
        let acquire = if both || form.has(Mod::Acquire) { ACQUIRE } else { 0 };
        let release = if both || form.has(Mod::Release) { RELEASE } else { 0 };
        acquire | release | Self::scope_bits(form)
    }

    fn element_type(&self, form: &Form) -> Result<(Type, u32)> {
        match form.last_type() {
            Some(Type::B128) => Ok((Type::B64, 8)),
            Some(ty) if ty.bits() <= 64 && ty != Type::Pred => Ok((ty, ty.bytes())),
            _ => self.unsupported(form),
        }
    }

    fn load(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (ty, bytes) = self.element_type(form)?;
        let signed = ty.is_signed();
        let parts = self.elements(operands[0]);
        let space = self.space_at(form, operands[1])?;
        let space = self.real_space(space, operands[1]);
        let address = self.address(operands[1])?;
        if space == Space::Param
            && let Some(at) = address.param
        {
            let mut offset = at;
            for part in parts {
                let constant = Constant::Param { offset, bytes: bytes as u8, signed };
                if self.is_wide(part) {
                    for row in self.wide_rows(part)? {
                        let source =
                            self.constant64(Constant::Param { offset, bytes: bytes as u8, signed });
                        self.emit(Op::Mov64, row, source, 0, 0, 0);
                        offset += bytes;
                    }
                    continue;
                }
                offset += bytes;
                if let Operand::Reg(reg) | Operand::Part { reg, .. } = part {
                    let bits = if self.scope().body.reg(reg).ty.bits() == 64 { 64 } else { 32 };
                    let source = self.constant(constant, bits);
                    self.define(part, ty, source)?;
                } else if part != Operand::Sink {
                    return self.refuse("a result that is no register");
                }
            }
            return Ok(());
        }
        let mut rows = Vec::new();
        for &part in &parts {
            if self.is_wide(part) {
                rows.extend(self.wide_rows(part)?.map(|row| Some(Source::R64(row))));
                continue;
            }
            rows.push(match part {
                Operand::Sink => None,
                _ => Some(match self.target(part, ty)?.source() {
                    Source::P(_) | Source::None => return self.refuse("a load into a predicate"),
                    row => row,
                }),
            });
        }
        let aux = if Self::past_l1(form) { PAST_L1 } else { 0 } | Self::order_bits(form);
        let simple = match (space, rows.as_slice(), address.base, bytes) {
            _ if form.space() == Some(PtxSpace::SharedCluster) => None,
            (Space::Global, [Some(Source::R32(d))], Source::R64(a), 4) => {
                Some((Op::LdGlobal, *d, a, 4))
            }
            (Space::Global, [Some(Source::R64(d))], Source::R64(a), 8) => {
                Some((Op::LdGlobal, *d, a, 8))
            }
            (Space::Shared, [Some(Source::R32(d))], Source::R32(a), 4) => {
                Some((Op::LdShared, *d, a, 4))
            }
            (Space::Shared, [Some(Source::R64(d))], Source::R32(a), 8) => {
                Some((Op::LdShared, *d, a, 8))
            }
            _ => None,
        };
        if let Some((op, d, a, width)) = simple {
            self.emit_aux(op, aux | width, d, a, 0, address.offset);
            return Ok(());
        }
        let read_only = false;
        let op = MemoryOp {
            store: false,
            space,
            address: address.base,
            offset: address.offset,
            bytes,
            signed,
            elements: rows,
            read_only,
        };
        self.emit_memory(op, aux);
        Ok(())
    }

    fn emit_memory(&mut self, op: MemoryOp, aux: u16) {
        self.program.memory_ops.push(op);
        let index = self.program.memory_ops.len() as i64 - 1;
        self.emit_aux(Op::Memory, aux, 0, 0, 0, index);
    }

    fn store(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (ty, bytes) = self.element_type(form)?;
        let parts = self.elements(operands[1]);
        let space = self.space_at(form, operands[0])?;
        let space = self.real_space(space, operands[0]);
        let address = self.address(operands[0])?;
        let mut rows = Vec::new();
        for part in parts {
            if self.is_wide(part) {
                rows.extend(self.wide_rows(part)?.map(|row| Some(Source::R64(row))));
            } else if part == Operand::Sink && form.vector() * ty.bits() == 256 {
                // PTX ISA, "st": memory keeps what it has there.
                rows.push(None);
            } else {
                rows.push(Some(self.source(part, ty)?));
            }
        }
        let strong =
            [Mod::Volatile, Mod::Relaxed, Mod::Release, Mod::Mmio].iter().any(|&m| form.has(m));
        let aux = if strong { STRONG_STORE } else { 0 } | Self::order_bits(form);
        let releases = aux & RELEASE != 0;
        let simple = match (space, rows.as_slice(), address.base, bytes) {
            _ if form.space() == Some(PtxSpace::SharedCluster) => None,
            (Space::Global, [Some(Source::R32(v))], Source::R64(a), 4) => {
                Some((Op::StGlobal, *v, a, 4))
            }
            (Space::Global, [Some(Source::R64(v))], Source::R64(a), 8) => {
                Some((Op::StGlobal, *v, a, 8))
            }
            (Space::Shared, [Some(Source::R32(v))], Source::R32(a), 4) if !releases => {
                Some((Op::StShared, *v, a, 4))
            }
            (Space::Shared, [Some(Source::R64(v))], Source::R32(a), 8) if !releases => {
                Some((Op::StShared, *v, a, 8))
            }
            _ => None,
        };
        if let Some((op, value, a, width)) = simple {
            self.emit_aux(op, aux | width, 0, a, value, address.offset);
            return Ok(());
        }
        let op = MemoryOp {
            store: true,
            space,
            address: address.base,
            offset: address.offset,
            bytes,
            signed: false,
            elements: rows,
            read_only: space == Space::Param,
        };
        self.emit_memory(op, aux);
        Ok(())
    }

    fn atomic(&mut self, form: &Form, operands: &[Operand], returns: bool) -> Result<()> {
        let Some(kind) = Self::atomic_kind(form) else { return self.unsupported(form) };
        if form.vector() > 1 || form.last_type() == Some(Type::B128) {
            let (result, rest) =
                if returns { (operands.first(), &operands[1..]) } else { (None, operands) };
            return self.wide_atomic(form, kind, result.copied(), rest);
        }
        let (Some(ty), Some(form_type)) = (Self::atomic_type(form), form.last_type()) else {
            return self.unsupported(form);
        };
        let rest = if returns { &operands[1..] } else { operands };
        let [at, values @ ..] = rest else { return self.unsupported(form) };
        let space = self.space_at(form, *at)?;
        let address = self.address(*at)?;
        let Some(&b) = values.first() else { return self.unsupported(form) };
        let b = self.source(b, form_type)?;
        let c = match (kind, values.get(1)) {
            (AtomicKind::Cas, Some(&c)) => self.source(c, form_type)?,
            _ => Source::None,
        };
        let target = if returns { self.target(operands[0], form_type)? } else { Target::None };
        let op = AtomicOp {
            kind,
            ty,
            space,
            address: address.base,
            offset: address.offset,
            b,
            c,
            target,
        };
        self.program.atomic_ops.push(op);
        let index = self.program.atomic_ops.len() as i64 - 1;
        self.emit_aux(Op::Atomic, Self::order_bits(form), 0, 0, 0, index);
        Ok(())
    }

    fn async_copy(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if form.space().is_none() {
            // `cp.async.commit_group`, `wait_group`, `wait_all` have nothing to do, because each
            // copy completes at once.
            self.emit(Op::Nop, 0, 0, 0, 0, 0);
            return Ok(());
        }
        let [to, from, size, rest @ ..] = operands else { return self.unsupported(form) };
        let (Operand::Int(bytes) | Operand::Uint(bytes)) = *size else {
            return self.unsupported(form);
        };
        if !matches!(bytes, 4 | 8 | 16) {
            return self.unsupported(form);
        }
        let (to, from) = (self.whole_address(*to)?, self.whole_address(*from)?);
        // A third operand is the number of bytes to read, or a predicate that suppresses the read.
        // The cache policy comes last.
        let hinted = form.has(Mod::L2CacheHint);
        let length = match rest {
            [length] if !hinted => Some(*length),
            [length, _] => Some(*length),
            _ => None,
        };
        let length = match length {
            None => None,
            Some(length) => match self.source(length, Type::U32)? {
                Source::P(ignore) => {
                    let (zero, all) = (
                        self.constant32(Constant::Bits(0)),
                        self.constant32(Constant::Bits(bytes)),
                    );
                    let row = self.fresh32();
                    self.emit(Op::Selp32, row, zero, all, ignore, 0);
                    Some(Source::R32(row))
                }
                row => Some(row),
            },
        };
        let op = MemoryOp {
            store: true,
            space: Space::Shared,
            address: Source::None,
            offset: 0,
            bytes: bytes as u32,
            signed: false,
            elements: vec![Some(to), Some(from), length],
            read_only: false,
        };
        self.program.memory_ops.push(op);
        let index = self.program.memory_ops.len() as i64 - 1;
        self.emit(Op::AsyncCopy, 0, 0, 0, 0, index);
        Ok(())
    }

    /// The sum of base and offset, in a row.
    pub(super) fn whole_address(&mut self, operand: Operand) -> Result<Source> {
        let address = self.address(operand)?;
        if address.offset == 0 {
            return Ok(address.base);
        }
        Ok(match address.base {
            Source::R32(a) => {
                let plus = self.constant32(Constant::Bits(address.offset as u64));
                let d = self.fresh32();
                self.emit(Op::Add32, d, a, plus, 0, 0);
                Source::R32(d)
            }
            Source::R64(a) => {
                let plus = self.constant64(Constant::Bits(address.offset as u64));
                let d = self.fresh64();
                self.emit(Op::Add64, d, a, plus, 0, 0);
                Source::R64(d)
            }
            other => other,
        })
    }
}

const _: () = assert!(FRAME == 1 << 31);
