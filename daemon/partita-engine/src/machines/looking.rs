//! Steps that look at running launches.

use super::Machines;
use crate::effects::Effect;
use crate::launches::{Launch, Staffing};
use crate::turn::{Bug, Turn};
use partita_model::{ApplicationId, LaunchId, Nanos};

impl Machines {
    /// Looks at everything that may be running and does what is to be done about it.
    pub(crate) fn look(&mut self, turn: &mut Turn<'_>) {
        let front = self.launches.front_ids();
        for &launch in &front {
            self.observe(turn, launch);
        }
        if self.handover.is_pending() || !self.handover.lingering().is_empty() {
            for loser in self.handover.losers() {
                let launches = self.launches.claiming_of(loser);
                for launch in launches.into_iter().filter(|launch| !front.contains(launch)) {
                    self.observe(turn, launch);
                }
            }
            self.hand_over(turn);
        }
        let now = turn.now();
        for &id in &front {
            let launch = self.launches.get(id).filter(|launch| launch.is_claiming());
            if let Some((application, cta)) = launch.map(|l| (l.place().application, l.spec().cta))
            {
                self.see_if_cramped(turn, application, Some(cta));
            }
        }
        for &launch in &front {
            let watched = self.watch(turn, launch);
            turn.sound(watched);
        }
        let longest_task = self.longest_task();
        self.launches.leave_for_phase(turn, longest_task);
        let mut lacking = false;
        for launch in front {
            let staffed = self.staff(turn, launch, longest_task);
            lacking |= turn.sound(staffed) == Some(Staffing::Lacking);
        }
        if self.launches.is_anyone_waiting() {
            turn.push(Effect::PumpWaiting);
        }
        self.let_modules_in(turn);
        let is_moving = self.handover.is_pending() || self.launches.is_unsure(now);
        if !is_moving && !lacking {
            let retired = self.launches.retire_helpers(turn, longest_task);
            turn.sound(retired);
        }
        let config = turn.config();
        let pause = match (is_moving || self.launches.is_unsure(now), lacking) {
            (true, _) => config.handover_tick,
            (false, true) => config.unsettled_tick,
            (false, false) => config.settled_tick,
        };
        let rested = self.launches.end_of_device_rest(turn);
        let yielded = self.launches.end_of_yielding(now);
        self.launches.look_again(now + pause, rested.into_iter().chain(yielded).min());
    }

    /// Observes all launches of an application that say where their workers are.
    pub(super) fn observe_application(&mut self, turn: &mut Turn<'_>, id: ApplicationId) {
        for launch in self.launches.claiming_of(id) {
            self.observe(turn, launch);
        }
    }

    /// Looks at what a launch says of itself.
    pub(super) fn observe(&mut self, turn: &mut Turn<'_>, id: LaunchId) {
        let observed = self.try_observe(turn, id);
        turn.sound(observed);
    }

    /// Progress for the account, a CTA's time for its tasks.
    fn try_observe(&mut self, turn: &mut Turn<'_>, id: LaunchId) -> Result<(), Bug> {
        let seen = self.launches.observe(turn, &mut self.handover, id)?;
        // Originals and machine code say nothing.
        let Some(seen) = seen else { return Ok(()) };
        let spec = self.launches.get(id).ok_or(Bug::NoLaunch(id))?.spec();
        let done = (seen.before, seen.after);
        let ctas_per_sm = self.handover.ledger().occupancy(spec.cta);
        self.observer.completed(turn.now(), (seen.application, spec), ctas_per_sm, done);
        let stalled = self.handover.stalled();
        // Too little has happened since the last look.
        let Some(measured) = self.launches.measure(turn.now(), &stalled, id) else {
            return Ok(());
        };
        self.learn_alone(turn, id, &measured);
        let spec = self.launches.get(id).ok_or(Bug::NoLaunch(id))?.spec();
        let size = self.observer.correct(turn, spec, &measured);
        self.launches.set_task(turn, id, size)
    }

    /// Looks whether a launch gets anywhere.
    fn watch(&mut self, turn: &mut Turn<'_>, id: LaunchId) -> Result<(), Bug> {
        let place = self.launches.get(id).ok_or(Bug::NoLaunch(id))?.place();
        // What has failed is being ended.
        if !self.sessions.get(place.session).is_some_and(|session| session.is_open()) {
            return Ok(());
        }
        let name = self.sessions.application(place.application).map_or("", |a| &a.name);
        self.launches.watch(turn, &self.handover, id, name)
    }

    /// Looks at every launch by host time: the device has run for `spent` more of it. Nothing is
    /// read from the device's memory, so looks at other moments decide nothing else.
    pub(crate) fn watch_host_time(&mut self, turn: &mut Turn<'_>, spent: Nanos) {
        for id in self.launches.front_ids() {
            let place = self.launches.get(id).map(Launch::place);
            let Some(place) = turn.sound(place.ok_or(Bug::NoLaunch(id))) else { continue };
            // What has failed is being ended.
            if !self.sessions.get(place.session).is_some_and(|session| session.is_open()) {
                continue;
            }
            let name = self.sessions.application(place.application).map_or("", |a| &a.name);
            let watched = self.launches.watch_host_time(turn, &self.handover, (id, name), spent);
            turn.sound(watched);
        }
    }

    /// Sends workers where some are missing.
    fn staff(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        longest_task: Nanos,
    ) -> Result<Staffing, Bug> {
        let place = self.launches.get(id).ok_or(Bug::NoLaunch(id))?.place();
        let session = self.sessions.get(place.session).ok_or(Bug::NoSession(place.session))?;
        if !session.is_open() {
            return Ok(Staffing::Complete);
        }
        let window = session.range();
        let is_alone = self.observer.at_work().all(|other| other == place.application);
        let handover = &mut self.handover;
        let (staffing, grid) =
            self.launches.staff(turn, handover, (id, window), longest_task, is_alone)?;
        if let Some(grid) = grid {
            self.sessions.enter_helper(grid.session, grid.stream, grid.operation, grid.launch);
        }
        Ok(staffing)
    }

    /// How long a worker that has just claimed a task works on it, over all running launches whose
    /// CTAs' time is known.
    pub(super) fn longest_task(&self) -> Nanos {
        self.launches.longest_task(|spec| self.observer.cta_time(spec))
    }
}
