//! What crosses the process border: messages of the handshake, records, frames of the supervision,
//! and the memory of a session.
//!
//! The first byte says what the rest is:
//!
//! | byte | rest |
//! | --- | --- |
//! | `h` | a client's hello |
//! | `a` | a daemon's answer |
//! | `r` | a record: kind, flags, body |
//! | `f` | frames between `partitad` and `partita-gpu` |
//! | `o` | a packet that hands a client over |
//! | `s` | what a peer does to a session's memory: see `session.rs` |

use crate::bytes::Bytes;
use crate::session;
use partita_gpu::uploads::Uploads;
use partita_wire::supervise::{FrameReader, FromGpu, HandOver, ToGpu, encode};
use partita_wire::{Answer, Hello, MAX_MESSAGE, Received, Record};

/// Checks a message.
///
/// # Panics
/// Where what is read is not what was written.
pub fn check(input: &[u8]) {
    let mut bytes = Bytes(input);
    match bytes.byte() {
        b'h' => hello(bytes.0),
        b'a' => answer(bytes.0),
        b'r' => record(bytes),
        b'f' => {
            frames::<ToGpu>(bytes.0);
            frames::<FromGpu>(bytes.0);
        }
        b'o' => {
            if let Ok(packet) = serde_json::from_slice::<HandOver>(bytes.0) {
                let again = serde_json::to_vec(&packet).expect("a packet has a text");
                let again: HandOver = serde_json::from_slice(&again).expect("its own text");
                assert_eq!(again, packet);
            }
        }
        b's' => session::play(bytes),
        _ => {}
    }
}

fn hello(bytes: &[u8]) {
    let Ok(hello) = Hello::decode(bytes) else { return };
    let written = hello.encode();
    assert!(written.len() <= MAX_MESSAGE);
    assert_eq!(Hello::decode(&written), Ok(hello));
}

fn answer(bytes: &[u8]) {
    let Ok(answer) = Answer::decode(bytes) else { return };
    let written = answer.encode();
    assert!(written.len() <= MAX_MESSAGE);
    assert_eq!(Answer::decode(&written), Ok(answer));
}

fn record(mut bytes: Bytes<'_>) {
    let (kind, flags) = (bytes.u16(), bytes.u16());
    let Ok(record) = Received::decode(kind, flags, bytes.0) else { return };
    let mut written = Vec::new();
    let number = match &record {
        Received::Request(request) => {
            request.encode(&mut written);
            request.kind()
        }
        Received::Image(part) => {
            part.encode(&mut written);
            part.kind()
        }
    };
    // A record has one spelling, so nothing in it goes unread.
    assert_eq!((number, written.as_slice()), (kind, bytes.0), "{record:?}");
    if let Received::Image(part) = record {
        // Without its announcement a chunk is refused, and an announcement takes no memory.
        let mut uploads = Uploads::default();
        let _ = uploads.take(part);
        assert_eq!(uploads.bytes(), 0);
    }
}

/// Takes frames apart until the first that is broken or incomplete.
fn frames<T>(bytes: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let mut reader = FrameReader::default();
    reader.push(bytes);
    while let Ok(Some(message)) = reader.next_message::<T>() {
        let written = encode(&message).expect("a message that was read has a frame");
        let mut again = FrameReader::default();
        again.push(&written);
        assert_eq!(again.next_message::<T>().expect("its own frame"), Some(message));
    }
}
