//! Operations in a stream of a device.

use crate::HostSpan;
use partita_model::{AddressRange, AwaitedWord, DeviceAddress, Dim3, ModuleId, OperationId, SmSet};
use std::sync::Arc;

/// One operation in a stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs a grid.
    Launch(GridSpec),
    /// Runs a grid on these SMs only. [`crate::Confining::confine`] has made them ready.
    LaunchOn {
        /// The grid.
        launch: GridSpec,
        /// The SMs that its CTAs may come to.
        sms: SmSet,
    },
    /// Copies from the host to the device.
    CopyToDevice {
        /// Destination.
        to: DeviceAddress,
        /// Source.
        from: HostSpan,
    },
    /// Copies from the device to the host.
    CopyToHost {
        /// Destination.
        to: HostSpan,
        /// Source.
        from: DeviceAddress,
    },
    /// Copies inside the device. The ranges may overlap.
    CopyOnDevice {
        /// Destination.
        to: DeviceAddress,
        /// Source.
        from: DeviceAddress,
        /// Length in bytes.
        bytes: u64,
    },
    /// Writes `count` copies of the lowest `width` bytes of `value`.
    Fill {
        /// Destination.
        to: DeviceAddress,
        /// Little-endian; its lowest `width` bytes count.
        value: u32,
        /// 1, 2 or 4.
        width: u8,
        /// Number of elements.
        count: u64,
    },
    /// Does nothing. It ends when every operation before it in the stream has ended.
    Marker,
    /// Ends when the other operation has ended. An operation that is not known (any more) counts as
    /// ended.
    Wait {
        /// The operation to wait for.
        on: OperationId,
    },
    /// Ends when the word at `address` is what is waited for (CUDA Driver API,
    /// `cuStreamWaitValue32` and `64`). It takes up no SM. Host memory may change at any time. What
    /// was written before the value was, in the order of the memory model, can be seen by the
    /// stream's next operation.
    WaitValue {
        /// Aligned to the word's width; it stays live until the operation has ended.
        address: DeviceAddress,
        /// The value and the comparison.
        word: AwaitedWord,
    },
}

/// A grid to run.
#[derive(Clone, Debug)]
pub struct GridSpec {
    /// A loaded module.
    pub module: ModuleId,
    /// A kernel of it.
    pub kernel: Arc<str>,
    /// Extent of the grid in CTAs.
    pub grid: Dim3,
    /// Extent of a CTA in threads.
    pub block: Dim3,
    /// Dynamic shared memory per CTA in bytes.
    pub dynamic_shared: u32,
    /// The kernel's parameter space, laid out as its declaration says.
    pub params: Vec<u8>,
    /// What the grid may touch of global memory; the module's own variables lie inside.
    pub access: Vec<AddressRange>,
    /// Whether all CTAs are resident at once, and the device gives them their barrier. Of machine
    /// code only: what is rewritten has its own.
    pub cooperative: bool,
    /// CTAs of a cluster along each axis; 1 everywhere for a grid without clusters, or whose
    /// kernel's code fixes them.
    pub cluster: Dim3,
}
