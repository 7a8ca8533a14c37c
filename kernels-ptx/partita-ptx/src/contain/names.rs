//! Functions in which the name of a module's variable means something else. Checks name variables
//! of the module at any place of a body, so such a function has no bounds.

use std::collections::HashSet;

use crate::ir::{FuncId, Item, Module, Name, RegNames, Stmt, range_stems};

/// The names of a module's variables.
pub(super) struct Outside<'m> {
    module: &'m Module,
    names: HashSet<Name>,
    /// Stems of ranges of registers that could have these names.
    stems: HashSet<&'m str>,
}

impl<'m> Outside<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let variables = module.items.iter().filter_map(|item| match *item {
            Item::Variable(id) => Some(module.var(id).name),
            _ => None,
        });
        let names: HashSet<Name> = variables.collect();
        let stems = names.iter().flat_map(|&name| range_stems(module.text(name))).collect();
        Self { module, names, stems }
    }

    /// A name of the function that is one of the module's variables as well.
    pub(super) fn hidden_in(&self, id: FuncId) -> Option<Name> {
        let module = self.module;
        let function = module.func(id);
        let body = function.body.as_ref()?;
        let formals = function.params.iter().chain(&function.returns);
        let formals = formals.map(|&param| module.var(param).name);
        let declared = body.reg_decls.iter().flat_map(|decl| &decl.names);
        let hidden_range = declared
            .clone()
            .find(|range| range.count.is_some() && self.stems.contains(module.text(range.name)));
        let single = declared.filter(|RegNames { count, .. }| count.is_none());
        let single = single.map(|names| names.name);
        let stmts = body.stmts.iter().filter_map(|stmt| match *stmt {
            Stmt::Label(label) => Some(body.labels[label.0 as usize].name),
            Stmt::Var(var) => Some(module.var(var).name),
            _ => None,
        });
        let found = formals.chain(single).chain(stmts).find(|name| self.names.contains(name));
        found.or(hidden_range.map(|range| range.name))
    }
}
