//! What the border between processes costs, beside what it is compared with: one line per figure, each with a ratio.
//!
//! `cargo run --release -p partita-client --example border`. The data plane is the tests' one without a device, in a
//! process of its own.
#![expect(clippy::unwrap_used, reason = "a measurement stops at the first error")]

#[path = "../tests/fake/mod.rs"]
mod fake;

use partita_client::{LaunchCall, LaunchFlags, ModuleHandle, Session, StreamHandle};
use partita_model::Dim3;
use partita_wire::Sizes;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SERVE: &str = "serve";
const LAUNCHES: usize = 200_000;
const ROUND_TRIPS: usize = 20_000;
const COPY_BYTES: usize = 64 << 20;
const PARAMS: [u8; 28] = [0; 28];

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(SERVE) {
        let dir = arguments.next().unwrap();
        fake::serve(&fake::listen(Path::new(&dir)), Sizes::default());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut daemon = Command::new(exe).arg(SERVE).arg(dir.path()).spawn().unwrap();
    let session = connect(dir.path());
    launches(&session);
    round_trips(&session);
    copies(&session);
    drop(session);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

fn connect(dir: &Path) -> Session {
    loop {
        if let Ok(session) = Session::connect(dir) {
            return session;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn timed(count: usize, mut f: impl FnMut()) -> Vec<Duration> {
    let time = |()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    std::iter::repeat_n((), count).map(time).collect()
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn launches(session: &Session) {
    let call = LaunchCall {
        module: ModuleHandle(1),
        kernel: 0,
        grid: Dim3::linear(1000),
        block: Dim3::linear(256),
        dynamic_shared: 0,
        stream: StreamHandle::LEGACY,
        flags: LaunchFlags::default(),
        params: &PARAMS,
    };
    session.synchronize(None).unwrap();
    let start = Instant::now();
    let times = timed(LAUNCHES, || session.launch(&call).unwrap());
    session.synchronize(None).unwrap();
    let all = start.elapsed();
    let launch = median(times);
    let payload = 16 + 56 + PARAMS.len();
    let socket = median(socket_round_trips(payload));
    println!("launch call, median               {launch:>12?}");
    println!("launches through an empty device  {:>12.0} /s", LAUNCHES as f64 / all.as_secs_f64());
    println!("socket request/reply, same bytes  {socket:>12?}  {:.1} × a launch", ratio(socket, launch));
}

/// Requests of `payload` bytes over a Unix socket, answered by a thread.
fn socket_round_trips(payload: usize) -> Vec<Duration> {
    let kind = SocketType::SEQPACKET;
    let (here, there) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    echo(there);
    let request = vec![1; payload];
    timed(ROUND_TRIPS, || {
        rustix::io::write(&here, &request).unwrap();
        rustix::io::read(&here, &mut [0; 64]).unwrap();
    })
}

fn echo(socket: OwnedFd) {
    std::thread::spawn(move || {
        let mut request = [0; 4096];
        while rustix::io::read(&socket, &mut request).unwrap_or(0) > 0 {
            if rustix::io::write(&socket, &[0; 16]).is_err() {
                return;
            }
        }
    });
}

fn round_trips(session: &Session) {
    let call = median(timed(ROUND_TRIPS, || session.synchronize(None).unwrap()));
    let (request_read, request_write) = rustix::pipe::pipe().unwrap();
    let (reply_read, reply_write) = rustix::pipe::pipe().unwrap();
    std::thread::spawn(move || {
        while rustix::io::read(&request_read, &mut [0; 8]).unwrap_or(0) > 0 {
            rustix::io::write(&reply_write, &[1]).unwrap();
        }
    });
    let pipes = median(timed(ROUND_TRIPS, || {
        rustix::io::write(&request_write, &[1]).unwrap();
        rustix::io::read(&reply_read, &mut [0; 8]).unwrap();
    }));
    println!("synchronous call, median          {call:>12?}");
    println!("two bare pipes                    {pipes:>12?}  a call is {:.2} ×", ratio(call, pipes));
}

fn copies(session: &Session) {
    let from = vec![7; COPY_BYTES];
    let mut into = vec![1; COPY_BYTES];
    let memcpy = median(timed(9, || into.copy_from_slice(&from)));
    let address = session.mem_alloc(COPY_BYTES as u64).unwrap();
    let legacy = StreamHandle::LEGACY;
    let up = median(timed(9, || session.copy_to_device(legacy, address, &from).unwrap()));
    let down = median(timed(9, || session.copy_to_host(legacy, &mut into, address).unwrap()));
    let host = session.host_alloc(COPY_BYTES as u64).unwrap();
    let range = session.host_range(host, COPY_BYTES as u64).unwrap();
    let pinned_up = median(timed(9, || {
        session.copy_from_host_memory(legacy, address, range).unwrap();
        session.synchronize(None).unwrap();
    }));
    let pinned_down = median(timed(9, || {
        session.copy_to_host_memory(legacy, range, address).unwrap();
        session.synchronize(None).unwrap();
    }));
    let speed = |time: Duration| COPY_BYTES as f64 / time.as_secs_f64() / 1e9;
    println!("memcpy of 64 MiB                  {:>10.2} GB/s", speed(memcpy));
    let copies = [
        ("pageable copy to the device", up),
        ("pageable copy to the host", down),
        ("host memory to the device", pinned_up),
        ("device to host memory", pinned_down),
    ];
    for (name, time) in copies {
        println!("{name:<32}  {:>10.2} GB/s  {:.2} × memcpy", speed(time), ratio(memcpy, time));
    }
}
