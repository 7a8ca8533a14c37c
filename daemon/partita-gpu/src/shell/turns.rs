//! When sessions are served, and how far the device may go before that.
//!
//! Where host time is charged for ([`crate::host_time`]), what programs do takes effect in one
//! total order: by device time, and of the same time by session. A session whose turn it is and
//! that has not called yet keeps all later ones waiting until it calls, waits for the device, or
//! its patience is over. What else comes from outside for a session, a prepared module or its
//! death, counts as a call of it. Elsewhere sessions are served as they come.
//!
//! A session that has [`MOST_OPERATIONS`] queued or in flight is *held*: its ring is not read
//! before some are done, and when that is full, its program waits, as CUDA's does. While one of its
//! streams stands at a gate it is not, for what opens the gate comes through the ring.

use super::{Attention, LINGER, RECORDS_PER_TURN, Seat, Shell, ShellError, Taken};
use crate::host_time::Pacer;
use partita_engine::{CloseReason, Engine};
use partita_model::{Nanos, SessionId};
use std::time::Instant;

/// What serving a session came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// It has nothing to say and need not be looked at before its bell rings.
    Asleep,
    /// It has nothing to say now.
    Quiet,
    /// It was heard, and may have more to say.
    More,
}

/// From so many operations on a session is held. Those of a session take some 10 MB then.
const MOST_OPERATIONS: usize = 1 << 14;

impl Seat {
    fn is_held(&self, engine: &Engine, id: SessionId) -> bool {
        engine.operations(id) >= MOST_OPERATIONS && !self.session.is_at_gate() && !self.died
    }

    /// Whether something of this session can take effect as soon as it may.
    fn has_news(&mut self) -> bool {
        self.died || !self.prepared.is_empty() || self.session.end().has_request()
    }

    /// How far the device may go for this session, which is not held; `None`: as far as it likes.
    fn bound(
        &mut self,
        pacer: &mut Pacer,
        device: Nanos,
        host: Instant,
        awaited: impl FnOnce() -> bool,
    ) -> Option<Nanos> {
        let waits = self.session.waits();
        if self.has_news() || waits && !pacer.may_call(&self.pace, device) {
            // It has called already, only not yet in device time.
            return Some(self.pace.next());
        }
        if waits { None } else { pacer.bound(&mut self.pace, host, self.session.loads(), awaited) }
    }
}

impl Shell {
    /// How far the device may go before some session has called.
    pub(super) fn bound(&mut self) -> Option<Nanos> {
        self.pacer.rules()?;
        let (pacer, engine, device, now) =
            (&mut self.pacer, &self.engine, self.device.now(), Instant::now());
        if pacer.gathers() {
            return Some(device);
        }
        let free = |(id, seat): &(&SessionId, &mut Seat)| !seat.is_held(engine, **id);
        let bound = |(id, seat): (&SessionId, &mut Seat)| {
            seat.bound(pacer, device, now, || engine.awaits_host(*id))
        };
        self.seats.iter_mut().filter(free).filter_map(bound).min()
    }

    /// Serves every session that is awake; whether one still is.
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
            let device = self.device.now();
            let Some(seat) = self.seats.get_mut(&id) else { continue };
            if seat.is_held(&self.engine, id) {
                continue;
            }
            let awaited = || self.engine.awaits_host(id);
            if seat
                .bound(&mut self.pacer, device, now, awaited)
                .is_some_and(|bound| bound <= device)
            {
                break;
            }
        }
        Ok(restless)
    }

    fn serve_as_they_come(&mut self) -> bool {
        let mut turn: Vec<SessionId> = self.seats.range(self.first..).map(|(id, _)| *id).collect();
        turn.extend(self.seats.range(..self.first).map(|(id, _)| *id));
        turn.retain(|id| {
            self.seats.get(id).is_some_and(|seat| seat.attention != Attention::Asleep)
        });
        if let Some(second) = turn.get(1) {
            self.first = *second;
        }
        let now = Instant::now();
        let mut restless = false;
        for id in turn {
            restless |= self.serve(id, now) != Served::Asleep;
        }
        restless
    }

    /// Serves one session.
    fn serve(&mut self, id: SessionId, now: Instant) -> Served {
        for _ in 0..RECORDS_PER_TURN {
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
                // What it wrote before it died is dropped with it: nobody waits for it.
                self.seats.remove(&id);
                tracing::info!(session = id.0, "session ended");
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

    /// Before nobody is looked at any more: sends those to sleep whose turn has not come, for they
    /// would ring no bell. Whether one of them, or one that was answered since its turn, has
    /// something to say.
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

    /// Lets a session that has nothing more to say go to sleep in time.
    fn rest(&mut self, id: SessionId, now: Instant) -> Served {
        let Some(seat) = self.seats.get_mut(&id) else { return Served::Asleep };
        match seat.attention {
            Attention::Awake(since) if now.duration_since(since) < LINGER => return Served::Quiet,
            Attention::Awake(_) => {}
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
