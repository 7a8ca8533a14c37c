//! Advice: who should run with whom, and what is expected of it.
//!
//! An [`Adviser`] sees the applications that wait or run, with what is known of each, and cuts them
//! into groups that should run at the same time. It knows nothing of turns, of SMs or of the
//! present: a selector makes turns of its groups, and a scheduler of a cluster may ask the same
//! question before it starts anything.
//!
//! # Invariants
//!
//! - Every candidate is in exactly one group.
//! - A group has the greatest expected profit first; ties go to the lowest id.

mod kernelet;
mod matching;
mod packing;
mod patterns;
mod plans;
mod slate;

pub use kernelet::{Kernelet, KerneletSettings};
pub use matching::{Matching, MatchingSettings};
pub use packing::{Choice, MatchingError, fillable, pack};
pub use patterns::{Pattern, Sizes, matching, patterns, speeds, throughput};
pub use plans::{PairTable, PairTableError};
pub use slate::{SlateTable, SlateThresholds, uses};

use crate::{Character, Slowdowns};
use partita_model::{ApplicationId, Note, SmPart};

/// An application that waits or runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Which.
    pub application: ApplicationId,
    /// What is known of it; `None` before its kernels were profiled.
    pub character: Option<Character>,
}

/// Applications that should run at the same time.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Who, in order of id.
    pub members: Vec<ApplicationId>,
    /// What is expected of it; `None` where nothing is.
    pub expected: Option<Expected>,
}

impl Group {
    /// An application by itself, of which nothing is expected.
    pub(crate) fn single(application: ApplicationId) -> Self {
        Group { members: vec![application], expected: None }
    }
}

/// What is expected of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct Expected {
    /// The sum of the speeds, each as a part of the speed alone (STP of Eyerman and Eeckhout).
    pub throughput: f64,
    /// These parts, in the order of the members.
    pub speeds: Vec<f64>,
    /// CTAs of each member on an SM, in the order of the members, where they share SMs; empty where
    /// each has SMs of its own.
    pub quotas: Vec<u32>,
    /// The part of each SM that these are, in the order of the members; empty where `quotas` is.
    pub parts: Vec<SmPart>,
}

impl Expected {
    /// Of an application that has the GPU to itself.
    pub(crate) fn alone() -> Self {
        Expected { throughput: 1.0, speeds: vec![1.0], quotas: Vec::new(), parts: Vec::new() }
    }
}

/// Answers who should run with whom.
pub trait Adviser {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Cuts the candidates into groups.
    fn advise(&self, candidates: &[Candidate]) -> Vec<Group>;

    /// What its advice follows from, for people.
    fn notes(&self, _candidates: &[Candidate]) -> Vec<Note> {
        Vec::new()
    }

    /// Whether a group is advised only to see what it does together.
    fn is_disputed(&self, _members: &[Candidate]) -> bool {
        false
    }

    /// A group has run together with these speeds ([`Expected::speeds`]).
    fn learn(&mut self, _members: &[Candidate], _speeds: &[f64]) {}

    /// What it knows of slowdowns, to be kept from one start to the next.
    fn slowdowns(&self) -> Option<&Slowdowns> {
        None
    }
}
