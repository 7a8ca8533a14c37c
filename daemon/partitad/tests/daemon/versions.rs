//! Programs with another version's library: they get service, or a sentence.
//!
//! The recordings of `partita-wire` are played to a real daemon: the hello, then every record as
//! the older library wrote it. The device's addresses are given from the same place in every
//! version, so the recorded addresses hold in the new session.

use super::{Daemon, PATIENCE};
use partita_wire::message;
use partita_wire::{Answer, ClientEnd, MAX_MESSAGE, RefusalCode, Reply, SOCKET_NAME, Welcome};
use recording::Recording;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

#[path = "../../../../client-lib/partita-wire/tests/versions/recording.rs"]
mod recording;

fn say(daemon: &Daemon, hello: &[u8]) -> (Answer, message::Message) {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    connect(&socket, &SocketAddrUnix::new(daemon.sockets().join(SOCKET_NAME)).unwrap()).unwrap();
    message::send(&socket, hello, &[]).unwrap();
    let answer = message::receive(&socket, MAX_MESSAGE).unwrap();
    (Answer::decode(&answer.bytes).unwrap(), answer)
}

/// Plays the client's part, and returns the answers by number.
fn play(recording: &Recording, end: &mut ClientEnd) -> Vec<(u64, Reply)> {
    let mut replies = Vec::new();
    for request in &recording.requests {
        let sequence = end.requests.push(request, request.wants_reply()).unwrap().unwrap();
        assert_eq!(sequence.0, request.sequence);
        end.shared.requests_written();
        let start = Instant::now();
        while request.wants_reply() && replies.last().is_none_or(|(last, _)| *last != sequence.0) {
            if let Some(answered) = end.replies.poll().unwrap() {
                end.replies.publish();
                replies.push((answered.sequence.0, answered.outcome.unwrap()));
            }
            assert!(start.elapsed() < PATIENCE, "no answer to {sequence}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    replies
}

fn welcomed(answer: Answer, minor: u16) -> Welcome {
    match answer {
        Answer::Welcome(welcome) => *welcome,
        other => panic!("2.{minor}: {other:?}"),
    }
}

#[test]
fn programs_with_the_library_of_an_older_version_are_served() {
    for recording in recording::all() {
        let daemon = Daemon::start();
        let minor = recording.minor;
        let (answer, mut message) = say(&daemon, &recording.hello);
        let welcome = welcomed(answer, minor);
        let recorded = welcomed(Answer::decode(&recording.answer).unwrap(), minor);
        assert_eq!((welcome.window, welcome.host), (recorded.window, recorded.host));
        let [memory, bell] = message.take_fds().unwrap();
        let mut end = ClientEnd::attach(&welcome, &memory, bell).unwrap();
        let replies = play(&recording, &mut end);
        assert_eq!(replies.len(), recording.replies.len(), "2.{minor}");
        let mut result = vec![0; recording.result.len()];
        end.shared.arena().read(recording.result_offset, &mut result);
        assert!(result == recording.result, "2.{minor}: the program computes something else");
        assert_eq!(end.shared.sticky(), None, "2.{minor}");
        let status = daemon.status();
        assert_eq!(status.applications.len(), 1, "{status:?}");
    }
}

#[test]
fn a_library_of_a_newer_minor_version_is_served() {
    let daemon = Daemon::start();
    let mut hello = recording::all().pop().unwrap().hello;
    hello[6..8].copy_from_slice(&999_u16.to_le_bytes());
    hello.extend(b"what a later version may say");
    let welcome = welcomed(say(&daemon, &hello).0, 999);
    assert_eq!(welcome.protocol, partita_wire::PROTOCOL, "the client keeps to this version");
}

#[test]
fn a_library_of_another_major_version_is_told_what_to_do() {
    let daemon = Daemon::start();
    for major in [1_u16, 3] {
        // Nothing but the first eight bytes has a meaning in another major version.
        let mut hello = recording::all()[0].hello[..8].to_vec();
        hello[4..6].copy_from_slice(&major.to_le_bytes());
        hello.extend([0xa5; 40]);
        match say(&daemon, &hello).0 {
            Answer::Refused(refusal) => {
                assert_eq!(refusal.code, RefusalCode::Version);
                let speaks = format!("speaks protocol {major}.1, the daemon 2.");
                for part in [&*speaks, "libpartita_cuda.so that was installed with the daemon"] {
                    assert!(refusal.text.contains(part), "{}", refusal.text);
                }
            }
            other => panic!("{major}: {other:?}"),
        }
    }
}
