//! The ways to share a GPU between the server and a batch program.

use partita_bench::Arrangement;
use partita_model::{LatencyTarget, Priority, Terms};

/// Parts of the SMs by which the oracle's splits differ.
const PARTS: u16 = 12;
const QUICK_PARTS: u16 = 6;

/// A way to share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Way {
    /// One application after the other.
    TimeSlices,
    /// Kernels as they are, all at once.
    Mps,
    /// The same, where CTAs of the server are placed first: the batch program runs with
    /// `CUDA_MPS_CLIENT_PRIORITY=1`. CTAs that run are not preempted.
    MpsWithPriority,
    /// Half of the SMs each.
    StaticHalves,
    /// Even shares, which change with who has work.
    Even,
    /// CD-search.
    CdSearch,
    /// CD-search, with the priority `latency` for the server and `batch` for the batch program.
    LatencyAndBatch,
    /// The same with a latency target for the server, of 1.5 × the 99th percentile alone: it gets
    /// the fewest SMs that meet the target.
    LatencyTarget,
    /// The best fixed split: of all that keep the 99th percentile within 1.05 × that alone, the one
    /// with the most work of the batch program, and where none does, the one with the lowest 99th
    /// percentile. With --quick only where it is named.
    Oracle,
}

impl Way {
    /// Its name in tables and in the names of figures.
    pub fn name(self) -> &'static str {
        match self {
            Way::TimeSlices => "time slices",
            Way::Mps => "MPS",
            Way::MpsWithPriority => "MPS with priority",
            Way::StaticHalves => "static halves",
            Way::Even => "even",
            Way::CdSearch => "cd-search",
            Way::LatencyAndBatch => "latency and batch",
            Way::LatencyTarget => "latency target",
            Way::Oracle => "oracle",
        }
    }

    /// How the server and the batch program, in this order, may share this many SMs: the best
    /// arrangement counts ([`super::rows::best`]). A quick run tries fewer.
    pub fn arrangements(
        self,
        sms: u16,
        quick: bool,
        target: Option<LatencyTarget>,
    ) -> Vec<Arrangement> {
        let priority = |priority| Terms { priority: Some(priority), ..Terms::default() };
        let with_target = |target| Terms { target, ..priority(Priority::Latency) };
        vec![match self {
            Way::TimeSlices => Arrangement::TimeSlice,
            Way::Mps => Arrangement::Mps,
            // Normal, and below normal.
            Way::MpsWithPriority => Arrangement::MpsPriorities(vec![0, 1]),
            Way::StaticHalves => Arrangement::Static(vec![sms / 2, sms - sms / 2]),
            Way::Even => Arrangement::Even,
            Way::CdSearch => Arrangement::CdSearch,
            Way::LatencyAndBatch => {
                Arrangement::Terms(vec![with_target(None), priority(Priority::Batch)])
            }
            Way::LatencyTarget => {
                Arrangement::Terms(vec![with_target(target), priority(Priority::Batch)])
            }
            Way::Oracle => return splits(sms, if quick { QUICK_PARTS } else { PARTS }),
        }]
    }
}

/// Splits into so many parts, of which the server has one at least and all but one at most.
fn splits(sms: u16, parts: u16) -> Vec<Arrangement> {
    let step = (sms / parts).max(1);
    let counts = (step..sms).step_by(step.into());
    counts.map(|own| Arrangement::Static(vec![own, sms - own])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oracle_tries_splits_of_all_sms() {
        let counts = |sms, quick| {
            let tried = Way::Oracle.arrangements(sms, quick, None).into_iter();
            let own = tried.map(|arrangement| match arrangement {
                Arrangement::Static(counts) => {
                    assert_eq!(counts.iter().sum::<u16>(), sms);
                    counts[0]
                }
                other => panic!("{other:?}"),
            });
            own.collect::<Vec<_>>()
        };
        assert_eq!(counts(24, true), [4, 8, 12, 16, 20]);
        assert_eq!(counts(24, false), [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]);
        assert_eq!(counts(4, true), [1, 2, 3]);
    }
}
