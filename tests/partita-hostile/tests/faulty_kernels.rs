//! Faulty kernels on the real backend, over the driver that executes. A fault there ends the
//! context for everybody (`sticky-faults`), so nothing that a kernel does may reach it.
//!
//! A seed decides a kernel (`faulty`). Another process launches it, beside a healthy session that
//! checks each of its words. A context that ends, a wrong or failed healthy launch, and a minute
//! without progress are failures, which name the seed.
//!
//! That process launches one kernel after another, each when the test says so, and keeps its
//! session while no kernel fails in it. It is killed where a kernel never ends. A daemon serves
//! until a seed fails.
//!
//! A run plays [`USUAL`] seeds. `PARTITA_FAULTY_KERNELS=0-9999` plays these, `7,100-199` those, and
//! `PARTITA_FAULTY_KERNELS_ONLY='global, beyond'` only that fault. No seed chooses [`BY_NAME`].

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod faulty;

use faulty::{BYTES, Faulty};
use partita_client::{Launch, LoadedModule, Session, StreamHandle, image};
use partita_e2e::daemon::Daemon;
use partita_model::{DeviceAddress, Dim3};
use rustix::process::{Pid, Signal, Uid, geteuid, kill_process};
use rustix::thread::set_thread_res_uid;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Seeds of a usual run: the first ones, and some that once reached the context.
const USUAL: &str = "0-19,281,397,441,792,8426,8727";
/// Faults that no seed chooses, with the seeds of each in a usual run.
const BY_NAME: [&str; 8] = [
    "reductions, apart",
    "reductions, never full",
    "threads, apart",
    "lanes, apart",
    "lanes, words",
    "callers' arrays, beyond",
    "matrix, generic",
    "breakpoint",
];
const SEEDS_BY_NAME: std::ops::Range<u64> = 0..4;
const SWITCHES: &str = "timing=off,cuda=13050,sticky-faults=on";
const POLICY: &str = "[policy]\npartitioner = \"even\"\n";
/// Another user than the daemon's, who may run no kernel without a fence.
const STRANGER: u32 = 65_534;
/// A kernel with an endless wait that runs for longer never ends: its process is killed.
const ENDLESS: Duration = Duration::from_secs(3);
/// Whatever takes longer hangs.
const HANG: Duration = Duration::from_secs(60);
/// Names the sockets to the process that launches kernels.
const SOCKETS: &str = "PARTITA_FAULTY_SOCKETS";
/// Lines of the daemon's log that are printed of a seed that fails.
const LAST_LINES: usize = 8;
const SEEDS: &str = "PARTITA_FAULTY_KERNELS";
const ONLY: &str = "PARTITA_FAULTY_KERNELS_ONLY";
/// Outcomes without an error of the program's.
const GOOD: &str = "no error";
const KILLED: &str = "endless, killed";
/// CUDA's error of a launch that was ended because others waited.
const TIMEOUT: u32 = 702;
/// What the process says after a launch, and before a kernel's end.
const LAUNCHED: &str = "launched";
const ENDED: &str = "ended: ";

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

/// A session, and memory for its kernels.
struct Program {
    session: Session,
    data: DeviceAddress,
}

impl Program {
    fn new(sockets: &Path) -> Result<Program, String> {
        let session = Session::connect(sockets).map_err(|error| error.to_string())?;
        let data = session.mem_alloc(BYTES).map_err(|error| error.to_string())?;
        Ok(Program { session, data })
    }

    /// Loads the one kernel of a text.
    fn load(&self, ptx: &str) -> Result<LoadedModule, String> {
        let capability = self.session.facts().compute_capability;
        let image = image::select(ptx.as_bytes(), capability).unwrap();
        self.session.load_module(&image).map_err(|error| error.to_string())
    }

    fn launch(
        &self,
        module: &LoadedModule,
        [ctas, threads, shared]: [u32; 3],
        number: u32,
    ) -> Result<(), String> {
        let mut params = self.data.0.to_le_bytes().to_vec();
        params.extend(number.to_le_bytes());
        let launch = Launch {
            module: module.module,
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
    module: LoadedModule,
    round: u32,
}

impl Healthy {
    fn new(daemon: &Daemon) -> Healthy {
        let program = Program::new(&daemon.socket_dir()).unwrap();
        let module = program.load(HEALTHY).unwrap();
        Healthy { program, module, round: 0 }
    }

    /// One launch whose words are checked.
    fn round(&mut self) -> Result<(), String> {
        self.round += 1;
        self.program.launch(&self.module, [HEALTHY_CTAS, 128, 0], self.round)?;
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

/// Not a test of its own: the process that launches faulty kernels. It reads their seeds.
#[test]
fn process_with_faulty_kernels() {
    let Some(sockets) = std::env::var_os(SOCKETS) else { return };
    let stranger = Uid::from_raw(STRANGER);
    set_thread_res_uid(stranger, stranger, stranger).unwrap();
    let mut program = None;
    for line in std::io::stdin().lines() {
        let faulty = serde_json::from_str::<Choice>(&line.unwrap()).unwrap().kernel();
        let own = program.take().map_or_else(|| Program::new(Path::new(&sockets)), Ok).unwrap();
        let said = match run(&own, &faulty) {
            // A session that has failed runs nothing more.
            Ok(()) => {
                program = Some(own);
                GOOD.to_owned()
            }
            Err(text) => text,
        };
        println!("{ENDED}{said}");
    }
}

/// Loads a kernel, launches it and waits for its end. Its error in words.
fn run(program: &Program, faulty: &Faulty) -> Result<(), String> {
    let module = program.load(&faulty.ptx).map_err(|error| format!("not loaded: {error}"))?;
    let shape = [faulty.ctas, faulty.threads, faulty.dynamic_shared];
    assert_eq!(program.launch(&module, shape, 0), Ok(()));
    println!("{LAUNCHED}");
    program.session.synchronize(None).map_err(|error| format!("error {}", error.code))?;
    program.session.unload_module(module.module).map_err(|error| error.to_string())
}

/// A daemon that other users reach.
fn daemon() -> Daemon {
    let daemon = Daemon::with_emulated_driver(&["cuda,guards=strict"], SWITCHES, POLICY);
    let sockets = daemon.socket_dir();
    std::fs::set_permissions(sockets.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    daemon
}

/// A kernel to be played.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Choice {
    seed: u64,
    /// Its faults, if they are not the seed's choice.
    only: Option<String>,
}

impl Choice {
    fn kernel(&self) -> Faulty {
        faulty::kernel(self.seed, self.only.as_deref())
    }
}

/// What the variables ask for, or a usual run.
fn choices() -> Vec<Choice> {
    let (asked, only) = (std::env::var(SEEDS), std::env::var(ONLY).ok());
    let is_usual = asked.is_err() && only.is_none();
    let asked = asked.unwrap_or_else(|_| USUAL.into());
    let seeds = asked.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u64>().unwrap()..=last.parse().unwrap()
    });
    let by_chance = seeds.map(|seed| Choice { seed, only: only.clone() });
    let by_name = BY_NAME.into_iter().flat_map(|name| {
        SEEDS_BY_NAME.map(move |seed| Choice { seed, only: Some(name.to_owned()) })
    });
    by_chance.chain(by_name.filter(|_| is_usual)).collect()
}

/// The process that launches faulty kernels.
struct Player {
    child: Child,
    choices: ChildStdin,
    /// How kernels have ended.
    ends: Receiver<String>,
    /// Whether it was killed because a kernel did not end.
    is_killed: Arc<AtomicBool>,
    /// Whether its kernel may never end.
    may_be_endless: Arc<AtomicBool>,
}

impl Player {
    fn start(daemon: &Daemon) -> Player {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_with_faulty_kernels", "--nocapture"])
            .env(SOCKETS, daemon.socket_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, ends) = channel();
        let is_killed = Arc::new(AtomicBool::new(false));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let may_be_endless = Arc::new(AtomicBool::new(false));
        let (pid, killed) = (Pid::from_child(&child), Arc::clone(&is_killed));
        let endless = Arc::clone(&may_be_endless);
        std::thread::spawn(move || {
            let count = Arc::new(AtomicU32::new(0));
            for line in stdout.lines().map_while(Result::ok) {
                if line == LAUNCHED {
                    // A healthy launch may take long beside it, so another thread looks.
                    let (count, killed) = (Arc::clone(&count), Arc::clone(&killed));
                    let before = count.load(Ordering::Acquire);
                    let limit = if endless.load(Ordering::Acquire) { ENDLESS } else { HANG };
                    std::thread::spawn(move || {
                        std::thread::sleep(limit);
                        if count.load(Ordering::Acquire) == before {
                            killed.store(true, Ordering::Release);
                            let _ = kill_process(pid, Signal::KILL);
                        }
                    });
                } else if let Some(text) = line.strip_prefix(ENDED) {
                    count.fetch_add(1, Ordering::AcqRel);
                    let _ = said.send(text.to_owned());
                }
            }
        });
        Player { choices: child.stdin.take().unwrap(), child, ends, is_killed, may_be_endless }
    }

    /// What becomes of a kernel, in words, beside healthy rounds.
    fn outcome(&mut self, choice: &Choice, healthy: &mut Healthy) -> Result<String, String> {
        let may_be_endless = choice.kernel().errors.contains(&TIMEOUT);
        self.may_be_endless.store(may_be_endless, Ordering::Release);
        let line = serde_json::to_string(choice).unwrap();
        writeln!(self.choices, "{line}").map_err(|_| "the process has ended".to_owned())?;
        loop {
            healthy.round()?;
            if let Ok(end) = self.ends.try_recv() {
                return Ok(end);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                return match self.is_killed.load(Ordering::Acquire) {
                    true => Ok(KILLED.to_owned()),
                    false => Err(format!("the process of the faulty kernel ends: {status}")),
                };
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a kernel. The words are for the table of outcomes.
fn play(
    daemon: &Daemon,
    player: &mut Player,
    healthy: &mut Healthy,
    choice: &Choice,
) -> Result<String, String> {
    let begun = Instant::now();
    let outcome = player.outcome(choice, healthy)?;
    if outcome == KILLED {
        *player = Player::start(daemon);
    }
    healthy.round()?;
    let Faulty { errors, .. } = choice.kernel();
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
    if !geteuid().is_root() {
        println!("skipped: only root can be two users, of whom one has no right");
        return;
    }
    let mut daemon = daemon();
    let mut healthy = Healthy::new(&daemon);
    let mut player = Player::start(&daemon);
    let mut outcomes: BTreeMap<(Vec<&str>, String), u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let begun = Instant::now();
    let choices = choices();
    for choice in &choices {
        let seed = choice.seed;
        let Faulty { faults, ptx, ctas, threads, dynamic_shared, .. } = choice.kernel();
        match play(&daemon, &mut player, &mut healthy, choice) {
            Ok(outcome) => *outcomes.entry((faults, outcome)).or_default() += 1,
            Err(error) => {
                let log = daemon.log();
                let told = log.lines().rfind(|line| line.contains("context ends"));
                let told = told.unwrap_or_default();
                println!("seed {seed} ({}): {error}; {told}", faults.join(" and "));
                let lines: Vec<&str> = log.lines().collect();
                println!("{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
                println!(
                    "{ctas} CTAs of {threads} threads, with {dynamic_shared} bytes of dynamic \
                     shared memory:\n{ptx}"
                );
                wrong.push(seed);
                drop(healthy);
                daemon = self::daemon();
                healthy = Healthy::new(&daemon);
                player = Player::start(&daemon);
            }
        }
    }
    for ((faults, outcome), count) in outcomes {
        println!("{count:5}  {}: {outcome}", faults.join(" and "));
    }
    println!("{} kernels took {:.1} s", choices.len(), begun.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} seeds failed: {wrong:?}", wrong.len());
}
