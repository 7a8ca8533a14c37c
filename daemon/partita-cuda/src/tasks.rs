//! The tasks that streams carry out: work of the contract, and the same work in host memory that
//! kernels access.
//!
//! The driver does not know that memory ([`crate::host`]). Functions of the host therefore do the
//! work there, in their place in the stream. A copy between that memory and the device is a copy
//! from or to the host. Copies of arrays are copies of boxes ([`crate::arrays`]).

use crate::arrays::Texels;
use partita_device::{HostSpan, Work};
use partita_model::{AwaitedWord, DeviceAddress};

/// One operation of a stream, by the place of its memory.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Work in device memory.
    Work(Work),
    /// A copy from host memory to host memory.
    HostCopy {
        to: HostSpan,
        from: HostSpan,
        /// Whether the copy runs from the end backwards, because source and target may overlap.
        backwards: bool,
    },
    /// [`Work::Fill`] of host memory.
    HostFill { to: HostSpan, value: u32, width: u8 },
    /// [`Work::WaitValue`] for a word of host memory.
    HostWait { at: HostSpan, word: AwaitedWord },
    /// A copy from or to an array.
    ArrayCopy { to: End, from: End, bytes: u64 },
}

/// One end of a copy with an array at the other end or at both.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Host(HostSpan),
    Memory(DeviceAddress),
    Array(Texels),
}

impl Task {
    /// The host memory at one end of a copy, which the device could access directly.
    pub(crate) fn direct(&self) -> Option<&HostSpan> {
        match self {
            Task::Work(
                Work::CopyToDevice { from: span, .. } | Work::CopyToHost { to: span, .. },
            ) => Some(span),
            _ => None,
        }
    }

    /// The number of bytes that go through staging memory; `None` where none do.
    pub(crate) fn staged(&self) -> Option<u64> {
        match self {
            Task::Work(Work::CopyOnDevice { to, from, bytes }) if overlaps(*to, *from, *bytes) => {
                Some(*bytes)
            }
            Task::Work(
                Work::CopyToDevice { from: span, .. } | Work::CopyToHost { to: span, .. },
            )
            | Task::ArrayCopy { from: End::Host(span), .. }
            | Task::ArrayCopy { to: End::Host(span), .. } => Some(span.bytes()),
            _ => None,
        }
    }
}

/// Whether the two ranges of a copy overlap. The driver's own copies do not support overlap.
pub(crate) fn overlaps(to: DeviceAddress, from: DeviceAddress, bytes: u64) -> bool {
    to != from && to.0.abs_diff(from.0) < bytes
}

/// Bytes of one step of a copy or fill.
const PIECE: u64 = 256 << 10;

/// Copies host memory to host memory.
pub(crate) fn copy(to: &HostSpan, from: &HostSpan, backwards: bool) {
    let bytes = to.bytes().min(from.bytes());
    let mut piece = vec![0; usize::try_from(bytes.min(PIECE)).unwrap_or(0)];
    let count = bytes.div_ceil(PIECE);
    for index in 0..count {
        let at = PIECE * if backwards { count - 1 - index } else { index };
        let length = usize::try_from((bytes - at).min(PIECE)).unwrap_or(0);
        from.read(at, &mut piece[..length]);
        to.write(at, &piece[..length]);
    }
}

/// Fills host memory with the lowest `width` bytes of `value`.
pub(crate) fn fill(to: &HostSpan, value: u32, width: u8) {
    let pattern = &value.to_le_bytes()[..usize::from(width.clamp(1, 4))];
    let length = usize::try_from(to.bytes().min(PIECE)).unwrap_or(0);
    let piece: Vec<u8> = pattern.iter().copied().cycle().take(length).collect();
    let mut at = 0;
    while at < to.bytes() {
        let length = usize::try_from((to.bytes() - at).min(PIECE)).unwrap_or(0);
        to.write(at, &piece[..length]);
        at += PIECE;
    }
}

/// Whether a word of host memory meets the awaited condition.
pub(crate) fn holds(at: &HostSpan, word: AwaitedWord) -> bool {
    let mut bytes = [0; 8];
    at.read(0, &mut bytes[..usize::from(word.width)]);
    word.holds(u64::from_le_bytes(bytes))
}
