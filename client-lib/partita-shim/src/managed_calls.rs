//! Exports: managed and mapped memory (CUDA Driver API, "Memory Management", "Unified Addressing").

use crate::abi::{Array, Memory, OptionalOut, Out, Text};
use crate::batch_copy_calls::spread;
use crate::device_memory::Range;
use crate::devices;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::log;
use crate::managed::NOWHERE;
use crate::module_calls::library_module;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;

exports! {
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: u32) {
        const GLOBAL: u32 = 1;
        const HOST: u32 = 2;
        if bytes == 0 || !matches!(flags, GLOBAL | HOST) {
            return Err(CuError::INVALID_VALUE);
        }
        let runtime = runtime::current()?;
        address.set(runtime.managed.allocate(&runtime.session, &runtime.host, bytes)?);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, host: Memory, flags: u32) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let current = runtime::current()?;
        let address = host.address();
        let runtime = runtime::of_host_memory(address)?;
        runtime.host.find(address).ok_or(CuError::INVALID_VALUE)?;
        if runtime.index != current.index {
            log::say(format_args!(
                "kernels of device {} cannot reach page-locked memory of device {}: allocate it \
                 with that device current",
                current.index.0, runtime.index.0
            ));
            return Err(CuError::NOT_SUPPORTED);
        }
        if runtime.is_shared_address(address) {
            device.set(address);
        } else if runtime.host.is_registered(address) {
            device.set(runtime.host.lend(&runtime.session, address)?);
        } else {
            // What the system gave where the session had no more.
            return Err(CuError::NOT_SUPPORTED);
        }
        Ok(())
    }

    fn cuLibraryGetManaged(
        address: OptionalOut<u64>, bytes: OptionalOut<usize>, library: u64, name: Text,
    ) {
        let module = library_module(library)?;
        let runtime = runtime::of(module.handle)?;
        let found = module.variable(&runtime.session, name.utf8()?)?;
        if !runtime.is_shared_address(found.address.0) {
            return Err(CuError::NOT_FOUND);
        }
        address.set(found.address.0);
        bytes.set(usize::try_from(found.bytes).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuMemAdvise(address: u64, bytes: usize, advice: i32, device: i32) {
        advise(address, bytes, advice, device)
    }

    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: i32, location: u64) {
        advise(address, bytes, advice, ordinal(location)?)
    }

    fn cuMemRangeGetAttribute(
        answer: Memory, bytes: usize, attribute: i32, address: u64, count: usize,
    ) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        let range = managed_range(runtime, address, count)?;
        write_attribute(runtime, &range, answer, bytes, attribute)
    }

    fn cuMemRangeGetAttributes(
        answers: Array<Memory>, sizes: Array<usize>, attributes: Array<i32>, number: usize,
        address: u64, count: usize,
    ) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        let range = managed_range(runtime, address, count)?;
        for index in 0..number {
            let (Some(answer), Some(bytes), Some(attribute)) =
                (answers.get(index), sizes.get(index), attributes.get(index))
            else {
                return Err(CuError::INVALID_VALUE);
            };
            write_attribute(runtime, &range, answer, bytes, attribute)?;
        }
        Ok(())
    }
}

exports_by_default_stream! {
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(
        default; address: u64, bytes: usize, device: i32, stream: u64,
    ) {
        prefetch(address, bytes, device, stream, default)
    }

    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(
        default; address: u64, bytes: usize, location: u64, _flags: u32, stream: u64,
    ) {
        prefetch(address, bytes, ordinal(location)?, stream, default)
    }

    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz(
        default; addresses: Array<u64>, sizes: Array<usize>, count: usize, locations: Array<u64>,
        first: Array<usize>,
        location_count: usize, flags: u64, stream: u64,
    ) {
        prefetch_batch((addresses, sizes, count), (locations, first, location_count), flags,
            stream, default)
    }

    /// Discarded memory may have any contents afterwards, so it keeps its contents.
    fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz(
        default; addresses: Array<u64>, sizes: Array<usize>, count: usize, flags: u64, stream: u64,
    ) {
        runtime::of_stream(stream)?.target(stream, default)?;
        managed_ranges((addresses, sizes, count), flags).map(drop)
    }

    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz(
        default; addresses: Array<u64>, sizes: Array<usize>, count: usize, locations: Array<u64>,
        first: Array<usize>,
        location_count: usize, flags: u64, stream: u64,
    ) {
        prefetch_batch((addresses, sizes, count), (locations, first, location_count), flags,
            stream, default)
    }

    /// Every stream may use managed memory at any time, so there is nothing to attach.
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(
        default; stream: u64, address: u64, bytes: usize, flags: u32,
    ) {
        if !matches!(flags, 1 | 2 | 4) {
            return Err(CuError::INVALID_VALUE);
        }
        runtime::of_stream(stream)?.target(stream, default)?;
        managed_range(runtime::of_address(address)?, address, bytes).map(drop)
    }
}

/// A `CUmemLocation`, which comes in one register, as a device's number or -1 for the host.
fn ordinal(location: u64) -> CuResult<i32> {
    let (kind, id) = (location & 0xffff_ffff, location >> 32);
    match kind {
        1 => Ok(devices::get(i32::try_from(id).map_err(|_| CuError::INVALID_DEVICE)?)?.ordinal()),
        // The host, or a NUMA node of it.
        2..=4 => Ok(-1),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// The managed allocation or variable that holds a range.
fn managed_range(runtime: &Runtime, address: u64, bytes: usize) -> CuResult<Range> {
    let range = runtime.managed_range(address).ok_or(CuError::INVALID_VALUE)?;
    let rest = range.bytes - (address - range.start);
    if bytes as u64 <= rest { Ok(range) } else { Err(CuError::INVALID_VALUE) }
}

/// Whether managed memory can be on a device, or (-1) with the host.
fn is_place(device: i32) -> bool {
    device == -1 || devices::get(device).is_ok()
}

fn advise(address: u64, bytes: usize, advice: i32, device: i32) -> CuResult {
    runtime::current()?;
    let runtime = runtime::of_address(address)?;
    let range = managed_range(runtime, address, bytes)?;
    if bytes == 0 || matches!(advice, 3 | 5 | 6) && !is_place(device) {
        return Err(CuError::INVALID_VALUE);
    }
    runtime.managed.advise(range.start, advice, device)
}

fn prefetch(
    address: u64,
    bytes: usize,
    device: i32,
    stream: u64,
    default: DefaultStream,
) -> CuResult {
    if bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let streams = runtime::of_stream(stream)?;
    let runtime = runtime::of_address(address)?;
    if !is_place(device) {
        return Err(CuError::INVALID_DEVICE);
    }
    streams.target(stream, default)?;
    let range = managed_range(runtime, address, bytes)?;
    runtime.managed.prefetch(range.start, device);
    Ok(())
}

/// The managed memory that each range of a batch is in, and whose it is.
fn managed_ranges(
    (addresses, sizes, count): (Array<u64>, Array<usize>, usize),
    flags: u64,
) -> CuResult<Vec<(&'static Runtime, Range)>> {
    if flags != 0 || count == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let one = |index| match (addresses.get(index), sizes.get(index)) {
        (Some(address), Some(bytes)) if bytes > 0 => {
            let runtime = runtime::of_address(address)?;
            Ok((runtime, managed_range(runtime, address, bytes)?))
        }
        _ => Err(CuError::INVALID_VALUE),
    };
    (0..count).map(one).collect()
}

fn prefetch_batch(
    ranges: (Array<u64>, Array<usize>, usize),
    (locations, first, location_count): (Array<u64>, Array<usize>, usize),
    flags: u64,
    stream: u64,
    default: DefaultStream,
) -> CuResult {
    runtime::of_stream(stream)?.target(stream, default)?;
    let ranges = managed_ranges(ranges, flags)?;
    let locations = spread(locations, first, location_count, ranges.len())?;
    let devices = locations.into_iter().map(ordinal).collect::<CuResult<Vec<i32>>>()?;
    for ((runtime, range), device) in ranges.into_iter().zip(devices) {
        runtime.managed.prefetch(range.start, device);
    }
    Ok(())
}

/// Writes a `CUmem_range_attribute`.
fn write_attribute(
    runtime: &Runtime,
    range: &Range,
    answer: Memory,
    bytes: usize,
    attribute: i32,
) -> CuResult {
    let advice = runtime.managed.advice(range.start);
    let kind = |ordinal: i32| match ordinal {
        0.. => 1,
        -1 => 2,
        _ => 0,
    };
    let value = match attribute {
        1 => i32::from(advice.read_mostly),
        2 => advice.preferred,
        3 => {
            let devices = advice.accessed_by.into_iter().chain(std::iter::repeat(NOWHERE));
            if bytes == 0 || !bytes.is_multiple_of(4) {
                return Err(CuError::INVALID_VALUE);
            }
            return devices
                .take(bytes / 4)
                .zip(0..)
                .try_for_each(|(device, index)| answer.offset(4 * index).write(device));
        }
        4 => advice.prefetched,
        5 => kind(advice.preferred),
        7 => kind(advice.prefetched),
        6 | 8 => 0,
        _ => return Err(CuError::INVALID_VALUE),
    };
    if bytes != 4 {
        return Err(CuError::INVALID_VALUE);
    }
    answer.write(value)
}
