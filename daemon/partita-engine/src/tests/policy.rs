//! CD-search moves the borders of running kernels.

use super::world::{LONG, MEDIUM, SHARED, World};
use crate::{CloseReason, EngineConfig};
use partita_model::{Bytes, PartitionerKind, SessionId, SmSet, TraceEntry};

fn world(sm_count: u16) -> World {
    world_with(sm_count, EngineConfig::default())
}

fn world_with(sm_count: u16, config: EngineConfig) -> World {
    let config = EngineConfig { window: Some(Bytes(1 << 26)), ..config };
    let mut world = World::with_config(sm_count, config);
    world.set_policy(PartitionerKind::CdSearch);
    world
}

fn stage(world: &World) -> String {
    world.engine.decisions().last().map(|record| record.stage.clone()).unwrap_or_default()
}

fn run_until_found(world: &mut World) {
    for _ in 0..200 {
        world.run_for(100);
        if stage(world) == "watch" {
            return;
        }
    }
    panic!("still searching: {:#?}", world.engine.explanation());
}

/// Kernels in a row.
fn keep_busy(world: &mut World, session: SessionId, kernel: u32, ctas: u32) {
    for _ in 0..(4_000_000 / ctas).min(1_000) {
        world.start(session, 0, kernel, ctas);
    }
}

#[test]
fn an_application_that_needs_less_gives_sms_to_one_that_can_use_them() {
    let mut world = world(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    keep_busy(&mut world, a, SHARED, 100_000);
    keep_busy(&mut world, b, MEDIUM, 30_000);
    run_until_found(&mut world);
    world.run_for(200);
    let (has, gets) = (world.partition(first), world.partition(second));
    let text = world.engine.explanation().join("\n");
    // Six SMs have as many workers as the bandwidth serves; steps are of two.
    assert!((5..=8).contains(&has.len()), "{has}\n{text}");
    assert_eq!(has.union(&gets), SmSet::range(0, 24), "{text}");
    assert!(text.contains("application 1 is memory-intensive"), "{text}");
    assert!(text.contains("application 2 is compute-intensive"), "{text}");
    // Two for each plan: arrivals, what the search has found, and each of eight steps behind it,
    // there and back.
    let moves = world.engine.trace_report(None).entries;
    assert!(
        moves.iter().filter(|entry| matches!(entry, TraceEntry::Resize { .. })).count()
            <= 8 + 2 * 2 * 8
    );

    // It leaves, and the other has everything.
    world.close(b, CloseReason::Died);
    world.run_for(300);
    assert_eq!(world.partition(first), SmSet::range(0, 24));
    world.close(a, CloseReason::Died);
    world.finish();
}

#[test]
fn applications_that_need_less_leave_sms_empty() {
    let mut world = world(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    keep_busy(&mut world, a, SHARED, 100_000);
    keep_busy(&mut world, b, SHARED, 100_000);
    run_until_found(&mut world);
    world.run_for(200);
    let used = world.partition(first).len() + world.partition(second).len();
    // Six would do if borders between tasks took no time.
    assert!((6..=12).contains(&used), "{}", world.engine.explanation().join("\n"));
    assert_eq!(world.engine.decisions().last().unwrap().gated.len(), 24 - used);
    assert_eq!(world.device.gated.len(), 24 - used);
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn intervals_begin_when_stalled_workers_have_come_to_a_border() {
    let mut world = world(24);
    let ((a, _), (b, _)) = (world.session(), world.session());
    // A task of the longer one takes 20 us, and a border is seen at most 2 us late.
    keep_busy(&mut world, a, LONG, 30_000);
    keep_busy(&mut world, b, MEDIUM, 30_000);
    run_until_found(&mut world);
    let decisions: Vec<_> = world.engine.decisions().cloned().collect();
    let mut looked = 0;
    for pair in decisions.windows(2) {
        if let Some(interval) = &pair[1].interval
            && pair[0].applications.iter().any(|application| !application.stalled.is_empty())
            && pair[0]
                .applications
                .iter()
                .any(|application| application.stalled != application.had_stalled)
        {
            let waited = interval.settled.saturating_sub(pair[0].time);
            assert!(waited.0 >= 18_000, "{waited:?} after {:?}", pair[0]);
            looked += 1;
        }
    }
    assert!(looked > 0, "{decisions:?}");
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn another_policy_goes_on_from_what_is() {
    let mut world = world(24);
    let ((a, first), (b, _)) = (world.session(), world.session());
    keep_busy(&mut world, a, SHARED, 100_000);
    keep_busy(&mut world, b, MEDIUM, 30_000);
    run_until_found(&mut world);
    world.run_for(200);
    assert!(world.partition(first).len() < 12);
    world.set_policy(PartitionerKind::Even);
    world.run_for(300);
    assert_eq!(world.partition(first).len(), 12);
    assert_eq!(world.engine.policy_report().partitioner, "even");
    assert!(world.engine.explanation()[0].ends_with("because an administrator chose this policy."));
    world.set_policy(PartitionerKind::CdSearch);
    run_until_found(&mut world);
    world.run_for(200);
    assert!(world.partition(first).len() < 12);
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn applications_that_can_use_all_stay_even() {
    let mut world = world(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    keep_busy(&mut world, a, MEDIUM, 30_000);
    keep_busy(&mut world, b, MEDIUM, 30_000);
    run_until_found(&mut world);
    world.run_for(1_000);
    assert_eq!((world.partition(first).len(), world.partition(second).len()), (12, 12));
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn counters_of_the_device_tell_the_classes() {
    let mut world =
        world_with(24, EngineConfig { device_counters: true, ..EngineConfig::default() });
    world.device.counted = Some(std::collections::BTreeMap::new());
    let ((a, first), (b, _)) = (world.session(), world.session());
    keep_busy(&mut world, a, SHARED, 1_000);
    keep_busy(&mut world, b, MEDIUM, 30_000);
    run_until_found(&mut world);
    // Launches ended in the meantime; what they did still counts.
    let traffic = world.engine.machines.counted_traffic(&world.device, first).unwrap();
    assert_eq!(traffic.llc_accesses * 10, traffic.warp_instructions);
    let done = world.engine.application_reports()[0].ctas_completed;
    assert!(
        traffic.warp_instructions.abs_diff(done * 10_000) <= 1_000 * 10_000,
        "{traffic:?}, {done} CTAs"
    );
    let text = format!("{:?}", world.engine.decisions().collect::<Vec<_>>());
    assert!(text.contains("apki: 100.0") && text.contains("apki: 1.0"), "{text}");
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn kernels_that_end_while_sms_are_stalled_do_not_wait_for_them() {
    let mut world = world(24);
    let ((a, first), (b, _)) = (world.session(), world.session());
    // A kernel takes about half as long as a step of the search.
    keep_busy(&mut world, a, SHARED, 2_000);
    keep_busy(&mut world, b, MEDIUM, 400);
    run_until_found(&mut world);
    let found = world.device.now;
    // Its kernels last some 42 us on as few SMs as the bandwidth needs; two and a half times that
    // leaves room for borders, tails and noise.
    let completed = world.engine.application_reports()[0].launches_completed;
    assert!(completed >= found / 105_000, "{completed} kernels in {found} ns");
    assert!(world.partition(first).len() <= 12);
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn while_nobody_has_work_nothing_is_due() {
    let mut world = world(24);
    let ((a, _), (b, _)) = (world.session(), world.session());
    for round in 0..3 {
        for session in [a, b] {
            world.start(session, 0, MEDIUM, 10_000);
        }
        world.run_for(100);
        assert!(world.engine.next_timer().is_some(), "round {round}");
        assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
        // The last look at the launches is still to come.
        world.run_for(100);
        assert_eq!(world.engine.next_timer(), None, "round {round}");
        world.run_for(5_000);
    }
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn with_more_applications_than_sms_each_has_its_turn() {
    let mut world = world(2);
    let sessions: Vec<_> = (0..5).map(|_| world.session()).collect();
    for &(session, _) in &sessions {
        keep_busy(&mut world, session, MEDIUM, 4_000);
    }
    world.run_for(60_000);
    let reports = world.engine.application_reports();
    let done: Vec<u64> = reports.iter().map(|report| report.ctas_completed).collect();
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(*least * 2 > *most, "{done:?}");
    for (session, _) in sessions {
        world.close(session, CloseReason::Died);
    }
    world.finish();
}
