//! The two searches: performance (§4.2) and power (§4.3).

use super::{CdSearch, Member, Stage};
use crate::allot::{allot, even_counts};
use crate::{Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, Note, SmSet, WindowRecord};

/// Where the search for one application stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Search {
    open: bool,
    /// The fewest SMs that were fast enough, and how fast they were against the reference.
    enough: u16,
    relative: Option<f64>,
    retries: u8,
}

impl Search {
    pub(super) fn new(even: u16) -> Self {
        Search { open: false, enough: even, relative: None, retries: 0 }
    }
}

impl CdSearch {
    pub(super) fn start_performance(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let step = self.settings.step.max(1);
        for member in memory_intensive(&mut self.members) {
            member.search.open = member.even() > 1;
            member.active = stepped(member.even(), step);
            notes.push(tries(member));
        }
        if self.members.iter().any(|member| member.search.open) {
            self.stage = Stage::Performance;
            return self.decision(notes);
        }
        self.finish(sample, notes)
    }

    pub(super) fn performance(&mut self, sample: &Sample, window: &WindowRecord) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let (keep, step, patience) = (self.settings.keep, self.settings.step.max(1), self.settings.patience);
        for member in memory_intensive(&mut self.members).filter(|member| member.search.open) {
            let speed = CdSearch::speed(sample, window, member.application);
            let relative = member.relative(speed);
            notes.extend(relative.map(|relative| measured(member, relative, keep, speed)));
            match relative {
                None if member.search.retries < patience => member.search.retries += 1,
                Some(relative) if relative >= keep => {
                    member.search = Search {
                        enough: member.active,
                        relative: Some(relative),
                        retries: 0,
                        ..member.search
                    };
                    member.search.open = member.active > 1;
                    member.active = stepped(member.active, step);
                }
                _ => {
                    member.search.open = false;
                    member.active = member.search.enough;
                }
            }
            if member.search.open {
                notes.push(tries(member));
            }
        }
        if self.members.iter().any(|member| member.search.open) {
            return self.decision(notes);
        }
        self.finish(sample, notes)
    }

    pub(super) fn start_power(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        for member in memory_intensive(&mut self.members) {
            member.active = 1;
            notes.push(tries(member));
        }
        if self.members.iter().all(|member| member.even() <= 1) {
            return self.finish(sample, notes);
        }
        self.stage = Stage::PowerOne;
        self.decision(notes)
    }

    /// From the speed of one SM to the number with which the second stage begins: the fewest that could reach 95 % of the
    /// reference if speed were in proportion.
    pub(super) fn power_one(&mut self, sample: &Sample, window: &WindowRecord) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let keep = self.settings.keep;
        for member in memory_intensive(&mut self.members) {
            let speed = CdSearch::speed(sample, window, member.application);
            let relative = member.relative(speed);
            notes.extend(relative.map(|relative| measured(member, relative, keep, speed)));
            member.active = match relative {
                Some(relative) if relative > 0.0 => fewest(keep / relative, member.even()),
                _ => member.even().div_ceil(2),
            };
            notes.push(tries(member));
        }
        self.stage = Stage::PowerMore;
        self.decision(notes)
    }

    pub(super) fn power_more(&mut self, sample: &Sample, window: &WindowRecord) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let (keep, patience) = (self.settings.keep, self.settings.patience);
        let mut short = false;
        for member in memory_intensive(&mut self.members) {
            let speed = CdSearch::speed(sample, window, member.application);
            let relative = member.relative(speed);
            notes.extend(relative.map(|relative| measured(member, relative, keep, speed)));
            match relative {
                // Whoever had enough before may lack some now: others that resumed take bandwidth.
                Some(relative) if relative < keep && member.active < member.even() => {
                    member.active += 1;
                    short = true;
                    notes.push(tries(member));
                }
                None if member.search.retries < patience => {
                    member.search.retries += 1;
                    short = true;
                }
                _ => {}
            }
            member.search.enough = member.active;
            member.search.relative = relative;
        }
        if short { self.decision(notes) } else { self.finish(sample, notes) }
    }

    /// Moves or gates what the search has freed.
    fn finish(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let mut counts: Vec<u16> = self.members.iter().map(Member::even).collect();
        for (count, member) in counts.iter_mut().zip(&mut self.members) {
            if member.class == Class::Memory {
                member.active = member.search.enough;
                *count = member.active;
                notes.push(Note::Needs {
                    application: member.application,
                    sms: member.active,
                    of: member.even(),
                    relative: member.search.relative,
                });
            }
        }
        let receivers: Vec<usize> =
            (0..counts.len()).filter(|&i| self.members[i].class == Class::Compute).collect();
        let kept: u16 = (0..counts.len()).filter(|i| !receivers.contains(i)).map(|i| counts[i]).sum();
        let holding: Vec<_> = receivers.iter().map(|&i| self.holding(i)).collect();
        let shares = even_counts(sample.sms.len().saturating_sub(kept), &holding);
        for (&i, &to) in receivers.iter().zip(&shares) {
            counts[i] = to;
            let (application, from) = (self.members[i].application, self.members[i].even());
            notes.push(Note::Receives { application, from, to });
        }
        let holders: Vec<_> = (0..self.members.len()).map(|i| self.holding(i)).collect();
        let sets = allot(sample.sms, &holders, &counts);
        let partitions = holders.iter().map(|(id, _)| *id).zip(sets).filter(|(_, sms)| !sms.is_empty());
        self.plan = Plan::of_disjoint(partitions.collect());
        self.gated = sample.sms.difference(&self.plan.taken());
        if !self.gated.is_empty() {
            notes.push(Note::Gates { sms: self.gated });
        }
        self.stage = Stage::Watch;
        self.decision(notes)
    }

    fn holding(&self, member: usize) -> (ApplicationId, SmSet) {
        (self.members[member].application, self.members[member].own)
    }
}

fn memory_intensive(members: &mut [Member]) -> impl Iterator<Item = &mut Member> {
    members.iter_mut().filter(|member| member.class == Class::Memory)
}

fn stepped(active: u16, step: u16) -> u16 {
    active.saturating_sub(step).max(1)
}

/// The least whole number of SMs that is not below `sms`, between 1 and `even`.
fn fewest(sms: f64, even: u16) -> u16 {
    (1..even).find(|&count| f64::from(count) >= sms).unwrap_or(even)
}

fn tries(member: &Member) -> Note {
    Note::Tries { application: member.application, active: member.active, of: member.even() }
}

fn measured(member: &Member, relative: f64, limit: f64, speed: Option<crate::window::Speed>) -> Note {
    let ctas = speed.map_or(0, |speed| speed.progress.ctas);
    Note::Measured {
        application: member.application,
        active: member.active,
        of: member.even(),
        relative,
        limit,
        ctas,
    }
}
