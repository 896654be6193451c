//! `/v1/connect/intentions`: intentions by source and destination. They are stored in `service-intentions`
//! config entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_model::{
    ConfigKind, Intention, InvalidTenancyName, ServiceName, Tenancy, TenancyName, WILDCARD, filters,
};
use legate_store::{ReadTxn, WriteTxn, Writer};

use super::call::{Call, visible};
use super::config;
use crate::api_error::ApiError;
use crate::entries::{jwt_providers, protocol};

/// `GET /v1/connect/intentions`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::INTENTION)?;
    call.take_every();
    let read = |state: &ReadTxn<'_>| match call.asks_every() {
        true => state.intentions_here(),
        false => state.intentions(),
    };
    let answer = call.read(read).await?;
    let (mut intentions, filtered) = visible(answer.value, |i| may_read(&authorizer, i));
    intentions.retain(|intention| filter.matches(intention));
    call.answer(answer.index, &intentions, filtered)
}

pub(super) fn may_read(authorizer: &Authorizer, intention: &Intention) -> bool {
    // A service of a peer has no rights here.
    let source = Some(intention.source()).filter(|source| source.tenancy.peer.is_empty());
    let ends = source.into_iter().chain([intention.destination()]);
    let may = |end: &ServiceName| authorizer.within(&end.tenancy).intention_read(&end.name);
    ends.into_iter().any(|end| may(&end))
}

/// `GET /v1/connect/intentions/exact`
pub(super) async fn get(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::with_source(&call, source_name)?;
    let destination = &pair.destination;
    let may = |end: &ServiceName| authorizer.within(&end.tenancy).intention_read(&end.name);
    let is_own = |end: &&ServiceName| end.tenancy.peer.is_empty();
    if ![&pair.source, destination]
        .into_iter()
        .filter(is_own)
        .any(may)
    {
        return Err(ApiError::denied("intention:read", &destination.name));
    }
    let read = |state: &ReadTxn<'_>| {
        state.in_tenancy(&destination.tenancy, |state| {
            state.intention(&pair.source, &destination.name)
        })
    };
    let answer = call.read(read).await?;
    match answer.value {
        None => call.absent(answer.index, "Intention not found"),
        Some(intention) => call.answer(answer.index, &intention, false),
    }
}

/// `PUT /v1/connect/intentions/exact`
pub(super) async fn put(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::of(&call)?;
    let mut intention: Intention = call.decode()?;
    refuse_peer(&intention)?;
    pair.name(&mut intention)?;
    if !intention.meta.is_empty() {
        return Err(ApiError::bad_request(
            "Invalid request: Meta: it belongs to the destination's service-intentions config \
             entry; leave it out here and write the entry with PUT /v1/config",
        ));
    }
    if intention.jwt.is_some() {
        return Err(ApiError::bad_request(
            "Invalid request: JWT: it belongs to the destination's service-intentions config \
             entry; leave it out here and write the entry with PUT /v1/config",
        ));
    }
    intention.validate()?;
    intention.normalise(&pair.destination.tenancy);
    // The body may omit partition `default`, which would otherwise mean the destination's partition.
    intention.set_ends(&pair.source, &pair.destination);
    let Pair { destination, .. } = pair;
    may_write(&authorizer, &destination)?;
    config::enter(&mut call, &destination.tenancy);
    let write = move |txn: &mut WriteTxn| {
        txn.put_intention(intention.clone())?;
        let name = &intention.destination_name;
        let entry = txn.read().config_entry(ConfigKind::ServiceIntentions, name);
        if let Some(entry) = entry {
            protocol::refuse_mismatch(&txn.read(), &entry)?;
            jwt_providers::refuse_unknown(&txn.read(), &entry)?;
        }
        Ok(())
    };
    call.write(&writer, move |txn| {
        txn.in_tenancy(&destination.tenancy, &write)
    })
    .await?;
    call.json(&true)
}

/// `DELETE /v1/connect/intentions/exact`
pub(super) async fn delete(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let Pair {
        source,
        destination,
    } = Pair::of(&call)?;
    may_write(&authorizer, &destination)?;
    config::enter(&mut call, &destination.tenancy);
    call.write(&writer, move |txn| {
        let remove = |txn: &mut WriteTxn| txn.remove_intention(&source, &destination.name);
        Ok(txn.in_tenancy(&destination.tenancy, remove)?)
    })
    .await?;
    call.json(&true)
}

/// `GET /v1/connect/intentions/check`
pub(super) async fn check(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::of(&call)?;
    let ServiceName { tenancy, name } = &pair.destination;
    ApiError::require(
        authorizer.within(tenancy).service_read(name),
        "service:read",
        name,
    )?;
    if let Some(kind) = call.params.get("source-type")
        && !matches!(kind, "" | "consul")
    {
        return Err(ApiError::bad_request(format!(
            "unsupported SourceType: {kind:?}"
        )));
    }
    let default = call.config.intention_default();
    let answer = call
        .read(|state| {
            let intentions = state.in_tenancy(tenancy, |state| state.intentions_for(name));
            let check = legate_intentions::check(&intentions, &pair.source, default);
            check.action == legate_intentions::Action::Allow
        })
        .await?;
    let allowed = answer.value;
    let body = serde_json::json!({ "Allowed": allowed });
    call.answer(answer.index, &body, false)
}

/// `GET /v1/connect/intentions/match`
pub(super) async fn matching(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let by_source = match call.params.required("by")? {
        "source" => true,
        "destination" => false,
        other => {
            return Err(ApiError::bad_request(format!(
                "Invalid ?by={other}: it must be source or destination"
            )));
        }
    };
    call.params.required("name")?;
    let mut names = BTreeMap::new();
    for text in call.params.all("name") {
        let name = service_name("name", text, &call.tenancy)?;
        ApiError::require(
            authorizer.within(&name.tenancy).intention_read(&name.name),
            "intention:read",
            &name.name,
        )?;
        names.insert(text.to_owned(), name);
    }
    let answer = call
        .read(|state| {
            let of = |(text, name): (&String, &ServiceName)| {
                let found = if by_source {
                    from_source(state, name)
                } else {
                    let tenancy = &name.tenancy;
                    state.in_tenancy(tenancy, |state| state.intentions_for(&name.name))
                };
                (text.clone(), found)
            };
            names.iter().map(of).collect::<BTreeMap<_, _>>()
        })
        .await?;
    call.answer(answer.index, &answer.value, false)
}

fn from_source(state: &ReadTxn<'_>, source: &ServiceName) -> Vec<Arc<Intention>> {
    let mut all = state.intentions_everywhere();
    all.retain(|one| {
        let named = one.source();
        let mut parts = named.exact().into_iter().zip(source.exact());
        named.tenancy.peer == source.tenancy.peer
            && named.tenancy.partition == source.tenancy.partition
            && parts.all(|(named, own)| named == WILDCARD || named == own)
    });
    all
}

fn may_write(authorizer: &Authorizer, destination: &ServiceName) -> Result<(), ApiError> {
    let ServiceName { tenancy, name } = destination;
    ApiError::require(
        authorizer.within(tenancy).intention_write(name),
        "intention:write",
        name,
    )
}

/// The source and destination in the query string.
struct Pair {
    source: ServiceName,
    destination: ServiceName,
}

impl Pair {
    /// Both are services of this cluster.
    fn of(call: &Call) -> Result<Self, ApiError> {
        Self::with_source(call, service_name)
    }

    fn with_source(
        call: &Call,
        read: fn(&str, &str, &Tenancy) -> Result<ServiceName, ApiError>,
    ) -> Result<Self, ApiError> {
        call.refuse_every()?;
        let destination = call.params.required("destination")?;
        Ok(Self {
            source: read("source", call.params.required("source")?, &call.tenancy)?,
            destination: service_name("destination", destination, &call.tenancy)?,
        })
    }

    /// Sets the intention's source and destination. The body may repeat them, but not contradict them.
    fn name(&self, intention: &mut Intention) -> Result<(), ApiError> {
        let (source, destination) = (&self.source, &self.destination);
        let (of_source, of_destination) = (&source.tenancy, &destination.tenancy);
        let partitions = [
            intention.source_partition.as_str(),
            intention.destination_partition.as_str(),
        ];
        for (field, own, given) in [
            ("SourceName", &*intention.source_name, &source.name),
            (
                "DestinationName",
                &*intention.destination_name,
                &destination.name,
            ),
        ] {
            agree(field, own, given)?;
        }
        for (field, own, given) in [
            ("SourceNS", &*intention.source_ns, &of_source.namespace),
            (
                "DestinationNS",
                &*intention.destination_ns,
                &of_destination.namespace,
            ),
            ("SourcePartition", partitions[0], &of_source.partition),
            (
                "DestinationPartition",
                partitions[1],
                &of_destination.partition,
            ),
        ] {
            // Names of namespaces and partitions are stored in lower case.
            agree(field, &own.to_lowercase(), given)?;
        }
        intention.set_ends(source, destination);
        Ok(())
    }
}

fn agree(field: &str, own: &str, given: &str) -> Result<(), ApiError> {
    if own.is_empty() || own == given {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "Invalid request: {field}: {own:?} contradicts {given:?} in the query string; leave it out of \
         the body"
    )))
}

/// Refuses a source of a peer, with Consul's text: only config entries have them.
pub(super) fn refuse_peer(intention: &Intention) -> Result<(), ApiError> {
    match intention.source_peer.is_empty() {
        true => Ok(()),
        false => Err(ApiError::internal(
            "SourcePeer field is not supported on this endpoint. Use config entries instead",
        )),
    }
}

/// As [`service_name`], or `peer:<peer>/svc` or `peer:<peer>/ns/svc`, whose namespace is otherwise `default`.
fn source_name(param: &str, text: &str, own: &Tenancy) -> Result<ServiceName, ApiError> {
    let Some(rest) = text.strip_prefix("peer:") else {
        return service_name(param, text, own);
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let invalid = || {
        ApiError::bad_request(format!(
            "Invalid ?{param}={text}: write peer:<peer>/<name> or peer:<peer>/<namespace>/<name>"
        ))
    };
    let (peer, namespace, name) = match *parts.as_slice() {
        [peer, name] => (peer, "", name),
        [peer, namespace, name] => (peer, namespace, name),
        _ => return Err(invalid()),
    };
    if peer.is_empty() || name.is_empty() {
        return Err(invalid());
    }
    let namespace = namespace.parse::<TenancyName>();
    let namespace = namespace.map_err(|error: InvalidTenancyName| {
        ApiError::bad_request(format!("Invalid ?{param}={text}: {error}"))
    })?;
    let home = own.of_partition().of_peer(peer);
    Ok(ServiceName::new(&home.in_namespace(&namespace), name))
}

/// Parses `svc`, `ns/svc` or `partition/ns/svc`; omitted parts are the request's. Not that of a peer.
fn service_name(param: &str, text: &str, own: &Tenancy) -> Result<ServiceName, ApiError> {
    if text.starts_with("peer:") {
        return Err(ApiError::bad_request(format!(
            "Invalid ?{param}={text}: cannot specify a peer here, name a service of this cluster"
        )));
    }
    let mut parts: Vec<&str> = text.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    if name.is_empty() || parts.len() > 2 || parts.contains(&"") {
        return Err(ApiError::bad_request(format!(
            "Invalid ?{param}={text}: write the service's name, <namespace>/<name> or \
             <partition>/<namespace>/<name>"
        )));
    }
    let mut tenant = || {
        let name = parts.pop().unwrap_or_default().parse::<TenancyName>();
        name.map_err(|error: InvalidTenancyName| {
            ApiError::bad_request(format!("Invalid ?{param}={text}: {error}"))
        })
    };
    let namespace = tenant()?;
    Ok(ServiceName::new(&own.resolve(&tenant()?, &namespace), name))
}
