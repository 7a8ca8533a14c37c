//! Questions to `partitad`: HTTP/1.1 over the Unix socket `api.sock`.
//!
//! Each question has a time limit, because a prolog and an epilog hold up a node.

use serde_json::Value;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const LONGEST: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The daemon is not there, or does not answer.
    #[error(
        "partitad does not answer at {}: {source}; look at `systemctl status partitad`",
        .socket.display()
    )]
    Silent { socket: PathBuf, source: io::Error },
    /// The daemon refuses, and says why.
    #[error("partitad refused it ({status}): {detail}")]
    Refused { status: u16, detail: String },
    /// The answer is not HTTP.
    #[error(
        "{} does not answer as partitad does: name its folder by socket_dir= in plugstack.conf",
        .0.display()
    )]
    Strange(PathBuf),
}

/// Asks, and returns the body of a good answer.
pub(crate) fn ask(
    folder: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ApiError> {
    let socket = folder.join("api.sock");
    let answer = exchange(&socket, method, path, body)
        .map_err(|source| ApiError::Silent { socket: socket.clone(), source })?;
    let (status, content) = parse(&answer).ok_or(ApiError::Strange(socket))?;
    match status {
        200..=299 => Ok(content),
        _ => {
            let detail = content["detail"].as_str().unwrap_or("it does not say why").to_owned();
            Err(ApiError::Refused { status, detail })
        }
    }
}

fn exchange(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: partita\r\nConnection: close\r\n\
         Cache-Control: no-cache\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The status and the body of an answer; `null` for an empty body.
fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let line = head.lines().next()?.strip_prefix("HTTP/1.")?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    // An answer without JSON tells by its status alone.
    Some((status, serde_json::from_str(body).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::net::UnixListener;

    /// The answer to a question whose daemon says `text`, and what the daemon has read.
    fn asked(text: &'static str) -> (Result<Value, ApiError>, String) {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = Vec::new();
            while !question.ends_with(br#"{"sms":3}"#) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                question.push(byte[0]);
            }
            stream.write_all(text.as_bytes()).unwrap();
            String::from_utf8(question).unwrap()
        });
        let answer = ask(folder.path(), "PUT", "/v1/reservations/a", Some(&json!({"sms": 3})));
        (answer, daemon.join().unwrap())
    }

    #[test]
    fn an_answer_is_a_body_or_a_reason() {
        let (answer, question) = asked("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"sms\":3}");
        assert_eq!(answer.unwrap(), json!({"sms": 3}));
        assert!(question.starts_with("PUT /v1/reservations/a HTTP/1.1\r\n"), "{question}");
        assert!(question.contains("Content-Length: 9\r\n"), "{question}");
        assert_eq!(asked("HTTP/1.1 204 No Content\r\n\r\n").0.unwrap(), Value::Null);
        let refused = asked("HTTP/1.1 409 Conflict\r\n\r\n{\"detail\": \"no SMs left\"}").0;
        assert_eq!(refused.unwrap_err().to_string(), "partitad refused it (409): no SMs left");
        assert!(matches!(asked("SSH-2.0\r\n\r\n").0, Err(ApiError::Strange(_))));
    }

    #[test]
    fn without_a_daemon_the_error_names_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let error = ask(folder.path(), "GET", "/v1/reservations", None).unwrap_err().to_string();
        assert!(error.contains("api.sock") && error.contains("systemctl status"), "{error}");
    }
}
