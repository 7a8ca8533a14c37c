//! Users with many sessions.

use super::users::{as_user, open_daemon, open_daemon_on};
use super::{Client, Daemon, PATIENCE};
use partita_client::Session;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, recv, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Opens sessions until one is refused, and says why; at most so many.
fn fill(daemon: &Daemon, most: usize) -> (Vec<Session>, Option<String>) {
    // A session has descriptors here, too.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let mut sessions = Vec::new();
    while sessions.len() < most {
        match Session::connect(&daemon.sockets()) {
            Ok(session) => sessions.push(session),
            Err(error) => return (sessions, Some(error.to_string())),
        }
    }
    (sessions, None)
}

#[test]
fn one_user_leaves_sessions_for_others() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let (mut held, refusal) = as_user(1001, || fill(&daemon, 2000));
    assert_eq!(held.len(), 160, "{refusal:?}");
    let refusal = refusal.unwrap();
    for word in ["refused", "uid 1001 has 160 sessions", "end some", "raise sessions_per_user"] {
        assert!(refusal.contains(word), "`{word}` in {refusal}");
    }
    // Another user and root are served meanwhile.
    let (others, refusal) = as_user(1002, || fill(&daemon, 130));
    assert_eq!((others.len(), refusal), (130, None));
    daemon.connect();
    // A session that ends makes room.
    held.truncate(150);
    let start = Instant::now();
    while as_user(1001, || fill(&daemon, 1)).0.is_empty() {
        assert!(start.elapsed() < PATIENCE, "no session is given back");
    }
}

/// Full windows for seven users at their limit do not exist. Small ones do, and whatever a program
/// does goes there, too.
#[test]
fn users_at_their_limits_leave_windows_for_others() {
    for device in ["emu:a100", "emu:a100,guards=on"] {
        let Some(daemon) = open_daemon_on(device, &[]) else { return };
        let mut held: Vec<Session> = Vec::new();
        for uid in 1001..1008 {
            let (sessions, refusal) = as_user(uid, || fill(&daemon, 160));
            assert_eq!((sessions.len(), refusal), (160, None), "user {uid}");
            held.extend(sessions);
        }
        // The first of a user in a full window, the last in a small one, and one who comes later.
        let (last, first) = (held.pop().unwrap(), held.swap_remove(0));
        let (late, _) = as_user(2000, || fill(&daemon, 1));
        let clients: Vec<Client> = [first, last].into_iter().chain(late).map(Client::new).collect();
        assert_eq!(clients.len(), 3);
        for client in &clients {
            client.check(&client.spin(33, 20));
        }
        let totals = clients.iter().map(|client| client.session.mem_info().unwrap().1);
        let [all, small, late] = totals.collect::<Vec<_>>()[..] else { unreachable!() };
        assert!(small == late && (1 << 30..8 << 30).contains(&small) && all > small, "{small}");
        let client = &clients[1];
        assert!(client.session.mem_alloc(small + 1).is_err());
        let large = client.session.mem_alloc(small / 2).unwrap();
        assert!(client.session.mem_info().unwrap().0 <= small / 2);
        client.session.mem_free(large).unwrap();
    }
}

/// Silent connections keep their places for 5 s.
#[test]
fn silent_clients_take_no_places_of_root() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let silent = || (0..128).map(|_| silent_client(&daemon)).collect::<Vec<_>>();
    let held: Vec<_> = (1001..1005).flat_map(|uid| as_user(uid, silent)).collect();
    let (_, refusal) = as_user(1005, || fill(&daemon, 1));
    let text = refusal.unwrap();
    assert!(text.contains("512 connections have not become sessions"), "{text}");
    let (_, refusal) = as_user(1001, || fill(&daemon, 1));
    let text = refusal.unwrap();
    assert!(text.contains("uid 1001 has 128 connections"), "{text}");
    let (_root, refusal) = fill(&daemon, 1);
    assert_eq!(refusal, None);
    // Root did not wait until they had lost their places.
    let mut byte = [0];
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let lost = held.iter().filter(|client| recv(client, &mut byte[..], peek).is_ok()).count();
    assert_eq!(lost, 0);
}

/// One that says nothing.
fn silent_client(daemon: &Daemon) -> OwnedFd {
    let path = daemon.sockets().join("partitad.sock");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    socket
}

#[test]
fn the_configuration_says_how_many_sessions_a_user_has() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    std::fs::write(&config, "[policy]\npartitioner = \"even\"\nsessions_per_user = 3\n").unwrap();
    let daemon = Daemon::with(&["--config", config.to_str().unwrap()]);
    let (held, refusal) = fill(&daemon, 5);
    assert_eq!(held.len(), 3);
    assert!(refusal.unwrap().contains("has 3 sessions on this GPU"));
    assert!(daemon.log().contains("has 3 sessions on this GPU"), "{}", daemon.log());
}
