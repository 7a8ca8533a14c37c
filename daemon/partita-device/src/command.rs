//! What a device is asked to do in a stream.

use crate::HostSpan;
use partita_model::{AddressRange, AwaitedWord, DeviceAddress, Dim3, ModuleId, OperationId, SmSet};
use std::sync::Arc;

/// One operation in a stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs a grid.
    Launch(Launch),
    /// Runs a grid as it is on these SMs only, which [`crate::MachineCode::confine`] has said to be
    /// ready.
    LaunchOn {
        /// The grid.
        launch: Launch,
        /// All of the SMs that its CTAs may come to.
        sms: SmSet,
    },
    /// Copies from the host to the device.
    CopyToDevice {
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: HostSpan,
    },
    /// Copies from the device to the host.
    CopyToHost {
        /// Where to.
        to: HostSpan,
        /// Where from.
        from: DeviceAddress,
    },
    /// Copies inside the device. The ranges may overlap.
    CopyOnDevice {
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Writes `count` copies of the lowest `width` bytes of `value`.
    Fill {
        /// Where to.
        to: DeviceAddress,
        /// Little-endian; its lowest `width` bytes count.
        value: u32,
        /// 1, 2 or 4.
        width: u8,
        /// How many elements.
        count: u64,
    },
    /// Does nothing; ends when everything before it in the stream has ended.
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
        /// What it waits for.
        word: AwaitedWord,
    },
}

/// A grid to run.
#[derive(Clone, Debug)]
pub struct Launch {
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
}
