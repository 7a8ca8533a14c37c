//! Lowers `.version`: a driver's compiler may know only an older PTX ISA than the program's toolkit
//! wrote.
//!
//! A module that uses nothing newer means the same under the older number. [`lower`] then writes
//! the number down; otherwise it names each newer feature with its place. `features` has the
//! tables, from the PTX ISA's notes on what each version introduced. The tables begin with version
//! 6.0, and a feature that they do not know counts as new as the module itself. A wrong table can
//! therefore refuse too much; a feature that it lets through too early, the driver's compiler
//! refuses.

mod features;

use std::collections::BTreeMap;

use crate::ir::{
    Body, FunctionKind, Item, Module, Op, Operand, Pos, Slice, Special, Stmt, Table, Type,
    Variable, Version,
};

/// The oldest version that a module is lowered to.
pub const OLDEST: Version = Version { major: 6, minor: 0 };

/// A feature that a version does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{feature}` needs PTX {}.{}", .needs.major, .needs.minor)]
pub struct TooNew {
    /// The first place; line 0 where the feature has none.
    pub pos: Pos,
    /// The feature as PTX spells it.
    pub feature: String,
    /// The version that introduced the feature; the module's own for a feature that the tables do
    /// not know.
    pub needs: Version,
}

/// The module under a version that is no newer than `most`; a module that is not newer stays as it
/// is.
///
/// # Errors
/// Each feature that `most` does not have, once, in the order of the text.
pub fn lower(module: &Module, most: Version) -> Result<Module, Vec<TooNew>> {
    if module.version <= most {
        return Ok(module.clone());
    }
    let mut search = Search { module, most, found: BTreeMap::new() };
    search.module();
    let mut found: Vec<TooNew> = search
        .found
        .into_iter()
        .map(|(feature, (pos, needs))| TooNew { pos, feature, needs })
        .collect();
    if most < OLDEST {
        let feature = format!(".version {}.{}", most.major, most.minor);
        found.push(TooNew { pos: Pos::default(), feature, needs: OLDEST });
    }
    found.sort_by_key(|found| found.pos);
    if found.is_empty() { Ok(Module { version: most, ..module.clone() }) } else { Err(found) }
}

struct Search<'m> {
    module: &'m Module,
    most: Version,
    /// For each feature, its first place and the version that it needs.
    found: BTreeMap<String, (Pos, Version)>,
}

impl Search<'_> {
    /// `needs` is `None` for a feature that the tables do not know.
    fn note(&mut self, pos: Pos, needs: Option<Version>, feature: impl FnOnce() -> String) {
        let needs = needs.unwrap_or(self.module.version);
        if needs > self.most {
            self.found.entry(feature()).or_insert((pos, needs));
        }
    }

    fn module(&mut self) {
        let module = self.module;
        for (index, &word) in module.target.iter().enumerate() {
            let text = module.text(word);
            let needs = if index == 0 { features::target(text) } else { Some(OLDEST) };
            self.note(Pos::default(), needs, || format!(".target {text}"));
        }
        for item in &module.items {
            match item {
                Item::Variable(id) => self.variable(module.var(*id)),
                Item::Function(id) => self.function(module.func(*id)),
                Item::Alias { .. } => {
                    self.note(Pos::default(), features::version(6, 3), || ".alias".into())
                }
                Item::Pragma(text) => self.pragma(module.text(*text)),
                Item::File(_) | Item::Section(_) | Item::Dwarf(_) => {}
            }
        }
    }

    fn pragma(&mut self, text: &str) {
        self.note(Pos::default(), features::pragma(text), || format!(".pragma {text}"));
    }

    fn variable(&mut self, variable: &Variable) {
        let pos = variable.pos;
        if variable.ty == Type::B128 {
            self.note(pos, features::version(8, 3), || ".b128".into());
        }
        if let Some(attribute) = variable.attribute {
            let text = self.module.text(attribute).trim();
            self.note(pos, features::attribute(text), || format!(".attribute({text})"));
        }
    }

    fn function(&mut self, function: &crate::ir::Function) {
        let module = self.module;
        for directive in &function.directives {
            let word = module.text(directive.name);
            match directive.text {
                Some(text) => self.pragma(module.text(text)),
                None => self.note(directive.pos, features::directive(word), || format!(".{word}")),
            }
        }
        if let Some(attribute) = function.attribute {
            let text = module.text(attribute).trim();
            self.note(function.pos, features::attribute(text), || format!(".attribute({text})"));
        }
        let params = function.params.iter().map(|id| module.var(*id).bytes().unwrap_or(0));
        if function.kind == FunctionKind::Entry && params.sum::<u64>() > 4096 {
            let feature = || "kernel parameters of more than 4096 bytes".into();
            self.note(function.pos, features::version(8, 1), feature);
        }
        for &id in function.params.iter().chain(&function.returns) {
            self.variable(module.var(id));
        }
        if let Some(body) = &function.body {
            self.body(body);
        }
    }

    fn body(&mut self, body: &Body) {
        let module = self.module;
        let needs: Vec<_> =
            module.forms.all().iter().map(|form| features::form(module.text(form.text))).collect();
        for stmt in &body.stmts {
            match *stmt {
                Stmt::Inst(inst) => {
                    let form = module.form(&inst);
                    let mut needs = needs[inst.form.0 as usize];
                    let three = matches!(form.op, Op::Min | Op::Max) && inst.operands.len > 3;
                    if three {
                        needs = needs.max(features::version(8, 8));
                    }
                    let more = if three { " of three values" } else { "" };
                    self.note(inst.pos, needs, || format!("{}{more}", module.text(form.text)));
                    self.operands(body, inst.pos, inst.operands);
                }
                Stmt::Var(id) => self.variable(module.var(id)),
                Stmt::Regs(index) => {
                    if body.reg_decls[index as usize].ty == Type::B128 {
                        self.note(Pos::default(), features::version(8, 3), || ".reg .b128".into());
                    }
                }
                Stmt::Pragma(text) => self.pragma(module.text(text)),
                Stmt::Loc(index) if body.locs[index as usize].inlined.is_some() => {
                    self.note(Pos::default(), features::version(7, 2), || "inlined_at".into());
                }
                Stmt::Table(index) => {
                    if let Table::Prototype { directives, .. } = &body.tables[index as usize] {
                        for directive in directives {
                            let word = module.text(directive.name);
                            self.note(directive.pos, features::directive(word), || {
                                format!(".{word}")
                            });
                        }
                    }
                }
                Stmt::Loc(_) | Stmt::Label(_) | Stmt::Open | Stmt::Close => {}
            }
        }
    }

    fn operands(&mut self, body: &Body, pos: Pos, slice: Slice) {
        for operand in body.operands(slice) {
            match *operand {
                Operand::Special(special, _) => {
                    let mut spelling = String::new();
                    special.write(&mut spelling);
                    self.note(pos, special_register(special), || spelling);
                }
                Operand::Vector(slice)
                | Operand::List(slice)
                | Operand::Tuple(slice)
                | Operand::Pair(slice) => {
                    self.operands(body, pos, slice);
                }
                _ => {}
            }
        }
    }
}

const fn special_register(special: Special) -> Option<Version> {
    use Special as S;
    match special {
        S::IsExplicitCluster
        | S::Clusterid
        | S::Nclusterid
        | S::ClusterCtaid
        | S::ClusterNctaid
        | S::ClusterCtarank
        | S::ClusterNctarank => features::version(7, 8),
        S::ReservedSmemOffsetBegin
        | S::ReservedSmemOffsetEnd
        | S::ReservedSmemOffsetCap
        | S::ReservedSmemOffset(_) => features::version(7, 6),
        S::AggrSmemSize => features::version(8, 1),
        S::CurrentGraphExec => features::version(8, 0),
        _ => Some(OLDEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn check(body: &str, most: (u32, u32), expected: &str) {
        let text = format!(
            ".version 8.7\n.target sm_80\n.address_size 64\n.entry k() {{ .reg .b32 %r<9>; .reg \
             .b64 %d<9>; \
             .reg .b16 %h<9>; .reg .pred %p<9>; .reg .f32 %f<9>; {body} }}"
        );
        let module = parse(&text).unwrap();
        let found = match lower(&module, Version { major: most.0, minor: most.1 }) {
            Ok(module) => format!("{}.{}", module.version.major, module.version.minor),
            Err(list) => list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        };
        assert_eq!(found, expected, "{body}");
    }

    #[test]
    fn what_is_old_is_lowered_and_what_is_new_is_named() {
        check("add.s32 %r1, %r2, %r3; ret;", (7, 0), "7.0");
        check("add.s32 %r1, %r2, %r3; ret;", (9, 0), "8.7");
        check("redux.sync.add.s32 %r1, %r2, -1;", (7, 0), "7.0");
        check("mov.u32 %r1, %cluster_ctarank;", (7, 7), "`%cluster_ctarank` needs PTX 7.8");
        check("bmsk.clamp.b32 %r1, %r2, %r3;", (7, 5), "`bmsk.clamp.b32` needs PTX 7.6");
        check("frob.b32 %r1, %r2;", (8, 6), "`frob.b32` needs PTX 8.7");
        check("add.rounder.f32 %f1, %f2, %f3;", (8, 6), "`add.rounder.f32` needs PTX 8.7");
        check("ret;", (6, 4), "`.target sm_80` needs PTX 7.0");
        check("min.f32 %f1, %f2, %f3, %f4;", (8, 6), "`min.f32 of three values` needs PTX 8.8");
    }
}
