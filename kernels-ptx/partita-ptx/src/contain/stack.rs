//! Stacks without a bound: recursion, and memory of the stack by `alloca`.
//!
//! A stack that overflows ends the GPU's context, and no guard can tell how deep a thread is.

use crate::analysis::hazard::callee;
use crate::ir::{FuncId, Module, Op};
use crate::report::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// Why the stack of a kernel that reaches these functions has no bound.
#[must_use]
pub(super) fn unbounded_stack(module: &Module, functions: &BTreeSet<FuncId>) -> Option<Reason> {
    let moves = |op: Op| matches!(op, Op::Alloca | Op::Stacksave | Op::Stackrestore);
    let allots = |id: &FuncId| {
        let body = module.func(*id).body.as_ref();
        body.is_some_and(|body| body.insts().any(|(_, inst)| moves(module.form(inst).op)))
    };
    let name = |id: FuncId| module.text(module.func(id).name).to_owned();
    if let Some(&id) = functions.iter().find(|id| allots(id)) {
        return Some(Reason::UnboundedStack { function: name(id) });
    }
    recursive(module, functions).map(|id| Reason::Recursion { function: name(id) })
}

/// A function that may call itself, by way of others or not: the thread's stack would overflow.
fn recursive(module: &Module, functions: &BTreeSet<FuncId>) -> Option<FuncId> {
    let callees = |id: FuncId| -> BTreeSet<FuncId> {
        let body = module.func(id).body.as_ref();
        let calls = body.into_iter().flat_map(|body| {
            let own = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Call);
            own.filter_map(|(_, inst)| callee(body.operands(inst.operands)))
        });
        calls.filter_map(|id| module.definition(id)).filter(|id| functions.contains(id)).collect()
    };
    if functions.len() < 2 {
        return functions.iter().copied().find(|&id| callees(id).contains(&id));
    }
    let mut left: BTreeMap<FuncId, BTreeSet<FuncId>> =
        functions.iter().map(|&id| (id, callees(id))).collect();
    let mut callers: BTreeMap<FuncId, Vec<FuncId>> = BTreeMap::new();
    for (&id, callees) in &left {
        callees.iter().for_each(|&callee| callers.entry(callee).or_default().push(id));
    }
    // Functions whose callees are all done are done.
    let mut done: Vec<FuncId> =
        left.iter().filter(|(_, callees)| callees.is_empty()).map(|(&id, _)| id).collect();
    while let Some(id) = done.pop() {
        left.remove(&id);
        for caller in callers.get(&id).into_iter().flatten() {
            if let Some(callees) = left.get_mut(caller)
                && callees.remove(&id)
                && callees.is_empty()
            {
                done.push(*caller);
            }
        }
    }
    left.keys().next().copied()
}
