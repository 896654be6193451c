//! `/v1/peering` and `/v1/peerings`: peerings with other clusters, their tokens, and the status of their streams.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::{
    EstablishPeering, GeneratePeeringToken, Peering, PeeringRemote, PeeringState, PeeringStream,
    TenancyName, timestamp,
};
use legate_runtime::Clock;
use legate_store::{ReadTxn, Writer};
use serde::Serialize;
use serde_json::json;

use super::call::Call;
use crate::api_error::ApiError;
use crate::peering::Peerings;

/// A peering in the API's format, without its secrets.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown<'p> {
    #[serde(rename = "ID")]
    id: &'p str,
    name: &'p str,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: &'p TenancyName,
    #[serde(
        serialize_with = "timestamp::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    deleted_at: Option<SystemTime>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: &'p BTreeMap<String, String>,
    state: PeeringState,
    /// Why it is not active, or what was refused last. Not in Consul's API.
    #[serde(skip_serializing_if = "String::is_empty")]
    state_reason: String,
    #[serde(rename = "PeerID", skip_serializing_if = "str::is_empty")]
    peer_id: &'p str,
    #[serde(rename = "PeerCAPems", skip_serializing_if = "<[String]>::is_empty")]
    peer_ca_pems: &'p [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_server_name: &'p str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    peer_server_addresses: &'p [String],
    stream_status: StreamStatus<'p>,
    create_index: u64,
    modify_index: u64,
    remote: &'p PeeringRemote,
}

/// What is known of the stream.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct StreamStatus<'p> {
    imported_services: Option<&'p [String]>,
    exported_services: Option<&'p [String]>,
    #[serde(serialize_with = "timestamp::option::serialize")]
    last_heartbeat: Option<SystemTime>,
    #[serde(serialize_with = "timestamp::option::serialize")]
    last_receive: Option<SystemTime>,
    #[serde(serialize_with = "timestamp::option::serialize")]
    last_send: Option<SystemTime>,
    /// The server that holds it. Not in Consul's API.
    #[serde(skip_serializing_if = "str::is_empty")]
    server: &'p str,
}

impl<'p> StreamStatus<'p> {
    fn of(stream: Option<&'p PeeringStream>) -> Self {
        let names = |list: &'p Vec<String>| (!list.is_empty()).then_some(list.as_slice());
        Self {
            imported_services: stream.and_then(|stream| names(&stream.imported)),
            exported_services: stream.and_then(|stream| names(&stream.exported)),
            last_heartbeat: stream.and_then(|stream| stream.last_heartbeat),
            last_receive: stream.and_then(|stream| stream.last_receive),
            last_send: stream.and_then(|stream| stream.last_send),
            server: stream.map_or("", |stream| &stream.server),
        }
    }
}

impl<'p> Shown<'p> {
    fn of(peering: &'p Peering, stream: Option<&'p PeeringStream>, now: SystemTime) -> Self {
        let (state, state_reason) = peering.shown_state(stream, now);
        Self {
            id: &peering.id,
            name: &peering.name,
            partition: &peering.partition,
            deleted_at: peering.deleted_at,
            meta: &peering.meta,
            state,
            state_reason,
            peer_id: &peering.peer_id,
            peer_ca_pems: &peering.peer_ca_pems,
            peer_server_name: &peering.peer_server_name,
            peer_server_addresses: &peering.peer_server_addresses,
            stream_status: StreamStatus::of(stream),
            create_index: peering.create_index,
            modify_index: peering.modify_index,
            remote: &peering.remote,
        }
    }
}

/// A peering with the status of its stream.
fn shown(txn: &ReadTxn<'_>, peering: &Peering, now: SystemTime) -> serde_json::Value {
    let stream = txn.peering_stream(&peering.name);
    // Texts, numbers and times: it cannot fail.
    serde_json::to_value(Shown::of(peering, stream.as_deref(), now)).unwrap_or_default()
}

/// As in Consul, nothing about peerings is answered if they are turned off.
fn require_enabled(call: &Call) -> Result<(), ApiError> {
    match call.config.peering {
        true => Ok(()),
        false => Err(ApiError::internal(
            "peering must be enabled to use this endpoint",
        )),
    }
}

fn require_read(call: &Call) -> Result<(), ApiError> {
    require_enabled(call)?;
    ApiError::require(call.authorizer()?.peering_read(), "peering:read", "")
}

fn require_write(call: &Call) -> Result<(), ApiError> {
    require_enabled(call)?;
    ApiError::require(call.authorizer()?.peering_write(), "peering:write", "")
}

/// `GET /v1/peerings`
pub(super) async fn list(State(clock): State<Clock>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let now = clock.now();
    let read = |state: &ReadTxn<'_>| {
        let all = state.peerings();
        all.iter().map(|one| shown(state, one, now)).collect()
    };
    let answer = call.read::<Vec<_>>(read).await?;
    call.answer(answer.index, &answer.value, false)
}

/// `GET /v1/peering/:name`
pub(super) async fn get(
    Path(name): Path<String>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let now = clock.now();
    let read = |state: &ReadTxn<'_>| Some(shown(state, &*state.peering(&name)?, now));
    let answer = call.read(read).await?;
    match answer.value {
        Some(peering) => call.answer(answer.index, &peering, false),
        None => call.absent(answer.index, &format!("Peering not found for {name:?}")),
    }
}

/// `/v1/peering/` without a name.
pub(super) async fn nameless(call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    Err(ApiError::bad_request("Must specify a name to fetch."))
}

/// `DELETE /v1/peering/:name`. The peering goes when nothing is imported from it any more.
pub(super) async fn delete(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let now = clock.now();
    call.write(&writer, move |txn| {
        txn.mark_peering_deleted(&name, now);
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

/// `POST /v1/peering/token`: generates a new token, and revokes the previous one.
pub(super) async fn token(
    State(peerings): State<Peerings>,
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
    let tenancy = call.tenancy.of_partition();
    let token = peerings.generate_token(request, &tenancy).await?;
    call.json(&json!({ "PeeringToken": token.expose() }))
}

/// `POST /v1/peering/establish`
pub(super) async fn establish(
    State(peerings): State<Peerings>,
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
    let tenancy = call.tenancy.of_partition();
    peerings.establish(request, &tenancy).await?;
    call.json(&json!({}))
}
