//! First launches are counted, within bounds, and what they show classifies.

use super::world::{COUNTED, SHARED_COUNTED, SPIN, World};
use crate::{Action, CloseReason, EngineConfig};
use partita_model::{
    Bytes, Class, Evidence, KernelProfile, LaunchShape, Note, Originals, PartitionerKind, SessionId,
};
use std::sync::Arc;

/// Two rounds of 8 CTAs on each of 24 SMs.
const COUNTED_CTAS: u64 = 2 * 8 * 24;

type Kept = (Arc<str>, Vec<(LaunchShape, KernelProfile)>);

fn profiled(world: &World) -> Vec<Kept> {
    let actions = world.actions.iter();
    let profiled = actions.filter_map(|action| match action {
        Action::Profiled { hash, profiles } => Some((hash.clone(), profiles.clone())),
        _ => None,
    });
    profiled.collect()
}

fn launched(world: &World) -> Vec<&str> {
    world.device.launched.iter().map(|name| &**name).collect()
}

/// Launches of an application alone are counted where originals never run.
fn counting_world(sm_count: u16) -> World {
    let mut world = World::new(sm_count);
    world.engine.set_originals(Originals::Never);
    world
}

fn run_launch(world: &mut World, session: SessionId, kernel: u32, ctas: u32) {
    world.start(session, 0, kernel, ctas);
    assert_eq!(world.synchronize(session), 0);
}

#[test]
fn slices_of_two_launches_are_counted() {
    let mut world = counting_world(24);
    let (session, _) = world.session();
    for _ in 0..3 {
        run_launch(&mut world, session, COUNTED, 20_000);
    }
    let grids = launched(&world);
    let main = |name: &str| grids.iter().filter(|grid| **grid == name).count();
    // Two slices each, with three parts about them, and the third launch.
    assert!(main("counted-counting") >= 4 && main("counted") >= 7, "{grids:?}");
    assert_eq!(grids[..3], ["counted", "counted-counting", "counted"]);
    assert_eq!(*grids.last().unwrap(), "counted");
    let kept = profiled(&world);
    let (hash, profiles) = kept.last().unwrap();
    let (shape, profile) = profiles[0];
    assert_eq!((&**hash, shape.grid_log2), ("counted", 14));
    assert_eq!((profile.launches, profile.counts.ctas), (2, COUNTED_CTAS));
    assert_eq!(profile.counts.warp_instructions, COUNTED_CTAS * 1000);
    assert_eq!(profile.llc.accesses, COUNTED_CTAS * 2);
    // The time of a CTA is that of the form that does not count.
    let times: Vec<u64> =
        kept.iter().filter_map(|(_, p)| p[0].1.cta_time).map(|time| time.0).collect();
    assert!(times.last().is_some_and(|time| (4_900..7_500).contains(time)), "{times:?}");
    let [report] = &world.engine.application_reports()[..] else { panic!("one application") };
    assert_eq!((report.launches_completed, report.ctas_completed), (3, 60_000));
    assert_eq!(report.kernels.len(), 1);
    assert_eq!(report.kernels[0].profile, Some(profile));
    assert_eq!(report.kernels[0].launches, 3);
    world.close(session, CloseReason::Goodbye);
    world.finish();
}

#[test]
fn the_speed_alone_is_that_of_launches_that_had_the_whole_gpu() {
    let alone = |world: &World| {
        let kept = profiled(world);
        kept.last().and_then(|(_, profiles)| profiles.last()?.1.alone)
    };
    let mut world = counting_world(24);
    let (first, _) = world.session();
    for _ in 0..3 {
        run_launch(&mut world, first, COUNTED, 20_000);
    }
    // 8 CTAs of 5 to 7.5 us on each of 24 SMs.
    let known = alone(&world).unwrap();
    assert!((25.0..40.0).contains(&known), "{known} ns a CTA");

    let mut world = counting_world(24);
    let [(first, _), (second, _)] = [world.session(), world.session()];
    world.start(second, 0, SPIN, 1_000_000);
    for _ in 0..3 {
        run_launch(&mut world, first, COUNTED, 20_000);
    }
    assert_eq!(alone(&world), None, "another application had half of the SMs");
}

#[test]
fn a_small_launch_is_counted_whole() {
    let mut world = counting_world(24);
    let (session, _) = world.session();
    run_launch(&mut world, session, COUNTED, 500);
    assert_eq!(profiled(&world)[0].1[0].1.counts.ctas, 500);
    assert!(launched(&world).iter().all(|grid| *grid == "counted-counting"));
    // Another shape is another profile.
    run_launch(&mut world, session, COUNTED, 7);
    assert_eq!(profiled(&world)[1].1.len(), 2);
}

#[test]
fn what_was_kept_is_not_counted_again() {
    let mut world = counting_world(24);
    let (session, _) = world.session();
    run_launch(&mut world, session, COUNTED, 20_000);
    let (hash, profiles) = profiled(&world).remove(0);

    let mut again = counting_world(24);
    let (session, _) = again.session();
    again.engine.learn(&hash, &profiles);
    run_launch(&mut again, session, COUNTED, 20_000);
    assert!(launched(&again).iter().all(|grid| *grid == "counted"));
    // What has been counted since goes before what was kept.
    let stale = KernelProfile::default();
    world.engine.learn(&hash, &[(profiles[0].0, stale)]);
    run_launch(&mut world, SessionId(1), COUNTED, 20_000);
    assert_eq!(profiled(&world).last().unwrap().1[0].1.counts.ctas, COUNTED_CTAS);
}

#[test]
fn counting_can_be_off_and_can_find_no_memory() {
    let config =
        EngineConfig { window: Some(Bytes(1 << 26)), profiling: false, ..EngineConfig::default() };
    let mut world = World::with_config(24, config);
    let (session, _) = world.session();
    run_launch(&mut world, session, COUNTED, 5000);
    assert_eq!(launched(&world), ["counted"]);

    let mut world = counting_world(24);
    let (session, _) = world.session();
    world.device.leave_free(1 << 20);
    run_launch(&mut world, session, COUNTED, 5000);
    assert!(launched(&world).iter().all(|grid| *grid == "counted"));
    assert_eq!(world.engine.application_reports()[0].ctas_completed, 5000);
}

#[test]
fn a_program_that_dies_while_it_is_counted_leaves_nothing() {
    let mut world = counting_world(24);
    // In the midst of slices, and between them.
    for micros in [0, 3, 40, 80, 120, 400] {
        let (session, _) = world.session();
        world.start(session, 0, SHARED_COUNTED, 20_000 + micros);
        world.run_for(micros.into());
        world.close(session, CloseReason::Died);
        world.run();
        assert!(world.engine.machines.observer.is_at_rest(), "{micros}");
    }
    world.finish();
}

#[test]
fn classes_come_from_profiles() {
    let config = EngineConfig { window: Some(Bytes(1 << 26)), ..EngineConfig::default() };
    let mut world = World::with_config(24, config);
    world.set_policy(PartitionerKind::CdSearch);
    let ((a, first), (b, second)) = (world.session(), world.session());
    for (session, kernel, ctas) in [(a, SHARED_COUNTED, 100_000), (b, COUNTED, 30_000)] {
        for _ in 0..100 {
            world.start(session, 0, kernel, ctas);
        }
    }
    let stage = |world: &World| world.engine.decisions().last().map(|record| record.stage.clone());
    for _ in 0..200 {
        world.run_for(100);
        if stage(&world).as_deref() == Some("watch") {
            break;
        }
    }
    let text = world.engine.explanation().join("\n");
    assert_eq!(stage(&world).as_deref(), Some("watch"), "{text}");
    assert!(
        world.engine.decisions().all(|record| record.stage != "probe"),
        "nobody is in doubt: {text}"
    );
    let notes = || world.engine.decisions().flat_map(|record| &record.notes);
    for (application, wanted, accesses) in
        [(first, Class::Memory, 250.0), (second, Class::Compute, 2.0)]
    {
        let evidence = notes().find_map(|note| match note {
            Note::Classified { application: id, class, evidence, .. } if *id == application => {
                assert_eq!(*class, wanted);
                Some(*evidence)
            }
            _ => None,
        });
        let Some(Evidence::Bandwidth { apki, certain: true, .. }) = evidence else {
            panic!("{evidence:?}")
        };
        assert!((apki - accesses).abs() < 0.1, "{apki}");
    }
    assert!(text.contains("LLC accesses per kilo warp instruction"), "{text}");
}

#[test]
fn an_application_alone_is_counted_once_others_come() {
    let mut world = World::new(24);
    let (session, _) = world.session();
    run_launch(&mut world, session, COUNTED, 20_000);
    assert!(!launched(&world).contains(&"counted-counting"));
    let (other, _) = world.session();
    run_launch(&mut world, session, COUNTED, 20_000);
    assert!(launched(&world).contains(&"counted-counting"));
    world.close(other, CloseReason::Goodbye);
    world.finish();
}
