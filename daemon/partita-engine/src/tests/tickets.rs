//! Kernels that cannot be workers run as tickets, in waves.

use super::world::{FAULT_TICKET, LONG, MEDIUM, SHORT, TICKET, World};
use crate::{CloseReason, Request, StreamHandle, StreamKind};
use partita_model::{SmId, SmSet};

fn completed(world: &World, index: usize) -> u64 {
    world.engine.application_reports()[index].ctas_completed
}

#[test]
fn every_cta_runs_once_and_the_stream_keeps_its_order() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    for _ in 0..3 {
        world.start(a, 0, TICKET, 500);
        world.start(a, 0, SHORT, 7);
    }
    assert_eq!(world.synchronize(a), 0);
    let report = &world.engine.application_reports()[0];
    assert_eq!((report.launches_completed, report.ctas_completed), (6, 3 * 507));
    let kernels: Vec<(&str, &str, u64)> =
        report.kernels.iter().map(|k| (k.name.as_str(), k.form.as_str(), k.launches)).collect();
    assert_eq!(kernels, [("ticket", "ticket", 3), ("short", "worker", 3)]);
    assert_eq!(report.kernels[0].reason.as_deref(), Some("line 7: lanes may skip this"));
    // No wave of a launch comes before the launch before it is over.
    let mut runs: Vec<&str> = Vec::new();
    for entry in &world.device.launched {
        if runs.last() != Some(&&**entry) {
            runs.push(entry);
        }
    }
    assert_eq!(runs, ["ticket", "short", "ticket", "short", "ticket", "short"]);
    world.finish();
}

#[test]
fn alone_they_keep_the_device_busy() {
    let mut world = World::new(24);
    let (a, _) = world.session();
    let start = world.device.now;
    // Ten rounds of ten microseconds.
    world.start(a, 0, TICKET, 24 * 8 * 10);
    assert_eq!(world.synchronize(a), 0);
    let took = world.device.now - start;
    assert!(took <= 180_000, "{took} ns");
    assert!(world.device.grids_started <= 20, "{} waves", world.device.grids_started);
    world.finish();
}

#[test]
fn beside_others_they_stay_on_their_sms_and_fill_them() {
    let mut world = World::new(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    world.start(a, 0, TICKET, 10_000);
    world.start(b, 0, LONG, 20_000);
    world.run_for(300);
    assert_eq!((world.partition(first).len(), world.partition(second).len()), (12, 12));
    let before = completed(&world, 0);
    world.run_for(1_000);
    // Twelve SMs with eight places each run a CTA in ten microseconds.
    let most = 12 * 8 * 100;
    let done = completed(&world, 0) - before;
    assert!(done <= most && done * 100 >= most * 40, "{done} of {most}");
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    assert_eq!((completed(&world, 0), completed(&world, 1)), (10_000, 20_000));
    world.finish();
}

#[test]
fn borders_move_while_they_run() {
    let mut world = World::new(8);
    let ((a, first), (b, second)) = (world.session(), world.session());
    world.start(a, 0, TICKET, 20_000);
    world.start(b, 0, MEDIUM, 60_000);
    for round in 0..40_u16 {
        let border = 1 + round % 7;
        let plan = [(first, format!("0-{}", border - 1)), (second, format!("{border}-7"))];
        world.set_plan(&[(plan[0].0, &plan[0].1), (plan[1].0, &plan[1].1)]).unwrap();
        let stalled = SmSet::from_iter((0..8).filter(|sm| (sm + round) % 5 == 0).map(SmId));
        world.engine.set_stalled(&mut world.device, stalled);
        world.run_for(70);
        assert_eq!(world.partition(first), SmSet::range(0, border), "round {round}");
    }
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    assert_eq!((completed(&world, 0), completed(&world, 1)), (20_000, 60_000));
    world.finish();
}

#[test]
fn stalled_sms_get_no_tickets_and_get_them_again() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    world.start(a, 0, TICKET, 5_000);
    world.run_for(50);
    world.engine.set_stalled(&mut world.device, SmSet::range(0, 4));
    world.run_for(50);
    let before = completed(&world, 0);
    world.run_for(500);
    assert_eq!(completed(&world, 0), before);
    assert_eq!((0..4).map(|sm| world.device.workers(sm)).sum::<u32>(), 0);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(completed(&world, 0), 5_000);
    world.finish();
}

#[test]
fn streams_share_the_places() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    for stream in 1..6 {
        let stream = StreamHandle(stream);
        world.code(a, Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 });
    }
    for stream in 1..6 {
        world.start(a, stream, TICKET, 200);
        world.start(a, stream, if stream % 2 == 0 { LONG } else { TICKET }, 100);
    }
    for _ in 0..100 {
        world.run_for(10);
        for sm in 0..4 {
            assert!(world.device.workers(sm) <= 8);
        }
    }
    assert_eq!(world.synchronize(a), 0);
    assert_eq!(completed(&world, 0), 1_500);
    world.finish();
}

#[test]
fn a_faulty_ticket_ends_its_session_only() {
    let mut world = World::new(4);
    let ((a, _), (b, _)) = (world.session(), world.session());
    world.start(b, 0, TICKET, 500);
    world.start(a, 0, FAULT_TICKET, 100);
    assert_eq!(world.synchronize(a), 700);
    assert_eq!(world.synchronize(b), 0);
    world.finish();
}

#[test]
fn a_client_that_dies_leaves_nothing_behind() {
    for can_cancel in [true, false] {
        let mut world = World::new(4);
        world.device.can_cancel = can_cancel;
        let ((a, _), (b, second)) = (world.session(), world.session());
        world.start(a, 0, TICKET, 5_000);
        world.start(a, 0, MEDIUM, 100);
        world.start(b, 0, TICKET, 3_000);
        world.run_for(200);
        world.close(a, CloseReason::Died);
        world.run_for(100);
        assert_eq!(world.partition(second), SmSet::range(0, 4));
        assert_eq!(world.synchronize(b), 0);
        world.finish();
    }
}
