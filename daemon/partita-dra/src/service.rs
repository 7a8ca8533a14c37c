//! The driver's services for the kubelet, on two Unix sockets.

use crate::driver::Driver;
use crate::options::Places;
use crate::proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::proto::dra::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::proto::{health, health_alpha};
use crate::watch::{Health, Node};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::watch::Receiver;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What the driver offers, in the kubelet's words.
const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// How long a kubelet may believe what it was told of a device's health, in seconds.
const HEALTH_SECONDS: i64 = 60;

/// The claims' service.
pub struct Plugin(pub Arc<Driver>);

#[tonic::async_trait]
impl DraPlugin for Plugin {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let answer = match self.0.prepare(&claim).await {
                Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
                Err(error) => {
                    let name = format!("{}/{}", claim.namespace, claim.name);
                    tracing::warn!(claim = name, %error, "cannot be prepared");
                    let error = format!("claim {name}: {error}");
                    NodePrepareResourceResponse { devices: Vec::new(), error }
                }
            };
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = match self.0.unprepare(&claim).await {
                Ok(()) => String::new(),
                Err(error) => {
                    let name = format!("{}/{}", claim.namespace, claim.name);
                    tracing::warn!(claim = name, %error, "cannot be unprepared");
                    format!("claim {name}: {error}")
                }
            };
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

/// The registration's service.
pub struct Registrar(pub Places);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: self.0.driver_name.clone(),
            endpoint: self.0.plugin_socket().display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        match plugin_registered {
            true => tracing::info!("the kubelet has registered the driver"),
            false => tracing::error!(
                error,
                "the kubelet does not take the driver; it needs Kubernetes 1.34 or newer"
            ),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// The devices' health, in both versions of its service.
#[derive(Clone)]
pub struct Reporter(pub Receiver<Node>);

/// A stream of complete lists.
type Lists<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Writes the service for one version: the messages are the same.
macro_rules! health_service {
    ($package:ident) => {
        #[tonic::async_trait]
        impl $package::dra_resource_health_server::DraResourceHealth for Reporter {
            type NodeWatchResourcesStream = Lists<$package::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _: Request<$package::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                use $package::{
                    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesResponse,
                };
                let list = |node: Node| {
                    let device = |device: String| DeviceHealth {
                        device: Some(DeviceIdentifier {
                            pool_name: node.name.clone(),
                            device_name: device,
                        }),
                        health: match node.health {
                            Health::Good => HealthStatus::Healthy.into(),
                            Health::Bad => HealthStatus::Unhealthy.into(),
                        },
                        last_updated_time: node.seen,
                        health_check_timeout_seconds: HEALTH_SECONDS,
                        message: node.message.clone(),
                    };
                    let devices = node.device_names().into_iter().map(device).collect();
                    Ok(NodeWatchResourcesResponse { devices })
                };
                let all = WatchStream::new(self.0.clone()).map(list);
                Ok(Response::new(Box::pin(all)))
            }
        }
    };
}

health_service!(health);
health_service!(health_alpha);

/// Serves claims and health on the driver's own socket.
///
/// # Errors
/// Where the socket cannot be made.
pub async fn serve_plugin(
    places: &Places,
    driver: Arc<Driver>,
    node: Receiver<Node>,
) -> io::Result<()> {
    let listener = bind(&places.plugin_socket())?;
    let reporter = Reporter(node);
    Server::builder()
        .add_service(DraPluginServer::new(Plugin(driver)))
        .add_service(health::dra_resource_health_server::DraResourceHealthServer::new(
            reporter.clone(),
        ))
        .add_service(health_alpha::dra_resource_health_server::DraResourceHealthServer::new(
            reporter,
        ))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .map_err(io::Error::other)
}

/// Serves the registration on the socket by which the kubelet finds the driver.
///
/// # Errors
/// Where the socket cannot be made.
pub async fn serve_registration(places: &Places) -> io::Result<()> {
    let listener = bind(&places.registration_socket())?;
    Server::builder()
        .add_service(RegistrationServer::new(Registrar(places.clone())))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .map_err(io::Error::other)
}

/// A socket that only root may use. The lock says that nobody serves on the old one.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(named)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(named)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
    Ok(listener)
}
