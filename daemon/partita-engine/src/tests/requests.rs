//! Requests: what each is answered, and errors.

use super::world::{
    ALONE, BAD_IMAGE, FAULT, FAULT_ALONE, GOOD_IMAGE, HUNGRY, LONG, MALFORMED_IMAGE, MEDIUM,
    MODULE, SHORT, TICKET, World,
};
use crate::{
    Action, ArenaRange, CloseReason, EventHandle, ModuleHandle, Payload, Request, Sequence,
    StreamHandle, StreamKind,
};
use partita_device::{AddressRange, Event, HostMemory};
use partita_model::request::Launch;
use partita_model::texture::{
    ArrayKind, ArrayShape, ChannelType, FilterMode, Sampler, TexelFormat, TexelSource, TextureSpec,
};
use partita_model::{
    AwaitedWord, CudaResult, DeviceAddress, Dim3, MemoryAccess, MemoryQuota, SessionId, TenantId,
    WaitCondition,
};
use std::sync::{Arc, Mutex};

pub(crate) struct Buffer(pub(crate) Mutex<Vec<u8>>);

impl HostMemory for Buffer {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.0.lock().unwrap()[offset..offset + into.len()]);
    }
    fn write(&self, offset: u64, from: &[u8]) {
        let offset = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// Gives a session an arena with this content.
pub(crate) fn share(world: &mut World, session: SessionId, bytes: &[u8]) -> Arc<Buffer> {
    let memory = Arc::new(Buffer(Mutex::new(bytes.to_vec())));
    world.engine.set_arena(session, memory.clone());
    memory
}

const LEGACY: StreamHandle = StreamHandle::LEGACY;

#[test]
fn memory() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    assert_eq!(world.code(session, Request::MemAlloc { bytes: 0 }), 1);
    assert_eq!(world.code(session, Request::MemAlloc { bytes: u64::MAX }), 2);
    assert_eq!(
        world.code(session, Request::MemAlloc { bytes: (1 << 26) + 1 }),
        2,
        "the window is 64 MiB"
    );
    let a = world.alloc(session, 1000);
    let info = world.ask(session, Request::MemInfo).1;
    assert_eq!(info, Payload::Memory { free: (1 << 30) - 1024, total: 1 << 30 });
    assert_eq!(world.code(session, Request::MemFree { address: DeviceAddress(a.0 + 512) }), 1);
    assert_eq!(world.code(session, Request::MemFree { address: a }), 0);
    assert_eq!(world.code(session, Request::MemFree { address: a }), 1);
    assert_eq!(world.engine.memory_used(), 0);
    world.finish();
}

/// A device that gives memory in pieces keeps a piece for each allocation in it.
#[test]
fn limits_count_what_the_device_keeps() {
    let mut world = World::new(4);
    world.device.piece = 1 << 20;
    let (session, _) = world.open(None);
    world.engine.set_quotas(&[MemoryQuota { tenant: None, bytes: 4 << 20 }]);
    let left = |world: &mut World| match world.ask(session, Request::MemInfo).1 {
        Payload::Memory { free, .. } => free,
        other => panic!("{other:?}"),
    };
    let alloc = |world: &mut World, bytes| world.ask(session, Request::MemAlloc { bytes });
    let free = |world: &mut World, address| {
        assert_eq!(world.code(session, Request::MemFree { address }), 0);
    };
    // Four pieces, of which all but one allocation is given back.
    let all: Vec<_> = (0..8).map(|_| world.alloc(session, 1 << 19)).collect();
    assert_eq!(left(&mut world), 0);
    for address in all.iter().skip(1).step_by(2) {
        free(&mut world, *address);
    }
    assert_eq!((left(&mut world), world.engine.memory_used()), (0, 4 << 20), "each keeps a piece");
    assert_eq!(alloc(&mut world, 1 << 20).0.0, 2, "it would need one more piece");
    assert_eq!(world.engine.memory_used(), 4 << 20);
    let again = world.alloc(session, 1000);
    assert_eq!((again, left(&mut world)), (all[1], 0), "it lies in a piece that is kept");
    free(&mut world, again);
    free(&mut world, all[0]);
    assert_eq!(left(&mut world), 1 << 20);
    assert_eq!(alloc(&mut world, 1 << 20).0.0, 0);
    assert_eq!(left(&mut world), 0);
    world.finish();
}

#[test]
fn copies_and_fills() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let (other, _) = world.open(None);
    let (a, b) = (world.alloc(session, 8), world.alloc(session, 8));
    let foreign = world.alloc(other, 8);
    let arena = share(&mut world, session, b"abcdefgh........");
    let (from, to) = (ArenaRange { offset: 0, bytes: 8 }, ArenaRange { offset: 8, bytes: 8 });
    assert_eq!(world.code(session, Request::CopyToDevice { stream: LEGACY, to: a, from }), 0);
    assert_eq!(
        world.code(session, Request::CopyOnDevice { stream: LEGACY, to: b, from: a, bytes: 8 }),
        0
    );
    let fill = |to, width, count| Request::Fill { stream: LEGACY, to, value: 0x5a5a, width, count };
    assert_eq!(world.code(session, fill(b, 2, 1)), 0);
    assert_eq!(world.code(session, Request::CopyToHost { stream: LEGACY, to, from: b }), 0);
    assert_eq!(*arena.0.lock().unwrap(), b"abcdefghZZcdefgh");
    let beyond = ArenaRange { offset: 9, bytes: 8 };
    let wrapping = ArenaRange { offset: 8, bytes: u64::MAX };
    for (code, request) in [
        (1, fill(b, 3, 1)),
        (1, fill(b, 1, 9)),
        (1, fill(DeviceAddress(b.0 + 1), 2, 1)),
        (1, fill(b, 4, u64::MAX)),
        (1, fill(foreign, 1, 1)),
        (0, fill(foreign, 1, 0)),
        (1, Request::CopyOnDevice { stream: LEGACY, to: b, from: foreign, bytes: 8 }),
        (1, Request::CopyOnDevice { stream: LEGACY, to: b, from: a, bytes: u64::MAX }),
        (1, Request::CopyToHost { stream: LEGACY, to, from: foreign }),
        (1, Request::CopyToDevice { stream: LEGACY, to: foreign, from }),
        (1, Request::CopyToHost { stream: LEGACY, to: beyond, from: b }),
        (1, Request::CopyToDevice { stream: LEGACY, to: a, from: wrapping }),
        (400, Request::CopyToDevice { stream: StreamHandle(9), to: a, from }),
    ] {
        assert_eq!(world.code(session, request.clone()), code, "{request:?}");
    }
    world.finish();
}

/// A device that reaches memory at one address only: it moves there and back.
#[test]
fn mappings_where_memory_can_only_move() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let home = world.alloc(session, 1024);
    let (_, Payload::Address(place)) =
        world.ask(session, Request::Reserve { bytes: 4096, alignment: 512 })
    else {
        panic!("no addresses")
    };
    let range = |offset, bytes| AddressRange { start: DeviceAddress(place.0 + offset), bytes };
    let map = |range| Request::Map { home, range };
    let fill = |to| Request::Fill { stream: LEGACY, to, value: 7, width: 1, count: 1024 };
    assert_eq!(world.code(session, fill(home)), 0);
    assert_eq!(world.code(session, map(range(0, 512))), 801, "a part");
    assert_eq!(world.code(session, map(range(0, 1024))), 0);
    assert_eq!(world.code(session, map(range(1024, 1024))), 801, "a second time");
    assert_eq!(world.code(session, fill(place)), 1, "no access has been given");
    let allow = |access| Request::SetAccess { range: range(0, 1024), access };
    assert_eq!(world.code(session, allow(MemoryAccess::Read)), 801, "kernels could write");
    assert_eq!(world.code(session, allow(MemoryAccess::ReadWrite)), 0);
    let arena = share(&mut world, session, &[0; 1024]);
    let to = ArenaRange { offset: 0, bytes: 1024 };
    assert_eq!(world.code(session, Request::CopyToHost { stream: LEGACY, to, from: place }), 0);
    assert_eq!(*arena.0.lock().unwrap(), [7; 1024]);
    assert_eq!(world.code(session, fill(home)), 1, "it is not there");
    assert_eq!(world.code(session, Request::MemFree { address: home }), 1, "it is mapped");
    assert_eq!(world.code(session, Request::Unmap { address: place }), 0);
    assert_eq!(world.code(session, fill(home)), 0);
    // A session may end with memory mapped.
    assert_eq!(world.code(session, map(range(0, 1024))), 0);
    world.finish();
}

#[test]
fn streams_wait_for_words() {
    for can_cancel in [true, false] {
        let mut world = World::new(4);
        world.device.can_cancel = can_cancel;
        let (session, _) = world.open(None);
        let words = world.alloc(session, 16);
        let second = StreamHandle(1);
        world.code(
            session,
            Request::StreamCreate { stream: second, kind: StreamKind::NonBlocking, priority: 0 },
        );
        let fill = |stream, to, value| Request::Fill { stream, to, value, width: 4, count: 1 };
        for offset in [0, 4, 8, 12] {
            assert_eq!(world.code(session, fill(LEGACY, DeviceAddress(words.0 + offset), 0)), 0);
        }
        let wait = |offset, width, value, condition| Request::WaitWord {
            stream: second,
            address: DeviceAddress(words.0 + offset),
            word: AwaitedWord { width, value, condition },
        };
        for wrong in [
            wait(4, 8, 1, WaitCondition::Equal),
            wait(16, 4, 1, WaitCondition::Equal),
            wait(0, 2, 1, WaitCondition::Equal),
        ] {
            assert_eq!(world.code(session, wrong.clone()), 1, "{wrong:?}");
        }
        let waits = world.send(session, wait(4, 4, 7, WaitCondition::Equal));
        let behind = world.send(session, fill(second, words, 9));
        for value in [6, 8] {
            assert_eq!(world.code(session, fill(LEGACY, DeviceAddress(words.0 + 4), value)), 0);
            assert!(!world.replies.contains_key(&(session, waits)), "{value}");
        }
        assert_eq!(world.code(session, fill(LEGACY, DeviceAddress(words.0 + 4), 7)), 0);
        assert_eq!(world.await_reply(session, behind).0, CudaResult::SUCCESS);
        assert!(world.replies.contains_key(&(session, waits)));
        // What nobody writes any more holds nothing up when its session ends.
        world.send(session, wait(8, 8, 1, WaitCondition::AtLeast));
        world.send(session, fill(second, words, 1));
        world.finish();
    }
}

#[test]
fn programs_of_a_tenant_share_its_quota_of_memory() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    let (b, _) = world.session();
    let quota = |tenant, bytes| MemoryQuota { tenant, bytes };
    world.engine.set_quotas(&[quota(None, 1 << 10), quota(Some(TenantId(1000)), 1 << 20)]);
    let left = |world: &mut World, session| world.ask(session, Request::MemInfo).1;
    assert_eq!(left(&mut world, a), Payload::Memory { free: 1 << 20, total: 1 << 20 });
    let most = world.alloc(a, (1 << 20) - 512);
    assert_eq!(left(&mut world, b), Payload::Memory { free: 512, total: 1 << 20 });
    assert_eq!(world.code(b, Request::MemAlloc { bytes: 513 }), 2);
    assert_eq!(world.code(b, Request::MemAlloc { bytes: 512 }), 0);
    // Who has more than a new quota keeps it.
    world.engine.set_quotas(&[quota(None, 1 << 10)]);
    assert_eq!(left(&mut world, a), Payload::Memory { free: 0, total: 1 << 10 });
    assert_eq!(world.code(a, Request::MemFree { address: most }), 0);
    assert_eq!(left(&mut world, a), Payload::Memory { free: 512, total: 1 << 10 });
    world.finish();
}

#[test]
fn free_waits_for_what_was_enqueued_before() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let a = world.alloc(session, 8);
    world.start(session, 0, LONG, 4);
    let fill =
        world.send(session, Request::Fill { stream: LEGACY, to: a, value: 1, width: 1, count: 8 });
    let free = world.send(session, Request::MemFree { address: a });
    assert!(!world.replies.contains_key(&(session, free)));
    assert_eq!(
        world.code(session, Request::Fill { stream: LEGACY, to: a, value: 1, width: 1, count: 8 }),
        1
    );
    assert_eq!(world.await_reply(session, free).0, CudaResult::SUCCESS);
    assert_eq!(world.replies[&(session, fill)].0, CudaResult::SUCCESS);
    world.finish();
}

#[test]
fn a_stream_waits_at_a_closed_gate_and_others_do_not() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let a = world.alloc(session, 8);
    let other = StreamHandle(7);
    let kind = StreamKind::NonBlocking;
    assert_eq!(world.code(session, Request::StreamCreate { stream: other, kind, priority: 0 }), 0);
    let fill = |stream| Request::Fill { stream, to: a, value: 1, width: 1, count: 8 };
    world.start(session, 0, LONG, 4);
    let gate = world.send(session, Request::Gate { stream: LEGACY });
    let behind = world.send(session, fill(LEGACY));
    assert!(!world.replies.contains_key(&(session, gate)), "the kernel runs");
    assert_eq!(world.await_reply(session, gate).0, CudaResult::SUCCESS);
    let elsewhere = world.send(session, fill(other));
    assert_eq!(world.await_reply(session, elsewhere).0, CudaResult::SUCCESS);
    assert_eq!(
        world.code(session, Request::StreamQuery { stream: LEGACY }),
        CudaResult::ERROR_NOT_READY.0
    );
    assert!(!world.replies.contains_key(&(session, behind)), "the gate is closed");
    assert_eq!(world.code(session, Request::OpenGate { gate: Sequence(gate) }), 0);
    assert_eq!(world.await_reply(session, behind).0, CudaResult::SUCCESS);
    world.finish();
}

#[test]
fn a_session_may_end_with_closed_gates_and_must_not_open_what_is_none() {
    let mut world = World::new(4);
    let (first, _) = world.session();
    world.send(first, Request::Gate { stream: LEGACY });
    world.start(first, 0, SHORT, 4);
    world.finish();

    let mut world = World::new(4);
    let (liar, _) = world.session();
    let gate = world.send(liar, Request::Gate { stream: LEGACY });
    assert_eq!(world.code(liar, Request::OpenGate { gate: Sequence(gate) }), 0);
    world.send(liar, Request::OpenGate { gate: Sequence(gate) });
    let ends = |action: &Action| matches!(action, Action::EndSession { .. });
    assert!(world.actions.iter().any(ends), "a gate is opened once");
    world.finish();
}

#[test]
fn launches_are_checked() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let good = World::launch(0, SHORT, 4);
    let launch = |request: Launch| Request::Launch(request);
    for (code, request) in [
        (0, good.clone()),
        (400, Launch { stream: StreamHandle(5), ..good.clone() }),
        (400, Launch { module: ModuleHandle(5), ..good.clone() }),
        (400, Launch { kernel: 99, ..good.clone() }),
        (1, Launch { grid: Dim3::new(1, 0, 1), ..good.clone() }),
        (1, Launch { grid: Dim3::new(1 << 31, 1, 1), ..good.clone() }),
        (1, Launch { grid: Dim3::new(1, 1 << 16, 1), ..good.clone() }),
        (1, Launch { block: Dim3::new(0, 1, 1), ..good.clone() }),
        (1, Launch { block: Dim3::new(1, 1, 65), ..good.clone() }),
        (1, Launch { block: Dim3::new(1025, 1, 1), ..good.clone() }),
        (1, Launch { block: Dim3::new(32, 33, 1), ..good.clone() }),
        (1, Launch { dynamic_shared: 200 << 10, ..good.clone() }),
        (1, Launch { params: vec![0; 11], ..good.clone() }),
        (701, Launch { kernel: HUNGRY, block: Dim3::linear(512), ..good.clone() }),
    ] {
        assert_eq!(world.code(session, launch(request.clone())), code, "{request:?}");
    }
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

#[test]
fn modules() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let load = |module, image| Request::ModuleLoad { module: ModuleHandle(module), image };
    let (code, payload) = world.ask(session, load(1, BAD_IMAGE));
    assert_eq!((code.0, payload), (209, Payload::Explanation("only SASS for sm_75".to_owned())));
    let (code, payload) = world.ask(session, load(1, MALFORMED_IMAGE));
    assert_eq!((code.0, payload), (218, Payload::Explanation("line 1: malformed".to_owned())));
    let module = world.module(session, ModuleHandle(1));
    assert_eq!(module.kernels[1].name, "medium".into());
    world.start(session, 0, MEDIUM, 100);
    let unload = world.send(session, Request::ModuleUnload { module: MODULE });
    let launch = Request::Launch(World::launch(0, SHORT, 1));
    assert_eq!(world.code(session, launch), 400, "it is going");
    assert_eq!(world.await_reply(session, unload).0, CudaResult::SUCCESS);
    assert_eq!(world.code(session, Request::ModuleUnload { module: MODULE }), 400);
    world.finish();
}

#[test]
fn events_and_streams() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let (a, b) = (StreamHandle(1), StreamHandle(2));
    let [first, second] = [EventHandle(1), EventHandle(2)];
    for stream in [a, b] {
        assert_eq!(
            world.code(
                session,
                Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 }
            ),
            0
        );
    }
    for event in [first, second] {
        assert_eq!(world.code(session, Request::EventCreate { event, slot: 0 }), 0);
    }
    world.start(session, 1, LONG, 32);
    assert_eq!(world.code(session, Request::EventRecord { event: first, stream: a }), 0);
    assert_eq!(world.code(session, Request::StreamQuery { stream: a }), 600);
    assert_eq!(world.code(session, Request::StreamWait { stream: b, event: first }), 0);
    assert_eq!(world.code(session, Request::EventRecord { event: second, stream: b }), 0);
    assert_eq!(world.code(session, Request::Synchronize { stream: Some(b) }), 0);
    assert_eq!(world.code(session, Request::StreamQuery { stream: a }), 0);
    let recorded = world.actions.iter().filter_map(|action| match action {
        Action::EventRecorded { event, time, .. } => Some((*event, time.0)),
        _ => None,
    });
    let recorded: Vec<(EventHandle, u64)> = recorded.collect();
    assert_eq!(recorded.iter().map(|record| record.0).collect::<Vec<_>>(), [first, second]);
    assert!(recorded[0].1 >= 20_000 && recorded[1].1 >= recorded[0].1, "{recorded:?}");
    assert_eq!(world.code(session, Request::StreamDestroy { stream: a }), 0);
    assert_eq!(world.code(session, Request::StreamDestroy { stream: a }), 400);
    assert_eq!(world.code(session, Request::StreamDestroy { stream: LEGACY }), 400);
    assert_eq!(world.code(session, Request::EventDestroy { event: first }), 0);
    assert_eq!(world.code(session, Request::EventRecord { event: first, stream: b }), 400);
    world.finish();
}

#[test]
fn the_legacy_stream_is_ordered_with_blocking_streams_only() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    for (stream, kind) in
        [(1, StreamKind::Blocking), (2, StreamKind::Blocking), (3, StreamKind::NonBlocking)]
    {
        world.code(
            session,
            Request::StreamCreate { stream: StreamHandle(stream), kind, priority: 0 },
        );
    }
    for event in 0..4 {
        world.code(session, Request::EventCreate { event: EventHandle(event), slot: 0 });
    }
    let record = |event, stream| Request::EventRecord {
        event: EventHandle(event),
        stream: StreamHandle(stream),
    };
    world.start(session, 1, LONG, 200);
    world.code(session, record(3, 3));
    world.code(session, record(0, 0));
    world.code(session, record(2, 2));
    assert_eq!(world.synchronize(session), 0);
    let mut order = Vec::new();
    for action in &world.actions {
        if let Action::EventRecorded { event, .. } = action {
            order.push(event.0);
        }
    }
    assert_eq!(order, [3, 0, 2]);
    world.finish();
}

#[test]
fn a_fault_sticks_to_its_session() {
    for (kernel, cta) in [(FAULT, "CTA (41,5,0)"), (FAULT_ALONE, "CTA (1,0,0)")] {
        let mut world = World::new(4);
        let (bad, _) = world.session();
        let (good, _) = world.session();
        let memory = world.alloc(bad, 100);
        world.start(good, 0, LONG, 200);
        world.start(bad, 0, kernel, 10);
        world.start(bad, 0, MEDIUM, 10);
        assert_eq!(world.synchronize(bad), 700);
        assert_eq!(world.code(bad, Request::MemAlloc { bytes: 1 }), 700);
        assert_eq!(world.code(bad, Request::MemFree { address: memory }), 700);
        let sticky = world.actions.iter().find_map(|action| match action {
            Action::Sticky { session, code, text } => Some((*session, code.0, text.clone())),
            _ => None,
        });
        let (session, code, text) = sticky.unwrap();
        assert_eq!((session, code), (bad, 700));
        for part in ["illegal address", cta, "thread (3,0,0)", "PTX line 17", "0xdead0000"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(world.synchronize(good), 0);
        world.finish();
    }
}

/// What a kernel has met with is in its control block, or in the block's word; nothing else tells.
#[test]
fn a_kernel_that_gives_up_fails_its_session() {
    let kernels = [(LONG, "long", 1, 719), (LONG, "long", 2, 710), (TICKET, "ticket", 1, 719)];
    let worlds = kernels.iter().flat_map(|kernel| [(kernel, false), (kernel, true)]);
    for (&(kernel, name, fault, code), has_words) in worlds {
        let mut world = if has_words { World::with_words(4) } else { World::new(4) };
        let (bad, _) = world.session();
        let (good, _) = world.session();
        world.start(good, 0, SHORT, 200);
        world.start(bad, 0, kernel, 2_000);
        world.run_for(100);
        // Between two waves of tickets none is there.
        for _ in 0..100 {
            if world.device.is_running(name) {
                break;
            }
            world.run_for(1);
        }
        world.device.give_up(name, fault);
        assert_eq!(world.synchronize(bad), code);
        assert_eq!(world.synchronize(good), 0);
        world.finish();
    }
}

#[test]
fn protocol_violations_end_the_session() {
    for (request, twice) in [
        (
            Request::StreamCreate {
                stream: StreamHandle(1),
                kind: StreamKind::Blocking,
                priority: 0,
            },
            true,
        ),
        (Request::EventCreate { event: EventHandle(1), slot: 0 }, true),
        (Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE }, true),
        (Request::StreamCreate { stream: LEGACY, kind: StreamKind::Blocking, priority: 0 }, false),
    ] {
        let mut world = World::new(4);
        let (session, _) = world.open(None);
        let (other, _) = world.session();
        if twice {
            world.code(session, request.clone());
        }
        world.send(session, request);
        assert!(world.actions.iter().any(|action| matches!(action, Action::EndSession { .. })));
        world.run();
        assert!(world.released.contains(&session));
        world.start(other, 0, SHORT, 10);
        assert_eq!(world.synchronize(other), 0);
        world.finish();
    }
}

#[test]
fn too_many_waiting_operations_end_the_session() {
    let config = crate::EngineConfig { session_operations: 10, ..crate::EngineConfig::default() };
    let mut world = World::with_config(4, config);
    let (session, _) = world.session();
    for _ in 0..12 {
        world.send(session, Request::Launch(World::launch(0, LONG, 100)));
    }
    world.run();
    assert!(world.released.contains(&session));
    world.finish();
}

#[test]
fn allocations_of_a_session_are_bounded() {
    let config = crate::EngineConfig { session_allocations: 3, ..crate::EngineConfig::default() };
    let mut world = World::with_config(4, config);
    let (session, _) = world.session();
    let first = world.alloc(session, 1);
    world.alloc(session, 1);
    world.alloc(session, 1);
    let more = Request::MemAlloc { bytes: 1 };
    assert_eq!(world.code(session, more.clone()), CudaResult::ERROR_OUT_OF_MEMORY.0);
    assert_eq!(world.code(session, Request::MemFree { address: first }), 0);
    assert_eq!(world.code(session, more), 0);
    world.finish();
}

#[test]
fn death_in_mid_run_frees_everything_and_nobody_else_notices() {
    let mut world = World::new(8);
    let (victim, _) = world.session();
    let (other, application) = world.session();
    world.alloc(victim, 1 << 20);
    for stream in 1..4 {
        let stream = StreamHandle(stream);
        world.code(
            victim,
            Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 },
        );
    }
    for stream in [0, 1, 2, 3, 1, 2, 3] {
        world.start(victim, stream, LONG, 500);
    }
    world.start(victim, 1, ALONE, 500);
    world.start(other, 0, LONG, 1000);
    world.run_for(50);
    world.close(victim, CloseReason::Died);
    world.close(victim, CloseReason::Died);
    assert_eq!(world.synchronize(other), 0);
    assert!(world.released.contains(&victim));
    assert_eq!(world.partition(application).len(), 8);
    let reports = world.engine.application_reports();
    assert_eq!(
        (reports.len(), reports[0].ctas_completed, reports[0].launches_completed),
        (1, 1000, 1)
    );
    assert!(world.engine.is_at_rest());
    world.close(SessionId(77), CloseReason::Died);
    world.send(SessionId(77), Request::MemInfo);
    world.finish();
}

#[test]
fn a_lost_device_is_told_to_everyone_once() {
    let mut world = World::new(4);
    let (a, _) = world.session();
    let (b, _) = world.session();
    world.start(a, 0, LONG, 100);
    let pending = world.send(a, Request::Synchronize { stream: None });
    world.event(Event::Lost { reason: "xid 79".to_owned() });
    world.event(Event::Lost { reason: "xid 79".to_owned() });
    assert_eq!(world.await_reply(a, pending).0, CudaResult::ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(world.code(b, Request::MemAlloc { bytes: 1 }), 46);
    let lost =
        world.actions.iter().filter(|action| matches!(action, Action::DeviceLost { .. })).count();
    assert_eq!(lost, 1);
    for session in [a, b] {
        world.close(session, CloseReason::Died);
    }
    assert_eq!(world.released.len(), 2);
    assert!(world.engine.application_reports().is_empty());
}

#[test]
fn arrays_and_textures() {
    let mut world = World::new(4);
    let (session, _) = world.open(None);
    let (other, _) = world.open(None);
    let format = TexelFormat::new(ChannelType::U32, 1).unwrap();
    let shape = ArrayShape::new(ArrayKind::Plane, format, [10, 10, 1], 1).unwrap();
    let create =
        |world: &mut World, session| match world.ask(session, Request::ArrayCreate { shape }) {
            (_, Payload::Address(array)) => array,
            wrong => panic!("{wrong:?}"),
        };
    let (array, foreign) = (create(&mut world, session), create(&mut world, other));
    assert_eq!(world.engine.memory_used(), 2 * 512);
    let huge = ArrayShape::new(ArrayKind::Volume, format, [16_384; 3], 1).unwrap();
    assert_eq!(world.code(session, Request::ArrayCreate { shape: huge }), 2);

    // Copies reach a session's own arrays and stay inside; fills do not.
    let memory = world.alloc(session, 400);
    let copy = |to, bytes| Request::CopyOnDevice { stream: LEGACY, to, from: memory, bytes };
    let end = DeviceAddress(array.0 + 400);
    for (to, bytes, code) in [(array, 400, 0), (array, 401, 1), (end, 1, 1), (foreign, 4, 1)] {
        assert_eq!(world.code(session, copy(to, bytes)), code, "{to} {bytes}");
    }
    let fill = Request::Fill { stream: LEGACY, to: array, value: 0, width: 4, count: 1 };
    assert_eq!(world.code(session, fill), 1);

    let texture = |source, integers| {
        let sampler = Sampler { filter: FilterMode::Linear, integers, ..Sampler::default() };
        Request::TextureCreate { spec: TextureSpec { source, sampler: Some(sampler) } }
    };
    let of_array = |array, levels| TexelSource::Array { array, first_level: 0, levels };
    let linear = |format, width| TexelSource::Linear { address: memory, format, width };
    let bytes = TexelFormat::new(ChannelType::U8, 4).unwrap();
    for (source, integers, code) in [
        (of_array(array, 1), false, 1),
        (of_array(foreign, 1), false, 400),
        (linear(bytes, 101), false, 1),
        (linear(bytes, 100), true, 1),
        (linear(bytes, 100), false, 0),
    ] {
        assert_eq!(world.code(session, texture(source, integers)), code, "{source:?}");
    }
    let surface = |levels| Request::TextureCreate {
        spec: TextureSpec { source: of_array(array, levels), sampler: None },
    };
    assert_eq!(world.code(session, surface(2)), 1);
    let (_, Payload::Texture(handle)) = world.ask(session, surface(1)) else {
        panic!("no surface")
    };
    let destroy = Request::TextureDestroy { texture: handle };
    assert_eq!(world.code(other, destroy.clone()), 400, "another session's");
    assert_eq!([0, 1].map(|_| world.code(session, destroy.clone())), [0, 400]);
    assert_eq!(world.code(other, Request::ArrayDestroy { array }), 400);
    assert_eq!([0, 1].map(|_| world.code(session, Request::ArrayDestroy { array })), [0, 400]);
    assert_eq!(world.code(session, copy(array, 4)), 1, "it is gone");
    assert_eq!(world.engine.memory_used(), 512 + 512);
    world.finish();
}
