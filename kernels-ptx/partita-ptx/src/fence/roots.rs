//! Chooses the places where addresses are forced into the cell, so that few fences are needed.
//!
//! An access may stray from a fenced address by a margin ([`super::layout`]). The pass therefore
//! fences not each access but the pointer from which its address is a bounded displacement away:
//! once where the pointer is loaded, or once a round where a loop moves it. This module only
//! *chooses* places. [`crate::analysis::Ranges`] then decides over the resulting code whether an
//! access is safe, and an access that is not safe gets a fence of its own.
//!
//! A fence must not change a right program. A register is *for addresses only* when nothing looks
//! at its value: its value goes into addresses of global memory, and by moves, additions and
//! selections into other registers for addresses only. Such a register is fenced in place. By
//! [`super::layout`] a fence changes its value only where no access from it would be right. Because
//! forcing keeps the low bits, a second fence after further arithmetic still finds the right place.
//! Every other register keeps its value, and its uses in addresses read a second register.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::cfg::{BlockId, Cfg};
use crate::analysis::ranges::{Range, Ranges};
use crate::ir::{
    Base, Body, Form, FunctionKind, Inst, Mod, Module, Op, Operand, Reg, Space, Stmt, Symbol, Type,
};

use super::needs::{Access, Needs, needs};

/// The fences of a body.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Registers that are fenced after a statement that defines them.
    pub sites: BTreeMap<usize, BTreeSet<Reg>>,
    /// Registers that are fenced through a second one, and the statements that read the second one.
    pub second: BTreeMap<Reg, BTreeSet<usize>>,
}

/// Bytes of the largest usual access.
const LARGEST: i64 = 128;
/// The most steps from an access back to its root.
const LONGEST: usize = 64;
/// The most blocks that a search for definitions visits.
const FARTHEST: usize = 256;
/// The number of times that a loop is assumed to run for each run of its surroundings.
const ROUNDS: u64 = 8;

/// Chooses the fences of a body. `margin`: the bytes that an access may stray from its root.
pub(super) fn plan(module: &Module, body: &Body, kind: FunctionKind, margin: i64) -> Plan {
    let cfg = Cfg::new(module, body);
    let ranges = Ranges::new(module, body, &cfg, None);
    let mut facts = Facts::new(module, body, &cfg, kind, margin);
    let mut accesses = Vec::new();
    ranges.each(module, body, &cfg, |stmt, inst, known| {
        if let Some(step) = step(module.form(inst), body.operands(inst.operands), known) {
            facts.steps.insert(stmt, step);
        }
        for (index, access) in needs(module, body, inst).unwrap_or_default().addresses {
            if let Operand::Mem(Base::Reg(reg), offset) = body.operands(inst.operands)[index]
                && is_pointer(body, reg)
                && !matches!(known.reg(reg), Range::Near(..))
            {
                accesses.push((stmt, reg, offset, access));
            }
        }
    });
    facts.find_origins();
    facts.find_address_only();
    let mut plan = Plan::default();
    for (stmt, reg, offset, access) in accesses {
        if access == Access::Global || facts.global[reg.index()] {
            facts.root(&mut plan, stmt, reg, offset);
        }
    }
    plan
}

/// Whether the register can hold addresses.
fn is_pointer(body: &Body, reg: Reg) -> bool {
    let reg = body.reg(reg);
    reg.vector == 1 && reg.ty.bits() == 64 && !reg.ty.is_opaque()
}

/// The source register of an instruction whose result is that register plus a bounded displacement,
/// and the displacement.
fn step(
    form: &Form,
    operands: &[Operand],
    known: &crate::analysis::ranges::Known<'_>,
) -> Option<(Reg, i64)> {
    let integer =
        form.types().next().is_some_and(|ty| matches!(ty, Type::B64 | Type::U64 | Type::S64));
    let far = |range: Range| match range {
        Range::Number(low, high) => Some(low.abs().max(high.abs())),
        _ => None,
    };
    match (form.op, operands) {
        (Op::Mov, &[_, Operand::Reg(from)]) if integer => Some((from, 0)),
        (Op::Cvt, &[_, Operand::Reg(from)])
            if integer && form.types().all(|ty| ty.bits() == 64) =>
        {
            (form.last_type()?.is_integer()).then_some((from, 0))
        }
        (Op::Cvta, &[_, Operand::Reg(from)]) if form.has(Mod::Space(Space::Global)) => {
            Some((from, 0))
        }
        (Op::Add, &[_, a, b]) if integer => match (a, b) {
            // An index alone is not an origin of addresses.
            (Operand::Reg(from), other) | (other, Operand::Reg(from))
                if far(known.operand(other)).is_some() && far(known.reg(from)).is_none() =>
            {
                far(known.operand(other)).map(|far| (from, far))
            }
            _ => None,
        },
        (Op::Sub, &[_, Operand::Reg(from), other]) if integer => {
            far(known.operand(other)).map(|far| (from, far))
        }
        (Op::Mad, &[_, a, b, Operand::Reg(from)]) => {
            far(known.product(form, a, b)).map(|far| (from, far))
        }
        _ => None,
    }
}

/// The facts of a body.
struct Facts<'a> {
    module: &'a Module,
    body: &'a Body,
    cfg: &'a Cfg,
    kind: FunctionKind,
    margin: i64,
    /// Statements that define each register, in order.
    definitions: Vec<Vec<usize>>,
    /// The result of [`step`], by statement.
    steps: BTreeMap<usize, (Reg, i64)>,
    /// The number of times that each block is assumed to run.
    weights: Vec<u64>,
    /// Registers that never hold an address of shared or local memory in a right program.
    global: Vec<bool>,
    /// Registers for addresses only.
    address_only: Vec<bool>,
}

impl<'a> Facts<'a> {
    fn new(
        module: &'a Module,
        body: &'a Body,
        cfg: &'a Cfg,
        kind: FunctionKind,
        margin: i64,
    ) -> Self {
        let mut definitions = vec![Vec::new(); body.regs.len()];
        for (stmt, inst) in body.insts() {
            body.each_result(inst, &mut |reg| definitions[reg.index()].push(stmt));
        }
        let pointers: Vec<bool> = (0..body.regs.len())
            .map(|index| is_pointer(body, Reg(u32::try_from(index).expect("counted by u32"))))
            .collect();
        Self {
            module,
            body,
            cfg,
            kind,
            margin,
            definitions,
            steps: BTreeMap::new(),
            weights: weights(cfg),
            global: pointers.clone(),
            address_only: pointers,
        }
    }

    fn inst(&self, stmt: usize) -> Option<(&'a Inst, &'a Form, &'a [Operand])> {
        let Stmt::Inst(inst) = &self.body.stmts[stmt] else { return None };
        Some((inst, self.module.form(inst), self.body.operands(inst.operands)))
    }

    /// Finds the origins of addresses: a kernel's parameters, names of variables, converted
    /// addresses, and values a bounded displacement away from these.
    fn find_origins(&mut self) {
        let mut changed = true;
        while changed {
            changed = false;
            for index in 0..self.global.len() {
                if self.global[index]
                    && !self.definitions[index].iter().all(|&stmt| self.is_origin(stmt))
                {
                    self.global[index] = false;
                    changed = true;
                }
            }
        }
    }

    fn is_origin(&self, stmt: usize) -> bool {
        let Some((_, form, operands)) = self.inst(stmt) else { return false };
        let of_module = |id| self.module.var(id).space;
        match (form.op, operands) {
            (Op::Ld, &[Operand::Reg(_), Operand::Mem(Base::Symbol(Symbol::Var(id)), _)]) => {
                self.kind == FunctionKind::Entry
                    && form.space().is_some_and(Space::is_param)
                    && of_module(id).is_param()
            }
            (Op::Cvta, _) => form.has(Mod::Space(Space::Global)),
            (Op::Mov, &[_, Operand::Symbol(Symbol::Var(id), _)]) => of_module(id) == Space::Global,
            _ => self.steps.get(&stmt).is_some_and(|(from, _)| self.global[from.index()]),
        }
    }

    /// Removes registers whose values are used for anything but addresses, then the sources of
    /// these registers' values.
    fn find_address_only(&mut self) {
        let mut sources: BTreeMap<Reg, BTreeSet<Reg>> = BTreeMap::new();
        let mut seen: Vec<Reg> = Vec::new();
        for (_, inst) in self.body.insts() {
            let form = self.module.form(inst);
            let operands = self.body.operands(inst.operands);
            let needs = needs(self.module, self.body, inst).unwrap_or_default();
            for (index, operand) in operands.iter().enumerate() {
                match *operand {
                    Operand::Mem(Base::Reg(reg), _) if self.is_fenced(&needs, index, reg) => {}
                    Operand::Reg(_) if index == 0 && is_result(form) => {}
                    Operand::Vector(_) if index == 0 && matches!(form.op, Op::Ld | Op::Ldu) => {}
                    Operand::Reg(reg) if passes_on(form, index) => match operands[0] {
                        Operand::Reg(to) => {
                            sources.entry(to).or_default().insert(reg);
                        }
                        _ => seen.push(reg),
                    },
                    other => self.body.each_reg(other, &mut |reg| seen.push(reg)),
                }
            }
        }
        seen.extend(sources.keys().filter(|to| !self.address_only[to.index()]));
        let mut handled = BTreeSet::new();
        while let Some(reg) = seen.pop() {
            self.address_only[reg.index()] = false;
            if handled.insert(reg)
                && let Some(from) = sources.get(&reg)
            {
                seen.extend(from);
            }
        }
    }

    /// Whether the operand is fenced as an address of global memory.
    fn is_fenced(&self, needs: &Needs, index: usize, reg: Reg) -> bool {
        needs.addresses.iter().any(|&(at, access)| {
            at == index && (access == Access::Global || self.global[reg.index()])
        })
    }

    /// Plans a root for an access.
    fn root(&self, plan: &mut Plan, stmt: usize, reg: Reg, offset: i32) {
        let own = self.weight(stmt);
        let mut best: Option<(u64, usize, Reg, Vec<usize>)> = None;
        let (mut at, mut reg) = (stmt, reg);
        let mut left = self.margin - i64::from(offset).abs() - LARGEST;
        for _ in 0..LONGEST {
            let Some(definitions) = self.reaching(at, reg) else { break };
            let cost: u64 = definitions.iter().map(|&stmt| self.cost(plan, stmt, reg)).sum();
            if !definitions.is_empty() && best.as_ref().is_none_or(|(least, ..)| cost <= *least) {
                best = Some((cost, at, reg, definitions.clone()));
            }
            let (&[definition], true) = (definitions.as_slice(), self.address_only[reg.index()])
            else {
                break;
            };
            let Some(&(from, far)) = self.steps.get(&definition) else { break };
            if !is_pointer(self.body, from) || far > left {
                break;
            }
            left -= far;
            (at, reg) = (definition, from);
        }
        let Some((cost, at, reg, definitions)) = best else { return };
        if cost > own {
            return;
        }
        for definition in definitions {
            plan.sites.entry(definition).or_default().insert(reg);
        }
        if !self.address_only[reg.index()] {
            plan.second.entry(reg).or_default().insert(at);
        }
    }

    fn weight(&self, stmt: usize) -> u64 {
        self.weights[self.cfg.block_of[stmt].index()]
    }

    /// The cost of a fence after a definition.
    fn cost(&self, plan: &Plan, stmt: usize, reg: Reg) -> u64 {
        let planned = plan.sites.get(&stmt).is_some_and(|regs| regs.contains(&reg));
        let free = self.address_only[reg.index()]
            && self
                .inst(stmt)
                .is_some_and(|(inst, form, operands)| is_replaced(inst, form, operands));
        if planned || free { 0 } else { self.weight(stmt) }
    }

    /// The definitions of a register that can reach a statement. `None` where the search is too
    /// long.
    fn reaching(&self, stmt: usize, reg: Reg) -> Option<Vec<usize>> {
        let definitions = &self.definitions[reg.index()];
        if definitions.len() <= 1 {
            return Some(definitions.clone());
        }
        let mut found = BTreeSet::new();
        let mut seen: BTreeSet<BlockId> = BTreeSet::new();
        let block = self.cfg.block_of[stmt];
        let mut todo = Vec::new();
        if self.last_before(block, stmt, reg, &mut found) {
            todo.extend(&self.cfg.preds[block.index()]);
        }
        while let Some(block) = todo.pop() {
            if !seen.insert(block) {
                continue;
            }
            if seen.len() > FARTHEST {
                return None;
            }
            let end = self.cfg.blocks[block.index()].stmts.end;
            if self.last_before(block, end, reg, &mut found) {
                todo.extend(&self.cfg.preds[block.index()]);
            }
        }
        Some(found.into_iter().collect())
    }

    /// Adds the definitions that reach a place from inside its block. Returns whether definitions
    /// outside the block can reach the place.
    fn last_before(
        &self,
        block: BlockId,
        end: usize,
        reg: Reg,
        found: &mut BTreeSet<usize>,
    ) -> bool {
        let definitions = &self.definitions[reg.index()];
        let before = definitions.partition_point(|&stmt| stmt < end);
        let start = self.cfg.blocks[block.index()].stmts.start;
        for &stmt in definitions[..before].iter().rev().take_while(|stmt| **stmt >= start) {
            found.insert(stmt);
            if self.inst(stmt).is_some_and(|(inst, ..)| inst.guard.is_none()) {
                return false;
            }
        }
        true
    }
}

/// Whether a fence replaces an instruction: the result is the operand unchanged.
pub(super) fn is_replaced(inst: &Inst, form: &Form, operands: &[Operand]) -> bool {
    let copies = match form.op {
        Op::Mov => matches!(form.last_type(), Some(Type::B64 | Type::U64 | Type::S64)),
        Op::Cvta => form.has(Mod::Space(Space::Global)),
        _ => false,
    };
    copies && inst.guard.is_none() && matches!(operands, [Operand::Reg(_), Operand::Reg(_)])
}

/// Whether the low bits of this source pass unchanged into the result. An address-only register may
/// then derive from another.
pub(super) fn passes_on(form: &Form, index: usize) -> bool {
    let integer = form.types().all(|ty| matches!(ty, Type::B64 | Type::U64 | Type::S64));
    match form.op {
        Op::Mov | Op::Cvt => integer && index == 1,
        Op::Cvta => form.has(Mod::Space(Space::Global)) && index == 1,
        Op::Add | Op::Selp => integer && (index == 1 || index == 2) && !form.has(Mod::Cc),
        Op::Sub => integer && index == 1 && !form.has(Mod::Cc),
        Op::Mad => form.has(Mod::Wide) && index == 3 && !form.has(Mod::Cc),
        _ => false,
    }
}

/// Whether the first operand, a register, is written.
fn is_result(form: &Form) -> bool {
    !matches!(form.op, Op::Brx | Op::Nanosleep | Op::Setmaxnreg | Op::Stackrestore | Op::Call)
}

/// The number of times that each block is assumed to run, by the branches back that span it.
fn weights(cfg: &Cfg) -> Vec<u64> {
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, block) in cfg.blocks.iter().enumerate() {
        for succ in block.succs.iter().map(|succ| succ.index()).filter(|succ| *succ <= index) {
            let end = ends.entry(succ).or_default();
            *end = index.max(*end);
        }
    }
    let mut change = vec![0_i64; cfg.blocks.len() + 1];
    for (begin, end) in ends {
        change[begin] += 1;
        change[end + 1] -= 1;
    }
    let mut depth = 0;
    let weight = |change: &i64| {
        depth += change;
        ROUNDS.pow(u32::try_from(depth.clamp(0, 12)).expect("clamped"))
    };
    change[..cfg.blocks.len()].iter().map(weight).collect()
}
