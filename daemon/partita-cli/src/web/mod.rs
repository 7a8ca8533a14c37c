//! `partita web`: one page that shows what the API says, live.
//!
//! The page has no part of its own rights: it sees what the user of `partita web` may see. A
//! request without the token gets nothing. The server answers `GET` only and changes nothing. It
//! refuses hosts with names that it was not given, because a name can be made to point here (DNS
//! rebinding), and requests of other origins. The page is one file in the program and loads nothing
//! else; its policy (CSP) forbids that.

mod view;

use crate::api::Target;
use crate::failure::Failure;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Args;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use view::Reader;

const PAGE: &str = include_str!("page.html");
/// The place of the page's nonce: a script without it does not run.
const NONCE: &str = "@NONCE@";
/// Bytes of a token. Nobody guesses 256 bits.
const TOKEN_BYTES: usize = 32;
/// Requests that may wait for the daemon at a time.
const WAITING: usize = 4;

const EXAMPLES: &str = "\
Examples:
  partita web
      print an address for a browser on this machine; Ctrl-C ends the server
  ssh -L 8421:127.0.0.1:8421 NODE partita web --port 8421
      watch a node from elsewhere; open the printed address here
  partita web --web-listen 10.0.0.7 --port 8421 --host node7.cluster
      for administrators: serve other machines; the token travels unencrypted";

/// Show the GPUs live in a browser.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WebArgs {
    /// The TCP port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,

    /// Serve other machines at this address; only root and the daemon's user may.
    #[arg(long, value_name = "ADDRESS")]
    web_listen: Option<IpAddr>,

    /// A name by which browsers reach this server; addresses and localhost need none.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    #[command(flatten)]
    target: Target,
}

/// Who may ask.
struct Guard {
    token: String,
    port: u16,
    names: Vec<String>,
    reader: Reader,
}

impl WebArgs {
    /// Serves until a signal ends it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let address = self.web_listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        if !address.is_loopback() && !self.target.is_administrator() {
            return Err(Failure::new(format!(
                "--web-listen {address}: only root and the daemon's user may serve other machines; \
                 without it the page is for this machine, and ssh -L carries it further"
            )));
        }
        // A daemon that does not answer is told here rather than in a browser.
        self.target.get_raw("/v1/status")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WAITING)
            .build()?;
        runtime.block_on(self.serve(address))?;
        Ok(Vec::new())
    }

    async fn serve(self, address: IpAddr) -> Result<(), Failure> {
        let asked = SocketAddr::new(address, self.port);
        let listener = tokio::net::TcpListener::bind(asked).await.map_err(|error| {
            Failure::new(format!("cannot listen on {asked}: {error}; choose another --port"))
        })?;
        let bound = listener.local_addr()?;
        let token = random()?;
        let mut out = io::stdout();
        writeln!(out, "http://{bound}/?token={token}")?;
        out.flush()?;
        if !address.is_loopback() {
            crate::failure::complain("the connection is not encrypted: who reads it has the token");
        }
        let reader = Reader::new(self.target);
        let guard = Guard { token, port: bound.port(), names: self.host, reader };
        axum::serve(listener, router(Arc::new(guard))).await?;
        Ok(())
    }
}

/// Random bytes as hexadecimal digits.
fn random() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn router(guard: Arc<Guard>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/v1/view", get(view))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is / and /v1/view\n") })
        .layer(from_fn_with_state(Arc::clone(&guard), check))
        .with_state(guard)
}

async fn page() -> Response {
    let nonce = match random() {
        Ok(nonce) => nonce,
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response();
        }
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

async fn view(State(guard): State<Arc<Guard>>) -> Response {
    let asked = tokio::task::spawn_blocking(move || guard.reader.view()).await;
    let failed = |text: String| (StatusCode::BAD_GATEWAY, text).into_response();
    match asked {
        Ok(Ok(json)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    }
}

/// Lets a request through that has the right host, origin, method and token.
async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.refusal(&request) {
        Some((status, text)) => (status, format!("{text}\n")).into_response(),
        None => next.run(request).await,
    };
    let fixed = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Guard {
    /// Why a request gets nothing.
    fn refusal(&self, request: &Request) -> Option<(StatusCode, &'static str)> {
        let headers = request.headers();
        let host = text(headers, &header::HOST).unwrap_or_default();
        if !self.is_ours(host) {
            let why = "this host is not served: open the printed address, or give --host NAME";
            return Some((StatusCode::MISDIRECTED_REQUEST, why));
        }
        if headers.contains_key(header::ORIGIN)
            && text(headers, &header::ORIGIN) != Some(format!("http://{host}").as_str())
        {
            return Some((StatusCode::FORBIDDEN, "pages of other origins get nothing"));
        }
        if request.method() != Method::GET {
            return Some((StatusCode::METHOD_NOT_ALLOWED, "this server only shows: use GET"));
        }
        let bearer =
            text(headers, &header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let in_address = request
            .uri()
            .query()
            .and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("token=")));
        // Addresses stand in logs and histories, so they open the page only.
        let given = if request.uri().path() == "/" { in_address } else { bearer };
        if !given.is_some_and(|given| is_same(given, &self.token)) {
            let why = "the token is missing or wrong: open the address that `partita web` printed";
            return Some((StatusCode::UNAUTHORIZED, why));
        }
        None
    }

    /// Whether a browser that names this host means this server: an address, localhost or a name
    /// that was given. A tunnel may have another port.
    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !name.ends_with(':') && port.parse::<u16>().is_ok() => {
                (name, port)
            }
            _ => (host, ""),
        };
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_named = self.names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let is_local = name.eq_ignore_ascii_case("localhost");
        is_address || is_named || (is_local && (port.is_empty() || port == self.port.to_string()))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Compares in a time that depends on no byte.
fn is_same(given: &str, expected: &str) -> bool {
    let pairs = given.bytes().zip(expected.bytes());
    given.len() == expected.len() && pairs.fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn guard() -> Guard {
        let reader = Reader::new(Target::folder(std::path::Path::new("/nonexistent")));
        Guard { token: "abc".into(), port: 8421, names: vec!["node7".into()], reader }
    }

    fn refused(path: &str, headers: &[(&str, &str)], method: Method) -> Option<u16> {
        let mut request = axum::http::Request::builder().uri(path).method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        guard().refusal(&request).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn only_the_token_opens() {
        let host = ("host", "127.0.0.1:8421");
        let get = |path, headers: &[_]| refused(path, headers, Method::GET);
        assert_eq!(get("/?token=abc", &[host]), None);
        assert_eq!(get("/", &[host]), Some(401));
        assert_eq!(get("/?token=abd", &[host]), Some(401));
        assert_eq!(get("/?token=", &[host]), Some(401));
        assert_eq!(get("/v1/view?token=abc", &[host]), Some(401), "addresses open the page only");
        let bearer = ("authorization", "Bearer abc");
        assert_eq!(get("/v1/view", &[host, bearer]), None);
        assert_eq!(get("/v1/view", &[host, ("authorization", "Bearer ab")]), Some(401));
        assert_eq!(refused("/v1/view", &[host, bearer], Method::POST), Some(405));
    }

    #[test]
    fn names_and_origins_of_others_are_refused() {
        let get = |headers: &[_]| refused("/?token=abc", headers, Method::GET);
        for host in ["127.0.0.1:8421", "[::1]:8421", "localhost:8421", "node7:8421", "10.0.0.7"] {
            assert_eq!(get(&[("host", host)]), None, "{host}");
        }
        for host in ["evil.example:8421", "localhost.evil.example", "localhost:1", "", "node77"] {
            assert_eq!(get(&[("host", host)]), Some(421), "{host}");
        }
        assert_eq!(get(&[]), Some(421));
        let host = ("host", "localhost:8421");
        assert_eq!(get(&[host, ("origin", "http://localhost:8421")]), None);
        for origin in ["http://evil.example", "null", "https://localhost:8421"] {
            assert_eq!(get(&[host, ("origin", origin)]), Some(403), "{origin}");
        }
    }

    #[test]
    fn the_page_is_small_and_whole() {
        assert!(PAGE.len() <= 200 << 10, "{} bytes", PAGE.len());
        assert_eq!(PAGE.matches(NONCE).count(), 2);
        for outside in ["src=", "href=\"", "@import", "url("] {
            assert!(!PAGE.contains(outside), "the page loads something: {outside}");
        }
    }

    #[tokio::test]
    async fn every_answer_forbids_what_a_page_could_do() {
        let response = page().await;
        let policy = text(response.headers(), &header::CONTENT_SECURITY_POLICY).unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
        let other = page().await;
        assert_ne!(text(other.headers(), &header::CONTENT_SECURITY_POLICY), Some(policy));
    }
}
