//! The question "how many SMs each?".

use crate::Plan;
use partita_model::{ApplicationId, Nanos, SmSet};

/// Answers how many SMs, and which, each application gets.
pub trait Partitioner {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Looks at what has happened and decides.
    fn step(&mut self, sample: &Sample) -> Decision;
}

/// What a partitioner sees.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Device time.
    pub time: Nanos,
    /// The SMs to share out.
    pub sms: SmSet,
    /// The applications that may get some, in order of id.
    pub applications: Vec<ApplicationSample>,
}

/// One application in a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ApplicationSample {
    /// Which.
    pub application: ApplicationId,
    /// What it was given last.
    pub partition: SmSet,
    /// Whether it has work.
    pub demand: Demand,
    /// CTAs of original work that it has completed so far.
    pub ctas_completed: u64,
}

/// Whether an application has a use for SMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// It has work, or had until a moment ago.
    Working,
    /// It has had none for longer than the grace time: its SMs may be lent.
    Idle,
}

/// What a partitioner wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Who has which SMs.
    pub plan: Plan,
    /// SMs whose workers wait, each a member of some partition.
    pub stalled: SmSet,
}
