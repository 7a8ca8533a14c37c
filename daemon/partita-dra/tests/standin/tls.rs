//! The TLS side of the API server: an authority of the test's own, and a certificate of the server
//! that can be changed while it serves.

use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// An authority that signs certificates of servers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// A new one of this name.
    pub fn new(name: &str) -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names are no problem");
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = parameters.self_signed(&key).expect("a certificate can be signed");
        Authority { issuer: Issuer::new(parameters, key), pem: certificate.pem() }
    }

    /// Its certificate, as in `ca.crt`.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key can be made");
        let parameters = CertificateParams::new(vec![name.to_owned()]).expect("it is a name");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("it can be signed");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("key and certificate fit");
        TlsAcceptor::from(Arc::new(config))
    }
}

/// The certificate that a server shows to the next who connects.
#[derive(Clone)]
pub struct Shown(Arc<Mutex<TlsAcceptor>>);

impl Shown {
    /// One of this authority for this name.
    pub fn new(authority: &Authority, name: &str) -> Shown {
        Shown(Arc::new(Mutex::new(authority.acceptor(name))))
    }

    /// Shows another one from now on.
    pub fn change(&self, authority: &Authority, name: &str) {
        *self.0.lock().expect("nobody panics") = authority.acceptor(name);
    }
}

/// A listener that speaks TLS.
pub struct Secure {
    pub listener: TcpListener,
    pub shown: Shown,
}

impl Listener for Secure {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            let acceptor = self.shown.0.lock().expect("nobody panics").clone();
            // A client that does not trust the certificate goes away.
            if let Ok(stream) = acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
