//! The search: an objective proposes a plan, the plan is measured, and the best plan stands.
//!
//! Each interval is one observation of every curve, and the next proposal is made with all of them.
//!
//! While a search for throughput lasts SMs change hands, so that nobody waits. While one for power
//! lasts, workers wait on the SMs that may be freed, so that these can be resumed at once.

use super::objectives::Objective;
use super::{CdSearch, Member, Stage};
use crate::plans::allot;
use crate::{Decision, Sample};
use partita_model::{ApplicationId, Class, Note, SmSet};

/// SMs by member, and what was measured with them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Trial {
    pub(super) counts: Vec<u16>,
    /// By member, in units of the even split's: 1 where that is not known, 0 where an interval said
    /// nothing of somebody.
    pub(super) speeds: Vec<f64>,
}

/// Where a search stands.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Search {
    pub(super) objective: Objective,
    /// Trials in order, the even split first; no counts twice.
    pub(super) trials: Vec<Trial>,
    /// What is measured now.
    counts: Vec<u16>,
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
        self.trials.iter().any(|trial| trial.counts == counts)
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
        let even = Trial { speeds: vec![1.0; counts.len()], counts };
        self.search = Search { objective, trials: vec![even], ..Search::default() };
        self.propose(sample, notes)
    }

    /// An interval of the search has ended.
    pub(super) fn searched(&mut self, sample: &Sample) -> Decision {
        let speed = |member: &Member| {
            if member.reference.is_some() { member.relative(sample) } else { Some(1.0) }
        };
        let speeds: Option<Vec<f64>> = self.members.iter().map(speed).collect();
        if speeds.is_none()
            && let Some(decision) = self.again()
        {
            return decision;
        }
        let limit = self.least_speed();
        let counts = std::mem::take(&mut self.search.counts);
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        for (at, &relative) in speeds.iter().flatten().enumerate() {
            let (member, active) = (&mut self.members[at], counts[at]);
            if member.reference.is_none() {
                continue;
            }
            member.observations.push((active, relative));
            let (application, of) = (member.application, member.even());
            let ctas = sample.find(application).map_or(0, |seen| seen.progress.ctas);
            notes.push(Note::Measured { application, active, of, relative, limit, ctas });
        }
        let speeds = speeds.unwrap_or_else(|| vec![0.0; counts.len()]);
        self.search.trials.push(Trial { counts, speeds });
        self.propose(sample, notes)
    }

    /// Measures the next plan; ends where none promises anything.
    fn propose(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let view = self.view();
        let more = self.search.trials.len() <= self.settings.trials.into();
        let Some(counts) = view.best().filter(|_| more).and_then(|best| view.next(&best.counts))
        else {
            return self.end_search(sample, notes);
        };
        let holders = self.holders();
        for (member, &active) in self.members.iter_mut().zip(&counts) {
            let (application, of) = (member.application, member.even());
            notes.push(Note::Tries { application, active, of });
            if self.search.objective == Objective::Power {
                member.active = active;
            }
        }
        if self.search.objective == Objective::Throughput {
            self.plan = allot(sample.sms, &holders, &counts);
        }
        self.search.counts = counts;
        self.go_to(Stage::Search, notes)
    }

    pub(super) fn holders(&self) -> Vec<(ApplicationId, SmSet)> {
        self.members.iter().map(|m| (m.application, self.plan.sms(m.application))).collect()
    }

    /// The best plan stands.
    fn end_search(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let Some(Trial { counts, speeds }) = self.view().best().cloned() else {
            return self.go_to(Stage::Watch, notes);
        };
        for ((member, &sms), &relative) in self.members.iter().zip(&counts).zip(&speeds) {
            let (application, of) = (member.application, member.even());
            match member.class {
                Class::Memory => {
                    notes.push(Note::Needs { application, sms, of, relative: Some(relative) });
                }
                _ if sms > of => notes.push(Note::Receives { application, from: of, to: sms }),
                _ => {}
            }
        }
        self.plan = allot(sample.sms, &self.holders(), &counts);
        self.gated = sample.sms.difference(&self.plan.taken());
        if !self.gated.is_empty() {
            notes.push(Note::Gates { sms: self.gated });
        }
        self.go_to(Stage::Watch, notes)
    }
}
