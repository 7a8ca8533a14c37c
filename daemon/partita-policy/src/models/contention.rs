//! The contention classes M, MC, C and A of Punyala §3.2.1, table 3.1.
//!
//! A class says what an application competes for where it runs beside others. It follows from what
//! the application takes of a GPU that it has to itself.
//!
//! # Thresholds
//!
//! The paper's thresholds are absolute figures of its GPU. Here a threshold is a part of a rate of
//! the GPU, so that it holds on other GPUs too. The paper's GPU is a GTX 480 with 60 SMs of 700 MHz
//! (table 4.1); its rates follow GPGPU-Sim's configuration:
//!
//! | threshold | printed | rate | part |
//! | --- | --- | --- | --- |
//! | α | 107 GB/s | DRAM's peak, 177.4 GB/s | 0.603 |
//! | β | 50 GB/s | DRAM's peak, 177.4 GB/s | 0.282 |
//! | γ | 100 GB/s | LLC, 12 × 32 B × 700 MHz = 268.8 GB/s | 0.372 |
//! | ε | 200 thread instructions a cycle | 60 SMs × 2 × 32 lanes = 3,840 | 0.052 |
//! | R | 0.2 | | 0.2 |
//!
//! The paper prints α and β the wrong way round. It also names parts of its own, 0.55 and 0.30 of
//! MB_max; they lead to two values of MB_max (195 and 167 GB/s), so the absolute figures count.
//!
//! # What this leaves alone
//!
//! The paper counts thread instructions. A [`Character`] has warp instructions, so an application
//! whose warps diverge seems to have a higher IPC here.

use crate::models::Character;
use partita_model::{Calibration, ContentionClass};

/// What an application takes of a GPU that it has to itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Needs {
    /// MB: bandwidth between LLC and DRAM ÷ DRAM's peak.
    pub dram: f64,
    /// L2→L1: bandwidth between SMs and LLC ÷ what LLC and interconnect can move.
    pub llc: f64,
    /// IPC: issued instructions ÷ issue slots of all SMs.
    pub issue: f64,
    /// R: memory instructions ÷ other instructions.
    pub ratio: f64,
}

impl Needs {
    /// What an application needs; `None` before its speed alone is known.
    #[must_use]
    pub fn of(hardware: &Calibration, character: &Character) -> Option<Self> {
        let memory = character.memory_ratio();
        Some(Needs {
            dram: character.dram_bandwidth()? / hardware.dram_bytes_per_second,
            llc: character.llc_bandwidth()?
                / hardware.llc_bytes_per_second.min(hardware.noc_bytes_per_second),
            issue: character.ipc(hardware)? / hardware.warp_instructions_per_cycle,
            ratio: memory / (1.0 - memory).max(f64::EPSILON),
        })
    }
}

/// Table 3.1: the rules by which needs become a class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ContentionRules {
    /// α: an application that takes more of DRAM's bandwidth is of class M.
    pub memory: f64,
    /// β: one that takes more than this is of class MC.
    pub memory_cache: f64,
    /// γ: one that takes more of the LLC's bandwidth, and less than β of DRAM's, is of class C.
    pub cache: f64,
    /// R: the border of the memory-to-compute ratio.
    pub ratio: f64,
    /// ε: the border of the IPC.
    pub issue: f64,
    /// The class of an application that no rule names; `None` as printed.
    pub otherwise: Option<ContentionClass>,
}

impl ContentionRules {
    /// The rules as printed, with α and β swapped back.
    pub const PRINTED: ContentionRules = ContentionRules {
        memory: 107.0 / 177.4,
        memory_cache: 50.0 / 177.4,
        cache: 100.0 / 268.8,
        ratio: 0.2,
        issue: 200.0 / 3840.0,
        otherwise: None,
    };

    /// The class of an application; `None` where no rule names it.
    #[must_use]
    pub fn class(&self, needs: &Needs) -> Option<ContentionClass> {
        if needs.dram > self.memory {
            return Some(ContentionClass::Memory);
        }
        if needs.dram > self.memory_cache {
            return Some(ContentionClass::MemoryCache);
        }
        let is_cache =
            needs.llc > self.cache || (needs.ratio > self.ratio && needs.issue < self.issue);
        if is_cache {
            return Some(ContentionClass::Cache);
        }
        let is_compute = needs.ratio < self.ratio && needs.issue > self.issue;
        if is_compute { Some(ContentionClass::Compute) } else { self.otherwise }
    }
}

impl Default for ContentionRules {
    /// An application that competes for no bandwidth is of class A, whatever its IPC. By the
    /// paper's rules two applications of table 3.2 have no class (LUD and NN). The table has them
    /// in A.
    fn default() -> Self {
        let otherwise = Some(ContentionClass::Compute);
        ContentionRules { otherwise, ..ContentionRules::PRINTED }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::ContentionClass::{Cache, Compute, Memory, MemoryCache};

    /// The paper's GPU.
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

    /// Table 3.2: bandwidths in GB/s, IPC in thread instructions a cycle.
    const TABLE: [(&str, f64, f64, f64, f64, ContentionClass); 14] = [
        ("BFS2", 35.5, 132.9, 19.4, 0.19, Cache),
        ("BLK", 116.2, 83.13, 577.1, 0.05, Memory),
        ("BP", 84.06, 142.7, 808.3, 0.06, MemoryCache),
        ("LUD", 0.19, 8.14, 40.1, 0.03, Compute),
        ("FFT", 105.8, 122.8, 405.7, 0.08, MemoryCache),
        ("JPEG", 47.2, 77.7, 386.4, 0.07, Compute),
        ("3DS", 81.4, 102.75, 533.9, 0.11, MemoryCache),
        ("HS", 43.93, 97.3, 984.0, 0.01, Compute),
        ("LPS", 80.6, 115.4, 540.9, 0.03, MemoryCache),
        ("RAY", 59.7, 69.1, 523.9, 0.1, MemoryCache),
        ("GUPS", 108.75, 97.1, 10.61, 0.1, Memory),
        ("SPMV", 48.1, 121.3, 208.7, 0.07, Cache),
        ("SAD", 57.35, 46.1, 781.9, 0.01, Compute),
        ("NN", 1.3, 35.3, 56.8, 0.15, Compute),
    ];

    /// A character that does on the paper's GPU what a row of the table says.
    fn character(dram: f64, llc: f64, ipc: f64, ratio: f64) -> Character {
        // A CTA every microsecond: 700 cycles.
        let instructions = ipc / 32.0 * 700.0;
        Character {
            warp_instructions: instructions,
            memory_instructions: instructions * ratio / (1.0 + ratio),
            llc_sectors: llc * 1e3 / 32.0,
            dram_sectors: dram * 1e3 / 32.0,
            alone: Some(1e3),
            ..Character::default()
        }
    }

    /// Benchmarks of the table that rules put elsewhere.
    fn misfits(rules: &ContentionRules) -> Vec<&'static str> {
        let misfit = |&(name, dram, llc, ipc, ratio, class): &(&'static str, _, _, _, _, _)| {
            let needs = Needs::of(&HARDWARE, &character(dram, llc, ipc, ratio)).unwrap();
            (rules.class(&needs) != Some(class)).then_some(name)
        };
        TABLE.iter().filter_map(misfit).collect()
    }

    #[test]
    fn table_3_2() {
        assert_eq!(misfits(&ContentionRules::PRINTED), ["LUD", "SAD", "NN"], "11 of 14");
        assert_eq!(misfits(&ContentionRules::default()), ["SAD"], "13 of 14");
        // As printed before α and β are swapped back, nothing is MC.
        let swapped = ContentionRules {
            memory: ContentionRules::PRINTED.memory_cache,
            memory_cache: ContentionRules::PRINTED.memory,
            ..ContentionRules::default()
        };
        assert_eq!(misfits(&swapped).len(), 6);
    }

    #[test]
    fn needs_are_the_figures_of_the_table() {
        let needs = Needs::of(&HARDWARE, &character(88.7, 134.4, 384.0, 0.1)).unwrap();
        let expected =
            [(needs.dram, 0.5), (needs.llc, 0.5), (needs.issue, 0.1), (needs.ratio, 0.1)];
        for (is, should) in expected {
            assert!((is - should).abs() < 1e-9, "{needs:?}");
        }
        let unknown = Character { alone: None, ..character(1.0, 1.0, 1.0, 0.1) };
        assert_eq!(Needs::of(&HARDWARE, &unknown), None);
    }

    /// More than a border is beyond it; the border itself is not.
    #[test]
    fn rules_have_sharp_borders() {
        let rules = ContentionRules {
            memory: 0.6,
            memory_cache: 0.3,
            cache: 0.4,
            ratio: 0.2,
            issue: 0.05,
            otherwise: None,
        };
        for (dram, llc, issue, ratio, class) in [
            (0.61, 0.5, 0.1, 0.1, Some(Memory)),
            (0.6, 0.5, 0.1, 0.1, Some(MemoryCache)),
            (0.3, 0.5, 0.1, 0.1, Some(Cache)),
            (0.1, 0.4, 0.1, 0.1, Some(Compute)),
            // Many memory instructions and a low IPC.
            (0.1, 0.1, 0.04, 0.3, Some(Cache)),
            (0.1, 0.1, 0.05, 0.3, None),
            (0.1, 0.1, 0.06, 0.3, None),
            (0.1, 0.1, 0.04, 0.2, None),
            (0.1, 0.1, 0.06, 0.2, None),
            (0.1, 0.1, 0.05, 0.1, None),
            (0.1, 0.1, 0.06, 0.1, Some(Compute)),
        ] {
            let needs = Needs { dram, llc, issue, ratio };
            assert_eq!(rules.class(&needs), class, "{needs:?}");
        }
    }
}
