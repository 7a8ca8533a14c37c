//! Decides when sessions are served, and how far the device may go before that.
//!
//! Where host time is charged for ([`crate::host_time`]), programs' calls take effect in one total
//! order: by device time, and at the same time by session. A session whose turn it is and that has
//! not called yet keeps all later sessions waiting until it calls, waits for the device, or exceeds
//! its patience. Other events of a session (a prepared module, its death) count as calls of it.
//! Elsewhere sessions are served as they come.
//!
//! A session with [`MOST_OPERATIONS`] queued or in flight is *held*: its ring is not read before
//! some are done. So is a session of which [`MOST_STREAMS`] streams wait for room on the device.
//! When the ring is full, the program waits, as in CUDA. A session is not held while one of its
//! streams stands at a gate, because the record that opens the gate comes through the ring.

use super::{Activity, Attention, LINGER, RECORDS_PER_TURN, Seat, Shell, ShellError, Taken};
use crate::host_time::{Moment, Pacer};
use partita_engine::{CloseReason, Engine};
use partita_model::{Nanos, SessionId, TenantId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The outcome of serving a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// The session has no record, and needs no look before its bell rings.
    Asleep,
    /// The session has no record now.
    Quiet,
    /// The session was served, and may have more records.
    More,
}

/// Approximate time for which one session is served before the next one's turn, and after how many
/// records the clock is read.
const SESSION_TURN: Duration = Duration::from_micros(250);
const LOOK_AFTER: usize = 8;

/// How long a question of `partitad` may wait, beside the turn of one session: the turns of a crowd
/// take tens of milliseconds.
const QUESTIONS_EVERY: Duration = Duration::from_micros(250);

/// A session with this many operations is held. Its operations then take about 10 MB.
const MOST_OPERATIONS: usize = 1 << 14;
/// A session with this many streams that wait for room is held. The engine looks at each of them
/// when an operation ends. No GPU runs more grids at once (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability"). A smaller number would make a program's queries wait.
const MOST_STREAMS: usize = 128;

impl Seat {
    fn is_held(&self, engine: &Engine, id: SessionId) -> bool {
        let is_full =
            engine.operations(id) >= MOST_OPERATIONS || engine.queued_streams(id) >= MOST_STREAMS;
        let is_full = is_full && !self.session.is_at_gate();
        (is_full || engine.holds_module(id)) && !self.died
    }

    /// Whether the session has something that can take effect at its turn.
    fn has_news(&mut self) -> bool {
        self.died || !self.prepared.is_empty() || self.session.end().has_request()
    }

    /// The latest device time before the next call of this session, which is not held. `None` sets
    /// no bound.
    fn bound(
        &mut self,
        pacer: &mut Pacer,
        moment: Moment,
        awaited: impl FnOnce() -> bool,
    ) -> Option<Nanos> {
        let waits = self.session.waits();
        if self.has_news() || waits && !pacer.may_call(&self.pace, moment.device) {
            // The session has called already, and the call takes effect at this device time.
            return Some(self.pace.next());
        }
        if waits {
            None
        } else {
            pacer.bound(&mut self.pace, moment, self.session.loads(), awaited)
        }
    }
}

impl Shell {
    /// The latest device time before the next call of any session.
    pub(super) fn bound(&mut self) -> Option<Nanos> {
        self.pacer.rules()?;
        let moment = self.moment(Instant::now());
        let (pacer, engine) = (&mut self.pacer, &self.engine);
        if pacer.gathers() {
            return Some(moment.device);
        }
        let free = |(id, seat): &(&SessionId, &mut Seat)| !seat.is_held(engine, **id);
        let bound = |(id, seat): (&SessionId, &mut Seat)| {
            seat.bound(pacer, moment, || engine.awaits_host(*id))
        };
        self.seats.iter_mut().filter(free).filter_map(bound).min()
    }

    /// Charges the sessions that hold the device's time up for what has passed since the last look,
    /// while others wait for the device.
    pub(super) fn charge_holders(&mut self, bound: Option<Nanos>) {
        let device = self.device.now();
        let is_held = bound.is_some_and(|bound| bound <= device) && !self.pacer.gathers();
        let now = Instant::now();
        let since = std::mem::replace(&mut self.held_since, is_held.then_some(now));
        let Some(since) = since.filter(|_| is_held) else { return };
        // Others wait for the device, or have called, and their turn comes later.
        let time_passes = self.time_passes();
        let held_up: BTreeSet<TenantId> = self
            .seats
            .values_mut()
            .filter_map(|seat| {
                let is_held_up = seat.has_news() || time_passes && seat.session.waits();
                is_held_up.then_some(seat.tenant)
            })
            .collect();
        if held_up.is_empty() {
            return;
        }
        let spent = now.saturating_duration_since(since);
        let mut holders = BTreeSet::new();
        for (id, seat) in &mut self.seats {
            let holds = seat.pace.next() <= device && !seat.session.waits() && !seat.has_news();
            if !holds || seat.is_held(&self.engine, *id) {
                continue;
            }
            holders.insert(seat.tenant);
            if let Some(budget) = self.pacer.holds_up(&mut seat.pace, now, spent) {
                tracing::warn!(
                    session = id.0,
                    tenant = seat.tenant.0,
                    "the program has held up the emulated time of others for {} s: the device no \
                     longer waits for its calls; `budget=MILLISECONDS` of the device is the limit",
                    budget.as_secs_f64()
                );
            }
        }
        for tenant in holders {
            if held_up.iter().all(|held_up| *held_up == tenant) {
                continue;
            }
            if let Some(budget) = self.pacer.user_holds_up(tenant, now, spent) {
                tracing::warn!(
                    tenant = tenant.0,
                    "the programs of the user have held up the emulated time of other users for \
                     {} s: the device no longer waits for their calls; `budget=MILLISECONDS` of \
                     the device is the limit",
                    budget.as_secs_f64()
                );
            }
        }
    }

    fn moment(&self, host: Instant) -> Moment {
        Moment { device: self.device.now(), host, time_passes: self.time_passes() }
    }

    /// Kernels that have rested enough by the host's time may go.
    pub(super) fn tell_host_time(&mut self) {
        let now = self.host_now();
        if self.engine.rest_ends().is_some_and(|at| at <= now) {
            self.device_activity = Activity::Busy;
        }
        self.engine.host_time_is(self.device.as_mut(), now);
    }

    pub(super) fn host_now(&self) -> Nanos {
        Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether time goes on where no session bounds it. The clock of a device at rest stands still,
    /// whatever timers the engine has, unless a timer can let work go on.
    pub(super) fn time_passes(&self) -> bool {
        !self.device.is_at_rest() || self.engine.awaits_timer()
    }

    /// Serves every session that is awake. Returns whether one is still awake.
    pub(super) fn serve_sessions(&mut self) -> Result<bool, ShellError> {
        if self.pacer.rules().is_some() {
            self.serve_in_order()
        } else {
            Ok(self.serve_as_they_come())
        }
    }

    fn serve_in_order(&mut self) -> Result<bool, ShellError> {
        if self.pacer.gathers() {
            return Ok(false);
        }
        let mut turn: Vec<(Nanos, SessionId)> =
            self.seats.iter().map(|(id, seat)| (seat.pace.next(), *id)).collect();
        turn.sort_unstable();
        let now = Instant::now();
        let mut restless = false;
        for (next, id) in turn {
            if next > self.device.now() {
                break;
            }
            let served = self.serve(id, now);
            restless |= served != Served::Asleep;
            if served == Served::More {
                self.carry_out()?;
                self.settle()?;
            }
            let moment = self.moment(now);
            let Some(seat) = self.seats.get_mut(&id) else { continue };
            if seat.is_held(&self.engine, id) {
                continue;
            }
            let awaited = || self.engine.awaits_host(id);
            let bound = seat.bound(&mut self.pacer, moment, awaited);
            if bound.is_some_and(|bound| bound <= moment.device) {
                break;
            }
        }
        Ok(restless)
    }

    fn serve_as_they_come(&mut self) -> bool {
        // Most sessions of a crowd sleep.
        let seats = self.seats.range(self.first..).chain(self.seats.range(..self.first));
        let awake = seats.filter(|(_, seat)| seat.attention != Attention::Asleep);
        let turn: Vec<SessionId> = awake.map(|(id, _)| *id).collect();
        if let Some(second) = turn.get(1) {
            self.first = *second;
        }
        let now = Instant::now();
        let (mut restless, mut looked) = (false, now);
        for id in turn {
            restless |= self.serve(id, now) != Served::Asleep;
            if looked.elapsed() >= QUESTIONS_EVERY {
                looked = Instant::now();
                self.read_control();
            }
        }
        restless
    }

    /// Serves one session, up to a number of records and for a time: some records cost a thousand
    /// times as much as others.
    fn serve(&mut self, id: SessionId, now: Instant) -> Served {
        let begun = Instant::now();
        for record in 1..=RECORDS_PER_TURN {
            if record % LOOK_AFTER == 0 && begun.elapsed() > SESSION_TURN {
                return Served::More;
            }
            let Some(seat) = self.seats.get_mut(&id) else { return Served::Asleep };
            if seat.is_held(&self.engine, id) {
                return Served::Quiet;
            }
            if !self.pacer.may_call(&seat.pace, self.device.now()) {
                return Served::More;
            }
            if let Some(outcome) = seat.prepared.pop_front() {
                self.module_prepared(outcome);
                return Served::More;
            }
            if seat.died {
                // Records that the client wrote before it died are dropped, because no client waits
                // for them.
                let tenant = seat.tenant;
                self.seats.remove(&id);
                tracing::info!(session = id.0, tenant = tenant.0, "session ended");
                self.close(id, CloseReason::Died);
                return Served::More;
            }
            match seat.session.poll() {
                Ok(Some(taken)) => {
                    if matches!(taken, Taken::Request(..)) {
                        self.pacer.goes_on(&mut seat.pace, self.device.now(), now);
                    }
                    if !matches!(seat.attention, Attention::Awake(since) if since == now) {
                        seat.attention = Attention::Awake(now);
                    }
                    self.take(id, taken);
                }
                Ok(None) => return self.rest(id, now),
                Err(breach) => {
                    self.end_session(id, &breach);
                    return Served::Asleep;
                }
            }
        }
        Served::More
    }

    /// Puts sessions to sleep before the loop stops polling. Sessions whose turn has not come would
    /// otherwise ring no bell. Returns whether a session that fell asleep, or was answered since
    /// its turn, has a record.
    pub(super) fn anybody_stirs(&mut self) -> bool {
        let now = Instant::now();
        let awake: Vec<SessionId> = self
            .seats
            .iter()
            .filter(|(_, seat)| seat.attention != Attention::Asleep)
            .map(|(id, _)| *id)
            .collect();
        awake.into_iter().any(|id| {
            self.seats.get_mut(&id).is_some_and(Seat::has_news)
                || self.rest(id, now) != Served::Asleep
        })
    }

    /// Puts a session without records to sleep after a while.
    fn rest(&mut self, id: SessionId, now: Instant) -> Served {
        let Some(seat) = self.seats.get_mut(&id) else { return Served::Asleep };
        match seat.attention {
            Attention::Awake(since) if now.duration_since(since) < LINGER => return Served::Quiet,
            Attention::Awake(_) => {}
            // An answer that the ring has no room for goes on when the client has read, and tells.
            Attention::Answered if seat.session.end().is_blocked() => {}
            Attention::Answered | Attention::Asleep => {
                seat.attention = Attention::Asleep;
                return Served::Asleep;
            }
        }
        match seat.session.end().prepare_to_sleep() {
            Ok(true) => {
                seat.attention = Attention::Asleep;
                Served::Asleep
            }
            Ok(false) => Served::More,
            Err(violation) => {
                self.end_session(id, &violation);
                Served::Asleep
            }
        }
    }
}
