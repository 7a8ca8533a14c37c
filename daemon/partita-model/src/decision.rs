//! The records behind `partita why`: a policy's inputs, its decisions and its reasons.
//!
//! These are plain data. `partita-policy` writes the records and turns them into sentences.

use crate::{ApplicationId, ContentionClass, Entitlement, Nanos, SmPart, SmSet};
use serde::{Deserialize, Serialize};

/// Completed work: a running total, or the work of one interval.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Completed CTAs of the original kernels.
    pub ctas: u64,
    /// What those CTAs executed, where this is known for all of them.
    pub traffic: Option<Traffic>,
}

/// Instructions and LLC traffic of completed CTAs, from their kernels' profiles or from counters.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The CTAs whose traffic is known.
    #[serde(default)]
    pub ctas: u64,
    /// Warp instructions of the original kernels.
    pub warp_instructions: u64,
    /// Accesses to the LLC, in the unit whose size the calibration gives (a sector or a line).
    pub llc_accesses: u64,
    /// LLC accesses that hit.
    pub llc_hits: u64,
    /// Lower bound of the LLC accesses.
    #[serde(default)]
    pub llc_least: u64,
    /// Upper bound of the LLC accesses.
    #[serde(default)]
    pub llc_most: u64,
    /// Lower bound of the hits among `llc_accesses`.
    #[serde(default)]
    pub hits_least: u64,
    /// Upper bound of the hits among `llc_accesses`.
    #[serde(default)]
    pub hits_most: u64,
    /// Hits among `llc_hits` that make a clean sector dirty; DRAM gets that sector later. Each miss
    /// costs DRAM one sector, whether it reads or writes.
    #[serde(default)]
    pub llc_dirtied: u64,
}

impl Traffic {
    /// Counted traffic, whose bounds equal the counts.
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

    /// Combines each number with its counterpart in `other`.
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

/// What limits an application's speed.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// SMs: more of them make the application faster.
    Compute,
    /// Bandwidth outside the SMs: beyond some number of SMs the application gets no faster.
    Memory,
    /// Unknown: the application completed nothing measurable.
    Unknown,
}

/// How much an application uses of something, in three levels.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

/// Whether two applications run together, and why.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// They complete each other.
    Corun,
    /// They want the same.
    Solo,
    /// The rule says both: they are tried together.
    Disputed,
    /// They were tried, and did more together than one after the other.
    Gained,
    /// They were tried, and did less.
    Lost,
    /// Too little is known of them.
    Unknown,
}

impl Verdict {
    /// Whether they run together.
    #[must_use]
    pub fn is_together(self) -> bool {
        matches!(self, Verdict::Corun | Verdict::Disputed | Verdict::Gained)
    }
}

/// The event for which a policy was asked.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The set of applications with work, or the set of SMs to distribute, changed.
    Membership,
    /// An administrator chose another policy.
    Configuration,
    /// A measuring interval ended.
    Interval,
    /// What an application may have changed.
    Terms,
}

/// One decision with its inputs.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// Counts decisions from 1.
    pub sequence: u64,
    /// Device time.
    pub time: Nanos,
    /// The partitioner's name.
    pub partitioner: String,
    /// The event for which the partitioner was asked.
    pub cause: Cause,
    /// The measuring interval, if there was one.
    pub interval: Option<IntervalRecord>,
    /// The SMs to distribute.
    pub sms: SmSet,
    /// SMs that an administrator has pinned, which are not distributed.
    #[serde(default, skip_serializing_if = "SmSet::is_empty")]
    pub pinned: SmSet,
    /// The applications that share the SMs, in order of id.
    pub applications: Vec<ApplicationRecord>,
    /// SMs that stay empty to save power.
    pub gated: SmSet,
    /// The partitioner's activity, in one word.
    pub stage: String,
    /// The partitioner's reasons.
    pub notes: Vec<Note>,
}

/// A measuring interval.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// The time at which the last worker had followed the previous decision.
    pub settled: Nanos,
    /// The end of the warm-up, at which measuring began.
    pub start: Nanos,
    /// The end of the interval.
    pub end: Nanos,
    /// The interval's length in cycles of the SM clock.
    pub cycles: u64,
}

/// One application in a decision.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// The application.
    pub application: ApplicationId,
    /// The application's SMs before the decision.
    pub had: SmSet,
    /// SMs in `had` on which its workers waited.
    pub had_stalled: SmSet,
    /// Its work in the interval; zero without a measurement.
    pub progress: Progress,
    /// The application's SMs after the decision.
    pub gets: SmSet,
    /// SMs in `gets` on which its workers wait.
    pub stalled: SmSet,
    /// The part of each of these SMs that is its own, where it shares them.
    #[serde(default)]
    pub part: Option<SmPart>,
}

/// What a class was concluded from.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "evidence", rename_all = "snake_case")]
pub enum Evidence {
    /// The off-SM bandwidth model.
    Bandwidth {
        /// The demand of the application on all SMs, in bytes per second.
        demand: f64,
        /// The supply of interconnect, LLC and DRAM, in bytes per second.
        supply: f64,
        /// LLC accesses per kilo warp instruction.
        apki: f64,
        /// Part of the accesses that hit in the LLC.
        hit_rate: f64,
        /// Lower and upper bound of the APKI, by the profile.
        apki_bounds: (f64, f64),
        /// Lower and upper bound of the hit rate, by the profile.
        hit_rate_bounds: (f64, f64),
        /// Whether every value between the bounds gives the same class.
        certain: bool,
    },
    /// The application's speed with more and with fewer SMs.
    Scaling {
        /// SMs in the smaller measurement.
        fewer: u16,
        /// SMs in the larger measurement.
        more: u16,
        /// Speed with more ÷ speed with fewer.
        gain: f64,
        /// The application is memory-intensive if `gain` is below this limit.
        limit: f64,
    },
    /// The application completed no CTA in the interval.
    NoProgress {
        /// The interval's length in cycles of the SM clock.
        cycles: u64,
    },
}

/// One reason of a decision.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// Only this application has work.
    Alone {
        /// The application.
        application: ApplicationId,
    },
    /// All applications get the same number of SMs, give or take one.
    Even {
        /// The number of applications that share the SMs.
        applications: u16,
        /// The smallest share, in SMs.
        least: u16,
        /// The largest share, in SMs.
        most: u16,
        /// Why the shares are even.
        reason: EvenReason,
    },
    /// The configuration gives the application a share.
    Share {
        /// The application.
        application: ApplicationId,
        /// The matching entry, as text.
        rule: String,
        /// SMs of the entry, which all matching applications share.
        share: u16,
        /// SMs that the application gets.
        gets: u16,
    },
    /// No entry of the configuration matches the application.
    NoShare {
        /// The application.
        application: ApplicationId,
        /// SMs that the application gets from those that the entries leave.
        gets: u16,
    },
    /// What the application's terms give it.
    Entitled {
        /// The application.
        application: ApplicationId,
        /// Minimum, maximum, weight and priority.
        entitlement: Entitlement,
        /// SMs that it gets.
        gets: u16,
        /// The fewest SMs that any plan may give it at present.
        least: u16,
        /// SMs that it can use at present, where it is urgent and that is known.
        need: Option<u16>,
        /// Whether it leaves SMs to an urgent application at present.
        yields: bool,
        /// SMs that it has beyond an equal split, by the applications that have fewer for it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        takes: Vec<SmsOf>,
        /// SMs that it has less than an equal split gives, by the applications that have them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leaves: Vec<SmsOf>,
    },
    /// There are more applications than SMs.
    NoRoom {
        /// The application that gets no SM for now.
        application: ApplicationId,
    },
    /// The application waits for the turn of its group.
    Waits {
        /// The application.
        application: ApplicationId,
    },
    /// The application runs alone until its kernels are known.
    Met {
        /// The application.
        application: ApplicationId,
    },
    /// What an application uses of the GPU when it is alone there.
    Levels {
        /// The application.
        application: ApplicationId,
        /// Its use of issue slots.
        compute: Level,
        /// Its use of the bandwidth of LLC or DRAM.
        memory: Level,
        /// The part of all issue slots.
        compute_part: f64,
        /// The part of that bandwidth.
        memory_part: f64,
    },
    /// Whether two applications run together.
    Pair {
        /// The application with the lower id.
        first: ApplicationId,
        /// The other.
        second: ApplicationId,
        /// Whether, and why.
        verdict: Verdict,
        /// The sum of their speeds together, each as a part of its speed alone, where measured.
        throughput: Option<f64>,
    },
    /// Two applications share SMs.
    Shared {
        /// The application with the lower id.
        first: ApplicationId,
        /// The other.
        second: ApplicationId,
        /// The part of each SM that each has.
        parts: (SmPart, SmPart),
        /// The expected sum of their speeds, each as a part of its speed alone.
        throughput: f64,
    },
    /// The application shares no SM, because one of its CTAs does not fit into its part.
    Cramped {
        /// The application.
        application: ApplicationId,
    },
    /// The contention class of an application.
    Contends {
        /// The application.
        application: ApplicationId,
        /// The class.
        class: ContentionClass,
        /// The part of DRAM's peak bandwidth that it takes alone.
        dram_part: f64,
        /// The part of the LLC's bandwidth that it takes alone.
        llc_part: f64,
        /// The part of the issue slots that it takes alone.
        issue_part: f64,
    },
    /// Applications that the matching puts into one group.
    Matched {
        /// The applications, in order of id.
        members: Vec<ApplicationId>,
        /// The expected sum of their speeds, each as a part of its speed alone.
        throughput: f64,
        /// Whether the expectation follows from measurements only.
        measured: bool,
    },
    /// The score of an application: SMs go from the highest to the lowest.
    Scored {
        /// The application.
        application: ApplicationId,
        /// 1 for a low IPC, 2 for a high bandwidth, 3 for both.
        score: u8,
        /// The part that it takes of the issue slots of its SMs.
        issue_part: f64,
        /// The part that it takes of DRAM's peak bandwidth.
        dram_part: f64,
    },
    /// SMs go from one application to another, to see what that does.
    Moves {
        /// The application with the highest score.
        from: ApplicationId,
        /// The application with the lowest score.
        to: ApplicationId,
        /// The number of SMs.
        sms: u16,
    },
    /// SMs have gone from one application to another, and what that did.
    Judged {
        /// The application that lost them.
        from: ApplicationId,
        /// The application that got them.
        to: ApplicationId,
        /// The number of SMs.
        sms: u16,
        /// Throughput after ÷ before; below 1 the SMs go back.
        relative: f64,
    },
    /// SMs by what applications can use of them.
    Demand {
        /// The application.
        application: ApplicationId,
        /// SMs beyond which it would get no faster.
        useful: u16,
        /// SMs that it gets.
        gets: u16,
    },
    /// The class of an application.
    Classified {
        /// The application.
        application: ApplicationId,
        /// The class.
        class: Class,
        /// The evidence for the class.
        evidence: Evidence,
        /// Whether the application completed a CTA within the warm-up. If not, an SM that it loses
        /// may drain slowly.
        quick: bool,
    },
    /// The speed of an application with some of its SMs stalled.
    Measured {
        /// The application.
        application: ApplicationId,
        /// SMs that were active.
        active: u16,
        /// SMs of the even split to compare with.
        of: u16,
        /// Speed ÷ speed of the even split.
        relative: f64,
        /// The application has too few SMs if `relative` is below this limit.
        limit: f64,
        /// CTAs that the application completed in the interval.
        ctas: u64,
    },
    /// The next number of SMs to try; the application's other SMs are stalled.
    Tries {
        /// The application.
        application: ApplicationId,
        /// Active SMs in the next interval.
        active: u16,
        /// SMs of the even split.
        of: u16,
    },
    /// The fewest SMs with which the application is fast enough.
    Needs {
        /// The application.
        application: ApplicationId,
        /// The number of SMs.
        sms: u16,
        /// SMs of the even split.
        of: u16,
        /// Speed with `sms` ÷ speed of the even split, where it was measured.
        relative: Option<f64>,
    },
    /// The application gets SMs that others do not need.
    Receives {
        /// The application.
        application: ApplicationId,
        /// SMs of the even split.
        from: u16,
        /// SMs from now on.
        to: u16,
    },
    /// No application needs these SMs, so they stay empty.
    Gates {
        /// The SMs.
        sms: SmSet,
    },
    /// The application's progress no longer fits its class.
    Misfit {
        /// The application.
        application: ApplicationId,
        /// The class so far.
        class: Class,
        /// Speed ÷ the expected speed.
        relative: f64,
        /// The lower limit of `relative`.
        least: f64,
        /// The upper limit of `relative`; `None` where a higher speed is no misfit.
        most: Option<f64>,
    },
    /// The counters show another class than the one so far.
    ClassChanged {
        /// The application.
        application: ApplicationId,
        /// The class so far.
        from: Class,
        /// The class by the counters.
        to: Class,
    },
}

impl Note {
    /// The application that the reason is about; `None` where it is about all of them.
    #[must_use]
    pub fn application(&self) -> Option<ApplicationId> {
        match self {
            Note::Even { .. }
            | Note::Gates { .. }
            | Note::Pair { .. }
            | Note::Shared { .. }
            | Note::Matched { .. }
            | Note::Moves { .. }
            | Note::Judged { .. } => None,
            Note::Alone { application }
            | Note::Share { application, .. }
            | Note::NoShare { application, .. }
            | Note::Entitled { application, .. }
            | Note::NoRoom { application }
            | Note::Waits { application }
            | Note::Met { application }
            | Note::Levels { application, .. }
            | Note::Cramped { application }
            | Note::Contends { application, .. }
            | Note::Scored { application, .. }
            | Note::Demand { application, .. }
            | Note::Classified { application, .. }
            | Note::Measured { application, .. }
            | Note::Tries { application, .. }
            | Note::Needs { application, .. }
            | Note::Receives { application, .. }
            | Note::Misfit { application, .. }
            | Note::ClassChanged { application, .. } => Some(*application),
        }
    }
}

/// A number of SMs that changed sides against an equal split, and the application on the other
/// side.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SmsOf {
    /// The other application.
    pub application: ApplicationId,
    /// The number of SMs.
    pub sms: u16,
}

/// Why shares are even.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvenReason {
    /// The policy always splits evenly.
    Policy,
    /// The applications are to be measured under equal conditions.
    Profiling,
    /// No application is limited by bandwidth, so one's gain is another's loss.
    NoneMemoryIntensive,
}

/// Something that an administrator should know of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// Workers have not followed a decision in time.
    NotSettled {
        /// The time of the decision.
        since: Nanos,
    },
}
