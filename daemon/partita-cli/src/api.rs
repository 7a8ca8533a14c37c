//! Asking a daemon: HTTP over the first API socket that answers.
//!
//! An answer is bounded in size and time; only [`Target::open`] gives one without end. Refusals
//! arrive as `application/problem+json` (RFC 9457), whose `detail` is what the user reads.

use crate::sockets::{self, API_SOCKET};
use crate::table::{Table, bytes};
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use partita_model::TenantId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// The longest time that a daemon may take to answer. The daemon waits for its data plane for 10 s
/// in which that has a processor, which take longer on an overloaded host.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same for a bug report, which is made where a daemon may hang.
const SHORT_PATIENCE: Duration = Duration::from_secs(20);
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
    /// The daemon has no such thing.
    #[error("{0}")]
    Missing(String),
    /// The daemon does not know how to leave out what concerns others.
    #[error("the daemon at {} is older than partita, and would tell about other users too: install \
        partita and partitad of one version", .socket.display())]
    TellsOfOthers {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon has nothing of this name.
    #[error("the daemon at {} has no `{path}`: it is older than this command; install partita and \
        partitad of one version, and restart partitad", .socket.display())]
    Older {
        /// The socket.
        socket: PathBuf,
        /// What was asked for.
        path: String,
    },
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
    #[serde(default)]
    holders: Vec<Holder>,
}

/// A reservation that stands in the way of another.
#[derive(Deserialize)]
struct Holder {
    reservation: String,
    tenant: TenantId,
    job: String,
    sms: u16,
    memory_bytes: u64,
}

/// A request.
#[derive(Clone)]
struct Question<'a> {
    method: Method,
    path: &'a str,
    body: Option<String>,
    header: Option<(&'static str, &'a str)>,
    patience: Duration,
}

impl<'a> Question<'a> {
    fn get(path: &'a str) -> Question<'a> {
        Question { method: Method::GET, path, body: None, header: None, patience: PATIENCE }
    }
}

/// An answer.
struct Answer {
    status: StatusCode,
    /// Where it comes from.
    socket: PathBuf,
    body: Vec<u8>,
    /// Whether the daemon has left out what concerns others.
    is_own: bool,
}

/// The header by which an administrator is answered as any other user, and its value.
const SIGHT: (&str, &str) = ("partita-sight", "own");

impl ApiError {
    /// Whether the daemon has answered, and refused.
    pub fn is_refusal(&self) -> bool {
        matches!(self, ApiError::Refused(_) | ApiError::Missing(_))
    }
}

impl Target {
    /// The daemon in this folder.
    pub fn folder(folder: &Path) -> Target {
        Target { socket_dir: Some(folder.to_owned()) }
    }

    /// The folders in which a daemon is looked for.
    pub fn folders(&self) -> Vec<PathBuf> {
        sockets::search(self.socket_dir.as_deref(), |name| std::env::var_os(name))
    }

    /// Whether this process's user may change things: root, or the user who made the socket.
    pub fn is_administrator(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let uid = rustix::process::geteuid();
        let folders = self.folders();
        let mut owners = folders.iter().filter_map(|folder| {
            std::fs::metadata(folder.join(API_SOCKET)).ok().map(|metadata| metadata.uid())
        });
        uid.is_root() || owners.next() == Some(uid.as_raw())
    }

    /// `GET path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        read(self.request(&Question::get(path))?)
    }

    /// `GET path`, without long waits.
    pub fn get_soon<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        read(self.request(&Question { patience: SHORT_PATIENCE, ..Question::get(path) })?)
    }

    /// `GET path`, as it comes.
    pub fn get_raw(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        Ok(self.request(&Question::get(path))?.body)
    }

    /// `GET path`, as it comes, as one line.
    pub fn get_line(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        let mut answer = self.get_raw(path)?;
        answer.push(b'\n');
        Ok(answer)
    }

    /// `GET path` with no more than any user sees, for administrators too, and without long waits.
    pub fn get_own(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        let header = Some(SIGHT);
        let question = Question { header, patience: SHORT_PATIENCE, ..Question::get(path) };
        let answer = self.request(&question)?;
        match answer.is_own {
            true => Ok(answer.body),
            false => Err(ApiError::TellsOfOthers { socket: answer.socket }),
        }
    }

    /// `POST path` with a JSON body: a question that changes nothing.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<T, ApiError> {
        let body = Some(body.to_string());
        read(self.request(&Question { method: Method::POST, body, ..Question::get(path) })?)
    }

    /// `PUT path` with a JSON body. Whether that made something new.
    pub fn put(&self, path: &str, body: &serde_json::Value) -> Result<bool, ApiError> {
        let body = Some(body.to_string());
        let question = Question { method: Method::PUT, body, ..Question::get(path) };
        Ok(self.request(&question)?.status == StatusCode::CREATED)
    }

    /// `DELETE path`.
    pub fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.request(&Question { method: Method::DELETE, ..Question::get(path) }).map(drop)
    }

    /// `GET path`, whose answer has no end, with a header.
    pub async fn open(
        &self,
        path: &str,
        header: Option<(&'static str, &str)>,
    ) -> Result<Incoming, ApiError> {
        let (socket, stream) = self.connect().await?;
        let question = Question { header, ..Question::get(path) };
        let answer = tokio::time::timeout(PATIENCE, send(stream, &question)).await;
        let broken = |reason| ApiError::Broken { socket, reason };
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(reason)) => return Err(broken(reason)),
            Err(_) => return Err(broken(format!("{} s have passed", PATIENCE.as_secs()))),
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer.into_body());
        }
        let problem = whole(answer).await.map_err(broken)?;
        Err(ApiError::Refused(refusal(status, &problem)))
    }

    fn request(&self, question: &Question<'_>) -> Result<Answer, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ApiError::Broken {
            socket: API_SOCKET.into(),
            reason: error.to_string(),
        })?;
        let may_repeat = question.method == Method::GET && question.patience == PATIENCE;
        let retries = if may_repeat { RETRIES } else { 0 };
        let once = async || {
            let (socket, stream) = self.connect().await?;
            match tokio::time::timeout(question.patience, exchange(stream, question)).await {
                Ok(Ok((status, is_own, body))) => Ok(Answer { status, socket, body, is_own }),
                Ok(Err(reason)) => Err(ApiError::Broken { socket, reason }),
                Err(_) => Err(ApiError::Broken {
                    socket,
                    reason: format!("{} s have passed", question.patience.as_secs()),
                }),
            }
        };
        let answer = runtime.block_on(async {
            let mut answer = once().await?;
            for _ in 0..retries {
                if answer.status != StatusCode::GATEWAY_TIMEOUT {
                    break;
                }
                answer = once().await?;
            }
            Ok::<_, ApiError>(answer)
        })?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let Answer { status, socket, body, .. } = answer;
        let refused = refusal(status, &body);
        // A thing that does not exist is told in other words, by every version.
        if status == StatusCode::NOT_FOUND && refused.starts_with("there is no `/") {
            let path = question.path.split('?').next().unwrap_or_default().to_owned();
            return Err(ApiError::Older { socket, path });
        }
        Err(match status {
            StatusCode::NOT_FOUND => ApiError::Missing(refused),
            _ => ApiError::Refused(refused),
        })
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

fn read<T: DeserializeOwned>(Answer { socket, body, .. }: Answer) -> Result<T, ApiError> {
    serde_json::from_slice(&body)
        .map_err(|error| ApiError::Unexpected { socket, reason: error.to_string() })
}

async fn exchange(
    stream: UnixStream,
    question: &Question<'_>,
) -> Result<(StatusCode, bool, Vec<u8>), String> {
    let answer = send(stream, question).await?;
    let is_own = answer.headers().get(SIGHT.0).is_some_and(|sight| sight == SIGHT.1);
    Ok((answer.status(), is_own, whole(answer).await?))
}

/// Asks, and reads the head of the answer.
async fn send(stream: UnixStream, question: &Question<'_>) -> Result<Response<Incoming>, String> {
    let Question { method, path, body, header, .. } = question.clone();
    // People look right after what their programs do: no answer is from before the question.
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "partita")
        .header("cache-control", "no-cache");
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = request
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ends with the runtime, or with an error that the sender sees too.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| error.to_string())
}

async fn whole(answer: Response<Incoming>) -> Result<Vec<u8>, String> {
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok(body.to_bytes().to_vec())
}

/// The text of a refusal for the user.
fn refusal(status: StatusCode, answer: &[u8]) -> String {
    let problem: Option<Problem> = serde_json::from_slice(answer).ok();
    let holders = problem.as_ref().map(|problem| held(&problem.holders)).unwrap_or_default();
    let text = problem
        .and_then(|problem| problem.detail.or(problem.title))
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| format!("the daemon refused with {status}"));
    text + &holders
}

/// The holders of the SMs or the memory asked for.
fn held(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["HOLDER", "USER", "JOB", "SMS", "MEMORY"]);
    for Holder { reservation, tenant, job, sms, memory_bytes } in holders {
        table.row([
            reservation.clone(),
            tenant.0.to_string(),
            job.clone(),
            sms.to_string(),
            bytes(*memory_bytes),
        ]);
    }
    format!("\n{}", table.render().trim_end())
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
        let holder = r#"{"detail": "no room", "holders": [{"reservation": "a", "tenant": 7,
            "job": "j", "sms": 4, "memory_bytes": 1024, "expires": 9}]}"#;
        check(holder, "no room\nHOLDER  USER  JOB  SMS  MEMORY\na       7     j    4    1.0 KiB");
    }
}
