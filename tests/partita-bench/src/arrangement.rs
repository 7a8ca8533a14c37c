//! The ways in which applications share the GPU in a run.

use partita_model::{
    PartitionerKind, PolicyConfig, SelectorKind, Sharing, SmId, SmPart, SmSet, Terms,
};
use serde::{Deserialize, Serialize};

/// How applications share the GPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrangement {
    /// Kernels as they are, on the first so many SMs: meant for one application.
    Original(u16),
    /// So many SMs each, in order, from the start to the end; others have no power.
    Static(Vec<u16>),
    /// The policy `even`.
    Even,
    /// The policy `cd-search`.
    CdSearch,
    /// The same, where nothing is known of any kernel.
    ColdCdSearch,
    /// The policy `cd-search-paper`.
    CdSearchPaper,
    /// A selector and a partitioner, where kernels are known.
    Policy(SelectorKind, PartitionerKind),
    /// The policy `cd-search`, with terms of each application, in order; short launches run as they
    /// were written where a daemon would have them so.
    Terms(Vec<Terms>),
    /// The same, where terms change: each has the time from which on it holds, in nanoseconds from
    /// the start. Times rise, and the first terms hold from the start.
    ChangingTerms(Vec<(u64, Vec<Terms>)>),
    /// All SMs for everybody: CTAs of each application on an SM, of those that fit.
    Parts(Vec<SmPart>),
    /// Nothing but counting: an earlier run. It ends when every kernel has its profile and its
    /// speed alone, or has been launched so often that it would have them.
    Count,
    /// Kernels as they are, all at once, wherever the hardware puts them.
    Mps,
    /// The same, where the streams of each application, in order, have a priority: CTAs of lower
    /// numbers are placed first, and CTAs that run are not preempted.
    MpsPriorities(Vec<i32>),
    /// Kernels as they are, all at once, where each application, in order, has a part of the SMs in
    /// per cent. The parts lie side by side and begin again where the SMs end.
    MpsPercentages(Vec<u8>),
    /// Kernels as they are, one application after the other.
    TimeSlice,
}

impl Arrangement {
    /// The policy, where it is not the engine's own.
    pub(crate) fn policy(&self) -> Option<PolicyConfig> {
        let (selector, partitioner) = match self {
            Arrangement::CdSearch
            | Arrangement::ColdCdSearch
            | Arrangement::Terms(_)
            | Arrangement::ChangingTerms(_) => (SelectorKind::Everyone, PartitionerKind::CdSearch),
            Arrangement::CdSearchPaper => (SelectorKind::Everyone, PartitionerKind::CdSearchPaper),
            Arrangement::Policy(selector, partitioner) => (*selector, *partitioner),
            _ => return None,
        };
        Some(PolicyConfig { selector, partitioner, ..PolicyConfig::default() })
    }

    /// Terms and the times from which on they hold.
    pub(crate) fn terms(&self) -> Vec<(u64, Vec<Terms>)> {
        match self {
            Arrangement::Terms(all) => vec![(0, all.clone())],
            Arrangement::ChangingTerms(changes) => changes.clone(),
            _ => Vec::new(),
        }
    }

    /// How the GPU shares itself between contexts, and the part of its SMs that each may use, in
    /// per cent, where that is a part.
    pub(crate) fn sharing(&self, sms: u16) -> (Sharing, Option<u8>) {
        match self {
            Arrangement::Original(part) => (Sharing::Mps, Some(percentage(*part, sms))),
            Arrangement::Mps | Arrangement::MpsPriorities(_) | Arrangement::MpsPercentages(_) => {
                (Sharing::Mps, None)
            }
            Arrangement::TimeSlice => (Sharing::TimeSlice, None),
            Arrangement::Static(_)
            | Arrangement::Even
            | Arrangement::CdSearch
            | Arrangement::ColdCdSearch
            | Arrangement::CdSearchPaper
            | Arrangement::Policy(..)
            | Arrangement::Terms(_)
            | Arrangement::ChangingTerms(_)
            | Arrangement::Parts(_)
            | Arrangement::Count => (Sharing::Spatial, None),
        }
    }
}

/// The thread percentage that means so many of the SMs.
#[must_use]
pub fn percentage(sms: u16, all: u16) -> u8 {
    let part = u32::from(sms.min(all)) * 100 / u32::from(all.max(1));
    u8::try_from(part.clamp(1, 100)).unwrap_or(100)
}

/// SMs that each thread percentage of a list means: a part is rounded up, and has one SM at least.
pub(crate) fn parts(percentages: &[u8], sms: u16) -> Vec<SmSet> {
    let all = sms.max(1);
    let mut next = 0;
    let part = |percentage: &u8| {
        let exact = (u32::from(all) * u32::from(*percentage)).div_ceil(100);
        let count = u16::try_from(exact).unwrap_or(all).clamp(1, all);
        let first = next;
        next = (first + count) % all;
        (0..count).map(|place| SmId((first + place) % all)).collect()
    };
    percentages.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_name_sm_counts() {
        for all in [24_u16, 30] {
            for sms in 1..=all {
                let named = (u32::from(all) * u32::from(percentage(sms, all))).div_ceil(100);
                assert_eq!(named, u32::from(sms), "{sms} of {all}");
            }
        }
    }

    #[test]
    fn percentages_lie_side_by_side() {
        assert_eq!(parts(&[25, 75], 24), [SmSet::range(0, 6), SmSet::range(6, 18)]);
        let over = parts(&[75, 50], 24);
        assert_eq!(over[1], SmSet::range(18, 6).union(&SmSet::range(0, 6)));
        assert_eq!(parts(&[1], 24), [SmSet::range(0, 1)]);
    }
}
