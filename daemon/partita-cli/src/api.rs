//! Asking a daemon: one HTTP request over the first API socket that answers.
//!
//! The answer is bounded in size and time. Refusals arrive as `application/problem+json` (RFC
//! 9457), whose `detail` is what the user reads.

use crate::sockets::{self, API_SOCKET};
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// The longest time that a daemon may take to answer. The daemon waits for its data plane for 10 s
/// in which that has a processor, which take longer on an overloaded host.
const PATIENCE: Duration = Duration::from_secs(120);
/// Repetitions of a question that changes nothing, where the data plane is busy and the daemon has
/// given up.
const RETRIES: u32 = 5;
/// The longest answer that is read, in bytes. A full trace is the longest answer.
const LONGEST_ANSWER: usize = 256 << 20;

/// The daemon that a command asks.
#[derive(Args, Debug, PartialEq, Eq)]
pub struct Target {
    /// The folder of the daemon's sockets. [default: $PARTITA_SOCKET_DIR, else /run/partita, else
    /// $XDG_RUNTIME_DIR/partita]
    #[arg(long, value_name = "DIR")]
    socket_dir: Option<PathBuf>,
}

/// The GPU of the daemon that a command means.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfGpu {
    /// The number of the GPU, where the daemon serves several; `partita status` shows the numbers.
    #[arg(long, value_name = "N")]
    gpu: Option<u16>,
}

impl OfGpu {
    /// The path for that GPU.
    pub fn path(self, path: &str) -> String {
        match self.gpu {
            Some(number) => format!("{path}?gpu={number}"),
            None => path.to_owned(),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No socket accepts a connection.
    #[error(
        "no daemon answers (tried {tried}): start partitad, or name the folder of its sockets \
         with --socket-dir or PARTITA_SOCKET_DIR"
    )]
    NoDaemon {
        /// The sockets that were tried.
        tried: String,
    },
    /// This user may not connect.
    #[error("you may not use {}: {source}; the group of the socket may connect", .socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the daemon at {} did not answer: {reason}", .socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
    /// The answer is not what this version expects.
    #[error("the daemon at {} answered something else than expected: {reason}; install partita \
        and partitad of one version", .socket.display())]
    Unexpected {
        /// The socket.
        socket: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

/// The parts of a problem report that are shown.
#[derive(Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
}

impl Target {
    /// The daemon in this folder.
    pub fn folder(folder: &Path) -> Target {
        Target { socket_dir: Some(folder.to_owned()) }
    }

    /// Whether this process's user may change things: root, or the user who made the socket.
    pub fn is_administrator(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let uid = rustix::process::geteuid();
        let folders = sockets::search(self.socket_dir.as_deref(), |name| std::env::var_os(name));
        let mut owners = folders.iter().filter_map(|folder| {
            std::fs::metadata(folder.join(API_SOCKET)).ok().map(|metadata| metadata.uid())
        });
        uid.is_root() || owners.next() == Some(uid.as_raw())
    }

    /// `GET path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let (socket, body) = self.request(Method::GET, path, None)?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::Unexpected { socket, reason: error.to_string() })
    }

    /// `GET path`, as it comes.
    pub fn get_raw(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        Ok(self.request(Method::GET, path, None)?.1)
    }

    /// `POST path` with a JSON body: a question that changes nothing.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<T, ApiError> {
        let (socket, body) = self.request(Method::POST, path, Some(body.to_string()))?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::Unexpected { socket, reason: error.to_string() })
    }

    /// `PUT path` with a JSON body.
    pub fn put(&self, path: &str, body: &serde_json::Value) -> Result<(), ApiError> {
        self.request(Method::PUT, path, Some(body.to_string())).map(drop)
    }

    /// `DELETE path`.
    pub fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.request(Method::DELETE, path, None).map(drop)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(PathBuf, Vec<u8>), ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ApiError::Broken {
            socket: API_SOCKET.into(),
            reason: error.to_string(),
        })?;
        let retries = if method == Method::GET { RETRIES } else { 0 };
        let once = async || {
            let (socket, stream) = self.connect().await?;
            match tokio::time::timeout(
                PATIENCE,
                exchange(stream, method.clone(), path, body.clone()),
            )
            .await
            {
                Ok(Ok((status, answer))) => Ok((status, socket, answer)),
                Ok(Err(reason)) => Err(ApiError::Broken { socket, reason }),
                Err(_) => Err(ApiError::Broken {
                    socket,
                    reason: format!("{} s have passed", PATIENCE.as_secs()),
                }),
            }
        };
        let (status, socket, answer) = runtime.block_on(async {
            let mut answer = once().await?;
            for _ in 0..retries {
                if answer.0 != StatusCode::GATEWAY_TIMEOUT {
                    break;
                }
                answer = once().await?;
            }
            Ok::<_, ApiError>(answer)
        })?;
        if status.is_success() {
            Ok((socket, answer))
        } else {
            Err(ApiError::Refused(refusal(status, &answer)))
        }
    }

    async fn connect(&self) -> Result<(PathBuf, UnixStream), ApiError> {
        let folders = sockets::search(self.socket_dir.as_deref(), |name| std::env::var_os(name));
        let sockets: Vec<PathBuf> = folders.iter().map(|folder| folder.join(API_SOCKET)).collect();
        let mut denied = None;
        for socket in &sockets {
            match UnixStream::connect(socket).await {
                Ok(stream) => return Ok((socket.clone(), stream)),
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    denied = denied.or(Some(ApiError::Denied { socket: socket.clone(), source }));
                }
                Err(_) => {}
            }
        }
        Err(denied.unwrap_or_else(|| ApiError::NoDaemon { tried: sockets::list(&sockets) }))
    }
}

async fn exchange(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<(StatusCode, Vec<u8>), String> {
    let mut request = Request::builder().method(method).uri(path).header("host", "partita");
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let request = request
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ends with the runtime, or with an error that the sender sees too.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok((status, body.to_bytes().to_vec()))
}

/// The text of a refusal for the user.
fn refusal(status: StatusCode, answer: &[u8]) -> String {
    let problem: Option<Problem> = serde_json::from_slice(answer).ok();
    problem
        .and_then(|problem| problem.detail.or(problem.title))
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| format!("the daemon refused with {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_the_most_that_is_known() {
        let check = |body: &str, expected: &str| {
            assert_eq!(refusal(StatusCode::CONFLICT, body.as_bytes()), expected, "{body}");
        };
        check(r#"{"title": "conflict", "detail": "SMs 3-4 are taken"}"#, "SMs 3-4 are taken");
        check(r#"{"title": "conflict", "status": 409}"#, "conflict");
        check(r#"{"title": ""}"#, "the daemon refused with 409 Conflict");
        check("<html>", "the daemon refused with 409 Conflict");
        check("", "the daemon refused with 409 Conflict");
    }
}
