//! A kubelet: it finds the driver by its registration socket and asks it over its own socket.

use super::{DRIVER, wait_for};
use partita_dra::check::connect;
use partita_dra::proto::dra::dra_plugin_client::DraPluginClient;
use partita_dra::proto::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use partita_dra::proto::health::NodeWatchResourcesRequest;
use partita_dra::proto::health::dra_resource_health_client::DraResourceHealthClient;
use partita_dra::proto::registration::registration_client::RegistrationClient;
use partita_dra::proto::registration::{InfoRequest, RegistrationStatus};
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// A kubelet that has registered the driver.
pub struct Kubelet {
    channel: Channel,
}

impl Kubelet {
    /// Waits for a driver in the registry, and registers it.
    pub async fn register(folder: &Path) -> Kubelet {
        let registry = folder.join("kubelet/plugins_registry");
        let socket = registry.join(format!("{DRIVER}-reg.sock"));
        let mut client = None;
        wait_for("the driver's registration socket", async || {
            client = connect(&socket).await.ok().map(RegistrationClient::new);
            client.is_some()
        })
        .await;
        let mut client = client.expect("it was waited for");
        let info = client.get_info(InfoRequest {}).await.expect("the driver says who it is");
        let info = info.into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
        assert!(info.supported_versions.contains(&"v1.DRAPlugin".to_owned()), "{info:?}");
        let endpoint = PathBuf::from(&info.endpoint);
        let mut channel = None;
        wait_for("the driver's socket", async || {
            channel = connect(&endpoint).await.ok();
            channel.is_some()
        })
        .await;
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.expect("the driver is told");
        Kubelet { channel: channel.expect("it was waited for") }
    }

    /// Prepares claims. The answers in the claims' order.
    pub async fn prepare(&self, uids: &[&str]) -> Vec<NodePrepareResourceResponse> {
        let request = NodePrepareResourcesRequest { claims: uids.iter().map(claim).collect() };
        let mut client = DraPluginClient::new(self.channel.clone());
        let answer = client.node_prepare_resources(request).await.expect("the driver answers");
        let mut answers = answer.into_inner().claims;
        assert_eq!(answers.len(), uids.len());
        uids.iter().map(|uid| answers.remove(*uid).expect("each claim has an answer")).collect()
    }

    /// Prepares a claim, which has to succeed. The CDI names of its devices.
    pub async fn prepared(&self, uid: &str) -> Vec<String> {
        let answer = self.prepare(&[uid]).await.remove(0);
        assert_eq!(answer.error, "");
        answer.devices.into_iter().flat_map(|device| device.cdi_device_ids).collect()
    }

    /// Prepares a claim, which has to fail. The reason.
    pub async fn refused(&self, uid: &str) -> String {
        let answer = self.prepare(&[uid]).await.remove(0);
        assert!(!answer.error.is_empty() && answer.devices.is_empty(), "{answer:?}");
        answer.error
    }

    /// Unprepares a claim. The error; empty where it has succeeded.
    pub async fn unprepare(&self, uid: &str) -> String {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim(&uid)] };
        let mut client = DraPluginClient::new(self.channel.clone());
        let answer = client.node_unprepare_resources(request).await.expect("the driver answers");
        answer.into_inner().claims.remove(uid).expect("the claim has an answer").error
    }

    /// Waits until the driver says that of its devices' health. The message of the first device.
    pub async fn wait_for_health(&self, is_healthy: bool) -> String {
        let mut client = DraResourceHealthClient::new(self.channel.clone());
        let stream = client.node_watch_resources(NodeWatchResourcesRequest {}).await;
        let mut stream = stream.expect("the driver tells its health").into_inner();
        loop {
            let list = stream.message().await.expect("the stream goes on").expect("it has no end");
            let wanted = if is_healthy { 1 } else { 2 };
            if let Some(device) = list.devices.iter().find(|device| device.health == wanted) {
                return device.message.clone();
            }
        }
    }
}

fn claim(uid: &&str) -> Claim {
    Claim { namespace: "ns".into(), uid: (*uid).into(), name: format!("claim-{uid}") }
}
