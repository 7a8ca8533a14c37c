//! The manifests in `systemd/kubernetes`, against the published schemas: each object is read as
//! its type, and every field of it has to be known there.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    partita_e2e::workspace().join("systemd/kubernetes")
}

fn objects(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let all = serde_norway::Deserializer::from_str(&text);
    all.map(|one| Value::deserialize(one).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
        .collect()
}

/// The object as its type reads it, again as JSON.
fn read<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

fn check(object: &Value) -> Result<(), String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let again = match (version, kind) {
        ("v1", "Namespace") => read::<Namespace>(object),
        ("v1", "Pod") => read::<Pod>(object),
        ("v1", "ServiceAccount") => read::<ServiceAccount>(object),
        ("apps/v1", "DaemonSet") => read::<DaemonSet>(object),
        ("apps/v1", "Deployment") => read::<Deployment>(object),
        ("batch/v1", "Job") => read::<Job>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => read::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            read::<ClusterRoleBinding>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            read::<ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            read::<ValidatingAdmissionPolicyBinding>(object)
        }
        ("resource.k8s.io/v1", "DeviceClass") => read::<DeviceClass>(object),
        ("resource.k8s.io/v1", "ResourceClaim") => read::<ResourceClaim>(object),
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => read::<ResourceClaimTemplate>(object),
        _ => return Err(format!("no manifest of ours has {version} {kind}")),
    }?;
    covers(&again, object, kind)
}

/// Whether the type knows all that the manifest says.
fn covers(typed: &Value, written: &Value, place: &str) -> Result<(), String> {
    match (typed, written) {
        (Value::Object(typed), Value::Object(written)) => {
            written.iter().try_for_each(|(name, value)| match typed.get(name) {
                Some(known) => covers(known, value, &format!("{place}.{name}")),
                None => Err(format!("{place} has no field `{name}`")),
            })
        }
        (Value::Array(typed), Value::Array(written)) if typed.len() == written.len() => {
            typed.iter().zip(written).enumerate().try_for_each(|(at, (typed, written))| {
                covers(typed, written, &format!("{place}[{at}]"))
            })
        }
        _ if typed == written => Ok(()),
        _ => Err(format!("{place} is {written}, and is read as {typed}")),
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).expect("the folder is there");
    let mut all: Vec<PathBuf> = all.map(|one| one.expect("it can be read").path()).collect();
    all.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    all.sort();
    all
}

#[test]
fn every_manifest_is_of_its_schema() {
    let resources = objects(&folder().join("kustomization.yaml")).remove(0);
    let listed = resources["resources"].as_array().unwrap();
    let mut count = 0;
    for file in files(&folder()).into_iter().chain(files(&folder().join("examples"))) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name == "kustomization.yaml" {
            continue;
        }
        let is_example = file.parent().unwrap().ends_with("examples");
        assert!(is_example || listed.contains(&Value::String(name)), "{}", file.display());
        for object in objects(&file) {
            check(&object).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            count += 1;
        }
    }
    assert!(count >= 14, "{count} objects");
}

#[test]
fn a_misspelt_field_is_found() {
    let class = objects(&folder().join("deviceclasses.yaml")).remove(0);
    let mut wrong = class.clone();
    wrong["spec"]["selector"] = wrong["spec"]["selectors"].take();
    assert_eq!(check(&wrong), Err("DeviceClass.spec has no field `selector`".into()));
    let mut wrong = class;
    wrong["spec"]["selectors"] = "device".into();
    assert!(check(&wrong).is_err());
}

/// The examples' claims, allocated as they ask, are what the driver takes.
#[test]
fn the_driver_takes_what_the_examples_ask_for() {
    let classes = objects(&folder().join("deviceclasses.yaml"));
    let mut found = Vec::new();
    for object in files(&folder().join("examples")).iter().flat_map(|file| objects(file)) {
        let spec = match object["kind"].as_str() {
            Some("ResourceClaim") => &object["spec"],
            Some("ResourceClaimTemplate") => &object["spec"]["spec"],
            _ => continue,
        };
        let request = &spec["devices"]["requests"][0];
        let exactly = &request["exactly"];
        let class =
            classes.iter().find(|one| one["metadata"]["name"] == exactly["deviceClassName"]);
        let class = class.expect("the class is among the manifests");
        let mut config = class["spec"]["config"].as_array().cloned().unwrap_or_default();
        config.iter_mut().for_each(|one| one["source"] = "FromClass".into());
        for own in spec["devices"]["config"].as_array().into_iter().flatten() {
            let mut own = own.clone();
            own["source"] = "FromClaim".into();
            config.push(own);
        }
        let result = json!({"request": request["name"], "driver": "gpu.partita.dev",
            "pool": "n", "device": "gpu-0",
            "consumedCapacity": exactly["capacity"]["requests"]});
        let claim = json!({"metadata": {}, "spec": {}, "status": {"allocation":
            {"devices": {"results": [result], "config": config}}}});
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let wanted = partita_dra::claim::Wanted::read(&claim, "gpu.partita.dev", "n").unwrap();
        let one = wanted.reservations("u", 0, 1).into_values().next().unwrap();
        let priority = one.priority.map_or("", partita_model::Priority::name);
        found.push((one.sms, one.memory_bytes >> 30, one.max_sms, priority, wanted.user));
    }
    let expected = [
        (8, 4, Some(24), "", None),
        (16, 0, None, "latency", None),
        (1, 0, None, "batch", None),
        (12, 0, None, "", Some(1000)),
    ];
    assert_eq!(found, expected);
}

/// What an API server does with a request under the policy for slices: `None` where it lets the
/// request pass, else the message. The expressions are the manifest's, by an interpreter of CEL.
fn refusal(policy: &Value, request: &Value, object: &Value, old: &Value) -> Option<String> {
    let mut context = cel::Context::default();
    let mut variables = json!({});
    for (name, value) in [("request", request), ("object", object), ("oldObject", old)] {
        context.add_variable(name, value).expect("JSON is a value");
    }
    let evaluate = |context: &cel::Context<'_, '_>, expression: &Value| -> Option<Value> {
        let text = expression.as_str().expect("an expression is text");
        let program = cel::Program::compile(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        program.execute(context).ok().map(|value| value.json().expect("it is JSON"))
    };
    let list = |name: &str| policy["spec"][name].as_array().cloned().unwrap_or_default();
    let is_meant = |one: &Value| evaluate(&context, &one["expression"]) == Some(true.into());
    if !list("matchConditions").iter().all(is_meant) {
        return None;
    }
    for one in list("variables") {
        let name = one["name"].as_str().expect("a variable has a name");
        variables[name] = evaluate(&context, &one["expression"]).expect("it has a value");
        context.add_variable("variables", &variables).expect("JSON is a value");
    }
    // An expression without a value is a refusal: failurePolicy is Fail.
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let fails = |one: &Value| evaluate(&context, &one["expression"]) != Some(true.into());
    let failed = list("validations").into_iter().find(fails)?;
    Some(failed["message"].as_str().expect("a refusal has a message").to_owned())
}

#[test]
fn a_driver_changes_the_slices_of_its_own_node_only() {
    let policy = objects(&folder().join("policy.yaml")).remove(0);
    let account = objects(&folder().join("rbac.yaml")).remove(0);
    let (space, name) = (&account["metadata"]["namespace"], &account["metadata"]["name"]);
    let driver = format!("system:serviceaccount:{}:{}", word(space), word(name));
    let slice = |node: &str, driver: &str| json!({"spec": {"nodeName": node, "driver": driver}});
    let own = slice("gpu01", "gpu.partita.dev");
    let request = |user: &str, operation: &str, node: Option<&str>| {
        let key = "authentication.kubernetes.io/node-name";
        let extra = node.map_or(json!({}), |node| json!({key: [node]}));
        json!({"operation": operation, "userInfo": {"username": user, "extra": extra}})
    };
    let by = |operation: &str, node: Option<&str>, object: &Value, old: &Value| {
        refusal(&policy, &request(&driver, operation, node), object, old)
    };
    let none = Value::Null;
    let here = Some("gpu01");
    assert_eq!(by("CREATE", here, &own, &none), None);
    assert_eq!(by("UPDATE", here, &own, &own), None);
    assert_eq!(by("DELETE", here, &none, &own), None);
    for refused in [
        by("CREATE", Some("gpu02"), &own, &none),
        by("UPDATE", Some("gpu02"), &own, &own),
        by("DELETE", Some("gpu02"), &none, &own),
        by("CREATE", here, &json!({"spec": {"driver": "gpu.partita.dev"}}), &none),
    ] {
        assert!(refused.as_deref().is_some_and(|why| why.contains("own node")), "{refused:?}");
    }
    let refused = by("CREATE", here, &slice("gpu01", "gpu.nvidia.com"), &none);
    assert!(refused.is_some_and(|why| why.contains("gpu.partita.dev only")));
    let bare = json!({"operation": "CREATE", "userInfo": {"username": driver}});
    for request in [request(&driver, "CREATE", None), bare] {
        let refused = refusal(&policy, &request, &own, &none);
        assert!(refused.is_some_and(|why| why.contains("names no node")));
    }
    // Other drivers and people are not the policy's business.
    let other = request("system:serviceaccount:nvidia:driver", "CREATE", here);
    assert_eq!(refusal(&policy, &other, &slice("gpu09", "gpu.nvidia.com"), &none), None);
}

fn word(value: &Value) -> &str {
    value.as_str().expect("it is text")
}
