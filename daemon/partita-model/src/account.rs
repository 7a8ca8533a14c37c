//! Accounts: what applications have had of a GPU, as metrics tell it.

use crate::{ApplicationId, Entitlement, JobUsage, LatencyTarget, Nanos, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The accounts of a GPU at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AccountsReport {
    /// Device time.
    pub time: Nanos,
    /// Device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// Energy used since the start in nanojoules, where the device counts it.
    pub energy_nj: Option<u64>,
    /// Decisions of the policy so far.
    pub decisions: u64,
    /// Every application that has a session, in order of id.
    pub applications: Vec<ApplicationAccount>,
    /// Counts over all applications, including applications that have left.
    pub totals: Totals,
    /// What each job with a reservation has had, including applications that have left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobAccount>,
}

/// What a job with a reservation has had.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobAccount {
    /// The user whose job it is.
    pub tenant: TenantId,
    /// The tag of its applications.
    pub tag: String,
    /// What they have had since the reservation.
    pub used: JobUsage,
}

/// What one application has had since it came.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationAccount {
    /// The application.
    pub id: ApplicationId,
    /// The name of its program.
    pub name: String,
    /// Its tag, where it has one.
    pub tag: Option<String>,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its sessions.
    pub sessions: usize,
    /// SMs that it has.
    pub sms: u16,
    /// Device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// Launches that have completed.
    pub launches: u64,
    /// Completed CTAs of original work.
    pub ctas: u64,
    /// Whether a launch of it makes no progress.
    pub stuck: bool,
    /// What it may have of the SMs; absent where nothing was said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitlement: Option<Entitlement>,
    /// What became of its latency target, where it has one that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// Counts of time and faults.
    #[serde(flatten)]
    pub usage: Usage,
}

/// What became of the latency target of an application of priority `latency`.
///
/// A request is work without a pause: from the first launch after a pause to the end of the last
/// launch before the next one.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    /// The target.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub target: LatencyTarget,
    /// Requests since the target was set.
    pub seen: u64,
    /// Those of them that took longer.
    pub missed: u64,
    /// The fewest SMs that are known to meet it; absent while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u16>,
}

/// Time and faults of one application.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// SMs × nanoseconds of device time for which it had them.
    pub sm_ns: u64,
    /// Nanoseconds from the calls of its launches until each was the first of its stream.
    pub wait_ns: u64,
    /// Nanoseconds for which its launches were the first of their streams.
    pub run_ns: u64,
    /// The time of its launches whose speed alone on the whole GPU is known, in nanoseconds.
    pub compared_ns: f64,
    /// The time that these would have taken alone on the whole GPU, in nanoseconds.
    pub alone_ns: f64,
    /// `alone_ns` ÷ `compared_ns` of late; `None` where nothing is known.
    pub progress: Option<f64>,
    /// Sessions of it that have failed.
    pub faults: u64,
    /// Nanoseconds of device time for which it had work that keeps to its SMs.
    #[serde(default)]
    pub busy_ns: u64,
    /// Those of them in which it had fewer SMs than its minimum.
    #[serde(default)]
    pub short_ns: u64,
    /// Nanoseconds of device time for which it lent SMs of its minimum: it had no work that keeps
    /// to its SMs, and fewer SMs than its minimum.
    #[serde(default)]
    pub lent_ns: u64,
}

/// Counts over all applications of a GPU since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Sessions that have come.
    pub sessions: u64,
    /// Resizes: decisions and plans that took SMs from an application, by reason.
    pub resizes: BTreeMap<ResizeReason, u64>,
    /// From a resize until every SM has changed hands.
    pub resize_time: Histogram,
    /// From the call of a launch until it is the first of its stream.
    pub launch_wait: Histogram,
    /// From there to its end.
    pub launch_time: Histogram,
    /// Sessions that have failed, by CUDA's name of the error.
    pub faults: BTreeMap<String, u64>,
}

/// Why SMs were taken from an application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeReason {
    /// The set of applications with work changed.
    Membership,
    /// An administrator chose another policy.
    Configuration,
    /// A measuring interval ended.
    Interval,
    /// A plan was pinned or given up.
    Plan,
    /// What an application may have changed.
    Terms,
}

/// Durations by powers of two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Bucket `i` counts durations of up to 2^(i + [`Histogram::FIRST`]) ns that no lower bucket
    /// counts; the last one counts all longer ones, too.
    pub buckets: [u64; Histogram::BUCKETS],
    /// The sum in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// The first bucket ends at 2^10 ns, about a microsecond.
    pub const FIRST: u32 = 10;
    /// The bucket before the last ends at 2^33 ns, about nine seconds.
    pub const BUCKETS: usize = 25;

    /// Counts one duration.
    pub fn count(&mut self, Nanos(nanos): Nanos) {
        // The exponent of the lowest power of two that is not below.
        let exponent = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let bucket = exponent.saturating_sub(Self::FIRST) as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos);
    }

    /// The upper ends of the buckets in nanoseconds, with their counts. The last end is infinite.
    pub fn ends(&self) -> impl Iterator<Item = (f64, u64)> {
        let end = |index: usize| match index + 1 {
            Self::BUCKETS => f64::INFINITY,
            _ => 2.0_f64.powi(i32::try_from(index).unwrap_or(0) + Self::FIRST.cast_signed()),
        };
        self.buckets.iter().enumerate().map(move |(index, count)| (end(index), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_lowest_bucket_that_reaches_it() {
        let mut histogram = Histogram::default();
        for nanos in [0, 1, 1024, 1025, 2048, 1 << 33, (1 << 33) + 1, u64::MAX] {
            histogram.count(Nanos(nanos));
        }
        let counted: Vec<(f64, u64)> = histogram.ends().filter(|(_, count)| *count > 0).collect();
        let last = f64::from(1 << 30) * 8.0;
        assert_eq!(counted, [(1024.0, 3), (2048.0, 2), (last, 1), (f64::INFINITY, 2)]);
    }
}
