//! What the page shows, as `/v1/view` has it: the daemon's status with speeds and sentences.
//!
//! All pages share one reading of the daemon in [`FRESH`], so pages add nothing to its work.

use crate::api::{ApiError, Target};
use crate::terms;
use crate::watch::speeds::Speeds;
use partita_model::{ApplicationId, GpuNumber, GpuStatus, StatusReport};
use partita_policy::explain;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The age to which a reading serves further pages.
const FRESH: Duration = Duration::from_millis(500);

/// The answer of `/v1/view`.
#[derive(Serialize)]
struct View {
    /// The daemon's version.
    version: String,
    /// Its GPUs, in order of number.
    gpus: Vec<GpuView>,
}

/// One GPU.
#[derive(Serialize)]
struct GpuView {
    /// What `/v1/status` says of it.
    #[serde(flatten)]
    status: GpuStatus,
    /// The sentences of each decision that the daemon remembers, oldest first.
    paragraphs: Vec<Vec<String>>,
    /// The pace of each application.
    paces: Vec<PaceView>,
}

/// An application's pace over the last readings; `null` before the second reading.
#[derive(Serialize)]
struct PaceView {
    application: ApplicationId,
    speed: Option<f64>,
    share: Option<f64>,
    state: &'static str,
    /// What was said of the application, and what became of its target.
    terms: String,
}

/// The last reading.
pub struct Reader {
    target: Target,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    last: Option<(Instant, Vec<u8>)>,
    speeds: BTreeMap<GpuNumber, Speeds>,
}

impl Reader {
    /// Reads from this daemon.
    pub fn new(target: Target) -> Reader {
        Reader { target, seen: Mutex::default() }
    }

    /// The answer of `/v1/view` as JSON. Blocks until the daemon answers.
    pub fn view(&self) -> Result<Vec<u8>, ApiError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((time, bytes)) = &seen.last
            && time.elapsed() < FRESH
        {
            return Ok(bytes.clone());
        }
        let report: StatusReport = self.target.get("/v1/status")?;
        let view = view(report, &mut seen.speeds);
        // Maps with text as keys: this cannot fail.
        let bytes = serde_json::to_vec(&view).unwrap_or_default();
        seen.last = Some((Instant::now(), bytes.clone()));
        Ok(bytes)
    }
}

fn view(mut report: StatusReport, speeds: &mut BTreeMap<GpuNumber, Speeds>) -> View {
    let others = std::mem::take(&mut report.others);
    let version = report.version.clone();
    let gpus = std::iter::once(GpuStatus::from(report)).chain(others);
    let gpus = gpus.map(|status| {
        let speeds = speeds.entry(status.gpu.number).or_default();
        speeds.add(&status);
        let paces = speeds.rows(&status).map(|row| PaceView {
            application: row.application.id,
            speed: row.pace.and_then(|pace| pace.speed),
            share: row.pace.map(|pace| pace.share),
            state: row.state(),
            terms: terms::of_application(row.application).unwrap_or_default(),
        });
        let paces = paces.collect();
        let paragraphs = status.policy.decisions.iter().map(explain).collect();
        GpuView { paragraphs, paces, status }
    });
    View { version, gpus: gpus.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::samples;
    use partita_model::{Entitlement, LatencyTarget, Nanos, TargetReport};

    #[test]
    fn a_view_has_the_status_and_more() {
        let mut report = samples::report();
        report.others.push(samples::gpu(1));
        let mut speeds = BTreeMap::new();
        let json = serde_json::to_value(view(report.clone(), &mut speeds)).unwrap();
        assert_eq!(json["gpus"][1]["gpu"]["number"], 1);
        assert_eq!(json["gpus"][0]["partitions"][0]["sms"], "0-11");
        assert_eq!(json["gpus"][0]["paces"][0]["share"], serde_json::Value::Null);
        assert!(json["gpus"][0]["paragraphs"][0][0].as_str().unwrap().starts_with("Decision 8"));
        report.gpu.device_time_ns += 100;
        let target = LatencyTarget::of(Nanos(5_000_000));
        let said = Entitlement { min: 8, target, ..Entitlement::default() };
        report.applications[0].entitlement = Some(said);
        report.applications[0].target =
            target.map(|target| TargetReport { target, seen: 10, missed: 1, sms: None });
        let json = serde_json::to_value(view(report, &mut speeds)).unwrap();
        assert_eq!(json["gpus"][0]["paces"][0]["share"], 0.5);
        assert_eq!(json["gpus"][0]["paces"][0]["state"], "idle");
        assert_eq!(json["gpus"][0]["paces"][0]["terms"], "8+ SMs, target 5ms (kept 9 of 10)");
    }
}
