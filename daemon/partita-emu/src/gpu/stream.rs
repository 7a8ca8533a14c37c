//! Streams: operations in order, one in flight each.

use super::grid::Grid;
use partita_device::Work;
use partita_model::{AwaitedWord, DeviceAddress, OperationId, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An operation that waits for its turn.
pub struct Queued {
    /// Its id.
    pub operation: OperationId,
    /// When it was given.
    pub since: u64,
    /// What to do.
    pub what: Task,
}

/// The work of an operation.
pub enum Task {
    /// Runs a grid that has passed its checks.
    Grid(Box<Grid>),
    /// Carries out any other work.
    Work(Work),
}

impl Task {
    /// Whether [`partita_device::Device::cancel`] ends it.
    pub const fn can_be_cancelled(&self) -> bool {
        matches!(self, Task::Grid(_) | Task::Work(Work::WaitValue { .. }))
    }
}

/// The work of a stream's front.
pub enum Front {
    /// A grid runs.
    Running,
    /// A copy, fill or marker ends at this time, in picoseconds, and takes effect then.
    Until(u64, Work),
    /// It waits for another operation.
    Waiting(OperationId),
    /// It waits for a word of memory.
    Value(DeviceAddress, AwaitedWord),
}

/// One stream.
#[derive(Default)]
pub struct Stream {
    /// Operations that have not begun.
    pub queue: VecDeque<Queued>,
    /// The operation in flight.
    pub front: Option<(OperationId, Front)>,
    /// When the operation before ended.
    pub free_at: u64,
    /// Whether nothing can be added any more.
    pub destroyed: bool,
}

/// All streams.
#[derive(Default)]
pub struct Streams {
    /// By id.
    pub streams: BTreeMap<StreamId, Stream>,
    /// Operations that have not ended.
    pub pending: BTreeSet<OperationId>,
    /// The stream of each grid in flight.
    pub of_grid: BTreeMap<OperationId, StreamId>,
}

impl Streams {
    /// Streams that have an operation in flight or queued, in order.
    pub fn with_work(&self) -> impl Iterator<Item = StreamId> {
        let works = |stream: &Stream| stream.front.is_some() || !stream.queue.is_empty();
        self.streams.iter().filter(move |(_, stream)| works(stream)).map(|(&id, _)| id)
    }

    /// Forgets destroyed streams that are empty.
    pub fn sweep(&mut self) {
        self.streams.retain(|_, stream| {
            !stream.destroyed || stream.front.is_some() || !stream.queue.is_empty()
        });
    }

    /// The first end of an operation whose time is known.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.streams
            .values()
            .filter_map(|stream| match &stream.front {
                Some((_, Front::Until(time, _))) => Some(*time),
                _ => None,
            })
            .min()
    }

    /// Where the words are that fronts wait for.
    pub fn awaited(&self) -> impl Iterator<Item = DeviceAddress> {
        self.streams.values().filter_map(|stream| match stream.front {
            Some((_, Front::Value(address, _))) => Some(address),
            _ => None,
        })
    }

    /// Whether a front can begin or end right now.
    #[must_use]
    pub fn has_ready_front(&self) -> bool {
        self.streams.values().any(|stream| match &stream.front {
            None => !stream.queue.is_empty(),
            Some((_, Front::Waiting(on))) => !self.pending.contains(on),
            Some(_) => false,
        })
    }
}
