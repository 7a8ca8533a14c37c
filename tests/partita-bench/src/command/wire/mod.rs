//! `partita bench wire`: the cost of the border between processes, beside yardsticks.
//!
//! A private daemon serves an emulated GPU that does not execute kernels: client, rings, data plane
//! and engine remain. The same run measures a yardstick for each figure: a Unix socket, two pipes,
//! `memcpy`. Kernels are launched as originals: none of these figures contains a worker's control
//! block. [`crowds`] has programs whose kernels are executed as workers.

mod crowds;

use clap::Args;
use partita_cli::api::{ApiError, Target};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::run::child::{ChildDaemon, Parts};
use partita_client::image::{Image, ImageKind};
use partita_client::{CallError, ConnectError, Launch, LoadedModule, Session, StreamHandle};
use partita_model::{Dim3, StatusReport};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  partita bench wire
      measure latencies, launches per second, copies, fairness and memory with 256 clients
  partita bench wire --clients 32 --launching 8 --json | jq '.metrics[] | {name, value, met}'
      measure with fewer clients, and print JSON
  partita bench wire --device cuda
      measure only launches of one client, on a GPU
  partita bench wire --quick
      measure with a hundredth of the work and crowds of 16 and 64 programs

No other program should run: it slows figures and yardsticks by different factors.";

/// The device: everything of the emulated GPU but the kernels.
pub(crate) const DEVICE: &str = "emu:h200,timing=off,kernels=off,sharing=mps,call=off";
const LAUNCHES: usize = 200_000;
const CTAS: u32 = 1000;
/// Launches of one client a second.
const GOAL: f64 = 500_000.0;
/// The same through the backend of a GPU, on the host's side.
const GOAL_ON_GPU: f64 = 100_000.0;
const ROUND_TRIPS: usize = 20_000;
const COPY_BYTES: usize = 64 << 20;
const COPIES: usize = 9;
/// The work of `--quick` is divided by this.
const QUICK_SCALE: u32 = 100;
/// More sessions than a crowd has.
const SESSIONS: u32 = 4096;
const FAIRNESS: Duration = Duration::from_secs(2);

/// A kernel with parameters of a usual size.
const PTX: &str = "\
.version 8.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    ret;
}
";
const PARAMS: [u8; 28] = [0; 28];

/// Measure the cost of the border between processes.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WireArgs {
    /// The number of connected clients.
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(2..=2048))]
    clients: u16,

    /// The number of clients that launch; the others are idle.
    #[arg(long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    launching: u16,

    /// Measure only launches of one client, of one CTA each, on this device.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["clients", "launching"])]
    device: Option<String>,

    /// Divide the work by this; the figures are only good at 1.
    #[arg(long, value_name = "N", default_value_t = 1, hide = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    scale: u32,

    /// Measure less: whether everything works, within a minute.
    #[arg(long)]
    quick: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("a session cannot begin: {0}")]
    Connect(#[from] ConnectError),
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    #[error("the daemon's configuration cannot be written: {0}")]
    Config(io::Error),
    #[error("the yardstick failed: {0}")]
    System(#[from] rustix::io::Errno),
    #[error("the daemon cannot be asked: {0}")]
    Api(#[from] ApiError),
    #[error("{file} cannot be read: {source}")]
    Proc { file: String, source: io::Error },
    #[error("/proc/{pid}/status says nothing of `{what}`")]
    NoSuchLine { pid: u32, what: &'static str },
    #[error(
        "{launching} of {clients} clients launch, and none is idle: raise --clients or lower \
        --launching"
    )]
    Clients { clients: u16, launching: u16 },
}

/// A configuration for a daemon of many clients, which are all of one user.
pub(crate) struct Config {
    file: tempfile::NamedTempFile,
}

impl Config {
    pub(crate) fn new(partitioner: &str) -> Result<Config, WireError> {
        let mut file = tempfile::NamedTempFile::new().map_err(WireError::Config)?;
        write!(file, "[policy]\npartitioner = \"{partitioner}\"\nsessions_per_user = {SESSIONS}\n")
            .map_err(WireError::Config)?;
        Ok(Config { file })
    }

    /// What the daemon gets.
    pub(crate) fn arguments(&self) -> [&str; 2] {
        ["--config", self.file.path().to_str().unwrap_or_default()]
    }
}

impl WireArgs {
    /// Measures.
    pub fn report(&self) -> Result<Report, Failure> {
        if self.launching >= self.clients {
            let error = WireError::Clients { clients: self.clients, launching: self.launching };
            return Err(Failure::from(error).with_code(2));
        }
        let mut metrics = Vec::new();
        if let Some(device) = &self.device {
            let daemon = ChildDaemon::start(&Parts::find(device.clone())?, &[])?;
            let pid = when_empty(daemon.folder())?;
            let client = Client::connect(daemon.folder())?;
            let counts = [LAUNCHES, ROUND_TRIPS].map(|count| self.scaled(count));
            let before = cpu_nanos(pid)?;
            launches(&client, (1, GOAL_ON_GPU), counts, &mut metrics)?;
            let spent = (cpu_nanos(pid)? - before) as f64 / 1e3 / counts[0] as f64;
            let name = "CPU time of the owner's thread for a launch, polls included";
            metrics.push(Metric::plain(name, spent, "us"));
            let device = format!("{device}, host time");
            return Ok(Report { bench: "wire".into(), device, seed: 0, metrics });
        }
        let parts = Parts::find(DEVICE.to_owned())?;
        self.one(ChildDaemon::start(&parts, &[])?.folder(), &mut metrics)?;
        // Memory that the launches of one client leave behind would hide what the crowd takes.
        let config = Config::new("even")?;
        let daemon = ChildDaemon::start(&parts, &config.arguments())?;
        self.crowd(daemon.folder(), FAIRNESS / self.scale(), &mut metrics)?;
        drop(daemon);
        crowds::measure(self.quick, &mut metrics)?;
        Ok(Report {
            bench: "wire".into(),
            device: format!("{DEVICE}, host time"),
            seed: 0,
            metrics,
        })
    }

    fn scale(&self) -> u32 {
        if self.quick { self.scale.max(QUICK_SCALE) } else { self.scale }
    }

    fn scaled(&self, count: usize) -> usize {
        (count / self.scale() as usize).max(16)
    }

    /// One client: launches, round trips, copies.
    fn one(&self, folder: &Path, metrics: &mut Vec<Metric>) -> Result<(), WireError> {
        let client = Client::connect(folder)?;
        let counts = [LAUNCHES, ROUND_TRIPS].map(|count| self.scaled(count));
        launches(&client, (CTAS, GOAL), counts, metrics)?;
        round_trips(&client.session, self.scaled(ROUND_TRIPS), metrics)?;
        copies(&client.session, self.scaled(COPY_BYTES), metrics)
    }

    /// Many clients: what an idle one costs, and whether those that launch get on equally.
    fn crowd(
        &self,
        folder: &Path,
        span: Duration,
        metrics: &mut Vec<Metric>,
    ) -> Result<(), WireError> {
        let pid = when_empty(folder)?;
        let before = resident_bytes(pid)?;
        let idle = self.clients - self.launching;
        let idle_sessions: Vec<Session> =
            (0..idle).map(|_| Session::connect(folder)).collect::<Result<_, _>>()?;
        for session in &idle_sessions {
            session.synchronize(None)?;
        }
        let each = resident_bytes(pid)?.saturating_sub(before) as f64 / f64::from(idle) / 1024.0;
        metrics.push(Metric::plain("clients, idle", f64::from(idle), ""));
        metrics.push(Metric::at_most("memory of the data plane for each", each, "KiB", 256.0));

        let (start, stop) = (Barrier::new(usize::from(self.launching) + 1), AtomicBool::new(false));
        let work = || -> Result<u64, WireError> {
            let client = Client::connect(folder);
            start.wait();
            let client = client?;
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    client.launch(CTAS)?;
                }
                client.session.synchronize(None)?;
                done += 64;
            }
            Ok(done)
        };
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.launching).map(|_| scope.spawn(work)).collect();
            start.wait();
            std::thread::sleep(span);
            stop.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<Result<Vec<u64>, WireError>>()
        })?;
        let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
        let (least, most) = (least.unwrap_or(0) as f64, most.unwrap_or(0) as f64);
        let total: u64 = counts.iter().sum();
        metrics.push(Metric::plain("clients, launching", f64::from(self.launching), ""));
        metrics.push(Metric::plain(
            "launches of all of them",
            total as f64 / span.as_secs_f64(),
            "/s",
        ));
        metrics.push(Metric::at_least("slowest ÷ fastest of them", least / most, "", 0.8));
        Ok(())
    }
}

/// A session with the kernel.
pub(crate) struct Client {
    pub(crate) session: Session,
    module: LoadedModule,
}

impl Client {
    pub(crate) fn connect(folder: &Path) -> Result<Client, WireError> {
        Ok(Client::new(Session::connect(folder)?)?)
    }

    fn new(session: Session) -> Result<Client, CallError> {
        let bytes = PTX.as_bytes();
        let image = Image { kind: ImageKind::Ptx, bytes, unpacked_bytes: bytes.len() as u64 };
        let module = session.load_module(&image)?;
        Ok(Client { session, module })
    }

    pub(crate) fn launch(&self, ctas: u32) -> Result<(), CallError> {
        self.session.launch(Launch {
            module: self.module.module,
            kernel: 0,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(256),
            dynamic_shared: 0,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: &PARAMS[..],
        })
    }
}

/// How long each of `count` calls took.
fn timed<E>(count: usize, mut call: impl FnMut() -> Result<(), E>) -> Result<Vec<Duration>, E> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn launches(
    client: &Client,
    (ctas, goal): (u32, f64),
    [count, round_trips]: [usize; 2],
    metrics: &mut Vec<Metric>,
) -> Result<(), WireError> {
    client.launch(ctas)?;
    client.session.synchronize(None)?;
    let start = Instant::now();
    let times = timed(count, || client.launch(ctas))?;
    client.session.synchronize(None)?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let launch = median(times);
    // A record's header, the launch's own fields, its parameters.
    let socket = median(socket_round_trips(16 + 56 + PARAMS.len(), round_trips)?);
    metrics.push(Metric::at_most("launch call, median", micros(launch), "us", 0.5));
    metrics.push(Metric::plain(
        "socket request and reply of the same size, median",
        micros(socket),
        "us",
    ));
    metrics.push(Metric::at_least("socket ÷ launch call", ratio(socket, launch), "", 10.0));
    metrics.push(Metric::at_least("launches of one client through the engine", rate, "/s", goal));
    Ok(())
}

/// Requests of `payload` bytes over a Unix socket, answered by a thread.
fn socket_round_trips(payload: usize, count: usize) -> Result<Vec<Duration>, rustix::io::Errno> {
    let kind = SocketType::SEQPACKET;
    let (here, there) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let echo = std::thread::spawn(move || echo(&there));
    let request = vec![1; payload];
    let times = timed(count, || {
        rustix::io::write(&here, &request)?;
        rustix::io::read(&here, &mut [0; 64]).map(drop)
    });
    drop(here);
    // It ends with the socket; what it could not write shows in `times`.
    let _ = echo.join();
    times
}

fn echo(socket: &OwnedFd) {
    let mut request = [0; 4096];
    while rustix::io::read(socket, &mut request).unwrap_or(0) > 0 {
        if rustix::io::write(socket, &[0; 16]).is_err() {
            return;
        }
    }
}

fn round_trips(
    session: &Session,
    count: usize,
    metrics: &mut Vec<Metric>,
) -> Result<(), WireError> {
    let call = median(timed(count, || session.synchronize(None))?);
    let (request_read, request_write) = rustix::pipe::pipe()?;
    let (reply_read, reply_write) = rustix::pipe::pipe()?;
    let answering = std::thread::spawn(move || {
        while rustix::io::read(&request_read, &mut [0; 8]).unwrap_or(0) > 0 {
            if rustix::io::write(&reply_write, &[1]).is_err() {
                return;
            }
        }
    });
    let pipes = timed(count, || {
        rustix::io::write(&request_write, &[1])?;
        rustix::io::read(&reply_read, &mut [0; 8]).map(drop)
    });
    drop(request_write);
    let _ = answering.join();
    let pipes = median(pipes?);
    metrics.push(Metric::plain("empty synchronous call, median", micros(call), "us"));
    metrics.push(Metric::plain("round trip of two bare pipes, median", micros(pipes), "us"));
    metrics.push(Metric::at_most("call ÷ pipes", ratio(call, pipes), "", 2.0));
    Ok(())
}

fn copies(session: &Session, bytes: usize, metrics: &mut Vec<Metric>) -> Result<(), WireError> {
    let from = vec![7_u8; bytes];
    let mut into = vec![1_u8; bytes];
    let memcpy = median(timed(COPIES, || {
        into.copy_from_slice(std::hint::black_box(&from));
        Ok::<(), WireError>(())
    })?);
    let address = session.mem_alloc(bytes as u64)?;
    let legacy = StreamHandle::LEGACY;
    let up = timed(COPIES, || session.copy_to_device(legacy, address, &from))?;
    let down = timed(COPIES, || session.copy_to_host(legacy, &mut into, address))?;
    let host = session.host_alloc(bytes as u64)?;
    let Some(range) = session.host_range(host, bytes as u64) else { return Ok(()) };
    let pinned_up = timed(COPIES, || {
        session.copy_from_host_memory(legacy, address, range)?;
        session.synchronize(None)
    })?;
    let pinned_down = timed(COPIES, || {
        session.copy_to_host_memory(legacy, range, address)?;
        session.synchronize(None)
    })?;
    session.mem_free(address)?;
    session.host_free(host)?;
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    metrics.push(Metric::plain(format!("memcpy of {} MB", bytes >> 20), speed(memcpy), "GB/s"));
    let copies = [
        ("pageable memory to the device", up, 0.6),
        ("device to pageable memory", down, 0.6),
        ("pinned memory to the device", pinned_up, 0.9),
        ("device to pinned memory", pinned_down, 0.9),
    ];
    for (name, times, goal) in copies {
        let time = median(times);
        metrics.push(Metric::plain(name, speed(time), "GB/s"));
        metrics.push(Metric::at_least(format!("{name} ÷ memcpy"), ratio(memcpy, time), "", goal));
    }
    Ok(())
}

/// Waits until the clients of the parts before have been cleared away, so that their memory is not
/// taken for growth or shrinking; the data plane's process.
fn when_empty(folder: &Path) -> Result<u32, WireError> {
    loop {
        let status: StatusReport = Target::folder(folder).get("/v1/status")?;
        if status.applications.is_empty() {
            return Ok(status.gpu.pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read(file: String) -> Result<String, WireError> {
    std::fs::read_to_string(&file).map_err(|source| WireError::Proc { file, source })
}

/// CPU time of a process's main thread (Linux, `Documentation/scheduler/sched-stats.rst`).
pub(crate) fn cpu_nanos(pid: u32) -> Result<u64, WireError> {
    let text = read(format!("/proc/{pid}/task/{pid}/schedstat"))?;
    Ok(text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

/// Resident memory of a process, shared memory included.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, WireError> {
    let text = read(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or(WireError::NoSuchLine { pid, what: "VmRSS" })
}
