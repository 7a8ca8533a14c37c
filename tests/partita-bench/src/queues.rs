//! The evaluation of Punyala (2017, §4.1): queues of applications by class, and plans of pairs.
//!
//! A queue is cut into pairs, and the pairs run one after the other. The time of a plan is the sum
//! of the makespans of its pairs, which were measured one by one. All applications have the same
//! work: what each completes alone in the same time.

use crate::outcome::Shared;
use crate::random::Random;
use crate::track::float;
use partita_emu::Spec;
use partita_model::{ContentionClass, GroupSize, InterferenceMatrix};
use partita_policy::{
    Choice, Contender, ContentionRules, Kind, MatchingError, Needs, Pattern, Sizes, Slowdowns,
    fillable, matching, pack, throughput,
};
use std::collections::BTreeMap;

/// Applications that wait, in the order of their arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Places of the programs; a program may come several times.
    pub members: Vec<usize>,
}

/// The queues of §4.1: numbers of applications of class M, MC, C and A.
pub const QUEUES: [(&str, [u32; 4]); 6] = [
    ("14 applications", [2, 5, 2, 5]),
    ("equal", [5, 5, 5, 5]),
    ("A-heavy", [3, 3, 3, 11]),
    ("M-heavy", [11, 3, 3, 3]),
    ("MC-heavy", [3, 11, 3, 3]),
    ("C-heavy", [3, 3, 11, 3]),
];

/// What an application takes of the GPU alone, by the device's counters: thread instructions for
/// the IPC, as the paper has it.
#[must_use]
pub fn needs(spec: &Spec, alone: &Shared) -> Needs {
    let work = &alone.counters.work;
    let seconds = float(alone.nanos.max(1)) / 1e9;
    let cycles = seconds * f64::from(spec.sm_clock_khz) * 1e3;
    let slots = cycles * f64::from(spec.sms) * float(spec.issue_per_cycle) * 32.0;
    let memory = float(work.global_loads + work.global_stores + work.atomics);
    Needs {
        dram: float(work.dram_bytes) / seconds / (spec.dram_gigabytes_per_second * 1e9),
        llc: float(work.llc_accesses) * 32.0 / seconds / (spec.llc_gigabytes_per_second * 1e9),
        issue: float(work.thread_instructions) / slots,
        ratio: memory / (float(work.warp_instructions) - memory).max(1.0),
    }
}

/// The class of such needs.
#[must_use]
pub fn class(needs: &Needs) -> ContentionClass {
    ContentionRules::default().class(needs).unwrap_or(ContentionClass::Compute)
}

/// Programs of each class in a seeded order, so many at most.
#[must_use]
pub fn chosen(
    classes: &[ContentionClass],
    most: usize,
    seed: u64,
) -> BTreeMap<ContentionClass, Vec<usize>> {
    let mut order: Vec<usize> = (0..classes.len()).collect();
    Random::new(seed).shuffle(&mut order);
    let mut found = BTreeMap::<ContentionClass, Vec<usize>>::new();
    for place in order {
        let of_class = found.entry(classes[place]).or_default();
        if of_class.len() < most {
            of_class.push(place);
        }
    }
    found
}

/// The queues, from programs by class. Programs of a class come in turn; the order of arrival is
/// the seed's. A class without programs is left out, so a queue may be shorter.
#[must_use]
pub fn queues(programs: &BTreeMap<ContentionClass, Vec<usize>>, seed: u64) -> Vec<Queue> {
    let mut random = Random::new(seed);
    let queue = |(name, counts): &(&str, [u32; 4])| {
        let of_class = |class: ContentionClass| {
            let places = programs.get(&class).map_or(&[][..], Vec::as_slice);
            places.iter().copied().cycle().take(counts[class.place()] as usize)
        };
        let mut members: Vec<usize> = ContentionClass::ALL.into_iter().flat_map(of_class).collect();
        random.shuffle(&mut members);
        members.truncate(members.len() / 2 * 2);
        Queue { name: (*name).to_owned(), members }
    };
    QUEUES.iter().map(queue).collect()
}

/// A program by its place, as slowdowns know it.
#[must_use]
pub fn contender(classes: &[ContentionClass], program: usize) -> Contender {
    (classes[program], Some(kind(program)))
}

/// The kind that stands for a program.
#[must_use]
pub fn kind(program: usize) -> Kind {
    Kind(program as u64)
}

fn sorted(group: &[usize]) -> Vec<usize> {
    let mut group = group.to_vec();
    group.sort_unstable();
    group
}

/// Pairs of programs, the lower place first.
pub type Plan = Vec<[usize; 2]>;

/// A pair with the lower place first.
#[must_use]
pub fn pair(one: usize, other: usize) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

impl Queue {
    /// Pairs in the order of arrival.
    #[must_use]
    pub fn by_arrival(&self) -> Plan {
        self.members.chunks_exact(2).map(|two| pair(two[0], two[1])).collect()
    }

    /// Pairs by the integer program over classes (Eq. 3.1 to 3.7), with the value that it reached.
    /// Applications of one class are taken in the order of arrival.
    ///
    /// # Errors
    /// Where the solver finds no answer.
    pub fn matched(
        &self,
        classes: &[ContentionClass],
        matrix: &InterferenceMatrix,
    ) -> Result<(Plan, f64), MatchingError> {
        let value = |pattern: &Pattern| throughput(pattern, matrix) / 2.0;
        let counts = self.counts(classes);
        let found = matching(counts, GroupSize::default(), Sizes::Full, &value)?;
        let reached = found.iter().map(|(pattern, times)| value(pattern) * f64::from(*times)).sum();
        let mut waiting = self.members.clone();
        let mut plan = Plan::new();
        for (pattern, times) in found {
            for _ in 0..times {
                let mut two = pattern.classes().filter_map(|class| {
                    let at = waiting.iter().position(|&member| classes[member] == class)?;
                    Some(waiting.remove(at))
                });
                if let (Some(one), Some(other)) = (two.next(), two.next()) {
                    plan.push(pair(one, other));
                }
            }
        }
        Ok((plan, reached))
    }

    /// Groups in the order of arrival; the last may be smaller.
    #[must_use]
    pub fn groups_by_arrival(&self, size: usize) -> Vec<Vec<usize>> {
        self.members.chunks(size).map(sorted).collect()
    }

    /// As many groups of a size as possible, and one of those that are left, by the integer program
    /// over programs: the sum over groups of what their members do together is greatest. What is
    /// known of two programs goes before what is known of their classes, as in the selector.
    ///
    /// # Errors
    /// Where the solver finds no answer.
    pub fn matched_by_program(
        &self,
        classes: &[ContentionClass],
        slowdowns: &Slowdowns,
        size: usize,
    ) -> Result<Vec<Vec<usize>>, MatchingError> {
        let mut counts = BTreeMap::<usize, u32>::new();
        self.members.iter().for_each(|&member| *counts.entry(member).or_default() += 1);
        let programs: Vec<usize> = counts.keys().copied().collect();
        let counts: Vec<u32> = counts.into_values().collect();
        let value = |group: &[usize]| -> f64 {
            let contenders: Vec<Contender> =
                group.iter().map(|&place| contender(classes, programs[place])).collect();
            let speed = |at: usize| {
                let others = (0..group.len()).filter(|other| *other != at);
                let slowdown = |other| slowdowns.expected(contenders[at], contenders[other]).0;
                1.0 / (1.0 + others.map(|other| slowdown(other) - 1.0).sum::<f64>())
            };
            (0..group.len()).map(speed).sum()
        };
        let (times, rest) = (self.members.len() / size, self.members.len() % size);
        let full = (size, u32::try_from(times).unwrap_or(u32::MAX));
        let fixed = [full, (rest, 1)];
        let fixed = if rest > 0 { &fixed[..] } else { &fixed[..1] };
        let choices: Vec<Choice> = fixed
            .iter()
            .flat_map(|(size, _)| fillable(&counts, *size))
            .map(|sorts| Choice { value: value(&sorts), sorts })
            .collect();
        let times = pack(&counts, &choices, fixed)?;
        let named = |choice: &Choice| choice.sorts.iter().map(|&place| programs[place]).collect();
        Ok(choices
            .iter()
            .zip(times)
            .flat_map(|(choice, times)| std::iter::repeat_n(named(choice), times as usize))
            .collect())
    }

    /// The greatest value that pairs of classes can reach, by trying all.
    #[must_use]
    pub fn best_value(&self, classes: &[ContentionClass], matrix: &InterferenceMatrix) -> f64 {
        fn best(
            left: [u32; 4],
            value: &dyn Fn(usize, usize) -> f64,
            known: &mut BTreeMap<[u32; 4], f64>,
        ) -> f64 {
            let Some(one) = left.iter().position(|&count| count > 0) else { return 0.0 };
            if let Some(found) = known.get(&left) {
                return *found;
            }
            let mut rest = left;
            rest[one] -= 1;
            let mut found = f64::NEG_INFINITY;
            for other in (0..4).filter(|&other| rest[other] > 0) {
                let mut rest = rest;
                rest[other] -= 1;
                found = found.max(value(one, other) + best(rest, value, known));
            }
            known.insert(left, found);
            found
        }
        let value = |one: usize, other: usize| {
            let mut pattern = [0; 4];
            pattern[one] += 1;
            pattern[other] += 1;
            throughput(&Pattern(pattern), matrix) / 2.0
        };
        best(self.counts(classes), &value, &mut BTreeMap::new())
    }

    /// The pairs with the least sum of times, by trying all: the oracle.
    #[must_use]
    pub fn best_pairs(&self, time: &dyn Fn([usize; 2]) -> f64) -> Plan {
        // By the set of applications that are left, of which the first always goes next.
        let count = self.members.len();
        let mut best = vec![(f64::INFINITY, 0_usize); 1 << count];
        best[0] = (0.0, 0);
        for left in 1..best.len() {
            let first = left.trailing_zeros() as usize;
            for other in (first + 1..count).filter(|other| left >> other & 1 == 1) {
                let rest = left & !(1 << first) & !(1 << other);
                let sum = best[rest].0 + time(pair(self.members[first], self.members[other]));
                if sum < best[left].0 {
                    best[left] = (sum, other);
                }
            }
        }
        let (mut left, mut plan) = (best.len() - 1, Plan::new());
        while left != 0 {
            let (first, other) = (left.trailing_zeros() as usize, best[left].1);
            plan.push(pair(self.members[first], self.members[other]));
            left &= !(1 << first) & !(1 << other);
        }
        plan
    }

    fn counts(&self, classes: &[ContentionClass]) -> [u32; 4] {
        let mut counts = [0; 4];
        self.members.iter().for_each(|&member| counts[classes[member].place()] += 1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContentionClass::{Compute, Memory};

    fn all_of<T: AsRef<[usize]>>(plan: &[T]) -> Vec<usize> {
        sorted(&plan.iter().flat_map(|group| group.as_ref().to_vec()).collect::<Vec<usize>>())
    }

    #[test]
    fn plans_hold_the_queue() {
        let classes = [Memory, Compute, Memory, Compute, Compute];
        let programs = chosen(&classes, 3, 1);
        let matrix = InterferenceMatrix::default();
        let all = queues(&programs, 1);
        assert_eq!(all.len(), QUEUES.len());
        for queue in all {
            let mut members = queue.members.clone();
            members.sort_unstable();
            let (matched, value) = queue.matched(&classes, &matrix).unwrap();
            let best = queue.best_pairs(&|[one, other]| (one * 3 + other) as f64);
            for plan in [queue.by_arrival(), matched, best] {
                assert_eq!(all_of(&plan), members, "{}", queue.name);
            }
            for size in 2..=3 {
                let slowdowns = Slowdowns { classes: matrix.clone(), ..Slowdowns::default() };
                let matched = queue.matched_by_program(&classes, &slowdowns, size).unwrap();
                for plan in [queue.groups_by_arrival(size), matched] {
                    assert_eq!(all_of(&plan), members, "{}", queue.name);
                    assert!(plan.iter().filter(|group| group.len() < size).count() <= 1);
                }
            }
            let most = queue.best_value(&classes, &matrix);
            assert!((value - most).abs() < 1e-6, "{value} of {most}");
        }
    }

    #[test]
    fn programs_that_suit_each_other_are_paired() {
        let classes = [Compute; 4];
        let queue = Queue { name: String::new(), members: vec![0, 1, 2, 3] };
        let mut slowdowns = Slowdowns::default();
        for (of, beside) in [(0, 3), (3, 0), (1, 2), (2, 1)] {
            slowdowns.pairs.measure(kind(of), kind(beside), 1.1);
        }
        let plan = queue.matched_by_program(&classes, &slowdowns, 2).unwrap();
        assert_eq!(plan, [[0, 3], [1, 2]]);
    }

    #[test]
    fn the_oracle_is_the_least_sum() {
        let queue = Queue { name: String::new(), members: vec![0, 1, 2, 3] };
        let time = |two: [usize; 2]| if two == [0, 3] || two == [1, 2] { 1.0 } else { 5.0 };
        let mut plan = queue.best_pairs(&time);
        plan.sort_unstable();
        assert_eq!(plan, [[0, 3], [1, 2]]);
    }
}
