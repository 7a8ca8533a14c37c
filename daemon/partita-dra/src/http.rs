//! One HTTP/1.1 request on a fresh connection, bounded in size and time.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The longest time for an answer. A kubelet waits 45 s for its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer, in bytes. A pod and a claim have at most some 1.5 MB each.
const LONGEST: usize = 16 << 20;

/// What is asked.
pub(crate) struct Question<'a> {
    pub(crate) method: Method,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) token: Option<&'a str>,
    pub(crate) body: Option<&'a Value>,
}

/// Asks over this connection. The error says what happened.
pub(crate) async fn exchange<S>(
    stream: S,
    question: &Question<'_>,
) -> Result<(StatusCode, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(question.method.clone())
        .uri(question.path)
        .header("host", question.host)
        .header("accept", "application/json")
        .header("cache-control", "no-cache");
    if question.body.is_some() {
        request = request.header("content-type", "application/json");
    }
    if let Some(token) = question.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = question.body.map(Value::to_string).unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let whole = Limited::new(answer.into_body(), LONGEST).collect().await;
    connection.abort();
    let body = whole.map_err(|error| error.to_string())?.to_bytes();
    Ok((status, body))
}
