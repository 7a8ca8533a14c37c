//! A selector whose applications share all SMs in parts that never change.

use partita_model::{ApplicationId, SmPart};
use partita_policy::{Sample, Selected, Selector};
use std::collections::BTreeMap;

/// The parts of applications. An application without a part waits.
pub(crate) struct FixedParts(pub(crate) BTreeMap<ApplicationId, SmPart>);

impl Selector for FixedParts {
    fn name(&self) -> &'static str {
        "fixed-parts"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let present = sample.applications.iter().map(|found| found.application);
        let parts = present.filter_map(|id| Some((id, *self.0.get(&id)?)));
        let parts: BTreeMap<ApplicationId, SmPart> = parts.collect();
        Selected { together: parts.keys().copied().collect(), parts, notes: Vec::new() }
    }
}
