//! Sessions across processes, one of which dies.
#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]
#![expect(unsafe_code, reason = "fork has no safe form")]

mod fake;

use fake::DEADLY;
use partita_client::{Launch, ModuleHandle, Session, StreamHandle, code};
use partita_model::{DeviceAddress, Dim3};
use partita_wire::Sizes;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SERVE: &str = "PARTITA_TEST_SERVE";
const CONNECT: &str = "PARTITA_TEST_CONNECT";

/// The longest time for what needs no more than a processor: an overloaded host has one at last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test of its own: the daemon's process in other tests.
#[test]
fn daemon_process() {
    let Some(dir) = std::env::var_os(SERVE) else { return };
    let socket = fake::listen(Path::new(&dir));
    fake::serve(&socket, Sizes::default());
}

/// Not a test of its own: the client's process in other tests.
#[test]
fn client_process() {
    let Some(dir) = std::env::var_os(CONNECT) else { return };
    let session = Session::connect(Path::new(&dir)).unwrap();
    let address = session.mem_alloc(1 << 20).unwrap();
    loop {
        session.launch(launch(0)).unwrap();
        session.copy_to_device_async(StreamHandle::LEGACY, address, &[1; 1 << 20]).unwrap();
    }
}

fn launch(kernel: u32) -> Launch<&'static [u8]> {
    Launch {
        module: ModuleHandle(1),
        kernel,
        grid: Dim3::linear(1),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        stream: StreamHandle::LEGACY,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: &[],
    }
}

/// A process of this test, killed when the test ends.
struct Process(Child);

impl Process {
    fn start(test: &str, variable: &str, dir: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--test-threads=1"]).env(variable, dir);
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

fn daemon() -> (tempfile::TempDir, Process) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Process::start("daemon_process", SERVE, dir.path());
    (dir, daemon)
}

fn connect(dir: &Path) -> Session {
    let start = Instant::now();
    loop {
        match Session::connect(dir) {
            Ok(session) => return session,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Does something that must end although the daemon is dead.
fn soon<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    assert!(start.elapsed() < PATIENCE, "{what} took {:?}", start.elapsed());
    result
}

#[test]
fn the_daemons_death_ends_every_call() {
    let (dir, mut daemon) = daemon();
    let session = connect(dir.path());
    let event = session.create_event().unwrap();
    let address = session.mem_alloc(1 << 20).unwrap();
    session.synchronize(None).unwrap();
    daemon.kill();
    let stream = StreamHandle::LEGACY;
    let check = |what: &str, result: Result<(), partita_client::CallError>| {
        assert_eq!(result.unwrap_err().code, code::PEER_GONE, "{what}");
    };
    let error = soon("the first call", || session.synchronize(None)).unwrap_err();
    assert!(error.text.contains("restart the program"), "{error}");
    check("alloc", session.mem_alloc(5).map(|_| ()));
    check("launch", session.launch(launch(0)));
    check("copy to the device", session.copy_to_device(stream, address, &[0; 1 << 20]));
    check("copy to the host", session.copy_to_host(stream, &mut [0; 1 << 20], address));
    check("event", session.synchronize_event(event));
    check("synchronize", session.synchronize(None));
}

#[test]
fn the_daemons_death_ends_waiting_threads() {
    let (dir, _daemon) = daemon();
    let session = connect(dir.path());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        if let Err(error) = session.synchronize(None) {
                            return (error, Instant::now());
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        let died = Instant::now();
        let _sent_or_gone = session.launch(launch(DEADLY));
        for thread in threads {
            let (error, at) = thread.join().unwrap();
            assert_eq!(error.code, code::PEER_GONE);
            assert!(at.duration_since(died) < PATIENCE, "told at once");
        }
    });
}

#[test]
fn a_program_that_only_launches_or_polls_learns_of_the_daemons_death() {
    let (dir, mut daemon) = daemon();
    let (first, second) = (connect(dir.path()), connect(dir.path()));
    let event = second.create_event().unwrap();
    second.synchronize(None).unwrap();
    rustix::process::kill_process(pid(&daemon), rustix::process::Signal::STOP).unwrap();
    // All its threads have stopped only when it says so.
    rustix::process::waitpid(Some(pid(&daemon)), rustix::process::WaitOptions::UNTRACED).unwrap();
    second.record_event(event, StreamHandle::LEGACY).unwrap();
    assert_eq!(second.query_event(event), Ok(false));
    daemon.kill();
    let error = soon("launching", || {
        loop {
            if let Err(error) = first.launch(launch(0)) {
                return error;
            }
        }
    });
    assert_eq!(error.code, code::PEER_GONE);
    let error = soon("polling", || {
        loop {
            if let Err(error) = second.query_event(event) {
                return error;
            }
        }
    });
    assert_eq!(error.code, code::PEER_GONE);
}

fn pid(process: &Process) -> rustix::process::Pid {
    rustix::process::Pid::from_child(&process.0)
}

#[test]
fn clients_killed_in_mid_work_leave_the_others_alone() {
    let (dir, _daemon) = daemon();
    let survivor = connect(dir.path());
    let address = survivor.mem_alloc(10_000).unwrap();
    for round in 0..20_u8 {
        let mut victim = Process::start("client_process", CONNECT, dir.path());
        std::thread::sleep(Duration::from_millis(u64::from(round) * 5));
        survivor.copy_to_device(StreamHandle::LEGACY, address, &[round; 10_000]).unwrap();
        victim.kill();
        let mut back = [0xff; 10_000];
        survivor.copy_to_host(StreamHandle::LEGACY, &mut back, address).unwrap();
        assert_eq!(back, [round; 10_000]);
    }
}

#[test]
fn a_forked_child_is_told_and_touches_nothing() {
    let (dir, _daemon) = daemon();
    let session = connect(dir.path());
    let address = session.mem_alloc(100).unwrap();
    // SAFETY: the child calls nothing but the session, which must return before it takes a lock,
    // and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = [
            session.check(),
            session.launch(launch(0)),
            session.synchronize(None),
            session.mem_free(address),
            session.copy_to_device(StreamHandle::LEGACY, address, &[0; 100]),
        ];
        let good = told
            .iter()
            .all(|told| matches!(told, Err(error) if error.code == code::NOT_INITIALIZED));
        drop(session);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if good { 42 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` lives across the call, and `child` is this process's child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 42);
    session.copy_to_device(StreamHandle::LEGACY, address, &[0; 100]).unwrap();
    session.copy_to_device(StreamHandle::LEGACY, DeviceAddress(address.0), &[0; 100]).unwrap();
}
