//! What an allocated ResourceClaim gives a node: SMs and memory of GPUs, with bounds and priority.
//!
//! The cluster's scheduler has counted the SMs and the memory as consumed capacity. What it does
//! not count, the maximum, the priority and the user, stands in the claim's or the device class's
//! opaque parameters.

use crate::quantity::whole;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use partita_model::{GpuNumber, Priority, ReservationRequest, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The parameters' `apiVersion` and `kind`.
const API_VERSION: &str = "partita.dev/v1";
const KIND: &str = "ClaimParameters";

/// What every device is called, before its GPU's number.
const DEVICE: &str = "gpu-";
/// The longest UID that is taken: Kubernetes makes UUIDs of 36 characters.
const UID_BYTES: usize = 50;

/// Why a claim cannot be prepared.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClaimError {
    /// The UID would not do as the name of a file.
    #[error("the claim's UID `{0}` is none: 1 to {UID_BYTES} letters, digits and `-`")]
    Uid(String),
    /// The scheduler has not allocated it.
    #[error("the claim is not allocated; the scheduler does that before a pod starts")]
    NotAllocated,
    /// The claim has no device of this node.
    #[error(
        "the claim has no device of driver {driver} in pool {pool}: look at its status.allocation, \
         and at --driver-name and --node-name of this driver"
    )]
    Elsewhere {
        /// This driver.
        driver: String,
        /// This node's pool.
        pool: String,
    },
    /// A device that the driver never published.
    #[error("there is no device `{0}`: devices are called {DEVICE}N, by the numbers of GPUs")]
    Device(String),
    /// The scheduler counts no capacity.
    #[error(
        "request `{0}` tells no consumed capacity `sms`: turn on the feature gate \
         DRAConsumableCapacity of the API server, the scheduler and the kubelet (on by default \
         since Kubernetes 1.36), and leave out adminAccess"
    )]
    NoCapacity(String),
    /// A number that cannot be.
    #[error("request `{request}` has `{name}: {value}`: give {wanted}")]
    Amount {
        /// The request in the claim.
        request: String,
        /// The capacity.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it can be.
        wanted: &'static str,
    },
    /// The parameters are not ours.
    #[error(
        "the parameters of request `{request}`: {reason}; they are apiVersion {API_VERSION}, kind \
         {KIND}, and any of maxSms, priority (latency, normal, batch) and user"
    )]
    Parameters {
        /// The request in the claim.
        request: String,
        /// What is wrong with them.
        reason: String,
    },
    /// Requests for different users.
    #[error("the claim's parameters name the users {0} and {1}: one claim is for one user")]
    Users(u32, u32),
}

/// Opaque parameters of a claim or a device class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Parameters {
    max_sms: Option<u16>,
    priority: Option<Priority>,
    user: Option<u32>,
}

/// One device of the claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The request in the claim.
    pub request: String,
    /// The device.
    pub device: String,
    /// The share of the device, as the scheduler calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
}

/// SMs and memory of one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// SMs.
    pub sms: u16,
    /// Memory in bytes; 0 reserves none.
    pub memory_bytes: u64,
    /// SMs at most.
    pub max_sms: Option<u16>,
    /// Who yields to whom.
    pub priority: Option<Priority>,
}

/// What a claim gives this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Each device of the claim.
    pub parts: Vec<Part>,
    /// What each GPU gives, over all requests of the claim.
    pub gpus: BTreeMap<GpuNumber, Share>,
    /// The user of the host, where the parameters name one.
    pub user: Option<u32>,
}

/// The tag of a claim's application (`PARTITA_APP`).
#[must_use]
pub fn job_of(uid: &str) -> String {
    format!("k8s-{uid}")
}

/// What the ids of a claim's reservations begin with.
#[must_use]
pub fn reservations_of(uid: &str) -> String {
    format!("{}.", job_of(uid))
}

/// Whether files and reservations can be called by this UID.
///
/// # Errors
/// Where they cannot.
pub fn check_uid(uid: &str) -> Result<(), ClaimError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match !uid.is_empty() && uid.len() <= UID_BYTES && uid.bytes().all(is_letter) {
        true => Ok(()),
        false => Err(ClaimError::Uid(uid.chars().take(UID_BYTES).collect())),
    }
}

/// The name of a GPU's device.
#[must_use]
pub fn device_of(gpu: GpuNumber) -> String {
    format!("{DEVICE}{}", gpu.0)
}

impl Wanted {
    /// Reads what a claim gives this driver on this node.
    ///
    /// # Errors
    /// Where the claim gives nothing, or something else than SMs and memory.
    pub fn read(claim: &ResourceClaim, driver: &str, pool: &str) -> Result<Wanted, ClaimError> {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
        let devices = devices.ok_or(ClaimError::NotAllocated)?;
        let config = devices.config.as_deref().unwrap_or_default();
        let mut wanted = Wanted { parts: Vec::new(), gpus: BTreeMap::new(), user: None };
        let results = devices.results.as_deref().unwrap_or_default();
        for result in results.iter().filter(|one| one.driver == driver && one.pool == pool) {
            wanted.add(result, parameters(config, driver, &result.request)?)?;
        }
        if wanted.parts.is_empty() {
            return Err(ClaimError::Elsewhere { driver: driver.into(), pool: pool.into() });
        }
        Ok(wanted)
    }

    fn add(
        &mut self,
        result: &DeviceRequestAllocationResult,
        parameters: Parameters,
    ) -> Result<(), ClaimError> {
        let request = &result.request;
        let number = result.device.strip_prefix(DEVICE).and_then(|number| number.parse().ok());
        let gpu = GpuNumber(number.ok_or_else(|| ClaimError::Device(result.device.clone()))?);
        let share = share(result, parameters)?;
        if let Some(user) = parameters.user {
            match self.user.replace(user) {
                Some(other) if other != user => return Err(ClaimError::Users(other, user)),
                _ => {}
            }
        }
        let too_much = |name| ClaimError::Amount {
            request: request.clone(),
            name,
            value: "the sum over the requests".into(),
            wanted: "no more than a GPU has",
        };
        let sum = match self.gpus.get(&gpu) {
            None => share,
            Some(other) => other.plus(share).ok_or_else(|| too_much("sms and memory"))?,
        };
        self.gpus.insert(gpu, sum);
        self.parts.push(Part {
            request: request.clone(),
            device: result.device.clone(),
            share: result.share_id.clone(),
        });
        Ok(())
    }

    /// The reservations for it, by id.
    #[must_use]
    pub fn reservations(
        &self,
        uid: &str,
        tenant: u32,
        expires: u64,
    ) -> BTreeMap<String, ReservationRequest> {
        let one = |(gpu, share): (&GpuNumber, &Share)| {
            let request = ReservationRequest {
                tenant: TenantId(tenant),
                job: job_of(uid),
                gpu: *gpu,
                sms: share.sms,
                memory_bytes: share.memory_bytes,
                expires,
                max_sms: share.max_sms,
                priority: share.priority,
            };
            (format!("{}{}", reservations_of(uid), gpu.0), request)
        };
        self.gpus.iter().map(one).collect()
    }
}

impl Share {
    /// Both together. There is a maximum where both have one.
    fn plus(self, other: Share) -> Option<Share> {
        Some(Share {
            sms: self.sms.checked_add(other.sms)?,
            memory_bytes: self.memory_bytes.checked_add(other.memory_bytes)?,
            max_sms: match (self.max_sms, other.max_sms) {
                (Some(a), Some(b)) => Some(a.checked_add(b)?),
                _ => None,
            },
            priority: self.priority.max(other.priority),
        })
    }
}

fn share(
    result: &DeviceRequestAllocationResult,
    parameters: Parameters,
) -> Result<Share, ClaimError> {
    let request = &result.request;
    let capacity = result.consumed_capacity.as_ref();
    let of = |name: &str| {
        let qualified = format!("{}/{name}", result.driver);
        capacity.and_then(|all| all.get(name).or_else(|| all.get(&qualified)))
    };
    let wrong = |name, value: &str, wanted| ClaimError::Amount {
        request: request.clone(),
        name,
        value: value.into(),
        wanted,
    };
    let sms = of("sms").ok_or_else(|| ClaimError::NoCapacity(request.clone()))?;
    let count = whole(sms).and_then(|sms| u16::try_from(sms).ok()).filter(|sms| *sms > 0);
    let count = count.ok_or_else(|| wrong("sms", &sms.0, "a number of SMs, at least 1"))?;
    let memory_bytes = match of("memory") {
        None => 0,
        Some(memory) => {
            let bytes = whole(memory);
            bytes.ok_or_else(|| wrong("memory", &memory.0, "bytes, as in 8Gi"))?
        }
    };
    let Parameters { max_sms, priority, .. } = parameters;
    if let Some(most) = max_sms.filter(|most| *most < count) {
        let wanted = "at least the SMs that the request consumes";
        return Err(wrong("maxSms", &most.to_string(), wanted));
    }
    Ok(Share { sms: count, memory_bytes, max_sms, priority })
}

/// What all parameters together say of a request: Kubernetes lists those of the device class
/// first, and later ones go before.
fn parameters(
    config: &[DeviceAllocationConfiguration],
    driver: &str,
    request: &str,
) -> Result<Parameters, ClaimError> {
    // A request with alternatives is named `request/alternative` in the allocation.
    let whole = request.split('/').next().unwrap_or(request);
    let mut all = Parameters::default();
    for one in config {
        let requests = one.requests.as_deref().unwrap_or_default();
        let is_meant = requests.is_empty() || requests.iter().any(|r| r == request || r == whole);
        let Some(opaque) = one.opaque.as_ref().filter(|opaque| is_meant && opaque.driver == driver)
        else {
            continue;
        };
        let wrong = |reason: String| ClaimError::Parameters { request: request.into(), reason };
        let mut fields = match &opaque.parameters.0 {
            serde_json::Value::Object(fields) => fields.clone(),
            _ => return Err(wrong("they are no object".into())),
        };
        for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match fields.remove(name) {
                Some(value) if value == expected => {}
                Some(value) => return Err(wrong(format!("{name} is {value}"))),
                None => return Err(wrong(format!("{name} is missing"))),
            }
        }
        let next: Parameters =
            serde_json::from_value(fields.into()).map_err(|error| wrong(error.to_string()))?;
        all = Parameters {
            max_sms: next.max_sms.or(all.max_sms),
            priority: next.priority.or(all.priority),
            user: next.user.or(all.user),
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const DRIVER: &str = "gpu.partita.dev";

    fn result(request: &str, device: &str, capacity: Value) -> Value {
        json!({"request": request, "driver": DRIVER, "pool": "n1", "device": device,
            "shareID": "s1", "consumedCapacity": capacity})
    }

    fn config(source: &str, requests: Value, mut parameters: Value) -> Value {
        parameters["apiVersion"] = API_VERSION.into();
        parameters["kind"] = KIND.into();
        let opaque = json!({"driver": DRIVER, "parameters": parameters});
        json!({"source": source, "requests": requests, "opaque": opaque})
    }

    fn read(results: Value, config: Value) -> Result<Wanted, ClaimError> {
        let devices = json!({"results": results, "config": config});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c"}, "spec": {"devices": {}},
            "status": {"allocation": {"devices": devices}}});
        Wanted::read(&serde_json::from_value(claim).unwrap(), DRIVER, "n1")
    }

    #[test]
    fn capacity_and_parameters_become_a_reservation() {
        let results = json!([result("a", "gpu-1", json!({"sms": "8", "memory": "2Gi"}))]);
        let all = json!([
            config("FromClass", json!([]), json!({"priority": "batch", "maxSms": 99})),
            config("FromClaim", json!(["a"]), json!({"maxSms": 24, "user": 1000})),
            config("FromClaim", json!(["b"]), json!({"maxSms": 9})),
        ]);
        let wanted = read(results, all).unwrap();
        assert_eq!(wanted.user, Some(1000));
        let all = wanted.reservations("u-1", 1000, 7);
        let one = &all["k8s-u-1.1"];
        assert_eq!((one.sms, one.memory_bytes, one.max_sms), (8, 2 << 30, Some(24)));
        assert_eq!((one.priority, one.job.as_str()), (Some(Priority::Batch), "k8s-u-1"));
        assert_eq!((one.gpu, one.tenant, one.expires), (GpuNumber(1), TenantId(1000), 7));
    }

    #[test]
    fn requests_on_one_gpu_are_one_reservation() {
        let results = json!([
            result("a", "gpu-0", json!({"gpu.partita.dev/sms": "8", "memory": "0"})),
            result("b/small", "gpu-0", json!({"sms": "4", "memory": "1Gi"})),
            result("b/small", "gpu-1", json!({"sms": "4"})),
            {"request": "c", "driver": "other.dev", "pool": "n1", "device": "x"},
        ]);
        let wanted =
            read(results, json!([config("FromClaim", json!(["b"]), json!({"maxSms": 5}))]));
        let wanted = wanted.unwrap();
        let all = wanted.reservations("u", 0, 7);
        assert_eq!(all.len(), 2);
        assert_eq!((all["k8s-u.0"].sms, all["k8s-u.0"].max_sms), (12, None));
        assert_eq!((all["k8s-u.1"].sms, all["k8s-u.1"].max_sms), (4, Some(5)));
        assert_eq!(wanted.parts.len(), 3);
    }

    #[test]
    fn what_cannot_be_names_the_remedy() {
        let check = |results: Value, config: Value, words: &str| {
            let error = read(results, config).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let good = || json!([result("a", "gpu-0", json!({"sms": "8"}))]);
        check(json!([]), json!([]), "--node-name");
        check(json!([result("a", "gpu-x", json!({"sms": "8"}))]), json!([]), "gpu-N");
        check(json!([result("a", "gpu-0", json!({}))]), json!([]), "DRAConsumableCapacity");
        for sms in ["0", "70000", "-1", "many"] {
            let results = json!([result("a", "gpu-0", json!({ "sms": sms }))]);
            check(results, json!([]), "at least 1");
        }
        let results = json!([result("a", "gpu-0", json!({"sms": "1", "memory": "x"}))]);
        check(results, json!([]), "8Gi");
        let two = json!([
            result("a", "gpu-0", json!({"sms": "60000"})),
            result("b", "gpu-0", json!({"sms": "60000"})),
        ]);
        check(two, json!([]), "no more than a GPU has");
        for (parameters, words) in [
            (json!({"maxSms": 4}), "at least the SMs"),
            (json!({"minSms": 4}), "unknown field `minSms`"),
            (json!({"priority": "high"}), "latency, normal, batch"),
            (json!({"user": -1}), "and user"),
        ] {
            check(good(), json!([config("FromClaim", json!([]), parameters)]), words);
        }
        let bare = json!([{"source": "FromClaim",
            "opaque": {"driver": DRIVER, "parameters": {"kind": KIND}}}]);
        check(good(), bare, "apiVersion is missing");
        let users = json!([
            config("FromClaim", json!(["a"]), json!({"user": 1})),
            config("FromClaim", json!(["b"]), json!({"user": 2})),
        ]);
        let two = json!([
            result("a", "gpu-0", json!({"sms": "1"})),
            result("b", "gpu-0", json!({"sms": "1"})),
        ]);
        check(two, users, "one claim is for one user");
        let unallocated = ResourceClaim::default();
        let error = Wanted::read(&unallocated, DRIVER, "n1").unwrap_err();
        assert_eq!(error, ClaimError::NotAllocated);
    }

    #[test]
    fn a_uid_is_no_path() {
        assert!(check_uid("3f0c1c9e-0000-4a7a-9f7e-1d2b3c4d5e6f").is_ok());
        for uid in ["", "../x", "a/b", &"x".repeat(51), "a b", "ü"] {
            assert!(check_uid(uid).is_err(), "{uid}");
        }
    }
}
