//! `partita-dra check`: whether the driver and the daemon on this node answer.

use crate::options::Places;
use crate::partitad::Partitad;
use crate::proto::registration::InfoRequest;
use crate::proto::registration::registration_client::RegistrationClient;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// The longest wait for the driver. A probe has its own limit.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a service on a Unix socket.
///
/// # Errors
/// Where nobody serves there.
pub async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    // The address of a Unix socket is not in the URI, which HTTP/2 wants all the same.
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

/// What answers, in sentences; the error is a sentence with the remedy.
///
/// # Errors
/// Where something does not answer.
pub async fn check(places: &Places, driver_only: bool) -> Result<String, String> {
    let socket = places.registration_socket();
    let ask = async {
        let mut client =
            RegistrationClient::new(connect(&socket).await.map_err(|e| e.to_string())?);
        client.get_info(InfoRequest {}).await.map_err(|status| status.message().to_owned())
    };
    let answer = tokio::time::timeout(PATIENCE, ask).await;
    let answer = answer.unwrap_or_else(|_| Err(format!("{} s have passed", PATIENCE.as_secs())));
    let info = answer.map_err(|reason| {
        format!(
            "no driver answers at {}: {reason}; start partita-dra, or name the kubelet's folder \
             with --kubelet-dir and the driver with --driver-name",
            socket.display()
        )
    })?;
    let mut text = format!("driver {} serves the kubelet\n", info.into_inner().name);
    if !driver_only {
        let gpus = Partitad::new(&places.socket_dir).gpus().await.map_err(|e| e.to_string())?;
        for item in gpus {
            let gpu = &item.gpu;
            text += &format!("{}: {} with {} SMs ({})\n", gpu.number, gpu.name, gpu.sms, item.uuid);
        }
    }
    Ok(text)
}
