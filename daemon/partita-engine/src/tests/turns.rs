//! Kernels that run alone, beside an application that shares.

use super::world::{ALONE, MEDIUM, World};
use crate::{EngineConfig, Request, StreamHandle, StreamKind};
use partita_model::{Bytes, SessionId};

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
    let config =
        EngineConfig { rests: true, window: Some(Bytes(1 << 26)), ..EngineConfig::default() };
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
