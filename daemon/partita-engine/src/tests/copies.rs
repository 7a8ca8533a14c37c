//! Copies between host and device of several users.

use super::requests::{Buffer, share};
use super::world::{MEDIUM, World};
use crate::{CloseReason, Request, StreamHandle, StreamKind};
use partita_model::request::ArenaRange;
use partita_model::{
    CopyKind, DeviceAddress, Nanos, OperationId, Priority, SessionId, StreamId, TenantId, Terms,
    TraceEntry,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const LEGACY: StreamHandle = StreamHandle::LEGACY;
const SHORT: u64 = 64;
const LONG: u64 = 1 << 20;
/// The longest piece of a copy while another user copies.
const PIECE: u64 = 128 << 10;
const GREEDY: TenantId = TenantId(2000);
const SESSIONS: usize = 3;

/// A session that copies a range of its own.
struct Copier {
    session: SessionId,
    device: DeviceAddress,
    arena: Arc<Buffer>,
    bytes: u64,
}

impl Copier {
    fn new(world: &mut World, tenant: TenantId, bytes: u64) -> Copier {
        let (session, _) = world.open_as(tenant, None);
        let device = world.alloc(session, bytes);
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        Copier { session, device, arena: share(world, session, &content), bytes }
    }

    fn to_device(&self, world: &mut World) -> u64 {
        let from = ArenaRange { offset: 0, bytes: self.bytes };
        let (stream, to) = (LEGACY, self.device);
        world.send(self.session, Request::CopyToDevice { stream, to, from })
    }

    fn to_host(&self, world: &mut World) -> u64 {
        let to = ArenaRange { offset: 0, bytes: self.bytes };
        let (stream, from) = (LEGACY, self.device);
        world.send(self.session, Request::CopyToHost { stream, to, from })
    }

    /// Copies to the device and back, and looks whether the bytes are the same.
    fn check(&self, world: &mut World) {
        self.to_device(world);
        assert_eq!(world.synchronize(self.session), 0);
        let content = std::mem::take(&mut *self.arena.0.lock().unwrap());
        *self.arena.0.lock().unwrap() = vec![0; content.len()];
        self.to_host(world);
        assert_eq!(world.synchronize(self.session), 0);
        assert!(*self.arena.0.lock().unwrap() == content, "the copy has changed bytes");
    }
}

/// All copy to the device at once.
fn copy_all(world: &mut World, copiers: &[Copier]) {
    for copier in copiers {
        copier.to_device(world);
    }
    for copier in copiers {
        assert_eq!(world.synchronize(copier.session), 0);
    }
}

fn greedy(world: &mut World) -> Vec<Copier> {
    (0..SESSIONS).map(|_| Copier::new(world, GREEDY, LONG)).collect()
}

/// A server of priority `latency` copies beside batch programs of its own user.
#[test]
fn an_urgent_copy_waits_for_two_pieces_at_most() {
    const HUGE: u64 = 32 << 20;
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let application = world.engine.application_reports()[0].id;
    let terms = Terms { priority: Some(Priority::Latency), ..Terms::default() };
    world.engine.set_terms(&mut world.device, application, terms, None).unwrap();
    let batch = Copier::new(&mut world, TenantId(1000), HUGE);
    small.check(&mut world);
    world.device.copied.clear();
    batch.to_device(&mut world);
    let sequence = small.to_device(&mut world);
    world.await_reply(small.session, sequence);
    let others = world.device.copied.iter().filter(|(address, _)| *address != small.device.0);
    let before: u64 = others.map(|(_, bytes)| bytes).sum();
    assert!(before <= 2 << 20, "{before} bytes came before");
    world.close(batch.session, CloseReason::Died);
    world.close(small.session, CloseReason::Died);
    world.finish();
}

/// However many sessions a user has, another user's copy waits for one piece of them.
#[test]
fn users_take_turns() {
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let greedy = greedy(&mut world);
    small.check(&mut world);
    world.device.copied.clear();
    for copier in &greedy {
        copier.to_device(&mut world);
    }
    let waiting = world.engine.application_reports().iter().map(|a| a.copies_waiting).sum::<u64>();
    assert_eq!(waiting, greedy.len() as u64, "the first copy waits with its rest");
    let sequence = small.to_device(&mut world);
    world.await_reply(small.session, sequence);
    let others = world.device.copied.iter().filter(|(address, _)| *address != small.device.0);
    let before: u64 = others.map(|(_, bytes)| bytes).sum();
    assert!(before <= PIECE, "{before} bytes of another user came before");
    for copier in &greedy {
        assert_eq!(world.synchronize(copier.session), 0);
    }
    let copied = std::mem::take(&mut world.device.copied);
    let longest = copied.iter().map(|(_, bytes)| bytes).max();
    assert_eq!(longest, Some(&PIECE));
    // The copies of one user end one after the other, so that the first kernel is ready early.
    let of = |copier: &Copier| {
        let range = copier.device.0..copier.device.0 + LONG;
        copied.iter().position(|(address, _)| range.contains(address))
    };
    let begun: Vec<Option<usize>> = greedy.iter().map(of).collect();
    let pieces = usize::try_from(LONG / PIECE).unwrap();
    assert!(begun[1] >= Some(pieces) && begun[2] >= Some(2 * pieces), "{begun:?}");
    for copier in &greedy {
        copier.check(&mut world);
    }
    world.finish();
}

#[test]
fn a_user_alone_copies_in_one_piece() {
    let mut world = World::new(4);
    let copiers = greedy(&mut world);
    copy_all(&mut world, &copiers);
    assert_eq!(world.device.copied.len(), SESSIONS);
    world.finish();
}

/// What waits of a session that ends keeps nobody waiting.
#[test]
fn the_turn_of_a_session_that_ends_goes_to_the_next() {
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let greedy = greedy(&mut world);
    small.check(&mut world);
    for copier in &greedy {
        copier.to_device(&mut world);
    }
    for copier in &greedy[..2] {
        world.close(copier.session, CloseReason::Died);
    }
    let last = &greedy[2];
    assert_eq!(world.synchronize(last.session), 0);
    last.check(&mut world);
    world.finish();
}

/// A session with streams, each with memory of its own and copies of so many bytes.
fn streams(world: &mut World, session: SessionId, lengths: &[u64]) -> Vec<DeviceAddress> {
    let most = lengths.iter().max().copied().unwrap_or(0);
    share(world, session, &vec![1; usize::try_from(most).unwrap()]);
    let stream = |(number, bytes): (u64, &u64)| {
        let (stream, kind) = (StreamHandle(number), StreamKind::NonBlocking);
        world.send(session, Request::StreamCreate { stream, kind, priority: 0 });
        world.alloc(session, *bytes)
    };
    (1..).zip(lengths).map(stream).collect()
}

fn to_device(world: &mut World, session: SessionId, stream: u64, to: DeviceAddress, bytes: u64) {
    let from = ArenaRange { offset: 0, bytes };
    world.send(session, Request::CopyToDevice { stream: StreamHandle(stream), to, from });
}

/// While the link is taken, the copies of a user are ordered by the bytes before the next launch.
#[test]
fn the_launch_that_is_ready_soonest_gets_its_copies_first() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let lengths = [10 << 20, 12 << 20, 8 << 20, 6 << 20];
    let memory = streams(&mut world, session, &lengths);
    for (stream, (to, bytes)) in (1..).zip(memory.iter().zip(lengths)) {
        to_device(&mut world, session, stream, *to, bytes);
        if stream == 3 {
            // Its launch waits for as much again.
            to_device(&mut world, session, stream, *to, bytes);
        }
        world.start(session, stream, MEDIUM, 4);
    }
    assert_eq!(world.synchronize(session), 0);
    let begun = |to: &DeviceAddress| {
        world.device.copied.iter().position(|(address, _)| *address == to.0).unwrap()
    };
    let mut order = [0, 1, 2, 3];
    order.sort_by_key(|index| begun(&memory[*index]));
    assert_eq!(order, [0, 3, 1, 2], "{:?}", world.device.copied);
    world.finish();
}

/// A launch whose copies are under way takes no room from launches that could run.
#[test]
fn a_launch_is_not_started_before_its_copies_have_ended() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let memory = streams(&mut world, session, &[2 << 20, 64]);
    world.start(session, 2, MEDIUM, 4_000);
    let before = world.device.messages.operations;
    to_device(&mut world, session, 1, memory[0], 2 << 20);
    world.start(session, 1, MEDIUM, 4);
    assert_eq!(world.device.messages.operations, before + 1, "only the copy is on the device");
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

/// A copy behind a kernel keeps no other user waiting until the kernel has ended: a long one is not
/// on the device, and a short one does not count there.
#[test]
fn a_copy_behind_a_kernel_keeps_no_other_user_waiting() {
    for (bytes, is_early) in [(LONG, 1), (2 * LONG, 0)] {
        let mut world = World::new(4);
        let small = Copier::new(&mut world, TenantId(3000), SHORT);
        let (session, _) = world.session();
        let memory = streams(&mut world, session, &[bytes]);
        world.start(session, 1, MEDIUM, 400_000);
        let before = world.device.messages.operations;
        to_device(&mut world, session, 1, memory[0], bytes);
        assert_eq!(world.device.messages.operations, before + is_early);
        small.check(&mut world);
        assert_eq!(world.device.grids_started, 1);
        let copied = world.device.copied.iter().any(|(address, _)| *address == memory[0].0);
        assert!(!copied, "the copy overtook its kernel");
        assert_eq!(world.synchronize(session), 0);
        world.finish();
    }
}

/// The trace has each copy and fill once, from the end of what is before it in its stream.
#[test]
fn the_trace_has_copies_and_fills() {
    let mut world = World::new(4);
    world.engine.set_trace(&mut world.device, true).unwrap();
    let (session, application) = world.session();
    let to = streams(&mut world, session, &[SHORT])[0];
    let stream = StreamHandle(1);
    world.start(session, 1, MEDIUM, 400);
    to_device(&mut world, session, 1, to, SHORT);
    let from = DeviceAddress(to.0 + SHORT / 2);
    world.send(session, Request::CopyOnDevice { stream, to, from, bytes: SHORT / 2 });
    world.send(session, Request::Fill { stream, to, value: 0, width: 4, count: 3 });
    let arena = ArenaRange { offset: 0, bytes: 8 };
    world.send(session, Request::CopyToHost { stream, to: arena, from: to });
    let given = world.engine.trace_report(None);
    assert!(given.copies.is_empty(), "the kernel is before them");
    assert_eq!(world.synchronize(session), 0);

    let trace = world.engine.trace_report(None);
    let kinds: Vec<(CopyKind, u64)> =
        trace.copies.iter().map(|copy| (copy.kind, copy.bytes)).collect();
    let expected = [
        (CopyKind::HostToDevice, SHORT),
        (CopyKind::DeviceToDevice, SHORT / 2),
        (CopyKind::Fill, 12),
        (CopyKind::DeviceToHost, 8),
    ];
    assert_eq!(kinds, expected);
    let left = trace.entries.iter().filter_map(|entry| match entry {
        TraceEntry::Residency { change, .. } => Some(change.time),
        TraceEntry::Resize { .. } => None,
    });
    let left = left.max().expect("the kernel had CTAs");
    let first = &trace.copies[0];
    assert!(first.start >= left && first.start > Nanos(0), "{first:?}, CTAs until {left}");
    let streams: Vec<StreamId> = trace.copies.iter().map(|copy| copy.stream).collect();
    assert!(streams.iter().all(|stream| *stream == streams[0]));
    for copy in &trace.copies {
        assert_eq!((copy.application, copy.session), (application, session));
        assert!(copy.start <= copy.end, "{copy:?}");
    }
    world.finish();
}

/// A copy that goes to the device in pieces is in the trace with all its bytes, and as one where
/// nothing came between. A user sees its own copies.
#[test]
fn the_trace_has_whole_copies() {
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let greedy = greedy(&mut world);
    small.check(&mut world);
    copy_all(&mut world, &greedy);
    let pieces = world.device.copied.iter().filter(|(_, bytes)| *bytes == PIECE).count();
    assert_eq!(pieces as u64, greedy.len() as u64 * LONG / PIECE);
    let of = |tenant| {
        let mut whole: BTreeMap<(SessionId, OperationId), u64> = BTreeMap::new();
        let copies = world.engine.trace_of(tenant).copies;
        for copy in &copies {
            *whole.entry((copy.session, copy.operation)).or_default() += copy.bytes;
        }
        (copies.len(), whole)
    };
    let (entries, whole) = of(GREEDY);
    assert!(whole.values().all(|bytes| *bytes == LONG), "{whole:?}");
    assert_eq!((entries, whole.len()), (SESSIONS, SESSIONS), "one copy ends after the other");
    let (entries, whole) = of(TenantId(1000));
    assert_eq!((entries, whole.values().copied().collect()), (2, vec![SHORT, SHORT]));
    assert!(of(TenantId(1)).1.is_empty());
    world.finish();
}
