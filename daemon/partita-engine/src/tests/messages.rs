//! Messages to the device a launch. Each is a call of the driver on a real GPU, or several.

use super::fake_device::Messages;
use super::world::{ALONE, BRISK, COUNTED, LONG, POLLING, SHORT, TICKET, World};
use partita_model::{Originals, SessionId};

/// CTAs that 8 SMs hold at once.
const PLACES: u32 = 64;

fn world() -> (World, SessionId) {
    let mut world = World::new(8);
    world.engine.common.config.verify_ends = false;
    let (session, _) = world.session();
    // The policy looks at the first launch of an application.
    messages(&mut world, session, SHORT);
    (world, session)
}

/// The messages of one launch, from its request to the answer of a synchronisation behind it.
fn messages(world: &mut World, session: SessionId, kernel: u32) -> Messages {
    messages_of(world, session, kernel, PLACES)
}

fn messages_of(world: &mut World, session: SessionId, kernel: u32, ctas: u32) -> Messages {
    world.device.messages = Messages::default();
    world.start(session, 0, kernel, ctas);
    assert_eq!(world.synchronize(session), 0);
    world.device.messages
}

#[test]
fn a_short_launch_of_workers_is_written_and_enqueued_and_ends_by_itself() {
    let (mut world, session) = world();
    for _ in 0..3 {
        let expected = Messages { pokes: 1, peeks: 0, operations: 1 };
        assert_eq!(messages(&mut world, session, SHORT), expected);
    }
    let status = world.engine.application_reports();
    assert_eq!(status[0].ctas_completed, u64::from(4 * PLACES));
    world.finish();
}

#[test]
fn an_original_is_one_message() {
    let (mut world, session) = world();
    let expected = Messages { pokes: 0, peeks: 0, operations: 1 };
    for _ in 0..3 {
        assert_eq!(messages(&mut world, session, ALONE), expected);
    }
    world.engine.set_originals(Originals::Alone);
    messages(&mut world, session, BRISK);
    assert_eq!(messages(&mut world, session, BRISK), expected);
    assert_eq!(world.device.launched.last().map(|name| &**name), Some("brisk-original"));
    world.finish();
}

#[test]
fn the_block_of_an_original_that_ends_well_is_written_once_a_session() {
    let (mut world, session) = world();
    for pokes in [1, 0, 0] {
        let expected = Messages { pokes, peeks: 0, operations: 1 };
        assert_eq!(messages(&mut world, session, POLLING), expected);
    }
    // A kernel may have spoilt the block: others do not get it.
    let (other, _) = world.session();
    assert_eq!(messages(&mut world, other, POLLING).pokes, 1);
    world.finish();
}

#[test]
fn the_end_is_read_where_a_kernel_may_give_up_or_ends_are_verified() {
    let (mut world, session) = world();
    world.engine.common.config.unsettled_tick = partita_model::Nanos(1_000_000);
    assert_eq!(messages(&mut world, session, LONG).peeks, 1, "it may give up");
    assert_eq!(messages(&mut world, session, SHORT).peeks, 0);
    world.engine.common.config.verify_ends = true;
    assert_eq!(messages(&mut world, session, SHORT).peeks, 1, "verified");
    world.finish();
}

#[test]
fn a_word_tells_of_faults_without_a_read() {
    let mut world = World::with_words(8);
    world.engine.common.config.verify_ends = false;
    let (good, _) = world.session();
    let (bad, _) = world.session();
    for session in [good, bad] {
        // The policy looks at the first launch of an application.
        messages(&mut world, session, SHORT);
    }
    world.engine.common.config.unsettled_tick = partita_model::Nanos(1_000_000);
    for kernel in [LONG, TICKET] {
        assert_eq!(messages(&mut world, good, kernel).peeks, 0);
    }
    world.start(bad, 0, LONG, PLACES);
    world.run_for(20);
    world.device.give_up("long", 3);
    world.device.messages = Messages::default();
    assert_eq!((world.synchronize(bad), world.device.messages.peeks), (716, 0));
    // The block's next launch finds a clean word.
    world.start(good, 0, LONG, PLACES);
    assert_eq!(world.synchronize(good), 0);
    world.finish();
}

#[test]
fn parts_of_a_launch_are_written_once_each() {
    let (mut world, session) = world();
    world.engine.set_originals(Originals::Never);
    let before = world.device.launched.len();
    let first = messages_of(&mut world, session, COUNTED, 40 * PLACES);
    assert_eq!(world.device.launched.len() - before, first.operations);
    assert!(first.operations > 1, "{first:?}");
    assert!(first.pokes >= first.operations, "{first:?}");
    world.finish();
}
