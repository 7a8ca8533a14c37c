//! Models: what an application would do on a GPU, from counters, curves and recorded accesses.
//!
//! A model is a pure function of what was counted and of the [`Calibration`]. It decides nothing.
//!
//! | file | model | source |
//! | --- | --- | --- |
//! | `bandwidth` | demand and supply of the bandwidth outside the SMs | CD-search §4.1.2 |
//! | `character` | what an application asks of a GPU alone | Slate §III-B, Punyala §3.2.1 |
//! | `contention` | the class of what an application competes for | Punyala §3.2.1 |
//! | `curve` | speed over SMs | Masola, JSSPP '23, Eq. 17 |
//! | `latency` | time of launches on part of the SMs, alone and beside others | Masola §6–8, and ours |
//! | `markov` | speed of kernels that share SMs | Kernelet §4.3 |
//! | `replay` | hits of recorded accesses in a cache of another size | ours |
//! | `traffic` | accesses and intensities of CTAs, from the counted ones | Slate §III-B |
//!
//! [`Calibration`]: partita_model::Calibration

mod bandwidth;
mod character;
mod contention;
mod curve;
pub mod latency;
pub mod markov;
mod pair_slowdowns;
mod replay;
mod traffic;

pub use bandwidth::{
    CalibrationError, apki, calibrated, check_calibration, classify, demand, hit_rate, supply,
};
pub(crate) use bandwidth::{float, taken};
pub use character::{Character, Launched};
pub use contention::{ContentionRules, Needs};
pub(crate) use curve::{Curve, Observation, full};
pub use pair_slowdowns::{
    Contender, Kind, PairSlowdown, PairSlowdowns, PairSlowdownsError, Slowdowns,
};
pub use replay::{Recorded, Replay};
pub use traffic::{compute_intensity, memory_intensity, traffic_of};
