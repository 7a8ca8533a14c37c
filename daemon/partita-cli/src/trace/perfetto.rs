//! A trace as a file for Perfetto and other viewers, in the JSON trace event format.
//!
//! Process 0 has one track for each SM, process 1 the policy's decisions, and process 100 + ID each
//! application: its launches, its copies on a track for each kind, the number of its SMs, and the
//! moments at which borders moved. Times are microseconds of device time, with the nanoseconds as
//! decimals.
//!
//! Source: "Trace Event Format", the document of Chrome's trace viewer, which Perfetto imports.

use super::segments::{LaunchTime, Segment, launches, segments};
use partita_model::{
    ApplicationId, DecisionRecord, GpuStatus, Timekeeping, TraceEntry, TraceReport, TracedCopy,
};
use partita_policy::explain;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The process of the SMs.
const SMS: u32 = 0;
/// The process of the policy.
const POLICY: u32 = 1;
/// Processes of applications begin here.
const APPLICATIONS: u32 = 100;

/// The file's contents.
pub fn render(trace: &TraceReport, status: &GpuStatus) -> Vec<u8> {
    let names = Names::of(status);
    let segments = segments(&trace.entries);
    let launches = launches(&trace.entries);
    let mut events = titles(&segments, &launches, trace, status, &names);
    events.extend(segments.iter().map(|segment| segment_event(segment, &names)));
    events.extend(launches.iter().flat_map(launch_events));
    events.extend(trace.copies.iter().flat_map(copy_events));
    events.extend(trace.entries.iter().flat_map(resize_events));
    events.extend(status.policy.decisions.iter().map(decision_event));
    let file = json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "gpu": status.gpu.name,
            "number": status.gpu.number,
            "dropped entries": trace.dropped,
            "dropped copies": trace.dropped_copies,
            "time is kept": trace.timekeeping != Timekeeping::Off,
        },
    });
    file.to_string().into_bytes()
}

/// What applications are called.
struct Names(BTreeMap<ApplicationId, String>);

impl Names {
    fn of(status: &GpuStatus) -> Names {
        let named = |application: &partita_model::ApplicationReport| {
            (application.id, format!("{} ({})", application.id, application.name))
        };
        Names(status.applications.iter().map(named).collect())
    }

    /// An application that has ended has its id only.
    fn get(&self, id: ApplicationId) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Nanoseconds as microseconds. A trace is shorter than 2^53 ns (104 days).
#[expect(clippy::cast_precision_loss, reason = "device time stays below 2^53 ns")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn titles(
    segments: &[Segment],
    launches: &[LaunchTime],
    trace: &TraceReport,
    status: &GpuStatus,
    names: &Names,
) -> Vec<Value> {
    let process = |pid: u32, name: String, order: u32| {
        let title = json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}});
        let sort = json!({"ph": "M", "pid": pid, "name": "process_sort_index",
            "args": {"sort_index": order}});
        [title, sort]
    };
    let mut titles = Vec::new();
    titles.extend(process(SMS, format!("SMs of {}", status.gpu.number), 0));
    titles.extend(process(POLICY, "Policy".into(), 1));
    let sms: BTreeSet<_> = segments.iter().map(|segment| segment.sm).collect();
    titles.extend(sms.iter().map(|sm| {
        json!({"ph": "M", "pid": SMS, "tid": sm.0, "name": "thread_name",
            "args": {"name": sm.to_string()}})
    }));
    let resized = trace.entries.iter().filter_map(|entry| match entry {
        TraceEntry::Resize { application, .. } => Some(*application),
        TraceEntry::Residency { .. } => None,
    });
    let copied = trace.copies.iter().map(|copy| copy.application);
    let applications: BTreeSet<ApplicationId> =
        launches.iter().map(|launch| launch.application).chain(copied).chain(resized).collect();
    for id in applications {
        titles.extend(process(APPLICATIONS + id.0, names.get(id), APPLICATIONS + id.0));
    }
    titles
}

fn segment_event(segment: &Segment, names: &Names) -> Value {
    let whose: Vec<String> = segment.applications.iter().map(|id| names.get(*id)).collect();
    json!({"ph": "X", "cat": "sm", "pid": SMS, "tid": segment.sm.0, "name": whose.join(" + "),
        "ts": micros(segment.start), "dur": micros(segment.end - segment.start),
        "args": {"applications": segment.applications}})
}

/// Launches of an application may overlap, so they are asynchronous events.
fn launch_events(launch: &LaunchTime) -> [Value; 2] {
    let event = |phase: &str, time: u64| {
        json!({"ph": phase, "cat": "launch", "id": launch.launch,
            "pid": APPLICATIONS + launch.application.0, "tid": 0,
            "name": launch.launch.to_string(), "ts": micros(time)})
    };
    [event("b", launch.start), event("e", launch.end)]
}

/// Copies of one application may overlap, in several streams. Viewers put asynchronous events of
/// one name on one track.
fn copy_events(copy: &TracedCopy) -> [Value; 2] {
    let event = |phase: &str, time: u64| {
        json!({"ph": phase, "cat": "copy", "id": copy.operation,
            "pid": APPLICATIONS + copy.application.0, "tid": 0,
            "name": copy.kind.to_string(), "ts": micros(time),
            "args": {"bytes": copy.bytes, "session": copy.session, "stream": copy.stream}})
    };
    [event("b", copy.start.0), event("e", copy.end.0)]
}

/// The mark of a border that moved, and the number of SMs from then on.
fn resize_events(entry: &TraceEntry) -> Vec<Value> {
    let TraceEntry::Resize { time, application, from, to } = entry else { return Vec::new() };
    let pid = APPLICATIONS + application.0;
    vec![
        json!({"ph": "i", "s": "p", "cat": "resize", "pid": pid, "tid": 0,
            "name": format!("SMs {from} -> {to}"), "ts": micros(time.0),
            "args": {"application": application, "from": from, "to": to}}),
        json!({"ph": "C", "cat": "resize", "pid": pid, "name": "SMs", "ts": micros(time.0),
            "args": {"SMs": to.len()}}),
    ]
}

fn decision_event(decision: &DecisionRecord) -> Value {
    json!({"ph": "i", "s": "p", "cat": "decision", "pid": POLICY, "tid": 0,
        "name": format!("decision {} ({})", decision.sequence, decision.stage),
        "ts": micros(decision.time.0), "args": {"why": explain(decision).join(" ")}})
}

#[cfg(test)]
mod tests {
    use super::super::segments::samples;
    use super::*;

    /// Nanoseconds of a number of the file.
    fn nanos(value: &Value) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let nanos = (value.as_f64().unwrap() * 1000.0).round() as u64;
        nanos
    }

    #[test]
    fn the_file_says_what_the_trace_says() {
        let trace = samples::trace(7);
        let status = crate::watch::samples::gpu(0);
        let file: Value = serde_json::from_slice(&render(&trace, &status)).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let of = |phase: &'static str, cat: &'static str| {
            events.iter().filter(move |event| event["ph"] == phase && event["cat"] == cat)
        };
        for sm in 0..4_u16 {
            for application in 1..4_u32 {
                let time: u64 = of("X", "sm")
                    .filter(|event| event["tid"] == sm)
                    .filter(|event| {
                        let whose = event["args"]["applications"].as_array().unwrap();
                        whose.contains(&json!(application))
                    })
                    .map(|event| nanos(&event["dur"]))
                    .sum();
                assert_eq!(time, samples::time_on(&trace, sm, application), "{sm} {application}");
            }
        }
        let resizes: Vec<TraceEntry> = of("i", "resize")
            .map(|event| TraceEntry::Resize {
                time: partita_model::Nanos(nanos(&event["ts"])),
                application: serde_json::from_value(event["args"]["application"].clone()).unwrap(),
                from: event["args"]["from"].as_str().unwrap().parse().unwrap(),
                to: event["args"]["to"].as_str().unwrap().parse().unwrap(),
            })
            .collect();
        let expected = trace.entries.iter().filter(|e| matches!(e, TraceEntry::Resize { .. }));
        assert_eq!(resizes.iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        assert_eq!((of("b", "launch").count(), of("e", "launch").count()), {
            let count = launches(&trace.entries).len();
            (count, count)
        });
        let copies = of("b", "copy").zip(of("e", "copy")).map(|(begin, end)| {
            assert_eq!((&begin["id"], &begin["name"]), (&end["id"], &end["name"]));
            let bytes = begin["args"]["bytes"].as_u64().unwrap();
            let (pid, name) = (begin["pid"].as_u64().unwrap(), begin["name"].as_str().unwrap());
            (pid, name, bytes, nanos(&begin["ts"]), nanos(&end["ts"]))
        });
        let expected = [
            (101, "host to device", 100, 1000, 1100),
            (101, "host to device", 101, 1100, 1200),
            (104, "fill", 102, 1200, 1300),
        ];
        assert_eq!(copies.collect::<Vec<_>>(), expected);
        let decision = of("i", "decision").next().unwrap();
        assert_eq!(nanos(&decision["ts"]), 1_200_000);
        assert!(decision["args"]["why"].as_str().unwrap().starts_with("Decision 8"));
        let names: Vec<&Value> = events.iter().map(|event| &event["args"]["name"]).collect();
        assert!(names.contains(&&json!("application 1 (poly)")), "{names:?}");
        assert!(names.contains(&&json!("application 3")), "it has ended: {names:?}");
        assert!(names.contains(&&json!("application 4")), "it only copied: {names:?}");
    }
}
