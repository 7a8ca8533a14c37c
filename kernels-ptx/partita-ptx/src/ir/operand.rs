//! Operands of instructions.
//!
//! An [`Operand`] is 16 bytes and `Copy`. An operand that contains others (a vector, list, tuple in
//! brackets, or pair) holds a [`Slice`] of its body's operand pool. The parser bounds the nesting.

use super::function::{LabelId, Reg};
use super::names::Name;
use super::types::{Part, Special};
use super::{FuncId, VarId};

/// A run of a body's operand pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Index of the first operand.
    pub start: u32,
    /// Number of operands.
    pub len: u32,
}

impl Slice {
    /// The empty slice.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// The indices into the pool.
    #[must_use]
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// A name in an operand, resolved where it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// A variable or parameter of any space but `.reg`.
    Var(VarId),
    /// A function: its first declaration; [`crate::Module::definition`] finds the body.
    Func(FuncId),
    /// A label of this body, be it of code or of a `.branchtargets`, `.calltargets` or
    /// `.callprototype`.
    Label(LabelId),
    /// Nothing of that name is in scope. The verifier refuses it.
    Unresolved(Name),
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// `[%rd1+8]`
    Reg(Reg),
    /// `[sym+8]`
    Symbol(Symbol),
}

/// One operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// `!%p1`
    Not(Reg),
    /// A part of a register, `%r1.b0` or `%v.x`; or `-%r1`, with [`Part::Whole`], in video
    /// instructions.
    Part {
        /// The register.
        reg: Reg,
        /// Which part.
        part: Part,
    },
    /// `-%r1`, allowed by `vmad` only.
    Neg(Reg),
    /// `_`, an unused result.
    Sink,
    /// A special register with its component.
    Special(Special, Part),
    /// An integer. Its low bits are the value, whatever its sign; constant expressions are folded.
    Int(u64),
    /// An integer with the suffix `U` or beyond `i64`, which is unsigned in expressions.
    Uint(u64),
    /// `0f3F800000`: the bits of an `f32`.
    F32(u32),
    /// `0d…` or a decimal fraction: the bits of an `f64`, converted at its use to the instruction's
    /// type.
    F64(u64),
    /// A symbol's address or a label, with a byte offset: `arr+8`, `foo`, `$L__BB0_2`.
    Symbol(Symbol, i32),
    /// `[base+offset]`
    Mem(Base, i32),
    /// `[4096]`
    Absolute(u64),
    /// `%rd1+8` as an element of [`Operand::Tuple`].
    RegPlus(Reg, i32),
    /// `{a, b}`
    Vector(Slice),
    /// `(a, b)` of a call.
    List(Slice),
    /// `[tex, {x, y}]`, `[tex, sampler, {x, y}]`, `[map, {x, y}]`
    Tuple(Slice),
    /// `%p|%q`; always two.
    Pair(Slice),
}
