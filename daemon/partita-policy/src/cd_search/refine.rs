//! Making the plan better by moving SMs and measuring what comes of it: ours.
//!
//! The paper's search looks at the memory-intensive applications only, and only at fewer SMs than the even split gives them. So it misses
//! splits where what they lose beyond its 5 % is less than what the others gain, and those where they should have more. Behind it SMs
//! change hands, one step at a time: a step stays where all together do more than before, else it is taken back. Nobody waits
//! while that is measured, so windows may be as long as CTAs make them. Where they are long ([`long`](super::CdSearchSettings::long)) that
//! is all of the search, and begins with greater steps, which are halved where they go too far.
//!
//! What all do together is the sum of their speeds, each as a part of the speed that it would have alone on all SMs: that of the even
//! split times what was measured against it. The former follows from how much the steps themselves change ([`CdSearch::part_of_alone`]), within
//! what the class leaves open, or from the gain that was measured while it was alone.

use super::{CdSearch, Member, Stage};
use crate::allot::allot;
use crate::window::Speed;
use crate::{Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, Evidence, Note, SmSet};
use std::collections::VecDeque;

/// A plan and what was done under it.
#[derive(Clone, PartialEq, Debug)]
struct Point {
    plan: Plan,
    /// By member; against the even split only where that could be measured.
    speeds: Vec<Option<Speed>>,
    relative: Vec<Option<f64>>,
}

/// One member gives SMs to another; both by their place in the list of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Trade {
    giver: usize,
    receiver: usize,
    sms: u16,
}

/// Where that stands.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Refine {
    best: Option<Point>,
    /// What may still make it better, the next first.
    trades: VecDeque<Trade>,
    /// Whether the present plan is that of the first of them.
    trying: bool,
    trials: u8,
    retries: u8,
}

impl CdSearch {
    /// Begins at the present plan, or where a window takes too long to measure that at what the profile has shown of the even split.
    pub(super) fn start_refine(&mut self, sample: &Sample, notes: Vec<Note>) -> Decision {
        let speeds: Vec<_> = self.members.iter().map(|member| member.reference).collect();
        let even = Plan::of_disjoint(self.members.iter().map(|m| (m.application, m.own)).collect());
        self.refine = Refine { best: self.point(even, speeds), trades: self.trades(), ..Refine::default() };
        self.stage = Stage::Refine;
        if self.is_long() { self.propose(sample, notes) } else { self.decision(notes) }
    }

    /// A window has ended.
    pub(super) fn refined(&mut self, sample: &Sample) -> Decision {
        let speeds: Vec<_> =
            self.members.iter().map(|member| CdSearch::speed(sample, member.application)).collect();
        let Some(point) = self.point(self.plan.clone(), speeds) else {
            self.refine.retries += 1;
            if self.refine.retries <= self.settings.patience {
                return self.decision(Vec::new());
            }
            let notes = self.members.iter().map(Member::classified).collect();
            return self.judge(sample, None, notes);
        };
        let least = self.settings.least;
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        let mut suffers = false;
        for ((member, speed), relative) in self.members.iter().zip(&point.speeds).zip(&point.relative) {
            suffers |= relative.is_some_and(|relative| relative < least);
            if let (Some(relative), Some(speed)) = (*relative, speed) {
                notes.push(Note::Measured {
                    application: member.application,
                    active: self.plan.sms(member.application).len(),
                    of: member.even(),
                    relative,
                    limit: least,
                    ctas: speed.progress.ctas,
                });
            }
        }
        self.judge(sample, (!suffers).then_some(point), notes)
    }

    /// Takes or leaves what was tried, and tries the next.
    fn judge(&mut self, sample: &Sample, point: Option<Point>, notes: Vec<Note>) -> Decision {
        self.refine.retries = 0;
        let tried = std::mem::take(&mut self.refine.trying);
        // The search's own result stands where it is as good as the even split; what is tried has to be better.
        let worth = if tried { self.settings.worth } else { -self.settings.worth };
        let best = self.refine.best.as_ref();
        let better = point.filter(|point| best.is_none_or(|best| self.gain(best, point) >= worth));
        match (better, tried) {
            (Some(point), tried) => {
                self.refine.best = Some(point);
                if tried && let Some(trade) = self.refine.trades.front().copied() {
                    // Where it came from it need not go back to.
                    let back = |t: &Trade| t.giver == trade.receiver && t.receiver == trade.giver;
                    self.refine.trades.retain(|trade| !back(trade));
                }
            }
            (None, true) => {
                let least = self.settings.step.max(1);
                match self.refine.trades.front_mut() {
                    Some(trade) if trade.sms > least => trade.sms = (trade.sms / 2).max(least),
                    _ => drop(self.refine.trades.pop_front()),
                }
            }
            (None, false) => {}
        }
        self.propose(sample, notes)
    }

    /// Moves SMs for the next trial; where there is none the best plan stands.
    fn propose(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let Some(best) = self.refine.best.clone() else { return self.end_refine(notes) };
        while let Some(trade) = self.refine.trades.front().copied()
            && self.refine.trials < self.settings.trials
        {
            let (Some(giver), Some(receiver)) =
                (self.members.get(trade.giver), self.members.get(trade.receiver))
            else {
                break;
            };
            let holders: Vec<(ApplicationId, SmSet)> =
                self.members.iter().map(|m| (m.application, best.plan.sms(m.application))).collect();
            let mut counts: Vec<u16> = holders.iter().map(|(_, sms)| sms.len()).collect();
            if counts[trade.giver] <= trade.sms {
                self.refine.trades.pop_front();
                continue;
            }
            counts[trade.giver] -= trade.sms;
            counts[trade.receiver] += trade.sms;
            for (member, index) in [(giver, trade.giver), (receiver, trade.receiver)] {
                let (application, active, of) = (member.application, counts[index], member.even());
                notes.push(Note::Tries { application, active, of });
            }
            let sets = allot(sample.sms, &holders, &counts);
            let partitions = holders.iter().map(|(id, _)| *id).zip(sets).filter(|(_, sms)| !sms.is_empty());
            self.plan = Plan::of_disjoint(partitions.collect());
            self.refine.trying = true;
            self.refine.trials += 1;
            return self.decision(notes);
        }
        self.end_refine(notes)
    }

    fn end_refine(&mut self, mut notes: Vec<Note>) -> Decision {
        if let Some(best) = self.refine.best.take() {
            for (member, speed) in self.members.iter_mut().zip(&best.speeds) {
                let sms = best.plan.sms(member.application).len();
                let (application, of) = (member.application, member.even());
                let relative = member.relative(*speed);
                match member.class {
                    Class::Memory => notes.push(Note::Needs { application, sms, of, relative }),
                    _ if sms > of => notes.push(Note::Receives { application, from: of, to: sms }),
                    _ => {}
                }
                // What was measured with them is what later windows are compared with, not what the class predicts.
                if sms != of {
                    member.watch.measured(*speed);
                }
            }
            self.plan = best.plan;
        }
        self.stage = Stage::Watch;
        self.decision(notes)
    }

    /// Every way between a memory-intensive application and the compute-intensive one that has fewest SMs to take or most to give. Where
    /// the search has shown what the next step would cost, only the way that this speaks for: more SMs gain no more than fewer lose.
    fn trades(&self) -> VecDeque<Trade> {
        let least = self.settings.step.max(1);
        let count = |&index: &usize| self.plan.sms(self.members[index].application).len();
        let of = |class: Class| (0..self.members.len()).filter(move |&i| self.members[i].class == class);
        let fewest = of(Class::Compute).min_by_key(count);
        let most = of(Class::Compute).max_by_key(count);
        let mut trades = VecDeque::new();
        for index in of(Class::Memory) {
            let member = &self.members[index];
            let sms = if self.is_long() { (member.even() / 3).max(least) } else { least };
            let step = member.search.too_few().map(|(fewer, relative)| {
                let loss =
                    self.part_of_alone(member, fewer, relative) * (member.search.kept_speed() - relative);
                let gain = |other: usize| {
                    let other = &self.members[other];
                    let even = f64::from(other.even().max(1));
                    self.part_of_alone(other, 0, 0.0) * f64::from(member.search.fewest() - fewer) / even
                };
                fewest.map_or(0.0, gain) - loss
            });
            let gives = fewest.filter(|_| step.is_none_or(|step| step > 0.0));
            let takes = most.filter(|_| step.is_none_or(|step| step <= 0.0));
            trades.extend(gives.map(|receiver| Trade { giver: index, receiver, sms }));
            trades.extend(takes.map(|giver| Trade { giver, receiver: index, sms }));
        }
        trades
    }

    /// Whether the profile has shown that windows take so long that nobody should wait in them.
    pub(super) fn is_long(&self) -> bool {
        self.profile_cycles >= self.settings.long
    }

    /// What was measured under a plan; `None` where that is not known of somebody whose reference is.
    fn point(&self, plan: Plan, speeds: Vec<Option<Speed>>) -> Option<Point> {
        let relative: Vec<_> =
            self.members.iter().zip(&speeds).map(|(m, speed)| m.relative(*speed)).collect();
        let known =
            |(member, relative): (&Member, &Option<f64>)| member.reference.is_none() || relative.is_some();
        self.members.iter().zip(&relative).all(known).then_some(Point { plan, speeds, relative })
    }

    /// What all do more under one plan than under another, as a part of what they do under that.
    fn gain(&self, from: &Point, to: &Point) -> f64 {
        let (mut before, mut after) = (0.0, 0.0);
        for (index, member) in self.members.iter().enumerate() {
            if let (Some(was), Some(is)) = (from.relative[index], to.relative[index]) {
                let part = self.part_of_alone(member, to.plan.sms(member.application).len(), is);
                before += part * was;
                after += part * is;
            }
        }
        if before > 0.0 { after / before - 1.0 } else { 0.0 }
    }

    /// The speed with an even share as a part of that with all SMs. Speed grows as 1 − uⁿ with n even shares (Masola, JSSPP '23, Eq. 17),
    /// where u follows from what was measured with `sms` SMs, unless the gain from half of all SMs to all of them was measured.
    fn part_of_alone(&self, member: &Member, sms: u16, relative: f64) -> f64 {
        let shares = |sms: u16| f64::from(sms) / f64::from(member.even().max(1));
        let (all, half) = (shares(self.hardware.sms), shares(self.hardware.sms / 2).max(1e-6));
        let limit = self.settings.linear.powf(1.0 / half);
        let (least, most) = match member.class {
            Class::Memory => (LEAST_LEFT, limit),
            Class::Compute | Class::Unknown => (limit, 1.0 - LEAST_LEFT),
        };
        let left = match self.solo.get(&member.application) {
            Some((_, Evidence::Scaling { gain, .. })) => (gain - 1.0).max(LEAST_LEFT).powf(1.0 / half),
            _ if sms == 0 || sms == member.even() => f64::midpoint(least, most),
            _ => left_by_a_share(shares(sms), relative),
        };
        let left = left.clamp(least.min(most), most.max(least));
        (1.0 - left) / (1.0 - left.powf(all))
    }
}

/// Nobody saturates more, nor less, than to this.
const LEAST_LEFT: f64 = 1e-3;

/// u with (1 − uⁿ) ÷ (1 − u) = `relative`: what one share leaves of the distance to the greatest speed.
fn left_by_a_share(shares: f64, relative: f64) -> f64 {
    let (mut low, mut high) = (LEAST_LEFT, 1.0 - LEAST_LEFT);
    for _ in 0..24 {
        let middle = f64::midpoint(low, high);
        let speed = (1.0 - middle.powf(shares)) / (1.0 - middle);
        // More of it is left where speed depends more on the SMs.
        if (speed < relative) == (shares > 1.0) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_shows_of_saturation() {
        let speed = |left: f64, shares: f64| (1.0 - left.powf(shares)) / (1.0 - left);
        for left in [0.05, 0.3, 0.5, 0.9] {
            for shares in [0.5, 10.0 / 12.0, 14.0 / 12.0, 2.0] {
                let found = left_by_a_share(shares, speed(left, shares));
                assert!((found - left).abs() < 1e-4, "{left} {shares}: {found}");
            }
        }
        // Beyond proportion, and against all sense.
        assert!(left_by_a_share(2.0, 3.0) > 0.99 && left_by_a_share(0.5, 0.2) > 0.99);
        assert!(left_by_a_share(2.0, 0.9) < 0.01 && left_by_a_share(0.5, 1.1) < 0.01);
    }
}
