//! Where the words of barriers and lanes lie: in dynamic shared memory, behind the program's own.
//!
//! A kernel whose threads come together in loops ([`super::barriers`], [`super::warps`]) is
//! launched with more dynamic shared memory than the program asked for
//! ([`KernelReport::hidden_shared`](crate::KernelReport)). The program's own memory ends before the
//! words, so the bounds of shared memory ([`super::shared`]) keep the program from them, and no
//! address is compared with them. What the program reads of the sizes of shared memory is without
//! the words.
//!
//! | bytes | what lies there |
//! | --- | --- |
//! | from the end of what the program asked for | nothing, up to a multiple of 16 |
//! | then | the words of the lanes, those of the barriers |
//! | to the end | what the assembler may have left out before dynamic shared memory |

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{
    Body, Dim, FuncId, Item, Linkage, Module, Operand, Part, Pos, Slice, Space, Special, Stmt,
    Symbol, Type, VarId, Variable,
};
use crate::kernels::Calls;

use super::code::Code;

/// The dynamic shared memory, as the pass names it.
const SHARED_END: &str = "pw_shared_end";
/// Words begin at multiples.
const ALIGN: u32 = 16;
/// Sizes of shared memory that the hardware tells a program.
const SIZES: [Special; 3] =
    [Special::DynamicSmemSize, Special::TotalSmemSize, Special::AggrSmemSize];

/// The place of some words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The variable at the end of static shared memory.
    end: VarId,
    /// Bytes that each launch has more than the program asked for.
    hidden: u32,
    /// Bytes of other words before these.
    before: u32,
}

impl Place {
    /// Finds the address; changes the other register, too.
    pub(super) fn find(&self, code: &mut Code<'_>, [address, other]: [Operand; 2]) {
        let up = (ALIGN - 1).wrapping_sub(self.hidden);
        code.say("mov.u32", &[address, Operand::Symbol(Symbol::Var(self.end), 0)]);
        code.say("mov.u32", &[other, Operand::Special(Special::DynamicSmemSize, Part::Whole)]);
        code.say("add.u32", &[address, address, other]);
        code.say("add.u32", &[address, address, Operand::Int(up.into())]);
        code.say("and.b32", &[address, address, Operand::Int((!(ALIGN - 1)).into())]);
        if self.before > 0 {
            code.say("add.u32", &[address, address, Operand::Int(self.before.into())]);
        }
    }
}

/// The words of a module, and the functions of the kernels that have words.
pub(super) struct Words {
    /// The kernels whose launches have more shared memory, and the functions that they reach. No
    /// other kernel reaches one of these.
    functions: BTreeSet<FuncId>,
    end: VarId,
    hidden: u32,
    /// Bytes of the words of the lanes.
    lanes: u32,
}

impl Words {
    /// The words of kernels that reach these functions; `None` where there are none. The numbers
    /// are the bytes of the words of lanes and of barriers.
    pub(super) fn of(
        module: &mut Module,
        users: &BTreeSet<FuncId>,
        [lanes, barriers]: [u32; 2],
        shared_end: &mut Option<VarId>,
    ) -> Option<Words> {
        if users.is_empty() {
            return None;
        }
        let lanes = lanes.next_multiple_of(ALIGN);
        let end = end(module, shared_end);
        // Where the assembler aligns the variable more than the program's own, the memory that a
        // launch gets ends earlier.
        let align = module.var(end).align.unwrap_or(1);
        let hidden = (lanes + barriers + ALIGN - 1 + align - 1).next_multiple_of(ALIGN);
        let mut calls = Calls::new(module);
        let kernels = module.kernels();
        let reached: Vec<_> = kernels.iter().map(|kernel| calls.reach(kernel.func).funcs).collect();
        let mut functions = users.clone();
        for kernel in sharing(users, &reached) {
            functions.extend(&reached[kernel]);
        }
        Some(Words { functions, end, hidden, lanes })
    }

    pub(super) fn of_lanes(&self) -> Place {
        Place { end: self.end, hidden: self.hidden, before: 0 }
    }

    pub(super) fn of_barriers(&self) -> Place {
        Place { before: self.lanes, ..self.of_lanes() }
    }

    /// Bytes of dynamic shared memory that are not the program's, where this function runs.
    pub(super) fn hidden_in(&self, id: FuncId) -> u32 {
        if self.functions.contains(&id) { self.hidden } else { 0 }
    }

    /// Takes the words off what the program reads of the sizes of shared memory.
    pub(super) fn hide(&self, module: &mut Module) {
        for &id in &self.functions {
            let index = id.0 as usize;
            let Some(mut body) = module.funcs[index].body.take() else { continue };
            if body.insts().any(|(_, inst)| reads_size(&body, inst.operands)) {
                let stmts = std::mem::take(&mut body.stmts);
                let mut out = Vec::with_capacity(stmts.len() + 8);
                for stmt in stmts {
                    if let Stmt::Inst(inst) = &stmt {
                        self.subtract(module, &mut body, inst.operands, &mut out);
                    }
                    out.push(stmt);
                }
                body.stmts = out;
            }
            module.funcs[index].body = Some(body);
        }
    }

    fn subtract(&self, module: &mut Module, body: &mut Body, slice: Slice, out: &mut Vec<Stmt>) {
        for index in slice.range() {
            match body.operands[index] {
                Operand::Special(special, part) if SIZES.contains(&special) => {
                    let mut code = Code { module, body, out };
                    let size = Operand::Reg(code.reg("%pw_size", Type::B32));
                    code.say("mov.u32", &[size, Operand::Special(special, part)]);
                    code.say("sub.u32", &[size, size, Operand::Int(self.hidden.into())]);
                    body.operands[index] = size;
                }
                Operand::Vector(slice)
                | Operand::List(slice)
                | Operand::Tuple(slice)
                | Operand::Pair(slice) => self.subtract(module, body, slice, out),
                _ => {}
            }
        }
    }
}

/// The kernels that reach one of these functions, or share a function with such a kernel, and so
/// on. `reached`: the functions that each kernel reaches. The result is indices of it.
pub(super) fn sharing(functions: &BTreeSet<FuncId>, reached: &[BTreeSet<FuncId>]) -> Vec<usize> {
    let mut kernels_of: BTreeMap<FuncId, Vec<usize>> = BTreeMap::new();
    for (kernel, reached) in reached.iter().enumerate() {
        for &id in reached {
            kernels_of.entry(id).or_default().push(kernel);
        }
    }
    let mut is_found = vec![false; reached.len()];
    let mut left: Vec<FuncId> = functions.iter().copied().collect();
    while let Some(id) = left.pop() {
        for kernel in kernels_of.remove(&id).unwrap_or_default() {
            if !std::mem::replace(&mut is_found[kernel], true) {
                left.extend(&reached[kernel]);
            }
        }
    }
    (0..reached.len()).filter(|&kernel| is_found[kernel]).collect()
}

fn reads_size(body: &Body, slice: Slice) -> bool {
    body.operands(slice).iter().any(|operand| match *operand {
        Operand::Special(special, _) => SIZES.contains(&special),
        Operand::Vector(slice)
        | Operand::List(slice)
        | Operand::Tuple(slice)
        | Operand::Pair(slice) => reads_size(body, slice),
        _ => false,
    })
}

/// The variable at the end of static shared memory, which is made when it is first asked for.
pub(super) fn end(module: &mut Module, known: &mut Option<VarId>) -> VarId {
    *known.get_or_insert_with(|| {
        // The assembler begins each dynamic array at its own alignment.
        let is_dynamic = |variable: &&Variable| {
            variable.space.is_shared() && variable.linkage == Linkage::Extern
        };
        let others = module.vars.iter().filter(is_dynamic);
        let align = others.filter_map(|other| u32::try_from(other.alignment()).ok()).max();
        let name = module.names.fresh(SHARED_END);
        let end = module.add_var(Variable {
            name,
            space: Space::Shared,
            bank: None,
            linkage: Linkage::Extern,
            align: Some(align.unwrap_or(1)),
            vector: 1,
            ty: Type::B8,
            dims: vec![Dim::Open],
            pointer: None,
            attribute: None,
            init: None,
            pos: Pos::default(),
        });
        let first = module.items.iter().position(|item| matches!(item, Item::Function(_)));
        module.items.insert(first.unwrap_or(0), Item::Variable(end));
        end
    })
}

#[cfg(test)]
mod tests {
    use super::sharing;
    use crate::ir::FuncId;
    use std::collections::BTreeSet;

    #[test]
    fn kernels_share_by_way_of_others() {
        let set = |ids: &[u32]| ids.iter().copied().map(FuncId).collect::<BTreeSet<_>>();
        let reached = [set(&[0, 9]), set(&[1, 8, 7]), set(&[2, 8]), set(&[3, 7]), set(&[4])];
        assert_eq!(sharing(&set(&[2]), &reached), [1, 2, 3]);
        assert_eq!(sharing(&set(&[7, 9]), &reached), [0, 1, 2, 3]);
        assert_eq!(sharing(&set(&[5]), &reached), []);
    }
}
