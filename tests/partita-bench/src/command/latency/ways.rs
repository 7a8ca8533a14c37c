//! The ways to share a GPU between the server and a batch program.

use partita_bench::Arrangement;
use partita_model::{Priority, Terms};

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
        }
    }

    /// How the server and the batch program, in this order, share so many SMs.
    pub fn arrangement(self, sms: u16) -> Arrangement {
        let priority = |priority| Terms { priority: Some(priority), ..Terms::default() };
        match self {
            Way::TimeSlices => Arrangement::TimeSlice,
            Way::Mps => Arrangement::Mps,
            // Normal, and below normal.
            Way::MpsWithPriority => Arrangement::MpsPriorities(vec![0, 1]),
            Way::StaticHalves => Arrangement::Static(vec![sms / 2, sms - sms / 2]),
            Way::Even => Arrangement::Even,
            Way::CdSearch => Arrangement::CdSearch,
            Way::LatencyAndBatch => {
                Arrangement::Terms(vec![priority(Priority::Latency), priority(Priority::Batch)])
            }
        }
    }
}
