//! The part of local memory that pointers may name, where a function may get pointers to arrays of
//! its callers, or a kernel has many.
//!
//! PTX does not tell how much local memory a thread has. What is known is where the arrays of a
//! function lie, and those of its callers. A kernel therefore passes down the addresses between
//! which its arrays lie, and every function widens them by its own ([`Carry`]). Frames of a stack
//! lie one behind another, so all between two arrays is the thread's.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::hazard::callee;
use crate::carry::{self, Carry, declare, emit};
use crate::ir::{
    Body, FuncId, Function, FunctionKind, Inst, Module, Op, Operand, Reg, Stmt, Symbol, Type, VarId,
};
use crate::kernels::{Calls, Reach};
use crate::report::Reason;

use super::Regs;
use super::arrays::{MOST_ARRAYS, are_none, arrays, has_outside, needs_bounds, widened};

/// Two registers of a body: where the first array begins, and where the last one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    low: Reg,
    high: Reg,
}

/// The functions of a module that need frames, kernels too.
pub(super) fn needing(module: &Module) -> BTreeSet<FuncId> {
    if are_none(module) {
        return BTreeSet::new();
    }
    let is_outside = has_outside(module);
    let needs = |(_, function): &(FuncId, &Function)| {
        function.body.as_ref().is_some_and(|body| {
            let has_many = || arrays(module, body).is_none_or(|all| all.len() > MOST_ARRAYS);
            let may_need = function.kind == FunctionKind::Func || is_outside || has_many();
            may_need && needs_bounds(module, body)
        })
    };
    let all = (0..).map(FuncId).zip(&module.funcs);
    all.filter(needs).map(|(id, _)| id).collect()
}

/// Why pointers of a kernel that reaches these functions have no bound in local memory. `needing`:
/// the functions of the module that need frames.
#[must_use]
pub(super) fn unbounded_frames(
    module: &Module,
    functions: &BTreeSet<FuncId>,
    needing: &BTreeSet<FuncId>,
) -> Option<Reason> {
    let needing: BTreeSet<FuncId> = functions.intersection(needing).copied().collect();
    if needing.is_empty() {
        return None;
    }
    let odd = functions.iter().find(|id| {
        let body = module.func(**id).body.as_ref();
        body.is_some_and(|body| arrays(module, body).is_none())
    });
    let odd = odd.or_else(|| needing.first().filter(|_| has_outside(module)));
    if let Some(id) = odd {
        let function = module.text(module.func(*id).name).to_owned();
        return Some(Reason::UnboundedFrame { function });
    }
    let mut calls = Calls::new(module);
    // The order of calls does not matter, only what they reach.
    let reach = Reach { funcs: functions.clone(), ..Reach::default() };
    carry::wanted(module, &mut calls, &reach, &needing).err().map(|refusal| refusal.reason)
}

/// Passes frames down in every kernel that needs them. The registers of each body that has them.
pub(super) fn pass_down(module: &mut Module) -> BTreeMap<FuncId, Frame> {
    let mut frames = BTreeMap::new();
    let all = needing(module);
    if all.is_empty() {
        return frames;
    }
    let mut wanted: Vec<(FuncId, BTreeSet<FuncId>)> = Vec::new();
    let mut calls = Calls::new(module);
    for kernel in module.kernels() {
        let reach = calls.reach(kernel.func);
        let needing: BTreeSet<FuncId> = reach.funcs.intersection(&all).copied().collect();
        if needing.is_empty() || unbounded_frames(module, &reach.funcs, &all).is_some() {
            continue;
        }
        if let Ok(functions) = carry::wanted(module, &mut calls, &reach, &needing) {
            wanted.push((kernel.func, functions));
        }
    }
    if wanted.is_empty() {
        return frames;
    }
    let mut carry = Carry::new(module, &[("lowest", Type::B64), ("highest", Type::B64)]);
    for (kernel, functions) in wanted {
        for (_, copy) in carry.copy(module, &functions) {
            frames.extend(frame(module, &carry, copy, false).map(|frame| (copy, frame)));
        }
        frames.extend(frame(module, &carry, kernel, true).map(|frame| (kernel, frame)));
    }
    carry.place(module);
    frames
}

/// Gives a body its frame, and its calls the frame of their own.
fn frame(module: &mut Module, carry: &Carry, id: FuncId, is_kernel: bool) -> Option<Frame> {
    let mut body = module.funcs[id.0 as usize].body.take()?;
    let own = arrays(module, &body).unwrap_or_default();
    // A kernel's parameters lie in no local memory.
    let taken = if is_kernel { Vec::new() } else { taken_parameters(module, &body) };
    // Their addresses are taken before the place of their declarations.
    let mut out: Vec<Stmt> = own.iter().map(|&array| Stmt::Var(array)).collect();
    let regs = match is_kernel {
        true => carry.declare(&mut body, &mut out),
        false => carry.load(module, id, &mut body, None, &mut out),
    };
    let &[low, high] = regs.as_slice() else { return None };
    let at = module.names.fresh("%pw_at");
    let at = declare(&mut body, at, Type::B64, &mut out);
    let [low_of, high_of, at] = [low, high, at].map(Operand::Reg);
    if is_kernel {
        emit(module, &mut body, &mut out, "mov.u64", &[low_of, Operand::Int(u64::MAX)]);
        emit(module, &mut body, &mut out, "mov.u64", &[high_of, Operand::Int(0)]);
    }
    for &var in own.iter().chain(&taken) {
        let bytes = Operand::Int(module.var(var).bytes().unwrap_or(0));
        let place = Operand::Symbol(Symbol::Var(var), 0);
        emit(module, &mut body, &mut out, "mov.u64", &[at, place]);
        emit(module, &mut body, &mut out, "min.u64", &[low_of, low_of, at]);
        emit(module, &mut body, &mut out, "add.u64", &[at, at, bytes]);
        emit(module, &mut body, &mut out, "max.u64", &[high_of, high_of, at]);
    }
    for stmt in std::mem::take(&mut body.stmts) {
        match stmt {
            Stmt::Var(var) if own.contains(&var) => {}
            Stmt::Inst(inst) if calls(module, &body, &inst) => {
                carry.call(module, &mut body, inst, &regs, &mut out);
            }
            stmt => out.push(stmt),
        }
    }
    body.stmts = out;
    module.funcs[id.0 as usize].body = Some(body);
    Some(Frame { low, high })
}

fn calls(module: &Module, body: &Body, inst: &Inst) -> bool {
    module.form(inst).op == Op::Call && callee(body.operands(inst.operands)).is_some()
}

/// Parameters of a function whose addresses it takes: they lie in local memory then (PTX ISA,
/// "mov").
fn taken_parameters(module: &Module, body: &Body) -> Vec<VarId> {
    let takes = |inst: &Inst| matches!(module.form(inst).op, Op::Mov | Op::Cvta);
    let taking = body.insts().filter(|(_, inst)| takes(inst));
    let named = taking.flat_map(|(_, inst)| body.operands(inst.operands));
    let taken: BTreeSet<VarId> = named
        .filter_map(|operand| match *operand {
            Operand::Symbol(Symbol::Var(id), _) if module.var(id).space.is_param() => Some(id),
            _ => None,
        })
        .collect();
    taken.into_iter().collect()
}

/// Appends the check that an address of local memory lies in the frame, and a generic one if it
/// names local memory.
pub(super) fn within(
    module: &mut Module,
    body: &mut Body,
    regs: Regs,
    (reg, plus, bytes, is_generic): (Reg, i32, u32, bool),
    frame: Frame,
    out: &mut Vec<Stmt>,
) {
    let [far, bad, some] = [regs.far, regs.bad, regs.some].map(Operand::Reg);
    let [low, high] = [frame.low, frame.high].map(Operand::Reg);
    let wide = Operand::Reg(regs.wide);
    widened(module, body, regs, (reg, plus), out);
    if is_generic {
        emit(module, body, out, "isspacep.local", &[bad, far]);
        emit(module, body, out, "cvta.to.local.u64", &[far, far]);
    }
    emit(module, body, out, "setp.lt.u64", &[some, far, low]);
    emit(module, body, out, "add.s64", &[wide, far, Operand::Int(bytes.into())]);
    emit(module, body, out, "setp.gt.or.u64", &[some, wide, high, some]);
    if is_generic {
        emit(module, body, out, "and.pred", &[bad, bad, some]);
    } else {
        // The end wraps behind the last addresses of all.
        emit(module, body, out, "setp.lt.or.u64", &[bad, wide, far, some]);
    }
}
