//! Partitions: how they are made, how they move, and who has to wait.

use super::world::{ALONE, FOLLOWING, GRID_ALONE, LONG, MEDIUM, ROWS, SHORT, SPIN, World};
use crate::{CloseReason, EngineConfig, Request, StreamHandle, StreamKind};
use partita_model::request::Launch;
use partita_model::{Dim3, Nanos, SmSet, TraceEntry};

fn sms(text: &str) -> SmSet {
    text.parse().unwrap()
}

#[test]
fn alone_it_has_everything_and_two_have_halves() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(a, 0, LONG, 5000);
    world.run_for(5);
    assert_eq!(world.partition(first), SmSet::range(0, 24));
    assert_eq!((0..24).map(|sm| world.device.workers(sm)).sum::<u32>(), 24 * 8);
    world.start(b, 0, LONG, 5000);
    assert_eq!(world.partition(first), sms("0-11"));
    assert_eq!(world.partition(second), SmSet::EMPTY, "the first one's workers are still there");
    world.run_for(250);
    assert_eq!(world.partition(second), sms("12-23"));
    for sm in 0..24 {
        assert_eq!(world.device.workers(sm), 8, "SM {sm}");
    }
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    let completed: Vec<u64> =
        world.engine.application_reports().iter().map(|report| report.ctas_completed).collect();
    assert_eq!(completed, [5000, 5000]);
    world.finish();
}

#[test]
fn an_idle_application_lends_its_sms_after_the_grace_time() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(b, 0, LONG, 100_000);
    world.start(a, 0, SHORT, 24);
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(world.partition(second).len(), 12);
    world.run_for(40);
    assert_eq!(world.partition(second).len(), 12, "two borders take longer than that");
    world.run_for(60);
    assert_eq!((world.partition(first).len(), world.partition(second).len()), (0, 24));
    world.start(a, 0, SHORT, 24);
    assert_eq!(world.synchronize(a), 0, "it has them back");
    assert_eq!(world.partition(second).len(), 12);
    // It was away for 100 us: such a gap is waited for now, twice over.
    world.run_for(150);
    assert_eq!(world.partition(second).len(), 12);
    world.run_for(150);
    assert_eq!(world.partition(second).len(), 24);
    world.close(b, CloseReason::Died);
    world.finish();
}

/// Borders that move while an application launches short kernels with such gaps, in microseconds,
/// beside one with a long launch.
fn borders_with_gaps(gap: u64) -> usize {
    let mut world = World::new(24);
    let ((a, _), (b, _)) = (world.session(), world.session());
    world.engine.set_trace(&mut world.device, true).unwrap();
    world.start(b, 0, LONG, 1_000_000);
    for _ in 0..40 {
        world.start(a, 0, SHORT, 24);
        assert_eq!(world.synchronize(a), 0);
        world.run_for(gap);
    }
    let entries = world.engine.trace_report(None).entries;
    let moved = entries.iter().filter(|entry| matches!(entry, TraceEntry::Resize { .. })).count();
    world.close(b, CloseReason::Died);
    world.finish();
    moved
}

#[test]
fn gaps_between_short_launches_move_no_borders() {
    // Two entries for each border, there and back: the arrival, and the first gap where it is
    // longer than two borders take.
    for (gap, most) in [(10, 4), (40, 4), (150, 8), (450, 8)] {
        let moved = borders_with_gaps(gap);
        assert!(moved <= most, "{moved} moves with gaps of {gap} us");
    }
    // Pauses are no gaps: others have the SMs meanwhile.
    let moved = borders_with_gaps(1_500);
    assert!(moved >= 80, "{moved} moves");
}

#[test]
fn a_session_that_has_ended_keeps_no_sms() {
    for reason in [CloseReason::Goodbye, CloseReason::Died] {
        let mut world = World::new(24);
        let ((a, _), (b, second)) = (world.session(), world.session());
        world.start(b, 0, LONG, 100_000);
        world.start(a, 0, SHORT, 24);
        assert_eq!(world.synchronize(a), 0);
        world.run_for(5);
        assert_eq!(world.partition(second).len(), 12);
        world.close(a, reason);
        world.run_for(1);
        assert_eq!(world.partition(second).len(), 24, "{reason:?}");
        world.close(b, CloseReason::Died);
        world.finish();
    }
}

#[test]
fn a_scripted_resize_moves_the_border_in_mid_kernel() {
    let mut world = World::new(24);
    world.engine.set_trace(&mut world.device, true).unwrap();
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(a, 0, LONG, 10_000);
    world.start(b, 0, LONG, 10_000);
    world.run_for(300);
    assert_eq!(world.set_plan(&[(first, "0-17"), (second, "18-23")]), Ok(()));
    let moved = world.device.now;
    assert_eq!(world.partition(second), sms("18-23"));
    assert_eq!(world.partition(first), sms("0-11"));
    world.run_for(250);
    assert_eq!(world.partition(first), sms("0-17"));
    for sm in 0..24 {
        assert_eq!(world.device.workers(sm), 8, "SM {sm}");
    }
    // And back before the first has settled: the latest plan wins.
    world.set_plan(&[(first, "0-3")]).unwrap();
    world.set_plan(&[(first, "0-19"), (second, "20-23")]).unwrap();
    world.run_for(400);
    assert_eq!((world.partition(first), world.partition(second)), (sms("0-19"), sms("20-23")));
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));

    let trace = world.engine.trace_report(Some(Nanos(moved)));
    let resizes: Vec<String> = trace
        .entries
        .iter()
        .filter_map(|entry| match entry {
            TraceEntry::Resize { application, from, to, .. } => {
                Some(format!("{} {from}>{to}", application.0))
            }
            TraceEntry::Residency { .. } => None,
        })
        .collect();
    assert_eq!(resizes[0], "2 12-23>18-23");
    assert!(resizes.contains(&"1 0-11>0-17".to_owned()), "{resizes:?}");
    assert!(trace.entries.iter().any(|entry| matches!(entry, TraceEntry::Residency { .. })));
    world.finish();
}

#[test]
fn reasons_name_what_an_administrator_has_pinned() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(a, 0, LONG, 2000);
    world.start(b, 0, LONG, 2000);
    let why = |world: &World| world.engine.policy_report().why.join("\n");
    let pinned = "An administrator has pinned application";
    assert!(!why(&world).contains(pinned), "{}", why(&world));
    world.set_plan(&[(first, "4-7")]).unwrap();
    let said = why(&world);
    assert!(said.contains(&format!("{pinned} 1 to SMs 4-7.")), "{said}");
    assert!(said.contains("no administrator has pinned, only application 2 has work."), "{said}");
    assert!(!said.contains("Nobody but"), "{said}");
    // The SMs that are left are the same, so nothing is decided anew.
    world.set_plan(&[(second, "4-7")]).unwrap();
    world.set_plan(&[(second, "0-3"), (first, "4-7")]).unwrap();
    world.set_plan(&[(second, "4-7"), (first, "0-3")]).unwrap();
    let said = why(&world);
    assert!(said.contains(&format!("{pinned} 1 to SMs 0-3.")), "{said}");
    assert!(said.contains(&format!("{pinned} 2 to SMs 4-7.")), "{said}");
    world.set_plan(&[]).unwrap();
    let said = why(&world);
    assert!(!said.contains("pinned") && said.contains("2 applications get 12 SMs each"), "{said}");
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    world.finish();
}

#[test]
fn however_often_a_border_moves_under_one_launch_no_sm_stays_empty() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(a, 0, LONG, 200_000);
    world.start(b, 0, LONG, 200_000);
    world.run_for(300);
    // An SM at a time, more often than a session has side streams: the workers that each border
    // brings stay.
    for step in 0..40 {
        let border = 2 + step % 21;
        let plan = [(first, format!("0-{}", border - 1)), (second, format!("{border}-23"))];
        world.set_plan(&[(first, &plan[0].1), (second, &plan[1].1)]).unwrap();
        world.run_for(400);
        // Where helpers are retired an SM may be without them just now.
        let full = |world: &World| (0..24).all(|sm| world.device.workers(sm) == 8);
        let in_time = (0..20).any(|_| {
            world.run_for(10);
            full(&world)
        });
        assert!(in_time, "border {step}: {:?}", world.engine.partition_reports());
    }
    assert!(world.engine.application_reports().iter().all(|report| report.launches_completed == 0));
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn plans_that_cannot_hold_are_refused() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(a, 0, LONG, 2000);
    world.start(b, 0, LONG, 2000);
    let unknown = partita_model::ApplicationId(9);
    for (plan, message) in [
        (vec![(first, "0-12"), (second, "12-23")], "share SMs 12"),
        (vec![(first, "0-24")], "SMs 24 of application 1 do not exist"),
        (vec![(first, "none")], "application 1 would have no SM"),
        (vec![(unknown, "0-1")], "application 9 does not exist; those that do: 1, 2"),
        (vec![(first, "0-23")], "application 2 has work but the plan leaves no SM"),
    ] {
        let error = world.set_plan(&plan).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(world.partition(first), sms("0-11"), "nothing has changed");
    world.set_plan(&[(first, "4-7")]).unwrap();
    world.run_for(200);
    assert_eq!((world.partition(first), world.partition(second)), (sms("4-7"), sms("0-3,8-23")));
    world.close(a, CloseReason::Goodbye);
    world.run_for(200);
    assert_eq!(world.partition(second), SmSet::range(0, 24), "the pin ends with its application");
    world.finish();
}

#[test]
fn stalled_workers_wait_and_resume() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    world.start(a, 0, MEDIUM, 10_000);
    world.run_for(100);
    let completed = |world: &World| world.engine.application_reports()[0].ctas_completed;
    world.engine.set_stalled(&mut world.device, SmSet::range(0, 4));
    world.run_for(100);
    let before = completed(&world);
    world.run_for(500);
    assert_eq!(completed(&world), before);
    assert_eq!(world.device.workers(3), 8);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(completed(&world), 10_000);
    world.finish();
}

#[test]
fn nobody_waits_while_a_module_is_loaded_that_waits_for_all() {
    let mut world = World::new(4);
    world.device.loading_waits = true;
    let (a, _) = world.session();
    world.start(a, 0, MEDIUM, 10_000);
    world.run_for(100);
    world.engine.set_stalled(&mut world.device, SmSet::range(0, 4));
    world.run_for(100);
    // Opens another session and loads its module: all of `a` must have run.
    let (b, _) = world.session();
    assert_eq!(world.engine.application_reports()[0].ctas_completed, 10_000);
    // What was ordered holds again.
    world.start(b, 0, MEDIUM, 10_000);
    world.run_for(500);
    assert_eq!(world.engine.application_reports()[1].ctas_completed, 0);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    assert_eq!(world.synchronize(b), 0);
    world.finish();
}

#[test]
fn streams_of_one_application_share_its_partition() {
    let mut world = World::new(4);
    let (a, application) = world.open(Some("job"));
    let (b, same) = world.open(Some("job"));
    let (_, different) = world.open(Some("other job"));
    assert_eq!(application, same);
    assert_ne!(application, different);
    for session in [a, b] {
        world.module(session, super::world::MODULE);
        for stream in 1..3 {
            let stream = StreamHandle(stream);
            world.code(
                session,
                Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 },
            );
        }
    }
    for stream in 1..3 {
        world.start(a, stream, LONG, 100);
        world.start(b, stream, MEDIUM, 3);
        world.start(a, stream, SHORT, 1);
    }
    world.run_for(10);
    for sm in 0..4 {
        assert!(world.device.workers(sm) <= 8);
    }
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    let report = &world.engine.application_reports()[0];
    assert_eq!((report.launches_completed, report.ctas_completed), (6, 208));
    world.finish();
}

/// How long a launch of one application takes while another has more work than places, where the
/// ledger counts these and where it does not; `None`: it does not end.
fn launch_beside_a_greedy_application(blind: bool) -> Option<u64> {
    let mut world = World::new(2);
    world.engine.machines.handover.ledger_mut().blind = blind;
    let ((a, first), (b, second)) = (world.session(), world.session());
    for session in [a, b] {
        for stream in 1..3 {
            let stream = StreamHandle(stream);
            world.code(
                session,
                Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 },
            );
        }
    }
    world.set_plan(&[(first, "0"), (second, "1")]).unwrap();
    let launch = |world: &mut World, session, stream, kernel, ctas, threads| {
        let block = Dim3::linear(threads);
        let launch = Launch { block, ..World::launch(stream, kernel, ctas) };
        assert_eq!(world.code(session, Request::Launch(launch)), 0);
        world.run_for(50);
    };
    // The greedy one's first launch takes its whole SM, and the other application's all but 768
    // threads of its own.
    launch(&mut world, a, 1, SPIN, 100, 1024);
    launch(&mut world, b, 1, SPIN, 5, 256);
    launch(&mut world, a, 2, SPIN, 100, 1024);
    let start = world.device.now;
    launch(&mut world, b, 2, SHORT, 3, 256);
    let done = |world: &World| world.engine.application_reports()[1].launches_completed > 0;
    while !done(&world) && world.device.now < start + 5_000_000 {
        world.run_for(10);
    }
    let took = done(&world).then_some(world.device.now - start);
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
    took
}

#[test]
fn without_the_ledger_one_application_would_block_anothers_grids() {
    let took = launch_beside_a_greedy_application(false).expect("there is room for it");
    assert!(took < 100_000, "{took} ns");
    assert_eq!(
        launch_beside_a_greedy_application(true),
        None,
        "a grid without room keeps all others waiting"
    );
}

/// CTAs that find no room, and keep everybody's next ones waiting, where launches were enqueued
/// before others came.
fn left_over(ahead: Nanos) -> u64 {
    let mut world = World::with_config(24, EngineConfig { ahead, ..EngineConfig::default() });
    let ((a, _), (b, _)) = (world.session(), world.session());
    // What its CTAs take is known then.
    world.start(a, 0, LONG, 2000);
    assert_eq!(world.synchronize(a), 0);
    for _ in 0..20 {
        world.start(a, 0, LONG, 2000);
    }
    world.run_for(5);
    world.start(b, 0, LONG, 200_000);
    world.run_for(1500);
    assert!((0..24).all(|sm| world.device.workers(sm) == 8));
    assert!(world.engine.application_reports()[0].launches_completed >= 3);
    let left = world.device.unplaced();
    world.close(b, CloseReason::Died);
    assert_eq!(world.synchronize(a), 0);
    world.finish();
    left
}

#[test]
fn launches_are_not_submitted_so_early_that_they_are_too_large() {
    assert_eq!(left_over(EngineConfig::default().ahead), 0);
    assert_eq!(left_over(Nanos(u64::MAX)), 12 * 8, "the SMs that it had when it was alone");
}

#[test]
fn kernels_that_cannot_be_confined_run_alone_and_starve_nobody() {
    let mut world = World::new(8);
    let (a, _) = world.session();
    let (b, _) = world.session();
    for _ in 0..10 {
        world.start(a, 0, LONG, 200);
        world.start(b, 0, ALONE, 20);
        world.start(b, 0, MEDIUM, 20);
    }
    let check = |world: &World| {
        let reports = world.engine.application_reports();
        assert_eq!(reports[0].launches_completed, 10);
        assert_eq!(reports[1].launches_completed, 20);
        let kernels: Vec<(&str, &str, u64)> = reports[1]
            .kernels
            .iter()
            .map(|k| (k.name.as_str(), k.form.as_str(), k.launches))
            .collect();
        assert_eq!(kernels, [("alone", "original", 10), ("medium", "worker", 10)]);
        assert_eq!(reports[1].kernels[0].reason.as_deref(), Some("it uses clusters"));
    };
    assert_eq!((world.synchronize(b), world.synchronize(a)), (0, 0));
    check(&world);
    world.finish();
}

#[test]
fn launches_that_a_worker_cannot_serve_take_the_original_and_run_alone() {
    let mut world = World::new(8);
    let (a, _) = world.session();
    let (b, second) = world.session();
    let launch = |block: Dim3, cooperative: bool| {
        let good = World::launch(0, ROWS, 40);
        Request::Launch(Launch { block, cooperative, ..good })
    };
    world.start(a, 0, LONG, 200);
    for (code, block, cooperative) in [
        (0, Dim3::linear(100), false),
        (0, Dim3::new(32, 3, 1), false),
        (0, Dim3::new(16, 16, 1), false),
        (0, Dim3::linear(256), true),
        (0, Dim3::linear(1024), false),
        (1, Dim3::linear(1025), false),
    ] {
        assert_eq!(world.code(b, launch(block, cooperative)), code, "{block}");
    }
    assert_eq!((world.synchronize(b), world.synchronize(a)), (0, 0));
    let alone: Vec<_> =
        world.device.launched.iter().filter(|entry| entry.ends_with("-original")).collect();
    assert_eq!(alone.len(), 3, "{:?}", world.device.launched);
    let reports = world.engine.application_reports();
    let kernels: Vec<(&str, &str, u64)> =
        reports[1].kernels.iter().map(|k| (k.name.as_str(), k.form.as_str(), k.launches)).collect();
    assert_eq!(kernels, [("rows", "worker", 2), ("rows", "original", 3)]);
    let reason = reports[1].kernels[1].reason.as_deref().unwrap();
    assert!(reason.contains("16,16,1") && reason.contains("multiple of 32"), "{reason}");
    assert_eq!((reports[1].id, reports[1].ctas_completed), (second, 200));
    // Without a fallback a worker serves cooperative launches: nothing in it can tell.
    let launch = Launch { cooperative: true, ..World::launch(0, SHORT, 4) };
    assert_eq!(world.code(b, Request::Launch(launch)), 0);
    assert_eq!(world.synchronize(b), 0);
    assert_eq!(world.engine.application_reports()[1].kernels[2].form, "worker");
    world.finish();
}

#[test]
fn cooperative_launches_get_a_workspace() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    for cooperative in [true, false, true] {
        let launch = Launch { cooperative, ..World::launch(0, GRID_ALONE, 4) };
        assert_eq!(world.code(a, Request::Launch(launch)), 0);
    }
    assert_eq!(world.synchronize(a), 0);
    let given: Vec<bool> = world.device.workspaces.iter().map(|&address| address != 0).collect();
    assert_eq!(given, [true, false, true]);
    world.finish();
}

#[test]
fn many_short_launches_run_ahead_of_the_engine() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    for _ in 0..500 {
        world.start(a, 0, SHORT, 1);
    }
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(world.device.grids_started, 500, "one grid each and no helpers");
    world.finish();
}

#[test]
fn helpers_are_few() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let (b, second) = world.session();
    world.start(b, 0, LONG, 20_000);
    world.start(a, 0, LONG, 20_000);
    for round in 0..10 {
        let border = if round % 2 == 0 { ("0-5", "6-23") } else { ("0-17", "18-23") };
        world.set_plan(&[(first, border.0), (second, border.1)]).unwrap();
        world.run_for(300);
        for sm in 0..24 {
            assert_eq!(world.device.workers(sm), 8, "SM {sm} in round {round}");
        }
    }
    assert!(world.device.grids_started <= 2 + 30, "{} grids", world.device.grids_started);
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    world.finish();
}

/// CTAs of the main grid that find foreign SMs full come to the launch's own SMs.
#[test]
fn few_ctas_are_spread_over_their_sms() {
    let mut world = World::new(4);
    let (a, first) = world.session();
    let (_, second) = world.session();
    for (own, other, ctas, quota) in
        [("0-1", "2-3", 4, 2), ("0-1", "2-3", 3, 2), ("0-1", "2-3", 1_000, 0), ("0-3", "", 4, 0)]
    {
        let plan = [(first, own), (second, other)];
        world.set_plan(&plan[..if other.is_empty() { 1 } else { 2 }]).unwrap();
        world.start(a, 0, LONG, ctas);
        world.run_for(5);
        assert_eq!(world.device.quota("long"), quota, "{ctas} CTAs on {own}");
        assert_eq!(world.synchronize(a), 0);
    }
    // On fewer SMs each has to take more.
    world.set_plan(&[(first, "0-1"), (second, "2-3")]).unwrap();
    world.start(a, 0, LONG, 12);
    world.run_for(5);
    assert_eq!(world.device.quota("long"), 6);
    world.set_plan(&[(first, "0"), (second, "1-3")]).unwrap();
    world.run_for(5);
    assert_eq!(world.device.quota("long"), 0);
    assert_eq!(world.synchronize(a), 0);
    world.finish();
}

#[test]
fn a_task_is_one_cta_where_ctas_wait_for_those_before_them() {
    let mut world = World::new(24);
    let (session, _) = world.session();
    for (kernel, expected) in [(SHORT, 2..=64), (FOLLOWING, 1..=1)] {
        // The first shows how long a CTA takes.
        world.start(session, 0, kernel, 40_000);
        assert_eq!(world.synchronize(session), 0);
        world.start(session, 0, kernel, 40_000);
        let tasks = world.engine.machines.launches.tasks();
        assert!(matches!(tasks[..], [task] if expected.contains(&task)), "{tasks:?}");
        assert_eq!(world.synchronize(session), 0);
    }
    world.close(session, CloseReason::Goodbye);
    world.finish();
}
