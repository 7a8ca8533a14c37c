//! The counting code of one body.

use crate::analysis::hazard::callee;
use crate::cancel::label;
use crate::carry::{declare, emit, emit_if};
use crate::fence::put_address;
use crate::ir::{
    Base, Body, FuncId, Guard, Inst, Mod, Module, Name, Op, Operand, Part, Reg, Space, Special,
    Stmt, Symbol, Type, VarId,
};

use super::{
    ATOMICS, Access, CAPACITY, Count, GLOBAL_LOADS, GLOBAL_SECTORS, GLOBAL_STORES, PAST_SECTORS,
    PERIOD, RECORDED, RECORDS, THREAD_INSTRUCTIONS, WARP_INSTRUCTIONS,
};

/// Counters, each in a register and at a place of the block.
const COUNTERS: [(&str, u64); 7] = [
    ("%pw_warps", WARP_INSTRUCTIONS),
    ("%pw_threads", THREAD_INSTRUCTIONS),
    ("%pw_loads", GLOBAL_LOADS),
    ("%pw_stores", GLOBAL_STORES),
    ("%pw_atomics", ATOMICS),
    ("%pw_sectors", GLOBAL_SECTORS),
    ("%pw_past", PAST_SECTORS),
];
const WARPS: usize = 0;
const THREADS: usize = 1;
const LOADS: usize = 2;
const STORES: usize = 3;
const ATOMS: usize = 4;
const SECTORS: usize = 5;
const PAST: usize = 6;

/// The names of a body's registers.
pub(super) struct Registers {
    counters: [Name; 7],
    others: [(Name, Type); 13],
}

impl Registers {
    pub fn new(module: &mut Module) -> Self {
        let counters = COUNTERS.map(|(name, _)| module.names.fresh(name));
        let mut name = |stem: &str, ty| (module.names.fresh(stem), ty);
        let others = [
            name("%pw_one", Type::B64),
            name("%pw_to", Type::B64),
            name("%pw_place", Type::B64),
            name("%pw_sm", Type::B64),
            name("%pw_active", Type::B32),
            name("%pw_alike", Type::B32),
            name("%pw_below", Type::B32),
            name("%pw_low", Type::B32),
            name("%pw_index", Type::B32),
            name("%pw_extent", Type::B32),
            name("%pw_global", Type::Pred),
            name("%pw_first", Type::Pred),
            name("%pw_keep", Type::Pred),
        ];
        Self { counters, others }
    }

    fn declare(&self, body: &mut Body, block: Reg, sampled: Reg, out: &mut Vec<Stmt>) -> Scope {
        let counters = self.counters.map(|name| declare(body, name, Type::B64, out));
        let [one, to, place, sm, active, alike, below, low, index, extent, global, first, keep] =
            self.others.map(|(name, ty)| declare(body, name, ty, out));
        Scope {
            counters,
            block,
            sampled,
            one,
            to,
            place,
            sm,
            active,
            alike,
            below,
            low,
            index,
            extent,
            global,
            first,
            keep,
        }
    }
}

/// The registers of one body.
#[derive(Clone, Copy)]
struct Scope {
    counters: [Reg; 7],
    /// Address of the count block.
    block: Reg,
    /// Whether records are kept, 0 or 1.
    sampled: Reg,
    one: Reg,
    to: Reg,
    place: Reg,
    /// The SM, where a record has it.
    sm: Reg,
    /// A register that only `activemask` writes.
    active: Reg,
    alike: Reg,
    below: Reg,
    low: Reg,
    index: Reg,
    extent: Reg,
    global: Reg,
    first: Reg,
    keep: Reg,
}

impl Count {
    /// `param` is the kernel's.
    pub(super) fn body(&self, module: &mut Module, func: FuncId, param: Option<VarId>) {
        let Some(mut body) = module.funcs[func.0 as usize].body.take() else { return };
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() * 4);
        let regs = match param {
            Some(_) => self.carry.declare(&mut body, &mut out),
            None => self.carry.load(module, func, &mut body, None, &mut out),
        };
        let (block, sampled) = (regs[0], regs[1]);
        let scope = self.registers.declare(&mut body, block, sampled, &mut out);
        scope.begin(module, &mut body, param, &mut out);
        let sizes = block_sizes(module, &stmts);
        let mut falls = true;
        for (stmt, size) in stmts.into_iter().zip(sizes) {
            let Stmt::Inst(inst) = stmt else {
                out.push(stmt);
                falls |= matches!(stmt, Stmt::Label(_));
                continue;
            };
            if size > 0 {
                scope.block(module, &mut body, size, &mut out);
            }
            falls = true;
            match module.form(&inst).op {
                Op::Ret | Op::Exit => {
                    scope.report(module, &mut body, inst.guard, &mut out);
                    falls = inst.guard.is_some();
                    out.push(stmt);
                }
                Op::Call => {
                    let target =
                        callee(body.operands(inst.operands)).and_then(|id| module.definition(id));
                    if target.is_some_and(|id| self.ending.contains(&id)) {
                        scope.report(module, &mut body, inst.guard, &mut out);
                        scope.reset(module, &mut body, inst.guard, &mut out);
                    }
                    self.carry.call(module, &mut body, inst, &regs, &mut out);
                }
                _ => {
                    scope.access(module, &mut body, &inst, &mut out);
                    falls =
                        inst.guard.is_some() || !matches!(module.form(&inst).op, Op::Bra | Op::Brx);
                    out.push(stmt);
                }
            }
        }
        if falls {
            scope.report(module, &mut body, None, &mut out);
        }
        body.stmts = out;
        module.funcs[func.0 as usize].body = Some(body);
    }
}

/// For the first instruction of each basic block, the number of the program's instructions in the
/// block; elsewhere 0.
fn block_sizes(module: &Module, stmts: &[Stmt]) -> Vec<u64> {
    let mut sizes = vec![0; stmts.len()];
    let mut first = None;
    for (index, stmt) in stmts.iter().enumerate() {
        match stmt {
            Stmt::Label(_) => first = None,
            Stmt::Inst(inst) => {
                if inst.pos.line > 0 {
                    sizes[*first.get_or_insert(index)] += 1;
                }
                if matches!(module.form(inst).op, Op::Bra | Op::Brx | Op::Ret | Op::Exit | Op::Trap)
                {
                    first = None;
                }
            }
            _ => {}
        }
    }
    sizes
}

/// The operand that is an address of global or generic memory, where an instruction counts as
/// access.
fn counted(module: &Module, body: &Body, inst: &Inst) -> Option<(usize, usize, Access, bool)> {
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    let is_address = |operand: &Operand| matches!(operand, Operand::Mem(..) | Operand::Absolute(_));
    let (counter, kind) = match form.op {
        Op::Ld | Op::Ldu => {
            let past = [Mod::Volatile, Mod::Relaxed, Mod::Acquire, Mod::Mmio, Mod::Cg, Mod::Cv];
            let past = past.into_iter().any(|word| form.has(word));
            (LOADS, if past { Access::LoadPastL1 } else { Access::Load })
        }
        Op::St => (STORES, Access::Store),
        Op::Atom | Op::Red => (ATOMS, Access::Atomic),
        Op::Cp if form.has(Mod::Async) && !form.has(Mod::Bulk) && operands.len() > 2 => {
            return Some((1, LOADS, Access::LoadPastL1, false));
        }
        _ => return None,
    };
    let generic = match module.access_space(body, inst) {
        None => true,
        Some(Space::Global) => false,
        Some(_) => return None,
    };
    let index = operands.iter().position(is_address)?;
    Some((index, counter, kind, generic))
}

impl Scope {
    fn begin(
        self,
        module: &mut Module,
        body: &mut Body,
        param: Option<VarId>,
        out: &mut Vec<Stmt>,
    ) {
        self.reset(module, body, None, out);
        let special = |special| Operand::Special(special, Part::Whole);
        let below = Operand::Reg(self.below);
        emit(module, body, out, "mov.u32", &[below, special(Special::LanemaskLt)]);
        let low = Operand::Reg(self.low);
        emit(module, body, out, "mov.u32", &[low, special(Special::Smid)]);
        emit(module, body, out, "cvt.u64.u32", &[Operand::Reg(self.sm), low]);
        emit(
            module,
            body,
            out,
            "shl.b64",
            &[Operand::Reg(self.sm), Operand::Reg(self.sm), Operand::Int(49)],
        );
        let Some(param) = param else { return };
        let from = Operand::Mem(Base::Symbol(Symbol::Var(param)), 0);
        emit(module, body, out, "ld.param.u64", &[Operand::Reg(self.block), from]);
        // The CTA's linear index: (z * height + y) * width + x.
        let [index, extent, first] = [self.index, self.extent, self.first].map(Operand::Reg);
        let read =
            |module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>, to, special, part| {
                emit(module, body, out, "mov.u32", &[to, Operand::Special(special, part)]);
            };
        read(module, body, out, low, Special::Ctaid, Part::Z);
        for (of, part) in [(Part::Y, Part::Y), (Part::X, Part::X)] {
            read(module, body, out, extent, Special::Nctaid, of);
            read(module, body, out, index, Special::Ctaid, part);
            emit(module, body, out, "mad.lo.u32", &[low, low, extent, index]);
        }
        emit(module, body, out, "ld.global.u32", &[index, self.at(PERIOD)]);
        emit(module, body, out, "and.b32", &[low, low, index]);
        emit(module, body, out, "setp.eq.u32", &[first, low, Operand::Int(0)]);
        let room = Operand::Reg(self.one);
        emit(module, body, out, "ld.global.u64", &[room, self.at(CAPACITY)]);
        emit(module, body, out, "setp.ne.and.u64", &[first, room, Operand::Int(0), first]);
        let sampled = Operand::Reg(self.sampled);
        emit(module, body, out, "selp.b32", &[sampled, Operand::Int(1), Operand::Int(0), first]);
    }

    fn reset(
        self,
        module: &mut Module,
        body: &mut Body,
        guard: Option<Guard>,
        out: &mut Vec<Stmt>,
    ) {
        for counter in self.counters {
            emit_if(guard, module, body, out, "mov.b64", &[Operand::Reg(counter), Operand::Int(0)]);
        }
    }

    fn report(
        self,
        module: &mut Module,
        body: &mut Body,
        guard: Option<Guard>,
        out: &mut Vec<Stmt>,
    ) {
        for (counter, (_, offset)) in self.counters.into_iter().zip(COUNTERS) {
            let operands = [self.at(offset), Operand::Reg(counter)];
            emit_if(guard, module, body, out, "red.global.add.u64", &operands);
        }
    }

    /// Counts a block's instructions.
    fn block(self, module: &mut Module, body: &mut Body, size: u64, out: &mut Vec<Stmt>) {
        self.add(module, body, None, (THREADS, Operand::Int(size)), out);
        emit(module, body, out, "activemask.b32", &[Operand::Reg(self.active)]);
        self.lowest(module, body, self.active, size, out);
        self.add(module, body, None, (WARPS, Operand::Reg(self.one)), out);
    }

    /// Puts `value` where the lowest lane of a mask has it, and 0 where the others of them have.
    fn lowest(
        self,
        module: &mut Module,
        body: &mut Body,
        mask: Reg,
        value: u64,
        out: &mut Vec<Stmt>,
    ) {
        let [low, below, one, first] =
            [self.low, self.below, self.one, self.first].map(Operand::Reg);
        emit(module, body, out, "and.b32", &[low, Operand::Reg(mask), below]);
        emit(module, body, out, "setp.eq.u32", &[first, low, Operand::Int(0)]);
        emit(module, body, out, "selp.b64", &[one, Operand::Int(value), Operand::Int(0), first]);
    }

    fn add(
        self,
        module: &mut Module,
        body: &mut Body,
        guard: Option<Guard>,
        (counter, value): (usize, Operand),
        out: &mut Vec<Stmt>,
    ) {
        let counter = Operand::Reg(self.counters[counter]);
        emit_if(guard, module, body, out, "add.u64", &[counter, counter, value]);
    }

    /// Counts an access of global memory. All active lanes vote and match together, those that do
    /// not access with an address that is none: a guarded one could make them part.
    fn access(self, module: &mut Module, body: &mut Body, inst: &Inst, out: &mut Vec<Stmt>) {
        let Some((index, counter, kind, generic)) = counted(module, body, inst) else { return };
        let address = body.operands(inst.operands)[index];
        put_address(module, body, address, self.to, out);
        let guard = if generic {
            Some(self.global_lanes(module, body, inst.guard, out))
        } else {
            inst.guard
        };
        let holds = guard.map(|guard| match guard.negated {
            true => Operand::Not(guard.reg),
            false => Operand::Reg(guard.reg),
        });
        let [to, active, alike] = [self.to, self.active, self.alike].map(Operand::Reg);
        emit(module, body, out, "activemask.b32", &[active]);
        emit(module, body, out, "and.b64", &[to, to, Operand::Int(!31)]);
        let mut together = self.active;
        if let Some(holds) = holds {
            emit(module, body, out, "vote.sync.ballot.b32", &[alike, holds, active]);
            together = self.alike;
        }
        self.lowest(module, body, together, 1, out);
        self.add(module, body, guard, (counter, Operand::Reg(self.one)), out);
        if let Some(guard) = guard {
            let none = [to, Operand::Int(u64::MAX)];
            emit_if(
                Some(Guard { negated: !guard.negated, ..guard }),
                module,
                body,
                out,
                "mov.b64",
                &none,
            );
        }
        emit(module, body, out, "match.any.sync.b64", &[alike, to, active]);
        self.lowest(module, body, self.alike, 1, out);
        self.add(module, body, guard, (SECTORS, Operand::Reg(self.one)), out);
        if kind != Access::Load {
            self.add(module, body, guard, (PAST, Operand::Reg(self.one)), out);
        }
        self.record(module, body, kind, holds, out);
    }

    /// Keeps a record of the sector in `to` where it is the lane's to do so, the CTA is sampled,
    /// and there is room. All threads of a CTA take the same way.
    fn record(
        self,
        module: &mut Module,
        body: &mut Body,
        kind: Access,
        holds: Option<Operand>,
        out: &mut Vec<Stmt>,
    ) {
        let [to, place, keep, first] =
            [self.to, self.place, self.keep, self.first].map(Operand::Reg);
        let kept = Some(Guard { reg: self.keep, negated: false });
        let on = label(module, body);
        let none = [keep, Operand::Reg(self.sampled), Operand::Int(0)];
        emit(module, body, out, "setp.eq.u32", &none);
        emit_if(kept, module, body, out, "bra", &[Operand::Symbol(Symbol::Label(on), 0)]);
        match holds {
            None => emit(module, body, out, "mov.pred", &[keep, first]),
            Some(Operand::Not(reg)) => {
                emit(module, body, out, "not.pred", &[keep, Operand::Reg(reg)]);
                emit(module, body, out, "and.pred", &[keep, keep, first]);
            }
            Some(holds) => emit(module, body, out, "and.pred", &[keep, holds, first]),
        }
        let cursor = [place, self.at(RECORDED), Operand::Int(1)];
        emit_if(kept, module, body, out, "atom.global.add.u64", &cursor);
        let room = Operand::Reg(self.one);
        emit(module, body, out, "ld.global.u64", &[room, self.at(CAPACITY)]);
        emit(module, body, out, "setp.lt.and.u64", &[keep, place, room, keep]);
        emit(module, body, out, "shl.b64", &[place, place, Operand::Int(3)]);
        emit(module, body, out, "add.u64", &[place, place, Operand::Reg(self.block)]);
        emit(module, body, out, "or.b64", &[to, to, Operand::Reg(self.sm)]);
        emit(module, body, out, "or.b64", &[to, to, Operand::Int(kind as u64)]);
        let record =
            Operand::Mem(Base::Reg(self.place), i32::try_from(RECORDS).expect("offsets are small"));
        emit_if(kept, module, body, out, "st.global.u64", &[record, to]);
        out.push(Stmt::Label(on));
    }

    /// The lanes whose generic address is one of global memory.
    fn global_lanes(
        self,
        module: &mut Module,
        body: &mut Body,
        guard: Option<Guard>,
        out: &mut Vec<Stmt>,
    ) -> Guard {
        let global = Operand::Reg(self.global);
        emit(module, body, out, "isspacep.global", &[global, Operand::Reg(self.to)]);
        match guard {
            Some(Guard { reg, negated: false }) => {
                emit(module, body, out, "and.pred", &[global, global, Operand::Reg(reg)]);
            }
            Some(Guard { reg, negated: true }) => {
                let other = Operand::Reg(self.first);
                emit(module, body, out, "not.pred", &[other, Operand::Reg(reg)]);
                emit(module, body, out, "and.pred", &[global, global, other]);
            }
            None => {}
        }
        Guard { reg: self.global, negated: false }
    }

    fn at(self, offset: u64) -> Operand {
        Operand::Mem(Base::Reg(self.block), i32::try_from(offset).expect("offsets are small"))
    }
}
