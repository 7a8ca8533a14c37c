//! The time alone (Masola §6, Eq. 1–4) and the bandwidth (§8, Eq. 17) on a part of the SMs.
//!
//! | symbol in the paper | here |
//! | --- | --- |
//! | N, n | [`Gpu::sms`], `sms` |
//! | C_k(N) | [`Work::whole`] |
//! | BW_isolated(k, N) | [`Work::bandwidth`]: to DRAM, because BW_max is DRAM's |
//! | BW_max, EM_BW, S_p, Miss_banks | [`Gpu`] |
//! | α | [`STEEPNESS`] |
//! | KAI | [`kai`]; ExecutedInstructions are thread instructions, L2Accesses sectors: so Table 2 fits |

use super::{Gpu, SECTOR_BYTES, Work};

/// α of Eq. 2, the paper's.
const STEEPNESS: f64 = 100.0;

/// How the equations are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As printed.
    Printed,
    /// With the printed errors mended, as `docs/deviations.md` lists them.
    Mended,
}

/// Eq. 1: the part of the nominal bandwidth that a launch takes on all SMs.
#[must_use]
pub fn utilisation(gpu: &Gpu, work: &Work) -> f64 {
    work.bandwidth() / gpu.nominal
}

/// Eq. 2: from 0, no saturation, to 1.
#[must_use]
pub fn saturation(gpu: &Gpu, utilisation: f64) -> f64 {
    1.0 / (1.0 + (-STEEPNESS * (utilisation - gpu.saturation)).exp())
}

/// Eq. 3: thousands of thread instructions per access of the LLC. Without accesses as with one in
/// the launch.
#[must_use]
pub fn kai(work: &Work) -> f64 {
    let accesses = (work.ctas * work.llc_bytes / SECTOR_BYTES).max(1.0);
    work.ctas * work.thread_instructions / accesses / 1000.0
}

/// Eq. 4: nanoseconds on so many SMs.
///
/// As printed the time on all SMs is not C(N): it is about half of C(N) where memory is saturated.
/// Mended, the equation is divided by its own value at n = N, and the time of a launch that
/// saturates memory follows the bandwidth of Eq. 17.
#[must_use]
pub fn isolated(gpu: &Gpu, work: &Work, sms: u16, form: Form) -> f64 {
    let (all, n) = (f64::from(gpu.sms), f64::from(sms));
    let used = utilisation(gpu, work);
    match form {
        Form::Printed => {
            let left = (all - kai(work) * used).max(1e-9);
            work.whole / ((saturation(gpu, used) + 1.0) * left) * all * all / n
        }
        Form::Mended if is_saturated(gpu, work) => {
            let on = |sms| bandwidth(gpu, work, sms);
            work.whole * on(gpu.sms) / on(sms).max(f64::MIN_POSITIVE)
        }
        Form::Mended => work.whole * all / n,
    }
}

/// Eq. 17: bytes per nanosecond to DRAM on so many SMs.
#[must_use]
pub fn bandwidth(gpu: &Gpu, work: &Work, sms: u16) -> f64 {
    let n = f64::from(sms);
    if is_saturated(gpu, work) {
        return gpu.effective * (1.0 - (-n / gpu.missing_banks.max(1.0)).exp());
    }
    work.bandwidth() / f64::from(gpu.sms) * n
}

/// BW_isolated(k, N) ≥ BW_threshold = BW_max × S_p (§8).
fn is_saturated(gpu: &Gpu, work: &Work) -> bool {
    work.bandwidth() >= gpu.nominal * gpu.saturation
}
