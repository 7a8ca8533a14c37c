//! Kernels of cooperative grids: the address of their grid-wide barrier.
//!
//! CUDA's `grid.sync()` finds its barrier by `%envreg1` (the upper half of an address) and
//! `%envreg2` (the lower half), which the driver sets for cooperative launches. Such a kernel
//! cannot be a worker. Instead it gets one more, last parameter with that address, so that a
//! launcher can set it on any device. The value 0 stands for a launch that is not cooperative.

use crate::ir::{Base, Body, FuncId, Inst, Module, Op, Operand, Special, Stmt, Symbol, Type};
use crate::params;

/// Gives the kernel its parameter; `false` where it does not read the registers.
pub(super) fn add(module: &mut Module, kernel: FuncId) -> bool {
    let Some(mut body) = module.funcs[kernel.0 as usize].body.take() else { return false };
    let reads: Vec<(usize, Inst, i32)> = body
        .insts()
        .filter_map(|(index, inst)| half(module, &body, inst).map(|offset| (index, *inst, offset)))
        .collect();
    if !reads.is_empty() {
        let name = module.names.fresh("pw_workspace");
        let param = params::append(module, kernel, name, Type::U64);
        let form = module.forms.intern("ld.param.u32", &mut module.names);
        for (index, inst, offset) in reads {
            let result = body.operands(inst.operands)[0];
            let from = Operand::Mem(Base::Symbol(Symbol::Var(param)), offset);
            let operands = body.add_operands(&[result, from]);
            body.stmts[index] = Stmt::Inst(Inst { form, operands, ..inst });
        }
        module.funcs[kernel.0 as usize].body = Some(body);
        return true;
    }
    module.funcs[kernel.0 as usize].body = Some(body);
    false
}

/// Which half of the address a move reads, as its offset.
fn half(module: &Module, body: &Body, inst: &Inst) -> Option<i32> {
    let form = module.form(inst);
    match *body.operands(inst.operands) {
        [_, Operand::Special(Special::Envreg(number @ (1 | 2)), _)]
            if form.op == Op::Mov && form.last_type().is_some_and(|ty| ty.bits() == 32) =>
        {
            Some(if number == 1 { 4 } else { 0 })
        }
        _ => None,
    }
}
