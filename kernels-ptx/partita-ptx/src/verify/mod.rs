//! The verifier checks what must hold of a module before a pass may work on it.
//!
//! # What it checks
//!
//! - `.version` and `.target` are there, and no function or variable of the module is defined
//!   twice.
//! - Every name is resolved: operands, branch and call tables, initialisers, aliases.
//! - `{ }` balance. `bra` goes to a label, and `brx.idx` to a `.branchtargets` that holds labels.
//! - Guards are predicates. Known opcodes have as many operands as they can have ([`instruction`]).
//! - The opcodes of common arithmetic, comparison, selection, conversion, move, load and store:
//!   registers have the instruction's width and are predicates where those are wanted; vectors have
//!   the right number of elements.
//! - A direct call goes to no kernel, and has as many arguments and results as the function.
//! - Kernel parameters have a size. A variable's size fits 64 bits. `.shared` has no initial value.
//!
//! # What it does not check
//!
//! - Which modifiers an opcode takes, and in which version or target.
//! - Widths beside a word that the tables do not know, because the word may be a type; nor whether
//!   such an instruction has more operands than without the word.
//! - The kinds of operands of other opcodes.
//! - Alignment and range of constant addresses.
//! - Whether a register is set before it is used.
//! - Whether initial values fit their type.
//! - Debug sections.
//!
//! `ptxas` or the driver has the last word.

mod instruction;

use std::collections::HashMap;

use crate::error::{Diagnostic, Errors, MAX_ERRORS};
use crate::ir::{
    Base, Body, Function, FunctionKind, Init, Item, Module, Name, Op, Operand, Pos, Slice, Space,
    Stmt, Symbol, Table, Version,
};

/// Verifies a module.
///
/// # Errors
///
/// Every finding with its place; at most [`MAX_ERRORS`]. [`Errors::with_source`] adds the lines.
pub fn verify(module: &Module) -> Result<(), Errors> {
    let mut verifier = Verifier { module, errors: Vec::new() };
    verifier.module();
    Errors::check(verifier.errors)
}

/// Debug builds stop where a pass has made an invalid module of a valid one.
pub(crate) fn check_pass(after: &Module, was_valid: impl FnOnce() -> bool) {
    if cfg!(debug_assertions)
        && let Err(errors) = verify(after)
        && !after.stop.is_asked()
    {
        assert!(!was_valid(), "the pass broke the module: {errors}\n{}", crate::print(after));
    }
}

struct Verifier<'m> {
    module: &'m Module,
    errors: Vec<Diagnostic>,
}

impl Verifier<'_> {
    fn error(&mut self, pos: Pos, len: usize, message: String) {
        if self.errors.len() < MAX_ERRORS {
            let len = u32::try_from(len).unwrap_or(u32::MAX).max(1);
            self.errors.push(Diagnostic { pos, len, message, excerpt: None });
        }
    }

    fn module(&mut self) {
        let module = self.module;
        if module.version == Version::default() {
            self.error(Pos::default(), 1, "`.version` is missing".to_owned());
        }
        if module.target.is_empty() {
            self.error(
                Pos::default(),
                1,
                "`.target` is missing; write for example `.target sm_90`".to_owned(),
            );
        }
        self.duplicates();
        for item in &module.items {
            if module.stop.is_asked() {
                return self.error(Pos::default(), 1, "stopped".to_owned());
            }
            match item {
                Item::Function(id) => self.function(module.func(*id)),
                Item::Variable(id) => self.variable(module.var(*id)),
                Item::Alias { target: Symbol::Unresolved(name), .. } => {
                    self.unresolved(Pos::default(), *name, "function");
                }
                _ => {}
            }
        }
    }

    fn duplicates(&mut self) {
        let module = self.module;
        let mut seen: HashMap<Name, Pos> = HashMap::new();
        for item in &module.items {
            let (name, pos) = match item {
                Item::Function(id) if module.func(*id).body.is_some() => {
                    (module.func(*id).name, module.func(*id).pos)
                }
                Item::Variable(id) if module.var(*id).linkage != crate::ir::Linkage::Extern => {
                    (module.var(*id).name, module.var(*id).pos)
                }
                _ => continue,
            };
            if let Some(first) = seen.insert(name, pos) {
                let text = module.text(name);
                let message = format!("`{text}` is defined already, in line {}", first.line);
                self.error(pos, text.len(), message);
            }
        }
    }

    fn unresolved(&mut self, pos: Pos, name: Name, kind: &str) {
        let text = self.module.text(name);
        let message = format!("unknown {kind} `{text}`");
        self.error(pos, text.len(), message);
    }

    fn variable(&mut self, variable: &crate::ir::Variable) {
        let text = self.module.text(variable.name);
        if let Some(init) = &variable.init {
            if variable.space.is_shared() || variable.space == Space::Local {
                let message = format!(
                    "`{text}` is `.{}` and can have no initial value",
                    variable.space.text()
                );
                self.error(variable.pos, text.len(), message);
            }
            self.init(variable.pos, init);
        } else if variable.bytes().is_none() && !variable.dims.contains(&crate::ir::Dim::Open) {
            self.error(
                variable.pos,
                text.len(),
                format!("the size of `{text}` does not fit 64 bits"),
            );
        }
    }

    /// The parser bounds the nesting.
    fn init(&mut self, pos: Pos, init: &Init) {
        match init {
            Init::List(list) => list.iter().for_each(|init| self.init(pos, init)),
            Init::Mask(_, init) => self.init(pos, init),
            Init::Symbol(Symbol::Unresolved(name), _)
            | Init::Generic(Symbol::Unresolved(name), _) => {
                self.unresolved(pos, *name, "variable or function");
            }
            _ => {}
        }
    }

    fn function(&mut self, function: &Function) {
        for &id in &function.params {
            let variable = self.module.var(id);
            if function.kind == FunctionKind::Entry && variable.bytes().is_none() {
                let text = self.module.text(variable.name);
                self.error(
                    variable.pos,
                    text.len(),
                    format!("the size of the parameter `{text}` is not known"),
                );
            }
            // The assembler gives such a parameter no bytes among the others.
            if function.kind == FunctionKind::Entry && variable.ty.is_opaque() {
                let text = self.module.text(variable.name);
                self.error(
                    variable.pos,
                    text.len(),
                    format!(
                        "the parameter `{text}` is a reference, which has no place among a \
                         kernel's parameters: pass an object, a `.u64`"
                    ),
                );
            }
        }
        let Some(body) = &function.body else { return };
        self.scopes(function, body);
        let tables = TableLabels::new(body);
        for stmt in &body.stmts {
            match stmt {
                Stmt::Inst(inst) => {
                    self.operands(body, inst.pos, inst.operands);
                    let is_kernel = function.kind == FunctionKind::Entry;
                    instruction::check(self, (body, is_kernel), &tables, inst);
                    if self.module.form(inst).op == Op::Call {
                        self.call(body, inst);
                    }
                }
                Stmt::Var(id) => self.variable(self.module.var(*id)),
                Stmt::Table(index) => self.table(&body.tables[*index as usize], function.pos),
                _ => {}
            }
        }
    }

    fn scopes(&mut self, function: &Function, body: &Body) {
        let mut depth = 0_i64;
        for stmt in &body.stmts {
            depth += match stmt {
                Stmt::Open => 1,
                Stmt::Close => -1,
                _ => 0,
            };
            if depth < 0 {
                break;
            }
        }
        if depth != 0 {
            let text = self.module.text(function.name);
            self.error(function.pos, text.len(), format!("the scopes of `{text}` do not balance"));
        }
    }

    fn table(&mut self, table: &Table, pos: Pos) {
        if let Table::Branch(symbols) | Table::Call(symbols) = table {
            for symbol in symbols {
                if let Symbol::Unresolved(name) = symbol {
                    self.unresolved(pos, *name, "label or function");
                }
            }
        }
    }

    fn operands(&mut self, body: &Body, pos: Pos, slice: Slice) {
        for operand in body.operands(slice) {
            match *operand {
                Operand::Symbol(Symbol::Unresolved(name), _)
                | Operand::Mem(Base::Symbol(Symbol::Unresolved(name)), _) => {
                    let register = self.module.text(name).starts_with('%');
                    self.unresolved(pos, name, if register { "register" } else { "name" });
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

    /// `call (results), function, (arguments);` with either list absent.
    fn call(&mut self, body: &Body, inst: &crate::ir::Inst) {
        let operands = body.operands(inst.operands);
        let Some(at) =
            operands.iter().position(|o| matches!(o, Operand::Symbol(Symbol::Func(_), _)))
        else {
            return;
        };
        let Operand::Symbol(Symbol::Func(id), _) = operands[at] else { return };
        let function = self.module.func(id);
        let count = |operand: Option<&Operand>| match operand {
            Some(Operand::List(slice)) => slice.len as usize,
            _ => 0,
        };
        let given = count(operands.get(at + 1));
        let taken = if at > 0 { count(operands.first()) } else { 0 };
        let name = self.module.text(function.name);
        // A variadic declaration ends in an array without size.
        if function.kind == FunctionKind::Entry {
            self.error(inst.pos, 4, format!("`{name}` is a kernel, which cannot be called"));
            return;
        }
        let open = function.params.iter().any(|&id| self.module.var(id).bytes().is_none());
        if given != function.params.len() && !open {
            let message =
                format!("`{name}` takes {} arguments, {given} are given", function.params.len());
            self.error(inst.pos, 4, message);
        }
        if taken != function.returns.len() {
            let message =
                format!("`{name}` has {} results, {taken} are taken", function.returns.len());
            self.error(inst.pos, 4, message);
        }
    }
}

/// The labels that stand before a `.branchtargets`.
struct TableLabels {
    branch: Vec<bool>,
    any: Vec<bool>,
}

impl TableLabels {
    fn new(body: &Body) -> Self {
        let mut labels =
            Self { branch: vec![false; body.labels.len()], any: vec![false; body.labels.len()] };
        for pair in body.stmts.windows(2) {
            if let [Stmt::Label(label), Stmt::Table(table)] = pair {
                labels.any[label.0 as usize] = true;
                labels.branch[label.0 as usize] =
                    matches!(body.tables[*table as usize], Table::Branch(_));
            }
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: Option<&str>) {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.func (.param .b32 o) f(.param .b32 \
             i);\n\
             .entry k(.param .u64 p) {{ .reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<4>; .reg \
             .f32 %f<4>; \
             .reg .b64 %rd<4>; .param .b32 a; .param .b32 b;\n{body}\nret; }}"
        );
        let found = verify(&crate::parse(&source).unwrap());
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(errors), Some(part)) => {
                assert!(errors.list()[0].message.contains(part), "{body}: {errors}");
                assert_eq!(errors.list()[0].pos.line, 6, "{body}: {errors}");
            }
            (Ok(()), Some(part)) => panic!("{body}: expected {part}"),
            (Err(errors), None) => panic!("{body}: {errors}"),
        }
    }

    #[test]
    fn findings() {
        check("add.s32 %r1, %r2, %r3;", None);
        check("add.s32 %r1, %r2, %q;", Some("unknown register `%q`"));
        check("add.s32 %r1, %r2, %r4;", Some("unknown register `%r4`"));
        check("ld.param.u64 %rd1, [q];", Some("unknown name `q`"));
        check("bra NOWHERE;", Some("unknown name `NOWHERE`"));
        check("add.s32 %r1, %r2;", Some("takes 3 operands"));
        check("add.s32 %rd1, %r2, %r3;", Some("`%rd1` has 64 bits"));
        check("add.s64 %rd1, %rd2, %r3;", Some("`%r3` has 32 bits"));
        check("setp.eq.s32 %r1, %r2, %r3;", Some("predicate"));
        check("setp.eq.and.s32 %p1|%p2, %r2, %r3, !%p3;", None);
        check("selp.b32 %r1, %r2, %r3, %r1;", Some("predicate"));
        check("not.pred %p1, %ctaid.x;", Some("predicate"));
        check("add.s64 %rd1, %rd2, %ctaid.x;", Some("`%ctaid` has 32 bits"));
        check("mov.u16 %rs1, %ctaid.x;", None);
        check("cvt.u64.u32 %rd1, %ctaid.x;", None);
        check("@%r1 bra L; L:", Some("`%r1` is no predicate"));
        check("ld.v2.f32 {%f1, %f2, %f3}, [%rd1];", Some("2 elements"));
        check("ld.global.u8 %rs1, [%rd1];", None);
        check("ld.global.u64 %r1, [%rd1];", Some("`%r1` has 32 bits"));
        check("mul.wide.s32 %rd1, %r1, 4;", None);
        check("mul.wide.s32 %r1, %r2, 4;", Some("`%r1` has 32 bits"));
        check("cvt.u64.u32 %r1, %r2;", Some("`%r1` has 32 bits"));
        check(".reg .v2 .b32 v; mov.v2.b32 v, {%r1, %r2}; mov.b64 %rd1, v; mov.b32 v.y, 1;", None);
        check(".reg .v4 .b16 v; mov.v4.b16 %rd1, v; mov.v4.b16 {%rs1, _, %rs2, v.w}, %rd1;", None);
        check(".reg .v2 .b32 v; mov.v4.b32 v, {%r1, %r2, %r3, %r1};", Some("`v` has 64 bits"));
        check(".reg .v2 .b32 v; mov.v2.b32 v, {%r1, %r2, %r3};", Some("2 elements"));
        check(".reg .v2 .b32 v; add.s32 v, %r1, %r2;", Some("`v` has 64 bits"));
        check(".reg .v2 .b64 v; add.s32 v.x, %r1, %r2;", Some("`v` has 64 bits"));
        check(".reg .v2 .b32 v; add.s32 v.z, %r1, %r2;", Some("`v` has 2 components"));
        check(".reg .v2 .b32 v; ld.v4.b32 v, [%rd1];", Some("4 elements, `v` has 2"));
        check(".reg .v2 .b32 v; ld.b32 v, [%rd1];", Some("1 elements, `v` has 2"));
        check("ld.v2.b32 %r1, [%rd1];", Some("2 elements, `%r1` has 1"));
        check("call (a), f, (b);", None);
        check("call f, (b);", Some("has 1 results, 0 are taken"));
        check("call (a), f;", Some("takes 1 arguments, 0 are given"));
        check("bra %r1;", Some("label"));
        check("brx.idx %r1, T; T: .branchtargets L; L:", None);
        check("brx.idx %r1, L; L:", Some("`.branchtargets`"));
        check("bar.sync 0; fence.acq_rel.gpu; frob.x %r1, 1, 2, 3, 4, 5;", None);
    }
}
