//! The search: plans are proposed, measured, and the best of them is measured twice.
//!
//! An [`Objective`] proposes plans by the curves of all members. Each
//! interval is one observation of every curve, and the next proposal is made with all of them.
//! Where nothing is proposed any more, the best plan is measured once more, for of several noisy
//! intervals the best is often one that flatters. It stands if it is still the best by all that was
//! seen of it.
//!
//! While a search for throughput lasts SMs change hands, so that nobody waits. While one for power
//! lasts, workers wait on the SMs that may be freed, so that these can be resumed at once.

use super::objectives::Objective;
use super::{CdSearch, Member, Stage};
use crate::measuring::Speed;
use crate::plans::allot;
use crate::{ApplicationSample, Decision, Sample};
use partita_model::{ApplicationId, Class, Note, SmSet};

/// SMs by member, and what was measured with them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Trial {
    pub(super) counts: Vec<u16>,
    /// By member, in units of the even split's; absent where that was not measured.
    pub(super) speeds: Vec<Option<f64>>,
}

/// Where a search stands.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Search {
    pub(super) objective: Objective,
    /// What is measured now, and has been tried, the even split first.
    tried: Vec<Vec<u16>>,
    /// Trials in order; several of the same counts where these were measured again.
    trials: Vec<Trial>,
    /// Members that a probe is about.
    pub(super) probed: Vec<usize>,
}

impl Search {
    pub(super) fn name(&self) -> &'static str {
        match self.objective {
            Objective::Throughput => "refine",
            Objective::Power => "power",
        }
    }

    pub(super) fn was_tried(&self, counts: &[u16]) -> bool {
        self.tried.iter().any(|tried| tried == counts)
    }

    pub(super) fn even(&self) -> Option<&Trial> {
        self.trials.first()
    }

    /// All that was measured with the same counts, as one: the mean.
    pub(super) fn results(&self) -> Vec<Trial> {
        let mut results: Vec<Trial> = Vec::new();
        for trial in &self.trials {
            if results.iter().any(|result| result.counts == trial.counts) {
                continue;
            }
            let alike: Vec<&Trial> =
                self.trials.iter().filter(|other| other.counts == trial.counts).collect();
            let mean = |at: usize| {
                let speeds: Option<Vec<f64>> =
                    alike.iter().map(|trial| trial.speeds.get(at).copied().flatten()).collect();
                speeds.map(|speeds| super::mean(speeds.into_iter()))
            };
            let speeds = (0..trial.counts.len()).map(mean).collect();
            results.push(Trial { counts: trial.counts.clone(), speeds });
        }
        results
    }

    fn times_measured(&self, counts: &[u16]) -> usize {
        self.trials.iter().filter(|trial| trial.counts == counts).count()
    }
}

impl CdSearch {
    /// Begins with what is known of the even split.
    pub(super) fn start_search(
        &mut self,
        sample: &Sample,
        objective: Objective,
        notes: Vec<Note>,
    ) -> Decision {
        let counts: Vec<u16> = self.members.iter().map(Member::even).collect();
        let speeds = self.members.iter().map(|member| member.reference.map(|_| 1.0)).collect();
        let even = Trial { counts: counts.clone(), speeds };
        let tried = vec![counts];
        self.search = Search { objective, tried, trials: vec![even], probed: Vec::new() };
        self.propose(sample, notes)
    }

    /// An interval of the search has ended.
    pub(super) fn searched(&mut self, sample: &Sample) -> Decision {
        let relative = |member: &Member| {
            let speed = sample.find(member.application).and_then(ApplicationSample::speed)?;
            Some((speed.relative_to(member.reference.as_ref()?)?, speed))
        };
        let found: Vec<Option<(f64, Speed)>> = self.members.iter().map(relative).collect();
        let known = |(member, found): (&Member, &Option<(f64, Speed)>)| {
            member.reference.is_none() || found.is_some()
        };
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        if !self.members.iter().zip(&found).all(known) {
            return self.again().unwrap_or_else(|| self.propose(sample, notes));
        }
        let Some(counts) = self.search.tried.last().cloned() else {
            return self.end_search(sample, notes);
        };
        let limit = self.least_speed();
        for ((member, found), &active) in self.members.iter_mut().zip(&found).zip(&counts) {
            let Some((relative, speed)) = *found else { continue };
            member.observations.push((active, relative));
            let (application, of, ctas) = (member.application, member.even(), speed.progress.ctas);
            notes.push(Note::Measured { application, active, of, relative, limit, ctas });
        }
        let speeds = found.iter().map(|found| found.map(|(relative, _)| relative)).collect();
        self.search.trials.push(Trial { counts, speeds });
        self.propose(sample, notes)
    }

    /// Measures the next plan; ends where none promises anything and the best was measured twice.
    fn propose(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let view = self.view();
        let best = view.best();
        // One more than plans that are tried, for the best to be measured again.
        let measured = self.search.tried.len() - 1;
        let most = usize::from(self.settings.trials);
        let next = (measured < most).then(|| view.next(&best.counts)).flatten();
        let again = measured <= most
            && self.search.times_measured(&best.counts) < self.settings.confirm.into();
        let is_even = self.search.even().is_some_and(|even| even.counts == best.counts);
        let counts = match next {
            Some(counts) => counts,
            None if again && !is_even => best.counts,
            None => return self.end_search(sample, notes),
        };
        for (member, &active) in self.members.iter().zip(&counts) {
            if self.search.tried.last().is_none_or(|before| *before != counts) {
                let (application, of) = (member.application, member.even());
                notes.push(Note::Tries { application, active, of });
            }
        }
        self.try_counts(sample, &counts);
        self.search.tried.push(counts);
        self.go_to(Stage::Search, notes)
    }

    /// Gives members so many SMs: of everybody's, or of their own.
    fn try_counts(&mut self, sample: &Sample, counts: &[u16]) {
        match self.search.objective {
            Objective::Throughput => self.plan = allot(sample.sms, &self.holders(), counts),
            Objective::Power => {
                for (member, &count) in self.members.iter_mut().zip(counts) {
                    member.active = count;
                }
            }
        }
    }

    pub(super) fn holders(&self) -> Vec<(ApplicationId, SmSet)> {
        self.members.iter().map(|m| (m.application, self.plan.sms(m.application))).collect()
    }

    /// The best plan stands.
    fn end_search(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let best = self.view().best();
        for ((member, &sms), relative) in self.members.iter().zip(&best.counts).zip(&best.speeds) {
            let (application, of) = (member.application, member.even());
            match member.class {
                Class::Memory => {
                    notes.push(Note::Needs { application, sms, of, relative: *relative });
                }
                _ if sms > of => notes.push(Note::Receives { application, from: of, to: sms }),
                _ => {}
            }
        }
        self.plan = allot(sample.sms, &self.holders(), &best.counts);
        self.gated = sample.sms.difference(&self.plan.taken());
        if !self.gated.is_empty() {
            notes.push(Note::Gates { sms: self.gated });
        }
        self.go_to(Stage::Watch, notes)
    }
}
