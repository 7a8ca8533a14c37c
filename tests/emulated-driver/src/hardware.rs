//! The habits of hardware that the emulated GPU is asked for.

use crate::settings::Settings;
use partita_emu::Hardware;

/// Shared memory in bytes that the driver takes for itself in each CTA.
pub const RESERVED_SHARED: u64 = 1 << 10;

/// Sizes of shared memory in KiB that an SM can be set to (CUDA C++ Programming Guide, "Shared
/// Memory", compute capability 9.0).
const CARVE_OUTS: [u64; 10] = [0, 8, 16, 32, 64, 100, 132, 164, 196, 228];

/// SMs that share one texture processing cluster. Their numbers stay together.
const CLUSTER: usize = 2;

/// The habits of a GPU with `sms` SMs.
pub fn of(settings: &Settings, sms: u16) -> Hardware {
    let habits = &settings.habits;
    Hardware {
        parted_registers: habits.parted_registers,
        most_room: habits.most_room,
        carve_outs: match habits.carve_out {
            true => CARVE_OUTS.map(|kib| kib << 10).to_vec(),
            false => Vec::new(),
        },
        smids: smids(settings, sms),
    }
}

/// `%smid` of each SM.
fn smids(settings: &Settings, sms: u16) -> Vec<u32> {
    let habits = &settings.habits;
    let mut numbers: Vec<u32> = (0..u32::from(sms)).collect();
    let mut seed = settings.seed;
    if habits.smid_gaps {
        // A GPU has clusters that its kind does not use: here one of ten.
        let gaps = u32::from(sms) / 20 * 2;
        for _ in 0..gaps / 2 {
            let place = next(&mut seed) % u64::from(u32::from(sms) / 2);
            let from = u32::try_from(place).unwrap_or(0) * 2;
            numbers.iter_mut().filter(|number| **number >= from).for_each(|number| *number += 2);
        }
    }
    if habits.permuted_smids {
        let clusters = numbers.len() / CLUSTER;
        for last in (1..clusters).rev() {
            let bound = u64::try_from(last + 1).unwrap_or(1);
            let other = usize::try_from(next(&mut seed) % bound).unwrap_or(0);
            (0..CLUSTER).for_each(|at| numbers.swap(last * CLUSTER + at, other * CLUSTER + at));
        }
    }
    numbers
}

/// The next number of a linear congruential generator: its upper half.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_distinct_and_differ_by_seed() {
        let numbers = |text: &str| smids(&Settings::parse(text).expect("switches"), 132);
        let (first, other) = (numbers("seed=1"), numbers("seed=2"));
        assert_ne!(first, other);
        for numbers in [&first, &other] {
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 132);
            assert_eq!(numbers.iter().max(), Some(&143), "12 numbers belong to no SM");
        }
        let plain = numbers("smid-gaps=off,permuted-smids=off");
        assert_eq!(plain, (0..132).collect::<Vec<u32>>());
        let mut sorted = numbers("smid-gaps=off");
        assert_ne!(sorted, plain);
        sorted.sort_unstable();
        assert_eq!(sorted, plain);
    }
}
