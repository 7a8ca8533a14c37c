//! The owner thread: one engine, one device, every session.
//!
//! [`Shell::run`] is a loop of turns. A turn takes what has come (questions of `partitad`, new
//! clients, records of sessions, prepared modules), carries out what the engine wants, and lets the
//! device advance for about a millisecond. When there is nothing of all that, the thread sleeps
//! until something is readable.
//!
//! # Invariants
//!
//! - Whatever a client does ends at most its own session, with one line in the log.
//! - Within a turn each session is served for a bounded number of records, and the turns begin with
//!   another session each, so none waits for another's flood.
//! - An idle session costs nothing: its bell sleeps, and it is not looked at until it rings or is
//!   answered.
//! - Nothing is decided here; what a request means is the engine's business.

use crate::calibration;
use crate::door::Door;
use crate::host_time::{Pace, Pacer};
use crate::pool::{Outcome, Pool};
use crate::prepare::Target;
use crate::session::{ClientSession, Taken};
use crate::store::Store;
use crate::systemd::Systemd;
use partita_device::{Activity, Device, DeviceError, Event, Horizon, Phase};
use partita_engine::{CloseReason, Engine, EngineConfig, Rests};
use partita_model::request::Secret;
use partita_model::{
    DeviceKind, GpuConfig, Measurements, Nanos, SessionId, TenantId, TermsRule, Timekeeping,
};
use partita_wire::BellState;
use partita_wire::supervise::ToGpu;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod actions;
mod admission;
mod closed;
mod learnt;
mod line;
mod memory;
mod questions;
mod turns;

pub use line::Grace;
use line::{Ending, Line};

/// The most records of one session in one turn.
const RECORDS_PER_TURN: usize = 256;

/// How long the owner polls a quiet session without a bell. A program that calls synchronously
/// returns within microseconds, and waking for it would cost more.
const LINGER: Duration = Duration::from_micros(50);

/// Approximate time for which the device advances before the sessions' next turn.
const DEVICE_TURN: Duration = Duration::from_millis(1);

/// The most polls of the device before the sessions' next turn, while each poll returns events.
const POLLS_PER_TURN: u32 = 64;

/// How long a busy owner works without checking its descriptors, because the check costs a system
/// call.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// How much host time the device runs before launches are judged by it.
const HOST_TIME_TICK: Duration = Duration::from_millis(100);

/// The most host time that counts of one poll. A stopped process does not run the device.
const LONGEST_POLL: Duration = Duration::from_millis(200);

/// Bounds of the budget that is adapted to `DEVICE_TURN`, in warp instructions.
const FEWEST_INSTRUCTIONS: u64 = 1 << 10;
const MOST_INSTRUCTIONS: u64 = 1 << 24;

/// How long one sleep lasts, in nanoseconds, while the device waits for a program, or a stream for
/// a word of host memory.
const HELD_NANOS: i64 = 100_000;
/// A pause that is no sleep: epoll sleeps for a millisecond at least.
const SOON: Nanos = Nanos(5_000);

/// The longest sleep for a timer, in nanoseconds. Years would not fit the system call.
const LONGEST_SLEEP_NANOS: u64 = 3_600_000_000_000;

/// Threads that prepare modules. One session has at most half of them, and one tenant all but one
/// ([`crate::pool`]).
const PREPARE_THREADS: usize = 4;

const CONTROL: u64 = 0;
const NEW_SESSIONS: u64 = 1;
const PREPARED: u64 = 2;
const DEVICE: u64 = 3;
const DOOR: u64 = 4;
const FIRST_SESSION: u64 = 16;

/// Why the data plane ended.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The device refused to serve as one.
    #[error("the device cannot be used: {0}")]
    Device(#[from] DeviceError),
    /// The device has lost everything.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The system refused a call.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ShellError {
    move |error| ShellError::System { what, source: error.into() }
}

/// The owner thread's attention to a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attention {
    /// Polled in every turn; the time of its last record.
    Awake(Instant),
    /// Polled after its bell rings.
    Asleep,
    /// Asleep, but answered since. An answer can make room for a waiting record.
    Answered,
}

/// How long the owner waits for events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The owner does not wait.
    None,
    /// For [`HELD_NANOS`], because the device waits for a program.
    Held,
    /// Until an event, or for this time until a timer of the engine.
    For(Nanos),
    /// Until an event.
    UntilNews,
}

struct Seat {
    tenant: TenantId,
    session: ClientSession,
    attention: Attention,
    pace: Pace,
    /// Modules that the engine has not received yet.
    prepared: VecDeque<Outcome>,
    /// Whether the session's client is gone.
    died: bool,
}

/// The owner thread's state.
pub struct Shell {
    device: Box<dyn Device>,
    engine: Engine,
    door: Door,
    /// The line to `partitad`, while there is one.
    line: Option<Line>,
    ending: Ending,
    systemd: Systemd,
    /// No session of this id or a greater one has been here.
    next_session: SessionId,
    /// The configuration in force.
    config: Option<GpuConfig>,
    pool: Pool,
    /// Measurements that survive a restart.
    store: Option<Arc<Store>>,
    /// The device's name as given.
    text: String,
    /// The device's measurements, once a policy has asked for them; `Some(None)` where measuring
    /// failed.
    measured: Option<Option<Measurements>>,
    memory_of_slowdowns: learnt::Memory,
    epoll: OwnedFd,
    seats: BTreeMap<SessionId, Seat>,
    /// The session that is served first in the next turn.
    first: SessionId,
    device_activity: Activity,
    instructions: u64,
    events: Vec<Event>,
    /// Orders that came while the device took no calls.
    deferred: VecDeque<ToGpu>,
    /// The last event that `partitad` knows, while the next one is to be announced.
    announce_after: Option<u64>,
    pacer: Pacer,
    memory: memory::MemoryWatch,
    /// Since when sessions hold the device's time up, at the last look.
    held_since: Option<Instant>,
    /// Host time for which the device ran, of which the engine has not been told.
    worked: Duration,
    /// The time of the last check of the descriptors.
    looked: Instant,
    /// Since when the engine's host time counts.
    begun: Instant,
}

impl Shell {
    /// Brings the data plane up. [`Shell::run`] serves, first the `partitad` of `line` (control and
    /// sessions), where it is given.
    ///
    /// # Errors
    /// [`ShellError`].
    pub fn new(
        mut device: Box<dyn Device>,
        text: &str,
        store: Option<Arc<Store>>,
        door: Door,
        line: Option<[OwnedFd; 2]>,
        (grace, systemd): (Grace, Systemd),
    ) -> Result<Shell, ShellError> {
        // A real GPU is measured before the first session.
        let measured = (device.facts().kind == DeviceKind::Cuda)
            .then(|| calibration::obtain(text, device.as_mut(), store.as_deref()));
        // The configuration says whether its policy wants profiles.
        let rests = match device.facts().timekeeping {
            Timekeeping::Off => Rests::ByHost,
            _ => Rests::ByDevice,
        };
        let config = EngineConfig { profiling: false, rests, ..EngineConfig::default() };
        let mut engine = Engine::new(config, device.as_mut())?;
        match engine.set_trace(device.as_mut(), true) {
            Ok(()) | Err(DeviceError::Unsupported(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let random = File::open("/dev/urandom").map_err(system("cannot open /dev/urandom"))?;
        engine.set_secrets(secrets(random));
        let (target, reader) = (Target::of(device.as_mut()), device.reading());
        let pool = Pool::start(PREPARE_THREADS, target, store.as_ref(), reader)
            .map_err(system("cannot start the preparing threads"))?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot create an epoll"))?;
        for (fd, token) in [(door.socket(), DOOR), (pool.news(), PREPARED)] {
            watch(&epoll, fd, token).map_err(system("cannot watch a socket"))?;
        }
        if let Some(news) = device.news() {
            watch(&epoll, news, DEVICE).map_err(system("cannot watch the device"))?;
        }
        let pacer = Pacer::new(device.host_time());
        let mut shell = Shell {
            pacer,
            memory: memory::MemoryWatch::new(),
            device,
            engine,
            door,
            line: None,
            ending: Ending::new(grace),
            systemd,
            next_session: SessionId(1),
            config: None,
            pool,
            store,
            text: text.to_owned(),
            measured,
            memory_of_slowdowns: learnt::Memory::default(),
            epoll,
            seats: BTreeMap::new(),
            first: SessionId(0),
            device_activity: Activity::Busy,
            instructions: FEWEST_INSTRUCTIONS,
            events: Vec::new(),
            deferred: VecDeque::new(),
            announce_after: None,
            held_since: None,
            worked: Duration::ZERO,
            looked: Instant::now(),
            begun: Instant::now(),
        };
        shell.set_unfenced(&[]);
        shell.set_terms_rules(&[], &[]);
        if let Some([control, sessions]) = line {
            shell.connect(control, sessions)?;
        }
        Ok(shell)
    }

    /// Serves until `partitad` orders the end, or until nobody needs the process any more.
    ///
    /// # Errors
    /// [`ShellError`].
    pub fn run(mut self) -> Result<(), ShellError> {
        while !self.ends() {
            self.systemd.turn();
            if self.device.phase() == Phase::Closed {
                self.wait_for_device()?;
                continue;
            }
            self.look_at_memory(Instant::now())?;
            self.tell_host_time();
            let restless = self.serve_sessions()?;
            self.carry_out()?;
            if self.device_activity != Activity::Idle || self.pacer.rules().is_some() {
                self.advance_device()?;
            }
            if self.device.phase() == Phase::Closed {
                continue;
            }
            let bound = self.bound();
            self.charge_holders(bound);
            self.announce();
            let pause = match (restless, self.device_activity, bound) {
                (true, ..) => Pause::None,
                (false, _, Some(bound)) if bound <= self.device.now() => Pause::Held,
                (false, Activity::Watching | Activity::Waiting, None) if self.is_tick_soon() => {
                    Pause::None
                }
                (false, Activity::Watching, None) => Pause::Held,
                (false, Activity::Busy, _) | (false, _, Some(_)) => Pause::None,
                (false, Activity::Waiting | Activity::Idle, None) if self.anybody_stirs() => {
                    Pause::None
                }
                (false, Activity::Waiting | Activity::Idle, None) => self.pause_until_news(),
            };
            self.wait(pause)?;
            self.carry_out()?;
        }
        self.keep_slowdowns(true);
        Ok(())
    }

    /// The daemon's own user shares the GPU with nobody that it did not start itself.
    fn set_unfenced(&mut self, tenants: &[Option<TenantId>]) {
        let own = TenantId(rustix::process::geteuid().as_raw());
        self.engine.set_unfenced(tenants.iter().copied().chain([Some(own)]));
    }

    /// The daemon's own user and root ask for what they like.
    fn set_terms_rules(&mut self, rules: &[TermsRule], askers: &[Option<TenantId>]) {
        let own = TenantId(rustix::process::geteuid().as_raw());
        let askers = askers.iter().copied().chain([Some(own), Some(TenantId(0))]);
        self.engine.set_terms_rules(self.device.as_mut(), rules, askers);
    }

    /// Whether the engine looks again sooner than the owner would wake up from a sleep, because SMs
    /// change hands. Only a device with news keeps time while the owner sleeps.
    fn is_tick_soon(&self) -> bool {
        let timer = self.device.news().and_then(|_| self.engine.next_timer());
        timer.is_some_and(|timer| timer.saturating_sub(self.device.now()) <= SOON)
    }

    /// Kernels that rest by the host's time end their rest without calls. On a device whose time
    /// advances by itself, the engine's timers expire without calls.
    fn pause_until_news(&self) -> Pause {
        if let Some(at) = self.engine.rest_ends() {
            return Pause::For(at.saturating_sub(self.host_now()));
        }
        let timer = self.device.news().and_then(|_| self.engine.next_timer());
        match timer {
            Some(timer) => Pause::For(timer.saturating_sub(self.device.now())),
            None => Pause::UntilNews,
        }
    }

    /// Sleeps if there is nothing else to do, and handles readable descriptors.
    fn wait(&mut self, pause: Pause) -> Result<(), ShellError> {
        if pause == Pause::None && self.pacer.rules().is_none() {
            let now = Instant::now();
            if now.duration_since(self.looked) < LOOK_EVERY {
                return Ok(());
            }
            self.looked = now;
        }
        let mut ready = Vec::with_capacity(64);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = match pause {
            Pause::For(Nanos(nanos)) => {
                self.device_activity = Activity::Busy;
                let duration = Duration::from_nanos(nanos.min(LONGEST_SLEEP_NANOS));
                let longest = self.longest_sleep().unwrap_or(duration);
                Timespec::try_from(duration.min(longest)).unwrap_or(at_once)
            }
            _ => at_once,
        };
        let longest =
            self.longest_sleep().map(|sleep| Timespec::try_from(sleep).unwrap_or(at_once));
        let timeout = match pause {
            Pause::None | Pause::Held => Some(&at_once),
            Pause::For(_) => Some(&timer),
            Pause::UntilNews => longest.as_ref(),
        };
        if pause == Pause::Held {
            self.nap()?;
        }
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("cannot wait")(error)),
        }
        for event in &ready {
            match event.data.u64() {
                CONTROL => self.read_control(),
                NEW_SESSIONS => self.receive_sessions(),
                DOOR => self.answer_callers()?,
                PREPARED => self.take_prepared(),
                DEVICE => self.device_activity = Activity::Busy,
                token => self.bell_rang(SessionId(token - FIRST_SESSION)),
            }
        }
        Ok(())
    }

    /// Sleeps until a descriptor is readable, at most [`HELD_NANOS`]. `epoll_wait` would round this
    /// up to a millisecond. A program that goes back to sleep without a call rings no bell.
    fn nap(&self) -> Result<(), ShellError> {
        let soon = Timespec { tv_sec: 0, tv_nsec: HELD_NANOS };
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&soon)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(system("cannot wait")(error)),
        }
    }

    fn take(&mut self, id: SessionId, taken: Taken) {
        self.device_activity = Activity::Busy;
        match taken {
            Taken::Request(sequence, request) => {
                self.engine.handle_request(self.device.as_mut(), id, sequence, request);
            }
            Taken::Settled => {}
        }
    }

    fn bell_rang(&mut self, id: SessionId) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        match seat.session.end().woken() {
            BellState::Alive => seat.attention = Attention::Awake(Instant::now()),
            BellState::Gone => {
                seat.attention = Attention::Awake(Instant::now());
                seat.died = true;
            }
        }
    }

    /// Ends a session that broke the protocol.
    fn end_session(&mut self, id: SessionId, reason: &dyn std::fmt::Display) {
        let tenant = self.seats.remove(&id).map(|seat| seat.tenant.0);
        tracing::warn!(session = id.0, tenant, "session ended, it broke the protocol: {reason}");
        self.close(id, CloseReason::Died);
    }

    fn close(&mut self, id: SessionId, reason: CloseReason) {
        self.device_activity = Activity::Busy;
        self.pool.forget(id);
        self.engine.close_session(self.device.as_mut(), id, reason);
    }

    fn advance_device(&mut self) -> Result<(), ShellError> {
        let start = Instant::now();
        let bound = self.bound();
        let mut any = self.poll_device(self.horizon(bound))?;
        let mut now = Instant::now();
        self.adapt(now - start);
        if self.pacer.rules().is_some() {
            return self.settle();
        }
        // Short launches end one by one.
        for _ in 1..POLLS_PER_TURN {
            if !any || now - start > DEVICE_TURN / 8 {
                break;
            }
            any = self.poll_device(self.horizon(None))?;
            now = Instant::now();
        }
        Ok(())
    }

    /// How far the device may go: to the sessions' bound, and no further than the engine's timer.
    fn horizon(&self, bound: Option<Nanos>) -> Option<Nanos> {
        let timed = bound.is_some() || self.time_passes();
        let timer = self.engine.next_timer().filter(|_| timed);
        timer.into_iter().chain(bound).min()
    }

    /// Completes all effects at the present device time, so that the next call sees them, however
    /// soon it comes.
    fn settle(&mut self) -> Result<(), ShellError> {
        while self.poll_device(Some(self.device.now()))? {}
        Ok(())
    }

    /// Lets the device advance and the engine handle the events. False where there were none.
    fn poll_device(&mut self, until: Option<Nanos>) -> Result<bool, ShellError> {
        let horizon = Horizon { until, warp_instructions: self.instructions };
        let start = Instant::now();
        self.device_activity = self.device.poll(horizon, &mut self.events);
        self.worked += start.elapsed().min(LONGEST_POLL);
        let mut any = !self.events.is_empty();
        for event in self.events.drain(..) {
            self.engine.handle_event(self.device.as_mut(), event);
            // The engine may have enqueued new work.
            self.device_activity = Activity::Busy;
        }
        if self.device.phase() == Phase::Closed {
            return Ok(false);
        }
        if self.worked >= HOST_TIME_TICK {
            let spent = std::mem::take(&mut self.worked).as_nanos();
            let spent = Nanos(u64::try_from(spent).unwrap_or(u64::MAX));
            self.engine.device_worked(self.device.as_mut(), spent);
        }
        if self.engine.next_timer().is_some_and(|timer| timer <= self.device.now()) {
            self.engine.handle_timer(self.device.as_mut());
            self.device_activity = Activity::Busy;
            any = true;
        }
        self.carry_out()?;
        Ok(any)
    }

    /// Adapts the budget of the next advance.
    fn adapt(&mut self, took: Duration) {
        if took > DEVICE_TURN {
            self.instructions = (self.instructions / 2).max(FEWEST_INSTRUCTIONS);
        } else if took < DEVICE_TURN / 4 {
            self.instructions = (self.instructions * 2).min(MOST_INSTRUCTIONS);
        }
    }
}

/// Secrets from a file of random bytes.
fn secrets(mut random: File) -> impl FnMut() -> Secret + Send {
    move || {
        let mut bytes = [0; 16];
        random.read_exact(&mut bytes).expect("the kernel gives random bytes at any time");
        Secret(u128::from_le_bytes(bytes))
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, token: u64) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}
