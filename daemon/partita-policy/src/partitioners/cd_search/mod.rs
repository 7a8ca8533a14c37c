//! CD-search (Zhao et al., ICS '18): classify applications, then search as their classes demand.
//!
//! ```text
//!        ┌───────────── other applications, or speeds that no longer fit ─────────────┐
//!        ▼                                                                            │
//! even split, measured ──► probe, where no profile says enough ──► all compute: even ─┤
//!                                              ├──► both classes: throughput (§4.2) ──┤
//!                                              └──► all memory: power (§4.3) ─────────┘
//! ```
//!
//! Every application has one [`Curve`] of speed over SMs, and every interval is one observation of
//! it. What the off-SM bandwidth model says (§4.1.2, [`crate::classify`]) is what is expected of
//! the curve before.
//!
//! - **Class**: memory-intensive where all SMs gain less than a [limit](CdSearchSettings::border)
//!   over half of them, by the curve (`classes`).
//! - **Objective**: throughput, or power with speeds kept, over the same curves (`objectives`). The
//!   search measures what the objective proposes (`search`).
//! - **Watch**: an application whose speed is off its curve is classified again (`watch`).
//! - **Groups**: applications that come together again go on where they were (`groups`).
//!
//! Where an administrator has set terms, *even* means fair: by weight, within the bounds of each
//! application. The search keeps to the bounds, and speeds count by weight.
//!
//! `docs/deviations.md` lists where this departs from the paper; the variant as printed is
//! `cd-search-paper`. An application that completes nothing while the even split is measured
//! ([`Class::Unknown`]) keeps its even share, and the others are treated as if it was not there.
//!
//! [`Curve`]: crate::models::Curve

mod classes;
mod groups;
mod objectives;
mod search;
mod watch;

use crate::measuring::{Clock, Speed};
use crate::models::{Curve, Observation};
use crate::partitioners::even::{even_plan, holders};
use crate::{
    Awaits, Bounds, CalibrationError, Decision, IntervalRequest, Partitioner, Plan, Sample,
    check_calibration,
};
use partita_model::{
    ApplicationId, Calibration, Cause, Class, Cycles, EvenReason, Evidence, Note, SmSet,
    SupplyModel,
};

/// What can be set about CD-search. The defaults are the paper's where it has any; the others have
/// their reasons here, and what each is worth in `docs/experiments.md`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CdSearchSettings {
    /// How supply is computed.
    pub supply: SupplyModel,
    /// SMs that change hands at once (§4.2: two).
    pub step: u16,
    /// In the power mode, the speed that each keeps, as a part of the even split's (§4.3: within
    /// 95 %).
    pub keep: f64,
    /// The intervals of classes and search (§4.1, §4.2: 20,000 cycles warm-up, 20,000 cycles
    /// measuring). With fewer than 64 CTAs the count's grain would hide a loss of 5 %. The longest
    /// is twenty times the shortest, so that one application of long CTAs does not hold up all.
    pub search: IntervalRequest,
    /// The intervals of watching: five times as long, because nothing waits for them.
    pub watch: IntervalRequest,
    /// What half of all SMs leave of the distance to the greatest speed, below which an application
    /// is memory-intensive: all SMs are then less than 1.5 times as fast, the mean of 1 (nothing
    /// gained) and 2 (in proportion).
    pub border: f64,
    /// Launches of at most so many rounds of CTAs go by steps. Of more the last one wastes less
    /// than an eighth, and CTAs are not so much alike that all rounds end as one.
    pub few_rounds: f64,
    /// Others that take no more than such a part of each bandwidth lend SMs to one that is probed:
    /// with all of it used, the half of that part that falls free speeds nobody up by more than the
    /// 3 % that an interval may be off.
    pub modest: f64,
    /// Intervals that are measured again where one says nothing: a program that rests between two
    /// launches would be of unknown class, and keep its even share, until the next classification.
    pub patience: u8,
    /// Plans that one search tries at most. The search ends before where no plan promises anything.
    pub trials: u8,
    /// A neighbour of the best plan is tried even where it promises to be worse by that part,
    /// because curves err by about as much.
    pub hope: f64,
    /// The part of its even speed that a plan for throughput leaves everybody: of many applications
    /// each curve is extrapolated far, to all SMs, so one that seems to be worth little may starve.
    pub least: f64,
    /// The deviation from the curve that is a misfit. Phases of one program differ by more; what
    /// the clock and other applications' memory do to a speed stays below.
    pub tolerance: f64,
    /// The pause after which a misfit may lead to a new classification, about five searches. It
    /// doubles every time: phases that change faster than a search pays are not searched for ever.
    pub pause: Cycles,
    /// The longest such pause: some seconds.
    pub longest_pause: Cycles,
}

impl Default for CdSearchSettings {
    fn default() -> Self {
        let search = IntervalRequest {
            warm_up: Cycles(20_000),
            at_least: Cycles(20_000),
            ctas: 64,
            at_most: Cycles(400_000),
            awaits: Awaits::Everybody,
            launches: false,
        };
        CdSearchSettings {
            supply: SupplyModel::Printed,
            step: 2,
            keep: 0.95,
            search,
            watch: IntervalRequest {
                at_least: Cycles(100_000),
                ctas: 256,
                at_most: Cycles(2_000_000),
                ..search
            },
            border: 0.5,
            few_rounds: 8.0,
            modest: 1.0 / 16.0,
            patience: 3,
            trials: 8,
            hope: 0.02,
            least: 0.6,
            tolerance: 0.25,
            pause: Cycles(2_000_000),
            longest_pause: Cycles(2_000_000_000),
        }
    }
}

/// What is known of an application that takes part.
#[derive(Clone, Debug)]
struct Member {
    application: ApplicationId,
    /// Its set of the even split.
    own: SmSet,
    /// SMs of its set that work; on the others its workers wait.
    active: u16,
    class: Class,
    evidence: Evidence,
    /// Whether it completed a CTA within the warm-up.
    quick: bool,
    /// What half of all SMs are expected to leave by the off-SM bandwidth model, where known.
    expected: Option<f64>,
    /// SMs that the CTAs of a launch fill once, where launches last for few rounds.
    slots: Option<f64>,
    /// The speed on the even split: the unit of all others.
    reference: Option<Speed>,
    observations: Vec<Observation>,
    /// The speed in the first interval of watching that fitted.
    level: Option<f64>,
    /// What terms leave of it.
    bounds: Bounds,
}

impl Member {
    fn even(&self) -> u16 {
        self.own.len()
    }

    /// Its SMs in a probe that stalls some.
    fn fewest_to_probe(&self) -> u16 {
        (self.even() / 2).max(self.bounds.least)
    }

    /// Its SMs on which workers wait: the highest, so that the others can stay where they are.
    fn waiting(&self) -> SmSet {
        self.own.iter().skip(self.active.into()).collect()
    }

    /// The speed in an interval, in units of the even split's.
    fn relative(&self, sample: &Sample) -> Option<f64> {
        sample.find(self.application)?.speed()?.relative_to(self.reference.as_ref()?)
    }

    fn classified(&self) -> Note {
        Note::Classified {
            application: self.application,
            class: self.class,
            evidence: self.evidence,
            quick: self.quick,
        }
    }
}

/// What is being measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing: there is one application at most.
    Rest,
    /// The even split.
    Even,
    /// Some on other numbers of SMs, for their classes.
    Probe,
    /// A plan of the search.
    Search,
    /// Whether speeds stay what they were.
    Watch,
}

/// The CD-search partitioner.
#[derive(Clone, Debug)]
pub struct CdSearch {
    settings: CdSearchSettings,
    hardware: Calibration,
    stage: Stage,
    /// Intervals of this stage that have said nothing.
    retries: u8,
    members: Vec<Member>,
    plan: Plan,
    gated: SmSet,
    search: search::Search,
    pauses: watch::Pauses,
    /// The SMs that the members share.
    sms: SmSet,
    groups: groups::Groups,
}

impl CdSearch {
    /// CD-search for a GPU.
    ///
    /// # Errors
    /// Where the calibration describes none.
    pub fn new(
        settings: CdSearchSettings,
        hardware: Calibration,
    ) -> Result<Self, CalibrationError> {
        check_calibration(&hardware)?;
        Ok(CdSearch {
            pauses: watch::Pauses::new(settings.pause),
            settings,
            hardware,
            stage: Stage::Rest,
            retries: 0,
            members: Vec::new(),
            plan: Plan::default(),
            gated: SmSet::EMPTY,
            search: search::Search::default(),
            sms: SmSet::EMPTY,
            groups: groups::Groups::default(),
        })
    }

    /// Starts at an even split.
    fn begin(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let (plan, why) = even_plan(sample, EvenReason::Profiling);
        notes.extend(why);
        let member = |&(application, _): &(ApplicationId, SmSet)| {
            let own = plan.sms(application);
            Member {
                application,
                own,
                active: own.len(),
                class: Class::Unknown,
                evidence: Evidence::NoProgress { cycles: 0 },
                quick: false,
                expected: None,
                slots: None,
                reference: None,
                observations: Vec::new(),
                level: None,
                bounds: sample.find(application).map_or_else(Bounds::default, |seen| seen.bounds),
            }
        };
        self.members = holders(sample).iter().map(member).collect();
        self.plan = plan;
        self.gated = SmSet::EMPTY;
        self.sms = sample.sms;
        let stage = if self.members.len() < 2 { Stage::Rest } else { Stage::Even };
        self.go_to(stage, notes)
    }

    fn go_to(&mut self, stage: Stage, notes: Vec<Note>) -> Decision {
        self.stage = stage;
        self.retries = 0;
        self.decision(notes)
    }

    /// Measures the same once more, if that has not been done too often.
    fn again(&mut self) -> Option<Decision> {
        self.retries = self.retries.saturating_add(1);
        (self.retries <= self.settings.patience).then(|| self.decision(Vec::new()))
    }

    /// The decision that the present state amounts to.
    fn decision(&self, notes: Vec<Note>) -> Decision {
        let waiting = self.members.iter().map(Member::waiting);
        let stalled = match self.stage {
            Stage::Probe | Stage::Search => waiting.fold(SmSet::EMPTY, |all, own| all.union(&own)),
            Stage::Rest | Stage::Even | Stage::Watch => SmSet::EMPTY,
        };
        // A class stands for long: what one interval says of a search the next ones correct.
        let classifying = IntervalRequest { launches: true, ..self.settings.search };
        let (stage, next) = match self.stage {
            Stage::Rest => ("alone", None),
            Stage::Even => ("profile", Some(classifying)),
            // What the others do meanwhile says nothing of them.
            Stage::Probe => {
                let probed = self.search.probed.iter().map(|&at| self.members[at].application);
                let sms = probed.fold(SmSet::EMPTY, |all, id| all.union(&self.plan.sms(id)));
                ("probe", Some(IntervalRequest { awaits: Awaits::Holders(sms), ..classifying }))
            }
            Stage::Search => (self.search.name(), Some(self.settings.search)),
            Stage::Watch => ("watch", Some(self.settings.watch)),
        };
        Decision { plan: self.plan.clone(), stalled, gated: self.gated, stage, notes, next }
    }

    /// The curve that fits best to what was measured of a member, among those of its class.
    fn curve(&self, member: &Member) -> Curve {
        let border = self.settings.border;
        let bounds = match member.class {
            Class::Memory => (0.0, border),
            Class::Compute => (border, 1.0),
            Class::Unknown => (0.0, 1.0),
        };
        let expected = member.expected.unwrap_or(f64::midpoint(bounds.0, bounds.1));
        Curve::fitted(self.hardware.sms, member.slots, expected, bounds, &member.observations)
    }

    /// Whether terms leave the members what they left when the group began.
    fn is_bounded_as(&self, sample: &Sample) -> bool {
        let bounds = self.members.iter().map(|member| member.bounds);
        bounds.eq(sample.applications.iter().map(|seen| seen.bounds))
    }

    fn clock(&self) -> Clock {
        Clock { khz: self.hardware.sm_clock_khz }
    }
}

impl Partitioner for CdSearch {
    fn name(&self) -> &'static str {
        "cd-search"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let members = self.members.iter().map(|member| member.application);
        let same = members.eq(sample.applications.iter().map(|a| a.application))
            && self.is_bounded_as(sample);
        let interval = match (sample.cause, sample.interval) {
            (Cause::Interval, Some(interval)) if same => interval,
            _ => return self.change_group(sample),
        };
        match self.stage {
            Stage::Rest => self.decision(Vec::new()),
            Stage::Even => self.even_measured(sample, &interval),
            Stage::Probe => self.probed(sample),
            Stage::Search => self.searched(sample),
            Stage::Watch => self.watched(sample),
        }
    }
}

#[cfg(test)]
mod tests;
