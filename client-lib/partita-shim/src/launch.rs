//! Launches: the copy of arguments into a parameter space, and the limits of grids and CTAs (CUDA
//! Driver API, "Execution Control").
//!
//! The layout of the parameter space is the kernel's own, as the daemon found it in the kernel's
//! declaration. Launches have no answer, so an invalid launch is rejected here, before it is sent.

use crate::abi::{Array, Memory};
use crate::error::{CuError, CuResult};
use crate::graph::action::{Action, Kernel};
use crate::graph::capture::Target;
use crate::library::function_on;
use crate::module::{Function, Owner};
use crate::occupancy;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::{Launch, ParamLayout, StreamHandle};
use partita_model::{DeviceFacts, Dim3, cluster};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `cudaErrorInvalidConfiguration`: the runtime hands the driver's codes through, and programs that
/// use it know bad extents by this code. To users of the driver API it means nothing; they get
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_CONFIGURATION: CuError = CuError(9);

/// One launch as a program asks for it.
#[derive(Clone, Copy)]
pub struct LaunchCall {
    /// The kernel.
    pub function: u64,
    /// Extent of the grid.
    pub grid: Dim3,
    /// Extent of a CTA.
    pub block: Dim3,
    /// Dynamic shared memory per CTA.
    pub dynamic_shared: u32,
    /// Where.
    pub stream: u64,
    /// Which stream 0 is.
    pub default: DefaultStream,
    /// Whether all CTAs must be resident at once (`cuLaunchCooperativeKernel`).
    pub cooperative: bool,
    /// CTAs of a cluster along each axis.
    pub cluster: Dim3,
    /// `CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE`; 0 leaves it to the kernel.
    pub shared_mode: i32,
}

/// The two ways in which arguments come; one of them is null.
#[derive(Clone, Copy)]
pub struct Arguments {
    /// Pointers to the arguments, in order.
    pub each: Array<Memory>,
    /// Pairs of a name and a value, of which one pair is a buffer laid out like the parameter
    /// space.
    pub extra: Array<Memory>,
}

/// A launch that was checked, with its arguments in place.
#[derive(Clone)]
pub struct Prepared {
    /// The program's handle of the function.
    pub function: u64,
    /// The kernel.
    pub kernel: Arc<Function>,
    /// Extent of the grid.
    pub grid: Dim3,
    /// Extent of a CTA.
    pub block: Dim3,
    /// Dynamic shared memory per CTA.
    pub dynamic_shared: u32,
    /// Whether all CTAs must be resident at once (`cuLaunchCooperativeKernel`).
    pub cooperative: bool,
    /// CTAs of a cluster along each axis.
    pub cluster: Dim3,
    /// As in [`LaunchCall`].
    pub shared_mode: i32,
    /// The parameter space.
    pub params: Vec<u8>,
}

/// Launches, or writes the launch down where the stream captures.
pub fn launch(launch: &LaunchCall, arguments: Arguments) -> CuResult {
    let runtime = runtime::current()?;
    let prepared = prepare(runtime, launch, arguments)?;
    match runtime.target(launch.stream, launch.default)? {
        Target::Stream(stream) => prepared.submit(runtime, stream),
        Target::Capture(stream) => {
            let action = Action::Kernel(Arc::new(Kernel::new(prepared, Vec::new())));
            runtime.captures.add(&runtime.graphs, stream, action)
        }
    }
}

/// Checks a launch.
pub fn prepare(runtime: &Runtime, launch: &LaunchCall, arguments: Arguments) -> CuResult<Prepared> {
    let kernel = function_on(runtime, launch.function)?;
    let from_runtime = kernel.instance.owner == Owner::Runtime;
    check_extents(launch.grid, launch.block, runtime.facts())
        .map_err(|error| if from_runtime { INVALID_CONFIGURATION } else { error })?;
    let facts = runtime.facts();
    check_shared((launch.dynamic_shared, launch.shared_mode), &kernel, facts)?;
    let resources = (launch.grid, launch.block, launch.dynamic_shared, launch.cooperative);
    check_resources(resources, &kernel, facts)?;
    check_cluster(launch.grid, launch.cluster, facts)?;
    let params = arguments.gather(&kernel.facts.params, kernel.param_bytes)?;
    let LaunchCall { function, grid, block, dynamic_shared, cooperative, cluster, .. } = *launch;
    Ok(Prepared {
        function,
        kernel,
        grid,
        block,
        dynamic_shared,
        cooperative,
        cluster,
        shared_mode: launch.shared_mode,
        params,
    })
}

impl Prepared {
    /// Whether its clusters fill its grid; in a graph both may have changed.
    pub fn check_cluster(&self, facts: &DeviceFacts) -> CuResult {
        check_cluster(self.grid, self.cluster, facts)
    }

    /// Whether it can be launched.
    pub fn check(&self, facts: &DeviceFacts) -> CuResult {
        check_extents(self.grid, self.block, facts)?;
        check_shared((self.dynamic_shared, self.shared_mode), &self.kernel, facts)?;
        let resources = (self.grid, self.block, self.dynamic_shared, self.cooperative);
        check_resources(resources, &self.kernel, facts)?;
        self.check_cluster(facts)
    }

    /// Submits it to a stream.
    pub fn submit(&self, runtime: &Runtime, stream: StreamHandle) -> CuResult {
        self.submit_at(runtime, stream, 0)
    }

    /// Submits a launch that a kernel made. `depth` counts the launches above it.
    pub fn submit_at(&self, runtime: &Runtime, stream: StreamHandle, depth: u32) -> CuResult {
        match self.kernel.queue {
            Some(queue) => runtime.nested.launch(runtime, (self, queue), stream, depth),
            None => self.submit_with(runtime, stream, &self.params),
        }
    }

    /// Submits it with these parameters.
    pub fn submit_with(&self, runtime: &Runtime, stream: StreamHandle, params: &[u8]) -> CuResult {
        Ok(runtime.session.launch(Launch {
            module: self.kernel.instance.client(&runtime.session)?,
            kernel: self.kernel.index,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            stream,
            cooperative: self.cooperative,
            cluster: self.cluster,
            params,
        })?)
    }
}

fn check_extents(grid: Dim3, block: Dim3, facts: &DeviceFacts) -> CuResult {
    const MAX_GRID_YZ: u32 = 65_535;
    const MAX_BLOCK_Z: u32 = 64;
    let grid_fits = i32::try_from(grid.x).is_ok() && grid.y <= MAX_GRID_YZ && grid.z <= MAX_GRID_YZ;
    let block_fits = block.z <= MAX_BLOCK_Z && block.count() <= u128::from(facts.threads_per_cta);
    if grid.is_empty() || block.is_empty() || !grid_fits || !block_fits {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(())
}

/// Whether CTAs can be launched in clusters (CUDA C++ Programming Guide, compute capability 9.0).
pub fn has_clusters(facts: &DeviceFacts) -> bool {
    facts.compute_capability.major >= 9
}

/// Whether a launch may have these clusters.
fn check_cluster(grid: Dim3, cluster: Dim3, facts: &DeviceFacts) -> CuResult {
    if cluster.count() == 1 {
        return Ok(());
    }
    if !has_clusters(facts) {
        return Err(CuError::NOT_SUPPORTED);
    }
    if cluster.count() > u128::from(cluster::MOST_CTAS) || !cluster::fills(cluster, grid) {
        return Err(CuError::INVALID_CLUSTER_SIZE);
    }
    Ok(())
}

/// `CU_SHARED_MEMORY_MODE_DEFAULT`
const BY_ATTRIBUTE: i32 = 0;
/// `CU_SHARED_MEMORY_MODE_REQUIRE_PORTABLE`
const PORTABLE: i32 = 1;
/// `CU_SHARED_MEMORY_MODE_PREFER_OVERSIZED_SHARED_MEMORY`, the last.
const PREFER_OVERSIZED: i32 = 4;

/// A mode as a program gives it.
pub fn checked_mode(mode: i32) -> CuResult<i32> {
    match mode {
        BY_ATTRIBUTE..=PREFER_OVERSIZED => Ok(mode),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Whether a CTA may have as much dynamic shared memory: by the launch's mode, else by the
/// kernel's. No GPU here has oversized shared memory.
fn check_shared(
    (dynamic_shared, mode): (u32, i32),
    kernel: &Function,
    facts: &DeviceFacts,
) -> CuResult {
    let mode = match mode {
        BY_ATTRIBUTE => kernel.shared_mode.load(Ordering::Relaxed),
        of_launch => of_launch,
    };
    let most = match mode {
        BY_ATTRIBUTE => u64::from(kernel.max_dynamic_shared.load(Ordering::Relaxed)),
        PORTABLE => facts.shared_per_cta.0.saturating_sub(kernel.facts.static_shared),
        _ => facts.shared_per_cta_optin.0.saturating_sub(occupancy::always_shared(&kernel.facts)),
    };
    if u64::from(dynamic_shared) > most { Err(CuError::INVALID_VALUE) } else { Ok(()) }
}

fn check_resources(
    (grid, block, dynamic_shared, cooperative): (Dim3, Dim3, u32, bool),
    kernel: &Function,
    facts: &DeviceFacts,
) -> CuResult {
    let threads = u32::try_from(block.count()).map_err(|_| CuError::INVALID_VALUE)?;
    if threads > kernel.facts.max_threads {
        let registers = u64::from(threads) * u64::from(kernel.facts.registers);
        let by_registers = registers > u64::from(facts.registers_per_sm);
        return Err(if by_registers {
            CuError::LAUNCH_OUT_OF_RESOURCES
        } else {
            CuError::INVALID_VALUE
        });
    }
    if cooperative {
        let per_sm =
            occupancy::ctas_per_sm(facts, &kernel.facts, threads, u64::from(dynamic_shared));
        if grid.count() > u128::from(per_sm) * u128::from(facts.sm_count) {
            return Err(CuError::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

impl Arguments {
    /// The bytes of the parameter space.
    fn gather(self, layout: &[ParamLayout], bytes: usize) -> CuResult<Vec<u8>> {
        match (self.each.is_null(), self.extra.is_null()) {
            (false, true) => gather_each(self.each, layout, bytes),
            (true, false) => gather_extra(self.extra, bytes),
            (true, true) if layout.is_empty() => Ok(Vec::new()),
            // Some programs pass an empty list of arguments beside the other form.
            (false, false) if layout.is_empty() => Ok(Vec::new()),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

fn gather_each(pointers: Array<Memory>, layout: &[ParamLayout], bytes: usize) -> CuResult<Vec<u8>> {
    let mut params = vec![0; bytes];
    for (index, param) in layout.iter().enumerate() {
        let from = pointers.get(index).ok_or(CuError::INVALID_VALUE)?;
        let start = param.offset as usize;
        let space = params.get_mut(start..start + param.bytes as usize).ok_or(CuError::UNKNOWN)?;
        space.copy_from_slice(from.bytes(param.bytes as usize)?);
    }
    Ok(params)
}

fn gather_extra(pairs: Array<Memory>, bytes: usize) -> CuResult<Vec<u8>> {
    const END: u64 = 0;
    const BUFFER: u64 = 1;
    const BUFFER_BYTES: u64 = 2;
    let (mut buffer, mut size) = (None, None);
    // Each name comes once at most.
    for pair in 0..2 {
        let name = pairs.get(2 * pair).ok_or(CuError::INVALID_VALUE)?;
        if name.address() == END {
            break;
        }
        let value = pairs.get(2 * pair + 1).ok_or(CuError::INVALID_VALUE)?;
        match name.address() {
            BUFFER => buffer = Some(value),
            BUFFER_BYTES => size = Some(value.read::<usize>()?),
            _ => return Err(CuError::INVALID_VALUE),
        }
    }
    if size.unwrap_or(0) < bytes {
        return Err(CuError::INVALID_VALUE);
    }
    match buffer {
        Some(buffer) => Ok(buffer.bytes(bytes)?.to_vec()),
        None if bytes == 0 => Ok(Vec::new()),
        None => Err(CuError::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NULL: Array<Memory> = Array::at(std::ptr::null());
    const LAYOUT: [ParamLayout; 3] = [
        ParamLayout { offset: 0, bytes: 4 },
        ParamLayout { offset: 8, bytes: 8 },
        ParamLayout { offset: 16, bytes: 3 },
    ];
    const EXPECT: [u8; 19] = [1, 2, 3, 4, 0, 0, 0, 0, 11, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23];

    fn address<T>(value: &T) -> u64 {
        std::ptr::from_ref(value) as u64
    }

    #[test]
    fn arguments_go_to_their_offsets() {
        let (a, b, c) = ([1u8, 2, 3, 4], [11u8, 12, 13, 14, 15, 16, 17, 18], [21u8, 22, 23]);
        let pointers = [address(&a), address(&b), address(&c)];
        let each = Array::at(pointers.as_ptr().cast());
        assert_eq!(Arguments { each, extra: NULL }.gather(&LAYOUT, 19), Ok(EXPECT.to_vec()));
        let missing = [address(&a), 0, address(&c)];
        let each = Array::at(missing.as_ptr().cast());
        assert_eq!(
            Arguments { each, extra: NULL }.gather(&LAYOUT, 19),
            Err(CuError::INVALID_VALUE)
        );
    }

    #[test]
    fn a_buffer_is_taken_as_it_is() {
        let check = |size: usize, expect: CuResult<Vec<u8>>| {
            for pairs in [
                [1, EXPECT.as_ptr() as u64, 2, address(&size), 0],
                [2, address(&size), 1, EXPECT.as_ptr() as u64, 0],
            ] {
                let extra = Array::at(pairs.as_ptr().cast());
                assert_eq!(Arguments { each: NULL, extra }.gather(&LAYOUT, 19), expect, "{size}");
            }
        };
        check(19, Ok(EXPECT.to_vec()));
        check(24, Ok(EXPECT.to_vec()));
        check(18, Err(CuError::INVALID_VALUE));
    }

    #[test]
    fn a_kernel_with_parameters_needs_arguments() {
        let none = Arguments { each: NULL, extra: NULL };
        assert_eq!(none.gather(&LAYOUT, 19), Err(CuError::INVALID_VALUE));
        assert_eq!(none.gather(&[], 0), Ok(Vec::new()));
        let bad_name = [7u64, 0, 0];
        let extra = Array::at(bad_name.as_ptr().cast());
        assert_eq!(
            Arguments { each: NULL, extra }.gather(&LAYOUT, 19),
            Err(CuError::INVALID_VALUE)
        );
    }
}
