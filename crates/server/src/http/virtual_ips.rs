//! `/v1/internal/service-virtual-ip`: manual virtual IPs of a service. consul-k8s assigns the ClusterIP of the
//! Kubernetes Service.

use axum::extract::State;
use axum::response::Response;
use legate_model::ServiceName;
use legate_model::virtual_ip::AssignVirtualIps;
use legate_store::Writer;
use serde_json::{Value, json};

use super::call::Call;
use super::catalog::refuse_datacenter;
use crate::api_error::ApiError;

/// `PUT /v1/internal/service-virtual-ip`
pub(super) async fn assign(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    may_assign(&call)?;
    let request: AssignVirtualIps = call.decode()?;
    request.validate()?;
    call.settle(&request.partition, &request.namespace)?;
    may_assign(&call)?;
    refuse_datacenter(&call, &request.datacenter)?;
    let addresses = request.addresses()?;
    let taken_from = call
        .write(&writer, move |txn| {
            Ok(txn.assign_virtual_ips(&request.service, &addresses))
        })
        .await?;
    let found = taken_from.is_some();
    let services = taken_from.into_iter().flatten();
    let unassigned: Vec<Value> = services
        .map(|service| json!({ "ServiceName": shown(&service), "Peer": "" }))
        .collect();
    // `null` if empty, as in Go.
    let unassigned = (!unassigned.is_empty()).then_some(unassigned);
    call.json(&json!({ "Found": found, "UnassignedFrom": unassigned }))
}

/// A service name in Consul Enterprise's format.
fn shown(ServiceName { tenancy, name }: &ServiceName) -> Value {
    let mut shown = json!({ "Name": **name });
    for (field, of) in [
        ("Namespace", tenancy.shown_namespace()),
        ("Partition", tenancy.shown_partition()),
    ] {
        if !of.is_empty() {
            shown[field] = json!(of);
        }
    }
    shown
}

fn may_assign(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.mesh_write(), "mesh:write", "")
}
