//! Modules that are prepared more than once, and kernels whose forms come later.

use super::world::{
    CROWDED_IMAGE, CROWDING_IMAGE, GOOD_IMAGE, LATE_IMAGE, LONG, MODULE, WIDE_IMAGE, World,
};
use crate::{CloseReason, ModuleHandle, Purpose, Request};
use partita_device::VariableFacts;
use partita_model::{Bytes, DeviceAddress, Dim3, MemoryQuota, SessionId};
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

/// A session with the module whose kernel has its form later, and a launch of the kernel.
fn late(world: &mut World) -> SessionId {
    let (session, _) = world.open(None);
    let load = Request::ModuleLoad { module: MODULE, image: LATE_IMAGE };
    assert!(world.ask(session, load).0.is_success());
    world.start(session, 0, 0, 6);
    session
}

/// The form of a session's only kernel, as it is reported, and its launches.
fn form_of(world: &World, index: usize) -> (String, u64) {
    let kernel = &world.engine.application_reports()[index].kernels[0];
    (kernel.form.clone(), kernel.launches)
}

#[test]
fn launches_wait_for_the_form_of_their_kernel() {
    let mut world = World::new(4);
    let session = late(&mut world);
    world.start(session, 0, 0, 6);
    world.run_for(1_000);
    assert_eq!((world.forms.len(), world.device.leftovers()[1]), (1, 0), "asked for once");
    assert!(world.engine.application_reports()[0].kernels.is_empty(), "nothing has run");
    world.give_form(Some("late 10"));
    assert_eq!(world.synchronize(session), 0);
    world.start(session, 0, 0, 6);
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(form_of(&world, 0), ("worker".to_owned(), 3));
    assert_eq!(world.purposes, [Purpose::Run, Purpose::Run], "one module, one form");
    world.finish();
}

#[test]
fn a_launch_with_a_form_from_later_runs_beside_others() {
    let mut world = World::new(4);
    let (other, _) = world.session();
    world.start(other, 0, LONG, 400);
    let session = late(&mut world);
    world.give_form(Some("late 10"));
    assert_eq!(world.synchronize(session), 0);
    let reports = world.engine.application_reports();
    assert_eq!(reports[1].ctas_completed, 6);
    assert!(reports[0].ctas_completed < 400, "the other still runs");
    assert_eq!(world.synchronize(other), 0);
    world.finish();
}

#[test]
fn without_a_form_a_kernel_runs_as_it_was_written() {
    // No form, one that is too large, and one that the device refuses.
    for form in [None, Some("late 10 16 too large"), Some("late")] {
        let mut world = World::new(4);
        let session = late(&mut world);
        world.give_form(form);
        assert_eq!(world.synchronize(session), 0);
        assert_eq!(form_of(&world, 0), ("original".to_owned(), 1), "{form:?}");
        world.start(session, 0, 0, 6);
        assert_eq!((world.synchronize(session), world.forms.len()), (0, 0));
        world.finish();
    }
}

#[test]
fn a_form_from_later_takes_every_block_too() {
    let mut world = World::new(4);
    let session = late(&mut world);
    let late = |registers| Arc::new(BTreeMap::from([(Arc::from("late"), registers)]));
    for text in ["late 10 72", "late 9 64", "late 8 64"] {
        world.give_form(Some(text));
        world.step();
    }
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(
        world.purposes[1..],
        [Purpose::Run, Purpose::Registers(late(72)), Purpose::RunWithin(late(64))]
    );
    let [_, _, modules, _] = world.device.leftovers();
    assert_eq!((modules, world.forms.len()), (2, 0), "the module and the last form");
    assert_eq!(form_of(&world, 0), ("worker".to_owned(), 1));
    world.finish();
}

#[test]
fn a_module_may_go_while_a_launch_waits_for_its_form() {
    let mut world = World::new(4);
    let session = late(&mut world);
    assert_eq!(world.code(session, Request::ModuleUnload { module: MODULE }), 0);
    let [_, _, modules, _] = world.device.leftovers();
    assert_eq!(modules, 0, "the launch has run");
    world.give_form(Some("late 10"));
    world.run_for(100);
    world.finish();
}

#[test]
fn a_session_may_go_while_a_form_is_on_its_way() {
    for steps in 0..4 {
        let mut world = World::new(4);
        let session = late(&mut world);
        if steps > 0 {
            world.give_form(Some("late 10"));
        }
        for _ in 1..steps {
            world.step();
        }
        world.close(session, CloseReason::Died);
        if steps == 0 {
            world.give_form(Some("late 10"));
        }
        world.finish();
    }
}

#[test]
fn variables_count_against_the_quota() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let quota = MemoryQuota { tenant: None, bytes: 1 << 20 };
    world.engine.set_quotas(&[quota]);
    let own = world.alloc(session, 512);
    let address = DeviceAddress(own.0 + (1 << 16));
    let load = Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE };
    for (bytes, code) in [(1 << 20, 2), ((1 << 20) - 511, 2), ((1 << 20) - 512, 0)] {
        let name = "table".into();
        world.device.variables = vec![VariableFacts { name, address, size: Bytes(bytes) }];
        assert_eq!(world.code(session, load.clone()), code, "{bytes} bytes");
        let used = if code == 0 { 1 << 20 } else { 512 };
        assert_eq!(world.engine.memory_used(), used, "{bytes} bytes");
    }
    world.finish();
}
