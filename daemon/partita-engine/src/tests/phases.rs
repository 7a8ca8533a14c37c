//! Launches while a device drains, so that it can load.

use super::world::{MEDIUM, World};
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
