//! Exports: arrays and mipmapped arrays (CUDA Driver API, "Memory Management").

use crate::abi::{In, Out};
use crate::array::{Descriptor2D, Descriptor3D, format};
use crate::devices;
use crate::entry::exports;
use crate::error::CuError;
use crate::runtime;
use partita_model::texture::TexelSource;

exports! {
    fn cuArrayCreate_v2(array: Out<u64>, descriptor: In<Descriptor2D>) {
        let runtime = runtime::current()?;
        array.set(runtime.arrays.create(&runtime.session, &descriptor.get().into())?);
        Ok(())
    }

    fn cuArray3DCreate_v2(array: Out<u64>, descriptor: In<Descriptor3D>) {
        let runtime = runtime::current()?;
        array.set(runtime.arrays.create(&runtime.session, &descriptor.get())?);
        Ok(())
    }

    fn cuArrayGetDescriptor_v2(descriptor: Out<Descriptor2D>, array: u64) {
        descriptor.set(runtime::current()?.arrays.get(array)?.descriptor_2d());
        Ok(())
    }

    fn cuArray3DGetDescriptor_v2(descriptor: Out<Descriptor3D>, array: u64) {
        descriptor.set(runtime::current()?.arrays.get(array)?.descriptor());
        Ok(())
    }

    fn cuArrayDestroy(array: u64) {
        let runtime = runtime::current()?;
        runtime.arrays.destroy(&runtime.session, array)
    }

    fn cuMipmappedArrayCreate(array: Out<u64>, descriptor: In<Descriptor3D>, levels: u32) {
        let runtime = runtime::current()?;
        array.set(runtime.arrays.create_mipmapped(&runtime.session, &descriptor.get(), levels)?);
        Ok(())
    }

    fn cuMipmappedArrayGetLevel(array: Out<u64>, mipmapped: u64, level: u32) {
        array.set(runtime::current()?.arrays.level(mipmapped, level)?);
        Ok(())
    }

    fn cuMipmappedArrayDestroy(mipmapped: u64) {
        let runtime = runtime::current()?;
        runtime.arrays.destroy_mipmapped(&runtime.session, mipmapped)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(
        width: Out<usize>, number: u32, channels: u32, device: i32,
    ) {
        devices::get(device)?;
        format(number, channels)?;
        width.set(usize::try_from(TexelSource::LINEAR_LIMIT).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }
}
