//! The question "who runs together?".

use crate::Sample;
use partita_model::ApplicationId;
use std::collections::BTreeSet;

/// Answers which of the applications with work run at present; the others wait without an SM.
///
/// It is asked whenever a partitioner would be, before it, and sees the same sample.
pub trait Selector {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Looks at what has happened and decides.
    fn step(&mut self, sample: &Sample) -> BTreeSet<ApplicationId>;
}

/// Everyone runs, as long as there is an SM for each. Where there are more applications than SMs, those with the
/// highest ids wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everyone;

impl Selector for Everyone {
    fn name(&self) -> &'static str {
        "everyone"
    }

    fn step(&mut self, sample: &Sample) -> BTreeSet<ApplicationId> {
        let ids: BTreeSet<ApplicationId> = sample.applications.iter().map(|a| a.application).collect();
        ids.into_iter().take(sample.sms.len().into()).collect()
    }
}
