//! Several programs on one daemon: a border that moves in mid-kernel, and the deaths of programs
//! and data planes.

use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::toolchain;
use partita_model::{
    ApplicationId, Nanos, ResidencyKind, SmId, SmSet, StatusReport, TraceEntry, TraceReport,
};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// A polynomial of degree 3000 at 32768 points: 128 blocks a round.
fn start_poly(daemon: &Daemon, seed: &str) -> Held {
    Held::start(daemon, &toolchain::program("poly"), &["32768", "3000", seed])
}

#[track_caller]
fn expect_passed(held: Held, daemon: &Daemon) {
    let output = held.release();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{stdout}\n{}", output.status, daemon.log());
    assert!(stdout.ends_with("PASSED\n"), "{stdout}");
}

fn sms(status: &StatusReport, application: ApplicationId) -> SmSet {
    let mut partitions = status.partitions.iter();
    partitions
        .find(|partition| partition.application == application)
        .map_or(SmSet::EMPTY, |found| found.sms)
}

/// Waits until two applications run kernels on halves of the GPU, and tells their ids.
fn wait_for_halves(daemon: &Daemon) -> (ApplicationId, ApplicationId) {
    let status = daemon.wait_for("two applications on halves", |status| {
        let busy = status.applications.iter().filter(|application| application.ctas_completed > 0);
        busy.count() == 2
            && status.partitions.iter().filter(|partition| partition.sms.len() == 12).count() == 2
    });
    (status.applications[0].id, status.applications[1].id)
}

/// Workers that live on each SM over time, by application, and the resizes between.
fn check_residency(trace: &TraceReport) -> usize {
    assert_eq!(trace.dropped, 0, "the trace is whole");
    let mut resident: BTreeMap<SmId, BTreeMap<ApplicationId, i64>> = BTreeMap::new();
    // The time at which each application last lost an SM.
    let mut lost: BTreeMap<(ApplicationId, SmId), Nanos> = BTreeMap::new();
    let mut late_exits = 0;
    for entry in &trace.entries {
        match entry {
            TraceEntry::Resize { time, application, from, to } => {
                for sm in from.difference(to).iter() {
                    lost.insert((*application, sm), *time);
                }
                for sm in to.difference(from).iter() {
                    lost.remove(&(*application, sm));
                }
            }
            TraceEntry::Residency { change, application, .. } => {
                let here = resident.entry(change.sm).or_default();
                match change.kind {
                    ResidencyKind::Start => *here.entry(*application).or_default() += 1,
                    ResidencyKind::Exit => {
                        *here.entry(*application).or_default() -= 1;
                        late_exits += usize::from(lost.contains_key(&(*application, change.sm)));
                    }
                }
            }
        }
    }
    for (sm, applications) in resident {
        for (application, workers) in applications {
            assert_eq!(workers, 0, "{application} on {sm}: every worker that came has left");
        }
    }
    late_exits
}

#[test]
fn a_border_moves_while_two_kernels_run() {
    check_moving_border("emu:cd-search-24");
}

#[test]
fn a_border_moves_where_no_time_is_kept() {
    check_moving_border("emu:cd-search-24,timing=off");
}

fn check_moving_border(device: &str) {
    let daemon = Daemon::start(device);
    let first = start_poly(&daemon, "1");
    let second = start_poly(&daemon, "2");
    let (a, b) = wait_for_halves(&daemon);
    let before = daemon.status();
    let (half_a, half_b) = (sms(&before, a), sms(&before, b));
    assert!(half_a.is_disjoint(&half_b));

    // A keeps four of its SMs, B gets the other eight.
    let kept: SmSet = half_a.iter().take(4).collect();
    let grown = half_b.union(&half_a.difference(&kept));
    let resize = daemon
        .partita(&["resize".to_owned(), format!("{}={kept}", a.0), format!("{}={grown}", b.0)])
        .output()
        .expect("partita can be started");
    assert!(resize.status.success(), "{}", String::from_utf8_lossy(&resize.stderr));
    let after = daemon
        .wait_for("the new border", |status| sms(status, a) == kept && sms(status, b) == grown);
    let launches: u64 =
        after.applications.iter().map(|application| application.launches_completed).sum();
    assert_eq!(launches, 0, "both kernels were running when the border moved");

    let ctas = |status: &StatusReport| -> Vec<u64> {
        status.applications.iter().map(|application| application.ctas_completed).collect()
    };
    let at_border = ctas(&after);
    daemon.wait_for("progress beyond the border", |status| {
        ctas(status).iter().zip(&at_border).all(|(now, then)| *now > then + 64)
    });
    let trace = daemon.trace();
    let moved = half_a.difference(&kept);
    let border = trace
        .entries
        .iter()
        .position(|entry| {
            matches!(entry, TraceEntry::Resize { application, to, .. } if *application == a
                && *to == kept)
        })
        .expect("the trace has the resize");
    // On each moved SM, A's workers leave after the border. B gets the SM only when the last one
    // has signed off. A burnt CTA of A or B finds that the SM is not its application's, and leaves
    // without work.
    for sm in moved.iter() {
        let on_sm = |entry: &TraceEntry, whose, kind| {
            matches!(entry, TraceEntry::Residency { change, application, .. }
            if change.sm == sm && change.kind == kind && *application == whose)
        };
        let cta = |entry: &TraceEntry| match entry {
            TraceEntry::Residency { change, .. } => (change.grid, change.cta),
            TraceEntry::Resize { .. } => unreachable!("only residency was asked for"),
        };
        let workers: HashSet<_> = trace.entries[..border]
            .iter()
            .filter(|entry| on_sm(entry, a, ResidencyKind::Start))
            .map(cta)
            .collect();
        let left = trace
            .entries
            .iter()
            .rposition(|entry| {
                on_sm(entry, a, ResidencyKind::Exit) && workers.contains(&cta(entry))
            })
            .unwrap_or_else(|| panic!("no worker of A left {sm}"));
        assert!(left > border, "{sm}: A's workers stay until the border moves");
        // The last move counts, because the first application had all SMs at the beginning.
        let given = trace
            .entries
            .iter()
            .rposition(|entry| {
                matches!(entry, TraceEntry::Resize { application, from, to, .. }
                    if *application == b && !from.contains(sm) && to.contains(sm))
            })
            .unwrap_or_else(|| panic!("{sm} was not given to B"));
        let after = &trace.entries[given..];
        // A worker signs off before its last instructions, so its exit may be seen just after B got
        // the SM. B's workers on that SM stay to the end of their launch.
        let first_of_b = after.iter().find(|entry| on_sm(entry, b, ResidencyKind::Start)).map(cta);
        let b_left = after
            .iter()
            .position(|entry| {
                on_sm(entry, b, ResidencyKind::Exit) && Some(cta(entry)) == first_of_b
            })
            .map_or(trace.entries.len(), |entry| given + entry);
        assert!(
            left < b_left,
            "{sm}: A left at entry {left}, B was given it at entry {given}, left at {b_left}"
        );
        assert!(
            after.iter().any(|entry| on_sm(entry, b, ResidencyKind::Start)),
            "{sm}: B never came"
        );
    }

    expect_passed(first, &daemon);
    expect_passed(second, &daemon);
    let late_exits = check_residency(&daemon.trace());
    assert!(late_exits > 0, "workers of A left after the border");
}

#[test]
fn a_plan_that_cannot_hold_is_refused_and_changes_nothing() {
    let daemon = Daemon::start("emu:cd-search-24");
    let first = start_poly(&daemon, "1");
    let second = start_poly(&daemon, "2");
    let (a, b) = wait_for_halves(&daemon);
    let before = daemon.status().partitions;
    let (one, two) = (a.0, b.0);
    for (plan, part) in [
        (vec![format!("{one}=0-23")], "SM"),
        (vec![format!("{one}=0-15"), format!("{two}=12-23")], "12"),
        (vec![format!("{one}=0-24")], "24"),
        (vec![format!("{one}=none")], "no SM"),
        (vec!["4711=0-3".to_owned()], "4711"),
    ] {
        let mut arguments = vec!["resize".to_owned()];
        arguments.extend(plan.clone());
        let refused = daemon.partita(&arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{plan:?}: {stderr}");
        assert!(stderr.contains(part), "{plan:?}: {stderr}");
    }
    let usage = daemon.partita(&["resize", "1=abc"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert_eq!(daemon.status().partitions, before);
    expect_passed(first, &daemon);
    expect_passed(second, &daemon);
}

#[test]
fn a_killed_program_leaves_a_daemon_that_serves_the_others() {
    let daemon = Daemon::start("emu:cd-search-24");
    let other = start_poly(&daemon, "1");
    let victim = start_poly(&daemon, "2");
    wait_for_halves(&daemon);
    kill_process(victim.id(), Signal::KILL).unwrap();
    let status = daemon.wait_for("the victim's end", |status| status.applications.len() == 1);
    assert_eq!(status.partitions.len(), 1);
    drop(victim.output());
    expect_passed(other, &daemon);

    let output = daemon.run(&toolchain::program("vecAdd")).arg("1000").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}

/// A hundred times, at moments that a seed chooses, from before the handshake to the middle of
/// kernels.
#[test]
fn a_program_killed_a_hundred_times_disturbs_nobody() {
    const KILLS: usize = 100;
    let daemon = Daemon::start("emu:cd-search-24");
    let (victim, witness) =
        (toolchain::gallery_program("lookback"), toolchain::gallery_program("reduce"));
    let mut seed: u64 = 0x2545_f491_4f6c_dd1d;
    println!("seed {seed:#x}");
    let done = std::sync::atomic::AtomicBool::new(false);
    let verified = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| {
            let mut verified = 0;
            // Once more after the last victim has gone.
            for last in [false, true] {
                while last || !done.load(std::sync::atomic::Ordering::Acquire) {
                    let output = daemon.run(&witness).output().unwrap();
                    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
                    let passed = output.status.success() && stdout.ends_with("PASSED\n");
                    assert!(passed, "after {verified}: {output:?}\n{}", daemon.log());
                    verified += 1;
                    if last {
                        break;
                    }
                }
            }
            verified
        });
        for _ in 0..KILLS {
            let mut child =
                daemon.run(&victim).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(std::time::Duration::from_micros((seed >> 33) % 60_000));
            // The process may have ended by itself.
            let _ = kill_process(Pid::from_child(&child), Signal::KILL);
            child.wait().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        verifying.join().unwrap()
    });
    assert!(verified > 1, "{verified}");
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
    assert_eq!(status.gpu.restarts, 0, "{}", daemon.log());
}

/// A kernel that never ends holds all SMs until its program ends. Then the next program gets them.
#[test]
fn an_endless_kernel_ends_with_its_program() {
    for device in ["emu", "emu,timing=off"] {
        let daemon = Daemon::start(device);
        let mut endless =
            daemon.run(&toolchain::program("endless")).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(endless.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "endless\n");
        // A shell makes its background commands ignore `INT`.
        kill_process(Pid::from_child(&endless), Signal::TERM).unwrap();
        assert!(!endless.wait().unwrap().success());
        let next = daemon.run(&toolchain::program("vecAdd")).arg("1000").output().unwrap();
        assert!(
            next.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&next.stderr),
            daemon.log()
        );
    }
}

#[test]
fn a_killed_data_plane_is_replaced() {
    let daemon = Daemon::start("emu:cd-search-24");
    let victim = start_poly(&daemon, "1");
    let status = daemon.wait_for("a running kernel", |status| {
        status.applications.iter().any(|application| application.ctas_completed > 0)
    });
    let pid = Pid::from_raw(i32::try_from(status.gpu.pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let output = victim.output();
    assert_eq!(output.status.code(), Some(1), "the program gets an error and ends: {output:?}");

    let status = daemon
        .wait_for("a new data plane", |status| status.gpu.restarts == 1 && status.gpu.pid != 0);
    assert_ne!(i32::try_from(status.gpu.pid).unwrap(), pid.as_raw_nonzero().get());
    let output = daemon.run(&toolchain::program("vecAdd")).arg("1000").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
