//! How fast kernels are while their application has the whole GPU: what selectors compare.
//!
//! Launches in several streams of the application share the GPU and look slower; the observer keeps
//! the fastest figure.

use super::Machines;
use crate::launches::Measured;
use crate::turn::Turn;
use partita_model::{ApplicationId, LaunchId, Nanos};

impl Machines {
    /// A running launch of workers was measured.
    pub(super) fn learn_alone(&mut self, turn: &mut Turn<'_>, id: LaunchId, seen: &Measured) {
        let Some(launch) = self.launches.get(id).filter(|_| seen.is_final) else { return };
        if self.has_everything(launch.place().application) {
            self.observer.saw_alone(turn, launch.spec(), (seen.time.mean, seen.working));
        }
    }

    /// A launch has ended.
    pub(super) fn learn_alone_whole(&mut self, turn: &mut Turn<'_>, id: LaunchId, end: Nanos) {
        let Some(launch) = self.launches.get(id) else { return };
        let application = launch.place().application;
        let had = launch.had(self.handover.granted(application));
        if had != Some(self.handover.ledger().sms()) || !self.has_everything(application) {
            return;
        }
        if let Some(time) = launch.time_whole(end) {
            let spec = launch.spec();
            self.observer.saw_alone(turn, spec, (time, spec.ctas()));
        }
    }

    /// Whether an application has every SM, and no other has anything in flight. What waits for a
    /// turn is in nobody's way.
    fn has_everything(&self, application: ApplicationId) -> bool {
        self.handover.has_all(application) && !self.launches.has_company(application)
    }
}
