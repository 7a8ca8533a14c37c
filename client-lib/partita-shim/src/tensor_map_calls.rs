//! Exports: tensor maps (CUDA Driver API, "Tensor Map Object Management"). The GPU's driver makes
//! them, in the daemon; kernels get the bytes.

use crate::abi::{Memory, Out, Plain};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::runtime;
use partita_model::DeviceAddress;
use partita_model::tensor_map::{MAX_RANK, TensorMap, TensorMapSpec, TensorPart};

/// A program's list of `count` numbers, with zeros behind it.
fn list<T: Plain + Default, const N: usize>(from: Memory, count: usize) -> CuResult<[T; N]> {
    let mut all = [T::default(); N];
    for (at, value) in (0..).zip(all.iter_mut()).take(count) {
        *value = from.offset(at * size_of::<T>() as u64).read()?;
    }
    Ok(all)
}

/// The parameters that all calls have.
struct Tensor {
    data_type: u32,
    rank: u32,
    address: u64,
    extents: Memory,
    strides: Memory,
    steps: Memory,
    /// Interleave, swizzle, promotion, fill.
    ways: [u32; 4],
}

impl Tensor {
    fn rank(&self) -> CuResult<usize> {
        let rank = usize::try_from(self.rank).unwrap_or(usize::MAX);
        if (1..=MAX_RANK).contains(&rank) { Ok(rank) } else { Err(CuError::INVALID_VALUE) }
    }

    fn spec(&self, part: TensorPart) -> CuResult<TensorMapSpec> {
        let rank = self.rank()?;
        let [interleave, swizzle, promotion, fill] = self.ways;
        Ok(TensorMapSpec {
            data_type: self.data_type,
            rank: self.rank,
            address: DeviceAddress(self.address),
            extents: list(self.extents, rank)?,
            strides: list(self.strides, rank - 1)?,
            element_strides: list(self.steps, rank)?,
            part,
            interleave,
            swizzle,
            promotion,
            fill,
        })
    }

    fn make(&self, map: &Out<TensorMap>, part: TensorPart) -> CuResult {
        let spec = self.spec(part)?;
        map.set(*runtime::current()?.session.tensor_map(&spec)?);
        Ok(())
    }
}

exports! {
    fn cuTensorMapEncodeTiled(
        map: Out<TensorMap>, data_type: u32, rank: u32, address: u64, extents: Memory,
        strides: Memory, tile: Memory, steps: Memory, interleave: u32, swizzle: u32,
        promotion: u32, fill: u32,
    ) {
        let ways = [interleave, swizzle, promotion, fill];
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        let rank = tensor.rank()?;
        tensor.make(&map, TensorPart::Tiled { extents: list(tile, rank)? })
    }

    fn cuTensorMapEncodeIm2col(
        map: Out<TensorMap>, data_type: u32, rank: u32, address: u64, extents: Memory,
        strides: Memory, lower: Memory, upper: Memory, channels: u32, pixels: u32,
        steps: Memory, interleave: u32, swizzle: u32, promotion: u32, fill: u32,
    ) {
        let ways = [interleave, swizzle, promotion, fill];
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        let corners = tensor.rank()?.saturating_sub(2);
        let (lower, upper) = (list(lower, corners)?, list(upper, corners)?);
        tensor.make(&map, TensorPart::Columns { lower, upper, channels, pixels })
    }

    fn cuTensorMapEncodeIm2colWide(
        map: Out<TensorMap>, data_type: u32, rank: u32, address: u64, extents: Memory,
        strides: Memory, lower: i32, upper: i32, channels: u32, pixels: u32, steps: Memory,
        interleave: u32, mode: u32, swizzle: u32, promotion: u32, fill: u32,
    ) {
        let ways = [interleave, swizzle, promotion, fill];
        let tensor = Tensor { data_type, rank, address, extents, strides, steps, ways };
        tensor.make(&map, TensorPart::Wide { lower, upper, channels, pixels, mode })
    }

    fn cuTensorMapReplaceAddress(map: Out<TensorMap>, address: u64) {
        let (runtime, address) = (runtime::current()?, DeviceAddress(address));
        map.set(*runtime.session.moved_tensor_map(&map.read(), address)?);
        Ok(())
    }
}
