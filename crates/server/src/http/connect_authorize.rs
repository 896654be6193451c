//! `/v1/agent/connect/authorize`: intention checks for services that verify certificates themselves. The
//! decision is that of `/v1/connect/intentions/check`.

use axum::response::Response;
use legate_intentions::{Action, Decision};
use legate_model::{ConnectAuthorize, ServiceName, SpiffeId};

use super::call::Call;
use crate::api_error::ApiError;

/// `POST /v1/agent/connect/authorize`. L7 intentions deny, and so do callers of another trust domain.
pub(super) async fn authorize(mut call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    let asked: ConnectAuthorize = call.decode()?;
    call.settle(&asked.partition, &asked.namespace)?;
    let authorizer = call.authorizer()?;
    if asked.target.is_empty() {
        return Err(ApiError::bad_request("Target service must be specified"));
    }
    let identity = asked.client_cert_uri.parse::<SpiffeId>().map_err(|error| {
        ApiError::bad_request(format!(
            "ClientCertURI not a valid Connect identifier: {error}"
        ))
    })?;
    let SpiffeId::Service {
        trust_domain,
        tenancy,
        service,
        ..
    } = identity
    else {
        return Err(ApiError::bad_request(
            "ClientCertURI not a valid Service identifier",
        ));
    };
    ApiError::require(
        authorizer.service_write(&asked.target),
        "service:write",
        &asked.target,
    )?;
    let caller = ServiceName::new(&tenancy, &service);
    let default = call.config.intention_default();
    let stated = call.config.default_intention_policy.is_some();
    let answer = call
        .read(|state| {
            let own = state.ca_roots().map(|roots| roots.trust_domain.clone());
            if own.is_none_or(|own| own != trust_domain.as_str()) {
                let reason = format!("{trust_domain} is not the trust domain of this mesh");
                return (false, reason);
            }
            let intentions = state.intentions_for(&asked.target);
            let check = legate_intentions::check(&intentions, &caller, default);
            (check.action == Action::Allow, reason(&check, stated))
        })
        .await?;
    let (authorized, reason) = answer.value;
    call.json(&serde_json::json!({ "Authorized": authorized, "Reason": reason }))
}

/// Consul's texts, on which clients match. `stated`: the settings contain a default policy for intentions.
fn reason(decision: &Decision, stated: bool) -> String {
    let Some(intention) = &decision.matched else {
        let default = match stated {
            true => "Default intention policy",
            false => "Default behavior configured by ACLs",
        };
        return default.to_owned();
    };
    let (layer, detail) = match (intention.action, &intention.jwt) {
        (Some(action), None) => {
            let action = action.to_string().to_uppercase();
            ("L4", format!("Action: {action}"))
        }
        // Consul has no text for this case.
        (Some(_), Some(_)) => return decision.reason.clone(),
        (None, _) => {
            let count = intention.permissions.len();
            ("L7", format!("Permissions: {count}"))
        }
    };
    format!(
        "Matched {layer} intention: {} => {} (Precedence: {}, {detail})",
        with_namespace(&intention.source()),
        with_namespace(&intention.destination()),
        intention.precedence
    )
}

/// `<namespace>/<name>`, prefixed with the partition unless it is `default`.
fn with_namespace(service: &ServiceName) -> String {
    let ServiceName { tenancy, name } = service;
    match tenancy.is_default_partition() {
        true => format!("{}/{name}", tenancy.namespace),
        false => format!("{}/{}/{name}", tenancy.partition, tenancy.namespace),
    }
}
