//! A trace as stretches of time in which the same applications were on an SM, and as launches.
//!
//! Stretches of one SM do not overlap, so a viewer can draw them on one track. A CTA that came
//! before the trace begins is unknown, and its departure is left out.

use partita_model::{ApplicationId, LaunchId, ResidencyKind, SmId, TraceEntry};
use std::collections::BTreeMap;

/// A stretch of time in which the residents of an SM stayed the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The SM.
    pub sm: SmId,
    /// The applications with a CTA there, in order of id.
    pub applications: Vec<ApplicationId>,
    /// Its first nanosecond of device time.
    pub start: u64,
    /// Its end.
    pub end: u64,
}

/// From the first CTA of a launch to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchTime {
    /// The application.
    pub application: ApplicationId,
    /// The launch.
    pub launch: LaunchId,
    /// The arrival of the first CTA that the trace has.
    pub start: u64,
    /// The departure of the last.
    pub end: u64,
}

/// The device time of an entry, in nanoseconds.
pub fn time_of(entry: &TraceEntry) -> u64 {
    match entry {
        TraceEntry::Residency { change, .. } => change.time.0,
        TraceEntry::Resize { time, .. } => time.0,
    }
}

/// The stretches in order of their ends. A stretch that is still open ends with the trace.
pub fn segments(entries: &[TraceEntry]) -> Vec<Segment> {
    #[derive(Default)]
    struct Sm {
        since: u64,
        residents: BTreeMap<ApplicationId, u64>,
    }
    impl Sm {
        fn close(&mut self, sm: SmId, now: u64) -> Option<Segment> {
            let start = std::mem::replace(&mut self.since, now);
            let applications: Vec<ApplicationId> = self.residents.keys().copied().collect();
            let is_something = !applications.is_empty() && start < now;
            is_something.then_some(Segment { sm, applications, start, end: now })
        }
    }
    let mut sms: BTreeMap<SmId, Sm> = BTreeMap::new();
    let mut found = Vec::new();
    for entry in entries {
        let TraceEntry::Residency { change, application, .. } = entry else { continue };
        let sm = sms.entry(change.sm).or_default();
        let resident = sm.residents.get(application).copied().unwrap_or(0);
        match (change.kind, resident) {
            (ResidencyKind::Start, 0) => {
                found.extend(sm.close(change.sm, change.time.0));
                sm.residents.insert(*application, 1);
            }
            (ResidencyKind::Start, count) => {
                sm.residents.insert(*application, count + 1);
            }
            (ResidencyKind::Exit, 0) => {}
            (ResidencyKind::Exit, 1) => {
                found.extend(sm.close(change.sm, change.time.0));
                sm.residents.remove(application);
            }
            (ResidencyKind::Exit, count) => {
                sm.residents.insert(*application, count - 1);
            }
        }
    }
    let end = entries.last().map_or(0, time_of);
    found.extend(sms.iter_mut().filter_map(|(sm, state)| state.close(*sm, end)));
    found
}

/// The launches, in order of application and launch.
pub fn launches(entries: &[TraceEntry]) -> Vec<LaunchTime> {
    let mut found: BTreeMap<(ApplicationId, LaunchId), (u64, u64)> = BTreeMap::new();
    for entry in entries {
        let TraceEntry::Residency { change, application, launch } = entry else { continue };
        let (_, end) =
            found.entry((*application, *launch)).or_insert((change.time.0, change.time.0));
        *end = (*end).max(change.time.0);
    }
    let launch =
        |((application, launch), (start, end))| LaunchTime { application, launch, start, end };
    found.into_iter().map(launch).collect()
}

#[cfg(test)]
pub mod samples {
    //! Traces for tests.

    use partita_model::{
        ApplicationId, CopyKind, LaunchId, Nanos, OperationId, ResidencyChange, ResidencyKind,
        SessionId, SmId, SmSet, StreamId, Timekeeping, TraceEntry, TraceReport, TracedCopy,
    };

    /// CTAs of three applications that come to four SMs and leave them, by a seed, one resize, and
    /// three copies, one of them by an application without CTAs.
    pub fn trace(seed: u64) -> TraceReport {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 8) % below
        };
        let mut here: Vec<(u16, u32, u64)> = Vec::new();
        let mut entries = Vec::new();
        let mut time = 1000;
        for step in 0..200 {
            time += draw(50);
            let leaves = !here.is_empty() && draw(2) == 0;
            let ((sm, application, launch), kind) = if leaves {
                let index = usize::try_from(draw(here.len() as u64)).unwrap();
                (here.swap_remove(index), ResidencyKind::Exit)
            } else {
                let application = u32::try_from(1 + draw(3)).unwrap();
                let cta = (u16::try_from(draw(4)).unwrap(), application, step / 40);
                here.push(cta);
                (cta, ResidencyKind::Start)
            };
            entries.push(TraceEntry::Residency {
                change: ResidencyChange {
                    time: Nanos(time),
                    sm: SmId(sm),
                    grid: OperationId(1),
                    cta: step,
                    kind,
                },
                application: ApplicationId(application),
                launch: LaunchId(launch),
            });
        }
        entries.push(TraceEntry::Resize {
            time: Nanos(time),
            application: ApplicationId(1),
            from: SmSet::range(0, 4),
            to: SmSet::range(0, 2),
        });
        let copies = [CopyKind::HostToDevice, CopyKind::HostToDevice, CopyKind::Fill];
        let copy = |(index, kind): (u64, CopyKind)| TracedCopy {
            application: ApplicationId(if index == 2 { 4 } else { 1 }),
            session: SessionId(9),
            stream: StreamId(index),
            operation: OperationId(50 + index),
            kind,
            bytes: 100 + index,
            start: Nanos(1000 + 100 * index),
            end: Nanos(1100 + 100 * index),
        };
        let copies = (0..).zip(copies).map(copy).collect();
        TraceReport { copies, ..TraceReport::new(Timekeeping::Simulated, entries) }
    }

    /// Nanoseconds in which an application had a CTA on an SM, counted in another way: at each
    /// nanosecond the CTAs that have come and not left.
    pub fn time_on(trace: &TraceReport, sm: u16, application: u32) -> u64 {
        let changes: Vec<(u64, bool)> = trace
            .entries
            .iter()
            .filter_map(|entry| match entry {
                TraceEntry::Residency { change, application: whose, .. } => {
                    let is_it = change.sm.0 == sm && whose.0 == application;
                    is_it.then_some((change.time.0, change.kind == ResidencyKind::Start))
                }
                TraceEntry::Resize { .. } => None,
            })
            .collect();
        let last = trace.entries.last().map_or(0, super::time_of);
        let is_there = |now: u64| {
            let of = |start| changes.iter().filter(|c| c.0 <= now && c.1 == start).count();
            of(true) > of(false)
        };
        (0..last).filter(|now| is_there(*now)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_the_time_of_the_entries_and_do_not_overlap() {
        for seed in 1..5 {
            let trace = samples::trace(seed);
            let segments = segments(&trace.entries);
            for sm in 0..4 {
                let mut of_sm: Vec<&Segment> =
                    segments.iter().filter(|segment| segment.sm == SmId(sm)).collect();
                of_sm.sort_by_key(|segment| segment.start);
                assert!(of_sm.windows(2).all(|pair| pair[0].end <= pair[1].start));
                for application in 1..4 {
                    let with = of_sm
                        .iter()
                        .filter(|s| s.applications.contains(&ApplicationId(application)));
                    let time: u64 = with.map(|segment| segment.end - segment.start).sum();
                    assert_eq!(time, samples::time_on(&trace, sm, application));
                }
            }
        }
    }
}
