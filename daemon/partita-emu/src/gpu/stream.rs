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
    /// The priority of its grids, as CUDA counts: lower numbers go first.
    pub priority: i32,
    /// Whether nothing can be added any more.
    pub destroyed: bool,
}

impl Stream {
    /// Whether an operation is in flight or queued.
    fn has_work(&self) -> bool {
        self.front.is_some() || !self.queue.is_empty()
    }
}

/// All streams. Most streams of a crowd have nothing to do, so the streams with work are kept in a
/// set of their own.
#[derive(Default)]
pub struct Streams {
    /// By id.
    pub streams: BTreeMap<StreamId, Stream>,
    /// Every stream with an operation in flight or queued. A stream whose last operation has ended
    /// stays until the next [`Streams::sweep`].
    busy: BTreeSet<StreamId>,
    /// Operations that have not ended.
    pub pending: BTreeSet<OperationId>,
    /// The stream of each grid in flight.
    pub of_grid: BTreeMap<OperationId, StreamId>,
}

impl Streams {
    /// Appends an operation to a stream. False where no such stream takes any.
    pub fn push(&mut self, id: StreamId, queued: Queued) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.destroyed) else {
            return false;
        };
        self.pending.insert(queued.operation);
        stream.queue.push_back(queued);
        self.busy.insert(id);
        true
    }

    /// Streams that have an operation in flight or queued, in order.
    pub fn with_work(&self) -> impl Iterator<Item = StreamId> {
        self.working().map(|(id, _)| id)
    }

    fn working(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        let busy = self.busy.iter().filter_map(|id| Some((*id, self.streams.get(id)?)));
        busy.filter(|(_, stream)| stream.has_work())
    }

    /// Ends a stream: nothing can be added any more. False where no such stream is open.
    pub fn destroy(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.destroyed) else {
            return false;
        };
        stream.destroyed = true;
        if !stream.has_work() {
            self.streams.remove(&id);
        }
        true
    }

    /// Forgets destroyed streams that are empty.
    pub fn sweep(&mut self) {
        let streams = &mut self.streams;
        self.busy.retain(|id| {
            let Some(stream) = streams.get(id) else { return false };
            let (works, is_over) = (stream.has_work(), stream.destroyed);
            if !works && is_over {
                streams.remove(id);
            }
            works
        });
    }

    /// The first end of an operation whose time is known.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.ends().min()
    }

    /// The first end after a time. An operation whose time has come may be held back.
    #[must_use]
    pub fn next_end_after(&self, time: u64) -> Option<u64> {
        self.ends().filter(|&end| end > time).min()
    }

    fn ends(&self) -> impl Iterator<Item = u64> {
        self.working().filter_map(|(_, stream)| match &stream.front {
            Some((_, Front::Until(time, _))) => Some(*time),
            _ => None,
        })
    }

    /// Where the words are that fronts wait for.
    pub fn awaited(&self) -> impl Iterator<Item = DeviceAddress> {
        self.working().filter_map(|(_, stream)| match stream.front {
            Some((_, Front::Value(address, _))) => Some(address),
            _ => None,
        })
    }

    /// Whether a front can begin or end right now.
    #[must_use]
    pub fn has_ready_front(&self) -> bool {
        self.working().any(|(_, stream)| match &stream.front {
            None => !stream.queue.is_empty(),
            Some((_, Front::Waiting(on))) => !self.pending.contains(on),
            Some(_) => false,
        })
    }
}
