//! Short launches of an application that has the GPU to itself run as they were written.

use super::world::{BRISK, BRISK_TICKET, LONG, World};
use crate::Request;
use partita_model::{ApplicationId, Nanos, Originals, SessionId};

/// CTAs that 8 SMs hold at once.
const PLACES: u32 = 64;

fn world() -> (World, SessionId, ApplicationId) {
    let mut world = World::new(8);
    world.engine.set_originals(Originals::Alone);
    let (session, application) = world.session();
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
        assert_eq!(run(&mut world, session, kernel, 5 * PLACES), form, "another shape");
        assert_eq!(run(&mut world, session, kernel, 4 * PLACES), original);
    }
    let reports = world.engine.application_reports();
    let counts: Vec<_> = reports[0].kernels.iter().map(|k| (k.launches, k.as_written)).collect();
    assert_eq!(counts, [(4, 2), (4, 2)]);
    assert_eq!(reports[0].id, application);
    assert_eq!(reports[0].ctas_completed, u64::from(2 * 17 * PLACES));
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
        assert!(ahead.is_short(), "{ahead:?}");
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
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk");
    assert_eq!(run(&mut world, session, BRISK, PLACES), "brisk-original");
    for _ in 0..3 {
        assert_eq!(run(&mut world, session, BRISK, 2 * PLACES), "brisk", "two rounds");
    }
    world.finish();
}
