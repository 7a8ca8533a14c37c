//! The places of variables, and the facts that a launcher needs of them.

use std::collections::BTreeMap;

use super::contents::{Collected, Fixup};
use super::{Addresses, wrong};
use crate::error::Errors;
use crate::ir::{Item, Linkage, Module, Name, Space, Stmt, VarId, Variable};

/// Largest block.
const MOST_BYTES: u64 = 4 << 30;

/// Blocks begin at multiples of at least this many bytes.
const ALIGNMENT: u64 = 256;

/// A part of the memory that a module's variables are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Constants: the block's beginning.
    Constant,
    /// The rest of the block.
    Block,
    /// The managed block.
    Managed,
}

/// A place in a part; constants and the rest count from the block's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub part: Part,
    pub at: u64,
}

/// A variable that has moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledVariable {
    /// Its name.
    pub name: String,
    /// Which memory.
    pub part: Part,
    /// Bytes from the beginning of the block, or of the managed block.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether its name is known outside.
    pub visible: bool,
}

/// A variable of the module that holds addresses of functions for the launcher to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    /// Its name.
    pub name: String,
    /// The copies: from an offset of the seed, to a part at an offset, so many bytes.
    pub copies: Vec<(u64, Part, u64, u64)>,
}

/// The launcher's work for a settled module. It allocates both blocks, fills them with
/// [`Layout::contents`], copies the seeds, writes the blocks' addresses to the header, and writes
/// the block's beginning to the constants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The variable with the addresses of the two blocks, 8 bytes each.
    pub header: Option<String>,
    /// The array in constant memory, where there are constants.
    pub constants: Option<String>,
    /// Its size.
    pub constant_bytes: u64,
    /// Size of the block.
    pub bytes: u64,
    /// The block's address is a multiple of this power of two.
    pub alignment: u64,
    /// Size of the managed block.
    pub managed_bytes: u64,
    /// The variables.
    pub variables: Vec<SettledVariable>,
    /// Functions whose addresses variables hold.
    pub seeds: Vec<Seed>,
    pub(super) initial: Vec<(Part, u64, Vec<u8>)>,
    pub(super) fixups: Vec<Fixup>,
}

/// The plan of a module's variables.
#[derive(Debug, Default)]
pub(super) struct Plan {
    addresses: Addresses,
    /// Definitions, in order of their places.
    pub definitions: Vec<VarId>,
    pub constant_bytes: u64,
    pub bytes: u64,
    pub managed_bytes: u64,
    pub alignment: u64,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// The new place of a variable.
    pub fn address(&self, id: VarId) -> Option<Address> {
        self.addresses.get(&id).copied()
    }

    pub fn layout(
        &self,
        module: &Module,
        header: Option<String>,
        constants: Option<String>,
        contents: Collected,
    ) -> Layout {
        let variable = |id: &VarId| {
            let variable = module.var(*id);
            let Address { part, at } = self.addresses[id];
            SettledVariable {
                name: module.text(variable.name).to_owned(),
                part,
                offset: at,
                bytes: variable.bytes().unwrap_or(0),
                visible: variable.linkage != Linkage::Private,
            }
        };
        Layout {
            header,
            constants,
            constant_bytes: self.constant_bytes,
            bytes: self.bytes,
            alignment: self.alignment,
            managed_bytes: self.managed_bytes,
            variables: self.definitions.iter().map(variable).collect(),
            seeds: contents.seeds.into_iter().map(|seed| seed.seed).collect(),
            initial: contents.initial,
            fixups: contents.fixups,
        }
    }
}

/// Whether a variable moves.
fn moves(variable: &Variable) -> bool {
    matches!(variable.space, Space::Global | Space::Const)
        && variable.bank.is_none_or(|bank| bank == 0)
        && !variable.ty.is_opaque()
}

/// Lays a module's variables out: constants first, then the rest in the order of the text.
pub(super) fn plan(module: &Module) -> Result<Plan, Errors> {
    let mut plan = Plan { alignment: ALIGNMENT, ..Plan::default() };
    let declared = |item: &Item| match *item {
        Item::Variable(id) if moves(module.var(id)) => Some(id),
        _ => None,
    };
    let all: Vec<VarId> = module.items.iter().filter_map(declared).collect();
    let inner =
        module.funcs.iter().filter_map(|function| function.body.as_ref()).flat_map(|body| {
            body.stmts.iter().filter_map(|stmt| match *stmt {
                Stmt::Var(id) if moves(module.var(id)) => Some(id),
                _ => None,
            })
        });
    let inner: Vec<VarId> = inner.collect();
    let is_defined = |id: &VarId| {
        let variable = module.var(*id);
        variable.linkage != Linkage::Extern || variable.init.is_some()
    };
    for constant in [true, false] {
        let here = |id: &&VarId| (module.var(**id).space == Space::Const) == constant;
        for &id in all.iter().filter(|id| is_defined(id)).chain(&inner).filter(here) {
            plan.place(module, id)?;
        }
        if constant {
            plan.constant_bytes = plan.bytes;
            plan.bytes = plan.bytes.next_multiple_of(ALIGNMENT);
        }
    }
    // A declaration stands for the definition of the same name.
    let defined: BTreeMap<Name, Address> =
        all.iter().filter_map(|id| Some((module.var(*id).name, plan.address(*id)?))).collect();
    for &id in &all {
        if let Some(address) = defined.get(&module.var(id).name) {
            plan.addresses.entry(id).or_insert(*address);
        }
    }
    if plan.definitions.is_empty() {
        plan.bytes = 0;
    }
    Ok(plan)
}

impl Plan {
    fn place(&mut self, module: &Module, id: VarId) -> Result<(), Errors> {
        let variable = module.var(id);
        let name = module.text(variable.name);
        let too_large =
            || wrong(variable.pos, format!("variable `{name}` has no size or is too large"));
        let bytes = variable.bytes().filter(|bytes| *bytes <= MOST_BYTES).ok_or_else(too_large)?;
        let alignment = variable.alignment().max(1);
        let alignment =
            if alignment.is_power_of_two() { alignment } else { alignment.next_power_of_two() };
        let managed = variable.attribute.is_some_and(|text| module.text(text).trim() == ".managed");
        let part = match (variable.space, managed) {
            (Space::Const, _) => Part::Constant,
            (_, true) => Part::Managed,
            _ => Part::Block,
        };
        let end = if part == Part::Managed { &mut self.managed_bytes } else { &mut self.bytes };
        let at = end.next_multiple_of(alignment);
        *end = at + bytes;
        if *end > MOST_BYTES || alignment > MOST_BYTES {
            return Err(too_large());
        }
        self.alignment = self.alignment.max(alignment);
        self.addresses.insert(id, Address { part, at });
        self.definitions.push(id);
        Ok(())
    }
}
