//! Kernels that run alone, in slices: others go between two slices.

use super::world::{ALONE, FAULT_SLICED, MEDIUM, MODULE, SLICED, SPIN_SLICED, World};
use crate::{CloseReason, EngineConfig, Request, Rests, StreamHandle, StreamKind};
use partita_model::{Bytes, CudaResult, Dim3, Nanos, SessionId, Timekeeping, request};

/// CTAs that 8 SMs hold at once. One round of the kernel in slices takes 10 us.
const PLACES: u32 = 64;
/// A launch of 40 ms.
const LONG_LAUNCH: u32 = 4_000 * PLACES;
/// How long others wait at most, in microseconds: for what is in flight, and for a round of CTAs.
const WAIT: u64 = 2_000 + 10;

/// The CTAs of all slices follow each other from the first to the last.
fn assert_whole(world: &World, ctas: u32) {
    let slices = &world.device.slices;
    assert_eq!((slices[0].0, slices.last().unwrap().1), (0, ctas.into()), "{slices:?}");
    assert!(slices.windows(2).all(|two| two[0].1 == two[1].0), "{slices:?}");
}

#[test]
fn a_long_launch_runs_in_slices_and_a_short_one_whole() {
    let mut world = World::new(8);
    let (session, application) = world.session();
    let ctas = 1_000 * PLACES + 7;
    world.start(session, 0, SLICED, ctas);
    world.start(session, 0, MEDIUM, 1);
    assert_eq!(world.synchronize(session), 0);
    assert_whole(&world, ctas);
    let slices = world.device.slices.len();
    assert_eq!(world.device.slices[0], (0, PLACES.into()), "the first fills the GPU once");
    assert!((20..80).contains(&slices), "{slices} slices of 10 ms");
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("medium"), "in order");
    world.start(session, 0, SLICED, 50 * PLACES);
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("sliced-alone"));
    assert_eq!(world.device.slices.len(), slices);
    let reports = world.engine.application_reports();
    let report = reports.iter().find(|report| report.id == application).unwrap();
    assert_eq!(
        (report.launches_completed, report.ctas_completed),
        (3, u64::from(ctas + 1 + 50 * PLACES))
    );
    let kernel = &report.kernels[0];
    assert_eq!((&*kernel.form, kernel.launches, kernel.as_written), ("slice", 2, 1));
    assert_eq!(kernel.slices, u64::try_from(slices).unwrap());
    assert_eq!(kernel.reason.as_deref(), Some("it uses clusters"));
    world.finish();
}

#[test]
fn the_size_of_slices_is_found_and_remembered() {
    let mut world = World::new(8);
    let (first, _) = world.session();
    world.start(first, 0, SLICED, LONG_LAUNCH);
    assert_eq!(world.synchronize(first), 0);
    let size = |(first, end): &(u64, u64)| (end - first) / u64::from(PLACES);
    let sizes: Vec<u64> = world.device.slices.iter().map(size).collect();
    let last = sizes[sizes.len() - 3];
    // The device has no overhead, and the host takes 200 us at least.
    assert!((19..=21).contains(&last), "{sizes:?}");
    assert_eq!(sizes[..2], [1, 1], "the search begins with one round");
    // Another program, after the first has gone.
    world.close(first, CloseReason::Goodbye);
    let (second, _) = world.session();
    let before = world.device.slices.len();
    world.start(second, 0, SLICED, LONG_LAUNCH);
    assert_eq!(world.synchronize(second), 0);
    assert_eq!(size(&world.device.slices[before]), last, "no new search");
    world.finish();
}

/// Starts a launch of another application in the midst of a launch of 40 ms. How long the other
/// takes, in microseconds.
fn wait_beside(kernel: u32) -> u64 {
    let mut world = World::new(8);
    let (greedy, _) = world.session();
    let (other, _) = world.session();
    world.start(greedy, 0, kernel, LONG_LAUNCH);
    world.run_for(5_000);
    let mut longest = 0;
    for _ in 0..10 {
        let asked = world.device.now;
        world.start(other, 0, MEDIUM, PLACES);
        assert_eq!(world.synchronize(other), 0);
        longest = longest.max((world.device.now - asked) / 1_000);
        world.run_for(3_000);
    }
    assert_eq!(world.synchronize(greedy), 0);
    world.finish();
    longest
}

#[test]
fn others_wait_for_slices_and_not_for_the_launch() {
    let (whole, slices) = (wait_beside(ALONE), wait_beside(SLICED));
    assert!(whole > 20_000, "{whole} us");
    assert!(slices <= WAIT + 100, "{slices} us");
}

#[test]
fn two_programs_in_slices_take_turns_and_share_time() {
    for rests in [Rests::Never, Rests::ByDevice] {
        let config =
            EngineConfig { rests, window: Some(Bytes(1 << 26)), ..EngineConfig::default() };
        let mut world = World::with_config(8, config);
        let (first, of_first) = world.session();
        let (second, of_second) = world.session();
        world.start(first, 0, SLICED, LONG_LAUNCH);
        world.run_for(2_000);
        world.start(second, 0, SLICED, LONG_LAUNCH);
        world.run_for(30_000);
        let completed = |world: &World, id| {
            let reports = world.engine.application_reports();
            reports.iter().find(|report| report.id == id).unwrap().ctas_completed
        };
        let [a, b] = [of_first, of_second].map(|id| completed(&world, id));
        assert!(a > 0 && b > a / 2 && a > b / 2, "{a} and {b} CTAs, rests: {rests:?}");
        for session in [first, second] {
            assert_eq!(world.synchronize(session), 0);
        }
        world.finish();
    }
}

/// A launch that had the device to itself for long rests for its last slices only.
#[test]
fn time_without_others_is_not_made_up_for() {
    let config = EngineConfig {
        rests: Rests::ByDevice,
        window: Some(Bytes(1 << 26)),
        ..EngineConfig::default()
    };
    let mut world = World::with_config(8, config);
    let (long, of_long) = world.session();
    let (other, _) = world.session();
    world.start(long, 0, SLICED, LONG_LAUNCH);
    world.run_for(20_000);
    for _ in 0..200 {
        world.start(other, 0, MEDIUM, 20 * PLACES);
    }
    let completed = |world: &World| {
        let reports = world.engine.application_reports();
        reports.iter().find(|report| report.id == of_long).unwrap().ctas_completed
    };
    world.run_for(2_000);
    let before = completed(&world);
    world.run_for(8_000);
    let slices = (completed(&world) - before) * 10 / u64::from(PLACES);
    assert!((2_000..6_000).contains(&slices), "{slices} us of 8 ms");
    for session in [long, other] {
        assert_eq!(world.synchronize(session), 0);
    }
    world.finish();
}

#[test]
fn a_session_that_ends_between_slices_leaves_nothing() {
    for (ends, at) in [(true, 0), (true, 1_500), (false, 700), (false, 7_003)] {
        let mut world = World::new(8);
        let (greedy, _) = world.session();
        let (other, _) = world.session();
        world.start(greedy, 0, SLICED, LONG_LAUNCH);
        world.run_for(at);
        // The rest waits for the other's launches.
        world.start(other, 0, MEDIUM, 100 * PLACES);
        world.run_for(at / 2);
        match ends {
            true => world.close(greedy, CloseReason::Died),
            false => assert!(world.engine.cancel_launches(&mut world.device, greedy, None).is_ok()),
        }
        assert_eq!(world.synchronize(other), 0);
        let slices = world.device.slices.len();
        world.run_for(10_000);
        assert_eq!(world.device.slices.len(), slices, "nothing of it is started");
        world.finish();
    }
}

#[test]
fn a_fault_in_a_slice_names_the_programs_cta() {
    let mut world = World::new(8);
    let (session, _) = world.session();
    let launch = World::launch(0, FAULT_SLICED, 1);
    let grid = Dim3::new(1, 10, 100);
    world.send(session, Request::Launch(request::Launch { grid, ..launch }));
    assert_eq!(world.synchronize(session), CudaResult::ERROR_ILLEGAL_ADDRESS.0);
    let log = format!("{:?}", world.actions);
    assert!(log.contains("fault-sliced-alone"), "{log}");
    // The second CTA of the slice.
    assert!(log.contains("0,1,0"), "{log}");
    world.finish();
}

#[test]
fn a_slice_that_never_ends_is_ended_for_others() {
    let config = EngineConfig {
        window: Some(Bytes(1 << 26)),
        alone: Nanos(50_000_000),
        ..EngineConfig::default()
    };
    let mut world = World::with_config(8, config);
    world.device.can_cancel = false;
    let (greedy, _) = world.session();
    let (other, _) = world.session();
    world.start(greedy, 0, SPIN_SLICED, 10 * PLACES);
    world.run_for(1_000);
    let asked = world.device.now;
    world.start(other, 0, MEDIUM, PLACES);
    assert_eq!(world.synchronize(other), 0);
    let waited = world.device.now - asked;
    assert!((40_000_000..60_000_000).contains(&waited), "{waited} ns");
    assert_eq!(world.synchronize(greedy), CudaResult::ERROR_LAUNCH_TIMEOUT.0);
    world.finish();
}

/// Another stream waits for the whole launch, not for its first slices.
#[test]
fn streams_wait_for_the_last_slice() {
    let mut world = World::new(8);
    let (session, _) = world.session();
    let (stream, kind) = (StreamHandle(1), StreamKind::Blocking);
    assert_eq!(world.code(session, Request::StreamCreate { stream, kind, priority: 0 }), 0);
    world.start(session, 0, SLICED, 1_000 * PLACES);
    world.start(session, 1, MEDIUM, 1);
    assert_eq!(world.code(session, Request::Synchronize { stream: Some(stream) }), 0);
    assert_whole(&world, 1_000 * PLACES);
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("medium"));
    world.finish();
}

#[test]
fn modules_are_loaded_between_slices_where_loading_waits_for_grids() {
    let mut world = World::new(8);
    let (greedy, _) = world.session();
    world.start(greedy, 0, SLICED, LONG_LAUNCH);
    world.run_for(3_000);
    world.device.loading_waits = true;
    let (other, _) = world.open(None);
    let asked = world.device.now;
    world.module(other, MODULE);
    let waited = (world.device.now - asked) / 1_000;
    assert!(waited <= WAIT, "{waited} us");
    assert_eq!(world.synchronize(greedy), 0);
    assert_whole(&world, LONG_LAUNCH);
    world.finish();
}

#[test]
fn cooperative_launches_run_whole() {
    let mut world = World::new(8);
    let (session, _) = world.session();
    let launch = World::launch(0, SLICED, 10 * PLACES);
    world.send(session, Request::Launch(request::Launch { cooperative: true, ..launch }));
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(world.device.slices, []);
    let kernel = world.engine.application_reports().remove(0).kernels.remove(0);
    let reason = kernel.reason.unwrap();
    assert!(kernel.form == "original" && reason.contains("not run in slices"), "{reason}");
    world.finish();
}

#[test]
fn without_time_slices_have_a_fixed_size() {
    let mut world = World::new(8);
    world.engine.common.facts.timekeeping = Timekeeping::Off;
    let (session, _): (SessionId, _) = world.session();
    world.start(session, 0, SLICED, 100 * PLACES);
    assert_eq!(world.synchronize(session), 0);
    assert_whole(&world, 100 * PLACES);
    let sizes: Vec<u64> = world.device.slices.iter().map(|(first, end)| end - first).collect();
    assert_eq!(sizes[..sizes.len() - 1], vec![u64::from(8 * PLACES); 12], "{sizes:?}");
    world.finish();
}
