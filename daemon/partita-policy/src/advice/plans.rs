//! How long groups take by measured speeds: the oracle and the random plans that Kernelet
//! (TPDS '14, §5.1) is compared with.
//!
//! A table has the time of each application alone, and the speeds of pairs that were run together,
//! with one or several ratios of CTAs. Groups run one after the other. A pair runs until one of the
//! two ends; the rest of the other runs alone. The time of a plan is the sum over its groups.
//!
//! | plan | here | in the paper |
//! | --- | --- | --- |
//! | all apart | [`PairTable::apart`] | sequential execution |
//! | greedy | [`PairTable::greedy`] | OPT: Kernelet's algorithm with measured profits |
//! | best | [`PairTable::best`] | – : no plan of pairs is faster |
//! | random | [`PairTable::random`] | MC(s): random pairs with random ratios, s times |
//!
//! The plan of an adviser has its time from [`PairTable::time`].

use crate::advice::{Expected, Group};
use partita_model::ApplicationId;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::collections::BTreeMap;

/// Applications of which [`PairTable::best`] compares all plans, at most: there are then 2^16
/// subsets, and 46 million plans.
const MOST_EXHAUSTIVE: usize = 16;

/// A table or a plan that cannot be used.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PairTableError {
    /// A time alone.
    #[error("pair table: {application} takes {nanos} ns alone; it must be above 0")]
    Time {
        /// Whose.
        application: ApplicationId,
        /// Nanoseconds.
        nanos: f64,
    },
    /// A speed.
    #[error("pair table: {} have the speeds {speeds:?}; each must be above 0", names(.members))]
    Speeds {
        /// Whose.
        members: [ApplicationId; 2],
        /// Parts of the speeds alone.
        speeds: [f64; 2],
    },
    /// An application without a time.
    #[error("pair table: {0} has no time alone; add it first")]
    Unknown(ApplicationId),
    /// A pair that was not measured.
    #[error(
        "pair table: {} were not measured with {quotas:?} CTAs an SM; measure them",
        names(.members)
    )]
    NotMeasured {
        /// Who.
        members: Vec<ApplicationId>,
        /// CTAs of each on an SM.
        quotas: Vec<u32>,
    },
    /// A plan that has an application twice, or not at all.
    #[error("pair table: the plan has {0} not exactly once")]
    NotOnce(ApplicationId),
    /// More applications than all plans can be compared of.
    #[error("pair table: {0} applications have too many plans; compare 16 at most")]
    TooMany(usize),
}

/// Measured speeds of pairs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PairTable {
    /// Nanoseconds that each application's work takes alone.
    alone: BTreeMap<ApplicationId, f64>,
    /// By members in order of id.
    pairs: BTreeMap<[ApplicationId; 2], Vec<Measured>>,
}

/// One measurement of a pair, in the order of its members' ids.
#[derive(Clone, PartialEq, Debug)]
struct Measured {
    quotas: Vec<u32>,
    speeds: [f64; 2],
}

impl PairTable {
    /// Adds an application, whose work takes so many nanoseconds alone on the GPU.
    ///
    /// # Errors
    /// The time is not a number above 0.
    pub fn add(&mut self, application: ApplicationId, nanos: f64) -> Result<(), PairTableError> {
        if !(nanos.is_finite() && nanos > 0.0) {
            return Err(PairTableError::Time { application, nanos });
        }
        self.alone.insert(application, nanos);
        Ok(())
    }

    /// Adds a measured pair: the speed of each member as a part of its speed alone, and the CTAs of
    /// each on an SM; no CTAs where each had SMs of its own. A pair has one measurement for each
    /// ratio of CTAs: the last.
    ///
    /// # Errors
    /// An application is unknown or its own partner, or a speed is not a number above 0.
    pub fn measure(
        &mut self,
        members: [ApplicationId; 2],
        mut quotas: Vec<u32>,
        mut speeds: [f64; 2],
    ) -> Result<(), PairTableError> {
        if let Some(unknown) = members.iter().find(|member| !self.alone.contains_key(member)) {
            return Err(PairTableError::Unknown(*unknown));
        }
        if speeds.iter().any(|speed| !(speed.is_finite() && *speed > 0.0)) {
            return Err(PairTableError::Speeds { members, speeds });
        }
        let mut ordered = members;
        if members[0] == members[1] {
            return Err(PairTableError::NotOnce(members[0]));
        }
        if members[0] > members[1] {
            ordered.reverse();
            quotas.reverse();
            speeds.reverse();
        }
        let measured = self.pairs.entry(ordered).or_default();
        measured.retain(|other| other.quotas != quotas);
        measured.push(Measured { quotas, speeds });
        Ok(())
    }

    /// Nanoseconds that a plan takes.
    ///
    /// # Errors
    /// The plan has an application of the table not exactly once, a group of more than two, or a
    /// pair that was not measured with its CTAs.
    pub fn time(&self, plan: &[Group]) -> Result<f64, PairTableError> {
        let members = || plan.iter().flat_map(|group| &group.members);
        for application in self.alone.keys() {
            if members().filter(|member| *member == application).count() != 1 {
                return Err(PairTableError::NotOnce(*application));
            }
        }
        let each = plan.iter().map(|group| match *group.members.as_slice() {
            [alone] => self.alone.get(&alone).copied().ok_or(PairTableError::Unknown(alone)),
            [one, other] => self.pair_time([one, other], group),
            _ => Err(not_measured(group)),
        });
        each.sum()
    }

    /// All applications one after the other.
    #[must_use]
    pub fn apart(&self) -> Vec<Group> {
        self.alone.keys().map(|application| alone(*application)).collect()
    }

    /// The pairs of the greatest measured profit first; applications that no partner makes faster
    /// are alone. Ties go to the lowest ids.
    #[must_use]
    pub fn greedy(&self) -> Vec<Group> {
        let all = self.pairs.iter().flat_map(|(members, measured)| {
            measured.iter().map(move |measured| (members, measured))
        });
        let throughput = |measured: &Measured| measured.speeds.iter().sum::<f64>();
        let mut gaining: Vec<_> = all.filter(|(_, measured)| throughput(measured) > 1.0).collect();
        gaining.sort_by(|one, other| throughput(other.1).total_cmp(&throughput(one.1)));
        let mut left = self.alone.clone();
        let mut plan = Vec::new();
        for (members, measured) in gaining {
            if members.iter().all(|member| left.contains_key(member)) {
                plan.push(together(members, measured));
                left.retain(|application, _| !members.contains(application));
            }
        }
        plan.extend(left.keys().map(|application| alone(*application)));
        plan
    }

    /// The plan that takes least: all sets of pairs are compared. Ties go to the lowest ids.
    ///
    /// # Errors
    /// There are more than 16 applications.
    pub fn best(&self) -> Result<Vec<Group>, PairTableError> {
        let applications: Vec<ApplicationId> = self.alone.keys().copied().collect();
        if applications.len() > MOST_EXHAUSTIVE {
            return Err(PairTableError::TooMany(applications.len()));
        }
        // The fastest measurement of each pair, by the places of its members.
        let fastest = |one: usize, other: usize| {
            let members = [applications[one], applications[other]];
            let timed = self
                .pairs
                .get(&members)?
                .iter()
                .map(|measured| (self.until_both_end(members, measured.speeds), measured));
            timed.min_by(|one, other| one.0.total_cmp(&other.0))
        };
        let pairs: Vec<Vec<_>> = (0..applications.len())
            .map(|other| (0..other).map(|one| fastest(one, other)).collect())
            .collect();
        // The least time of each set of applications, and the partner of its last one.
        let mut least: Vec<(f64, Option<usize>)> = vec![(0.0, None)];
        for set in 1..1_usize << applications.len() {
            let last = set.ilog2() as usize;
            let others = set & !(1 << last);
            let mut found = (least[others].0 + self.alone[&applications[last]], None);
            for one in (0..last).filter(|one| others & (1 << one) != 0) {
                if let Some((nanos, _)) = pairs[last][one] {
                    let nanos = nanos + least[others & !(1 << one)].0;
                    if nanos < found.0 {
                        found = (nanos, Some(one));
                    }
                }
            }
            least.push(found);
        }
        let mut plan = Vec::new();
        let mut set = least.len() - 1;
        while set != 0 {
            let last = set.ilog2() as usize;
            set &= !(1 << last);
            let partner = least[set | 1 << last].1;
            match partner.and_then(|one| Some((one, pairs[last][one]?.1))) {
                Some((one, measured)) => {
                    set &= !(1 << one);
                    plan.push(together(&[applications[one], applications[last]], measured));
                }
                None => plan.push(alone(applications[last])),
            }
        }
        plan.sort_by_key(|group| group.members[0]);
        Ok(plan)
    }

    /// A plan of random pairs with random ratios: as many pairs as the table has for applications
    /// that are left. The same seed gives the same plan.
    #[must_use]
    pub fn random(&self, seed: u64) -> Vec<Group> {
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut below = |bound: usize| {
            let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
            usize::try_from(random.next_u64() % bound).unwrap_or(0)
        };
        let mut left: Vec<ApplicationId> = self.alone.keys().copied().collect();
        let mut plan = Vec::new();
        while !left.is_empty() {
            let one = left.swap_remove(below(left.len()));
            let partners: Vec<([ApplicationId; 2], &Vec<Measured>)> = left
                .iter()
                .map(|other| if one < *other { [one, *other] } else { [*other, one] })
                .filter_map(|members| Some((members, self.pairs.get(&members)?)))
                .collect();
            match partners.get(below(partners.len())) {
                Some((members, measured)) => {
                    plan.push(together(members, &measured[below(measured.len())]));
                    left.retain(|application| !members.contains(application));
                }
                None => plan.push(alone(one)),
            }
        }
        plan
    }

    fn pair_time(&self, members: [ApplicationId; 2], group: &Group) -> Result<f64, PairTableError> {
        let quotas: &[u32] = group.expected.as_ref().map_or(&[], |expected| &expected.quotas);
        let measured = self.pairs.get(&members).into_iter().flatten();
        let measured = { measured }.find(|measured| measured.quotas == quotas);
        let measured = measured.ok_or_else(|| not_measured(group))?;
        Ok(self.until_both_end(members, measured.speeds))
    }

    /// Nanoseconds until both of a pair have ended.
    fn until_both_end(&self, members: [ApplicationId; 2], speeds: [f64; 2]) -> f64 {
        let work = members.map(|member| self.alone.get(&member).copied().unwrap_or(0.0));
        let together = (work[0] / speeds[0]).min(work[1] / speeds[1]);
        let left = |of: usize| (work[of] - speeds[of] * together).max(0.0);
        together + left(0).max(left(1))
    }
}

fn alone(application: ApplicationId) -> Group {
    Group { members: vec![application], expected: Some(Expected::alone()) }
}

fn together(members: &[ApplicationId; 2], measured: &Measured) -> Group {
    let expected = Expected {
        throughput: measured.speeds.iter().sum(),
        speeds: measured.speeds.to_vec(),
        quotas: measured.quotas.clone(),
        parts: Vec::new(),
    };
    Group { members: members.to_vec(), expected: Some(expected) }
}

fn names(members: &[ApplicationId]) -> String {
    let names: Vec<String> = members.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

fn not_measured(group: &Group) -> PairTableError {
    let quotas = group.expected.as_ref().map_or_else(Vec::new, |expected| expected.quotas.clone());
    PairTableError::NotMeasured { members: group.members.clone(), quotas }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(of: u32) -> ApplicationId {
        ApplicationId(of)
    }

    /// A table of so many applications of one second, with the speeds that a function gives.
    fn table(times: &[f64], speeds: impl Fn(u32, u32) -> Vec<[f64; 2]>) -> PairTable {
        let mut table = PairTable::default();
        for (application, seconds) in (0..).zip(times) {
            table.add(id(application), seconds * 1e9).unwrap();
        }
        for other in 0..u32::try_from(times.len()).unwrap() {
            for one in 0..other {
                for (quota, speeds) in (1..).zip(speeds(one, other)) {
                    table.measure([id(one), id(other)], vec![quota, 8 - quota], speeds).unwrap();
                }
            }
        }
        table
    }

    fn seconds(table: &PairTable, plan: &[Group]) -> f64 {
        table.time(plan).unwrap() / 1e9
    }

    #[test]
    fn the_rest_of_a_pair_runs_alone() {
        let table = table(&[1.0, 2.0], |_, _| vec![[0.5, 0.8], [1.0, 1.0]]);
        assert!((seconds(&table, &table.apart()) - 3.0).abs() < 1e-9);
        // Two seconds together take 1.6 of the second's work.
        let plan = |quota: u32| {
            let quotas = vec![quota, 8 - quota];
            let expected = Expected { speeds: vec![1.0; 2], quotas, ..Expected::alone() };
            [Group { members: vec![id(0), id(1)], expected: Some(expected) }]
        };
        assert!((seconds(&table, &plan(1)) - 2.4).abs() < 1e-9);
        assert!((seconds(&table, &plan(2)) - 2.0).abs() < 1e-9);
        assert_eq!(
            table.time(&plan(3)).unwrap_err().to_string(),
            "pair table: application 0 and application 1 were not measured with [3, 5] CTAs an SM; \
             measure them"
        );
        assert!((seconds(&table, &table.best().unwrap()) - 2.0).abs() < 1e-9);
    }

    /// The best pair leaves two that lose together: greedy is worse than best.
    #[test]
    fn greed_is_not_the_best() {
        let speeds = |one, other| match (one, other) {
            (1, 2) => vec![[0.9, 0.9]],
            (0, 1) | (2, 3) => vec![[0.8, 0.8]],
            _ => vec![[0.4, 0.4]],
        };
        let table = table(&[1.0; 4], speeds);
        assert!((seconds(&table, &table.greedy()) - (1.0 / 0.9 + 2.0)).abs() < 1e-9);
        assert!((seconds(&table, &table.best().unwrap()) - 2.0 / 0.8).abs() < 1e-9);
        let members: Vec<_> = table.greedy().iter().map(|group| group.members.clone()).collect();
        assert_eq!(members, [vec![id(1), id(2)], vec![id(0)], vec![id(3)]]);
    }

    #[test]
    fn plans_have_each_application_once() {
        let table = table(&[1.0; 3], |_, _| vec![[0.7, 0.7]]);
        let mut plan = table.greedy();
        plan.pop();
        assert_eq!(table.time(&plan), Err(PairTableError::NotOnce(id(2))));
        plan.push(alone(id(0)));
        assert_eq!(table.time(&plan), Err(PairTableError::NotOnce(id(0))));
        plan = table.apart();
        plan.push(alone(id(7)));
        assert_eq!(table.time(&plan), Err(PairTableError::Unknown(id(7))));
    }

    #[test]
    fn tables_have_numbers_only() {
        let mut table = PairTable::default();
        for nanos in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(table.add(id(1), nanos).is_err(), "{nanos}");
        }
        table.add(id(1), 5.0).unwrap();
        table.add(id(2), 5.0).unwrap();
        assert!(table.measure([id(1), id(3)], vec![], [1.0, 1.0]).is_err());
        assert!(table.measure([id(1), id(1)], vec![], [1.0, 1.0]).is_err());
        assert!(table.measure([id(1), id(2)], vec![], [1.0, 0.0]).is_err());
        // The order of the members is that of the speeds; the last measurement counts.
        table.measure([id(1), id(2)], vec![1, 3], [0.1, 0.1]).unwrap();
        table.measure([id(2), id(1)], vec![3, 1], [0.9, 0.6]).unwrap();
        let expected = table.greedy()[0].expected.clone().unwrap();
        assert_eq!((expected.speeds, expected.quotas), (vec![0.6, 0.9], vec![1, 3]));
        for more in 3..20 {
            table.add(id(more), 1.0).unwrap();
        }
        assert_eq!(table.best(), Err(PairTableError::TooMany(19)));
        assert!(PairTable::default().best().unwrap().is_empty());
    }

    /// The least time over all matchings, by trying them.
    fn tried(table: &PairTable, left: &[ApplicationId]) -> f64 {
        let Some((first, others)) = left.split_first() else { return 0.0 };
        let mut least = table.alone[first] + tried(table, others);
        for (at, other) in others.iter().enumerate() {
            let mut rest = others.to_vec();
            rest.remove(at);
            for measured in &table.pairs[&[*first, *other]] {
                let pair = table.until_both_end([*first, *other], measured.speeds);
                least = least.min(pair + tried(table, &rest));
            }
        }
        least
    }

    proptest! {
        #[test]
        fn no_plan_is_faster_than_the_best(
            times in prop::collection::vec(0.1..5.0_f64, 1..7),
            speeds in prop::collection::vec(0.2..1.2_f64, 84),
            seed in any::<u64>(),
        ) {
            let at = |one: u32, other: u32, ratio: u32| {
                let pair = (other * (other - 1) / 2 + one) as usize;
                let first = 4 * pair + 2 * ratio as usize;
                [speeds[first], speeds[first + 1]]
            };
            let table = table(&times, |one, other| vec![at(one, other, 0), at(one, other, 1)]);
            let best = table.time(&table.best().unwrap()).unwrap();
            let applications: Vec<_> = table.alone.keys().copied().collect();
            prop_assert!((best / tried(&table, &applications) - 1.0).abs() < 1e-9);
            let slack = best * (1.0 - 1e-9);
            prop_assert!(table.time(&table.greedy()).unwrap() >= slack);
            prop_assert!(table.time(&table.apart()).unwrap() >= slack);
            for seed in seed..seed.saturating_add(10) {
                let plan = table.random(seed);
                prop_assert!(table.time(&plan).unwrap() >= slack);
                prop_assert_eq!(&plan, &table.random(seed));
                // All are paired, but for one of an odd number.
                prop_assert_eq!(plan.len(), times.len().div_ceil(2));
            }
        }
    }

    #[test]
    fn a_pair_that_is_as_fast_apart_stays_apart() {
        let table = table(&[1.0; 2], |_, _| vec![[0.5, 0.5]]);
        assert_eq!(table.greedy(), table.apart());
        assert_eq!(table.best().unwrap(), table.apart());
    }

    /// Every pair takes one second, two apart take two.
    #[test]
    fn of_plans_that_take_as_long_the_lowest_ids_are_together() {
        let table = table(&[1.0; 3], |_, _| vec![[1.0, 1.0]]);
        for plan in [table.best().unwrap(), table.greedy()] {
            let members: Vec<_> = plan.iter().map(|group| group.members.clone()).collect();
            assert_eq!(members, [vec![id(0), id(1)], vec![id(2)]]);
        }
    }

    /// A pair may be faster than one of the two alone: its partner is still there only once.
    #[test]
    fn who_is_faster_together_is_paired_once() {
        let table = table(&[1.0; 3], |_, _| vec![[2.0, 2.0]]);
        let best = table.best().unwrap();
        assert!((seconds(&table, &best) - 1.5).abs() < 1e-9, "{best:?}");
    }

    #[test]
    fn the_plans_of_sixteen_are_compared() {
        let mut table = table(&[1.0; 16], |_, _| Vec::new());
        table.measure([id(3), id(15)], Vec::new(), [1.0, 1.0]).unwrap();
        assert!((seconds(&table, &table.best().unwrap()) - 15.0).abs() < 1e-9);
    }
}
