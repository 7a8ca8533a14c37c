//! `wgmma.mma_async`: products of matrices in shared memory, by the four warps of a warp group
//! (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//!
//! Each warp of the group makes 16 rows of the 64 of D: those at `16 * (warp % 4)`. It needs
//! nothing of the three other warps, so each is executed when its turn comes. The product is
//! there at once, and `wgmma.wait_group` waits for nothing. Sums are those of [`super::matrix`].

use super::access::read_bytes;
use super::inst::{Source, Space, Target};
use super::matrix::{Element, Layout, Register};
use super::product::{Kind, Rule, multiply};
use super::sparse::{self, Sparse};
use super::state::Core;
use super::step::{Env, Trouble};

/// Rows of a warp.
pub const ROWS: usize = 16;

/// Multiplications of 16-bit elements that a quarter of an SM makes in a cycle: 989 TFLOP/s of an
/// H100 with 132 SMs at 1.83 GHz are 2,048 a cycle and SM. Their number falls and rises with the
/// elements' width.
const PRODUCTS: usize = 512;

/// The left factor.
#[derive(Clone, Debug)]
pub enum Left {
    /// Each warp has its rows in registers.
    Registers(Vec<Source>, Layout),
    /// A descriptor of shared memory, and whether M is contiguous there.
    Shared(Source, bool),
}

/// `D = A * B + D`, or `D = A * B`.
#[derive(Clone, Debug)]
pub struct GroupOp {
    /// Columns of B, and the length of the sums.
    pub nk: [usize; 2],
    /// Elements of A and B.
    pub elements: [Element; 2],
    /// A.
    pub left: Left,
    /// Descriptor of B, and whether N is contiguous there.
    pub right: (Source, bool),
    /// The part of D that a warp has.
    pub sum: Layout,
    /// D before, in registers.
    pub sources: Vec<Source>,
    /// D after.
    pub targets: Vec<Target>,
    /// A predicate: whether D is added.
    pub add: Source,
    /// Whether A or B is negated.
    pub negated: [bool; 2],
    /// The rule for sums.
    pub rule: Rule,
    /// Whether half of A is zero and not stored.
    pub sparse: Option<Sparse>,
}

impl GroupOp {
    /// Cycles for which the tensor core of a warp is busy.
    pub fn cycles(&self) -> u32 {
        let [n, k] = [self.nk[0], self.stored()];
        ((ROWS * n * k * self.elements[0].width()).div_ceil(16 * PRODUCTS) as u32).max(1)
    }

    /// Tells the sources (`false`) and targets (`true`), for the timing model.
    pub fn rows(&self, mut tell: impl FnMut(Source, bool), of: impl Fn(Target) -> Source) {
        match &self.left {
            Left::Registers(sources, _) => sources.iter().for_each(|&source| tell(source, false)),
            Left::Shared(descriptor, _) => tell(*descriptor, false),
        }
        tell(self.right.0, false);
        self.sparse.iter().for_each(|sparse| tell(sparse.metadata, false));
        self.sources.iter().for_each(|&source| tell(source, false));
        self.targets.iter().for_each(|&target| tell(of(target), true));
    }

    /// Elements that are stored of each row of A.
    fn stored(&self) -> usize {
        if self.sparse.is_some() { self.nk[1] / 2 } else { self.nk[1] }
    }
}

/// A matrix in shared memory (PTX ISA, "Matrix Descriptor Format").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    base: u64,
    /// Pieces of 16 bytes in a row of the pattern: 1 without swizzling, 2, 4 or 8.
    width: u64,
}

/// Bytes that stay together under every swizzling.
const PIECE: u64 = 16;

impl Descriptor {
    /// Reads a descriptor.
    #[must_use]
    pub const fn unpack(bits: u64) -> Self {
        const LOW: u64 = 0x3fff;
        Descriptor {
            start: (bits & LOW) * PIECE,
            leading: (bits >> 16 & LOW) * PIECE,
            stride: (bits >> 32 & LOW) * PIECE,
            base: bits >> 49 & 7,
            width: match bits >> 62 {
                0 => 1,
                1 => 8,
                2 => 4,
                _ => 2,
            },
        }
    }

    /// Where a piece lies whose `across` counts pieces along the contiguous dimension, and `along`
    /// elements of the other (PTX ISA, "Strides": canonical layouts of K-major and MN-major).
    #[must_use]
    pub fn address(&self, by_k: bool, across: u64, along: u64) -> u64 {
        let (row, group) = (along % 8, along / 8);
        let offset = match (by_k, self.width) {
            (true, 1) => row * PIECE + group * self.stride + across * self.leading,
            (true, width) => {
                // Only sparse products have rows that are longer than the narrowest pattern.
                let (piece, block) = (across % width, across / width);
                row * width * PIECE + group * self.stride + piece * PIECE + block * self.leading
            }
            (false, 1) => row * PIECE + group * self.leading + across * self.stride,
            (false, width) => {
                let (piece, block) = (across % width, across / width);
                piece * PIECE + block * self.leading + row * width * PIECE + group * self.stride
            }
        };
        let address = self.start + offset;
        // The number of the row of 128 bytes, from where the pattern begins, is mixed in.
        let row = (address >> 7).wrapping_sub(self.base);
        address ^ (row & (self.width - 1)) << 4
    }

    /// The same matrix with rows of this many pieces in the pattern.
    #[must_use]
    pub const fn with_width(self, width: u64) -> Self {
        Descriptor { width, ..self }
    }

    /// The same matrix this many bytes further.
    #[must_use]
    pub const fn beyond(self, bytes: u64) -> Self {
        Descriptor { start: self.start + bytes, ..self }
    }

    /// As [`Descriptor::address`] of a matrix whose M or N is contiguous, with swizzling of 128
    /// bytes that keeps 32 bytes together: a pattern has four rows.
    #[must_use]
    pub const fn address_of_wide(&self, across: u64, along: u64) -> u64 {
        let (piece, block) = (across % 8, across / 8);
        let offset =
            piece * PIECE + block * self.leading + along % 4 * 8 * PIECE + along / 4 * self.stride;
        let address = self.start + offset;
        address ^ (address >> 7 & 3) << 5
    }
}

/// A place in the program: warp, lane, instruction.
type Site = (usize, usize, usize);

/// Executes the instruction for a warp.
pub fn execute(
    core: &mut Core<'_>,
    op: &GroupOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    let [n, k] = op.nk;
    let lane = (mask.trailing_zeros() & 31) as usize;
    let site = (w + core.first_warp, lane, pc);
    let registers = |core: &Core<'_>, sources: &[Source]| -> Vec<Register> {
        sources.iter().map(|&source| core.get_all(source, w)).collect()
    };
    let mut left = match &op.left {
        Left::Registers(sources, of_a) => of_a.gather(&registers(core, sources)),
        Left::Shared(descriptor, contiguous_m) => {
            let descriptor = Descriptor::unpack(core.get(*descriptor, w, lane));
            let descriptor = descriptor.beyond(env.own_window);
            let first = ROWS * (site.0 % 4);
            let view = View { descriptor, by_k: !contiguous_m, element: op.elements[0] };
            view.read(env, site, (first, ROWS), op.stored())?
        }
    };
    if let Some(Sparse { metadata, selector }) = op.sparse {
        left = sparse::expand(&left, &core.get_all(metadata, w), (op.elements[0], selector), k);
    }
    let descriptor = Descriptor::unpack(core.get(op.right.0, w, lane)).beyond(env.own_window);
    let view = View { descriptor, by_k: !op.right.1, element: op.elements[1] };
    let by_columns = view.read(env, site, (0, n), k)?;
    let mut right = vec![0; n * k];
    for (column, values) in by_columns.chunks_exact(k).enumerate() {
        for (at, &value) in values.iter().enumerate() {
            right[at * n + column] = value;
        }
    }
    let start = if core.get(op.add, w, lane) & 1 == 1 {
        op.sum.gather(&registers(core, &op.sources))
    } else {
        vec![0; ROWS * n]
    };
    let of_d = op.sum.fragment.element;
    let kind = Kind {
        elements: [op.elements[0], op.elements[1], of_d],
        of_d,
        n,
        k,
        rule: op.rule,
        negated: op.negated[0] != op.negated[1],
    };
    let sum = multiply([&left, &right, &start], &kind);
    for (&target, register) in op.targets.iter().zip(op.sum.spread(&sum, op.targets.len())) {
        core.put_all(target, w, mask, &register);
    }
    env.trace.counts.shared_accesses += 1;
    Ok(())
}

/// A matrix in shared memory with the type of its elements.
struct View {
    descriptor: Descriptor,
    /// Whether K is contiguous.
    by_k: bool,
    element: Element,
}

impl View {
    /// `count` rows of A, or columns of B, from `first` on: `k` elements of each, one after
    /// another.
    fn read(
        &self,
        env: &mut Env<'_>,
        site: Site,
        (first, count): (usize, usize),
        k: usize,
    ) -> Result<Vec<u64>, Box<Trouble>> {
        let width = self.element.width();
        let per = 8 * PIECE as usize / width;
        let mut elements = vec![0; count * k];
        let (lines, length, start) = if self.by_k { (count, k, 0) } else { (k, count, first) };
        for line in 0..lines {
            let along = if self.by_k { first + line } else { line } as u64;
            for piece in 0..length.div_ceil(per) {
                let across = (start / per + piece) as u64;
                let address = self.descriptor.address(self.by_k, across, along);
                let mut bytes = [0; PIECE as usize];
                read_bytes(env, site, Space::Shared.generic(address), &mut bytes).map_err(
                    |trouble| {
                        let detail = format!("{}: {:?}", trouble.detail, self.descriptor);
                        Box::new(Trouble { detail, ..*trouble })
                    },
                )?;
                let word = u128::from_le_bytes(bytes);
                for part in 0..per.min(length - piece * per) {
                    let value = (word >> (part * width)) as u64 & (u64::MAX >> (64 - width));
                    let at = piece * per + part;
                    elements[if self.by_k { line * k + at } else { at * k + line }] = value;
                }
            }
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layouts of PTX ISA, "Strides", written out for one piece each.
    #[test]
    fn pieces_lie_where_the_isa_says() {
        let pack = |start: u64, leading: u64, stride: u64, mode: u64| {
            Descriptor::unpack(start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62)
        };
        let plain = pack(0x1000, 128, 256, 0);
        assert_eq!(plain.address(true, 1, 11), 0x1000 + 128 + 3 * 16 + 256);
        assert_eq!(plain.address(false, 5, 11), 0x1000 + 5 * 256 + 3 * 16 + 128);
        let wide = pack(0x2000, 16, 1024, 1);
        // Row 3 of 128 bytes: piece 1 changes places with piece 2.
        assert_eq!(wide.address(true, 1, 3), 0x2000 + 3 * 128 + 2 * 16);
        assert_eq!(wide.address(true, 0, 9), 0x2000 + 1024 + 128 + 16);
        // The second 32 bytes of K begin inside the pattern.
        let inside = pack(0x2020, 16, 1024, 1);
        assert_eq!(inside.address(true, 1, 3), 0x2000 + 3 * 128, "3 and 3 give 0");
        let middle = pack(0x2000, 16, 512, 2);
        assert_eq!(middle.address(true, 1, 5), 0x2000 + 5 * 64 + 3 * 16);
        let narrow = pack(0x2000, 16, 256, 3);
        assert_eq!(narrow.address(true, 1, 5), 0x2000 + 5 * 32);
        let columns = pack(0x4000, 2048, 1024, 1);
        assert_eq!(columns.address(false, 8 + 3, 8 + 2), 0x4000 + 2048 + 1024 + 2 * 128 + 16);
    }
}
