//! Watching: does everyone still go as its curve says?
//!
//! The first interval after a search is compared with the curve, and only from below: CTAs that
//! began together were slow while the even split was measured, and nobody minds that they are
//! faster since. Later intervals are compared with the first. Counters are compared too: two
//! programs of one process may be equally fast on an even share. An interval that does not fit
//! leads to a new classification of all, and so does an application of unknown class.

use super::{CdSearch, Member};
use crate::{Decision, Sample, classify};
use partita_model::{Class, Cycles, Evidence, Nanos, Note};

/// Pauses between classifications, from one change of the applications to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pauses {
    not_before: Option<Nanos>,
    pause: Cycles,
}

impl Pauses {
    pub(super) fn new(pause: Cycles) -> Self {
        Pauses { not_before: None, pause }
    }
}

impl CdSearch {
    pub(super) fn watched(&mut self, sample: &Sample) -> Decision {
        let pause = self.clock().nanos(self.pauses.pause);
        let not_before =
            *self.pauses.not_before.get_or_insert(Nanos(sample.now.0.saturating_add(pause.0)));
        let mut again = false;
        let mut notes = Vec::new();
        for index in 0..self.members.len() {
            let member = &self.members[index];
            if member.class == Class::Unknown {
                again |= member.even() > 0;
                continue;
            }
            let changed = self.class_by_counters(sample, member);
            let Some((speed, expected)) = self.against_expected(sample, member) else { continue };
            let (relative, tolerance) = (speed / expected, self.settings.tolerance);
            let (least, most) = (1.0 - tolerance, member.level.map(|_| 1.0 + tolerance));
            let member = &mut self.members[index];
            let fits = relative >= least && most.is_none_or(|most| relative <= most);
            if fits && changed.is_none() {
                member.level.get_or_insert(speed);
                continue;
            }
            again = true;
            let (application, class) = (member.application, member.class);
            notes.push(match changed {
                Some(to) => Note::ClassChanged { application, from: class, to },
                None => Note::Misfit { application, class, relative, least, most },
            });
        }
        if !again || sample.now < not_before {
            return self.decision(Vec::new());
        }
        let pause = Cycles(self.pauses.pause.0.saturating_mul(2)).min(self.settings.longest_pause);
        self.pauses = Pauses::new(pause);
        self.begin(sample, notes)
    }

    /// The class by the bandwidth model, where that gave another one before.
    fn class_by_counters(&self, sample: &Sample, member: &Member) -> Option<Class> {
        let counted = matches!(member.evidence, Evidence::Bandwidth { .. });
        let traffic = sample.find(member.application)?.speed()?.progress.traffic?;
        let (class, _) = classify(&self.hardware, &traffic, self.settings.supply)?;
        (counted && class != member.class).then_some(class)
    }

    /// A speed, and the one that it is compared with.
    fn against_expected(&self, sample: &Sample, member: &Member) -> Option<(f64, f64)> {
        let speed = member.relative(sample)?;
        let by_curve = || self.curve(member).speed(self.plan.sms(member.application).len());
        let expected = member.level.unwrap_or_else(by_curve);
        (expected > 0.0).then_some((speed, expected))
    }
}
