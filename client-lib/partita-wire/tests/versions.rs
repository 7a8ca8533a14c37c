//! What older versions have said is still understood, and what this version says is what was
//! recorded of it.
//!
//! The recordings in `versions/` are conversations of real libraries with real daemons. Here they
//! meet this version's code without any process; `partitad`'s tests play them to a real daemon.

#[path = "versions/recording.rs"]
mod recording;

use partita_wire::mapping::Mapping;
use partita_wire::ring::Producer;
use partita_wire::{
    Answer, ClientEnd, Hello, PROTOCOL, Protocol, Received, Record, Reply, ServerSession, Sizes,
    Welcome,
};
use recording::Recording;
use std::os::fd::AsFd;
use std::sync::Arc;

fn welcome(recording: &Recording) -> Welcome {
    match Answer::decode(&recording.answer) {
        Ok(Answer::Welcome(welcome)) => *welcome,
        other => panic!("2.{}: {other:?}", recording.minor),
    }
}

#[test]
fn this_version_is_recorded() {
    let newest = recording::all().pop().unwrap();
    assert_eq!(
        (PROTOCOL.major, PROTOCOL.minor),
        (2, newest.minor),
        "record this version: build the workspace, start `partitad --device emu:cd-search-24`, run \
         versions/record.py, name the file in versions/recording.rs, and keep the older files"
    );
}

#[test]
fn recorded_clients_are_understood_and_spell_as_this_version_does() {
    for recording in recording::all() {
        let minor = recording.minor;
        let hello = Hello::decode(&recording.hello).unwrap();
        assert_eq!((hello.protocol, &*hello.program), (Protocol { major: 2, minor }, "python3"));
        assert_eq!(hello.encode(), recording.hello, "2.{minor}");
        for request in &recording.requests {
            let received = Received::decode(request.kind, request.flags, &request.body);
            let mut again = Vec::new();
            match received.unwrap() {
                Received::Request(request) => request.encode(&mut again),
                Received::Image(part) => part.encode(&mut again),
            }
            assert_eq!(again, request.body, "record {} of 2.{minor}", request.sequence);
        }
    }
}

#[test]
fn recorded_daemons_are_understood() {
    for recording in recording::all() {
        let minor = recording.minor;
        let welcome = welcome(&recording);
        assert_eq!(welcome.protocol, Protocol { major: 2, minor });
        assert_eq!(welcome.facts.sm_count, 24);
        if minor == PROTOCOL.minor {
            assert_eq!(Answer::Welcome(Box::new(welcome.clone())).encode(), recording.answer);
        }

        // Memory with the layout of that daemon, into whose ring its answers are written.
        let layout = welcome.layout;
        let mut session = ServerSession::create(Sizes {
            command_bytes: layout.command_ring().capacity,
            reply_bytes: layout.reply_ring().capacity,
            event_slots: layout.event_slots(),
            staging_bytes: layout.staging_bytes(),
            host_bytes: layout.host_bytes(),
        })
        .unwrap();
        assert_eq!(session.layout(), layout);
        let [memory, bell] =
            session.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
        session.sent_fds();
        let mapping = Arc::new(Mapping::new(memory.as_fd(), layout.total()).unwrap());
        let mut ring = Producer::new(mapping, layout.reply_ring());
        for reply in &recording.replies {
            assert!(ring.push(reply.kind, reply.flags, reply.sequence, &reply.body).unwrap());
        }
        let mut end = ClientEnd::attach(&welcome, &memory, bell).unwrap();
        let mut outcomes = Vec::new();
        while let Some(answered) = end.replies.poll().unwrap() {
            outcomes.push((answered.sequence.0, answered.outcome.unwrap()));
        }
        let asked = recording.requests.iter().filter(|request| request.wants_reply());
        let asked: Vec<u64> = asked.map(|request| request.sequence).collect();
        let answered: Vec<u64> = outcomes.iter().map(|(sequence, _)| *sequence).collect();
        assert_eq!(answered, asked, "2.{minor}");
        let modules = outcomes.iter().filter_map(|(_, reply)| match reply {
            Reply::Module(module) => Some(module),
            _ => None,
        });
        let names: Vec<_> =
            modules.flat_map(|module| &module.kernels).map(|kernel| &*kernel.name).collect();
        assert!(names.contains(&"spin"), "{names:?}");
        let addresses = outcomes.iter().filter(|(_, reply)| matches!(reply, Reply::Address(_)));
        assert_eq!(addresses.count(), 2);
    }
}
