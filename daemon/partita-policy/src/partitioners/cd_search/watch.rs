//! Watching after a search: does everyone still behave as it was classified?
//!
//! Three things lead to a new classification, each only when two windows in a row say so:
//!
//! 1. *The class does not explain the speed.* The first windows after a search are compared with
//!    what the class predicts: a memory-intensive application keeps its reference speed, a
//!    compute-intensive one gains from more SMs. Who does not is classified again by a probe, that
//!    is by measurement. If that changes nothing, the speeds stand as they are.
//! 2. *The speed changes.* Later windows are compared with the first.
//! 3. *The counters change class.*
//!
//! An application of unknown class is tried again too. Every new classification doubles the pause
//! before the next, until other applications come or go: a program whose phases change faster than
//! a search pays must not be searched for ever.

use super::{CdSearch, CdSearchSettings, Member};
use crate::measuring::Speed;
use crate::{Decision, Sample, classify};
use partita_model::{Calibration, Class, Cycles, Evidence, Nanos, Note};
use std::collections::BTreeSet;

/// What is watched of one application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Watched {
    /// Its class is to be measured, or was.
    pub(super) probe: bool,
    /// Its speed in the first window after the search.
    baseline: Option<Speed>,
    misfits: u8,
}

impl Watched {
    pub(super) fn new(probe: bool) -> Self {
        Watched { probe, baseline: None, misfits: 0 }
    }

    /// Its speed is known already.
    pub(super) fn measured(&mut self, speed: Option<Speed>) {
        self.baseline = speed;
    }
}

/// From one change of the applications to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epoch {
    not_before: Option<Nanos>,
    pause: Cycles,
    /// Predictions have been wrong once: measured speeds stand.
    doubted: bool,
}

impl Epoch {
    pub(super) fn new(pause: Cycles) -> Self {
        Epoch { not_before: None, pause, doubted: false }
    }
}

/// How a speed should relate to another.
struct Expected {
    relative: f64,
    least: f64,
    most: Option<f64>,
}

impl Expected {
    fn fits(&self) -> bool {
        self.relative >= self.least && self.most.is_none_or(|most| self.relative <= most)
    }
}

impl CdSearch {
    pub(super) fn watched(&mut self, sample: &Sample) -> Decision {
        let pause = self.clock().nanos(self.epoch.pause);
        let not_before =
            *self.epoch.not_before.get_or_insert(Nanos(sample.now.0.saturating_add(pause.0)));
        let mut doubtful = BTreeSet::new();
        let mut again = false;
        let mut notes = Vec::new();
        for index in 0..self.members.len() {
            let member = &self.members[index];
            let (application, class) = (member.application, member.class);
            if class == Class::Unknown {
                again = true;
                continue;
            }
            let Some(speed) = CdSearch::speed(sample, application) else { continue };
            let changed = counted_class(&self.hardware, &self.settings, member, &speed);
            let expected = self.expected(member, &speed);
            let predicted = member.watch.baseline.is_none();
            let fits = expected.as_ref().is_none_or(Expected::fits) && changed.is_none();
            let member = &mut self.members[index];
            if fits {
                member.watch.misfits = 0;
                member.watch.baseline.get_or_insert(speed);
                continue;
            }
            member.watch.misfits = member.watch.misfits.saturating_add(1);
            if member.watch.misfits < self.settings.misfits {
                continue;
            }
            again = true;
            if let Some(to) = changed {
                notes.push(Note::ClassChanged { application, from: class, to });
            } else if let Some(Expected { relative, least, most }) = expected {
                notes.push(Note::Misfit { application, class, relative, least, most });
                if predicted {
                    doubtful.insert(application);
                }
            }
        }
        if !again || sample.now < not_before {
            return self.decision(Vec::new());
        }
        self.epoch.doubted |= !doubtful.is_empty();
        self.epoch.pause =
            Cycles(self.epoch.pause.0.saturating_mul(2)).min(self.settings.longest_pause);
        self.epoch.not_before = None;
        self.begin(sample, &doubtful, notes)
    }

    /// What a speed is compared with; `None` where there is nothing to compare it with.
    fn expected(&self, member: &Member, speed: &Speed) -> Option<Expected> {
        let tolerance = self.settings.tolerance;
        if let Some(baseline) = &member.watch.baseline {
            let relative = speed.relative_to(baseline)?;
            return Some(Expected {
                relative,
                least: 1.0 - tolerance,
                most: Some(1.0 + tolerance),
            });
        }
        if self.epoch.doubted {
            return None;
        }
        let relative = member.relative(Some(*speed))?;
        let (even, has) = (member.even(), self.plan.sms(member.application).len());
        let least = if member.class == Class::Compute && has > even {
            super::gain_limit(even, has, self.settings.linear)
        } else {
            1.0 - tolerance
        };
        Some(Expected { relative, least, most: None })
    }
}

/// The class that the counters say now, where they said another.
fn counted_class(
    hardware: &Calibration,
    settings: &CdSearchSettings,
    member: &Member,
    speed: &Speed,
) -> Option<Class> {
    let counted = matches!(member.evidence, Evidence::Bandwidth { .. });
    let traffic = speed.progress.traffic.filter(|_| counted);
    let (class, evidence) = traffic.and_then(|t| classify(hardware, &t, settings.supply))?;
    (class != member.class && settings.trust.holds(&evidence)).then_some(class)
}
