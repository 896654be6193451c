//! `/v1/kv`: keys, values and locks, with Consul's parameters, status codes and error texts.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use legate_model::acl::Authorizer;
use legate_model::{KvEntry, KvValue, MAX_KEY};
use legate_store::{KvWrite, LockError, Writer};
use serde::ser::{Serialize, Serializer};

use super::call::{BODY_TIME, Call, Head, read_body, visible};
use crate::api_error::ApiError;

/// The key in the path; `None` for `/v1/kv/`.
type Key = Option<Path<String>>;

/// `GET /v1/kv/:key`
pub(super) async fn get(key: Key, call: Call) -> Result<Response, ApiError> {
    let key = readable(key)?;
    if call.params.has("keys") {
        return keys(&call, &key).await;
    }
    if call.params.has("recurse") {
        return tree(&call, &key).await;
    }
    if key.is_empty() {
        return Err(missing_key());
    }
    ApiError::require(call.authorizer()?.key_read(&key), "key:read", &key)?;
    let answer = call
        .read(|state| Versions(state.kv(&key).into_iter().collect()))
        .await?;
    let Some(entry) = answer.value.0.first() else {
        return call.absent(answer.index, "");
    };
    if !call.params.has("raw") {
        return call.answer(answer.index, &[entry], false);
    }
    // The value must not run as a script when opened in a browser.
    let mut response = Response::new(Body::from(entry.value.as_bytes().to_vec()));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/plain"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "sandbox"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    call.mark(response, answer.index, false)
}

/// Entries compared by their indexes. Values are large, and each change of one increases its index.
struct Versions(Vec<Arc<KvEntry>>);

impl Serialize for Versions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let versions = self
            .0
            .iter()
            .map(|entry| (&entry.namespace, &entry.key, entry.modify_index));
        serializer.collect_seq(versions)
    }
}

/// The entries below a prefix that the caller may see.
async fn below(call: &Call, prefix: &str) -> Result<(u64, Vec<Arc<KvEntry>>, bool), ApiError> {
    let authorizer = call.authorizer()?;
    let may_list = |own: &Authorizer| !call.config.acl.key_list_policy || own.key_list(prefix);
    let may = call.asks_every() || may_list(&authorizer);
    ApiError::require(may, "key:list", prefix)?;
    call.take_every();
    let answer = call
        .read(|state| Versions(call.each(state, |state| state.kv_below(prefix))))
        .await?;
    let (entries, filtered) = visible(answer.value.0, |entry| {
        let authorizer = call.at(&authorizer, &entry.namespace);
        authorizer.key_read(&entry.key) && may_list(&authorizer)
    });
    Ok((answer.index, entries, filtered))
}

async fn tree(call: &Call, prefix: &str) -> Result<Response, ApiError> {
    let (index, entries, filtered) = below(call, prefix).await?;
    match entries.is_empty() {
        true => call.nothing(index, "", filtered),
        false => call.answer(index, &entries, filtered),
    }
}

async fn keys(call: &Call, prefix: &str) -> Result<Response, ApiError> {
    // The second is the misspelling of early Consul versions.
    let given = ["separator", "seperator"].map(|name| call.params.get(name));
    let separator = given.into_iter().flatten().next().unwrap_or_default();
    let (index, entries, filtered) = below(call, prefix).await?;
    let keys: BTreeSet<&str> = entries
        .iter()
        .map(|entry| up_to(&entry.key, prefix, separator))
        .collect();
    match keys.is_empty() && !prefix.is_empty() {
        true => call.nothing(index, "", filtered),
        false => call.answer(index, &keys, filtered),
    }
}

/// A key up to and including the first separator after the prefix.
fn up_to<'a>(key: &'a str, prefix: &str, separator: &str) -> &'a str {
    let behind = key.get(prefix.len()..).unwrap_or_default();
    match behind.find(separator) {
        Some(at) if !separator.is_empty() => &key[..prefix.len() + at + separator.len()],
        _ => key,
    }
}

/// The kind of a KV write.
enum Put {
    Set,
    Cas(u64),
    Acquire(String),
    Release(String),
}

impl Put {
    fn of(call: &Call) -> Result<Self, ApiError> {
        refuse_conflict(call, &["cas", "acquire", "release"])?;
        let text = |name| call.params.get(name).map(str::to_owned);
        Ok(if let Some(index) = call.params.cas()? {
            Put::Cas(index)
        } else if let Some(session) = text("acquire") {
            Put::Acquire(session)
        } else if let Some(session) = text("release") {
            Put::Release(session)
        } else {
            Put::Set
        })
    }
}

/// `PUT /v1/kv/:key`
pub(super) async fn put(
    key: Key,
    State(writer): State<Writer>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let key = writable(key)?;
    let put = Put::of(&call)?;
    let flags = match call.params.get("flags") {
        None => 0,
        Some(text) => text.parse().map_err(|_| {
            ApiError::bad_request(format!(
                "Invalid ?flags={text}: it must be a number from 0 to 2^64-1"
            ))
        })?,
    };
    ApiError::require(call.authorizer()?.key_write(&key), "key:write", &key)?;
    let value = bounded_body(&headers, body, call.config.sizes.kv_value).await?;
    let write = KvWrite {
        key,
        flags,
        value: KvValue::from(&*value),
    };
    let done = call
        .write(&writer, move |txn| {
            let write = write.clone();
            Ok(match &put {
                Put::Set => {
                    txn.kv_set(write);
                    true
                }
                Put::Cas(index) => txn.kv_cas(write, *index).is_some(),
                Put::Acquire(_) if txn.read().is_lock_delayed(&write.key) => false,
                Put::Acquire(session) => txn.kv_lock(write, session)?.is_some(),
                Put::Release(session) => txn.kv_unlock(write, session)?.is_some(),
            })
        })
        .await?;
    call.json(&done)
}

/// `DELETE /v1/kv/:key`
pub(super) async fn delete(
    key: Key,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    refuse_conflict(&call, &["recurse", "cas"])?;
    let authorizer = call.authorizer()?;
    if call.params.has("recurse") {
        let prefix = readable(key)?;
        may_delete_tree(&authorizer, &prefix)?;
        let delete = move |txn: &mut legate_store::WriteTxn| {
            txn.kv_delete_tree(&prefix);
            Ok(())
        };
        call.write(&writer, delete).await?;
        return call.json(&true);
    }
    let key = writable(key)?;
    ApiError::require(authorizer.key_write(&key), "key:write", &key)?;
    let cas = call.params.cas()?;
    let gone = call
        .write(&writer, move |txn| {
            Ok(match cas {
                Some(index) => txn.kv_delete_cas(&key, index),
                None => {
                    txn.kv_delete(&key);
                    true
                }
            })
        })
        .await?;
    call.json(&gone)
}

pub(super) fn may_delete_tree(authorizer: &Authorizer, prefix: &str) -> Result<(), ApiError> {
    ApiError::require(authorizer.key_write_prefix(prefix), "key:write", prefix)
}

/// Reads a body of at most `limit` bytes, a limit from the settings. The error has Consul's text.
pub(super) async fn bounded_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<bytes::Bytes, ApiError> {
    let announced = headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    match announced.filter(|length| *length > limit) {
        None => read_body(headers, body, limit, BODY_TIME).await,
        Some(length) => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Request body({length} bytes) too large, max size: {limit} bytes."),
        )),
    }
}

fn missing_key() -> ApiError {
    ApiError::bad_request("Missing key name")
}

fn readable(key: Key) -> Result<String, ApiError> {
    let Path(key) = key.unwrap_or(Path(String::new()));
    match key.chars().any(char::is_control) {
        false => Ok(key),
        true => Err(ApiError::bad_request(
            "Bad request: the key has characters that cannot be printed",
        )),
    }
}

fn writable(key: Key) -> Result<String, ApiError> {
    let key = readable(key)?;
    if key.is_empty() {
        return Err(missing_key());
    }
    refuse_long(&key)?;
    Ok(key)
}

pub(super) fn refuse_long(key: &str) -> Result<(), ApiError> {
    match key.len() > MAX_KEY {
        false => Ok(()),
        true => Err(ApiError::bad_request(format!(
            "Key name is too long: {} bytes, and {MAX_KEY} are allowed",
            key.len()
        ))),
    }
}

/// Rejects parameters that exclude each other.
fn refuse_conflict(call: &Call, names: &[&str]) -> Result<(), ApiError> {
    let mut given: Vec<String> = names
        .iter()
        .filter_map(|name| Some(format!("{name}={}", call.params.get(name)?)))
        .collect();
    given.sort();
    match given.len() > 1 {
        false => Ok(()),
        true => Err(ApiError::bad_request(format!(
            "Conflicting flags: {}",
            given.join("&")
        ))),
    }
}

impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        // Consul's status code.
        Self::internal(error.to_string())
    }
}
