//! `tcgen05.mma` and `tcgen05.mma.ws` (PTX ISA, "tcgen05.mma", "Data Path Layout Organization").
//!
//! Sums are those of [`crate::exec::product`]: exact for integers, in double precision for reals,
//! and rounded once. A pair's CTAs have half of the rows of A and D and half of the columns of B
//! each.

use super::copies::not_there;
use super::descriptor::{Factor, Instruction, Kind, SharedMatrix};
use super::memory::{Cell, ROWS};
use super::scale::{ScaleOp, Scales};
use super::{Outcome, Site, memory_of, of_cta, ranks_of, trouble, window};
use crate::exec::access::read_bytes;
use crate::exec::inst::{Source, Space};
use crate::exec::matrix::Element;
use crate::exec::product::{self as products, Rule, real};
use crate::exec::state::Core;
use crate::exec::step::Env;
use partita_device::FaultKind;

/// The left factor.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// A descriptor of shared memory.
    Shared(Source),
    /// An address in tensor memory.
    Tensor(Source),
}

/// `D = A * B + D`, or `D = A * B`.
#[derive(Clone, Debug)]
pub struct ProductOp {
    /// `.kind`
    pub kind: Kind,
    /// Whether both CTAs of a pair take part.
    pub pair: bool,
    /// `.ws`
    pub stationary: bool,
    /// The address of D.
    pub d: Source,
    /// A.
    pub left: Left,
    /// Descriptor of B.
    pub right: Source,
    /// The instruction descriptor.
    pub instruction: Source,
    /// Lanes of D that are left alone, 32 a register.
    pub disabled: Vec<Source>,
    /// A predicate: whether D is added.
    pub add: Source,
    /// D is divided by two to this power before.
    pub shift: u32,
    /// The scale factors.
    pub scale: Option<ScaleOp>,
}

impl ProductOp {
    /// The rows that it reads.
    pub(super) fn sources(&self) -> Vec<Source> {
        let (Left::Shared(left) | Left::Tensor(left)) = self.left;
        let scales = self.scale.map_or([Source::None; 2], |scale| scale.addresses);
        let own = [self.d, left, self.right, self.instruction, self.add];
        [&own[..], &scales, &self.disabled].concat()
    }
}

/// Where the rows of D and A lie that a CTA has.
#[derive(Clone, Copy, Debug)]
struct Paths {
    /// Parts of the columns that lie side by side in lanes: 1, 2 or 4.
    parts: usize,
    /// Whether each 16 rows have half of a warp's lanes.
    halves: bool,
}

impl Paths {
    const fn of(instruction: &Instruction, op: &ProductOp) -> Self {
        let (parts, halves) = match (op.pair, op.stationary, instruction.m) {
            (false, true, 32) => (4, false),
            (false, true, 64) | (true, _, 128) => (2, false),
            (false, false, 64) => (1, true),
            _ => (1, false),
        };
        Paths { parts, halves }
    }

    const fn lane(self, row: usize) -> usize {
        if self.halves { row % 16 + 32 * (row / 16) } else { row }
    }

    /// Checks the first lane of a matrix.
    fn check(self, what: &str, address: u64, site: Site) -> Outcome<Cell> {
        let base = Cell::at(address & 0xffff_ffff);
        if base.row == 0 || base.row == 16 && self.halves {
            return Ok(base);
        }
        let detail =
            format!("{what} of `tcgen05.mma` begins in lane {} of tensor memory", base.row);
        Err(trouble(FaultKind::MisalignedAddress, site, Some(address), detail))
    }
}

/// Words of a row of A in tensor memory.
const LEFT_WORDS: usize = 8;

/// Executes the product for a thread.
pub fn execute(core: &Core<'_>, op: &ProductOp, env: &mut Env<'_>, (w, lane, pc): Site) -> Outcome {
    let site = (w + core.first_warp, lane, pc);
    let get = |source: Source| core.get(source, w, lane);
    let bits = get(op.instruction) as u32;
    let instruction = Instruction::unpack(bits, op.kind, (op.pair, op.stationary), site)?;
    let ranks = ranks_of(env, site, op.pair)?;
    let paths = Paths::of(&instruction, op);
    let (k, n) = (op.kind.k(), instruction.n);
    let (rows, columns) = (instruction.m / ranks.len(), n / ranks.len());
    let by_k = instruction.transposed.map(|transposed| !transposed);
    let mut right = Vec::with_capacity(n * k);
    for &rank in &ranks {
        let how = (by_k[1], instruction.factors[1]);
        let view = View::new(get(op.right), window(env, rank), how, ('B', site))?;
        right.extend(view.read(env, site, columns, k)?);
    }
    let base = paths.check("D", get(op.d), site)?;
    let scales = op.scale.map(|scale| {
        [0, 1].map(|side| Scales {
            address: get(scale.addresses[side]),
            blocks: scale.blocks,
            first: instruction.scale_ids[side],
            powers: instruction.powers,
        })
    });
    if let Some([a, b]) = &scales
        && (a.first % a.blocks != 0 || b.first % b.blocks != 0)
    {
        let detail = format!(
            "scale factors from bytes {} and {} on, {} of each row",
            a.first, b.first, a.blocks
        );
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
    }
    for (index, &rank) in ranks.iter().enumerate() {
        let left = match op.left {
            Left::Shared(descriptor) => {
                let how = (by_k[0], instruction.factors[0]);
                View::new(get(descriptor), window(env, rank), how, ('A', site))?
                    .read(env, site, rows, k)?
            }
            Left::Tensor(address) => {
                let base = paths.check("A", get(address), site)?;
                from_tensor(env, site, rank, (base, paths), &instruction, (rows, k))?
            }
        };
        let start = if get(op.add) & 1 == 1 {
            let mut start = Vec::with_capacity(rows * n);
            for row in 0..rows {
                for part in 0..paths.parts {
                    let at = base.plus(paths.lane(row) + ROWS / paths.parts * part, 0);
                    let words = memory_of(env, site, rank)?.row(at, n / paths.parts);
                    let words = words.ok_or_else(|| not_there(site, get(op.d), at))?;
                    start.extend(words.iter().map(|&word| u64::from(word)));
                }
            }
            start
        } else {
            vec![0; rows * n]
        };
        let numbers = Numbers { left, right: &right, start, rows };
        let sum = match &scales {
            None => numbers.multiply(&instruction, op),
            Some(scales) => {
                numbers.multiply_scaled(env, (site, rank), &instruction, (k, scales))?
            }
        };
        for (row, values) in sum.chunks_exact(n).enumerate() {
            for (part, values) in values.chunks_exact(n / paths.parts).enumerate() {
                let lane = base.row + paths.lane(row) + ROWS / paths.parts * part;
                let masked = op.disabled.get(4 * index + lane / 32).map_or(0, |&mask| get(mask));
                if masked >> (lane % 32) & 1 == 1 {
                    continue;
                }
                let at = Cell { row: lane, column: base.column };
                let words = memory_of(env, site, rank)?.row_mut(at, values.len());
                let words = words.ok_or_else(|| not_there(site, get(op.d), at))?;
                for (word, &value) in words.iter_mut().zip(values) {
                    *word = value as u32;
                }
            }
        }
    }
    // A tensor core makes products of 32 bytes of K for 128 lanes and two columns in a cycle: the
    // 2.25 PFLOP/s of 16 bits, 148 SMs and 1.85 GHz of NVIDIA's data sheet.
    let cycles = (n / paths.parts).div_ceil(2) as u64;
    let (now, cycle) = (env.now, env.cycle);
    let busy = &mut of_cta(env, site)?.busy_until;
    **busy = now.max(**busy) + cycles * cycle;
    Ok(())
}

/// A matrix in shared memory with the type of its elements.
struct View {
    matrix: SharedMatrix,
    /// Whether K is contiguous.
    by_k: bool,
    factor: Factor,
}

impl View {
    fn new(
        bits: u64,
        window: u64,
        (by_k, factor): (bool, Factor),
        (what, site): (char, Site),
    ) -> Outcome<Self> {
        let matrix = SharedMatrix::unpack(bits, site)?.within(window);
        let small = matches!(factor, Factor::Small(..));
        if !matrix.fits(by_k, factor.width()) || small && !by_k {
            let order = if by_k { "K" } else { "M or N" };
            let detail = format!(
                "{what} with contiguous {order} and elements of {} bits in this layout: {matrix:?}",
                factor.width()
            );
            return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
        }
        Ok(View { matrix, by_k, factor })
    }

    /// `count` rows of A, or columns of B: `k` elements of each, one after another.
    fn read(&self, env: &mut Env<'_>, site: Site, count: usize, k: usize) -> Outcome<Vec<u64>> {
        let (per, width) = (self.factor.per_piece(), self.factor.width());
        let mut elements = vec![0; count * k];
        let (lines, length) = if self.by_k { (count, k) } else { (k, count) };
        for line in 0..lines {
            for piece in 0..length.div_ceil(per) {
                let address = self.matrix.address(self.by_k, piece as u64, line as u64);
                let mut bytes = [0; 16];
                read_bytes(env, site, Space::Shared.generic(address), &mut bytes).map_err(
                    |mut trouble| {
                        trouble.detail = format!("{}: {:?}", trouble.detail, self.matrix);
                        trouble
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
        env.trace.counts.shared_accesses += 1;
        Ok(elements)
    }
}

/// Rows of A in tensor memory, whose elements lie side by side in words.
fn from_tensor(
    env: &mut Env<'_>,
    site: Site,
    rank: Option<usize>,
    (base, paths): (Cell, Paths),
    instruction: &Instruction,
    (rows, k): (usize, usize),
) -> Outcome<Vec<u64>> {
    let factor = instruction.factors[0];
    if instruction.transposed[0] || matches!(factor, Factor::Small(_, 16)) {
        let detail = format!(
            "A in tensor memory that is transposed or has elements of {} bits, which the emulated \
             GPU does not know",
            factor.width()
        );
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
    }
    let (width, mut elements) = (factor.width(), Vec::with_capacity(rows * k));
    for row in 0..rows {
        let at = base.plus(paths.lane(row), 0);
        let address = (at.row << 16 | at.column) as u64;
        let words = memory_of(env, site, rank)?.row(at, LEFT_WORDS);
        for &word in words.ok_or_else(|| not_there(site, address, at))? {
            let parts = (0..32 / width).map(|part| word >> (part * width));
            elements.extend(parts.map(|bits| u64::from(bits & (u32::MAX >> (32 - width)))));
        }
    }
    Ok(elements)
}

/// The numbers of a CTA's product.
struct Numbers<'a> {
    /// A, row after row.
    left: Vec<u64>,
    /// B, column after column.
    right: &'a [u64],
    /// D before, row after row.
    start: Vec<u64>,
    /// Rows of A and D.
    rows: usize,
}

/// The value of an element.
fn value(factor: Factor, bits: u64) -> f64 {
    match factor {
        Factor::Whole(element) => real(element, bits),
        Factor::Small(narrow, _) => narrow.value(bits as u8),
    }
}

/// Columns one after another as rows one after another.
fn transpose(columns: impl Iterator<Item = u64>, (k, n): (usize, usize)) -> Vec<u64> {
    let mut right = vec![0; k * n];
    for (index, value) in columns.enumerate() {
        right[index % k * n + index / k] = value;
    }
    right
}

impl Numbers<'_> {
    fn multiply(self, instruction: &Instruction, op: &ProductOp) -> Vec<u64> {
        let (n, k, of_d) = (instruction.n, op.kind.k(), instruction.of_d);
        let [of_a, of_b] = instruction.factors;
        let right = self.right.iter().copied();
        let (elements, left, right) = match (of_a, of_b) {
            (Factor::Whole(a), Factor::Whole(b)) => ([a, b], self.left, transpose(right, (k, n))),
            _ => {
                let left = self.left.iter().map(|&bits| value(of_a, bits).to_bits()).collect();
                let right = right.map(|bits| value(of_b, bits).to_bits());
                ([Element::F64; 2], left, transpose(right, (k, n)))
            }
        };
        // Halving is exact in double precision.
        let (of_c, start) = if op.shift == 0 {
            (of_d, self.start)
        } else {
            let scale = f64::from(-(op.shift as i32)).exp2();
            let start = self.start.iter().map(|&bits| (real(of_d, bits) * scale).to_bits());
            (Element::F64, start.collect())
        };
        let kind = products::Kind {
            elements: [elements[0], elements[1], of_c],
            of_d,
            n,
            k,
            rule: if instruction.saturates { Rule::Saturate } else { Rule::Plain },
            negated: instruction.negated,
        };
        products::multiply([&left, &right, &start], &kind)
    }

    /// The product of factors times their scale factors.
    fn multiply_scaled(
        self,
        env: &mut Env<'_>,
        (site, rank): (Site, Option<usize>),
        instruction: &Instruction,
        (k, [of_a, of_b]): (usize, &[Scales; 2]),
    ) -> Outcome<Vec<u64>> {
        let n = instruction.n;
        let [a, b] = instruction.factors;
        let kind = products::Kind {
            elements: [Element::F64, Element::F64, Element::F32],
            of_d: Element::F32,
            n,
            k,
            rule: Rule::Plain,
            negated: instruction.negated,
        };
        let (per, mut sum) = (k / of_a.blocks, Vec::with_capacity(self.rows * n));
        let mut last: Option<(Vec<[f64; 4]>, Vec<u64>)> = None;
        for warp in 0..self.rows / 32 {
            let mut left = Vec::with_capacity(32 * k);
            for row in 32 * warp..32 * (warp + 1) {
                let scales = of_a.read(env, site, rank, (row, warp))?;
                let bits = &self.left[row * k..(row + 1) * k];
                left.extend(
                    bits.iter()
                        .enumerate()
                        .map(|(at, &bits)| (value(a, bits) * scales[at / per]).to_bits()),
                );
            }
            let scales = (0..n).map(|column| of_b.read(env, site, rank, (column, warp)));
            let scales = scales.collect::<Outcome<Vec<_>>>()?;
            // The copies of all warps are the same in a correct program.
            let right = match last.take() {
                Some((known, right)) if known == scales => right,
                _ => transpose(
                    self.right.iter().enumerate().map(|(at, &bits)| {
                        (value(b, bits) * scales[at / k][at % k / per]).to_bits()
                    }),
                    (k, n),
                ),
            };
            let start = &self.start[32 * warp * n..32 * (warp + 1) * n];
            sum.extend(products::multiply([&left, &right, start], &kind));
            last = Some((scales, right));
        }
        Ok(sum)
    }
}
