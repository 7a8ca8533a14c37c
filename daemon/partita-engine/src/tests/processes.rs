//! Memory and events that sessions of one tenant share.

use super::world::{LONG, MEDIUM, World};
use crate::{Action, CloseReason, EventHandle, Payload, Request, StreamHandle};
use partita_device::AddressRange;
use partita_model::request::Secret;
use partita_model::{DeviceAddress, SessionId, TenantId};

const LEGACY: StreamHandle = StreamHandle::LEGACY;
const EVENT: EventHandle = EventHandle(1);

/// A world whose secrets are the numbers from 1 on.
fn world() -> World {
    let mut world = World::new(4);
    let mut last = 0;
    world.engine.set_secrets(move || {
        last += 1;
        Secret(last)
    });
    world
}

fn export(world: &mut World, session: SessionId, address: DeviceAddress) -> Secret {
    match world.ask(session, Request::ExportMemory { address }) {
        (_, Payload::Secret(secret)) => secret,
        other => panic!("{other:?}"),
    }
}

fn open(world: &mut World, session: SessionId, secret: Secret) -> AddressRange {
    match world.ask(session, Request::OpenMemory { secret }) {
        (_, Payload::Opened(range)) => range,
        other => panic!("{other:?}"),
    }
}

fn fill(to: DeviceAddress, count: u64) -> Request {
    Request::Fill { stream: LEGACY, to, value: 7, width: 1, count }
}

fn warnings(world: &World) -> usize {
    let texts = world.actions.iter().filter_map(|action| match action {
        Action::Log { text, .. } => Some(text),
        _ => None,
    });
    texts.filter(|text| text.contains("another user")).count()
}

#[test]
fn memory_opens_for_others_of_its_tenant_only() {
    let mut world = world();
    let [(owner, _), (other, _)] = [world.open(None), world.open(None)];
    let (stranger, _) = world.open_as(TenantId(2000), None);
    let home = world.alloc(owner, 1000);
    let inside = DeviceAddress(home.0 + 8);
    assert_eq!(world.code(owner, Request::ExportMemory { address: inside }), 1);
    assert_eq!(world.code(other, Request::ExportMemory { address: home }), 1, "not its own");
    let secret = export(&mut world, owner, home);
    assert_eq!(export(&mut world, owner, home), secret);
    for (session, secret, code) in [
        (owner, secret, 201),
        (other, Secret(secret.0 + 1), 1),
        (stranger, secret, 1),
        (stranger, Secret(0), 1),
    ] {
        assert_eq!(world.code(session, Request::OpenMemory { secret }), code, "{session}");
    }
    assert_eq!(warnings(&world), 1);
    let range = open(&mut world, other, secret);
    assert_eq!(range.bytes, 1000);
    let at = |offset| DeviceAddress(range.start.0 + offset);
    for (session, to, count, code) in
        [(other, at(0), 1000, 0), (other, at(999), 2, 1), (owner, at(0), 1, 1), (other, home, 1, 1)]
    {
        assert_eq!(world.code(session, fill(to, count)), code, "{session} {to}");
    }
    for (request, code) in [
        (Request::MemFree { address: at(0) }, 1),
        (Request::ExportMemory { address: at(0) }, 1),
        (Request::Unmap { address: at(0) }, 1),
        (Request::Unreserve { address: at(0) }, 1),
        (Request::CloseMemory { address: at(8) }, 1),
        (Request::CloseMemory { address: home }, 1),
        (Request::CloseMemory { address: at(0) }, 0),
        (Request::CloseMemory { address: at(0) }, 1),
        (fill(at(0), 1), 1),
    ] {
        assert_eq!(world.code(other, request.clone()), code, "{request:?}");
    }
    // A device may still have to unmap it there.
    assert_ne!(open(&mut world, other, secret).start, at(0));
    world.finish();
}

#[test]
fn without_secrets_nothing_is_exported() {
    let mut world = World::new(4);
    let (owner, _) = world.open(None);
    let address = world.alloc(owner, 1000);
    assert_eq!(world.code(owner, Request::ExportMemory { address }), 801);
    assert_eq!(world.code(owner, Request::EventCreate { event: EVENT, slot: 0 }), 0);
    assert_eq!(world.code(owner, Request::ExportEvent { event: EVENT }), 801);
    world.finish();
}

#[test]
fn freed_memory_stays_until_nobody_has_it_open() {
    let mut world = world();
    let [(owner, _), (other, _)] = [world.open(None), world.open(None)];
    let home = world.alloc(owner, 1024);
    let secret = export(&mut world, owner, home);
    let [first, second] = [0; 2].map(|_| open(&mut world, other, secret).start);
    assert_eq!(world.engine.memory_used(), 1024, "it counts once");
    assert_eq!(world.code(owner, Request::MemFree { address: home }), 0);
    assert_eq!(world.code(owner, Request::MemFree { address: home }), 1);
    assert_eq!(world.code(owner, Request::ExportMemory { address: home }), 1);
    assert_eq!(world.code(owner, fill(home, 1)), 1);
    assert_eq!(world.code(other, Request::OpenMemory { secret }), 1, "its owner gave it up");
    assert_ne!(world.alloc(owner, 1024), home, "others still write there");
    assert_eq!(world.code(other, Request::CloseMemory { address: first }), 0);
    assert_eq!((world.code(other, fill(second, 1024)), world.engine.memory_used()), (0, 2048));
    assert_eq!(world.code(other, Request::CloseMemory { address: second }), 0);
    assert_eq!(world.engine.memory_used(), 1024);
    assert_eq!(world.alloc(owner, 1024), home);
    world.finish();
}

#[test]
fn memory_outlives_its_owner_and_is_paid_for() {
    let mut world = world();
    let [owner, other, third] = [0; 3].map(|_| world.open(None).0);
    let (stranger, _) = world.open_as(TenantId(2000), None);
    let home = world.alloc(owner, 4096);
    let secret = export(&mut world, owner, home);
    let [a, b] = [other, third].map(|session| open(&mut world, session, secret).start);
    world.close(owner, CloseReason::Died);
    world.run();
    assert!(world.released.contains(&owner));
    // The device keeps 2,048 bytes more that lie around it.
    let kept = 4096 + 2048;
    assert_eq!(world.engine.memory_used(), kept, "a session that has the memory open pays");
    for (session, at) in [(other, a), (third, b)] {
        assert_eq!(world.code(session, fill(at, 4096)), 0);
        assert_eq!(world.code(session, Request::OpenMemory { secret }), 1, "its owner is gone");
    }
    // The bytes count for some session until the last one has closed the memory.
    world.close(other, CloseReason::Died);
    world.run();
    assert_eq!(world.engine.memory_used(), kept);
    assert_eq!(world.code(third, Request::CloseMemory { address: b }), 0);
    assert_eq!(world.engine.memory_used(), 0);
    assert_eq!(world.code(stranger, Request::OpenMemory { secret }), 1);
    world.finish();
}

#[test]
fn a_session_that_fails_lends_nothing_more() {
    let mut world = world();
    let [owner, other] = [0; 2].map(|_| world.open(None).0);
    let home = world.alloc(owner, 512);
    let secret = export(&mut world, owner, home);
    let at = open(&mut world, other, secret).start;
    let failed = partita_model::CudaResult::ERROR_UNKNOWN;
    world.engine.fail_session(&mut world.device, owner, failed, "a test".to_owned());
    assert_eq!(world.code(other, fill(at, 512)), 0);
    assert_eq!(world.code(other, Request::OpenMemory { secret }), 1);
    world.finish();
}

/// Two sessions with a kernel each, and an event of the first that the second has open.
fn sharing_an_event(world: &mut World) -> [SessionId; 2] {
    let [owner, other] = [0; 2].map(|_| world.session().0);
    assert_eq!(world.code(owner, Request::EventCreate { event: EVENT, slot: 0 }), 0);
    let (_, Payload::Secret(secret)) = world.ask(owner, Request::ExportEvent { event: EVENT })
    else {
        panic!("no secret")
    };
    let again = world.ask(owner, Request::ExportEvent { event: EVENT }).1;
    assert_eq!(again, Payload::Secret(secret));
    let (stranger, _) = world.open_as(TenantId(2000), None);
    for (session, secret, code) in
        [(stranger, secret, 400), (other, Secret(secret.0 + 1), 400), (other, secret, 0)]
    {
        let request = Request::OpenEvent { event: EVENT, secret };
        assert_eq!(world.code(session, request), code, "{session}");
    }
    assert_eq!(warnings(world), 1);
    [owner, other]
}

fn record(world: &mut World, session: SessionId) {
    assert_eq!(world.code(session, Request::EventRecord { event: EVENT, stream: LEGACY }), 0);
}

#[test]
fn streams_wait_for_events_of_other_sessions() {
    let mut world = world();
    let [owner, other] = sharing_an_event(&mut world);
    assert_eq!(world.code(other, Request::EventQuery { event: EVENT }), 0, "never recorded");
    world.start(owner, 0, LONG, 64);
    record(&mut world, owner);
    assert_eq!(world.code(other, Request::EventQuery { event: EVENT }), 600);
    assert_eq!(world.code(other, Request::StreamWait { stream: LEGACY, event: EVENT }), 0);
    let target = world.alloc(other, 512);
    let filled = world.send(other, fill(target, 512));
    world.start(other, 0, MEDIUM, 4);
    let waited = world.send(other, Request::EventSynchronize { event: EVENT });
    let finished = world.send(owner, Request::Synchronize { stream: None });
    while !world.replies.contains_key(&(owner, finished)) {
        assert!(!world.replies.contains_key(&(other, filled)), "it did not wait");
        assert!(!world.replies.contains_key(&(other, waited)), "it did not wait");
        world.step();
    }
    assert_eq!(world.await_reply(other, waited).0.0, 0);
    assert_eq!(world.await_reply(other, filled).0.0, 0);
    assert_eq!(world.code(other, Request::EventQuery { event: EVENT }), 0);
    // The other way: what the second records, the first waits for.
    world.start(other, 0, LONG, 64);
    record(&mut world, other);
    assert_eq!(world.code(owner, Request::EventQuery { event: EVENT }), 600);
    assert_eq!(world.code(owner, Request::EventSynchronize { event: EVENT }), 0);
    assert_eq!(world.code(owner, Request::EventQuery { event: EVENT }), 0);
    // The event stays for the second when the first destroys its handle.
    assert_eq!(world.code(owner, Request::EventDestroy { event: EVENT }), 0);
    record(&mut world, other);
    assert_eq!(world.code(other, Request::EventSynchronize { event: EVENT }), 0);
    world.finish();
}

#[test]
fn a_dead_recorder_holds_nobody_up() {
    for dies in [true, false] {
        let mut world = world();
        let [owner, other] = sharing_an_event(&mut world);
        assert_eq!(world.code(owner, Request::EventCreate { event: EventHandle(2), slot: 1 }), 0);
        // A gate that nobody opens: the record never reaches the device.
        world.send(owner, Request::Gate { stream: LEGACY });
        record(&mut world, owner);
        assert_eq!(world.code(other, Request::StreamWait { stream: LEGACY, event: EVENT }), 0);
        let waited = world.send(other, Request::EventSynchronize { event: EVENT });
        let finished = world.send(other, Request::Synchronize { stream: None });
        world.run_for(50);
        assert!(!world.replies.contains_key(&(other, waited)));
        if dies {
            world.close(owner, CloseReason::Died);
        } else {
            let failed = partita_model::CudaResult::ERROR_UNKNOWN;
            world.engine.fail_session(&mut world.device, owner, failed, "a test".to_owned());
        }
        assert_eq!(world.await_reply(other, waited).0.0, 0);
        assert_eq!(world.await_reply(other, finished).0.0, 0);
        world.finish();
    }
}

/// A session that waits for another's event may end, or fail, before that.
#[test]
fn a_waiter_may_go_first() {
    let mut world = world();
    let [owner, other] = sharing_an_event(&mut world);
    world.start(owner, 0, LONG, 64);
    record(&mut world, owner);
    assert_eq!(world.code(other, Request::StreamWait { stream: LEGACY, event: EVENT }), 0);
    world.start(other, 0, MEDIUM, 4);
    world.send(other, Request::EventSynchronize { event: EVENT });
    world.close(other, CloseReason::Died);
    assert_eq!(world.synchronize(owner), 0);
    world.run();
    assert!(world.released.contains(&other));
    world.finish();
}
