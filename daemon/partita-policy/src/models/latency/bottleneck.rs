//! The time alone on a part of the SMs, by what limits it: ours, beside Masola Eq. 1–4 and 17.
//!
//! Four things limit a launch. The time is near the greatest of their times, and greater where
//! several are close: it is their norm of order [`ORDER`].
//!
//! ```text
//! time(n)^p = (rounds(n) × cta)^p + (m ÷ sm)^p + (CTAs × DRAM bytes ÷ DRAM)^p
//!           + (CTAs × LLC bytes ÷ LLC)^p
//! ```
//!
//! | symbol | here | unit |
//! | --- | --- | --- |
//! | m | CTAs of the SM that has the most | 1 |
//! | rounds | m ÷ CTAs that an SM holds; whole where they are few | 1 |
//! | cta | [`Fitted::cta`]: a CTA that waits for nobody else; from the time on all SMs | ns |
//! | sm | CTAs a nanosecond that one SM can issue, look up or move | 1/ns |
//!
//! The time on all SMs is known, and so are all terms but the first: the first follows.

use super::{Gpu, Work};

/// p: how sharply the greatest term decides. Two equal terms make 1.32 of one.
const ORDER: f64 = 2.5;
/// The least part of a measured time that waiting is taken to be, because terms and times are known
/// to some per cent.
const LEAST: f64 = 0.02;
/// Where launches last for more rounds, the last one counts no more than the others.
const FEW_ROUNDS: f64 = 8.0;

/// A launch of which the time of a CTA is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fitted {
    work: Work,
    gpu: Gpu,
    /// Nanoseconds of a CTA that waits for no bandwidth.
    pub cta: f64,
}

/// The norm of times.
pub(super) fn norm(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powf(ORDER)).sum::<f64>().powf(1.0 / ORDER)
}

/// What a time of so many nanoseconds leaves beside the norm of others; at least a small part.
pub(super) fn rest(time: f64, others: &[f64]) -> f64 {
    let others: f64 = others.iter().map(|time| time.powf(ORDER)).sum();
    let left = (time.powf(ORDER) - others).max(0.0).powf(1.0 / ORDER);
    left.max(LEAST * time)
}

impl Fitted {
    /// A launch that takes [`Work::whole`] on all SMs.
    #[must_use]
    pub fn new(gpu: &Gpu, work: &Work) -> Self {
        let fitted = Fitted { work: *work, gpu: *gpu, cta: 0.0 };
        let waits = rest(work.whole, &[fitted.busy(gpu.sms), fitted.dram(), fitted.llc()]);
        Fitted { cta: waits / fitted.rounds(gpu.sms), ..fitted }
    }

    /// Nanoseconds alone on so many SMs.
    #[must_use]
    pub fn alone(&self, sms: u16) -> f64 {
        norm(&[self.rounds(sms) * self.cta, self.busy(sms), self.dram(), self.llc()])
    }

    /// Bytes per nanosecond to DRAM alone on so many SMs.
    #[must_use]
    pub fn bandwidth(&self, sms: u16) -> f64 {
        self.work.ctas * self.work.dram_bytes[1] / self.alone(sms)
    }

    /// Nanoseconds that DRAM needs for the launch.
    #[must_use]
    pub fn dram(&self) -> f64 {
        self.work.ctas * self.work.dram_bytes[1] / self.gpu.effective
    }

    /// Nanoseconds that the LLC needs for the launch.
    #[must_use]
    pub fn llc(&self) -> f64 {
        self.work.ctas * self.work.llc_bytes / self.gpu.llc
    }

    /// Nanoseconds that the SM with the most CTAs is busy with them.
    pub(super) fn busy(&self, sms: u16) -> f64 {
        let Fitted { work, gpu, .. } = self;
        let each = (work.warp_instructions / gpu.issue)
            .max(work.lines / gpu.clock)
            .max(work.llc_bytes / gpu.port);
        self.of_an_sm(sms) * each
    }

    /// Nanoseconds alone on so many SMs, at most: nothing limits the launch but its SMs.
    pub(super) fn steepest(&self, sms: u16) -> f64 {
        let all = self.gpu.sms;
        let by_ctas = self.of_an_sm(sms) / self.of_an_sm(all);
        self.work.whole * by_ctas.max(self.rounds(sms) / self.rounds(all))
    }

    /// CTAs of the SM that has the most.
    fn of_an_sm(&self, sms: u16) -> f64 {
        let mean = self.work.ctas / f64::from(sms.max(1));
        if mean > FEW_ROUNDS * self.work.resident { mean } else { mean.ceil() }
    }

    fn rounds(&self, sms: u16) -> f64 {
        let rounds = self.of_an_sm(sms) / self.work.resident;
        if rounds > FEW_ROUNDS { rounds } else { rounds.ceil().max(1.0) }
    }

    /// How often a warp waits for DRAM in a nanosecond, in the mean, where launches take so long.
    pub(super) fn waits(&self, sms: u16, nanos: f64) -> f64 {
        let work = &self.work;
        let missed = (work.dram_bytes[1] / work.llc_bytes.max(1e-9)).min(1.0);
        let reaches = (work.llc_bytes / super::SECTOR_BYTES / super::COALESCED_SECTORS)
            .min(work.loads)
            / work.warps;
        let rounds = (self.of_an_sm(sms) / work.resident).max(1.0);
        reaches * missed * rounds / nanos.max(1e-9)
    }

    /// How often a warp waits for the LLC in a nanosecond.
    pub(super) fn visits(&self, sms: u16, nanos: f64) -> f64 {
        let work = &self.work;
        let reaches = (work.llc_bytes / super::SECTOR_BYTES).min(work.loads) / work.warps;
        let rounds = (self.of_an_sm(sms) / work.resident).max(1.0);
        reaches * rounds / nanos.max(1e-9)
    }

    /// The launch's work.
    #[must_use]
    pub fn work(&self) -> &Work {
        &self.work
    }
}
