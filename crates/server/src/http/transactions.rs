//! `PUT /v1/txn`: atomic transactions of KV, catalog and session operations, with Consul's verbs, status codes
//! and texts.
//!
//! All permissions are checked before anything is written, so that a caller without one learns nothing about
//! the results of the operations.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::header::HeaderMap;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::transaction::{
    CheckOperation, KvOperation, MAX_OPERATIONS, NodeOperation, Operation, ServiceOperation,
    SessionOperation,
};
use legate_model::{
    HealthCheck, KvEntry, KvValue, Node, RegisterRequest, ServiceInstance, Tenancy, TenancyName,
};
use legate_store::{
    Deregistration, KvWrite, ReadTxn, Registration, Rejected, Unavailable, WriteTxn, Writer,
};
use serde::ser::{Error, Serialize, Serializer};
use serde_json::{Value, json};

use super::call::{Head, fresh, visible};
use super::kv::{bounded_body, may_delete_tree, refuse_long};
use super::sessions::may_end;
use crate::api_error::ApiError;
use crate::registration::rights::{may_deregister, may_register, may_write_service};

/// `PUT /v1/txn`
pub(super) async fn apply(
    State(writer): State<Writer>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let sizes = call.config.sizes;
    let limit = sizes.transaction.max(sizes.kv_value);
    let body = bounded_body(&headers, body, limit).await?;
    let call = call.with_body(body);
    let operations: Vec<Operation> = call.decode().map_err(|error| {
        // Consul's text.
        let text = error.text();
        let reason = text.strip_prefix("Request decoding failed: ");
        ApiError::bad_request(format!("Failed to parse body: {}", reason.unwrap_or(text)))
    })?;
    refuse_large(&operations, sizes.kv_value)?;
    call.refuse_every()?;
    let writes = operations.iter().any(Operation::writes);
    let transaction = Transaction {
        operations: operations.into(),
        authorizer,
        tenancy: call.tenancy.clone(),
        datacenter: call.config.datacenter.clone(),
    };
    let (done, about) = match writes {
        true => {
            let run = transaction.clone();
            let done = writer.write(move |txn| run.run(txn)).await;
            (done.map(|(_, results)| results), None)
        }
        false => {
            call.params.consistency()?;
            let done = call.reader.state().after(|txn| transaction.run(txn));
            let done = done.map(|(_, results)| results);
            (done, Some(ABOUT))
        }
    };
    let (results, errors) = match done {
        Ok(results) => (Some(results), None),
        Err(Failed::Operations(errors)) => (None, Some(errors)),
        Err(Failed::Unavailable(error)) => return Err(error.into()),
    };
    let failed = errors.is_some();
    let (results, filtered) = transaction.seen(results);
    let mut response = call.list(
        &Outcome {
            results,
            errors,
            about,
        },
        filtered,
    )?;
    if !writes {
        fresh(&mut response);
    }
    if failed {
        *response.status_mut() = StatusCode::CONFLICT;
    }
    Ok(response)
}

fn refuse_large(operations: &[Operation], largest: usize) -> Result<(), ApiError> {
    let too_large = |text| Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    let count = operations.len();
    if count > MAX_OPERATIONS {
        return too_large(format!(
            "Transaction contains too many operations ({count} > {MAX_OPERATIONS})"
        ));
    }
    for operation in operations
        .iter()
        .filter_map(|operation| operation.kv.as_ref())
    {
        let size = operation.value.as_bytes().len();
        if size > largest {
            return too_large(format!(
                "Value for key {:?} is too large ({size} > {largest} bytes)",
                operation.key
            ));
        }
    }
    Ok(())
}

/// The response.
#[derive(serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Outcome {
    results: Option<Vec<Outcoming>>,
    errors: Option<Vec<OperationError>>,
    #[serde(flatten)]
    about: Option<About>,
}

/// The result of an operation.
#[derive(serde::Serialize)]
enum Outcoming {
    #[serde(rename = "KV")]
    Kv(Arc<KvEntry>),
    #[serde(serialize_with = "with_nulls")]
    Node(Arc<Node>),
    #[serde(serialize_with = "with_nulls")]
    Service(Arc<ServiceInstance>),
    #[serde(serialize_with = "with_nulls")]
    Check(Arc<HealthCheck>),
}

/// Empty lists are `null` in transactions, unlike in the catalog's responses. Go's client distinguishes the
/// two.
fn with_nulls<T: Serialize, S: Serializer>(row: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut row = serde_json::to_value(row).map_err(S::Error::custom)?;
    for field in ["Meta", "ServiceTags", "TaggedAddresses", "Tags"] {
        if let Some(list) = row.get_mut(field)
            && (*list == json!([]) || *list == json!({}))
        {
            *list = Value::Null;
        }
    }
    row.serialize(serializer)
}

/// The error of an operation, which fails the transaction.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct OperationError {
    op_index: usize,
    what: String,
}

/// Metadata of read-only transactions, as in Consul.
#[derive(serde::Serialize)]
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

/// Constant: transactions do not support blocking queries, and ACL filtering is reported in the header.
const ABOUT: About = About {
    index: 1,
    last_contact: 0,
    known_leader: true,
    consistency_level: "",
    not_modified: false,
    backend: 0,
    filtered: false,
};

#[derive(Debug)]
enum Failed {
    Operations(Vec<OperationError>),
    Unavailable(Unavailable),
}

impl From<Unavailable> for Failed {
    fn from(error: Unavailable) -> Self {
        Self::Unavailable(error)
    }
}

#[derive(Clone)]
struct Transaction {
    operations: Arc<[Operation]>,
    authorizer: Authorizer,
    /// The request's tenancy. Each operation may name another one.
    tenancy: Tenancy,
    datacenter: String,
}

/// The partition and namespace named by an operation; empty if it names none.
fn named_tenancy(operation: &Operation) -> (TenancyName, TenancyName) {
    match operation {
        Operation { kv: Some(kv), .. } => (kv.partition.clone(), kv.namespace.clone()),
        Operation {
            node: Some(node), ..
        } => (node.node.partition.clone(), TenancyName::default()),
        Operation {
            service: Some(service),
            ..
        } => {
            let service = &service.service;
            (service.partition.clone(), service.namespace.clone())
        }
        Operation {
            check: Some(check), ..
        } => (check.check.partition.clone(), check.check.namespace.clone()),
        Operation {
            session: Some(session),
            ..
        } => {
            let session = &session.session;
            (session.partition.clone(), session.namespace.clone())
        }
        _ => Default::default(),
    }
}

impl Transaction {
    /// The same transaction in the tenancy of one operation, with the permissions there.
    fn of(&self, operation: &Operation) -> Result<Self, ApiError> {
        let (partition, namespace) = named_tenancy(operation);
        if partition.is_every() || namespace.is_every() {
            return Err(ApiError::bad_request(
                "\"*\" is not a valid namespace or partition of an operation: name one",
            ));
        }
        let tenancy = self.tenancy.resolve(&partition, &namespace);
        Ok(Self {
            authorizer: self.authorizer.within(&tenancy),
            tenancy,
            ..self.clone()
        })
    }

    fn run(&self, txn: &mut WriteTxn) -> Result<Vec<Outcoming>, Failed> {
        self.each(|operation| {
            let own = self.of(operation)?;
            let state = txn.read().within(own.tenancy.clone());
            if operation.writes() {
                state.require_tenancy()?;
            }
            own.check(&state, operation)
        })?;
        let mut results = Vec::new();
        self.each(|operation| {
            let own = self.of(operation)?;
            let done = txn.in_tenancy(&own.tenancy, |txn| own.operate(txn, operation));
            results.extend(done?);
            Ok(())
        })?;
        Ok(results)
    }

    /// Continues after an error, so that all errors are reported.
    fn each(&self, mut run: impl FnMut(&Operation) -> Result<(), ApiError>) -> Result<(), Failed> {
        let mut errors = Vec::new();
        for (op_index, operation) in self.operations.iter().enumerate() {
            if let Err(error) = run(operation) {
                let what = error.text().to_owned();
                errors.push(OperationError { op_index, what });
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Failed::Operations(errors)),
        }
    }

    /// Validates an operation and checks the caller's permissions.
    fn check(&self, state: &ReadTxn<'_>, operation: &Operation) -> Result<(), ApiError> {
        match operation {
            Operation { kv: Some(kv), .. } => self.check_kv(state, kv),
            Operation {
                node: Some(node), ..
            } => self.check_node(state, node),
            Operation {
                service: Some(service),
                ..
            } => self.check_service(state, service),
            Operation {
                check: Some(check), ..
            } => self.check_check(state, check),
            Operation {
                session: Some(session),
                ..
            } => match session.verb.as_str() {
                "delete" => may_end(&self.authorizer, state, &session.session.id),
                verb => Err(unknown("session", verb)),
            },
            _ => Err(ApiError::bad_request("unknown operation type")),
        }
    }

    fn check_kv(&self, state: &ReadTxn<'_>, kv: &KvOperation) -> Result<(), ApiError> {
        let KvOperation { verb, key, .. } = kv;
        if key.is_empty() && verb != "delete-tree" {
            return Err(ApiError::bad_request("Must provide key"));
        }
        refuse_long(key)?;
        match verb.as_str() {
            // Results that the caller may not read are removed from the response.
            "get" | "get-or-empty" | "get-tree" => Ok(()),
            "delete-tree" => may_delete_tree(&self.authorizer, key),
            "check-session" | "check-index" => {
                ApiError::require(self.authorizer.key_read(key), "key:read", key)
            }
            "set" | "cas" | "lock" | "unlock" | "delete" | "delete-cas" | "check-not-exists" => {
                ApiError::require(self.authorizer.key_write(key), "key:write", key)?;
                match verb == "lock" && state.is_lock_delayed(key) {
                    false => Ok(()),
                    true => Err(stale(format!(
                        "failed to lock key {key:?} due to lock delay"
                    ))),
                }
            }
            verb => Err(unknown("KV", verb)),
        }
    }

    fn check_node(&self, state: &ReadTxn<'_>, node: &NodeOperation) -> Result<(), ApiError> {
        let name = &node.node.node;
        match node.verb.as_str() {
            "get" => return Ok(()),
            "set" | "cas" => {
                self.registration(node.node.clone().into_registration())?;
            }
            "delete" | "delete-cas" => {}
            verb => return Err(unknown("node", verb)),
        }
        let renamed = state
            .node_by_id(&node.node.id)
            .map(|node| node.node.clone());
        for name in std::iter::once(name).chain(renamed.as_ref()) {
            ApiError::require(self.authorizer.node_write(name), "node:write", name)?;
        }
        Ok(())
    }

    fn check_service(
        &self,
        state: &ReadTxn<'_>,
        service: &ServiceOperation,
    ) -> Result<(), ApiError> {
        match service.verb.as_str() {
            "get" => Ok(()),
            "set" | "cas" => {
                let registration = self.registration(service.clone().into_registration())?;
                may_register(&self.authorizer, state, &registration)
            }
            "delete" | "delete-cas" => {
                let what = instance_of(service);
                let id = require_id("service", &what.service_id)?;
                let name = &service.service.service;
                // For a missing instance, the permission applies to the service name in the request.
                let knows = self.authorizer.some(Resource::Service, Access::Read);
                match knows && state.instance(&what.node, id).is_none() && !name.is_empty() {
                    true => may_write_service(&self.authorizer, name),
                    false => may_deregister(&self.authorizer, state, &what),
                }
            }
            verb => Err(unknown("service", verb)),
        }
    }

    fn check_check(&self, state: &ReadTxn<'_>, check: &CheckOperation) -> Result<(), ApiError> {
        match check.verb.as_str() {
            "get" => Ok(()),
            "set" | "cas" => {
                let registration = self.registration(check.clone().into_registration())?;
                may_register(&self.authorizer, state, &registration)
            }
            "delete" | "delete-cas" => {
                let what = check_of(check);
                let id = require_id("check", &what.check_id)?;
                let name = &check.check.service_name;
                match state.check(&what.node, id).is_none() && !name.is_empty() {
                    true => may_write_service(&self.authorizer, name),
                    false => may_deregister(&self.authorizer, state, &what),
                }
            }
            verb => Err(unknown("check", verb)),
        }
    }

    fn registration(&self, request: RegisterRequest) -> Result<Registration, ApiError> {
        request.validate()?;
        let local = &self.datacenter;
        if !request.datacenter.is_empty() && !request.datacenter.eq_ignore_ascii_case(local) {
            return Err(ApiError::bad_request(format!(
                "No path to datacenter {:?}: this server serves {local:?} only",
                request.datacenter
            )));
        }
        let parts = request.into_parts(local);
        Ok(Registration {
            node: parts.node,
            service: parts.service,
            checks: parts.checks,
            skip_node_update: parts.skip_node_update,
        })
    }

    fn operate(
        &self,
        txn: &mut WriteTxn,
        operation: &Operation,
    ) -> Result<Vec<Outcoming>, ApiError> {
        match operation {
            Operation { kv: Some(kv), .. } => operate_kv(txn, kv, &self.authorizer),
            Operation {
                node: Some(node), ..
            } => self.operate_node(txn, node),
            Operation {
                service: Some(service),
                ..
            } => self.operate_service(txn, service),
            Operation {
                check: Some(check), ..
            } => self.operate_check(txn, check),
            Operation {
                session: Some(SessionOperation { session, .. }),
                ..
            } => {
                txn.end_session(&session.id);
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn operate_node(
        &self,
        txn: &mut WriteTxn,
        operation: &NodeOperation,
    ) -> Result<Vec<Outcoming>, ApiError> {
        let NodeOperation { verb, node } = operation;
        let name = &node.node;
        let find = |txn: &WriteTxn| match node.id.is_empty() {
            true => txn.read().node(name),
            false => txn.read().node_by_id(&node.id),
        };
        let actual = txn.read().node(name).map_or(0, |node| node.modify_index);
        let what = format!("node {name:?}");
        refuse_stale(verb, &what, actual, node.modify_index)?;
        match verb.as_str() {
            "get" => {
                let may_know = self.authorizer.node_read(name);
                gotten(find(txn).map(Outcoming::Node), &what, may_know)
            }
            "set" | "cas" => {
                txn.register(self.registration(node.clone().into_registration())?)?;
                Ok(find(txn).map(Outcoming::Node).into_iter().collect())
            }
            _ => {
                txn.deregister(&Deregistration {
                    node: name.clone(),
                    service_id: None,
                    check_id: None,
                });
                Ok(Vec::new())
            }
        }
    }

    fn operate_service(
        &self,
        txn: &mut WriteTxn,
        operation: &ServiceOperation,
    ) -> Result<Vec<Outcoming>, ApiError> {
        let ServiceOperation {
            verb,
            node,
            service,
        } = operation;
        let id = match service.id.is_empty() {
            true => &service.service,
            false => &service.id,
        };
        let find = |txn: &WriteTxn| Some(txn.read().instance(node, id)?.service);
        let actual = find(txn).map_or(0, |service| service.modify_index);
        let what = format!("service {id:?} on node {node:?}");
        refuse_stale(verb, &what, actual, service.modify_index)?;
        match verb.as_str() {
            "get" => {
                let may_know = self.authorizer.some(Resource::Service, Access::Read);
                gotten(find(txn).map(Outcoming::Service), &what, may_know)
            }
            "set" | "cas" => {
                refuse_unknown(txn, node)?;
                txn.register(self.registration(operation.clone().into_registration())?)?;
                Ok(find(txn).map(Outcoming::Service).into_iter().collect())
            }
            _ => {
                txn.deregister(&instance_of(operation));
                Ok(Vec::new())
            }
        }
    }

    fn operate_check(
        &self,
        txn: &mut WriteTxn,
        operation: &CheckOperation,
    ) -> Result<Vec<Outcoming>, ApiError> {
        let CheckOperation { verb, check } = operation;
        if !check.peer_name.is_empty() {
            return Err(ApiError::bad_request(
                "cannot register requests with PeerName in them: only a peering writes what it imports",
            ));
        }
        let node = &check.node;
        let id = match check.check_id.is_empty() {
            true => &check.name,
            false => &check.check_id,
        };
        let find = |txn: &WriteTxn| txn.read().check(node, id);
        let actual = find(txn).map_or(0, |check| check.modify_index);
        let what = format!("check {id:?} on node {node:?}");
        refuse_stale(verb, &what, actual, check.modify_index)?;
        match verb.as_str() {
            "get" => {
                let access = &self.authorizer;
                let may_know =
                    access.node_read(node) || access.some(Resource::Service, Access::Read);
                gotten(find(txn).map(Outcoming::Check), &what, may_know)
            }
            "set" | "cas" => {
                refuse_unknown(txn, node)?;
                txn.register(self.registration(operation.clone().into_registration())?)?;
                Ok(find(txn).map(Outcoming::Check).into_iter().collect())
            }
            _ => {
                txn.deregister(&check_of(operation));
                Ok(Vec::new())
            }
        }
    }

    /// Removes results that the caller may not read.
    fn seen(&self, results: Option<Vec<Outcoming>>) -> (Option<Vec<Outcoming>>, bool) {
        let Some(results) = results else {
            return (None, false);
        };
        let may = |partition: &TenancyName, namespace: &TenancyName| {
            let tenancy = Tenancy::new(partition, namespace);
            self.authorizer.within(&tenancy)
        };
        let (seen, filtered) = visible(results, |result| match result {
            Outcoming::Kv(entry) => may(&entry.partition, &entry.namespace).key_read(&entry.key),
            Outcoming::Node(node) => {
                may(&node.partition, &TenancyName::default()).node_read(&node.node)
            }
            Outcoming::Service(service) => {
                may(&service.partition, &service.namespace).service_read(&service.service)
            }
            Outcoming::Check(check) => {
                let may = may(&check.partition, &check.namespace);
                match check.service_name.is_empty() {
                    true => may.node_read(&check.node),
                    false => may.service_read(&check.service_name),
                }
            }
        });
        (Some(seen), filtered)
    }
}

/// Rejects a compare-and-set verb if `actual`, the index of `what`, differs from `expected`. An object that
/// does not exist has index 0; it can be created, but not deleted.
fn refuse_stale(verb: &str, what: &str, actual: u64, expected: u64) -> Result<(), ApiError> {
    let act = match verb {
        "cas" if actual != expected => "set",
        "delete-cas" if actual == 0 || actual != expected => "delete",
        _ => return Ok(()),
    };
    Err(stale(format!("failed to {act} {what}, index is stale")))
}

/// As in Consul, services and checks require an existing node here, unlike in the catalog API.
fn refuse_unknown(txn: &WriteTxn, node: &str) -> Result<(), Rejected> {
    match txn.read().node(node) {
        Some(_) => Ok(()),
        None => Err(Rejected::MissingNode {
            node: node.to_owned(),
        }),
    }
}

/// The result of reading an object. Callers who may not see it do not learn that it is missing: results that they may
/// not see are removed later.
fn gotten(
    found: Option<Outcoming>,
    what: &str,
    may_know: bool,
) -> Result<Vec<Outcoming>, ApiError> {
    match found {
        None if may_know => Err(stale(format!("{what} doesn't exist"))),
        found => Ok(found.into_iter().collect()),
    }
}

fn operate_kv(
    txn: &mut WriteTxn,
    kv: &KvOperation,
    authorizer: &Authorizer,
) -> Result<Vec<Outcoming>, ApiError> {
    let KvOperation {
        verb,
        key,
        index,
        session,
        ..
    } = kv;
    let write = KvWrite {
        key: key.clone(),
        flags: kv.flags,
        value: kv.value.clone(),
    };
    let unless = |done: Option<Arc<KvEntry>>, what: String| done.ok_or_else(|| stale(what));
    match verb.as_str() {
        "get" => {
            let may_know = authorizer.key_read(key);
            gotten(
                txn.read().kv(key).map(Outcoming::Kv),
                &format!("key {key:?}"),
                may_know,
            )
        }
        "get-or-empty" => Ok(vec![Outcoming::Kv(kv_or_empty(txn, kv))]),
        "get-tree" => {
            let found = txn.read().kv_below(key);
            Ok(found.into_iter().map(Outcoming::Kv).collect())
        }
        "set" => Ok(without_value(txn.kv_set(write))),
        "cas" => unless(
            txn.kv_cas(write, *index),
            format!("failed to set key {key:?}, index is stale"),
        )
        .map(without_value),
        "lock" => unless(
            txn.kv_lock(write, session)?,
            format!("failed to lock key {key:?}, lock is already held"),
        )
        .map(without_value),
        "unlock" => unless(
            txn.kv_unlock(write, session)?,
            format!("failed to unlock key {key:?}, lock isn't held, or is held by another session"),
        )
        .map(without_value),
        "check-index" | "check-session" => check_kv(txn, kv).map(without_value),
        "check-not-exists" => match txn.read().kv(key) {
            None => Ok(Vec::new()),
            Some(_) => Err(stale(format!("key {key:?} exists"))),
        },
        "delete-cas" if !txn.kv_delete_cas(key, *index) => Err(stale(format!(
            "failed to delete key {key:?}, index is stale"
        ))),
        "delete-cas" => Ok(Vec::new()),
        "delete-tree" => {
            txn.kv_delete_tree(key);
            Ok(Vec::new())
        }
        _ => {
            txn.kv_delete(key);
            Ok(Vec::new())
        }
    }
}

/// The entry of a key or, if there is none, an empty entry with the request's fields.
fn kv_or_empty(txn: &WriteTxn, kv: &KvOperation) -> Arc<KvEntry> {
    let empty = || {
        Arc::new(KvEntry {
            key: kv.key.clone(),
            flags: kv.flags,
            session: kv.session.clone(),
            modify_index: kv.index,
            namespace: txn.read().tenancy().shown_namespace(),
            partition: txn.read().tenancy().shown_partition(),
            ..KvEntry::default()
        })
    };
    txn.read().kv(&kv.key).unwrap_or_else(empty)
}

fn check_kv(txn: &WriteTxn, kv: &KvOperation) -> Result<Arc<KvEntry>, ApiError> {
    let KvOperation {
        verb,
        key,
        index,
        session,
        ..
    } = kv;
    let what = match verb.as_str() {
        "check-index" => "index",
        _ => "session",
    };
    let Some(entry) = txn.read().kv(key) else {
        return Err(stale(format!(
            "failed to check {what}, key {key:?} doesn't exist"
        )));
    };
    let (actual, held) = (entry.modify_index, &entry.session);
    if what == "index" && actual != *index {
        return Err(stale(format!(
            "failed index check for key {key:?}, current modify index {actual} != {index}"
        )));
    }
    if what == "session" && held != session {
        return Err(stale(format!(
            "failed session check for key {key:?}, current session {held:?} != {session:?}"
        )));
    }
    Ok(entry)
}

/// Responses to writes omit the value, as in Consul.
fn without_value(entry: Arc<KvEntry>) -> Vec<Outcoming> {
    vec![Outcoming::Kv(Arc::new(KvEntry {
        value: KvValue::default(),
        ..KvEntry::clone(&entry)
    }))]
}

fn instance_of(service: &ServiceOperation) -> Deregistration {
    let id = match service.service.id.is_empty() {
        true => &service.service.service,
        false => &service.service.id,
    };
    Deregistration {
        node: service.node.clone(),
        service_id: Some(id.clone()),
        check_id: None,
    }
}

fn check_of(check: &CheckOperation) -> Deregistration {
    let id = match check.check.check_id.is_empty() {
        true => &check.check.name,
        false => &check.check.check_id,
    };
    Deregistration {
        node: check.check.node.clone(),
        service_id: None,
        check_id: Some(id.clone()),
    }
}

/// Without an id, the whole node would be deregistered.
fn require_id<'a>(what: &str, id: &'a Option<String>) -> Result<&'a str, ApiError> {
    let id = id.as_deref().filter(|id| !id.is_empty());
    id.ok_or_else(|| ApiError::bad_request(format!("Must provide {what} ID")))
}

fn unknown(what: &str, verb: &str) -> ApiError {
    ApiError::bad_request(format!("unknown {what} operation: {verb}"))
}

/// A failed operation. Only the text is used.
fn stale(text: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, text)
}
