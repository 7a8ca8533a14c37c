//! Parameters that passes add to kernels, behind the program's own.

use crate::ir::{FuncId, Linkage, Module, Name, Pos, Space, Type, VarId, Variable};

/// A parameter that is not in any list yet.
pub(crate) fn parameter(module: &mut Module, name: Name, ty: Type, pos: Pos) -> VarId {
    module.add_var(Variable {
        name,
        space: Space::Param,
        bank: None,
        linkage: Linkage::Private,
        align: None,
        vector: 1,
        ty,
        dims: Vec::new(),
        pointer: None,
        attribute: None,
        init: None,
        pos,
    })
}

/// Adds a parameter behind the last, also where the kernel is declared before it is defined.
pub(crate) fn append(module: &mut Module, kernel: FuncId, name: Name, ty: Type) -> VarId {
    let pos = module.func(kernel).pos;
    let param = parameter(module, name, ty, pos);
    let function = &mut module.funcs[kernel.0 as usize];
    function.params.push(param);
    for prototype in function.prototypes.clone() {
        module.funcs[prototype.0 as usize].params.push(param);
    }
    param
}
