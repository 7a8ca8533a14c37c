//! Matrix instructions of a warp: `mma`, `wmma`, `ldmatrix`, `stmatrix`, `movmatrix`, and a warp's
//! part of `wgmma`.
//!
//! All of them are `.aligned`. Decoding puts a wait for the whole warp before each, so all live
//! lanes are active here. [`super::matrix`] has the arithmetic.

use super::access::{read_bytes, write_bytes};
use super::block_scale::Scales;
use super::byte_rows::{self, ByteRows};
use super::inst::{Inst, Source, Space, Target};
use super::matrix::{Element, Fragment, Layout, Register};
use super::product::{Kind, Rule, multiply};
use super::quad::{self, Quads};
use super::rows::{LANES, lanes};
use super::sparse::{self, Sparse};
use super::state::Core;
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use super::warpgroup::{self, GroupOp};
use partita_device::FaultKind;

/// Where a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its space.
    pub space: Space,
    /// Its address, or that of a row of 8 by 8.
    pub address: Source,
}

/// Side table of [`super::inst::Op::Matrix`].
#[derive(Clone, Debug)]
pub enum MatrixOp {
    /// `mma`, `wmma.mma`: `D = A * B + C`.
    Multiply {
        /// A, B and C.
        factors: [Layout; 3],
        /// Their registers.
        sources: [Vec<Source>; 3],
        /// D.
        result: Layout,
        /// Registers of D.
        targets: Vec<Target>,
        /// The rule for sums.
        rule: Rule,
        /// Whether half of A is zero and not stored.
        sparse: Option<Sparse>,
        /// The scale factors of `.block_scale`.
        scales: Option<Box<Scales>>,
    },
    /// `mma.m8n8k4` on f16
    Quads {
        /// The layouts and types.
        quads: Quads,
        /// Registers of A, B and C.
        sources: [Vec<Source>; 3],
        /// Registers of D.
        targets: Vec<Target>,
    },
    /// `wmma.load`
    Load {
        /// The fragment to load.
        fragment: Fragment,
        /// The place in memory.
        from: Place,
        /// Elements from one row, or column, to the next.
        stride: Source,
        /// Whether columns, not rows, are contiguous.
        by_columns: bool,
        /// Registers.
        targets: Vec<Target>,
    },
    /// `wmma.store`
    Store {
        /// The fragment to store.
        fragment: Fragment,
        /// The place in memory.
        to: Place,
        /// Elements from one row, or column, to the next.
        stride: Source,
        /// Whether columns, not rows, are contiguous.
        by_columns: bool,
        /// Registers.
        sources: Vec<Source>,
    },
    /// `ldmatrix` of 8 by 8 elements of 16 bits.
    LoadRows {
        /// The address of each lane's row.
        from: Place,
        /// `.trans`
        transposed: bool,
        /// A register for each matrix.
        targets: Vec<Target>,
    },
    /// `stmatrix` of 8 by 8 elements of 16 bits.
    StoreRows {
        /// The address of each lane's row.
        to: Place,
        /// `.trans`
        transposed: bool,
        /// A register for each matrix.
        sources: Vec<Source>,
    },
    /// `ldmatrix` and `stmatrix` of elements of 8 bits.
    Bytes {
        /// The shape and format.
        rows: ByteRows,
        /// The address of each lane's row.
        place: Place,
        /// The registers of a load.
        targets: Vec<Target>,
        /// The registers of a store.
        sources: Vec<Source>,
    },
    /// `wgmma.mma_async`
    Group(Box<GroupOp>),
    /// `movmatrix.trans`
    Transpose {
        /// From here.
        source: Source,
        /// To here.
        target: Target,
    },
}

impl MatrixOp {
    /// Cycles from its issue to the next of its warp.
    pub fn cycles(&self) -> u32 {
        match self {
            MatrixOp::Group(op) => op.cycles(),
            _ => 1,
        }
    }

    /// Tells the sources (`false`) and targets (`true`) of the operation, for the timing model.
    pub fn rows(&self, mut tell: impl FnMut(Source, bool), of: impl Fn(Target) -> Source) {
        let (sources, targets): (Vec<Source>, &[Target]) = match self {
            MatrixOp::Group(op) => return op.rows(tell, of),
            MatrixOp::Multiply { sources, targets, sparse, scales, .. } => {
                let metadata = sparse.iter().map(|sparse| sparse.metadata);
                let scales = scales.iter().flat_map(|scales| scales.sources());
                (sources.concat().into_iter().chain(metadata).chain(scales).collect(), targets)
            }
            MatrixOp::Quads { sources, targets, .. } => (sources.concat(), targets),
            MatrixOp::Load { from, stride, targets, .. } => (vec![from.address, *stride], targets),
            MatrixOp::Store { to, stride, sources, .. } => {
                ([&[to.address, *stride], sources.as_slice()].concat(), &[])
            }
            MatrixOp::LoadRows { from, targets, .. } => (vec![from.address], targets),
            MatrixOp::StoreRows { to, sources, .. } => {
                ([&[to.address], sources.as_slice()].concat(), &[])
            }
            MatrixOp::Bytes { place, targets, sources, .. } => {
                ([&[place.address], sources.as_slice()].concat(), targets)
            }
            MatrixOp::Transpose { source, target } => (vec![*source], std::slice::from_ref(target)),
        };
        sources.into_iter().for_each(|source| tell(source, false));
        targets.iter().for_each(|&target| tell(of(target), true));
    }
}

type Outcome = Result<(), Box<Trouble>>;

/// Executes the instruction for every warp.
#[inline(never)]
pub fn execute(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.matrix_ops[i.imm as usize];
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        match op {
            MatrixOp::Multiply { factors, sources, result, targets, rule, sparse, scales } => {
                let [mut a, mut b, c] = [0, 1, 2].map(|index| {
                    let registers: Vec<Register> =
                        sources[index].iter().map(|&source| core.get_all(source, w)).collect();
                    factors[index].gather(&registers)
                });
                let [of_a, of_b, of_c] = [0, 1, 2].map(|index| factors[index].fragment);
                let k = of_b.rows;
                if let Some(Sparse { metadata, selector }) = *sparse {
                    let metadata = core.get_all(metadata, w);
                    a = sparse::expand(&a, &metadata, (of_a.element, selector), k);
                }
                let mut kind = Kind {
                    elements: [of_a.element, of_b.element, of_c.element],
                    of_d: result.fragment.element,
                    n: of_b.columns,
                    k,
                    rule: *rule,
                    negated: false,
                };
                if let Some(scales) = scales {
                    let lane = (mask.trailing_zeros() & 31) as usize;
                    let elements = ([of_a.element, of_b.element], k);
                    [a, b] = scales
                        .apply(core, (w, lane), (&a, &b), elements)
                        .map_err(|detail| illegal((w + core.first_warp, lane, pc), detail))?;
                    kind.elements = [Element::F64, Element::F64, of_c.element];
                }
                let product = multiply([&a, &b, &c], &kind);
                put(core, targets, &result.spread(&product, targets.len()), w, mask);
            }
            MatrixOp::Quads { quads, sources, targets } => {
                let [a, b, c] = [0, 1, 2].map(|index| {
                    sources[index]
                        .iter()
                        .map(|&source| core.get_all(source, w))
                        .collect::<Vec<Register>>()
                });
                put(core, targets, &quad::multiply(*quads, &a, &b, &c), w, mask);
            }
            MatrixOp::Load { fragment, from, stride, by_columns, targets } => {
                let walk =
                    Walk { fragment, place: *from, stride: *stride, by_columns: *by_columns };
                let mut registers = vec![[0; LANES]; targets.len()];
                let (step, bytes) = piece(fragment.element);
                for element in (0..targets.len() * fragment.element.per_register()).step_by(step) {
                    let addresses = walk.addresses(core, w, element);
                    for lane in lanes(mask) {
                        let mut word = [0; 8];
                        let bytes = &mut word[..bytes];
                        read_bytes(env, (w + core.first_warp, lane, pc), addresses[lane], bytes)?;
                        fragment.set_element(
                            &mut registers,
                            lane,
                            element,
                            u64::from_le_bytes(word),
                        );
                    }
                    note(env, AccessKind::Load, &addresses, mask, bytes, pc);
                }
                put(core, targets, &registers, w, mask);
            }
            MatrixOp::Store { fragment, to, stride, by_columns, sources } => {
                let walk = Walk { fragment, place: *to, stride: *stride, by_columns: *by_columns };
                let registers: Vec<Register> =
                    sources.iter().map(|&source| core.get_all(source, w)).collect();
                let (_, bytes) = piece(fragment.element);
                for element in 0..fragment.elements() {
                    let addresses = walk.addresses(core, w, element);
                    for lane in lanes(mask) {
                        let word = fragment.element_of(&registers, lane, element).to_le_bytes();
                        let bytes = &word[..bytes];
                        write_bytes(env, (w + core.first_warp, lane, pc), addresses[lane], bytes)?;
                    }
                    note(env, AccessKind::Store, &addresses, mask, bytes, pc);
                }
            }
            MatrixOp::LoadRows { from, transposed, targets } => {
                let addresses = core.get_all(from.address, w).map(|at| from.space.generic(at));
                let mut registers = vec![[0; LANES]; targets.len()];
                for (index, register) in registers.iter_mut().enumerate() {
                    let mut matrix = [[0_u16; 8]; 8];
                    for (row, values) in matrix.iter_mut().enumerate() {
                        let lane = 8 * index + row;
                        let mut bytes = [0; 16];
                        read_bytes(
                            env,
                            (w + core.first_warp, lane, pc),
                            addresses[lane],
                            &mut bytes,
                        )?;
                        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                            *value = u16::from_le_bytes(*bytes);
                        }
                    }
                    *register = lanes_of(&matrix, *transposed);
                }
                note(env, AccessKind::Load, &addresses, rows_mask(targets.len()), 16, pc);
                put(core, targets, &registers, w, mask);
            }
            MatrixOp::StoreRows { to, transposed, sources } => {
                let addresses = core.get_all(to.address, w).map(|at| to.space.generic(at));
                for (index, &source) in sources.iter().enumerate() {
                    let matrix = matrix_of(&core.get_all(source, w), *transposed);
                    for (row, values) in matrix.iter().enumerate() {
                        let lane = 8 * index + row;
                        let mut bytes = [0; 16];
                        for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                            *bytes = value.to_le_bytes();
                        }
                        write_bytes(env, (w + core.first_warp, lane, pc), addresses[lane], &bytes)?;
                    }
                }
                note(env, AccessKind::Store, &addresses, rows_mask(sources.len()), 16, pc);
            }
            MatrixOp::Bytes { rows, place, targets, sources } => {
                let addresses = core.get_all(place.address, w).map(|at| place.space.generic(at));
                let site = (w + core.first_warp, pc);
                if sources.is_empty() {
                    let registers = byte_rows::load(*rows, env, site, &addresses, targets.len())?;
                    let lines = rows.lines(targets.len());
                    note(env, AccessKind::Load, &addresses, first_lanes(lines), 16, pc);
                    put(core, targets, &registers, w, mask);
                } else {
                    let registers: Vec<Register> =
                        sources.iter().map(|&source| core.get_all(source, w)).collect();
                    byte_rows::store(env, site, &addresses, &registers)?;
                    let lines = rows.lines(sources.len());
                    note(env, AccessKind::Store, &addresses, first_lanes(lines), 16, pc);
                }
            }
            MatrixOp::Group(op) => warpgroup::execute(core, op, env, (w, mask, pc))?,
            MatrixOp::Transpose { source, target } => {
                let matrix = matrix_of(&core.get_all(*source, w), false);
                core.put_all(*target, w, mask, &lanes_of(&matrix, true));
            }
        }
    }
    Ok(())
}

/// The fault of an instruction whose operands have no meaning.
fn illegal((warp, lane, pc): (usize, usize, usize), detail: String) -> Box<Trouble> {
    let kind = FaultKind::IllegalInstruction;
    Box::new(Trouble { kind, warp, lane, pc, address: None, detail })
}

fn put(core: &mut Core<'_>, targets: &[Target], registers: &[Register], w: usize, mask: u32) {
    for (&target, register) in targets.iter().zip(registers) {
        core.put_all(target, w, mask, register);
    }
}

/// Elements per read and their bytes. Elements smaller than a byte are read as whole registers.
fn piece(element: Element) -> (usize, usize) {
    if element.width() < 8 { (element.per_register(), 4) } else { (1, element.width() / 8) }
}

/// The lanes that supply row addresses for `count` matrices.
fn rows_mask(count: usize) -> u32 {
    u32::MAX >> (32 - 8 * count.clamp(1, 4))
}

/// The first `count` lanes.
fn first_lanes(count: usize) -> u32 {
    u32::MAX >> (32 - count.clamp(1, LANES))
}

/// PTX ISA, "ldmatrix": a lane holds elements `2 * (lane % 4)` and the next of row `lane / 4`.
fn lanes_of(matrix: &[[u16; 8]; 8], transposed: bool) -> Register {
    std::array::from_fn(|lane| {
        let element = |part: usize| {
            let (row, column) = (lane / 4, 2 * (lane % 4) + part);
            if transposed { matrix[column][row] } else { matrix[row][column] }
        };
        u64::from(element(0)) | u64::from(element(1)) << 16
    })
}

fn matrix_of(register: &Register, transposed: bool) -> [[u16; 8]; 8] {
    std::array::from_fn(|row| {
        std::array::from_fn(|column| {
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            (register[4 * row + column / 2] >> (16 * (column % 2))) as u16
        })
    })
}

/// The order of a fragment's elements in memory.
struct Walk<'a> {
    fragment: &'a Fragment,
    place: Place,
    stride: Source,
    by_columns: bool,
}

impl Walk<'_> {
    fn addresses(&self, core: &Core<'_>, w: usize, element: usize) -> Register {
        let fragment = self.fragment;
        let starts = core.get_all(self.place.address, w).map(|at| self.place.space.generic(at));
        let strides = core.get_all(self.stride, w);
        std::array::from_fn(|lane| {
            let (row, column) = fragment.place(lane, element);
            let (line, along) = if self.by_columns { (column, row) } else { (row, column) };
            let stride = match self.stride {
                Source::None if self.by_columns => fragment.rows as u64,
                Source::None => fragment.columns as u64,
                _ => strides[lane] & 0xffff_ffff,
            };
            let index = (line as u64).wrapping_mul(stride) + along as u64;
            starts[lane].wrapping_add(index.wrapping_mul(fragment.element.width() as u64) / 8)
        })
    }
}

/// Records the access for the timing model.
fn note(
    env: &mut Env<'_>,
    kind: AccessKind,
    addresses: &Register,
    mask: u32,
    bytes: usize,
    pc: usize,
) {
    let first = addresses[(mask.trailing_zeros() & 31) as usize];
    if super::access::is_global(first) {
        let counts = &mut env.trace.counts;
        match kind {
            AccessKind::Store => counts.global_stores += 1,
            _ => counts.global_loads += 1,
        }
        env.trace.scattered(kind, addresses, mask, bytes as u32, pc);
    } else {
        env.trace.counts.shared_accesses += 1;
        env.trace.shared(addresses, mask);
    }
}
