//! An API that a test plays: answers of its own over a socket of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "not every test plays all of it")]

use crate::common::{partita, text};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread::JoinHandle;
use tempfile::TempDir;

/// An API socket that gives its answers in order and keeps what it was asked.
pub struct Api {
    folder: TempDir,
    served: JoinHandle<Vec<String>>,
}

impl Api {
    pub fn answering(status: &str, body: &str) -> Api {
        Api::answering_each(&[(status, body)])
    }

    /// One answer after the other, each over a connection of its own.
    pub fn answering_each(answers: &[(&str, &str)]) -> Api {
        Api::answering_with("", answers)
    }

    /// The same, with lines for the head of each answer.
    pub fn answering_with(head: &str, answers: &[(&str, &str)]) -> Api {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let answer = |(status, body): &(&str, &str)| {
            let length = body.len();
            format!("HTTP/1.1 {status}\r\n{head}content-length: {length}\r\n\r\n{body}")
        };
        Api::playing(folder, listener, answers.iter().map(answer).collect())
    }

    /// The same with events, after which each connection ends.
    pub fn telling_each(events: &[&str]) -> Api {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let answer = |events: &&str| {
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{events}")
        };
        Api::playing(folder, listener, events.iter().map(answer).collect())
    }

    fn playing(folder: TempDir, listener: UnixListener, answers: Vec<String>) -> Api {
        let served = std::thread::spawn(move || {
            let play = |answer: String| {
                let (mut stream, _) = listener.accept().unwrap();
                let request = read_request(&mut stream);
                stream.write_all(answer.as_bytes()).unwrap();
                request
            };
            answers.into_iter().map(play).collect()
        });
        Api { folder, served }
    }

    pub fn partita(&self, args: &[&str]) -> Command {
        let mut command = partita(args);
        command.env("PARTITA_SOCKET_DIR", self.folder.path());
        command
    }

    /// What was asked last.
    pub fn asked(self) -> String {
        self.asked_each().pop().unwrap()
    }

    pub fn asked_each(self) -> Vec<String> {
        self.served.join().unwrap()
    }
}

/// Reads as far as the headers say that the request goes.
fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    let head = text(&request).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    text(&request) + &text(&body)
}
