//! `/v1/query`: management and execution of prepared queries.
//!
//! Executing a query requires no permission on the query. Results are filtered by the query's own token, else
//! by the caller's. Status codes and texts are Consul's, on which clients match.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Path, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{
    CheckServiceNode, InvalidQuery, PreparedQuery, QueryDns, TenancyName, UnusableQuery,
};
use legate_store::{ReadTxn, Writer};
use legate_wan::Wan;
use serde::Serialize;
use uuid::Uuid;

use super::call::{Call, visible};
use crate::api_error::ApiError;
use crate::prepared::{self, Selected};
use crate::wan::QUERY_TIMEOUT;

const EXECUTE: &str = "/execute";
const EXPLAIN: &str = "/explain";

/// Index of results that do not support blocking queries. Consul's.
const NO_INDEX: u64 = 1;

/// `POST /v1/query`
pub(super) async fn create(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let mut query: PreparedQuery = call.decode()?;
    if !query.id.is_empty() {
        return Err(ApiError::internal(
            "ID must be empty when creating a new prepared query",
        ));
    }
    may_write(&authorizer, &query)?;
    query.validate()?;
    note_elsewhere(&mut call, &query);
    query.id = Uuid::new_v4().to_string();
    let made = serde_json::json!({ "ID": query.id });
    call.write(&writer, move |txn| {
        Ok(txn.put_prepared_query(query.clone())?)
    })
    .await?;
    call.json(&made)
}

/// Notes that other datacenters are not asked, if there is no port for servers.
fn note_elsewhere(call: &mut Call, query: &PreparedQuery) {
    if call.config.wan.is_none() {
        call.note_not_served(query.service.failover.other_datacenters());
    }
}

/// `GET /v1/query`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let answer = call.read(|state| state.prepared_queries()).await?;
    let (queries, filtered) = visible(answer.value, |query| may_read(&authorizer, query));
    let shown: Vec<_> = queries.iter().map(|one| shown(&authorizer, one)).collect();
    call.answer(answer.index, &shown, filtered)
}

/// `GET /v1/query/:id`, `GET /v1/query/:id-or-name/execute` and `…/explain`.
pub(super) async fn specific(
    Path(rest): Path<String>,
    State(wan): State<Option<Wan>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    call: Call,
) -> Result<Response, ApiError> {
    if let Some(name) = rest.strip_suffix(EXECUTE) {
        execute(&call, name, source(&headers, client), wan.as_ref()).await
    } else if let Some(name) = rest.strip_suffix(EXPLAIN) {
        explain(&call, name)
    } else {
        get(&call, &rest).await
    }
}

async fn get(call: &Call, id: &str) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    some_query(&authorizer, Access::Read, id)?;
    require_uuid(id).map_err(ApiError::internal)?;
    let answer = call.read(|state| state.prepared_query(id)).await?;
    let Some(query) = answer.value else {
        return call.absent(answer.index, NOT_FOUND);
    };
    require_read(&authorizer, &query)?;
    call.answer(answer.index, &[shown(&authorizer, &query)], false)
}

/// `PUT /v1/query/:id`
pub(super) async fn update(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    refuse_method(&id)?;
    let authorizer = call.authorizer()?;
    let mut query = match call.has_body() {
        true => call.decode()?,
        false => PreparedQuery::default(),
    };
    may_write(&authorizer, &query)?;
    note_elsewhere(&mut call, &query);
    query.id = id;
    // Validated outside the transaction, to keep it short; but the permission error takes precedence.
    let valid = query.validate();
    call.write(&writer, move |txn| {
        may_change(&authorizer, &txn.read(), &query.id)?;
        valid.clone()?;
        Ok(txn.put_prepared_query(query.clone())?)
    })
    .await?;
    Ok(call.empty())
}

/// `DELETE /v1/query/:id`
pub(super) async fn delete(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    refuse_method(&id)?;
    let authorizer = call.authorizer()?;
    call.write(&writer, move |txn| {
        may_change(&authorizer, &txn.read(), &id)?;
        txn.remove_prepared_query(&id);
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

const NOT_FOUND: &str = "Query not found";

/// The result of an execution. It does not support blocking queries.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Executed<'a> {
    service: &'a str,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: &'a TenancyName,
    nodes: Vec<CheckServiceNode>,
    #[serde(rename = "DNS")]
    dns: &'a QueryDns,
    datacenter: &'a str,
    peer_name: &'a str,
    failovers: usize,
    #[serde(flatten)]
    about: About,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Explained {
    query: Arc<PreparedQuery>,
    #[serde(flatten)]
    about: About,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct About {
    index: u64,
    last_contact: u64,
    known_leader: bool,
    consistency_level: &'static str,
    not_modified: bool,
    backend: u32,
    #[serde(rename = "ResultsFilteredByACLs")]
    filtered: bool,
}

impl About {
    fn of(call: &Call, filtered: bool) -> Result<Self, ApiError> {
        Ok(Self {
            index: NO_INDEX,
            last_contact: 0,
            known_leader: true,
            consistency_level: call.params.consistency()?.as_str(),
            not_modified: false,
            backend: 0,
            // Not revealed to callers without a token.
            filtered: filtered && !call.token.is_empty(),
        })
    }
}

async fn execute(
    call: &Call,
    name: &str,
    source: IpAddr,
    wan: Option<&Wan>,
) -> Result<Response, ApiError> {
    call.refuse_filter()?;
    let limit = limit(call)?;
    let connect = connect(call)?;
    let query = find(&call.reader.state().read(), name)?;
    let (authorizer, token) = match query.token.is_empty() {
        true => (call.authorizer()?, call.token.as_str()),
        false => (call.authorizer_of(&query.token)?, query.token.expose()),
    };
    let of_caller = call.params.get("near").filter(|near| !near.is_empty());
    let caller = prepared::Caller {
        authorizer: &authorizer,
        node: &call.config.node_name,
        source: Some(source),
    };
    let wanted = &query.service;
    let sought = prepared::Sought {
        wanted,
        connect: wanted.connect || connect,
        near: of_caller.unwrap_or(&wanted.near),
    };
    let executed =
        prepared::select_everywhere(&call.reader, &caller, sought, token, wan, QUERY_TIMEOUT).await;
    let Selected {
        mut nodes,
        filtered,
        ..
    } = executed.selected;
    nodes.truncate(limit);
    let datacenter = executed.datacenter.as_deref();
    let datacenter = datacenter.unwrap_or(match executed.peer.as_str() {
        "" => &call.config.datacenter,
        _ => "",
    });
    if executed.peer.is_empty() && call.translates(datacenter) {
        nodes
            .iter_mut()
            .for_each(|instance| *instance = instance.for_elsewhere());
    }
    let executed = Executed {
        service: &wanted.service,
        namespace: &executed.namespace,
        nodes,
        dns: &query.dns,
        datacenter,
        peer_name: &executed.peer,
        failovers: executed.failovers,
        about: About::of(call, filtered)?,
    };
    call.answer(NO_INDEX, &executed, filtered)
}

fn explain(call: &Call, name: &str) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.refuse_filter()?;
    limit(call)?;
    some_query(&authorizer, Access::Read, name)?;
    let state = call.reader.state();
    let query = find(&state.read(), name)?;
    require_read(&authorizer, &query)?;
    let explained = Explained {
        query: shown(&authorizer, &query),
        about: About::of(call, false)?,
    };
    call.answer(NO_INDEX, &explained, false)
}

fn find(txn: &ReadTxn<'_>, name: &str) -> Result<Arc<PreparedQuery>, ApiError> {
    let found = txn.find_prepared_query(name)?;
    found.ok_or_else(|| ApiError::not_found(NOT_FOUND))
}

/// Whether the caller requests mesh endpoints, whatever the query sets.
fn connect(call: &Call) -> Result<bool, ApiError> {
    match call.params.get("connect") {
        None | Some("") => Ok(false),
        Some(text) => call.params.flag("connect").map_err(|_| {
            let reason = format!("{text:?} is neither true nor false");
            ApiError::internal(format!("Error parsing 'connect' value: {reason}"))
        }),
    }
}

/// The maximum number of instances. Without a positive limit, all.
fn limit(call: &Call) -> Result<usize, ApiError> {
    let text = call.params.get("limit").unwrap_or_default();
    if text.is_empty() {
        return Ok(usize::MAX);
    }
    let limit: i64 = text
        .parse()
        .map_err(|_| ApiError::internal(format!("Bad limit: {text:?} is not an integer")))?;
    let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
    Ok(limit.unwrap_or(usize::MAX))
}

/// The address of the client, from `X-Forwarded-For` if a proxy has set it.
fn source(headers: &HeaderMap, client: SocketAddr) -> IpAddr {
    let forwarded = headers.get("x-forwarded-for");
    let first = forwarded.and_then(|value| value.to_str().ok()?.split(',').next());
    first
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_else(|| client.ip().to_canonical())
}

/// Permissions apply to the query's name. Only a template's name may be empty.
pub(super) fn may_read(authorizer: &Authorizer, query: &PreparedQuery) -> bool {
    authorizer.acl_write_of_mesh() || authorizer.query_read(&query.name)
}

fn require_read(authorizer: &Authorizer, query: &PreparedQuery) -> Result<(), ApiError> {
    ApiError::require(may_read(authorizer, query), "query:read", &query.name)
}

/// The query as shown to a caller. Its token requires permission to manage tokens.
fn shown(authorizer: &Authorizer, query: &Arc<PreparedQuery>) -> Arc<PreparedQuery> {
    match query.token.is_empty() || authorizer.acl_write_of_mesh() {
        true => Arc::clone(query),
        false => Arc::new(query.without_token()),
    }
}

/// Checks the permission for the new name of a query. Queries without a name are rejected later.
fn may_write(authorizer: &Authorizer, query: &PreparedQuery) -> Result<(), ApiError> {
    let has_name = !query.name.is_empty() || query.is_template();
    ApiError::require(
        !has_name || authorizer.query_write(&query.name),
        "query:write",
        &query.name,
    )
}

/// As [`ApiError::unless_some`]. `acl:write` permits every query.
fn some_query(authorizer: &Authorizer, access: Access, id: &str) -> Result<(), ApiError> {
    match authorizer.acl_write_of_mesh() {
        true => Ok(()),
        false => ApiError::unless_some(authorizer, Resource::Query, access, id),
    }
}

/// Checks the permission for the name of the stored query.
fn may_change(authorizer: &Authorizer, txn: &ReadTxn<'_>, id: &str) -> Result<(), ApiError> {
    some_query(authorizer, Access::Write, id)?;
    require_uuid(id)
        .map_err(|text| ApiError::internal(format!("Prepared Query lookup failed: {text}")))?;
    match txn.prepared_query(id) {
        Some(stored) => may_write(authorizer, &stored),
        None => Err(ApiError::internal(format!(
            "Cannot modify non-existent prepared query: '{id}'"
        ))),
    }
}

fn require_uuid(id: &str) -> Result<(), &'static str> {
    match id.len() == 36 && Uuid::try_parse(id).is_ok() {
        true => Ok(()),
        false => Err(
            "failed prepared query lookup: index error: UUID must be 36 characters; queries are \
             found by their name with /execute and /explain",
        ),
    }
}

fn refuse_method(rest: &str) -> Result<(), ApiError> {
    match rest.ends_with(EXECUTE) || rest.ends_with(EXPLAIN) {
        false => Ok(()),
        true => Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("Only GET is allowed for /v1/query/{rest}"),
        )),
    }
}

impl From<InvalidQuery> for ApiError {
    fn from(error: InvalidQuery) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<UnusableQuery> for ApiError {
    fn from(error: UnusableQuery) -> Self {
        Self::internal(error.to_string())
    }
}
