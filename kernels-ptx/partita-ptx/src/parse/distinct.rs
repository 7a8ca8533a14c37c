//! Gives the labels, variables and registers of a body names of their own.
//!
//! An inner scope may declare a name again, and what such a name means at a place depends on rules
//! of the assembler (a use before the definition, a label in a scope around). Passes add names at
//! other places, and move declarations. The text that is printed must mean what was analysed, so
//! every label and variable of a function whose name is spelt twice gets a fresh one, and so does a
//! register of an inner scope with the name of one outside. Ranges of registers (`%r<9>`) of inner
//! scopes keep their names.

use std::collections::{HashMap, HashSet};

use super::Parser;
use crate::ir::{FuncId, Name, RegNames, Stmt, range_stems};

impl Parser<'_> {
    /// Renames labels and variables of the body, which is `id`'s, where their names mean something
    /// else as well.
    pub(super) fn distinct_names(&mut self, id: FuncId) {
        // Without scopes and variables no name is spelt twice.
        if !self.body.stmts.iter().any(|stmt| matches!(stmt, Stmt::Var(_) | Stmt::Open)) {
            return;
        }
        self.distinct_registers();
        let mut taken: HashSet<Name> = HashSet::new();
        let mut ranges: HashSet<Name> = HashSet::new();
        let body = &self.body;
        let function = &self.module.funcs[id.0 as usize];
        let params = function.params.iter().chain(&function.returns);
        taken.extend(params.map(|&param| self.module.var(param).name));
        taken.extend(body.regs.iter().map(|reg| reg.name));
        for &RegNames { name, count } in body.reg_decls.iter().flat_map(|decl| &decl.names) {
            match count {
                Some(_) => ranges.insert(name),
                None => taken.insert(name),
            };
        }
        for index in 0..self.body.stmts.len() {
            let (name, is_label) = match self.body.stmts[index] {
                Stmt::Label(label) => (self.body.labels[label.0 as usize].name, true),
                Stmt::Var(var) => (self.module.var(var).name, false),
                _ => continue,
            };
            let is_outside = !is_label && self.scopes.in_module(name).is_some();
            if taken.insert(name) && !is_outside && !self.is_element(&ranges, name) {
                continue;
            }
            let stem = self.module.text(name).to_owned();
            let fresh = self.module.names.fresh(&stem);
            match self.body.stmts[index] {
                Stmt::Label(label) => self.body.labels[label.0 as usize].name = fresh,
                Stmt::Var(var) => self.module.vars[var.0 as usize].name = fresh,
                _ => {}
            }
        }
    }

    /// Renames registers of inner scopes. Scopes side by side may share a name.
    fn distinct_registers(&mut self) {
        let (mut depth, mut inner) = (0_u16, Vec::new());
        for stmt in &self.body.stmts {
            match *stmt {
                Stmt::Open => depth += 1,
                Stmt::Close => depth = depth.saturating_sub(1),
                Stmt::Regs(decl) if depth > 0 => inner.push((decl as usize, depth)),
                _ => {}
            }
        }
        let names = |decl: usize| self.body.reg_decls[decl].names.iter();
        let ranges = inner.iter().flat_map(|&(decl, _)| names(decl));
        let ranges: HashSet<Name> =
            ranges.filter(|names| names.count.is_some()).map(|names| names.name).collect();
        if inner.is_empty() {
            return;
        }
        let outermost = self.body.outermost();
        let mut renamed: HashMap<(Name, u16), Name> = HashMap::new();
        for (decl, depth) in inner {
            for at in 0..self.body.reg_decls[decl].names.len() {
                let name = self.body.reg_decls[decl].names[at].name;
                let is_inner = outermost.get(&name).is_none_or(|outer| *outer >= depth);
                // A range beside this scope may have the name, too.
                let is_range = ranges.contains(&name) || self.is_element(&ranges, name);
                if is_inner || is_range {
                    continue;
                }
                let fresh = *renamed.entry((name, depth)).or_insert_with(|| {
                    let stem = self.module.text(name).to_owned();
                    self.module.names.fresh(&stem)
                });
                self.body.reg_decls[decl].names[at].name = fresh;
            }
        }
        for reg in &mut self.body.regs {
            if let Some(&fresh) = renamed.get(&(reg.name, reg.depth)) {
                reg.name = fresh;
            }
        }
    }

    /// Whether a name spells an element of a range of registers.
    fn is_element(&self, ranges: &HashSet<Name>, name: Name) -> bool {
        let names = &self.module.names;
        range_stems(names.text(name))
            .filter_map(|stem| names.get(stem))
            .any(|stem| ranges.contains(&stem))
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Op, Operand, Symbol};

    fn kernel(outside: &str, body: &str) -> crate::Module {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n{outside}\n.entry k(.param .u64 p) {{\n\
             .reg .b32 %r<9>;\n{body}\nret;\n}}"
        );
        crate::parse(&source).unwrap()
    }

    /// `ptxas` 13.5 binds a label as its scope ends: to the nearest one that is defined by then.
    #[test]
    fn a_label_means_what_the_assembler_takes_it_for() {
        let targets = |body: &str| {
            let module = kernel("", body);
            let body = module.funcs[0].body.as_ref().unwrap();
            let branches = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Bra);
            let mut targets = Vec::new();
            for (_, inst) in branches {
                let Operand::Symbol(Symbol::Label(label), _) = body.operands(inst.operands)[0]
                else {
                    panic!("a label");
                };
                targets.push(module.text(body.labels[label.0 as usize].name).to_owned());
            }
            (targets, crate::print(&module))
        };
        let (to, text) = targets("L: mov.u32 %r1, 1;\n{ { bra L; } L: mov.u32 %r2, 2; }");
        assert_eq!(to, ["L"], "{text}");
        assert!(text.contains("L_1x:"), "{text}");
        // In its own scope, a later label is meant, and one that is defined nowhere so far.
        assert_eq!(targets("L: mov.u32 %r1, 1;\n{ bra L; L: mov.u32 %r2, 2; }").0, ["L_1x"]);
        assert_eq!(targets("{ { bra L; } L: mov.u32 %r2, 2; }").0, ["L"]);
        assert_eq!(targets("{ { bra L; } bra L; } L: mov.u32 %r2, 2;").0, ["L", "L"]);
    }

    #[test]
    fn variables_with_a_name_of_something_else_get_another() {
        let body = "{ .local .b8 a[8]; }\n.local .b8 a[16];\nmov.u32 %r1, a;\n.local .b8 p[4];\n\
                    mov.u32 %r2, p;\n{ .shared .b8 s[4]; mov.u32 %r3, s; }";
        let text = crate::print(&kernel(".shared .b8 s[8];", body));
        for part in ["a_1x[16]", "%r1, a_1x;", "p_1x[4]", "%r2, p_1x;", "s_1x[4]", "%r3, s_1x;"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let scopes = "mov.u32 %r1, 1; { .reg .b32 %r1; mov.u32 %r1, 2; { .reg .b64 %r1; mov.u64 \
                      %r1, 3; } } { .reg .b32 %r1; mov.u32 %r1, 4; } mov.u32 %r1, 5;";
        let text = crate::print(&kernel("", scopes));
        for part in ["%r1, 1;", "%r1_1x, 2;", "%r1_2x, 3;", "%r1_1x, 4;", "%r1, 5;"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches(".reg .b32 %r1_1x;").count(), 2, "{text}");
        // What has one name keeps it.
        let text = crate::print(&kernel("", "{ .local .b8 a[8]; } A: mov.u32 %r1, 1; { B: }"));
        assert!(!text.contains("_1x"), "{text}");
    }
}
