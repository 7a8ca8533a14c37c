//! What a launch takes on a part of the SMs, alone and beside others (Masola, JSSPP '23).
//!
//! There are two models of the same three questions. Both know a launch by its profile and by its
//! time on all SMs; neither measures another number of SMs.
//!
//! | question | Masola | ours |
//! | --- | --- | --- |
//! | time alone on n SMs | `printed`, Eq. 1–4 | `bottleneck` |
//! | bandwidth on n SMs | `printed`, Eq. 17 | `bottleneck` |
//! | time beside others | `windows`, Eq. 5–16 | `sharing` |
//!
//! `answer` makes a prediction of it: the likeliest time, bounds, and the reason in words.
//! Times are nanoseconds, bandwidths bytes per nanosecond (that is GB/s).

mod answer;
mod bottleneck;
mod printed;
mod sharing;
mod windows;

pub use answer::{Beside, Prediction, predict};
pub use bottleneck::Fitted;
pub use printed::{Form, bandwidth, isolated, kai, saturation, utilisation};
pub use sharing::{side_by_side, together};
pub use windows::{Resident, interfered};

use crate::models::{Launched, check_calibration, float};
use partita_model::{Calibration, KernelProfile};

/// Bytes of a sector.
const SECTOR_BYTES: f64 = 32.0;
/// Sectors of an access of 32 lanes with four bytes each.
const COALESCED_SECTORS: f64 = 4.0;

/// What the models are told of a GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gpu {
    /// N: all SMs.
    pub sms: u16,
    /// BW_max: nominal bandwidth of DRAM, in bytes per nanosecond.
    pub nominal: f64,
    /// EM_BW: what a stream of accesses gets of it (§5.1).
    pub effective: f64,
    /// S_p: the part of the nominal bandwidth from which a kernel saturates it (§6).
    pub saturation: f64,
    /// Miss_banks (§8): SMs beyond the banks of the LLC.
    pub missing_banks: f64,
    /// Bytes per nanosecond that the LLC serves.
    pub llc: f64,
    /// Bytes per nanosecond between one SM and the LLC.
    pub port: f64,
    /// Warp instructions per nanosecond of one SM.
    pub issue: f64,
    /// Cycles of an SM per nanosecond.
    pub clock: f64,
    /// Nanoseconds of a launch before its first CTA.
    pub launch: f64,
}

/// A number that the models cannot use.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LatencyError {
    /// Of the GPU.
    #[error("latency model: {0}")]
    Calibration(#[from] crate::CalibrationError),
    /// No CTA of the kernel was counted.
    #[error("latency model: no CTA of the kernel was counted; launch it beside another program")]
    NotCounted,
    /// The kernel's time alone is unknown.
    #[error("latency model: the kernel's time alone is not known; run its program alone first")]
    NotTimed,
    /// A number of SMs that the GPU does not have.
    #[error("latency model: {wanted} SMs; the GPU has {all}, and at least 1 is needed")]
    Sms {
        /// What was asked for.
        wanted: u32,
        /// What there is.
        all: u16,
    },
}

impl Gpu {
    /// A measured GPU. Its LLC's banks are not known: S_p is what the LLC serves of what all SMs
    /// can ask for, which is banks ÷ SMs where a bank serves as much as an SM asks.
    ///
    /// # Errors
    /// The calibration describes no GPU.
    pub fn of(hardware: &Calibration, launch: f64) -> Result<Self, LatencyError> {
        check_calibration(hardware)?;
        let clock = f64::from(hardware.sm_clock_khz) / 1e6;
        let sms = f64::from(hardware.sms);
        let saturation =
            (hardware.llc_bytes_per_second / hardware.noc_bytes_per_second).clamp(0.1, 1.0);
        Ok(Gpu {
            sms: hardware.sms,
            nominal: hardware.dram_bytes_per_second / 1e9,
            effective: hardware.dram_bytes_per_second / 1e9,
            saturation,
            missing_banks: sms * (1.0 - saturation),
            llc: hardware.llc_bytes_per_second.min(hardware.noc_bytes_per_second) / 1e9,
            port: hardware.noc_bytes_per_second / 1e9 / sms,
            issue: hardware.warp_instructions_per_cycle * clock,
            clock,
            launch: launch.max(0.0),
        })
    }

    /// Whether the GPU has so many SMs.
    ///
    /// # Errors
    /// Says how many there are.
    pub fn check(&self, sms: u16) -> Result<(), LatencyError> {
        let fits = (1..=self.sms).contains(&sms);
        let error = LatencyError::Sms { wanted: sms.into(), all: self.sms };
        if fits { Ok(()) } else { Err(error) }
    }
}

/// A launch of a kernel: what each CTA does, and the time on all SMs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// CTAs of the launch.
    pub ctas: f64,
    /// CTAs that an SM holds at a time.
    pub resident: f64,
    /// Warps of a CTA.
    pub warps: f64,
    /// Warp instructions of a CTA.
    pub warp_instructions: f64,
    /// Thread instructions of a CTA.
    pub thread_instructions: f64,
    /// Loads by warps of a CTA.
    pub loads: f64,
    /// Lines of the L1 that a CTA's accesses look up.
    pub lines: f64,
    /// Bytes of a CTA between SM and LLC.
    pub llc_bytes: f64,
    /// Bytes of a CTA between LLC and DRAM: least, likeliest, most.
    pub dram_bytes: [f64; 3],
    /// C(N): nanoseconds of the launch on all SMs, alone, without [`Gpu::launch`].
    pub whole: f64,
}

impl Work {
    /// A counted kernel. Its time on all SMs is `whole` where that was measured, else it follows
    /// from the profile's time from one CTA to the next.
    ///
    /// # Errors
    /// No CTA was counted, or no time is known.
    pub fn of(
        profile: &KernelProfile,
        launched: Launched,
        whole: Option<f64>,
    ) -> Result<Self, LatencyError> {
        let counts = &profile.counts;
        if counts.ctas == 0 {
            return Err(LatencyError::NotCounted);
        }
        let per_cta = |count: u64| float(count) / float(counts.ctas);
        let ctas = float(launched.ctas.max(1));
        let timed = |nanos: &f64| nanos.is_finite() && *nanos > 0.0;
        let whole = whole.or(profile.alone.map(|nanos| nanos * ctas)).filter(timed);
        let accesses = per_cta(counts.global_loads + counts.global_stores + counts.atomics);
        let sectors = per_cta(counts.sectors);
        let is_coalesced = sectors <= accesses * COALESCED_SECTORS;
        let llc = &profile.llc;
        let missed = |accesses: u64, hits: u64| {
            per_cta(accesses.saturating_sub(hits).saturating_add(llc.dirtied)) * SECTOR_BYTES
        };
        let likely = missed(llc.accesses, llc.hits);
        Ok(Work {
            ctas,
            resident: f64::from(launched.ctas_per_sm.max(1)),
            warps: f64::from(launched.warps.max(1)),
            warp_instructions: per_cta(counts.warp_instructions),
            thread_instructions: per_cta(counts.thread_instructions),
            loads: per_cta(counts.global_loads),
            lines: if is_coalesced { accesses } else { sectors },
            llc_bytes: per_cta(llc.accesses) * SECTOR_BYTES,
            dram_bytes: [
                missed(llc.accesses, llc.hits_most).min(likely),
                likely,
                missed(llc.accesses, llc.hits_least).max(likely),
            ],
            whole: whole.ok_or(LatencyError::NotTimed)?,
        })
    }

    /// BW_isolated(k, N): bytes per nanosecond between LLC and DRAM on all SMs.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.ctas * self.dram_bytes[1] / self.whole
    }
}

#[cfg(test)]
mod hand_tests;
#[cfg(test)]
mod tests;
