//! Worker launches: their start, what is seen of them, who is missing.
//!
//! A running launch says in its control block where its workers are. Where an SM of its application
//! has fewer than the ledger holds for it while tasks are left, a *helper grid*
//! ([`super::helpers`]) brings more, at once. Workers on their way ([`super::arrivals`]) are not
//! sent for again until they should have come. The wait grows with every grid that had no effect,
//! so there is never a storm of grids. Grids do not cease, so a launch that has an SM always gets
//! on.

use super::arrivals::Arrivals;
use super::confinement::launch_on;
use super::control_block::signal_gates;
use super::layout::{Layout, rounds_for};
use super::leaving::may_last;
use super::params::Hidden;
use super::spec::{Claims, Count, Form, Launch, Pending, Place, Run, Spec, Start};
use super::watchdog::Watch;
use super::{Launches, ticket};
use crate::handover::Handover;
use crate::observer::TaskSize;
use crate::turn::{Bug, Turn};
use partita_device::{AddressRange, GridSpec};
use partita_model::control::Shape;
use partita_model::{
    ApplicationId, CudaResult, DeviceAddress, LaunchId, Nanos, Sharing, SmId, SmSet,
};

/// Rounds of tasks after which a CTA's time is known for the first time.
const ROUNDS: u64 = 2;
/// Rounds of tasks over which the bounds of a CTA's time are drawn closer. Then the time is
/// measured anew, because other data may make it another.
const MOST_ROUNDS: u64 = 16;

/// What a launch of workers has.
pub(super) struct Worker {
    pub(super) claims: Claims,
    /// Whether the launch has no main grid, and can leave for a phase ([`super::leaving`]).
    pub(super) can_leave: bool,
    /// Workers of the main grid that find a task, where no border moves.
    sent: u64,
    /// CTAs of a task, as expected.
    task: u32,
    /// From when on the launch is watched for the time of its CTAs.
    since: Option<Since>,
    pub(super) count: Option<Count>,
    /// Where the launch counts what it does, if it does.
    pub(super) count_block: Option<DeviceAddress>,
    /// Workers on their way.
    pub(super) arrivals: Arrivals,
    /// CTAs of all helper grids so far. Each registers when it starts.
    pub(super) brought: u64,
    /// When the last helper grid was sent.
    pub(super) helper_sent: Nanos,
    /// Numbers of retired helper grids, one bit each.
    pub(super) retired: u32,
}

/// From when on a launch's progress is watched for the time of its CTAs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Since {
    time: Nanos,
    completed: u64,
    /// Workers that worked then. Where others work now, the progress says nothing of the time that
    /// one takes.
    working: u64,
    /// The largest task since.
    task: u64,
}

/// Bounds of the time of a CTA, from what workers have completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CtaTime {
    pub(crate) at_least: Nanos,
    pub(crate) mean: Nanos,
    pub(crate) at_most: Nanos,
}

impl CtaTime {
    /// From `done` CTAs that `working` workers have completed in some time. Workers report whole
    /// tasks, all at once where they keep step: `done` may be off by one round of tasks.
    pub(crate) fn of(time: Nanos, working: u64, task: u64, done: u64) -> Self {
        let per = |done: u64| Nanos(time.0.saturating_mul(working) / done.max(1));
        let round = working.saturating_mul(task);
        CtaTime {
            at_least: per(done.saturating_add(round)),
            mean: per(done),
            at_most: per(done.saturating_sub(round)),
        }
    }

    /// What was known before, moved into the bounds. The first time errs on the long side: tasks
    /// that are too short cost little, tasks that are too long keep an SM from its owner.
    pub(crate) fn correct(self, known: Option<Nanos>) -> Nanos {
        known.map_or(self.at_most, |known| known.clamp(self.at_least, self.at_most))
    }
}

/// The time of a launch's CTAs, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Measured {
    pub(crate) time: CtaTime,
    /// Workers that were seen to work.
    pub(crate) working: u64,
    /// The bounds are as close as they get.
    pub(crate) is_final: bool,
}

/// What a look at a running launch has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Observed {
    pub(crate) application: ApplicationId,
    /// Completed CTAs that the account has, and completed CTAs now.
    pub(crate) before: u64,
    pub(crate) after: u64,
}

/// Whether a launch has the workers that it should have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staffing {
    Complete,
    Lacking,
}

impl Launches {
    /// Starts a launch of workers or tickets that is laid out. `window` is what its kernels may
    /// touch besides blocks of the engine.
    pub(crate) fn start_claiming(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &mut Handover,
        (place, window): (Place, AddressRange),
        pending: Box<Pending>,
        (layout, cta_time, count_block): (Layout, Option<Nanos>, Option<DeviceAddress>),
    ) -> Start {
        let Pending { mut spec, form } = *pending;
        let count = match form {
            Form::Worker(count) => Some(count),
            Form::Ticket => None,
            Form::MachineCode | Form::Slice(_) | Form::Grouped(_) | Form::Original(_) => {
                turn.bug(place.session, Bug::WrongForm(spec.id));
                return Start::Failed;
            }
        };
        let stalled = handover.stalled();
        let can_leave = turn.device.launches_may_leave()
            && matches!(count, Some(count) if count.is_none_or(|count| !count.counting))
            && may_last(&spec, layout.placed, cta_time);
        let has_main = count.is_some() && !can_leave;
        let gates = layout.gates(&spec, has_main, &stalled);
        let (first, end) = (spec.first, spec.end);
        let main_ctas = if can_leave { 0 } else { layout.ctas };
        let (grid, cluster) = (spec.grid, spec.cluster);
        let shape = Shape { grid, cluster, first, end, main_ctas, gates: &gates };
        let block = match self.blocks.acquire(turn.device, &shape) {
            Ok(block) => block,
            Err(error) => {
                let text = format!("no control block for kernel `{}`: {error}", spec.kernel.name);
                turn.fail(place.session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                return Start::Failed;
            }
        };
        spec.params.push(Hidden::ControlBlock, block.0);
        let sent = if can_leave { 0 } else { layout.placed };
        handover.ledger_mut().enter(place.lane(), spec.id, spec.cta, layout.workers);
        self.waiting.remove(place.main);
        self.took_off(turn, place.application, true);
        let (own, is_kept) = (layout.own, layout.is_kept && !can_leave);
        let (claims, id) = (Claims::new(block, gates, spec.first, (own, is_kept)), spec.id);
        let run = match count {
            Some(count) => Run::Worker(Worker {
                claims,
                can_leave,
                sent,
                task: layout.task.expected,
                since: None,
                count,
                count_block,
                arrivals: Arrivals::default(),
                brought: 0,
                helper_sent: Nanos::default(),
                retired: 0,
            }),
            None => Run::Ticket(ticket::Ticket::new(claims)),
        };
        let watch = Watch::new(turn.now());
        let (begun, outlook) = (None, None);
        let launch = Launch { place, spec, main_done: false, begun, outlook, watch, run };
        let launch = Box::new(launch);
        let work = match launch.can_leave() {
            true => ticket::wait(block, launch.spec.total()),
            false => {
                let grid = self.claiming_grid(&launch, window, layout.ctas, block);
                launch_on(is_kept.then_some(own), grid)
            }
        };
        self.records.insert(id, launch);
        Start::Submit(work)
    }

    /// A grid of workers or tickets; `pointer` is its control block, with the grid's number.
    pub(super) fn claiming_grid(
        &self,
        launch: &Launch,
        window: AddressRange,
        ctas: u32,
        pointer: DeviceAddress,
    ) -> GridSpec {
        let spec = &launch.spec;
        let block = launch.claims().map(|claims| self.blocks.range(claims.block));
        let count_block = launch.worker().and_then(|worker| worker.count_block);
        let kernel = match &spec.kernel.counting {
            Some(counting) if count_block.is_some() => counting.clone(),
            _ => spec.kernel.entry.clone(),
        };
        let counts = count_block.map(crate::observer::count_range);
        GridSpec {
            cooperative: false,
            cluster: partita_model::Dim3::linear(spec.claimed_together()),
            module: spec.module,
            kernel,
            grid: partita_model::Dim3::linear(ctas),
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            params: spec.params.with_control_block(pointer),
            access: std::iter::once(window).chain(block).chain(counts).collect(),
        }
    }

    /// Whether the end of a launch's main grid, or of its stream's wait, says all: no worker wrote
    /// a fault, and else only the end of all CTAs ends it. Otherwise the control block has to be
    /// read.
    pub(super) fn end_says_all(
        launch: &Launch,
        (ok, told): (bool, Option<u32>),
        is_open: bool,
    ) -> bool {
        ok && is_open && (!launch.spec.kernel.gives_up || told == Some(0))
    }

    /// A launch may have begun to run.
    pub(crate) fn became_front(
        &mut self,
        turn: &Turn<'_>,
        handover: &Handover,
        id: LaunchId,
        begun: Nanos,
    ) -> Result<(), Bug> {
        let now = turn.now();
        let launch = self.known_mut(id)?;
        launch.begun = Some(begun);
        let mut due = now + turn.config().unsettled_tick;
        launch.watch = Watch::new(now);
        match &mut launch.run {
            // Nothing of it runs before its first helper grid.
            Run::Worker(worker) if worker.can_leave => due = now,
            Run::Worker(worker) => {
                let entered = handover.ledger().entered(launch.place.stream, id);
                worker.arrivals.begin(entered, now, due);
            }
            Run::Ticket(ticket) => {
                // Nothing of tickets runs before their first wave.
                due = now;
                ticket.send_at(due);
            }
            // The hardware's scheduler decides, and nobody is kept waiting here.
            Run::MachineCode(_) | Run::Original(_) if turn.common.sharing != Sharing::Spatial => {
                return Ok(());
            }
            Run::MachineCode(_) | Run::Original(_) => {}
        }
        self.front.insert(id);
        self.look_by(due);
        Ok(())
    }

    /// Reads what a launch of workers or tickets says of itself. `None` for other forms, of which
    /// nothing is seen.
    pub(crate) fn observe(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &mut Handover,
        id: LaunchId,
    ) -> Result<Option<Observed>, Bug> {
        let launch = self.records.get_mut(&id).ok_or(Bug::NoLaunch(id))?;
        let now = turn.now();
        let Some(claims) = launch.claims_mut() else { return Ok(None) };
        let asked = std::mem::replace(&mut claims.looked_at, now);
        let seen = match self.blocks.read_lately(turn.device, claims.block) {
            Ok(Some(seen)) => seen,
            Ok(None) => {
                let claims = launch.claims_mut().ok_or(Bug::WrongForm(id))?;
                claims.is_outdated = claims.is_signalled;
                self.look_by(turn.now() + turn.config().unsettled_tick);
                return Ok(None);
            }
            Err(error) => {
                let text = format!("{id} cannot be observed: {error}");
                turn.log_error(Some(launch.place.session), text);
                return Ok(None);
            }
        };
        let came = seen.registered_total().saturating_sub(claims.seen.registered_total());
        // A ticket registers on foreign SMs too; one that has come to stay claims.
        let claimed = seen.next > claims.seen.next;
        let (main_done, fault) = (launch.main_done, seen.fault);
        let has_tasks = seen.next < launch.spec.total();
        let mut gave_up = false;
        match &mut launch.run {
            Run::Worker(worker) => {
                worker.arrivals.look(came, now, &mut self.latency);
                gave_up = worker.can_leave && !main_done && fault != 0;
            }
            Run::Ticket(ticket) => {
                // Tickets have no grid of their own whose end would tell.
                gave_up = !main_done && fault != 0;
                if claimed {
                    ticket.came(now + turn.config().handover_tick);
                }
            }
            Run::MachineCode(_) | Run::Original(_) => {}
        }
        let claims = launch.claims_mut().ok_or(Bug::WrongForm(id))?;
        let before = claims.counted;
        claims.counted = before.max(seen.completed);
        (claims.seen, claims.seen_at) = (seen, asked);
        (claims.is_signalled, claims.is_outdated) = (false, false);
        let after = claims.counted;
        let application = launch.place.application;
        if !has_tasks {
            self.release_room(handover, id)?;
        }
        if gave_up {
            self.known(id)?.gave_up(turn, fault);
        }
        Ok(Some(Observed { application, before, after }))
    }

    /// No task is left: a worker that has left is not replaced, which makes room for other
    /// launches.
    fn release_room(&self, handover: &mut Handover, id: LaunchId) -> Result<(), Bug> {
        let launch = self.known(id)?;
        let claims = launch.claims().ok_or(Bug::WrongForm(id))?;
        let stream = launch.place.stream;
        for (sm, &live) in (0..).map(SmId).zip(&claims.seen.live) {
            if handover.ledger().held(stream, id, sm) > live {
                handover.ledger_mut().set(stream, id, sm, live)?;
            }
        }
        Ok(())
    }

    /// Takes a CTA's time from what a launch has done since it was last taken. Launches that count
    /// are slower and tell nothing.
    pub(crate) fn measure(
        &mut self,
        now: Nanos,
        stalled: &SmSet,
        id: LaunchId,
    ) -> Option<Measured> {
        let launch = self.records.get_mut(&id)?;
        let total = launch.spec.total();
        let worker = launch.worker_mut().filter(|worker| worker.count_block.is_none())?;
        let seen = &worker.claims.seen;
        let working = seen.live_total() - seen.live_on(stalled);
        if working == 0 || seen.next >= total {
            // Workers that leave would make the others look slow.
            worker.since = None;
            return None;
        }
        let task = worker.task.into();
        let begin = Since { time: now, completed: seen.completed, working, task };
        let since = worker.since.get_or_insert(begin);
        since.task = since.task.max(task);
        let since = *since;
        if since.working != working {
            worker.since = Some(begin);
            return None;
        }
        let done = seen.completed.saturating_sub(since.completed);
        let round = working * since.task;
        if done < ROUNDS * round {
            return None;
        }
        let is_final = done >= MOST_ROUNDS * round;
        if is_final {
            worker.since = Some(begin);
        }
        let time = CtaTime::of(now.saturating_sub(since.time), working, since.task, done);
        Some(Measured { time, working, is_final })
    }

    /// Bounds the mean CTA time of a completed launch: total worker time ÷ CTAs. Every worker that
    /// contributed was sent with the main grid, or was seen.
    pub(crate) fn bound_of(&self, now: Nanos, id: LaunchId) -> Option<Nanos> {
        let launch = self.records.get(&id)?;
        let worker = launch.worker().filter(|worker| worker.count_block.is_none())?;
        let time = now.saturating_sub(launch.begun?).0;
        let workers = worker.sent.max(worker.claims.seen.registered_total()).max(1);
        let spent = time.saturating_mul(workers);
        Some(Nanos(spent / launch.spec.ctas().max(1)))
    }

    /// The workers that the ledger holds for a launch of workers.
    pub(crate) fn entered_workers(
        &self,
        handover: &Handover,
        id: LaunchId,
    ) -> Option<(&Spec, u64)> {
        let launch = self.records.get(&id)?;
        launch.worker()?;
        Some((&launch.spec, handover.ledger().entered(launch.place.stream, id)))
    }

    /// Tells a running launch how many CTAs a task has at most.
    pub(crate) fn set_task(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        size: TaskSize,
    ) -> Result<(), Bug> {
        let launch = self.known_mut(id)?;
        let session = launch.place.session;
        let worker = launch.worker_mut().ok_or(Bug::WrongForm(id))?;
        worker.task = size.expected;
        let (block, gates) = (worker.claims.block, &mut worker.claims.gates);
        let changed = gates.set_task(size.most);
        if let Err(error) = signal_gates(turn.device, block, gates, &changed) {
            turn.log_error(Some(session), format!("{id} was not told its task size: {error}"));
        }
        Ok(())
    }

    /// The task sizes of running launches, for those whose CTAs' time `cta_time` knows.
    pub(crate) fn longest_task(&self, cta_time: impl Fn(&Spec) -> Option<Nanos>) -> Nanos {
        let task = |launch: &Launch| {
            let worker = launch.worker()?;
            Some(Nanos(cta_time(&launch.spec)?.0.saturating_mul(worker.task.into())))
        };
        self.running().filter_map(task).max().unwrap_or_default()
    }

    /// The workers that a launch lacks. `None` where it lacks none, or where none can be sent yet.
    pub(super) fn top_up(
        &mut self,
        handover: &mut Handover,
        id: LaunchId,
        now: Nanos,
    ) -> Result<(Staffing, Option<Wanted>), Bug> {
        let complete = Ok((Staffing::Complete, None));
        let launch = self.known(id)?;
        // Originals and machine code have no workers.
        let Some(worker) = launch.worker().filter(|_| !launch.main_done) else { return complete };
        let (total, seen) = (launch.spec.total(), &worker.claims.seen);
        if seen.next >= total {
            return complete;
        }
        if !seen.has_started() && !worker.can_leave {
            return Ok((Staffing::Lacking, None));
        }
        let own = handover.granted(launch.place.application).difference(&handover.stalled());
        let tasks_left = (total - seen.next).div_ceil(u64::from(worker.task));
        // A worker that waits on a stalled SM does none of them.
        let live_total = seen.live_on(&own);
        if live_total >= tasks_left {
            return complete;
        }
        self.extend_entry(handover, id, &own, tasks_left)?;

        let launch = self.known_mut(id)?;
        let (lane, cta) = (launch.place.lane(), launch.spec.cta);
        let worker = launch.worker_mut().ok_or(Bug::WrongForm(id))?;
        let missing = |sm: SmId| {
            let held = handover.ledger().held(lane.stream, id, sm);
            held.saturating_sub(worker.claims.seen.live_at(sm))
        };
        let rounds = own.iter().map(missing).max().unwrap_or(0);
        let need =
            own.iter().map(|sm| u64::from(missing(sm))).sum::<u64>().min(tasks_left - live_total);
        if need == 0 {
            worker.arrivals.forgive();
            return complete;
        }
        let is_on_its_way = !worker.claims.helpers.is_empty()
            && worker.claims.seen.registered_total() < worker.brought;
        if worker.can_leave && is_on_its_way {
            // What is on its way comes first: the hardware starts grids in order.
            return Ok((Staffing::Lacking, None));
        }
        let workers = need.saturating_sub(worker.arrivals.expected(now));
        if workers == 0 {
            return Ok((Staffing::Lacking, None));
        }
        let ctas = workers + self.vacant(handover, &own, cta, rounds);
        Ok((Staffing::Lacking, Some(Wanted { workers, ctas })))
    }

    /// Takes room on SMs that the launch has gained, or that others have left, as long as there are
    /// tasks for it.
    ///
    /// A launch that has lost all its SMs and gained others may find these promised to launches
    /// that come after it, or even wait for it. Such a *starved* launch goes before whatever does
    /// not run yet, and no launch of its application starts until it has a place. Otherwise it
    /// could wait for ever.
    pub(super) fn extend_entry(
        &mut self,
        handover: &mut Handover,
        id: LaunchId,
        own: &SmSet,
        tasks_left: u64,
    ) -> Result<(), Bug> {
        let launch = self.known(id)?;
        let lane = launch.place.lane();
        let stream = lane.stream;
        // Workers that linger on SMs of others claim nothing more.
        let lingering = handover.lingering().of(lane.application);
        let in_vain = lingering.iter().map(|sm| handover.ledger().held(stream, id, sm));
        let in_vain: u64 = in_vain.map(u64::from).sum();
        let held = handover.ledger().entered(stream, id).saturating_sub(in_vain);
        let live = launch.claims().map_or(0, |claims| claims.seen.live_total());
        let starved = held == 0 && live == 0 && !own.is_empty();
        // A GPC may have few of the places that are held, and a cluster needs them all.
        let is_whole = launch.spec.claimed_together() > 1;
        if held >= tasks_left && !is_whole {
            return Ok(());
        }
        let (cta, application) = (launch.spec.cta, launch.place.application);
        let rooms = if starved {
            let ledger = handover.ledger();
            let room = |sm| (sm, ledger.room_beside(sm, lane, cta, &self.front));
            own.iter().map(room).filter(|(_, room)| *room > 0).collect()
        } else {
            handover.ledger().rooms(own, lane, cta)
        };
        if starved && rooms.is_empty() {
            self.starved.insert(id, application);
        } else {
            self.starved.remove(&id);
        }
        let rounds = if is_whole { u16::MAX } else { rounds_for(&rooms, tasks_left) };
        for (sm, room) in rooms {
            let count = room.min(rounds);
            if count > handover.ledger().held(stream, id, sm) {
                handover.ledger_mut().set(stream, id, sm, count)?;
            }
        }
        Ok(())
    }

    /// The task sizes of all launches of workers.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> Vec<u32> {
        self.records.values().filter_map(|launch| Some(launch.worker()?.task)).collect()
    }

    /// Whether workers that were seen may be on their way out. A look that took them for workers
    /// that stay would come again much later.
    pub(crate) fn is_unsure(&self, now: Nanos) -> bool {
        self.running().filter_map(Launch::claims).any(|claims| now < claims.unsure_until)
    }
}

/// Workers that a launch lacks.
pub(super) struct Wanted {
    /// Those that a helper grid is to bring.
    pub(super) workers: u64,
    /// CTAs of the grid, those included that start on SMs of others and leave.
    pub(super) ctas: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ctas_time_is_drawn_closer() {
        // 100 workers with tasks of 5 CTAs of 4 us each, all in step: a round ends each 20 us.
        let seen = |nanos: u64, rounds: u64| CtaTime::of(Nanos(nanos), 100, 5, rounds * 500);
        let mut known = None;
        // Looked at within a round; then from just before a round's end to just behind one.
        for (nanos, rounds, expected) in
            [(59_000, 2, 11_800), (70_000, 3, 7_000), (130_000, 6, 5_200), (240_000, 13, 4_000)]
        {
            let time = seen(nanos, rounds);
            assert!(
                time.at_least.0 <= 4_000 && time.at_most.0 >= 4_000,
                "{nanos} {rounds}: {time:?}"
            );
            known = Some(time.correct(known));
            assert_eq!(known, Some(Nanos(expected)), "{nanos} {rounds}");
        }
        // Now they take 8 us.
        let time = CtaTime::of(Nanos(160_000), 100, 5, 2_000);
        assert_eq!(time.correct(known), Nanos(6_400));
    }
}
