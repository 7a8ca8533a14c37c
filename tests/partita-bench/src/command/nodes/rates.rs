//! How many reservations a second a daemon makes and releases before they are late.

use super::load::paced;
use super::{Api, ApiBenchError, Metric, cpu_time, daemon_of};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Reservations that stand all the time. Each change writes the whole book.
const STANDING: u64 = 100;
/// Schedulers that ask at a time; each reserves one SM, and the GPU has 132.
const SCHEDULERS: u64 = 16;
/// Pairs of requests a second of the first steps, which are measured whatever they take. Each later
/// step has half as many again as the step before it.
const RATES: [f64; 4] = [1.0, 5.0, 10.0, 20.0];
const GROWTH: f64 = 1.5;
/// Pairs at least, for the 99th percentile of a low rate.
const LEAST: u32 = 30;
/// The part of a rate that has to be reached.
const REACHED: f64 = 0.95;

/// One SM for an hour.
fn make(api: &Api, id: &str) -> Result<(), ApiBenchError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let expires = now.as_secs() + 3600;
    let body =
        format!("{{\"tenant\":0,\"job\":\"{id}\",\"gpu\":0,\"sms\":1,\"expires\":{expires}}}");
    api.change("PUT", &format!("/v1/reservations/{id}"), &body)
}

fn release(api: &Api, id: &str) -> Result<(), ApiBenchError> {
    api.change("DELETE", &format!("/v1/reservations/{id}"), "")
}

/// What a prolog and an epilog do, without the job.
pub(super) fn make_and_release(api: &Api, id: &str) -> Result<(), ApiBenchError> {
    make(api, id)?;
    release(api, id)
}

/// Raises the rate until the 99th percentile passes the bound, for `steps` steps after the first
/// ones at most.
pub(super) fn measure(
    api: &Api,
    span: Duration,
    steps: u32,
    bound: Duration,
    metrics: &mut Vec<Metric>,
) -> Result<(), ApiBenchError> {
    (0..STANDING).try_for_each(|number| make(api, &format!("standing-{number}")))?;
    let pid = daemon_of(&api.get("GET /v1/gpus")?)?;
    let (mut best, mut in_bound) = (0.0, true);
    let further = std::iter::successors(Some(RATES[3] * GROWTH), |rate| Some(rate * GROWTH));
    let rates = RATES.into_iter().chain(further.take(steps as usize));
    for rate in rates {
        let span = span.max(Duration::from_secs_f64(f64::from(LEAST.min(8 * steps)) / rate));
        let (before, start) = (cpu_time(pid)?, Instant::now());
        let mut times = at_rate(api, span, rate)?;
        let took = start.elapsed().as_secs_f64();
        let part = 100.0 * cpu_time(pid)?.saturating_sub(before).as_secs_f64() / took;
        times.sort_unstable();
        let reached = times.len() as f64 / took.max(span.as_secs_f64());
        let high = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let name = format!("reservations at {rate:.0}/s");
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        metrics.push(Metric::plain(format!("{name}: median"), millis(median), "ms"));
        metrics.push(Metric::plain(format!("{name}: 99th percentile"), millis(high), "ms"));
        metrics.push(Metric::plain(format!("{name}: CPU of partitad, of one core"), part, "%"));
        in_bound &= high <= bound && reached >= REACHED * rate;
        if in_bound {
            best = rate;
        } else if rate >= RATES[3] {
            break;
        }
    }
    let name = format!("reservations made and released within {} ms", bound.as_millis());
    metrics.push(Metric::plain(name, best, "/s"));
    (0..STANDING).try_for_each(|number| release(api, &format!("standing-{number}")))
}

/// Pairs of requests by several schedulers, together at this rate.
fn at_rate(api: &Api, span: Duration, rate: f64) -> Result<Vec<Duration>, ApiBenchError> {
    std::thread::scope(|scope| {
        let begin = |scheduler: u64| {
            scope.spawn(move || {
                let each = rate / SCHEDULERS as f64;
                // Schedulers are not in step with each other.
                std::thread::sleep(Duration::from_secs_f64(scheduler as f64 / rate));
                paced(span, each, |_| make_and_release(api, &format!("job-{scheduler}")))
            })
        };
        let threads: Vec<_> = (0..SCHEDULERS).map(begin).collect();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(times)
    })
}
