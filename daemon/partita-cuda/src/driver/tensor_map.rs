//! Tensor maps, which the driver makes without a context or a GPU's work (CUDA Driver API, "Tensor
//! Map Object Management"; since CUDA 12.0, columns along the width since 12.8).

use super::context::size;
use super::table::{TensorMapBytes, check};
use super::{Driver, Failure};
use partita_model::DeviceAddress;
use partita_model::tensor_map::{TENSOR_MAP_BYTES, TensorMap, TensorMapSpec, TensorPart};

impl Driver {
    /// Makes one.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` where it is too old.
    pub fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Failure> {
        let mut map = TensorMapBytes([0; TENSOR_MAP_BYTES]);
        let to = &raw mut map;
        let (kind, rank) = (spec.data_type, spec.rank);
        let address = std::ptr::without_provenance_mut(size(spec.address.0));
        let (extents, strides) = (spec.extents.as_ptr(), spec.strides.as_ptr());
        let steps = spec.element_strides.as_ptr();
        let TensorMapSpec { interleave, swizzle, promotion, fill, .. } = *spec;
        match &spec.part {
            TensorPart::Tiled { extents: tile } => {
                const NAME: &str = "cuTensorMapEncodeTiled";
                let make = self.table.cuTensorMapEncodeTiled;
                let make = make.ok_or_else(|| Failure::unsupported(NAME))?;
                let tile = tile.as_ptr();
                // SAFETY: pointers to locals, with room for five dimensions.
                let status = unsafe {
                    make(
                        to, kind, rank, address, extents, strides, tile, steps, interleave,
                        swizzle, promotion, fill,
                    )
                };
                check(&self.table, NAME, status)?;
            }
            TensorPart::Columns { lower, upper, channels, pixels } => {
                const NAME: &str = "cuTensorMapEncodeIm2col";
                let make = self.table.cuTensorMapEncodeIm2col;
                let make = make.ok_or_else(|| Failure::unsupported(NAME))?;
                let (lower, upper) = (lower.as_ptr(), upper.as_ptr());
                // SAFETY: as above.
                let status = unsafe {
                    make(
                        to, kind, rank, address, extents, strides, lower, upper, *channels,
                        *pixels, steps, interleave, swizzle, promotion, fill,
                    )
                };
                check(&self.table, NAME, status)?;
            }
            TensorPart::Wide { lower, upper, channels, pixels, mode } => {
                const NAME: &str = "cuTensorMapEncodeIm2colWide";
                let make = self.table.cuTensorMapEncodeIm2colWide;
                let make = make.ok_or_else(|| Failure::unsupported(NAME))?;
                // SAFETY: as above.
                let status = unsafe {
                    make(
                        to, kind, rank, address, extents, strides, *lower, *upper, *channels,
                        *pixels, steps, interleave, *mode, swizzle, promotion, fill,
                    )
                };
                check(&self.table, NAME, status)?;
            }
        }
        Ok(map.0)
    }

    /// Gives one another address.
    ///
    /// # Errors
    /// As [`Driver::tensor_map`].
    pub fn moved_tensor_map(
        &self,
        map: &TensorMap,
        address: DeviceAddress,
    ) -> Result<TensorMap, Failure> {
        const NAME: &str = "cuTensorMapReplaceAddress";
        let replace = self.table.cuTensorMapReplaceAddress;
        let replace = replace.ok_or_else(|| Failure::unsupported(NAME))?;
        let mut map = TensorMapBytes(*map);
        let address = std::ptr::without_provenance_mut(size(address.0));
        // SAFETY: a pointer to a local, and an address that the driver does not follow.
        let status = unsafe { replace(&raw mut map, address) };
        check(&self.table, NAME, status)?;
        Ok(map.0)
    }
}
