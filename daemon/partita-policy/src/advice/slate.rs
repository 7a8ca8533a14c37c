//! Slate's table (IPDPS '19 §III-B, Table I): pairs run together where their needs complete each
//! other.
//!
//! An application has a level of compute use and one of memory use, from its counted profile and
//! its speed alone. Memory takes precedence: compute counts only where memory use is low. The table
//! says for each pair of levels whether two applications run together or one after the other.
//!
//! Table I as printed is not symmetric: high compute beside medium memory, and beside high memory,
//! is "corun" in one triangle and "solo" in the other. Such a pair is tried, and what it does
//! together decides ([`Adviser::learn`]).
//!
//! The paper names no thresholds. Here a use is a part of what the hardware can sustain, and the
//! levels begin at [`SlateThresholds`].

use super::{Adviser, Candidate, Group};
use crate::Character;
use partita_model::{ApplicationId, Calibration, Level, Note, Verdict};
use std::collections::BTreeMap;

/// The parts of the hardware's rates at which levels begin.
///
/// The defaults follow from pairs of programs that Slate's bench does not judge: only where a
/// bandwidth is used up two applications are slower together than in turns. The counters are in
/// `docs/architecture/policies.md`, and the example `levels` of `partita-bench` measures them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlateThresholds {
    /// Medium and high compute use, as parts of all issue slots.
    pub compute: [f64; 2],
    /// Medium and high memory use, as parts of the bandwidth of LLC or DRAM.
    pub memory: [f64; 2],
}

impl Default for SlateThresholds {
    fn default() -> Self {
        SlateThresholds { compute: [0.7, 1.0], memory: [0.95, 1.05] }
    }
}

/// Pairs whose measured profit is remembered. Beyond that the oldest are forgotten.
const MOST_PAIRS: usize = 4096;

/// What an application uses of the GPU when it is alone there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Levels {
    compute: Level,
    memory: Level,
}

/// A row or column of Table I.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    /// Low memory use, with a level of compute use.
    Compute(Level),
    MediumMemory,
    HighMemory,
}

/// Slate's table with the pairs that were tried.
#[derive(Clone, Debug)]
pub struct SlateTable {
    hardware: Calibration,
    thresholds: SlateThresholds,
    /// Throughput of pairs that were tried, with the levels that they had then.
    tried: BTreeMap<(ApplicationId, ApplicationId), (Levels, Levels, f64)>,
}

impl SlateTable {
    /// The table for a GPU with these numbers.
    #[must_use]
    pub fn new(hardware: Calibration) -> Self {
        SlateTable::with_thresholds(hardware, SlateThresholds::default())
    }

    /// The table with other thresholds, for experiments.
    #[must_use]
    pub fn with_thresholds(hardware: Calibration, thresholds: SlateThresholds) -> Self {
        SlateTable { hardware, thresholds, tried: BTreeMap::new() }
    }

    /// The levels of an application; `None` before its speed alone is known.
    fn levels(&self, character: &Character) -> Option<Levels> {
        let (compute, memory) = uses(&self.hardware, character)?;
        let SlateThresholds { compute: by_compute, memory: by_memory } = self.thresholds;
        Some(Levels { compute: level(compute, by_compute), memory: level(memory, by_memory) })
    }

    /// What the table says of a pair, the lower id first.
    fn verdict(&self, first: &Candidate, second: &Candidate) -> Verdict {
        let levels = |candidate: &Candidate| self.levels(candidate.character.as_ref()?);
        let (Some(one), Some(other)) = (levels(first), levels(second)) else {
            return Verdict::Unknown;
        };
        let verdict = cell(one.row(), other.row());
        if verdict != Verdict::Disputed {
            return verdict;
        }
        match self.tried.get(&(first.application, second.application)) {
            Some((a, b, throughput)) if (*a, *b) == (one, other) => {
                if *throughput > 1.0 {
                    Verdict::Gained
                } else {
                    Verdict::Lost
                }
            }
            _ => Verdict::Disputed,
        }
    }
}

impl Adviser for SlateTable {
    fn name(&self) -> &'static str {
        "slate"
    }

    /// The first application in order of id goes with the first that completes it; who finds nobody
    /// is alone. Whether a pair gains is all that the table says.
    fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
        let mut left: Vec<&Candidate> = candidates.iter().collect();
        left.sort_by_key(|candidate| candidate.application);
        let mut groups = Vec::new();
        while !left.is_empty() {
            let first = left.remove(0);
            let together = |other: &&Candidate| self.verdict(first, other).is_together();
            let partner = left.iter().position(together).map(|index| left.remove(index));
            let members = [Some(first), partner].into_iter().flatten();
            let members = members.map(|candidate| candidate.application).collect();
            groups.push(Group { members, expected: None });
        }
        groups
    }

    fn notes(&self, candidates: &[Candidate]) -> Vec<Note> {
        let levels = candidates.iter().filter_map(|candidate| {
            let character = candidate.character.as_ref()?;
            let (compute_part, memory_part) = uses(&self.hardware, character)?;
            let Levels { compute, memory } = self.levels(character)?;
            let application = candidate.application;
            Some(Note::Levels { application, compute, memory, compute_part, memory_part })
        });
        let mut notes: Vec<Note> = levels.collect();
        for (index, first) in candidates.iter().enumerate() {
            for second in &candidates[index + 1..] {
                let (one, other) = (first.application, second.application);
                let throughput = self.tried.get(&(one, other)).map(|(.., found)| *found);
                let verdict = self.verdict(first, second);
                notes.push(Note::Pair { first: one, second: other, verdict, throughput });
            }
        }
        notes
    }

    fn is_disputed(&self, members: &[Candidate]) -> bool {
        matches!(members, [first, second] if self.verdict(first, second) == Verdict::Disputed)
    }

    fn learn(&mut self, members: &[Candidate], speeds: &[f64]) {
        let [first, second] = members else { return };
        let levels = |candidate: &Candidate| self.levels(candidate.character.as_ref()?);
        if let (Some(one), Some(other)) = (levels(first), levels(second)) {
            let pair = (first.application, second.application);
            if self.tried.len() == MOST_PAIRS && !self.tried.contains_key(&pair) {
                self.tried.pop_first();
            }
            self.tried.insert(pair, (one, other, speeds.iter().sum()));
        }
    }
}

impl Levels {
    fn row(self) -> Row {
        match self.memory {
            Level::Low => Row::Compute(self.compute),
            Level::Medium => Row::MediumMemory,
            Level::High => Row::HighMemory,
        }
    }
}

/// The parts of issue slots and of bandwidth that an application uses alone. Of the LLC's and
/// DRAM's bandwidth the one of which it uses more counts. `None` where its speed alone is unknown.
#[must_use]
pub fn uses(hardware: &Calibration, character: &Character) -> Option<(f64, f64)> {
    let compute = character.ipc(hardware)? / hardware.warp_instructions_per_cycle;
    let llc = hardware.llc_bytes_per_second.min(hardware.noc_bytes_per_second);
    let memory = (character.llc_bandwidth()? / llc)
        .max(character.dram_bandwidth()? / hardware.dram_bytes_per_second);
    (compute.is_finite() && memory.is_finite()).then_some((compute, memory))
}

fn level(part: f64, [medium, high]: [f64; 2]) -> Level {
    if part >= high {
        Level::High
    } else if part >= medium {
        Level::Medium
    } else {
        Level::Low
    }
}

/// Table I. Where its two triangles agree, what they say.
fn cell(one: Row, other: Row) -> Verdict {
    use Row::{Compute, HighMemory, MediumMemory};
    match (one, other) {
        (Compute(Level::High), Compute(_)) | (Compute(_), Compute(Level::High)) => Verdict::Solo,
        (Compute(_), Compute(_)) => Verdict::Corun,
        (Compute(Level::High), _) | (_, Compute(Level::High)) => Verdict::Disputed,
        (Compute(Level::Medium), MediumMemory) | (MediumMemory, Compute(Level::Medium)) => {
            Verdict::Solo
        }
        (Compute(_), _) | (_, Compute(_)) => Verdict::Corun,
        (MediumMemory | HighMemory, MediumMemory | HighMemory) => Verdict::Solo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One SM of 1 GHz that issues an instruction a cycle, and 1 GB/s of everything.
    fn hardware() -> Calibration {
        Calibration {
            sms: 1,
            sm_clock_khz: 1_000_000,
            warp_instructions_per_cycle: 1.0,
            access_bytes: 32,
            noc_bytes_per_second: 1e9,
            llc_bytes_per_second: 1e9,
            dram_bytes_per_second: 1e9,
            dram_utilisation: 0.5,
        }
    }

    /// Levels that are thirds.
    fn thirds() -> SlateTable {
        let thirds = [1.0 / 3.0, 2.0 / 3.0];
        SlateTable::with_thresholds(hardware(), SlateThresholds { compute: thirds, memory: thirds })
    }

    /// An application that uses these parts of issue slots and of bandwidth.
    fn candidate(id: u32, compute: f64, memory: f64) -> Candidate {
        let character = Character {
            warp_instructions: compute * 1000.0,
            llc_sectors: memory * 1000.0 / 32.0,
            alone: Some(1000.0),
            ..Character::default()
        };
        Candidate { application: ApplicationId(id), character: Some(character) }
    }

    fn groups(table: &SlateTable, candidates: &[Candidate]) -> Vec<Vec<u32>> {
        let ids = |group: &Group| group.members.iter().map(|id| id.0).collect();
        table.advise(candidates).iter().map(ids).collect()
    }

    #[test]
    fn the_table_as_printed_where_it_is_symmetric() {
        use Verdict::{Corun, Disputed, Solo};
        let kinds = [(0.1, 0.1), (0.5, 0.1), (0.9, 0.1), (0.1, 0.5), (0.1, 0.9)];
        let expected = [
            [Corun, Corun, Solo, Corun, Corun],
            [Corun, Corun, Solo, Solo, Corun],
            [Solo, Solo, Solo, Disputed, Disputed],
            [Corun, Solo, Disputed, Solo, Solo],
            [Corun, Corun, Disputed, Solo, Solo],
        ];
        let table = thirds();
        for (row, &(compute, memory)) in expected.iter().zip(&kinds) {
            for (verdict, &(c, m)) in row.iter().zip(&kinds) {
                let found = table.verdict(&candidate(1, compute, memory), &candidate(2, c, m));
                assert_eq!(found, *verdict, "{compute} {memory} beside {c} {m}");
            }
        }
    }

    #[test]
    fn levels_begin_where_a_rate_is_used_up() {
        let table = SlateTable::new(hardware());
        let verdict = |one: (f64, f64), other: (f64, f64)| {
            table.verdict(&candidate(1, one.0, one.1), &candidate(2, other.0, other.1))
        };
        assert_eq!(verdict((0.96, 0.15), (0.94, 0.34)), Verdict::Corun);
        assert_eq!(verdict((0.35, 0.91), (0.42, 0.85)), Verdict::Corun);
        assert_eq!(verdict((0.35, 0.97), (0.42, 0.99)), Verdict::Solo);
        assert_eq!(verdict((0.75, 0.5), (0.42, 0.99)), Verdict::Solo);
        assert_eq!(verdict((0.6, 0.5), (0.42, 0.99)), Verdict::Corun);
    }

    #[test]
    fn memory_takes_precedence() {
        let table = thirds();
        // High compute use says nothing where memory use is medium.
        let found = table.verdict(&candidate(1, 0.9, 0.5), &candidate(2, 0.1, 0.1));
        assert_eq!(found, Verdict::Corun);
    }

    #[test]
    fn a_disputed_pair_is_tried_and_what_it_did_decides() {
        let mut table = thirds();
        let pair = [candidate(1, 0.9, 0.1), candidate(2, 0.1, 0.9)];
        assert_eq!(groups(&table, &pair), [vec![1, 2]]);
        assert!(table.is_disputed(&pair));
        table.learn(&pair, &[0.5, 0.47]);
        assert_eq!(groups(&table, &pair), [vec![1], vec![2]]);
        assert!(!table.is_disputed(&pair));
        table.learn(&pair, &[0.5, 0.7]);
        assert_eq!(groups(&table, &pair), [vec![1, 2]]);
        // What was tried was another kernel.
        let changed = [pair[0], candidate(2, 0.1, 0.5)];
        assert!(table.is_disputed(&changed));
        assert!(!table.is_disputed(&pair[..1]));
    }

    #[test]
    fn the_first_goes_with_the_first_that_completes_it() {
        let table = thirds();
        let heavy = |id| candidate(id, 0.1, 0.9);
        let light = |id| candidate(id, 0.1, 0.1);
        assert_eq!(groups(&table, &[heavy(3), heavy(1), light(5)]), [vec![1, 5], vec![3]]);
        let unknown = Candidate { application: ApplicationId(2), character: None };
        assert_eq!(groups(&table, &[light(1), unknown, light(3)]), [vec![1, 3], vec![2]]);
        assert!(groups(&table, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn everyone_is_in_one_group_of_at_most_two(
            parts in prop::collection::vec((0.0..1.5_f64, 0.0..1.5_f64, any::<bool>()), 0..20)
        ) {
            let table = thirds();
            let candidates: Vec<Candidate> = (0..).zip(&parts).map(|(id, &(c, m, known))| {
                let Candidate { application, character } = candidate(id, c, m);
                Candidate { application, character: character.filter(|_| known) }
            }).collect();
            let groups = groups(&table, &candidates);
            prop_assert!(groups.iter().all(|group| (1..=2).contains(&group.len())));
            let mut all: Vec<u32> = groups.into_iter().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..u32::try_from(parts.len()).unwrap()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_pair_that_does_as_much_in_turns_has_lost() {
        let mut table = thirds();
        let pair = [candidate(1, 0.9, 0.1), candidate(2, 0.1, 0.9)];
        table.learn(&pair, &[0.5, 0.5]);
        assert_eq!(table.verdict(&pair[0], &pair[1]), Verdict::Lost);
    }

    #[test]
    fn uses_are_parts_of_what_the_hardware_sustains() {
        let hardware = Calibration {
            warp_instructions_per_cycle: 2.0,
            llc_bytes_per_second: 4e9,
            noc_bytes_per_second: 2e9,
            ..hardware()
        };
        // In 1,000 ns: one instruction a cycle of two; LLC bytes of 2,000, DRAM bytes of 1,000.
        let with = |warp_instructions: f64, llc: f64, dram: f64| Character {
            warp_instructions,
            llc_sectors: llc / 32.0,
            dram_sectors: dram / 32.0,
            alone: Some(1000.0),
            ..Character::default()
        };
        for (llc, dram, memory) in [(1_000.0, 250.0, 0.5), (1_000.0, 750.0, 0.75)] {
            let (compute, found) = uses(&hardware, &with(1_000.0, llc, dram)).unwrap();
            assert!((compute - 0.5).abs() < 1e-12 && (found - memory).abs() < 1e-12, "{found}");
        }
        assert_eq!(uses(&hardware, &with(f64::INFINITY, 1.0, 1.0)), None);
        assert_eq!(uses(&hardware, &with(1.0, f64::INFINITY, 1.0)), None);
    }

    #[test]
    fn notes_have_the_levels_of_each_and_the_verdict_of_each_pair() {
        let mut table = thirds();
        let all = [candidate(1, 0.9, 0.1), candidate(2, 0.1, 0.9), candidate(3, 0.5, 0.1)];
        table.learn(&all[..2], &[0.5, 0.25]);
        let notes = table.notes(&all);
        let levels: Vec<_> = notes
            .iter()
            .filter_map(|note| match note {
                Note::Levels { application, compute, memory, .. } => {
                    Some((application.0, *compute, *memory))
                }
                _ => None,
            })
            .collect();
        use Level::{High, Low, Medium};
        assert_eq!(levels, [(1, High, Low), (2, Low, High), (3, Medium, Low)]);
        let pair = |first, second, verdict, throughput| Note::Pair {
            first: ApplicationId(first),
            second: ApplicationId(second),
            verdict,
            throughput,
        };
        let pairs = [
            pair(1, 2, Verdict::Lost, Some(0.75)),
            pair(1, 3, Verdict::Solo, None),
            pair(2, 3, Verdict::Corun, None),
        ];
        assert_eq!(notes[3..], pairs);
    }

    #[test]
    fn of_more_pairs_than_are_remembered_the_first_is_forgotten() {
        let mut table = thirds();
        let pair = |id| [candidate(id, 0.9, 0.1), candidate(10_000, 0.1, 0.9)];
        let tried = |table: &SlateTable, most| -> Vec<u32> {
            (0..most).filter(|&id| !table.is_disputed(&pair(id))).collect()
        };
        let most = u32::try_from(MOST_PAIRS).unwrap();
        (0..most).for_each(|id| table.learn(&pair(id), &[0.5, 0.4]));
        assert!(tried(&table, most).into_iter().eq(0..most));
        table.learn(&pair(most), &[0.5, 0.4]);
        assert!(tried(&table, most + 1).into_iter().eq(1..=most));
        // The newest stays, also where its applications are older than all others.
        table.learn(&pair(0), &[0.5, 0.4]);
        assert!(tried(&table, most + 1).into_iter().eq([0].into_iter().chain(2..=most)));
    }
}
