//! The question "who runs together?": a [`Selector`] answers it, one file an answer.

mod everyone;

pub use everyone::Everyone;

use crate::Sample;
use partita_model::{ApplicationId, Nanos};
use std::collections::BTreeSet;

/// Answers which of the applications with work run at present; the others wait without an SM.
///
/// It is asked whenever a partitioner would be, before it, and sees the same sample.
pub trait Selector {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Looks at what has happened and decides.
    fn step(&mut self, sample: &Sample) -> BTreeSet<ApplicationId>;

    /// When it wants to be asked again, if it does.
    fn again_at(&self) -> Option<Nanos> {
        None
    }
}
