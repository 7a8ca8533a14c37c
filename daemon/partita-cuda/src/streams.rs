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
//! lane only while [`RESERVED`] lanes are free. Otherwise it waits here and holds no lane. Some
//! lanes therefore always carry work that ends by itself.

use crate::clock::Clock;
use crate::code::Loaded;
use crate::device::Placed;
use crate::driver::{Context, Event, Failure, Green, Pinned, Place, Registered, Stream};
use crate::locked::Locked;
use crate::news::{News, Waiter};
use crate::signals::Signals;
use crate::submission::{not_begun, submit};
use crate::tasks::{self, Task};
use crate::zeros::Mark;
use partita_device::{DeviceError, Outcome, Work};
use partita_model::{AwaitedWord, ModuleId, Nanos, OperationId, SmSet, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// The driver's streams that carry work. Signals, upkeep and loading have three more, 32 in total.
pub(crate) const LANES: usize = 29;
/// Lanes that streams with waits for other streams may not take.
const RESERVED: usize = 8;
/// Operations that a stream may submit while others wait for a lane.
const TURN: u32 = 64;
/// The most operations of one stream on the device.
const DEPTH: usize = 512;

/// The most rounds of searching for ended operations. Only work that ends faster than the search
/// needs more.
const MOST_ROUNDS: u32 = 64;

/// The most awaited values that one round reads.
const LOOKS: usize = 4;

/// Bytes of a small staging buffer, and the number of these buffers.
const SMALL: (usize, usize) = (64 << 10, 64);
/// Bytes of a large staging buffer, and the number of these buffers. Larger copies go through in
/// pieces.
const LARGE: (usize, usize) = (4 << 20, 8);

struct Lane {
    stream: Stream,
    waiter: Waiter,
    /// The SMs of the lane's green context; empty for the primary context.
    on: SmSet,
}

/// A green context, and its free lanes.
struct GreenLanes {
    green: Green,
    lanes: Vec<usize>,
    free: Vec<usize>,
    /// The turn in which the context was last used.
    used: u64,
}

/// An operation that awaits submission to the device.
struct Queued {
    operation: OperationId,
    task: Task,
}

/// An operation on the device.
struct Flight {
    operation: OperationId,
    event: Arc<Event>,
    /// The outcome, unless the device reports another.
    outcome: Outcome,
    kernel: Option<(ModuleId, Arc<str>)>,
    staging: Option<Arc<Pinned>>,
    /// A session's page-locked memory that the operation copies from or to.
    _registered: Option<Arc<Registered>>,
}

#[derive(Default)]
struct Logical {
    queue: VecDeque<Queued>,
    flight: VecDeque<Flight>,
    lane: Option<usize>,
    /// Operations submitted since the stream got its lane.
    submitted: u32,
    /// The last barriers of signals and of zeros that the stream has waited for.
    seen: [u64; 2],
    destroyed: bool,
}

impl Logical {
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
    pub(crate) signals: &'a mut dyn Signals,
    /// Host memory that is page-locked.
    pub(crate) locked: &'a mut Locked,
    /// Finds the event after which the memory of an operation is zero, and its number.
    pub(crate) zeroed: &'a dyn Fn(&Task) -> Option<Mark>,
    /// Whether the device is to become idle: only grids of running launches go on.
    pub(crate) drains: bool,
    pub(crate) now: Nanos,
    /// Finds the place of an awaited word.
    pub(crate) place_of: &'a dyn Fn(u64) -> Option<Place>,
}

/// An operation that has ended.
pub(crate) struct Ended {
    pub(crate) operation: OperationId,
    pub(crate) time: Nanos,
    pub(crate) outcome: Outcome,
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
            lookers: BTreeSet::new(),
            last_looker: None,
        })
    }

    /// Whether a green context with these SMs exists.
    pub(crate) fn has_context(&self, sms: &SmSet) -> bool {
        self.contexts.contains_key(sms)
    }

    /// The number of green contexts.
    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Takes a green context's streams as lanes.
    pub(crate) fn add_context(
        &mut self,
        sms: SmSet,
        mut green: Green,
        news: &Arc<News>,
    ) -> io::Result<()> {
        let mut lanes = Vec::new();
        for stream in std::mem::take(&mut green.streams) {
            let waiter = Waiter::start(&self.context, news)?;
            self.lanes.insert(self.next_lane, Lane { stream, waiter, on: sms });
            lanes.push(self.next_lane);
            self.next_lane += 1;
        }
        self.turns += 1;
        self.contexts
            .insert(sms, GreenLanes { green, free: lanes.clone(), lanes, used: self.turns });
        Ok(())
    }

    /// Removes the least recently used green context, among those without operations or waiting
    /// streams.
    pub(crate) fn take_idle_context(&mut self) -> Option<Green> {
        let wanted: BTreeSet<SmSet> = self
            .streams
            .values()
            .flat_map(|stream| &stream.queue)
            .filter_map(|queued| match &queued.task {
                Task::Work(Work::LaunchOn { sms, .. }) => Some(*sms),
                _ => None,
            })
            .collect();
        let idle = self
            .contexts
            .iter()
            .filter(|(sms, lanes)| lanes.free.len() == lanes.lanes.len() && !wanted.contains(sms));
        let sms = *idle.min_by_key(|(_, lanes)| lanes.used)?.0;
        let GreenLanes { mut green, lanes, .. } = self.contexts.remove(&sms)?;
        let lanes = lanes.into_iter().filter_map(|lane| self.lanes.remove(&lane));
        green.streams.extend(lanes.map(|lane| lane.stream));
        Some(green)
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
        stream.queue.push_back(Queued { operation, task });
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

    /// Submits all operations that the device can take.
    pub(crate) fn submit(
        &mut self,
        rest: &mut Rest<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        self.choose_lookers();
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
            if stream.flight.len() >= DEPTH || (spent && !stream.flight.is_empty()) {
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

    /// Releases the lane of a stream that has nothing on the device.
    fn release_lane(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.flight.is_empty()
            && let Some(lane) = stream.lane.take()
        {
            stream.submitted = 0;
            match self.lanes.get(&lane).and_then(|lane| self.contexts.get_mut(&lane.on)) {
                Some(context) => context.free.push(lane),
                None => self.free.push(lane),
            }
        }
    }

    /// Whether the stream's lane, if any, suits its next operation. A grid that is kept to SMs
    /// needs their context; other grids and waits for other streams need the primary context. Other
    /// operations run in either. A stream changes lanes only when all its operations on the device
    /// have ended. So nothing in a green context ever waits for another stream.
    fn moves(&mut self, id: StreamId) -> Step {
        let Some(stream) = self.streams.get(&id) else { return Step::Held };
        let Some(lane) = stream.lane.and_then(|lane| self.lanes.get(&lane)) else {
            return Step::Gone;
        };
        let stays = match stream.queue.front().map(|head| &head.task) {
            Some(Task::Work(Work::LaunchOn { sms, .. })) => lane.on == *sms,
            Some(Task::Work(Work::Launch(_) | Work::Wait { .. } | Work::WaitValue { .. })) => {
                lane.on.is_empty()
            }
            _ => true,
        };
        if stays {
            return Step::Gone;
        }
        if !stream.flight.is_empty() {
            return Step::Held;
        }
        self.release_lane(id);
        Step::Gone
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
            ended.push(Ended { operation: head.operation, time: rest.now, outcome });
            return Ok(Step::Gone);
        }
        if rest.drains && !goes_on {
            return Ok(Step::Held);
        }
        let Some(lane) = self.lane_of(id) else { return Ok(Step::Held) };
        // A failure before the driver has taken the operation changes nothing, so the next poll can
        // try again.
        self.see(id, lane, rest)?;
        let event = match self.events.pop() {
            Some(event) => event,
            None => Arc::new(Event::new(&self.context)?),
        };
        let direct = self.direct_for(id, nothing, rest.locked);
        let staging = match self.staging_for(id, nothing || direct.is_some()) {
            Ok(staging) => staging,
            Err(NoStaging) => {
                self.events.push(event);
                return Ok(Step::Held);
            }
        };
        let Some(Queued { operation, task }) = self.take_head(id) else { return Ok(Step::Held) };
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
            match submit(target, task, staging.as_ref(), direct.as_ref(), &self.on_device, rest) {
                Ok(()) => {}
                Err(failure) if failure.is_sticky() => return Err(failure),
                Err(failure) => {
                    outcome = Outcome::Fault(Box::new(not_begun(kernel.as_ref(), &failure)))
                }
            }
        }
        // The record fails if the kernel has failed by now. The kernel counts as on the device
        // nevertheless.
        let recorded = target.record(&event);
        self.on_device.insert(operation, Arc::clone(&event));
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.submitted = stream.submitted.saturating_add(1);
            stream.flight.push_back(Flight {
                operation,
                event,
                outcome,
                kernel,
                staging,
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

    /// The stream's lane. A stream without a lane joins the queue for one.
    fn lane_of(&mut self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get_mut(&id)?;
        if stream.lane.is_none() {
            stream.lane = match stream.queue.front().map(|head| &head.task) {
                Some(Task::Work(Work::LaunchOn { sms, .. })) => {
                    self.contexts.get_mut(sms).and_then(|context| {
                        self.turns += 1;
                        context.used = self.turns;
                        context.free.pop()
                    })
                }
                _ => self.free.pop(),
            };
            stream.submitted = 0;
            // The lane's last owner may have been another stream, so this stream's earlier waits do
            // not count.
            stream.seen = [0; 2];
        }
        if stream.lane.is_none() && !self.starving.contains(&id) {
            self.starving.push_back(id);
        }
        stream.lane
    }

    /// Makes the lane wait for earlier pokes and zeroing.
    fn see(&mut self, id: StreamId, lane: usize, rest: &mut Rest<'_>) -> Result<(), Failure> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let zeroed = stream.queue.front().and_then(|head| (rest.zeroed)(&head.task));
        let barriers = [rest.signals.barrier()?, zeroed];
        for (seen, barrier) in stream.seen.iter_mut().zip(barriers) {
            if let Some((number, event)) = barrier
                && number > *seen
            {
                self.lanes.get(&lane).map_or(Ok(()), |lane| lane.stream.wait_event(&event))?;
                *seen = number;
            }
        }
        Ok(())
    }

    /// The page-locked memory of the stream's next copy, if the copy has any.
    fn direct_for(
        &self,
        id: StreamId,
        nothing: bool,
        locked: &mut Locked,
    ) -> Option<(Arc<Registered>, u64)> {
        let head = self.streams.get(&id)?.queue.front().filter(|_| !nothing)?;
        locked.find(head.task.direct()?)
    }

    fn staging_for(
        &mut self,
        id: StreamId,
        nothing: bool,
    ) -> Result<Option<Arc<Pinned>>, NoStaging> {
        let head = self.streams.get(&id).and_then(|stream| stream.queue.front());
        let staged = head.filter(|_| !nothing).and_then(|head| head.task.staged());
        let Some(bytes) = staged else { return Ok(None) };
        let pool = if bytes <= SMALL.0 as u64 { &mut self.small } else { &mut self.large };
        pool.pop().map(Some).ok_or(NoStaging)
    }

    /// Takes all operations that have ended. Repeats until a round finds none, so that whatever
    /// ended before a taken operation is taken too. After a sticky error the state of operations on
    /// the device is unknown.
    pub(crate) fn take_ended(
        &mut self,
        clock: &Clock,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        for _ in 0..MOST_ROUNDS {
            let before = ended.len();
            self.look_around(clock, ended)?;
            if ended.len() == before {
                break;
            }
        }
        Ok(())
    }

    fn look_around(&mut self, clock: &Clock, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        let ids: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| !stream.flight.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            while let Some(flight) = self.streams.get(&id).and_then(|stream| stream.flight.front())
            {
                if !flight.event.is_reached()? {
                    break;
                }
                let Some(flight) =
                    self.streams.get_mut(&id).and_then(|stream| stream.flight.pop_front())
                else {
                    break;
                };
                let time = clock.time_of(&flight.event);
                self.on_device.remove(&flight.operation);
                if let Some(staging) = flight.staging {
                    let small = staging.bytes() <= SMALL.0;
                    if small { self.small.push(staging) } else { self.large.push(staging) }
                }
                // A waiting thread may still hold the event.
                if Arc::strong_count(&flight.event) == 1 {
                    self.events.push(flight.event);
                }
                ended.push(Ended { operation: flight.operation, time, outcome: flight.outcome });
            }
            self.release_lane(id);
            self.drop_if_done(id);
        }
        Ok(())
    }

    /// Makes threads wait for the next event of each lane.
    pub(crate) fn arm(&self) {
        for stream in self.streams.values() {
            let lane = stream.lane.and_then(|lane| self.lanes.get(&lane));
            if let (Some(lane), Some(flight)) = (lane, stream.flight.front()) {
                lane.waiter.arm(&flight.event);
            }
        }
    }

    /// Whether an operation waits for a value, whose change wakes no thread.
    pub(crate) fn looks_for_values(&self) -> bool {
        self.active.iter().filter_map(|id| self.streams.get(id)).any(Logical::waits_for_value)
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

struct NoStaging;

fn has_reached(rest: &mut Rest<'_>, address: u64, awaited: AwaitedWord) -> Result<bool, Failure> {
    let Some(place) = (rest.place_of)(address) else { return Ok(true) };
    let mut word = [0; 8];
    rest.signals.peek(place, address, &mut word[..usize::from(awaited.width)])?;
    Ok(awaited.holds(u64::from_le_bytes(word)))
}
