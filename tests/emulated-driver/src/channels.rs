//! Operations of streams that have not begun, in the order in which the GPU's host interface takes
//! them.
//!
//! A channel is a queue of operations. Its first operation begins when the operation before it in
//! its stream has ended and what it waits for has happened; all behind it wait until then. As on
//! GPUs, there are 32 channels, which further streams share; without this habit each stream has a
//! channel of its own.

use crate::events::EventCell;
use partita_device::{GridSpec, HostSpan};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

/// An operation of a stream.
pub enum Op {
    /// Runs a grid.
    Launch(GridSpec),
    /// Copies from the host's memory.
    ToDevice {
        /// The address.
        to: u64,
        /// The host's memory.
        from: HostSpan,
    },
    /// Copies to the host's memory.
    ToHost {
        /// The host's memory.
        to: HostSpan,
        /// The address.
        from: u64,
    },
    /// Copies inside the device.
    OnDevice {
        /// The target.
        to: u64,
        /// The source.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Copies rows of a box.
    Rows(Vec<Row>),
    /// Writes `count` copies of the lowest `width` bytes of `value`.
    Fill {
        /// The target.
        to: u64,
        /// The value.
        value: u32,
        /// 1, 2 or 4.
        width: u8,
        /// The number of copies.
        count: u64,
    },
    /// A recording of an event.
    Record {
        /// The event.
        event: Arc<EventCell>,
        /// The recording.
        number: u64,
    },
    /// Waits for a recording.
    Wait {
        /// The event.
        event: Arc<EventCell>,
        /// The recording.
        number: u64,
    },
    /// Waits for a word of 8 bytes (`cuStreamWaitValue64`).
    WaitValue {
        /// Its address.
        address: u64,
        /// The value that it is compared with.
        value: u64,
        /// `CUstreamWaitValue_flags`: at least, equal, and, nor.
        comparison: u32,
    },
    /// Runs a function of the host.
    Host {
        /// The function.
        function: extern "C" fn(*mut c_void),
        /// Its argument, an address.
        data: usize,
    },
}

/// A run of bytes of a copy between boxes.
#[derive(Clone)]
pub struct Row {
    /// The target.
    pub to: Place,
    /// The source.
    pub from: Place,
    /// Bytes.
    pub bytes: u64,
}

/// One end of a [`Row`].
#[derive(Clone)]
pub enum Place {
    /// An address of the device.
    Device(u64),
    /// The host's memory.
    Host(HostSpan),
}

/// Whether a word is what a stream waits for (CUDA Driver API, `CUstreamWaitValue_flags`).
pub fn holds(word: u64, value: u64, comparison: u32) -> bool {
    match comparison {
        0 => word.wrapping_sub(value).cast_signed() >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => !(word | value) != 0,
    }
}

/// An operation in a channel, and the handle of its stream.
pub struct Entry {
    /// The stream.
    pub stream: u64,
    /// The operation.
    pub op: Op,
}

/// Channels of a GPU (CUDA C++ Programming Guide, `CUDA_DEVICE_MAX_CONNECTIONS`).
const CHANNELS: usize = 32;

/// All channels.
#[derive(Default)]
pub struct Channels {
    queues: Vec<VecDeque<Entry>>,
    /// Streams that have been opened, where streams share channels.
    shared: Option<usize>,
    free: Vec<usize>,
}

impl Channels {
    /// Channels that streams share in turns, the first at a place that the seed decides.
    pub fn shared(seed: u64) -> Channels {
        let first = usize::try_from(seed % 32).unwrap_or(0);
        let queues = (0..CHANNELS).map(|_| VecDeque::new()).collect();
        Channels { queues, shared: Some(first), free: Vec::new() }
    }

    /// The channel of a new stream.
    pub fn open(&mut self) -> usize {
        if let Some(opened) = &mut self.shared {
            *opened += 1;
            return *opened % CHANNELS;
        }
        self.free.pop().unwrap_or_else(|| {
            self.queues.push(VecDeque::new());
            self.queues.len() - 1
        })
    }

    /// A stream of this channel is gone.
    pub fn close(&mut self, channel: usize) {
        if self.shared.is_none() {
            self.free.push(channel);
        }
    }

    /// The number of channels that there are.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Appends an operation.
    pub fn push(&mut self, channel: usize, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(channel) {
            queue.push_back(entry);
        }
    }

    /// The first operation of a channel.
    pub fn first(&self, channel: usize) -> Option<&Entry> {
        self.queues.get(channel)?.front()
    }

    /// Takes the first operation of a channel.
    pub fn take(&mut self, channel: usize) -> Option<Entry> {
        self.queues.get_mut(channel)?.pop_front()
    }

    /// Drops everything. Returns the streams of the dropped operations.
    pub fn clear(&mut self) -> Vec<u64> {
        let entries = self.queues.iter_mut().flat_map(|queue| queue.drain(..));
        entries.map(|entry| entry.stream).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_33rd_stream_shares_a_channel_with_the_first() {
        let mut channels = Channels::shared(7);
        let opened: Vec<usize> = (0..33).map(|_| channels.open()).collect();
        assert_eq!(opened[0], opened[32]);
        let all: std::collections::BTreeSet<usize> = opened.into_iter().collect();
        assert_eq!(all.len(), 32);
        let mut own = Channels::default();
        let opened: Vec<usize> = (0..33).map(|_| own.open()).collect();
        own.close(opened[4]);
        assert_eq!((opened[32], own.open()), (32, opened[4]));
    }

    #[test]
    fn words_are_compared_as_the_driver_does() {
        let check = |word, value, comparison, expected| {
            assert_eq!(holds(word, value, comparison), expected, "{word} {value} {comparison}");
        };
        check(7, 7, 0, true);
        check(6, 7, 0, false);
        // The difference is signed.
        check(3, u64::MAX - 3, 0, true);
        check(7, 7, 1, true);
        check(8, 7, 1, false);
        check(6, 3, 2, true);
        check(4, 3, 2, false);
        check(0, 5, 3, true);
        check(u64::MAX, 0, 3, false);
    }
}
