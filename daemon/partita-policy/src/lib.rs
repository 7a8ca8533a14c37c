//! Decisions: who runs together and who has how many SMs, as pure functions of samples.
//!
//! Two questions, each a trait with one file per answer: a [`Selector`] says who runs together, a
//! [`Partitioner`] how many SMs each of them gets. Both are state machines: they are given what
//! every application has done since the last time and answer with what shall be. There is no clock,
//! no I/O and no device here: time is in the samples, the same inputs in the same order give the
//! same answers, and ties go to the lowest id. An answer that needs chance takes a seed when it is
//! made; none of those here does.
//!
//! # Units
//!
//! Time is device time in nanoseconds; windows are set in cycles of the SM clock. Bandwidths are
//! bytes per second. Instructions are warp instructions, and an APKI is per kilo warp instruction.
//!
//! # What this leaves alone
//!
//! How SMs change hands: a decision names sets as they should be, and the engine moves them.

mod allot;
mod bandwidth;
mod cd_search;
mod config;
mod even;
mod explain;
mod groups;
mod marks;
mod partitioner;
mod plan;
mod policy;
mod profile;
mod replay;
mod selector;
mod static_shares;
mod window;

pub use bandwidth::{
    CalibrationError, apki, calibrated, check_calibration, classify, demand, hit_rate, supply,
};
pub use cd_search::{CdSearch, CdSearchSettings, Trust};
pub use config::{
    ConfigContext, ConfigError, Deciders, PolicySection, ShareSection, TenantName, build,
    read_policy,
};
pub use even::Even;
pub use explain::{explain, notice};
pub use groups::whole_groups;
pub use partitioner::{ApplicationSample, Awaits, Decision, Partitioner, Sample, WindowRequest};
pub use plan::{Plan, PlanError};
pub use policy::{ApplicationObservation, Observation, Orders, Policy, PolicySettings};
pub use profile::{compute_intensity, memory_intensity, traffic_of};
pub use replay::{Recorded, Replay};
pub use selector::{Everyone, Selector};
pub use static_shares::StaticShares;
