//! Exports: streams that write words of memory and wait for them (CUDA Driver API, "Stream Memory
//! Operations").
//!
//! A word lies in device memory or in memory that the program shares with the device. The
//! operations of a batch are carried out one after the other, as if each were a call.

use crate::abi::{Array, Plain};
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::StreamHandle;
use partita_model::{AwaitedWord, DeviceAddress, WaitCondition};
use std::sync::Arc;

/// `CUstreamBatchMemOpParams`: writes and waits; what only orders memory has its flags in `second`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawOperation {
    kind: i32,
    second: u32,
    address: u64,
    value: u64,
    flags: u32,
    padding: u32,
    others: [u64; 2],
}

// SAFETY: integers.
unsafe impl Plain for RawOperation {}

const _: () = assert!(size_of::<RawOperation>() == 48);

/// A stream's operation on a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Wait(u64, AwaitedWord),
    Write {
        to: u64,
        value: u64,
        width: u8,
    },
    /// Nothing to do: the order of the stream already orders writes.
    Barrier,
}

/// Operations with the structures that they came in: getters show them to the program.
pub struct Batch {
    /// As they came.
    pub raw: Box<[RawOperation]>,
    operations: Vec<Operation>,
}

exports_by_default_stream! {
    fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz(
        default; stream: u64, address: u64, value: u32, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WAIT_32, address, value.into(), flags)])
    }

    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(
        default; stream: u64, address: u64, value: u32, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WAIT_32, address, value.into(), flags)])
    }

    fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz(
        default; stream: u64, address: u64, value: u64, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WAIT_64, address, value, flags)])
    }

    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(
        default; stream: u64, address: u64, value: u64, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WAIT_64, address, value, flags)])
    }

    fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz(
        default; stream: u64, address: u64, value: u32, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WRITE_32, address, value.into(), flags)])
    }

    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(
        default; stream: u64, address: u64, value: u32, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WRITE_32, address, value.into(), flags)])
    }

    fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz(
        default; stream: u64, address: u64, value: u64, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WRITE_64, address, value, flags)])
    }

    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(
        default; stream: u64, address: u64, value: u64, flags: u32,
    ) {
        submit(stream, default, &[RawOperation::new(WRITE_64, address, value, flags)])
    }

    fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz(
        default; stream: u64, count: u32, operations: Array<RawOperation>, flags: u32,
    ) {
        submit_batch(stream, default, count, operations, flags)
    }

    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(
        default; stream: u64, count: u32, operations: Array<RawOperation>, flags: u32,
    ) {
        submit_batch(stream, default, count, operations, flags)
    }
}

const WAIT_32: i32 = 1;
const WRITE_32: i32 = 2;
const FLUSH: i32 = 3;
const WAIT_64: i32 = 4;
const WRITE_64: i32 = 5;
const BARRIER: i32 = 6;
const ATOMIC: i32 = 8;

/// The most operations, as in CUDA.
const MOST: u32 = 256;

fn submit_batch(
    stream: u64,
    default: DefaultStream,
    count: u32,
    operations: Array<RawOperation>,
    flags: u32,
) -> CuResult {
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    submit(stream, default, &read(operations, count)?)
}

/// Copies the structures of a batch.
pub fn read(operations: Array<RawOperation>, count: u32) -> CuResult<Vec<RawOperation>> {
    if count > MOST {
        return Err(CuError::INVALID_VALUE);
    }
    (0..count as usize).map(|index| operations.get(index).ok_or(CuError::INVALID_VALUE)).collect()
}

fn submit(stream: u64, default: DefaultStream, raw: &[RawOperation]) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let batch = Batch::new(runtime, raw)?;
    match runtime.target(stream, default)? {
        Target::Stream(stream) => batch.perform(runtime, stream),
        Target::Capture(stream) => {
            runtime.captures.add(&runtime.graphs, stream, Action::Words(Arc::new(batch)))
        }
    }
}

impl Batch {
    /// Checks all operations before one is done.
    pub fn new(runtime: &Runtime, raw: &[RawOperation]) -> CuResult<Batch> {
        let operations =
            raw.iter().map(RawOperation::parse).collect::<CuResult<Vec<Operation>>>()?;
        for operation in &operations {
            if let Some((address, width)) = operation.word()
                && (!address.is_multiple_of(width)
                    || !runtime.is_device_address(address) && !runtime.is_shared_address(address))
            {
                return Err(CuError::INVALID_VALUE);
            }
        }
        Ok(Batch { raw: raw.into(), operations })
    }

    /// Submits them.
    pub fn perform(&self, runtime: &Runtime, stream: StreamHandle) -> CuResult {
        let session = &runtime.session;
        for operation in &self.operations {
            match *operation {
                Operation::Wait(address, word) => {
                    session.wait_word(stream, DeviceAddress(address), word)?
                }
                Operation::Write { to, value, width: 8 } => {
                    session.copy_to_device_async(
                        stream,
                        DeviceAddress(to),
                        &value.to_le_bytes(),
                    )?;
                }
                Operation::Write { to, value, width } => {
                    let low =
                        u32::try_from(value & u64::from(u32::MAX)).map_err(|_| CuError::UNKNOWN)?;
                    session.fill(stream, DeviceAddress(to), low, width, 1)?;
                }
                Operation::Barrier => {}
            }
        }
        Ok(())
    }
}

impl Operation {
    /// The word's address and width.
    fn word(&self) -> Option<(u64, u64)> {
        match *self {
            Operation::Wait(address, word) => Some((address, word.width.into())),
            Operation::Write { to, width, .. } => Some((to, width.into())),
            Operation::Barrier => None,
        }
    }
}

impl RawOperation {
    fn new(kind: i32, address: u64, value: u64, flags: u32) -> Self {
        RawOperation { kind, second: 0, address, value, flags, padding: 0, others: [0; 2] }
    }

    fn parse(&self) -> CuResult<Operation> {
        let width = if matches!(self.kind, WAIT_64 | WRITE_64) { 8 } else { 4 };
        match self.kind {
            WAIT_32 | WAIT_64 => {
                /// `CU_STREAM_WAIT_VALUE_FLUSH`: CAN_FLUSH_REMOTE_WRITES says that there is none.
                const FLUSHES: u32 = 1 << 30;
                let condition = match self.flags {
                    0 => WaitCondition::AtLeast,
                    1 => WaitCondition::Equal,
                    2 => WaitCondition::AnyBit,
                    3 => WaitCondition::AnyZero,
                    flags if flags & FLUSHES != 0 => return Err(CuError::NOT_SUPPORTED),
                    _ => return Err(CuError::INVALID_VALUE),
                };
                Ok(Operation::Wait(
                    self.address,
                    AwaitedWord { width, value: self.value, condition },
                ))
            }
            WRITE_32 | WRITE_64 => {
                const WITHOUT_BARRIER: u32 = 1;
                if self.flags & !WITHOUT_BARRIER != 0 {
                    return Err(CuError::INVALID_VALUE);
                }
                Ok(Operation::Write { to: self.address, value: self.value, width })
            }
            BARRIER if self.second <= 1 => Ok(Operation::Barrier),
            FLUSH | ATOMIC => Err(CuError::NOT_SUPPORTED),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_as_cuda_says() {
        let word = |width, value, condition| AwaitedWord { width, value, condition };
        for (kind, flags, expected) in [
            (WAIT_32, 0, Ok(Operation::Wait(16, word(4, 9, WaitCondition::AtLeast)))),
            (WAIT_64, 3, Ok(Operation::Wait(16, word(8, 9, WaitCondition::AnyZero)))),
            (WAIT_32, 4, Err(CuError::INVALID_VALUE)),
            (WAIT_32, 1 << 30, Err(CuError::NOT_SUPPORTED)),
            (WRITE_32, 1, Ok(Operation::Write { to: 16, value: 9, width: 4 })),
            (WRITE_64, 0, Ok(Operation::Write { to: 16, value: 9, width: 8 })),
            (WRITE_64, 2, Err(CuError::INVALID_VALUE)),
            (BARRIER, 0, Ok(Operation::Barrier)),
            (ATOMIC, 0, Err(CuError::NOT_SUPPORTED)),
            (7, 0, Err(CuError::INVALID_VALUE)),
        ] {
            assert_eq!(RawOperation::new(kind, 16, 9, flags).parse(), expected, "{kind} {flags}");
        }
    }
}
