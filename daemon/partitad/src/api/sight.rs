//! The header `Partita-Sight: own`: an administrator is answered as any other user would be.
//!
//! `partita doctor --bundle` asks so: a bug report has nothing of other users, whoever makes it.
//! The header takes rights away and gives none. The answer has it, too: an older daemon ignores
//! what it does not know, and whoever asks finds out.

use super::Caller;
use crate::problem::Problem;
use axum::extract::{ConnectInfo, FromRequestParts as _, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, Type};

/// The header.
const SIGHT: &str = "partita-sight";
/// Its only value.
const OWN: &str = "own";

/// Takes the rights of an administrator from a request that asks for that.
pub(super) async fn reduce(request: Request, next: Next) -> Result<Response, Problem> {
    let Some(asked) = request.headers().get(SIGHT) else { return Ok(next.run(request).await) };
    if asked != OWN {
        let detail = format!("the header `{SIGHT}` has one value, `{OWN}`: what concerns others");
        let detail = format!("{detail} is left out, for administrators too");
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    let (mut head, body) = request.into_parts();
    if let Ok(ConnectInfo(caller)) = ConnectInfo::<Caller>::from_request_parts(&mut head, &()).await
    {
        head.extensions.insert(ConnectInfo(Caller { is_admin: false, ..caller }));
    }
    let mut answer = next.run(Request::from_parts(head, body)).await;
    answer.headers_mut().insert(SIGHT, HeaderValue::from_static(OWN));
    Ok(answer)
}

/// Describes the header.
pub(super) fn describe(operation: &mut Operation) {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([OWN])).build();
    let header = ParameterBuilder::new()
        .name("Partita-Sight")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("`own`: answer an administrator as any other user"))
        .schema(Some(schema))
        .build();
    operation.parameters.get_or_insert_default().push(header.into());
}
