//! Kernels that run alone, beside an application that shares.

use super::world::{ALONE, MEDIUM, World};
use crate::{Request, StreamHandle, StreamKind};

const STREAMS: u64 = 3;
/// Launches in each stream.
const QUEUED: usize = 50;

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
    for number in (1..=STREAMS).cycle().take(QUEUED * STREAMS as usize) {
        world.start(greedy, number, ALONE, 64);
    }
    assert_eq!(world.synchronize(shares), 0);
    let left = world.engine.operations(greedy);
    assert!(left > 100, "{left} launches are left");
    assert_eq!(world.synchronize(greedy), 0);
    world.finish();
}
