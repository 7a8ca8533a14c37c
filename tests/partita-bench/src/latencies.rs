//! The evaluation of Masola (JSSPP '23): launches on part of the SMs, alone and in groups, and what
//! the latency models say of them.
//!
//! | step | what is measured |
//! | --- | --- |
//! | [`Latencies::alone_cells`] | each kernel alone on several numbers of SMs, and counted |
//! | [`Latencies::group_cell`] | one launch of each member, all at once, on SMs of its own |
//!
//! A launch's time goes from the first launch of the run to its last CTA. The SMs of a group do not
//! move, and SMs of nobody have no power. Nothing of the models was chosen by what groups take.

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::cells::{COUNT_CYCLES, Cell, Cells};
use crate::hardware::measured;
use crate::outcome::{RunError, Shared};
use crate::random::Random;
use crate::track::float;
use partita_emu::Spec;
use partita_policy::Launched;
use partita_policy::latency::{Fitted, Gpu, LatencyError, Resident, Work};
use std::collections::BTreeMap;

/// A run ends after so many cycles, whatever has not ended.
const MOST_CYCLES: u64 = 100_000_000;
/// SM counts of Masola §5 and §7.3.
pub const COUNTS: [u16; 6] = [5, 10, 15, 20, 25, 30];
/// Kernels of a group (§7.3).
const SIZES: [u64; 2] = [2, 6];

/// A kernel alone.
#[derive(Clone, Debug)]
pub struct Solo {
    /// What the models are told, with DRAM's bytes as the device counts them on all SMs: the
    /// paper's input.
    pub counted: Work,
    /// The same by the kernel's profile, as a daemon knows it.
    pub profiled: Work,
    /// On each number of SMs: nanoseconds, and bytes per nanosecond to DRAM.
    pub alone: BTreeMap<u16, (f64, f64)>,
    /// Sectors of the launch that reach the LLC.
    pub accesses: f64,
}

/// Launches that begin at once: places of kernels, and the SMs of each.
pub type Group = Vec<(usize, u16)>;

/// Kernels on a GPU, of which nothing is measured at first.
pub struct Latencies<'a> {
    /// The modelled GPU.
    pub spec: &'a Spec,
    /// What the models are told of it.
    pub gpu: Gpu,
    /// The kernels: applications of one launch.
    pub kernels: Vec<&'a Application>,
    /// What each is alone, in the same order.
    pub solos: Vec<Solo>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum LatenciesError {
    /// A kernel cannot run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The models refuse a kernel or the GPU.
    #[error("{0}: {1}")]
    Model(String, LatencyError),
    /// A kernel does not end.
    #[error("{0} does not end in {MOST_CYCLES} cycles; make its launch shorter")]
    TooLong(String),
}

impl<'a> Latencies<'a> {
    /// Kernels of which nothing is measured yet. The nominal bandwidth and the LLC's banks are the
    /// specification's; everything else is measured.
    ///
    /// # Errors
    /// The calibration describes no GPU.
    pub fn new(spec: &'a Spec, kernels: Vec<&'a Application>) -> Result<Self, LatenciesError> {
        let found = Gpu::of(&measured(spec), float(spec.launch_nanoseconds));
        let found = found.map_err(|error| LatenciesError::Model(spec.name.clone(), error))?;
        let (banks, sms) = (f64::from(spec.llc_slices), f64::from(spec.sms));
        let gpu = Gpu {
            nominal: spec.dram_gigabytes_per_second,
            saturation: (banks / sms).min(1.0),
            missing_banks: (sms - banks).max(0.0),
            ..found
        };
        Ok(Latencies { spec, gpu, kernels, solos: Vec::new() })
    }

    /// SM counts that are tried: the paper's that the GPU has, and all.
    #[must_use]
    pub fn counts(&self) -> Vec<u16> {
        let all = self.spec.sms;
        COUNTS.into_iter().filter(|count| *count < all).chain([all]).collect()
    }

    /// The runs of a kernel alone: counted, then on each number of SMs.
    #[must_use]
    pub fn alone_cells(&self, kernel: usize) -> Vec<Cell<'a>> {
        let alone = |sms| self.group_cell(&[(kernel, sms)]);
        let count = Cell {
            arrangement: Arrangement::Count,
            cycles: COUNT_CYCLES,
            launches: Vec::new(),
            ..alone(self.spec.sms)
        };
        std::iter::once(count).chain(self.counts().into_iter().map(alone)).collect()
    }

    /// One launch of each member, all at once.
    #[must_use]
    pub fn group_cell(&self, group: &[(usize, u16)]) -> Cell<'a> {
        Cell {
            applications: group.iter().map(|&(kernel, _)| self.kernels[kernel]).collect(),
            spec: self.spec,
            arrangement: Arrangement::Static(group.iter().map(|&(_, sms)| sms).collect()),
            cycles: MOST_CYCLES,
            launches: vec![1; group.len()],
            arrivals: Vec::new(),
        }
    }

    /// Takes what each kernel is alone from its runs, which are there.
    ///
    /// # Errors
    /// A kernel cannot run, or the models cannot use its numbers.
    pub fn take_alone(&mut self, cells: &mut Cells) -> Result<(), LatenciesError> {
        self.solos.clear();
        for kernel in 0..self.kernels.len() {
            let solo = self.solo(kernel, cells)?;
            self.solos.push(solo);
        }
        Ok(())
    }

    fn solo(&self, kernel: usize, cells: &mut Cells) -> Result<Solo, LatenciesError> {
        let application = self.kernels[kernel];
        let runs = self.alone_cells(kernel);
        let counted = cells.get(&runs[0])?;
        let mut alone = BTreeMap::new();
        let mut whole = None;
        for (sms, run) in self.counts().into_iter().zip(&runs[1..]) {
            let shared = cells.get(run)?;
            let nanos = self.times(&[(kernel, sms)], &shared)?[0];
            alone.insert(sms, (nanos, float(shared.counters.work.dram_bytes) / nanos));
            whole = Some((shared, nanos));
        }
        let (shared, nanos) = whole.ok_or_else(|| too_long(application))?;
        let profile = counted.profiles.values().flatten().next().map(|(_, profile)| *profile);
        let step = &application.pass[0];
        let launched = Launched {
            warps: u32::try_from(step.block.count()).unwrap_or(u32::MAX).div_ceil(32),
            ctas_per_sm: shared.shares[0].ctas_per_sm.into(),
            ctas: u64::try_from(step.grid.count()).unwrap_or(u64::MAX),
        };
        let time = Some(nanos - self.gpu.launch);
        let profiled = Work::of(&profile.unwrap_or_default(), launched, time)
            .map_err(|error| LatenciesError::Model(application.name.clone(), error))?;
        let work = &shared.counters.work;
        let bytes = float(work.dram_bytes) / profiled.ctas;
        let counted = Work {
            llc_bytes: float(work.crossbar_bytes) / profiled.ctas,
            dram_bytes: [bytes; 3],
            ..profiled
        };
        Ok(Solo { counted, profiled, alone, accesses: float(work.llc_accesses) })
    }

    /// Nanoseconds of each member of a group, by its run.
    ///
    /// # Errors
    /// A launch has not ended.
    pub fn times(&self, group: &[(usize, u16)], run: &Shared) -> Result<Vec<f64>, LatenciesError> {
        let member = |(&(kernel, _), share): (&(usize, u16), &crate::outcome::Share)| {
            let application = self.kernels[kernel];
            let has_ended = u128::from(share.track.ctas()) >= application.ctas();
            let time = float(share.track.last_growth());
            if has_ended { Ok(time) } else { Err(too_long(application)) }
        };
        group.iter().zip(&run.shares).map(member).collect()
    }

    /// A member as Masola's windows see it: with what was measured alone on so many SMs.
    #[must_use]
    pub fn resident(&self, (kernel, sms): (usize, u16)) -> Resident {
        let solo = &self.solos[kernel];
        let (alone, bandwidth) = solo.alone.get(&sms).copied().unwrap_or((1.0, 0.0));
        Resident { sms, alone, bandwidth, accesses: solo.accesses }
    }

    /// A member as our model sees it, with the time measured alone on so many SMs.
    #[must_use]
    pub fn fitted(&self, (kernel, sms): (usize, u16)) -> (Fitted, u16, f64) {
        let solo = &self.solos[kernel];
        let alone = solo.alone.get(&sms).map_or(1.0, |(nanos, _)| nanos - self.gpu.launch);
        (Fitted::new(&self.gpu, &solo.counted), sms, alone)
    }

    /// So many groups by a seed: two to six different kernels, each with SMs of the paper's counts,
    /// no more together than the GPU has (§7.3).
    #[must_use]
    pub fn groups(&self, count: usize, seed: u64) -> Vec<Group> {
        let mut random = Random::new(seed);
        let counts = &COUNTS[..COUNTS.len() - 1];
        let mut places: Vec<usize> = (0..self.kernels.len()).collect();
        let sizes = SIZES[1].min(places.len() as u64).saturating_sub(SIZES[0] - 1);
        let mut groups = Vec::new();
        while groups.len() < count && sizes > 0 {
            let size = usize::try_from(SIZES[0] + random.below(sizes)).unwrap_or(2);
            random.shuffle(&mut places);
            let group: Group = loop {
                let sms = |random: &mut Random| {
                    let index = usize::try_from(random.below(counts.len() as u64)).unwrap_or(0);
                    counts[index]
                };
                let group: Group =
                    places[..size].iter().map(|&kernel| (kernel, sms(&mut random))).collect();
                if group.iter().map(|(_, sms)| sms).sum::<u16>() <= self.spec.sms {
                    break group;
                }
            };
            groups.push(group);
        }
        groups
    }
}

fn too_long(application: &Application) -> LatenciesError {
    LatenciesError::TooLong(application.name.clone())
}

/// The seven groups of Masola Table 3, by the names that [`crate::masola()`] gives.
#[must_use]
pub fn table_3(kernels: &[&Application]) -> Vec<Group> {
    let place = |name: &str| kernels.iter().position(|kernel| kernel.name == name);
    let groups: [&[(&str, u16)]; 7] = [
        &[("vadd", 15), ("raytrace", 15)],
        &[("vadd", 5), ("saxpy", 5), ("mvt", 20)],
        &[("raytrace", 10), ("dxt1", 10), ("pf", 10)],
        &[("copy", 15), ("saxpy", 15)],
        &[("vadd", 15), ("conv", 15)],
        &[("vadd", 20), ("mvt", 10)],
        &[("pf", 5), ("mvt", 5), ("raytrace", 5), ("dxt1", 5), ("conv", 5), ("copy", 5)],
    ];
    let known = |group: &&[(&str, u16)]| {
        group.iter().map(|&(name, sms)| Some((place(name)?, sms))).collect::<Option<Group>>()
    };
    groups.iter().filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masola;

    #[test]
    fn groups_fit_and_follow_from_the_seed() {
        let spec = Spec::named("masola-rtx2060").unwrap();
        let all = masola(1);
        let study = Latencies::new(&spec, all.iter().collect()).unwrap();
        let groups = study.groups(100, 1);
        assert_eq!(groups, study.groups(100, 1));
        assert_ne!(groups, study.groups(100, 2));
        assert_eq!(groups.len(), 100);
        for group in groups.iter().chain(&table_3(&study.kernels)) {
            let kernels: std::collections::BTreeSet<usize> =
                group.iter().map(|member| member.0).collect();
            assert!((2..=6).contains(&group.len()) && kernels.len() == group.len(), "{group:?}");
            assert!(group.iter().map(|member| member.1).sum::<u16>() <= 30, "{group:?}");
        }
        assert_eq!(table_3(&study.kernels).len(), 7);
        assert!(Latencies::new(&spec, vec![&all[0]]).unwrap().groups(5, 1).is_empty());
    }
}
