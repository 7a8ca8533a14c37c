//! The two searches: performance (§4.2) and power (§4.3).

use super::{CdSearch, CdSearchSettings, Member, Stage};
use crate::measuring::Speed;
use crate::plans::{allot, even_counts};
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
        Search {
            open: false,
            enough: even,
            kept: None,
            relative: None,
            retries: 0,
            seen: None,
            windows: 0,
        }
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
        if !self.members.iter().any(|member| member.class == Class::Compute) {
            // Each was measured while others had fewer SMs than they have now.
            self.stage = Stage::PowerMore;
            return self.decision(notes);
        }
        self.finish(sample, notes)
    }

    pub(super) fn start_power(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        for member in memory_intensive(&mut self.members) {
            member.search.open = member.even() > 1;
            member.go_to(member.even().div_ceil(2));
            notes.push(tries(member));
        }
        if !self.members.iter().any(|member| member.search.open) {
            return self.finish(sample, notes);
        }
        self.stage = Stage::PowerFewer;
        self.decision(notes)
    }

    /// Half as many, until that is too few; then the fewest that could be enough if speed were in
    /// proportion.
    pub(super) fn power_fewer(&mut self, sample: &Sample) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let settings = self.settings;
        let findings = self.power_findings(sample, &mut notes);
        for (member, (finding, relative)) in memory_intensive(&mut self.members).zip(&findings) {
            match finding {
                _ if !member.search.open => member.go_to(member.active),
                Finding::Enough(relative) => {
                    (member.search.enough, member.search.kept) = (member.active, Some(*relative));
                    member.search.open = member.active > 1;
                    member.go_to(member.active.div_ceil(2));
                }
                Finding::Unclear if relative.is_none() => {}
                Finding::Unclear | Finding::TooFew => {
                    member.search.open = false;
                    let enough = member.search.enough;
                    let next = match relative {
                        Some(relative) if *relative > 0.0 => {
                            let proportional = settings.keep / relative * f64::from(member.active);
                            (member.active + 1..enough).find(|&sms| f64::from(sms) >= proportional)
                        }
                        _ => None,
                    };
                    member.go_to(next.unwrap_or(enough));
                }
            }
            if member.active < member.even() {
                notes.push(tries(member));
            }
        }
        if !self.members.iter().any(|member| member.search.open) {
            self.stage = Stage::PowerMore;
        }
        self.decision(notes)
    }

    fn power_findings(
        &mut self,
        sample: &Sample,
        notes: &mut Vec<Note>,
    ) -> Vec<(Finding, Option<f64>)> {
        let settings = self.settings;
        let mut findings = Vec::new();
        for member in memory_intensive(&mut self.members) {
            let speed = CdSearch::speed(sample, member.application);
            notes.extend(measured(member, speed, settings.keep));
            findings.push((member.find(speed, &settings), member.search.relative));
        }
        findings
    }

    pub(super) fn power_more(&mut self, sample: &Sample) -> Decision {
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let settings = self.settings;
        let findings = self.power_findings(sample, &mut notes);
        let fine = together(&findings, &settings);
        let mut short = false;
        for (member, (finding, relative)) in memory_intensive(&mut self.members).zip(&findings) {
            match finding {
                Finding::Unclear if !fine(*finding, *relative) => short = true,
                // Whoever had enough before may lack some now: others that resumed take bandwidth.
                Finding::TooFew if !fine(*finding, *relative) && member.active < member.even() => {
                    member.go_to(member.active + 1);
                    short = true;
                    notes.push(tries(member));
                }
                // Later windows shall not be outvoted by those before.
                _ => member.go_to(member.active),
            }
            member.search.enough = member.active;
            member.search.kept = *relative;
        }
        if short { self.decision(notes) } else { self.finish(sample, notes) }
    }

    /// Moves or gates what the search has freed.
    fn finish(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        for member in memory_intensive(&mut self.members) {
            member.active = member.search.enough;
            notes.push(Note::Needs {
                application: member.application,
                sms: member.active,
                of: member.even(),
                relative: member.search.kept,
            });
        }
        self.plan = self.plan_for(sample);
        for member in self.members.iter().filter(|member| member.class == Class::Compute) {
            let (from, to) = (member.even(), self.plan.sms(member.application).len());
            notes.push(Note::Receives { application: member.application, from, to });
        }
        self.gated = sample.sms.difference(&self.plan.taken());
        if !self.gated.is_empty() {
            notes.push(Note::Gates { sms: self.gated });
        }
        self.stage = Stage::Watch;
        self.decision(notes)
    }

    /// Memory-intensive applications with what they need as far as that is known, and the others
    /// with the rest.
    fn plan_for(&self, sample: &Sample) -> Plan {
        let holders: Vec<(ApplicationId, SmSet)> =
            self.members.iter().map(|m| (m.application, self.plan.sms(m.application))).collect();
        let count = |member: &Member| match member.class {
            Class::Memory => member.search.enough,
            Class::Compute | Class::Unknown => member.even(),
        };
        let mut counts: Vec<u16> = self.members.iter().map(count).collect();
        let receivers: Vec<usize> =
            (0..counts.len()).filter(|&i| self.members[i].class == Class::Compute).collect();
        let kept: u16 =
            (0..counts.len()).filter(|i| !receivers.contains(i)).map(|i| counts[i]).sum();
        let holding: Vec<_> = receivers.iter().map(|&i| holders[i]).collect();
        let shares = even_counts(sample.sms.len().saturating_sub(kept), &holding);
        for (&i, &to) in receivers.iter().zip(&shares) {
            counts[i] = to;
        }
        allot(sample.sms, &holders, &counts)
    }
}

fn memory_intensive(members: &mut [Member]) -> impl Iterator<Item = &mut Member> {
    members.iter_mut().filter(|member| member.class == Class::Memory)
}

/// Whether a finding is good enough: by itself, or because all together keep enough and it lacks
/// little.
fn together(
    findings: &[(Finding, Option<f64>)],
    settings: &CdSearchSettings,
) -> impl Fn(Finding, Option<f64>) -> bool + use<> {
    let all = mean(findings.iter().filter_map(|(_, relative)| *relative)) >= settings.keep;
    let least = settings.keep - settings.lack;
    move |finding, relative| match finding {
        Finding::Enough(_) => true,
        Finding::Unclear | Finding::TooFew => {
            all && relative.is_some_and(|relative| relative >= least)
        }
    }
}

/// The mean of some numbers; 0 of none.
fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0_u32), |(sum, count), number| (sum + number, count + 1));
    sum / f64::from(count.max(1))
}

fn stepped(active: u16, step: u16) -> u16 {
    active.saturating_sub(step).max(1)
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
