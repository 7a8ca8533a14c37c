//! Large copies in parts, and their staging memory.
//!
//! A stream of the driver takes a number of calls that have not ended; a copy through staging
//! memory makes several for each piece. The owner submits some pieces at once, and more when these
//! end.

use super::{Queued, Streams};
use crate::driver::{Pinned, Registered};
use crate::locked::Locked;
use crate::tasks::Task;
use partita_model::StreamId;
use std::ops::Range;
use std::sync::Arc;

/// Calls for an operation beside its own: waits for signals and zeros, and the event behind it.
const AROUND: usize = 3;

/// The most pieces of a copy through staging memory that are submitted at once.
const PIECES: u64 = 16;

/// The most boxes of a piece of an array (`crate::arrays`).
const BOXES: usize = 8;

/// Parts of one copy that are on the device at once. Each has staging memory.
pub(super) const PARTS: usize = 2;

/// Bytes of a small staging buffer, and the number of these buffers.
pub(super) const SMALL: (usize, usize) = (64 << 10, 64);

/// Bytes of a large staging buffer, and the number of these buffers. Larger copies go through in
/// pieces.
pub(super) const LARGE: (usize, usize) = (4 << 20, 8);

/// What of an operation goes to the device at once.
pub(crate) struct Portion {
    /// Pieces of a copy through staging memory, by their numbers.
    pub(crate) pieces: Range<u64>,
    /// Whether nothing of the operation is left.
    pub(crate) is_last: bool,
    /// The most calls of the driver for it.
    pub(super) calls: usize,
}

impl Portion {
    fn whole(task: &Task) -> Portion {
        Portion { pieces: 0..0, is_last: true, calls: AROUND + Portion::each(task) }
    }

    /// The next pieces of a copy.
    fn of_copy(bytes: u64, piece: u64, head: &Queued) -> Portion {
        let all = bytes.div_ceil(piece);
        let end = all.min(head.begun + PIECES);
        let count = usize::try_from(end - head.begun).unwrap_or(0);
        let calls = AROUND + count * (1 + Portion::each(&head.task));
        Portion { pieces: head.begun..end, is_last: end == all, calls }
    }

    /// The most calls for a piece, or for an operation without pieces.
    fn each(task: &Task) -> usize {
        if matches!(task, Task::ArrayCopy { .. }) { BOXES } else { 1 }
    }
}

/// Bytes of the staging buffers for a copy of some bytes, and their number.
const fn staging_of(bytes: u64) -> (usize, usize) {
    if bytes <= SMALL.0 as u64 { SMALL } else { LARGE }
}

/// All staging memory is in use.
pub(super) struct NoStaging;

impl Streams {
    /// What of the stream's first operation goes to the device next. `None`: the device has enough
    /// of the stream.
    pub(super) fn next_part(
        &self,
        id: StreamId,
        nothing: bool,
        is_direct: bool,
    ) -> Option<Portion> {
        let stream = self.streams.get(&id)?;
        let head = stream.queue.front()?;
        let staged = head.task.staged().filter(|_| !nothing && !is_direct);
        let part = match staged {
            Some(bytes) => Portion::of_copy(bytes, staging_of(bytes).0 as u64, head),
            None => Portion::whole(&head.task),
        };
        let is_crowded = head.begun > 0 && stream.has_enough_parts();
        (!is_crowded && stream.has_room(part.calls)).then_some(part)
    }

    /// The stream's first operation, of which a part goes to the device.
    pub(super) fn advance_head(&mut self, id: StreamId, part: &Portion) -> Option<Queued> {
        let head = self.streams.get_mut(&id)?.queue.front_mut()?;
        head.begun = part.pieces.end;
        Some(Queued { task: head.task.clone(), ..*head })
    }

    /// The page-locked memory of the stream's next copy, if the copy has any.
    pub(super) fn direct_for(
        &self,
        id: StreamId,
        nothing: bool,
        locked: &mut Locked,
    ) -> Option<(Arc<Registered>, u64)> {
        let head = self.streams.get(&id)?.queue.front().filter(|_| !nothing)?;
        locked.find(head.task.direct()?)
    }

    pub(super) fn staging_for(
        &mut self,
        id: StreamId,
        nothing: bool,
    ) -> Result<Option<Arc<Pinned>>, NoStaging> {
        let head = self.streams.get(&id).and_then(|stream| stream.queue.front());
        let staged = head.filter(|_| !nothing).and_then(|head| head.task.staged());
        let Some(bytes) = staged else { return Ok(None) };
        let pool = if staging_of(bytes) == SMALL { &mut self.small } else { &mut self.large };
        pool.pop().map(Some).ok_or(NoStaging)
    }
}
