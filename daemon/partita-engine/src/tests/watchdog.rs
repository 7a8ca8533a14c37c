//! Kernels that never end: they are reported, and cannot hold what others were given.

use super::world::{ALONE, LONG, MEDIUM, SHORT, SPIN, SPIN_ALONE, SPIN_SOME, SPIN_TICKET, World};
use crate::{Action, CancelError, CloseReason, LogLevel, Request};
use partita_model::request::Launch;
use partita_model::{ApplicationId, Limits, SessionId, SmSet, TenantId};

/// `CUDA_ERROR_LAUNCH_TIMEOUT`.
const TIMEOUT: u32 = 702;
/// Every way of ending grids.
const WAYS: [bool; 2] = [true, false];

fn world(can_cancel: bool) -> World {
    let mut world = World::new(8);
    world.device.can_cancel = can_cancel;
    world.engine.set_limits(&Limits { no_progress_ms: 1, alone_ms: 3, ..Limits::default() });
    world
}

fn logged(world: &World, wanted: LogLevel) -> Vec<&str> {
    let line = |action| match action {
        &Action::Log { level, ref text, .. } => Some(text.as_str()).filter(|_| level == wanted),
        _ => None,
    };
    world.actions.iter().filter_map(line).collect()
}

fn warnings(world: &World) -> Vec<&str> {
    logged(world, LogLevel::Warning)
}

#[test]
fn alone_it_is_reported_and_goes_on() {
    for kernel in [SPIN, SPIN_TICKET] {
        let mut world = world(true);
        let (a, _) = world.session();
        world.start(a, 0, kernel, 200);
        world.run_for(900);
        assert_eq!(world.engine.application_reports()[0].stuck_ns, None);
        world.run_for(600);
        let stuck = world.engine.application_reports()[0].stuck_ns.unwrap();
        assert!((1_000_000..1_600_000).contains(&stuck), "{stuck}");
        let why = world.engine.policy_report().why.join("\n");
        assert!(
            why.contains("has completed no CTA for 1 ms (0 of 200 before, 64 in flight)"),
            "{why}"
        );
        assert!(why.ends_with("`partita cancel 1` ends it."), "{why}");
        world.run_for(5_000);
        assert_eq!(warnings(&world).len(), 1, "{:?}", warnings(&world));
        world.close(a, CloseReason::Died);
        world.finish();
    }
}

#[test]
fn the_log_says_whose_launch_it_was() {
    let mut world = world(true);
    let ((a, first), (b, _)) = (world.session(), world.session());
    world.start(a, 0, SPIN, 200);
    world.run_for(300);
    world.start(b, 0, MEDIUM, 2_000);
    assert_eq!(world.synchronize(a), TIMEOUT);
    let lines = world.actions.iter().filter_map(|action| match action {
        Action::Log { level: LogLevel::Warning, about, .. } => Some(about),
        _ => None,
    });
    let failed: Vec<_> = lines.filter(|about| about.error.is_some()).collect();
    let [about] = &failed[..] else { panic!("{failed:?}") };
    let identity = world.engine.application_reports();
    let tenant = identity.iter().find(|one| one.id == first).map(|one| one.tenant);
    assert!(tenant.is_some());
    assert_eq!((about.session, about.application, about.tenant), (Some(a), Some(first), tenant));
    assert_eq!(about.error.unwrap().0, TIMEOUT);
    world.finish();
}

#[test]
fn it_cannot_hold_sms_that_others_were_given() {
    for can_cancel in WAYS {
        for kernel in [SPIN, SPIN_TICKET] {
            let mut world = world(can_cancel);
            let ((a, _), (b, second)) = (world.session(), world.session());
            world.start(a, 0, kernel, 200);
            world.run_for(300);
            world.start(b, 0, MEDIUM, 2_000);
            world.run_for(90);
            assert_eq!(
                world.partition(second),
                SmSet::EMPTY,
                "the first one's workers are still there"
            );
            assert_eq!(world.synchronize(b), 0);
            assert!(world.device.now < 3_000_000, "{}", world.device.now);
            assert_eq!(world.synchronize(a), TIMEOUT);
            assert!(warnings(&world).iter().any(|text| text.contains("others wait for its SMs")));
            world.finish();
        }
    }
}

/// A kernel that never ends, with room for others beside it: half of the threads of each SM.
fn half_full(world: &mut World, kernel: u32) -> (SessionId, ApplicationId) {
    world.device.is_shared = true;
    let (session, application) = world.session();
    world.start(session, 0, kernel, 32);
    world.run_for(300);
    assert_eq!((0..8).map(|sm| world.device.workers(sm)).collect::<Vec<_>>(), [4; 8]);
    (session, application)
}

#[test]
fn others_work_beside_what_lingers_on_sms_that_it_has_lost() {
    for kernel in [SPIN, SPIN_TICKET] {
        let mut world = world(true);
        let (a, first) = half_full(&mut world, kernel);
        let (b, second) = world.session();
        world.start(b, 0, MEDIUM, 400);
        world.run_for(90);
        assert_eq!(world.partition(second), SmSet::EMPTY, "it is given time to leave");
        world.run_for(30);
        assert_eq!(world.partition(second), SmSet::range(4, 4));
        let told = logged(&world, LogLevel::Info);
        let told: Vec<_> = told.into_iter().filter(|text| text.contains("beside")).collect();
        assert!(told.len() == 1 && told[0].contains("has lost SMs 4-7"), "{told:?}");
        let why = world.engine.policy_report().why.join("\n");
        assert!(why.contains("has lost SMs 4-7, and CTAs of it are still there"), "{why}");
        assert_eq!(world.synchronize(b), 0);
        // 400 CTAs of 5 us in 16 places.
        assert!(world.device.now < 600_000, "{}", world.device.now);
        assert_eq!((0..8).map(|sm| world.device.workers(sm)).collect::<Vec<_>>(), [4; 8]);
        // The second application has no work, so the first gets its SMs again and goes on.
        world.run_for(5_000);
        assert_eq!(world.partition(first), SmSet::range(0, 8));
        assert!(!warnings(&world).iter().any(|text| text.contains("it is ended")));
        world.close(a, CloseReason::Died);
        world.finish();
    }
}

#[test]
fn others_that_come_again_find_their_sms_at_once_and_the_limit_goes_on() {
    let mut world = world(true);
    let limits = Limits { no_progress_ms: 10, alone_ms: 30, ..Limits::default() };
    world.engine.set_limits(&limits);
    let (a, first) = half_full(&mut world, SPIN);
    let (b, second) = world.session();
    world.start(b, 0, MEDIUM, 100);
    assert_eq!(world.synchronize(b), 0);
    assert!(world.device.now > 1_300_000, "{}", world.device.now);
    let mut rounds = 0;
    while world.device.now < 9_000_000 {
        // Long enough for the first to have all SMs again.
        world.run_for(1_000);
        assert_eq!(world.partition(first), SmSet::range(0, 8), "{rounds}");
        let before = world.device.now;
        world.start(b, 0, MEDIUM, 100);
        assert_eq!(world.synchronize(b), 0);
        assert!(world.device.now < before + 80_000, "{rounds}: {}", world.device.now - before);
        rounds += 1;
    }
    assert!(rounds > 2 && warnings(&world).iter().all(|text| !text.contains("it is ended")));
    world.start(b, 0, MEDIUM, 4_000);
    assert_eq!(world.synchronize(a), TIMEOUT);
    assert!((10_300_000..10_600_000).contains(&world.device.now), "{}", world.device.now);
    assert_eq!((world.synchronize(b), world.partition(second).len()), (0, 8));
    world.finish();
}

#[test]
fn what_lingers_is_ended_all_the_same() {
    for can_cancel in WAYS {
        let mut world = world(can_cancel);
        let (a, _) = half_full(&mut world, SPIN);
        let (b, second) = world.session();
        world.start(b, 0, MEDIUM, 4_000);
        assert_eq!(world.synchronize(a), TIMEOUT);
        assert!((1_000_000..1_400_000).contains(&world.device.now), "{}", world.device.now);
        assert_eq!(world.partition(second).len(), 4);
        // Eight of its workers fit on an SM that nobody else is on.
        world.run_for(100);
        assert!((4..8).all(|sm| world.device.workers(sm) == 8));
        assert_eq!(world.synchronize(b), 0);
        world.finish();
    }
}

#[test]
fn what_finds_no_room_beside_what_lingers_waits_for_its_end() {
    let mut world = world(true);
    let (a, _) = half_full(&mut world, SPIN);
    let (b, second) = world.session();
    world.start(b, 0, MEDIUM, 400);
    // A CTA takes nearly all shared memory of an SM, and each of the first some for the system.
    let launch = Launch { dynamic_shared: 98 * 1024, ..World::launch(0, MEDIUM, 20) };
    world.send(b, Request::Launch(launch));
    world.run_for(600);
    assert_eq!(world.partition(second).len(), 4);
    let reports = world.engine.application_reports();
    assert_eq!(reports[1].ctas_completed, 400);
    assert_eq!((world.synchronize(b), world.synchronize(a)), (0, TIMEOUT));
    world.finish();
}

#[test]
fn what_spins_for_long_has_as_much_time_to_leave() {
    let mut world = world(true);
    let (a, _) = half_full(&mut world, SPIN);
    world.run_for(20_000);
    let (b, _) = world.session();
    world.start(b, 0, MEDIUM, 4_000);
    world.run_for(900);
    assert!(!warnings(&world).iter().any(|text| text.contains("it is ended")));
    assert_eq!(world.synchronize(a), TIMEOUT);
    assert!((21_300_000..21_600_000).contains(&world.device.now), "{}", world.device.now);
    assert_eq!(world.synchronize(b), 0);
    world.finish();
}

#[test]
fn ctas_that_never_end_cannot_hold_sms_while_others_of_their_launch_do() {
    let mut world = world(true);
    let ((a, _), (b, _)) = (world.session(), world.session());
    world.start(a, 0, SPIN_SOME, 100_000_000);
    world.run_for(300);
    world.start(b, 0, MEDIUM, 400);
    assert_eq!(world.synchronize(b), 0);
    // As long as a kernel that runs alone.
    assert!((3_300_000..3_600_000).contains(&world.device.now), "{}", world.device.now);
    assert_eq!(world.synchronize(a), TIMEOUT);
    world.finish();
}

#[test]
fn others_work_beside_what_takes_long_by_the_hosts_clock() {
    let mut world = World::new(8);
    let (a, _) = half_full(&mut world, SPIN);
    let (b, second) = world.session();
    world.start(b, 0, MEDIUM, 400);
    world.run_for(100);
    for (seconds, has) in (1..=8).map(|seconds| (seconds, if seconds < 8 { 0 } else { 4 })) {
        let one = partita_model::Nanos(1_000_000_000);
        world.engine.device_worked(&mut world.device, one);
        world.run_for(20);
        assert_eq!(world.partition(second).len(), has, "after {seconds} s of 30");
    }
    assert_eq!(world.synchronize(b), 0);
    world.close(a, CloseReason::Died);
    world.finish();
}

#[test]
fn it_cannot_keep_kernels_waiting_that_must_be_alone() {
    for can_cancel in WAYS {
        let mut world = world(can_cancel);
        let ((a, _), (b, _)) = (world.session(), world.session());
        world.start(a, 0, SPIN, 200);
        world.start(b, 0, ALONE, 20);
        assert_eq!((world.synchronize(b), world.synchronize(a)), (0, TIMEOUT));
        // Nor can one that is alone keep all others waiting.
        let (c, _) = world.session();
        world.start(c, 0, SPIN_ALONE, 2);
        world.run_for(5_000);
        assert!(
            world
                .engine
                .policy_report()
                .why
                .iter()
                .any(|line| line.contains("has run alone for 4 ms"))
        );
        world.start(b, 0, SHORT, 20);
        assert_eq!((world.synchronize(b), world.synchronize(c)), (0, TIMEOUT));
        world.finish();
    }
}

#[test]
fn slow_is_not_stuck_and_neither_is_stalled() {
    let mut world = world(true);
    let ((a, _), (b, _)) = (world.session(), world.session());
    world.start(a, 0, LONG, 4_000);
    world.run_for(200);
    world.engine.set_stalled(&mut world.device, SmSet::range(0, 8));
    world.run_for(4_000);
    world.start(b, 0, LONG, 100);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    assert_eq!(warnings(&world), Vec::<&str>::new());
    world.finish();
}

#[test]
fn its_client_dies_and_the_workers_are_gone() {
    for can_cancel in WAYS {
        for kernel in [SPIN, SPIN_TICKET, SPIN_ALONE] {
            let mut world = world(can_cancel);
            let ((a, _), (b, second)) = (world.session(), world.session());
            world.start(a, 0, kernel, 100);
            world.run_for(100);
            world.close(a, CloseReason::Died);
            world.start(b, 0, SHORT, 100);
            assert_eq!(world.synchronize(b), 0);
            assert_eq!(world.partition(second), SmSet::range(0, 8));
            assert!((0..8).all(|sm| world.device.workers(sm) == 0));
            world.finish();
        }
    }
}

#[test]
fn an_administrator_ends_launches() {
    for can_cancel in WAYS {
        let mut world = world(can_cancel);
        let ((a, _), (b, _)) = (world.session(), world.session());
        let unknown =
            world.engine.cancel_launches(&mut world.device, SessionId(9), None).unwrap_err();
        assert_eq!(unknown.to_string(), "session 9 does not exist; those that do: 1, 2");
        assert_eq!(
            world.engine.cancel_launches(&mut world.device, a, None),
            Err(CancelError::Nothing(a))
        );
        world.start(a, 0, SPIN, 100);
        world.start(a, 0, SHORT, 100);
        world.start(b, 0, LONG, 300);
        world.run_for(100);
        let stranger = Some(TenantId(9_999));
        let foreign = world.engine.cancel_launches(&mut world.device, a, stranger);
        assert_eq!(foreign, Err(CancelError::Foreign(a)));
        assert_eq!(world.engine.cancel_launches(&mut world.device, a, None), Ok(()));
        assert_eq!((world.synchronize(a), world.synchronize(b)), (TIMEOUT, 0));
        world.finish();
    }
}

#[test]
fn host_time_counts_while_others_wait_and_nothing_gets_on() {
    let seconds = |seconds: u64| partita_model::Nanos(seconds * 1_000_000_000);
    for kernel in [SPIN, SPIN_TICKET, SPIN_ALONE] {
        let mut world = World::new(8);
        let ((a, _), (b, _)) = (world.session(), world.session());
        world.start(a, 0, kernel, 200);
        world.run_for(100);
        // Nobody waits.
        world.engine.device_worked(&mut world.device, seconds(100));
        world.start(b, 0, MEDIUM, 20);
        world.run_for(100);
        for _ in 0..29 {
            world.engine.device_worked(&mut world.device, seconds(1));
        }
        world.run_for(100);
        assert_eq!(world.engine.application_reports()[0].sessions, vec![a]);
        let told = warnings(&world).into_iter().filter(|text| text.contains("completed no CTA"));
        assert_eq!(told.count(), 1, "{:?}", warnings(&world));
        world.engine.device_worked(&mut world.device, seconds(1));
        assert_eq!((world.synchronize(b), world.synchronize(a)), (0, TIMEOUT));
        assert!(warnings(&world).iter().any(|text| text.contains("hold_up_ms")));
        world.finish();
    }
}

#[test]
fn host_time_does_not_count_where_ctas_complete() {
    let mut world = World::new(8);
    let ((a, _), (b, _)) = (world.session(), world.session());
    world.start(a, 0, LONG, 4_000);
    world.run_for(200);
    world.start(b, 0, ALONE, 20);
    for _ in 0..8 {
        world.engine.device_worked(&mut world.device, partita_model::Nanos(29_000_000_000));
        world.run_for(1_000);
    }
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    world.finish();
}
