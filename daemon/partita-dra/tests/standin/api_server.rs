//! An API server that keeps objects by their paths. It takes a ResourceSlice only where the
//! published type takes every field of it, and a change only of the newest version.

use super::tls::{Secure, Shown};
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, Value>,
    changes: Vec<String>,
    version: u64,
    is_forbidden: bool,
    /// The token without which nobody gets an answer.
    token: Option<String>,
}

/// A running API server; it ends with the process.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Mutex<Inner>>,
    address: String,
}

impl ApiServer {
    /// Starts one that knows the node.
    pub fn start() -> ApiServer {
        ApiServer::serve(None)
    }

    /// The same over TLS with this certificate.
    pub fn start_with_tls(shown: Shown) -> ApiServer {
        ApiServer::serve(Some(shown))
    }

    fn serve(shown: Option<Shown>) -> ApiServer {
        let inner = Arc::new(Mutex::new(Inner::default()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let scheme = if shown.is_some() { "https" } else { "http" };
        let address = listener.local_addr().expect("it has an address");
        let address = format!("{scheme}://{address}");
        let router = Router::new().fallback(answer).with_state(inner.clone());
        // A thread of its own: tests wait for processes, and the driver asks meanwhile.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                listener.set_nonblocking(true).expect("a socket can be set");
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("it is a socket");
                match shown {
                    Some(shown) => axum::serve(Secure { listener, shown }, router).await,
                    None => axum::serve(listener, router).await,
                }
            })
        });
        let server = ApiServer { inner, address };
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": super::NODE, "uid": "node-uid"}});
        server.put(&format!("/api/v1/nodes/{}", super::NODE), node);
        server
    }

    /// Its URL.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Enters an object.
    pub fn put(&self, path: &str, object: Value) {
        self.inner.lock().expect("nobody panics").objects.insert(path.into(), object);
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.inner.lock().expect("nobody panics").objects.get(path).cloned()
    }

    /// The node's slice.
    pub fn slice(&self) -> Option<Value> {
        self.get(&format!("{SLICES}/{}-{}", super::NODE, super::DRIVER))
    }

    /// Removes the node's slice.
    pub fn remove_slice(&self) {
        let path = format!("{SLICES}/{}-{}", super::NODE, super::DRIVER);
        self.inner.lock().expect("nobody panics").objects.remove(&path);
    }

    /// Methods and paths of all changes.
    pub fn changes(&self) -> Vec<String> {
        self.inner.lock().expect("nobody panics").changes.clone()
    }

    /// Forbids everything, or nothing.
    pub fn forbid(&self, is_forbidden: bool) {
        self.inner.lock().expect("nobody panics").is_forbidden = is_forbidden;
    }

    /// From now on the server answers only requests with this token.
    pub fn demand(&self, token: &str) {
        self.inner.lock().expect("nobody panics").token = Some(token.into());
    }

    /// Enters a claim that the scheduler has allocated, and its pod.
    pub fn allocate(&self, uid: &str, results: &Value, parameters: Option<Value>, user: u32) {
        let config = parameters.map(|mut parameters| {
            parameters["apiVersion"] = "partita.dev/v1".into();
            parameters["kind"] = "ClaimParameters".into();
            let opaque = json!({"driver": super::DRIVER, "parameters": parameters});
            json!([{"source": "FromClaim", "opaque": opaque}])
        });
        let pod = format!("pod-{uid}");
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": format!("claim-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("{pod}-uid")}],
        }});
        let path = format!("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/claim-{uid}");
        self.put(&path, claim);
        let container = json!({"name": "c", "resources": {"claims": [{"name": "gpu"}]}});
        let pod_object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "ns"},
            "spec": {"nodeName": super::NODE, "containers": [container],
                "securityContext": {"runAsUser": user},
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimName": format!("claim-{uid}")}]}});
        self.put(&format!("/api/v1/namespaces/ns/pods/{pod}"), pod_object);
    }
}

/// A result of an allocation: these capacities of the first GPU.
pub fn result(request: &str, capacity: Value) -> Value {
    json!({"request": request, "driver": super::DRIVER, "pool": super::NODE, "device": "gpu-0",
        "shareID": "5b1c0e0a-0000-4000-8000-000000000001", "consumedCapacity": capacity})
}

async fn answer(
    State(inner): State<Arc<Mutex<Inner>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Json<Value>) {
    let mut inner = inner.lock().expect("nobody panics");
    let path = uri.path();
    let failed = |status: StatusCode, message: &str| {
        let body = json!({"kind": "Status", "status": "Failure", "message": message,
            "code": status.as_u16()});
        (status, Json(body))
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let is_known = |token: &String| given == Some(&format!("Bearer {token}"));
    if !inner.token.as_ref().is_none_or(is_known) {
        return failed(StatusCode::UNAUTHORIZED, "Unauthorized");
    }
    if inner.is_forbidden {
        return failed(StatusCode::FORBIDDEN, "no rights");
    }
    let existing = inner.objects.get(path).cloned();
    if method == Method::GET {
        return match existing {
            Some(object) => (StatusCode::OK, Json(object)),
            None => failed(StatusCode::NOT_FOUND, "not found"),
        };
    }
    let Ok(mut object) = serde_json::from_slice::<Value>(&body) else {
        return failed(StatusCode::BAD_REQUEST, "no JSON");
    };
    if let Err(why) = check_slice(&object) {
        return failed(StatusCode::UNPROCESSABLE_ENTITY, &why);
    }
    let place = match method {
        Method::POST => {
            format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
        }
        _ => path.to_owned(),
    };
    let version = existing.as_ref().map(|existing| &existing["metadata"]["resourceVersion"]);
    let is_right = match version {
        None => method == Method::POST && !inner.objects.contains_key(&place),
        Some(version) => method == Method::PUT && *version == object["metadata"]["resourceVersion"],
    };
    if !is_right {
        return failed(StatusCode::CONFLICT, "the object has been modified");
    }
    inner.version += 1;
    object["metadata"]["resourceVersion"] = inner.version.to_string().into();
    // As the real one, it notes when a taint has come.
    for device in object["spec"]["devices"].as_array_mut().into_iter().flatten() {
        for taint in device["taints"].as_array_mut().into_iter().flatten() {
            taint["timeAdded"] = "2026-11-27T12:00:00Z".into();
        }
    }
    inner.changes.push(format!("{method} {path}"));
    inner.objects.insert(place, object.clone());
    (StatusCode::CREATED, Json(object))
}

/// What of a slice the real server would refuse.
fn check_slice(object: &Value) -> Result<(), String> {
    let slice: ResourceSlice =
        serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&slice).map_err(|error| error.to_string())?;
    if again != *object {
        return Err(format!("unknown fields: {object} is read as {again}"));
    }
    let spec = slice.spec;
    if spec.pool.name != super::NODE || spec.node_name.as_deref() != Some(super::NODE) {
        return Err("the slice is another node's".into());
    }
    let owners = slice.metadata.owner_references.unwrap_or_default();
    if owners.iter().all(|owner| owner.uid != "node-uid") {
        return Err("the node does not own it".into());
    }
    Ok(())
}
