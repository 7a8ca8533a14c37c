//! Helper grids and waves: further CTAs of a running launch, on side streams of its session.
//!
//! A helper grid lasts as long as its workers do, which may be as long as the launch, and a real
//! driver serves few streams well. So each helper grid of a launch has a number, which its workers
//! know by the pointer that they are given. When few side streams are left, the oldest helper grid
//! of the session is *retired*: its workers leave at the next task border, and one grid brings the
//! workers that are missing then. The fewer side streams are left, the longer a launch waits from
//! one helper grid to the next.

use super::confinement::launch_on;
use super::control_block::signal_retired;
use super::spec::{Launch, Place, Run};
use super::{Launches, Staffing};
use crate::handover::Handover;
use crate::handover::ledger::Usage;
use crate::turn::{Bug, Turn};
use partita_device::AddressRange;
use partita_model::control::{HELPERS, MAIN_GRID};
use partita_model::{
    DeviceAddress, LaunchId, Nanos, OperationId, SessionId, SmId, SmSet, StreamId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Side streams of one session.
const MAX_SIDE_STREAMS: usize = 16;
/// Side streams that are kept free where nothing moves.
const SPARE: usize = 12;
/// Side streams that are kept free at least.
const LEAST_SPARE: usize = 8;

/// A helper grid, or a wave of tickets, in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Helper {
    /// The side stream that it has to itself.
    stream: StreamId,
    /// The number by which its workers find their bit in the control block. All waves have the
    /// first.
    pub(super) number: u32,
    /// The SMs to which the device keeps it.
    kept_to: Option<SmSet>,
}

/// The helper grids of one launch that are in flight.
#[derive(Default)]
pub(super) struct Helpers(pub(super) BTreeMap<OperationId, Helper>);

impl Helpers {
    /// Their operations.
    pub(super) fn grids(&self) -> impl Iterator<Item = OperationId> {
        self.0.keys().copied()
    }

    /// Their streams, with the SMs to which the device keeps them.
    pub(super) fn kept(&self) -> impl Iterator<Item = (StreamId, Option<SmSet>)> {
        self.0.values().map(|helper| (helper.stream, helper.kept_to))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number that none of them has.
    fn free_number(&self) -> Option<u32> {
        HELPERS.into_iter().find(|number| self.0.values().all(|helper| helper.number != *number))
    }
}

/// The side streams of one session.
#[derive(Default)]
pub(super) struct SideStreams {
    all: BTreeSet<StreamId>,
    /// Those without a grid.
    idle: BTreeSet<StreamId>,
}

impl SideStreams {
    fn taken(&self) -> usize {
        self.all.len() - self.idle.len()
    }

    pub(super) fn into_all(self) -> BTreeSet<StreamId> {
        self.all
    }

    /// A side stream without a grid. It stays idle until a grid is put in.
    fn idle(&mut self, turn: &mut Turn<'_>) -> Option<StreamId> {
        if let Some(&idle) = self.idle.first() {
            return Some(idle);
        }
        let new = StreamId(turn.next_id());
        if self.all.len() >= MAX_SIDE_STREAMS || turn.device.create_stream(new).is_err() {
            return None;
        }
        self.all.insert(new);
        self.idle.insert(new);
        Some(new)
    }
}

/// A grid that the device has taken and that the sessions do not know yet.
pub(crate) struct Grid {
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(crate) operation: OperationId,
    pub(crate) launch: LaunchId,
}

/// What became of a helper grid that was wanted.
pub(super) enum Sent {
    /// The device has it.
    Grid(Grid),
    /// The device refused it. The next waits as long as for a grid without effect.
    Refused,
    /// None was tried: no side stream or number is free, or the grid shall bring workers for more
    /// SMs.
    Later,
}

impl Sent {
    pub(super) fn grid(self) -> Option<Grid> {
        match self {
            Sent::Grid(grid) => Some(grid),
            Sent::Refused | Sent::Later => None,
        }
    }
}

impl Launches {
    /// Brings the workers or tickets that a running launch lacks. `longest_task` bounds how long a
    /// retired worker stays; `is_alone`: no other application has work.
    pub(crate) fn staff(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &mut Handover,
        (id, window): (LaunchId, AddressRange),
        longest_task: Nanos,
        is_alone: bool,
    ) -> Result<(Staffing, Option<Grid>), Bug> {
        self.signal_room(turn, handover, id)?;
        if self.known(id)?.can_leave() && self.is_leaving(turn) {
            return Ok((Staffing::Complete, None));
        }
        if matches!(self.known(id)?.run, Run::Ticket(_)) {
            let Place { application, stream, .. } = self.known(id)?.place;
            let kept_to = self.kept_to(turn, handover, application, stream);
            return self.send_waves(turn, handover, window, (id, is_alone, kept_to));
        }
        let now = turn.now();
        let (staffing, wanted) = self.top_up(handover, id, now)?;
        let Some(wanted) = wanted else { return Ok((staffing, None)) };
        let place = self.known(id)?.place;
        let kept_to = self.helpers_kept_to(turn, handover, place);
        let ctas = if kept_to.is_some() { wanted.workers } else { wanted.ctas };
        let sent = self.send_helper(turn, window, (id, ctas, kept_to), longest_task)?;
        if !matches!(sent, Sent::Later) {
            let latency = self.latency;
            let worker = self.known_mut(id)?.worker_mut().ok_or(Bug::WrongForm(id))?;
            worker.arrivals.send(wanted.workers, now, latency);
        }
        Ok((staffing, sent.grid()))
    }

    /// Sends a helper grid, or a wave.
    pub(super) fn send_helper(
        &mut self,
        turn: &mut Turn<'_>,
        window: AddressRange,
        (id, ctas, kept_to): (LaunchId, u64, Option<SmSet>),
        longest_task: Nanos,
    ) -> Result<Sent, Bug> {
        let session = self.known(id)?.place.session;
        self.keep_streams_free(turn, session, LEAST_SPARE, longest_task)?;
        let launch = self.known(id)?;
        let claims = launch.claims().ok_or(Bug::WrongForm(id))?;
        let number = match &launch.run {
            Run::Ticket(_) => HELPERS.min(),
            _ => claims.helpers.free_number(),
        };
        let block = claims.block;
        let Some(number) = number.filter(|_| !self.is_too_soon(turn, launch)) else {
            return Ok(Sent::Later);
        };
        let Some(stream) = self.side_streams.entry(session).or_default().idle(turn) else {
            return Ok(Sent::Later);
        };
        let operation = OperationId(turn.next_id());
        let pointer = DeviceAddress(block.0 | u64::from(number));
        let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
        let work = launch_on(kept_to, self.claiming_grid(self.known(id)?, window, ctas, pointer));
        let accepted = turn.device.enqueue(stream, operation, work);
        let (now, pause) = (turn.now(), turn.config().unsettled_tick);
        let launch = self.known_mut(id)?;
        match &mut launch.run {
            Run::Worker(worker) => worker.helper_sent = now,
            Run::Ticket(ticket) => ticket.sent(now, pause),
            Run::MachineCode(_) | Run::Original(_) => {}
        }
        if let Err(error) = accepted {
            turn.log_error(Some(session), format!("a helper grid of {id} was refused: {error}"));
            return Ok(Sent::Refused);
        }
        if let Run::Worker(worker) = &mut launch.run {
            worker.brought += u64::from(ctas);
        }
        let claims = launch.claims_mut().ok_or(Bug::WrongForm(id))?;
        claims.helpers.0.insert(operation, Helper { stream, number, kept_to });
        self.side_streams.entry(session).or_default().idle.remove(&stream);
        Ok(Sent::Grid(Grid { session, stream, operation, launch: id }))
    }

    /// A helper grid, or a wave, is done.
    pub(crate) fn helper_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        operation: OperationId,
    ) -> Result<(), Bug> {
        let now = turn.now();
        let launch = self.records.get_mut(&id).ok_or(Bug::NoLaunch(id))?;
        let (session, main_done) = (launch.place.session, launch.main_done);
        let claims = launch.claims_mut().ok_or(Bug::WrongForm(id))?;
        let helper = claims.helpers.0.remove(&operation);
        let helper = helper.ok_or(Bug::NoOperation(operation))?;
        let mut is_wave = false;
        match &mut launch.run {
            Run::Ticket(ticket) if !main_done => {
                // Its places are free.
                ticket.send_at(now);
                is_wave = true;
            }
            Run::Worker(worker) if worker.retired & 1 << helper.number != 0 => {
                worker.retired &= !(1 << helper.number);
                let told = signal_retired(turn.device, worker.claims.block, worker.retired);
                if let Err(error) = told {
                    let text = format!("{id} was not told its helpers: {error}");
                    turn.log_error(Some(session), text);
                }
            }
            _ => {}
        }
        if is_wave {
            self.look_by(now);
        }
        // Where the session has gone, its streams have too.
        if let Some(streams) = self.side_streams.get_mut(&session) {
            streams.idle.insert(helper.stream);
        }
        Ok(())
    }

    /// CTAs that may start on foreign SMs while every SM is given up to `rounds` of them: in places
    /// where no worker is at present. The ledger knows more places, because workers stay for a
    /// while where it has struck them out; and fewer, because workers of others may be missing
    /// there. A grid with too few CTAs leaves an SM without workers until the next grid. A grid
    /// with too many CTAs has some left that start, and leave, wherever room becomes free for
    /// another application.
    pub(super) fn vacant(&self, handover: &Handover, own: &SmSet, cta: Usage, rounds: u16) -> u64 {
        let running: Vec<(Usage, &super::Claims)> =
            self.running().filter_map(|launch| Some((launch.spec.cta, launch.claims()?))).collect();
        let ledger = handover.ledger();
        let free = |sm: SmId| {
            let taken = running.iter().map(|(cta, claims)| (*cta, claims.seen.live_at(sm)));
            u64::from(ledger.room_among(taken, cta).min(rounds))
        };
        let taken = own.union(&self.taken_as_written());
        ledger.sms().difference(&taken).iter().map(free).sum()
    }

    /// Whether the next helper grid of a launch waits, so that it brings workers for more SMs. The
    /// fewer side streams are free the longer it waits, because SMs that come one after the other
    /// would take them all.
    fn is_too_soon(&self, turn: &Turn<'_>, launch: &Launch) -> bool {
        // Waves wait by their own rule.
        let Some(worker) = launch.worker() else { return false };
        let taken = self.side_streams.get(&launch.place.session).map_or(0, SideStreams::taken);
        let free = MAX_SIDE_STREAMS.saturating_sub(taken).max(1);
        let ticks = u64::try_from(MAX_SIDE_STREAMS / free).unwrap_or(1);
        turn.now() < worker.helper_sent + Nanos(turn.config().handover_tick.0 * ticks)
    }

    /// Retires helper grids while nothing waits for SMs or workers: so a border that moves later
    /// finds side streams.
    pub(crate) fn retire_helpers(
        &mut self,
        turn: &mut Turn<'_>,
        longest_task: Nanos,
    ) -> Result<(), Bug> {
        let is_short = |id: &SessionId| {
            let taken = self.side_streams.get(id).map_or(0, SideStreams::taken);
            taken + SPARE > MAX_SIDE_STREAMS
        };
        let sessions: BTreeSet<SessionId> =
            self.running().map(|launch| launch.place.session).filter(is_short).collect();
        for session in sessions {
            self.keep_streams_free(turn, session, SPARE, longest_task)?;
        }
        Ok(())
    }

    /// Retires the session's oldest helper grid where fewer side streams would be free.
    fn keep_streams_free(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        spare: usize,
        longest_task: Nanos,
    ) -> Result<(), Bug> {
        let taken = self.side_streams.get(&id).map_or(0, SideStreams::taken);
        let own = || {
            let own = self.records.values().filter(|launch| launch.place.session == id);
            own.filter_map(|launch| Some((launch.as_ref(), launch.worker()?)))
        };
        let leaving: usize = own()
            .map(|(_, worker)| usize::try_from(worker.retired.count_ones()).unwrap_or(0))
            .sum();
        if taken - leaving.min(taken) + spare < MAX_SIDE_STREAMS {
            return Ok(());
        }
        let staying = own().filter(|(launch, _)| !launch.main_done).flat_map(|(launch, worker)| {
            let helpers = worker.claims.helpers.0.iter();
            helpers
                .filter(|(_, helper)| worker.retired & 1 << helper.number == 0)
                .map(|(operation, helper)| (*operation, launch.spec.id, helper.number))
        });
        // All of them leave already, or bring tickets.
        let Some((_, launch, number)) = staying.min() else { return Ok(()) };
        let soon = turn.now() + turn.config().unsettled_tick + longest_task;
        let worker = self.known_mut(launch)?.worker_mut().ok_or(Bug::WrongForm(launch))?;
        worker.retired |= 1 << number;
        // The SMs of its workers are empty until that is seen.
        worker.claims.unsure_until = worker.claims.unsure_until.max(soon);
        let told = signal_retired(turn.device, worker.claims.block, worker.retired);
        if let Err(error) = told {
            turn.log_error(Some(id), format!("{launch} was not told its helpers: {error}"));
        }
        Ok(())
    }
}

impl Launch {
    /// Whether no grid of the launch is left.
    pub(super) fn is_over(&self) -> bool {
        self.main_done && self.claims().is_none_or(|claims| claims.helpers.is_empty())
    }
}

const _: () = assert!(
    MAX_SIDE_STREAMS < 31 && MAIN_GRID == 0,
    "a session's helper grids have numbers enough"
);
