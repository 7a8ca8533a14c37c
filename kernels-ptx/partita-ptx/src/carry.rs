//! Values that a kernel passes down to the functions that it calls.
//!
//! A function cannot see a kernel's parameters, and the program can change everything in memory. A
//! function that needs a value of a pass therefore gets a copy with one parameter more for each
//! value. Calls of the kernel and of such copies pass the values on. Every other caller still finds
//! the function as it was.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::hazard::callee;
use crate::ir::{
    Base, Body, FuncId, Guard, Inst, Module, Name, Operand, Pos, Reg, RegDecl, RegNames, Register,
    Slice, Stmt, Symbol, Type, VarId,
};
use crate::kernels::{Calls, Reach};
use crate::params::parameter;
use crate::report::{Reason, Refusal};
use crate::worker::copies::Additions;

/// The values of one pass.
pub(crate) struct Carry {
    values: Vec<Value>,
    additions: Additions,
    /// The copy of each function that gets the values.
    copies: BTreeMap<FuncId, FuncId>,
}

struct Value {
    ty: Type,
    /// The register that has it, in each body.
    reg: Name,
    /// The parameter of a function.
    param: Name,
    /// The variable that a call gives.
    argument: Name,
}

/// The functions of a kernel's reach that must get the values, because they or their callees are
/// among `needing`.
pub(crate) fn wanted(
    module: &Module,
    calls: &mut Calls<'_>,
    reach: &Reach,
    needing: &BTreeSet<FuncId>,
) -> Result<BTreeSet<FuncId>, Refusal> {
    let functions = calls.callers(&reach.funcs, needing);
    for &id in &functions {
        let function = module.func(id);
        let refuse = |why| {
            let function_name = module.text(function.name).to_owned();
            Err(Refusal {
                pos: function.pos,
                reason: Reason::Uncopied { function: function_name, why },
            })
        };
        if reach.indirect {
            return refuse("there are calls through registers");
        }
        if calls.keeps_state(id) {
            return refuse("it declares variables that outlive a CTA");
        }
    }
    Ok(functions)
}

impl Carry {
    pub fn new(module: &mut Module, values: &[(&str, Type)]) -> Self {
        let value = |&(stem, ty): &(&str, Type)| Value {
            ty,
            reg: module.names.fresh(&format!("%pw_{stem}")),
            param: module.names.fresh(&format!("pw_in_{stem}")),
            argument: module.names.fresh(&format!("pw_out_{stem}")),
        };
        Self {
            values: values.iter().map(value).collect(),
            additions: Additions::default(),
            copies: BTreeMap::new(),
        }
    }

    /// Copies the functions that have no copy yet. Returns these with the new copies, which still
    /// have the original's code with calls of their own.
    pub fn copy(
        &mut self,
        module: &mut Module,
        functions: &BTreeSet<FuncId>,
    ) -> Vec<(FuncId, FuncId)> {
        let mut new = Vec::new();
        for &id in functions {
            if self.copies.contains_key(&id) {
                continue;
            }
            let copy = self.additions.function(module, id);
            let pos = module.func(copy).pos;
            for value in &self.values {
                let param = parameter(module, value.param, value.ty, pos);
                module.funcs[copy.0 as usize].params.push(param);
            }
            self.additions.declare(module, copy);
            self.copies.insert(id, copy);
            new.push((id, copy));
        }
        new
    }

    /// Adds the registers to a body and loads them from `params`, which are the last ones of the
    /// function where `None`.
    pub fn load(
        &self,
        module: &mut Module,
        func: FuncId,
        body: &mut Body,
        params: Option<&[VarId]>,
        out: &mut Vec<Stmt>,
    ) -> Vec<Reg> {
        let own = &module.func(func).params;
        let params =
            params.map_or_else(|| own[own.len() - self.values.len()..].to_vec(), <[VarId]>::to_vec);
        let mut regs = Vec::new();
        for (value, param) in self.values.iter().zip(params) {
            let reg = declare(body, value.reg, value.ty, out);
            let form =
                module.forms.intern(&format!("ld.param.{}", value.ty.text()), &mut module.names);
            let from = Operand::Mem(Base::Symbol(Symbol::Var(param)), 0);
            let operands = body.add_operands(&[Operand::Reg(reg), from]);
            out.push(Stmt::Inst(Inst { guard: None, form, operands, pos: Pos::default() }));
            regs.push(reg);
        }
        regs
    }

    /// Adds the registers to a body.
    pub fn declare(&self, body: &mut Body, out: &mut Vec<Stmt>) -> Vec<Reg> {
        self.values.iter().map(|value| declare(body, value.reg, value.ty, out)).collect()
    }

    /// Appends a call, of the copy and with the values where there is one.
    pub fn call(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: Inst,
        regs: &[Reg],
        out: &mut Vec<Stmt>,
    ) {
        let target = callee(body.operands(inst.operands)).and_then(|id| module.definition(id));
        let Some(&copy) = target.and_then(|id| self.copies.get(&id)) else {
            out.push(Stmt::Inst(inst));
            return;
        };
        out.push(Stmt::Open);
        let mut arguments = Vec::new();
        for (value, &reg) in self.values.iter().zip(regs) {
            let variable = parameter(module, value.argument, value.ty, Pos::default());
            out.push(Stmt::Var(variable));
            let form =
                module.forms.intern(&format!("st.param.{}", value.ty.text()), &mut module.names);
            let to = Operand::Mem(Base::Symbol(Symbol::Var(variable)), 0);
            let operands = body.add_operands(&[to, Operand::Reg(reg)]);
            out.push(Stmt::Inst(Inst { guard: None, form, operands, pos: Pos::default() }));
            arguments.push(Operand::Symbol(Symbol::Var(variable), 0));
        }
        let operands = self.arguments(body, inst.operands, copy, &arguments);
        out.push(Stmt::Inst(Inst { operands, ..inst }));
        out.push(Stmt::Close);
    }

    fn arguments(&self, body: &mut Body, call: Slice, copy: FuncId, more: &[Operand]) -> Slice {
        let mut operands = body.operands(call).to_vec();
        let at = operands
            .iter()
            .position(|operand| matches!(operand, Operand::Symbol(Symbol::Func(_), _)));
        let at = at.expect("a direct call names its function");
        operands[at] = Operand::Symbol(Symbol::Func(copy), 0);
        let list = match operands.get(at + 1) {
            Some(&Operand::List(slice)) => {
                let all = [body.operands(slice), more].concat();
                Operand::List(body.add_operands(&all))
            }
            _ => Operand::List(body.add_operands(more)),
        };
        operands.truncate(at + 1);
        operands.push(list);
        body.add_operands(&operands)
    }

    pub fn place(self, module: &mut Module) {
        self.additions.place(module);
    }
}

/// Declares one more register in a body.
pub(crate) fn declare(body: &mut Body, name: Name, ty: Type, out: &mut Vec<Stmt>) -> Reg {
    body.regs.push(Register { name, ty, vector: 1, depth: 0 });
    body.reg_decls.push(RegDecl { ty, vector: 1, names: vec![RegNames { name, count: None }] });
    let decl = u32::try_from(body.reg_decls.len() - 1).expect("pools are below 4 GiB");
    out.push(Stmt::Regs(decl));
    Reg(u32::try_from(body.regs.len() - 1).expect("pools are below 4 GiB"))
}

/// Appends an instruction of the pass.
pub(crate) fn emit(
    module: &mut Module,
    body: &mut Body,
    out: &mut Vec<Stmt>,
    text: &str,
    operands: &[Operand],
) {
    let form = module.forms.intern(text, &mut module.names);
    let operands = body.add_operands(operands);
    out.push(Stmt::Inst(Inst { guard: None, form, operands, pos: Pos::default() }));
}

/// As [`emit`], executed by the threads of which the guard holds.
pub(crate) fn emit_if(
    guard: Option<Guard>,
    module: &mut Module,
    body: &mut Body,
    out: &mut Vec<Stmt>,
    text: &str,
    operands: &[Operand],
) {
    emit(module, body, out, text, operands);
    if let Some(Stmt::Inst(inst)) = out.last_mut() {
        inst.guard = guard;
    }
}
