//! The kubelet's services, compiled from `proto/`.

#![allow(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    reason = "the code is generated"
)]

/// `NodePrepareResources` and `NodeUnprepareResources`.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The plugin's registration.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The health of devices, for a kubelet that asks by `v1`.
pub mod health {
    tonic::include_proto!("v1");
}

/// The same for an older kubelet.
pub mod health_alpha {
    tonic::include_proto!("v1alpha1");
}
