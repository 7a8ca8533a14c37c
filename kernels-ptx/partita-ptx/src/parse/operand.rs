//! Operands of instructions.

use super::lexer::{Kind, Token};
use super::{Parsed, Parser};
use crate::ir::{
    Base, Label, LabelId, Name, Op, Operand, Part, Reg, Register, Slice, Special, Symbol,
};
use crate::parse::constant::Constant;
use crate::parse::numbered::{Element, Stem};
use crate::parse::scope::{Bound, Found, Range};

/// Deepest nesting of vectors, lists and tuples.
const MAX_NESTING: u32 = 4;

/// The meaning of a name in an operand.
enum Meaning {
    Reg(Reg),
    Special(Special),
    Symbol(Symbol),
}

impl Parser<'_> {
    /// The operands up to `;`.
    pub(super) fn operands(&mut self, op: Op) -> Parsed<Slice> {
        if self.at(b';') {
            return Ok(Slice::EMPTY);
        }
        let first = self.scratch.len();
        loop {
            let operand = self.operand(op, 0)?;
            self.scratch.push(operand);
            if !self.eat(b',') {
                break;
            }
        }
        Ok(self.take_collected(first))
    }

    /// Moves what was collected since `first` to the pool.
    fn take_collected(&mut self, first: usize) -> Slice {
        let slice = self.body.add_operands(&self.scratch[first..]);
        self.scratch.truncate(first);
        slice
    }

    fn operand(&mut self, op: Op, depth: u32) -> Parsed<Operand> {
        let first = self.single(op, depth)?;
        if !self.at(b'|') {
            return Ok(first);
        }
        self.advance();
        let second = self.single(op, depth)?;
        let start = self.scratch.len();
        self.scratch.extend([first, second]);
        Ok(Operand::Pair(self.take_collected(start)))
    }

    fn single(&mut self, op: Op, depth: u32) -> Parsed<Operand> {
        let token = self.token;
        if depth > MAX_NESTING {
            return Err(self.error(token, format!("operand is nested deeper than {MAX_NESTING}")));
        }
        match token.kind {
            Kind::Ident => self.named(op),
            Kind::Number => self.immediate(),
            Kind::Punct(b'[') => self.bracket(op, depth),
            Kind::Punct(b'{') => {
                self.advance();
                Ok(Operand::Vector(self.elements(op, b'}', depth)?))
            }
            Kind::Punct(b'(') if op == Op::Call => {
                self.advance();
                Ok(Operand::List(self.elements(op, b')', depth)?))
            }
            Kind::Punct(b'!' | b'-') => self.signed(op),
            _ if self.at_constant() => self.immediate(),
            _ => Err(self.expected("an operand")),
        }
    }

    fn elements(&mut self, op: Op, close: u8, depth: u32) -> Parsed<Slice> {
        let first = self.scratch.len();
        while !self.at(close) {
            let element = self.operand(op, depth + 1)?;
            self.scratch.push(element);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(close, "or `,` after the element")?;
        Ok(self.take_collected(first))
    }

    /// `!%p`, `-%r`, or a constant expression with such a sign.
    fn signed(&mut self, op: Op) -> Parsed<Operand> {
        let sign = self.token;
        let before = self.lexer.clone();
        self.advance();
        if self.token.kind != Kind::Ident || self.current() == "WARP_SZ" {
            self.lexer = before;
            self.token = sign;
            return self.immediate();
        }
        let token = self.token;
        match (sign.kind, self.named(op)?) {
            (Kind::Punct(b'!'), Operand::Reg(reg)) => Ok(Operand::Not(reg)),
            (Kind::Punct(b'-'), Operand::Reg(reg)) => Ok(Operand::Neg(reg)),
            _ => Err(self.error(token, "expected a register after the sign")),
        }
    }

    fn immediate(&mut self) -> Parsed<Operand> {
        Ok(match self.constant()? {
            Constant::Signed(value) => Operand::Int(value.cast_unsigned()),
            Constant::Unsigned(value) => Operand::Uint(value),
            Constant::Double(value) => Operand::F64(value.to_bits()),
            Constant::Single(bits) => Operand::F32(bits),
        })
    }

    /// An operand that begins with a name.
    fn named(&mut self, op: Op) -> Parsed<Operand> {
        let token = self.token;
        match self.current() {
            text if text.starts_with('%') => {}
            "_" => {
                self.advance();
                return Ok(Operand::Sink);
            }
            "WARP_SZ" => return self.immediate(),
            _ => {}
        }
        self.advance();
        match self.meaning(token) {
            Meaning::Reg(reg) => {
                if self.token.kind == Kind::Dotted && self.token.start == token.end {
                    let part = self.part();
                    return Ok(Operand::Part { reg, part });
                }
                Ok(Operand::Reg(reg))
            }
            Meaning::Special(special) => {
                let adjacent = self.token.kind == Kind::Dotted && self.token.start == token.end;
                let part = if adjacent { self.part() } else { Part::Whole };
                Ok(Operand::Special(special, part))
            }
            Meaning::Symbol(symbol) => {
                if self.at(b'[') {
                    let offset = self.index_offset(symbol)?;
                    // An indexed array is an address in `mov`, and the element elsewhere.
                    return Ok(match op {
                        Op::Mov | Op::Cvta => Operand::Symbol(symbol, offset),
                        _ => Operand::Mem(Base::Symbol(symbol), offset),
                    });
                }
                let offset = self.offset()?;
                Ok(Operand::Symbol(symbol, offset))
            }
        }
    }

    fn part(&mut self) -> Part {
        let token = self.advance();
        let text = self.lexer.text(token);
        Part::from_text(&text[1..], &mut self.module.names)
    }

    /// `arr[3]`, in bytes.
    fn index_offset(&mut self, symbol: Symbol) -> Parsed<i32> {
        self.advance();
        let token = self.token;
        let index = self.integer("an index")?;
        self.expect(b']', "after the index")?;
        let element = match symbol {
            Symbol::Var(id) => self.module.var(id).element_bytes(),
            _ => 1,
        };
        let bytes =
            index.checked_mul(element.cast_signed()).and_then(|bytes| i32::try_from(bytes).ok());
        match bytes {
            Some(bytes) => Ok(bytes),
            None => Err(self.error(token, "expected an index whose byte offset has 32 bits")),
        }
    }

    /// `+8`, `+-8` or `-8` behind a base; 0 when there is none.
    fn offset(&mut self) -> Parsed<i32> {
        let negative = self.at(b'-');
        if !negative && !self.eat(b'+') {
            return Ok(0);
        }
        let token = self.token;
        let value = self.integer("an offset in bytes")?;
        // An unsigned spelling of a negative offset is the same 32 bits.
        match i32::try_from(value).or_else(|_| u32::try_from(value).map(u32::cast_signed)) {
            Ok(value) => Ok(value),
            Err(_) => Err(self.error(token, "expected an offset of 32 bits")),
        }
    }

    /// `[…]`
    fn bracket(&mut self, op: Op, depth: u32) -> Parsed<Operand> {
        self.advance();
        let (element, address) = self.address(op, depth)?;
        if self.at(b',') {
            let first = self.scratch.len();
            self.scratch.push(element);
            while self.eat(b',') {
                let element = self.single(op, depth + 1)?;
                self.scratch.push(element);
            }
            self.expect(b']', "after the coordinates")?;
            return Ok(Operand::Tuple(self.take_collected(first)));
        }
        self.expect(b']', "after the address")?;
        Ok(address)
    }

    /// The first part of a bracket, both as an element of a tuple and as an address.
    fn address(&mut self, op: Op, depth: u32) -> Parsed<(Operand, Operand)> {
        let token = self.token;
        if token.kind != Kind::Ident || self.at_constant() {
            if self.at(b'{') {
                let element = self.single(op, depth + 1)?;
                return Ok((element, element));
            }
            if !self.at_constant() {
                return Err(self.expected("an address: a register, a variable or a number"));
            }
            let value = self.integer("an address")?.cast_unsigned();
            return Ok((Operand::Int(value), Operand::Absolute(value)));
        }
        self.advance();
        match self.meaning(token) {
            Meaning::Reg(reg) => {
                let offset = self.offset()?;
                let element =
                    if offset == 0 { Operand::Reg(reg) } else { Operand::RegPlus(reg, offset) };
                Ok((element, Operand::Mem(Base::Reg(reg), offset)))
            }
            Meaning::Symbol(symbol) => {
                let indexed = if self.at(b'[') { self.index_offset(symbol)? } else { 0 };
                let offset = self.offset()?.wrapping_add(indexed);
                Ok((Operand::Symbol(symbol, offset), Operand::Mem(Base::Symbol(symbol), offset)))
            }
            Meaning::Special(_) => Err(self.error(token, "a special register is no address")),
        }
    }

    #[inline]
    fn meaning(&mut self, token: Token) -> Meaning {
        match self.scopes.element(self.lexer.text(token)) {
            Some((Element::Known(reg), _)) => Meaning::Reg(reg),
            Some((Element::New(range), place)) => self.first_use(token, range, place),
            None => self.looked_up(token),
        }
    }

    fn first_use(&mut self, token: Token, range: Range, place: (Stem, u32)) -> Meaning {
        let name = self.intern(token);
        if self.scopes.in_function(name).is_some() {
            return self.looked_up(token);
        }
        let reg = self.element(name, range);
        self.scopes.note_element(place, reg);
        Meaning::Reg(reg)
    }

    fn looked_up(&mut self, token: Token) -> Meaning {
        let name = self.intern(token);
        match self.scopes.find(name, &self.module.names) {
            Found::Bound(Bound::Reg(reg)) => Meaning::Reg(reg),
            Found::Bound(Bound::Var(id)) => Meaning::Symbol(Symbol::Var(id)),
            Found::Bound(Bound::Func(id)) => Meaning::Symbol(Symbol::Func(id)),
            Found::Bound(Bound::Label(id)) => Meaning::Symbol(Symbol::Label(id)),
            Found::Element(range) => Meaning::Reg(self.element(name, range)),
            Found::Nothing => match Special::from_text(self.text(token)) {
                Some(special) => Meaning::Special(special),
                None => Meaning::Symbol(self.unknown(name, token)),
            },
        }
    }

    /// The first use of a register of a range.
    fn element(&mut self, name: Name, range: Range) -> Reg {
        let reg =
            Reg(u32::try_from(self.body.regs.len()).expect("fewer registers than source bytes"));
        self.body.regs.push(Register {
            name,
            ty: range.ty,
            vector: range.vector,
            depth: range.depth,
        });
        self.scopes.bind_element(name, range, reg);
        reg
    }

    /// A name that means nothing so far: a label that may come, unless it is spelt like a register.
    fn unknown(&mut self, name: Name, token: Token) -> Symbol {
        if self.text(token).starts_with('%') {
            return Symbol::Unresolved(name);
        }
        Symbol::Label(self.label_used(name))
    }

    fn label_used(&mut self, name: Name) -> LabelId {
        let label = self.next_label();
        self.body.labels.push(Label { name, pos: crate::ir::Pos::default() });
        self.scopes.tentative_label(name, label);
        label
    }

    pub(super) fn next_label(&self) -> LabelId {
        LabelId(u32::try_from(self.body.labels.len()).expect("fewer labels than source bytes"))
    }

    /// A register after `@` or `@!`.
    pub(super) fn guard_register(&mut self) -> Parsed<Reg> {
        if self.token.kind != Kind::Ident {
            return Err(self.expected("a predicate register"));
        }
        let token = self.advance();
        match self.meaning(token) {
            Meaning::Reg(reg) => Ok(reg),
            _ => Err(self.error(token, "expected a predicate register declared by `.reg .pred`")),
        }
    }

    /// A label or function in a table.
    pub(super) fn table_symbol(&mut self) -> Parsed<Symbol> {
        if self.token.kind != Kind::Ident {
            return Err(self.expected("a name"));
        }
        let token = self.advance();
        match self.meaning(token) {
            Meaning::Symbol(symbol) => Ok(symbol),
            _ => Err(self.error(token, "expected a label or a function, found a register")),
        }
    }
}
