//! Waiting of a program's threads for the data plane.
//!
//! Any thread may wait. One waiting thread, the *leader*, sleeps on the bell; the others sleep on a
//! condition variable. When the bell rings, the leader steps down and wakes all. Each thread looks
//! for its own news, and one that must wait longer becomes the leader.
//!
//! No wake-up is lost. A thread announces its sleep in the shared memory *while it holds the lock*,
//! looks once more, and gives the lock up only by sleeping. Later news ring the bell, and the
//! leader cannot take the lock to wake the others before they sleep. A range of the arena that a
//! thread of this process gives back rings no bell: that thread wakes the others, and nudges a
//! leader that waits for the arena.

use crate::gate::{HostCall, Reached};
use crate::patience::Patience;
use crate::staging::{FreeRanges, Range};
use partita_model::Console;
use partita_model::request::Sequence;
use partita_wire::{
    CallError, ClientEnd, PeerFault, Printed, Reply, ReplyReader, RequestWriter, Rung, SharedEnd,
    code,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The use of an outcome.
#[derive(Debug)]
pub(crate) enum Slot {
    /// A thread waits for the outcome.
    Waiting,
    /// The outcome has come, and its thread has not taken it.
    Arrived(Result<Reply, CallError>),
    /// The outcome frees the range of the arena, if there is one. A failure belongs to the batch.
    Staged(Option<Range>, BatchId),
    /// The outcome says that a stream has reached a gate.
    Gate(HostCall),
}

/// A group of copies that one call makes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BatchId(u64);

impl BatchId {
    /// Copies for which no thread waits. The next synchronisation reports a failure.
    pub(crate) const NOBODY: BatchId = BatchId(0);
}

#[derive(Debug, Default)]
struct Batch {
    pending: u64,
    error: Option<CallError>,
}

/// The thing that a thread waits for. It decides who wakes the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// News from the data plane.
    News,
    /// Room in the command ring.
    CommandRoom,
    /// A part of the arena. Another thread of this process may give it back, too.
    Staging,
}

/// Alignment of ranges in bytes: two copies never share a pair of cache lines.
const LINE: u64 = 256;

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    replies: ReplyReader,
    slots: HashMap<Sequence, Slot>,
    pub(crate) staging: FreeRanges,
    batches: HashMap<BatchId, Batch>,
    reached: VecDeque<Reached>,
    last_batch: u64,
    /// The first failure of a copy for which no thread waited.
    unclaimed: Option<CallError>,
    leader: Option<Wanted>,
    /// The reason why no more answers come.
    gone: Option<CallError>,
}

impl State {
    pub(crate) fn expect(&mut self, sequence: Sequence, slot: Slot) {
        if let Slot::Staged(_, batch) = slot {
            self.batches.entry(batch).or_default().pending += 1;
        }
        self.slots.insert(sequence, slot);
    }

    /// The outcome of a request that a thread waits for, once.
    pub(crate) fn take(&mut self, sequence: Sequence) -> Option<Result<Reply, CallError>> {
        match self.slots.remove(&sequence)? {
            Slot::Arrived(outcome) => Some(outcome),
            other => {
                self.slots.insert(sequence, other);
                None
            }
        }
    }

    pub(crate) fn new_batch(&mut self) -> BatchId {
        self.last_batch += 1;
        let id = BatchId(self.last_batch);
        self.batches.insert(id, Batch::default());
        id
    }

    /// The outcome of a batch without pending copies, once.
    pub(crate) fn take_batch(&mut self, id: BatchId) -> Option<Result<(), CallError>> {
        if self.batches.get(&id)?.pending > 0 {
            return None;
        }
        let batch = self.batches.remove(&id)?;
        Some(batch.error.map_or(Ok(()), Err))
    }

    pub(crate) fn take_reached(&mut self) -> Option<Reached> {
        self.reached.pop_front()
    }

    /// All functions that are due, or may become so.
    pub(crate) fn take_calls(&mut self) -> Vec<HostCall> {
        let mut calls: Vec<HostCall> = self.reached.drain(..).map(|reached| reached.call).collect();
        let gates = self.slots.extract_if(|_, slot| matches!(slot, Slot::Gate(_)));
        calls.extend(gates.filter_map(|(_, slot)| match slot {
            Slot::Gate(call) => Some(call),
            _ => None,
        }));
        calls
    }

    pub(crate) fn fail_unclaimed(&mut self, error: CallError) {
        self.unclaimed.get_or_insert(error);
    }

    pub(crate) fn take_output(&mut self) -> Printed {
        self.replies.take_output()
    }

    pub(crate) fn take_unclaimed(&mut self) -> Option<CallError> {
        self.unclaimed.take()
    }

    fn arrive(&mut self, sequence: Sequence, outcome: Result<Reply, CallError>) {
        // No thread waits for this answer, because its thread gave up when the session broke.
        match self.slots.remove(&sequence) {
            None => {}
            Some(Slot::Waiting) => {
                self.slots.insert(sequence, Slot::Arrived(outcome));
            }
            Some(arrived @ Slot::Arrived(_)) => {
                self.slots.insert(sequence, arrived);
            }
            Some(Slot::Gate(call)) => {
                self.reached.push_back(Reached {
                    gate: sequence,
                    call,
                    outcome: outcome.map(drop),
                });
            }
            Some(Slot::Staged(range, id)) => {
                if let Some(range) = range {
                    self.staging.give(range);
                }
                let batch = self.batches.entry(id).or_default();
                batch.pending = batch.pending.saturating_sub(1);
                let Err(error) = outcome else { return };
                if id == BatchId::NOBODY {
                    self.unclaimed.get_or_insert(error);
                } else {
                    batch.error.get_or_insert(error);
                }
            }
        }
    }
}

/// The sink of kernels' output. The thread that has waited for the device calls it.
pub type OutputSink = fn(Console, &[u8]);

/// Outcomes and the threads that wait for them.
#[derive(Debug)]
pub(crate) struct Inbox {
    shared: SharedEnd,
    sink: OutputSink,
    state: Mutex<State>,
    changed: Condvar,
    /// Copy of `State::gone.is_some()` that is read without the lock.
    is_gone: AtomicBool,
    /// Why asynchronous work has failed, in the daemon's words.
    why: OnceLock<CallError>,
    patience: Patience,
}

/// Takes a lock. A panic of the program's thread under a lock leaves nothing half done that others
/// rely on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(crate) fn new(end: ClientEnd, sink: OutputSink) -> (Inbox, RequestWriter) {
        let ClientEnd { shared, requests, replies } = end;
        let state = State {
            replies,
            slots: HashMap::new(),
            staging: FreeRanges::new(0, shared.layout().staging_bytes(), LINE),
            batches: HashMap::new(),
            reached: VecDeque::new(),
            last_batch: BatchId::NOBODY.0,
            unclaimed: None,
            leader: None,
            gone: None,
        };
        let inbox = Inbox {
            shared,
            sink,
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_gone: AtomicBool::new(false),
            why: OnceLock::new(),
            patience: Patience::new(),
        };
        (inbox, requests)
    }

    pub(crate) fn shared(&self) -> &SharedEnd {
        &self.shared
    }

    /// Gives access to the state, with the answers that have come.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        self.drain(&mut state);
        f(&mut state)
    }

    /// Registers the use of a request's outcome. Called before the request is written.
    pub(crate) fn expect(&self, sequence: Sequence, slot: Slot) {
        lock(&self.state).expect(sequence, slot);
    }

    /// Waits until `ready` finds news from the data plane.
    pub(crate) fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, CallError> {
        let found = self.wait_for(Wanted::News, &mut ready);
        self.deliver_output();
        found
    }

    /// Hands the output of kernels to the sink, without holding the lock.
    pub(crate) fn deliver_output(&self) {
        let Printed { output, error } = self.with(State::take_output);
        for (console, text) in [(Console::Output, output), (Console::Error, error)] {
            if !text.is_empty() {
                (self.sink)(console, &text);
            }
        }
    }

    /// Waits until `ready` finds room in the command ring.
    pub(crate) fn wait_for_room<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, CallError> {
        self.wait_for(Wanted::CommandRoom, &mut |_| ready())
    }

    /// Waits until `bytes` bytes of the arena are free, and takes them.
    pub(crate) fn take_staging(&self, bytes: u64) -> Result<Range, CallError> {
        let found = self.wait_for(Wanted::Staging, &mut |state| state.staging.take(bytes));
        self.deliver_output();
        found
    }

    /// Gives a range back that no request names any more.
    pub(crate) fn give_staging(&self, range: Range) {
        let mut state = lock(&self.state);
        state.staging.give(range);
        if state.leader == Some(Wanted::Staging) {
            self.shared.nudge();
        }
        drop(state);
        self.changed.notify_all();
    }

    fn wait_for<T>(
        &self,
        wanted: Wanted,
        ready: &mut dyn FnMut(&mut State) -> Option<T>,
    ) -> Result<T, CallError> {
        let mut state = lock(&self.state);
        let mut may_spin = wanted == Wanted::News;
        loop {
            let saw = self.shared.news();
            if std::mem::take(&mut may_spin) && state.leader.is_none() {
                self.drain(&mut state);
                if let Some(found) = ready(&mut state) {
                    return Ok(found);
                }
                drop(state);
                self.patience.spin(|| self.shared.news() != saw);
                state = lock(&self.state);
                continue;
            }
            for last_look in [false, true] {
                if last_look {
                    match wanted {
                        Wanted::CommandRoom => self.shared.prepare_to_sleep_for_room(),
                        Wanted::News | Wanted::Staging => self.shared.prepare_to_sleep(saw),
                    }
                }
                self.drain(&mut state);
                if let Some(found) = ready(&mut state) {
                    if last_look && state.leader.is_none() {
                        self.shared.stay_awake();
                    }
                    return Ok(found);
                }
                if let Some(error) = &state.gone {
                    return Err(error.clone());
                }
            }
            if state.leader.is_some() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.leader = Some(wanted);
            drop(state);
            let rung = match wanted {
                Wanted::Staging => self.shared.sleep_or_nudge(),
                Wanted::News | Wanted::CommandRoom => self.shared.sleep(),
            };
            state = lock(&self.state);
            state.leader = None;
            if rung == Rung::Gone {
                // News that it published before it went still count.
                self.drain(&mut state);
                self.set_gone(&mut state, daemon_gone());
            }
            self.changed.notify_all();
        }
    }

    /// Whether the session is known to be over.
    pub(crate) fn gone(&self) -> Option<CallError> {
        if !self.is_gone.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.state).gone.clone()
    }

    /// The session's error, where its work has failed. Its words are known once the answers have
    /// been read that came before it.
    pub(crate) fn sticky(&self) -> Option<CallError> {
        let (code, sequence) = self.shared.sticky()?;
        if let Some(why) = self.why.get().filter(|why| why.code == code) {
            return Some(why.clone());
        }
        let text =
            format!("earlier asynchronous work failed ({sequence}); the daemon's log says how");
        Some(CallError::new(code, text))
    }

    /// Ends the session: the daemon broke the protocol, or its bell says that it is gone.
    pub(crate) fn end(&self, error: CallError) -> CallError {
        let mut state = lock(&self.state);
        self.drain(&mut state);
        self.set_gone(&mut state, error);
        self.shared.hang_up();
        self.changed.notify_all();
        state.gone.clone().unwrap_or_else(daemon_gone)
    }

    /// An error that the daemon had set before says more than its silence.
    fn set_gone(&self, state: &mut State, error: CallError) {
        state.gone.get_or_insert_with(|| self.sticky().unwrap_or(error));
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn drain(&self, state: &mut State) {
        if state.gone.is_some() {
            return;
        }
        loop {
            match state.replies.poll() {
                Ok(Some(answered)) => state.arrive(answered.sequence, answered.outcome),
                Ok(None) => break,
                Err(fault) => {
                    self.set_gone(state, peer_fault(&fault));
                    return;
                }
            }
        }
        if let Some(failure) = state.replies.failure() {
            self.why.get_or_init(|| failure.clone());
        }
        if state.replies.publish() && self.shared.answers_read() == Rung::Gone {
            self.set_gone(state, daemon_gone());
        }
    }
}

pub(crate) fn daemon_gone() -> CallError {
    CallError::new(
        code::PEER_GONE,
        "the process that holds the GPU (partita-gpu) is gone, and this session's work with it: \
         restart the program; `journalctl -u partitad` says what happened",
    )
}

pub(crate) fn peer_fault(fault: &PeerFault) -> CallError {
    CallError::new(code::PEER_GONE, format!("the session is over: {fault}"))
}
