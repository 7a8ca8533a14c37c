//! The share of one node in the load of a cluster, all kinds of requests at once.
//!
//! The rates are higher than those of a cluster in operation: a scrape each second stands for
//! several scrapers, ten polls of each kind a second for several central schedulers.

use super::{Api, ApiBenchError, CTAS, Client, Metric, WireError, cpu_time, daemon_of, io, push};
use super::{cursor, rates};
use partita_client::Session;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Requests that read: what, how often a second, request.
const READS: [(&str, f64, &str); 4] = [
    ("scrape", 1.0, "GET /metrics"),
    ("poll of the state", 10.0, "GET /v1/status"),
    ("poll of the partitions", 10.0, "GET /v1/partitions"),
    ("poll of the reservations", 10.0, "GET /v1/reservations"),
];
/// Reservations that are made and released a second.
const RESERVATIONS: f64 = 10.0;
/// Programs that come and go a second.
const PROGRAMS: f64 = 5.0;
/// Launches a second, by one application after the other.
const LAUNCHES: f64 = 500.0;

/// What is played, and for how long.
pub(super) struct Load {
    pub readers: u16,
    pub span: Duration,
}

/// Acts at even distances for a span of time. Each result has the time from when the act was due.
pub(super) fn paced(
    span: Duration,
    per_second: f64,
    mut act: impl FnMut(u64) -> Result<(), ApiBenchError>,
) -> Result<Vec<Duration>, ApiBenchError> {
    let start = Instant::now();
    let mut times = Vec::new();
    for number in 0.. {
        let due = Duration::from_secs_f64(number as f64 / per_second);
        // An act that is very late would prolong the span.
        if due >= span || start.elapsed() > 2 * span {
            break;
        }
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        act(number)?;
        times.push(start.elapsed().saturating_sub(due));
    }
    Ok(times)
}

type Timed<'scope> = ScopedJoinHandle<'scope, Result<Vec<Duration>, ApiBenchError>>;

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Plays the load, and says what each request and the daemon took.
pub(super) fn measure(
    load: &Load,
    api: &Api,
    folder: &Path,
    clients: Vec<Client>,
    metrics: &mut Vec<Metric>,
) -> Result<(), ApiBenchError> {
    let span = load.span;
    let pid = daemon_of(&api.get("GET /v1/gpus")?)?;
    let (before, start) = (cpu_time(pid)?, Instant::now());
    std::thread::scope(|scope| -> Result<(), ApiBenchError> {
        let streams: Vec<UnixStream> =
            (0..load.readers).map(|_| api.stream(None)).collect::<Result<_, _>>()?;
        let closers: Vec<UnixStream> = streams
            .iter()
            .map(|stream| stream.try_clone().map_err(io("cannot keep a reader")))
            .collect::<Result<_, _>>()?;
        let readers: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(|| cursor::count(stream))).collect();
        let read = |(_, rate, request): (&str, f64, &'static str)| -> Timed<'_> {
            scope.spawn(move || paced(span, rate, |_| api.get(request).map(drop)))
        };
        let reads = READS.map(read);
        let reservations = scope.spawn(move || {
            paced(span, RESERVATIONS, |number| rates::make_and_release(api, &format!("r{number}")))
        });
        let programs = scope.spawn(move || {
            paced(span, PROGRAMS, |_| {
                Session::connect(folder).map(drop).map_err(|error| WireError::from(error).into())
            })
        });
        let launches = scope.spawn(move || {
            let mut turns = clients.iter().cycle();
            paced(span, LAUNCHES, |_| {
                let Some(client) = turns.next() else { return Ok(()) };
                client.launch(CTAS).map_err(WireError::from)?;
                Ok(client.session.synchronize(None).map_err(WireError::from)?)
            })
        });
        let mut results = Vec::new();
        for (read, (name, rate, _)) in reads.into_iter().zip(READS) {
            results.push((format!("{name}, {rate}/s"), joined(read)));
        }
        let name = format!("reservation made and released, {RESERVATIONS}/s");
        results.push((name, joined(reservations)));
        results.push((format!("programs that come and go, {PROGRAMS}/s"), joined(programs)));
        results.push((format!("launches, {LAUNCHES}/s"), joined(launches)));
        let took = start.elapsed().as_secs_f64();
        let used = cpu_time(pid)?.saturating_sub(before).as_secs_f64();
        for closer in closers {
            // The reader may have lost its connection already, and says so itself.
            let _ = closer.shutdown(Shutdown::Both);
        }
        let told: u64 = readers.into_iter().map(joined).sum::<Result<u64, _>>()?;
        for (name, times) in results {
            push(metrics, &format!("all at once: {name}"), &times?, None);
        }
        let events = told as f64 / took;
        let name = format!("all at once: events told to {} readers", load.readers);
        metrics.push(Metric::plain(name, events, "/s"));
        let part = 100.0 * used / took;
        metrics.push(Metric::plain("all at once: CPU of partitad, of one core", part, "%"));
        Ok(())
    })
}
