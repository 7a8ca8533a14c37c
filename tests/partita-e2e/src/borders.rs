//! Programs under constant resizing: while a program runs beside a neighbour, the border between
//! them moves to another place, again and again.

use crate::daemon::Daemon;
use crate::held::Held;
use crate::toolchain;
use partita_model::{ApplicationId, ResidencyKind, SmId, SmSet, TraceEntry, TraceReport};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The pause between two looks for a program that has not begun.
const PAUSE: Duration = Duration::from_millis(1);

/// Starts a neighbour that has work until it is released: 128 CTAs a round.
///
/// # Panics
/// Where it cannot be compiled or started.
#[must_use]
pub fn neighbour(daemon: &Daemon) -> (Held, ApplicationId) {
    let held = Held::start(daemon, &toolchain::program("poly"), &["32768", "3000", "1"]);
    let status = daemon.wait_for("a neighbour with work", |status| {
        status.applications.iter().any(|application| application.ctas_completed > 0)
    });
    (held, status.applications[0].id)
}

/// Runs a program to its end beside a neighbour, and moves the border between them until then. The
/// seed decides where to. The program's output, and the number of times that the border took an SM
/// from the program on which CTAs of it were.
///
/// # Panics
/// Where the program cannot be started or the daemon does not answer.
pub fn run_under_resizing(
    daemon: &Daemon,
    neighbour: ApplicationId,
    program: &Path,
    seed: &mut u64,
) -> (Output, usize) {
    let mut command = daemon.run(program);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("partita can be started");
    let has_ended = AtomicBool::new(false);
    let (output, own) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let output = child.wait_with_output();
            has_ended.store(true, Ordering::Release);
            output.expect("its output can be read")
        });
        let mut own = None;
        while !has_ended.load(Ordering::Acquire) {
            let status = daemon.status();
            let mut others = status.applications.iter().map(|application| application.id);
            let Some(program) = others.find(|id| *id != neighbour) else {
                std::thread::sleep(PAUSE);
                continue;
            };
            own = Some(program);
            let sms = some_of(status.gpu.sms, seed);
            let rest = SmSet::range(0, status.gpu.sms).difference(&sms);
            daemon.resize(&[(program, sms), (neighbour, rest)]);
        }
        (waiting.join().expect("the thread waits only"), own)
    });
    let moved = own.map_or(0, |own| taken_while_busy(&daemon.trace(), own));
    (output, moved)
}

/// Some of so many SMs: not all, and not none.
fn some_of(sms: u16, seed: &mut u64) -> SmSet {
    loop {
        let mut some = SmSet::EMPTY;
        for sm in (0..sms).map(SmId) {
            if next(seed).is_multiple_of(2) {
                some.insert(sm);
            }
        }
        if !some.is_empty() && some.len() < sms {
            return some;
        }
    }
}

/// The next number of a linear congruential generator: its upper half.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Resizes that took an SM from an application on which CTAs of it were.
fn taken_while_busy(trace: &TraceReport, own: ApplicationId) -> usize {
    let mut live: BTreeMap<SmId, i64> = BTreeMap::new();
    let mut taken = 0;
    for entry in &trace.entries {
        match entry {
            TraceEntry::Resize { application, from, to, .. } if *application == own => {
                let mut lost = from.difference(to).iter();
                taken += usize::from(lost.any(|sm| live.get(&sm).is_some_and(|ctas| *ctas > 0)));
            }
            TraceEntry::Residency { change, application, .. } if *application == own => {
                *live.entry(change.sm).or_default() += match change.kind {
                    ResidencyKind::Start => 1,
                    ResidencyKind::Exit => -1,
                };
            }
            TraceEntry::Resize { .. } | TraceEntry::Residency { .. } => {}
        }
    }
    taken
}
