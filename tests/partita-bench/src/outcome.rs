//! What becomes of a run.

use crate::handover::Handover;
use crate::outputs::Outputs;
use crate::track::Track;
use partita_model::profile::{KernelProfile, LaunchShape};
use partita_model::{Class, DeviceCounters, Evidence, TargetReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is kept of kernels, by the hash of their code.
pub type Profiles = BTreeMap<String, Vec<(LaunchShape, KernelProfile)>>;

/// What became of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Shared {
    /// Each application, in the order given.
    pub shares: Vec<Share>,
    /// Device time from the first launch to the end, in nanoseconds.
    pub nanos: u64,
    /// What the device counted in that time.
    pub counters: DeviceCounters,
    /// Device time at which the first search had ended, where there was one.
    pub searched: Option<u64>,
    /// How often everything was classified again.
    pub again: u32,
    /// The name of the last stage of the policy.
    pub stage: String,
    /// Each decision of the policy, in sentences.
    pub decisions: Vec<String>,
    /// SMs that changed hands because terms changed.
    #[serde(default)]
    pub handovers: Vec<Handover>,
    /// What was counted of kernels.
    pub profiles: Profiles,
}

/// One application of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// How far it got.
    pub track: Track,
    /// What the policy first took it for.
    pub class: Option<Class>,
    /// From what.
    pub evidence: Option<Evidence>,
    /// What it was taken for at the end.
    pub last_class: Option<Class>,
    /// Its SMs at the end.
    pub sms: u16,
    /// SM-nanoseconds of its partition, from the first launch to the end, looked at every 2 µs; 0
    /// where SMs are not divided.
    pub sm_nanos: u64,
    /// CTAs of its first kernel, as it is written, that fit on an SM; 0 without kernels.
    pub ctas_per_sm: u16,
    /// When each of its passes was answered, where it reads back answers
    /// ([`crate::Application::answer`]), in nanoseconds from the first launch.
    #[serde(default)]
    pub answered: Vec<u64>,
    /// What became of its latency target, where it has one.
    #[serde(default)]
    pub target: Option<TargetReport>,
    /// What it left in its memory, where the run was to tell.
    #[serde(default)]
    pub outputs: Option<Outputs>,
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{application}: {reason}")]
pub struct RunError {
    /// Whose fault it is.
    pub application: String,
    /// What happened.
    pub reason: String,
}
