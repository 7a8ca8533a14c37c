//! The matching of Punyala §3.2: groups whose members slow each other down least.
//!
//! Each application has a contention class ([`ContentionRules`]), and the interference matrix says
//! how much classes slow each other down. The integer program ([`packing`]) cuts the candidates
//! into groups. Candidates of one sort are interchangeable: the lowest ids go into the groups of
//! which most is expected. A candidate of unknown class is a group of its own.
//!
//! Every group is measured while it runs ([`Adviser::learn`]). Measurements go into the matrix, and
//! into a table of pairs of programs ([`Kind`]). Where two programs have run together, the table
//! goes before the matrix ([`Slowdowns::expected`]).
//!
//! A candidate's *sort* is its class, and its kind where the table has that kind beside another
//! candidate. So the program is over classes, as printed, until pairs were measured.
//!
//! # What differs from the paper
//!
//! The paper knows classes only. Groups take turns in proportion to their members, so a group's
//! value is its throughput × its members. Groups may be smaller than the greatest size where their
//! members would do less together than in turns ([`Sizes::Any`]).
//!
//! # Cost
//!
//! The program is solved again only where the sorts of the candidates or the slowdowns between them
//! have changed by [`GRAIN`], so that the noise of measurements does not change groups. Among more
//! than [`BATCH`] candidates each batch is matched by itself. The program has [`most_sorts`] sorts
//! at most; the kinds of which least was measured count as their classes.
//!
//! [`packing`]: mod@super::packing

use super::packing::{Choice, fillable, needed, pack};
use super::patterns::Sizes;
use super::{Adviser, Candidate, Expected, Group};
use crate::models::{ContentionRules, Kind, Needs, Slowdowns};
use partita_model::{ApplicationId, Calibration, ContentionClass, GroupSize, Note};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Candidates that are matched at once.
const BATCH: usize = 64;
/// Steps of a slowdown that tell two tables apart, in one: an interval is off by more.
const GRAIN: f64 = 64.0;
/// Answers that are kept: those of a few batches with a candidate more or less.
const KEPT: usize = 16;
/// What a larger group is worth where nothing else tells two answers apart: fewer turns.
const FEWER_TURNS: f64 = 1e-6;

/// Settings of [`Matching`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatchingSettings {
    /// The greatest size of a group.
    pub group: GroupSize,
    /// Whether groups may be smaller.
    pub sizes: Sizes,
    /// The rules of the classes.
    pub rules: ContentionRules,
}

impl Default for MatchingSettings {
    fn default() -> Self {
        let (group, rules) = (GroupSize::default(), ContentionRules::default());
        MatchingSettings { group, sizes: Sizes::Any, rules }
    }
}

/// Candidates that are interchangeable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Sort {
    class: ContentionClass,
    /// `None` where no pair of this kind was measured.
    kind: Option<Kind>,
}

/// A batch by sort: how many there are of each.
type Queue = Vec<(Sort, u32)>;

/// How often each group of sorts runs; sorts are places in a [`Queue`].
type Answer = Vec<(Vec<usize>, u32)>;

/// An answer, and what it depends on.
#[derive(Clone, Debug)]
struct Solved {
    queue: Queue,
    /// Slowdowns in steps of one part of [`GRAIN`].
    steps: Vec<i64>,
    answer: Answer,
}

/// The matching.
#[derive(Clone, Debug)]
pub struct Matching {
    hardware: Calibration,
    settings: MatchingSettings,
    slowdowns: Slowdowns,
    /// The last answers, the oldest first.
    solved: RefCell<VecDeque<Solved>>,
}

impl Matching {
    /// A matching on a GPU with these numbers. It begins with these slowdowns.
    #[must_use]
    pub fn new(hardware: Calibration, settings: MatchingSettings, slowdowns: Slowdowns) -> Self {
        Matching { hardware, settings, slowdowns, solved: RefCell::default() }
    }

    fn sort(&self, candidate: &Candidate) -> Option<Sort> {
        let character = candidate.character.as_ref()?;
        let class = self.settings.rules.class(&Needs::of(&self.hardware, character)?)?;
        Some(Sort { class, kind: character.kind })
    }

    fn sorts(&self, members: &[Candidate]) -> Option<Vec<Sort>> {
        members.iter().map(|member| self.sort(member)).collect()
    }

    /// The slowdown that is expected, and the number of measurements behind it.
    fn slowdown(&self, of: Sort, beside: Sort) -> (f64, u64) {
        self.slowdowns.expected((of.class, of.kind), (beside.class, beside.kind))
    }

    /// Expected speeds as parts of the speeds alone. What a member loses to each other member adds
    /// up, as in [`speeds`](super::speeds).
    fn speeds(&self, members: &[Sort]) -> Vec<f64> {
        speeds(members.len(), |of, beside| self.slowdown(members[of], members[beside]).0)
    }

    /// The sort of each application of a batch, where kinds of which no pair in the batch was
    /// measured count as their classes.
    fn told_apart(&self, batch: &[(ApplicationId, Sort)]) -> Vec<Sort> {
        let mut counts = BTreeMap::<Kind, u32>::new();
        batch.iter().filter_map(|(_, sort)| sort.kind).for_each(|kind| {
            *counts.entry(kind).or_default() += 1;
        });
        let pairs = &self.slowdowns.pairs;
        let known = |kind: Kind| {
            let beside = |(&other, &count): (&Kind, &u32)| {
                let there = other != kind || count > 1;
                let is_known = pairs.of(kind, other).is_some() || pairs.of(other, kind).is_some();
                there && is_known
            };
            counts.iter().filter(|entry| beside(*entry)).count()
        };
        let mut kinds: Vec<(usize, Kind)> = match pairs.is_empty() {
            true => Vec::new(),
            false => counts.keys().map(|&kind| (known(kind), kind)).collect(),
        };
        kinds.retain(|(known, _)| *known > 0);
        kinds.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        // The classes themselves may be sorts, too.
        kinds.truncate(most_sorts(self.settings.group) - ContentionClass::ALL.len());
        let kind = |sort: &Sort| sort.kind.filter(|kind| kinds.iter().any(|(_, k)| k == kind));
        batch.iter().map(|(_, sort)| Sort { kind: kind(sort), ..*sort }).collect()
    }

    /// How often each group of sorts runs, the one of which most is expected first.
    fn answer(&self, queue: &Queue) -> Answer {
        let sorts: Vec<Sort> = queue.iter().map(|(sort, _)| *sort).collect();
        let steps: Vec<i64> = sorts
            .iter()
            .flat_map(|&of| sorts.iter().map(move |&beside| (of, beside)))
            .map(|(of, beside)| step(self.slowdown(of, beside).0))
            .collect();
        let is_same = |solved: &&Solved| solved.steps == steps && solved.queue == *queue;
        if let Some(solved) = self.solved.borrow().iter().find(is_same) {
            return solved.answer.clone();
        }
        let throughput = |group: &[usize]| -> f64 {
            let slowdown = |of: usize, beside: usize| {
                // Steps are below 2^52.
                #[expect(clippy::cast_precision_loss, reason = "clamped")]
                let steps = steps[group[of] * sorts.len() + group[beside]] as f64;
                steps / GRAIN
            };
            speeds(group.len(), slowdown).iter().sum()
        };
        // Where the solver fails everybody takes turns.
        let mut answer = solve(queue, self.settings, &throughput).unwrap_or_else(|| alone(queue));
        answer.sort_by(|(one, _), (other, _)| {
            throughput(other).total_cmp(&throughput(one)).then_with(|| one.cmp(other))
        });
        let mut solved = self.solved.borrow_mut();
        if solved.len() >= KEPT {
            solved.pop_front();
        }
        solved.push_back(Solved { queue: queue.clone(), steps, answer: answer.clone() });
        answer
    }

    /// The groups of a batch.
    fn groups(&self, batch: &[(ApplicationId, Sort)]) -> Vec<Group> {
        let mut waiting: BTreeMap<Sort, VecDeque<(ApplicationId, Sort)>> = BTreeMap::new();
        for (&member, sort) in batch.iter().zip(self.told_apart(batch)) {
            waiting.entry(sort).or_default().push_back(member);
        }
        let count = |some: &VecDeque<_>| u32::try_from(some.len()).unwrap_or(u32::MAX);
        let queue: Queue = waiting.iter().map(|(sort, some)| (*sort, count(some))).collect();
        let mut groups = Vec::new();
        for (group, times) in self.answer(&queue) {
            for _ in 0..times {
                let next = |place: &usize| waiting.get_mut(&queue[*place].0)?.pop_front();
                let mut with: Vec<(ApplicationId, Sort)> = group.iter().filter_map(next).collect();
                with.sort_by_key(|(application, _)| *application);
                let (members, sorts): (Vec<_>, Vec<Sort>) = with.into_iter().unzip();
                let speeds = self.speeds(&sorts);
                let expected =
                    Expected { throughput: speeds.iter().sum(), speeds, ..Expected::alone() };
                groups.push(Group { members, expected: Some(expected) });
            }
        }
        groups
    }

    fn is_measured(&self, sorts: &[Sort]) -> bool {
        let others = |at: usize| sorts.iter().enumerate().filter(move |(other, _)| *other != at);
        let measured = |of: Sort, beside: Sort| self.slowdown(of, beside).1 > 0;
        sorts
            .iter()
            .enumerate()
            .all(|(at, &of)| others(at).all(|(_, &beside)| measured(of, beside)))
    }
}

impl Adviser for Matching {
    fn name(&self) -> &'static str {
        "matching"
    }

    fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.sort(candidate) {
                Some(sort) => known.push((candidate.application, sort)),
                None => unknown.push(candidate.application),
            }
        }
        known.sort_by_key(|(application, _)| *application);
        unknown.sort_unstable();
        let mut groups: Vec<Group> =
            known.chunks(BATCH).flat_map(|batch| self.groups(batch)).collect();
        let throughput = |group: &Group| group.expected.as_ref().map_or(1.0, |e| e.throughput);
        groups.sort_by(|one, other| {
            let by_profit = throughput(other).total_cmp(&throughput(one));
            by_profit.then_with(|| one.members.cmp(&other.members))
        });
        groups.into_iter().chain(unknown.into_iter().map(Group::single)).collect()
    }

    fn notes(&self, candidates: &[Candidate]) -> Vec<Note> {
        let contends = candidates.iter().filter_map(|candidate| {
            let needs = Needs::of(&self.hardware, candidate.character.as_ref()?)?;
            Some(Note::Contends {
                application: candidate.application,
                class: self.settings.rules.class(&needs)?,
                dram_part: needs.dram,
                llc_part: needs.llc,
                issue_part: needs.issue,
            })
        });
        let matched = self.advise(candidates).into_iter().filter_map(|group| {
            let throughput = group.expected.as_ref()?.throughput;
            let is_member = |candidate: &&Candidate| group.members.contains(&candidate.application);
            let members: Vec<Candidate> = candidates.iter().filter(is_member).copied().collect();
            let measured = self.is_measured(&self.sorts(&members)?);
            let is_group = members.len() > 1;
            is_group.then_some(Note::Matched { members: group.members, throughput, measured })
        });
        contends.chain(matched).collect()
    }

    /// Every group tells something of its members.
    fn is_disputed(&self, members: &[Candidate]) -> bool {
        members.len() > 1 && self.sorts(members).is_some()
    }

    /// Each member's loss is charged to the other members in proportion to their expected effect.
    fn learn(&mut self, members: &[Candidate], speeds: &[f64]) {
        let Some(sorts) = self.sorts(members).filter(|found| found.len() == speeds.len()) else {
            return;
        };
        let mut measured = Vec::new();
        for (at, (&of, &speed)) in sorts.iter().zip(speeds).enumerate() {
            let others = || sorts.iter().enumerate().filter(|(o, _)| *o != at).map(|(_, s)| *s);
            let loss = |beside: Sort| self.slowdown(of, beside).0 - 1.0;
            let expected: f64 = others().map(loss).sum();
            let lost = (1.0 / speed - 1.0).max(0.0);
            let count = f64::from(u32::try_from(others().count()).unwrap_or(u32::MAX));
            for beside in others() {
                let part = if expected > 0.0 { loss(beside) / expected } else { 1.0 / count };
                measured.push((of, beside, 1.0 + lost * part));
            }
        }
        for (of, beside, slowdown) in measured {
            self.slowdowns.classes.measure(of.class, beside.class, slowdown);
            if let Some((of, beside)) = of.kind.zip(beside.kind) {
                self.slowdowns.pairs.measure(of, beside, slowdown);
            }
        }
    }

    fn slowdowns(&self) -> Option<&Slowdowns> {
        Some(&self.slowdowns)
    }
}

/// The most sorts of one integer program: it then has some hundred groups to choose from.
fn most_sorts(group: GroupSize) -> usize {
    match group.get() {
        2 => 24,
        3 => 12,
        _ => 8,
    }
}

/// Expected speeds in a group: `1 ÷ (1 + Σ (slowdown − 1))` over the other members.
fn speeds(members: usize, slowdown: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let speed = |of: usize| {
        let others = (0..members).filter(|other| *other != of);
        let lost: f64 = others.map(|beside| slowdown(of, beside) - 1.0).sum();
        1.0 / (1.0 + lost)
    };
    (0..members).map(speed).collect()
}

/// The groups with the greatest sum of values; `None` where the solver fails.
fn solve(
    queue: &Queue,
    settings: MatchingSettings,
    throughput: &dyn Fn(&[usize]) -> f64,
) -> Option<Answer> {
    let counts: Vec<u32> = queue.iter().map(|(_, count)| *count).collect();
    let total: usize = counts.iter().map(|count| *count as usize).sum();
    let most = usize::from(settings.group.get()).min(total);
    let value = |group: &[usize]| {
        let members = f64::from(u32::try_from(group.len()).unwrap_or(u32::MAX));
        members * throughput(group) + FEWER_TURNS * (members - 1.0)
    };
    let (sizes, fixed) = match settings.sizes {
        Sizes::Any => ((1..=most).collect(), Vec::new()),
        Sizes::Full => {
            let times = u32::try_from(total / most.max(1)).unwrap_or(u32::MAX);
            let rest = Some((total % most.max(1), 1)).filter(|(size, _)| *size > 0);
            let fixed: Vec<(usize, u32)> = [(most, times)].into_iter().chain(rest).collect();
            (fixed.iter().map(|(size, _)| *size).collect::<Vec<usize>>(), fixed)
        }
    };
    let groups = sizes.iter().flat_map(|&size| fillable(&counts, size));
    let valued = groups.map(|sorts| Choice { value: value(&sorts), sorts });
    let choices = if fixed.is_empty() { needed(valued) } else { valued.collect() };
    let times = pack(&counts, &choices, &fixed).ok()?;
    let chosen = choices.into_iter().zip(times).filter(|(_, times)| *times > 0);
    Some(chosen.map(|(choice, times)| (choice.sorts, times)).collect())
}

/// Everybody alone.
fn alone(queue: &Queue) -> Answer {
    queue.iter().enumerate().map(|(sort, (_, count))| (vec![sort], *count)).collect()
}

/// A slowdown in steps.
fn step(slowdown: f64) -> i64 {
    // Slowdowns are times of intervals; an absurd one is clamped.
    #[expect(clippy::cast_possible_truncation, reason = "clamped")]
    let steps = (slowdown * GRAIN).round().clamp(GRAIN, 1e15) as i64;
    steps
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
