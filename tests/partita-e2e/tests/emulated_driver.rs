//! Unmodified programs on the real backend, over the driver that executes
//! (`tests/emulated-driver`).
//!
//! A run tries a few programs of the gallery. `PARTITA_EMULATED_DRIVER_GALLERY=all` tries all, and
//! `PARTITA_EMULATED_DRIVER_GALLERY=scan,gemm` these. `PARTITA_EMULATED_DRIVER` sets other
//! switches of the driver than the tests choose, and `PARTITA_EMULATED_DRIVER_DEVICE` the device of
//! the daemon, such as `cuda,guards=strict`.
//!
//! A seed decides which habits the driver has, and what hardware leaves open. A run tries two
//! seeds, and `PARTITA_EMULATED_DRIVER_SEEDS=0-999` tries these.

use partita_e2e::binaries;
use partita_e2e::daemon::Daemon;
use partita_e2e::gallery::NAMES;
use partita_e2e::held::Held;
use partita_e2e::toolchain::{self, Runtime};
use partita_model::{SmSet, StatusReport};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The emulated GPU's time is of no use here, and programs have PTX of CUDA 13.5. The driver tells
/// when the owner's thread waits for grids.
const SWITCHES: &str = "timing=off,cuda=13050,watch=on";
/// The same for programs whose kernels reach the host's memory (docs/roadmap.md, "The real GPU").
const WITH_HOST_MEMORY: &str = "timing=off,cuda=13050,watch=on,no-pageable-access=off";
/// What the driver says of such a wait.
const WAITS: &str = "the first thread waits";
/// What a daemon logs once it has opened the GPU.
const SERVES: &str = "partitad: serving";
const POLICY: &str = "[policy]\npartitioner = \"even\"\n";

/// Where one thread emulates hundreds of CTAs that poll, and the device's time is the host's, a CTA
/// may take seconds.
const PATIENT: &str = "[policy]\npartitioner = \"even\"\nno_progress_ms = 600000\n";

/// How long a program of the gallery may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The programs of every run: atomics, the host's memory, barriers, a module's variables.
const PROGRAMS: &str = "atomics,mapped,processes,processes_vmm,reduce,symbols";

/// The switches of the environment, else these.
fn switches(usual: &str) -> String {
    std::env::var("PARTITA_EMULATED_DRIVER").unwrap_or_else(|_| usual.to_owned())
}

/// The reason why a program has not passed.
fn failure(output: &Output) -> Option<String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && stdout.ends_with("PASSED\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    (!passed).then(|| format!("{}\n{stdout}\n{stderr}", output.status))
}

/// Runs programs at once on a daemon. The reason why one has not passed.
fn run_on(daemon: &Daemon, programs: &[PathBuf]) -> Result<(), String> {
    let start = |program: &PathBuf| {
        let mut command = daemon.run(program);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        child.expect("partita can be started")
    };
    let mut children: Vec<Child> = programs.iter().map(start).collect();
    let start = Instant::now();
    let is_running = |child: &mut Child| child.try_wait().expect("it is a child").is_none();
    while children.iter_mut().any(is_running) {
        if start.elapsed() > LIMIT {
            children.iter_mut().for_each(|child| child.kill().expect("it is a child"));
            return Err(format!("it hangs\n{}", daemon.log()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for child in children {
        let output = child.wait_with_output().expect("its output can be read");
        if let Some(reason) = failure(&output) {
            return Err(format!("{reason}\n{}", daemon.log()));
        }
    }
    let log = daemon.log();
    // While the daemon opens the GPU, it measures, and nobody waits for it.
    let served = log.split_once(SERVES).map_or("", |(_, served)| served);
    if served.is_empty() || served.contains(WAITS) { Err(log) } else { Ok(()) }
}

/// Runs a program of the gallery on a daemon of its own. The reason why it has not passed.
fn run(name: &str, switches: &str) -> Result<(), String> {
    let program = toolchain::gallery_program(name);
    run_on(&Daemon::on_emulated_driver(switches, POLICY), &[program])
}

#[test]
fn an_unmodified_program_adds_vectors_on_the_real_backend() {
    let daemon = Daemon::on_emulated_driver(SWITCHES, POLICY);
    assert_eq!(daemon.status().gpu.sms, 132);
    let program = toolchain::program("vecAdd");
    let output = daemon.run(&program).output().expect("partita can be started");
    assert_eq!(failure(&output), None);
}

/// What the daemon has found out about the driver, and tensor maps, which its driver makes.
#[test]
fn limits_are_named_and_tensor_maps_are_made() {
    let daemon = Daemon::on_emulated_driver(SWITCHES, POLICY);
    let limits = daemon.status().gpu.limits.join("\n");
    assert!(limits.contains("loading code") && limits.contains("after the 32 first"), "{limits}");
    let program = toolchain::driver_program("tensor_maps");
    let output = daemon.run(&program).output().expect("partita can be started");
    assert_eq!(failure(&output), None);
    for (device, said) in [("emu", "PASSED\n"), ("emu:a100,capability=8.0", "NONE\n")] {
        let emulated = Daemon::start(device);
        let output = emulated.run(&program).output().expect("partita can be started");
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
    }
}

/// The driver would write it to the standard output of its own process.
#[test]
fn what_kernels_print_arrives() {
    let daemon = Daemon::on_emulated_driver(&switches(SWITCHES), POLICY);
    let program = toolchain::gallery_program("printf");
    let output = daemon.run(&program).output().expect("partita can be started");
    assert_eq!(failure(&output), None);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let kernels: Vec<&str> = stdout.lines().filter(|line| line.starts_with("kernel: ")).collect();
    let expected = [
        "kernel: -7    42|42   |00042 3000000000 ff FF 10 z",
        "kernel: -1099511627776 4611686018427387904 18446744073709551615 4 -3",
        "kernel: 1.500000 0.667 1.234568e+04 1e-10    -3.14|",
        "kernel: device text and literal % 0x0",
        "kernel: nothing",
        "kernel:     99|0.12",
    ];
    assert_eq!(kernels, expected, "{stdout}");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("block ")).count(), 6, "{stdout}");
}

/// A kernel whose faults no guard contains runs where its user has the right, as root has.
#[test]
fn strict_guards_let_right_programs_pass() {
    let daemon = Daemon::with_emulated_driver(&["cuda,guards=strict"], SWITCHES, POLICY);
    let programs = ["recursion", "reduce"].map(toolchain::gallery_program);
    assert_eq!(run_on(&daemon, &programs), Ok(()));
}

/// Loading holds up every call until nothing runs, and each program loads while others run.
#[test]
fn programs_start_side_by_side() {
    let daemon = Daemon::on_emulated_driver(&switches(SWITCHES), POLICY);
    let names = ["reduce", "symbols", "reduce", "atomics"];
    let programs: Vec<PathBuf> = names.map(toolchain::gallery_program).into();
    assert_eq!(run_on(&daemon, &programs), Ok(()));
}

/// Each GPU has a process of its own, and a program uses both.
#[test]
fn a_program_uses_two_gpus() {
    let switches = format!("{},gpus=2", switches(SWITCHES));
    let daemon = Daemon::with_emulated_driver(&["cuda:0", "cuda:1"], &switches, POLICY);
    let own = Runtime::Static.options();
    let options: Vec<&str> = own.iter().map(String::as_str).collect();
    let program = toolchain::program_with("two_gpus", &options);
    assert_eq!(run_on(&daemon, &[program]), Ok(()));
    let status = daemon.status();
    assert_eq!((status.gpu.sms, status.others[0].gpu.sms), (132, 132));
}

/// Habits that a seed decides. Without pageable access some programs do not run.
const HABITS: [&str; 17] = [
    "context-lock",
    "unmap-waits",
    "channels",
    "entries",
    "small-alignment",
    "local-resize",
    "sticky-faults",
    "matching-contexts",
    "fills-need-room",
    "reserved-shared",
    "parted-registers",
    "carve-out",
    "most-room",
    "permuted-smids",
    "smid-gaps",
    "no-pageable-access",
    "printf-on-stdout",
];

/// The switches of a seed: three habits of four.
fn of_seed(seed: u64) -> String {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let off = HABITS.iter().filter(|_| next() % 4 == 0).map(|habit| format!(",{habit}=off"));
    format!("{SWITCHES},seed={seed}{}", off.collect::<String>())
}

/// The device of a seed. With an even seed nearly every launch of workers has helper grids only,
/// because the host takes long for it, and can leave the device.
fn device_of_seed(seed: u64) -> &'static str {
    if seed.is_multiple_of(2) { "cuda" } else { "cuda,leaving=off" }
}

/// Two of these run at once with each seed.
const SMALL: [&str; 4] = ["atomics", "reduce", "symbols", "scan"];

#[test]
fn seeds_of_habits() {
    let asked = std::env::var("PARTITA_EMULATED_DRIVER_SEEDS").unwrap_or_else(|_| "0-1".into());
    let (first, last) = asked.split_once('-').unwrap_or((&asked, &asked));
    let number = |text: &str| text.parse::<u64>().expect("seeds are a number, or two as in 0-999");
    let seeds = number(first)..=number(last);
    assert!(!seeds.is_empty(), "{asked} has no seeds: the first comes before the last");
    let mut wrong = Vec::new();
    for seed in seeds {
        let (switches, start) = (of_seed(seed), Instant::now());
        let programs: Vec<PathBuf> = [seed, seed / 4 + seed + 1]
            .map(|choice| SMALL[usize::try_from(choice % 4).unwrap_or(0)])
            .map(toolchain::gallery_program)
            .into();
        let device = [device_of_seed(seed)];
        let daemon = Daemon::with_emulated_driver(&device, &switches, POLICY);
        let result = run_on(&daemon, &programs);
        let words = if result.is_ok() { "passed" } else { "FAILED" };
        println!("seed {seed}: {words} after {:.1} s", start.elapsed().as_secs_f64());
        wrong.extend(result.err().map(|reason| {
            format!(
                "--- seed {seed} ({device:?}, {switches}); PARTITA_EMULATED_DRIVER_SEEDS={seed} \
                 repeats it ---\n{reason}"
            )
        }));
    }
    assert!(wrong.is_empty(), "{} seeds failed\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn programs_of_the_gallery_pass() {
    let asked = std::env::var("PARTITA_EMULATED_DRIVER_GALLERY").ok();
    let switches = switches(SWITCHES);
    let names = match asked.as_deref() {
        Some("all") => NAMES.join(","),
        names => names.unwrap_or(PROGRAMS).to_owned(),
    };
    let mut wrong = Vec::new();
    for name in names.split(',') {
        let start = Instant::now();
        let result = run(name, &switches);
        let words = if result.is_ok() { "passed" } else { "FAILED" };
        println!("{name}: {words} after {:.1} s", start.elapsed().as_secs_f64());
        wrong.extend(result.err().map(|reason| format!("--- {name} ---\n{reason}")));
    }
    assert!(wrong.is_empty(), "{} programs failed\n{}", wrong.len(), wrong.join("\n"));
}

fn ctas(status: &StatusReport) -> Vec<u64> {
    status.applications.iter().map(|application| application.ctas_completed).collect()
}

/// A border moves under load, one program is killed, and the other keeps its results.
#[test]
fn a_border_moves_and_a_killed_program_harms_nobody() {
    let daemon = Daemon::on_emulated_driver(&switches(WITH_HOST_MEMORY), PATIENT);
    let program = toolchain::program("poly");
    let start = |seed: &str| Held::start(&daemon, &program, &["32768", "4000", seed]);
    let first = start("1");
    daemon.wait_for("a program with work", |status| ctas(status).iter().any(|ctas| *ctas > 0));
    // While its code is loaded, the first launch leaves the device.
    let second = start("2");
    let status = daemon.wait_for("two programs with work", |status| {
        status.applications.len() == 2 && ctas(status).iter().all(|ctas| *ctas > 0)
    });
    let of = |program: &Held| {
        let pid = program.id().as_raw_nonzero().get().cast_unsigned();
        let found = status.applications.iter().find(|found| found.pids.contains(&pid));
        found.expect("both are there").id
    };
    let (one, other) = (of(&first), of(&second));
    // Some numbers belong to no SM.
    let all = status.partitions.iter().fold(SmSet::EMPTY, |all, part| all.union(&part.sms));
    let few: SmSet = all.iter().take(16).collect();
    let many = all.difference(&few);
    assert!(status.applications.iter().all(|found| found.launches_completed == 0));
    assert!(daemon.resize(&[(one, few), (other, many)]));
    let moved = daemon.wait_for("the new border", |status| {
        status.partitions.iter().any(|part| part.application == one && part.sms == few)
    });
    let then = ctas(&moved);
    daemon.wait_for("progress behind the border", |status| {
        ctas(status).iter().zip(&then).all(|(now, then)| *now > *then)
    });
    kill_process(second.id(), Signal::KILL).expect("it is there");
    assert!(!second.output().status.success());
    daemon.wait_for("one program", |status| status.applications.len() == 1);
    assert_eq!(failure(&first.release()), None);
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}

#[test]
fn launches_of_one_client_are_measured() {
    let library = binaries::binary("libpartita_emulated_driver.so");
    let mut command = Command::new(binaries::binary("partita"));
    command.args(["bench", "wire", "--device", "cuda", "--quick", "--json"]);
    command.env("PARTITA_LIBCUDA", &library).env("PARTITA_LIBNVIDIA_ML", &library);
    command.env("PARTITA_EMULATED_DRIVER", switches(SWITCHES));
    let output = command.output().expect("partita can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let rate = report["metrics"].as_array().expect("it has figures").iter().find_map(|metric| {
        let is_rate = metric["name"].as_str()?.starts_with("launches of one client");
        is_rate.then(|| metric["value"].as_f64())?
    });
    assert!(rate.expect("the rate is there") > 0.0, "{report}");
}
