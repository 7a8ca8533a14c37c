//! Streams, events and page-locked memory.

use super::context::size;
use super::table::Handle;
use super::{Context, Failure, Function, NOT_READY, call};
use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDimension, CUlaunchConfig,
};
use partita_model::Dim3;
use std::ffi::c_void;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_BLOCKING_SYNC`
const BLOCKING_SYNC: u32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`
const MAPPED: u32 = 1 | 2;

/// The parameters as one buffer. Both arguments must live until the launch call returns.
fn packed(params: &mut [u8], bytes: &mut usize) -> [*mut c_void; 5] {
    // CU_LAUNCH_PARAM_BUFFER_POINTER, …_SIZE, …_END
    [
        std::ptr::without_provenance_mut(1),
        params.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        std::ptr::from_mut(bytes).cast(),
        std::ptr::null_mut(),
    ]
}

/// A stream that the legacy stream does not wait for.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: Handle,
    has_connection: bool,
}

impl Stream {
    /// Makes one. Lower priorities run first.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>, priority: i32) -> Result<Stream, Failure> {
        let mut raw = 0;
        call!(context.driver, cuStreamCreateWithPriority(&raw mut raw, NON_BLOCKING, priority))?;
        Ok(Stream::of(Arc::clone(context), raw))
    }

    /// Whether it has a connection to the GPU for itself. Where it has none, an operation that
    /// cannot begin holds up operations of other streams.
    pub fn has_connection(&self) -> bool {
        self.has_connection
    }

    pub(super) fn raw(&self) -> Handle {
        self.raw
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn of(context: Arc<Context>, raw: Handle) -> Stream {
        let has_connection = context.count_stream();
        Stream { context, raw, has_connection }
    }

    /// Waits until it is empty.
    ///
    /// # Errors
    /// The driver's, also those of earlier work.
    pub fn synchronize(&self) -> Result<(), Failure> {
        call!(self.context.driver, cuStreamSynchronize(self.raw))
    }

    /// Lets what comes wait for an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_event(&self, event: &Event) -> Result<(), Failure> {
        call!(self.context.driver, cuStreamWaitEvent(self.raw, event.raw, 0))
    }

    /// Copies from page-locked memory.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn copy_to_device(
        &self,
        to: u64,
        from: &Pinned,
        at: usize,
        bytes: usize,
    ) -> Result<(), Failure> {
        from.check(at, bytes);
        call!(
            self.context.driver,
            cuMemcpyHtoDAsync_v2(to, from.start.wrapping_add(at).cast_const(), bytes, self.raw)
        )
    }

    /// Copies to page-locked memory.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn copy_to_host(
        &self,
        to: &Pinned,
        at: usize,
        from: u64,
        bytes: usize,
    ) -> Result<(), Failure> {
        to.check(at, bytes);
        call!(
            self.context.driver,
            cuMemcpyDtoHAsync_v2(to.start.wrapping_add(at), from, bytes, self.raw)
        )
    }

    /// Copies inside the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_on_device(&self, to: u64, from: u64, bytes: u64) -> Result<(), Failure> {
        call!(self.context.driver, cuMemcpyDtoDAsync_v2(to, from, size(bytes), self.raw))
    }

    /// Writes `count` copies of the lowest `width` bytes (1, 2 or 4) of `value`.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, to: u64, value: u32, width: u8, count: u64) -> Result<(), Failure> {
        let driver = &self.context.driver;
        let [low, second, ..] = value.to_le_bytes();
        match width {
            1 => call!(driver, cuMemsetD8Async(to, low, size(count), self.raw)),
            2 => {
                call!(
                    driver,
                    cuMemsetD16Async(to, u16::from_le_bytes([low, second]), size(count), self.raw)
                )
            }
            _ => call!(driver, cuMemsetD32Async(to, value, size(count), self.raw)),
        }
    }

    /// Runs a function of the host between what came before and what comes after. It must not call
    /// the driver.
    ///
    /// # Errors
    /// The driver's; then it is not run.
    pub fn run_on_host(&self, function: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        type Boxed = Box<dyn FnOnce() + Send>;
        extern "C" fn run(data: *mut c_void) {
            // SAFETY: the pointer that `run_on_host` made; the driver calls once.
            let function = unsafe { Box::from_raw(data.cast::<Boxed>()) };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(*function)).is_err() {
                tracing::error!("a copy between host and staging memory panicked");
            }
        }
        let data = Box::into_raw(Box::new(Box::new(function) as Boxed));
        let result = call!(self.context.driver, cuLaunchHostFunc(self.raw, run, data.cast()));
        if result.is_err() {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(data) });
        }
        result
    }

    /// Runs a grid. `params` is the parameter space as the kernel declares it.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(
        &self,
        function: Function,
        [grid, block]: [Dim3; 2],
        dynamic_shared: u32,
        params: &mut [u8],
    ) -> Result<(), Failure> {
        let mut bytes = params.len();
        let mut none: [*mut c_void; 1] = [std::ptr::null_mut()];
        let mut extra = packed(params, &mut bytes);
        call!(
            self.context.driver,
            cuLaunchKernel(
                function.raw(),
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                dynamic_shared,
                self.raw,
                std::ptr::null_mut(),
                // Without parameters CUDA takes no buffer.
                if bytes == 0 { none.as_mut_ptr() } else { extra.as_mut_ptr() },
            )
        )
    }

    /// As [`Stream::launch`], with clusters of CTAs, or with all CTAs resident at once and a
    /// barrier for them.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE` where the CTAs do not fit, and
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` where a cluster does not.
    pub fn launch_together(
        &self,
        function: Function,
        [grid, block]: [Dim3; 2],
        dynamic_shared: u32,
        params: &mut [u8],
        (cooperative, cluster): (bool, Dim3),
    ) -> Result<(), Failure> {
        let attribute = |id, value| CUlaunchAttribute { id, pad: [0; 4], value };
        let dimension = ClusterDimension { x: cluster.x, y: cluster.y, z: cluster.z };
        let mut attributes = Vec::new();
        if cooperative {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes.push(attribute(id, CUlaunchAttributeValue { cooperative: 1 }));
        }
        if cluster.count() > 1 {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes.push(attribute(id, CUlaunchAttributeValue { clusterDim: dimension }));
        }
        let config = CUlaunchConfig {
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: grid.z,
            blockDimX: block.x,
            blockDimY: block.y,
            blockDimZ: block.z,
            sharedMemBytes: dynamic_shared,
            hStream: std::ptr::with_exposed_provenance_mut(self.raw),
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::try_from(attributes.len()).unwrap_or(0),
        };
        let mut bytes = params.len();
        let mut none: [*mut c_void; 1] = [std::ptr::null_mut()];
        let mut extra = packed(params, &mut bytes);
        let extra = if bytes == 0 { none.as_mut_ptr() } else { extra.as_mut_ptr() };
        let none = std::ptr::null_mut();
        call!(self.context.driver, cuLaunchKernelEx(&raw const config, function.raw(), none, extra))
    }

    /// Marks this place in the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, event: &Event) -> Result<(), Failure> {
        call!(self.context.driver, cuEventRecord(event.raw, self.raw))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The stream's operations still run to completion.
        let _ = call!(self.context.driver, cuStreamDestroy_v2(self.raw));
    }
}

/// An event with a time.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: Handle,
}

impl Event {
    /// Makes one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Event, Failure> {
        let mut raw = 0;
        call!(context.driver, cuEventCreate(&raw mut raw, BLOCKING_SYNC))?;
        Ok(Event { context: Arc::clone(context), raw })
    }

    /// Whether it has been reached since it was last recorded.
    ///
    /// # Errors
    /// The driver's, also those of the work before it.
    pub fn is_reached(&self) -> Result<bool, Failure> {
        match call!(self.context.driver, cuEventQuery(self.raw)) {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == NOT_READY => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sleeps until it is reached.
    ///
    /// # Errors
    /// As [`Event::is_reached`].
    pub fn wait(&self) -> Result<(), Failure> {
        call!(self.context.driver, cuEventSynchronize(self.raw))
    }

    /// Nanoseconds from another event to this one; both have been reached. About half a microsecond
    /// is the resolution, for some seconds.
    ///
    /// # Errors
    /// The driver's.
    pub fn since(&self, earlier: &Event) -> Result<i64, Failure> {
        let mut ms = 0.0_f32;
        call!(self.context.driver, cuEventElapsedTime(&raw mut ms, earlier.raw, self.raw))?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float's nanoseconds fit where it is finite"
        )]
        Ok((f64::from(ms) * 1e6) as i64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = call!(self.context.driver, cuEventDestroy_v2(self.raw));
    }
}

/// Page-locked memory, which the device reaches, too. It stays until the process ends: giving it
/// back waits for all grids.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
    device: u64,
}

// SAFETY: only this type frees the memory, and only copies through raw pointers access it.
unsafe impl Send for Pinned {}
// SAFETY: as above. A read during a write by the device or another thread gets old or new bytes, as
// from any device.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Takes some.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, bytes: usize) -> Result<Pinned, Failure> {
        let mut start = std::ptr::null_mut();
        call!(context.driver, cuMemHostAlloc(&raw mut start, bytes, MAPPED))?;
        let mut device = 0;
        call!(context.driver, cuMemHostGetDevicePointer_v2(&raw mut device, start, 0))?;
        Ok(Pinned { start, bytes, device })
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address for kernels.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.device
    }

    pub(super) fn address(&self, at: usize) -> *mut u8 {
        self.start.wrapping_add(at)
    }

    pub(super) fn check(&self, at: usize, bytes: usize) {
        assert!(
            at.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "beyond the page-locked memory"
        );
    }

    /// Copies out of it.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: checked; the memory stays.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.wrapping_add(at),
                into.as_mut_ptr(),
                into.len(),
            )
        };
    }

    /// Copies into it.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: checked; the memory stays.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.wrapping_add(at), from.len())
        };
    }

    /// Lends its bytes to whoever has it alone: no other copy from or to it is under way.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn lend(&self, at: usize, bytes: usize, to: impl FnOnce(&mut [u8])) {
        self.check(at, bytes);
        // SAFETY: checked. The stream's order gives exclusive access: a staging buffer belongs to
        // one operation.
        to(unsafe { std::slice::from_raw_parts_mut(self.start.wrapping_add(at), bytes) });
    }
}
