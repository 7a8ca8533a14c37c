//! The initial contents of variables.

use super::layout::{Address, Layout, Part, Plan, Seed};
use super::wrong;
use crate::error::Errors;
use crate::ir::{Dim, Init, Module, Pos, Symbol, Type, VarId, Variable};

/// A place that holds the address of a variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fixup {
    part: Part,
    at: u64,
    bytes: usize,
    to: Part,
    /// From the beginning of the block.
    offset: u64,
    /// The bits of the address that the place holds, shifted down.
    mask: Option<u64>,
}

/// A variable that becomes a seed.
#[derive(Debug)]
pub(super) struct SeedOf {
    pub variable: VarId,
    pub seed: Seed,
}

#[derive(Debug, Default)]
pub(super) struct Collected {
    pub initial: Vec<(Part, u64, Vec<u8>)>,
    pub fixups: Vec<Fixup>,
    pub seeds: Vec<SeedOf>,
}

/// Whether an initialiser names a function.
pub(super) fn names_function(init: &Init) -> bool {
    match init {
        Init::List(list) => list.iter().any(names_function),
        Init::Symbol(Symbol::Func(_), _) | Init::Generic(Symbol::Func(_), _) => true,
        Init::Mask(_, inner) => names_function(inner),
        _ => false,
    }
}

/// Computes the contents of every variable.
pub(super) fn collect(module: &Module, plan: &Plan) -> Result<Collected, Errors> {
    let mut collected = Collected::default();
    for &id in &plan.definitions {
        let variable = module.var(id);
        let (Some(init), Some(Address { part, at })) = (&variable.init, plan.address(id)) else {
            continue;
        };
        let mut writer = Writer {
            module,
            plan,
            ty: variable.ty,
            part,
            start: at,
            at: 0,
            bytes: variable.bytes().unwrap_or(0),
            runs: Vec::new(),
            fixups: Vec::new(),
            copies: Vec::new(),
        };
        let inner = inner_sizes(variable);
        writer.write(init, &inner).map_err(|what| {
            let name = module.text(variable.name);
            wrong(place(variable), format!("variable `{name}`: {what}"))
        })?;
        if !writer.copies.is_empty() {
            let seed = Seed { name: String::new(), copies: writer.copies };
            collected.seeds.push(SeedOf { variable: id, seed });
        }
        collected.fixups.append(&mut writer.fixups);
        let runs = writer.runs.into_iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        collected.initial.extend(runs.map(|(offset, bytes)| (part, at + offset, bytes)));
    }
    Ok(collected)
}

const fn place(variable: &Variable) -> Pos {
    variable.pos
}

struct Writer<'a> {
    module: &'a Module,
    plan: &'a Plan,
    ty: Type,
    part: Part,
    /// Offset of the variable.
    start: u64,
    /// Offset of the next value in the variable.
    at: u64,
    /// Size of the variable.
    bytes: u64,
    /// Values without a gap, each with the offset of its first: they take as much memory as the
    /// initialiser has values, however large the variable is.
    runs: Vec<(u64, Vec<u8>)>,
    fixups: Vec<Fixup>,
    copies: Vec<(u64, Part, u64, u64)>,
}

impl Writer<'_> {
    fn write(&mut self, init: &Init, inner: &[u64]) -> Result<(), String> {
        let size = self.ty.bytes() as usize;
        match init {
            Init::List(list) => {
                // A nested list fills one element of the outer dimension, even if incomplete.
                let (step, rest) =
                    inner.split_first().map_or((size as u64, inner), |(step, rest)| (*step, rest));
                let start = self.at;
                for (index, element) in list.iter().enumerate() {
                    if matches!(element, Init::List(_)) {
                        self.at = (index as u64).saturating_mul(step).saturating_add(start);
                    }
                    self.write(element, rest)?;
                }
                Ok(())
            }
            Init::Int(value) | Init::Uint(value) => self.put(*value),
            Init::F32(bits) if self.ty == Type::F64 => {
                self.put(f64::from(f32::from_bits(*bits)).to_bits())
            }
            Init::F32(bits) => self.put(u64::from(*bits)),
            Init::F64(bits) if self.ty == Type::F32 => {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the variable has that precision"
                )]
                let narrow = f64::from_bits(*bits) as f32;
                self.put(narrow.to_bits().into())
            }
            Init::F64(bits) => self.put(*bits),
            Init::Symbol(symbol, offset) => self.address(*symbol, *offset, None, false),
            Init::Generic(symbol, offset) => self.address(*symbol, *offset, None, true),
            Init::Mask(mask, inner) => match **inner {
                Init::Symbol(symbol, offset) => self.address(symbol, offset, Some(*mask), false),
                Init::Generic(symbol, offset) => self.address(symbol, offset, Some(*mask), true),
                Init::Int(value) | Init::Uint(value) => self.put(masked(value, Some(*mask))),
                _ => Err("a mask of something that is no address".to_owned()),
            },
            Init::Text(_) | Init::Raw(_) => Err("an initialiser of this kind".to_owned()),
        }
    }

    /// The end of the next value.
    fn room(&self) -> Result<u64, String> {
        let end = self.at.checked_add(self.ty.bytes().into()).filter(|end| *end <= self.bytes);
        end.ok_or_else(|| "the initialiser is longer than the variable".to_owned())
    }

    fn put(&mut self, value: u64) -> Result<(), String> {
        let end = self.room()?;
        let follows = |run: &&mut (u64, Vec<u8>)| run.0 + run.1.len() as u64 == self.at;
        if self.runs.last_mut().filter(follows).is_none() {
            self.runs.push((self.at, Vec::new()));
        }
        if let Some((_, bytes)) = self.runs.last_mut() {
            let size = self.ty.bytes() as usize;
            bytes.extend_from_slice(&value.to_le_bytes()[..size.min(8)]);
            bytes.resize(bytes.len() + size.saturating_sub(8), 0);
        }
        self.at = end;
        Ok(())
    }

    fn address(
        &mut self,
        symbol: Symbol,
        offset: i64,
        mask: Option<u64>,
        generic: bool,
    ) -> Result<(), String> {
        let end = self.room()?;
        let at = self.start + self.at;
        let bytes = self.ty.bytes() as usize;
        match symbol {
            Symbol::Var(id) => {
                let Some(Address { part: to, at: target }) = self.plan.address(id) else {
                    let name = self.module.text(self.module.var(id).name);
                    return Err(format!("the address of `{name}`, which does not move with it"));
                };
                if to == Part::Constant && !generic {
                    let name = self.module.text(self.module.var(id).name);
                    return Err(format!(
                        "where `{name}` is in constant memory is the driver's business; say \
                         generic({name})"
                    ));
                }
                let offset = target.wrapping_add_signed(offset);
                self.fixups.push(Fixup { part: self.part, at, bytes, to, offset, mask });
            }
            Symbol::Func(_) => self.copies.push((self.at, self.part, at, bytes as u64)),
            Symbol::Label(_) | Symbol::Unresolved(_) => {
                return Err("the address of something that has none".to_owned());
            }
        }
        self.at = end;
        Ok(())
    }
}

fn masked(value: u64, mask: Option<u64>) -> u64 {
    mask.map_or(value, |mask| (value & mask) >> mask.trailing_zeros().min(63))
}

/// Bytes of one element of each dimension, outermost first.
fn inner_sizes(variable: &Variable) -> Vec<u64> {
    let count = |dim: &Dim| match dim {
        Dim::Count(count) => *count,
        Dim::Open => 1,
    };
    let behind = |position: usize| variable.dims[position + 1..].iter().map(count);
    let bytes = |position| behind(position).fold(variable.element_bytes(), u64::saturating_mul);
    (0..variable.dims.len()).map(bytes).collect()
}

impl Layout {
    /// The initial contents of the blocks, once they have addresses: pieces of a part, each with
    /// its offset. All other bytes are zero. Contents from seeds come later.
    #[must_use]
    pub fn contents(&self, block: u64, managed: u64) -> Vec<(Part, u64, Vec<u8>)> {
        let mut pieces = self.initial.clone();
        for fixup in &self.fixups {
            let base = if fixup.to == Part::Managed { managed } else { block };
            let value = masked(base.wrapping_add(fixup.offset), fixup.mask);
            let bytes = fixup.bytes.min(8);
            pieces.push((fixup.part, fixup.at, value.to_le_bytes()[..bytes].to_vec()));
        }
        pieces
    }
}
