//! An application that is alone is measured for the time when others come: with all SMs, and with
//! half of them stalled.
//!
//! A class is defined by what all SMs gain over half of them. Beside others an application has half
//! of the SMs or fewer, and what it gains over half of those says little where it saturates in
//! between. Whose profile says with certainty that it is compute-intensive is left alone, and so is
//! whoever's CTAs are so long that stalling would cost it more than a moment.

use super::{CdSearch, Stage, find, gain_limit};
use crate::{Decision, Sample, classify};
use partita_model::{Class, Evidence, Note};

impl CdSearch {
    /// A window with all SMs has ended.
    pub(super) fn solo_on_all(&mut self, sample: &Sample, retries: u8) -> Decision {
        let Some(member) = self.members.first_mut() else { return self.alone(Vec::new()) };
        let speed =
            CdSearch::speed(sample, member.application).filter(|speed| speed.progress.ctas > 0);
        let seen = find(sample, member.application);
        let profiled = seen.is_some_and(|seen| seen.profiled);
        let told = speed.is_some_and(|speed| speed.progress.traffic.is_some());
        if (speed.is_none() || profiled && !told) && retries < self.settings.patience {
            self.stage = Stage::Solo { half: false, retries: retries + 1 };
            return self.decision(Vec::new());
        }
        let Some(speed) = speed else { return self.alone(Vec::new()) };
        member.quick = seen.is_some_and(|seen| seen.warm_up_ctas > 0);
        member.reference = Some(speed);
        let traffic = speed.progress.traffic;
        member.modelled = traffic.and_then(|t| classify(&self.hardware, &t, self.settings.supply));
        let certain = member.modelled.filter(|(_, evidence)| self.settings.trust.holds(evidence));
        if let Some((Class::Compute, evidence)) = certain {
            return self.known(Class::Compute, evidence);
        }
        if !member.quick {
            return self.alone(Vec::new());
        }
        member.active = member.even() / 2;
        let (application, active, of) = (member.application, member.active, member.even());
        self.stage = Stage::Solo { half: true, retries: 0 };
        self.decision(vec![Note::Tries { application, active, of }])
    }

    /// A window with half of them has ended.
    pub(super) fn solo_on_half(&mut self, sample: &Sample, retries: u8) -> Decision {
        let Some(member) = self.members.first() else { return self.alone(Vec::new()) };
        let relative = member.relative(CdSearch::speed(sample, member.application));
        let Some(relative) = relative.filter(|relative| *relative > 0.0) else {
            if retries >= self.settings.patience {
                return self.alone(Vec::new());
            }
            self.stage = Stage::Solo { half: true, retries: retries + 1 };
            return self.decision(Vec::new());
        };
        let (fewer, more, gain) = (member.active, member.even(), 1.0 / relative);
        let limit = gain_limit(fewer, more, self.settings.linear);
        let class = if gain < limit { Class::Memory } else { Class::Compute };
        self.known(class, Evidence::Scaling { fewer, more, gain, limit })
    }

    fn known(&mut self, class: Class, evidence: Evidence) -> Decision {
        let mut notes = Vec::new();
        if let Some(member) = self.members.first_mut() {
            (member.class, member.evidence) = (class, evidence);
            notes.push(member.classified());
            self.solo.insert(member.application, (class, evidence));
        }
        self.alone(notes)
    }

    /// Nothing more is to be found out: all SMs work.
    fn alone(&mut self, mut notes: Vec<Note>) -> Decision {
        for member in &mut self.members {
            member.active = member.even();
            notes.push(Note::Alone { application: member.application });
        }
        self.stage = Stage::Alone;
        self.decision(notes)
    }
}
