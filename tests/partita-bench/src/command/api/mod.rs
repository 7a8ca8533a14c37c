//! `partita bench api`: what the API takes beside programs that launch, and what its readers cost
//! them.
//!
//! A private daemon serves an emulated GPU that does not execute kernels. Requests are timed from
//! the connection to the end of the answer. [`costs`] has what events and metrics take from
//! launches.

mod costs;

use crate::wire::{Client, Config, DEVICE, WireError, resident_bytes};
use clap::Args;
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::run::child::{ChildDaemon, Parts};
use partita_client::Session;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  partita bench api
      time requests beside 64 programs that launch, 1,000 readers of events, and metrics; what
      events and metrics cost launches
  partita bench api --quick --json
      measure less, and print JSON

No other program should run: it slows requests.";

const CTAS: u32 = 1000;
/// The span of each measurement of launches.
const SPAN: Duration = Duration::from_secs(4);
/// How long a reader may take for one event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measure the API.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ApiArgs {
    /// The number of programs that launch while requests are timed.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    launching: u16,

    /// The number of readers of events.
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    readers: u16,

    /// The number of applications on the page of metrics.
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=2048))]
    applications: u16,

    /// Measure less: whether everything works, within a minute.
    #[arg(long)]
    quick: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiBenchError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{request} was answered by {answer:?}")]
    Refused { request: String, answer: String },
}

pub(crate) fn io(what: &str) -> impl Fn(std::io::Error) -> ApiBenchError {
    move |source| ApiBenchError::Io { what: what.to_owned(), source }
}

impl ApiArgs {
    /// Measures.
    pub fn report(&self) -> Result<Report, Failure> {
        raise_descriptor_limit();
        let parts = Parts::find(DEVICE.to_owned())?;
        let config = Config::new("even")?;
        let start = || ChildDaemon::start(&parts, &config.arguments());
        let mut metrics = Vec::new();
        self.requests(start()?.folder(), &mut metrics)?;
        self.readers(start()?.folder(), &mut metrics)?;
        self.metrics(start()?.folder(), &mut metrics)?;
        costs::measure(start()?.folder(), self.count() / 10, &mut metrics)?;
        let device = format!("{DEVICE}, host time");
        Ok(Report { bench: "api".into(), device, seed: 0, metrics })
    }

    fn count(&self) -> usize {
        if self.quick { 100 } else { 3000 }
    }

    fn span(&self) -> Duration {
        if self.quick { SPAN / 20 } else { SPAN }
    }

    /// Requests beside programs that launch, and those programs beside requests.
    fn requests(&self, folder: &Path, metrics: &mut Vec<Metric>) -> Result<(), ApiBenchError> {
        let api = Api(folder.join("api.sock"));
        let quiet = api.times("GET /v1/partitions", self.count())?;
        push(metrics, "request, nobody launches", &quiet, None);
        let crowd = Crowd::default();
        std::thread::scope(|scope| {
            let programs = crowd.start(scope, folder, self.launching);
            let alone = crowd.rate(self.span());
            let asked = Instant::now();
            let (times, rate) = crowd.beside(|| api.times("GET /v1/partitions", self.count()));
            let times = times?;
            let each = asked.elapsed().as_secs_f64() / times.len() as f64;
            crowd.stop.store(true, Ordering::Relaxed);
            join(programs)?;
            let name = format!("request beside {} programs that launch", self.launching);
            push(metrics, &name, &times, Some(1.0));
            metrics.push(Metric::plain("launches beside no request", alone, "/s"));
            let name = format!("launches beside {:.0} requests/s, one after the other", 1.0 / each);
            metrics.push(Metric::plain(name, rate, "/s"));
            Ok(())
        })
    }

    /// Many readers of events: how soon all are told, and what they cost programs and the daemon.
    fn readers(&self, folder: &Path, metrics: &mut Vec<Metric>) -> Result<(), ApiBenchError> {
        let api = Api(folder.join("api.sock"));
        let build = api.get("GET /v1/gpus")?;
        let pid = daemon_of(&build)?;
        let before = resident_bytes(pid)?;
        let mut readers: Vec<Reader> =
            (0..self.readers).map(|_| api.reader()).collect::<Result<_, _>>()?;
        let count = f64::from(self.readers);
        let each = resident_bytes(pid)?.saturating_sub(before) as f64 / count / 1024.0;
        metrics.push(Metric::at_least("readers of events", readers.len() as f64, "", 1000.0));
        metrics.push(Metric::plain("memory of partitad for each", each, "KiB"));
        let start = Instant::now();
        let session = Session::connect(folder).map_err(WireError::from)?;
        for reader in &mut readers {
            reader.wait_for("event: session_came")?;
        }
        let millis = start.elapsed().as_secs_f64() * 1e3;
        metrics.push(Metric::plain("until all of them know of a session", millis, "ms"));
        drop(session);
        let times = api.times("GET /v1/partitions", self.count())?;
        push(metrics, "request beside them", &times, Some(1.0));
        let crowd = Crowd::default();
        std::thread::scope(|scope| {
            let programs = crowd.start(scope, folder, 8);
            let with = crowd.rate(self.span());
            // None of them reads: their connections fill, and they fall behind.
            drop(readers);
            std::thread::sleep(Duration::from_millis(200));
            let without = crowd.rate(self.span());
            crowd.stop.store(true, Ordering::Relaxed);
            join(programs)?;
            metrics.push(Metric::plain("launches beside them, 8 programs", with, "/s"));
            metrics.push(Metric::plain("launches without them", without, "/s"));
            Ok(())
        })
    }

    /// The page of metrics of many applications.
    fn metrics(&self, folder: &Path, metrics: &mut Vec<Metric>) -> Result<(), ApiBenchError> {
        let api = Api(folder.join("api.sock"));
        let clients: Vec<Client> =
            (0..self.applications).map(|_| Client::connect(folder)).collect::<Result<_, _>>()?;
        for client in &clients {
            client.launch(CTAS).map_err(WireError::from)?;
            client.session.synchronize(None).map_err(WireError::from)?;
        }
        let page = api.get("GET /metrics")?;
        let rows = page.lines().filter(|line| line.starts_with("partita_partition_sms{")).count();
        metrics.push(Metric::plain("applications on the page of metrics", rows as f64, ""));
        metrics.push(Metric::plain("size of the page", page.len() as f64 / 1024.0, "KiB"));
        let times = api.times("GET /metrics", self.count() / 10)?;
        push(metrics, "page of metrics", &times, Some(5.0));
        Ok(())
    }
}

/// Median and 99th percentile; `goal` is that of the latter, in milliseconds.
pub(crate) fn push(metrics: &mut Vec<Metric>, name: &str, times: &[Duration], goal: Option<f64>) {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let [median, high] = [at(50), at(99)].map(|time| time.as_secs_f64() * 1e3);
    metrics.push(Metric::plain(format!("{name}: median"), median, "ms"));
    let name = format!("{name}: 99th percentile");
    metrics.push(match goal {
        Some(goal) => Metric::at_most(name, high, "ms", goal),
        None => Metric::plain(name, high, "ms"),
    });
}

/// Every reader has a socket.
pub(crate) fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // The next connection says so where it is too low.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The process that serves the API: the parent of the data plane.
pub(crate) fn daemon_of(gpus: &str) -> Result<u32, ApiBenchError> {
    let refused = || ApiBenchError::Refused { request: "GET /v1/gpus".into(), answer: gpus.into() };
    let gpus: serde_json::Value = serde_json::from_str(gpus).map_err(|_| refused())?;
    let pid = gpus[0]["pid"].as_u64().ok_or_else(refused)?;
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).map_err(io(&file))?;
    let parent = text.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|parent| parent.trim().parse().ok()).ok_or_else(refused)
}

/// The API's socket.
pub(crate) struct Api(pub(crate) PathBuf);

impl Api {
    fn connect(&self) -> Result<UnixStream, ApiBenchError> {
        let stream = UnixStream::connect(&self.0).map_err(io("cannot connect to the API"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io("cannot use the socket"))?;
        Ok(stream)
    }

    pub(crate) fn get(&self, request: &str) -> Result<String, ApiBenchError> {
        let mut stream = self.connect()?;
        let head = format!("{request} HTTP/1.1\r\nHost: partita\r\n\r\n");
        stream.write_all(head.as_bytes()).map_err(io(request))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(io(request))?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
            _ => Err(ApiBenchError::Refused { request: request.into(), answer }),
        }
    }

    pub(crate) fn times(
        &self,
        request: &str,
        count: usize,
    ) -> Result<Vec<Duration>, ApiBenchError> {
        let timed = |_| {
            let start = Instant::now();
            self.get(request)?;
            Ok(start.elapsed())
        };
        (0..count.max(10)).map(timed).collect()
    }

    /// Events, from the next one or from the one behind an id.
    pub(crate) fn stream(&self, after: Option<&str>) -> Result<UnixStream, ApiBenchError> {
        let mut stream = self.connect()?;
        let after = after.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let head = format!("GET /v1/events HTTP/1.1\r\nHost: partita\r\n{after}\r\n");
        stream.write_all(head.as_bytes()).map_err(io("cannot read events"))?;
        Ok(stream)
    }

    /// A request that changes something, with a body of JSON or none.
    pub(crate) fn change(&self, method: &str, path: &str, body: &str) -> Result<(), ApiBenchError> {
        let request = format!("{method} {path}");
        let mut stream = self.connect()?;
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nHost: partita\r\nContent-Length: {length}\r\n");
        let text = format!("{head}Content-Type: application/json\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).map_err(io(&request))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(io(&request))?;
        match answer.starts_with("HTTP/1.1 2") {
            true => Ok(()),
            false => Err(ApiBenchError::Refused { request, answer }),
        }
    }

    fn reader(&self) -> Result<Reader, ApiBenchError> {
        let mut reader = Reader(BufReader::with_capacity(512, self.stream(None)?));
        reader.wait_for("event: hello")?;
        Ok(reader)
    }
}

/// One reader of events.
struct Reader(BufReader<UnixStream>);

impl Reader {
    fn wait_for(&mut self, wanted: &str) -> Result<(), ApiBenchError> {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.0.read_line(&mut line).map_err(io(wanted))?;
            if line.trim_end() == wanted {
                return Ok(());
            }
            if bytes == 0 {
                let answer = "the end of the events".into();
                return Err(ApiBenchError::Refused { request: wanted.into(), answer });
            }
        }
    }
}

/// Programs that launch.
#[derive(Default)]
struct Crowd {
    launched: AtomicU64,
    stop: AtomicBool,
}

type Programs<'scope> = Vec<std::thread::ScopedJoinHandle<'scope, Result<(), WireError>>>;

impl Crowd {
    fn start<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        folder: &'scope Path,
        programs: u16,
    ) -> Programs<'scope> {
        let ready = std::sync::Arc::new(Barrier::new(usize::from(programs) + 1));
        let begin = |_| {
            let ready = std::sync::Arc::clone(&ready);
            scope.spawn(move || {
                let client = Client::connect(folder);
                ready.wait();
                let client = client?;
                while !self.stop.load(Ordering::Relaxed) {
                    for _ in 0..16 {
                        client.launch(CTAS)?;
                    }
                    client.session.synchronize(None)?;
                    self.launched.fetch_add(16, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        let programs = (0..programs).map(begin).collect();
        ready.wait();
        programs
    }

    /// Launches a second within a span.
    fn rate(&self, span: Duration) -> f64 {
        self.beside(|| std::thread::sleep(span)).1
    }

    /// Launches a second beside something.
    fn beside<T>(&self, act: impl FnOnce() -> T) -> (T, f64) {
        let (start, before) = (Instant::now(), self.launched.load(Ordering::Relaxed));
        let result = act();
        let launched = self.launched.load(Ordering::Relaxed) - before;
        (result, launched as f64 / start.elapsed().as_secs_f64())
    }
}

fn join(programs: Programs<'_>) -> Result<(), WireError> {
    programs.into_iter().try_for_each(|program| {
        program.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
