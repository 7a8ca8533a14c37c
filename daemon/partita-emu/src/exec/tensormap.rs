//! `tensormap.replace`: a field of a tensor map in memory gets another value (PTX ISA,
//! "tensormap.replace"). Fields need not fit each other until a copy uses the map.

use super::access::write_bytes;
use super::inst::{Source, Space};
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use super::tensor_copy::map_at;
use partita_model::DeviceAddress;
use partita_model::tensor_map::{TensorMapSpec, TensorPart};

/// What is replaced. Numbers in it count dimensions, the innermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the field of that name")]
pub enum Field {
    GlobalAddress,
    Rank,
    BoxDim(usize),
    GlobalDim(usize),
    /// Of the dimension after this one; in units of as many bytes.
    GlobalStride(usize, u64),
    ElementStride(usize),
    Elemtype,
    InterleaveLayout,
    SwizzleMode,
    FillMode,
}

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct ReplaceOp {
    /// The field.
    pub field: Field,
    /// Global, shared or generic.
    pub space: Space,
    /// Where the map is.
    pub address: Source,
    /// Its new value.
    pub value: Source,
}

/// `CUtensorMapDataType` by the numbers of `.elemtype` (PTX ISA, "tensormap.replace", table of
/// elements).
const ELEMENTS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15];

/// Carries the instruction out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &ReplaceOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let address = op.space.generic(core.get(op.address, w, lane));
        let mut spec = map_at(env, site, address)?;
        replace(&mut spec, op.field, core.get(op.value, w, lane));
        for (piece, at) in spec.packed().as_chunks::<16>().0.iter().zip(0_u64..) {
            write_bytes(env, site, address + 16 * at, piece)?;
        }
    }
    Ok(())
}

fn replace(spec: &mut TensorMapSpec, field: Field, value: u64) {
    let short = value as u32;
    match field {
        Field::GlobalAddress => spec.address = DeviceAddress(value),
        Field::Rank => spec.rank = (short & 0xff) + 1,
        Field::BoxDim(dimension) => {
            if let TensorPart::Tiled { extents } = &mut spec.part {
                // More than 16 bits are no box either.
                extents[dimension] = short.min(0xffff);
            }
        }
        Field::GlobalDim(dimension) => spec.extents[dimension] = u64::from(short),
        Field::GlobalStride(dimension, unit) => {
            spec.strides[dimension] = value.saturating_mul(unit);
        }
        Field::ElementStride(dimension) => spec.element_strides[dimension] = short.min(0xff),
        Field::Elemtype => {
            spec.data_type = ELEMENTS.get(short as usize).copied().unwrap_or(0xff);
        }
        Field::InterleaveLayout => spec.interleave = short.min(0xff),
        Field::SwizzleMode => spec.swizzle = short.min(0xff),
        Field::FillMode => spec.fill = short.min(0xff),
    }
}
