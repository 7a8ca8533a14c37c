//! A queue of unmodified programs under Punyala's matching: groups form, borders move, and every
//! result is right.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain;
use partita_model::{ApplicationId, ApplicationRecord, DecisionRecord, Note};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// Programs that end by themselves, with their arguments: each has one launch of a millisecond at
/// most.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("poly", &["120000", "300", "1"]),
    ("poly", &["60000", "600", "2"]),
    ("gemm", &[]),
    ("sha256", &[]),
    ("poly", &["120000", "300", "3"]),
    ("transpose", &[]),
    ("mandelbrot", &[]),
    ("poly", &["60000", "600", "4"]),
];
/// Between two arrivals.
const ARRIVAL: Duration = Duration::from_millis(10);
/// All of them have ended so long after the daemon began to serve.
const DEADLINE: Duration = Duration::from_secs(110);
/// On a busy machine programs may start so slowly that none waits beside another.
const QUEUES: usize = 4;

/// A running program; dropping it ends it.
struct Running {
    name: &'static str,
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The decisions of a run, each once.
#[derive(Default)]
struct Seen(BTreeMap<u64, DecisionRecord>);

impl Seen {
    fn look(&mut self, daemon: &Daemon) {
        let decisions = daemon.status().policy.decisions;
        self.0.extend(decisions.into_iter().map(|decision| (decision.sequence, decision)));
    }

    /// The matched groups of at least two that have run, each member on SMs of its own.
    fn groups(&self) -> BTreeSet<Vec<ApplicationId>> {
        let matched = |decision: &DecisionRecord| {
            let running: Vec<&ApplicationRecord> =
                decision.applications.iter().filter(|one| !one.gets.is_empty()).collect();
            let apart = running.iter().enumerate().all(|(at, one)| {
                running[at + 1..].iter().all(|other| one.gets.is_disjoint(&other.gets))
            });
            let ids: Vec<ApplicationId> = running.iter().map(|one| one.application).collect();
            let is_it =
                |note: &Note| matches!(note, Note::Matched { members, .. } if *members == ids);
            (ids.len() > 1 && apart && decision.notes.iter().any(is_it)).then_some(ids)
        };
        self.0.values().filter_map(matched).collect()
    }

    /// How often an SM went from one application to another.
    fn moves(&self) -> usize {
        let mut owners = BTreeMap::new();
        let mut moves = 0;
        for one in self.0.values().flat_map(|decision| &decision.applications) {
            for sm in one.gets.iter() {
                let before = owners.insert(sm, one.application);
                moves += usize::from(before.is_some_and(|before| before != one.application));
            }
        }
        moves
    }
}

/// Waits for all programs, and looks at the decisions meanwhile.
#[track_caller]
fn expect_passed(running: Vec<Running>, daemon: &Daemon, seen: &mut Seen, begin: Instant) {
    let mut waiting = running;
    while !waiting.is_empty() {
        seen.look(daemon);
        let is_late = begin.elapsed() > DEADLINE;
        let names: Vec<&str> = waiting.iter().map(|running| running.name).collect();
        assert!(
            !is_late,
            "{names:?} still run {DEADLINE:?} after the start: {:#?}\n{}",
            daemon.status(),
            daemon.log()
        );
        for mut running in std::mem::take(&mut waiting) {
            match running.child.try_wait().expect("its state is known") {
                Some(_) => check(running),
                None => waiting.push(running),
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn check(mut running: Running) {
    use std::io::Read;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let child = &mut running.child;
    child.stdout.take().expect("piped").read_to_end(&mut stdout).expect("it can be read");
    child.stderr.take().expect("piped").read_to_end(&mut stderr).expect("it can be read");
    let status = child.wait().expect("it has ended");
    let output = Output { status, stdout, stderr };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && stdout.ends_with("PASSED\n");
    assert!(passed, "{}: {output:?}", running.name);
}

#[test]
fn eight_programs_arrive_in_a_queue_and_run_in_groups() {
    let programs = PROGRAMS.map(|(name, arguments)| (name, toolchain::program(name), arguments));
    // Kernels that run as they were written are not counted, and nobody is matched before.
    let text = "[policy]\nselector = \"matching\"\npartitioner = \"smra\"\noriginals = \"never\"\n";
    let daemon = Daemon::with_config("emu:cd-search-24", text);
    let begin = Instant::now();
    let start = |place: usize| {
        let (name, program, arguments) = &programs[place];
        let mut command = daemon.run(program);
        command.args(*arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { name, child: command.spawn().expect("partita can be started") }
    };
    // The profiles of programs that were seen before are there, so the queue is matched at once.
    for place in 0..programs.len() {
        expect_passed(vec![start(place)], &daemon, &mut Seen::default(), begin);
    }
    let mut seen = Seen::default();
    for _ in 0..QUEUES {
        let mut queue = Vec::new();
        for place in 0..programs.len() {
            queue.push(start(place));
            seen.look(&daemon);
            std::thread::sleep(ARRIVAL);
        }
        expect_passed(queue, &daemon, &mut seen, begin);
        if !seen.groups().is_empty() {
            break;
        }
    }

    let (groups, moves) = (seen.groups(), seen.moves());
    let decisions = seen.0.len();
    println!("{decisions} decisions, {moves} moves of SMs, {:?}: {groups:?}", begin.elapsed());
    assert!(!groups.is_empty(), "nobody ran beside another: {:#?}", seen.0);
    assert!(moves > 0, "no SM went from one application to another: {:#?}", seen.0);
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}
