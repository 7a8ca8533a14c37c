//! The exact bounds of a session, its shared words, and when the bell of the client or of the data
//! plane rings.

use super::{SMALL, send, send_and_read, session, welcome};
use partita_model::Console;
use partita_model::request::{Request, Sequence};
use partita_wire::mapping::Mapping;
use partita_wire::ring::{Memory, Producer, RingFault};
use partita_wire::{
    Answered, AttachError, ClientEnd, MAX_REPLY, ModuleReply, PROTOCOL, PeerFault, Reply,
    ServerSession, Sizes, Violation,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of an answer in one record.
const PART: usize = 16 << 10;
/// Full parts that fit into the reply ring.
const IN_RING: usize = 7;

/// An answer of `bytes` bytes on the wire.
fn answer_of(bytes: usize) -> Reply {
    // The counts and lengths around them.
    let texts = bytes - 20;
    let number = bytes.div_ceil(24 << 10);
    let mut refused = vec![(String::new(), "x".repeat(texts / number - 8)); number];
    refused[0].1.push_str(&"x".repeat(texts % number));
    Reply::Module(ModuleReply { refused, ..ModuleReply::default() })
}

/// All answers, read by a client that tells of the room as a data plane sends the rest.
fn read_all(server: &mut ServerSession, client: &mut ClientEnd) -> Vec<Answered> {
    let mut answers = Vec::new();
    loop {
        while let Some(answer) = client.replies.poll().unwrap() {
            answers.push(answer);
        }
        if !client.replies.publish() {
            return answers;
        }
        server.prepare_to_sleep().unwrap();
    }
}

/// A session whose client's end of the bell stays open here.
fn session_with_bell() -> (ServerSession, ClientEnd) {
    let server = ServerSession::create(SMALL).unwrap();
    let [memfd, bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
    let client = ClientEnd::attach(&welcome(&server), &memfd, bell).unwrap();
    (server, client)
}

fn rings(bell: impl AsFd) -> u64 {
    rustix::io::ioctl_fionread(bell).unwrap()
}

fn rings_for_client(server: &ServerSession) -> u64 {
    rings(server.client_fds().unwrap()[1])
}

#[test]
fn a_mebibyte_of_answers_may_wait_before_requests_do() {
    let (mut server, mut client, _) = session(SMALL);
    assert!(!server.is_blocked());
    let [first, second] = [(); 2].map(|()| send_and_read(&mut server, &mut client));
    for _ in 0..2 {
        send(&mut client, Request::MemInfo, false);
    }
    server.reply(first, Ok(&answer_of((IN_RING + 64) * PART))).unwrap();
    assert!(server.is_blocked());
    assert!(server.has_request() && !server.prepare_to_sleep().unwrap());
    assert!(server.poll_request().unwrap().is_some());
    server.reply(second, Ok(&Reply::Done)).unwrap();
    assert!(!server.has_request() && server.prepare_to_sleep().unwrap());
    assert_eq!(server.poll_request(), Ok(None));
}

#[test]
fn output_waits_whole_or_is_left_out_whole() {
    let (mut server, mut client, _) = session(SMALL);
    let sequence = send_and_read(&mut server, &mut client);
    server.reply(sequence, Ok(&answer_of((IN_RING + 63) * PART))).unwrap();
    server.output(Console::Output, &[b'a'; PART + 1]).unwrap();
    server.output(Console::Output, &[b'b'; PART]).unwrap();
    server.output(Console::Output, b"c").unwrap();
    assert_eq!(read_all(&mut server, &mut client).len(), 1);
    assert!(client.replies.take_output().output == [b'b'; PART]);
}

#[test]
fn the_largest_answer_arrives() {
    let (mut server, mut client, _) = session(SMALL);
    let largest = answer_of(MAX_REPLY);
    let sequence = send_and_read(&mut server, &mut client);
    server.reply(sequence, Ok(&largest)).unwrap();
    let answers = read_all(&mut server, &mut client);
    assert!(answers == [Answered { sequence, outcome: Ok(largest) }]);
}

#[test]
fn a_client_is_ended_by_the_first_byte_over_what_may_be_kept() {
    let (mut server, mut client, _) = session(SMALL);
    let sequences = [(); 4].map(|()| send_and_read(&mut server, &mut client));
    let [first, second, third, last] = sequences;
    let largest = answer_of(MAX_REPLY);
    server.reply(first, Ok(&answer_of(IN_RING * PART))).unwrap();
    server.reply(second, Ok(&largest)).unwrap();
    server.reply(third, Ok(&largest)).unwrap();
    let bytes = 2 * MAX_REPLY + 8;
    assert_eq!(server.reply(last, Ok(&Reply::Done)), Err(Violation::AnswersUnread { bytes }));
}

#[test]
fn a_client_bears_no_answer_without_end_and_no_part_over_its_bound() {
    const KIND: u16 = 1;
    const MORE: u16 = 1;
    let liar = || {
        let (server, client, raw) = session(SMALL);
        (Producer::new(raw, server.layout().reply_ring()), client)
    };
    let (mut daemon, mut client) = liar();
    assert_eq!(daemon.push(KIND, 0, 1, &[0; PART + 1]), Ok(true));
    let fault = RingFault::Length { length: 16_401, at: 0, limit: 16_400 };
    assert_eq!(client.replies.poll(), Err(PeerFault::Ring { ring: "reply", fault }));

    let (mut daemon, mut client) = liar();
    for _ in 0..MAX_REPLY / PART {
        assert_eq!(daemon.push(KIND, MORE, 7, &[0; PART]), Ok(true));
        assert_eq!(client.replies.poll(), Ok(None));
        client.replies.publish();
    }
    assert_eq!(daemon.push(KIND, MORE, 7, &[0]), Ok(true));
    assert_eq!(client.replies.poll(), Err(PeerFault::Endless { sequence: Sequence(7) }));
}

#[test]
fn a_client_attaches_to_memory_of_its_magic_major_version_and_size_only() {
    let server = ServerSession::create(SMALL).unwrap();
    let [memfd, bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
    let total = server.layout().total();
    let raw = Arc::new(Mapping::new(memfd.as_fd(), total).unwrap());
    let [major, minor] = [PROTOCOL.major, PROTOCOL.minor].map(u64::from);
    let good = [u64::from_le_bytes(*b"partita\0"), major | minor << 32, total];
    assert_eq!([0, 8, 16].map(|at| raw.load(at, Ordering::Relaxed)), good);
    let [magic, version, _] = good;
    for (at, value, fits) in [
        (0, magic ^ 1, false),
        (8, version + 1, false),
        (8, major | (minor + 1) << 32, true),
        (16, total - 4096, false),
    ] {
        let before = raw.load(at, Ordering::Relaxed);
        raw.store(at, value, Ordering::Relaxed);
        let attached = ClientEnd::attach(&welcome(&server), &memfd, bell.try_clone().unwrap());
        match attached {
            Ok(_) => assert!(fits, "{value:#x} at {at}"),
            Err(error) => assert!(!fits && matches!(error, AttachError::Foreign), "{error}"),
        }
        raw.store(at, before, Ordering::Relaxed);
    }
}

#[test]
fn a_client_learns_of_room_after_16_kib_and_when_all_is_read() {
    let (mut server, mut client, raw) = session(SMALL);
    let head = server.layout().command_ring().head;
    let told = || raw.load(head, Ordering::Relaxed);
    for number in 1..=1030 {
        assert_eq!(client.requests.next(), Sequence(number));
        assert_eq!(send(&mut client, Request::MemInfo, false), Sequence(number));
    }
    let mut read = |count: usize| {
        for _ in 0..count {
            assert!(server.poll_request().unwrap().is_some());
        }
    };
    read(1024);
    assert_eq!(told(), 0);
    read(1);
    assert_eq!(told(), 1025 * 16);
    read(5);
    assert_eq!(told(), 1025 * 16);
    assert_eq!(server.poll_request(), Ok(None));
    assert_eq!(told(), 1030 * 16);
}

#[test]
fn a_client_is_rung_for_room_where_it_waits_for_that() {
    let (mut server, mut client) = session_with_bell();
    let mut read_one = |client: &mut ClientEnd| {
        send(client, Request::MemInfo, false);
        assert!(server.poll_request().unwrap().is_some());
        assert_eq!(server.poll_request(), Ok(None));
        rings_for_client(&server)
    };
    assert_eq!(read_one(&mut client), 0, "it is awake");
    client.shared.prepare_to_sleep(0);
    assert_eq!(read_one(&mut client), 0, "it waits for an answer");
    client.shared.prepare_to_sleep_for_room();
    assert_eq!(read_one(&mut client), 1);
    assert_eq!(read_one(&mut client), 1, "once");
}

#[test]
fn a_data_plane_is_rung_for_room_where_answers_wait() {
    let (mut server, mut client) = session_with_bell();
    for (bytes, expected) in [(100, 0), ((IN_RING + 1) * PART, 1)] {
        let sequence = send_and_read(&mut server, &mut client);
        server.reply(sequence, Ok(&answer_of(bytes))).unwrap();
        assert_eq!(server.is_blocked(), expected == 1);
        assert!(server.prepare_to_sleep().unwrap());
        client.replies.poll().unwrap();
        assert!(client.replies.publish());
        client.shared.answers_read();
        assert_eq!(rings(server.bell()), expected, "{bytes}");
    }
}

#[test]
fn a_client_sleeps_when_it_has_seen_all_news_and_does_not_stay_awake() {
    let (mut server, client) = session_with_bell();
    let shared = &client.shared;
    assert_eq!((server.news(), shared.news()), (0, 0));
    shared.prepare_to_sleep(0);
    assert!(server.client_sleeps());
    server.set_event(0, Sequence(1), 1);
    assert_eq!((server.news(), shared.news(), rings_for_client(&server)), (1, 1, 1));
    shared.prepare_to_sleep(0);
    assert!(!server.client_sleeps(), "it has not seen the event");
    shared.prepare_to_sleep(1);
    assert!(server.client_sleeps());
    shared.stay_awake();
    assert!(!server.client_sleeps());
    server.set_event(0, Sequence(2), 2);
    assert_eq!((server.news(), shared.news(), rings_for_client(&server)), (2, 2, 1));
}

#[test]
fn a_value_of_the_arena_is_exchanged_for_the_one_that_was_expected() {
    let server = ServerSession::create(Sizes { host_bytes: 8192, ..SMALL }).unwrap();
    let arena = server.arena();
    assert_eq!(arena.size(), SMALL.staging_bytes + 8192);
    let last = arena.size() - 8;
    let value = || {
        let mut value = [0; 8];
        arena.read(last, &mut value);
        value
    };
    arena.write(last, &[5; 8]);
    assert!(!arena.compare_exchange(last, &[4; 8], &[6; 8]));
    assert_eq!(value(), [5; 8]);
    assert!(arena.compare_exchange(last, &[5; 8], &[6; 8]));
    assert_eq!(value(), [6; 8]);
}
