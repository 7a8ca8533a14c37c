//! Handles of texture and surface objects in registers.
//!
//! A handle is a number that the driver gives an object. One context holds the objects of all
//! programs, so a kernel could name those of others. A handle is safe where its register holds,
//! unchanged, 8 bytes of the kernel's parameters, or one of several such: whoever launches the
//! kernel compares these with the program's own objects ([`crate::KernelReport::handles`]). Any
//! other handle may be any number, and the kernel is refused.

use crate::analysis::cfg::{BlockId, Cfg};
use crate::ir::{Base, Body, Inst, Module, Op, Operand, Reg, Space, Stmt, Symbol, VarId};
use std::collections::{BTreeMap, BTreeSet};

/// Edges that the searches for ways around definitions may follow, in a module.
pub(super) const BUDGET: usize = 1 << 26;
/// Moves and choices between parameters and the instruction.
const MOST_STEPS: usize = 64;
/// Bytes of a handle.
const BYTES: u32 = 8;

/// The registers of an instruction that hold handles; none for other instructions. `None` where an
/// object is named by other means than a register or a reference of the module.
pub(crate) fn registers(module: &Module, body: &Body, inst: &Inst) -> Option<Vec<Reg>> {
    let mut found = Vec::new();
    let is_reference = |symbol: Symbol| match symbol {
        Symbol::Var(id) => {
            let variable = module.var(id);
            variable.space == Space::Tex || variable.ty.is_opaque() && !variable.space.is_param()
        }
        _ => false,
    };
    let op = module.form(inst).op;
    if !matches!(op, Op::Tex | Op::Tld4 | Op::Txq | Op::Suld | Op::Sust | Op::Sured | Op::Suq) {
        return Some(found);
    }
    for &operand in body.operands(inst.operands) {
        match operand {
            Operand::Tuple(parts) => {
                let parts = body.operands(parts);
                // One coordinate need not be a vector.
                let coordinates = parts.iter().position(|part| matches!(part, Operand::Vector(_)));
                let objects = coordinates.unwrap_or(parts.len().saturating_sub(1));
                if objects == 0 {
                    return None;
                }
                for part in &parts[..objects] {
                    match *part {
                        Operand::Symbol(symbol, 0) if is_reference(symbol) => {}
                        Operand::Reg(reg) => found.push(reg),
                        _ => return None,
                    }
                }
            }
            Operand::Mem(Base::Reg(reg), 0) => found.push(reg),
            Operand::Mem(Base::Symbol(symbol), 0) if is_reference(symbol) => {}
            Operand::Mem(..) | Operand::Absolute(_) => return None,
            _ => {}
        }
    }
    Some(found)
}

/// A place among a kernel's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub param: VarId,
    /// Bytes from the parameter's first one.
    pub at: u64,
}

/// The handles of a body.
pub(super) struct Handles<'a> {
    module: &'a Module,
    body: &'a Body,
    cfg: Cfg,
    /// The statements that may change each register.
    definitions: Vec<Vec<usize>>,
    /// For each block with a definition, the blocks to which a way leads around it.
    around: BTreeMap<BlockId, Vec<bool>>,
    /// Blocks and edges that a search may follow.
    cost: usize,
}

impl<'a> Handles<'a> {
    pub fn new(module: &'a Module, body: &'a Body) -> Self {
        let mut definitions = vec![Vec::new(); body.regs.len()];
        for (stmt, inst) in body.insts() {
            // An object's address is read.
            let is_read = |operand: &Operand| {
                matches!(operand, Operand::Mem(..) | Operand::Absolute(_) | Operand::Tuple(_))
            };
            let result = body.operands(inst.operands).first().filter(|operand| !is_read(operand));
            if let Some(&result) = result {
                body.each_reg(result, &mut |reg| definitions[reg.index()].push(stmt));
            }
        }
        let (cfg, around) = (Cfg::new(module, body), BTreeMap::new());
        let cost = cfg.blocks.iter().map(|block| 1 + block.succs.len()).sum();
        Self { module, body, cfg, definitions, around, cost }
    }

    /// The parameters of which one's 8 bytes are what a register holds at a statement; `None` where
    /// it may hold something else, other than 0. `params`: the kernel's.
    pub fn places(
        &mut self,
        params: &BTreeSet<VarId>,
        used: (usize, Reg),
        budget: &mut usize,
    ) -> Option<Vec<Place>> {
        let (mut found, mut left) = (Vec::new(), vec![used]);
        for _ in 0..MOST_STEPS {
            let Some((stmt, reg)) = left.pop() else { return Some(found) };
            let &[definition] = self.definitions[reg.index()].as_slice() else { return None };
            let Stmt::Inst(inst) = self.body.stmts[definition] else { return None };
            if inst.guard.is_some() || !self.is_before(definition, stmt, budget) {
                return None;
            }
            let form = self.module.form(&inst);
            let is_wide = form.last_type().is_some_and(|ty| ty.bits() == 8 * BYTES);
            if !is_wide || self.body.reg(reg).ty.bits() != 8 * BYTES {
                return None;
            }
            match *self.body.operands(inst.operands) {
                [Operand::Reg(_), Operand::Reg(from)] if form.op == Op::Mov => {
                    left.push((definition, from));
                }
                [Operand::Reg(_), one, other, _] if form.op == Op::Selp => {
                    for from in [one, other] {
                        match from {
                            Operand::Reg(from) => left.push((definition, from)),
                            Operand::Int(0) => {}
                            _ => return None,
                        }
                    }
                }
                [to, Operand::Mem(Base::Symbol(Symbol::Var(param)), offset)]
                    if form.op == Op::Ld
                        && form.space().is_some_and(Space::is_param)
                        && params.contains(&param) =>
                {
                    let element = self.element(to, reg)?;
                    let at = u64::try_from(offset).ok()? + u64::from(BYTES) * element;
                    // What lies behind the parameter may be anything.
                    if at + u64::from(BYTES) > self.module.var(param).bytes()? {
                        return None;
                    }
                    found.push(Place { param, at });
                }
                _ => return None,
            }
        }
        None
    }

    /// Which element of a load's result a register is.
    fn element(&self, to: Operand, reg: Reg) -> Option<u64> {
        let elements = match to {
            Operand::Reg(_) => return Some(0),
            Operand::Vector(slice) => self.body.operands(slice),
            _ => return None,
        };
        let mut at = (0..).zip(elements).filter(|(_, element)| **element == Operand::Reg(reg));
        let (first, _) = at.next()?;
        at.next().is_none().then_some(first)
    }

    /// Whether one statement is surely executed before each execution of another one.
    fn is_before(&mut self, one: usize, other: usize, budget: &mut usize) -> bool {
        let [first, last] = [one, other].map(|stmt| self.cfg.block_of[stmt]);
        if first == last {
            return one < other;
        }
        if !self.around.contains_key(&first) {
            let rest = budget.checked_sub(self.cost).filter(|_| !self.module.stop.is_asked());
            let Some(rest) = rest else { return false };
            *budget = rest;
            let around = self.cfg.reachable(&[BlockId(0)], |block| block == first);
            self.around.insert(first, around);
        }
        !self.around[&first][last.index()]
    }
}
