//! Tensor maps (CUDA Driver API, "Tensor Map Object Management"). Their form is that of emulated
//! GPUs ([`TensorMapSpec::packed`]).

use crate::abi::{exports, get, put};
use crate::status::{self, Status};
use partita_model::DeviceAddress;
use partita_model::tensor_map::{MAX_RANK, TensorMap, TensorMapSpec, TensorPart};
use std::ffi::{c_int, c_uint, c_void};

/// A caller's list of `count` numbers, with zeros behind it.
fn list<T: Copy + Default, const N: usize>(from: *const T, count: usize) -> [T; N] {
    let mut all = [T::default(); N];
    for (at, value) in all.iter_mut().enumerate().take(count) {
        *value = get(from.wrapping_add(at));
    }
    all
}

/// What all calls have in common.
struct Tensor {
    data_type: c_uint,
    rank: usize,
    address: *mut c_void,
    extents: *const u64,
    strides: *const u64,
    steps: *const u32,
    /// Interleave, swizzle, promotion, fill.
    ways: [c_uint; 4],
}

fn made(
    into: *mut TensorMap,
    tensor: &Tensor,
    part: impl FnOnce(usize) -> TensorPart,
) -> Result<(), Status> {
    let rank = tensor.rank;
    if !(1..=MAX_RANK).contains(&rank) || !into.addr().is_multiple_of(64) {
        return Err(status::INVALID_VALUE);
    }
    let [interleave, swizzle, promotion, fill] = tensor.ways;
    let spec = TensorMapSpec {
        data_type: tensor.data_type,
        rank: c_uint::try_from(rank).unwrap_or(0),
        address: DeviceAddress(tensor.address.addr() as u64),
        extents: list(tensor.extents, rank),
        strides: list(tensor.strides, rank - 1),
        element_strides: list(tensor.steps, rank),
        part: part(rank),
        interleave,
        swizzle,
        promotion,
        fill,
    };
    spec.check().map_err(|_| status::INVALID_VALUE)?;
    put(into, spec.packed());
    Ok(())
}

exports! {
    cuTensorMapEncodeTiled(map: *mut TensorMap, data_type: c_uint, rank: c_uint,
        address: *mut c_void, extents: *const u64, strides: *const u64, tile: *const u32,
        steps: *const u32, interleave: c_uint, swizzle: c_uint, promotion: c_uint,
        fill: c_uint) |_driver| {
        let ways = [interleave, swizzle, promotion, fill];
        let rank = rank as usize;
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        made(map, &tensor, |rank| TensorPart::Tiled { extents: list(tile, rank) })
    }
    cuTensorMapEncodeIm2col(map: *mut TensorMap, data_type: c_uint, rank: c_uint,
        address: *mut c_void, extents: *const u64, strides: *const u64, lower: *const c_int,
        upper: *const c_int, channels: c_uint, pixels: c_uint, steps: *const u32,
        interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint) |_driver| {
        let ways = [interleave, swizzle, promotion, fill];
        let rank = rank as usize;
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        made(map, &tensor, |rank| {
            let corners = rank.saturating_sub(2);
            let (lower, upper) = (list(lower, corners), list(upper, corners));
            TensorPart::Columns { lower, upper, channels, pixels }
        })
    }
    cuTensorMapEncodeIm2colWide(map: *mut TensorMap, data_type: c_uint, rank: c_uint,
        address: *mut c_void, extents: *const u64, strides: *const u64, lower: c_int,
        upper: c_int, channels: c_uint, pixels: c_uint, steps: *const u32, interleave: c_uint,
        mode: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint) |_driver| {
        let ways = [interleave, swizzle, promotion, fill];
        let rank = rank as usize;
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        made(map, &tensor, |_| TensorPart::Wide { lower, upper, channels, pixels, mode })
    }
    cuTensorMapReplaceAddress(map: *mut TensorMap, address: *mut c_void) |_driver| {
        let address = DeviceAddress(address.addr() as u64);
        let moved = TensorMapSpec::moved(&get(map.cast_const()), address);
        put(map, moved.ok_or(status::INVALID_VALUE)?);
        Ok(())
    }
}
