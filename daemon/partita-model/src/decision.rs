//! What a policy saw, decided and gives as its reasons: the records behind `partita why`.
//!
//! Plain data. `partita-policy` writes it and turns it into sentences.

use crate::{ApplicationId, Nanos, SmSet};
use serde::{Deserialize, Serialize};

/// Work done: a running total, or what was done within a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// CTAs of original work that have completed.
    pub ctas: u64,
    /// What they executed, where that is known of all of them.
    pub traffic: Option<Traffic>,
}

/// What completed CTAs executed, and what of it reached the LLC: from their kernels' profiles, or
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The CTAs of which it is known.
    #[serde(default)]
    pub ctas: u64,
    /// Warp instructions of the original kernels.
    pub warp_instructions: u64,
    /// Accesses to the LLC, in the unit whose size the calibration gives (a sector or a line).
    pub llc_accesses: u64,
    /// Those that hit there.
    pub llc_hits: u64,
    /// The fewest accesses that it may have been.
    #[serde(default)]
    pub llc_least: u64,
    /// The most.
    #[serde(default)]
    pub llc_most: u64,
    /// The fewest of `llc_accesses` that may have hit.
    #[serde(default)]
    pub hits_least: u64,
    /// The most.
    #[serde(default)]
    pub hits_most: u64,
    /// Those of `llc_hits` that write what nobody had written: DRAM gets that later. (Misses cost
    /// it one sector each, whatever they do.)
    #[serde(default)]
    pub llc_dirtied: u64,
}

impl Traffic {
    /// What was counted, so that nothing is in doubt.
    #[must_use]
    pub const fn exact(
        ctas: u64,
        warp_instructions: u64,
        llc_accesses: u64,
        llc_hits: u64,
    ) -> Self {
        Traffic {
            ctas,
            warp_instructions,
            llc_accesses,
            llc_hits,
            llc_least: llc_accesses,
            llc_most: llc_accesses,
            hits_least: llc_hits,
            hits_most: llc_hits,
            llc_dirtied: 0,
        }
    }

    /// Applies `f` to each number and its like in `other`.
    #[must_use]
    pub fn combine(&self, other: &Traffic, f: impl Fn(u64, u64) -> u64) -> Self {
        Traffic {
            ctas: f(self.ctas, other.ctas),
            warp_instructions: f(self.warp_instructions, other.warp_instructions),
            llc_accesses: f(self.llc_accesses, other.llc_accesses),
            llc_hits: f(self.llc_hits, other.llc_hits),
            llc_least: f(self.llc_least, other.llc_least),
            llc_most: f(self.llc_most, other.llc_most),
            hits_least: f(self.hits_least, other.hits_least),
            hits_most: f(self.hits_most, other.hits_most),
            llc_dirtied: f(self.llc_dirtied, other.llc_dirtied),
        }
    }
}

/// What an application's speed depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// More SMs make it faster.
    Compute,
    /// Bandwidth outside the SMs limits it: beyond some number of SMs it gets no faster.
    Memory,
    /// It completed nothing that could be measured.
    Unknown,
}

/// Why a policy was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Other applications than before have work or their turn, or other SMs are to be shared out.
    Membership,
    /// An administrator has chosen another policy.
    Configuration,
    /// A measuring window has ended.
    Window,
}

/// One decision with its inputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// Counts decisions from 1.
    pub sequence: u64,
    /// Device time.
    pub time: Nanos,
    /// The partitioner's name.
    pub partitioner: String,
    /// Why it was asked.
    pub cause: Cause,
    /// The window that was measured, if one was.
    pub window: Option<WindowRecord>,
    /// The SMs that were to be shared out.
    pub sms: SmSet,
    /// Those who share them, in order of id.
    pub applications: Vec<ApplicationRecord>,
    /// SMs that stay empty to save power.
    pub gated: SmSet,
    /// What the partitioner was doing, in one word.
    pub stage: String,
    /// Its reasons.
    pub notes: Vec<Note>,
}

/// A measuring window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WindowRecord {
    /// When the last worker had followed the decision before.
    pub settled: Nanos,
    /// When the warm-up was over and measuring began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// From start to end in cycles of the SM clock.
    pub cycles: u64,
}

/// One application in a decision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// The application.
    pub application: ApplicationId,
    /// What it had before.
    pub had: SmSet,
    /// Where of that its workers waited.
    pub had_stalled: SmSet,
    /// What it did in the window; zero where none was measured.
    pub progress: Progress,
    /// What it gets.
    pub gets: SmSet,
    /// Where of that its workers wait.
    pub stalled: SmSet,
}

/// What a class was concluded from.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "evidence", rename_all = "snake_case")]
pub enum Evidence {
    /// The off-SM bandwidth model.
    Bandwidth {
        /// What all SMs would ask for, in bytes per second.
        demand: f64,
        /// What interconnect, LLC and DRAM can deliver, in bytes per second.
        supply: f64,
        /// LLC accesses per kilo warp instruction.
        apki: f64,
        /// Part of the accesses that hit in the LLC.
        hit_rate: f64,
        /// The fewest and the most accesses that the profile leaves open.
        apki_bounds: (f64, f64),
        /// The lowest and the highest hit rate that it leaves open.
        hit_rate_bounds: (f64, f64),
        /// Whether the class is the same wherever between the bounds the truth is.
        certain: bool,
    },
    /// Its speed with more and with fewer SMs.
    Scaling {
        /// SMs in the smaller measurement.
        fewer: u16,
        /// SMs in the larger one.
        more: u16,
        /// Speed with more ÷ speed with fewer.
        gain: f64,
        /// Below that it is memory-intensive.
        limit: f64,
    },
    /// It completed no CTA in a window of so many cycles.
    NoProgress {
        /// The window's length.
        cycles: u64,
    },
}

/// One reason of a decision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// It is the only one with work.
    Alone {
        /// The application.
        application: ApplicationId,
    },
    /// Everybody gets the same, give or take one.
    Even {
        /// Number of applications that share it.
        applications: u16,
        /// The smallest share.
        least: u16,
        /// The largest.
        most: u16,
        /// Why evenly.
        reason: EvenReason,
    },
    /// The configuration gives it a share.
    Share {
        /// The application.
        application: ApplicationId,
        /// The entry that matches, as text.
        rule: String,
        /// SMs that the entry gives, to be split among those who match it.
        share: u16,
        /// SMs that the application gets.
        gets: u16,
    },
    /// No entry of the configuration matches it.
    NoShare {
        /// The application.
        application: ApplicationId,
        /// SMs that it gets of what the others leave.
        gets: u16,
    },
    /// There are more applications than SMs.
    NoRoom {
        /// Who gets nothing for now.
        application: ApplicationId,
    },
    /// Its class.
    Classified {
        /// The application.
        application: ApplicationId,
        /// Its class.
        class: Class,
        /// From what.
        evidence: Evidence,
        /// Whether it completed a CTA within the warm-up: if not, an SM that it loses may drain
        /// slowly.
        quick: bool,
    },
    /// How fast it was with some of its SMs stalled.
    Measured {
        /// The application.
        application: ApplicationId,
        /// SMs that were at work.
        active: u16,
        /// SMs of the even split that it is compared with.
        of: u16,
        /// Speed ÷ speed of the even split.
        relative: f64,
        /// Below that it has too few.
        limit: f64,
        /// CTAs that it completed in the window.
        ctas: u64,
    },
    /// The next number of SMs to try; the others of its share wait.
    Tries {
        /// The application.
        application: ApplicationId,
        /// SMs at work in the next window.
        active: u16,
        /// SMs of the even split.
        of: u16,
    },
    /// The fewest SMs that keep it fast enough.
    Needs {
        /// The application.
        application: ApplicationId,
        /// So many.
        sms: u16,
        /// SMs of the even split.
        of: u16,
        /// Speed with so many ÷ speed of the even split, where it was measured.
        relative: Option<f64>,
    },
    /// It gets what others do not need.
    Receives {
        /// The application.
        application: ApplicationId,
        /// SMs of the even split.
        from: u16,
        /// SMs from now on.
        to: u16,
    },
    /// Nobody needs these: they stay empty.
    Gates {
        /// The SMs.
        sms: SmSet,
    },
    /// Its progress no longer fits what it was taken for.
    Misfit {
        /// The application.
        application: ApplicationId,
        /// What it was taken for.
        class: Class,
        /// Speed ÷ the speed that it is compared with.
        relative: f64,
        /// What that should be at least.
        least: f64,
        /// And at most; absent where more is no misfit.
        most: Option<f64>,
    },
    /// The counters say another class than the one that it was taken for.
    ClassChanged {
        /// The application.
        application: ApplicationId,
        /// What it was taken for.
        from: Class,
        /// What the counters say now.
        to: Class,
    },
}

/// Why shares are even.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvenReason {
    /// The policy knows nothing else.
    Policy,
    /// They are to be measured under equal conditions.
    Profiling,
    /// None is limited by bandwidth: whatever one gains another loses.
    NoneMemoryIntensive,
}

/// Something that an administrator should know of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// Workers have not followed a decision in time.
    NotSettled {
        /// When the decision was made.
        since: Nanos,
    },
}
