//! Clients that take their time.

use super::client::{Client, Shape};
use super::{Attack, Outcome, wire};
use partita_client::StreamHandle;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Just below the time for which the emulated device waits for a call.
const ALMOST_TOO_LATE: Duration = Duration::from_millis(900);
/// Connections at once.
const CONNECTIONS: usize = 32;

pub fn calls(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    loop {
        std::thread::sleep(ALMOST_TOO_LATE);
        attack.tally.count(client.session.mem_info())?;
        attack.tally.count(client.launch("tiny", &Shape::of(1), client.data, &[]))?;
    }
}

pub fn api(attack: &mut Attack) -> Outcome {
    let request = b"GET /v1/status HTTP/1.1\r\nHost: partita\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        open.push(attack.tally.count(UnixStream::connect(attack.sockets.join("api.sock")))?);
    }
    for byte in request {
        for stream in &mut open {
            attack.tally.count(stream.write_all(&[*byte]))?;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

pub fn hellos(attack: &mut Attack) -> Outcome {
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        let called = wire::call(&attack.sockets);
        silent.extend(attack.tally.attempt(called));
    }
    std::thread::sleep(attack.random.millis(500, 5000));
    Ok(())
}

pub fn closed_gate(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let session = &client.session;
    let stream = attack.tally.count(session.create_stream(true, 0))?;
    let _gate = attack.tally.count(session.close_gate(stream))?;
    for _ in 0..2000 {
        let shape = Shape { stream, ..Shape::of(100) };
        attack.tally.count(client.launch("busy", &shape, client.data, &[100]))?;
    }
    attack.tally.count(client.launch("busy", &Shape::of(100), client.data, &[100]))?;
    std::thread::sleep(attack.random.millis(500, 3000));
    attack.tally.count(session.query_stream(StreamHandle::LEGACY))?;
    Ok(())
}
