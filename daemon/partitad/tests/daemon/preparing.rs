//! Modules that take long to prepare keep no other client waiting.

use super::{DEVICE, Daemon};
use partita_client::image::{self, Image};
use partita_client::{Session, code};
use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Modules of the flood.
const FLOOD: usize = 6;
/// Kernels of each of them. Each kernel takes seconds to be analysed.
const KERNELS: usize = 12;
/// Loops in each other, in each of these kernels.
const LOOPS: usize = 1600;
/// Far below the time of one module of the flood, and far above that of a small program.
const SOON: Duration = Duration::from_secs(30);

/// PTX with a barrier behind each of many loops in each other. Analyses of it take long.
fn slow(number: usize) -> String {
    let mut text = format!(".version 8.0\n.target sm_75\n.address_size 64\n// {number}\n");
    for kernel in 0..KERNELS {
        writeln!(
            text,
            ".visible .entry slow{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<4>;\n\
             .reg .pred %p<2>;\nld.param.u64 %d1, [p];\nmov.u32 %r1, %tid.x;"
        )
        .unwrap();
        for at in 0..LOOPS {
            writeln!(text, "L{at}: add.u32 %r2, %r2, 1;").unwrap();
        }
        for at in (0..LOOPS).rev() {
            writeln!(
                text,
                "ld.global.u32 %r3, [%d1]; setp.lt.u32 %p1, %r3, %r1; @%p1 bra L{at}; bar.sync 0;"
            )
            .unwrap();
        }
        text.push_str("ret;\n}\n");
    }
    text
}

fn ptx<'a>(session: &Session, text: &'a str) -> Image<'a> {
    image::select(text.as_bytes(), session.facts().compute_capability).unwrap()
}

/// Not a test of its own: the client that floods until another test kills it.
#[test]
fn client_that_floods() {
    let Some(sockets) = std::env::var_os("PARTITAD_TEST_FLOOD") else { return };
    let session = Session::connect(Path::new(&sockets)).unwrap();
    let loaded = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..FLOOD {
            let (session, loaded) = (&session, &loaded);
            scope.spawn(move || {
                let text = slow(number);
                let image = ptx(session, &text);
                if session.load_module(&image).is_ok() {
                    println!("LOADED {}", loaded.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
}

struct Flood(Child);

impl Flood {
    fn start(daemon: &Daemon) -> Flood {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "preparing::client_that_floods", "--nocapture"])
            .env("PARTITAD_TEST_FLOOD", daemon.sockets())
            .stdout(Stdio::null());
        let flood = Flood(command.spawn().unwrap());
        daemon.wait_for("the flood to connect", |status| {
            status.applications.iter().any(|a| a.pids.contains(&flood.0.id()))
        });
        // The first modules are on their way to the threads.
        std::thread::sleep(Duration::from_secs(2));
        flood
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_flood_of_slow_modules_keeps_nobody_else_waiting() {
    let daemon = Daemon::start();
    let mut flood = Flood::start(&daemon);
    let start = Instant::now();
    let client = daemon.connect();
    client.check(&client.spin(10, 10));
    assert!(start.elapsed() < SOON, "a small program took {:?}", start.elapsed());
    assert!(flood.0.try_wait().unwrap().is_none(), "the flood was over already");
    // A slow module of another client goes on soon after the flood has died, for its threads do.
    flood.end();
    let start = Instant::now();
    let clients: Vec<_> = (0..4).map(|_| daemon.connect()).collect();
    clients.iter().for_each(|client| client.check(&client.spin(10, 10)));
    let idle = daemon.wait_for("the flood to be gone", |status| status.applications.len() == 5);
    assert!(start.elapsed() < SOON, "{:?}: {idle:?}", start.elapsed());
}

#[test]
fn a_module_that_takes_too_long_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    std::fs::write(&config, "[policy]\npartitioner = \"even\"\nprepare_ms = 1000\n").unwrap();
    let daemon = Daemon::serving(DEVICE, &[], &["--config", config.to_str().unwrap()]);
    let session = Session::connect(&daemon.sockets()).unwrap();
    let start = Instant::now();
    let text = slow(0);
    let error = session.load_module(&ptx(&session, &text)).unwrap_err();
    assert!(start.elapsed() < SOON, "{error} came after {:?}", start.elapsed());
    assert!(error.to_string().contains("prepare_ms"), "{error}");
    assert_ne!(error.code, code::PEER_GONE);
    let client = daemon.connect();
    client.check(&client.spin(10, 10));
}
