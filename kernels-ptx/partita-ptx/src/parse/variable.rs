//! Variables, parameters, and initialisers.

use super::lexer::Kind;
use super::{MAX_DEPTH, Parsed, Parser};
use crate::ir::{
    Dim, Init, Linkage, Name, Pointer, Pos, Reg, Register, Space, Symbol, Type, VarId, Variable,
};
use crate::parse::constant::Constant;
use crate::parse::scope::Bound;

/// Most variables that one `name<count>` may declare outside `.reg`.
const MAX_FAMILY: u32 = 1024;

/// The place of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Module,
    Body,
}

/// The words before a declarator.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    pub space: Space,
    pub bank: Option<u32>,
    pub align: Option<u32>,
    pub vector: u8,
    pub ty: Type,
    pub pointer: Option<Pointer>,
    pub attribute: Option<Name>,
}

impl Prefix {
    fn variable(&self, name: Name, linkage: Linkage, pos: Pos) -> Variable {
        Variable {
            name,
            space: self.space,
            bank: self.bank,
            linkage,
            align: self.align,
            vector: self.vector,
            ty: self.ty,
            dims: Vec::new(),
            pointer: self.pointer,
            attribute: self.attribute,
            init: None,
            pos,
        }
    }
}

impl Parser<'_> {
    /// `name[dims] = init, …;` after `.space .type`, at module level or inside a function.
    pub(super) fn variables(
        &mut self,
        prefix: &Prefix,
        linkage: Linkage,
        level: Level,
    ) -> Parsed<Vec<VarId>> {
        let mut ids = Vec::new();
        loop {
            self.declarator(prefix, linkage, level, &mut ids)?;
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';', "after the declaration")?;
        Ok(ids)
    }

    fn declarator(
        &mut self,
        prefix: &Prefix,
        linkage: Linkage,
        level: Level,
        ids: &mut Vec<VarId>,
    ) -> Parsed<()> {
        if self.token.kind != Kind::Ident {
            return Err(self.expected("the name of the variable"));
        }
        let token = self.advance();
        let name = self.intern(token);
        if self.eat(b'<') {
            let count_token = self.token;
            let count = self.small("how many variables to declare")?;
            self.expect(b'>', "after the count")?;
            if count > MAX_FAMILY {
                let message = format!("at most {MAX_FAMILY} variables may be declared at once");
                return Err(self.error(count_token, message));
            }
            let stem = self.text(token).to_owned();
            for number in 0..count {
                let name = self.module.names.intern(&format!("{stem}{number}"));
                let variable = prefix.variable(name, linkage, token.pos);
                ids.push(self.declare(variable, level));
            }
            return Ok(());
        }
        let mut variable = prefix.variable(name, linkage, token.pos);
        variable.dims = self.dims()?;
        // Bound before its initialiser is read: it may point to itself.
        let id = self.declare(variable, level);
        ids.push(id);
        if self.eat(b'=') {
            let init = if prefix.ty.is_opaque() && self.at(b'{') {
                self.raw_init()?
            } else {
                self.init(0)?
            };
            self.module.vars[id.0 as usize].init = Some(init);
        }
        Ok(())
    }

    fn declare(&mut self, variable: Variable, level: Level) -> VarId {
        let name = variable.name;
        let id = self.module.add_var(variable);
        if level == Level::Body {
            self.scopes.hide(self.module.names.text(name));
            self.scopes.bind(name, Bound::Var(id));
        } else if !self.declares_again(name, id) {
            self.scopes.bind_module(name, Bound::Var(id));
        }
        id
    }

    /// Whether a variable is only declared, and was defined before: its name goes on to mean the
    /// definition, whose size and alignment are known.
    fn declares_again(&self, name: Name, id: VarId) -> bool {
        let is_declared = |id: VarId| self.module.var(id).linkage == Linkage::Extern;
        let before = self.scopes.in_module(name);
        is_declared(id) && matches!(before, Some(Bound::Var(known)) if !is_declared(known))
    }

    /// `.const[2] .align 8 .attribute(.managed) .v4 .f32`, in any order after the space.
    pub(super) fn prefix(&mut self) -> Parsed<Prefix> {
        let mut space = None;
        let mut ty = None;
        let mut prefix = Prefix {
            space: Space::Global,
            bank: None,
            align: None,
            vector: 1,
            ty: Type::B32,
            pointer: None,
            attribute: None,
        };
        while self.token.kind == Kind::Dotted {
            let token = self.token;
            let word = &self.current()[1..];
            if prefix.pointer.is_some()
                && let Some(to) = Space::from_text(word)
            {
                prefix.pointer.as_mut().expect("checked above").space = Some(to);
                self.advance();
                continue;
            }
            if space.is_none()
                && let Some(found) = Space::from_text(word)
            {
                space = Some(found);
                self.advance();
                if found == Space::Const && self.eat(b'[') {
                    prefix.bank = Some(self.small("the constant bank")?);
                    self.expect(b']', "after the constant bank")?;
                }
                continue;
            }
            if ty.is_none()
                && let Some(found) = Type::from_text(word)
            {
                ty = Some(found);
                self.advance();
                continue;
            }
            self.advance();
            match word {
                "align" => {
                    let align_token = self.token;
                    let align = self.small("an alignment")?;
                    if !align.is_power_of_two() {
                        return Err(
                            self.error(align_token, "expected an alignment that is a power of two")
                        );
                    }
                    match &mut prefix.pointer {
                        Some(pointer) => pointer.align = Some(align),
                        None => prefix.align = Some(align),
                    }
                }
                "v2" => prefix.vector = 2,
                "v4" => prefix.vector = 4,
                "v8" => prefix.vector = 8,
                "ptr" => prefix.pointer = Some(Pointer { space: None, align: None }),
                "attribute" => prefix.attribute = Some(self.attribute()?),
                _ => {
                    let what = match (space, ty) {
                        (None, _) => "a state space such as `.global`",
                        (_, None) => "a type such as `.f32`",
                        _ => "a name or `.align`, `.v4`, `.ptr`, `.attribute`",
                    };
                    return Err(self.error(token, format!("expected {what}, found `.{word}`")));
                }
            }
        }
        let Some(space) = space else {
            return Err(self.expected("a state space such as `.global`"));
        };
        let Some(ty) = ty else {
            return Err(self.expected("a type such as `.f32`"));
        };
        Ok(Prefix { space, ty, ..prefix })
    }

    /// `(.managed)` as written, without the parentheses.
    pub(super) fn attribute(&mut self) -> Parsed<Name> {
        self.expect(b'(', "after `.attribute`")?;
        let start = self.token.start;
        let mut end = start;
        let mut depth = 0_u32;
        loop {
            match self.token.kind {
                Kind::Punct(b'(') => depth += 1,
                Kind::Punct(b')') if depth == 0 => break,
                Kind::Punct(b')') => depth -= 1,
                Kind::Dotted | Kind::Ident | Kind::Number | Kind::Punct(b',') => {}
                _ => return Err(self.expected("`)` after the attribute")),
            }
            end = self.advance().end;
        }
        self.advance();
        let text = self.lexer.between(start, end);
        Ok(self.module.names.intern(text))
    }

    fn dims(&mut self) -> Parsed<Vec<Dim>> {
        let mut dims = Vec::new();
        while self.eat(b'[') {
            if self.eat(b']') {
                dims.push(Dim::Open);
                continue;
            }
            let token = self.token;
            let count = self.integer("the number of elements")?;
            let Ok(count) = u64::try_from(count) else {
                return Err(self.error(token, "expected a number of elements that is not negative"));
            };
            self.expect(b']', "after the number of elements")?;
            dims.push(Dim::Count(count));
        }
        Ok(dims)
    }

    /// One parameter of a function or prototype.
    pub(super) fn parameter(&mut self, in_body: bool) -> Parsed<Variable> {
        let prefix = self.prefix()?;
        if self.token.kind != Kind::Ident {
            return Err(self.expected("the name of the parameter"));
        }
        let token = self.advance();
        let name = self.intern(token);
        let mut variable = prefix.variable(name, Linkage::Private, token.pos);
        if prefix.space == Space::Reg && in_body {
            let reg = Reg(
                u32::try_from(self.body.regs.len()).expect("fewer registers than source bytes")
            );
            self.body.regs.push(Register { name, ty: prefix.ty, vector: prefix.vector, depth: 0 });
            self.body.formals += 1;
            self.scopes.hide(self.lexer.text(token));
            self.scopes.bind(name, Bound::Reg(reg));
        }
        variable.dims = self.dims()?;
        Ok(variable)
    }

    /// `{ addr_mode_0 = wrap, … }` of a texture, sampler or surface, verbatim.
    fn raw_init(&mut self) -> Parsed<Init> {
        let start = self.token.start;
        loop {
            let token = self.advance();
            match token.kind {
                Kind::Punct(b'}') => {
                    let text = self.lexer.between(start, token.end);
                    return Ok(Init::Raw(self.module.names.intern(text)));
                }
                Kind::End | Kind::Punct(b';') => {
                    return Err(self.error(token, "expected `}` after the initial values"));
                }
                _ => {}
            }
        }
    }

    fn init(&mut self, depth: u32) -> Parsed<Init> {
        let token = self.token;
        if depth > MAX_DEPTH {
            return Err(
                self.error(token, format!("initial value is nested deeper than {MAX_DEPTH}"))
            );
        }
        match token.kind {
            Kind::Punct(b'{') => {
                self.advance();
                let mut list = Vec::new();
                while !self.at(b'}') {
                    list.push(self.init(depth + 1)?);
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b'}', "after the initial values")?;
                Ok(Init::List(list))
            }
            Kind::Text => {
                let token = self.advance();
                Ok(Init::Text(self.intern(token)))
            }
            Kind::Ident if !self.at_constant() => self.init_symbol(),
            _ => {
                let value = self.constant()?;
                let mask = match value {
                    Constant::Signed(mask) => Some(mask.cast_unsigned()),
                    Constant::Unsigned(mask) => Some(mask),
                    _ => None,
                };
                if let Some(mask) = mask
                    && self.eat(b'(')
                {
                    let inner = self.init_symbol()?;
                    self.expect(b')', "after the masked symbol")?;
                    return Ok(Init::Mask(mask, Box::new(inner)));
                }
                Ok(match value {
                    Constant::Signed(value) => Init::Int(value.cast_unsigned()),
                    Constant::Unsigned(value) => Init::Uint(value),
                    Constant::Double(value) => Init::F64(value.to_bits()),
                    Constant::Single(bits) => Init::F32(bits),
                })
            }
        }
    }

    fn init_symbol(&mut self) -> Parsed<Init> {
        if self.token.kind == Kind::Ident && self.current() == "generic" {
            self.advance();
            self.expect(b'(', "after `generic`")?;
            let symbol = self.module_symbol()?;
            let inside = self.init_offset()?;
            self.expect(b')', "after the symbol")?;
            let outside = self.init_offset()?;
            return Ok(Init::Generic(symbol, inside.wrapping_add(outside)));
        }
        let symbol = self.module_symbol()?;
        let offset = self.init_offset()?;
        Ok(Init::Symbol(symbol, offset))
    }

    fn init_offset(&mut self) -> Parsed<i64> {
        if self.eat(b'+') {
            return self.integer("an offset in bytes");
        }
        if self.at(b'-') { self.integer("an offset in bytes") } else { Ok(0) }
    }

    /// A variable or function.
    pub(super) fn module_symbol(&mut self) -> Parsed<Symbol> {
        if self.token.kind != Kind::Ident {
            return Err(self.expected("the name of a variable or function"));
        }
        let token = self.advance();
        let name = self.intern(token);
        Ok(match self.scopes.symbol(name) {
            Some(Bound::Var(id)) => Symbol::Var(id),
            Some(Bound::Func(id)) => Symbol::Func(id),
            _ => Symbol::Unresolved(name),
        })
    }
}
