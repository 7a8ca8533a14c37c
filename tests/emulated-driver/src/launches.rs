//! Launches.

use crate::abi::{bytes, exports, get};
use crate::channels::Op;
use crate::driver::Driver;
use crate::memory::WINDOW_RANGE;
use crate::modules::{Function, Kernel};
use crate::status::{self, Status};
use cudarc::driver::sys::{CUlaunchAttributeID, CUlaunchConfig};
use partita_device::GridSpec;
use partita_model::Dim3;
use partita_model::cluster::{MOST_CTAS, PORTABLE_CTAS, fills};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

/// `CU_LAUNCH_PARAM_…`
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
/// The most entries that a list of extra parameters has.
const MOST_EXTRA: usize = 8;

/// A launch as a caller describes it.
struct Launch {
    grid: Dim3,
    block: Dim3,
    dynamic_shared: u32,
    stream: u64,
    is_cooperative: bool,
    cluster: Dim3,
}

/// The parameters as one buffer.
fn params_of(
    kernel: &Kernel,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Vec<u8>, Status> {
    let mut packed = vec![0; kernel.param_bytes];
    if !params.is_null() {
        for (index, &(offset, size)) in kernel.params.iter().enumerate() {
            let value = bytes(get(params.wrapping_add(index)), size);
            packed
                .get_mut(offset..offset + size)
                .ok_or(status::INVALID_VALUE)?
                .copy_from_slice(value.get(..size).ok_or(status::INVALID_VALUE)?);
        }
        return Ok(packed);
    }
    let (mut start, mut size) = (std::ptr::null(), 0);
    if !extra.is_null() {
        for at in (0..MOST_EXTRA).step_by(2) {
            let value = || get(extra.wrapping_add(at + 1));
            match get(extra.wrapping_add(at)).addr() {
                BUFFER_POINTER => start = value(),
                BUFFER_SIZE => size = get(value().cast::<usize>()),
                _ => break,
            }
        }
    }
    let given = bytes(start, size);
    let part = given.get(..kernel.param_bytes).ok_or(status::INVALID_VALUE)?;
    packed.copy_from_slice(part);
    Ok(packed)
}

fn check_cluster(function: &Function, launch: &Launch) -> Result<(), Status> {
    let Launch { grid, cluster, .. } = *launch;
    if cluster.count() == 1 {
        return Ok(());
    }
    let most = if function.has_large_clusters { MOST_CTAS } else { PORTABLE_CTAS };
    let is_required = function.kernel.required_cluster.is_none_or(|required| required == cluster);
    if fills(cluster, grid) && is_required && cluster.count() <= most.into() {
        Ok(())
    } else {
        Err(status::INVALID_CLUSTER_SIZE)
    }
}

impl Driver {
    fn check(&self, function: &Function, launch: &Launch) -> Result<(), Status> {
        let Launch { grid, block, dynamic_shared, .. } = *launch;
        let kernel = &function.kernel;
        let threads = block.count();
        let facts = &self.facts;
        let is_empty = grid.is_empty() || block.is_empty();
        // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        let is_huge = grid.x > 0x7fff_ffff || grid.y > 65_535 || grid.z > 65_535 || block.z > 64;
        let has_too_many = threads > facts.threads_per_cta.into();
        if is_empty || is_huge || has_too_many || dynamic_shared > function.max_dynamic_shared {
            return Err(status::INVALID_VALUE);
        }
        check_cluster(function, launch)?;
        let fits = threads <= kernel.max_threads.into() && self.ctas_per_sm(function, launch) > 0;
        if fits { Ok(()) } else { Err(status::LAUNCH_OUT_OF_RESOURCES) }
    }

    /// CTAs of a launch that an SM holds at once.
    fn ctas_per_sm(&self, function: &Function, launch: &Launch) -> u32 {
        let kernel = &function.kernel;
        let threads = u32::try_from(launch.block.count()).unwrap_or(u32::MAX);
        let shared = u64::from(kernel.static_shared) + u64::from(launch.dynamic_shared);
        self.facts.ctas_on_an_sm(threads, kernel.registers, shared)
    }

    /// Makes room for the local memory of a kernel's threads. More room than before means that the
    /// call waits for the grids that run.
    fn resize_local(&self, bytes: u32) -> Result<(), Status> {
        let before = self.local_bytes.fetch_max(bytes, Ordering::AcqRel);
        if bytes <= before || !self.settings.habits.local_resize {
            return Ok(());
        }
        self.waits(self.has_grids(), "it makes room for local memory");
        self.drain()
    }

    fn launch(
        &self,
        function: u64,
        launch: &Launch,
        params: *const *const c_void,
        extra: *const *const c_void,
    ) -> Result<(), Status> {
        let function = self.tables().function(function)?;
        let is_green = self.stream(launch.stream)?.is_green;
        if is_green && !function.is_library && self.settings.habits.matching_contexts {
            return Err(status::INVALID_HANDLE);
        }
        self.check(&function, launch)?;
        let capacity =
            u128::from(self.ctas_per_sm(&function, launch)) * u128::from(self.facts.sm_count);
        if launch.is_cooperative && launch.grid.count() > capacity {
            return Err(status::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let params = params_of(&function.kernel, params, extra)?;
        let grid = GridSpec {
            module: function.module,
            kernel: std::sync::Arc::clone(&function.kernel.name),
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            params,
            access: vec![WINDOW_RANGE],
            cooperative: launch.is_cooperative,
            cluster: launch.cluster,
        };
        self.resize_local(function.kernel.local)?;
        self.submit(launch.stream, Op::Launch(grid))
    }
}

exports! {
    cuLaunchKernel(function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, dynamic_shared: c_uint, stream: u64,
        params: *const *const c_void, extra: *const *const c_void) |driver| {
        let launch = Launch {
            grid: Dim3::new(grid_x, grid_y, grid_z),
            block: Dim3::new(block_x, block_y, block_z),
            dynamic_shared,
            stream,
            is_cooperative: false,
            cluster: Dim3::linear(1),
        };
        driver.launch(function, &launch, params, extra)
    }
    cuLaunchKernelEx(config: *const CUlaunchConfig, function: u64, params: *const *const c_void,
        extra: *const *const c_void) |driver| {
        let config = get(config);
        let attributes =
            (0..config.numAttrs as usize).map(|at| get(config.attrs.cast_const().wrapping_add(at)));
        let (mut is_cooperative, mut cluster) = (false, Dim3::linear(1));
        for attribute in attributes {
            match attribute.id {
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE => {}
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                    // SAFETY: the attribute's id says which part of the union is set.
                    is_cooperative = unsafe { attribute.value.cooperative } != 0;
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                    // SAFETY: the attribute's id says which part of the union is set.
                    let extent = unsafe { attribute.value.clusterDim };
                    cluster = Dim3::new(extent.x, extent.y, extent.z);
                }
                _ => return Err(status::NOT_SUPPORTED),
            }
        }
        let launch = Launch {
            grid: Dim3::new(config.gridDimX, config.gridDimY, config.gridDimZ),
            block: Dim3::new(config.blockDimX, config.blockDimY, config.blockDimZ),
            dynamic_shared: config.sharedMemBytes,
            stream: config.hStream.addr() as u64,
            is_cooperative,
            cluster,
        };
        driver.launch(function, &launch, params, extra)
    }
}
