//! The performance mode by moving SMs and measuring what comes of it: ours.
//!
//! The paper's search looks at the memory-intensive applications only, and only at fewer SMs than
//! the even split gives them, which wait meanwhile. So it costs throughput as long as it lasts, and
//! misses splits where what they lose beyond its 5 % is less than what the others gain, and those
//! where they should have more. Here SMs change hands, so that nobody waits, and what windows have
//! shown says what to try next:
//!
//! 1. The speed of an application is taken to grow as 1 − uⁿ with n even shares (Masola, JSSPP '23,
//!    Eq. 17). The curve is fitted to all windows so far, the profile's among them: where that one
//!    was slow or fast the others say so. What u was expected to be counts as much as a window:
//!    from the gain that was measured while it was alone, else from demand and supply, else from
//!    its class. Launches of few rounds of CTAs go by steps: as many as 4.5 rounds on an even share
//!    take five, on two thirds of it seven. What a last round that is not full wastes is taken out
//!    of what windows have shown, and counts in what plans promise.
//! 2. What all do together is the sum of their speeds, each as a part of the speed that it would
//!    have alone on all SMs, which that curve gives. The plan is tried that has the most of it, no
//!    further than a third of an even share from the best that was measured. Memory-intensive
//!    applications trade with the compute-intensive ones, and these share what is left evenly
//!    (§7.4.3).
//! 3. Where no plan promises to be better by [`worth`](super::CdSearchSettings::worth), the
//!    neighbours of the best are tried, unless they promise to be worse by
//!    [`doubt`](super::CdSearchSettings::doubt). Then the best is measured once more: of several
//!    noisy windows the best is often one that flatters. It stands if it is worth more than the
//!    even split by all that was seen of it. There are [`trials`](super::CdSearchSettings::trials)
//!    at most.

use super::{CdSearch, Member, Stage};
use crate::measuring::Speed;
use crate::plans::{allot, even_counts};
use crate::{Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, Evidence, Note, SmSet};

/// A plan and what was done under it.
#[derive(Clone, PartialEq, Debug)]
struct Point {
    /// Windows that showed it.
    windows: u8,
    plan: Plan,
    /// SMs by member.
    counts: Vec<u16>,
    /// By member; against the even split only where that could be measured.
    speeds: Vec<Option<Speed>>,
    relative: Vec<Option<f64>>,
}

/// Where that stands.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Refine {
    /// What was measured.
    points: Vec<Point>,
    /// Numbers of SMs that were tried, those of the even split first.
    tried: Vec<Vec<u16>>,
    /// By member, what they say.
    curves: Vec<Curve>,
    trials: u8,
    retries: u8,
}

/// What windows say of an application.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Curve {
    /// SMs of an even share.
    even: f64,
    /// What an even share leaves of the distance to the greatest speed.
    left: f64,
    /// The speed with an even share, against what the profile has shown.
    height: f64,
    /// What the profile has shown as a part of the speed with all SMs.
    part: f64,
    /// Rounds of CTAs of its launches with an even share, where they are few and what they waste
    /// shows.
    rounds: Option<f64>,
}

impl Curve {
    /// Against the even split.
    fn relative(&self, sms: f64) -> f64 {
        let shares = sms / self.even;
        self.height * shape(self.left, shares) * grain(self.rounds, shares)
    }
}

impl CdSearch {
    /// Begins with what the profile has shown of the even split.
    pub(super) fn start_refine(&mut self, sample: &Sample, notes: Vec<Note>) -> Decision {
        let speeds: Vec<_> = self.members.iter().map(|member| member.reference).collect();
        let even = self.point(self.plan.clone(), speeds);
        self.refine = Refine { points: even.into_iter().collect(), ..Refine::default() };
        self.refine.tried = self.refine.points.iter().map(|point| point.counts.clone()).collect();
        self.stage = Stage::Refine;
        self.propose(sample, notes)
    }

    /// A window has ended.
    pub(super) fn refined(&mut self, sample: &Sample) -> Decision {
        let speeds: Vec<_> =
            self.members.iter().map(|member| CdSearch::speed(sample, member.application)).collect();
        let Some(mut point) = self.point(self.plan.clone(), speeds) else {
            self.refine.retries += 1;
            if self.refine.retries <= self.settings.patience {
                return self.decision(Vec::new());
            }
            let notes = self.members.iter().map(Member::classified).collect();
            return self.propose(sample, notes);
        };
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        for (index, member) in self.members.iter().enumerate() {
            if let (Some(relative), Some(speed)) = (point.relative[index], point.speeds[index]) {
                notes.push(Note::Measured {
                    application: member.application,
                    active: point.counts[index],
                    of: member.even(),
                    relative,
                    limit: self.settings.least,
                    ctas: speed.progress.ctas,
                });
            }
        }
        let before = self.refine.points.iter().position(|before| before.counts == point.counts);
        if let Some(before) = before.map(|at| self.refine.points.swap_remove(at)) {
            let both =
                |(a, b): (&Option<Speed>, &Option<Speed>)| Some(a.as_ref()?.and(b.as_ref()?));
            let speeds = before.speeds.iter().zip(&point.speeds).map(both).collect();
            if let Some(all) = self.point(point.plan.clone(), speeds) {
                point = Point { windows: before.windows.saturating_add(1), ..all };
            }
        }
        self.refine.points.push(point);
        self.propose(sample, notes)
    }

    /// Moves SMs for the next trial. Where none promises anything the best plan stands, once a
    /// second window has shown it: the best of several is often one whose window flatters.
    fn propose(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        self.refine.retries = 0;
        self.refine.curves = self.curves();
        let Some(best) = self.best().cloned() else { return self.end_refine(notes) };
        let trials = self.refine.trials;
        self.refine.trials = trials.saturating_add(1);
        let next = (trials < self.settings.trials).then(|| self.promising(&best)).flatten();
        let counts = match next {
            Some(counts) => counts,
            None if best.windows < 2
                && trials <= self.settings.trials
                && self.refine.tried.first() != Some(&best.counts) =>
            {
                best.counts.clone()
            }
            None => return self.end_refine(notes),
        };
        let holders: Vec<(ApplicationId, SmSet)> =
            self.members.iter().map(|m| (m.application, best.plan.sms(m.application))).collect();
        for (member, &active) in self.members.iter().zip(&counts) {
            if active != self.plan.sms(member.application).len() {
                notes.push(Note::Tries {
                    application: member.application,
                    active,
                    of: member.even(),
                });
            }
        }
        self.plan = allot(sample.sms, &holders, &counts);
        self.refine.tried.push(counts);
        self.decision(notes)
    }

    fn end_refine(&mut self, mut notes: Vec<Note>) -> Decision {
        if let Some(best) = self.best().cloned() {
            for (member, speed) in self.members.iter_mut().zip(&best.speeds) {
                let sms = best.plan.sms(member.application).len();
                let (application, of) = (member.application, member.even());
                let relative = member.relative(*speed);
                match member.class {
                    Class::Memory => notes.push(Note::Needs { application, sms, of, relative }),
                    _ if sms > of => notes.push(Note::Receives { application, from: of, to: sms }),
                    _ => {}
                }
                // What was measured with them is what later windows are compared with, not what the
                // class predicts.
                if sms != of {
                    member.watch.measured(*speed);
                }
            }
            self.plan = best.plan;
        }
        self.stage = Stage::Watch;
        self.decision(notes)
    }

    /// The numbers of SMs that promise most of those that were not tried.
    ///
    /// From the best plan that was measured step after step goes the way that promises most. Where
    /// all on that way was tried a single step may be, even one that promises to lose a little: it
    /// costs little, and curves err.
    fn promising(&self, best: &Point) -> Option<Vec<u16>> {
        let trade = Trade::new(self, best);
        let all = trade.worth(&best.counts);
        let (worth, doubt) = (self.settings.worth * all, self.settings.doubt * all);
        let untried = |counts: &Vec<u16>| !self.refine.tried.contains(counts);
        let mut path = vec![(0.0, best.counts.clone())];
        while let Some((gained, counts)) =
            path.last().filter(|_| path.len() <= self.hardware.sms.into())
        {
            let way = trade.ways(counts, u16::MAX).into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((gain, counts)) = way.filter(|(gain, _)| *gain > 0.0) else { break };
            path.push((gained + gain, counts));
        }
        let far = path.into_iter().filter(|(gained, counts)| *gained >= worth && untried(counts));
        let near = trade.ways(&best.counts, 1).into_iter();
        let near = near.filter(|(gain, counts)| *gain >= -doubt && untried(counts));
        let most = |ways: Vec<(f64, Vec<u16>)>| ways.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        most(far.collect()).or_else(|| most(near.collect())).map(|(_, counts)| counts)
    }

    /// The best that was measured: the even split where nothing is worth more.
    fn best(&self) -> Option<&Point> {
        let even = self
            .refine
            .points
            .iter()
            .find(|point| self.refine.tried.first() == Some(&point.counts))?;
        let fine = |relative: &Option<f64>| {
            relative.is_none_or(|relative| relative >= self.settings.least)
        };
        let others = self.refine.points.iter().filter(|point| point.relative.iter().all(fine));
        let best = others.max_by(|a, b| self.total(a).total_cmp(&self.total(b)))?;
        let enough = (1.0 + self.settings.worth) * self.total(even);
        Some(if self.total(best) >= enough { best } else { even })
    }

    /// What all do together under a plan.
    fn total(&self, point: &Point) -> f64 {
        let speeds = self.refine.curves.iter().zip(&point.relative);
        speeds.filter_map(|(curve, relative)| Some(curve.part * (*relative)?)).sum()
    }

    /// What all windows so far say of everybody.
    fn curves(&self) -> Vec<Curve> {
        let curve = |(index, member): (usize, &Member)| {
            let even = f64::from(member.even().max(1));
            let points = self.refine.points.iter();
            let rounds = member.rounds.filter(|rounds| *rounds <= FEW);
            let measured: Vec<(f64, f64)> = points
                .filter_map(|point| {
                    let shares = f64::from(point.counts[index]) / even;
                    Some((shares, point.relative[index]? / grain(rounds, shares)))
                })
                .collect();
            let prior = self.left_before(member);
            let (left, height) = fitted(&measured, prior, self.left_bounds(member));
            let all = f64::from(self.hardware.sms) / even;
            // What windows show of compute-intensive applications beyond their class is the grain
            // of their launches; that one gains less, they know.
            let alone = if member.class == Class::Memory { left } else { left.max(prior) };
            // Where the profile's window was a slow one, all speeds are too large parts of it.
            let whole = height.max(LEAST_HEIGHT) * shape(alone, all) * grain(rounds, all);
            Curve { even, left, height, part: 1.0 / whole, rounds }
        };
        self.members.iter().enumerate().map(curve).collect()
    }

    /// What was measured under a plan; `None` where that is not known of somebody whose reference
    /// is.
    fn point(&self, plan: Plan, speeds: Vec<Option<Speed>>) -> Option<Point> {
        let relative: Vec<_> =
            self.members.iter().zip(&speeds).map(|(m, speed)| m.relative(*speed)).collect();
        let known = |(member, relative): (&Member, &Option<f64>)| {
            member.reference.is_none() || relative.is_some()
        };
        let counts = self.members.iter().map(|member| plan.sms(member.application).len()).collect();
        self.members.iter().zip(&relative).all(known).then_some(Point {
            windows: 1,
            plan,
            counts,
            speeds,
            relative,
        })
    }

    /// What an even share leaves of the distance to an application's greatest speed, before any
    /// window with more or fewer SMs.
    fn left_before(&self, member: &Member) -> f64 {
        let half = self.half(member);
        let (least, most) = self.left_bounds(member);
        let left = match (self.solo.get(&member.application), member.evidence) {
            (Some((_, Evidence::Scaling { gain, .. })), _) => {
                (gain - 1.0).max(LEAST_LEFT).powf(1.0 / half)
            }
            // Slope by demand, limit by supply.
            (_, Evidence::Bandwidth { demand, supply, .. }) => {
                let part = f64::from(member.even()) / f64::from(self.hardware.sms.max(1));
                (-demand / supply.max(1e-6) * part).exp()
            }
            (_, Evidence::Unsaturated { own, .. }) => (1.0 - own).powf(1.0 / half),
            _ => f64::midpoint(least, most),
        };
        left.clamp(least, most)
    }

    /// Between which bounds that lies by the class.
    fn left_bounds(&self, member: &Member) -> (f64, f64) {
        let limit =
            self.settings.linear.powf(1.0 / self.half(member)).clamp(LEAST_LEFT, 1.0 - LEAST_LEFT);
        match member.class {
            Class::Memory => (LEAST_LEFT, limit),
            Class::Compute | Class::Unknown => (limit, 1.0 - LEAST_LEFT),
        }
    }

    /// Half of all SMs in even shares.
    fn half(&self, member: &Member) -> f64 {
        (f64::from(self.hardware.sms / 2) / f64::from(member.even().max(1))).max(1e-6)
    }
}

/// The speed with so many even shares against that with one, where one leaves so much.
fn shape(left: f64, shares: f64) -> f64 {
    (1.0 - left.powf(shares)) / (1.0 - left)
}

/// What a last round that is not full leaves of the speed with so many even shares, against what it
/// leaves with one.
fn grain(rounds: Option<f64>, shares: f64) -> f64 {
    let Some(rounds) = rounds.filter(|rounds| *rounds > 0.0 && shares > 0.0) else { return 1.0 };
    // A number of rounds is a quotient of whole numbers, and may lie beside a whole one by its last
    // digits.
    let taken = |rounds: f64| (rounds - 1e-6).ceil().max(1.0);
    let full = |rounds: f64| if rounds.is_finite() { rounds / taken(rounds) } else { 1.0 };
    full(rounds / shares) / full(rounds)
}

/// Of more rounds the last one matters little, and CTAs are not so much alike that all rounds end
/// as one.
const FEW: f64 = 8.0;

/// Nobody saturates more, nor less, than to this.
const LEAST_LEFT: f64 = 1e-3;
/// Nor is anybody so much slower than its profile.
const LEAST_HEIGHT: f64 = 1e-3;
/// So far a window may be off, and what was expected of u.
const GRAIN: f64 = 0.03;
const EXPECTED: f64 = 0.25;

/// u and height of the curve that fits best to speeds with so many even shares, where u was
/// expected to be one between two bounds.
fn fitted(measured: &[(f64, f64)], expected: f64, (least, most): (f64, f64)) -> (f64, f64) {
    let between = |part: u8| least + (most - least) * f64::from(part) / f64::from(PARTS);
    let mut best = (f64::INFINITY, expected, 1.0);
    for left in (0..=PARTS).map(between).chain([expected]) {
        let (mut both, mut squares) = (0.0, 0.0);
        for &(shares, relative) in measured {
            let on = shape(left, shares);
            both += on * relative;
            squares += on * on;
        }
        let height = if squares > 0.0 { both / squares } else { 1.0 };
        let off =
            |&(shares, relative): &(f64, f64)| (relative - height * shape(left, shares)) / GRAIN;
        let unexpected = (left - expected) / EXPECTED;
        let error =
            measured.iter().map(off).map(|off| off * off).sum::<f64>() + unexpected * unexpected;
        if error < best.0 {
            best = (error, left, height);
        }
    }
    (best.1, best.2)
}

/// Values of u that are compared.
const PARTS: u8 = 16;

/// What comes of moving SMs between memory-intensive applications and the compute-intensive ones,
/// by their curves.
struct Trade<'a> {
    search: &'a CdSearch,
    best: &'a Point,
    /// Who is compute-intensive, with the SMs that it has in the best plan.
    pool: Vec<(usize, (ApplicationId, SmSet))>,
}

impl<'a> Trade<'a> {
    fn new(search: &'a CdSearch, best: &'a Point) -> Self {
        let members = search.members.iter().enumerate();
        let pool = members.filter(|(_, member)| member.class == Class::Compute);
        let holds = |member: &Member| (member.application, best.plan.sms(member.application));
        Trade { search, best, pool: pool.map(|(index, member)| (index, holds(member))).collect() }
    }

    fn worth(&self, counts: &[u16]) -> f64 {
        counts.iter().enumerate().map(|(index, &sms)| self.one(index, sms)).sum()
    }

    /// All that comes of up to so many steps, of one memory-intensive application, from these
    /// numbers, that leaves everybody enough, and what it gains.
    fn ways(&self, counts: &[u16], steps: u16) -> Vec<(f64, Vec<u16>)> {
        let step = self.search.settings.step.max(1);
        let pooled: u16 = self.pool.iter().map(|&(index, _)| counts[index]).sum();
        let members = self.search.members.iter().enumerate();
        let mut ways = Vec::new();
        for (index, member) in members.filter(|(_, member)| member.class == Class::Memory) {
            let has = counts[index];
            let reach = (member.even() / 3).max(step);
            // Further than from one end of the reach to the other nothing leads.
            for moved in (1..=steps.min(reach / step * 2)).map(|steps| steps * step) {
                let gives = has.checked_sub(moved).map(|left| (left, pooled + moved));
                let takes = pooled.checked_sub(moved).map(|left| (has + moved, left));
                for (sms, pool) in gives.into_iter().chain(takes) {
                    let near = sms.abs_diff(self.best.counts[index]) <= reach;
                    let Some((gain, shares)) =
                        self.pool_with(pool, counts).filter(|_| near && self.enough(index, sms))
                    else {
                        continue;
                    };
                    let mut next = counts.to_vec();
                    next[index] = sms;
                    for ((index, _), share) in self.pool.iter().zip(shares) {
                        next[*index] = share;
                    }
                    ways.push((gain + self.one(index, sms) - self.one(index, counts[index]), next));
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
        for (&(index, _), &share) in self.pool.iter().zip(&shares) {
            if !self.enough(index, share) {
                return None;
            }
            gain += self.one(index, share) - self.one(index, counts[index]);
        }
        Some((gain, shares))
    }

    fn one(&self, index: usize, sms: u16) -> f64 {
        let curve = &self.search.refine.curves[index];
        curve.part * curve.relative(sms.into())
    }

    /// Whether so many SMs leave one what is left to everybody.
    fn enough(&self, index: usize, sms: u16) -> bool {
        let least = self.search.settings.least;
        let fast = || self.search.refine.curves[index].relative(sms.into()) >= least;
        sms >= self.search.members[index].even() || sms > 0 && fast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_found_again() {
        for left in [0.05, 0.3, 0.5, 0.9] {
            let at = |shares: f64| (shares, shape(left, shares));
            let (found, height) =
                fitted(&[at(1.0), at(0.5), at(1.5)], 0.5, (LEAST_LEFT, 1.0 - LEAST_LEFT));
            assert!((found - left).abs() < 0.05, "{left}: {found}");
            assert!((height - 1.0).abs() < 0.03, "{left}: {height}");
        }
    }

    /// The profile's window was a slow one: all others look too fast.
    #[test]
    fn a_wrong_reference_is_seen() {
        let others = [4.0 / 6.0, 5.0 / 6.0, 7.0 / 6.0, 8.0 / 6.0]
            .map(|shares| (shares, 1.1 * shape(0.3, shares)));
        let measured: Vec<(f64, f64)> = others.into_iter().chain([(1.0, 1.0)]).collect();
        let (left, height) = fitted(&measured, 0.3, (LEAST_LEFT, 0.5));
        assert!((left - 0.3).abs() < 0.1, "{left}");
        assert!(height > 1.05, "{height}");
    }

    /// Wave quantisation: a program of 54 CTAs on SMs that hold one each.
    #[test]
    fn launches_of_few_rounds_go_by_steps() {
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-3, "{found}, not {wanted}")
        };
        let rounds = |sms: f64| Some(54.0 / sms);
        // 12 SMs take five rounds, and so do 11.
        for (sms, take) in
            [(8.0, 7.0), (10.0, 6.0), (11.0, 5.0), (12.0, 5.0), (16.0, 4.0), (24.0, 3.0)]
        {
            near(sms / 12.0 * grain(rounds(12.0), sms / 12.0), 5.0 / take);
        }
        near(grain(None, 0.5), 1.0);
        for odd in [f64::NAN, -1.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE] {
            assert!(
                grain(Some(odd), 0.5).is_finite() && grain(Some(4.0), odd).is_finite(),
                "{odd}"
            );
        }
    }

    #[test]
    fn without_windows_it_is_what_was_expected() {
        assert_eq!(fitted(&[(1.0, 1.0)], 0.42, (LEAST_LEFT, 0.5)), (0.42, 1.0));
        let (left, height) = fitted(&[], 0.42, (LEAST_LEFT, 0.5));
        assert_eq!((left, height), (0.42, 1.0));
        // Against all sense.
        let (left, height) = fitted(&[(1.0, 1.0), (0.5, 1e9), (2.0, 0.0)], 0.42, (LEAST_LEFT, 0.5));
        assert!(left.is_finite() && height.is_finite());
    }
}
