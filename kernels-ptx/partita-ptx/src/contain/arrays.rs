//! Addresses in local, constant and parameter arrays.
//!
//! PTX does not tell how much local memory a thread has. A pointer that does not follow from an
//! array of its function may still name one. In a kernel it can name no other local memory: what
//! the kernel's functions have is gone when they return. In a function it may name an array of a
//! caller ([`super::frames`]).

use super::accesses::{Access, accesses};
use super::frames::Frame;
use super::values::Values;
use super::{Check, Regs};
use crate::analysis::Cfg;
use crate::carry::emit;
use crate::ir::{
    Base, Body, FuncId, Inst, Item, Module, Op, Operand, Reg, Space, Stmt, Symbol, VarId,
};

/// The most arrays of a kernel whose addresses are compared.
pub(super) const MOST_ARRAYS: usize = 4;
/// The most constants of a module with which an address is compared; of more an address by a
/// pointer that may name several counts as beyond.
const MOST_CONSTANTS: usize = 32;

/// The local memory that pointers of a body may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locals {
    /// Only what the body's own arrays have.
    Own,
    /// What lies in the frame.
    Within(Frame),
    Unknown,
}

/// An access by a pointer that may name local memory: the register, and whether it is a generic
/// address.
fn pointer(body: &Body, access: &Access) -> Option<(Reg, bool)> {
    let Base::Reg(reg) = access.base else { return None };
    match access.space {
        Some(Space::Local) => Some((reg, false)),
        // A register of 32 bits has no generic address of local memory.
        None if access.is_atomic || access.is_shared => None,
        None => (body.reg(reg).ty.bits() == 64).then_some((reg, true)),
        Some(_) => None,
    }
}

/// The check of an address that may lie in local memory, though it does not follow from an array
/// there.
pub(super) fn own_local(
    (module, body): (&Module, &Body),
    (values, cfg): (&Values<'_>, &Cfg),
    stmt: usize,
    (access, locals): (&Access, Locals),
) -> Option<Check> {
    let (reg, is_generic) = pointer(body, access).filter(|_| locals != Locals::Unknown)?;
    let &Access { offset: plus, bytes, space, .. } = access;
    let origin = values.origin_at(cfg, stmt, reg);
    // Those of local arrays have a check of their own. Parameters may be copies in local memory,
    // which belong to the frame.
    let is_known = origin.filter(|origin| origin.fits(module, space)).is_some_and(|origin| {
        let variable = module.var(origin.var);
        let (space, size) = (variable.space, variable.bytes().unwrap_or(0));
        let is_param = space.is_param() && locals == Locals::Own;
        let is_inside = origin.offset.and_then(|from| {
            let from = u64::try_from(from.checked_add(plus.into())?).ok()?;
            Some(from.checked_add(bytes.into())? <= size)
        });
        space == Space::Local || is_param || is_inside == Some(true) && !space.is_param()
    });
    (!is_known).then_some(Check::OwnLocal { reg, plus, bytes, is_generic })
}

/// Whether a body has an access by a pointer that may name local memory, and no check of one array
/// decides it.
pub(super) fn needs_bounds(module: &Module, body: &Body) -> bool {
    let accesses = body.insts().flat_map(|(stmt, inst)| {
        accesses(module, body, inst).into_iter().map(move |access| (stmt, access))
    });
    let pointers = accesses
        .filter_map(|(stmt, access)| pointer(body, &access).map(|(reg, any)| (stmt, reg, any)));
    let pointers: Vec<_> = pointers.collect();
    if pointers.is_empty() || pointers.iter().any(|(.., is_generic)| *is_generic) {
        return !pointers.is_empty();
    }
    let cfg = Cfg::new(module, body);
    let values = Values::new(module, body, &cfg);
    pointers.into_iter().any(|(stmt, reg, _)| {
        let origin = values.origin_at(&cfg, stmt, reg);
        origin.is_none_or(|origin| !origin.fits(module, Some(Space::Local)))
    })
}

/// Whether no function of the module has local memory that a pointer may name.
pub(super) fn are_none(module: &Module) -> bool {
    let mut bodies = module.funcs.iter().filter_map(|func| func.body.as_ref());
    // The address of a function's parameter is one of local memory.
    let is_parameter = |operand: &Operand| match *operand {
        Operand::Symbol(Symbol::Var(id), _) => module.var(id).space.is_param(),
        _ => false,
    };
    let has_none = |body: &Body| {
        let takes = |inst: &Inst| matches!(module.form(inst).op, Op::Mov | Op::Cvta);
        let taking = body.insts().filter(|(_, inst)| takes(inst));
        let mut named = taking.flat_map(|(_, inst)| body.operands(inst.operands));
        !moves_stack(module, body)
            && arrays(module, body) == Some(Vec::new())
            && !named.any(is_parameter)
    };
    !has_outside(module) && bodies.all(has_none)
}

/// The local memory of the generic pointers of a kernel.
pub(super) fn of_kernel(module: &Module, body: &Body) -> Locals {
    let is_small = arrays(module, body).is_some_and(|all| all.len() <= MOST_ARRAYS);
    match is_small && !moves_stack(module, body) && !has_outside(module) {
        true => Locals::Own,
        false => Locals::Unknown,
    }
}

fn moves_stack(module: &Module, body: &Body) -> bool {
    let moves = [Op::Alloca, Op::Stacksave, Op::Stackrestore];
    body.insts().any(|(_, inst)| moves.contains(&module.form(inst).op))
}

/// Whether a local array belongs to no function.
pub(super) fn has_outside(module: &Module) -> bool {
    module
        .items
        .iter()
        .any(|item| matches!(*item, Item::Variable(id) if module.var(id).space == Space::Local))
}

/// The local arrays of a body, also of scopes inside; `None` where some have no size.
pub(super) fn arrays(module: &Module, body: &Body) -> Option<Vec<VarId>> {
    let arrays = in_space(module, body, Space::Local).into_iter();
    arrays.map(|id| module.var(id).bytes().map(|_| id)).collect()
}

/// The variables of a body in this space, also of scopes inside.
pub(super) fn in_space(module: &Module, body: &Body, space: Space) -> Vec<VarId> {
    let variables = body.stmts.iter().filter_map(|stmt| match *stmt {
        Stmt::Var(id) if module.var(id).space == space => Some(id),
        _ => None,
    });
    variables.collect()
}

/// The constants that a module declares, or one more than are compared.
pub(super) struct Constants {
    all: Vec<VarId>,
    /// By function, how many of them are declared before it.
    before: Vec<usize>,
}

impl Constants {
    pub(super) fn of(module: &Module) -> Constants {
        let (mut all, mut before) = (Vec::new(), vec![0; module.funcs.len()]);
        for item in &module.items {
            match *item {
                Item::Function(id) => before[id.0 as usize] = all.len(),
                Item::Variable(id)
                    if module.var(id).space == Space::Const && all.len() <= MOST_CONSTANTS =>
                {
                    all.push(id);
                }
                _ => {}
            }
        }
        Constants { all, before }
    }

    /// The constants that are declared before a function.
    pub(super) fn before(&self, function: FuncId) -> Vec<VarId> {
        self.all[..self.before[function.0 as usize]].to_vec()
    }
}

/// Appends an address in a register, with an offset. One of 32 bits wraps.
pub(super) fn widened(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (reg, plus): (Reg, i32),
    out: &mut Vec<Stmt>,
) {
    let [far, low] = [regs.far, regs.low].map(Operand::Reg);
    let (from, offset) = (Operand::Reg(reg), Operand::Int(i64::from(plus).cast_unsigned()));
    if body.reg(reg).ty.bits() == 32 {
        emit(module, body, out, "add.s32", &[low, from, offset]);
        emit(module, body, out, "cvt.u64.u32", &[far, low]);
        return;
    }
    emit(module, body, out, "add.s64", &[far, from, offset]);
}

/// Appends the check that an address of local memory lies in one of the body's arrays, and a
/// generic one if it names local memory.
pub(super) fn among(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (reg, plus, bytes, is_generic): (Reg, i32, u32, bool),
    own: &[VarId],
    out: &mut Vec<Stmt>,
) {
    let [low, end] = [regs.low, regs.end].map(Operand::Reg);
    let [far, bad] = [regs.far, regs.bad].map(Operand::Reg);
    widened(module, body, regs, (reg, plus), out);
    match is_generic {
        true => emit(module, body, out, "isspacep.local", &[bad, far]),
        // This is always true: without arrays every address is beyond.
        false => emit(module, body, out, "setp.ge.u64", &[bad, far, far]),
    }
    if own.is_empty() {
        return;
    }
    if !is_generic {
        beyond_all(module, body, regs, (own, bytes), out);
        return;
    }
    emit(module, body, out, "cvta.to.local.u64", &[far, far]);
    emit(module, body, out, "cvt.u32.u64", &[low, far]);
    for &array in own {
        let places = places(module, array, bytes);
        let array = Operand::Symbol(Symbol::Var(array), 0);
        emit(module, body, out, "mov.u32", &[end, array]);
        emit(module, body, out, "sub.s32", &[end, low, end]);
        emit(module, body, out, "setp.ge.and.u32", &[bad, end, places, bad]);
    }
}

/// The places of a variable at which the access fits: none where it is larger than the variable.
fn places(module: &Module, var: VarId, bytes: u32) -> Operand {
    let size = module.var(var).bytes().unwrap_or(0);
    Operand::Int((size + 1).saturating_sub(bytes.into()))
}

/// Appends that the address lies in none of the variables, if it was wrong before.
fn beyond_all(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (all, bytes): (&[VarId], u32),
    out: &mut Vec<Stmt>,
) {
    let [far, wide, bad] = [regs.far, regs.wide, regs.bad].map(Operand::Reg);
    for &var in all {
        let places = places(module, var, bytes);
        emit(module, body, out, "mov.u64", &[wide, Operand::Symbol(Symbol::Var(var), 0)]);
        emit(module, body, out, "sub.s64", &[wide, far, wide]);
        emit(module, body, out, "setp.ge.and.u64", &[bad, wide, places, bad]);
    }
}

/// Appends the check that an address of constant memory lies in one of the module's constants.
pub(super) fn in_constants(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (reg, plus, bytes): (Reg, i32, u32),
    constants: &[VarId],
    out: &mut Vec<Stmt>,
) {
    let [far, bad] = [regs.far, regs.bad].map(Operand::Reg);
    widened(module, body, regs, (reg, plus), out);
    emit(module, body, out, "setp.ge.u64", &[bad, far, far]);
    if constants.len() <= MOST_CONSTANTS {
        beyond_all(module, body, regs, (constants, bytes), out);
    }
}

/// Appends the check of an address in a variable.
pub(super) fn inside(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (reg, plus, bytes, var, is_generic): (Reg, i32, u32, VarId, bool),
    out: &mut Vec<Stmt>,
) {
    let Regs { low, far, wide, bad, .. } = regs;
    let [low, far, wide, bad] = [low, far, wide, bad].map(Operand::Reg);
    let size = module.var(var).bytes().unwrap_or(0);
    // Where the access is larger than the variable, the number of places is zero.
    let places = (size + 1).saturating_sub(bytes.into());
    let offset = Operand::Int(i64::from(plus).cast_unsigned());
    let variable = Operand::Symbol(Symbol::Var(var), 0);
    if is_generic {
        emit(module, body, out, "cvta.to.local.u64", &[far, Operand::Reg(reg)]);
        emit(module, body, out, "mov.u64", &[wide, variable]);
        emit(module, body, out, "sub.s64", &[far, far, wide]);
        emit(module, body, out, "add.s64", &[far, far, offset]);
        emit(module, body, out, "setp.ge.u64", &[bad, far, Operand::Int(places)]);
    } else if body.reg(reg).ty.bits() == 32 {
        emit(module, body, out, "mov.u32", &[low, variable]);
        emit(module, body, out, "sub.s32", &[low, Operand::Reg(reg), low]);
        emit(module, body, out, "add.s32", &[low, low, offset]);
        emit(module, body, out, "setp.ge.u32", &[bad, low, Operand::Int(places)]);
    } else {
        emit(module, body, out, "mov.u64", &[wide, variable]);
        emit(module, body, out, "sub.s64", &[far, Operand::Reg(reg), wide]);
        emit(module, body, out, "add.s64", &[far, far, offset]);
        emit(module, body, out, "setp.ge.u64", &[bad, far, Operand::Int(places)]);
    }
}

#[cfg(test)]
mod tests {
    /// Of a target whose bounds of shared memory do not ask for local memory.
    fn text(functions: &str, body: &str) -> String {
        let source = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n{functions}\n.entry k(.param .u64 p) \
             {{\n{body}\nret;\n}}"
        );
        let out = super::super::contain(&crate::parse(&source).unwrap());
        crate::print(&out.module)
    }

    const POINTER: &str = ".reg .b64 %p; .reg .b32 %r; ld.param.u64 %p, [p]; ld.u32 %r, [%p+8];";

    #[test]
    fn a_pointer_of_a_kernel_names_no_local_memory_but_its_arrays() {
        let plain = text("", POINTER);
        assert!(plain.contains("isspacep.local") && !plain.contains("cvta.to.local"), "{plain}");
        // A check may stand before the declarations, which other passes do not leave first.
        let arrays = format!("{POINTER} .local .align 4 .b8 a[64]; .local .align 8 .b8 b[16];");
        let arrays = text("", &arrays);
        assert!(arrays.contains(", 61, %pw_bad") && arrays.contains(", 13, %pw_bad"), "{arrays}");
        // Its address does not tell where memory of a dynamic stack ends.
        let moving = format!(".reg .b64 %s; stacksave.u64 %s; {POINTER}");
        let moving = text("", &moving);
        assert!(!moving.contains("isspacep.local"), "{moving}");
    }

    #[test]
    fn a_pointer_of_a_function_may_name_what_a_caller_has() {
        let function = ".func f(.reg .b64 %p) { .reg .b32 %r; ld.u32 %r, [%p]; ret; }";
        let call = ".reg .b64 %q; mov.u64 %q, 0; call f, (%q);";
        let plain = text(function, call);
        assert!(plain.contains("isspacep.local") && !plain.contains("pw_lowest"), "{plain}");
        // A parameter of the kernel lies elsewhere.
        let taken = ".reg .b64 %t; mov.u64 %t, p;";
        let array = text(function, &format!(".local .align 4 .b8 a[64]; {taken} {call}"));
        assert!(!array.contains("pw_at_1x, p;") && array.contains("pw_at_1x, a;"), "{array}");
        for part in ["max.u64 %pw_highest", "_1x, %pw_far_1x, %pw_lowest;"] {
            assert!(array.contains(part), "{array}");
        }
    }

    #[test]
    fn many_arrays_count_as_one() {
        let arrays = (0..5).map(|index| format!(".local .align 4 .b8 a{index}[8];"));
        let body = arrays.collect::<String>() + POINTER;
        let text = text("", &body);
        assert!(text.contains("setp.gt.or.u64 %pw_some, %pw_wide, %pw_highest"), "{text}");
    }
}
