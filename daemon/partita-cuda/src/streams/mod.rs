//! The contract's streams on the driver's few streams.
//!
//! A GPU runs work of about 32 streams at once. Work of further streams would queue behind other
//! streams in an uncontrolled order. There is therefore a fixed number of *lanes*, which are
//! streams of the driver. A stream has a lane only while its work is on the device. When all lanes
//! are taken, streams wait for one in the order of their requests. A stream that has had its turn
//! gives up its lane while others wait.
//!
//! # Why it cannot hang
//!
//! An operation that waits on the device for another stream's work (an event, a value) may take a
//! lane only while `RESERVED` lanes are free. Otherwise it waits here and holds no lane. Some
//! lanes therefore always carry work that ends by itself.
//!
//! Streams of green contexts come later than these, and share their connections with others, maybe
//! with signals. On such a lane an operation is submitted when it can begin at once, so that it
//! never holds up what is behind it in its connection.

mod ends;
mod lanes;
mod parts;

pub(crate) use parts::Portion;

use crate::clock::Clock;
use crate::code::Loaded;
use crate::device::Placed;
use crate::driver::{Context, Event, Failure, Pinned, Place, Registered, Stream};
use crate::locked::Locked;
use crate::news::{News, Waiter};
use crate::signals::Signals;
use crate::submission::{not_begun, submit};
use crate::tasks::{self, Task};
use crate::zeros::Mark;
use lanes::{GreenLanes, LANES, Lane, RESERVED};
use partita_device::{DeviceError, Outcome, Work};
use partita_model::{AwaitedWord, ModuleId, Nanos, OperationId, SmSet, StreamId};
use parts::{LARGE, NoStaging, PARTS, SMALL};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Operations that a stream may submit while others wait for a lane.
const TURN: u32 = 64;
/// The most calls of the driver for one stream that have not ended on the device. A stream of the
/// driver takes about 1,024; one call more waits, and the thread that owns the device with it.
const DEPTH: usize = 896;

/// Bytes of the count of what was printed.
const COUNT_BYTES: usize = 4;
/// Kernels that may print on the device, of which counts are copied.
const COUNTS: usize = 1024;

/// The most awaited values that one round reads.
const LOOKS: usize = 4;

/// An operation that awaits submission to the device.
struct Queued {
    operation: OperationId,
    task: Task,
    /// Pieces of a copy that are on the device already.
    begun: u64,
}

/// An operation on the device.
struct Flight {
    operation: OperationId,
    /// Whether more pieces of the same copy follow.
    is_part: bool,
    /// Calls of the driver.
    calls: usize,
    event: Arc<Event>,
    /// The outcome, unless the device reports another.
    outcome: Outcome,
    kernel: Option<(ModuleId, Arc<str>)>,
    staging: Option<Arc<Pinned>>,
    /// The place in the counts' memory for a copy behind a kernel that may print.
    count: Option<usize>,
    /// A session's page-locked memory that the operation copies from or to.
    _registered: Option<Arc<Registered>>,
}

#[derive(Default)]
struct Logical {
    queue: VecDeque<Queued>,
    flight: VecDeque<Flight>,
    /// Calls of the driver that `flight` holds.
    calls: usize,
    lane: Option<usize>,
    /// Operations submitted since the stream got its lane.
    submitted: u32,
    /// The last barriers of signals and of zeros that the stream has waited for.
    seen: [u64; 2],
    destroyed: bool,
}

impl Logical {
    /// Whether a stream of the driver has room for more calls.
    fn has_room(&self, calls: usize) -> bool {
        self.calls == 0 || self.calls + calls <= DEPTH
    }

    /// An operation, or a part of one, is on the device.
    fn begin(&mut self, flight: Flight) {
        self.submitted = self.submitted.saturating_add(1);
        self.calls += flight.calls;
        self.flight.push_back(flight);
    }

    /// The first of those has ended.
    fn end(&mut self) -> Option<Flight> {
        let flight = self.flight.pop_front()?;
        self.calls -= flight.calls;
        Some(flight)
    }

    /// Whether a further part of the first operation would take staging memory that other copies
    /// need.
    fn has_enough_parts(&self) -> bool {
        self.flight.iter().filter(|flight| flight.is_part).count() >= PARTS
    }

    /// Whether the stream's first operation waits for a value.
    fn waits_for_value(&self) -> bool {
        let head = self.queue.front().map(|head| &head.task);
        self.flight.is_empty() && matches!(head, Some(Task::Work(Work::WaitValue { .. })))
    }

    /// Whether the stream's first operation waits for a word in host memory.
    fn waits_for_host(&self) -> bool {
        let head = self.queue.front().map(|head| &head.task);
        self.flight.is_empty() && matches!(head, Some(Task::HostWait { .. }))
    }
}

/// The parts of the device that a submission needs.
pub(crate) struct Rest<'a> {
    pub(crate) modules: &'a BTreeMap<ModuleId, Loaded>,
    pub(crate) placed: &'a BTreeMap<ModuleId, Placed>,
    pub(crate) signals: &'a mut Signals,
    /// Host memory that is page-locked.
    pub(crate) locked: &'a mut Locked,
    /// Finds the event after which the memory of an operation is zero, and its number.
    pub(crate) zeroed: &'a dyn Fn(&Task) -> Option<Mark>,
    /// Whether the device is to become idle: only grids of running launches go on.
    pub(crate) drains: bool,
    pub(crate) clock: &'a Clock,
    /// Finds the place of an awaited word.
    pub(crate) place_of: &'a dyn Fn(u64) -> Option<Place>,
    /// Finds the count of what a kernel's module has printed, where the kernel may print.
    pub(crate) count_of: &'a dyn Fn(ModuleId, &str) -> Option<u64>,
}

/// An operation that has ended.
pub(crate) struct Ended {
    pub(crate) operation: OperationId,
    pub(crate) time: Nanos,
    pub(crate) outcome: Outcome,
    /// The kernel of a grid that was on the device.
    pub(crate) kernel: Option<(ModuleId, Arc<str>)>,
    /// The count of what its module had printed at its end, where it is known.
    pub(crate) count: Option<u32>,
}

pub(crate) struct Streams {
    context: Arc<Context>,
    /// Lanes by number. Numbers are not reused.
    lanes: BTreeMap<usize, Lane>,
    next_lane: usize,
    /// Free lanes of the primary context.
    free: Vec<usize>,
    contexts: BTreeMap<SmSet, GreenLanes>,
    turns: u64,
    streams: BTreeMap<StreamId, Logical>,
    /// Streams with operations to submit.
    active: BTreeSet<StreamId>,
    /// Streams that wait for a lane, in order.
    starving: VecDeque<StreamId>,
    on_device: BTreeMap<OperationId, Arc<Event>>,
    queued: BTreeSet<OperationId>,
    cancelled: BTreeSet<OperationId>,
    events: Vec<Arc<Event>>,
    small: Vec<Arc<Pinned>>,
    large: Vec<Arc<Pinned>>,
    /// Memory for the counts of what kernels have printed, and its free places.
    counts: Pinned,
    free_counts: Vec<usize>,
    /// Whether an operation waits for an event on a lane that shares its connection.
    awaits_event: bool,
    /// Streams that may read their awaited value in this round, and the last one that did.
    lookers: BTreeSet<StreamId>,
    last_looker: Option<StreamId>,
}

enum Step {
    /// The operation is on the device, or has ended.
    Gone,
    /// The operation must wait here.
    Held,
}

impl Streams {
    /// Creates all lanes and staging memory at once. A later creation would wait for the device.
    pub(crate) fn new(context: &Arc<Context>, news: &Arc<News>) -> Result<Self, crate::OpenError> {
        let mut lanes = BTreeMap::new();
        for number in 0..LANES {
            let (stream, waiter) = (Stream::new(context, 0)?, Waiter::start(context, news)?);
            lanes.insert(number, Lane { stream, waiter, on: SmSet::EMPTY });
        }
        let pieces = |(bytes, count): (usize, usize)| -> Result<Vec<Arc<Pinned>>, Failure> {
            (0..count).map(|_| Ok(Arc::new(Pinned::new(context, bytes)?))).collect()
        };
        Ok(Streams {
            context: Arc::clone(context),
            free: (0..LANES).rev().collect(),
            next_lane: LANES,
            lanes,
            contexts: BTreeMap::new(),
            turns: 0,
            streams: BTreeMap::new(),
            active: BTreeSet::new(),
            starving: VecDeque::new(),
            on_device: BTreeMap::new(),
            queued: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            events: Vec::new(),
            small: pieces(SMALL)?,
            large: pieces(LARGE)?,
            counts: Pinned::new(context, COUNTS * COUNT_BYTES)?,
            free_counts: (0..COUNTS).map(|number| number * COUNT_BYTES).collect(),
            awaits_event: false,
            lookers: BTreeSet::new(),
            last_looker: None,
        })
    }

    pub(crate) fn create(&mut self, id: StreamId) -> Result<(), DeviceError> {
        if self.streams.contains_key(&id) {
            return Err(DeviceError::BadId(id.to_string()));
        }
        self.streams.insert(id, Logical::default());
        Ok(())
    }

    pub(crate) fn destroy(&mut self, id: StreamId) -> Result<(), DeviceError> {
        let stream = self.streams.get_mut(&id).filter(|stream| !stream.destroyed);
        stream.ok_or_else(|| DeviceError::BadId(id.to_string()))?.destroyed = true;
        self.drop_if_done(id);
        Ok(())
    }

    fn drop_if_done(&mut self, id: StreamId) {
        let done = |stream: &Logical| {
            stream.destroyed && stream.queue.is_empty() && stream.flight.is_empty()
        };
        if self.streams.get(&id).is_some_and(done) {
            self.streams.remove(&id);
        }
    }

    /// Whether nothing is queued or on the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.on_device.is_empty()
    }

    /// Whether nothing is on the device.
    pub(crate) fn device_is_idle(&self) -> bool {
        self.on_device.is_empty()
    }

    /// Appends an operation.
    pub(crate) fn enqueue(
        &mut self,
        id: StreamId,
        operation: OperationId,
        task: Task,
    ) -> Result<(), DeviceError> {
        let stream = self.streams.get_mut(&id).filter(|stream| !stream.destroyed);
        let stream = stream.ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        if self.on_device.contains_key(&operation) || !self.queued.insert(operation) {
            return Err(DeviceError::BadId(operation.to_string()));
        }
        stream.queue.push_back(Queued { operation, task, begun: 0 });
        self.active.insert(id);
        Ok(())
    }

    /// Cancels an operation before its submission. False where no such operation is queued.
    pub(crate) fn cancel(&mut self, operation: OperationId) -> bool {
        self.queued.contains(&operation) && self.cancelled.insert(operation)
    }

    /// Whether an operation has not ended.
    pub(crate) fn is_known(&self, operation: OperationId) -> bool {
        self.queued.contains(&operation) || self.on_device.contains_key(&operation)
    }

    /// Submits what the device can take of one stream, to which something was appended. Others may
    /// have waited for that; they go with the next [`Streams::submit`].
    pub(crate) fn submit_appended(
        &mut self,
        id: StreamId,
        rest: &mut Rest<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        // Streams that wait for a lane come first.
        if !self.starving.is_empty() {
            return self.submit(rest, ended);
        }
        self.submit_of(id, rest, ended)
    }

    /// Submits all operations that the device can take.
    pub(crate) fn submit(
        &mut self,
        rest: &mut Rest<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        self.choose_lookers();
        self.awaits_event = false;
        let waiting: Vec<StreamId> = self.starving.drain(..).collect();
        let others: Vec<StreamId> =
            self.active.iter().filter(|id| !waiting.contains(id)).copied().collect();
        for id in waiting.into_iter().chain(others) {
            self.submit_of(id, rest, ended)?;
        }
        Ok(())
    }

    /// Chooses the streams whose awaited values are read next, because each read is a copy from the
    /// device.
    fn choose_lookers(&mut self) {
        let waits = |id: &&StreamId| self.streams.get(id).is_some_and(Logical::waits_for_value);
        let all: Vec<StreamId> = self.active.iter().filter(waits).copied().collect();
        let after = self.last_looker.map_or(0, |last| all.partition_point(|id| *id <= last));
        let turn = all[after..].iter().chain(&all[..after]).take(LOOKS);
        self.lookers = turn.clone().copied().collect();
        self.last_looker = turn.last().copied();
    }

    fn submit_of(
        &mut self,
        id: StreamId,
        rest: &mut Rest<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        while let Some(stream) = self.streams.get_mut(&id) {
            if stream.queue.is_empty() {
                self.active.remove(&id);
                break;
            }
            let spent = stream.submitted >= TURN && !self.starving.is_empty();
            if spent && !stream.flight.is_empty() {
                break;
            }
            match self.step(id, rest, ended)? {
                Step::Gone => {}
                Step::Held => break,
            }
        }
        self.release_lane(id);
        self.drop_if_done(id);
        Ok(())
    }

    /// Submits, ends or holds the first operation of a stream.
    fn step(
        &mut self,
        id: StreamId,
        rest: &mut Rest<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<Step, Failure> {
        let scarce = self.free.len() <= RESERVED;
        if matches!(self.moves(id), Step::Held) {
            return Ok(Step::Held);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(Step::Held) };
        let Some(head) = stream.queue.front() else { return Ok(Step::Held) };
        let cancelled = self.cancelled.contains(&head.operation);
        let alone = stream.flight.is_empty();
        let goes_on = matches!(
            head.task,
            Task::Work(Work::Launch(_) | Work::LaunchOn { .. } | Work::Wait { .. } | Work::Marker)
        );
        // Operations that need no work of the device.
        let nothing = match &head.task {
            _ if cancelled => true,
            Task::HostWait { at, word } => {
                if !alone || !tasks::holds(at, *word) {
                    return Ok(Step::Held);
                }
                true
            }
            Task::Work(Work::Marker) => true,
            Task::Work(Work::Wait { on }) if self.queued.contains(on) => return Ok(Step::Held),
            Task::Work(Work::Wait { on }) if self.on_device.contains_key(on) => {
                if scarce {
                    return Ok(Step::Held);
                }
                false
            }
            Task::Work(Work::Wait { .. }) => true,
            // On the device, the wait would hold up streams that share its channel, and the end of
            // every phase.
            Task::Work(Work::WaitValue { address, word }) => {
                let reached =
                    alone && self.lookers.remove(&id) && has_reached(rest, address.0, *word)?;
                if !reached {
                    return Ok(Step::Held);
                }
                true
            }
            _ => false,
        };
        if nothing && alone {
            let Some(head) = self.take_head(id) else { return Ok(Step::Held) };
            let outcome = if self.cancelled.remove(&head.operation) {
                Outcome::Cancelled
            } else {
                Outcome::Complete
            };
            let (operation, time) = (head.operation, rest.clock.now());
            ended.push(Ended { operation, time, outcome, kernel: None, count: None });
            return Ok(Step::Gone);
        }
        if rest.drains && !goes_on {
            return Ok(Step::Held);
        }
        let Some(lane) = self.lane_of(id) else { return Ok(Step::Held) };
        if self.waits_for_connection(id, lane, rest)? {
            return Ok(Step::Held);
        }
        let direct = self.direct_for(id, nothing, rest.locked);
        let Some(part) = self.next_part(id, nothing, direct.is_some()) else {
            return Ok(Step::Held);
        };
        // A failure before the driver has taken the operation changes nothing, so the next poll can
        // try again.
        self.see(id, lane, rest)?;
        let event = match self.events.pop() {
            Some(event) => event,
            None => Arc::new(Event::new(&self.context)?),
        };
        let staging = match self.staging_for(id, nothing || direct.is_some()) {
            Ok(staging) => staging,
            Err(NoStaging) => {
                self.events.push(event);
                return Ok(Step::Held);
            }
        };
        let head = if part.is_last { self.take_head(id) } else { self.advance_head(id, &part) };
        let Some(Queued { operation, task, .. }) = head else { return Ok(Step::Held) };
        let mut outcome =
            if self.cancelled.remove(&operation) { Outcome::Cancelled } else { Outcome::Complete };
        let kernel = match &task {
            Task::Work(Work::Launch(launch) | Work::LaunchOn { launch, .. }) if !nothing => {
                Some((launch.module, Arc::clone(&launch.kernel)))
            }
            _ => None,
        };
        let Some(target) = self.lanes.get(&lane).map(|lane| &lane.stream) else {
            return Ok(Step::Held);
        };
        if !nothing {
            let memory = (staging.as_ref(), direct.as_ref());
            match submit(target, task, &part, memory, &self.on_device, rest) {
                Ok(()) => {}
                Err(failure) if failure.is_sticky() => return Err(failure),
                Err(failure) => {
                    outcome = Outcome::Fault(Box::new(not_begun(kernel.as_ref(), &failure)))
                }
            }
        }
        let count = kernel.as_ref().and_then(|(module, name)| (rest.count_of)(*module, name));
        // Without a place, or a copy, the host reads the count itself.
        let count = count.and_then(|at| {
            let place = self.free_counts.pop()?;
            let copied = target.copy_to_host(&self.counts, place, at, COUNT_BYTES);
            if copied.is_err() {
                self.free_counts.push(place);
            }
            copied.ok().map(|()| place)
        });
        // The record fails if the kernel has failed by now. The kernel counts as on the device
        // nevertheless.
        let recorded = target.record(&event);
        self.on_device.insert(operation, Arc::clone(&event));
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.begin(Flight {
                operation,
                is_part: !part.is_last,
                calls: part.calls + usize::from(count.is_some()),
                event,
                outcome,
                kernel,
                staging,
                count,
                _registered: direct.map(|(registered, _)| registered),
            });
        }
        recorded.map(|()| Step::Gone)
    }

    fn take_head(&mut self, id: StreamId) -> Option<Queued> {
        let head = self.streams.get_mut(&id)?.queue.pop_front()?;
        self.queued.remove(&head.operation);
        Some(head)
    }

    /// Whether an operation waits for an event whose change wakes no thread.
    pub(crate) fn awaits_event(&self) -> bool {
        self.awaits_event
    }

    /// Whether an operation waits for such an event, or for a value.
    pub(crate) fn looks_for_values(&self) -> bool {
        let mut streams = self.active.iter().filter_map(|id| self.streams.get(id));
        self.awaits_event || streams.any(Logical::waits_for_value)
    }

    /// Whether an operation waits for a word in host memory.
    pub(crate) fn looks_at_host(&self) -> bool {
        self.active.iter().filter_map(|id| self.streams.get(id)).any(Logical::waits_for_host)
    }

    /// The kernels on the device, with their operations. One of them is guilty of the device's
    /// failure.
    pub(crate) fn suspects(&self) -> Vec<(OperationId, ModuleId, Arc<str>)> {
        let flights = self.streams.values().flat_map(|stream| stream.flight.iter());
        flights
            .filter_map(|flight| {
                let (module, kernel) = flight.kernel.clone()?;
                Some((flight.operation, module, kernel))
            })
            .collect()
    }
}

fn has_reached(rest: &mut Rest<'_>, address: u64, awaited: AwaitedWord) -> Result<bool, Failure> {
    let Some(place) = (rest.place_of)(address) else { return Ok(true) };
    let mut word = [0; 8];
    let is_seen = rest.signals.look(place, address, &mut word[..usize::from(awaited.width)])?;
    Ok(is_seen && awaited.holds(u64::from_le_bytes(word)))
}
