//! When the device takes no launches, and no calls ([`Phase`]).
//!
//! Something that may hold up every call is due: the device becomes idle first. Copies and fills
//! stay here meanwhile; grids that the engine still asks for belong to running launches, and go on.
//! When nothing is on the device, the loading thread does what is due, and the owner makes no call
//! of the driver until it has.
//!
//! Where no call waits for grids ([`crate::self_test`]), the device stays open meanwhile.
//!
//! A launch may last long, or wait for a copy that stays here. After a limit the device therefore
//! opens again, for as long as it has drained, and tries anew with twice the limit. Where launches
//! leave ([`Device::launches_leave`]), it drains for longer. Behind a phase for which launches have
//! left, it does not drain for as long as they were away: somebody may always have something due.
//!
//! [`Device::launches_leave`]: partita_device::Device::launches_leave

use super::CudaDevice;
use crate::loader::Outcome;
use crate::windows::Becomes;
use partita_device::{Event, Phase};
use std::time::{Duration, Instant};

/// How long the device drains at first, and at most, before others go on.
const LIMITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long it drains at most while launches leave it. They do at the end of a task, which may take
/// longer than others shall wait for a launch that stays.
const LEAVING: Duration = Duration::from_secs(20);
/// How long the device drains at most after the engine has said that launches leave. The engine
/// says it with each look.
const LEFT: Duration = Duration::from_secs(1);

/// The device's phase.
pub(super) struct Phases {
    phase: Phase,
    /// How long the device drains this time.
    limit: Duration,
    /// When it began to drain, or to be open again, and until when it is.
    since: Instant,
    until: Instant,
    /// Launches have left, since the device was last open.
    have_left: bool,
    /// What the loading thread has told in this phase.
    outcomes: Vec<Outcome>,
    /// Whether the loading thread does what is due while the device is open.
    is_beside: bool,
}

impl Phases {
    pub(super) fn new() -> Phases {
        let now = Instant::now();
        Phases {
            phase: Phase::Open,
            limit: LIMITS.0,
            since: now,
            until: now,
            have_left: false,
            outcomes: Vec::new(),
            is_beside: false,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Lets the device drain for longer.
    pub(super) fn launches_leave(&mut self) {
        if self.phase == Phase::Draining {
            self.have_left = true;
            let left = (Instant::now() + LEFT).min(self.since + LEAVING);
            self.until = self.until.max(left);
        }
    }

    /// Closes the device. The time for which it has drained counts as the phase's.
    fn close(&mut self) {
        let new = Phases::new();
        let since = if self.phase == Phase::Draining { self.since } else { new.since };
        *self = Phases { phase: Phase::Closed, since, have_left: self.have_left, ..new };
    }

    /// Opens the device behind a phase.
    fn open(&mut self) {
        let now = Instant::now();
        if std::mem::take(&mut self.have_left) {
            self.until = now + (now - self.since);
        }
        (self.phase, self.since) = (Phase::Open, now);
    }

    /// Changes the phase for so long.
    fn change(&mut self, phase: Phase, time: Duration) {
        self.phase = phase;
        self.since = Instant::now();
        self.until = self.since + time;
    }
}

impl CudaDevice {
    /// Whether the loading thread has the driver to itself. Takes what it tells, and opens the
    /// device when it has done everything.
    pub(super) fn is_closed(&mut self, events: &mut Vec<Event>) -> bool {
        if self.phases.phase != Phase::Closed {
            return false;
        }
        let is_over = |outcome: &Outcome| matches!(outcome, Outcome::Over);
        self.phases.outcomes.extend(self.loader.take());
        if !self.phases.outcomes.iter().any(is_over) {
            return true;
        }
        self.phases.open();
        // Nothing is on the device yet. The poll tells of a failure.
        let _ = self.zeros.tick();
        for (window, range) in std::mem::take(&mut self.wanted) {
            if let Err(error) = self.windows.clear(window, range, &self.zeros) {
                tracing::warn!(%error, "mappings stay where memory is wanted");
            }
            if range.1 == Becomes::Nothing {
                self.windows.refill(window);
            }
        }
        events.push(Event::Reopened);
        false
    }

    /// What the loading thread has told.
    pub(super) fn take_outcomes(&mut self) -> Vec<Outcome> {
        let mut outcomes = std::mem::take(&mut self.phases.outcomes);
        outcomes.extend(self.loader.take());
        self.phases.is_beside &= !outcomes.iter().any(|o| matches!(o, Outcome::Over));
        outcomes
    }

    /// Drains, closes or opens the device, where nothing else has happened in this poll.
    pub(super) fn change_phase(&mut self, events: &mut Vec<Event>) {
        if !self.habits.waits {
            if self.loader.is_due() && !self.phases.is_beside {
                self.phases.is_beside = true;
                self.loader.begin_phase();
            }
            return;
        }
        let is_idle = self.streams.device_is_idle();
        if is_idle && self.loader.is_due() {
            self.phases.close();
            self.loader.begin_phase();
            return;
        }
        let now = Instant::now();
        match self.phases.phase {
            Phase::Open if self.loader.is_urgent() && now >= self.phases.until => {
                self.phases.change(Phase::Draining, self.phases.limit);
            }
            Phase::Draining if now >= self.phases.until => {
                self.phases.change(Phase::Open, now - self.phases.since);
                self.phases.have_left = false;
                self.phases.limit = (self.phases.limit * 2).min(LIMITS.1);
                events.push(Event::Reopened);
            }
            Phase::Open | Phase::Draining | Phase::Closed => {}
        }
    }

    /// Whether time alone changes the phase.
    pub(super) fn awaits_phase(&self) -> bool {
        let is_begun = self.phases.is_beside;
        self.phases.phase == Phase::Draining || (self.loader.is_urgent() && !is_begun)
    }
}
