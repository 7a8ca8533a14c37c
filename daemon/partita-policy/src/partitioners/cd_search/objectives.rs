//! Objectives over the curves of all members: which plan to measure next, and which is the best.
//!
//! **Throughput** (§4.2, with SMs that change hands): the sum of all speeds, each as a part of the
//! speed alone on all SMs. The plan with the greatest sum by the curves is proposed, no further
//! than a third of an even share from the best that was measured, because curves say less of
//! numbers far from measured ones. Memory-intensive applications trade with the compute-intensive
//! ones, and these share what is left evenly (§7.4.3). Where that plan was measured, the neighbours
//! of the best are proposed, unless they promise to be worse by
//! [`hope`](super::CdSearchSettings::hope).
//!
//! **Power** (§4.3): the fewest SMs with which each application
//! [keeps](super::CdSearchSettings::keep) enough of its speed.

use super::search::Trial;
use super::{CdSearch, Member};
use crate::Bounds;
use crate::plans::fair_counts;
use partita_model::{ApplicationId, Class, SmSet};

/// The least speed alone that a speed is divided by: a curve that fits absurd speeds may have 0.
const MARGIN: f64 = 1e-3;

/// What a search is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Objective {
    #[default]
    Throughput,
    Power,
}

/// The members with their curves.
pub(super) struct View<'a> {
    of: &'a CdSearch,
    /// By member, the speed by its curve with 0, 1, 2 … SMs.
    speeds: Vec<Vec<f64>>,
    /// By member, its weight ÷ the speed alone on all SMs.
    weights: Vec<f64>,
    /// Who is compute-intensive, and the SMs that each has.
    pool: Vec<usize>,
    holders: Vec<(ApplicationId, SmSet)>,
    bounds: Vec<Bounds>,
}

impl CdSearch {
    /// The part of its even speed that a plan that stands leaves everybody.
    pub(super) fn least_speed(&self) -> f64 {
        match self.search.objective {
            Objective::Throughput => self.settings.least,
            Objective::Power => self.settings.keep,
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        let speeds: Vec<Vec<f64>> = self
            .members
            .iter()
            .map(|member| self.curve(member).speeds(self.hardware.sms))
            .collect();
        let alone = |speeds: &Vec<f64>| speeds.last().copied().unwrap_or_default().max(MARGIN);
        let weights = speeds.iter().zip(&self.members);
        let weights = weights
            .map(|(speeds, member)| f64::from(member.bounds.weight) / alone(speeds))
            .collect();
        let is_compute = |&at: &usize| self.members[at].class == Class::Compute;
        let pool: Vec<usize> = (0..self.members.len()).filter(is_compute).collect();
        let all = self.holders();
        let holders = pool.iter().map(|&at| all[at]).collect();
        let bounds = pool.iter().map(|&at| self.members[at].bounds).collect();
        View { of: self, speeds, weights, pool, holders, bounds }
    }
}

impl View<'_> {
    /// The best that was measured; of several the earliest, so the even split before others.
    pub(super) fn best(&self) -> Option<&Trial> {
        let least = self.of.least_speed();
        let value = |trial: &Trial| match self.of.search.objective {
            _ if trial.speeds.iter().any(|speed| *speed < least) => f64::NEG_INFINITY,
            Objective::Throughput => {
                self.weights.iter().zip(&trial.speeds).map(|(weight, speed)| weight * speed).sum()
            }
            Objective::Power => -f64::from(trial.counts.iter().sum::<u16>()),
        };
        let trials = self.of.search.trials.iter().rev();
        trials.max_by(|a, b| value(a).total_cmp(&value(b)))
    }

    /// What to measure next; `None` where nothing promises anything.
    pub(super) fn next(&self, best: &[u16]) -> Option<Vec<u16>> {
        match self.of.search.objective {
            Objective::Throughput => self.most_throughput(best),
            Objective::Power => self.fewest(),
        }
    }

    /// A member's speed by its curve. No member gets more than all SMs.
    fn speed(&self, at: usize, sms: u16) -> f64 {
        self.speeds[at].get(usize::from(sms)).copied().unwrap_or_default()
    }

    /// What all do together with so many SMs, by their curves.
    fn promised(&self, counts: &[u16]) -> f64 {
        let speeds = (0..).zip(counts).map(|(at, &sms)| self.speed(at, sms));
        self.weights.iter().zip(speeds).map(|(weight, speed)| weight * speed).sum()
    }

    /// The counts that promise most, after one move of each member at most; else the best
    /// neighbour that was not tried.
    fn most_throughput(&self, best: &[u16]) -> Option<Vec<u16>> {
        let settings = &self.of.settings;
        let step = settings.step.max(1);
        let most = |ways: Vec<Vec<u16>>| {
            let ways = ways.into_iter().map(|counts| (self.promised(&counts), counts));
            ways.max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let mut top = (self.promised(best), best.to_vec());
        for _ in &self.speeds {
            let far = most(self.ways(best, &top.1, |even| (even / 3).max(step)));
            let Some(far) = far.filter(|far| far.0 > top.0) else { break };
            top = far;
        }
        if !self.of.search.was_tried(&top.1) {
            return Some(top.1);
        }
        let mut near = self.ways(best, best, |_| step);
        near.retain(|counts| !self.of.search.was_tried(counts));
        let least = (1.0 - settings.hope) * self.promised(best);
        most(near).filter(|near| near.0 >= least).map(|(_, counts)| counts)
    }

    /// All that comes of one move: a memory-intensive application has as many SMs as in the best
    /// plan, give or take whole steps within its reach, and the compute-intensive ones share the
    /// rest of theirs and its SMs evenly.
    fn ways(&self, best: &[u16], counts: &[u16], reach: impl Fn(u16) -> u16) -> Vec<Vec<u16>> {
        let step = self.of.settings.step.max(1);
        let pooled: u16 = self.pool.iter().map(|&at| counts[at]).sum();
        let members = self.of.members.iter().enumerate();
        let mut ways = Vec::new();
        for (at, member) in members.filter(|(_, member)| member.class == Class::Memory) {
            let (both, reach) = (counts[at] + pooled, reach(member.even()));
            let fewest = best[at] - best[at].saturating_sub(1).min(reach) / step * step;
            for sms in (fewest..=best[at] + reach).step_by(step.into()) {
                let left = both.saturating_sub(sms);
                let shares = fair_counts(left, &self.holders, &self.bounds);
                let keeps = member.bounds.contain(sms) && shares.iter().sum::<u16>() == left;
                let starves = shares.iter().zip(&self.bounds);
                let mut starves = starves.map(|(sms, bounds)| *sms < bounds.least.max(1));
                if sms == counts[at] || !keeps || starves.any(|starves| starves) {
                    continue;
                }
                let mut next = counts.to_vec();
                next[at] = sms;
                for (&at, share) in self.pool.iter().zip(shares) {
                    next[at] = share;
                }
                ways.push(next);
            }
        }
        ways
    }

    /// Half as many SMs for everybody, until these are too few; then the fewest that may be enough:
    /// by the curve, or because they were.
    ///
    /// All are halved at once (§4.3): an application with fewer SMs than its competitors loses
    /// bandwidth to them.
    fn fewest(&self) -> Option<Vec<u16>> {
        let (keep, trials) = (self.of.settings.keep, &self.of.search.trials);
        let next = |(at, member): (usize, &Member)| {
            if member.class != Class::Memory {
                return Some(member.even());
            }
            let (lacked, enough): (Vec<&Trial>, Vec<&Trial>) =
                trials.iter().partition(|trial| trial.speeds[at] < keep);
            let Some(few) = lacked.iter().map(|trial| trial.counts[at]).max() else {
                return trials.last().map(|trial| trial.counts[at].div_ceil(2));
            };
            let was_enough = |sms: u16| enough.iter().any(|trial| trial.counts[at] == sms);
            let promises = |&sms: &u16| self.speed(at, sms) >= keep || was_enough(sms);
            Some((few + 1..member.even()).find(promises).unwrap_or(member.even()))
        };
        let owed = |at: usize| self.of.members[at].bounds.least;
        let next = |(at, member)| next((at, member)).map(|sms| sms.max(owed(at)));
        let counts: Vec<u16> =
            self.of.members.iter().enumerate().map(next).collect::<Option<_>>()?;
        (!self.of.search.was_tried(&counts)).then_some(counts)
    }
}

#[cfg(test)]
#[path = "objectives_tests.rs"]
mod tests;
