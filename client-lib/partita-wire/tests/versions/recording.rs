//! What a program and a daemon of one version said to each other, as `record.py` wrote it down.
//!
//! Each file is the work of that version's own library and daemon, so it is never written by hand,
//! and never changed: a new minor version gets a file of its own.

#![allow(dead_code, reason = "not every test that uses this module reads everything")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use partita_wire::{Record, WANTS_REPLY};
use serde_json::Value;

/// All recordings, oldest first.
const FILES: [&str; 4] = [
    include_str!("2.1.json"),
    include_str!("2.3.json"),
    include_str!("2.4.json"),
    include_str!("2.5.json"),
];

/// A conversation.
pub struct Recording {
    /// The protocol's minor version of both sides; the major version is 2.
    pub minor: u16,
    /// The client's first message.
    pub hello: Vec<u8>,
    /// The daemon's answer, without its descriptors.
    pub answer: Vec<u8>,
    /// The records of the command ring.
    pub requests: Vec<Recorded>,
    /// The records of the reply ring.
    pub replies: Vec<Recorded>,
    /// The place in the arena of what the last copy to the host brought.
    pub result_offset: u64,
    /// What it brought.
    pub result: Vec<u8>,
}

/// A record of a ring.
pub struct Recorded {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u64,
    pub body: Vec<u8>,
}

impl Recorded {
    pub fn wants_reply(&self) -> bool {
        self.flags & WANTS_REPLY != 0
    }
}

impl Record for Recorded {
    fn kind(&self) -> u16 {
        self.kind
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(&self.body);
    }
}

/// Reads all recordings, oldest first.
pub fn all() -> Vec<Recording> {
    FILES.iter().map(|text| read(&serde_json::from_str(text).unwrap())).collect()
}

fn read(file: &Value) -> Recording {
    let records = |key: &str| file[key].as_array().unwrap().iter().map(record).collect();
    Recording {
        minor: number(&file["minor"]),
        hello: bytes(&file["hello"]),
        answer: bytes(&file["answer"]),
        requests: records("requests"),
        replies: records("replies"),
        result_offset: file["result"]["offset"].as_u64().unwrap(),
        result: bytes(&file["result"]["bytes"]),
    }
}

fn record(value: &Value) -> Recorded {
    Recorded {
        kind: number(&value["kind"]),
        flags: number(&value["flags"]),
        sequence: value["sequence"].as_u64().unwrap(),
        body: bytes(&value["body"]),
    }
}

fn number(value: &Value) -> u16 {
    u16::try_from(value.as_u64().unwrap()).unwrap()
}

fn bytes(hexadecimal: &Value) -> Vec<u8> {
    let digit = |digit: &u8| u8::try_from(char::from(*digit).to_digit(16).unwrap()).unwrap();
    let pairs = hexadecimal.as_str().unwrap().as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|[high, low]| digit(high) << 4 | digit(low)).collect()
}
