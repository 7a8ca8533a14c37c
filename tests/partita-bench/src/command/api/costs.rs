//! What events and metrics cost launches: CPU time of the thread that owns engine and device.
//!
//! The rate of one client's launches tells little: it depends on whether client and engine wait for
//! each other, which changes from run to run. The engine's CPU time for a launch does not, and is
//! what a reader can take from launches. Spans with and without a reader alternate, so that changes
//! of the processor's clock concern both alike. Programs come and go in all of them, so that there
//! are events.

use super::{Api, ApiBenchError, CTAS, io};
use crate::wire::{Client, WireError, cpu_nanos};
use partita_cli::report::Metric;
use partita_client::Session;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The length of a span: short, so that both spans of a pair see the same processor.
const SPAN: Duration = Duration::from_millis(50);
/// The pause between two programs that come.
const BETWEEN: Duration = Duration::from_millis(50);
/// Launches between two synchronisations.
const BATCH: u64 = 1000;

/// What a span of launches took.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Nanoseconds of the engine's thread for a launch.
    nanos: f64,
    /// Launches a second.
    rate: f64,
    /// How often the engine's thread slept for each 1,000 launches.
    sleeps: f64,
}

/// Measures in pairs of spans without and with readers.
pub(super) fn measure(
    folder: &Path,
    pairs: usize,
    metrics: &mut Vec<Metric>,
) -> Result<(), ApiBenchError> {
    let api = Api(folder.join("api.sock"));
    let pid = gpu_of(&api.get("GET /v1/gpus")?)?;
    let client = Client::connect(folder)?;
    let (mut quiet, mut read) = (Vec::new(), Vec::new());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| come_and_go(folder, &stop));
        let result = (0..pairs).try_for_each(|_| -> Result<(), ApiBenchError> {
            quiet.push(launch_for(&client, pid, SPAN)?);
            read.push(beside_readers(&api, || launch_for(&client, pid, SPAN))?);
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        coming.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        result
    })?;
    let part = |costs: &[Cost], of: fn(&Cost) -> f64| median(costs.iter().map(of).collect());
    for (name, costs) in [("without readers", &quiet), ("beside events and metrics", &read)] {
        let nanos = part(costs, |cost| cost.nanos);
        metrics.push(Metric::plain(format!("engine's CPU time for a launch, {name}"), nanos, "ns"));
        let rate = part(costs, |cost| cost.rate);
        metrics.push(Metric::plain(format!("launches of one client, {name}"), rate, "/s"));
        let sleeps = part(costs, |cost| cost.sleeps);
        let name = format!("sleeps of the engine for 1,000 launches, {name}");
        metrics.push(Metric::plain(name, sleeps, ""));
    }
    let ratios = quiet.iter().zip(&read).map(|(quiet, read)| read.nanos / quiet.nanos);
    let mut ratios: Vec<f64> = ratios.map(|ratio| 100.0 * (ratio - 1.0)).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |quarter: usize| ratios.get(ratios.len() * quarter / 4).copied().unwrap_or_default();
    metrics.push(Metric::at_most("cost of events and metrics, median", at(2), "%", 1.0));
    metrics.push(Metric::plain("cost of events and metrics, first quartile", at(1), "%"));
    metrics.push(Metric::plain("cost of events and metrics, third quartile", at(3), "%"));
    Ok(())
}

/// Launches for a span of time.
fn launch_for(client: &Client, pid: u32, span: Duration) -> Result<Cost, ApiBenchError> {
    let (start, before, slept) = (Instant::now(), cpu_nanos(pid)?, sleeps(pid)?);
    let mut launched = 0;
    while start.elapsed() < span {
        for _ in 0..BATCH {
            client.launch(CTAS).map_err(WireError::from)?;
        }
        client.session.synchronize(None).map_err(WireError::from)?;
        launched += BATCH;
    }
    let (took, nanos) = (start.elapsed(), cpu_nanos(pid)? - before);
    let launched = launched as f64;
    Ok(Cost {
        nanos: nanos as f64 / launched,
        rate: launched / took.as_secs_f64(),
        sleeps: 1000.0 * (sleeps(pid)? - slept) as f64 / launched,
    })
}

/// Acts while a reader is told events, and another one reads the metrics once.
fn beside_readers<T>(
    api: &Api,
    act: impl FnOnce() -> Result<T, ApiBenchError>,
) -> Result<T, ApiBenchError> {
    let mut reader = api.reader()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let events = scope.spawn(|| -> Result<(), ApiBenchError> {
            while !stop.load(Ordering::Relaxed) {
                reader.wait_for("event: session_came")?;
            }
            Ok(())
        });
        let scrape = scope.spawn(|| api.get("GET /metrics").map(drop));
        let result = act();
        stop.store(true, Ordering::Relaxed);
        for thread in [events, scrape] {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result
    })
}

/// Programs that come and go at once.
fn come_and_go(folder: &Path, stop: &AtomicBool) -> Result<(), ApiBenchError> {
    while !stop.load(Ordering::Relaxed) {
        drop(Session::connect(folder).map_err(WireError::from)?);
        std::thread::sleep(BETWEEN);
    }
    Ok(())
}

/// The process of the data plane. Its main thread owns engine and device.
fn gpu_of(gpus: &str) -> Result<u32, ApiBenchError> {
    let refused = || ApiBenchError::Refused { request: "GET /v1/gpus".into(), answer: gpus.into() };
    let gpus: serde_json::Value = serde_json::from_str(gpus).map_err(|_| refused())?;
    gpus[0]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).ok_or_else(refused)
}

/// How often a process's main thread has given up its processor to wait.
fn sleeps(pid: u32) -> Result<u64, ApiBenchError> {
    let file = format!("/proc/{pid}/task/{pid}/status");
    let text = std::fs::read_to_string(&file).map_err(io(&file))?;
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.and_then(|line| line.trim().parse().ok()).unwrap_or_default())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
