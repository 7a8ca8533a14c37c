//! Both ends of a session in one process, and clients that lie.
#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

#[path = "session/bounds.rs"]
mod bounds;
#[path = "session/welcome.rs"]
mod welcome;

use partita_model::request::{
    ArenaRange, EventHandle, ImageId, Launch, ModuleHandle, Request, Sequence, StreamHandle,
};
use partita_model::{Console, DeviceAddress, ImagePart};
use partita_wire::mapping::Mapping;
use partita_wire::ring::{Memory, RingFault};
use partita_wire::{
    Answer, Arena, BellState, CallError, ClientEnd, Incoming, Malformed, ModuleReply, Printed,
    Received, Reply, Rung, ServerSession, Sizes, VariableReply, Violation, Welcome, Window, code,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use welcome::welcome;

const SMALL: Sizes = Sizes {
    command_bytes: 1 << 17,
    reply_bytes: 1 << 17,
    event_slots: 100,
    staging_bytes: 1 << 16,
    host_bytes: 0,
};

/// A session, and its memory as a client that keeps no rules sees it.
fn session(sizes: Sizes) -> (ServerSession, ClientEnd, Arc<Mapping>) {
    let mut server = ServerSession::create(sizes).unwrap();
    let sent = Answer::Welcome(Box::new(welcome(&server)));
    let Ok(Answer::Welcome(welcome)) = Answer::decode(&sent.encode()) else { panic!("no welcome") };
    let fds = server.client_fds().unwrap();
    let [memfd, bell] = fds.map(|fd| fd.try_clone_to_owned().unwrap());
    server.sent_fds();
    let client = ClientEnd::attach(&welcome, &memfd, bell).unwrap();
    let raw = Mapping::new(std::os::fd::AsFd::as_fd(&memfd), welcome.layout.total()).unwrap();
    (server, client, Arc::new(raw))
}

fn send(client: &mut ClientEnd, request: Request, wants_reply: bool) -> Sequence {
    client.requests.push(&request, wants_reply).unwrap().expect("there is room")
}

#[test]
fn welcome_survives_the_way() {
    let server = ServerSession::create(SMALL).unwrap();
    let sent = Answer::Welcome(Box::new(welcome(&server)));
    let bytes = sent.encode();
    assert_eq!(Answer::decode(&bytes), Ok(sent));
    for cut in 0..bytes.len() {
        assert!(Answer::decode(&bytes[..cut]).is_err(), "cut to {cut}");
    }
}

#[test]
fn host_memory_lies_inside_the_window_or_the_welcome_is_refused() {
    let server = ServerSession::create(Sizes { host_bytes: 1 << 20, ..Sizes::default() }).unwrap();
    let good = welcome(&server);
    let Window { base, bytes } = good.window;
    for (at, fits) in [
        (base.0, true),
        (base.0 + bytes - (1 << 20), true),
        (base.0 + bytes - (1 << 20) + 4096, false),
        (base.0 - 4096, false),
        (base.0 + 8, false),
        (u64::MAX, false),
    ] {
        let told = Welcome { host: Some(DeviceAddress(at)), ..good.clone() };
        let answer = Answer::Welcome(Box::new(told));
        assert_eq!(
            Answer::decode(&answer.encode()).is_ok_and(|decoded| decoded == answer),
            fits,
            "{at:#x}"
        );
    }
}

#[test]
fn host_memory_is_where_kernels_reach_it() {
    let mut server =
        ServerSession::create(Sizes { host_bytes: 1 << 20, ..Sizes::default() }).unwrap();
    let at = 0x2345_6000_0000;
    let told = Welcome {
        host: Some(DeviceAddress(at)),
        window: Window { base: DeviceAddress(at), bytes: 1 << 30 },
        ..welcome(&server)
    };
    let [memfd, bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
    let client = ClientEnd::attach(&told, &memfd, bell.try_clone().unwrap()).unwrap();
    let (arena, staging) = (client.shared.arena(), server.layout().staging_bytes());
    assert!(arena.is_mapped());
    assert_eq!(arena.address(staging + 10).addr() as u64, at + 10);
    assert_eq!(arena.offset_of(arena.address(staging + 10), 100), Some(staging + 10));
    assert_eq!(arena.offset_of(arena.address(staging + 10), 1 << 20), None, "beyond the end");
    assert_eq!(arena.offset_of(arena.address(10), 100), Some(10));
    server.arena().write(staging + 5, b"both");
    let mut seen = [0; 4];
    arena.read(staging + 5, &mut seen);
    assert_eq!(&seen, b"both");
    // The addresses are taken now: a second session of the process does without.
    let second = ClientEnd::attach(&told, &memfd, bell).unwrap();
    assert!(!second.shared.arena().is_mapped());
    drop(client);
    server.sent_fds();
}

#[test]
fn a_request_gets_its_answer_and_the_right_one() {
    let (mut server, mut client, _) = session(SMALL);
    let first = send(&mut client, Request::MemAlloc { bytes: 10 }, true);
    let second = send(&mut client, Request::Synchronize { stream: None }, false);
    let third = send(&mut client, Request::MemInfo, true);
    let read: Vec<Incoming> = std::iter::from_fn(|| server.poll_request().unwrap()).collect();
    assert_eq!(read.iter().map(|read| read.sequence).collect::<Vec<_>>(), [first, second, third]);
    assert_eq!(read.iter().map(|read| read.wants_reply).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(read[0].request, Received::Request(Request::MemAlloc { bytes: 10 }));
    server.reply(third, Ok(&Reply::Memory { free: 1, total: 2 })).unwrap();
    let error = CallError::new(code::OUT_OF_MEMORY, "full");
    server.reply(first, Err(&error)).unwrap();
    let answer = client.replies.poll().unwrap().unwrap();
    assert_eq!((answer.sequence, answer.outcome), (third, Ok(Reply::Memory { free: 1, total: 2 })));
    let answer = client.replies.poll().unwrap().unwrap();
    assert_eq!((answer.sequence, answer.outcome), (first, Err(error)));
    assert_eq!(client.replies.poll(), Ok(None));
}

#[test]
#[should_panic(expected = "waits for no answer")]
fn answering_twice_is_a_fault_of_the_data_plane() {
    let (mut server, mut client, _) = session(SMALL);
    let sequence = send(&mut client, Request::MemInfo, true);
    server.poll_request().unwrap();
    server.reply(sequence, Ok(&Reply::Done)).unwrap();
    let _panics = server.reply(sequence, Ok(&Reply::Done));
}

#[test]
fn records_wrap_around_the_ring_in_every_phase() {
    let (mut server, mut client, _) = session(SMALL);
    let mut sent: u64 = 0;
    let mut read: u64 = 0;
    let request = |number: u64| {
        Request::Launch(Launch {
            module: ModuleHandle(number),
            kernel: 0,
            grid: partita_model::Dim3::linear(1),
            block: partita_model::Dim3::linear(1),
            dynamic_shared: 0,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            cluster: partita_model::Dim3::linear(1),
            params: vec![
                u8::try_from(number % 251).unwrap();
                usize::try_from(number * 7 % 9001).unwrap()
            ],
        })
    };
    while read < 2000 {
        while client.requests.push(&request(sent + 1), false).unwrap().is_some() {
            sent += 1;
        }
        for _ in 0..=read % 11 {
            let Some(incoming) = server.poll_request().unwrap() else { break };
            read += 1;
            let expected = Received::Request(request(read));
            assert_eq!((incoming.sequence, incoming.request), (Sequence(read), expected));
        }
    }
    assert!(sent > read, "the ring was full at times");
}

#[test]
fn large_answers_come_in_parts_and_slow_readers_are_waited_for() {
    let (mut server, mut client, _) = session(SMALL);
    let variable = VariableReply { name: "v".repeat(1000), address: DeviceAddress(1), bytes: 2 };
    let module = ModuleReply { variables: vec![variable; 600], ..ModuleReply::default() };
    let reply = Reply::Module(module);
    for _ in 0..3 {
        send(&mut client, Request::MemInfo, true);
    }
    while let Some(incoming) = server.poll_request().unwrap() {
        server.reply(incoming.sequence, Ok(&reply)).unwrap();
    }
    assert!(server.is_blocked(), "1.8 MB do not fit in a ring of 128 KiB");
    send(&mut client, Request::MemInfo, true);
    assert_eq!(server.poll_request(), Ok(None), "no further request before answers are read");
    assert!(!server.has_request(), "and nothing to wake up for");
    let mut answers = 0;
    for _ in 0..1000 {
        assert!(server.prepare_to_sleep().unwrap() || !server.is_blocked());
        while let Some(answer) = client.replies.poll().unwrap() {
            assert_eq!(answer.outcome.as_ref(), Ok(&reply));
            answers += 1;
        }
        if client.replies.publish() {
            client.shared.answers_read();
        }
        assert_eq!(server.woken(), BellState::Alive);
        if let Some(incoming) = server.poll_request().unwrap() {
            server.reply(incoming.sequence, Ok(&reply)).unwrap();
        }
        if answers == 4 {
            return;
        }
    }
    panic!("{answers} of 4 answers came");
}

#[test]
fn a_request_or_a_breach_is_seen_before_it_is_taken() {
    let (mut server, mut client, raw) = session(SMALL);
    assert!(!server.has_request());
    send(&mut client, Request::MemInfo, false);
    assert!(server.has_request() && server.has_request());
    assert!(server.poll_request().unwrap().is_some());
    assert!(!server.has_request());
    raw.store(server.layout().command_ring().tail, u64::MAX, Ordering::Release);
    assert!(server.has_request());
    assert!(matches!(server.poll_request(), Err(Violation::Ring { .. })));
}

#[test]
fn requests_without_an_answer_have_a_bound() {
    let (mut server, mut client, _) = session(SMALL);
    let ask = |server: &mut ServerSession, client: &mut ClientEnd| {
        send(client, Request::MemInfo, true);
        server.poll_request().unwrap().map(|incoming| incoming.sequence)
    };
    for number in 1..=1 << 16 {
        assert_eq!(ask(&mut server, &mut client), Some(Sequence(number)));
    }
    assert_eq!(ask(&mut server, &mut client), None, "65,536 wait");
    assert!(!server.has_request() && server.prepare_to_sleep().unwrap());
    server.reply(Sequence(7), Ok(&Reply::Done)).unwrap();
    assert!(server.has_request());
    let next = server.poll_request().unwrap().map(|incoming| incoming.sequence);
    assert_eq!(next, Some(Sequence((1 << 16) + 1)));
}

#[test]
fn an_answer_over_its_bound_becomes_an_error() {
    let (mut server, mut client, _) = session(SMALL);
    let refused = vec![(String::new(), "x".repeat(30_000)); 600];
    let reply = Reply::Module(ModuleReply { refused, ..ModuleReply::default() });
    let sequence = send_and_read(&mut server, &mut client);
    server.reply(sequence, Ok(&reply)).unwrap();
    let error = client.replies.poll().unwrap().unwrap().outcome.unwrap_err();
    assert_eq!(error.code, code::OUT_OF_MEMORY);
    assert!(error.text.contains("split the module"), "{error}");
}

#[test]
fn a_client_that_never_reads_is_ended() {
    let (mut server, mut client, _) = session(SMALL);
    let module = ModuleReply {
        refused: vec![(String::new(), "x".repeat(30_000)); 500],
        ..ModuleReply::default()
    };
    let reply = Reply::Module(module);
    let sequences: Vec<Sequence> = (0..4)
        .map(|_| {
            send(&mut client, Request::MemInfo, true);
            server.poll_request().unwrap().unwrap().sequence
        })
        .collect();
    let results: Vec<_> =
        sequences.into_iter().map(|sequence| server.reply(sequence, Ok(&reply))).collect();
    assert!(results[0].is_ok() && results[1].is_ok());
    assert!(matches!(results[3], Err(Violation::AnswersUnread { .. })), "{:?}", results[3]);
}

#[test]
fn events_and_sticky_errors_are_published() {
    let (mut server, mut client, _) = session(SMALL);
    assert_eq!((client.shared.sticky(), server.sticky()), (None, None));
    server.set_event(3, Sequence(20), 1000);
    server.set_event(3, Sequence(10), 900);
    let slot = client.shared.event(3);
    assert_eq!((slot.sequence, slot.time_ns), (Sequence(20), 1000), "older records stay out");
    let beyond = CallError::new(code::ILLEGAL_ADDRESS, "beyond the array of line 7");
    let later = CallError::new(code::LAUNCH_FAILED, "a trap");
    assert_eq!(server.set_sticky(Sequence(7), &beyond), Ok(true));
    assert_eq!(server.set_sticky(Sequence(8), &later), Ok(false));
    assert_eq!(
        client.shared.sticky(),
        Some((code::ILLEGAL_ADDRESS, Sequence(7))),
        "the first one stays"
    );
    assert_eq!(server.sticky(), Some(&beyond));
    assert_eq!(client.replies.poll(), Ok(None), "the words answer no request");
    assert_eq!(client.replies.failure(), Some(&beyond));
    server.set_completed(Sequence(9));
    server.set_completed(Sequence(4));
    assert_eq!(client.shared.completed(), Sequence(9));
}

#[test]
fn bells_ring_sleepers_once_and_only_sleepers() {
    let (mut server, mut client, _) = session(SMALL);
    let pending = |fd: &dyn std::os::fd::AsFd| rustix::io::ioctl_fionread(fd.as_fd()).unwrap();
    assert_eq!(server.woken(), BellState::Alive);
    send(&mut client, Request::MemInfo, false);
    client.shared.requests_written();
    assert_eq!(pending(&server.bell()), 0, "the data plane is awake");
    assert!(!server.prepare_to_sleep().unwrap(), "there is a request to be read");
    server.poll_request().unwrap().unwrap();
    assert!(server.prepare_to_sleep().unwrap());
    for _ in 0..3 {
        send(&mut client, Request::MemInfo, false);
        client.shared.requests_written();
    }
    assert_eq!(pending(&server.bell()), 1);
    assert_eq!(server.woken(), BellState::Alive);
    assert_eq!(pending(&server.bell()), 0);
    drop(client);
    assert_eq!(server.woken(), BellState::Gone);
}

/// The socket of a bell has room for some hundred rings that nobody hears.
#[test]
fn a_full_bell_holds_nobody_up() {
    let (mut server, client, _) = session(SMALL);
    for number in 1..20_000 {
        assert!(server.prepare_to_sleep().unwrap());
        assert_eq!(client.shared.requests_written(), Rung::News);
        client.shared.prepare_to_sleep(client.shared.news());
        server.set_event(0, Sequence(number), number);
    }
    assert_eq!(server.woken(), BellState::Alive);
    assert_eq!(client.shared.sleep(), Rung::News);
}

#[test]
fn the_data_planes_death_ends_a_sleep_after_what_it_had_said() {
    let (mut server, mut client, _) = session(SMALL);
    let sequence = send(&mut client, Request::MemInfo, true);
    assert!(client.shared.is_owner() && !client.shared.is_gone() && !server.client_sleeps());
    client.shared.prepare_to_sleep(client.shared.news());
    assert!(server.client_sleeps());
    server.poll_request().unwrap();
    server.reply(sequence, Ok(&Reply::Done)).unwrap();
    drop(server);
    assert_eq!(client.shared.sleep(), Rung::News);
    assert_eq!(client.shared.sleep(), Rung::Gone);
    assert!(client.shared.is_gone());
    assert_eq!(client.replies.poll().unwrap().unwrap().sequence, sequence);
}

#[test]
fn threads_of_the_client_wake_each_other_without_the_bell() {
    let (mut server, client, _) = session(SMALL);
    client.shared.nudge();
    client.shared.nudge();
    assert_eq!(client.shared.sleep_or_nudge(), Rung::News, "a nudge before the sleep counts");
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| client.shared.sleep_or_nudge());
        client.shared.nudge();
        assert_eq!(sleeper.join().unwrap(), Rung::News);
    });
    assert_eq!(server.woken(), BellState::Alive);
    std::thread::scope(|scope| {
        let sleepers =
            [scope.spawn(|| client.shared.sleep()), scope.spawn(|| client.shared.sleep_or_nudge())];
        client.shared.hang_up();
        for sleeper in sleepers {
            assert_eq!(sleeper.join().unwrap(), Rung::Gone);
        }
    });
    assert_eq!(server.woken(), BellState::Gone);
}

/// What the server says after a client wrote `change` into the memory behind one good record.
fn after(change: impl Fn(&Arc<Mapping>, &ServerSession)) -> Result<Option<Incoming>, Violation> {
    let (mut server, mut client, raw) = session(SMALL);
    send(&mut client, Request::MemAlloc { bytes: 1 }, true);
    change(&raw, &server);
    server.poll_request()
}

#[test]
fn lies_in_the_memory_end_the_session_and_nothing_else() {
    let tail = |value: u64| {
        after(move |raw, server| {
            raw.store(server.layout().command_ring().tail, value, Ordering::Relaxed)
        })
    };
    let record = |at: usize, bytes: &'static [u8]| {
        after(move |raw, server| raw.write(server.layout().command_ring().data + at, bytes))
    };
    let fault = |result| match result {
        Err(Violation::Ring { ring: "command", fault }) => fault,
        other => panic!("{other:?}"),
    };
    let capacity = SMALL.command_bytes;
    for theirs in [capacity + 8, u64::MAX - 7, 1 << 63] {
        assert_eq!(fault(tail(theirs)), RingFault::Distance { theirs, ours: 0, capacity });
    }
    assert_eq!(fault(tail(20)), RingFault::Unaligned { theirs: 20 });
    assert_eq!(fault(tail(8)), RingFault::Length { length: 0, at: 0, limit: 8 });
    assert_eq!(fault(tail(16)), RingFault::Length { length: 24, at: 0, limit: 16 });
    assert_eq!(
        fault(record(0, &[15, 0, 0, 0])),
        RingFault::Length { length: 15, at: 0, limit: 24 }
    );
    assert_eq!(
        fault(record(0, &[0xff; 4])),
        RingFault::Length { length: u32::MAX, at: 0, limit: 24 }
    );
    assert_eq!(record(8, &[2]), Err(Violation::Sequence { expected: 1, found: 2 }));
    let malformed = |result| match result {
        Err(Violation::Record { sequence: Sequence(1), malformed }) => malformed,
        other => panic!("{other:?}"),
    };
    assert_eq!(malformed(record(4, &[0xff, 0xff])), Malformed::Kind(0xffff));
    assert_eq!(
        malformed(record(6, &[2])),
        Malformed::Flags { kind: "memory allocation", flags: 2 }
    );
    let length = Malformed::Length { kind: "memory allocation", expected: 8, got: 7 };
    assert_eq!(malformed(record(0, &[23])), length);
}

#[test]
fn an_index_that_goes_back_is_refused() {
    let (mut server, mut client, raw) = session(SMALL);
    send(&mut client, Request::MemInfo, false);
    server.poll_request().unwrap().unwrap();
    raw.store(server.layout().command_ring().tail, 0, Ordering::Relaxed);
    assert!(matches!(
        server.poll_request(),
        Err(Violation::Ring { fault: RingFault::Distance { .. }, .. })
    ));
}

#[test]
fn a_reply_index_that_lies_is_refused() {
    let (mut server, mut client, raw) = session(SMALL);
    let sequences: Vec<Sequence> =
        (0..6000).map(|_| send_and_read(&mut server, &mut client)).collect();
    raw.store(server.layout().reply_ring().head, 1 << 40, Ordering::Relaxed);
    let result =
        sequences.into_iter().try_for_each(|sequence| server.reply(sequence, Ok(&Reply::Done)));
    assert!(matches!(result, Err(Violation::Ring { ring: "reply", .. })), "{result:?}");
}

fn send_and_read(server: &mut ServerSession, client: &mut ClientEnd) -> Sequence {
    send(client, Request::MemInfo, true);
    server.poll_request().unwrap().unwrap().sequence
}

#[test]
fn places_outside_the_memory_are_refused() {
    let check = |request: Request| {
        let (mut server, mut client, _) = session(SMALL);
        send(&mut client, request, false);
        server.poll_request()
    };
    let arena = SMALL.staging_bytes;
    let copy = |offset, bytes| Request::CopyToDevice {
        stream: StreamHandle::LEGACY,
        to: DeviceAddress(0),
        from: ArenaRange { offset, bytes },
    };
    assert!(check(copy(arena, 0)).is_ok());
    assert!(check(copy(0, arena)).is_ok());
    for (offset, bytes) in [(arena + 1, 0), (1, arena), (u64::MAX, 2), (2, u64::MAX)] {
        let violation = Violation::Staging { sequence: Sequence(1), offset, bytes, arena };
        assert_eq!(check(copy(offset, bytes)), Err(violation));
    }
    let event = EventHandle(1);
    assert!(check(Request::EventCreate { event, slot: 99 }).is_ok());
    let violation = Violation::EventSlot { sequence: Sequence(1), slot: 100, slots: 100 };
    assert_eq!(check(Request::EventCreate { event, slot: 100 }), Err(violation));
}

#[test]
fn foreign_memory_is_not_attached_to() {
    let server = ServerSession::create(SMALL).unwrap();
    let memfd: OwnedFd = partita_wire::mapping::sealed_memory(server.layout().total()).unwrap();
    let (bell, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = ClientEnd::attach(&welcome(&server), &memfd, bell.into()).unwrap_err();
    assert!(error.to_string().contains("not a session's memory"), "{error}");
}

#[test]
fn discarded_memory_is_zero_and_the_systems() {
    let server = ServerSession::create(Sizes { host_bytes: 1 << 20, ..SMALL }).unwrap();
    let [memfd, _bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
    let held = || rustix::fs::fstat(&memfd).unwrap().st_blocks * 512;
    let (arena, before) = (server.arena(), held());
    let [at, bytes] = [SMALL.staging_bytes, 64 << 10];
    arena.write(at, &vec![7; 64 << 10]);
    assert_eq!(held(), before + (64 << 10));
    arena.discard(at, bytes).unwrap();
    assert_eq!(held(), before);
    let mut back = [1; 16];
    arena.read(at + 100, &mut back);
    assert_eq!(back, [0; 16]);
}

#[test]
fn values_are_exchanged_in_sizes_that_the_processor_has() {
    let known = [1, 2, 3, 4, 8, 16, 32].map(Arena::can_exchange);
    #[cfg(target_arch = "x86_64")]
    let widest = std::arch::is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(target_arch = "x86_64"))]
    let widest = false;
    assert_eq!(known, [false, true, false, true, true, widest, false]);
}

#[test]
fn a_session_gone_idle_keeps_little_memory() {
    let mut server = ServerSession::create(Sizes::default()).unwrap();
    let fds = server.client_fds().unwrap();
    let [memfd, bell] = fds.map(|fd| fd.try_clone_to_owned().unwrap());
    server.sent_fds();
    let mut client = ClientEnd::attach(&welcome(&server), &memfd, bell).unwrap();
    let touched = || rustix::fs::fstat(&memfd).unwrap().st_blocks * 512;
    assert!(touched() <= 16 << 10, "{} bytes of a session that never did anything", touched());
    for _ in 0..3000 {
        let data = vec![1; 8000];
        let chunk = ImagePart::Chunk { image: ImageId(1), offset: 0, data };
        client.requests.push(&chunk, true).unwrap().expect("there is room");
        let sequence = server.poll_request().unwrap().unwrap().sequence;
        server.reply(sequence, Err(&CallError::new(1, "x".repeat(500)))).unwrap();
        client.replies.poll().unwrap().unwrap();
        client.replies.publish();
    }
    let touched = touched();
    assert!((128 << 10..256 << 10).contains(&touched), "{touched} bytes after 24 MB of requests");
}

/// A generator without a dependency; seeds are counted up, so a failing one can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[test]
fn scribbling_over_the_memory_panics_neither_side() {
    let mut ended = [0; 2];
    for seed in 1..=300_u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (mut server, mut client, raw) = session(SMALL);
        for _ in 0..200 {
            match random.below(8) {
                0 => {
                    let (commands, replies) =
                        (server.layout().command_ring(), server.layout().reply_ring());
                    let indices = [commands.tail, commands.head, replies.tail, replies.head];
                    let near = usize::try_from(8 * random.below(200)).unwrap();
                    let at = match random.below(3) {
                        0 => indices[near / 8 % 4],
                        1 => commands.data + near,
                        _ => replies.data + near,
                    };
                    let value = random.next() >> (8 * random.below(8));
                    raw.store(at, value, Ordering::Relaxed);
                }
                1..=3 => {
                    let request: Request = Request::MemAlloc { bytes: random.next() };
                    if client.requests.push(&request, true).is_err() {
                        break;
                    }
                }
                4..=6 => match server.poll_request() {
                    Ok(Some(incoming)) if incoming.wants_reply => {
                        if server.reply(incoming.sequence, Ok(&Reply::Done)).is_err() {
                            break;
                        }
                    }
                    Ok(_) => {}
                    Err(_) => {
                        ended[0] += 1;
                        break;
                    }
                },
                _ => {
                    if client.replies.poll().is_err() {
                        ended[1] += 1;
                        break;
                    }
                    client.replies.publish();
                }
            }
        }
    }
    assert!(
        ended.iter().all(|ended| *ended > 10),
        "scribbling was noticed on both sides: {ended:?}"
    );
}

#[test]
fn what_kernels_print_comes_before_the_answers_after_it() {
    let (mut server, client, _) = session(SMALL);
    let ClientEnd { mut requests, mut replies, .. } = client;
    let request: Request<&[u8]> = Request::MemInfo;
    let sequence = requests.push(&request, true).unwrap().unwrap();
    assert_eq!(server.poll_request().unwrap().unwrap().sequence, sequence);
    server.output(Console::Output, b"hello ").unwrap();
    server.output(Console::Error, b"oh").unwrap();
    server.output(Console::Output, &[b'x'; 40_000]).unwrap();
    server.reply(sequence, Ok(&Reply::Done)).unwrap();
    assert_eq!(replies.poll().unwrap().unwrap().outcome, Ok(Reply::Done));
    let Printed { output, error } = replies.take_output();
    assert_eq!(error, b"oh");
    assert_eq!((&output[..6], output.len()), (&b"hello "[..], 40_006));
    assert_eq!(replies.take_output(), Printed::default());
}

#[test]
fn a_client_that_leaves_output_unread_loses_output_and_nothing_else() {
    let (mut server, client, _) = session(SMALL);
    let ClientEnd { mut requests, mut replies, .. } = client;
    let request: Request<&[u8]> = Request::MemInfo;
    let sequence = requests.push(&request, true).unwrap().unwrap();
    server.poll_request().unwrap().unwrap();
    for _ in 0..10_000 {
        server.output(Console::Output, &[b'.'; 1000]).unwrap();
    }
    server.reply(sequence, Ok(&Reply::Done)).unwrap();
    let mut answers = 0;
    for _ in 0..100 {
        answers += usize::from(replies.poll().unwrap().is_some());
        replies.publish();
        let _ = server.poll_request().unwrap();
    }
    assert_eq!(answers, 1);
    let printed = replies.take_output().output.len();
    assert!(printed > 100_000 && printed < 2_000_000 && printed.is_multiple_of(1000), "{printed}");
}
