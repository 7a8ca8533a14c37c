//! Kernels that run alone, beside an application that shares.

use super::world::{ALONE, MEDIUM, World};
use crate::{EngineConfig, Request, Rests, StreamHandle, StreamKind};
use partita_model::{Bytes, Nanos, SessionId};

const STREAMS: u64 = 3;
/// Launches in all streams.
const QUEUED: usize = 150;

/// The kernels of several streams overlap, so one of them is always in flight. A launch of another
/// application waits for those that came before it, and for no more.
#[test]
fn kernels_that_overlap_do_not_keep_the_device() {
    let mut world = World::new(8);
    let (shares, _) = world.session();
    let (greedy, _) = world.session();
    for number in 1..=STREAMS {
        let (stream, kind) = (StreamHandle(number), StreamKind::NonBlocking);
        assert_eq!(world.code(greedy, Request::StreamCreate { stream, kind, priority: 0 }), 0);
        world.start(greedy, number, ALONE, 64);
    }
    world.start(shares, 0, MEDIUM, 64);
    for number in (1..=STREAMS).cycle().take(QUEUED) {
        world.start(greedy, number, ALONE, 64);
    }
    assert_eq!(world.synchronize(shares), 0);
    let left = world.engine.operations(greedy);
    assert!(left > 100, "{left} launches are left");
    assert_eq!(world.synchronize(greedy), 0);
    world.finish();
}

/// Launches of the application that shares, and how many times as long as without company they may
/// take. Half of the time is theirs.
const LAUNCHES: usize = 100;
const SLOWER: u64 = 3;

/// Starts launches with pauses between them, and returns how long it takes until all are done.
fn time_of(world: &mut World, session: SessionId) -> u64 {
    let begun = world.device.now;
    for _ in 0..LAUNCHES {
        world.start(session, 0, MEDIUM, 64);
        assert_eq!(world.synchronize(session), 0);
        world.run_for(5);
    }
    world.device.now - begun
}

#[test]
fn kernels_that_run_alone_leave_others_their_share_of_time() {
    let config = EngineConfig {
        rests: Rests::ByDevice,
        window: Some(Bytes(1 << 26)),
        ..EngineConfig::default()
    };
    let mut world = World::with_config(8, config);
    let (shares, _) = world.session();
    let alone = time_of(&mut world, shares);
    let (greedy, _) = world.session();
    for _ in 0..5_000 {
        world.start(greedy, 0, ALONE, 64);
    }
    let beside = time_of(&mut world, shares);
    let left = world.engine.operations(greedy);
    assert!(left > 0, "nothing is left beside which it could run");
    assert!(beside < alone * SLOWER, "{beside} ns, {alone} ns alone");
    assert!(left < 4_950, "{left} launches are left: they starve");
    // Nobody else is at work any more: they follow each other.
    assert_eq!(world.synchronize(greedy), 0);
    world.finish();
}

/// Host time of a turn in nanoseconds.
const TURN: u64 = 20_000_000;

/// The same where the device keeps no time: a turn of host time is followed by as much for the
/// other application, whatever the device's clock says.
#[test]
fn kernels_that_run_alone_rest_by_host_time() {
    let (rests, window) = (Rests::ByHost, Some(Bytes(1 << 26)));
    let mut world = World::with_config(8, EngineConfig { rests, window, ..Default::default() });
    let (shares, _) = world.session();
    let (greedy, _) = world.session();
    let mut host = Nanos(1_000_000_000);
    world.engine.host_time_is(&mut world.device, host);
    world.start(shares, 0, MEDIUM, 64);
    assert_eq!(world.synchronize(shares), 0);
    world.start(greedy, 0, ALONE, 64);
    host.0 += TURN;
    world.engine.host_time_is(&mut world.device, host);
    assert_eq!(world.synchronize(greedy), 0);
    world.start(greedy, 0, ALONE, 64);
    world.run();
    assert_eq!(world.engine.operations(greedy), 1, "the second rests");
    let end = world.engine.rest_ends();
    assert_eq!(end, Some(Nanos(host.0 + TURN)));
    // Launches of the other application do not wait meanwhile.
    world.start(shares, 0, MEDIUM, 64);
    assert_eq!(world.synchronize(shares), 0);
    assert_eq!(world.engine.operations(greedy), 1);
    world.engine.host_time_is(&mut world.device, Nanos(host.0 + TURN));
    assert_eq!(world.synchronize(greedy), 0);
    world.finish();
}
