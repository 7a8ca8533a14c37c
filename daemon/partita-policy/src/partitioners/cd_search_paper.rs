//! CD-search as printed (Zhao, Wang and Eeckhout, ICS '18): nothing of ours is added, so that what
//! we add to [`crate::CdSearch`] can be compared with it.
//!
//! ```text
//! arrival ──► classify (§4.1.2) ──► none memory-intensive: stay even (§3.3)
//!                     │
//!                     ├──► both classes: performance mode (§4.2) ──► preempt once
//!                     └──► all memory-intensive: power mode (§4.3) ──► preempt once, gate the rest
//! ```
//!
//! | paper | here |
//! | --- | --- |
//! | §4: an arrival restarts classification | [`CdSearchPaper::classify_all`], for a departure too |
//! | §4.1.2: even split, 20K cycles of warm-up, 20K cycles of profiling | [`INTERVAL`] |
//! | §4.1.2, Eq. 1 and 2: the off-SM bandwidth model | [`crate::demand`], [`crate::supply`] |
//! | §4.1.2: a CTA that ends in the warm-up lets its SMs be drained | `quick` of the decision |
//! | §4.2: stall in steps of two, 40K cycles a step, to a loss of 5 % | [`CdSearchPaper::stall`] |
//! | §4.3: one SM, a tentative number, one more at a time to 95 % | [`CdSearchPaper::resume`] |
//! | §7.4.3: what remains goes evenly to the compute-intensive ones | [`CdSearchPaper::preempt`] |
//!
//! SMs are stalled while the search lasts and change hands once, at its end. The search is not
//! repeated until the applications change. `docs/deviations.md` lists what the paper leaves open
//! and how this file decides it.

use super::even::{even_plan, holders};
use crate::measuring::Speed;
use crate::plans::{allot, even_counts};
use crate::{
    ApplicationSample, Awaits, CalibrationError, Decision, IntervalRequest, Partitioner, Plan,
    Sample, check_calibration, classify,
};
use partita_model::{
    ApplicationId, Calibration, Cause, Class, Cycles, EvenReason, Evidence, Note, SmSet,
    SupplyModel,
};

/// §4.1.2 and §4.2: 20K cycles of warm-up and 20K cycles of profiling. The paper counts
/// instructions; our intervals count CTAs and last until 64 of each application's are complete.
const INTERVAL: IntervalRequest = IntervalRequest {
    warm_up: Cycles(20_000),
    at_least: Cycles(20_000),
    ctas: 64,
    at_most: Cycles(400_000),
    awaits: Awaits::Everybody,
    launches: false,
};
/// §4.2: SMs that one iteration stalls.
const STEP: u16 = 2;
/// §4.2: a loss of 5 %; §4.3: within 95 % of the performance with half of the SMs.
const KEEP: f64 = 0.95;
/// Intervals of classification while an application's counters are unknown: ours. The paper's
/// counters are always there.
const CLASSIFICATIONS: u8 = 4;

/// One of the co-running applications.
#[derive(Clone, Debug)]
struct Member {
    application: ApplicationId,
    /// Its SMs of the even split: half of all for two applications.
    half: SmSet,
    /// SMs of these that are not stalled.
    active: u16,
    /// The fewest SMs that lost no more than 5 %.
    enough: u16,
    class: Class,
    evidence: Evidence,
    /// §4.1.2: it finished a CTA during the warm-up.
    quick: bool,
    /// Its performance with `half`.
    reference: Option<Speed>,
    /// Whether the search for its number of SMs has ended.
    found: bool,
    /// Performance with the number found, against `reference`.
    kept: Option<f64>,
}

impl Member {
    /// IPC ÷ IPC with half of the SMs; 0 where the interval shows no progress.
    fn relative_ipc(&self, sample: &Sample) -> f64 {
        let speed = sample.find(self.application).and_then(speed);
        speed.zip(self.reference).and_then(|(now, half)| now.relative_to(&half)).unwrap_or(0.0)
    }

    fn stalled(&self) -> SmSet {
        self.half.iter().skip(self.active.into()).collect()
    }

    fn tries(&self) -> Note {
        let Member { application, active, .. } = *self;
        Note::Tries { application, active, of: self.half.len() }
    }

    fn measured(&self, relative: f64, sample: &Sample) -> Note {
        Note::Measured {
            application: self.application,
            active: self.active,
            of: self.half.len(),
            relative,
            limit: KEEP,
            ctas: sample.find(self.application).map_or(0, |seen| seen.progress.ctas),
        }
    }
}

/// What is being measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// At most one application: there is nothing to partition.
    Alone,
    /// §4.1.2, for the so-manieth interval.
    Classify(u8),
    /// §4.2.
    Performance,
    /// §4.3, first stage: one SM each.
    PowerOne,
    /// §4.3: the tentative number, and the second stage behind it.
    PowerResume,
    /// The partition stands until the applications change.
    Found,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Alone => "alone",
            Phase::Classify(_) => "profile",
            Phase::Performance => "performance",
            Phase::PowerOne | Phase::PowerResume => "power",
            Phase::Found => "found",
        }
    }
}

/// The paper's partitioner.
#[derive(Clone, Debug)]
pub struct CdSearchPaper {
    hardware: Calibration,
    phase: Phase,
    members: Vec<Member>,
    plan: Plan,
    gated: SmSet,
}

impl CdSearchPaper {
    /// The partitioner for a GPU.
    ///
    /// # Errors
    /// Where the calibration describes none.
    pub fn new(hardware: Calibration) -> Result<Self, CalibrationError> {
        check_calibration(&hardware)?;
        let (members, plan) = (Vec::new(), Plan::default());
        Ok(CdSearchPaper { hardware, phase: Phase::Alone, members, plan, gated: SmSet::EMPTY })
    }

    /// §4: the applications are others than before. §4.1.2: each gets an equal share.
    fn classify_all(&mut self, sample: &Sample) -> Decision {
        let (plan, notes) = even_plan(sample, EvenReason::Profiling);
        let member = |(application, _): &(ApplicationId, SmSet)| Member {
            application: *application,
            half: plan.sms(*application),
            active: plan.sms(*application).len(),
            enough: plan.sms(*application).len(),
            class: Class::Unknown,
            evidence: Evidence::NoProgress { cycles: 0 },
            quick: false,
            reference: None,
            found: false,
            kept: None,
        };
        self.members = holders(sample).iter().map(member).collect();
        (self.plan, self.gated) = (plan, SmSet::EMPTY);
        self.phase = if self.members.len() < 2 { Phase::Alone } else { Phase::Classify(1) };
        self.decision(notes)
    }

    /// §4.1.2: classes from APKI_LLC and the LLC's hit rate, which the profiling phase counted.
    fn classified(&mut self, sample: &Sample, intervals: u8) -> Decision {
        let mut unknown = false;
        for member in &mut self.members {
            let Some(seen) = sample.find(member.application) else { continue };
            member.quick = seen.warm_up_ctas > 0;
            member.reference = speed(seen);
            let traffic = seen.progress.traffic;
            let class = traffic.and_then(|t| classify(&self.hardware, &t, SupplyModel::Printed));
            unknown |= class.is_none() || member.reference.is_none();
            let cycles = sample.interval.map_or(0, |interval| interval.cycles);
            (member.class, member.evidence) = class
                .filter(|_| member.reference.is_some())
                .unwrap_or((Class::Unknown, Evidence::NoProgress { cycles }));
        }
        if unknown && intervals < CLASSIFICATIONS {
            self.phase = Phase::Classify(intervals + 1);
            return self.decision(Vec::new());
        }
        let classified = |member: &Member| Note::Classified {
            application: member.application,
            class: member.class,
            evidence: member.evidence,
            quick: member.quick,
        };
        let notes = self.members.iter().map(classified).collect();
        let any = |class| self.members.iter().any(|member| member.class == class);
        match (any(Class::Memory), any(Class::Compute)) {
            (false, _) => self.stay_even(sample, notes),
            (true, true) => self.start(Phase::Performance, notes),
            (true, false) => self.start(Phase::PowerOne, notes),
        }
    }

    /// §3.3: no partition is better than the even one.
    fn stay_even(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        notes.extend(even_plan(sample, EvenReason::NoneMemoryIntensive).1);
        self.phase = Phase::Found;
        self.decision(notes)
    }

    /// The first stall of a mode: two SMs (§4.2), or all but one (§4.3).
    fn start(&mut self, phase: Phase, mut notes: Vec<Note>) -> Decision {
        self.phase = phase;
        for member in self.searching() {
            let fewer = member.half.len().saturating_sub(STEP).max(1);
            member.active = if phase == Phase::PowerOne { 1 } else { fewer };
            notes.push(member.tries());
        }
        self.decision(notes)
    }

    /// §4.2: stalls two more SMs of each memory-intensive application that lost no more than 5 %.
    /// The others go back to the number before.
    fn stall(&mut self, sample: &Sample) -> Decision {
        let mut notes = Vec::new();
        for member in self.searching() {
            let relative = member.relative_ipc(sample);
            notes.push(member.measured(relative, sample));
            member.found = relative < KEEP || member.active == 1;
            if relative >= KEEP {
                (member.enough, member.kept) = (member.active, Some(relative));
            }
            if member.found {
                member.active = member.enough;
            } else {
                member.active = member.active.saturating_sub(STEP).max(1);
                notes.push(member.tries());
            }
        }
        self.next(sample, notes)
    }

    /// §4.3, first stage: performance is in proportion to SMs until it saturates, so that the ratio
    /// of half of the SMs against one is the number at which it does.
    fn extrapolate(&mut self, sample: &Sample) -> Decision {
        let mut notes = Vec::new();
        for member in self.searching() {
            let one = member.relative_ipc(sample);
            notes.push(member.measured(one, sample));
            let half = member.half.len();
            member.active = (1..half).find(|&sms| f64::from(sms) * one >= 1.0).unwrap_or(half);
            notes.push(member.tries());
        }
        self.phase = Phase::PowerResume;
        self.decision(notes)
    }

    /// §4.3, second stage: one SM at a time is resumed until performance is within 95 %.
    fn resume(&mut self, sample: &Sample) -> Decision {
        let mut notes = Vec::new();
        for member in self.searching() {
            let relative = member.relative_ipc(sample);
            notes.push(member.measured(relative, sample));
            member.kept = Some(relative);
            member.found = relative >= KEEP || member.active == member.half.len();
            if !member.found {
                member.active += 1;
                notes.push(member.tries());
            }
        }
        self.next(sample, notes)
    }

    /// Another iteration, until all have found their number.
    fn next(&mut self, sample: &Sample, notes: Vec<Note>) -> Decision {
        if self.searching().next().is_some() {
            return self.decision(notes);
        }
        self.preempt(sample, notes)
    }

    /// §4.2, §4.3 and §7.4.3: the stalled SMs are preempted. Compute-intensive applications get
    /// equal parts of them; without any they are gated.
    fn preempt(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let is_compute = |member: &&Member| member.class == Class::Compute;
        let has = |member: &Member| (member.application, member.half);
        let kept: u16 =
            self.members.iter().filter(|m| !is_compute(m)).map(|member| member.active).sum();
        let receivers: Vec<_> = self.members.iter().filter(is_compute).map(has).collect();
        let mut shares = even_counts(sample.sms.len().saturating_sub(kept), &receivers).into_iter();
        let count = |member: &Member| match member.class {
            Class::Compute => shares.next().unwrap_or(0),
            Class::Memory | Class::Unknown => member.active,
        };
        let counts: Vec<u16> = self.members.iter().map(count).collect();
        let holders: Vec<_> = self.members.iter().map(has).collect();
        self.plan = allot(sample.sms, &holders, &counts);
        self.gated = sample.sms.difference(&self.plan.taken());
        for (member, &sms) in self.members.iter().zip(&counts) {
            let (application, of) = (member.application, member.half.len());
            match member.class {
                Class::Memory => {
                    notes.push(Note::Needs { application, sms, of, relative: member.kept });
                }
                Class::Compute => notes.push(Note::Receives { application, from: of, to: sms }),
                Class::Unknown => {}
            }
        }
        if !self.gated.is_empty() {
            notes.push(Note::Gates { sms: self.gated });
        }
        self.phase = Phase::Found;
        self.decision(notes)
    }

    /// The memory-intensive applications whose number is not found yet. All are searched at once.
    fn searching(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut().filter(|m| m.class == Class::Memory && !m.found)
    }

    fn decision(&self, notes: Vec<Note>) -> Decision {
        let (next, stalls) = match self.phase {
            Phase::Alone | Phase::Found => (None, false),
            Phase::Classify(_) => (Some(INTERVAL), false),
            Phase::Performance | Phase::PowerOne | Phase::PowerResume => (Some(INTERVAL), true),
        };
        let stalled = self.members.iter().filter(|_| stalls).map(Member::stalled);
        Decision {
            plan: self.plan.clone(),
            stalled: stalled.fold(SmSet::EMPTY, |all, sms| all.union(&sms)),
            gated: self.gated,
            stage: self.phase.name(),
            notes,
            next,
        }
    }
}

impl Partitioner for CdSearchPaper {
    fn name(&self) -> &'static str {
        "cd-search-paper"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let ids = self.members.iter().map(|member| member.application);
        let same = ids.eq(sample.applications.iter().map(|a| a.application));
        if !same || sample.cause != Cause::Interval || sample.interval.is_none() {
            return self.classify_all(sample);
        }
        match self.phase {
            Phase::Classify(intervals) => self.classified(sample, intervals),
            Phase::Performance => self.stall(sample),
            Phase::PowerOne => self.extrapolate(sample),
            Phase::PowerResume => self.resume(sample),
            Phase::Alone | Phase::Found => self.decision(Vec::new()),
        }
    }
}

/// What it did in an interval, if it completed anything.
fn speed(seen: &ApplicationSample) -> Option<Speed> {
    let busy_cycles = seen.busy.0.min(seen.span.0);
    (busy_cycles > 0 && seen.progress.ctas > 0)
        .then_some(Speed { progress: seen.progress, busy_cycles })
}

#[cfg(test)]
#[path = "cd_search_paper_tests.rs"]
mod tests;
