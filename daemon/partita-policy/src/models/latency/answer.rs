//! A prediction of launches that run side by side: the likeliest time, bounds, and the reason.
//!
//! The likeliest time is of our own models (`bottleneck`, `sharing`). The bounds hold where a
//! launch does the work that was counted:
//!
//! - The lower one is what its SMs need to issue, look up and move, and never less than the time on
//!   all SMs.
//! - The upper one grows the time on all SMs with the CTAs of the busiest SM, and adds all that the
//!   other launches and its own lost hits make DRAM and LLC do. Where launches are repeated, others
//!   add the part of the time for which each of them alone keeps DRAM and LLC busy.

use super::{Fitted, Gpu, LatencyError, Work, side_by_side, together};
use std::fmt::Write as _;

/// A term counts as the reason where it is at least this part of the time.
const REASON: f64 = 0.7;
/// A launch counts as slowed by others from this slowdown on.
const SLOWED: f64 = 1.01;

/// How long the launches of a group go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// Each is launched once; who is left when others end runs beside fewer.
    Once,
    /// Each is launched again and again.
    Repeated,
}

/// What is expected of one launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Its SMs.
    pub sms: u16,
    /// Nanoseconds on all SMs, alone.
    pub whole: f64,
    /// Nanoseconds on its SMs, alone.
    pub alone: f64,
    /// Nanoseconds on its SMs beside the others: the likeliest.
    pub likely: f64,
    /// The least.
    pub lower: f64,
    /// The most.
    pub upper: f64,
    /// Bytes per nanosecond to DRAM on its SMs, alone.
    pub bandwidth: f64,
    /// Why, in a sentence or two.
    pub reason: String,
}

/// What is expected of launches that begin at once, each on so many SMs of its own.
///
/// # Errors
/// A launch has no SM, or all together have more than the GPU.
pub fn predict(
    gpu: &Gpu,
    launches: &[(Work, u16)],
    beside: Beside,
) -> Result<Vec<Prediction>, LatencyError> {
    let all: u32 = launches.iter().map(|(_, sms)| u32::from(*sms)).sum();
    if all > u32::from(gpu.sms) {
        return Err(LatencyError::Sms { wanted: all, all: gpu.sms });
    }
    let mut fitted = Vec::new();
    for (work, sms) in launches {
        gpu.check(*sms)?;
        let launch = Fitted::new(gpu, work);
        fitted.push((launch, *sms, launch.alone(*sms)));
    }
    let times = match beside {
        Beside::Once => together(&fitted),
        Beside::Repeated => {
            let speeds = side_by_side(&fitted);
            fitted.iter().zip(speeds).map(|((_, _, alone), speed)| alone / speed).collect()
        }
    };
    let of = |index: usize| one(gpu, &fitted, (index, beside), times[index]);
    Ok((0..launches.len()).map(of).collect())
}

fn one(
    gpu: &Gpu,
    launches: &[(Fitted, u16, f64)],
    (index, beside): (usize, Beside),
    likely: f64,
) -> Prediction {
    let (fitted, sms, alone) = launches[index];
    let work = fitted.work();
    let lost = (work.llc_bytes - work.dram_bytes[1]).max(0.0) * work.ctas / gpu.effective;
    let others = launches.iter().enumerate().filter(|(other, _)| *other != index);
    let added = others.map(|(_, (other, _, alone))| {
        let service = most_service(gpu, other);
        match beside {
            Beside::Once => service,
            Beside::Repeated => fitted.steepest(sms) * (service / alone).min(1.0),
        }
    });
    let added: f64 = added.sum();
    let added = if launches.len() > 1 { added + lost } else { 0.0 };
    let lower = fitted.busy(sms).max(work.whole).min(likely);
    let upper = (fitted.steepest(sms) + added).max(likely);
    let launch = gpu.launch;
    Prediction {
        sms,
        whole: work.whole + launch,
        alone: alone + launch,
        likely: likely + launch,
        lower: lower + launch,
        upper: upper + launch,
        bandwidth: fitted.bandwidth(sms),
        reason: reason(gpu, launches, index, likely),
    }
}

/// Nanoseconds that DRAM and LLC are busy with a launch, at most.
fn most_service(gpu: &Gpu, launch: &Fitted) -> f64 {
    let work = launch.work();
    work.ctas * work.dram_bytes[2] / gpu.effective + launch.llc()
}

fn reason(gpu: &Gpu, launches: &[(Fitted, u16, f64)], index: usize, likely: f64) -> String {
    let (fitted, sms, alone) = launches[index];
    let terms = [
        (fitted.dram(), "DRAM's bandwidth limits it"),
        (fitted.llc(), "the LLC's bandwidth limits it"),
        (fitted.busy(sms), "its SMs' instructions and accesses limit it"),
    ];
    let greatest = terms.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let limit = greatest.filter(|(time, _)| *time >= REASON * alone);
    let limit = limit.map_or("its warps wait most of the time, so SMs count", |(_, text)| text);
    let mut text = format!(
        "On {sms} of {} SMs {limit}: {:.2} times its time on all SMs.",
        gpu.sms,
        alone / fitted.work().whole
    );
    if launches.len() > 1 {
        let asked: f64 = launches.iter().map(|(other, sms, _)| other.bandwidth(*sms)).sum();
        let part = 100.0 * asked / gpu.effective;
        let slowdown = likely / alone;
        let verdict = if slowdown < SLOWED {
            "the others do not slow it".to_owned()
        } else {
            format!("the others make it {slowdown:.2} times as long")
        };
        let _ = write!(text, " Together they ask for {part:.0} % of DRAM's bandwidth; {verdict}.");
    }
    text
}
