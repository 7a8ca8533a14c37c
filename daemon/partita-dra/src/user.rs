//! The user of the host as whom a claim's containers run.
//!
//! `partitad` tells tenants apart by the user id of a connected process, and a container's process
//! has the id that its pod gives it. Ids that only an image knows are not seen here.

use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeSet;

/// The remedy that always helps.
const REMEDY: &str = "or give `user` in the claim's parameters";

/// Why the user is not known.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum UserError {
    /// The pod's user ids are mapped.
    #[error(
        "pod `{0}` has a user namespace (hostUsers: false), so its user id on the host is not \
         known: leave hostUsers out, {REMEDY}"
    )]
    Mapped(String),
    /// The image decides.
    #[error(
        "pod `{0}` says runAsNonRoot and not which user: give runAsUser in its securityContext, \
         {REMEDY}"
    )]
    OfImage(String),
    /// Several users.
    #[error(
        "the containers of the claim run as users {0}, and one claim is for one user: give them \
         one runAsUser, {REMEDY}"
    )]
    Several(String),
    /// No number of a user.
    #[error("runAsUser {0} is no user's number")]
    Number(i64),
}

/// The user of all containers that use the claim of this name. Without any pod it is root.
///
/// # Errors
/// Where it is not known, or where there are several.
pub fn user_of(pods: &[Pod], claim: &str) -> Result<u32, UserError> {
    let mut users = BTreeSet::new();
    for pod in pods {
        users.append(&mut users_of(pod, claim)?);
    }
    let mut all = users.iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(0),
        (Some(user), None) => u32::try_from(*user).map_err(|_| UserError::Number(*user)),
        _ => {
            let all: Vec<String> = users.iter().map(i64::to_string).collect();
            Err(UserError::Several(all.join(", ")))
        }
    }
}

fn users_of(pod: &Pod, claim: &str) -> Result<BTreeSet<i64>, UserError> {
    let Some(spec) = &pod.spec else { return Ok(BTreeSet::new()) };
    let name = || pod.metadata.name.clone().unwrap_or_default();
    if spec.host_users == Some(false) {
        return Err(UserError::Mapped(name()));
    }
    // The pod's own name of the claim: written in its spec, or made from a template.
    let statuses = pod.status.as_ref().and_then(|one| one.resource_claim_statuses.as_deref());
    let made = statuses.unwrap_or_default().iter();
    let made = made
        .filter(|one| one.resource_claim_name.as_deref() == Some(claim))
        .map(|one| one.name.as_str());
    let written = spec.resource_claims.as_deref().unwrap_or_default().iter();
    let written = written
        .filter(|one| one.resource_claim_name.as_deref() == Some(claim))
        .map(|one| one.name.as_str());
    let own: BTreeSet<&str> = made.chain(written).collect();
    let uses = |container: &&Container| {
        let claims = container.resources.as_ref().and_then(|all| all.claims.as_deref());
        claims.unwrap_or_default().iter().any(|one| own.contains(one.name.as_str()))
    };
    let whole = spec.security_context.as_ref();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let mut users = BTreeSet::new();
    for container in spec.containers.iter().chain(init).filter(uses) {
        let own = container.security_context.as_ref();
        let user = own
            .and_then(|own| own.run_as_user)
            .or_else(|| whole.and_then(|whole| whole.run_as_user));
        let never_root = own
            .and_then(|own| own.run_as_non_root)
            .or_else(|| whole.and_then(|whole| whole.run_as_non_root));
        if user.is_none() && never_root == Some(true) {
            return Err(UserError::OfImage(name()));
        }
        users.insert(user.unwrap_or(0));
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(extra: Value, containers: Value) -> Pod {
        let mut spec = json!({"containers": containers,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"},
                {"name": "named", "resourceClaimName": "shared"}]});
        for (name, value) in extra.as_object().cloned().unwrap_or_default() {
            spec[name] = value;
        }
        let made = json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": spec,
            "status": {"resourceClaimStatuses": made}});
        serde_json::from_value(pod).unwrap()
    }

    fn container(claim: &str, security: Value) -> Value {
        json!({"name": "c", "securityContext": security,
            "resources": {"claims": [{"name": claim}]}})
    }

    #[test]
    fn the_user_is_that_of_the_containers_with_the_claim() {
        let check = |extra: Value, containers: Value, claim: &str, expected: Result<u32, &str>| {
            let found = user_of(&[pod(extra, containers)], claim);
            match expected {
                Ok(user) => assert_eq!(found, Ok(user)),
                Err(words) => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(words), "{error}");
                }
            }
        };
        let plain = || json!([container("gpu", json!({}))]);
        let whole = |user: i64| json!({"securityContext": {"runAsUser": user}});
        check(json!({}), plain(), "p-gpu-x", Ok(0));
        check(whole(1000), plain(), "p-gpu-x", Ok(1000));
        let own = json!([container("gpu", json!({"runAsUser": 7})), {"name": "d"}]);
        check(whole(1000), own, "p-gpu-x", Ok(7));
        let named = json!([container("named", json!({"runAsUser": 8}))]);
        check(json!({}), named, "shared", Ok(8));
        let two = json!([container("gpu", json!({"runAsUser": 7})), container("gpu", json!({}))]);
        check(json!({}), two, "p-gpu-x", Err("users 0, 7"));
        check(json!({"hostUsers": false}), plain(), "p-gpu-x", Err("hostUsers"));
        let unknown = json!({"securityContext": {"runAsNonRoot": true}});
        check(unknown, plain(), "p-gpu-x", Err("runAsUser"));
        check(whole(-4), plain(), "p-gpu-x", Err("no user's number"));
        assert_eq!(user_of(&[], "x"), Ok(0));
    }
}
