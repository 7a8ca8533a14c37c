//! The matching of Punyala §3.2: groups whose classes slow each other down least.
//!
//! Each application has a contention class ([`ContentionRules`]), and the interference matrix says
//! how much classes slow each other down. The integer program ([`patterns`]) cuts the candidates
//! into groups. Candidates of one class are interchangeable: the lowest ids go into the groups of
//! which most is expected. A candidate of unknown class is a group of its own.
//!
//! Every group is measured while it runs, and the matrix learns from that
//! ([`Adviser::learn`]). The matrix counts with a grain of [`GRAIN`], so that the noise of
//! measurements does not change groups.
//!
//! # What differs from the paper
//!
//! Groups take turns in proportion to their members, so a group's value is its throughput × its
//! members. Groups may be smaller than the greatest size where their members would do less
//! together than in turns ([`Sizes::Any`]).
//!
//! # Cost
//!
//! The program is solved again only where the numbers of candidates by class or the matrix have
//! changed. Among more than [`BATCH`] candidates each batch is matched by itself.
//!
//! [`patterns`]: mod@super::patterns

use super::patterns::{Counts, Pattern, Sizes, matching, speeds};
use super::{Adviser, Candidate, Expected, Group};
use crate::models::{ContentionRules, Needs};
use partita_model::{
    ApplicationId, Calibration, ContentionClass, GroupSize, InterferenceMatrix, Note,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Candidates that are matched at once.
const BATCH: usize = 64;
/// Steps of a slowdown that tell two matrices apart, in one: an interval is off by more.
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

/// What an answer depends on: numbers by class, and the matrix in steps.
type Key = (Counts, [i64; 16]);

/// How often each pattern runs.
type Answer = Vec<(Pattern, u32)>;

/// The matching.
#[derive(Clone, Debug)]
pub struct Matching {
    hardware: Calibration,
    settings: MatchingSettings,
    matrix: InterferenceMatrix,
    /// The last answers, the oldest first.
    answers: RefCell<VecDeque<(Key, Answer)>>,
}

impl Matching {
    /// A matching on a GPU with these numbers. It begins with this matrix.
    #[must_use]
    pub fn new(
        hardware: Calibration,
        settings: MatchingSettings,
        matrix: InterferenceMatrix,
    ) -> Self {
        Matching { hardware, settings, matrix, answers: RefCell::default() }
    }

    /// The matrix with what was learnt.
    #[must_use]
    pub fn matrix(&self) -> &InterferenceMatrix {
        &self.matrix
    }

    fn class(&self, candidate: &Candidate) -> Option<ContentionClass> {
        let needs = Needs::of(&self.hardware, candidate.character.as_ref()?)?;
        self.settings.rules.class(&needs)
    }

    /// How often each pattern runs.
    fn answer(&self, queue: Counts) -> Answer {
        let rounded = rounded(&self.matrix);
        let key = (queue, steps(&rounded));
        if let Some((_, known)) = self.answers.borrow().iter().find(|(known, _)| *known == key) {
            return known.clone();
        }
        let value = |pattern: &Pattern| {
            let members = f64::from(pattern.members());
            let throughput: f64 = speeds(pattern, &rounded).iter().sum();
            members * throughput + FEWER_TURNS * (members - 1.0)
        };
        let MatchingSettings { group, sizes, .. } = self.settings;
        // Where the solver fails everybody takes turns.
        let mut found = matching(queue, group, sizes, &value).unwrap_or_else(|_| alone(queue));
        let throughput = |pattern: &Pattern| speeds(pattern, &rounded).iter().sum::<f64>();
        found.sort_by(|(one, _), (other, _)| {
            throughput(other).total_cmp(&throughput(one)).then_with(|| other.cmp(one))
        });
        let mut answers = self.answers.borrow_mut();
        if answers.len() >= KEPT {
            answers.pop_front();
        }
        answers.push_back((key, found.clone()));
        found
    }

    /// The groups of a batch.
    fn groups(&self, batch: &[(ApplicationId, ContentionClass)]) -> Vec<Group> {
        let mut waiting: BTreeMap<ContentionClass, VecDeque<ApplicationId>> = BTreeMap::new();
        let mut queue = [0; 4];
        for &(application, class) in batch {
            waiting.entry(class).or_default().push_back(application);
            queue[class.place()] += 1;
        }
        let mut groups = Vec::new();
        for (pattern, times) in self.answer(queue) {
            let speeds = speeds(&pattern, &self.matrix);
            for _ in 0..times {
                let next = |class| waiting.get_mut(&class).and_then(VecDeque::pop_front);
                let members: Vec<_> = pattern.classes().filter_map(next).collect();
                let mut with: Vec<(ApplicationId, f64)> =
                    members.into_iter().zip(speeds.iter().copied()).collect();
                with.sort_by_key(|(application, _)| *application);
                let (members, speeds): (Vec<_>, Vec<f64>) = with.into_iter().unzip();
                let expected =
                    Expected { throughput: speeds.iter().sum(), speeds, ..Expected::alone() };
                groups.push(Group { members, expected: Some(expected) });
            }
        }
        groups
    }

    fn classes(&self, members: &[Candidate]) -> Option<Vec<ContentionClass>> {
        members.iter().map(|member| self.class(member)).collect()
    }

    fn is_measured(&self, classes: &[ContentionClass]) -> bool {
        let others = |at: usize| classes.iter().enumerate().filter(move |(other, _)| *other != at);
        classes
            .iter()
            .enumerate()
            .all(|(at, &of)| others(at).all(|(_, &beside)| self.matrix.of(of, beside).measured > 0))
    }
}

impl Adviser for Matching {
    fn name(&self) -> &'static str {
        "matching"
    }

    fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.class(candidate) {
                Some(class) => known.push((candidate.application, class)),
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
            let measured = self.is_measured(&self.classes(&members)?);
            let is_group = members.len() > 1;
            is_group.then_some(Note::Matched { members: group.members, throughput, measured })
        });
        contends.chain(matched).collect()
    }

    /// Every group tells something of its classes.
    fn is_disputed(&self, members: &[Candidate]) -> bool {
        members.len() > 1 && self.classes(members).is_some()
    }

    /// Each member's loss is charged to the other members in proportion to their expected effect.
    fn learn(&mut self, members: &[Candidate], speeds: &[f64]) {
        let Some(classes) = self.classes(members).filter(|found| found.len() == speeds.len())
        else {
            return;
        };
        let before = self.matrix.clone();
        for (at, (&of, &speed)) in classes.iter().zip(speeds).enumerate() {
            let others: Vec<ContentionClass> =
                classes.iter().enumerate().filter(|(o, _)| *o != at).map(|(_, c)| *c).collect();
            let expected: f64 =
                others.iter().map(|&beside| before.of(of, beside).slowdown - 1.0).sum();
            let lost = (1.0 / speed - 1.0).max(0.0);
            let count = f64::from(u32::try_from(others.len()).unwrap_or(u32::MAX));
            for beside in others {
                let part = match expected > 0.0 {
                    true => (before.of(of, beside).slowdown - 1.0) / expected,
                    false => 1.0 / count,
                };
                self.matrix.measure(of, beside, 1.0 + lost * part);
            }
        }
    }
}

/// Everybody alone.
fn alone(queue: Counts) -> Answer {
    let of = |class: usize| {
        let mut pattern = [0; 4];
        pattern[class] = 1;
        (Pattern(pattern), queue[class])
    };
    (0..4).map(of).filter(|(_, times)| *times > 0).collect()
}

/// A matrix in steps of one part of [`GRAIN`].
fn rounded(matrix: &InterferenceMatrix) -> InterferenceMatrix {
    let step = |slowdown: f64| ((slowdown * GRAIN).round() / GRAIN).max(1.0);
    InterferenceMatrix::estimated(|of, beside| step(matrix.of(of, beside).slowdown))
        .unwrap_or_default()
}

fn steps(rounded: &InterferenceMatrix) -> [i64; 16] {
    let mut steps = [0; 16];
    for (step, entry) in steps.iter_mut().zip(rounded.iter()) {
        // Slowdowns are times of intervals; an absurd one is clamped.
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let rounded = (entry.slowdown * GRAIN).clamp(0.0, 1e15) as i64;
        *step = rounded;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selectors::{Selector, Turns};
    use crate::{ApplicationSample, Character, Sample};
    use ContentionClass::{Cache, Compute, Memory, MemoryCache};
    use partita_model::{Cause, Nanos, SmSet};

    const HARDWARE: Calibration = Calibration {
        sms: 60,
        sm_clock_khz: 700_000,
        warp_instructions_per_cycle: 2.0,
        access_bytes: 32,
        noc_bytes_per_second: 268.8e9,
        llc_bytes_per_second: 268.8e9,
        dram_bytes_per_second: 177.4e9,
        dram_utilisation: 0.5,
    };

    /// A character of a class.
    fn character(class: ContentionClass) -> Character {
        let (dram, llc) = match class {
            Memory => (130.0, 130.0),
            MemoryCache => (80.0, 120.0),
            Cache => (20.0, 150.0),
            Compute => (5.0, 10.0),
        };
        Character {
            warp_instructions: 20_000.0,
            memory_instructions: 400.0,
            llc_sectors: llc * 1e3 / 32.0,
            dram_sectors: dram * 1e3 / 32.0,
            alone: Some(1e3),
            ..Character::default()
        }
    }

    fn candidates(classes: &[ContentionClass]) -> Vec<Candidate> {
        let candidate = |(id, &class): (u32, &ContentionClass)| Candidate {
            application: ApplicationId(id),
            character: Some(character(class)),
        };
        (1..).zip(classes).map(candidate).collect()
    }

    fn matched(group: u8) -> Matching {
        let group = GroupSize::try_from(group).unwrap();
        let settings = MatchingSettings { group, ..MatchingSettings::default() };
        Matching::new(HARDWARE, settings, InterferenceMatrix::default())
    }

    fn ids(groups: &[Group]) -> Vec<Vec<u32>> {
        groups.iter().map(|group| group.members.iter().map(|id| id.0).collect()).collect()
    }

    #[test]
    fn classes_that_complete_each_other_run_together() {
        let all = candidates(&[Memory, Memory, Compute, Compute]);
        assert_eq!(ids(&matched(2).advise(&all)), [[1, 3], [2, 4]]);
        let three = matched(3).advise(&candidates(&[Memory, Compute, Cache]));
        assert!(three.len() < 3, "{three:?}");
    }

    #[test]
    fn unknown_applications_run_alone() {
        let mut all = candidates(&[Memory, Compute]);
        all.push(Candidate { application: ApplicationId(3), character: None });
        assert_eq!(ids(&matched(2).advise(&all)), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn groups_follow_what_co_runs_show() {
        let all = candidates(&[Memory, Memory, Compute, Compute]);
        let mut matching = matched(2);
        let pair = |a: usize, b: usize| [all[a], all[b]];
        assert!(matching.is_disputed(&pair(0, 2)));
        // Memory beside compute does less than in turns; memory beside memory does as much.
        matching.learn(&pair(0, 2), &[0.4, 0.4]);
        matching.learn(&pair(0, 1), &[0.52, 0.52]);
        let slowdown = matching.matrix().of(Memory, Compute).slowdown;
        assert!((slowdown - 2.5).abs() < 1e-9, "{slowdown}");
        assert_eq!(ids(&matching.advise(&all)), [[1, 2], [3, 4]]);
        let notes = matching.notes(&all);
        let of_pair = notes.iter().find(
            |note| matches!(note, Note::Matched { members, .. } if members[0] == ApplicationId(1)),
        );
        assert!(matches!(of_pair, Some(Note::Matched { measured: true, .. })), "{notes:?}");
    }

    #[test]
    fn a_loss_is_charged_to_all_neighbours() {
        let mut matching = matched(3);
        let all = candidates(&[Compute, Cache, Memory]);
        // By the estimate A and C take twice as long beside anybody.
        matching.learn(&all, &[0.25, 0.5, 0.5]);
        let slowdown = |of, beside| matching.matrix().of(of, beside).slowdown;
        assert!((slowdown(Compute, Cache) - 2.5).abs() < 1e-9);
        assert!((slowdown(Compute, Memory) - 2.5).abs() < 1e-9);
        assert!((slowdown(Memory, Compute) - 1.5).abs() < 1e-9);
    }

    /// Applications come and go: nobody waits for longer than a turn of each other.
    #[test]
    fn nobody_waits_for_ever() {
        const TURN: u64 = 2_000_000;
        for group in 2..=4 {
            let mut turns = Turns::new(matched(group), HARDWARE.sm_clock_khz);
            let mut waits = BTreeMap::<ApplicationId, u64>::new();
            let mut now = 0;
            for step in 0..1_200_u64 {
                // Ten that stay, and ten that come and go.
                let here = |id: u64| id < 10 || (step / (id + 3) + id).is_multiple_of(2);
                let class = |id: u64| ContentionClass::ALL[usize::try_from(id % 4).unwrap()];
                let applications: Vec<ApplicationSample> = (0..20)
                    .filter(|&id| here(id))
                    .map(|id| ApplicationSample {
                        profiled: true,
                        character: Some(character(class(id))),
                        ..ApplicationSample::unseen(u32::try_from(id).unwrap())
                    })
                    .collect();
                let count = applications.len() as u64;
                let sms = SmSet::range(0, 60);
                let (cause, interval) = (Cause::Membership, None);
                let ids: Vec<ApplicationId> = applications.iter().map(|a| a.application).collect();
                let sample = Sample { now: Nanos(now), cause, interval, sms, applications };
                let together = turns.step(&sample).together;
                waits.retain(|id, _| ids.contains(id));
                let next = turns.again_at().unwrap().0;
                for id in ids {
                    let wait = waits.entry(id).or_default();
                    *wait = if together.contains(&id) { 0 } else { *wait + next - now };
                    let most = 2 * TURN * (count - 1);
                    assert!(
                        *wait <= most,
                        "{id} waits for {wait} of {most} ns in groups of {group}"
                    );
                }
                now = next;
            }
        }
    }
}
