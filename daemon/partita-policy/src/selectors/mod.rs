//! The question "who runs together?": a [`Selector`] answers it, one file an answer.

mod everyone;
mod rota;
mod turns;

pub use everyone::Everyone;
pub(crate) use rota::Rota;
pub use turns::Turns;

use crate::{IntervalRequest, Sample, Slowdowns};
use partita_model::{ApplicationId, Nanos, Note, SmPart};
use std::collections::{BTreeMap, BTreeSet};

/// Answers which of the applications with work run at present; the others wait without an SM.
///
/// It is asked whenever a partitioner would be, before it, and sees the same sample.
pub trait Selector {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Looks at what has happened and decides.
    fn step(&mut self, sample: &Sample) -> Selected;

    /// When it wants to be asked again, if it does.
    fn again_at(&self) -> Option<Nanos> {
        None
    }

    /// What it wants to be measured where the partitioner wants nothing.
    fn interval(&self) -> Option<IntervalRequest> {
        None
    }

    /// What it knows of slowdowns, to be kept from one start to the next.
    fn slowdowns(&self) -> Option<&Slowdowns> {
        None
    }
}

/// Who runs at present, and why.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Selected {
    /// Those that run.
    pub together: BTreeSet<ApplicationId>,
    /// The parts of all SMs that they share; empty where a partitioner gives each SMs of its own.
    pub parts: BTreeMap<ApplicationId, SmPart>,
    /// The reasons, of those that wait, too.
    pub notes: Vec<Note>,
}
