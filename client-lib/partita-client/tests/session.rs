//! A session against a data plane without a device, both in this process.
#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

mod fake;
#[path = "../../partita-wire/tests/versions/recording.rs"]
mod recording;

use fake::{BASE, FAULTING, LAST_WORDS, MEMORY};
use partita_client::image::{self, Image, ImageKind};
use partita_client::{
    CallError, ConnectError, Console, Launch, ModuleHandle, Session, StreamHandle, code,
};
use partita_model::{DeviceAddress, Dim3, GpuNumber};
use partita_wire::{Answer, Sizes};
use std::sync::{Arc, Mutex};
use std::thread;

const LEGACY: StreamHandle = StreamHandle::LEGACY;
/// An arena that a large copy goes through many times.
const SMALL: Sizes = Sizes {
    command_bytes: 1 << 17,
    reply_bytes: 1 << 16,
    event_slots: 8,
    staging_bytes: 1 << 16,
    host_bytes: 1 << 20,
};

/// A daemon in threads of this process.
fn daemon(sizes: Sizes) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let socket = fake::listen(dir.path());
    thread::spawn(move || fake::serve(&socket, sizes));
    dir
}

fn connect(sizes: Sizes) -> (tempfile::TempDir, Session) {
    let dir = daemon(sizes);
    let session = Session::connect(dir.path()).unwrap();
    (dir, session)
}

fn launch(kernel: u32, params: &[u8]) -> Launch<&[u8]> {
    Launch {
        module: ModuleHandle(1),
        kernel,
        grid: Dim3::linear(10),
        block: Dim3::linear(128),
        dynamic_shared: 0,
        stream: LEGACY,
        cooperative: false,
        cluster: Dim3::linear(1),
        params,
    }
}

/// Bytes without a short period.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(&mut next).take(length / 8 + 1).flatten().collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn the_device_and_the_window_are_known() {
    let (_dir, session) = connect(Sizes::default());
    assert_eq!(session.facts(), &fake::facts());
    assert_eq!(
        (session.window().base, session.window().bytes),
        (DeviceAddress(BASE), MEMORY as u64)
    );
    assert_eq!(session.mem_info(), Ok((1, MEMORY as u64)));
}

#[test]
fn copies_of_every_size_come_back() {
    for sizes in [SMALL, Sizes::default()] {
        let (_dir, session) = connect(sizes);
        for length in [1, 7, 255, 256, 257, 16_384, 65_536, 1 << 20, (3 << 20) + 5] {
            let address = session.mem_alloc(length as u64).unwrap();
            let bytes = pattern(length, length as u64);
            session.copy_to_device(LEGACY, address, &bytes).unwrap();
            let mut back = vec![0; length];
            session.copy_to_host(LEGACY, &mut back, address).unwrap();
            assert!(back == bytes, "{length} bytes through {}", sizes.staging_bytes);
        }
        session.copy_to_device(LEGACY, DeviceAddress(BASE), &[]).unwrap();
        session.copy_to_host(LEGACY, &mut [], DeviceAddress(BASE)).unwrap();
    }
}

#[test]
fn device_side_copies_and_fills_keep_their_place_in_the_order() {
    let (_dir, session) = connect(SMALL);
    let address = session.mem_alloc(64).unwrap();
    let at = |offset| DeviceAddress(address.0 + offset);
    session.copy_to_device_async(LEGACY, address, &[9; 64]).unwrap();
    session.fill(LEGACY, address, 0x0403_0201, 4, 2).unwrap();
    session.copy_on_device(LEGACY, at(16), address, 8).unwrap();
    session.fill(LEGACY, at(8), 0x0605, 2, 1).unwrap();
    let mut back = [0; 18];
    session.copy_to_host(LEGACY, &mut back, address).unwrap();
    assert_eq!(back, [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 9, 9, 9, 9, 9, 9, 1, 2]);
}

#[test]
fn bad_copies_fail_with_words_and_leave_the_session_usable() {
    let (_dir, session) = connect(SMALL);
    let address = session.mem_alloc(100_000).unwrap();
    let end = DeviceAddress(address.0 + 99_000);
    let check = |result: Result<(), CallError>, part: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.code, code::INVALID_VALUE, "{error}");
        assert!(error.text.contains(part), "{error}");
    };
    check(session.copy_to_device(LEGACY, DeviceAddress(5), &[0]), "not device memory");
    check(session.copy_to_device(LEGACY, end, &[0; 200_000]), "is not live");
    check(session.copy_to_host(LEGACY, &mut [0; 200_000], end), "is not live");
    check(session.fill(LEGACY, DeviceAddress(u64::MAX), 0, 1, 5), "not device memory");
    check(session.fill(LEGACY, address, 0, 3, 5), "cannot fill");
    check(session.fill(LEGACY, DeviceAddress(address.0 + 1), 0, 4, 5), "cannot fill");
    check(
        session.copy_on_device(LEGACY, address, DeviceAddress(BASE), u64::MAX),
        "not device memory",
    );
    session.copy_to_device_async(LEGACY, end, &[0; 2000]).unwrap();
    check(session.synchronize(None), "is not live");
    session.synchronize(None).unwrap();
    for _ in 0..100 {
        session.copy_to_device(LEGACY, address, &[1; 100_000]).unwrap();
    }
}

#[test]
fn modules_of_many_chunks_arrive_whole() {
    let (_dir, session) = connect(SMALL);
    let device = session.facts().compute_capability;
    let mut text = b".version 8.0 // a large one\n".to_vec();
    text.resize(1_000_000, b' ');
    text.push(b'\n');
    text.extend([0; 8]);
    let image = image::select(&text, device).unwrap();
    assert_eq!((image.kind, image.bytes.len()), (ImageKind::Ptx, 1_000_001), "without the NULs");
    let module = session.load_module(&image).unwrap();
    assert!(module.contents.kernels[0].name.starts_with(".version 8.0 // a large one"));
    assert_eq!(module.contents.variables[0].bytes, 1_000_001);
    session.unload_module(module.module).unwrap();
    let empty = Image { kind: ImageKind::Ptx, bytes: &[], unpacked_bytes: 0 };
    assert_eq!(session.load_module(&empty).unwrap_err().code, code::INVALID_IMAGE);
}

#[test]
fn a_fault_sticks_to_everything_after_it() {
    let (_dir, session) = connect(SMALL);
    session.launch(launch(0, &[1, 2, 3])).unwrap();
    session.synchronize(Some(LEGACY)).unwrap();
    let event = session.create_event().unwrap();
    session.launch(launch(FAULTING, &[])).unwrap();
    // Whether that launch is still written down depends on who is faster; nothing after the wait
    // can be.
    let _either = session.record_event(event, LEGACY);
    let errors = [
        session.synchronize(None),
        session.synchronize_event(event),
        session.launch(launch(0, &[])),
        session.mem_alloc(1).map(|_| ()),
        session.copy_to_host(LEGACY, &mut [0], DeviceAddress(BASE)),
        session.query_event(event).map(|_| ()),
        session.check(),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().code, code::ILLEGAL_ADDRESS);
    }
}

#[test]
fn last_words_come_before_the_error() {
    static HEARD: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let dir = daemon(SMALL);
    let session = Session::connect_with_output(dir.path(), |console, text| {
        assert_eq!(console, Console::Error);
        HEARD.lock().unwrap().extend_from_slice(text);
    })
    .unwrap();
    session.launch(launch(FAULTING, &[])).unwrap();
    // Nothing is waited for: the error is there for who looks.
    while session.check().is_ok() {
        thread::yield_now();
    }
    assert_eq!(*HEARD.lock().unwrap(), LAST_WORDS.as_bytes());
}

#[test]
fn functions_of_the_host_are_called_even_if_the_session_fails_meanwhile() {
    let (_dir, session) = connect(SMALL);
    let session = Arc::new(session);
    let called = Arc::new(Mutex::new(Vec::new()));
    for name in ["the first", "the second"] {
        let (within, called) = (session.clone(), called.clone());
        let call = move |outcome: Result<(), CallError>| {
            called.lock().unwrap().push((name, outcome.is_ok()));
            let _ = within.launch(launch(FAULTING, &[]));
            while within.check().is_ok() {
                thread::yield_now();
            }
        };
        session.call_host(LEGACY, call).unwrap();
    }
    assert_eq!((session.serve_gate(), session.serve_gate()), (Ok(()), Ok(())));
    assert_eq!(*called.lock().unwrap(), [("the first", true), ("the second", true)]);
}

#[test]
fn too_many_parameters_are_refused_at_the_call() {
    let (_dir, session) = connect(SMALL);
    assert_eq!(session.launch(launch(0, &[0; 32_765])).unwrap_err().code, code::INVALID_VALUE);
    session.launch(launch(0, &[0; 32_764])).unwrap();
    session.synchronize(None).unwrap();
}

#[test]
fn events_happen_in_order_and_slots_are_used_again() {
    let (_dir, session) = connect(SMALL);
    let stream = session.create_stream(true, 0).unwrap();
    let (start, end) = (session.create_event().unwrap(), session.create_event().unwrap());
    assert_eq!(session.query_event(start), Ok(true), "never recorded");
    assert_eq!(session.elapsed_ns(start, end).unwrap_err().code, code::INVALID_HANDLE);
    session.record_event(start, stream).unwrap();
    session.launch(launch(0, &[])).unwrap();
    session.wait_event(stream, start).unwrap();
    session.record_event(end, stream).unwrap();
    session.synchronize_event(end).unwrap();
    assert_eq!(session.elapsed_ns(start, end), Ok(3000));
    assert_eq!(session.elapsed_ns(end, start), Ok(-3000));
    assert_eq!(session.query_stream(stream), Ok(false));
    assert_eq!(session.query_stream(LEGACY), Ok(true));
    for _ in 0..100 {
        let more: Vec<_> = (0..6).map(|_| session.create_event().unwrap()).collect();
        assert_eq!(
            session.create_event().unwrap_err().code,
            code::OUT_OF_MEMORY,
            "all slots are in use"
        );
        for event in more {
            assert_eq!(session.query_event(event), Ok(true), "an old record does not show");
            session.record_event(event, LEGACY).unwrap();
            session.synchronize_event(event).unwrap();
            session.destroy_event(event).unwrap();
            assert_eq!(session.record_event(event, LEGACY).unwrap_err().code, code::INVALID_HANDLE);
        }
    }
    session.destroy_stream(stream).unwrap();
}

#[test]
fn many_threads_get_their_own_answers() {
    let (_dir, session) = connect(SMALL);
    thread::scope(|scope| {
        for thread in 0..16_u64 {
            let session = &session;
            scope.spawn(move || {
                let length = 1000 + usize::try_from(thread).unwrap() * 9000;
                let address = session.mem_alloc(length as u64).unwrap();
                let event = session.create_event().ok();
                for round in 0..50 {
                    let bytes = pattern(length, thread << 8 | round);
                    session.copy_to_device_async(LEGACY, address, &bytes).unwrap();
                    for _ in 0..20 {
                        session.launch(launch(0, &[0; 500])).unwrap();
                    }
                    if let Some(event) = event {
                        session.record_event(event, LEGACY).unwrap();
                        session.synchronize_event(event).unwrap();
                    }
                    let mut back = vec![0; length];
                    session.copy_to_host(LEGACY, &mut back, address).unwrap();
                    assert!(back == bytes, "thread {thread}, round {round}");
                }
            });
        }
    });
    session.synchronize(None).unwrap();
}

#[test]
fn threads_that_wait_for_each_others_staging_all_go_on() {
    const ROUNDS: usize = 2000;
    let (_dir, session) = connect(SMALL);
    let (done, finished) = std::sync::mpsc::channel();
    // Not scoped: threads that wait for ever are to fail the test, not to hang it.
    let session = Arc::new(session);
    let rendezvous = Arc::new(std::sync::Barrier::new(2));
    for thread in 0..2 {
        let (session, done, rendezvous) = (session.clone(), done.clone(), rendezvous.clone());
        thread::spawn(move || {
            let address = session.mem_alloc(65_536).unwrap();
            let bytes = pattern(65_536, thread);
            let mut back = vec![0; 65_536];
            session.copy_to_device(LEGACY, address, &bytes).unwrap();
            for round in 0..ROUNDS {
                rendezvous.wait();
                // In each round the one may find all taken, and nothing but the other gives it
                // back.
                if thread == 0 {
                    session.copy_to_host(LEGACY, &mut back, address).unwrap();
                    assert!(back == bytes, "round {round}");
                } else {
                    session.copy_to_device_async(LEGACY, address, &bytes[..16_384]).unwrap();
                }
            }
            done.send(()).unwrap();
        });
    }
    drop(done);
    for _ in 0..2 {
        let finished = finished.recv_timeout(std::time::Duration::from_secs(60));
        assert!(
            finished.is_ok(),
            "a thread failed, or waits for ever for staging memory that is free"
        );
    }
}

#[test]
fn several_sessions_of_one_process_are_apart() {
    let dir = daemon(SMALL);
    let sessions: Vec<Session> = (0..3).map(|_| Session::connect(dir.path()).unwrap()).collect();
    sessions[0].launch(launch(FAULTING, &[])).unwrap();
    assert_eq!(sessions[0].synchronize(None).unwrap_err().code, code::ILLEGAL_ADDRESS);
    for session in &sessions[1..] {
        session.synchronize(None).unwrap();
    }
}

#[test]
fn what_is_no_daemon_is_told_so() {
    let check = |answer: &'static [u8], part: &str| {
        let dir = tempfile::tempdir().unwrap();
        let socket = fake::listen(dir.path());
        let server = thread::spawn(move || {
            let connection = rustix::net::accept(&socket).unwrap();
            if !answer.is_empty() {
                partita_wire::message::receive(&connection, 4096).unwrap();
                partita_wire::message::send(&connection, answer, &[]).unwrap();
            }
        });
        let error = Session::connect(dir.path()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(error.contains(&dir.path().join("partitad.sock").display().to_string()), "{error}");
        server.join().unwrap();
    };
    check(b"", "closed the connection in the middle of the handshake");
    check(b"hello", "another program's socket");
    let versions = format!("speaks protocol {}, the daemon 1.0", partita_wire::PROTOCOL);
    check(b"PTAn\x01\0\0\0\x01\0\0\0", &versions);
    check(b"PTAn\x02\0\0\0\x02\0\0\0\x03\0\0\0\x03\0\0\0no!", "refused: no!");
}

#[test]
fn a_handshake_that_breaks_off_is_made_once_more() {
    let dir = tempfile::tempdir().unwrap();
    let first = fake::listen(dir.path());
    let server = thread::spawn({
        let dir = dir.path().to_owned();
        move || {
            let connection = rustix::net::accept(&first).unwrap();
            partita_wire::message::receive(&connection, 4096).unwrap();
            // The first daemon ends, and its socket is dead until the next one listens.
            drop((connection, first));
            thread::sleep(std::time::Duration::from_millis(100));
            std::fs::remove_file(dir.join("partitad.sock")).unwrap();
            let next = fake::listen(&dir);
            let connection = rustix::net::accept(&next).unwrap();
            fake::welcome(&connection, SMALL).unwrap()
        }
    });
    let session = Session::connect(dir.path()).unwrap();
    assert_eq!(session.facts(), &fake::facts());
    server.join().unwrap();
}

/// The daemon welcomes as one of that version did; the session behind it knows what that one knew.
#[test]
fn an_older_daemon_gives_service_or_a_sentence() {
    for recording in recording::all() {
        let Answer::Welcome(welcome) = Answer::decode(&recording.answer).unwrap() else {
            panic!("2.{} welcomes", recording.minor);
        };
        let dir = tempfile::tempdir().unwrap();
        let socket = fake::listen(dir.path());
        let layout = welcome.layout;
        let server = thread::spawn(move || {
            for _ in 0..2 {
                let connection = rustix::net::accept(&socket).unwrap();
                partita_wire::message::receive(&connection, 4096).unwrap();
                let mut session = partita_wire::ServerSession::create(Sizes {
                    command_bytes: layout.command_ring().capacity,
                    reply_bytes: layout.reply_ring().capacity,
                    event_slots: layout.event_slots(),
                    staging_bytes: layout.staging_bytes(),
                    host_bytes: layout.host_bytes(),
                })
                .unwrap();
                let fds = session.client_fds().unwrap();
                partita_wire::message::send(&connection, &recording.answer, &fds).unwrap();
                session.sent_fds();
                fake::Plane::new(session).run();
            }
        });
        let session = Session::connect(dir.path()).unwrap();
        let address = session.mem_alloc(64).unwrap();
        session.launch(launch(0, &[])).unwrap();
        session.synchronize(None).unwrap();
        if recording.minor < 3 {
            let error = session.map(address, address, 64).unwrap_err();
            assert_eq!(error.code, code::NOT_SUPPORTED);
            assert!(error.text.contains("older than this library"), "{error}");
            assert!(error.text.contains("restart partitad"), "{error}");
        }
        drop(session);
        let other = Session::connect_to(dir.path(), GpuNumber(1), |_, _| {});
        if recording.minor < 2 {
            let said = other.err().unwrap().to_string();
            assert!(said.contains("restart partitad, which is of another version"), "{said}");
        } else {
            other.unwrap();
        }
        server.join().unwrap();
    }
}

#[test]
fn a_welcome_without_its_descriptors_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = fake::listen(dir.path());
    let server = thread::spawn(move || {
        let connection = rustix::net::accept(&socket).unwrap();
        partita_wire::message::receive(&connection, 4096).unwrap();
        let session = partita_wire::ServerSession::create(SMALL).unwrap();
        let welcome = fake::welcome_message(&session);
        partita_wire::message::send(&connection, &welcome.encode(), &[]).unwrap();
    });
    let error = Session::connect(dir.path()).unwrap_err();
    assert!(matches!(error, ConnectError::Message { .. }), "{error}");
    assert!(error.to_string().contains("0 descriptors instead of 2"), "{error}");
    server.join().unwrap();
}

#[test]
fn host_memory_is_copied_without_staging() {
    let (_dir, session) = connect(SMALL);
    let (address, bytes) = (session.mem_alloc(300_000).unwrap(), pattern(300_000, 5));
    let host = session.host_alloc(300_000).unwrap();
    let range = session.host_range(host, 300_000).expect("an allocation of that size");
    session.copy_to_device(LEGACY, address, &bytes).unwrap();
    session.copy_to_host_memory(LEGACY, range, address).unwrap();
    session.fill(LEGACY, address, 0, 1, 300_000).unwrap();
    session.copy_from_host_memory(LEGACY, address, range).unwrap();
    let mut back = vec![0; 300_000];
    session.copy_to_host(LEGACY, &mut back, address).unwrap();
    assert!(back == bytes);

    assert_eq!(session.host_range(host, 400_000), None, "longer than the allocation");
    assert_eq!(session.host_range(bytes.as_ptr(), 1), None, "memory of the program");
    assert_eq!(session.host_alloc(1 << 20).unwrap_err().code, code::OUT_OF_MEMORY);
    assert_eq!(session.host_alloc(0).unwrap_err().code, code::INVALID_VALUE);
    assert_eq!(session.host_free(host.wrapping_add(4096)).unwrap_err().code, code::INVALID_VALUE);
    let not_live = DeviceAddress(address.0 + 200_000);
    session.copy_from_host_memory(LEGACY, not_live, range).unwrap();
    let error = session.host_free(host).unwrap_err();
    assert_eq!(error.code, code::INVALID_VALUE, "the failed copy is told once");
    session.host_free(host).unwrap();
    assert_eq!(session.host_range(host, 1), None);
    // All but the end, which is the device's.
    let most = (1 << 20) - (1 << 20) / 64;
    assert_eq!(session.host_alloc(most + 1).unwrap_err().code, code::OUT_OF_MEMORY);
    for _ in 0..10 {
        let again = session.host_alloc(most).unwrap();
        let range = session.host_range(again, 1000).unwrap();
        session.copy_from_host_memory(LEGACY, address, range).unwrap();
        session.copy_to_host(LEGACY, &mut back[..1000], address).unwrap();
        assert!(back[..1000].iter().all(|byte| *byte == 0), "used again, and zero");
        session.host_free(again).unwrap();
    }
}
