//! Page-locked memory of sessions, which the device copies from and to by itself.
//!
//! Page-locking may wait for the device (CUDA C++ Programming Guide, "Implicit Synchronization").
//! The loading thread therefore locks memory at a moment when it may wait, after the first copy
//! that would have used the memory. Until then copies go through staging memory. Only memory whose
//! pages stay in place is locked ([`HostMemory::kept`]). Memory is unlocked when no other owner is
//! left.

use crate::driver::{Failure, Registered};
use partita_device::{HostMemory, HostSpan};
use std::collections::BTreeMap;
use std::sync::Arc;

enum State {
    /// A copy has requested the lock.
    Wanted,
    Locked(Arc<Registered>),
    /// The system or the driver refuses to lock the memory.
    Refused,
}

/// Page-locked host memory, by first address.
#[derive(Default)]
pub(crate) struct Locked {
    memories: BTreeMap<usize, (Arc<dyn HostMemory>, State)>,
    wanted: Vec<Arc<dyn HostMemory>>,
}

impl Locked {
    /// The locked memory that holds a span, and the span's offset in it. The call requests locking
    /// where the memory allows it.
    pub(crate) fn find(&mut self, span: &HostSpan) -> Option<(Arc<Registered>, u64)> {
        let (memory, offset) = span.memory();
        let (start, bytes) = memory.kept()?;
        if offset.checked_add(span.bytes()).is_none_or(|end| end > bytes) {
            return None;
        }
        match self.memories.get(&start) {
            Some((_, State::Locked(registered))) => Some((Arc::clone(registered), offset)),
            Some(_) => None,
            None => {
                self.memories.insert(start, (Arc::clone(memory), State::Wanted));
                self.wanted.push(Arc::clone(memory));
                None
            }
        }
    }

    /// The memory requested since the last call.
    pub(crate) fn take_wanted(&mut self) -> Vec<Arc<dyn HostMemory>> {
        std::mem::take(&mut self.wanted)
    }

    /// Records the outcome of a request.
    pub(crate) fn enter(&mut self, start: usize, result: Result<Registered, Failure>) {
        if let Some((_, state)) = self.memories.get_mut(&start) {
            *state = match result {
                Ok(registered) => State::Locked(Arc::new(registered)),
                Err(failure) => {
                    tracing::info!(%failure, "a session's memory is not page-locked: its copies \
                        take two steps");
                    State::Refused
                }
            };
        }
    }

    /// Takes memory without another owner, for unlocking. Memory that is being locked stays until
    /// the lock is complete.
    pub(crate) fn take_unused(&mut self) -> Vec<Registered> {
        let is_unused = |(memory, state): &(Arc<dyn HostMemory>, State)| match state {
            State::Wanted => false,
            // The two owners are this map and the registration.
            State::Locked(registered) => {
                Arc::strong_count(memory) == 2 && Arc::strong_count(registered) == 1
            }
            State::Refused => Arc::strong_count(memory) == 1,
        };
        let unused: Vec<usize> = self
            .memories
            .iter()
            .filter(|(_, entry)| is_unused(entry))
            .map(|(&start, _)| start)
            .collect();
        let gone = unused.into_iter().filter_map(|start| self.memories.remove(&start));
        gone.filter_map(|(_, state)| match state {
            State::Locked(registered) => Arc::into_inner(registered),
            _ => None,
        })
        .collect()
    }
}
