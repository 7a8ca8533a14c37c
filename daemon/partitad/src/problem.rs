//! Errors of the API as `application/problem+json` (RFC 9457), every one of them.

use crate::link::AskError;
use axum::extract::FromRequest;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use partita_model::TenantId;
use partita_wire::supervise::RefusalKind;
use serde::{Deserialize, Serialize};

const MEDIA_TYPE: &str = "application/problem+json";

/// An error answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    /// `about:blank`: the status says what kind of error it is (RFC 9457, §4.2.1).
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// What is wrong with this request and what to do about it.
    pub detail: String,
    /// Where others have reserved what was asked for: who has what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
}

/// One reservation that stands in the way of another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Holder {
    /// Its id.
    pub reservation: String,
    /// The user whose job it is.
    pub tenant: TenantId,
    /// The job.
    pub job: String,
    /// Its SMs.
    pub sms: u16,
    /// Its device memory in bytes.
    pub memory_bytes: u64,
    /// Its end, in seconds since 1970 (UTC).
    pub expires: u64,
}

impl Problem {
    /// An error with its explanation.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Problem {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("error").into(),
            status: status.as_u16(),
            detail: detail.into(),
            holders: Vec::new(),
        }
    }

    /// The data plane has refused.
    pub fn refused(kind: RefusalKind, detail: impl Into<String>) -> Self {
        let status = match kind {
            RefusalKind::NotFound => StatusCode::NOT_FOUND,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::Conflict => StatusCode::CONFLICT,
            RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Problem::new(status, detail)
    }
}

impl Problem {
    /// The whole answer, for a connection that HTTP does not serve.
    #[must_use]
    pub fn to_http(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let (status, title, length) = (self.status, &self.title, body.len());
        let again = match self.retry_after() {
            Some(seconds) => format!("retry-after: {seconds}\r\n"),
            None => String::new(),
        };
        let head = format!(
            "HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\n{again}\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        [head.into_bytes(), body].concat()
    }

    /// The seconds after which a caller may try again, where that helps.
    fn retry_after(&self) -> Option<u32> {
        [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]
            .iter()
            .any(|status| status.as_u16() == self.status)
            .then_some(1)
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let status = match error {
            AskError::Gone => StatusCode::SERVICE_UNAVAILABLE,
            AskError::Timeout => StatusCode::GATEWAY_TIMEOUT,
            AskError::Frame(_) => StatusCode::PAYLOAD_TOO_LARGE,
        };
        Problem::new(status, format!("{error}; try again"))
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Problem::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// [`axum::Json`] whose rejection is a [`Problem`].
#[derive(FromRequest)]
#[from_request(via(axum::Json), rejection(Problem))]
pub struct Json<T>(pub T);
