//! Modules that are prepared more than once.

use super::world::{CROWDED_IMAGE, CROWDING_IMAGE, GOOD_IMAGE, MODULE, WIDE_IMAGE, World};
use crate::{CloseReason, ModuleHandle, Purpose, Request};
use partita_model::Dim3;
use std::collections::BTreeMap;
use std::sync::Arc;

fn load(module: ModuleHandle) -> Request {
    Request::ModuleLoad { module, image: WIDE_IMAGE }
}

#[test]
fn a_form_takes_every_block_that_the_original_takes() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    assert!(world.ask(session, load(MODULE)).0.is_success());
    let of = Arc::new(BTreeMap::from([(Arc::from("wide"), 72)]));
    let registers = Arc::new(BTreeMap::from([(Arc::from("wide"), 64)]));
    assert_eq!(
        world.purposes,
        [Purpose::Run, Purpose::Registers(of), Purpose::RunWithin(registers)]
    );
    let [_, _, modules, _] = world.device.leftovers();
    assert_eq!(modules, 1, "only the last one stays");
    let mut launch = World::launch(0, 0, 6);
    launch.block = Dim3::linear(1024);
    assert_eq!(world.code(session, Request::Launch(launch)), 0);
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

#[test]
fn a_form_leaves_an_sm_as_many_warps_as_the_original() {
    for (image, bounds) in [(CROWDING_IMAGE, Some(32)), (CROWDED_IMAGE, None)] {
        let mut world = World::new(4);
        let (session, _) = world.open(None);
        assert!(world.ask(session, Request::ModuleLoad { module: MODULE, image }).0.is_success());
        let asked = Arc::new(BTreeMap::from([(Arc::from("wide"), 40)]));
        let bounds =
            Arc::new(bounds.map(|registers| (Arc::from("wide"), registers)).into_iter().collect());
        assert_eq!(
            world.purposes,
            [Purpose::Run, Purpose::Registers(asked), Purpose::RunWithin(bounds)]
        );
        world.finish();
    }
}

#[test]
fn modules_whose_forms_take_every_block_are_prepared_once() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let load = Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE };
    assert!(world.ask(session, load).0.is_success());
    assert_eq!(world.purposes, [Purpose::Run]);
    world.finish();
}

#[test]
fn a_session_may_go_between_two_preparations() {
    for steps in 0..4 {
        let mut world = World::new(4);
        let (session, _) = world.open(None);
        world.send(session, load(MODULE));
        for _ in 0..steps {
            world.step();
        }
        world.close(session, CloseReason::Died);
        world.finish();
    }
}
