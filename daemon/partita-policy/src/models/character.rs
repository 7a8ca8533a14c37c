//! What a kernel, or an application with several, asks of a GPU that it has to itself.
//!
//! A character is what selectors compare: how much an application computes, how much it moves, and
//! how fast it is alone. It is made from the profiles of kernels. The character of an application
//! is the mean over the CTAs that it completed.
//!
//! | quantity | unit |
//! | --- | --- |
//! | [`Character::ipc`] | warp instructions a cycle of one SM |
//! | [`Character::llc_bandwidth`], [`Character::dram_bandwidth`] | bytes a second of the GPU |
//! | [`Character::memory_ratio`] | memory instructions ÷ warp instructions, in \[0, 1\] |

use super::Kind;
use crate::models::float;
use partita_model::Calibration;
use partita_model::profile::KernelProfile;

/// Bytes of a sector.
const SECTOR_BYTES: f64 = 32.0;

/// A kernel's or an application's character: means over its CTAs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Character {
    /// Warp instructions of a CTA.
    pub warp_instructions: f64,
    /// Those of them that access global memory: loads, stores and atomics.
    pub memory_instructions: f64,
    /// Sectors of 32 bytes that these touch.
    pub sectors: f64,
    /// Sectors that reach the LLC.
    pub llc_sectors: f64,
    /// Sectors that DRAM reads or writes, sooner or later.
    pub dram_sectors: f64,
    /// Warps of a CTA.
    pub warps: f64,
    /// CTAs that fit on an SM at a time.
    pub ctas_per_sm: f64,
    /// CTAs of a launch.
    pub ctas_per_launch: f64,
    /// Nanoseconds from one completed CTA to the next on the whole GPU alone; `None` before that
    /// was measured.
    pub alone: Option<f64>,
    /// Which kernels these are; `None` where nothing tells.
    pub kind: Option<Kind>,
}

/// How a kernel is launched: what its profile does not have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Launched {
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that fit on an SM at a time.
    pub ctas_per_sm: u32,
    /// CTAs of a launch.
    pub ctas: u64,
}

impl Character {
    /// The character of a kernel; `None` where none of its CTAs was counted.
    #[must_use]
    pub fn of(profile: &KernelProfile, launched: Launched) -> Option<Self> {
        let counts = &profile.counts;
        let per_cta = |count: u64| float(count) / float(counts.ctas);
        let misses = profile.llc.accesses.saturating_sub(profile.llc.hits);
        let accesses = counts.global_loads.saturating_add(counts.global_stores);
        (counts.ctas > 0).then(|| Character {
            warp_instructions: per_cta(counts.warp_instructions),
            memory_instructions: per_cta(accesses.saturating_add(counts.atomics)),
            sectors: per_cta(counts.sectors),
            llc_sectors: per_cta(profile.llc.accesses),
            dram_sectors: per_cta(misses.saturating_add(profile.llc.dirtied)),
            warps: f64::from(launched.warps),
            ctas_per_sm: f64::from(launched.ctas_per_sm),
            ctas_per_launch: float(launched.ctas),
            alone: profile.alone,
            kind: None,
        })
    }

    /// The mean of several kernels, each with the number of CTAs that it completed. `None` where
    /// there are none. The time alone is known where it is known of all of them. The kind is that
    /// of the kernel that takes the most time, or has the most CTAs where no time is known.
    #[must_use]
    pub fn mean(kernels: &[(Character, f64)]) -> Option<Self> {
        let total: f64 = kernels.iter().map(|(_, ctas)| ctas).sum();
        if total <= 0.0 {
            return None;
        }
        let mean = |of: fn(&Character) -> f64| {
            kernels.iter().map(|(kernel, ctas)| of(kernel) * ctas).sum::<f64>() / total
        };
        let alone = kernels.iter().map(|(kernel, ctas)| Some(kernel.alone? * ctas));
        let is_timed = kernels.iter().all(|(kernel, _)| kernel.nanos().is_some());
        let part = |(kernel, ctas): &(Character, f64)| {
            if is_timed { kernel.alone.unwrap_or_default() * ctas } else { *ctas }
        };
        let most = kernels.iter().max_by(|one, other| part(one).total_cmp(&part(other)));
        Some(Character {
            warp_instructions: mean(|kernel| kernel.warp_instructions),
            memory_instructions: mean(|kernel| kernel.memory_instructions),
            sectors: mean(|kernel| kernel.sectors),
            llc_sectors: mean(|kernel| kernel.llc_sectors),
            dram_sectors: mean(|kernel| kernel.dram_sectors),
            warps: mean(|kernel| kernel.warps),
            ctas_per_sm: mean(|kernel| kernel.ctas_per_sm),
            ctas_per_launch: mean(|kernel| kernel.ctas_per_launch),
            alone: alone.sum::<Option<f64>>().map(|sum| sum / total),
            kind: most.and_then(|(kernel, _)| kernel.kind),
        })
    }

    /// Warp instructions a cycle of one SM, alone on the GPU.
    #[must_use]
    pub fn ipc(&self, hardware: &Calibration) -> Option<f64> {
        let cycles = f64::from(hardware.sm_clock_khz) / 1e6 * self.nanos()?;
        Some(self.warp_instructions / cycles / f64::from(hardware.sms))
    }

    /// Bytes a second between all SMs and the LLC, alone on the GPU.
    #[must_use]
    pub fn llc_bandwidth(&self) -> Option<f64> {
        Some(self.llc_sectors * SECTOR_BYTES * 1e9 / self.nanos()?)
    }

    /// Bytes a second between LLC and DRAM, alone on the GPU.
    #[must_use]
    pub fn dram_bandwidth(&self) -> Option<f64> {
        Some(self.dram_sectors * SECTOR_BYTES * 1e9 / self.nanos()?)
    }

    /// The part of the warp instructions that access global memory.
    #[must_use]
    pub fn memory_ratio(&self) -> f64 {
        if self.warp_instructions <= 0.0 {
            return 0.0;
        }
        (self.memory_instructions / self.warp_instructions).clamp(0.0, 1.0)
    }

    fn nanos(&self) -> Option<f64> {
        self.alone.filter(|nanos| nanos.is_finite() && *nanos > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::profile::{Counts, LlcUse};

    fn kernel(alone: Option<f64>) -> Character {
        let counts = Counts {
            ctas: 10,
            warp_instructions: 10_000,
            global_loads: 1_000,
            global_stores: 500,
            atomics: 100,
            sectors: 6_400,
            ..Counts::default()
        };
        let llc = LlcUse { accesses: 3_200, hits: 1_200, dirtied: 200, ..LlcUse::default() };
        let profile = KernelProfile { counts, llc, alone, ..KernelProfile::default() };
        Character::of(&profile, Launched { warps: 8, ctas_per_sm: 4, ctas: 600 }).unwrap()
    }

    #[test]
    fn a_kernel_alone() {
        let hardware = Calibration {
            sms: 10,
            sm_clock_khz: 1_000_000,
            warp_instructions_per_cycle: 4.0,
            access_bytes: 32,
            noc_bytes_per_second: 1e12,
            llc_bytes_per_second: 1e12,
            dram_bytes_per_second: 1e11,
            dram_utilisation: 0.5,
        };
        // A CTA of 1,000 warp instructions every 50 ns.
        let kernel = kernel(Some(50.0));
        assert!((kernel.ipc(&hardware).unwrap() - 2.0).abs() < 1e-12);
        assert!((kernel.llc_bandwidth().unwrap() / (320.0 * 32.0 / 50e-9) - 1.0).abs() < 1e-12);
        assert!((kernel.dram_bandwidth().unwrap() / (220.0 * 32.0 / 50e-9) - 1.0).abs() < 1e-12);
        assert!((kernel.memory_ratio() - 0.16).abs() < 1e-12);
    }

    #[test]
    fn what_was_not_measured_is_not_known() {
        let none = Launched { warps: 8, ctas_per_sm: 4, ctas: 600 };
        assert_eq!(Character::of(&KernelProfile::default(), none), None);
        for alone in [None, Some(0.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(kernel(alone).llc_bandwidth(), None, "{alone:?}");
        }
    }

    #[test]
    fn an_application_is_the_mean_of_its_ctas() {
        let other = Character { warp_instructions: 4_000.0, alone: Some(80.0), ..kernel(None) };
        let mean = Character::mean(&[(kernel(Some(50.0)), 1.0), (other, 2.0)]).unwrap();
        assert!((mean.warp_instructions - 3_000.0).abs() < 1e-9);
        assert!((mean.alone.unwrap() - 70.0).abs() < 1e-9);
        let unknown = Character::mean(&[(kernel(None), 1.0), (other, 2.0)]).unwrap();
        assert_eq!(unknown.alone, None);
        assert_eq!(Character::mean(&[]), None);
        assert_eq!(Character::mean(&[(other, 0.0)]), None);
    }

    #[test]
    fn the_kind_is_that_of_the_longest_kernel() {
        let of = |kind, alone| Character { kind: Some(Kind(kind)), ..kernel(alone) };
        let kind = |one, other| Character::mean(&[(one, 1.0), (other, 2.0)]).unwrap().kind;
        assert_eq!(kind(of(1, Some(50.0)), of(2, Some(80.0))), Some(Kind(2)));
        assert_eq!(kind(of(1, Some(200.0)), of(2, Some(80.0))), Some(Kind(1)));
        assert_eq!(kind(of(1, Some(200.0)), of(2, None)), Some(Kind(2)), "by CTAs");
        // 10 CTAs of 50 ns take longer than one of 200 ns.
        let many = [(of(1, Some(50.0)), 10.0), (of(2, Some(200.0)), 1.0)];
        assert_eq!(Character::mean(&many).unwrap().kind, Some(Kind(1)));
    }
}
