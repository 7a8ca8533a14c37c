//! Random programs that copy.
//!
//! A mix has a *load*: the time of its kernels, each alone on the GPU, divided by the transfer time
//! of both directions. At a load of 1 or more, kernels take long enough to hide all transfers, even
//! if the GPU had one copy engine.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and times are far below the limits of their types"
)]

use super::{Program, Round};
use crate::random::Random;
use partita_emu::Spec;
use partita_model::Nanos;

/// Threads of a CTA. One warp sleeps as long as many, and is cheap to emulate.
pub(super) const THREADS: u32 = 32;
/// CTAs of a launch that an SM holds.
const PER_SM: u32 = 2;

/// Who copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// One program with eight streams.
    OneProgram,
    /// Four programs of one user, two streams each.
    OneUser,
    /// Four users with a program of two streams each.
    Users,
}

impl Company {
    /// All of them.
    pub const ALL: [Company; 3] = [Company::OneProgram, Company::OneUser, Company::Users];

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Company::OneProgram => "one program",
            Company::OneUser => "one user",
            Company::Users => "four users",
        }
    }

    /// The user of each program, and its streams.
    fn members(self) -> Vec<(u32, usize)> {
        match self {
            Company::OneProgram => vec![(0, 8)],
            Company::OneUser => vec![(0, 2); 4],
            Company::Users => (0..4).map(|user| (user, 2)).collect(),
        }
    }
}

/// What a mix is made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// Who copies.
    pub company: Company,
    /// The load, as the module's page says.
    pub load: f64,
    /// The seed of lengths and times.
    pub seed: u64,
}

/// The programs of a mix on a GPU.
#[must_use]
pub fn programs(spec: &Spec, mix: &Mix) -> Vec<Program> {
    let mut random = Random::new(mix.seed);
    let members = mix.company.members();
    let mut programs: Vec<Program> = members
        .iter()
        .map(|&(user, streams)| Program {
            user,
            rounds: (0..streams).map(|_| copies_of_a_round(&mut random)).collect(),
        })
        .collect();
    // Each stream works for the same part of its transfer time, give or take a factor of two.
    for round in programs.iter_mut().flat_map(|program| &mut program.rounds) {
        let factor = mix.load * 2_f64.powf(signed_unit(&mut random));
        let nanoseconds = transfer_time(spec, round) * factor;
        set_kernel(spec, round, nanoseconds, &mut random);
    }
    level(spec, &mut programs, mix.load);
    programs
}

/// Between −1 and 1.
fn signed_unit(random: &mut Random) -> f64 {
    random.below(2_000_001) as f64 / 1e6 - 1.0
}

/// Copies of 256 KiB to 16 MiB, as many long as short ones by order of magnitude. Half of the
/// programs wait for each round.
fn copies_of_a_round(random: &mut Random) -> Round {
    let mut length = |most: f64| ((256 << 10) as f64 * 2_f64.powf(most * unit(random))) as u64;
    let (first, second, out) = (length(6.0), length(4.0), length(5.0));
    let has_second = random.below(2) == 0;
    Round {
        to_device: if has_second { vec![first, second] } else { vec![first] },
        ctas: 0,
        cta_time: Nanos(0),
        to_host: vec![out],
        ahead: 1 + random.below(2) as u32,
    }
}

/// Between 0 and 1.
fn unit(random: &mut Random) -> f64 {
    random.below(1_000_001) as f64 / 1e6
}

/// The time of copies on their engine, in nanoseconds.
fn engine_time(spec: &Spec, copies: &[u64]) -> f64 {
    let bytes: u64 = copies.iter().sum();
    (copies.len() as u64 * spec.copy_nanoseconds) as f64
        + bytes as f64 / spec.copy_gigabytes_per_second
}

/// The time of all copies of a round, in nanoseconds.
fn transfer_time(spec: &Spec, round: &Round) -> f64 {
    engine_time(spec, &round.to_device) + engine_time(spec, &round.to_host)
}

/// Places for CTAs on the GPU.
fn places(spec: &Spec) -> u32 {
    u32::from(spec.sms) * PER_SM
}

/// The shared memory in bytes with which an SM holds [`PER_SM`] CTAs. A worker needs a little of
/// its own.
pub(super) fn shared(spec: &Spec) -> u32 {
    let most = spec.shared_per_cta_optin_bytes.min(spec.shared_per_sm_bytes / u64::from(PER_SM));
    u32::try_from(most - 2 * spec.shared_granularity_bytes).unwrap_or(0)
}

/// Gives a round a launch of one to eight waves of CTAs that takes about `nanoseconds` alone.
fn set_kernel(spec: &Spec, round: &mut Round, nanoseconds: f64, random: &mut Random) {
    let waves = 1 + random.below(8) as u32;
    round.ctas = places(spec) * waves;
    round.cta_time = Nanos((nanoseconds / f64::from(waves)) as u64);
}

/// Scales the kernels so that the mix has its load, where each stream does as many rounds.
fn level(spec: &Spec, programs: &mut [Program], load: f64) {
    let rounds = || programs.iter().flat_map(|program| &program.rounds);
    let copies: f64 = rounds().map(|round| transfer_time(spec, round)).sum();
    let kernels: f64 = rounds().map(|round| kernel_time(spec, round)).sum();
    let factor = load * copies / kernels;
    for round in programs.iter_mut().flat_map(|program| &mut program.rounds) {
        round.cta_time = Nanos((round.cta_time.0 as f64 * factor) as u64);
    }
}

/// The time of a round's launch alone on the GPU, in nanoseconds.
fn kernel_time(spec: &Spec, round: &Round) -> f64 {
    f64::from(round.ctas.div_ceil(places(spec))) * round.cta_time.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_its_load() {
        let spec = Spec::find("titan-xp").unwrap();
        for company in Company::ALL {
            for load in [1.0, 2.0] {
                let programs = programs(&spec, &Mix { company, load, seed: 5 });
                let rounds = || programs.iter().flat_map(|program| &program.rounds);
                let copies: f64 = rounds().map(|round| transfer_time(&spec, round)).sum();
                let kernels: f64 = rounds().map(|round| kernel_time(&spec, round)).sum();
                let found = kernels / copies;
                assert!((found / load - 1.0).abs() < 1e-3, "{company:?}: {found}, not {load}");
                assert_eq!(rounds().count(), 8);
            }
        }
    }
}
