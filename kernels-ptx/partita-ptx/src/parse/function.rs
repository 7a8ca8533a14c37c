//! Functions and the statements of their bodies.

use super::lexer::{Kind, Token};
use super::scope::{Bound, Defined, Range, Settled};
use super::variable::{Level, Prefix};
use super::{Parsed, Parser};
use crate::ir::{
    Base, Directive, FuncId, Function, FunctionKind, Guard, Inlined, Inst, Item, Label, Linkage,
    Loc, Operand, Reg, RegDecl, RegNames, Register, Space, Stmt, Symbol, Table, Type, VarId,
    Variable,
};

/// Deepest nesting of `{ }` in a body.
const MAX_SCOPES: u16 = 256;

impl Parser<'_> {
    /// `.entry` or `.func`, the current token, up to `;` or `}`.
    pub(super) fn function(&mut self, linkage: Linkage) -> Parsed<()> {
        let kind =
            if self.current() == ".entry" { FunctionKind::Entry } else { FunctionKind::Func };
        let start = self.advance().start;
        self.scopes.enter_function();
        self.body.clear();
        self.scratch.clear();
        let attribute = if self.eat_word(".attribute") { Some(self.attribute()?) } else { None };
        let returns = if kind == FunctionKind::Func && self.at(b'(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        if self.token.kind != Kind::Ident {
            return Err(self.expected("the name of the function"));
        }
        let name_token = self.advance();
        let name = self.intern(name_token);
        let params = if self.at(b'(') { self.parameters()? } else { Vec::new() };
        let directives = self.directives()?;
        let id = FuncId(
            u32::try_from(self.module.funcs.len()).expect("fewer functions than source bytes"),
        );
        match self.scopes.in_module(name) {
            // A definition after its prototype: symbols go on to name the first.
            Some(Bound::Func(_)) => {}
            _ => self.scopes.bind_module(name, Bound::Func(id)),
        }
        self.module.funcs.push(Function {
            name,
            kind,
            linkage,
            attribute,
            returns,
            params,
            directives,
            body: None,
            definition: None,
            prototypes: Vec::new(),
            pos: name_token.pos,
            span: (start, start),
        });
        let mut end = self.token.end;
        if self.at(b'{') {
            self.advance();
            end = self.body()?;
            self.settle_labels();
            self.distinct_names(id);
            self.module.funcs[id.0 as usize].body = Some(self.body.exact());
        } else {
            self.expect(b';', "or `{` after the function's head")?;
        }
        self.scopes.leave_function();
        self.module.funcs[id.0 as usize].span = (start, end);
        self.module.items.push(Item::Function(id));
        Ok(())
    }

    fn parameters(&mut self) -> Parsed<Vec<VarId>> {
        let mut ids = Vec::new();
        for variable in self.parameter_list(true)? {
            let (name, space) = (variable.name, variable.space);
            let id = self.module.add_var(variable);
            if space != Space::Reg {
                self.scopes.hide(self.module.text(name));
                self.scopes.bind(name, Bound::Var(id));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn parameter_list(&mut self, in_body: bool) -> Parsed<Vec<Variable>> {
        self.expect(b'(', "before the parameters")?;
        let mut list = Vec::new();
        while !self.at(b')') {
            list.push(self.parameter(in_body)?);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b')', "or `,` after the parameter")?;
        Ok(list)
    }

    fn directives(&mut self) -> Parsed<Vec<Directive>> {
        let mut list = Vec::new();
        while self.token.kind == Kind::Dotted {
            let token = self.advance();
            let word = self.lexer.text(token);
            let name = self.module.names.intern(&word[1..]);
            let mut directive = Directive { name, values: Vec::new(), text: None, pos: token.pos };
            if word == ".pragma" {
                directive.text = Some(self.pragma_text()?);
            } else if self.token.kind == Kind::Number {
                directive.values.push(self.small("a number")?);
                while self.eat(b',') {
                    directive.values.push(self.small("a number")?);
                }
            }
            list.push(directive);
        }
        Ok(list)
    }

    /// The statements of a body, and the byte of the source behind its `}`.
    fn body(&mut self) -> Parsed<u32> {
        loop {
            let before = self.token.start;
            match self.token.kind {
                Kind::End => return Err(self.expected("`}` at the end of the function")),
                Kind::Punct(b'}') => {
                    let end = self.advance().end;
                    if self.scopes.depth() == 0 {
                        return Ok(end);
                    }
                    self.scopes.close();
                    self.body.stmts.push(Stmt::Close);
                }
                Kind::Punct(b'{') => {
                    let token = self.advance();
                    if self.scopes.depth() >= MAX_SCOPES {
                        return Err(self
                            .error(token, format!("scopes are nested deeper than {MAX_SCOPES}")));
                    }
                    self.scopes.open();
                    self.body.stmts.push(Stmt::Open);
                }
                Kind::Punct(b';') => {
                    self.advance();
                }
                _ => {
                    if self.statement().is_err() {
                        if self.exhausted() {
                            return Err(super::Failed);
                        }
                        self.scratch.clear();
                        self.skip_statement();
                        if self.token.start == before {
                            self.advance();
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn statement(&mut self) -> Parsed<()> {
        match self.token.kind {
            Kind::Ident => {
                let token = self.token;
                // `name:` is a label; anything else is an opcode with its dotted words.
                let whole = self.lexer.opcode_tail(token);
                self.token = self.lexer.next();
                if whole.end == token.end && self.at(b':') {
                    self.advance();
                    return self.label(token);
                }
                self.instruction(None, whole)
            }
            Kind::Punct(b'@') => {
                self.advance();
                let negated = self.eat(b'!');
                let reg = self.guard_register()?;
                if self.token.kind != Kind::Ident {
                    return Err(self.expected("an instruction after the guard"));
                }
                let whole = self.lexer.opcode_tail(self.token);
                self.token = self.lexer.next();
                self.instruction(Some(Guard { reg, negated }), whole)
            }
            Kind::Dotted => self.directive_statement(),
            _ => Err(self.expected("an instruction, a label or a directive")),
        }
    }

    fn label(&mut self, token: Token) -> Parsed<()> {
        let name = self.intern(token);
        let next = self.next_label();
        self.scopes.hide(self.lexer.text(token));
        let label = match self.scopes.define_label(name, next) {
            Defined::New => {
                self.body.labels.push(Label { name, pos: token.pos });
                next
            }
            Defined::Known(label) => {
                self.body.labels[label.0 as usize].pos = token.pos;
                label
            }
            Defined::Twice(label) => {
                let line = self.body.labels[label.0 as usize].pos.line;
                let message =
                    format!("label `{}` is defined already, in line {line}", self.text(token));
                return Err(self.error(token, message));
            }
        };
        self.body.stmts.push(Stmt::Label(label));
        Ok(())
    }

    #[inline]
    fn instruction(&mut self, guard: Option<Guard>, opcode: Token) -> Parsed<()> {
        let mut text = self.intern(opcode);
        if self.token.kind == Kind::Dotted {
            text = self.spaced_opcode(opcode);
        }
        let form = self.module.forms.intern_name(text, &mut self.module.names);
        let op = self.module.forms[form].op;
        let operands = self.operands(op)?;
        if !self.at(b';') {
            return Err(self.expected("`,` or `;` after the operand"));
        }
        self.advance();
        self.body.stmts.push(Stmt::Inst(Inst { guard, form, operands, pos: opcode.pos }));
        Ok(())
    }

    /// An opcode with blanks between its words.
    fn spaced_opcode(&mut self, opcode: Token) -> crate::ir::Name {
        let mut text = self.text(opcode).to_owned();
        while self.token.kind == Kind::Dotted {
            text.push_str(self.current());
            self.advance();
        }
        self.module.names.intern(&text)
    }

    fn directive_statement(&mut self) -> Parsed<()> {
        let token = self.token;
        match self.current() {
            ".reg" => {
                let prefix = self.prefix()?;
                self.registers(&prefix)
            }
            ".loc" => self.loc(),
            ".pragma" => {
                self.advance();
                let text = self.pragma_text()?;
                self.body.stmts.push(Stmt::Pragma(text));
                Ok(())
            }
            ".file" => {
                self.advance();
                self.file_directive(token)
            }
            ".branchtargets" | ".calltargets" | ".callprototype" => self.table(),
            _ => {
                let linkage = self.linkage();
                let prefix = self.prefix()?;
                // The words of a declaration come in any order: `.b64 .reg %rd<9>;`.
                if prefix.space == Space::Reg && linkage == Linkage::Private {
                    return self.registers(&prefix);
                }
                let ids = self.variables(&prefix, linkage, Level::Body)?;
                self.body.stmts.extend(ids.into_iter().map(Stmt::Var));
                Ok(())
            }
        }
    }

    fn registers(&mut self, prefix: &Prefix) -> Parsed<()> {
        let mut decl = RegDecl { ty: prefix.ty, vector: prefix.vector, names: Vec::new() };
        loop {
            if self.token.kind != Kind::Ident {
                return Err(self.expected("the name of a register"));
            }
            let token = self.advance();
            let name = self.intern(token);
            let count = if self.eat(b'<') {
                let count = self.small("how many registers to declare")?;
                self.expect(b'>', "after the count")?;
                Some(count)
            } else {
                None
            };
            self.declare_register(&prefix.ty, prefix.vector, RegNames { name, count });
            decl.names.push(RegNames { name, count });
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';', "after the registers")?;
        let index =
            u32::try_from(self.body.reg_decls.len()).expect("fewer declarations than source bytes");
        self.body.reg_decls.push(decl);
        self.body.stmts.push(Stmt::Regs(index));
        Ok(())
    }

    fn declare_register(&mut self, ty: &Type, vector: u8, declared: RegNames) {
        let depth = self.scopes.depth();
        if let Some(count) = declared.count {
            let text = self.module.names.text(declared.name);
            self.scopes.bind_range(declared.name, text, Range { ty: *ty, vector, count, depth });
            return;
        }
        let reg =
            Reg(u32::try_from(self.body.regs.len()).expect("fewer registers than source bytes"));
        self.body.regs.push(Register { name: declared.name, ty: *ty, vector, depth });
        self.scopes.hide(self.module.names.text(declared.name));
        self.scopes.bind(declared.name, Bound::Reg(reg));
    }

    fn loc(&mut self) -> Parsed<()> {
        self.advance();
        let file = self.small("the number of a file")?;
        let line = self.small("a line number")?;
        let column = self.small("a column number")?;
        let mut loc = Loc { file, line, column, inlined: None };
        if self.eat(b',') {
            loc.inlined = Some(self.inlined()?);
        }
        let index = u32::try_from(self.body.locs.len()).expect("fewer lines than source bytes");
        self.body.locs.push(loc);
        self.body.stmts.push(Stmt::Loc(index));
        Ok(())
    }

    fn inlined(&mut self) -> Parsed<Inlined> {
        self.word("function_name")?;
        if self.token.kind != Kind::Ident {
            return Err(self.expected("the label of the function's name"));
        }
        let token = self.advance();
        let function = self.intern(token);
        let offset = if self.eat(b'+') { self.integer("an offset")? } else { 0 };
        self.expect(b',', "before `inlined_at`")?;
        self.word("inlined_at")?;
        let file = self.small("the number of a file")?;
        let line = self.small("a line number")?;
        let column = self.small("a column number")?;
        Ok(Inlined { function, offset, file, line, column })
    }

    fn word(&mut self, word: &str) -> Parsed<()> {
        if self.token.kind == Kind::Ident && self.current() == word {
            self.advance();
            return Ok(());
        }
        Err(self.expected(&format!("`{word}`")))
    }

    fn table(&mut self) -> Parsed<()> {
        let token = self.advance();
        let table = match self.text(token) {
            ".branchtargets" => Table::Branch(self.table_symbols()?),
            ".calltargets" => Table::Call(self.table_symbols()?),
            _ => {
                let returns = if self.at(b'(') { self.parameter_list(false)? } else { Vec::new() };
                self.word("_")?;
                let params = if self.at(b'(') { self.parameter_list(false)? } else { Vec::new() };
                let directives = self.directives()?;
                Table::Prototype { returns, params, directives }
            }
        };
        self.expect(b';', "after the list")?;
        let index = u32::try_from(self.body.tables.len()).expect("fewer tables than source bytes");
        self.body.tables.push(table);
        self.body.stmts.push(Stmt::Table(index));
        Ok(())
    }

    fn table_symbols(&mut self) -> Parsed<Vec<Symbol>> {
        let mut list = Vec::new();
        loop {
            list.push(self.table_symbol()?);
            if !self.eat(b',') {
                return Ok(list);
            }
        }
    }

    /// Replaces tentative labels by the labels that they became.
    fn settle_labels(&mut self) {
        let Some(settled) = self.scopes.settle_labels() else { return };
        let labels = &self.body.labels;
        let settle = |symbol: &mut Symbol| {
            if let Symbol::Label(label) = *symbol {
                *symbol = match settled[label.0 as usize] {
                    Settled::Label(label) => Symbol::Label(label),
                    Settled::Unresolved => Symbol::Unresolved(labels[label.0 as usize].name),
                };
            }
        };
        for operand in &mut self.body.operands {
            match operand {
                Operand::Symbol(symbol, _) | Operand::Mem(Base::Symbol(symbol), _) => {
                    settle(symbol)
                }
                _ => {}
            }
        }
        for table in &mut self.body.tables {
            if let Table::Branch(symbols) | Table::Call(symbols) = table {
                symbols.iter_mut().for_each(settle);
            }
        }
    }
}
