//! Objectives over the curves of all members: which plan to measure next, and which is the best.
//!
//! **Throughput** (§4.2, with SMs that change hands): what all do together is the sum of their
//! speeds, each as a part of the speed that it would have alone on all SMs. The plan is proposed
//! that has the most of it by the curves, no further than a third of an even share from the best
//! that was measured. Memory-intensive applications trade with the compute-intensive ones, and
//! these share what is left evenly (§7.4.3). Where no plan promises more, the
//! neighbours of the best are proposed, unless they promise to be worse by
//! [`hope`](super::CdSearchSettings::hope).
//!
//! **Power** (§4.3): the fewest SMs with which all
//! [keep](super::CdSearchSettings::keep) enough of their speed.

use super::search::Trial;
use super::{CdSearch, Member};
use crate::models::Curve;
use crate::plans::even_counts;
use partita_model::{ApplicationId, Class, SmSet};

/// A member stands still where its curve says less: then its speeds count no further.
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
    search: &'a CdSearch,
    curves: Vec<Curve>,
    /// By member, 1 ÷ the speed alone on all SMs.
    weights: Vec<f64>,
    /// Who is compute-intensive, with the SMs that it has.
    pool: Vec<(usize, (ApplicationId, SmSet))>,
}

impl CdSearch {
    pub(super) fn view(&self) -> View<'_> {
        let curves: Vec<Curve> = self.members.iter().map(|member| self.curve(member)).collect();
        let alone = |curve: &Curve| curve.speed(self.hardware.sms).max(MARGIN);
        let weights = curves.iter().map(|curve| 1.0 / alone(curve)).collect();
        let pool = self.members.iter().zip(self.holders()).enumerate();
        let pool = pool.filter(|(_, (member, _))| member.class == Class::Compute);
        let pool = pool.map(|(at, (_, holder))| (at, holder)).collect();
        View { search: self, curves, weights, pool }
    }

    /// The part of its even speed that a plan leaves everybody at least.
    pub(super) fn least_speed(&self) -> f64 {
        match self.search.objective {
            Objective::Throughput => self.settings.least,
            Objective::Power => self.settings.keep,
        }
    }
}

impl View<'_> {
    /// The best that was measured; the even split where nothing is better.
    pub(super) fn best(&self) -> Trial {
        let results = self.search.search.results();
        let Some(even) = results.first().cloned() else {
            return Trial { counts: Vec::new(), speeds: Vec::new() };
        };
        match self.search.search.objective {
            Objective::Throughput => {
                let least = self.search.settings.least;
                let fine =
                    |trial: &Trial| trial.speeds.iter().flatten().all(|speed| *speed >= least);
                let best = results.iter().filter(|trial| fine(trial));
                let best = best.max_by(|a, b| self.measured(a).total_cmp(&self.measured(b)));
                best.filter(|best| self.measured(best) > self.measured(&even))
                    .cloned()
                    .unwrap_or(even)
            }
            Objective::Power => {
                let used = |trial: &Trial| trial.counts.iter().sum::<u16>();
                let fine = results.into_iter().filter(|trial| self.is_fast_enough(trial));
                fine.min_by_key(used).unwrap_or(even)
            }
        }
    }

    /// What to measure next; `None` where nothing promises anything.
    pub(super) fn next(&self, best: &[u16]) -> Option<Vec<u16>> {
        match self.search.search.objective {
            Objective::Throughput => self.most_throughput(best),
            Objective::Power => self.fewest(),
        }
    }

    /// What all do together in a trial.
    fn measured(&self, trial: &Trial) -> f64 {
        let speeds = self.weights.iter().zip(&trial.speeds);
        speeds.filter_map(|(weight, speed)| Some(weight * (*speed)?)).sum()
    }

    /// What one contributes with so many SMs, by its curve.
    fn promised(&self, at: usize, sms: u16) -> f64 {
        self.weights[at] * self.curves[at].speed(sms)
    }

    /// The counts that promise most of those that were not tried.
    ///
    /// From the best plan step after step goes the way that promises most. Where all on that way
    /// was tried a single step may be, even one that promises to lose a little.
    fn most_throughput(&self, best: &[u16]) -> Option<Vec<u16>> {
        let settings = &self.search.settings;
        let all: f64 = best.iter().enumerate().map(|(at, &sms)| self.promised(at, sms)).sum();
        let untried = |counts: &Vec<u16>| !self.search.search.was_tried(counts);
        let mut path = vec![(0.0, best.to_vec())];
        while let Some((gained, counts)) =
            path.last().filter(|_| path.len() <= self.search.hardware.sms.into())
        {
            let ways = self.ways(best, counts, u16::MAX).into_iter();
            let way = ways.max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((gain, counts)) = way.filter(|(gain, _)| *gain > 0.0) else { break };
            path.push((gained + gain, counts));
        }
        let far = path.into_iter().skip(1);
        let near = self.ways(best, best, 1).into_iter();
        let near = near.filter(|(gain, _)| *gain >= -settings.hope * all);
        let most = |ways: &mut dyn Iterator<Item = (f64, Vec<u16>)>| {
            ways.filter(|(_, counts)| untried(counts)).max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let (mut far, mut near) = (far, near);
        most(&mut far).or_else(|| most(&mut near)).map(|(_, counts)| counts)
    }

    /// All that comes of up to so many steps of one memory-intensive application that leave
    /// everybody enough, and what it gains.
    fn ways(&self, best: &[u16], counts: &[u16], steps: u16) -> Vec<(f64, Vec<u16>)> {
        let step = self.search.settings.step.max(1);
        let pooled: u16 = self.pool.iter().map(|&(at, _)| counts[at]).sum();
        let members = self.search.members.iter().enumerate();
        let mut ways = Vec::new();
        for (at, member) in members.filter(|(_, member)| member.class == Class::Memory) {
            let has = counts[at];
            let reach = (member.even() / 3).max(step);
            // Further than from one end of the reach to the other nothing leads.
            for moved in (1..=steps.min(reach / step * 2)).map(|steps| steps * step) {
                let gives = has.checked_sub(moved).map(|left| (left, pooled + moved));
                let takes = pooled.checked_sub(moved).map(|left| (has + moved, left));
                for (sms, pool) in gives.into_iter().chain(takes) {
                    if sms.abs_diff(best[at]) > reach || !self.leaves_enough(at, sms) {
                        continue;
                    }
                    let Some((gain, shares)) = self.pool_with(pool, counts) else { continue };
                    let mut next = counts.to_vec();
                    next[at] = sms;
                    for ((at, _), share) in self.pool.iter().zip(shares) {
                        next[*at] = share;
                    }
                    ways.push((gain + self.promised(at, sms) - self.promised(at, has), next));
                }
            }
        }
        ways
    }

    /// What the compute-intensive applications gain with so many SMs together, and how many each
    /// has; `None` where one would fall behind.
    fn pool_with(&self, sms: u16, counts: &[u16]) -> Option<(f64, Vec<u16>)> {
        let holders: Vec<_> = self.pool.iter().map(|(_, holder)| *holder).collect();
        let shares = even_counts(sms, &holders);
        let mut gain = 0.0;
        for (&(at, _), &share) in self.pool.iter().zip(&shares) {
            if !self.leaves_enough(at, share) {
                return None;
            }
            gain += self.promised(at, share) - self.promised(at, counts[at]);
        }
        Some((gain, shares))
    }

    fn leaves_enough(&self, at: usize, sms: u16) -> bool {
        let least = self.search.settings.least;
        sms >= self.search.members[at].even() || sms > 0 && self.curves[at].speed(sms) >= least
    }

    /// Half as many SMs for everybody, until these are too few; then the fewest that may be enough:
    /// by the curve, or because they were.
    ///
    /// All are halved at once (§4.3), for who has fewer SMs than its competitors loses bandwidth to
    /// them.
    fn fewest(&self) -> Option<Vec<u16>> {
        let keep = self.search.settings.keep;
        let results = self.search.search.results();
        let failed: Vec<&Trial> =
            results.iter().filter(|trial| !self.is_fast_enough(trial)).collect();
        let lacks = |trial: &Trial, at: usize| trial.speeds[at].is_some_and(|speed| speed < keep);
        let next = |(at, member): (usize, &Member)| {
            if member.class != Class::Memory {
                return Some(member.even());
            }
            let few = failed.iter().filter(|trial| lacks(trial, at)).map(|trial| trial.counts[at]);
            let Some(few) = few.max() else {
                return results.last().map(|trial| trial.counts[at].div_ceil(2));
            };
            let was_enough =
                |sms: u16| results.iter().any(|trial| trial.counts[at] == sms && !lacks(trial, at));
            let enough = |&sms: &u16| self.curves[at].speed(sms) >= keep || was_enough(sms);
            Some((few + 1..member.even()).find(enough).unwrap_or(member.even()))
        };
        let counts: Vec<u16> =
            self.search.members.iter().enumerate().map(next).collect::<Option<_>>()?;
        (!self.search.search.was_tried(&counts)).then_some(counts)
    }

    /// Whether all together keep enough, and nobody lacks much more.
    fn is_fast_enough(&self, trial: &Trial) -> bool {
        let settings = &self.search.settings;
        let speeds = || trial.speeds.iter().flatten().copied();
        super::mean(speeds()) >= settings.keep
            && speeds().all(|speed| speed >= settings.keep - settings.lack)
    }
}
