//! Functions that the pass adds to a module: originals beside workers, and functions that know the
//! original's grid.
//!
//! A function that reads `%ctaid` gets a copy for workers, and so does each function through which
//! a worker reaches it. Every other caller still finds the function as it was. Copies are in the
//! module of their originals, so they share its variables. A variable that a body declares is the
//! copy's own, which is right only where the variable lives no longer than a CTA ([`keeps_state`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::graft::Graft;
use crate::ir::{
    Base, Body, FuncId, Function, Inst, Item, Linkage, Module, Name, Op, Operand, Space, Stmt,
    Symbol, VarId, Variable,
};

use super::grid::Grid;

/// A variable of the function that outlives a CTA: a copy of the function would have another
/// variable.
pub(crate) fn keeps_state<'m>(module: &'m Module, body: &Body) -> Option<&'m Variable> {
    body.stmts.iter().find_map(|stmt| match stmt {
        Stmt::Var(id) => {
            let variable = module.var(*id);
            let lasting = !variable.space.is_shared() && !variable.space.is_param();
            (lasting && variable.space != Space::Local).then_some(variable)
        }
        _ => None,
    })
}

/// Items that are added to one module.
#[derive(Default)]
pub(crate) struct Additions {
    /// Before the module's first function.
    front: Vec<Item>,
    /// After the item of a function.
    behind: BTreeMap<FuncId, Vec<Item>>,
}

impl Additions {
    /// Adds a function like that one, to be declared before all others.
    pub fn function(&mut self, module: &mut Module, id: FuncId) -> FuncId {
        let stem = format!("pw_{}", module.text(module.func(id).name));
        let name = module.names.fresh(&stem);
        let copy = copy(module, id, name);
        module.funcs[copy.0 as usize].linkage = Linkage::Private;
        self.behind.entry(id).or_default().push(Item::Function(copy));
        copy
    }

    /// Adds a kernel like that one under another name, behind it.
    pub fn kernel(&mut self, module: &mut Module, id: FuncId, stem: &str) -> FuncId {
        let name = module.names.fresh(&format!("{stem}_{}", module.text(module.func(id).name)));
        let copy = copy(module, id, name);
        self.behind.entry(id).or_default().push(Item::Function(copy));
        copy
    }

    /// Declares an added function before all others, as it is now.
    pub fn declare(&mut self, module: &mut Module, copy: FuncId) {
        let (definition, prototypes) = (Some(copy), Vec::new());
        let prototype =
            Function { body: None, definition, prototypes, ..module.func(copy).clone() };
        let prototype = add(module, prototype);
        module.funcs[copy.0 as usize].prototypes.push(prototype);
        self.front.push(Item::Function(prototype));
    }

    /// Puts the additions among the module's items.
    pub fn place(mut self, module: &mut Module) {
        let items = std::mem::take(&mut module.items);
        for item in items {
            let function = match &item {
                Item::Function(id) => Some(*id),
                _ => None,
            };
            if function.is_some() {
                module.items.append(&mut self.front);
            }
            module.items.push(item);
            module
                .items
                .extend(function.and_then(|id| self.behind.remove(&id)).unwrap_or_default());
        }
    }
}

/// The additions of workers to one module.
#[derive(Default)]
pub(crate) struct Copies {
    additions: Additions,
    /// The copy of each function that leads to a grid register.
    for_workers: BTreeMap<FuncId, FuncId>,
    /// The slot of all kernels that call such a function, and names of registers.
    outside: Option<(VarId, [Name; 6])>,
}

impl Copies {
    /// Adds the kernel as it is, under another name.
    pub fn original(&mut self, module: &mut Module, kernel: FuncId) -> FuncId {
        self.additions.kernel(module, kernel, "pw_original")
    }

    /// Adds the functions that have no copy yet, and returns the slot that they read.
    pub fn functions(
        &mut self,
        module: &mut Module,
        graft: &Graft,
        functions: &BTreeSet<FuncId>,
    ) -> VarId {
        let (slot, spares) = *self.outside.get_or_insert_with(|| {
            let slot = graft.outside(module, "slot");
            self.additions.front.push(Item::Variable(slot));
            (
                slot,
                ["%pw_fx", "%pw_fy", "%pw_fz", "%pw_fw", "%pw_fh", "%pw_fd"]
                    .map(|n| module.names.fresh(n)),
            )
        });
        let new: Vec<FuncId> =
            functions.iter().filter(|id| !self.for_workers.contains_key(id)).copied().collect();
        for &id in &new {
            let copy = self.additions.function(module, id);
            self.additions.declare(module, copy);
            self.for_workers.insert(id, copy);
        }
        for copy in new.iter().map(|id| self.for_workers[id]) {
            let Some(mut body) = module.funcs[copy.0 as usize].body.take() else { continue };
            let grid = Grid::of_function(&mut body, slot, spares);
            let mut stmts = Vec::with_capacity(body.stmts.len());
            for stmt in std::mem::take(&mut body.stmts) {
                match stmt {
                    Stmt::Inst(inst) => {
                        self.redirect(module, &mut body, &inst);
                        grid.instruction(module, &mut body, inst, &mut stmts);
                    }
                    other => stmts.push(other),
                }
            }
            body.stmts = stmts;
            module.funcs[copy.0 as usize].body = Some(body);
        }
        slot
    }

    /// Redirects a worker's call to the copy for workers, if there is one.
    pub fn redirect(&self, module: &Module, body: &mut Body, inst: &Inst) {
        if self.for_workers.is_empty() || module.form(inst).op != Op::Call {
            return;
        }
        for operand in &mut body.operands[inst.operands.range()] {
            if let Operand::Symbol(Symbol::Func(target), _) = operand
                && let Some(copy) =
                    module.definition(*target).and_then(|id| self.for_workers.get(&id))
            {
                *target = *copy;
            }
        }
    }

    /// Puts the additions among the module's items.
    pub fn place(self, module: &mut Module) {
        self.additions.place(module);
    }
}

fn add(module: &mut Module, function: Function) -> FuncId {
    module.funcs.push(function);
    FuncId(u32::try_from(module.funcs.len() - 1).expect("fewer functions than source bytes"))
}

/// A function like that one, with variables of its own.
fn copy(module: &mut Module, id: FuncId, name: Name) -> FuncId {
    let mut function = Function { name, prototypes: Vec::new(), ..module.func(id).clone() };
    let mut own: BTreeMap<VarId, VarId> = BTreeMap::new();
    let mut own_copy = |module: &mut Module, id: &mut VarId| {
        let variable = module.var(*id).clone();
        *id = *own.entry(*id).or_insert_with(|| module.add_var(variable));
    };
    function.returns.iter_mut().chain(&mut function.params).for_each(|id| own_copy(module, id));
    if let Some(body) = &mut function.body {
        for stmt in &mut body.stmts {
            if let Stmt::Var(id) = stmt {
                own_copy(module, id);
            }
        }
        for operand in &mut body.operands {
            if let Operand::Symbol(Symbol::Var(id), _)
            | Operand::Mem(Base::Symbol(Symbol::Var(id)), _) = operand
                && let Some(copy) = own.get(id)
            {
                *id = *copy;
            }
        }
    }
    add(module, function)
}
