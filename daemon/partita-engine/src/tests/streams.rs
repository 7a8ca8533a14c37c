//! Streams that wait for each other, and who looks at them.

use super::world::{ALONE, LONG, World};
use crate::{Action, EventHandle, Request, Sequence, StreamHandle, StreamKind};
use partita_model::{SessionId, StreamId};

/// Streams in a chain.
const STREAMS: u64 = 50;

/// A session with streams from 1 on, and an event for each.
fn with_streams(world: &mut World) -> SessionId {
    let (session, _) = world.session();
    for number in 1..=STREAMS {
        let (stream, event) = (StreamHandle(number), EventHandle(number));
        let kind = StreamKind::NonBlocking;
        assert_eq!(world.code(session, Request::StreamCreate { stream, kind, priority: 0 }), 0);
        assert_eq!(world.code(session, Request::EventCreate { event, slot: 0 }), 0);
    }
    session
}

/// Each stream waits for the one before, launches, and records its event.
fn chain(world: &mut World, session: SessionId) {
    for number in 1..=STREAMS {
        let stream = StreamHandle(number);
        if number > 1 {
            let event = EventHandle(number - 1);
            assert_eq!(world.code(session, Request::StreamWait { stream, event }), 0);
        }
        world.start(session, number, LONG, 2);
        let event = EventHandle(number);
        assert_eq!(world.code(session, Request::EventRecord { event, stream }), 0);
    }
}

fn recorded(world: &World) -> Vec<u64> {
    let events = world.actions.iter().filter_map(|action| match action {
        Action::EventRecorded { event, .. } => Some(event.0),
        _ => None,
    });
    events.collect()
}

#[test]
fn a_chain_of_streams_goes_on_in_its_order() {
    let mut world = World::new(4);
    let (other, _) = world.session();
    let session = with_streams(&mut world);
    // Another application's kernel runs alone: nothing of the chain starts meanwhile.
    world.start(other, 0, ALONE, 8);
    chain(&mut world, session);
    assert!(recorded(&world).is_empty());
    let looked_at = world.engine.queued_streams(session);
    assert!(looked_at <= 2, "{looked_at} streams, where one can go on");
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(recorded(&world), (1..=STREAMS).collect::<Vec<_>>());
    world.finish();
}

#[test]
fn streams_that_wait_for_room_are_counted() {
    let mut world = World::new(4);
    let (other, _) = world.session();
    let session = with_streams(&mut world);
    world.start(other, 0, ALONE, 8);
    for number in 1..=STREAMS {
        world.start(session, number, LONG, 2);
    }
    assert_eq!(world.engine.queued_streams(session) as u64, STREAMS);
    // What an end costs does not depend on how many wait: one of them may be the next.
    let machines = &world.engine.machines;
    assert_eq!(machines.sessions.backlog_from(session, StreamId(0)), None);
    assert_eq!(machines.launches.candidates().len(), 1);
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(world.engine.queued_streams(session), 0);
    world.finish();
}

#[test]
fn a_chain_behind_a_gate_goes_on_when_it_opens() {
    let mut world = World::new(4);
    let session = with_streams(&mut world);
    let gate = world.send(session, Request::Gate { stream: StreamHandle(1) });
    chain(&mut world, session);
    world.run();
    assert!(recorded(&world).is_empty());
    assert_eq!(world.code(session, Request::OpenGate { gate: Sequence(gate) }), 0);
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(recorded(&world), (1..=STREAMS).collect::<Vec<_>>());
    world.finish();
}

#[test]
fn a_session_that_ends_with_parked_streams_leaves_nothing() {
    let mut world = World::new(4);
    let session = with_streams(&mut world);
    world.send(session, Request::Gate { stream: StreamHandle(1) });
    chain(&mut world, session);
    world.finish();
}
