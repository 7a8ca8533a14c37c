//! Faulty kernels on the real backend, over the driver that executes. A fault there ends the
//! context for everybody (`sticky-faults`), so nothing that a kernel does may reach it.
//!
//! A seed decides a kernel (`faulty`). A process of its own launches it, beside a healthy session
//! that checks each of its words. A context that ends, a wrong or failed healthy launch, and a
//! minute without progress are failures, which name the seed.
//!
//! A run plays [`USUAL`] seeds. `PARTITA_FAULTY_KERNELS=0-9999` plays these, and
//! `PARTITA_FAULTY_KERNELS_ONLY='global, beyond'` only that fault.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod faulty;

use faulty::{BYTES, Faulty};
use partita_client::{Launch, LoadedModule, Session, StreamHandle, image};
use partita_e2e::daemon::Daemon;
use partita_model::{DeviceAddress, Dim3};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Seeds of a usual run.
const USUAL: &str = "0-19";
const SWITCHES: &str = "timing=off,cuda=13050,sticky-faults=on";
const POLICY: &str = "[policy]\npartitioner = \"even\"\n";
/// Another user than the daemon's, who may run no kernel without a fence.
const STRANGER: u32 = 65_534;
/// A kernel that runs for longer never ends: its process is killed.
const ENDLESS: Duration = Duration::from_millis(1500);
/// Whatever takes longer hangs.
const HANG: Duration = Duration::from_secs(60);
/// Names the sockets and the seed to the process that launches a kernel.
const SOCKETS: &str = "PARTITA_FAULTY_SOCKETS";
const SEED: &str = "PARTITA_FAULTY_SEED";
const ONLY: &str = "PARTITA_FAULTY_KERNELS_ONLY";
/// Outcomes without an error of the program's.
const GOOD: &str = "no error";
const KILLED: &str = "endless, killed";
/// CUDA's error of a launch that was ended because others waited.
const TIMEOUT: u32 = 702;
/// What the process says after its launch.
const LAUNCHED: &str = "launched";
/// The exit code of a process whose launch has not failed, and of one that was refused.
const WELL: i32 = 0;
const REFUSED: i32 = 1;

const HEALTHY: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry healthy(.param .u64 to, .param .u32 round)
{
	.shared .align 4 .b8 tile[512];
	.reg .pred %p;
	.reg .b32 %r<9>;
	.reg .b64 %d<4>;
	ld.param.u64 %d1, [to];
	ld.param.u32 %r1, [round];
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %ctaid.x;
	mad.lo.s32 %r4, %r3, 128, %r2;
	shl.b32 %r5, %r2, 2;
	mov.u32 %r6, tile;
	add.u32 %r5, %r6, %r5;
	add.u32 %r7, %r4, %r1;
	st.shared.u32 [%r5], %r7;
	bar.sync 0;
	mov.u32 %r8, 0;
$AGAIN:
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p, %r8, 20;
	@%p bra $AGAIN;
	xor.b32 %r2, %r2, 127;
	shl.b32 %r2, %r2, 2;
	add.u32 %r2, %r6, %r2;
	ld.shared.u32 %r7, [%r2];
	mad.lo.u32 %r7, %r7, 3, %r8;
	mul.wide.u32 %d2, %r4, 4;
	add.u64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r7;
	ret;
}
";
const HEALTHY_CTAS: u32 = 24;
const HEALTHY_WORDS: usize = 24 * 128;

/// A session with the one kernel of a module.
struct Program {
    session: Session,
    module: LoadedModule,
    data: DeviceAddress,
}

impl Program {
    fn new(sockets: &Path, ptx: &str) -> Result<Program, String> {
        let session = Session::connect(sockets).map_err(|error| error.to_string())?;
        let image = image::select(ptx.as_bytes(), session.facts().compute_capability).unwrap();
        let module = session.load_module(&image).map_err(|error| error.to_string())?;
        let data = session.mem_alloc(BYTES).map_err(|error| error.to_string())?;
        Ok(Program { session, module, data })
    }

    fn launch(&self, [ctas, threads, shared]: [u32; 3], number: u32) -> Result<(), String> {
        let mut params = self.data.0.to_le_bytes().to_vec();
        params.extend(number.to_le_bytes());
        let launch = Launch {
            module: self.module.module,
            kernel: 0,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(threads),
            dynamic_shared: shared,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: params.as_slice(),
        };
        self.session.launch(launch).map_err(|error| error.to_string())
    }
}

/// A healthy program, and what it has computed.
struct Healthy {
    program: Program,
    round: u32,
}

impl Healthy {
    fn new(daemon: &Daemon) -> Healthy {
        let program = Program::new(&daemon.socket_dir(), HEALTHY).unwrap();
        Healthy { program, round: 0 }
    }

    /// One launch whose words are checked.
    fn round(&mut self) -> Result<(), String> {
        self.round += 1;
        self.program.launch([HEALTHY_CTAS, 128, 0], self.round)?;
        let mut bytes = vec![0; 4 * HEALTHY_WORDS];
        let session = &self.program.session;
        session
            .copy_to_host(StreamHandle::LEGACY, &mut bytes, self.program.data)
            .map_err(|error| error.to_string())?;
        for (index, word) in (0_u32..).zip(bytes.as_chunks::<4>().0) {
            let expected = ((index ^ 127) + self.round) * 3 + 20;
            let found = u32::from_le_bytes(*word);
            if found != expected {
                return Err(format!("word {index} is {found} for {expected}"));
            }
        }
        Ok(())
    }
}

/// Not a test of its own: the process that launches a faulty kernel.
#[test]
fn process_with_a_faulty_kernel() {
    let Some(sockets) = std::env::var_os(SOCKETS) else { return };
    let stranger = Uid::from_raw(STRANGER);
    set_thread_res_uid(stranger, stranger, stranger).unwrap();
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let Faulty { ptx, ctas, threads, dynamic_shared, .. } = of_seed(seed);
    let code = match Program::new(Path::new(&sockets), &ptx) {
        Err(error) => {
            println!("{error}");
            REFUSED
        }
        Ok(program) => {
            let launched = program.launch([ctas, threads, dynamic_shared], 0);
            assert_eq!(launched, Ok(()));
            println!("{LAUNCHED}");
            match program.session.synchronize(None) {
                Ok(()) => WELL,
                Err(error) => {
                    println!("error {}", error.code);
                    error.code % 256
                }
            }
        }
    };
    std::process::exit(code);
}

/// A daemon that other users reach.
fn daemon() -> Daemon {
    let daemon = Daemon::with_emulated_driver(&["cuda,guards=strict"], SWITCHES, POLICY);
    let sockets = daemon.socket_dir();
    std::fs::set_permissions(sockets.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    daemon
}

fn of_seed(seed: u64) -> Faulty {
    faulty::kernel(seed, std::env::var(ONLY).ok().as_deref())
}

fn start(daemon: &Daemon, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_with_a_faulty_kernel", "--nocapture"])
        .env(SOCKETS, daemon.socket_dir())
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What became of a faulty program, in words.
fn outcome(mut child: Child, healthy: &mut Healthy) -> Result<String, String> {
    let (said, lines) = channel();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).for_each(|line| drop(said.send(line)));
    });
    let (mut text, mut launched) = (String::new(), None);
    loop {
        healthy.round()?;
        for line in lines.try_iter() {
            if line == LAUNCHED {
                launched = Some(Instant::now());
            } else {
                text = line;
            }
        }
        if let Some(status) = child.try_wait().unwrap() {
            drop(reader.join());
            text = lines.try_iter().last().unwrap_or(text);
            return Ok(match status.code() {
                Some(WELL) => GOOD.to_owned(),
                Some(REFUSED) => format!("not loaded: {text}"),
                Some(101) | None => {
                    return Err(format!("the process of the faulty kernel ends badly: {text}"));
                }
                Some(_) => text,
            });
        }
        if launched.is_some_and(|launched: Instant| launched.elapsed() > ENDLESS) {
            child.kill().unwrap();
            child.wait().unwrap();
            healthy.round()?;
            return Ok(KILLED.to_owned());
        }
    }
}

/// Plays a seed. The words are for the table of outcomes.
fn play(daemon: &Daemon, healthy: &mut Healthy, seed: u64) -> Result<String, String> {
    let begun = Instant::now();
    let outcome = outcome(start(daemon, seed), healthy)?;
    healthy.round()?;
    let Faulty { errors, .. } = of_seed(seed);
    let is_known = match outcome.strip_prefix("error ") {
        Some(code) => errors.iter().any(|error| error.to_string() == code),
        None if outcome == KILLED => errors.contains(&TIMEOUT),
        None => outcome == GOOD,
    };
    if !is_known {
        return Err(format!("the faulty program's end is unexpected: {outcome}"));
    }
    if begun.elapsed() > HANG {
        return Err(format!("it took {:.0} s", begun.elapsed().as_secs_f64()));
    }
    Ok(outcome)
}

#[test]
fn nothing_that_a_kernel_does_reaches_the_context() {
    let asked = std::env::var("PARTITA_FAULTY_KERNELS").unwrap_or_else(|_| USUAL.into());
    let (first, last) = asked.split_once('-').unwrap_or((&asked, &asked));
    if !geteuid().is_root() {
        println!("skipped: only root can be two users, of whom one has no right");
        return;
    }
    let mut daemon = daemon();
    let mut healthy = Healthy::new(&daemon);
    let mut outcomes: BTreeMap<(Vec<&str>, String), u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let begun = Instant::now();
    for seed in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
        let faults = of_seed(seed).faults;
        match play(&daemon, &mut healthy, seed) {
            Ok(outcome) => *outcomes.entry((faults, outcome)).or_default() += 1,
            Err(error) => {
                let log = daemon.log();
                let told = log.lines().rfind(|line| line.contains("context ends"));
                let told = told.unwrap_or_default();
                println!("seed {seed} ({}): {error}; {told}", faults.join(" and "));
                wrong.push(seed);
                drop(healthy);
                daemon = self::daemon();
                healthy = Healthy::new(&daemon);
            }
        }
    }
    for ((faults, outcome), count) in outcomes {
        println!("{count:5}  {}: {outcome}", faults.join(" and "));
    }
    println!("{asked} took {:.1} s", begun.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} seeds failed: {wrong:?}", wrong.len());
}
