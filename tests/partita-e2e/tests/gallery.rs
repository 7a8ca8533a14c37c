//! The gallery: ordinary CUDA programs, one subject each, that check themselves against a host
//! reference.
//!
//! A program's name is the first word of a line that it prints. Its last line is `PASSED`, or
//! `FAILED` with the reason above it. A line `// nvcc: …` names the options of nvcc that a program
//! needs. Each program has a daemon of its own, so that a failure shows that daemon's log.
//!
//! Under constant resizing programs print what they print alone. A run tries two programs;
//! `PARTITA_RESIZING=all` tries all, and `PARTITA_RESIZING=scan,gemm` these.

use partita_e2e::daemon::Daemon;
use partita_e2e::gallery::NAMES;
use partita_e2e::{borders, toolchain};
use std::process::{Output, Stdio};

#[track_caller]
fn expect_passed(name: &str, output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    assert!(
        stdout.lines().any(|line| line.split(' ').next() == Some(name)),
        "no line of `{name}` in:\n{stdout}"
    );
    assert!(stdout.ends_with("PASSED\n"), "{name}:\n{stdout}");
}

fn passes(name: &str, device: &str) {
    let program = toolchain::gallery_program(name);
    let daemon = Daemon::start(device);
    expect_passed(name, &daemon.run(&program).output().expect("partita can be started"));
}

macro_rules! gallery {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                passes(stringify!($name), "emu");
            }
        )*

        /// The same where the emulated GPU only executes.
        mod without_timing {
            $(
                #[test]
                fn $name() {
                    super::passes(stringify!($name), "emu,timing=off");
                }
            )*
        }

        /// The same where several threads of the host execute kernels as they were written.
        mod on_threads {
            $(
                #[test]
                fn $name() {
                    super::passes(stringify!($name), "emu,timing=off,threads=3");
                }
            )*
        }
    };
}

partita_e2e::for_gallery!(gallery);

/// A program for another GPU than the default one.
mod for_b200 {
    #[test]
    fn blackwell_gemm() {
        super::passes("blackwell_gemm", "emu:b200");
    }

    #[test]
    fn blackwell_gemm_without_timing() {
        super::passes("blackwell_gemm", "emu:b200,timing=off");
    }
}

/// With an hour of patience for programs that do not call.
#[test]
fn a_program_that_a_kernel_waits_for_need_not_call() {
    passes("no_calls", "emu,patience=3600000");
}

/// Runs on a device that checks nothing, like a real GPU. Rewritten kernels keep to their memory by
/// themselves.
mod guarded {
    macro_rules! programs {
        ($($name:ident)*) => {
            $(
                #[test]
                fn $name() {
                    super::passes(stringify!($name), "emu,timing=off,guards=on");
                }
            )*
        };
    }

    programs! {
        atomics cluster_ring cub function_pointers gridsync histogram leavers symbols texture
        thrust_sort vmm vmm_alias
    }
}

#[test]
fn a_failed_assertion_is_in_the_log_and_on_standard_error() {
    let program = toolchain::gallery_program("assert");
    let daemon = Daemon::start("emu");
    let output = daemon.run(&program).output().expect("partita can be started");
    expect_passed("assert", &output);
    // CUDA prints one line for each thread of the warp that failed the assertion.
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("Assertion")).collect();
    assert_eq!(lines.len(), 28, "{stderr}");
    for (thread, line) in (4..).zip(lines) {
        let place = format!(
            "assert.cu:8: void verify(const int *, int): block: [3,0,0], thread: [{thread},0,0] \
             Assertion \
             `data[i] < limit` failed."
        );
        assert!(line.ends_with(&place), "{line}, wanted {place}");
    }
    let log = daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains("CUDA_ERROR_ASSERT"))
        .unwrap_or_else(|| panic!("{log}"));
    for part in ["verify", "data[i] < limit", "assert.cu:", "thread (4,0,0)"] {
        assert!(line.contains(part), "no `{part}` in: {line}");
    }
}

#[test]
fn a_kernel_that_cannot_run_is_refused_and_the_others_run() {
    let program = toolchain::gallery_program("unsupported");
    let daemon = Daemon::start("emu");
    let output = daemon.run(&program).output().expect("partita can be started");
    expect_passed("unsupported", &output);
    let log = daemon.log();
    let line =
        log.lines().find(|line| line.contains("cannot run")).unwrap_or_else(|| panic!("{log}"));
    // The line is one of the program's own text.
    let ptx = toolchain::ptx("unsupported", "sm_90a");
    let ptx = std::fs::read_to_string(ptx).expect("the compiler wrote it");
    let place =
        ptx.lines().position(|line| line.contains("multimem.red")).expect("the kernel has it") + 1;
    let instruction = format!("line {place}: `multimem.red.relaxed.gpu.global.add.u32`");
    for part in ["refused", &instruction, "several GPUs"] {
        assert!(line.contains(part), "no `{part}` in: {line}");
    }
}

#[test]
fn eight_programs_at_once_give_what_each_gives_alone() {
    const NAMES: [&str; 8] =
        ["reduce", "lookback", "histogram", "gemm", "bfs", "stencil", "early_return", "events"];
    let daemon = Daemon::start("emu");
    let children = NAMES.map(|name| {
        let mut command = daemon.run(&toolchain::gallery_program(name));
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("partita can be started")
    });
    for (name, child) in NAMES.into_iter().zip(children) {
        expect_passed(name, &child.wait_with_output().expect("its output can be read"));
    }
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}

/// Programs that a run tries under constant resizing. All have launches of many long CTAs:
/// workers, tickets whose CTAs wait for earlier ones, and whole clusters of tickets.
const RESIZED: &str = "histogram,lookback,cluster_ring";

/// What each program prints and its exit status are those of its run alone, to the byte. Every
/// launch is resizable, and the border moves as fast as the daemon takes plans. The GPU only
/// executes: with time it needs 20 times as long.
#[test]
fn programs_print_the_same_under_constant_resizing() {
    let asked = std::env::var("PARTITA_RESIZING").ok();
    let names: Vec<&str> = match asked.as_deref() {
        Some("all") => NAMES.to_vec(),
        names => names.unwrap_or(RESIZED).split(',').collect(),
    };
    // Where a launch is short no border may cross it, and some kernels only run as they were
    // written. The two run again until the border has taken SMs from their CTAs.
    let attempts = if asked.is_some() { 1 } else { 1_000 };
    let mut seed = 0x2545_f491_4f6c_dd1d;
    let (mut moves, mut unmoved, mut wrong) = (0, Vec::new(), Vec::new());
    let config = "[policy]\npartitioner = \"even\"\noriginals = \"never\"\n";
    for &name in &names {
        let program = toolchain::gallery_program(name);
        let daemon = Daemon::with_config("emu,timing=off", config);
        let alone = daemon.run(&program).output().expect("partita can be started");
        expect_passed(name, &alone);
        let (neighbour, id) = borders::neighbour(&daemon);
        let mut moved = 0;
        for _ in 0..attempts {
            let (output, taken) = borders::run_under_resizing(&daemon, id, &program, &mut seed);
            // Messages on stderr have addresses of the host, which differ from run to run.
            if (output.status, &output.stdout) != (alone.status, &alone.stdout) {
                println!("{name}: other output than alone");
                wrong.push(format!("{name}: {output:?}, alone {alone:?}\n{}", daemon.log()));
            }
            moved += taken;
            if moved > 0 || !wrong.is_empty() {
                break;
            }
        }
        let neighbour = neighbour.release();
        assert!(neighbour.stdout.ends_with(b"PASSED\n"), "{name}: {neighbour:?}");
        println!("{name}: the border took SMs from its CTAs {moved} times");
        moves += moved;
        if moved == 0 {
            unmoved.push(name);
        }
    }
    println!("{} programs, {moves} times; no SM taken from {unmoved:?}", names.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked.is_some() || unmoved.is_empty(), "{unmoved:?}");
}
