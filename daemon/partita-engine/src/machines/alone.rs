//! Steps of an application that has the GPU to itself: its short launches run as they were written.
//!
//! A gate lets an application leave an SM between two tasks. Nobody needs it while no other
//! application has work. So a launch starts in its original form where all of this holds:
//!
//! - its module has the original beside the form, and nothing forbids that ([`Pending::is_free`]);
//! - its application holds every SM, and none is stalled or without power;
//! - no other application has a launch queued, waiting or in flight;
//! - the launch and all of its application's launches in flight are expected to be over within the
//!   time after which workers would leave ([`Expected::is_short`]).
//!
//! Such a launch keeps to its application's partition, which is the whole GPU. Borders do not move
//! to SMs before it is over ([`crate::handover`]). What starts after a newcomer has come runs as
//! workers.

use super::Machines;
use crate::launches::{Checker, Launch, Pending, Place};
use crate::observer::Expected;
use crate::turn::Turn;
use partita_model::{ApplicationId, LaunchId, Nanos, Originals, Sharing, Timekeeping};

/// The form in which a launch of workers or tickets starts now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    /// As it was queued.
    AsQueued,
    /// As it was written.
    AsWritten,
    /// As it was written, once one of the launches in flight is over.
    Later,
}

impl Machines {
    /// What is expected of a launch of workers or tickets, and the form in which it starts.
    pub(super) fn form_now(
        &self,
        turn: &Turn<'_>,
        place: Place,
        pending: &Pending,
    ) -> (Option<Expected>, Now) {
        if turn.config().originals == Originals::Never || !pending.is_free() {
            return (None, Now::AsQueued);
        }
        let places = self.places(turn, pending.spec.cta);
        let Some((expected, is_allowed)) = self.observer.expected(&pending.spec, places) else {
            return (None, Now::AsQueued);
        };
        let is_alone = self.has_gpu(turn, place.application);
        if !is_allowed || !is_alone || !expected.is_short() || !self.fits(turn, pending) {
            return (Some(expected), Now::AsQueued);
        }
        let ahead = self.launches.expected_of(place.application, turn.now());
        let now = match ahead {
            Some(ahead) if ahead.and(expected).is_short() => Now::AsWritten,
            // The end of one of these lets the stream go on.
            Some(ahead) if ahead.is_short() && self.launches.on_stream(place) > 1 => Now::Later,
            _ => Now::AsQueued,
        };
        (Some(expected), now)
    }

    /// Whether an application holds every SM, and no other has work.
    fn has_gpu(&self, turn: &Turn<'_>, application: ApplicationId) -> bool {
        turn.common.sharing == Sharing::Spatial
            // Without time nobody knows what is short.
            && turn.facts().timekeeping != Timekeeping::Off
            && self.handover.has_all(application)
            && self.observer.at_work().all(|other| other == application)
            && !self.launches.has_company(application)
            && !self.launches.is_other_waiting(application)
    }

    /// Whether the original can be launched with this block.
    fn fits(&self, turn: &Turn<'_>, pending: &Pending) -> bool {
        let spec = &pending.spec;
        let checker = Checker { facts: turn.facts(), ledger: self.handover.ledger() };
        let facts = spec.kernel.fallback_facts.as_ref().and_then(|facts| facts.as_ref().ok());
        facts.is_some_and(|facts| {
            checker.check_resources(facts, spec.block, spec.dynamic_shared).is_ok()
        })
    }

    /// Places for CTAs of this size on the whole GPU.
    fn places(&self, turn: &Turn<'_>, cta: crate::handover::ledger::Usage) -> u64 {
        u64::from(self.handover.ledger().occupancy(cta)) * u64::from(turn.facts().sm_count)
    }

    /// A launch that had the GPU to itself tells how long such launches take.
    pub(super) fn learn_time(&mut self, turn: &mut Turn<'_>, id: LaunchId, end: Nanos) {
        // Nobody asks for the time.
        if turn.config().originals == Originals::Never {
            return;
        }
        let Some(launch) = self.launches.get(id) else { return };
        if !self.has_gpu(turn, launch.place().application) {
            return;
        }
        let Some(time) = launch.time_whole(end) else { return };
        let (spec, is_original) = (launch.spec(), launch.is_original());
        let places = self.places(turn, spec.cta);
        self.observer.saw_launch(turn, spec, (time, is_original), places);
    }
}

impl Launch {
    /// Device time from the launch's turn in its stream to its end, where all CTAs of the program's
    /// launch ran in it.
    fn time_whole(&self, end: Nanos) -> Option<Nanos> {
        let spec = self.spec();
        let is_whole = spec.first == 0 && spec.is_last();
        Some(end.saturating_sub(self.begun()?)).filter(|_| is_whole)
    }
}
