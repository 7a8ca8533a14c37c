//! Speeds of programs from what was seen of them, and what follows from speeds.

use partita_model::{ApplicationId, DecisionRecord, ResidencyKind, SmId, TraceEntry, TraceReport};
use std::collections::BTreeMap;

/// What was seen of the programs: at each moment the CTAs that each had completed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Track {
    samples: Vec<(u64, Vec<u64>)>,
}

impl Track {
    /// Adds what was seen at a moment of device time.
    pub fn add(&mut self, time_nanos: u64, ctas: Vec<u64>) {
        if self.samples.last().is_none_or(|(last, _)| *last < time_nanos) {
            self.samples.push((time_nanos, ctas));
        }
    }

    /// The last moment.
    pub fn end(&self) -> u64 {
        self.samples.last().map_or(0, |(time, _)| *time)
    }

    /// CTAs per nanosecond of a program between two moments: from the first time its count was seen
    /// to grow to the last, so that neither end cuts a round of CTAs in two.
    pub fn speed(&self, program: usize, from: u64, to: u64) -> Option<f64> {
        let within = self.samples.iter().filter(|(time, _)| (from..=to).contains(time));
        let counts: Vec<(u64, u64)> =
            within.filter_map(|(time, ctas)| Some((*time, *ctas.get(program)?))).collect();
        let mut edges = counts.windows(2).filter(|pair| pair[1].1 > pair[0].1).map(|pair| pair[1]);
        let (first_time, first) = edges.next()?;
        let (last_time, last) = edges.next_back()?;
        Some(float(last - first) / float(last_time - first_time))
    }
}

/// System throughput: the sum of speeds ÷ speeds alone (Eyerman & Eeckhout, IEEE Micro 2008).
pub fn stp(relative: &[f64]) -> f64 {
    relative.iter().sum()
}

/// Average normalised turnaround time: the mean of speeds alone ÷ speeds (Eyerman & Eeckhout, IEEE
/// Micro 2008).
pub fn antt(relative: &[f64]) -> f64 {
    let slowdowns: f64 = relative.iter().map(|relative| 1.0 / relative).sum();
    slowdowns / float(relative.len().max(1) as u64)
}

/// CTAs per nanosecond of an application whose kernels run as they were written: those that left
/// between two moments, as far back as the trace goes.
pub fn leaving_speed(
    trace: &TraceReport,
    application: ApplicationId,
    from: u64,
    to: u64,
) -> Option<f64> {
    let begin = match trace.entries.first() {
        Some(TraceEntry::Residency { change, .. }) if trace.dropped > 0 => change.time.0,
        Some(TraceEntry::Resize { time, .. }) if trace.dropped > 0 => time.0,
        _ => 0,
    };
    let from = from.max(begin);
    let left = trace.entries.iter().filter(|entry| match entry {
        TraceEntry::Residency { change, application: whose, .. } => {
            *whose == application
                && change.kind == ResidencyKind::Exit
                && (from..to).contains(&change.time.0)
        }
        TraceEntry::Resize { .. } => false,
    });
    let left = u64::try_from(left.count()).ok()?;
    (to > from).then(|| float(left) / float(to - from))
}

/// From the moment at which the last search began to its end, by the decisions that are remembered.
pub fn search_time(decisions: &[DecisionRecord]) -> Option<(u64, u64)> {
    let end = decisions.iter().rposition(|record| record.stage == "watch")?;
    let begin = decisions[..end].iter().rfind(|record| record.stage == "profile")?;
    Some((begin.time.0, decisions[end].time.0))
}

/// How fast resizes of running kernels were, in nanoseconds of device time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResizeLatencies {
    /// For each resize that took SMs from an application with workers there: until its last one had
    /// left.
    pub leave: Vec<u64>,
    /// For each resize that gave SMs to an application that had work: until its first worker there.
    pub come: Vec<u64>,
}

/// Reads latencies out of a trace.
pub fn resize_latencies(trace: &TraceReport) -> ResizeLatencies {
    /// A resize that is watched: SMs lost with the workers that were there, or SMs gained.
    struct Watched {
        application: ApplicationId,
        since: u64,
        left: BTreeMap<SmId, u32>,
        gained: Option<partita_model::SmSet>,
    }
    let mut live: BTreeMap<(ApplicationId, SmId), u32> = BTreeMap::new();
    let mut watched: Vec<Watched> = Vec::new();
    let mut found = ResizeLatencies::default();
    for entry in &trace.entries {
        match entry {
            TraceEntry::Resize { time, application, from, to } => {
                let left: BTreeMap<SmId, u32> = from
                    .difference(to)
                    .iter()
                    .filter_map(|sm| {
                        Some((sm, *live.get(&(*application, sm)).filter(|count| **count > 0)?))
                    })
                    .collect();
                let gained = Some(to.difference(from)).filter(|gained| !gained.is_empty());
                watched.push(Watched { application: *application, since: time.0, left, gained });
            }
            TraceEntry::Residency { change, application, .. } => {
                let count = live.entry((*application, change.sm)).or_default();
                let time = change.time.0;
                match change.kind {
                    ResidencyKind::Start => *count += 1,
                    ResidencyKind::Exit => *count = count.saturating_sub(1),
                }
                for resize in watched.iter_mut().filter(|resize| resize.application == *application)
                {
                    if change.kind == ResidencyKind::Start {
                        if resize.gained.is_some_and(|gained| gained.contains(change.sm)) {
                            found.come.push(time.saturating_sub(resize.since));
                            resize.gained = None;
                        }
                    } else if let Some(left) = resize.left.get_mut(&change.sm) {
                        *left -= 1;
                        if *left == 0 {
                            resize.left.remove(&change.sm);
                            if resize.left.is_empty() {
                                found.leave.push(time.saturating_sub(resize.since));
                            }
                        }
                    }
                }
                watched.retain(|resize| resize.gained.is_some() || !resize.left.is_empty());
            }
        }
    }
    found
}

/// A count as a number.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of CTAs, nanoseconds, nanojoules are far below 2^52"
)]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{LaunchId, Nanos, OperationId, ResidencyChange, SmSet, Timekeeping};

    #[test]
    fn speeds_are_between_edges() {
        let mut track = Track::default();
        // A program that completes ten CTAs at once every 100 ns, and one that does nothing.
        for time in (0..1000).step_by(30) {
            track.add(time, vec![time / 100 * 10, 7]);
        }
        let speed = track.speed(0, 0, 1000).unwrap();
        assert!((speed - 0.1).abs() < 0.005, "{speed}");
        assert_eq!(track.speed(1, 0, 1000), None);
        assert_eq!(track.speed(0, 0, 150), None, "one edge is no interval");
    }

    #[test]
    fn throughput_and_turnaround() {
        assert!((stp(&[0.5, 0.25]) - 0.75).abs() < 1e-12);
        assert!((antt(&[0.5, 0.25]) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn latencies_are_those_of_the_last_to_leave_and_the_first_to_come() {
        let residency = |time, application, sm, kind| TraceEntry::Residency {
            change: ResidencyChange {
                time: Nanos(time),
                sm: SmId(sm),
                grid: OperationId(1),
                cta: 0,
                kind,
            },
            application: ApplicationId(application),
            launch: LaunchId(1),
        };
        let resize = |time, application, from: &str, to: &str| TraceEntry::Resize {
            time: Nanos(time),
            application: ApplicationId(application),
            from: from.parse::<SmSet>().unwrap(),
            to: to.parse::<SmSet>().unwrap(),
        };
        use ResidencyKind::{Exit, Start};
        let entries = vec![
            residency(0, 1, 0, Start),
            residency(0, 1, 1, Start),
            residency(0, 1, 1, Start),
            resize(100, 1, "0-1", "0"),
            residency(110, 1, 1, Exit),
            residency(115, 1, 0, Exit),
            residency(130, 1, 1, Exit),
            resize(140, 2, "none", "1"),
            residency(150, 2, 0, Start),
            residency(165, 2, 1, Start),
            residency(170, 2, 1, Start),
        ];
        let trace = TraceReport::new(Timekeeping::Simulated, entries);
        assert_eq!(resize_latencies(&trace), ResizeLatencies { leave: vec![30], come: vec![25] });
    }
}
