//! Helper grids and waves: further CTAs of a running launch, on side streams of its session.
//!
//! A helper grid lasts as long as its workers do, which may be as long as the launch, and a real
//! driver serves few streams well. So each helper grid of a launch has a number, which its workers
//! know by the pointer that they are given; when few side streams are left, the oldest helper grid
//! of the session is *retired*: its workers leave at the next task border, and one grid brings
//! whoever is missing then. And the fewer are left, the longer a launch waits from one helper grid
//! to the next.

use crate::control_block::signal_retired;
use crate::engine::earliest;
use crate::ledger::Usage;
use crate::state::{Launch, LaunchForm, Operation, Session, Then};
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::control::{HELPERS, MAIN_GRID};
use partita_model::{
    DeviceAddress, LaunchId, Nanos, OperationId, SessionId, SmId, SmSet, StreamId,
};
use std::collections::BTreeSet;

/// Side streams of one session.
const MAX_SIDE_STREAMS: usize = 16;
/// So many of them are kept free where nothing moves, and so many at the least.
const SPARE: usize = 12;
const LEAST_SPARE: usize = 8;
/// The wait between waves doubles at most so often.
const MAX_BACKOFF: u32 = 6;

/// A helper grid, or a wave of tickets, in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Helper {
    /// The side stream that it has to itself.
    stream: StreamId,
    /// By which its workers find their bit in the control block. All waves have the first.
    number: u32,
}

impl Engine {
    /// Sends a helper grid, or a wave. `false`: none was tried, because no side stream is free, or
    /// because it shall bring workers for more SMs. One that the device has refused counts as sent:
    /// the next waits as long as for one without effect.
    pub(crate) fn send_helper(
        &mut self,
        device: &mut dyn Device,
        id: LaunchId,
        ctas: u32,
        now: Nanos,
    ) -> bool {
        let Some(session) = self.launches.get(&id).map(|launch| launch.session) else {
            return false;
        };
        self.keep_streams_free(device, session, LEAST_SPARE, now);
        if self.is_too_soon(id, now) {
            return false;
        }
        let Some(number) = self.free_number(id) else { return false };
        let Some(stream) = self.side_stream(device, session) else { return false };
        let operation = OperationId(self.next_id());
        let Some(launch) = self.launches.get(&id) else { return false };
        let Some(worker) = &launch.worker else { return false };
        let pointer = DeviceAddress(worker.block.0 | u64::from(number));
        let work = self.worker_grid(launch, ctas, pointer);
        let accepted = device.enqueue(stream, operation, work);
        let pause = self.config.unsettled_tick;
        let Some(launch) = self.launches.get_mut(&id) else { return false };
        if let Some(worker) = &mut launch.worker {
            worker.helper_sent = now;
            worker.attempts += 1;
            worker.next_wave = now + Nanos(pause.0 << worker.attempts.min(MAX_BACKOFF));
        }
        if let Err(error) = accepted {
            self.log(
                LogLevel::Error,
                Some(session),
                format!("a helper grid of {id} was refused: {error}"),
            );
            return true;
        }
        launch.helpers.insert(operation, Helper { stream, number });
        let then = Then::Helper(id);
        self.operations.insert(
            operation,
            Box::new(Operation { session, stream, after: Vec::new(), queued: None, then }),
        );
        if let Some(session) = self.sessions.get_mut(&session) {
            session.operations += 1;
            session.idle_side_streams.remove(&stream);
        }
        true
    }

    pub(crate) fn helper_grid_done(
        &mut self,
        device: &mut dyn Device,
        id: LaunchId,
        helper: OperationId,
    ) {
        let now = device.now();
        let Some(launch) = self.launches.get_mut(&id) else { return };
        let Some(helper) = launch.helpers.remove(&helper) else { return };
        let (session, is_ticket) = (launch.session, launch.spec.form() == LaunchForm::Ticket);
        let mut failed = None;
        if let Some(worker) = &mut launch.worker {
            if is_ticket && !launch.main_done {
                // Its places are free.
                worker.next_wave = now;
                self.tick_at = earliest(self.tick_at, now);
            }
            if worker.retired & 1 << helper.number != 0 {
                worker.retired &= !(1 << helper.number);
                failed = signal_retired(device, worker.block, worker.retired).err();
            }
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.idle_side_streams.insert(helper.stream);
        }
        if let Some(error) = failed {
            self.log(
                LogLevel::Error,
                Some(session),
                format!("{id} was not told its helpers: {error}"),
            );
        }
    }

    /// CTAs that may start on foreign SMs while every SM is given up to `rounds` of them: in places
    /// where nobody is at present. Fewer than the ledger knows, because workers stay for a while
    /// where it has struck them out; and more, because others may be missing there, too. A grid
    /// with too few CTAs leaves an SM without workers until the next; one with too many has CTAs
    /// left that start, and leave, wherever somebody makes room for another application.
    pub(crate) fn vacant(&self, own: &SmSet, cta: Usage, rounds: u16) -> u64 {
        let running: Vec<_> = self.front.iter().filter_map(|id| self.launches.get(id)).collect();
        let free = |sm: SmId| {
            let taken = running.iter().filter_map(|launch| {
                let live = launch.worker.as_ref()?.seen.live.get(usize::from(sm.0))?;
                Some((launch.spec.cta, *live))
            });
            u64::from(self.ledger.room_among(taken, cta).min(rounds))
        };
        SmSet::range(0, self.facts.sm_count).difference(own).iter().map(free).sum()
    }

    /// Whether the next helper grid of a launch waits, so that it brings workers for more SMs: the
    /// fewer side streams are free the longer, because SMs that come one after the other would take
    /// them all.
    fn is_too_soon(&self, id: LaunchId, now: Nanos) -> bool {
        let launch =
            self.launches.get(&id).filter(|launch| launch.spec.form() == LaunchForm::Worker);
        let of_session = |launch: &Launch| self.sessions.get(&launch.session);
        let Some((launch, session)) = launch.and_then(|l| Some((l, of_session(l)?))) else {
            return false;
        };
        let Some(worker) = &launch.worker else { return false };
        let taken = session.side_streams.len() - session.idle_side_streams.len();
        let free = MAX_SIDE_STREAMS.saturating_sub(taken).max(1);
        let ticks = u64::try_from(MAX_SIDE_STREAMS / free).unwrap_or(1);
        now < worker.helper_sent + Nanos(self.config.handover_tick.0 * ticks)
    }

    /// A number that no helper grid of a launch has.
    fn free_number(&self, id: LaunchId) -> Option<u32> {
        let launch = self.launches.get(&id)?;
        if launch.spec.form() == LaunchForm::Ticket {
            return HELPERS.min();
        }
        HELPERS
            .into_iter()
            .find(|number| launch.helpers.values().all(|helper| helper.number != *number))
    }

    /// While nobody waits for SMs or workers: so a border that moves later finds side streams.
    pub(crate) fn retire_helpers(&mut self, device: &mut dyn Device, now: Nanos) {
        let taken =
            |session: &Session| session.side_streams.len() - session.idle_side_streams.len();
        let many = |id: &SessionId| {
            self.sessions.get(id).is_some_and(|s| taken(s) + SPARE > MAX_SIDE_STREAMS)
        };
        let sessions: BTreeSet<SessionId> = self
            .front
            .iter()
            .filter_map(|id| Some(self.launches.get(id)?.session))
            .filter(many)
            .collect();
        for session in sessions {
            self.keep_streams_free(device, session, SPARE, now);
        }
    }

    /// Retires the session's oldest helper grid where fewer side streams would be free.
    fn keep_streams_free(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        spare: usize,
        now: Nanos,
    ) {
        let Some(session) = self.sessions.get(&id) else { return };
        let taken = session.side_streams.len() - session.idle_side_streams.len();
        let own = || self.launches.iter().filter(|(_, launch)| launch.session == id);
        let retired = |mask: u32| usize::try_from(mask.count_ones()).unwrap_or(0);
        let leaving: usize =
            own().filter_map(|(_, l)| Some(retired(l.worker.as_ref()?.retired))).sum();
        if taken - leaving.min(taken) + spare < MAX_SIDE_STREAMS {
            return;
        }
        let mut staying = Vec::new();
        for (launch, of) in
            own().filter(|(_, l)| l.spec.form() == LaunchForm::Worker && !l.main_done)
        {
            let Some(worker) = &of.worker else { continue };
            let stays = |helper: &&Helper| worker.retired & 1 << helper.number == 0;
            let numbered = of.helpers.iter().filter(|(_, helper)| stays(helper));
            staying
                .extend(numbered.map(|(operation, helper)| (*operation, *launch, helper.number)));
        }
        let Some((_, launch, number)) = staying.into_iter().min() else { return };
        let soon = now + self.config.unsettled_tick + self.longest_task();
        let Some(worker) = self.launches.get_mut(&launch).and_then(|l| l.worker.as_mut()) else {
            return;
        };
        worker.retired |= 1 << number;
        // Their SMs are empty until that is seen.
        worker.unsure_until = worker.unsure_until.max(soon);
        let (block, retired) = (worker.block, worker.retired);
        if let Err(error) = signal_retired(device, block, retired) {
            self.log(
                LogLevel::Error,
                Some(id),
                format!("{launch} was not told its helpers: {error}"),
            );
        }
    }

    /// A side stream without a grid, which stays idle until something is put in.
    fn side_stream(&mut self, device: &mut dyn Device, session: SessionId) -> Option<StreamId> {
        let new = StreamId(self.next_id());
        let session = self.sessions.get_mut(&session)?;
        if let Some(&idle) = session.idle_side_streams.first() {
            return Some(idle);
        }
        if session.side_streams.len() >= MAX_SIDE_STREAMS || device.create_stream(new).is_err() {
            return None;
        }
        session.side_streams.insert(new);
        session.idle_side_streams.insert(new);
        Some(new)
    }
}

const _: () = assert!(
    MAX_SIDE_STREAMS < 31 && MAIN_GRID == 0,
    "a session's helper grids have numbers enough"
);
