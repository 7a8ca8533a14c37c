//! An HTTP client that does not wait for answers: it sends requests and reads their answers on
//! threads of their own.

use serde::Deserialize;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// The longest time of the host for a connection and for sending a request. An answer has no limit
/// here: it comes when the GPU has got that far.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: u64 = 64 << 10;

/// What the server says of a request.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Answer {
    /// The words of the result in hexadecimal, eight digits each.
    pub result: String,
    /// Device time from the request's first operation to its last, in nanoseconds.
    pub took_ns: u64,
    /// The GPU's clock when the result was ready, in nanoseconds.
    pub ready_ns: u64,
}

/// The number of a request, and its answer or why there is none.
pub type Answered = (usize, Result<Answer, String>);

/// A client of one server.
pub struct Client {
    address: SocketAddr,
    sender: Sender<Answered>,
    answers: Receiver<Answered>,
}

impl Client {
    /// A client of the server at this port of the loopback interface.
    pub fn new(port: u16) -> Client {
        let (sender, answers) = mpsc::channel();
        Client { address: (Ipv4Addr::LOCALHOST, port).into(), sender, answers }
    }

    /// Sends a request, whose answer [`Client::answered`] gives later. The connection is made
    /// before this returns, so the server takes requests in the order of their calls.
    ///
    /// # Errors
    /// Where the server takes no connection or the system starts no thread.
    pub fn send(&self, number: usize, body: &str) -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let address = self.address;
        let request = format!(
            "POST /infer HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let sender = self.sender.clone();
        thread::Builder::new().name(format!("request-{number}")).spawn(move || {
            // The receiver is gone where the demo has failed.
            drop(sender.send((number, read(stream))));
        })?;
        Ok(())
    }

    /// The answers that have come since the last call.
    pub fn answered(&self) -> Vec<Answered> {
        self.answers.try_iter().collect()
    }
}

/// Reads an answer to the end of its connection.
fn read(stream: TcpStream) -> Result<Answer, String> {
    let mut text = String::new();
    let read = stream.take(LONGEST_ANSWER).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    parse(&text)
}

/// The answer in the text of an HTTP answer.
fn parse(text: &str) -> Result<Answer, String> {
    let (head, body) = text.split_once("\r\n\r\n").ok_or("its connection ended early")?;
    let status = head.lines().next().unwrap_or_default();
    let code = status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split(' ').next());
    if code != Some("200") {
        return Err(format!("`{status}`: {}", body.trim()));
    }
    serde_json::from_str(body).map_err(|error| format!("an answer of another kind: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_refusals_are_told_apart() {
        let body = r#"{"result":"3f80000000000000","took_ns":7,"ready_ns":9}"#;
        let answer = parse(&format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}"));
        let expected = Answer { result: "3f80000000000000".into(), took_ns: 7, ready_ns: 9 };
        assert_eq!(answer, Ok(expected));
        let refused = parse("HTTP/1.1 400 Bad Request\r\n\r\nno number\n").unwrap_err();
        assert_eq!(refused, "`HTTP/1.1 400 Bad Request`: no number");
        assert!(parse("HTTP/1.1 200 OK\r\n\r\n{}").unwrap_err().contains("result"));
        assert!(parse("").is_err());
    }
}
