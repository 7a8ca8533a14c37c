//! Short launches of an application that has the GPU to itself run as they were written.

use super::world::{
    BRISK, BRISK_AWAITING, BRISK_STRAIGHT, BRISK_TICKET, GOOD_IMAGE, LONG, MODULE, World,
};
use crate::Request;
use crate::observer::SHORT;
use partita_model::{ApplicationId, CudaResult, Limits, Nanos, Originals, SessionId};

/// CTAs that 8 SMs hold at once.
const PLACES: u32 = 64;

/// A program that is connected with no other.
fn only() -> (World, SessionId, ApplicationId) {
    let mut world = World::new(8);
    let (session, application) = world.session();
    (world, session, application)
}

/// A program beside another one that is connected and has no work.
fn world() -> (World, SessionId, ApplicationId) {
    let (mut world, session, application) = only();
    world.open(None);
    (world, session, application)
}

/// Launches a kernel, waits for its end, and says which entry the device was given first.
fn run(world: &mut World, session: SessionId, kernel: u32, ctas: u32) -> String {
    let before = world.device.launched.len();
    world.start(session, 0, kernel, ctas);
    assert_eq!(world.synchronize(session), 0);
    world.device.launched[before].to_string()
}

#[test]
fn a_short_launch_alone_runs_as_written_once_it_is_known() {
    let (mut world, session, application) = world();
    for (kernel, form) in [(BRISK, "brisk"), (BRISK_TICKET, "brisk-ticket")] {
        let original = format!("{form}-original");
        assert_eq!(run(&mut world, session, kernel, 4 * PLACES), form, "unknown");
        assert_eq!(run(&mut world, session, kernel, 4 * PLACES), original);
        // Four times as many CTAs take at most four times as long; that is too long.
        assert_eq!(run(&mut world, session, kernel, 16 * PLACES), form, "another shape");
        assert_eq!(run(&mut world, session, kernel, 3 * PLACES), original, "fewer CTAs");
        assert_eq!(run(&mut world, session, kernel, 4 * PLACES), original);
    }
    let reports = world.engine.application_reports();
    let counts: Vec<_> = reports[0].kernels.iter().map(|k| (k.launches, k.as_written)).collect();
    assert_eq!(counts, [(5, 3), (5, 3)]);
    assert_eq!(reports[0].id, application);
    assert_eq!(reports[0].ctas_completed, u64::from(2 * 31 * PLACES));
    // Off, and what is not free to: a cooperative launch.
    let request = World::launch(0, BRISK, 4 * PLACES);
    let cooperative = partita_model::request::Launch { cooperative: true, ..request };
    world.send(session, Request::Launch(cooperative));
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("brisk"));
    world.engine.set_originals(Originals::Never);
    assert_eq!(run(&mut world, session, BRISK, 4 * PLACES), "brisk");
    world.finish();
}

#[test]
fn long_launches_and_those_with_company_run_as_workers() {
    let (mut world, session, application) = world();
    for _ in 0..3 {
        // 40 us in 20 rounds of CTAs.
        assert_eq!(run(&mut world, session, BRISK, 20 * PLACES), "brisk");
        run(&mut world, session, BRISK, PLACES);
    }
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk-original");
    // A partition that an administrator has set.
    world.set_plan(&[(application, "0-6")]).unwrap();
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk");
    world.engine.unpin(&mut world.device);
    world.run_for(100);
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk-original");
    let (other, _) = world.session();
    world.start(other, 0, LONG, 2_000);
    world.run_for(50);
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk");
    assert_eq!(world.synchronize(other), 0);
    // The other's SMs are lent after its grace time.
    for _ in 0..4 {
        run(&mut world, session, BRISK, PLACES);
        world.run_for(500);
    }
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk-original");
    world.finish();
}

#[test]
fn a_launch_that_took_too_long_does_penance() {
    let (mut world, session, _) = world();
    let form = |world: &mut World| run(world, session, BRISK, 4 * PLACES);
    assert_eq!([form(&mut world), form(&mut world)], ["brisk", "brisk-original"]);
    for penance in [8, 16] {
        world.device.set_time("brisk-original", 100);
        assert_eq!(form(&mut world), "brisk-original");
        world.device.set_time("brisk-original", 2);
        for _ in 0..penance {
            assert_eq!(form(&mut world), "brisk");
        }
        assert_eq!(form(&mut world), "brisk-original");
    }
    world.finish();
}

#[test]
fn a_newcomer_waits_no_longer_than_for_workers() {
    let (mut world, session, application) = world();
    for _ in 0..2 {
        run(&mut world, session, BRISK, 2 * PLACES);
    }
    let (other, newcomer) = world.session();
    for _ in 0..50 {
        world.start(session, 0, BRISK, 2 * PLACES);
    }
    for _ in 0..60 {
        world.run_for(1);
        let ahead = world
            .engine
            .machines
            .launches
            .expected_of(application, Nanos(world.device.now))
            .expect("all that is in flight is known");
        assert!(ahead.is_within(SHORT), "{ahead:?}");
    }
    let originals = |world: &World| {
        world.device.launched.iter().filter(|name| name.ends_with("-original")).count()
    };
    assert!(originals(&world) > 4, "{:?}", world.device.launched);
    let asked = world.device.now;
    world.start(other, 0, LONG, 1_000);
    while world.partition(newcomer).is_empty() {
        world.run_for(1);
    }
    // 20 us and a CTA, and what the engine needs to see it.
    let waited = world.device.now - asked;
    assert!(waited <= 20_000 + 2_000 + 3_000, "{waited} ns");
    let launched = world.device.launched.len();
    assert_eq!(world.synchronize(session), 0);
    let after = &world.device.launched[launched..];
    assert!(after.len() > 30, "{after:?}");
    assert!(after.iter().all(|name| !name.ends_with("-original")), "{after:?}");
    assert_eq!(world.synchronize(other), 0);
    world.finish();
}

#[test]
fn one_round_of_ctas_may_take_as_long_as_a_cta() {
    let (mut world, session, _) = world();
    for name in ["brisk", "brisk-original"] {
        world.device.set_time(name, 300);
    }
    for _ in 0..2 {
        assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk-original", "first launches too");
    }
    for _ in 0..3 {
        assert_eq!(run(&mut world, session, BRISK, 2 * PLACES), "brisk", "two rounds");
    }
    world.finish();
}

#[test]
fn what_may_wait_for_others_runs_as_workers_until_it_is_known() {
    let (mut world, session, _) = world();
    assert_eq!(run(&mut world, session, BRISK_AWAITING, PLACES), "brisk-awaiting");
    assert_eq!(run(&mut world, session, BRISK_AWAITING, PLACES), "brisk-awaiting-original");
    world.finish();
}

#[test]
fn the_only_program_runs_long_launches_as_written() {
    let (mut world, session, _) = only();
    // 400 us in 200 rounds; nothing is known of a kernel with loops.
    assert_eq!(run(&mut world, session, BRISK, 200 * PLACES), "brisk");
    assert_eq!(run(&mut world, session, BRISK, 200 * PLACES), "brisk-original");
    // A kernel without loops, and one that takes longer than 10 ms.
    assert_eq!(run(&mut world, session, BRISK_STRAIGHT, 100 * PLACES), "brisk-straight-original");
    for _ in 0..2 {
        assert_eq!(run(&mut world, session, BRISK, 5_100 * PLACES), "brisk");
    }
    // Behind each other, as far as they are over within 10 ms.
    let before = world.device.launched.len();
    for _ in 0..40 {
        world.start(session, 0, BRISK, 200 * PLACES);
    }
    assert_eq!(world.synchronize(session), 0);
    let launched = &world.device.launched[before..];
    assert!(launched.iter().all(|name| &**name == "brisk-original"), "{launched:?}");
    world.finish();
}

#[test]
fn a_newcomers_module_waits_for_long_launches() {
    let (mut world, session, application) = only();
    for _ in 0..2 {
        run(&mut world, session, BRISK, 200 * PLACES);
    }
    for _ in 0..8 {
        world.start(session, 0, BRISK, 200 * PLACES);
    }
    let (other, newcomer) = world.open(None);
    let asked = world.device.now;
    let load = Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE };
    let sequence = world.send(other, load);
    assert!(world.engine.holds_module(other));
    // What starts from now on lets a launch of the newcomer go first.
    world.start(session, 0, BRISK, 200 * PLACES);
    let (code, _) = world.await_reply(other, sequence);
    assert_eq!(code.0, 0);
    assert!(!world.engine.holds_module(other));
    let waited = world.device.now - asked;
    assert!(
        (800_000..1_300_000).contains(&waited),
        "launches of 400 us on the device: {waited} ns"
    );
    world.start(other, 0, LONG, 1_000);
    let asked = world.device.now;
    while world.partition(newcomer).is_empty() {
        world.run_for(1);
    }
    let waited = world.device.now - asked;
    assert!(waited <= 20_000 + 2_000 + 3_000, "{waited} ns");
    assert_ne!(world.partition(application).len(), 0);
    for session in [session, other] {
        assert_eq!(world.synchronize(session), 0);
    }
    world.finish();
}

#[test]
fn a_newcomers_module_waits_no_longer_than_10_ms() {
    let (mut world, session, _) = only();
    for _ in 0..2 {
        run(&mut world, session, BRISK, 200 * PLACES);
    }
    // The next one takes 100 ms.
    world.device.set_time("brisk-original", 500);
    world.start(session, 0, BRISK, 200 * PLACES);
    for gone in [true, false] {
        let (other, _) = world.open(None);
        let asked = world.device.now;
        let load = Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE };
        let sequence = world.send(other, load);
        if gone {
            world.close(other, crate::CloseReason::Died);
            continue;
        }
        let (code, _) = world.await_reply(other, sequence);
        let waited = world.device.now - asked;
        assert_eq!(code.0, 0);
        assert!((10_000_000..10_200_000).contains(&waited), "{waited} ns");
    }
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

/// Two programs with half of the SMs each; the first has a long launch. The device keeps grids to
/// pairs of SMs.
fn halves() -> (World, [SessionId; 2], [ApplicationId; 2]) {
    let mut world = World::new(8);
    world.device.groups = ["0-1", "2-3", "4-5", "6-7"].map(|sms| sms.parse().unwrap()).to_vec();
    let (a, of_a) = world.session();
    let (b, of_b) = world.session();
    world.set_plan(&[(of_a, "0-3"), (of_b, "4-7")]).unwrap();
    world.start(a, 0, LONG, 1_000_000);
    world.run_for(100);
    (world, [a, b], [of_a, of_b])
}

#[test]
fn a_short_launch_beside_others_runs_as_written_where_the_device_keeps_it() {
    let (mut world, [a, b], _) = halves();
    for (kernel, form) in [(BRISK, "brisk"), (BRISK_TICKET, "brisk-ticket")] {
        let original = format!("{form}-original");
        // 8 us in four rounds of CTAs.
        assert_eq!(run(&mut world, b, kernel, 2 * PLACES), form, "unknown");
        let before = world.device.kept_to.len();
        assert_eq!(run(&mut world, b, kernel, 2 * PLACES), original);
        assert_eq!(world.device.kept_to[before..], ["4-7".parse().unwrap()]);
        assert_eq!(run(&mut world, b, kernel, 8 * PLACES), form, "too long");
    }
    world.engine.set_originals(Originals::Alone);
    assert_eq!(run(&mut world, b, BRISK, 2 * PLACES), "brisk");
    for session in [a, b] {
        world.close(session, crate::CloseReason::Died);
    }
    world.finish();
}

#[test]
fn a_border_waits_for_launches_as_written() {
    let (mut world, [a, b], [of_a, of_b]) = halves();
    for _ in 0..2 {
        run(&mut world, b, BRISK, 2 * PLACES);
    }
    for _ in 0..6 {
        world.start(b, 0, BRISK, 2 * PLACES);
    }
    world.run_for(5);
    world.set_plan(&[(of_a, "0-5"), (of_b, "6-7")]).unwrap();
    let asked = world.device.now;
    world.run_for(1);
    assert_eq!(world.partition(of_a), "0-3".parse().unwrap(), "the launch is on SMs 4 to 7");
    while world.partition(of_a).len() < 6 {
        world.run_for(1);
    }
    let waited = world.device.now - asked;
    assert!(waited <= 20_000 + 2_000 + 3_000, "{waited} ns");
    assert_eq!(world.synchronize(b), 0);
    for _ in 0..2 {
        run(&mut world, b, BRISK, PLACES);
    }
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("brisk-original"));
    assert_eq!(world.device.kept_to.last(), Some(&"6-7".parse().unwrap()));
    for session in [a, b] {
        world.close(session, crate::CloseReason::Died);
    }
    world.finish();
}

#[test]
fn a_launch_as_written_that_does_not_end_gives_up_the_sms_of_others() {
    let (mut world, [a, b], [of_a, of_b]) = halves();
    world.engine.set_limits(&Limits { alone_ms: 2, ..Limits::default() });
    for _ in 0..2 {
        run(&mut world, b, BRISK, 2 * PLACES);
    }
    world.device.set_time("brisk-original", 1_000_000);
    world.start(b, 0, BRISK, 2 * PLACES);
    world.run_for(5_000);
    let why = world.engine.policy_report().why.join("\n");
    assert!(why.contains("has run as it was written on SMs 4-7 for 4 ms"), "{why}");
    world.set_plan(&[(of_a, "0-5"), (of_b, "6-7")]).unwrap();
    assert_eq!(world.synchronize(b), CudaResult::ERROR_LAUNCH_TIMEOUT.0);
    world.run_for(100);
    assert_eq!(world.partition(of_a), "0-5".parse().unwrap());
    for session in [a, b] {
        world.close(session, crate::CloseReason::Died);
    }
    world.finish();
}

#[test]
fn workers_start_on_no_foreign_sm_where_the_device_keeps_them() {
    let (mut world, [a, b], [_, of_b]) = halves();
    let before = world.device.grids_started;
    // The first launch asks the device for the SMs.
    for _ in 0..2 {
        assert_eq!(run(&mut world, b, LONG, 4 * PLACES), "long");
    }
    assert_eq!(world.device.kept_to.last(), Some(&"4-7".parse().unwrap()));
    assert_eq!(world.partition(of_b), "4-7".parse().unwrap());
    assert!(world.device.grids_started - before <= 4, "one helper grid a launch at most");
    for session in [a, b] {
        world.close(session, crate::CloseReason::Died);
    }
    world.finish();
}
