//! The two searches: performance (§4.2) and power (§4.3).

use super::{CdSearch, CdSearchSettings, Member, Stage};
use crate::allot::{allot, even_counts};
use crate::window::Speed;
use crate::{Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, Note, SmSet};

/// Where the search for one application stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Search {
    open: bool,
    /// The fewest SMs that were fast enough, and how fast they were against the reference.
    enough: u16,
    kept: Option<f64>,
    /// How fast the present number was.
    relative: Option<f64>,
    retries: u8,
    /// What the windows with the present number of SMs have shown so far, and how many they were.
    seen: Option<Speed>,
    windows: u8,
}

impl Search {
    pub(super) fn new(even: u16) -> Self {
        Search { open: false, enough: even, kept: None, relative: None, retries: 0, seen: None, windows: 0 }
    }
}

/// What a window says of one number of SMs.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Finding {
    /// They keep the speed: so much of it.
    Enough(f64),
    /// They do not.
    TooFew,
    /// To be measured again.
    Unclear,
}

impl Member {
    /// Takes a window in. A loss counts once several windows together show it.
    fn find(&mut self, speed: Option<Speed>, settings: &CdSearchSettings) -> Finding {
        let Some(speed) = speed else {
            self.search.retries = self.search.retries.saturating_add(1);
            let again = self.search.retries <= settings.patience;
            return if again { Finding::Unclear } else { Finding::TooFew };
        };
        let all = self.search.seen.map_or(speed, |before| before.and(&speed));
        self.search.seen = Some(all);
        self.search.windows = self.search.windows.saturating_add(1);
        let Some(relative) = self.relative(Some(all)) else { return Finding::TooFew };
        self.search.relative = Some(relative);
        if relative >= settings.keep {
            Finding::Enough(relative)
        } else if relative >= settings.plain && self.search.windows < settings.confirm {
            Finding::Unclear
        } else {
            Finding::TooFew
        }
    }

    /// Another number of SMs will be measured next.
    fn go_to(&mut self, active: u16) {
        self.active = active;
        self.search.seen = None;
        self.search.windows = 0;
        self.search.retries = 0;
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

    pub(super) fn performance(&mut self, sample: &Sample) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let settings = self.settings;
        for member in memory_intensive(&mut self.members).filter(|member| member.search.open) {
            let speed = CdSearch::speed(sample, member.application);
            notes.extend(measured(member, speed, settings.keep));
            match member.find(speed, &settings) {
                Finding::Unclear => {}
                Finding::Enough(relative) => {
                    member.search.enough = member.active;
                    member.search.kept = Some(relative);
                    member.search.open = member.active > 1;
                    member.go_to(stepped(member.active, settings.step.max(1)));
                }
                Finding::TooFew => {
                    member.search.open = false;
                    member.go_to(member.search.enough);
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
    pub(super) fn power_one(&mut self, sample: &Sample) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let keep = self.settings.keep;
        for member in memory_intensive(&mut self.members) {
            let speed = CdSearch::speed(sample, member.application);
            notes.extend(measured(member, speed, keep));
            let next = match member.relative(speed) {
                Some(relative) if relative > 0.0 => fewest(keep / relative, member.even()),
                _ => member.even().div_ceil(2),
            };
            member.go_to(next);
            notes.push(tries(member));
        }
        self.stage = Stage::PowerMore;
        self.decision(notes)
    }

    pub(super) fn power_more(&mut self, sample: &Sample) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let settings = self.settings;
        let mut findings = Vec::new();
        for member in memory_intensive(&mut self.members) {
            let speed = CdSearch::speed(sample, member.application);
            notes.extend(measured(member, speed, settings.keep));
            findings.push((member.find(speed, &settings), member.search.relative));
        }
        let together = mean(findings.iter().filter_map(|(_, relative)| *relative)) >= settings.keep;
        let mut short = false;
        for (member, (finding, relative)) in memory_intensive(&mut self.members).zip(findings) {
            let little = relative.is_some_and(|relative| relative >= settings.keep - settings.lack);
            match finding {
                Finding::Unclear if !(together && little) => short = true,
                // Whoever had enough before may lack some now: others that resumed take bandwidth.
                Finding::TooFew if !(together && little) && member.active < member.even() => {
                    member.go_to(member.active + 1);
                    short = true;
                    notes.push(tries(member));
                }
                // Later windows shall not be outvoted by those before.
                _ => member.go_to(member.active),
            }
            member.search.enough = member.active;
            member.search.kept = relative;
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
                    relative: member.search.kept,
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

/// The mean of some numbers; 0 of none.
fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0_u32), |(sum, count), number| (sum + number, count + 1));
    sum / f64::from(count.max(1))
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

fn measured(member: &Member, speed: Option<Speed>, limit: f64) -> Option<Note> {
    let relative = member.relative(speed)?;
    Some(Note::Measured {
        application: member.application,
        active: member.active,
        of: member.even(),
        relative,
        limit,
        ctas: speed?.progress.ctas,
    })
}
