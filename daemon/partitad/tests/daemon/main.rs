//! The real `partitad` and `partita-gpu` with the emulated GPU in a folder of the test's own,
//! driven by real clients.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod advisers;
mod config;
mod connections;
mod crowd;
mod endless;
mod faults;
mod file_limit;
mod forecast;
mod gpus;
mod hold_up;
mod jobs;
mod log;
mod many_kernels;
mod memory;
mod metrics;
mod namespaces;
mod preparing;
mod refused;
mod restart;
mod rights;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod users;
mod versions;
mod watchdog;

use partita_client::{Launch, LoadedModule, Session, StreamHandle, image};
use partita_model::{
    ApplicationId, DeviceAddress, DeviceKind, Dim3, Nanos, ResidencyKind, SmSet, StatusReport,
    TraceEntry, TraceReport,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PTX: &str = include_str!("../support/spin.ptx");
const DEVICE: &str = "emu:cd-search-24";
const PATIENCE: Duration = Duration::from_secs(180);
const THREADS: u32 = 64;
/// CTAs of a held launch. With 8000 rounds each they are a minute of work for the emulator, and
/// little work where they return at once.
const HELD_CTAS: u32 = 1 << 16;

/// `partita-gpu`, which is another package's binary and so has to be built here.
fn gpu_binary() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let folder = Path::new(env!("CARGO_BIN_EXE_partitad")).parent().unwrap();
            let mut build =
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            // The whole workspace: this package with other features of its dependencies would be
            // built a second time.
            build.args(["build", "--quiet", "--workspace"]);
            build
                .env("CARGO_TARGET_DIR", folder.parent().unwrap())
                .current_dir(env!("CARGO_MANIFEST_DIR"));
            if folder.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "partita-gpu does not build");
            folder.join("partita-gpu")
        })
        .clone()
}

struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn command(device: &str, sockets: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partitad"));
        command
            .args(["--device", device, "--ready-fd", "1", "--socket-dir"])
            .arg(sockets)
            .env("PARTITA_STATE_DIR", sockets.with_file_name("state"))
            .env("PARTITA_GPU", gpu_binary())
            .env("PARTITA_LOG", "info")
            // No GPU of this machine decides a test.
            .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    fn start() -> Daemon {
        Daemon::with(&["--policy", "even"])
    }

    fn with(more: &[&str]) -> Daemon {
        Daemon::serving(DEVICE, &[], more)
    }

    fn serving(device: &str, variables: &[(&str, &Path)], more: &[&str]) -> Daemon {
        Daemon::logging_to(None, device, variables, more)
    }

    /// One that logs there; into a file where nothing is given.
    fn logging_to(
        stderr: Option<Stdio>,
        device: &str,
        variables: &[(&str, &Path)],
        more: &[&str],
    ) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("log")).unwrap();
        let log = stderr.unwrap_or_else(|| file.into());
        let mut command = Daemon::command(device, &folder.path().join("sockets"));
        command.arg("--end-with-parent").args(more).envs(variables.iter().copied()).stderr(log);
        Daemon { child: command.spawn().unwrap(), folder }.ready()
    }

    /// Waits until clients can connect.
    fn ready(mut self) -> Daemon {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "READY\n", "{}", self.log());
        self
    }

    fn sockets(&self) -> PathBuf {
        self.folder.path().join("sockets")
    }

    fn log(&self) -> String {
        // A thread writes the lines: they come a moment after what they tell of.
        std::thread::sleep(Duration::from_millis(200));
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("log")).unwrap())
            .into_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn connect(&self) -> Client {
        Client::new(Session::connect(&self.sockets()).unwrap())
    }

    fn ask(&self, request: &str, body: &str) -> support::HttpAnswer {
        support::ask(&self.sockets().join("api.sock"), request, body).unwrap()
    }

    fn status(&self) -> StatusReport {
        serde_json::from_value(self.ask("GET /v1/status", "").body).unwrap()
    }

    fn wait_for(&self, what: &str, enough: impl Fn(&StatusReport) -> bool) -> StatusReport {
        let start = Instant::now();
        loop {
            let status = self.status();
            if enough(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain for {what}: {status:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(self.pid(), signal).unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "partitad does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end(Signal::TERM);
        }
        if std::thread::panicking() {
            eprintln!("--- partitad's log ---\n{}", self.log());
        }
    }
}

fn wait_until_gone(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let start = Instant::now();
    while test_kill_process(pid).is_ok() {
        assert!(start.elapsed() < PATIENCE, "process {pid:?} is still there");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Client {
    session: Session,
    module: LoadedModule,
}

impl Client {
    fn new(session: Session) -> Client {
        let image = image::select(PTX.as_bytes(), session.facts().compute_capability).unwrap();
        let module = session.load_module(&image).unwrap();
        Client { session, module }
    }

    fn application(&self, daemon: &Daemon) -> ApplicationId {
        let has = |sessions: &[_]| sessions.contains(&self.session.id());
        daemon
            .status()
            .applications
            .iter()
            .find(|application| has(&application.sessions))
            .unwrap()
            .id
    }

    fn launch(&self, kernel: &str, ctas: u32, params: &[u8]) {
        let index =
            self.module.contents.kernels.iter().position(|known| known.name == kernel).unwrap();
        let form = &*self.module.contents.kernels[index].form;
        assert!(["worker", "later"].contains(&form), "{form}");
        self.session
            .launch(Launch {
                module: self.module.module,
                kernel: u32::try_from(index).unwrap(),
                grid: Dim3::linear(ctas),
                block: Dim3::linear(THREADS),
                dynamic_shared: 0,
                stream: StreamHandle::LEGACY,
                cooperative: false,
                cluster: Dim3::linear(1),
                params,
            })
            .unwrap();
    }

    /// Starts `spin` on new memory that holds something else before.
    fn spin(&self, ctas: u32, rounds: u32) -> Spinning {
        let bytes = ctas * THREADS * 4;
        let data = self.session.mem_alloc(bytes.into()).unwrap();
        self.session
            .copy_to_device(StreamHandle::LEGACY, data, &vec![0xa5; bytes as usize])
            .unwrap();
        let mut params = data.0.to_le_bytes().to_vec();
        params.extend(rounds.to_le_bytes());
        self.launch("spin", ctas, &params);
        Spinning { data, ctas, rounds }
    }

    /// Starts `spin` on new memory, and again and again until [`release`](Client::release).
    fn hold(&self, ctas: u32, rounds: u32) -> Held {
        let bytes = ctas * THREADS * 4;
        let data = self.session.mem_alloc(bytes.into()).unwrap();
        let enough = self.session.mem_alloc(4).unwrap();
        self.session.copy_to_device(StreamHandle::LEGACY, enough, &[0; 4]).unwrap();
        let mut params = data.0.to_le_bytes().to_vec();
        params.extend([rounds, ctas].map(u32::to_le_bytes).as_flattened());
        params.extend(enough.0.to_le_bytes());
        self.launch("held", HELD_CTAS, &params);
        Held { spinning: Spinning { data, ctas, rounds }, enough }
    }

    /// Lets a held launch end, and checks what it has computed.
    fn release(&self, held: Held) {
        let apart = self.session.create_stream(true, 0).unwrap();
        self.session.copy_to_device(apart, held.enough, &[1; 4]).unwrap();
        self.check(&held.spinning);
        self.session.mem_free(held.enough).unwrap();
        self.session.destroy_stream(apart).unwrap();
    }

    fn check(&self, spinning: &Spinning) {
        self.session.synchronize(None).unwrap();
        let elements = (spinning.ctas * THREADS) as usize;
        let mut bytes = vec![0; elements * 4];
        self.session.copy_to_host(StreamHandle::LEGACY, &mut bytes, spinning.data).unwrap();
        for (index, found) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let start = u32::try_from(index).unwrap();
            let expected = (0..spinning.rounds)
                .fold(start, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            assert_eq!(u32::from_le_bytes(*found), expected, "element {index}");
        }
        self.session.mem_free(spinning.data).unwrap();
    }
}

struct Spinning {
    data: DeviceAddress,
    ctas: u32,
    rounds: u32,
}

/// A launch that goes on until it is released, however slow the machine is.
struct Held {
    spinning: Spinning,
    /// The word that ends it.
    enough: DeviceAddress,
}

#[test]
fn two_clients_compute_and_leave_nothing() {
    let daemon = Daemon::start();
    let (first, second) = (daemon.connect(), daemon.connect());
    let spins =
        [(&first, first.spin(100, 50)), (&second, second.spin(33, 70)), (&first, first.spin(1, 0))];
    for (client, spinning) in &spins {
        client.check(spinning);
    }
    let status = daemon.status();
    assert_eq!(status.applications.iter().map(|a| a.launches_completed).sum::<u64>(), 3);
    assert_eq!(status.applications.iter().map(|a| a.ctas_completed).sum::<u64>(), 134);
    drop((first, second));
    let status = daemon.wait_for("both to leave", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0);
    assert!(status.partitions.is_empty());
}

#[test]
fn a_border_moves_in_mid_kernel() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.connect(), daemon.connect());
    let (id_a, id_b) = (a.application(&daemon), b.application(&daemon));
    let plan = |first: &str, second: &str| {
        let plan = json!({"partitions": [
            {"application": id_a, "sms": first}, {"application": id_b, "sms": second}]});
        let answer = daemon.ask("PUT /v1/plan", &plan.to_string());
        assert_eq!(answer.status, 204, "{}", answer.body);
    };
    plan("0-11", "12-23");
    let (held_a, held_b) = (a.hold(100, 8000), b.hold(100, 8000));
    daemon.wait_for("both to run", |status| {
        status.applications.iter().all(|a| a.ctas_completed > 300)
    });
    plan("0-17", "18-23");
    let after = daemon.wait_for("the border to move", |status| {
        status.partitions.iter().any(|p| p.application == id_a && p.sms == SmSet::range(0, 18))
    });
    assert!(after.applications.iter().all(|a| a.launches_completed == 0), "both still run");
    a.release(held_a);
    b.release(held_b);
    let trace: TraceReport = serde_json::from_value(daemon.ask("GET /v1/trace", "").body).unwrap();
    check_border(&trace, id_a, id_b);
    assert_eq!(daemon.ask("DELETE /v1/plan", "").status, 204);
}

/// Residents of two applications never share an SM; from the border's move on, once B's last worker
/// on a moved SM has left, A has workers there and B has none.
fn check_border(trace: &TraceReport, a: ApplicationId, b: ApplicationId) {
    assert_eq!(trace.dropped, 0);
    let moved = SmSet::range(12, 6);
    let border = trace.entries.iter().find_map(|entry| match entry {
        TraceEntry::Resize { time, application, to, .. }
            if *application == b && *to == SmSet::range(18, 6) =>
        {
            Some(*time)
        }
        _ => None,
    });
    let border = border.expect("the trace shows the resize");
    let mut residents: Vec<std::collections::BTreeMap<ApplicationId, u32>> =
        vec![Default::default(); 24];
    let (mut last_of_b, mut first_of_a) = (Nanos(0), Nanos(u64::MAX));
    for entry in &trace.entries {
        let TraceEntry::Residency { change, application, .. } = entry else { continue };
        let here = &mut residents[usize::from(change.sm.0)];
        match change.kind {
            ResidencyKind::Start => {
                *here.entry(*application).or_default() += 1;
                if *application == a && moved.contains(change.sm) && change.time > border {
                    first_of_a = first_of_a.min(change.time);
                }
            }
            ResidencyKind::Exit => {
                *here.get_mut(application).unwrap() -= 1;
                here.retain(|_, workers| *workers > 0);
                if *application == b && moved.contains(change.sm) {
                    last_of_b = last_of_b.max(change.time);
                }
            }
        }
    }
    assert!(residents.iter().all(std::collections::BTreeMap::is_empty), "every worker has left");
    assert!(border < last_of_b, "B had workers there when the border moved");
    assert!(first_of_a < Nanos(u64::MAX), "A got workers on its new SMs");
}

#[test]
fn faults_are_the_clients_own() {
    let daemon = Daemon::start();
    let (bad, good) = (daemon.connect(), daemon.connect());
    let spinning = good.spin(200, 200);
    bad.launch("stray", 3, &(bad.session.window().base.0 + (1 << 30)).to_le_bytes());
    let error = bad.session.synchronize(None).unwrap_err();
    assert_eq!(error.code, 700, "{error}");
    assert_eq!(bad.session.mem_alloc(4).unwrap_err().code, 700);
    good.check(&spinning);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("stray")).unwrap_or_else(|| panic!("{log}"));
    for word in ["illegal address", "CTA", "thread", "line 40"] {
        assert!(line.contains(word), "`{word}` in {line}");
    }
}

/// Not a test of its own: the client that another test kills.
#[test]
fn client_to_be_killed() {
    let Some(sockets) = std::env::var_os("PARTITAD_TEST_VICTIM") else { return };
    let client = Client::new(Session::connect(Path::new(&sockets)).unwrap());
    let _held = client.hold(100, 8000);
    let _ = client.session.synchronize(None);
}

#[test]
fn a_killed_client_is_cleaned_up() {
    let daemon = Daemon::start();
    let good = daemon.connect();
    let spinning = good.spin(500, 500);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_to_be_killed"])
        .env("PARTITAD_TEST_VICTIM", daemon.sockets())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    daemon.wait_for("the victim to run", |status| {
        status.applications.iter().any(|a| a.pids.contains(&victim.id()) && a.ctas_completed > 0)
    });
    victim.kill().unwrap();
    victim.wait().unwrap();
    let status = daemon.wait_for("the victim to be gone", |status| status.applications.len() == 1);
    let rest = status.applications[0].id;
    assert!(status.partitions.iter().all(|partition| partition.application == rest), "{status:?}");
    good.check(&spinning);
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
    drop((good, next));
    daemon.wait_for("everybody to leave", |s| {
        s.applications.is_empty() && s.gpu.memory_used_bytes == 0
    });
}

#[test]
fn a_killed_data_plane_is_started_again() {
    let daemon = Daemon::start();
    let before = daemon.status();
    let client = daemon.connect();
    let _spinning = client.spin(100_000, 10_000);
    let start = Instant::now();
    kill_process(Pid::from_raw(before.gpu.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let error = client.session.synchronize(None).unwrap_err();
    assert!(start.elapsed() < PATIENCE, "{error} came after {:?}", start.elapsed());
    assert_eq!(error.code, partita_client::code::PEER_GONE);
    assert_eq!(daemon.ask("GET /v1/status", "").status, 200, "the API goes on answering");
    // Connecting waits for the new process.
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
    let after = daemon.status();
    assert_eq!(after.gpu.restarts, 1);
    assert_ne!(after.gpu.pid, before.gpu.pid);
}

#[test]
fn a_client_that_the_data_plane_had_not_answered_is_served_by_the_next() {
    let daemon = Daemon::start();
    let gpu = Pid::from_raw(daemon.status().gpu.pid.cast_signed()).unwrap();
    kill_process(gpu, Signal::STOP).unwrap();
    let sockets = daemon.sockets();
    let connecting = std::thread::spawn(move || Client::new(Session::connect(&sockets).unwrap()));
    // Long enough to be handed over, as a rule; the answer must be the same if it was not.
    std::thread::sleep(Duration::from_millis(100));
    kill_process(gpu, Signal::KILL).unwrap();
    let client = connecting.join().unwrap();
    client.check(&client.spin(10, 10));
    assert_eq!(daemon.status().gpu.restarts, 1);
}

#[test]
fn a_stopped_data_plane_is_reported() {
    let daemon = Daemon::start();
    let gpu = Pid::from_raw(daemon.status().gpu.pid.cast_signed()).unwrap();
    kill_process(gpu, Signal::STOP).unwrap();
    let answer = daemon.ask("GET /v1/status", "");
    assert_eq!(answer.status, 504);
    let detail = "partita-gpu has not answered for 10 s; try again";
    assert_eq!(answer.body["detail"], detail);
    kill_process(gpu, Signal::CONT).unwrap();
    assert_eq!(daemon.ask("GET /v1/status", "").status, 200);
}

#[test]
fn the_end_leaves_nothing_behind() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut daemon = Daemon::start();
        let client = daemon.connect();
        let gpu = daemon.status().gpu.pid;
        let status = daemon.end(signal);
        wait_until_gone(gpu);
        assert!(client.session.synchronize(None).is_err());
        if signal != Signal::KILL {
            assert!(status.success(), "{status}: {}", daemon.log());
            assert!(!daemon.sockets().join("partitad.sock").exists());
            assert!(!daemon.sockets().join("api.sock").exists());
        }
    }
}

#[test]
fn systemd_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let message = || {
        let mut buffer = [0; 256];
        let bytes = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..bytes]).into_owned()
    };
    let mut daemon = Daemon::serving(DEVICE, &[("NOTIFY_SOCKET", &path)], &[]);
    let ready = message();
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    daemon.end(Signal::TERM);
    let mut told = message();
    // Messages about the status may lie between.
    while told.starts_with("STATUS=") {
        told = message();
    }
    assert_eq!(told, "STOPPING=1\n");
}

#[test]
fn what_cannot_be_served_is_refused() {
    let daemon = Daemon::start();
    let check = |device: &str, sockets: &Path, code: i32, words: &[&str]| {
        let output = Daemon::command(device, sockets).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{device}: {text}");
        assert!(output.stdout.is_empty(), "{device} is not ready");
        for word in words {
            assert!(text.contains(word), "`{word}` in {text}");
        }
    };
    check(DEVICE, &daemon.sockets(), 1, &["another partitad", "--socket-dir"]);
    let elsewhere = daemon.folder.path().join("elsewhere");
    check("emu:nothing", &elsewhere, 2, &["nothing", "cd-search-24", "h200"]);
    check("emu:/nothing/at/all", &elsewhere, 2, &["/nothing/at/all"]);
    check("cuda", &elsewhere, 2, &["cuda", "emu"]);
    check(DEVICE, Path::new("/dev/null/x"), 1, &["/dev/null/x", "--socket-dir"]);
    daemon.connect();
}

#[test]
fn a_policy_that_cannot_hold_is_refused_and_the_one_in_force_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    let path = config.to_str().unwrap();

    write(
        "# comment\n[policy]\npartitioner = \"static\"\n[[policy.share]]\ntag = \"a\"\nsms = 25\n",
    );
    let output = Daemon::command(DEVICE, &folder.path().join("sockets"))
        .args(["--config", path])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("partitad.toml:4: a share of 25 SMs: the GPU has 24"), "{stderr}");

    write("[policy]\npartitioner = \"static\"\n[[policy.share]]\ntag = \"a\"\nsms = 20\n");
    let daemon = Daemon::with(&["--config", path]);
    let policy = || daemon.status().policy.partitioner;
    assert_eq!(policy(), "static");
    let reload = |text: &str, logged: &str| {
        write(text);
        kill_process(daemon.pid(), Signal::HUP).unwrap();
        let start = Instant::now();
        while !daemon.log().contains(logged) {
            assert!(start.elapsed() < PATIENCE, "waited in vain for {logged:?}: {}", daemon.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    reload("[policy]\npartitioner = \"best\"\n", "partitad.toml:2: unknown variant");
    reload("[policy]\n\n[[policy.share]]\nsms = 2\n", "partitad.toml:3: a share for nobody");
    assert_eq!(policy(), "static");
    reload("[policy]\npartitioner = \"cd-search\"\n", "the configuration was read again");
    assert_eq!(policy(), "cd-search");

    // The next data plane decides by it too.
    let gpu = i32::try_from(daemon.status().gpu.pid).unwrap();
    kill_process(Pid::from_raw(gpu).unwrap(), Signal::KILL).unwrap();
    daemon.wait_for("a new data plane", |status| status.gpu.restarts == 1 && status.gpu.pid != 0);
    assert_eq!(policy(), "cd-search");
}

/// A kernel that the stand-in for the driver takes for one that faults.
const FAULT: &str =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry fault()\n{\n\tret;\n}\n";

/// Copies there and back.
fn check_memory(session: &Session) {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 241).to_le_bytes()[0]).collect();
    let data = session.mem_alloc(bytes.len() as u64).unwrap();
    session.copy_to_device(StreamHandle::LEGACY, data, &bytes).unwrap();
    let mut found = vec![0; bytes.len()];
    session.copy_to_host(StreamHandle::LEGACY, &mut found, data).unwrap();
    assert!(found == bytes);
}

#[test]
fn a_gpu_is_served_and_comes_back_after_a_fault() {
    let library = gpu_binary().with_file_name("libpartita_fake_gpu.so");
    let variables: [(&str, &Path); 2] =
        [("PARTITA_LIBCUDA", &library), ("PARTITA_LIBNVIDIA_ML", &library)];
    let daemon = Daemon::serving("auto", &variables, &["--policy", "even"]);
    let gpu = daemon.status().gpu;
    assert_eq!((gpu.kind, gpu.name.as_str(), gpu.sms), (DeviceKind::Cuda, "Fake GPU", 132));
    assert_eq!(gpu.energy_nj, Some(0));
    let session = Session::connect(&daemon.sockets()).unwrap();
    check_memory(&session);
    let image = image::select(FAULT.as_bytes(), session.facts().compute_capability).unwrap();
    let module = session.load_module(&image).unwrap();
    let call = Launch {
        module: module.module,
        kernel: 0,
        grid: Dim3::linear(1),
        block: Dim3::linear(32),
        dynamic_shared: 0,
        stream: StreamHandle::LEGACY,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: &[][..],
    };
    session.launch(call).unwrap();
    session.synchronize(None).expect_err("the guilty gets an error");
    daemon.wait_for("another process", |status| status.gpu.restarts == 1);
    assert!(daemon.log().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", daemon.log());
    check_memory(&Session::connect(&daemon.sockets()).unwrap());
}

#[test]
fn without_a_gpu_auto_is_the_emulated_one_and_cuda_is_refused() {
    let nowhere: [(&str, &Path); 1] = [("PARTITA_LIBCUDA", Path::new("/nonexistent/libcuda.so.1"))];
    let daemon = Daemon::serving("auto", &nowhere, &["--policy", "even"]);
    assert_eq!(daemon.status().gpu.kind, DeviceKind::Emulated);
    assert!(daemon.log().contains("serving the emulated GPU"), "{}", daemon.log());
    let folder = tempfile::tempdir().unwrap();
    let output = Daemon::command("cuda", &folder.path().join("sockets"))
        .envs(nowhere)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not installed") && said.contains("partita doctor"), "{said}");
}
