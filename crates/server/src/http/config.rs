//! `/v1/config`: config entries.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use http::{Method, StatusCode};
use legate_filter::Field;
use legate_model::acl::Authorizer;
use legate_model::{
    ConfigEntry, ConfigKind, EVERY_TENANCY, EntryRights, Tenancy, TenancyName, UnknownKind,
    WILDCARD, filters,
};
use legate_proxycfg::gateways::api;
use legate_store::{ReadTxn, Writer};
use legate_wan::Wan;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::call::{Call, visible};
use super::dry_run::DryRuns;
use super::forward::{self, IF_SAME};
use crate::api_error::ApiError;
use crate::entries::change::{Change, acceptable_entry, digest};

/// `PUT /v1/config`
pub(super) async fn put(
    State(writer): State<Writer>,
    State(dry_runs): State<DryRuns>,
    State(wan): State<Option<Wan>>,
    mut call: Call,
) -> Result<Response, ApiError> {
    // Requests with an invalid token are rejected before the body is decoded.
    call.authorizer()?;
    let cas = call.params.cas()?;
    let mut entry: ConfigEntry = call.decode()?;
    let tenancy = settle(&mut call, &entry)?;
    entry.set_tenancy(&tenancy);
    let authorizer = call.authorizer()?.within(&tenancy);
    if let ConfigEntry::ServiceResolver(resolver) = &entry
        && call.config.wan.is_none()
    {
        let elsewhere = resolver.other_datacenters(&call.config.datacenter);
        call.note_not_served(elsewhere);
    }
    acceptable_entry(&entry)?;
    entry.normalise();
    may_write(&authorizer, entry.kind(), entry.name())?;
    // An entry that routes to a service reveals whether the service exists, so it requires `service:read`.
    for service in entry.destinations() {
        let there = authorizer.within(&service.tenancy);
        ApiError::require(
            there.service_read(&service.name),
            "service:read",
            &service.name,
        )?;
    }
    let entry = Box::new(entry);
    let change = Change::Put { entry, cas };
    if call.params.flag("dry-run")? {
        return dry_runs.show(&call, &authorizer, &change).await;
    }
    if let Some(answer) = compare(&call, wan, &change, (Method::PUT, "/v1/config")).await {
        return answer;
    }
    write(&call, &writer, change).await
}

/// In a secondary datacenter, compares the index of a compare-and-set with the entry here, and has the primary change the
/// entry if it is the same there. `None` for other writes.
async fn compare(
    call: &Call,
    wan: Option<Wan>,
    change: &Change,
    request: (Method, &str),
) -> Option<Result<Response, ApiError>> {
    let primary = call.config.primary()?;
    let cas = change.cas().filter(|index| *index != 0)?;
    let stored = change.stored(&call.reader.state().read());
    let digest = match stored.filter(|stored| stored.modify_index() == cas) {
        Some(stored) => digest(&stored),
        None => return Some(call.json(&false)),
    };
    let (_, target) = change.target();
    let same = (&target.tenancy, &*digest);
    Some(forward::compared(call, wan, primary, request, same).await)
}

/// The tenancy of an entry, from its fields, the query and the headers. Kinds that apply to a whole partition
/// are in its namespace `default`. Intentions may apply to the services of every namespace.
fn settle(call: &mut Call, entry: &ConfigEntry) -> Result<Tenancy, ApiError> {
    let kind = entry.kind();
    let (partition, namespace) = entry.named_tenancy();
    if kind.is_of_partition() {
        if !Tenancy::new(partition, namespace).is_default_namespace() {
            return Err(ApiError::bad_request(format!(
                "Invalid request: Namespace: {kind} applies to a whole partition and is in its \
                 namespace \"default\"; leave the field out"
            )));
        }
        call.settle(partition, &TenancyName::default())?;
        call.leave_namespace();
        return Ok(call.tenancy.clone());
    }
    if kind == ConfigKind::ServiceIntentions && namespace.is_every() {
        call.settle(partition, &TenancyName::default())?;
        call.leave_namespace();
        return Ok(every_namespace(&call.tenancy));
    }
    call.settle(partition, namespace)?;
    Ok(call.tenancy.clone())
}

/// The tenancy of intentions whose destinations are in every namespace.
pub(super) fn every_namespace(tenancy: &Tenancy) -> Tenancy {
    Tenancy {
        namespace: EVERY_TENANCY.into(),
        ..tenancy.clone()
    }
}

/// Switches the request to a tenancy. Entries for every namespace are stored with the partition.
pub(super) fn enter(call: &mut Call, tenancy: &Tenancy) {
    call.leave_namespace();
    call.set_tenancy(match *tenancy.namespace == *EVERY_TENANCY {
        true => tenancy.of_partition(),
        false => tenancy.clone(),
    });
}

/// A failed compare-and-set returns `false`, not an error.
async fn write(call: &Call, writer: &Writer, change: Change) -> Result<Response, ApiError> {
    let datacenter = call.config.datacenter.clone();
    let same = call.params.get(IF_SAME).map(str::to_owned);
    let written = call.write(writer, move |txn| {
        if let Some(same) = &same {
            let stored = change.stored(&txn.read());
            if stored.is_none_or(|stored| digest(&stored) != *same) {
                return Ok(false);
            }
        }
        change.apply(txn, &datacenter)
    });
    call.json(&written.await?)
}

/// `GET /v1/config/:kind`
pub(super) async fn list(Path(kind): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let kind = parse_kind(&kind)?;
    let fields: &[Field] = match kind {
        ConfigKind::ServiceDefaults => &filters::SERVICE_DEFAULTS,
        _ if call.params.filter().is_some() => {
            return Err(ApiError::bad_request(format!(
                "filtering not supported for config entry kind={kind}"
            )));
        }
        _ => &[],
    };
    let filter = call.filter(fields)?;
    call.take_every();
    let answer = call.read(|state| entries_of(&call, state, kind)).await?;
    let (mut entries, filtered) = visible(answer.value, |entry| {
        let (_, namespace) = entry.named_tenancy();
        may_read(&call.at(&authorizer, namespace), kind, entry.name()).is_ok()
    });
    entries.retain(|entry| filter.matches(entry));
    call.answer(answer.index, &entries, filtered)
}

/// The entries of a kind in the tenancy of the request.
fn entries_of(call: &Call, state: &ReadTxn<'_>, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
    if kind.is_of_partition() {
        return state.config_entries(kind);
    }
    let datacenter = &call.config.datacenter;
    let mut all = call.each(state, |state| api::config_entries(state, kind, datacenter));
    if kind == ConfigKind::ServiceIntentions && call.asks_every() {
        let every = every_namespace(state.tenancy());
        all.extend(state.in_tenancy(&every, |state| state.config_entries(kind)));
    }
    all
}

/// `GET /v1/config/`: the entries of all kinds, ordered by kind and name.
pub(super) async fn list_all(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    if call.params.filter().is_some() {
        return Err(ApiError::bad_request(
            "filtering not supported for config entry kind=",
        ));
    }
    let mut kinds = ConfigKind::ALL;
    kinds.sort_unstable_by_key(|kind| kind.as_str());
    call.take_every();
    let read = |state: &ReadTxn<'_>| {
        let all = kinds
            .iter()
            .flat_map(|kind| entries_of(&call, state, *kind));
        all.collect::<Vec<_>>()
    };
    let answer = call.read(read).await?;
    let (entries, filtered) = visible(answer.value, |entry| {
        let (_, namespace) = entry.named_tenancy();
        let authorizer = call.at(&authorizer, namespace);
        may_read(&authorizer, entry.kind(), entry.name()).is_ok()
    });
    call.answer(answer.index, &entries, filtered)
}

/// `GET /v1/config/:kind/:name`
pub(super) async fn get(
    Path((kind, name)): Path<(String, String)>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let kind = parse_kind(&kind)?;
    let tenancy = place(&mut call, kind, &name);
    may_read(&authorizer.within(&tenancy), kind, &name)?;
    let datacenter = &call.config.datacenter;
    let read = |state: &ReadTxn<'_>| {
        state.in_tenancy(&tenancy, |state| {
            api::config_entry(state, kind, &name, datacenter)
        })
    };
    let answer = call.read(read).await?;
    match answer.value {
        Some(entry) => call.answer(answer.index, &entry, false),
        None => call.absent(answer.index, &not_found(kind.as_str(), &name)),
    }
}

/// `DELETE /v1/config/:kind/:name`
pub(super) async fn delete(
    Path((kind, name)): Path<(String, String)>,
    State(writer): State<Writer>,
    State(dry_runs): State<DryRuns>,
    State(wan): State<Option<Wan>>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let cas = call.params.cas()?;
    let dry_run = call.params.flag("dry-run")?;
    let kind: ConfigKind = kind
        .parse()
        .map_err(|error: UnknownKind| ApiError::bad_request(error.to_string()))?;
    let tenancy = place(&mut call, kind, &name);
    let authorizer = authorizer.within(&tenancy);
    may_write(&authorizer, kind, &name)?;
    let change = Change::Remove {
        tenancy,
        kind,
        name,
        cas,
    };
    if dry_run {
        return dry_runs.show(&call, &authorizer, &change).await;
    }
    let (kind, target) = change.target();
    let name = utf8_percent_encode(&target.name, NON_ALPHANUMERIC);
    let path = format!("/v1/config/{kind}/{name}");
    if let Some(answer) = compare(&call, wan, &change, (Method::DELETE, &path)).await {
        return answer;
    }
    let answer = write(&call, &writer, change).await?;
    if cas.is_some() || call.params.has(IF_SAME) {
        return Ok(answer);
    }
    call.json(&serde_json::Map::new())
}

/// The tenancy of the entry that a request without a body names.
fn place(call: &mut Call, kind: ConfigKind, name: &str) -> Tenancy {
    let every = call.asks_every() && kind == ConfigKind::ServiceIntentions && name == WILDCARD;
    if every || kind.is_of_partition() {
        call.leave_namespace();
    }
    match every {
        true => every_namespace(&call.tenancy),
        false => call.tenancy.clone(),
    }
}

fn not_found(kind: &str, name: &str) -> String {
    format!("Config entry not found for {kind:?} / {name:?}")
}

fn parse_kind(kind: &str) -> Result<ConfigKind, ApiError> {
    kind.parse()
        .map_err(|error: UnknownKind| ApiError::internal(error.to_string()))
}

fn may_read(authorizer: &Authorizer, kind: ConfigKind, name: &str) -> Result<(), ApiError> {
    let (allowed, permission, name) = match kind.rights() {
        EntryRights::Mesh => return Ok(()),
        // Reading is permitted with `service:write` on any service: proxies of those services use the
        // providers.
        EntryRights::JwtProvider => {
            let allowed = authorizer.service_write_any() || authorizer.mesh_read();
            (allowed, "mesh:read", "")
        }
        EntryRights::Service | EntryRights::Gateway | EntryRights::Bound => {
            (authorizer.service_read(name), "service:read", name)
        }
        EntryRights::MeshOnly => (authorizer.mesh_read(), "mesh:read", ""),
        EntryRights::Operator => (authorizer.operator_read(), "operator:read", ""),
        EntryRights::Intention => (authorizer.intention_read(name), "intention:read", name),
    };
    ApiError::require(allowed, permission, name)
}

fn may_write(authorizer: &Authorizer, kind: ConfigKind, name: &str) -> Result<(), ApiError> {
    let (allowed, permission, name) = match kind.rights() {
        EntryRights::Mesh
        | EntryRights::MeshOnly
        | EntryRights::JwtProvider
        | EntryRights::Gateway => (authorizer.mesh_write(), "mesh:write", ""),
        EntryRights::Operator => (authorizer.operator_write(), "operator:write", ""),
        EntryRights::Bound => {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "Permission denied: only writeable by controller",
            ));
        }
        EntryRights::Service => (authorizer.service_write(name), "service:write", name),
        EntryRights::Intention => (authorizer.intention_write(name), "intention:write", name),
    };
    ApiError::require(allowed, permission, name)
}
