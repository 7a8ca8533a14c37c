//! The intermediate representation: PTX as data.
//!
//! # What it means
//!
//! A [`Module`] is one PTX source: version, target, address size, and items in source order,
//! because PTX declares before it uses. Everything is owned; ids are `u32` indices into pools:
//!
//! - [`Name`] is an interned text of the module.
//! - [`FormId`] is an opcode with its modifiers. A decoder works per form, not per instruction.
//! - [`VarId`] and [`FuncId`] index the module's variables and functions; parameters and
//!   function-local variables are variables of the module too, and known there by the function's
//!   `params` and by `Stmt::Var`.
//! - [`Reg`] and [`LabelId`] belong to one [`Body`]. A register's id is the same wherever its scope
//!   reaches, and differs from that of a register of the same spelling in another scope.
//!
//! # Invariants, once [`crate::verify()`] has passed
//!
//! Names are resolved, labels exist, `Open` and `Close` balance, slices lie inside their pools,
//! known opcodes have operands of the right number and kind. After that a pass may refuse, but
//! never panics.
//!
//! # What it leaves alone
//!
//! It does not know what an instruction does beyond what the tables in [`form`] and the passes
//! need; comments and blank lines are gone; numbers are values (`0x10` prints as `16`); constant
//! expressions are folded.

pub mod form;
pub mod function;
pub mod names;
pub mod operand;
pub mod types;
pub mod variable;

pub use form::{Form, FormId, Forms, Mod, Op};
pub use function::{
    Body, Directive, Function, FunctionKind, Guard, Inlined, Inst, Label, LabelId, Loc, Reg,
    RegDecl, RegNames, Register, Stmt, Table,
};
pub(crate) use names::range_stems;
pub use names::{Name, Names};
pub use operand::{Base, Operand, Slice, Symbol};
pub use types::{Part, Space, Special, Type};
pub use variable::{Dim, Init, Linkage, Pointer, Variable};

use crate::stop::Stop;

/// A place in the source, both counted from 1. Zero when a pass made the thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pos {
    /// Line.
    pub line: u32,
    /// Column in bytes.
    pub col: u32,
}

/// A variable of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(pub u32);

/// A function of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncId(pub u32);

/// `.version major.minor`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

/// Something at module level, in source order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A function, declared or defined.
    Function(FuncId),
    /// A variable.
    Variable(VarId),
    /// `.file 1 "a.cu"`, verbatim.
    File(Name),
    /// `.section .debug_str { … }`, verbatim.
    Section(Name),
    /// `.alias new, old;`
    Alias {
        /// The new name, declared before.
        alias: FuncId,
        /// The function that it stands for.
        target: Symbol,
    },
    /// `.pragma "…";`, the strings as written with their quotes.
    Pragma(Name),
    /// `@@DWARF …`, a line of the old debug form, verbatim.
    Dwarf(Name),
}

/// One PTX source.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// All texts.
    pub names: Names,
    /// All opcode-with-modifier spellings.
    pub forms: Forms,
    /// `.version`
    pub version: Version,
    /// `.target`: the architecture and then options.
    pub target: Vec<Name>,
    /// `.address_size`; 32 when absent.
    pub address_size: Option<u32>,
    /// The items after the directives, in order.
    pub items: Vec<Item>,
    /// Variables by id.
    pub vars: Vec<Variable>,
    /// Functions by id.
    pub funcs: Vec<Function>,
    /// When work on the module ends early.
    pub stop: Stop,
}

impl Module {
    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: Name) -> &str {
        self.names.text(name)
    }

    /// The words of an instruction's opcode.
    #[must_use]
    pub fn form(&self, inst: &Inst) -> &Form {
        &self.forms[inst.form]
    }

    /// The state space of an access: what the form says, else that of the variable whose name is
    /// the address. `None` for a generic address.
    ///
    /// So does ptxas: it makes `ld.u32 r, [s]` an `LDS` where `s` is a shared variable.
    #[must_use]
    pub fn access_space(&self, body: &Body, inst: &Inst) -> Option<Space> {
        let form = self.form(inst);
        form.space().or_else(|| {
            let mut bases = body.operands(inst.operands).iter();
            bases.find_map(|operand| match *operand {
                Operand::Mem(Base::Symbol(Symbol::Var(id)), _) => Some(self.var(id).space),
                _ => None,
            })
        })
    }

    /// The variable of an id.
    #[must_use]
    pub fn var(&self, id: VarId) -> &Variable {
        &self.vars[id.0 as usize]
    }

    /// The function of an id.
    #[must_use]
    pub fn func(&self, id: FuncId) -> &Function {
        &self.funcs[id.0 as usize]
    }

    /// The function of that name, its definition if the module has one, else its declaration.
    #[must_use]
    pub fn function_named(&self, name: &str) -> Option<FuncId> {
        let name = self.names.get(name)?;
        let mut declared = None;
        for (index, function) in self.funcs.iter().enumerate() {
            if function.name == name {
                let id = FuncId(u32::try_from(index).expect("counted by u32"));
                if function.body.is_some() {
                    return Some(id);
                }
                declared = declared.or(Some(id));
            }
        }
        declared
    }

    /// The defining function for a declaration, itself when it is one; `None` when the module only
    /// declares it.
    #[must_use]
    pub fn definition(&self, id: FuncId) -> Option<FuncId> {
        let function = self.func(id);
        if function.body.is_some() { Some(id) } else { function.definition }
    }

    /// Links prototypes and definitions to each other.
    pub(crate) fn find_definitions(&mut self) {
        if self.funcs.iter().all(|function| function.body.is_some()) {
            return;
        }
        let mut defined = vec![None; self.names.len()];
        for (index, function) in self.funcs.iter().enumerate().rev() {
            if function.body.is_some() {
                defined[function.name.index()] =
                    Some(FuncId(u32::try_from(index).expect("counted by u32")));
            }
        }
        for index in 0..self.funcs.len() {
            let id = FuncId(u32::try_from(index).expect("counted by u32"));
            if self.func(id).body.is_some() {
                continue;
            }
            let definition = defined[self.func(id).name.index()];
            self.funcs[index].definition = definition;
            if let Some(definition) = definition {
                self.funcs[definition.0 as usize].prototypes.push(id);
            }
        }
    }

    /// `sm_90a` as 90; `None` when the target is not an `sm_` or `compute_` one.
    #[must_use]
    pub fn sm(&self) -> Option<u32> {
        let text = self.text(*self.target.first()?);
        let digits = text.strip_prefix("sm_").or_else(|| text.strip_prefix("compute_"))?;
        digits.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()
    }

    /// Adds a variable to the pool; the caller declares it.
    pub fn add_var(&mut self, variable: Variable) -> VarId {
        self.vars.push(variable);
        VarId(u32::try_from(self.vars.len() - 1).expect("fewer variables than source bytes"))
    }
}
