//! Variables of every space but `.reg`, and the parameters of functions.

use super::Pos;
use super::names::Name;
use super::operand::Symbol;
use super::types::{Space, Type};

/// The linkage of a name: how other modules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// No directive: this module only.
    Private,
    /// `.extern`
    Extern,
    /// `.visible`
    Visible,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A dimension of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// `[16]`
    Count(u64),
    /// `[]`: given by the initialiser, or dynamic shared memory when `.extern .shared`.
    Open,
}

/// `.ptr` of a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    /// The space that it points to; `None` is generic.
    pub space: Option<Space>,
    /// Alignment of the memory that it points to.
    pub align: Option<u32>,
}

/// A variable or parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name; `_` in a prototype.
    pub name: Name,
    /// `.global`, `.const`, `.shared`, `.local`, `.param`, `.tex`; `.reg` only for parameters of a
    /// `.func`.
    pub space: Space,
    /// `.const[2]`, an old form.
    pub bank: Option<u32>,
    /// Linkage; private inside functions.
    pub linkage: Linkage,
    /// `.align`, in bytes.
    pub align: Option<u32>,
    /// 1, or 2, 4, 8 for `.v2` …
    pub vector: u8,
    /// Type of one element.
    pub ty: Type,
    /// Array dimensions, outermost first; empty for a scalar.
    pub dims: Vec<Dim>,
    /// `.ptr` of a kernel parameter.
    pub pointer: Option<Pointer>,
    /// `.attribute(…)` verbatim, parentheses excluded.
    pub attribute: Option<Name>,
    /// Initial value.
    pub init: Option<Init>,
    /// Where it is declared.
    pub pos: Pos,
}

impl Variable {
    /// Bytes of one element, vector included.
    #[must_use]
    pub const fn element_bytes(&self) -> u64 {
        self.ty.bytes() as u64 * self.vector as u64
    }

    /// Size in bytes. `None` for an open array without initialiser (dynamic shared memory, an
    /// extern array) and when the product leaves 64 bits.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let mut total = self.element_bytes();
        for (position, dim) in self.dims.iter().enumerate() {
            let count = match (dim, &self.init) {
                (Dim::Count(count), _) => *count,
                (Dim::Open, Some(Init::List(list))) if position == 0 => list.len() as u64,
                (Dim::Open, _) => return None,
            };
            total = total.checked_mul(count)?;
        }
        Some(total)
    }

    /// Alignment in bytes: what `.align` says, else that of an element.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.align.map_or_else(|| self.element_bytes().max(1), u64::from)
    }

    /// Alignment of a kernel's parameter in bytes: at least that of an element, as `ptxas` 13.5
    /// lays parameters out.
    #[must_use]
    pub fn parameter_alignment(&self) -> u64 {
        self.alignment().max(self.element_bytes())
    }
}

/// An initialiser.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// `{…}`
    List(Vec<Init>),
    /// An integer.
    Int(u64),
    /// An integer that is unsigned by suffix or size.
    Uint(u64),
    /// `0f…`: bits of an `f32`.
    F32(u32),
    /// `0d…` or decimal: bits of an `f64`.
    F64(u64),
    /// `"text"`, escapes as written.
    Text(Name),
    /// `symbol+offset`: its address within its space.
    Symbol(Symbol, i64),
    /// `generic(symbol)+offset`: its generic address.
    Generic(Symbol, i64),
    /// `{ addr_mode_0 = wrap, … }` of a texture, sampler or surface, verbatim.
    Raw(Name),
    /// `0xFF00(symbol+offset)`: the masked bits, shifted down to the mask's lowest bit.
    Mask(u64, Box<Init>),
}
