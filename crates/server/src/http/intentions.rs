//! `/v1/connect/intentions`: who may call whom, one pair at a time. The pairs are kept in the
//! `service-intentions` config entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_model::{ConfigKind, DEFAULT_TENANCY, Intention, WILDCARD, filters};
use legate_store::{ReadTxn, Writer};

use super::call::{Call, visible};
use super::error::ApiError;
use super::{jwt_providers, protocol};

/// `GET /v1/connect/intentions`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::INTENTION)?;
    let answer = call.read(|state| state.intentions()).await?;
    let (mut intentions, filtered) = visible(answer.value, |i| may_read(&authorizer, i));
    intentions.retain(|intention| filter.matches(intention));
    call.answer(answer.index, &intentions, filtered)
}

pub(super) fn may_read(authorizer: &Authorizer, intention: &Intention) -> bool {
    authorizer.intention_read(&intention.source_name)
        || authorizer.intention_read(&intention.destination_name)
}

/// `GET /v1/connect/intentions/exact`
pub(super) async fn get(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::of(&call)?;
    let answer = call
        .read(|state| state.intention(&pair.source, &pair.destination))
        .await?;
    match answer.value {
        None => call.absent(answer.index, "Intention not found"),
        Some(intention) if may_read(&authorizer, &intention) => {
            call.answer(answer.index, &intention, false)
        }
        Some(_) => Err(ApiError::denied("intention:read", &pair.destination)),
    }
}

/// `PUT /v1/connect/intentions/exact`
pub(super) async fn put(State(writer): State<Writer>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::of(&call)?;
    let mut intention: Intention = call.decode()?;
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
    intention.normalise();
    if !authorizer.intention_write(&pair.destination) {
        return Err(ApiError::denied("intention:write", &pair.destination));
    }
    call.write(&writer, move |txn| {
        txn.put_intention(intention.clone())?;
        let name = &intention.destination_name;
        let entry = txn.read().config_entry(ConfigKind::ServiceIntentions, name);
        if let Some(entry) = entry {
            protocol::refuse_mismatch(&txn.read(), &entry)?;
            jwt_providers::refuse_unknown(&txn.read(), &entry)?;
        }
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// `DELETE /v1/connect/intentions/exact`
pub(super) async fn delete(State(writer): State<Writer>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let Pair {
        source,
        destination,
    } = Pair::of(&call)?;
    if !authorizer.intention_write(&destination) {
        return Err(ApiError::denied("intention:write", &destination));
    }
    call.write(&writer, move |txn| {
        Ok(txn.remove_intention(&source, &destination)?)
    })
    .await?;
    call.json(&true)
}

/// `GET /v1/connect/intentions/check`
pub(super) async fn check(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let pair = Pair::of(&call)?;
    if !authorizer.service_read(&pair.destination) {
        return Err(ApiError::denied("service:read", &pair.destination));
    }
    let default = call.config.intention_default();
    let answer = call
        .read(|state| {
            let intentions = state.intentions_for(&pair.destination);
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
        let name = service_name("name", text)?;
        if !authorizer.intention_read(&name) {
            return Err(ApiError::denied("intention:read", &name));
        }
        names.insert(text.to_owned(), name);
    }
    let answer = call
        .read(|state| {
            let of = |(text, name): (&String, &String)| {
                let found = if by_source {
                    from_source(state, name)
                } else {
                    state.intentions_for(name)
                };
                (text.clone(), found)
            };
            names.iter().map(of).collect::<BTreeMap<_, _>>()
        })
        .await?;
    call.answer(answer.index, &answer.value, false)
}

fn from_source(state: &ReadTxn<'_>, source: &str) -> Vec<Arc<Intention>> {
    let mut all = state.intentions();
    all.retain(|i| i.source_name == WILDCARD || i.source_name == source);
    all
}

/// The two ends in the query string.
struct Pair {
    source: String,
    destination: String,
}

impl Pair {
    fn of(call: &Call) -> Result<Self, ApiError> {
        let name = |param| service_name(param, call.params.required(param)?);
        Ok(Self {
            source: name("source")?,
            destination: name("destination")?,
        })
    }

    /// Names the intention; a body may repeat the names, but not contradict them.
    fn name(&self, intention: &mut Intention) -> Result<(), ApiError> {
        for (field, own, given) in [
            ("SourceName", &mut intention.source_name, &self.source),
            (
                "DestinationName",
                &mut intention.destination_name,
                &self.destination,
            ),
        ] {
            if own.is_empty() {
                own.clone_from(given);
            } else if own != given {
                return Err(ApiError::bad_request(format!(
                    "Invalid request: {field}: {own:?} contradicts {given:?} in the query string; \
                     leave it out of the body"
                )));
            }
        }
        Ok(())
    }
}

/// `svc`, `default/svc` or `default/default/svc`: other namespaces, partitions and peers are not
/// served.
fn service_name(param: &str, text: &str) -> Result<String, ApiError> {
    if text.starts_with("peer:") {
        return Err(ApiError::bad_request(format!(
            "Invalid ?{param}={text}: peers are not served, name a service of this datacenter"
        )));
    }
    let mut parts: Vec<&str> = text.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let default_only = parts
        .iter()
        .all(|part| part.eq_ignore_ascii_case(DEFAULT_TENANCY));
    if name.is_empty() || parts.len() > 2 || !default_only {
        return Err(ApiError::bad_request(format!(
            "Invalid ?{param}={text}: write the service's name, or default/<name>; other \
             namespaces and partitions are not served"
        )));
    }
    Ok(name.to_owned())
}
