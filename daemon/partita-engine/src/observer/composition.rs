//! What the requests of an application consist of, and what they would take on other SMs.
//!
//! The expectation is a ratio: the time on one number of SMs over that on another. It comes from
//! one of two sources:
//!
//! - **Predictions** of each launch alone on each of the two numbers, by the latency model of
//!   Masola et al. ([`partita_policy::latency`]). Launches that are limited by a bandwidth, or have
//!   few CTAs, hardly depend on the SMs there.
//! - **Rounds of CTAs**, where predictions are missing: a launch takes longer by as much as it has
//!   more rounds, one CTA for each SM and round. That is the worst case (Masola, Eq. 4).
//!
//! Launches that run alone on the device or in slices do not depend on the application's SMs. Their
//! time is no part of the ratio.

use super::{ProfileKey, as_float};
use partita_model::Nanos;
use partita_policy::Launched;
use std::collections::BTreeMap;

/// Sizes and kernels of launches that are told apart. Others count as the next larger one.
const SIZES: usize = 32;
/// Predictions count where they are known of this part of the rounds at least.
const COVERED: f64 = 0.9;

/// The predicted time of a launch alone on a number of SMs, in nanoseconds.
pub(super) type Prior<'a> = &'a dyn Fn(&ProfileKey, Launched, u16) -> Option<f64>;

/// Knows nothing.
#[cfg(test)]
pub(super) const UNKNOWN: Prior<'static> = &|_, _, _| None;

/// A launch that keeps to its application's SMs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Size {
    pub(super) ctas: u64,
    /// Where its kernel's profile is found, and how it is launched.
    pub(super) kernel: Option<(ProfileKey, Launched)>,
}

/// A part of a request.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Part {
    /// A launch that keeps to its application's SMs.
    Own(Size),
    /// A launch that runs alone on the device, or in slices.
    Alone,
}

/// The launches of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Composition {
    /// By size and kernel: how the kernel was launched, and how often.
    own: BTreeMap<(u64, Option<ProfileKey>), (Option<Launched>, u64)>,
    /// The time of launches that ran alone on the device, or in slices.
    alone: Nanos,
}

impl Composition {
    pub(super) fn add(&mut self, size: Size) {
        let (key, launched) = size.kernel.unzip();
        let wanted = (size.ctas, key);
        let is_known = self.own.len() < SIZES || self.own.contains_key(&wanted);
        let from = (size.ctas, None);
        let next = || self.own.range(from..).next().or(self.own.last_key_value());
        let known = if is_known { None } else { next().map(|(key, _)| key.clone()) };
        self.own.entry(known.unwrap_or(wanted)).or_insert((launched, 0)).1 += 1;
    }

    /// A launch that ran alone, or a slice, took so long.
    pub(super) fn add_alone(&mut self, time: Nanos) {
        self.alone = Nanos(self.alone.0.saturating_add(time.0));
    }

    /// CTAs of the largest launch.
    pub(super) fn largest(&self) -> u64 {
        self.own.last_key_value().map_or(0, |((ctas, _), _)| *ctas)
    }

    /// The expected time on `on` SMs of what took `time` on `from` SMs, by `prior` where there is
    /// one.
    pub(super) fn expected(
        &self,
        time: Nanos,
        (from, on): (u16, u16),
        prior: Option<Prior<'_>>,
    ) -> Nanos {
        let own = time.saturating_sub(self.alone);
        let alone = Nanos(time.0 - own.0);
        let predicted = prior.and_then(|prior| self.predicted((from, on), prior));
        let scaled = match predicted {
            Some(ratio) => scaled(own, ratio),
            None => {
                let (before, then) = (self.rounds(from).max(1), self.rounds(on).max(1));
                Nanos(own.0.saturating_mul(then) / before)
            }
        };
        scaled + alone
    }

    /// Rounds of CTAs.
    fn rounds(&self, sms: u16) -> u64 {
        let each = self.own.iter();
        each.map(|((ctas, _), (_, count))| rounds(*ctas, sms).saturating_mul(*count)).sum()
    }

    /// The predicted ratio of the times on two numbers of SMs; `None` where too little is known.
    fn predicted(&self, (from, on): (u16, u16), prior: Prior<'_>) -> Option<f64> {
        let (mut before, mut then, mut covered) = (0.0, 0.0, 0.0);
        for ((ctas, key), (launched, count)) in &self.own {
            let Some((key, launched)) = key.as_ref().zip(*launched) else { continue };
            let on_both = [from, on].map(|sms| prior(key, launched, sms));
            if let [Some(one), Some(other)] = on_both {
                let count = as_float(*count);
                before += count * one;
                then += count * other;
                covered += count * as_float(rounds(*ctas, from));
            }
        }
        let ratio = then / before;
        let is_enough = covered >= COVERED * as_float(self.rounds(from));
        (is_enough && ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

fn rounds(ctas: u64, sms: u16) -> u64 {
    ctas.div_ceil(u64::from(sms.max(1)))
}

/// A time by a factor.
pub(super) fn scaled(time: Nanos, ratio: f64) -> Nanos {
    let scaled = std::time::Duration::from_nanos(time.0).as_secs_f64() * ratio;
    let scaled = std::time::Duration::try_from_secs_f64(scaled).unwrap_or(std::time::Duration::MAX);
    Nanos(u64::try_from(scaled.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::Dim3;
    use partita_model::profile::LaunchShape;
    use std::sync::Arc;

    fn kernel(name: &str, ctas: u64) -> Size {
        let key = (Arc::from(name), LaunchShape::new(ctas, Dim3::linear(32), 0));
        Size { ctas, kernel: Some((key, Launched { warps: 1, ctas_per_sm: 1, ctas })) }
    }

    #[test]
    fn many_sizes_of_launches_take_bounded_memory() {
        let mut made = Composition::default();
        (1..1_000).for_each(|ctas| made.add(Size { ctas, kernel: None }));
        assert_eq!((made.own.len(), made.rounds(u16::MAX), made.largest()), (SIZES, 999, 32));
    }

    #[test]
    fn predictions_go_before_rounds_where_they_are_known_of_nearly_all() {
        let mut made = Composition::default();
        made.add(kernel("bandwidth", 240));
        let expected = |made: &Composition, prior: Option<Prior<'_>>| {
            made.expected(Nanos(1_000), (24, 12), prior).0
        };
        // A kernel that is limited by DRAM hardly depends on the SMs.
        let flat: Prior<'_> =
            &|key, _, sms| (&*key.0 == "bandwidth").then_some(if sms < 24 { 110.0 } else { 100.0 });
        assert_eq!(expected(&made, None), 2_000);
        assert_eq!(expected(&made, Some(UNKNOWN)), 2_000);
        assert_eq!(expected(&made, Some(flat)), 1_100);
        // A small launch without a profile changes nothing, a large one does.
        made.add(kernel("small", 8));
        assert_eq!(expected(&made, Some(flat)), 1_100);
        made.add(kernel("unknown", 240));
        assert_eq!(expected(&made, Some(flat)), 1_000 * 41 / 21);
    }

    #[test]
    fn launches_that_run_alone_do_not_depend_on_the_sms() {
        let mut made = Composition::default();
        made.add(Size { ctas: 240, kernel: None });
        made.add_alone(Nanos(600));
        assert_eq!(made.expected(Nanos(1_000), (24, 12), None), Nanos(1_400));
        let only = Composition { alone: Nanos(600), ..Composition::default() };
        assert_eq!(only.expected(Nanos(600), (24, 1), None), Nanos(600));
    }
}
