//! Exports: launches and the attributes of kernels (CUDA Driver API, "Execution Control",
//! "Occupancy").

use crate::abi::{Argument, Array, In, Memory, Out, Plain};
use crate::devices;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::launch::{Arguments, LaunchCall, checked_mode, has_clusters, launch};
use crate::library::{function, function_on};
use crate::module::Function;
use crate::occupancy;
use crate::runtime;
use partita_model::cluster::PORTABLE_CTAS;
use partita_model::{DeviceFacts, Dim3};
use std::sync::atomic::Ordering;

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    stream: u64,
    attributes: Memory,
    attribute_count: u32,
}

// SAFETY: integers and a pointer.
unsafe impl Plain for LaunchConfig {}

const _: () = assert!(size_of::<LaunchConfig>() == 56);

/// `CUoccupancyB2DSize`: dynamic shared memory for a block size.
type BlockToShared = Option<unsafe extern "C" fn(i32) -> usize>;

impl Argument for BlockToShared {}

exports_by_default_stream! {
    fn cuLaunchKernel | cuLaunchKernel_ptsz(
        default; function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32,
        dynamic_shared: u32, stream: u64, each: Array<Memory>, extra: Array<Memory>,
    ) {
        let grid = Dim3::new(grid_x, grid_y, grid_z);
        let block = Dim3::new(block_x, block_y, block_z);
        let (cooperative, cluster) = (false, Dim3::linear(1));
        launch(
            &LaunchCall {
                function, grid, block, dynamic_shared, stream, default, cooperative, cluster,
                shared_mode: 0,
            },
            Arguments { each, extra },
        )
    }

    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        default; function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32,
        dynamic_shared: u32, stream: u64, each: Array<Memory>,
    ) {
        let grid = Dim3::new(grid_x, grid_y, grid_z);
        let block = Dim3::new(block_x, block_y, block_z);
        let (cooperative, cluster) = (true, Dim3::linear(1));
        launch(
            &LaunchCall {
                function, grid, block, dynamic_shared, stream, default, cooperative, cluster,
                shared_mode: 0,
            },
            Arguments { each, extra: Array::at(std::ptr::null()) },
        )
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(
        default; config: In<LaunchConfig>, function: u64, each: Array<Memory>, extra: Array<Memory>,
    ) {
        let config = config.get();
        let LaunchAttributes { cooperative, cluster, shared_mode } =
            read_attributes(config.attributes, config.attribute_count)?;
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let request = LaunchCall {
            function,
            grid: Dim3::new(gx, gy, gz),
            block: Dim3::new(bx, by, bz),
            dynamic_shared: config.dynamic_shared,
            stream: config.stream,
            default,
            cooperative,
            cluster,
            shared_mode,
        };
        launch(&request, Arguments { each, extra })
    }
}

exports! {
    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: u64) {
        let runtime = runtime::current()?;
        value.set(attribute_of(&*function_on(runtime, function)?, runtime.facts(), attribute)?);
        Ok(())
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: u64, device: i32) {
        let runtime = devices::get(device)?.open()?;
        value.set(attribute_of(&*function_on(runtime, kernel)?, runtime.facts(), attribute)?);
        Ok(())
    }

    fn cuFuncSetAttribute(function: u64, attribute: i32, value: i32) {
        let runtime = runtime::current()?;
        set_attribute(&*function_on(runtime, function)?, runtime.facts(), attribute, value)
    }

    fn cuKernelSetAttribute(attribute: i32, value: i32, kernel: u64, device: i32) {
        let runtime = devices::get(device)?.open()?;
        set_attribute(&*function_on(runtime, kernel)?, runtime.facts(), attribute, value)
    }

    /// A preference; devices may ignore it.
    fn cuFuncSetCacheConfig(function: u64, _config: i32) { self::function(function).map(drop) }

    fn cuKernelSetCacheConfig(kernel: u64, _config: i32, device: i32) {
        devices::get(device)?;
        function(kernel).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: u64, _config: i32) { self::function(function).map(drop) }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>, function: u64, block_threads: i32, dynamic_shared: usize,
    ) {
        active_blocks(&blocks, function, block_threads, dynamic_shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: u64, block_threads: i32, dynamic_shared: usize, _flags: u32,
    ) {
        active_blocks(&blocks, function, block_threads, dynamic_shared)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: u64, shared_of: BlockToShared,
        dynamic_shared: usize, limit: i32,
    ) {
        potential_block(&grid, &block, function, shared_of, dynamic_shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: u64, shared_of: BlockToShared,
        dynamic_shared: usize, limit: i32,
        _flags: u32,
    ) {
        potential_block(&grid, &block, function, shared_of, dynamic_shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: u64, blocks: i32, block_threads: i32,
    ) {
        let runtime = runtime::current()?;
        let (blocks, _) = (positive(blocks)?, positive(block_threads)?);
        let kernel = function_on(runtime, function)?;
        let free = occupancy::shared_per_cta(runtime.facts(),
            blocks).saturating_sub(occupancy::always_shared(&kernel.facts));
        bytes.set(usize::try_from(free).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuOccupancyMaxPotentialClusterSize(
        size: Out<i32>, function: u64, _config: In<LaunchConfig>,
    ) {
        let runtime = runtime::current()?;
        function_on(runtime, function)?;
        let ctas = if has_clusters(runtime.facts()) { PORTABLE_CTAS } else { 1 };
        size.set(ctas.cast_signed());
        Ok(())
    }

    /// As many as fit, wherever the GPU's larger groups of SMs begin, which nobody tells.
    fn cuOccupancyMaxActiveClusters(
        clusters: Out<i32>, function: u64, config: In<LaunchConfig>,
    ) {
        let (runtime, config) = (runtime::current()?, config.get());
        let LaunchAttributes { cluster, .. } =
            read_attributes(config.attributes, config.attribute_count)?;
        if cluster.count() > 1 && !has_clusters(runtime.facts()) {
            return Err(CuError::NOT_SUPPORTED);
        }
        let kernel = function_on(runtime, function)?;
        let [x, y, z] = config.block;
        let threads = u32::try_from(Dim3::new(x, y, z).count()).ok().filter(|count| *count > 0);
        let threads = threads.ok_or(CuError::INVALID_VALUE)?;
        let shared = u64::from(config.dynamic_shared);
        let per_sm = occupancy::ctas_per_sm(runtime.facts(), &kernel.facts, threads, shared);
        let ctas = u128::from(per_sm) * u128::from(runtime.facts().sm_count);
        clusters.set(i32::try_from(ctas / cluster.count().max(1)).unwrap_or(i32::MAX));
        Ok(())
    }
}

/// The attributes of a launch that change its meaning.
struct LaunchAttributes {
    cooperative: bool,
    cluster: Dim3,
    shared_mode: i32,
}

/// The attributes of `CUlaunchConfig` (`CUlaunchAttribute`: 8 bytes of id, 64 of value). Attributes
/// that only advise are ignored; what would change the meaning and is not here is refused.
fn read_attributes(attributes: Memory, count: u32) -> CuResult<LaunchAttributes> {
    const ATTRIBUTE_BYTES: u64 = 72;
    const MAX_ATTRIBUTES: u32 = 64;
    const COOPERATIVE: u32 = 2;
    const CLUSTER_DIMENSION: u32 = 4;
    const SHARED_MEMORY_MODE: u32 = 18;
    // Programmatic events, launch completion events, device-updatable nodes.
    const REFUSED: [u32; 3] = [7, 12, 13];
    if count > MAX_ATTRIBUTES {
        return Err(CuError::INVALID_VALUE);
    }
    let (mut cooperative, mut cluster, mut shared_mode) = (false, Dim3::linear(1), 0);
    for index in 0..u64::from(count) {
        let attribute = attributes.offset(index * ATTRIBUTE_BYTES);
        let value = attribute.offset(8);
        match attribute.read::<u32>()? {
            COOPERATIVE => cooperative = value.read::<i32>()? != 0,
            CLUSTER_DIMENSION => {
                let axis = |axis: u64| value.offset(4 * axis).read::<u32>();
                cluster = Dim3::new(axis(0)?, axis(1)?, axis(2)?);
                // All zeros mean none, too.
                if cluster == Dim3::new(0, 0, 0) {
                    cluster = Dim3::linear(1);
                }
            }
            SHARED_MEMORY_MODE => shared_mode = checked_mode(value.read()?)?,
            id if REFUSED.contains(&id) => return Err(CuError::NOT_SUPPORTED),
            _ => {}
        }
    }
    Ok(LaunchAttributes { cooperative, cluster, shared_mode })
}

const MAX_DYNAMIC_SHARED: i32 = 8;
const SHARED_MEMORY_MODE: i32 = 17;

/// `CUfunction_attribute`.
fn attribute_of(kernel: &Function, facts: &DeviceFacts, attribute: i32) -> CuResult<i32> {
    let cut = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    let sm =
        i32::from(facts.compute_capability.major) * 10 + i32::from(facts.compute_capability.minor);
    Ok(match attribute {
        0 => cut(u64::from(kernel.facts.max_threads)),
        1 => cut(kernel.facts.static_shared),
        3 => cut(kernel.facts.local),
        4 => cut(u64::from(kernel.facts.registers)),
        // PTX_VERSION, BINARY_VERSION
        5 => cut(u64::from(kernel.instance.architecture)),
        6 => sm,
        MAX_DYNAMIC_SHARED => cut(u64::from(kernel.max_dynamic_shared.load(Ordering::Relaxed))),
        9 => -1, // PREFERRED_SHARED_MEMORY_CARVEOUT: no preference
        SHARED_MEMORY_MODE => kernel.shared_mode.load(Ordering::Relaxed),
        2 | 7 | 10..=16 => 0, // CONST_SIZE_BYTES, CACHE_MODE_CA, clusters
        _ => return Err(CuError::INVALID_VALUE),
    })
}

fn set_attribute(kernel: &Function, facts: &DeviceFacts, attribute: i32, value: i32) -> CuResult {
    match attribute {
        MAX_DYNAMIC_SHARED => {
            let value = u32::try_from(value).map_err(|_| CuError::INVALID_VALUE)?;
            let always = occupancy::always_shared(&kernel.facts);
            let most = facts.shared_per_cta_optin.0.saturating_sub(always);
            if u64::from(value) > most {
                return Err(CuError::INVALID_VALUE);
            }
            kernel.max_dynamic_shared.store(value, Ordering::Relaxed);
            Ok(())
        }
        SHARED_MEMORY_MODE => {
            kernel.shared_mode.store(checked_mode(value)?, Ordering::Relaxed);
            Ok(())
        }
        // Preferences about caches and clusters.
        9..=15 => Ok(()),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn active_blocks(
    blocks: &Out<i32>,
    kernel: u64,
    block_threads: i32,
    dynamic_shared: usize,
) -> CuResult {
    let runtime = runtime::current()?;
    let kernel = function_on(runtime, kernel)?;
    let threads = positive(block_threads)?;
    let count =
        occupancy::ctas_per_sm(runtime.facts(), &kernel.facts, threads, dynamic_shared as u64);
    blocks.set(i32::try_from(count).unwrap_or(i32::MAX));
    Ok(())
}

fn potential_block(
    grid: &Out<i32>,
    block: &Out<i32>,
    kernel: u64,
    shared_of: BlockToShared,
    dynamic_shared: usize,
    limit: i32,
) -> CuResult {
    let runtime = runtime::current()?;
    let kernel = function_on(runtime, kernel)?;
    let limit = u32::try_from(limit).map_err(|_| CuError::INVALID_VALUE)?;
    let shared = |threads: u32| match shared_of {
        // SAFETY: the program gave the function for this call.
        Some(function) => (unsafe { function(threads.cast_signed()) }) as u64,
        None => dynamic_shared as u64,
    };
    let best = occupancy::best_block(runtime.facts(), &kernel.facts, shared, limit);
    grid.set(
        i32::try_from(best.ctas_per_sm * u32::from(runtime.facts().sm_count)).unwrap_or(i32::MAX),
    );
    block.set(i32::try_from(best.threads).unwrap_or(i32::MAX));
    Ok(())
}

fn positive(value: i32) -> CuResult<u32> {
    u32::try_from(value).ok().filter(|value| *value > 0).ok_or(CuError::INVALID_VALUE)
}
