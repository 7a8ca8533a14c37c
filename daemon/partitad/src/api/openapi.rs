//! The description of the API by OpenAPI 3.1, generated from the handlers.
//!
//! `docs/openapi.json` is the same text; a test compares them.

use crate::problem::Problem;
use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::{ContentBuilder, OpenApi, Ref};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Partita",
        description = "Shares NVIDIA GPUs between processes by ranges of SMs. The API is served \
                       over the Unix socket `api.sock`. Paths under `/v1` change compatibly only: \
                       members and paths are added, and readers ignore what they do not know."
    ),
    components(schemas(Problem)),
    servers((url = "http://partita", description = "any host name: the socket decides"))
)]
struct Frame;

/// The description without paths.
pub(super) fn frame() -> OpenApi {
    Frame::openapi()
}

/// The description as JSON, with two spaces of indentation and a newline at its end.
#[must_use]
pub fn document() -> String {
    let mut described = super::routes().into_openapi();
    for item in described.paths.paths.values_mut() {
        let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in methods.into_iter().flatten() {
            add_problem(operation);
            super::sight::describe(operation);
        }
    }
    let mut text = serde_json::to_string_pretty(&described).unwrap_or_default();
    text.push('\n');
    text
}

/// Every request may end with a problem.
fn add_problem(operation: &mut Operation) {
    let schema = Some(Ref::from_schema_name("Problem"));
    let content = ContentBuilder::new().schema(schema).build();
    let response = ResponseBuilder::new()
        .description("the request failed: what, why, and the remedy")
        .content("application/problem+json", content)
        .build();
    operation.responses.responses.insert("default".into(), response.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    /// `PARTITA_WRITE_OPENAPI=1` renews the file.
    #[test]
    fn the_checked_in_description_is_this_one() {
        let file = Path::new(FILE);
        if std::env::var_os("PARTITA_WRITE_OPENAPI").is_some() {
            std::fs::write(file, document()).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap();
        assert!(
            written == document(),
            "docs/openapi.json is out of date; renew it with \
             PARTITA_WRITE_OPENAPI=1 cargo test -p partitad --lib openapi"
        );
    }

    #[test]
    fn every_operation_says_how_it_fails() {
        let described: serde_json::Value = serde_json::from_str(&document()).unwrap();
        assert!(described["openapi"].as_str().unwrap().starts_with("3.1"));
        let paths = described["paths"].as_object().unwrap();
        assert!(paths.contains_key("/v1/status") && paths.contains_key("/-/ready"));
        for (path, item) in paths {
            for (method, operation) in item.as_object().unwrap() {
                let problem = &operation["responses"]["default"]["content"];
                assert!(problem["application/problem+json"].is_object(), "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
            }
        }
        let schemas = described["components"]["schemas"].as_object().unwrap();
        let text = document();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is referred to and not described");
        }
    }
}
