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
