//! Kernelet (TPDS '14, Alg. 1): pairs of kernels that share SMs, the greatest profit first.
//!
//! The Markov model ([`crate::markov`]) predicts what each pair gains. The pair that gains most
//! becomes a group, then the best pair of the others. The paper chooses a pair each time the GPU is
//! free; advice names all pairs at once, in the order in which the paper would choose them. An
//! application that no partner makes faster runs alone, and so does one of which too little is
//! known.
//!
//! # Pruning
//!
//! Two kernels that are alike compete for the same thing, so their pair is not predicted. They are
//! alike where three numbers differ by less than a threshold: R_m, the part of the issue rate and
//! the part of DRAM's bandwidth that each uses alone. The paper's criterion is in a supplement that
//! this project does not have; the thresholds are ours.
//!
//! # Cost
//!
//! Predictions are kept for as long as their kernels are candidates, so an arrival costs one pair
//! for each other candidate. A character is rounded first, because the mean over an application's
//! kernels drifts as it runs. Pairs are formed among [`BATCH`] candidates at a time, so time and
//! memory grow linearly with more.

use crate::advice::{Adviser, Candidate, Expected, Group};
use crate::models::Character;
use crate::models::markov::{Alone, Model, ModelError, Ratio, Shared};
use partita_model::{ApplicationId, Calibration, Note, SmPart};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Applications among which pairs are formed: a batch has 496 pairs at most.
const BATCH: usize = 32;
/// Bits of a number's mantissa that count: it is rounded by 0.8 % at most, and whole numbers up to
/// 128 stay as they are.
const MANTISSA_BITS: u32 = 6;

/// Settings of [`Kernelet`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KerneletSettings {
    /// Units of warps of a kernel alone in the model, 1 to 16.
    pub units: u32,
    /// How many CTAs of each kernel of a pair share an SM.
    pub ratio: Ratio,
    /// A pair runs together where its co-scheduling profit is above this. By default the overhead
    /// that the paper lets slicing have (§4.1): 2 %.
    pub least_profit: f64,
    /// Memory ratios that differ by less are alike; 0 prunes nothing.
    pub alike_ratio: f64,
    /// Parts of the issue rate, and of DRAM's bandwidth, that differ by less are alike.
    pub alike_use: f64,
}

impl Default for KerneletSettings {
    fn default() -> Self {
        KerneletSettings {
            units: Model::UNITS,
            ratio: Ratio::Balanced,
            least_profit: 0.02,
            alike_ratio: 0.02,
            alike_use: 0.1,
        }
    }
}

/// The greedy co-scheduler.
#[derive(Clone, Debug)]
pub struct Kernelet {
    model: Model,
    hardware: Calibration,
    settings: KerneletSettings,
    predictions: RefCell<Predictions>,
}

impl Kernelet {
    /// A co-scheduler for a GPU.
    ///
    /// # Errors
    /// The calibration describes no GPU, or the number of units is out of range.
    pub fn new(hardware: Calibration, settings: KerneletSettings) -> Result<Self, ModelError> {
        let model = Model::new(&hardware, settings.units)?;
        Ok(Kernelet { model, hardware, settings, predictions: RefCell::default() })
    }

    /// A candidate with what the model makes of it; `None` where too little is known.
    fn known(&self, candidate: &Candidate, before: &Predictions) -> Option<Known> {
        let character = rounded(&candidate.character?);
        let key = key(&character);
        let alone = match before.kernels.get(&key) {
            Some(alone) => *alone,
            None => self.model.fitted(&character, &self.hardware).ok()?,
        };
        let dram = self.hardware.dram_bytes_per_second;
        let uses = [
            alone.ipc / self.hardware.warp_instructions_per_cycle,
            character.dram_bandwidth().unwrap_or(0.0) / dram,
        ];
        let application = candidate.application;
        Some(Known { application, key, alone, ratio: character.memory_ratio(), uses })
    }

    /// Whether two kernels compete for the same thing.
    fn alike(&self, one: &Known, other: &Known) -> bool {
        let uses = one.uses.iter().zip(&other.uses);
        (one.ratio - other.ratio).abs() < self.settings.alike_ratio
            && uses.map(|(one, other)| (one - other).abs()).all(|by| by < self.settings.alike_use)
    }

    /// The pairs of a batch that gain, the greatest profit first; ties go to the lowest ids.
    fn pairs(&self, batch: &[Known], before: &Predictions, now: &mut Predictions) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (at, one) in batch.iter().enumerate() {
            let unlike =
                batch[..at].iter().enumerate().filter(|(_, other)| !self.alike(one, other));
            for (first, other) in unlike {
                let Some(shared) = self.predicted(other, one, before, now) else { continue };
                if shared.profit() > self.settings.least_profit {
                    pairs.push(Pair { members: [first, at], shared });
                }
            }
        }
        pairs.sort_by(|one, other| {
            let profit = other.shared.profit().total_cmp(&one.shared.profit());
            profit.then_with(|| one.members.cmp(&other.members))
        });
        pairs
    }

    /// What the model says of a pair, in the order of the two. The order decides nothing.
    fn predicted(
        &self,
        one: &Known,
        other: &Known,
        before: &Predictions,
        now: &mut Predictions,
    ) -> Option<Shared> {
        let swap = other.key < one.key;
        let (first, second) = if swap { (other, one) } else { (one, other) };
        let keys = (first.key, second.key);
        let predict = || self.model.chosen([&first.alone, &second.alone], self.settings.ratio);
        let shared = match now.pairs.get(&keys).or_else(|| before.pairs.get(&keys)) {
            Some(shared) => *shared,
            None => predict().ok().flatten(),
        };
        now.pairs.insert(keys, shared);
        let mut shared = shared?;
        if swap {
            shared.ctas.swap(0, 1);
            shared.ipc.swap(0, 1);
            shared.alone.swap(0, 1);
        }
        Some(shared)
    }
}

impl Adviser for Kernelet {
    fn name(&self) -> &'static str {
        "kernelet"
    }

    fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
        let before = self.predictions.take();
        let mut now = Predictions::default();
        let mut candidates: Vec<&Candidate> = candidates.iter().collect();
        candidates.sort_by_key(|candidate| candidate.application);
        let (mut known, mut alone) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.known(candidate, &before) {
                Some(found) => known.push(found),
                None => alone.push(Group::alone(candidate.application, None)),
            }
        }
        now.kernels = known.iter().map(|known| (known.key, known.alone)).collect();
        let mut together: Vec<(f64, Group)> = Vec::new();
        for batch in known.chunks(BATCH) {
            let mut free = vec![true; batch.len()];
            for pair in self.pairs(batch, &before, &mut now) {
                if pair.members.iter().all(|&member| free[member]) {
                    free[pair.members[0]] = false;
                    free[pair.members[1]] = false;
                    together.push((pair.shared.profit(), pair.group(batch)));
                }
            }
            let left = batch.iter().zip(free).filter(|(_, free)| *free);
            alone.extend(
                left.map(|(known, _)| Group::alone(known.application, Some(Expected::alone()))),
            );
        }
        self.predictions.replace(now);
        // Both sorts keep the order by id where they find nothing to tell apart.
        together.sort_by(|one, other| other.0.total_cmp(&one.0));
        alone.sort_by_key(|group| group.members[0]);
        together.into_iter().map(|(_, group)| group).chain(alone).collect()
    }

    fn notes(&self, candidates: &[Candidate]) -> Vec<Note> {
        let shared = |group: &Group| match (&*group.members, &group.expected) {
            (&[first, second], Some(Expected { throughput, parts, .. })) => {
                let parts = (*parts.first()?, *parts.get(1)?);
                Some(Note::Shared { first, second, parts, throughput: *throughput })
            }
            _ => None,
        };
        self.advise(candidates).iter().filter_map(shared).collect()
    }
}

impl Group {
    fn alone(application: ApplicationId, expected: Option<Expected>) -> Self {
        Group { members: vec![application], expected }
    }
}

/// A character, to the bit.
type Key = [u64; 9];

/// What the model said of the candidates.
#[derive(Clone, Default, Debug)]
struct Predictions {
    kernels: BTreeMap<Key, Alone>,
    /// By keys in order; `None` where the two do not fit on an SM.
    pairs: BTreeMap<(Key, Key), Option<Shared>>,
}

/// A candidate that the model knows.
struct Known {
    application: ApplicationId,
    key: Key,
    alone: Alone,
    /// R_m.
    ratio: f64,
    /// The parts of issue rate and DRAM bandwidth that it uses alone.
    uses: [f64; 2],
}

/// Two applications of a batch that gain together.
struct Pair {
    /// Their places in the batch, the lower id first.
    members: [usize; 2],
    shared: Shared,
}

impl Pair {
    fn group(&self, batch: &[Known]) -> Group {
        let part = |(&ctas, &member): (&u32, &usize)| {
            let small = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
            SmPart::new(small(ctas), small(batch[member].alone.workload.ctas_fit))
        };
        let parts: Option<Vec<SmPart>> =
            self.shared.ctas.iter().zip(&self.members).map(part).collect();
        let expected = Expected {
            throughput: self.shared.throughput(),
            speeds: self.shared.speeds().to_vec(),
            quotas: self.shared.ctas.to_vec(),
            parts: parts.unwrap_or_default(),
        };
        let members = self.members.map(|member| batch[member].application).to_vec();
        Group { members, expected: Some(expected) }
    }
}

fn key(character: &Character) -> Key {
    // A time that is not known makes no kernel that the model knows.
    let alone = character.alone.unwrap_or(f64::NAN);
    [
        character.warp_instructions,
        character.memory_instructions,
        character.sectors,
        character.llc_sectors,
        character.dram_sectors,
        character.warps,
        character.ctas_per_sm,
        character.ctas_per_launch,
        alone,
    ]
    .map(f64::to_bits)
}

/// A character whose numbers have [`MANTISSA_BITS`].
fn rounded(character: &Character) -> Character {
    Character {
        warp_instructions: rounded_number(character.warp_instructions),
        memory_instructions: rounded_number(character.memory_instructions),
        sectors: rounded_number(character.sectors),
        llc_sectors: rounded_number(character.llc_sectors),
        dram_sectors: rounded_number(character.dram_sectors),
        warps: rounded_number(character.warps),
        ctas_per_sm: rounded_number(character.ctas_per_sm),
        ctas_per_launch: rounded_number(character.ctas_per_launch),
        alone: character.alone.map(rounded_number),
        kind: None,
    }
}

fn rounded_number(value: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    let dropped = f64::MANTISSA_DIGITS - 1 - MANTISSA_BITS;
    let half = 1 << (dropped - 1);
    f64::from_bits((value.to_bits() + half) >> dropped << dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: Calibration = Calibration {
        sms: 24,
        sm_clock_khz: 1_400_000,
        warp_instructions_per_cycle: 1.0,
        access_bytes: 32,
        noc_bytes_per_second: 1.0e12,
        llc_bytes_per_second: 4.3e11,
        dram_bytes_per_second: 1.77e11,
        dram_utilisation: 0.5,
    };

    fn kernelet(settings: KerneletSettings) -> Kernelet {
        Kernelet::new(HARDWARE, settings).unwrap()
    }

    /// A kernel with such a part of memory instructions, of four sectors, and such an IPC alone.
    fn counted(ratio: f64, ipc: f64) -> Character {
        let cycles = 2_000.0 / ipc / f64::from(HARDWARE.sms);
        Character {
            warp_instructions: 2_000.0,
            memory_instructions: 2_000.0 * ratio,
            sectors: 8_000.0 * ratio,
            llc_sectors: 8_000.0 * ratio,
            dram_sectors: 4_000.0 * ratio,
            warps: 6.0,
            ctas_per_sm: 8.0,
            ctas_per_launch: 1_000.0,
            alone: Some(cycles / 1.4),
            kind: None,
        }
    }

    fn compute() -> Character {
        counted(0.01, 0.9)
    }

    fn memory() -> Character {
        counted(0.25, 0.15)
    }

    fn candidates(of: &[Character]) -> Vec<Candidate> {
        let candidate = |(id, &of): (u32, &Character)| Candidate {
            application: ApplicationId(id),
            character: Some(of),
        };
        (1..).zip(of).map(candidate).collect()
    }

    /// The nearest numbers with six bits behind the first: from 2^n on they lie 2^(n - 6) apart.
    #[test]
    fn numbers_are_rounded_to_seven_bits() {
        for (value, wanted) in [
            (0.0, 0.0),
            (1.0, 1.0),
            (127.0, 127.0),
            // Steps of two, of four and of eight; a half goes up.
            (129.0, 130.0),
            (300.0, 300.0),
            (301.0, 300.0),
            (303.0, 304.0),
            (1003.0, 1000.0),
            (1005.0, 1008.0),
            (1022.0, 1024.0),
            // Of one and a bit: steps of 1/64.
            (1.0 + 1.0 / 64.0 + 1.0 / 256.0, 1.0 + 1.0 / 64.0),
            (f64::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(rounded_number(value).to_bits(), f64::to_bits(wanted), "{value}");
        }
        assert!(rounded_number(f64::NAN).is_nan());
    }

    #[test]
    fn a_kernel_is_known_by_its_memory_ratio_and_what_it_uses() {
        let hardware = Calibration {
            sms: 16,
            sm_clock_khz: 1_000_000,
            warp_instructions_per_cycle: 4.0,
            llc_bytes_per_second: 8e12,
            noc_bytes_per_second: 8e12,
            dram_bytes_per_second: 2_048e9,
            ..HARDWARE
        };
        // In 64 ns 2,048 instructions on 16 SMs: two a cycle of four. 1,024 sectors are 32 KiB, in
        // 64 ns 512 GB/s of 2,048.
        let character = Character {
            warp_instructions: 2_048.0,
            memory_instructions: 512.0,
            sectors: 2_048.0,
            llc_sectors: 2_048.0,
            dram_sectors: 1_024.0,
            alone: Some(64.0),
            ..memory()
        };
        let kernelet = Kernelet::new(hardware, KerneletSettings::default()).unwrap();
        let known = kernelet.known(&candidates(&[character])[0], &Predictions::default()).unwrap();
        let [issue, dram] = known.uses;
        assert!((known.ratio - 0.25).abs() < 1e-12 && (dram - 0.25).abs() < 1e-12, "{dram}");
        assert!((issue - 0.5).abs() < 0.01, "{issue}");
    }

    /// What is known of a kernel, but for the three numbers that are compared.
    fn known(kernelet: &Kernelet, ratio: f64, uses: [f64; 2]) -> Known {
        let known = kernelet.known(&candidates(&[memory()])[0], &Predictions::default()).unwrap();
        Known { ratio, uses, ..known }
    }

    #[test]
    fn alike_kernels_differ_by_less_in_all_three_numbers() {
        let kernelet = kernelet(KerneletSettings::default());
        // By default ratios differ by less than 0.02, uses by less than 0.1.
        for (ratio, uses, alike) in [
            (0.25, [0.4, 0.6], true),
            (0.265, [0.49, 0.51], true),
            (0.235, [0.31, 0.69], true),
            (0.275, [0.4, 0.6], false),
            (0.225, [0.4, 0.6], false),
            (0.25, [0.55, 0.6], false),
            (0.25, [0.4, 0.45], false),
            (0.25, [0.25, 0.75], false),
        ] {
            let (one, other) = (known(&kernelet, 0.25, [0.4, 0.6]), known(&kernelet, ratio, uses));
            assert_eq!(kernelet.alike(&one, &other), alike, "{ratio} {uses:?}");
            assert_eq!(kernelet.alike(&other, &one), alike, "{ratio} {uses:?}");
        }
    }

    #[test]
    fn a_threshold_of_zero_prunes_nothing() {
        let default = KerneletSettings::default();
        for settings in [
            KerneletSettings { alike_ratio: 0.0, ..default },
            KerneletSettings { alike_use: 0.0, ..default },
        ] {
            let kernelet = kernelet(settings);
            let same = || known(&kernelet, 0.25, [0.4, 0.6]);
            assert!(!kernelet.alike(&same(), &same()), "{settings:?}");
        }
    }

    #[test]
    fn a_pair_that_gains_just_the_least_profit_runs_apart() {
        let all = candidates(&[compute(), memory()]);
        let group = kernelet(KerneletSettings::default()).advise(&all).remove(0);
        let profit = 1.0 - 1.0 / group.expected.unwrap().throughput;
        let settings = KerneletSettings { least_profit: profit, ..KerneletSettings::default() };
        assert_eq!((group.members.len(), kernelet(settings).advise(&all).len()), (2, 2));
    }

    /// One prediction is enough for all pairs of the same two kernels, in either order of ids.
    #[test]
    fn a_pair_is_predicted_once() {
        let kernelet = kernelet(KerneletSettings::default());
        let groups = kernelet.advise(&candidates(&[compute(), memory(), compute()]));
        assert_eq!(kernelet.predictions.borrow().pairs.len(), 1);
        let swapped = kernelet.advise(&candidates(&[memory(), compute()]));
        let (mut expected, found) = (groups[0].expected.clone(), swapped[0].expected.clone());
        if let Some(expected) = &mut expected {
            expected.speeds.reverse();
            expected.quotas.reverse();
            expected.parts.reverse();
        }
        assert_eq!(expected.map(|e| (e.speeds, e.quotas)), found.map(|e| (e.speeds, e.quotas)));
    }

    #[test]
    fn notes_name_the_pairs_with_their_parts_of_an_sm() {
        let kernelet = kernelet(KerneletSettings::default());
        let all = candidates(&[compute(), memory(), memory()]);
        let expected = kernelet.advise(&all)[0].expected.clone().unwrap();
        // Eight CTAs of each fit on an SM.
        let part = |at: usize| SmPart::new(u16::try_from(expected.quotas[at]).unwrap(), 8).unwrap();
        let shared = Note::Shared {
            first: ApplicationId(1),
            second: ApplicationId(2),
            parts: (part(0), part(1)),
            throughput: expected.speeds.iter().sum(),
        };
        assert_eq!(kernelet.notes(&all), [shared]);
        assert!(!kernelet.is_disputed(&all[..2]), "nothing is tried");
    }
}
