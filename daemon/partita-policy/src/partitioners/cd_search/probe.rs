//! Classes of applications of which no profile says enough: what they gain from SMs is measured.
//!
//! A class is defined by what all SMs gain over half of them, and beside others an application has
//! half of the SMs or fewer. There are two ways to come near that:
//!
//! - Where the others are known to take next to no bandwidth they lend it half of their SMs for a
//!   window: what more SMs than the even split gain says most of what all would. Nobody waits.
//! - Where they do take some, or may, it would gain by what they leave, too. So it works on half of
//!   its SMs for a window, and what these lack says what it will gain if it goes on so. All who are
//!   to be measured do so at once. Neither can launches that last for few rounds of CTAs be lent
//!   SMs: a grid of as many CTAs as all SMs hold takes two rounds on half of them, and on three
//!   quarters. See [`shown`].
//!
//! Both limits are those of speeds that saturate exponentially with the SMs (Masola, JSSPP '23, Eq.
//! 17).

use super::{CdSearch, Member, Stage, taken_by};
use crate::plans::allot;
use crate::{Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, Evidence, Note, SmSet};

impl CdSearch {
    /// Begins to measure those members that are marked for it.
    pub(super) fn start_probe(&mut self, sample: &Sample) -> Decision {
        let marked =
            |member: &Member| member.watch.probe && member.reference.is_some() && member.even() > 1;
        let mut open = (0..self.members.len()).filter(|&index| marked(&self.members[index]));
        if let (Some(index), None) = (open.next(), open.next())
            && let Some(decision) = self.start_growing(sample, index)
        {
            return decision;
        }
        self.stage = Stage::Probe { retries: 0 };
        let mut notes = Vec::new();
        for member in &mut self.members {
            if marked(member) {
                member.active = member.even() / 2;
            }
            let (application, active, of) = (member.application, member.active, member.even());
            notes.push(Note::Tries { application, active, of });
        }
        self.decision(notes)
    }

    /// Lends one member half of everybody else's SMs, if these are known to leave it all bandwidth
    /// and are not long in giving them.
    fn start_growing(&mut self, sample: &Sample, index: usize) -> Option<Decision> {
        if self.is_long() || !self.others_leave_bandwidth(index) {
            return None;
        }
        let mut counts: Vec<u16> =
            self.members.iter().map(|member| member.even().div_ceil(2)).collect();
        let all: u16 = self.members.iter().map(Member::even).sum();
        counts[index] = 0;
        counts[index] = all - counts.iter().sum::<u16>();
        let member = &self.members[index];
        let (application, active, of) = (member.application, counts[index], member.even());
        let rounds = super::find(sample, application).and_then(|application| application.rounds);
        let shows =
            |sms: u16| shown(rounds.unwrap_or(f64::INFINITY), f64::from(sms) / f64::from(of));
        if active <= of || shows(active) < shows(of / 2).min(PLAIN) {
            return None;
        }
        let holders: Vec<(ApplicationId, SmSet)> =
            self.members.iter().map(|member| (member.application, member.own)).collect();
        self.plan = allot(sample.sms, &holders, &counts);
        self.stage = Stage::Grow { member: index, retries: 0 };
        Some(self.decision(vec![Note::Tries { application, active, of }]))
    }

    /// Whether it is known of all others that together they take no more than [`LITTLE`] of either
    /// bandwidth.
    fn others_leave_bandwidth(&self, index: usize) -> bool {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        let sum = taken_by(&self.hardware, others.map(|(_, member)| member));
        sum.is_some_and(|[llc, dram]| llc.max(dram) <= LITTLE)
    }

    /// A window with some on half of their SMs has ended.
    pub(super) fn probed(&mut self, sample: &Sample, retries: u8) -> Decision {
        let mut silent = false;
        for member in self.members.iter_mut().filter(|member| member.active < member.even()) {
            let relative = member.relative(CdSearch::speed(sample, member.application));
            silent |= relative.is_none();
            let (fewer, more) = (member.active, member.even());
            // No progress at all with half of the SMs: then more do help.
            let gain = 1.0 / relative.unwrap_or(0.0).max(1e-6);
            let limit = limit_between(fewer, more, self.hardware.sms, self.settings.linear);
            member.measured_to_gain(gain, limit, (fewer, more));
        }
        if silent && retries < self.settings.patience {
            self.stage = Stage::Probe { retries: retries + 1 };
            return self.decision(Vec::new());
        }
        for member in &mut self.members {
            member.active = member.even();
        }
        self.choose_mode(sample)
    }

    /// A window with SMs of the others has ended.
    pub(super) fn grown(&mut self, sample: &Sample, index: usize, retries: u8) -> Decision {
        let (all, linear) = (self.hardware.sms, self.settings.linear);
        if let Some(member) = self.members.get_mut(index) {
            let gain = member.relative(CdSearch::speed(sample, member.application));
            if gain.is_none() && retries < self.settings.patience {
                self.stage = Stage::Grow { member: index, retries: retries + 1 };
                return self.decision(Vec::new());
            }
            let (fewer, more) = (member.even(), self.plan.sms(member.application).len());
            let limit = limit_between(fewer, more, all, linear);
            // Who shows nothing keeps what it has.
            member.measured_to_gain(gain.unwrap_or(limit), limit, (fewer, more));
        }
        self.plan =
            Plan::of_disjoint(self.members.iter().map(|m| (m.application, m.own)).collect());
        self.choose_mode(sample)
    }
}

impl Member {
    fn measured_to_gain(&mut self, gain: f64, limit: f64, (fewer, more): (u16, u16)) {
        self.class = if gain < limit { Class::Memory } else { Class::Compute };
        self.evidence = Evidence::Scaling { fewer, more, gain, limit };
    }
}

/// Part of a bandwidth that moves no limit by more than it is off: with it all used, its half that
/// falls free speeds nobody up by more than 3.3 %.
const LITTLE: f64 = 1.0 / 16.0;

/// Where so much of a gain or loss is shown the number of rounds does not matter.
const PLAIN: f64 = 0.9;

/// What launches show of the gain, or loss, of `part` times as many SMs, where they last for so
/// many rounds: a last round that is not full takes as long as the others. 1 is all of it.
fn shown(rounds: f64, part: f64) -> f64 {
    if !rounds.is_finite() || part <= 0.0 {
        return 1.0;
    }
    // Some CTAs of a round may have ended when they were looked at.
    let whole = |rounds: f64| (rounds * 0.95).ceil().max(1.0);
    let shown = whole(rounds) / whole(rounds / part) / part;
    shown.min(1.0 / shown)
}

/// As [`gain_limit`](super::gain_limit) from half of `all` SMs to all of them, where others are
/// compared.
fn limit_between(fewer: u16, more: u16, all: u16, linear: f64) -> f64 {
    let half = (f64::from(all) / 2.0).max(1.0);
    let speed = |sms: u16| 1.0 - linear.powf(f64::from(sms) / half);
    speed(more) / speed(fewer.max(1)).max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rounds_hide_what_more_sms_gain() {
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-3, "{found}, not {wanted}")
        };
        // As many CTAs as all SMs hold, measured on half of them.
        near(shown(2.0, 1.5), 2.0 / 3.0);
        near(shown(2.0, 0.5), 1.0);
        near(shown(2.05, 0.5), 1.0);
        // They fit into half of the SMs.
        near(shown(1.0, 1.5), 2.0 / 3.0);
        near(shown(1.0, 0.5), 1.0);
        assert!(
            shown(100.0, 1.5) > PLAIN
                && shown(f64::INFINITY, 1.5) > PLAIN
                && shown(0.0, 0.0) > PLAIN
        );
        assert!(shown(f64::NAN, 1.5) > PLAIN && shown(-1.0, 1.5) > 0.0);
    }

    #[test]
    fn limits_are_those_of_a_curve_that_gains_just_enough() {
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-3, "{found}, not {wanted}")
        };
        // From half to all it is the definition.
        near(limit_between(12, 24, 24, 0.5), 1.5);
        near(limit_between(12, 18, 24, 0.5), 1.293);
        near(limit_between(66, 99, 132, 0.5), 1.293);
        // Where one doubling gains 1 + x, the next gains 1 + x².
        near(limit_between(6, 12, 24, 0.5), 1.0 + 0.5_f64.sqrt());
        near(limit_between(3, 6, 24, 0.5), 1.0 + 0.5_f64.sqrt().sqrt());
        assert!(limit_between(1, 2, 1, 0.5).is_finite() && limit_between(0, 0, 0, 0.5).is_finite());
    }
}
