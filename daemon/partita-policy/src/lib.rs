//! Decisions: who runs together and who has how many SMs, as pure functions of samples.
//!
//! There are two questions, each a trait with one file or folder an answer. A [`Selector`]
//! (`selectors/`) says who runs together. A [`Partitioner`] (`partitioners/`) says how many SMs
//! each of them gets. `measuring/` tells them what applications did, `models/` what these would do,
//! and `plans/` places SMs.
//!
//! Selectors and partitioners are state machines: a sample goes in, a decision comes out. They have
//! no clock, no I/O and no device: time is in the samples. The same samples in the same order give
//! the same decisions; ties go to the lowest id. An answer that needs chance takes a seed.
//!
//! # Units
//!
//! Time is device time in nanoseconds; intervals are set in cycles of the SM clock. Bandwidths are
//! bytes per second. Instructions are warp instructions, and an APKI is per kilo warp instruction.
//!
//! # What this leaves alone
//!
//! How SMs change hands: a decision names sets as they should be, and the engine moves them.

mod advice;
mod deciders;
mod entitlements;
mod explain;
mod forecast;
mod measuring;
mod models;
mod partitioners;
mod plans;
mod policy;
mod selectors;

pub use advice::{
    Adviser, Candidate, Choice, Expected, Group, Kernelet, KerneletSettings, Matching,
    MatchingError, MatchingSettings, PairTable, PairTableError, Pattern, Sizes, SlateTable,
    SlateThresholds, fillable, matching, pack, patterns, speeds, throughput, uses,
};
pub use deciders::{BuildError, Deciders, build, build_with};
pub use explain::{explain, explain_pinned, explain_target, notice};
pub use forecast::{Facts, ForecastError};
pub use models::{
    CalibrationError, Character, Contender, ContentionRules, Kind, Launched, Needs, PairSlowdown,
    PairSlowdowns, PairSlowdownsError, Recorded, Replay, Slowdowns, apki, calibrated,
    check_calibration, classify, compute_intensity, demand, hit_rate, memory_intensity, supply,
    traffic_of,
};
pub use models::{latency, markov};
pub use partitioners::{
    ApplicationSample, Awaits, CdSearch, CdSearchPaper, CdSearchSettings, Decision, Demand, Even,
    IntervalRequest, Partitioner, Sample, Smra, SmraSettings, StaticShares,
};
pub use plans::{Bounds, Plan, PlanError, whole_groups};
pub use policy::{ApplicationObservation, Observation, Orders, Policy, PolicySettings};
pub use selectors::{Everyone, Selected, Selector, Turns};
