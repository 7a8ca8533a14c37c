//! The node's ResourceSlice: its GPUs as devices whose SMs and memory can be consumed in parts.
//!
//! A GPU is one device that many claims share. While partitad does not answer, the devices stay
//! and carry a taint, so no new pod comes and no running one loses its device.

use crate::claim::device_of;
use crate::kube::{Kube, KubeError};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use partita_model::{DeviceKind, GpuItem};
use std::collections::BTreeMap;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The longest string of an attribute that Kubernetes takes.
const ATTRIBUTE_BYTES: usize = 64;

/// The devices of a daemon.
#[must_use]
pub fn devices(gpus: &[GpuItem]) -> Vec<Device> {
    gpus.iter().map(device).collect()
}

/// The same devices while their daemon does not answer.
#[must_use]
pub fn tainted(devices: &[Device], driver: &str) -> Vec<Device> {
    let taint = DeviceTaint {
        key: format!("{driver}/no-daemon"),
        effect: "NoSchedule".into(),
        ..DeviceTaint::default()
    };
    let one = |device: &Device| Device { taints: Some(vec![taint.clone()]), ..device.clone() };
    devices.iter().map(one).collect()
}

fn device(item: &GpuItem) -> Device {
    let gpu = &item.gpu;
    let text = |text: &str| DeviceAttribute {
        string: Some(cut(text).to_owned()),
        ..DeviceAttribute::default()
    };
    let capability = gpu.compute_capability;
    let version = DeviceAttribute {
        version: Some(format!("{}.{}.0", capability.major, capability.minor)),
        ..DeviceAttribute::default()
    };
    let is_emulated = DeviceAttribute {
        bool: Some(gpu.kind == DeviceKind::Emulated),
        ..DeviceAttribute::default()
    };
    let attributes = [
        ("uuid", text(&item.uuid)),
        ("productName", text(&gpu.name)),
        ("cudaComputeCapability", version),
        ("emulated", is_emulated),
    ];
    // Kubernetes wants room for one step above the minimum.
    let step = (gpu.sms > 1).then_some("1");
    let sms = capacity(gpu.sms.to_string(), "1", step);
    let memory = capacity(gpu.memory_bytes.to_string(), "0", Some("1Mi"));
    let capacities = [("sms", sms), ("memory", memory)];
    Device {
        name: device_of(gpu.number),
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes.map(|(name, value)| (name.to_owned(), value)).into()),
        capacity: Some(capacities.map(|(name, value)| (name.to_owned(), value)).into()),
        ..Device::default()
    }
}

/// A capacity of which a request takes `least` where it names no other amount.
fn capacity(value: String, least: &str, step: Option<&str>) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.into());
    let range =
        CapacityRequestPolicyRange { min: quantity(least), max: None, step: step.map(quantity) };
    let policy = CapacityRequestPolicy {
        default: Some(quantity(least)),
        valid_range: Some(range),
        valid_values: None,
    };
    DeviceCapacity { value: Quantity(value), request_policy: Some(policy) }
}

/// The beginning of a text that fits into an attribute.
fn cut(text: &str) -> &str {
    let end = (0..=ATTRIBUTE_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// What publishes the slice of one node.
pub struct Publisher {
    kube: Kube,
    driver: String,
    node: String,
}

impl Publisher {
    /// For this driver on this node.
    #[must_use]
    pub fn new(kube: Kube, driver: &str, node: &str) -> Publisher {
        Publisher { kube, driver: driver.into(), node: node.into() }
    }

    /// The driver's name.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    fn name(&self) -> String {
        format!("{}-{}", self.node, self.driver)
    }

    fn path(&self) -> String {
        format!("{SLICES}/{}", self.name())
    }

    /// The devices that are published, without taints; `None` where there is no slice.
    ///
    /// # Errors
    /// Where the API server does not answer.
    pub async fn published(&self) -> Result<Option<Vec<Device>>, KubeError> {
        let slice = self.existing().await?;
        let clean = |device: Device| Device { taints: None, ..device };
        Ok(slice
            .map(|slice| slice.spec.devices.unwrap_or_default().into_iter().map(clean).collect()))
    }

    async fn existing(&self) -> Result<Option<ResourceSlice>, KubeError> {
        match self.kube.get(&self.path()).await {
            Ok(slice) => Ok(Some(slice)),
            Err(KubeError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the slice, or changes it. Whether that was needed.
    ///
    /// # Errors
    /// Where the API server refuses or does not answer.
    pub async fn publish(&self, devices: &[Device]) -> Result<bool, KubeError> {
        let Some(existing) = self.existing().await? else {
            let slice = self.slice(self.metadata().await?, 1, devices);
            let _: ResourceSlice = self.kube.post(SLICES, &body(&slice)).await?;
            return Ok(true);
        };
        if same(existing.spec.devices.as_deref().unwrap_or_default(), devices) {
            return Ok(false);
        }
        let generation = existing.spec.pool.generation + 1;
        let slice = self.slice(existing.metadata, generation, devices);
        let _: ResourceSlice = self.kube.put(&self.path(), &body(&slice)).await?;
        Ok(true)
    }

    /// The slice goes when its node goes.
    async fn metadata(&self) -> Result<ObjectMeta, KubeError> {
        let node: Node = self.kube.get(&format!("/api/v1/nodes/{}", self.node)).await?;
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        Ok(ObjectMeta {
            name: Some(self.name()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        })
    }

    fn slice(&self, metadata: ObjectMeta, generation: i64, devices: &[Device]) -> ResourceSlice {
        let pool = ResourcePool { generation, name: self.node.clone(), resource_slice_count: 1 };
        let spec = ResourceSliceSpec {
            devices: Some(devices.to_vec()),
            driver: self.driver.clone(),
            node_name: Some(self.node.clone()),
            pool,
            ..ResourceSliceSpec::default()
        };
        ResourceSlice { metadata, spec }
    }
}

fn body(slice: &ResourceSlice) -> serde_json::Value {
    serde_json::to_value(slice).unwrap_or_default()
}

/// Whether both say the same. The server adds a time to taints, and writes quantities its own way.
fn same(published: &[Device], wanted: &[Device]) -> bool {
    type Amounts<'a> = BTreeMap<&'a str, Option<u64>>;
    fn amounts(device: &Device) -> Amounts<'_> {
        let all = device.capacity.iter().flatten();
        all.map(|(name, one)| (name.as_str(), crate::quantity::whole(&one.value))).collect()
    }
    let keys = |device: &Device| -> Vec<String> {
        device.taints.iter().flatten().map(|taint| taint.key.clone()).collect()
    };
    published.len() == wanted.len()
        && published.iter().zip(wanted).all(|(a, b)| {
            a.name == b.name
                && a.attributes == b.attributes
                && a.allow_multiple_allocations == b.allow_multiple_allocations
                && amounts(a) == amounts(b)
                && keys(a) == keys(b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_and_a_size_make_a_difference_and_spelling_makes_none() {
        let of = |sms: &str| Device {
            name: "gpu-0".into(),
            capacity: Some([("sms".to_owned(), capacity(sms.into(), "1", None))].into()),
            ..Device::default()
        };
        let plain = [of("1000")];
        assert!(same(&plain, &[of("1k")]));
        assert!(!same(&plain, &[of("999")]));
        assert!(!same(&plain, &[]));
        let tainted = tainted(&plain, "gpu.partita.dev");
        assert!(!same(&plain, &tainted));
        let mut timed = tainted.clone();
        for taint in timed[0].taints.iter_mut().flatten() {
            taint.time_added = serde_json::from_str("\"2026-11-27T12:00:00Z\"").ok();
        }
        assert!(same(&timed, &tainted));
    }

    #[test]
    fn an_attribute_is_cut_between_characters() {
        assert_eq!(cut("H100"), "H100");
        assert_eq!(cut(&"ü".repeat(40)).len(), 64);
        assert_eq!(cut(&format!("x{}", "ü".repeat(40))).len(), 63);
    }
}
