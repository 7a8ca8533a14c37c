//! Questions to `partitad` on this node, over its socket `api.sock`.

use crate::http::{self, PATIENCE, Question};
use hyper::{Method, StatusCode};
use partita_model::{GpuItem, Reservation, ReservationRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PartitadError {
    /// Nobody answers.
    #[error(
        "partitad does not answer at {}: {reason}; look at `systemctl status partitad` on the \
         node",
        .socket.display()
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// It refuses.
    #[error("partitad refused it ({status}): {detail}{holders}")]
    Refused {
        /// The status.
        status: u16,
        /// Its reason.
        detail: String,
        /// The holders of the SMs or the memory asked for.
        holders: String,
    },
    /// The answer is another version's.
    #[error(
        "partitad answered something else than expected: {0}; install partitad and \
        partita-dra of one version"
    )]
    Strange(String),
}

/// The daemon of this node.
#[derive(Clone, Debug)]
pub struct Partitad {
    socket: PathBuf,
}

impl Partitad {
    /// The daemon whose sockets lie in this folder.
    #[must_use]
    pub fn new(folder: &Path) -> Partitad {
        Partitad { socket: folder.join("api.sock") }
    }

    /// The GPUs that it serves.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn gpus(&self) -> Result<Vec<GpuItem>, PartitadError> {
        read(&self.ask(Method::GET, "/v1/gpus", None).await?)
    }

    /// All reservations.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn reservations(&self) -> Result<Vec<Reservation>, PartitadError> {
        read(&self.ask(Method::GET, "/v1/reservations", None).await?)
    }

    /// Makes a reservation, or changes it.
    ///
    /// # Errors
    /// Where it does not answer or refuses, as where others have the SMs.
    pub async fn reserve(
        &self,
        id: &str,
        request: &ReservationRequest,
    ) -> Result<(), PartitadError> {
        let body = serde_json::to_value(request).unwrap_or_default();
        let path = format!("/v1/reservations/{id}");
        self.ask(Method::PUT, &path, Some(&body)).await.map(drop)
    }

    /// Ends a reservation, where it is there.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn release(&self, id: &str) -> Result<(), PartitadError> {
        match self.ask(Method::DELETE, &format!("/v1/reservations/{id}"), None).await {
            Ok(_) | Err(PartitadError::Refused { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, PartitadError> {
        let question = Question { method, host: "partita", path, token: None, body };
        let once = async {
            let stream = UnixStream::connect(&self.socket).await.map_err(|e| e.to_string())?;
            http::exchange(stream, &question).await
        };
        let answer = timeout(PATIENCE, once).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("{} s have passed", PATIENCE.as_secs())));
        let silent = |reason| PartitadError::Silent { socket: self.socket.clone(), reason };
        let (status, body) = answer.map_err(silent)?;
        match status.is_success() {
            true => Ok(body.to_vec()),
            false => Err(refusal(status, &body)),
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, PartitadError> {
    serde_json::from_slice(body).map_err(|error| PartitadError::Strange(error.to_string()))
}

fn refusal(status: StatusCode, body: &[u8]) -> PartitadError {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = body["detail"].as_str().unwrap_or("it does not say why").to_owned();
    let holders = body["holders"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |holder: &Value| {
        format!("{} has {} SMs", holder["job"].as_str().unwrap_or("a job"), holder["sms"])
    };
    let all: Vec<String> = holders.iter().map(one).collect();
    let holders = if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) };
    PartitadError::Refused { status: status.as_u16(), detail, holders }
}
