//! The few requests of the driver to Kubernetes' API server.
//!
//! In a pod the server's address and the account's token and certificate come from where the
//! kubelet has put them. Both files are read anew for each request, because both are renewed: the
//! token each hour, the certificates when the cluster's authority changes.

use crate::http::{self, PATIENCE, Question};
use hyper::{Method, StatusCode, Uri};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The longest token, in bytes.
const TOKEN_BYTES: usize = 64 << 10;

/// Why the driver cannot ask the API server.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is no address.
    #[error(
        "there is no API server: run partita-dra in a pod of the cluster, or name the server with \
         --kube-api, as `http://127.0.0.1:8001` beside `kubectl proxy`"
    )]
    NoServer,
    /// The address is none.
    #[error("--kube-api {0}: give a URL as https://HOST:PORT or http://HOST:PORT")]
    Address(String),
    /// The certificate cannot be used.
    #[error("{}: {reason}; it has the certificate of the API server's authority: mount the pod's \
        service account, or name its folder with --kube-account", .file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// It does not answer.
    #[error("the API server at {server} does not answer: {reason}")]
    Silent {
        /// Its address.
        server: String,
        /// What happened.
        reason: String,
    },
    /// The driver may not.
    #[error(
        "the API server forbids `{request}` ({status}): {message}; apply the ClusterRole and its \
         binding from systemd/kubernetes"
    )]
    Forbidden {
        /// Method and path.
        request: String,
        /// 401 or 403.
        status: u16,
        /// Its reason.
        message: String,
    },
    /// There is no such thing.
    #[error("the API server knows nothing at `{0}`")]
    Missing(String),
    /// It refuses.
    #[error("the API server refused `{request}` ({status}): {message}")]
    Refused {
        /// Method and path.
        request: String,
        /// The status.
        status: u16,
        /// Its reason.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("the API server answered `{request}` with something else than expected: {reason}")]
    Strange {
        /// Method and path.
        request: String,
        /// What does not fit.
        reason: String,
    },
}

/// The API server.
#[derive(Clone)]
pub struct Kube {
    /// Host and port, as in the header `Host`.
    authority: String,
    host: String,
    port: u16,
    tls: Option<Arc<Mutex<Trust>>>,
    token: PathBuf,
}

/// The authorities that may speak for the server.
struct Trust {
    file: PathBuf,
    /// The file's content when it was read.
    content: Vec<u8>,
    connector: TlsConnector,
}

impl Kube {
    /// The server at this URL, else the one of this pod's cluster.
    ///
    /// # Errors
    /// Where there is none, or where its certificate's authority cannot be read.
    pub fn new(url: Option<&str>, account: &Path) -> Result<Kube, SetupError> {
        let url = match url {
            Some(url) => url.to_owned(),
            None => of_pod(|name| std::env::var(name).ok()).ok_or(SetupError::NoServer)?,
        };
        let wrong = || SetupError::Address(url.clone());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        if !matches!(uri.path(), "" | "/") {
            return Err(wrong());
        }
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let tls = match is_secure {
            true => Some(Arc::new(Mutex::new(Trust::read(account.join("ca.crt"))?))),
            false => None,
        };
        let authority = authority.to_string();
        Ok(Kube { authority, host, port, tls, token: account.join("token") })
    }

    /// `GET path`.
    ///
    /// # Errors
    /// Where there is no such thing, or no answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, KubeError> {
        self.ask(Method::GET, path, None).await
    }

    /// `POST path`: makes an object.
    ///
    /// # Errors
    /// Where the server refuses or does not answer.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, KubeError> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// `PUT path`: replaces an object.
    ///
    /// # Errors
    /// Where the server refuses or does not answer.
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, KubeError> {
        self.ask(Method::PUT, path, Some(body)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, KubeError> {
        let request = format!("{method} {path}");
        let silent = |reason| KubeError::Silent { server: self.authority.clone(), reason };
        let (status, answer) = match timeout(PATIENCE, self.exchange(method, path, body)).await {
            Ok(done) => done.map_err(silent)?,
            Err(_) => return Err(silent(format!("{} s have passed", PATIENCE.as_secs()))),
        };
        if status.is_success() {
            let found = serde_json::from_slice(&answer);
            return found
                .map_err(|error| KubeError::Strange { request, reason: error.to_string() });
        }
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let message = answer["message"].as_str().unwrap_or("it does not say why").to_owned();
        let code = status.as_u16();
        Err(match status {
            StatusCode::NOT_FOUND => KubeError::Missing(path.to_owned()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                KubeError::Forbidden { request, status: code, message }
            }
            _ => KubeError::Refused { request, status: code, message },
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, hyper::body::Bytes), String> {
        let text = std::fs::read_to_string(&self.token).ok();
        let token = text.as_deref().map(str::trim).filter(|token| token.len() <= TOKEN_BYTES);
        // A token goes to nobody who could be overheard.
        let token = token.filter(|_| self.tls.is_some());
        let question = Question { method, host: &self.authority, path, token, body };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return http::exchange(stream, &question).await };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let connector = tls.lock().unwrap_or_else(PoisonError::into_inner).current();
        let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        http::exchange(stream, &question).await
    }
}

/// The URL that a kubelet tells its pods.
fn of_pod(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let host = variable("KUBERNETES_SERVICE_HOST").filter(|host| !host.is_empty())?;
    let port = variable("KUBERNETES_SERVICE_PORT").filter(|port| !port.is_empty())?;
    Some(match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    })
}

impl Trust {
    fn read(file: PathBuf) -> Result<Trust, SetupError> {
        let wrong = |reason: String| SetupError::Certificate { file: file.clone(), reason };
        let content = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
        let connector = connector(&content).map_err(wrong)?;
        Ok(Trust { file, content, connector })
    }

    /// A connector that trusts whom the file names now; whom it named before, where it cannot be
    /// read.
    fn current(&mut self) -> TlsConnector {
        if let Ok(content) = std::fs::read(&self.file)
            && content != self.content
        {
            match connector(&content) {
                Ok(connector) => self.connector = connector,
                Err(reason) => {
                    let file = self.file.display();
                    tracing::warn!("{file}: {reason}; the certificates of before go on");
                }
            }
            self.content = content;
        }
        self.connector.clone()
    }
}

fn connector(content: &[u8]) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(content) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has no certificate".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_comes_from_an_option_or_from_the_pod() {
        let account = tempfile::tempdir().unwrap();
        let new = |url: &str| Kube::new(Some(url), account.path());
        let kube = new("http://127.0.0.1:8001").ok().unwrap();
        assert_eq!((kube.host.as_str(), kube.port), ("127.0.0.1", 8001));
        let kube = new("http://[::1]:8001/").ok().unwrap();
        assert_eq!((kube.host.as_str(), kube.authority.as_str()), ("::1", "[::1]:8001"));
        for url in ["127.0.0.1", "ftp://x", "http://x/api", "http://"] {
            let error = new(url).err().unwrap().to_string();
            assert!(error.contains("https://HOST:PORT"), "{url}: {error}");
        }
        let error = new("https://x").err().unwrap().to_string();
        assert!(error.contains("ca.crt") && error.contains("--kube-account"), "{error}");
        std::fs::write(account.path().join("ca.crt"), "nothing").unwrap();
        let error = new("https://x").err().unwrap().to_string();
        assert!(error.contains("no certificate"), "{error}");
        let six = |name: &str| Some(if name.ends_with("HOST") { "fd00::1" } else { "443" }.into());
        assert_eq!(of_pod(six).as_deref(), Some("https://[fd00::1]:443"));
        assert_eq!(of_pod(|_| None), None);
    }
}
