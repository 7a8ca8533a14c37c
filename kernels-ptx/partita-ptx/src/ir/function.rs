//! Functions: kernels (`.entry`) and device functions (`.func`), and their bodies.
//!
//! A body is a flat list of statements. Scopes are marked by `Open` and `Close`; a label stands
//! before what it labels. The pools (operands, registers, labels, tables) belong to the body, and a
//! pass that replaces an instruction simply adds to them: nothing is ever renumbered.

use std::collections::HashMap;

use super::form::FormId;
use super::names::Name;
use super::operand::{Base, Operand, Slice, Symbol};
use super::types::Type;
use super::variable::{Linkage, Variable};
use super::{FuncId, Pos, VarId};

/// A register of one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

impl Reg {
    /// Index into [`Body::regs`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A label of one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

/// A register that the body uses. Registers that are declared and never used have no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its spelling; two registers of disjoint scopes may share one.
    pub name: Name,
    /// Its declared type.
    pub ty: Type,
    /// 1, or 2, 4, 8 for a vector register (`.reg .v4 .f32 %v`).
    pub vector: u8,
    /// Depth of the scope that declares it; 0 is the function's own.
    pub depth: u16,
}

/// A label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its spelling; two labels of disjoint scopes may share one.
    pub name: Name,
    /// Where it stands.
    pub pos: Pos,
}

/// One declarator of a `.reg` statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegNames {
    /// The name, or the stem of a range.
    pub name: Name,
    /// `<n>`: declares `stem0` to `stem(n-1)`.
    pub count: Option<u32>,
}

/// A `.reg` statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegDecl {
    /// Type of each.
    pub ty: Type,
    /// 1, or 2, 4, 8.
    pub vector: u8,
    /// The registers that the statement declares.
    pub names: Vec<RegNames>,
}

/// The predicate before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The predicate register.
    pub reg: Reg,
    /// `@!p`
    pub negated: bool,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inst {
    /// `@p`
    pub guard: Option<Guard>,
    /// Opcode and modifiers: [`crate::Module::form`] gives the words.
    pub form: FormId,
    /// Operands, destination first; [`Body::operands`] gives them.
    pub operands: Slice,
    /// Where it stands in the source; zero when a pass made it.
    pub pos: Pos,
}

/// `.loc`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Index of a `.file`.
    pub file: u32,
    /// Line there.
    pub line: u32,
    /// Column there.
    pub column: u32,
    /// The function that was inlined and the place of the call.
    pub inlined: Option<Inlined>,
}

/// `, function_name label+offset, inlined_at file line column`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inlined {
    /// A label in the section `.debug_str`, or the function's name.
    pub function: Name,
    /// Offset from it.
    pub offset: i64,
    /// Index of a `.file`.
    pub file: u32,
    /// Line there.
    pub line: u32,
    /// Column there.
    pub column: u32,
}

/// A `.branchtargets`, `.calltargets` or `.callprototype` after its label.
#[derive(Clone, Debug, PartialEq)]
pub enum Table {
    /// Labels that a `brx.idx` may go to, in order.
    Branch(Vec<Symbol>),
    /// Functions that an indirect call may reach.
    Call(Vec<Symbol>),
    /// The shape of an indirect call.
    Prototype {
        /// Results.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
        /// `.noreturn`, `.abi_preserve` …
        directives: Vec<Directive>,
    },
}

/// One statement of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stmt {
    /// An instruction.
    Inst(Inst),
    /// `label:`
    Label(LabelId),
    /// `{`
    Open,
    /// `}`
    Close,
    /// `.reg`: index into [`Body::reg_decls`].
    Regs(u32),
    /// A variable.
    Var(VarId),
    /// `.loc`: index into [`Body::locs`].
    Loc(u32),
    /// Index into [`Body::tables`]; its label comes right before.
    Table(u32),
    /// `.pragma "…";`, the strings as written with their quotes.
    Pragma(Name),
}

/// The body of a function.
#[derive(Debug, Default)]
pub struct Body {
    /// The statements in order.
    pub stmts: Vec<Stmt>,
    /// Pool that instructions and operands point into.
    pub operands: Vec<Operand>,
    /// Registers by id.
    pub regs: Vec<Register>,
    /// How many of the first registers are the function's own `.reg` results and parameters, in
    /// this order.
    pub formals: u32,
    /// Labels by id.
    pub labels: Vec<Label>,
    /// `.reg` statements.
    pub reg_decls: Vec<RegDecl>,
    /// `.loc` statements.
    pub locs: Vec<Loc>,
    /// Branch, call and prototype tables.
    pub tables: Vec<Table>,
}

/// Bodies are copied to be rewritten, so a copy's pools have room for what is added first: at most
/// as much as they have, for a module may have very many small bodies.
impl Clone for Body {
    fn clone(&self) -> Self {
        fn with_room<T: Clone>(pool: &[T], room: usize) -> Vec<T> {
            let mut copy = Vec::with_capacity(pool.len() + room.min(pool.len()));
            copy.extend_from_slice(pool);
            copy
        }
        Self {
            stmts: self.stmts.clone(),
            operands: with_room(&self.operands, 1 << 10),
            regs: with_room(&self.regs, 32),
            formals: self.formals,
            labels: with_room(&self.labels, 32),
            reg_decls: with_room(&self.reg_decls, 8),
            locs: self.locs.clone(),
            tables: self.tables.clone(),
        }
    }
}

impl Body {
    /// Empties the pools and keeps their room.
    pub(crate) fn clear(&mut self) {
        let Self { stmts, operands, regs, formals, labels, reg_decls, locs, tables } = self;
        *formals = 0;
        stmts.clear();
        operands.clear();
        regs.clear();
        labels.clear();
        reg_decls.clear();
        locs.clear();
        tables.clear();
    }

    /// The depth of the outermost register of each name.
    pub(crate) fn outermost(&self) -> HashMap<Name, u16> {
        let mut outermost = HashMap::new();
        for reg in &self.regs {
            let depth = outermost.entry(reg.name).or_insert(reg.depth);
            *depth = reg.depth.min(*depth);
        }
        outermost
    }

    /// A copy without spare room; contents that own memory are moved.
    pub(crate) fn exact(&mut self) -> Self {
        Self {
            stmts: self.stmts.clone(),
            operands: self.operands.clone(),
            regs: self.regs.clone(),
            formals: self.formals,
            labels: self.labels.clone(),
            reg_decls: std::mem::take(&mut self.reg_decls),
            locs: self.locs.clone(),
            tables: std::mem::take(&mut self.tables),
        }
    }

    /// The operands of an instruction, or the parts of a vector, list, tuple or pair.
    #[must_use]
    pub fn operands(&self, slice: Slice) -> &[Operand] {
        &self.operands[slice.range()]
    }

    /// The register's declaration.
    #[must_use]
    pub fn reg(&self, reg: Reg) -> &Register {
        &self.regs[reg.index()]
    }

    /// Whether the register is a result or parameter of the function.
    #[must_use]
    pub fn is_formal(&self, reg: Reg) -> bool {
        reg.0 < self.formals
    }

    /// Adds operands to the pool.
    pub fn add_operands(&mut self, operands: &[Operand]) -> Slice {
        let start = u32::try_from(self.operands.len()).expect("fewer operands than source bytes");
        self.operands.extend_from_slice(operands);
        Slice { start, len: u32::try_from(operands.len()).expect("as above") }
    }

    /// Calls `tell` with each register that an instruction may write: destinations come first (PTX
    /// ISA, "Instruction Statements").
    pub(crate) fn each_result(&self, inst: &Inst, tell: &mut impl FnMut(Reg)) {
        if let Some(&first) = self.operands(inst.operands).first()
            && !matches!(first, Operand::Mem(..))
        {
            self.each_reg(first, tell);
        }
    }

    /// Calls `tell` with each register of an operand.
    pub(crate) fn each_reg(&self, operand: Operand, tell: &mut impl FnMut(Reg)) {
        match operand {
            Operand::Reg(reg)
            | Operand::Part { reg, .. }
            | Operand::Not(reg)
            | Operand::Neg(reg)
            | Operand::RegPlus(reg, _)
            | Operand::Mem(Base::Reg(reg), _) => tell(reg),
            Operand::Vector(slice)
            | Operand::List(slice)
            | Operand::Tuple(slice)
            | Operand::Pair(slice) => {
                self.operands(slice).iter().for_each(|part| self.each_reg(*part, tell));
            }
            _ => {}
        }
    }

    /// The instructions in order, with their indices among the statements.
    pub fn insts(&self) -> impl Iterator<Item = (usize, &Inst)> {
        self.stmts.iter().enumerate().filter_map(|(index, stmt)| match stmt {
            Stmt::Inst(inst) => Some((index, inst)),
            _ => None,
        })
    }
}

/// Kernel or device function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// `.entry`
    Entry,
    /// `.func`
    Func,
}

/// A directive between a function's parameters and its body: `.maxntid 256, 1, 1`, `.noreturn`,
/// `.pragma "…"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The word without its dot.
    pub name: Name,
    /// Numbers after it.
    pub values: Vec<u32>,
    /// Strings after it, with their quotes (`.pragma`).
    pub text: Option<Name>,
    /// Where it stands.
    pub pos: Pos,
}

/// A function, declared or defined.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: Name,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Linkage.
    pub linkage: Linkage,
    /// `.attribute(…)` verbatim, parentheses excluded.
    pub attribute: Option<Name>,
    /// Result parameters of a `.func`.
    pub returns: Vec<VarId>,
    /// Parameters.
    pub params: Vec<VarId>,
    /// Performance and ABI directives in order.
    pub directives: Vec<Directive>,
    /// `None` for a prototype.
    pub body: Option<Body>,
    /// For a prototype, the function that defines it, if the module has one.
    pub definition: Option<FuncId>,
    /// For a definition, its prototypes.
    pub prototypes: Vec<FuncId>,
    /// Where its name stands.
    pub pos: Pos,
    /// Its bytes in the source, from the word of its kind to its end. A copy has those of the
    /// function that it was made from.
    pub span: (u32, u32),
}
