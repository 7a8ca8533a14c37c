//! The question "how many SMs each?": a [`Partitioner`] answers it, one file or folder an answer.

mod cd_search;
mod cd_search_paper;
mod demand;
mod even;
mod smra;
mod static_shares;

pub use cd_search::{CdSearch, CdSearchSettings};
pub use cd_search_paper::CdSearchPaper;
pub use demand::Demand;
pub use even::Even;
pub use smra::{Smra, SmraSettings};
pub use static_shares::StaticShares;

use crate::measuring::Speed;
use crate::{Bounds, Character, Plan};
use partita_model::{
    ApplicationId, Cause, Cycles, Entitlement, IntervalRecord, Nanos, Note, Progress, SmSet,
    TenantId,
};

/// Answers how many SMs, and which, each application gets.
///
/// It is asked when other applications than before have work ([`Cause::Membership`]), when it has
/// just been chosen ([`Cause::Configuration`]), and at the end of every interval that its last
/// decision asked for ([`Cause::Interval`]).
pub trait Partitioner {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Looks at what has happened and decides.
    fn step(&mut self, sample: &Sample) -> Decision;
}

/// What a partitioner sees.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Device time.
    pub now: Nanos,
    /// Why it is asked.
    pub cause: Cause,
    /// What the progress was measured in; absent where nothing was measured.
    pub interval: Option<IntervalRecord>,
    /// The SMs to share out.
    pub sms: SmSet,
    /// The applications that have work, in order of id.
    pub applications: Vec<ApplicationSample>,
}

/// One application in a sample.
#[derive(Clone, PartialEq, Debug)]
pub struct ApplicationSample {
    /// Which.
    pub application: ApplicationId,
    /// Who is accounted.
    pub tenant: TenantId,
    /// The application tag, if its sessions have one.
    pub tag: Option<String>,
    /// What it was given last.
    pub partition: SmSet,
    /// Where of that its workers were told to wait.
    pub stalled: SmSet,
    /// What it did in the interval; zero without one. Counted between two moments at which CTAs
    /// completed.
    pub progress: Progress,
    /// The time between these.
    pub span: Cycles,
    /// For how much of that it had work to do.
    pub busy: Cycles,
    /// CTAs that it completed in the warm-up before.
    pub warm_up_ctas: u64,
    /// How many times as many CTAs as were in flight its launches have, at most. Where these are
    /// few, speed comes in steps with the SMs.
    pub rounds: Option<f64>,
    /// Whether some of its CTAs' traffic is known, or will soon be: an interval that does not tell
    /// it may be tried again.
    pub profiled: bool,
    /// For how long it has worked on no CTA: it has nothing to do, or waits for something.
    pub rested: Nanos,
    /// What it asks of a GPU that it has to itself, where that was counted.
    pub character: Option<Character>,
    /// A launch of it waits, because one of its CTAs does not fit into its part of an SM.
    pub cramped: bool,
    /// What it may have of the SMs by its terms.
    pub entitlement: Entitlement,
    /// Between what numbers of SMs it may have, and its part in a fair division.
    pub bounds: Bounds,
}

impl Sample {
    /// An application of the sample.
    pub(crate) fn find(&self, application: ApplicationId) -> Option<&ApplicationSample> {
        self.applications.iter().find(|sample| sample.application == application)
    }
}

impl ApplicationSample {
    /// Its speed; `None` where it had work for less than half of the time.
    pub(crate) fn speed(&self) -> Option<Speed> {
        let busy_cycles = self.busy.0.min(self.span.0);
        let enough = busy_cycles > 0 && busy_cycles >= self.span.0 / 2;
        enough.then_some(Speed { progress: self.progress, busy_cycles })
    }
}

#[cfg(test)]
impl ApplicationSample {
    /// An application of which nothing was seen yet.
    pub(crate) fn unseen(id: u32) -> Self {
        ApplicationSample {
            application: ApplicationId(id),
            tenant: TenantId(1),
            tag: None,
            partition: SmSet::EMPTY,
            stalled: SmSet::EMPTY,
            progress: Progress::default(),
            span: Cycles(0),
            busy: Cycles(0),
            warm_up_ctas: 0,
            rounds: None,
            profiled: false,
            rested: Nanos(0),
            character: None,
            cramped: false,
            entitlement: Entitlement::default(),
            bounds: Bounds::default(),
        }
    }
}

/// What a partitioner wants.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// Who has which SMs.
    pub plan: Plan,
    /// SMs whose workers wait at the next task border, each a member of some partition.
    pub stalled: SmSet,
    /// SMs that stay empty to save power, none of them in the plan.
    pub gated: SmSet,
    /// What it is doing, in one word.
    pub stage: &'static str,
    /// Its reasons.
    pub notes: Vec<Note>,
    /// What to measure before it is asked again; `None`: nothing, until the applications change.
    pub next: Option<IntervalRequest>,
}

impl Decision {
    /// Applications share each of their SMs; no partitioner was asked.
    pub(crate) fn shared(plan: Plan) -> Self {
        let (stalled, gated) = (SmSet::EMPTY, SmSet::EMPTY);
        Decision { plan, stalled, gated, stage: "shared", notes: Vec::new(), next: None }
    }
}

/// An interval that a partitioner wants to be measured.
///
/// It starts when the last worker has followed the decision. A warm-up comes first, then the
/// measurement. The measurement ends when it has lasted `at_least` and everybody that it awaits has
/// completed `ctas`, and rounds of the CTAs in flight that are [enough](crate::measuring) to know
/// the speed; else after `at_most`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntervalRequest {
    /// The warm-up.
    pub warm_up: Cycles,
    /// The shortest measurement.
    pub at_least: Cycles,
    /// CTAs that each application should complete in it.
    pub ctas: u64,
    /// The longest measurement.
    pub at_most: Cycles,
    /// Who should complete so many.
    pub awaits: Awaits,
    /// Whether to wait for a whole launch, where that takes no longer than twice as long.
    pub launches: bool,
}

/// Whose CTAs an interval waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Awaits {
    /// Everybody's.
    #[default]
    Everybody,
    /// Those of applications that have some of these SMs: only these are measured.
    Holders(SmSet),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(id: u32, busy: u64, span: u64) -> ApplicationSample {
        ApplicationSample {
            tenant: TenantId(0),
            span: Cycles(span),
            busy: Cycles(busy),
            ..ApplicationSample::unseen(id)
        }
    }

    #[test]
    fn a_speed_needs_work_for_half_of_the_time() {
        // The time with work, the span, and the time by which the progress is divided.
        for (busy, span, expected) in [
            (100, 100, Some(100)),
            (50, 100, Some(50)),
            (49, 100, None),
            // What lies outside of the span does not count.
            (120, 100, Some(100)),
            (1, 1, Some(1)),
            (0, 1, None),
            (0, 0, None),
            (5, 0, None),
        ] {
            let speed = application(1, busy, span).speed();
            assert_eq!(speed.map(|speed| speed.busy_cycles), expected, "{busy} of {span}");
        }
    }

    #[test]
    fn an_application_is_found_by_its_id() {
        let sample = Sample {
            now: Nanos(0),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, 4),
            applications: vec![application(3, 1, 1), application(5, 2, 2)],
        };
        let busy = |id| sample.find(ApplicationId(id)).map(|found| found.busy);
        assert_eq!([3, 4, 5].map(busy), [Some(Cycles(1)), None, Some(Cycles(2))]);
    }
}
