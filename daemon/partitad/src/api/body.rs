//! What every request goes through before a route, and the answers where there is no route.
//!
//! The whole body is read first, so that a slow or long body is refused in one place.

use crate::problem::Problem;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::LengthLimitError;
use std::error::Error as _;
use std::time::Duration;

/// The largest body: a plan for every SM of the largest GPU is far smaller.
const BODY_BYTES: usize = 64 << 10;

/// The longest time from the head of a request to the end of its body.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// Reads the whole body before a route sees the request.
pub(super) async fn read_body(request: Request, next: Next) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_LIMIT, to_bytes(body, BODY_BYTES)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if error.source().is_some_and(|source| source.is::<LengthLimitError>()) => {
            let detail = format!("the body is over the limit of {BODY_BYTES} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        Ok(Err(error)) => {
            let detail = format!("the body cannot be read: {error}");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        Err(_) => {
            let detail = format!("the body of the request took over {} s", BODY_LIMIT.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail));
        }
    };
    Ok(next.run(Request::from_parts(head, bytes.into())).await)
}

pub(super) async fn unknown_path(uri: Uri) -> Problem {
    let path = uri.path();
    let detail = format!("there is no `{path}`; /v1/openapi.json lists what there is");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("`{}` cannot be asked by {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
