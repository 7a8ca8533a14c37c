//! Scale factors of block-scaled products in tensor memory (PTX ISA, "Block Scaling").
//!
//! A word has the factors of a row of A or a column of B. Row or column `i` has lane `i % 32` and
//! column `i / 32` from the address on. All four warps' lanes have a copy; a row of D uses the copy
//! of its own lanes.

use super::copies::not_there;
use super::memory::{Cell, WARP_ROWS};
use super::{Outcome, Site, memory_of};
use crate::exec::inst::Source;
use crate::exec::narrow::{ue4m3, ue8m0};
use crate::exec::step::Env;

/// The scale factors of a product.
#[derive(Clone, Copy, Debug)]
pub struct ScaleOp {
    /// Addresses of those of A and B.
    pub addresses: [Source; 2],
    /// Factors of a row of A or a column of B: 1, 2 or 4.
    pub blocks: usize,
}

/// Scale factors of rows or columns, `blocks` of each.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// The address.
    pub address: u64,
    /// Factors of a row or column.
    pub blocks: usize,
    /// The byte of the first.
    pub first: usize,
    /// Whether they are `ue8m0`, else `ue4m3`.
    pub powers: bool,
}

impl Scales {
    /// The factors of one row or column, as the lanes of warp `warp` have them.
    pub fn read(
        &self,
        env: &mut Env<'_>,
        site: Site,
        rank: Option<usize>,
        (index, warp): (usize, usize),
    ) -> Outcome<[f64; 4]> {
        // The two highest bits of an address may name the byte, as in the instruction descriptor.
        let base = Cell::at(self.address & 0x3fff_ffff);
        let at = base.plus(WARP_ROWS * warp + index % WARP_ROWS, index / WARP_ROWS);
        let memory = memory_of(env, site, rank)?;
        let word = memory.row(at, 1).ok_or_else(|| not_there(site, self.address, at))?;
        let word = word.first().copied().unwrap_or(0).to_le_bytes();
        let value = if self.powers { ue8m0 } else { ue4m3 };
        let mut factors = [1.0; 4];
        for (factor, &byte) in
            factors.iter_mut().zip(word.iter().skip(self.first)).take(self.blocks)
        {
            *factor = value(byte);
        }
        Ok(factors)
    }
}
