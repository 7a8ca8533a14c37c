//! Launches while a device drains, so that it can load.

use super::world::{FAULT, MEDIUM, SHORT, SPIN, TICKET, World};
use crate::{Action, CloseReason, LogLevel};
use partita_device::{Event, Phase};
use partita_model::SmSet;
use std::collections::BTreeMap;

fn reopen(world: &mut World) {
    world.device.phase = Phase::Open;
    world.engine.handle_event(&mut world.device, Event::Reopened);
    world.run_for(1);
}

#[test]
fn no_launch_begins_while_the_device_drains() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    world.device.phase = Phase::Draining;
    world.start(a, 0, MEDIUM, 100);
    world.run_for(500);
    assert!(world.device.launched.is_empty(), "{:?}", world.device.launched);
    reopen(&mut world);
    assert_eq!(world.synchronize(a), 0);
    world.finish();
}

#[test]
fn a_running_launch_has_what_it_needs_while_the_device_drains() {
    let mut world = World::new(4);
    let (a, application) = world.session();
    world.start(a, 0, MEDIUM, 1_000);
    world.run_for(100);
    world.device.phase = Phase::Draining;
    // Its workers leave, and others go to where it may be from now on.
    for sms in [SmSet::range(0, 1), SmSet::range(2, 2)] {
        let plan = BTreeMap::from([(application, sms)]);
        world.engine.set_plan(&mut world.device, plan).unwrap();
        world.run_for(200);
    }
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(world.engine.application_reports()[0].ctas_completed, 1_000);
    reopen(&mut world);
    world.finish();
}

/// A world in which long launches can leave, with one of a kernel that nobody has seen: 10,000 CTAs
/// that take 1.6 ms.
fn with_long_launch(kernel: u32) -> (World, partita_model::SessionId) {
    let mut world = World::new(4);
    world.device.may_leave = true;
    let (a, _) = world.session();
    world.start(a, 0, kernel, 10_000);
    world.run_for(300);
    (world, a)
}

fn completed(world: &World) -> u64 {
    world.engine.application_reports()[0].ctas_completed
}

#[test]
fn a_long_launch_leaves_a_device_that_drains_and_comes_back() {
    for kernel in [MEDIUM, TICKET] {
        let (mut world, a) = with_long_launch(kernel);
        // Its stream's next operations wait for all of it.
        world.start(a, 0, SHORT, 10);
        for _ in 0..3 {
            world.device.phase = Phase::Draining;
            world.run_for(200);
            assert!((0..4).all(|sm| world.device.workers(sm) == 0), "{kernel}");
            let then = completed(&world);
            assert!(then > 0 && then < 10_000, "{then} CTAs of {kernel}");
            assert!(!world.device.launched.iter().any(|entry| &**entry == "short"));
            reopen(&mut world);
            world.run_for(200);
            assert!(completed(&world) > then, "kernel {kernel} does not go on");
        }
        assert_eq!(world.synchronize(a), 0);
        assert_eq!(completed(&world), 10_010);
        world.finish();
    }
}

/// A phase may last longer than a launch may be without progress.
#[test]
fn time_away_does_not_count_as_time_without_progress() {
    for kernel in [MEDIUM, TICKET] {
        let (mut world, a) = with_long_launch(kernel);
        // No look comes any more, so the launch seems to be as it was.
        world.device.look_time = Some(10_000_000);
        world.device.phase = Phase::Draining;
        world.run_for(200);
        assert!((0..4).all(|sm| world.device.workers(sm) == 0), "{kernel}");
        world.device.phase = Phase::Closed;
        world.device.now += 2_000_000_000;
        world.device.looks.clear();
        reopen(&mut world);
        world.run_for(300);
        let warns =
            |action: &Action| matches!(action, Action::Log { level: LogLevel::Warning, .. });
        assert!(!world.actions.iter().any(warns), "{kernel}: {:?}", world.actions);
        assert_eq!(world.synchronize(a), 0);
        world.finish();
    }
}

#[test]
fn launches_that_are_known_to_be_short_stay() {
    let mut world = World::new(4);
    world.device.may_leave = true;
    let (a, _) = world.session();
    // The first one teaches that 5,000 CTAs take 0.8 ms.
    world.start(a, 0, MEDIUM, 5_000);
    assert_eq!(world.synchronize(a), 0);
    world.start(a, 0, MEDIUM, 5_000);
    world.run_for(100);
    world.device.phase = Phase::Draining;
    world.run_for(200);
    assert!((0..4).all(|sm| world.device.workers(sm) > 0));
    assert_eq!(world.synchronize(a), 0);
    reopen(&mut world);
    world.finish();
}

#[test]
fn nobody_leaves_beside_a_long_launch_that_stays() {
    let mut world = World::new(4);
    let ((a, _), (b, _)) = (world.session(), world.session());
    // It has a main grid, and runs for 80 ms.
    world.start(a, 0, MEDIUM, 256_000);
    world.run_for(100);
    world.device.may_leave = true;
    world.start(b, 0, MEDIUM, 200_000);
    world.run_for(60_000);
    world.device.phase = Phase::Draining;
    world.run_for(500);
    assert!((0..4).all(|sm| world.device.workers(sm) > 0));
    reopen(&mut world);
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    world.finish();
}

#[test]
fn a_launch_that_has_left_can_fail_and_be_closed() {
    // A fault is found although no main grid ends.
    let (mut world, a) = with_long_launch(FAULT);
    assert_ne!(world.synchronize(a), 0);
    world.finish();
    for can_cancel in [true, false] {
        for kernel in [MEDIUM, SPIN] {
            let (mut world, a) = with_long_launch(kernel);
            world.device.can_cancel = can_cancel;
            world.device.phase = Phase::Draining;
            world.run_for(200);
            world.close(a, CloseReason::Died);
            world.run_for(100);
            reopen(&mut world);
            world.run();
            assert!(world.released.contains(&a), "{kernel} {can_cancel}");
            world.finish();
        }
    }
}
