//! Floods: more of everything than a program needs.

use super::client::{self, Client, Shape};
use super::{Attack, Outcome, bombs, wire};
use partita_client::{Session, StreamHandle};
use partita_model::{DeviceAddress, Timekeeping};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Allocations that are live at once.
const ALLOCATIONS: usize = 1000;
/// Sessions that are asked for at once: more than a user may have.
const SESSIONS: usize = 200;
/// Kernels of a module.
const KERNELS: usize = 400;
/// Streams at once.
const STREAMS: usize = 200;
/// Bytes of a copy.
const COPIED: usize = 4 << 20;
/// Connections to the API at once.
const ASKED: usize = 8;
/// For how long the act waits for an answer. A request without its end has none.
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);

pub fn allocations(attack: &mut Attack) -> Outcome {
    let session = attack.session()?;
    loop {
        let mut live = Vec::new();
        for _ in 0..ALLOCATIONS {
            live.push(attack.tally.count(session.mem_alloc(1))?);
        }
        for address in live {
            attack.tally.count(session.mem_free(address))?;
        }
    }
}

pub fn launches(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    loop {
        attack.tally.count(client.launch("tiny", &Shape::of(1), client.data, &[]))?;
    }
}

/// Launches that last, in several streams, with fills between them.
pub fn long_launches(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    launch_in_streams(attack, &client, &Shape::of(500), 400)
}

/// Launches without a pause, as a well-behaved tenant makes them.
pub fn busy(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    match client.session.facts().timekeeping {
        // What counts is the work of the host, so the SMs are full.
        Timekeeping::Off => launch_in_streams(attack, &client, &Shape::of(500), 400),
        // Few warps hold an SM as well as many, and cost the emulator less.
        _ => launch_in_streams(attack, &client, &Shape { threads: 32, ..Shape::of(48) }, 1000),
    }
}

fn launch_in_streams(attack: &mut Attack, client: &Client, shape: &Shape, steps: u32) -> Outcome {
    let session = &client.session;
    let mut streams = vec![StreamHandle::LEGACY];
    for _ in 0..3 {
        streams.push(attack.tally.count(session.create_stream(true, 0))?);
    }
    loop {
        for stream in &streams {
            // The other streams have work meanwhile: the SMs never wait for this process.
            attack.tally.count(session.synchronize(Some(*stream)))?;
            let shape = Shape { stream: *stream, ..*shape };
            attack.tally.count(client.launch("busy", &shape, client.data, &[steps]))?;
            attack.tally.count(session.fill(*stream, client.data, 0, 1, client::BYTES))?;
        }
    }
}

pub fn copies(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let session = &client.session;
    let data = attack.tally.count(session.mem_alloc(COPIED as u64))?;
    let mut bytes = vec![7; COPIED];
    loop {
        attack.tally.count(session.copy_to_device(StreamHandle::LEGACY, data, &bytes))?;
        attack.tally.count(client.launch("busy", &Shape::of(200), client.data, &[100]))?;
        attack.tally.count(session.copy_to_host(StreamHandle::LEGACY, &mut bytes, data))?;
    }
}

pub fn streams(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let session = &client.session;
    let event = attack.tally.count(session.create_event())?;
    // Each waits for the one before, or none does.
    let is_chain = attack.random.below(2) == 0;
    loop {
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let stream = attack.tally.count(session.create_stream(true, 0))?;
            if is_chain {
                attack.tally.count(session.wait_event(stream, event))?;
            }
            let shape = Shape { stream, ..Shape::of(1) };
            attack.tally.count(client.launch("tiny", &shape, client.data, &[]))?;
            attack.tally.count(session.record_event(event, stream))?;
            streams.push(stream);
        }
        for stream in streams {
            attack.tally.count(session.destroy_stream(stream))?;
        }
    }
}

pub fn sessions(attack: &mut Attack) -> Outcome {
    let mut held: Vec<Session> = Vec::new();
    for _ in 0..SESSIONS {
        let asked = Session::connect(&attack.sockets);
        let Some(session) = attack.tally.attempt(asked) else { continue };
        attack.tally.attempt(session.mem_alloc(1 << 20));
        held.push(session);
    }
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// A module of small kernels that no other module has.
pub fn small_kernels(kernels: usize, number: u64) -> String {
    let mut text = format!(".version 8.0\n.target sm_75\n.address_size 64\n// {number}\n");
    for kernel in 0..kernels {
        writeln!(
            text,
            ".visible .entry k{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<2>;\n\
             ld.param.u64 %d1, [p];\nmov.u32 %r1, {};\nst.global.u32 [%d1], %r1;\nret;\n}}",
            (number.wrapping_add(kernel as u64)) & 0xffff
        )
        .expect("a string takes text");
    }
    text
}

pub fn modules(attack: &mut Attack) -> Outcome {
    let session = attack.session()?;
    loop {
        let text = small_kernels(KERNELS, attack.random.bits());
        let loaded = client::load(attack, &session, &text)?;
        if attack.random.below(2) == 0 {
            attack.tally.count(session.unload_module(loaded.module))?;
        }
    }
}

pub fn log(attack: &mut Attack) -> Outcome {
    match attack.random.below(3) {
        0 => bombs::faults(attack),
        1 => wire::garbage(attack),
        _ => {
            let session = attack.session()?;
            for _ in 0..20 {
                let text = format!(
                    ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry {}(",
                    "\u{1b}[31mx".repeat(2000)
                );
                let loaded = client::load(attack, &session, &text);
                if let Err(refused) = loaded {
                    attack.tally.refuse(refused);
                }
                // No stream, no memory, no module.
                let nothing = DeviceAddress(1);
                attack.tally.attempt(session.mem_free(nothing));
            }
            Ok(())
        }
    }
}

pub fn api(attack: &mut Attack) -> Outcome {
    let requests = [
        "GET /v1/status HTTP/1.1\r\nHost: partita\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /v1/trace HTTP/1.1\r\nHost: partita\r\nConnection: close\r\n\r\n".to_owned(),
        "DELETE /v1/plan HTTP/1.1\r\nHost: partita\r\nConnection: close\r\n\r\n".to_owned(),
        "DELETE /v1/sessions/1/launches HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            .to_owned(),
        "PUT /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n[[[[[[".to_owned(),
        format!(
            "PUT /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{}",
            "[".repeat(60000)
        ),
        format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000)),
        "\0\u{1}garbage\r\n\r\n".to_owned(),
    ];
    let socket = attack.sockets.join("api.sock");
    let mut open = Vec::new();
    for _ in 0..ASKED {
        let asked = UnixStream::connect(&socket);
        let Some(mut stream) = attack.tally.attempt(asked) else { continue };
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
        let request = attack.random.one_of(&requests);
        // The daemon may have read enough before the end.
        let _ = stream.write_all(request.as_bytes());
        open.push(stream);
    }
    for mut stream in open {
        if attack.random.below(4) == 0 {
            continue;
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        if !answer.starts_with(b"HTTP/1.1 2") {
            let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
            attack.tally.refuse(super::Refused(String::from_utf8_lossy(line).into_owned()));
        }
    }
    Ok(())
}
