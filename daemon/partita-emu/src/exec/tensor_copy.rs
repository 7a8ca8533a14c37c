//! Copies of tiles and columns of tensors by tensor maps, between global memory and shared memory
//! (PTX ISA, "Tensors", "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor").
//!
//! A map is the emulated GPU's own form ([`TensorMapSpec::packed`]). Each copy reads it and checks
//! its parameters, because programs may write maps. A copy is done at once. An mbarrier
//! counts the bytes of the whole tile, also where the tile reaches beyond the tensor.

use super::access::{read_bytes, write_bytes};
use super::bulk;
use super::cluster::{mapa, rank_of};
use super::inst::{AtomicKind, AtomicType, Source, Space};
use super::mbarrier;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use partita_device::FaultKind;
use partita_model::tensor_map::{MAX_RANK, TENSOR_MAP_BYTES, TensorMapSpec, TensorPart};

/// Where a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyKind {
    /// From global to shared memory. An mbarrier then counts the bytes.
    ToShared {
        /// The mbarrier's address in shared memory.
        mbarrier: Source,
        /// The CTAs of the cluster that get the tile, one bit a rank; [`Source::None`] for the CTA
        /// that the address names.
        ctas: Source,
        /// Whether the mbarrier may be that of the other CTA of a pair.
        pair: bool,
    },
    /// From shared to global memory.
    ToGlobal,
    /// A reduction from shared memory into global memory.
    Reduce(AtomicKind),
}

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct TensorCopy {
    /// Which way.
    pub kind: CopyKind,
    /// The map's generic address.
    pub map: Source,
    /// The tile in shared memory.
    pub shared: Source,
    /// The tile's first element, the innermost dimension first.
    pub coordinates: [Source; MAX_RANK],
    /// The number of coordinates.
    pub rank: usize,
    /// `.tile::gather4` and `.tile::scatter4`: one coordinate of columns, and four of rows.
    pub listed: bool,
    /// `.im2col`: pixels of an image, the innermost dimension of the distance to them first.
    pub offsets: Option<[Source; MAX_RANK - 2]>,
}

/// Bytes that swizzling keeps together.
const PIECE: usize = 16;
/// A tile in shared memory lies on a multiple of this many bytes, a map on half as many.
const TILE_ALIGNMENT: u64 = 128;

/// Warp, lane, instruction.
type Site = (usize, usize, usize);
type Outcome<T> = Result<T, Box<Trouble>>;

fn trouble(site: Site, kind: FaultKind, address: u64, detail: String) -> Box<Trouble> {
    let (warp, lane, pc) = site;
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

/// Carries a copy out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &TensorCopy,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Outcome<()> {
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let map = core.get(op.map, w, lane);
        let mut spec = checked(env, site, map, op.rank)?;
        let shared = Space::Shared.generic(core.get(op.shared, w, lane));
        if !shared.is_multiple_of(TILE_ALIGNMENT) {
            let detail = "a tile of a tensor that is not aligned to 128 bytes".to_owned();
            return Err(trouble(site, FaultKind::MisalignedAddress, shared, detail));
        }
        let mut first = op.coordinates.map(|at| i64::from(core.get(at, w, lane) as u32 as i32));
        if spec.data_type == FOURS && !in_bytes(&mut spec, &mut first) {
            return Err(not_for(site, map, "half a byte is at a border of the tensor or tile"));
        }
        let offsets = op.offsets.map(|of| of.map(|at| i64::from(core.get(at, w, lane) as u16)));
        let tile = if op.listed {
            Tile::of_rows(&spec, first, shared)
        } else {
            Tile::new(&spec, (first, offsets), shared)
        };
        let mut tile = tile.ok_or_else(|| not_for(site, map, "it is of another kind"))?;
        if let CopyKind::ToShared { mbarrier, ctas, pair } = op.kind {
            let mbarrier = Space::Shared.generic(core.get(mbarrier, w, lane));
            let wanted = env.trace.wanted;
            for rank in bulk::ranks(core, ctas, w, lane) {
                tile.shared = rank.map_or(shared, |rank| mapa([shared, rank, 0], 0));
                let bytes = tile.copy(env, site, op.kind, map)?;
                let counted = counted_by(mbarrier, rank, pair);
                mbarrier::complete(env, site, counted, bytes)?;
                // The tile crosses global memory's ways once, however many CTAs get it.
                env.trace.wanted = false;
            }
            env.trace.wanted = wanted;
        } else {
            tile.copy(env, site, op.kind, map)?;
        }
        match op.kind {
            CopyKind::ToShared { .. } => env.trace.counts.global_loads += 1,
            CopyKind::ToGlobal => env.trace.counts.global_stores += 1,
            CopyKind::Reduce(_) => env.trace.counts.atomics += 1,
        }
    }
    Ok(())
}

/// The mbarrier that counts the tile of a CTA: at the same offset in that CTA, or in the CTA of its
/// pair whose rank is even where the address names an even one (PTX ISA, "cp.async.bulk.tensor",
/// `.cta_group::2`).
fn counted_by(mbarrier: u64, rank: Option<u64>, pair: bool) -> u64 {
    let Some(rank) = rank else { return mbarrier };
    let rank = if pair { rank & !1 | rank_of([mbarrier, 0, 0], 0) & 1 } else { rank };
    mapa([mbarrier, rank, 0], 0)
}

/// `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B`: numbers of four bits, which lie in shared memory as they
/// do in global memory.
const FOURS: u32 = 13;

/// Makes pairs of numbers of four bits bytes. False where a border parts a pair.
fn in_bytes(spec: &mut TensorMapSpec, first: &mut [i64; MAX_RANK]) -> bool {
    let TensorPart::Tiled { extents } = &mut spec.part else { return false };
    let odd = extents[0] % 2 == 1 || spec.extents[0] % 2 == 1 || first[0] % 2 != 0;
    extents[0] /= 2;
    spec.extents[0] /= 2;
    first[0] /= 2;
    spec.data_type = 0;
    !odd
}

fn not_for(site: Site, map: u64, why: &str) -> Box<Trouble> {
    let detail = format!("a tensor map that is not for this instruction: {why}");
    trouble(site, FaultKind::IllegalInstruction, map, detail)
}

/// The map at a generic address, unchecked.
pub(super) fn map_at(env: &mut Env<'_>, site: Site, address: u64) -> Outcome<TensorMapSpec> {
    if !address.is_multiple_of(TILE_ALIGNMENT / 2) {
        let detail = "a tensor map that is not aligned to 64 bytes".to_owned();
        return Err(trouble(site, FaultKind::MisalignedAddress, address, detail));
    }
    let mut map = [0; TENSOR_MAP_BYTES];
    for (piece, at) in map.as_chunks_mut::<PIECE>().0.iter_mut().zip(0_u64..) {
        read_bytes(env, site, address + at * PIECE as u64, piece)?;
    }
    TensorMapSpec::unpacked(&map)
        .ok_or_else(|| not_for(site, address, "there is none at its address"))
}

/// The map for a tile of as many dimensions.
fn checked(env: &mut Env<'_>, site: Site, address: u64, rank: usize) -> Outcome<TensorMapSpec> {
    let spec = map_at(env, site, address)?;
    spec.check().map_err(|error| not_for(site, address, &error.to_string()))?;
    if spec.rank as usize != rank {
        let why = format!("it has {} dimensions and the instruction {rank}", spec.rank);
        return Err(not_for(site, address, &why));
    }
    Ok(spec)
}

/// A tile of a tensor and its place in shared memory.
struct Tile<'a> {
    spec: &'a TensorMapSpec,
    first: [i64; MAX_RANK],
    /// Elements of a row.
    inner: u32,
    rows: Rows,
    shared: u64,
    element: usize,
    swizzle: Swizzle,
}

/// How rows of 128 bytes of shared memory are mixed, by `CUtensorMapSwizzle` (CUDA Driver API,
/// "cuTensorMapEncodeTiled"; PTX ISA, "Swizzling modes").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Swizzle {
    /// Bits of the number of a row that are mixed into the number of a chunk.
    mixed: u64,
    /// The bits of an offset in a chunk.
    chunk: u32,
    /// Whether in every second row the halves of 16 bytes change places.
    flips: bool,
}

impl Swizzle {
    fn new(mode: u32) -> Option<Self> {
        let (mixed, chunk) = match mode {
            0 => (0, 4),
            1 => (1, 4),
            2 => (3, 4),
            3 => (7, 4),
            4 | 5 => (3, 5),
            6 => (1, 6),
            _ => return None,
        };
        Some(Swizzle { mixed, chunk, flips: mode == 5 })
    }

    /// Where a piece lies that would lie at an address without swizzling, and whether its halves
    /// change places.
    fn place(self, address: u64) -> (u64, bool) {
        let row = address >> 7;
        (address ^ (row & self.mixed) << self.chunk, self.flips && row & 1 == 1)
    }
}

/// What lies along the outer dimensions.
enum Rows {
    /// A box: rows along each dimension.
    Box([u32; MAX_RANK]),
    /// Pixels or rows, each with its address as far as it is inside of the tensor.
    Pixels(Vec<Option<u64>>),
}

impl<'a> Tile<'a> {
    fn new(
        spec: &'a TensorMapSpec,
        (first, offsets): ([i64; MAX_RANK], Option<[i64; MAX_RANK - 2]>),
        shared: u64,
    ) -> Option<Self> {
        let (inner, rows) = match (spec.part, offsets) {
            (TensorPart::Tiled { extents }, None) => {
                let mut counts = [1; MAX_RANK];
                for (dimension, count) in counts.iter_mut().enumerate().take(spec.rank as usize) {
                    // Without interleaving, the innermost dimension is copied whole.
                    let step = if dimension == 0 { 1 } else { spec.element_strides[dimension] };
                    *count = extents[dimension].div_ceil(step.max(1));
                }
                (counts[0], Rows::Box(counts))
            }
            (TensorPart::Columns { lower, upper, channels, pixels }, Some(offsets)) => {
                let corners = (lower.map(i64::from), upper.map(i64::from));
                (channels, Rows::Pixels(columns(spec, (first, offsets), corners, pixels)))
            }
            _ => return None,
        };
        let element = spec.element_bytes() as usize;
        let swizzle = Swizzle::new(spec.swizzle)?;
        let whole = (inner as usize * element).is_multiple_of(PIECE);
        let known = element > 0 && spec.interleave == 0 && whole;
        known.then_some(Tile { spec, first, inner, rows, shared, element, swizzle })
    }

    /// Four rows of a tensor of two dimensions (PTX ISA, ".tile::scatter4 and .tile::gather4
    /// modes"): the first coordinate is the column, the other four are rows. The map's box has one
    /// row.
    fn of_rows(spec: &'a TensorMapSpec, first: [i64; MAX_RANK], shared: u64) -> Option<Self> {
        let is_row = matches!(spec.part, TensorPart::Tiled { extents } if extents[1] == 1);
        let mut tile = Tile::new(spec, (first, None), shared).filter(|_| is_row)?;
        let row = |&at: &i64| {
            let at = u64::try_from(at).ok().filter(|&at| at < spec.extents[1])?;
            Some(spec.address.0.wrapping_add(at.wrapping_mul(spec.strides[0])))
        };
        tile.rows = Rows::Pixels(first[1..].iter().map(row).collect());
        Some(tile)
    }

    /// Copies all rows, and returns the bytes of the tile.
    fn copy(&self, env: &mut Env<'_>, site: Site, kind: CopyKind, map: u64) -> Outcome<u64> {
        let rows: u64 = match &self.rows {
            Rows::Box(counts) => counts[1..].iter().map(|&count| u64::from(count)).product(),
            Rows::Pixels(pixels) => pixels.len() as u64,
        };
        let row_bytes = self.inner as usize * self.element;
        for row in 0..rows {
            let start = self.row(row);
            let at = self.shared + row * row_bytes as u64;
            self.copy_row(env, (site, kind, map), start, (at, row_bytes))?;
        }
        Ok(rows * row_bytes as u64)
    }

    /// The global address of element 0 of a row; `None` for a row outside of the tensor.
    fn row(&self, number: u64) -> Option<u64> {
        let counts = match &self.rows {
            Rows::Box(counts) => counts,
            Rows::Pixels(pixels) => return pixels[number as usize],
        };
        let (mut rest, mut address) = (number, self.spec.address.0);
        for dimension in 1..self.spec.rank as usize {
            let count = u64::from(counts[dimension]);
            let step = i64::from(self.spec.element_strides[dimension]);
            let at = self.first[dimension] + (rest % count) as i64 * step;
            rest /= count;
            let at = u64::try_from(at).ok().filter(|&at| at < self.spec.extents[dimension])?;
            address = address.wrapping_add(at.wrapping_mul(self.spec.strides[dimension - 1]));
        }
        Some(address)
    }

    fn copy_row(
        &self,
        env: &mut Env<'_>,
        (site, kind, map): (Site, CopyKind, u64),
        start: Option<u64>,
        (shared, bytes): (u64, usize),
    ) -> Outcome<()> {
        let per = PIECE / self.element;
        let inside = |element: i64| {
            let known = u64::try_from(element).ok().filter(|&at| at < self.spec.extents[0]);
            known.zip(start).map(|(at, start)| start.wrapping_add(at * self.element as u64))
        };
        let into_shared = matches!(kind, CopyKind::ToShared { .. });
        let (mut low, mut high) = (u64::MAX, 0);
        for number in 0..bytes / PIECE {
            let (at, flipped) = self.swizzle.place(shared + (number * PIECE) as u64);
            let mut piece = [0; PIECE];
            if !into_shared {
                read_bytes(env, site, at, &mut piece)?;
                piece.rotate_left(if flipped { PIECE / 2 } else { 0 });
            }
            let first = self.first[0] + (number * per) as i64;
            let places: Vec<Option<u64>> =
                (0..per).map(|part| inside(first + part as i64)).collect();
            for place in places.iter().flatten() {
                low = low.min(*place);
                high = high.max(place.saturating_add(self.element as u64));
            }
            // A whole piece is one access where its address allows it.
            let whole = places.iter().all(Option::is_some)
                && places[0].is_some_and(|place| place.is_multiple_of(PIECE as u64));
            let size = if whole { PIECE } else { self.element };
            for (part, value) in piece.chunks_exact_mut(size).enumerate() {
                match places[part] {
                    Some(place) => self.element(env, (site, kind, map), place, value)?,
                    None if into_shared => self.fill(value),
                    None => {}
                }
            }
            if into_shared {
                piece.rotate_left(if flipped { PIECE / 2 } else { 0 });
                write_bytes(env, site, at, &piece)?;
            }
        }
        if low < high {
            let kind = if into_shared { AccessKind::LoadPastL1 } else { AccessKind::Store };
            env.trace.range(kind, low, high, site.2);
        }
        Ok(())
    }

    /// One access of global memory.
    fn element(
        &self,
        env: &mut Env<'_>,
        (site, kind, map): (Site, CopyKind, u64),
        place: u64,
        value: &mut [u8],
    ) -> Outcome<()> {
        match kind {
            CopyKind::ToShared { .. } => read_bytes(env, site, place, value),
            CopyKind::ToGlobal => write_bytes(env, site, place, value),
            CopyKind::Reduce(kind) => {
                let ty = atomic_type(self.spec.data_type)
                    .ok_or_else(|| not_for(site, map, "its elements have no reductions"))?;
                let mut old = [0; PIECE];
                let old = &mut old[..value.len()];
                read_bytes(env, site, place, old)?;
                bulk::reduce(kind, ty, value, old);
                write_bytes(env, site, place, value)
            }
        }
    }

    /// An element outside of the tensor: 0, or a number that is none.
    fn fill(&self, value: &mut [u8]) {
        if self.spec.fill == 1 {
            value.fill(0xff);
            if let Some(last) = value.last_mut() {
                *last = 0x7f;
            }
        }
    }
}

/// The pixels of a column from the first on (PTX ISA, "Im2col mode"): along the width, and on with
/// the next line, plane and image where the box of pixels ends. The offsets are added to each
/// pixel's place in its image.
fn columns(
    spec: &TensorMapSpec,
    (first, offsets): ([i64; MAX_RANK], [i64; MAX_RANK - 2]),
    (lower, upper): ([i64; MAX_RANK - 2], [i64; MAX_RANK - 2]),
    pixels: u32,
) -> Vec<Option<u64>> {
    let rank = spec.rank as usize;
    let image = 1..rank - 1;
    let mut at = first;
    let mut found = Vec::with_capacity(pixels as usize);
    for _ in 0..pixels {
        let address = (1..rank).try_fold(spec.address.0, |address, dimension| {
            let offset = if image.contains(&dimension) { offsets[dimension - 1] } else { 0 };
            let place = u64::try_from(at[dimension] + offset).ok();
            let place = place.filter(|&place| place < spec.extents[dimension])?;
            Some(address.wrapping_add(place.wrapping_mul(spec.strides[dimension - 1])))
        });
        found.push(address);
        let mut ends = true;
        for dimension in image.clone() {
            if !ends {
                break;
            }
            at[dimension] += i64::from(spec.element_strides[dimension]);
            let end = spec.extents[dimension].cast_signed() + upper[dimension - 1];
            ends = at[dimension] >= end;
            if ends {
                at[dimension] = lower[dimension - 1];
            }
        }
        if ends {
            at[rank - 1] += 1;
        }
    }
    found
}

/// The type of reductions, by `CUtensorMapDataType`.
fn atomic_type(data_type: u32) -> Option<AtomicType> {
    Some(match data_type {
        2 => AtomicType::U32,
        3 => AtomicType::S32,
        4 => AtomicType::U64,
        5 => AtomicType::S64,
        6 => AtomicType::F16,
        7 | 10 => AtomicType::F32,
        8 => AtomicType::F64,
        9 => AtomicType::Bf16,
        _ => return None,
    })
}
