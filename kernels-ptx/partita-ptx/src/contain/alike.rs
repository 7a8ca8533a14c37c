//! Which registers all lanes of a warp have alike for sure, whatever the program does.
//!
//! [`crate::analysis::divergence`] takes programs for right: without races, and without reads of
//! registers before their definition. A guard must hold for wrong ones. So only constants, a
//! kernel's parameters, the shape of the launch and arithmetic on these count here, and only where
//! no branch may have parted lanes.

use crate::analysis::Cfg;
use crate::analysis::cfg::BlockId;
use crate::analysis::divergence::region;
use crate::ir::{Base, Body, Inst, Mod, Module, Op, Operand, Reg, Special, Stmt, Symbol, VarId};

use super::values::{definitions, undefined};

/// Block visits that the search may take.
const BUDGET: usize = 1 << 26;

pub(super) struct Alike {
    /// By register, whether lanes may have different values.
    differs: Vec<bool>,
}

impl Alike {
    /// `params`: a kernel's. `None` where the body is too large.
    pub(super) fn new(module: &Module, body: &Body, params: &[VarId], cfg: &Cfg) -> Option<Self> {
        let mut differs = undefined(body, cfg, &definitions(body));
        differs[..body.formals as usize].fill(true);
        let mut alike = Self { differs };
        let (mut parted, mut apart) =
            (vec![false; cfg.blocks.len()], vec![false; cfg.blocks.len()]);
        let (mut budget, mut changed) = (BUDGET, true);
        while changed {
            changed = false;
            budget = budget.checked_sub(body.stmts.len())?;
            for (stmt, inst) in body.insts() {
                let is_apart = apart[cfg.block_of[stmt].index()];
                if is_apart || !alike.gives(module, body, params, inst) {
                    body.each_result(inst, &mut |reg| {
                        changed |= !std::mem::replace(&mut alike.differs[reg.index()], true);
                    });
                }
            }
            for (block, parted) in (0..).map(BlockId).zip(&mut parted) {
                if *parted || !alike.parts(body, cfg, block) {
                    continue;
                }
                budget = budget.checked_sub(cfg.blocks.len())?;
                (*parted, changed) = (true, true);
                let governed = region(cfg, block);
                apart.iter_mut().zip(governed).for_each(|(apart, governed)| *apart |= governed);
            }
        }
        Some(alike)
    }

    /// Whether lanes may have different values in a register.
    pub(super) fn differs(&self, reg: Reg) -> bool {
        self.differs[reg.index()]
    }

    /// Whether lanes may part at a block's end.
    pub(super) fn parts(&self, body: &Body, cfg: &Cfg, block: BlockId) -> bool {
        cfg.blocks[block.index()].decisions.iter().any(|decision| match decision.guard {
            Some(guard) => self.differs(guard.reg),
            None => match &body.stmts[decision.stmt] {
                Stmt::Inst(inst) => self.any_differs(body, body.operands(inst.operands)),
                _ => true,
            },
        })
    }

    fn any_differs(&self, body: &Body, operands: &[Operand]) -> bool {
        let mut any = false;
        for operand in operands {
            body.each_reg(*operand, &mut |reg| any |= self.differs(reg));
        }
        any
    }

    /// Whether an instruction gives all lanes the same.
    fn gives(&self, module: &Module, body: &Body, params: &[VarId], inst: &Inst) -> bool {
        let form = module.form(inst);
        let [_, sources @ ..] = body.operands(inst.operands) else { return false };
        let is_known = |operand: &Operand| match *operand {
            Operand::Mem(Base::Symbol(Symbol::Var(id)), _) => params.contains(&id),
            Operand::Special(special, _) => matches!(
                special,
                Special::Ntid | Special::Ctaid | Special::Nctaid | Special::DynamicSmemSize
            ),
            Operand::Reg(_) | Operand::Not(_) | Operand::Int(_) | Operand::Uint(_) => true,
            Operand::F32(_) | Operand::F64(_) => true,
            _ => false,
        };
        // These read nothing beside their operands; the carry flag is an operand that has no name.
        let is_pure = match form.op {
            Op::Mov | Op::Cvt | Op::Add | Op::Sub | Op::Mul | Op::Mad | Op::Neg | Op::Not => true,
            Op::Shl | Op::Shr | Op::And | Op::Or | Op::Xor | Op::Min | Op::Max => true,
            Op::Setp | Op::Selp | Op::Div | Op::Rem => true,
            Op::Ld => form.has(Mod::Space(crate::ir::Space::Param)),
            _ => false,
        };
        let has_guard = inst.guard.is_some_and(|guard| self.differs(guard.reg));
        is_pure && !has_guard && sources.iter().all(is_known) && !self.any_differs(body, sources)
    }
}

#[cfg(test)]
mod tests {
    use super::Alike;
    use crate::analysis::Cfg;
    use crate::ir::Reg;

    /// The registers `%r1` to `%r4` that lanes may have different.
    fn check(body: &str, expected: [bool; 4]) {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u32 n) {{\n\
             .reg .b32 %r<5>; .reg .pred %p<3>; .shared .b32 s;\n{body}\nret;\n}}"
        );
        let module = crate::parse(&source).unwrap();
        let kernel = &module.funcs[0];
        let function = kernel.body.as_ref().unwrap();
        let cfg = Cfg::new(&module, function);
        let alike = Alike::new(&module, function, &kernel.params, &cfg).unwrap();
        let differs = |name: &str| {
            let mut regs = (0..).map(Reg).zip(&function.regs);
            let (reg, _) = regs.find(|(_, reg)| module.text(reg.name) == name).unwrap();
            alike.differs(reg)
        };
        assert_eq!(["%r1", "%r2", "%r3", "%r4"].map(differs), expected, "{body}");
    }

    #[test]
    fn only_what_no_program_can_make_differ_is_alike() {
        let [same, other] = [false, true];
        check(
            "mov.u32 %r1, %ctaid.x; ld.param.u32 %r2, [n]; mad.lo.u32 %r3, %r1, %r2, 7; mov.u32 \
             %r4, %tid.x;",
            [same, same, same, other],
        );
        check(
            "mov.u32 %r1, %tid.x; add.cc.u32 %r2, %r1, -16; addc.u32 %r3, 0, 0; ld.shared.u32 \
             %r4, [s];",
            [other; 4],
        );
        // All lanes go as many rounds. One of two ways does not write a register.
        check(
            "mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L; \
             @%p1 bra M; mov.u32 %r2, 3;\nM: add.u32 %r3, %r2, 1; mov.u32 %r4, 5;",
            [same, other, other, same],
        );
        check(
            "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 9; mov.u32 %r2, 1; @%p1 bra M; mov.u32 \
             %r2, 2; mov.u32 %r3, 2;\nM: mov.u32 %r4, 1;",
            [other, other, other, same],
        );
    }
}
