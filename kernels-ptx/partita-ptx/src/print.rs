//! Prints a [`Module`] as text, from which `ptxas` makes the same machine code as from the
//! original.
//!
//! The text is canonical: one statement a line, numbers as values (integers in decimal, fractions
//! as bits), no comments. Texts that the module carries verbatim (sections, attributes, pragmas)
//! are printed verbatim. Printing a text that was printed and parsed again gives the same text.

use crate::ir::{
    Base, Body, Dim, Directive, Function, FunctionKind, Init, Inst, Item, Linkage, Loc, Module,
    Name, Operand, Part, Pos, Reg, RegDecl, Slice, Stmt, Symbol, Table, Variable,
};
use crate::kernels::Reach;

/// Prints a module.
#[must_use]
pub fn print(module: &Module) -> String {
    let statements: usize =
        module.funcs.iter().filter_map(|f| f.body.as_ref()).map(|b| b.stmts.len()).sum();
    let mut printer = Printer::new(module, Vec::with_capacity(1024 + statements * 36));
    printer.module();
    printer.finish()
}

/// A printed module, and where its lines came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// The text.
    pub text: String,
    /// For each line of the text the line of the source that its instruction or the name of its
    /// function stood in, 0 where it came from none.
    pub lines: Vec<u32>,
}

/// Prints a module as [`print()`] does, with the lines of its source.
#[must_use]
pub fn print_with_lines(module: &Module) -> Printed {
    let mut printer = Printer::new(module, Vec::new());
    printer.places = Some(Places::default());
    printer.module();
    let lines = printer.lines();
    Printed { text: printer.finish(), lines }
}

/// Prints a kernel with the functions in its reach: the same text for the same code, whatever else
/// is in the module.
#[must_use]
pub fn print_kernel(module: &Module, reach: &Reach) -> String {
    let mut printer = Printer::new(module, Vec::new());
    for &id in &reach.funcs {
        printer.function(module.func(id));
    }
    printer.finish()
}

/// Prints the declaration of a variable, with its `;`.
pub(crate) fn print_variable(module: &Module, variable: &Variable) -> String {
    let mut printer = Printer::new(module, Vec::new());
    printer.variable(variable);
    printer.text(";\n");
    printer.finish()
}

/// Prints what comes before the items of a module.
pub(crate) fn print_head(module: &Module) -> String {
    let mut printer = Printer::new(module, Vec::new());
    printer.head();
    printer.finish()
}

/// The words before a function or a variable that say how other modules see it.
pub(crate) const fn linkage_text(linkage: Linkage) -> &'static str {
    match linkage {
        Linkage::Private => "",
        Linkage::Extern => ".extern ",
        Linkage::Visible => ".visible ",
        Linkage::Weak => ".weak ",
        Linkage::Common => ".common ",
    }
}

/// Prints one instruction, for messages.
#[must_use]
pub fn print_inst(module: &Module, body: &Body, inst: &Inst) -> String {
    let mut printer = Printer::new(module, Vec::new());
    printer.inst(body, inst);
    printer.finish()
}

struct Printer<'m> {
    module: &'m Module,
    out: Vec<u8>,
    /// Where the lines come from, if anybody asks.
    places: Option<Places>,
}

/// The source's lines by those of the printed text.
#[derive(Default)]
struct Places {
    lines: Vec<u32>,
    /// The current line of the text, from 0, and the bytes in which it was counted.
    line: usize,
    counted: usize,
}

impl<'m> Printer<'m> {
    fn new(module: &'m Module, out: Vec<u8>) -> Self {
        Self { module, out, places: None }
    }

    /// What comes next stood at `pos` in the source.
    #[inline]
    fn place(&mut self, pos: Pos) {
        let Some(places) = &mut self.places else { return };
        places.count(&self.out);
        places.lines.resize(places.line + 1, 0);
        places.lines[places.line] = pos.line;
    }

    /// The source's line for each line of the text so far.
    fn lines(&mut self) -> Vec<u32> {
        let Some(mut places) = self.places.take() else { return Vec::new() };
        places.count(&self.out);
        let is_open = self.out.last().is_some_and(|last| *last != b'\n');
        places.lines.resize(places.line + usize::from(is_open), 0);
        places.lines
    }
}

impl Places {
    fn count(&mut self, out: &[u8]) {
        self.line += out[self.counted..].iter().filter(|byte| **byte == b'\n').count();
        self.counted = out.len();
    }
}

impl Printer<'_> {
    fn finish(self) -> String {
        String::from_utf8(self.out).expect("whole names and ASCII")
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn name(&mut self, name: Name) {
        self.out.extend_from_slice(self.module.names.bytes(name));
    }

    fn unsigned(&mut self, mut value: u64) {
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            let digit = (value % 10) as u8;
            digits[at] = b'0' + digit;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.out.extend_from_slice(&digits[at..]);
    }

    fn signed(&mut self, value: i64) {
        if value < 0 {
            self.out.push(b'-');
        }
        self.unsigned(value.unsigned_abs());
    }

    fn hex(&mut self, value: u64, digits: u32) {
        for digit in (0..digits).rev() {
            let nibble = (value >> (4 * digit)) & 15;
            self.out.push(b"0123456789ABCDEF"[usize::try_from(nibble).expect("below 16")]);
        }
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            each(self, item);
        }
    }

    fn head(&mut self) {
        let module = self.module;
        self.text(".version ");
        self.unsigned(module.version.major.into());
        self.text(".");
        self.unsigned(module.version.minor.into());
        if !module.target.is_empty() {
            self.text("\n.target ");
            self.list(&module.target, |this, &name| this.name(name));
        }
        if let Some(size) = module.address_size {
            self.text("\n.address_size ");
            self.unsigned(size.into());
        }
        self.text("\n");
    }

    fn module(&mut self) {
        self.head();
        let module = self.module;
        for item in &module.items {
            self.text("\n");
            match item {
                Item::Function(id) => self.function(module.func(*id)),
                Item::Variable(id) => {
                    self.variable(module.var(*id));
                    self.text(";\n");
                }
                Item::File(text) | Item::Section(text) | Item::Dwarf(text) => {
                    self.name(*text);
                    self.text("\n");
                }
                Item::Alias { alias, target } => {
                    self.text(".alias ");
                    self.name(module.func(*alias).name);
                    self.text(", ");
                    self.symbol(None, *target);
                    self.text(";\n");
                }
                Item::Pragma(text) => self.pragma("", *text),
            }
        }
    }

    fn pragma(&mut self, indent: &str, text: Name) {
        self.text(indent);
        self.text(".pragma ");
        self.name(text);
        self.text(";\n");
    }

    fn linkage(&mut self, linkage: Linkage) {
        self.text(linkage_text(linkage));
    }

    fn attribute(&mut self, attribute: Option<Name>) {
        if let Some(text) = attribute {
            self.text(".attribute(");
            self.name(text);
            self.text(") ");
        }
    }

    fn function(&mut self, function: &Function) {
        self.linkage(function.linkage);
        self.text(match function.kind {
            FunctionKind::Entry => ".entry ",
            FunctionKind::Func => ".func ",
        });
        self.attribute(function.attribute);
        let module = self.module;
        if !function.returns.is_empty() {
            self.text("(");
            self.list(&function.returns, |this, &id| this.variable(module.var(id)));
            self.text(") ");
        }
        if function.body.is_some() {
            self.place(function.pos);
        }
        self.name(function.name);
        self.text("(");
        for (index, &id) in function.params.iter().enumerate() {
            self.text(if index == 0 { "\n\t" } else { ",\n\t" });
            self.variable(module.var(id));
        }
        self.text(if function.params.is_empty() { ")" } else { "\n)" });
        for directive in &function.directives {
            self.text("\n");
            self.directive(directive);
        }
        let Some(body) = &function.body else {
            self.text(";\n");
            return;
        };
        self.text("\n{\n");
        for stmt in &body.stmts {
            self.stmt(body, stmt);
        }
        self.text("}\n");
    }

    fn directive(&mut self, directive: &Directive) {
        self.text(".");
        self.name(directive.name);
        if let Some(text) = directive.text {
            self.text(" ");
            self.name(text);
            self.text(";");
        } else if !directive.values.is_empty() {
            self.text(" ");
            self.list(&directive.values, |this, &value| this.unsigned(value.into()));
        }
    }

    fn variable(&mut self, variable: &Variable) {
        self.linkage(variable.linkage);
        self.text(".");
        self.text(variable.space.text());
        if let Some(bank) = variable.bank {
            self.text("[");
            self.unsigned(bank.into());
            self.text("]");
        }
        self.text(" ");
        self.attribute(variable.attribute);
        self.align(variable.align);
        if variable.vector > 1 {
            self.text(".v");
            self.unsigned(variable.vector.into());
            self.text(" ");
        }
        self.text(".");
        self.text(variable.ty.text());
        self.text(" ");
        if let Some(pointer) = variable.pointer {
            self.text(".ptr ");
            if let Some(space) = pointer.space {
                self.text(".");
                self.text(space.text());
                self.text(" ");
            }
            self.align(pointer.align);
        }
        self.name(variable.name);
        for dim in &variable.dims {
            self.text("[");
            if let Dim::Count(count) = dim {
                self.unsigned(*count);
            }
            self.text("]");
        }
        if let Some(init) = &variable.init {
            self.text(" = ");
            self.init(init);
        }
    }

    fn align(&mut self, align: Option<u32>) {
        if let Some(align) = align {
            self.text(".align ");
            self.unsigned(align.into());
            self.text(" ");
        }
    }

    fn init(&mut self, init: &Init) {
        match init {
            Init::List(list) => {
                self.text("{");
                self.list(list, |this, init| this.init(init));
                self.text("}");
            }
            Init::Int(value) => self.signed(value.cast_signed()),
            Init::Uint(value) => self.unsigned_constant(*value),
            Init::F32(bits) => self.single(*bits),
            Init::F64(bits) => self.double(*bits),
            Init::Text(text) | Init::Raw(text) => self.name(*text),
            Init::Symbol(symbol, offset) => {
                self.symbol(None, *symbol);
                self.offset(*offset);
            }
            Init::Generic(symbol, offset) => {
                self.text("generic(");
                self.symbol(None, *symbol);
                self.text(")");
                self.offset(*offset);
            }
            Init::Mask(mask, init) => {
                self.text("0x");
                self.hex(*mask, (16 - mask.leading_zeros() / 4).max(1));
                self.text("(");
                self.init(init);
                self.text(")");
            }
        }
    }

    fn unsigned_constant(&mut self, value: u64) {
        self.unsigned(value);
        self.text("U");
    }

    fn single(&mut self, bits: u32) {
        self.text("0f");
        self.hex(bits.into(), 8);
    }

    fn double(&mut self, bits: u64) {
        self.text("0d");
        self.hex(bits, 16);
    }

    fn offset(&mut self, offset: i64) {
        if offset != 0 {
            self.text("+");
            self.signed(offset);
        }
    }

    fn symbol(&mut self, body: Option<&Body>, symbol: Symbol) {
        let name = match (symbol, body) {
            (Symbol::Var(id), _) => self.module.var(id).name,
            (Symbol::Func(id), _) => self.module.func(id).name,
            (Symbol::Label(id), Some(body)) => body.labels[id.0 as usize].name,
            (Symbol::Label(_), None) => unreachable!("labels are known only inside bodies"),
            (Symbol::Unresolved(name), _) => name,
        };
        self.name(name);
    }

    #[inline]
    fn stmt(&mut self, body: &Body, stmt: &Stmt) {
        match stmt {
            Stmt::Inst(inst) => {
                self.place(inst.pos);
                self.text("\t");
                self.inst(body, inst);
                self.text(";\n");
            }
            Stmt::Label(label) => {
                self.name(body.labels[label.0 as usize].name);
                self.text(":\n");
            }
            Stmt::Open => self.text("{\n"),
            Stmt::Close => self.text("}\n"),
            Stmt::Regs(index) => self.registers(&body.reg_decls[*index as usize]),
            Stmt::Var(id) => {
                self.text("\t");
                let module = self.module;
                self.variable(module.var(*id));
                self.text(";\n");
            }
            Stmt::Loc(index) => self.loc(&body.locs[*index as usize]),
            Stmt::Table(index) => self.table(body, &body.tables[*index as usize]),
            Stmt::Pragma(text) => self.pragma("\t", *text),
        }
    }

    fn registers(&mut self, decl: &RegDecl) {
        self.text("\t.reg ");
        if decl.vector > 1 {
            self.text(".v");
            self.unsigned(decl.vector.into());
            self.text(" ");
        }
        self.text(".");
        self.text(decl.ty.text());
        self.text(" ");
        self.list(&decl.names, |this, declared| {
            this.name(declared.name);
            if let Some(count) = declared.count {
                this.text("<");
                this.unsigned(count.into());
                this.text(">");
            }
        });
        self.text(";\n");
    }

    fn loc(&mut self, loc: &Loc) {
        self.text("\t.loc ");
        for (index, value) in [loc.file, loc.line, loc.column].into_iter().enumerate() {
            if index > 0 {
                self.text(" ");
            }
            self.unsigned(value.into());
        }
        if let Some(inlined) = &loc.inlined {
            self.text(", function_name ");
            self.name(inlined.function);
            self.offset(inlined.offset);
            self.text(", inlined_at");
            for value in [inlined.file, inlined.line, inlined.column] {
                self.text(" ");
                self.unsigned(value.into());
            }
        }
        self.text("\n");
    }

    fn table(&mut self, body: &Body, table: &Table) {
        match table {
            Table::Branch(symbols) => {
                self.text("\t.branchtargets ");
                self.list(symbols, |this, &symbol| this.symbol(Some(body), symbol));
            }
            Table::Call(symbols) => {
                self.text("\t.calltargets ");
                self.list(symbols, |this, &symbol| this.symbol(Some(body), symbol));
            }
            Table::Prototype { returns, params, directives } => {
                self.text("\t.callprototype ");
                if !returns.is_empty() {
                    self.text("(");
                    self.list(returns, Self::variable);
                    self.text(") ");
                }
                self.text("_ (");
                self.list(params, Self::variable);
                self.text(")");
                for directive in directives {
                    self.text(" ");
                    self.directive(directive);
                }
            }
        }
        self.text(";\n");
    }

    #[inline]
    fn inst(&mut self, body: &Body, inst: &Inst) {
        if let Some(guard) = inst.guard {
            self.text(if guard.negated { "@!" } else { "@" });
            self.reg(body, guard.reg);
            self.text(" ");
        }
        self.name(self.module.forms[inst.form].text);
        if inst.operands.len > 0 {
            self.text(" ");
            self.slice(body, inst.operands);
        }
    }

    #[inline]
    fn reg(&mut self, body: &Body, reg: Reg) {
        self.name(body.regs[reg.index()].name);
    }

    #[inline]
    fn slice(&mut self, body: &Body, slice: Slice) {
        self.list(body.operands(slice), |this, operand| this.operand(body, operand));
    }

    #[inline]
    fn operand(&mut self, body: &Body, operand: &Operand) {
        match *operand {
            Operand::Reg(reg) => self.reg(body, reg),
            Operand::Not(reg) => {
                self.text("!");
                self.reg(body, reg);
            }
            Operand::Neg(reg) => {
                self.text("-");
                self.reg(body, reg);
            }
            Operand::Part { reg, part } => {
                self.reg(body, reg);
                self.part(part);
            }
            Operand::Sink => self.text("_"),
            Operand::Special(special, part) => {
                let mut text = String::new();
                special.write(&mut text);
                self.text(&text);
                self.part(part);
            }
            Operand::Int(value) => self.signed(value.cast_signed()),
            Operand::Uint(value) => self.unsigned_constant(value),
            Operand::F32(bits) => self.single(bits),
            Operand::F64(bits) => self.double(bits),
            Operand::Symbol(symbol, offset) => {
                self.symbol(Some(body), symbol);
                self.offset(offset.into());
            }
            Operand::Mem(base, offset) => {
                self.text("[");
                match base {
                    Base::Reg(reg) => self.reg(body, reg),
                    Base::Symbol(symbol) => self.symbol(Some(body), symbol),
                }
                self.offset(offset.into());
                self.text("]");
            }
            Operand::Absolute(value) => {
                self.text("[");
                self.signed(value.cast_signed());
                self.text("]");
            }
            Operand::RegPlus(reg, offset) => {
                self.reg(body, reg);
                self.offset(offset.into());
            }
            Operand::Vector(slice) => self.group(body, "{", slice, "}"),
            Operand::List(slice) => self.group(body, "(", slice, ")"),
            Operand::Tuple(slice) => self.group(body, "[", slice, "]"),
            Operand::Pair(slice) => {
                let pair = body.operands(slice);
                self.operand(body, &pair[0]);
                self.text("|");
                self.operand(body, &pair[1]);
            }
        }
    }

    fn group(&mut self, body: &Body, open: &str, slice: Slice, close: &str) {
        self.text(open);
        self.slice(body, slice);
        self.text(close);
    }

    fn part(&mut self, part: Part) {
        let letter = match part {
            Part::Whole => return,
            Part::X => ".x",
            Part::Y => ".y",
            Part::Z => ".z",
            Part::W => ".w",
            Part::Other(name) => {
                self.text(".");
                self.name(name);
                return;
            }
        };
        self.text(letter);
    }
}
