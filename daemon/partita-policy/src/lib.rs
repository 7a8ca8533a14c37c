//! Decisions: who has how many SMs, as pure functions of samples.
//!
//! A [`Partitioner`] is a state machine: it is given a [`Sample`] of what every application has done since the last one
//! and answers with a [`Decision`]. One file per answer. There is no clock, no I/O and no device here; the same input
//! always gives the same answer, and ties go to the lowest id. Deciding is cheap, so callers may ask whenever something
//! has changed.
//!
//! What this leaves alone: how SMs change hands. A decision names the sets as they should be; the engine moves them.

mod even;
mod partitioner;
mod plan;

pub use even::Even;
pub use partitioner::{ApplicationSample, Decision, Demand, Partitioner, Sample};
pub use plan::{Plan, PlanError};
