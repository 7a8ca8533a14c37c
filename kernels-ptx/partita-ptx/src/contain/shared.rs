//! Bounds of shared memory.
//!
//! A generic address may lie in the shared memory of another CTA: those of a cluster are neighbours
//! in the generic address space, and a kernel without clusters reaches none of them. The window of
//! all CTAs is `shared::cluster`, which PTX names from `sm_90` on. Older text asks whether the
//! address lies nowhere else.

use super::{Emitter, Names, Regs, words};
use crate::carry::emit;
use crate::ir::{
    Base, Body, Form, FuncId, Function, Init, Mod, Module, Op, Operand, Part, Space, Special, Stmt,
    Symbol, Version,
};
use crate::kernels::Calls;
use std::collections::BTreeSet;

/// How a generic address of shared memory is told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apart {
    /// It lies in the CTA's own shared memory. Addresses of other CTAs pass: a kernel that names
    /// these may have right ones.
    Own,
    /// It lies in the shared memory of any CTA.
    Any,
    /// It lies neither in global nor in local memory, nor among the constants and parameters where
    /// the module makes generic addresses of these.
    Else { constants: bool, parameters: bool },
}

impl Apart {
    /// The way of bodies that no kernel with names of other CTAs' shared memory reaches.
    pub(super) fn of(module: &Module) -> Apart {
        let is_new = module.sm().is_some_and(|sm| sm >= 90);
        if is_new && module.version >= (Version { major: 7, minor: 8 }) {
            return Apart::Any;
        }
        let bodies = module.funcs.iter().filter_map(|func| func.body.as_ref());
        let forms = bodies.flat_map(|body| body.insts()).map(|(_, inst)| module.form(inst));
        let (mut constants, mut parameters) = (false, false);
        for form in forms {
            let space = form.space().filter(|_| form.op == Op::Cvta);
            constants |= space == Some(Space::Const);
            parameters |= space.is_some_and(Space::is_param);
        }
        let mut initial = module.vars.iter().filter_map(|var| var.init.as_ref());
        constants |= initial.any(|init| names_constant(module, init));
        Apart::Else { constants, parameters }
    }

    /// Sets a predicate where the address may be one of shared memory; changes another one.
    fn tell(
        self,
        module: &mut Module,
        body: &mut Body,
        (some, other, far): (Operand, Operand, Operand),
        out: &mut Vec<Stmt>,
    ) {
        match self {
            Apart::Own => emit(module, body, out, "isspacep.shared", &[some, far]),
            Apart::Any => emit(module, body, out, "isspacep.shared::cluster", &[some, far]),
            Apart::Else { constants, parameters } => {
                emit(module, body, out, "isspacep.global", &[some, far]);
                let asked = [
                    (true, "isspacep.local"),
                    (constants, "isspacep.const"),
                    (parameters, "isspacep.param"),
                ];
                for (_, ask) in asked.into_iter().filter(|(is_needed, _)| *is_needed) {
                    emit(module, body, out, ask, &[other, far]);
                    emit(module, body, out, "or.pred", &[some, some, other]);
                }
                emit(module, body, out, "not.pred", &[some, some]);
            }
        }
    }
}

/// The functions of kernels that name other CTAs' shared memory.
pub(super) fn foreign(module: &Module) -> BTreeSet<FuncId> {
    let asks = |op: Op| matches!(op, Op::Isspacep | Op::Getctarank | Op::Cvta);
    let names = |form: &Form| {
        let is_cluster = form.mods.contains(&Mod::Space(Space::SharedCluster));
        form.op == Op::Mapa || is_cluster && !asks(form.op)
    };
    let names_others = |function: &Function| {
        let body = function.body.as_ref();
        body.is_some_and(|body| body.insts().any(|(_, inst)| names(module.form(inst))))
    };
    let named = (0..).map(FuncId).zip(&module.funcs);
    let named: BTreeSet<FuncId> =
        named.filter(|(_, function)| names_others(function)).map(|(id, _)| id).collect();
    if named.is_empty() {
        return named;
    }
    let mut calls = Calls::new(module);
    let reaches = module.kernels().into_iter().map(|kernel| calls.reach(kernel.func).funcs);
    reaches.filter(|reached| !reached.is_disjoint(&named)).flatten().collect()
}

/// Whether an initialiser has the generic address of a constant.
fn names_constant(module: &Module, init: &Init) -> bool {
    match init {
        Init::List(list) => list.iter().any(|init| names_constant(module, init)),
        Init::Mask(_, init) => names_constant(module, init),
        Init::Generic(Symbol::Var(var), _) => module.var(*var).space == Space::Const,
        _ => false,
    }
}

impl Emitter<'_> {
    /// The address is not below the number of places at which the access fits.
    pub(super) fn shared(
        &mut self,
        module: &mut Module,
        body: &mut Body,
        (base, plus, bytes, how): (Base, i32, u32, Names),
        out: &mut Vec<Stmt>,
    ) {
        let Regs { low, end, from, far, wide, bad, some, .. } = self.regs;
        let [low, end, from] = [low, end, from].map(Operand::Reg);
        let [far, wide, bad, some] = [far, wide, bad, some].map(Operand::Reg);
        let variable =
            Operand::Symbol(Symbol::Var(words::end(module, &mut self.state.shared_end)), 0);
        let dynamic = Operand::Special(Special::DynamicSmemSize, Part::Whole);
        emit(module, body, out, "mov.u32", &[end, variable]);
        // In a cluster the highest 8 bits have the CTA's rank.
        let has_ranks = module.sm().is_some_and(|sm| sm >= 90);
        if has_ranks {
            emit(module, body, out, "and.b32", &[from, end, Operand::Int(0xff00_0000)]);
        }
        emit(module, body, out, "mov.u32", &[low, dynamic]);
        emit(module, body, out, "add.s32", &[end, end, low]);
        if self.hidden > 0 {
            emit(module, body, out, "sub.s32", &[end, end, Operand::Int(self.hidden.into())]);
        }
        let last = Operand::Int(u64::from(bytes) - 1);
        emit(module, body, out, "min.u32", &[low, end, last]);
        emit(module, body, out, "sub.s32", &[end, end, low]);
        let offset = Operand::Int(i64::from(plus).cast_unsigned());
        let narrow = match base {
            Base::Reg(reg) => body.reg(reg).ty.bits() == 32,
            Base::Symbol(_) => true,
        };
        if narrow && how == Names::Own {
            match base {
                Base::Reg(reg) => {
                    emit(module, body, out, "add.s32", &[low, Operand::Reg(reg), offset])
                }
                Base::Symbol(symbol) => {
                    emit(module, body, out, "mov.u32", &[low, Operand::Symbol(symbol, 0)]);
                    emit(module, body, out, "add.s32", &[low, low, offset]);
                }
            }
            emit(module, body, out, "setp.ge.u32", &[bad, low, end]);
            if has_ranks {
                emit(module, body, out, "setp.lt.or.u32", &[bad, low, from, bad]);
            }
            return;
        }
        let Base::Reg(reg) = base else { return };
        if narrow {
            emit(module, body, out, "cvt.u64.u32", &[far, Operand::Reg(reg)]);
            emit(module, body, out, "add.s64", &[far, far, offset]);
        } else {
            emit(module, body, out, "add.s64", &[far, Operand::Reg(reg), offset]);
        }
        if how == Names::Perhaps {
            self.apart.tell(module, body, (some, bad, far), out);
        }
        if how != Names::Own {
            emit(module, body, out, "cvta.to.shared.u64", &[far, far]);
        }
        emit(module, body, out, "cvt.u64.u32", &[wide, end]);
        emit(module, body, out, "setp.ge.u64", &[bad, far, wide]);
        if has_ranks {
            emit(module, body, out, "cvt.u64.u32", &[wide, from]);
            emit(module, body, out, "setp.lt.or.u64", &[bad, far, wide, bad]);
        }
        if how == Names::Perhaps {
            emit(module, body, out, "and.pred", &[bad, bad, some]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Apart;

    fn of(head: &str, body: &str) -> Apart {
        with_variables(head, "", body)
    }

    fn with_variables(head: &str, variables: &str, body: &str) -> Apart {
        let source = format!(
            ".version {head}\n.address_size 64\n{variables}\n.visible .entry k(.param .u64 p)\n{{\n\
             .reg .b64 %d<3>; .reg .b32 %r; ld.param.u64 %d1, [p]; {body}\nret;\n}}"
        );
        Apart::of(&crate::parse(&source).unwrap())
    }

    #[test]
    fn addresses_of_other_ctas_pass_only_where_a_kernel_names_them() {
        let load = "ld.u32 %r, [%d1];";
        assert_eq!(of("8.0\n.target sm_90", load), Apart::Any);
        let plain = Apart::Else { constants: false, parameters: false };
        assert_eq!(of("8.0\n.target sm_80", load), plain);
        assert_eq!(of("7.7\n.target sm_80", load), plain);
        // A scope says nothing of addresses.
        let ordered = format!("fence.acq_rel.cluster; {load}");
        assert_eq!(of("8.0\n.target sm_90", &ordered), Apart::Any);
        let parameter = format!("cvta.param.u64 %d2, p; {load}");
        let both = Apart::Else { constants: false, parameters: true };
        assert_eq!(of("7.7\n.target sm_80", &parameter), both);
        let named = ".const .u32 c[2];\n.global .u64 t[2] = {0, generic(c)};";
        let of_constants = Apart::Else { constants: true, parameters: false };
        assert_eq!(with_variables("8.0\n.target sm_80", named, load), of_constants);
    }

    #[test]
    fn generic_addresses_of_matrices_lie_in_shared_memory_or_are_wrong() {
        let matrix = "ldmatrix.sync.aligned.m8n8.x1.b16 {%r}, [%d1];";
        let of = |access: &str| {
            let source = format!(
                ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 16 .b8 g[64];\n\
                 .entry k()\n{{\n.reg .b64 %d1; .reg .b32 %r; mov.u64 %d1, g;\n{access}\nret;\n}}"
            );
            crate::print(&super::super::contain(&crate::parse(&source).unwrap()).module)
        };
        let text = of(matrix);
        assert!(text.contains("cvta.to.shared") && !text.contains("isspacep"), "{text}");
        assert!(!of("ld.u32 %r, [%d1];").contains("cvta.to.shared"), "a variable is bounded");
    }
}
