//! Steps that only tell: the journal of events, and the meter.

use super::Machines;
use crate::meter::Timed;
use crate::session::SessionIdentity;
use crate::turn::Turn;
use partita_model::{
    ApplicationId, Cause, CudaResult, Happening, LaunchId, Nanos, ResizeReason, SessionId,
};

impl Machines {
    /// A session has come.
    pub(crate) fn came(
        &self,
        turn: &mut Turn<'_>,
        application: ApplicationId,
        identity: &SessionIdentity,
    ) {
        turn.common.meter.session_came();
        if turn.common.journal.enters(application, identity.tenant) {
            let (name, tag) = (identity.program.clone(), identity.tag.clone());
            turn.happened(Happening::ApplicationCame { application, name, tag });
        }
        let (session, pid) = (identity.session, identity.pid);
        turn.happened(Happening::SessionCame { session, application, pid });
    }

    /// A session has failed.
    pub(super) fn tell_fault(
        &self,
        turn: &mut Turn<'_>,
        session: SessionId,
        code: CudaResult,
        text: String,
    ) {
        let Some(record) = self.sessions.get(session) else { return };
        let application = record.application();
        turn.common.meter.failed(application, code);
        turn.happened(Happening::Fault { session, application, error: code.to_string(), text });
    }

    /// A program's launch is complete at `end`. A launch that was cut into parts is left out: the
    /// time of its last part says little.
    pub(super) fn meter(&self, turn: &mut Turn<'_>, id: LaunchId, end: Nanos) {
        let Some(launch) = self.launches.get(id) else { return };
        let spec = launch.spec();
        let Some(begun) = launch.begun().filter(|_| spec.first == 0) else { return };
        let profile = spec.profile.as_ref().and_then(|key| self.observer.profile(key));
        #[expect(clippy::cast_precision_loss, reason = "a grid has less than 2^53 CTAs")]
        let alone = profile.and_then(|profile| Some(profile.alone? * spec.ctas() as f64));
        let timed =
            Timed { wait: begun.saturating_sub(spec.asked), run: end.saturating_sub(begun), alone };
        turn.common.meter.launched(launch.place().application, timed);
    }

    /// Where every SM is with its owner, a resize is over.
    pub(super) fn tell_settled(&self, turn: &mut Turn<'_>) {
        if !self.handover.is_pending() {
            let now = turn.now();
            turn.common.meter.settled(now);
        }
    }

    /// The number of the policy's last decision.
    pub(super) fn last_decision(&self) -> u64 {
        self.observer.policy().current().map_or(0, |record| record.sequence)
    }

    /// The policy was asked: whether it has decided anew, and what a border that moves now moves
    /// for.
    pub(super) fn tell_decision(&self, turn: &mut Turn<'_>, before: u64) -> ResizeReason {
        let current = self.observer.policy().current().filter(|record| record.sequence > before);
        let Some(record) = current else { return ResizeReason::Plan };
        let cause = record.cause;
        let what = Happening::Decision { decision: record.sequence, cause, why: Vec::new() };
        turn.happened(what);
        match cause {
            Cause::Membership => ResizeReason::Membership,
            Cause::Configuration => ResizeReason::Configuration,
            Cause::Interval => ResizeReason::Interval,
            Cause::Terms => ResizeReason::Terms,
        }
    }
}
