//! Looking after running worker launches: progress, missing workers, SMs that change hands.
//!
//! A running launch says in its control block where its workers are. Where an SM of its application
//! has fewer than the ledger holds for it while tasks are left, a *helper grid*
//! ([`crate::helpers`]) brings more, at once. Workers on their way ([`crate::arrivals`]) are not
//! sent for again until they should have come, and are waited for longer the more grids had no
//! effect, so that there is never a storm of them; but they do not cease, so a launch that has an
//! SM always gets on.

use crate::effects::Effect;
use crate::engine::earliest;
use crate::layout::rounds_for;
use crate::state::LaunchForm;
use crate::watchdog::Watch;
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{ApplicationId, LaunchId, Nanos, Sharing, SmId, SmSet, StreamId};

/// Whether a launch has the workers that it should have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staffing {
    Complete,
    Lacking,
}

impl Engine {
    /// Looks at everything that may be running and does what is to be done about it.
    pub(crate) fn look(&mut self, device: &mut dyn Device) {
        let front: Vec<LaunchId> = self.front.iter().copied().collect();
        for &launch in &front {
            self.observe(device, launch);
        }
        if self.handover_pending {
            let losers: std::collections::BTreeSet<ApplicationId> =
                self.draining.iter().flatten().copied().collect();
            for loser in losers {
                self.observe_application(device, loser);
            }
            self.hand_over(device);
        }
        let now = device.now();
        let mut lacking = false;
        for &launch in &front {
            self.watch(launch, now);
        }
        for launch in front {
            let is_ticket =
                self.launches.get(&launch).is_some_and(|l| l.spec.form() == LaunchForm::Ticket);
            lacking |= if is_ticket {
                self.send_waves(device, launch, now)
            } else {
                self.top_up(device, launch, now)
            } == Staffing::Lacking;
        }
        if !self.waiting.is_empty() {
            self.effects.push(Effect::PumpWaiting);
        }
        let is_moving = self.handover_pending || self.is_unsure(now);
        if !is_moving && !lacking {
            self.retire_helpers(device, now);
        }
        let pause = match (is_moving || self.is_unsure(now), lacking) {
            (true, _) => self.config.handover_tick,
            (false, true) => self.config.unsettled_tick,
            (false, false) => self.config.settled_tick,
        };
        self.tick_at = (!self.front.is_empty()).then(|| now + pause);
    }

    /// Whether workers that were seen may be on their way out: who took them for ones that stay
    /// would look again much later.
    fn is_unsure(&self, now: Nanos) -> bool {
        let running = self.front.iter().filter_map(|id| self.launches.get(id)?.worker.as_ref());
        running.into_iter().any(|worker| now < worker.unsure_until)
    }

    /// A launch may have begun to run.
    pub(crate) fn launch_became_front(&mut self, device: &mut dyn Device, id: LaunchId) {
        let now = device.now();
        let Some(launch) = self.launches.get_mut(&id) else { return };
        // Nothing of tickets runs before their first wave.
        let is_ticket = launch.spec.form() == LaunchForm::Ticket;
        let due = if is_ticket { now } else { now + self.config.unsettled_tick };
        launch.watch = Watch::new(now);
        match &mut launch.worker {
            Some(worker) => {
                worker.next_wave = due;
                let workers = self.ledger.workers(launch.stream, id);
                worker.arrivals.begin(
                    workers.iter().map(|&count| u64::from(count)).sum(),
                    now,
                    due,
                );
            }
            // The hardware's scheduler decides, and nobody is kept waiting here.
            None if self.sharing != Sharing::Spatial => return,
            None => {}
        }
        self.front.insert(id);
        self.tick_at = earliest(self.tick_at, due);
    }

    /// Observes all worker launches of an application. Those behind others count too: the device
    /// may be ahead of what it has told.
    pub(crate) fn observe_application(
        &mut self,
        device: &mut dyn Device,
        application: ApplicationId,
    ) {
        for launch in self.worker_launches_of(application) {
            self.observe(device, launch);
        }
    }

    /// Reads what a launch says of itself.
    pub(crate) fn observe(&mut self, device: &mut dyn Device, id: LaunchId) {
        let Some(launch) = self.launches.get_mut(&id) else { return };
        let (session, application, stream, total) =
            (launch.session, launch.application, launch.stream, launch.spec.total());
        let is_ticket = launch.spec.form() == LaunchForm::Ticket;
        let Some(worker) = &mut launch.worker else { return };
        let seen = match self.blocks.read(device, worker.block) {
            Ok(seen) => seen,
            Err(error) => {
                self.log(
                    LogLevel::Error,
                    Some(session),
                    format!("{id} cannot be observed: {error}"),
                );
                return;
            }
        };
        let (before, progress) = (worker.counted, seen.completed.saturating_sub(worker.counted));
        worker.counted += progress;
        let tail = seen.next >= total;
        // Tickets have no grid of their own whose end would tell.
        let gave_up =
            (is_ticket && !launch.main_done).then_some(seen.fault).filter(|fault| *fault != 0);
        let (came, now) = (seen.registered.saturating_sub(worker.seen.registered), device.now());
        if is_ticket && came > 0 {
            // The last wave has begun, so what is missing now is missing.
            worker.attempts = 0;
            worker.next_wave = worker.next_wave.min(now + self.config.handover_tick);
        }
        if !is_ticket {
            worker.arrivals.look(came, now, &mut self.latency);
        }
        worker.seen = seen;
        if let Some(application) = self.applications.get_mut(&application) {
            application.ctas_completed += progress;
        }
        self.count_traffic(id, before, before + progress);
        if tail {
            self.release_room(stream, id);
        }
        self.adapt_task(device, id);
        if let Some(fault) = gave_up {
            self.kernel_gave_up(id, fault);
        }
    }

    /// No task is left: whoever has left will not be replaced, and makes room for others.
    fn release_room(&mut self, stream: StreamId, id: LaunchId) {
        let Some(worker) = self.launches.get(&id).and_then(|launch| launch.worker.as_ref()) else {
            return;
        };
        for (sm, &live) in SmSet::range(0, self.facts.sm_count).iter().zip(&worker.seen.live) {
            let held = self.held(stream, id, sm);
            if live < held {
                self.ledger.set(stream, id, sm, live);
            }
        }
    }

    pub(crate) fn held(&self, stream: StreamId, id: LaunchId, sm: SmId) -> u16 {
        self.ledger.workers(stream, id).get(usize::from(sm.0)).copied().unwrap_or(0)
    }

    /// Sends a helper grid where workers are missing.
    fn top_up(&mut self, device: &mut dyn Device, id: LaunchId, now: Nanos) -> Staffing {
        let Some(launch) = self.launches.get(&id) else { return Staffing::Complete };
        let Some(worker) = launch.worker.as_ref().filter(|_| !launch.main_done) else {
            return Staffing::Complete;
        };
        let total = launch.spec.total();
        if worker.seen.next >= total {
            return Staffing::Complete;
        }
        if !worker.seen.has_started(launch.spec.first) {
            return Staffing::Lacking;
        }
        let Some(granted) = self.applications.get(&launch.application).map(|a| a.granted) else {
            return Staffing::Complete;
        };
        let own = granted.difference(&self.stalled);
        let tasks_left = (total - worker.seen.next).div_ceil(u64::from(worker.task));
        let (stream, cta) = (launch.stream, launch.spec.cta);
        // Whoever waits on a stalled SM does none of them.
        let live_total = worker.seen.live_on(&own);
        if live_total >= tasks_left {
            return Staffing::Complete;
        }
        self.extend_entry(id, stream, &own, tasks_left);

        let Some(worker) = self.launches.get(&id).and_then(|launch| launch.worker.as_ref()) else {
            return Staffing::Complete;
        };
        let missing = |sm: SmId| {
            self.held(stream, id, sm)
                .saturating_sub(worker.seen.live.get(usize::from(sm.0)).copied().unwrap_or(0))
        };
        let most = own.iter().map(missing).max().unwrap_or(0);
        let need =
            own.iter().map(|sm| u64::from(missing(sm))).sum::<u64>().min(tasks_left - live_total);
        let wanted = need.saturating_sub(worker.arrivals.expected(now));
        let sent = wanted > 0 && {
            let ctas = wanted + self.vacant(&own, cta, most);
            self.send_helper(device, id, u32::try_from(ctas).unwrap_or(u32::MAX), now)
        };
        let latency = self.latency;
        let Some(worker) = self.launches.get_mut(&id).and_then(|launch| launch.worker.as_mut())
        else {
            return Staffing::Complete;
        };
        if need == 0 {
            worker.arrivals.forgive();
            return Staffing::Complete;
        }
        if sent {
            worker.arrivals.send(wanted, now, latency);
        }
        Staffing::Lacking
    }

    /// Takes room on SMs that the launch has gained, or that others have left, as long as there are
    /// tasks for it.
    ///
    /// A launch that has lost all its SMs and gained others may find these promised to launches
    /// that come after it, or even wait for it. Such a *starved* launch goes before whatever does
    /// not run yet, and no launch of its application starts until it has a place: otherwise it
    /// could wait for ever.
    pub(crate) fn extend_entry(
        &mut self,
        id: LaunchId,
        stream: StreamId,
        own: &SmSet,
        tasks_left: u64,
    ) {
        let Some(launch) = self.launches.get(&id) else { return };
        let held: u64 = self.ledger.workers(stream, id).iter().map(|&count| u64::from(count)).sum();
        let live = launch.worker.as_ref().map_or(0, |worker| worker.seen.live_total());
        let starved = held == 0 && live == 0 && !own.is_empty();
        if held >= tasks_left {
            return;
        }
        let cta = launch.spec.cta;
        let rooms = if starved {
            let room = |sm| (sm, self.ledger.room_beside(sm, stream, cta, &self.front));
            own.iter().map(room).filter(|(_, room)| *room > 0).collect()
        } else {
            self.rooms(own, stream, cta)
        };
        if starved && rooms.is_empty() {
            self.starved.insert(id, launch.application);
        } else {
            self.starved.remove(&id);
        }
        let rounds = rounds_for(&rooms, tasks_left);
        for (sm, room) in rooms {
            let count = room.min(rounds);
            if count > self.held(stream, id, sm) {
                self.ledger.set(stream, id, sm, count);
            }
        }
    }
}
