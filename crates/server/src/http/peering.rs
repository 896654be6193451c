//! `/v1/peering` and `/v1/peerings`: peerings with other clusters. Tokens are generated and accepted, and
//! peerings are stored, but this server does not connect to other clusters yet. Each response contains that as
//! the reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_identity::CertificateInfo;
use legate_model::{
    CaRoots, EstablishPeering, GeneratePeeringToken, Peering, PeeringRemote, PeeringState,
    PeeringToken, Secret, TenancyName, TokenRemote,
};
use legate_store::{WriteTxn, Writer};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;

/// Maximum number of peerings.
const MOST: usize = 1_000;

/// The reason why peerings do not become active.
const REASON: &str = "this server keeps peerings and does not connect to other clusters yet";

/// A peering in the API's format, without its secret.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown<'p> {
    #[serde(rename = "ID")]
    id: &'p str,
    name: &'p str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: &'p BTreeMap<String, String>,
    state: PeeringState,
    /// Not in Consul's API.
    state_reason: &'static str,
    #[serde(rename = "PeerID", skip_serializing_if = "str::is_empty")]
    peer_id: &'p str,
    #[serde(rename = "PeerCAPems", skip_serializing_if = "<[String]>::is_empty")]
    peer_ca_pems: &'p [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_server_name: &'p str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    peer_server_addresses: &'p [String],
    stream_status: StreamStatus,
    create_index: u64,
    modify_index: u64,
    remote: &'p PeeringRemote,
}

/// Statistics of the connection: all empty.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct StreamStatus {
    imported_services: (),
    exported_services: (),
    last_heartbeat: (),
    last_receive: (),
    last_send: (),
}

impl<'p> Shown<'p> {
    fn of(peering: &'p Peering) -> Self {
        Self {
            id: &peering.id,
            name: &peering.name,
            meta: &peering.meta,
            state: peering.state,
            state_reason: REASON,
            peer_id: &peering.peer_id,
            peer_ca_pems: &peering.peer_ca_pems,
            peer_server_name: &peering.peer_server_name,
            peer_server_addresses: &peering.peer_server_addresses,
            stream_status: StreamStatus::default(),
            create_index: peering.create_index,
            modify_index: peering.modify_index,
            remote: &peering.remote,
        }
    }
}

fn require_read(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.peering_read(), "peering:read", "")
}

fn require_write(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.peering_write(), "peering:write", "")
}

/// `GET /v1/peerings`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let answer = call.read(|state| state.peerings()).await?;
    let all: Vec<Shown<'_>> = answer.value.iter().map(|one| Shown::of(one)).collect();
    call.answer(answer.index, &all, false)
}

/// `GET /v1/peering/:name`
pub(super) async fn get(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let answer = call.read(|state| state.peering(&name)).await?;
    match answer.value {
        Some(peering) => call.answer(answer.index, &Shown::of(&peering), false),
        None => call.absent(answer.index, &format!("Peering not found for {name:?}")),
    }
}

/// `/v1/peering/` without a name.
pub(super) async fn nameless(call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    Err(ApiError::bad_request("Must specify a name to fetch."))
}

/// `DELETE /v1/peering/:name`. There are no imported services to remove first.
pub(super) async fn delete(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    call.write(&writer, move |txn| {
        txn.remove_peering(&name);
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

/// `POST /v1/peering/token`: generates a new token, and revokes the previous one.
pub(super) async fn token(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let request: GeneratePeeringToken = call.decode()?;
    call.settle(&request.partition, &TenancyName::default())?;
    require_write(&call)?;
    if request.peer_name.is_empty() {
        return Err(ApiError::bad_request(
            "PeerName is required in the payload when generating a new peering token.",
        ));
    }
    request.validate()?;
    let roots = roots(&call)?;
    let address = call.config.grpc_tls.ok_or_else(|| {
        ApiError::internal("TLS for gRPC must be enabled when generating peering tokens")
    })?;
    let address = std::net::SocketAddr::new(call.config.advertise, address.port());
    let (id, secret) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
    let (name, meta) = (request.peer_name, request.meta);
    let secret = Secret::new(secret);
    let written = {
        let secret = secret.clone();
        call.write(&writer, move |txn| {
            let existing = txn.read().peering(&name);
            if existing.as_ref().is_some_and(|one| one.dials()) {
                return Err(ApiError::internal(format!(
                    "cannot create peering with name: {name:?}; there is already an established \
                     peering"
                )));
            }
            // As in Consul, an existing peering keeps its metadata.
            let known = existing.map(|one| Peering::clone(&one));
            let mut peering = known.unwrap_or_else(|| Peering {
                id: id.clone(),
                name: name.clone(),
                meta: meta.clone(),
                ..Peering::default()
            });
            peering.establishment_secret = secret.clone();
            put(txn, peering)
        })
    };
    let token = PeeringToken {
        ca: pems(&roots),
        manual_server_addresses: request.server_external_addresses,
        server_addresses: vec![address.to_string()],
        server_name: server_name(&call.config, &roots),
        peer_id: written.await?,
        establishment_secret: secret,
        remote: TokenRemote {
            partition: call.tenancy.partition.to_string(),
            datacenter: call.config.datacenter.clone(),
            locality: None,
        },
    };
    call.json(&json!({ "PeeringToken": token.encode().expose() }))
}

/// `POST /v1/peering/establish`
pub(super) async fn establish(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let request: EstablishPeering = call.decode()?;
    call.settle(&request.partition, &TenancyName::default())?;
    require_write(&call)?;
    for (field, given) in [
        ("PeerName", !request.peer_name.is_empty()),
        ("PeeringToken", !request.peering_token.is_empty()),
    ] {
        if !given {
            return Err(ApiError::bad_request(format!(
                "{field} is required in the payload when establishing a peering."
            )));
        }
    }
    request.validate()?;
    let token = PeeringToken::decode(&request.peering_token)?;
    for pem in &token.ca {
        CertificateInfo::from_pem(pem)
            .map_err(|error| ApiError::bad_request(format!("peering token invalid CA: {error}")))?;
    }
    let own = server_name(&call.config, &*roots(&call)?);
    if own == token.server_name {
        return Err(ApiError::internal(format!(
            "cannot create a peering within the same cluster {own:?}. Refer to the \
             `exported-services` documentation if you want to export between partitions without \
             peering"
        )));
    }
    let peering = Peering {
        id: Uuid::new_v4().to_string(),
        name: request.peer_name,
        meta: request.meta,
        state: PeeringState::Establishing,
        peer_id: token.peer_id,
        peer_ca_pems: token.ca,
        peer_server_name: token.server_name,
        peer_server_addresses: match token.manual_server_addresses.is_empty() {
            true => token.server_addresses,
            false => token.manual_server_addresses,
        },
        establishment_secret: token.establishment_secret,
        remote: PeeringRemote {
            partition: token.remote.partition,
            datacenter: token.remote.datacenter,
            locality: token.remote.locality,
        },
        ..Peering::default()
    };
    call.write(&writer, move |txn| {
        let mut peering = peering.clone();
        if let Some(existing) = txn.read().peering(&peering.name) {
            if !existing.dials() {
                return Err(ApiError::internal(format!(
                    "cannot create peering with name: {:?}; there is an existing peering expecting \
                     to be dialed",
                    peering.name
                )));
            }
            peering.id.clone_from(&existing.id);
        }
        put(txn, peering)
    })
    .await?;
    call.json(&json!({}))
}

/// Writes a peering and returns its id.
fn put(txn: &mut WriteTxn, peering: Peering) -> Result<String, ApiError> {
    let read = txn.read();
    if read.peering(&peering.name).is_none() && read.peerings().len() >= MOST {
        return Err(ApiError::internal(format!(
            "the maximum of {MOST} peerings is reached: delete some first"
        )));
    }
    let id = peering.id.clone();
    txn.put_peering(peering);
    Ok(id)
}

fn roots(call: &Call) -> Result<Arc<CaRoots>, ApiError> {
    let roots = call.reader.state().read().ca_roots();
    roots.ok_or_else(|| ApiError::internal("CA has not finished initializing"))
}

/// The root certificates, each with a trailing newline, as in Consul.
fn pems(roots: &CaRoots) -> Vec<String> {
    let lines = |pem: &str| format!("{}\n", pem.trim_end());
    let all = roots.roots.iter();
    all.map(|root| lines(&root.root_cert)).collect()
}

/// The server name that other clusters expect in the certificates of this cluster's servers. Consul's.
fn server_name(config: &ServerConfig, roots: &CaRoots) -> String {
    format!(
        "server.{}.peering.{}",
        config.datacenter, roots.trust_domain
    )
}
