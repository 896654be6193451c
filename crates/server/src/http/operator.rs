//! `/v1/operator`: the operator API. There is no Raft and no gossip: a store is used by one server, or shared
//! by several that hold no state. So this server reports itself as the only one, and endpoints without an
//! equivalent return an error.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::State;
use axum::response::Response;
use legate_model::{AutopilotConfiguration, ServiceInstance, ServiceKind, timestamp};
use legate_store::{ReadTxn, Rejected, Writer};
use serde::Serialize;
use serde_json::{Value, json};

use super::call::Call;
use super::status;
use crate::api_error::ApiError;
use crate::own_node::{CONSUL_VERSION, OWN_SERVICE};

/// The Raft protocol version that clients expect.
const RAFT_PROTOCOL: &str = "3";

/// The service kinds that Consul counts as part of the mesh.
const MESH_KINDS: [ServiceKind; 5] = [
    ServiceKind::ConnectProxy,
    ServiceKind::MeshGateway,
    ServiceKind::TerminatingGateway,
    ServiceKind::IngressGateway,
    ServiceKind::ApiGateway,
];

/// The start time of this server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started(pub(super) SystemTime);

fn require_read(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.operator_read(), "operator:read", "")
}

fn require_write(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.operator_write(), "operator:write", "")
}

/// The id of this server's node; empty if it is not in the catalog.
fn own_id(state: &ReadTxn<'_>, call: &Call) -> String {
    let node = state.node(&call.config.node_name);
    node.map_or_else(String::new, |node| node.id.clone())
}

/// `GET /v1/operator/raft/configuration`
pub(super) async fn raft(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let state = call.reader.state();
    let index = state.index();
    call.json(&json!({
        "Servers": [{
            "ID": own_id(&state.read(), &call),
            "Node": call.config.node_name,
            "Address": status::address(&call.config),
            "Leader": true,
            "ProtocolVersion": RAFT_PROTOCOL,
            "Voter": true,
            "LastIndex": index,
        }],
        "Index": index,
    }))
}

/// `POST /v1/operator/raft/transfer-leader`
pub(super) async fn transfer_leader(call: Call) -> Result<Response, ApiError> {
    require_write(&call)?;
    Err(ApiError::internal(
        "Failed to transfer Leader: cannot find peer: each server is its own leader here",
    ))
}

/// `DELETE /v1/operator/raft/peer`
pub(super) async fn remove_peer(call: Call) -> Result<Response, ApiError> {
    require_write(&call)?;
    let (id, address) = (call.params.get("id"), call.params.get("address"));
    let (what, value, own) = match (id, address) {
        (Some(id), None) => ("id", id, own_id(&call.reader.state().read(), &call)),
        (None, Some(address)) => {
            let own = status::address(&call.config).to_string();
            ("address", address, own)
        }
        (None, None) => {
            return Err(ApiError::bad_request(
                "Must specify either ?id with the server's ID or ?address with IP:port of peer to \
                 remove",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request(
                "Must specify only one of ?id or ?address",
            ));
        }
    };
    Err(ApiError::internal(match own == value {
        true => format!("{what} {value:?} is this server, the only one: stop it instead"),
        false => format!("{what} {value:?} was not found in the Raft configuration"),
    }))
}

/// `GET /v1/operator/autopilot/configuration`
pub(super) async fn autopilot(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let found = call.reader.state().read().autopilot();
    call.json(&found.unwrap_or_default())
}

/// `PUT /v1/operator/autopilot/configuration`
pub(super) async fn set_autopilot(
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let cas = call.params.cas()?;
    let configuration: AutopilotConfiguration = call.decode()?;
    let written = call.write(&writer, move |txn| {
        match txn.put_autopilot(configuration.clone(), cas) {
            Ok(()) => Ok(true),
            Err(Rejected::CasMismatch { .. }) => Ok(false),
            Err(rejected) => Err(rejected.into()),
        }
    });
    call.json(&written.await?)
}

/// `GET /v1/operator/autopilot/health`
pub(super) async fn health(
    State(started): State<Started>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let mut server = own_health(&call, started);
    server["SerfStatus"] = "alive".into();
    server["Leader"] = true.into();
    server["Voter"] = true.into();
    call.json(&json!({ "Healthy": true, "FailureTolerance": 0, "Servers": [server] }))
}

/// The fields common to both health endpoints.
fn own_health(call: &Call, started: Started) -> Value {
    let state = call.reader.state();
    json!({
        "ID": own_id(&state.read(), call),
        "Name": call.config.node_name,
        "Address": status::address(&call.config),
        "Version": CONSUL_VERSION,
        "LastContact": "0s",
        "LastTerm": 1,
        "LastIndex": state.index(),
        "Healthy": true,
        "StableSince": timestamp::format(started.0).unwrap_or_default(),
    })
}

/// `GET /v1/operator/autopilot/state`
pub(super) async fn autopilot_state(
    State(started): State<Started>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let mut server = own_health(&call, started);
    let id = server["ID"].as_str().unwrap_or_default().to_owned();
    server["NodeStatus"] = "alive".into();
    server["Status"] = "leader".into();
    server["NodeType"] = "voter".into();
    server["ReadReplica"] = false.into();
    let state = call.reader.state();
    let node = state.read().node(&call.config.node_name);
    server["Meta"] = json!(node.map(|node| node.meta.clone()).unwrap_or_default());
    call.json(&json!({
        "Healthy": true,
        "FailureTolerance": 0,
        "OptimisticFailureTolerance": 0,
        "Leader": id,
        "Voters": [id],
        "Servers": BTreeMap::from([(id.clone(), server)]),
    }))
}

/// Counts of services, instances and nodes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Usage {
    services: usize,
    service_instances: usize,
    connect_service_instances: BTreeMap<&'static str, usize>,
    billable_service_instances: usize,
    nodes: usize,
}

impl Usage {
    fn of(state: &ReadTxn<'_>) -> Self {
        let mut usage = Self::default();
        let counted = MESH_KINDS.map(ServiceKind::as_str);
        let counted = counted.into_iter().chain(["connect-native"]);
        usage.connect_service_instances = counted.map(|kind| (kind, 0)).collect();
        for tenancy in state.tenancies() {
            state.in_tenancy(&tenancy, |state| usage.add_all(state));
        }
        usage
    }

    fn add_all(&mut self, state: &ReadTxn<'_>) {
        self.services += state.services().len();
        if state.tenancy().is_default_namespace() {
            self.nodes += state.nodes().len();
        }
        for (_, instance) in state.instances_with_nodes() {
            self.add(&instance);
        }
    }

    fn add(&mut self, instance: &ServiceInstance) {
        self.service_instances += 1;
        let mut count = |kind| *self.connect_service_instances.entry(kind).or_default() += 1;
        if instance.kind != ServiceKind::Typical {
            count(instance.kind.as_str());
        } else if instance.connect.native {
            count("connect-native");
        }
        let is_own = instance.service == OWN_SERVICE;
        if instance.kind == ServiceKind::Typical && !is_own {
            self.billable_service_instances += 1;
        }
    }
}

/// `GET /v1/operator/usage`. There is only one datacenter, so `?global` makes no difference.
pub(super) async fn usage(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    call.params.flag("global")?;
    let answer = call.read(Usage::of).await?;
    let usage = BTreeMap::from([(&call.config.datacenter, answer.value)]);
    let body = json!({
        "Usage": usage,
        "Index": answer.index,
        "LastContact": 0,
        "KnownLeader": true,
        "ConsistencyLevel": call.params.consistency()?.as_str(),
        "NotModified": false,
        "Backend": 0,
        "ResultsFilteredByACLs": false,
    });
    call.answer(answer.index, &body, false)
}

/// `/v1/operator/keyring`
pub(super) async fn keyring(call: Call) -> Result<Response, ApiError> {
    ApiError::require(call.authorizer()?.keyring_read(), "keyring:read", "")?;
    Err(no_gossip())
}

/// Changes of `/v1/operator/keyring`
pub(super) async fn change_keyring(call: Call) -> Result<Response, ApiError> {
    ApiError::require(call.authorizer()?.keyring_write(), "keyring:write", "")?;
    Err(no_gossip())
}

fn no_gossip() -> ApiError {
    ApiError::internal(
        "Keyring is empty (encryption not enabled): servers do not gossip, so there is no key to \
         install, list or remove",
    )
}

/// `/v1/operator/area…` and `/v1/operator/segment`: Consul Enterprise only. An error, as in Consul's community
/// edition.
pub(super) async fn paid(call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    Err(ApiError::not_found(
        "Network areas and segments do not exist here: servers do not gossip",
    ))
}
