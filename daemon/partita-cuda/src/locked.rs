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
    /// The system or the driver does not lock it.
    Refused,
}

/// By where it begins.
#[derive(Default)]
pub(crate) struct Locked {
    memories: BTreeMap<usize, (Arc<dyn HostMemory>, State)>,
    wanted: Vec<Arc<dyn HostMemory>>,
}

impl Locked {
    /// The locked memory that a span lies in, and where in it. Memory that could be locked is asked
    /// for.
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

    /// Enters what has become of memory that was asked for.
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

    /// The memory without another owner, to be unlocked. Memory whose locking is in progress stays
    /// until it is locked.
    pub(crate) fn take_unused(&mut self) -> Vec<Registered> {
        let is_unused = |(memory, state): &(Arc<dyn HostMemory>, State)| match state {
            State::Wanted => false,
            // One here, and one with what is registered.
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
