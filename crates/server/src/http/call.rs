//! One HTTP request as the endpoints see it: parameters, token, tenancy and body, and the functions that build
//! responses.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::response::Response;
use bytes::Bytes;
use http::header::{AGE, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{HeaderName, StatusCode, Uri};
use http_body_util::LengthLimitError;
use legate_filter::{Field, Filter};
use legate_model::acl::Authorizer;
use legate_model::{EVERY_TENANCY, Secret, Tenancy, TenancyName, json};
use legate_runtime::CancellationToken;
use legate_store::{Answer, ReadTxn, Reader, State, WriteTxn, Writer};
use legate_wan::Caller;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::denial::Asker;
use super::forward::TRANSLATE_FOR;
use super::params::{CacheControl, Params};
use crate::acl::Rights;
use crate::api_error::ApiError;
use crate::config::ServerConfig;

/// The maximum request body, in bytes. Consul's limit.
pub(crate) const BODY_LIMIT: usize = 512 * 1024;

/// Timeout for receiving a body.
pub(super) const BODY_TIME: Duration = Duration::from_secs(30);

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const CONSISTENCY: HeaderName = HeaderName::from_static("x-consul-effective-consistency");
const BACKEND: HeaderName = HeaderName::from_static("x-consul-query-backend");
const CACHE: HeaderName = HeaderName::from_static("x-cache");
const FILTERED: HeaderName = HeaderName::from_static("x-consul-results-filtered-by-acls");
/// Header that names the fields of a write that were stored but have no effect. Not part of Consul's API.
const NOT_SERVED: HeaderName = HeaderName::from_static("x-legate-not-served");
/// Maximum length of that header's value.
const NAMED_BYTES: usize = 1000;

/// A request that has been read completely, and the handles that every endpoint needs. It can read the store
/// but not write to it: an endpoint that writes also takes a [`Writer`].
///
/// Boxed, because the future of every waiting request holds one.
pub(crate) struct Call(Box<Asked>);

/// The contents of a [`Call`].
pub(crate) struct Asked {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) reader: Reader,
    rights: Rights,
    stop: CancellationToken,
    pub(crate) params: Params,
    /// The tenancy of the request. [`Call::set_tenancy`] changes it.
    pub(crate) tenancy: Tenancy,
    /// Reports the token and the tenancy to the guard, for the audit log.
    asker: Asker,
    every_namespace: bool,
    /// Set if the endpoint supports `?ns=*`.
    takes_every: OnceLock<()>,
    cache: CacheControl,
    /// The secret of the caller's token; empty if there is none.
    pub(crate) token: String,
    body: Bytes,
    /// Set once the endpoint has read the filter.
    filtered: OnceLock<()>,
    /// The datacenter whose clients get addresses for other datacenters from these.
    translate_for: Option<String>,
    /// Fields of the body that have no effect. Set when the body is decoded.
    not_served: OnceLock<Vec<String>>,
}

impl std::ops::Deref for Call {
    type Target = Asked;

    fn deref(&self) -> &Asked {
        &self.0
    }
}

impl std::ops::DerefMut for Call {
    fn deref_mut(&mut self) -> &mut Asked {
        &mut self.0
    }
}

/// The parts of the server's state that every request needs.
pub(crate) struct Sources {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) reader: Reader,
    pub(crate) rights: Rights,
    /// Cancelled at shutdown.
    pub(crate) stop: CancellationToken,
}

/// A request whose body the endpoint reads itself.
pub(super) struct Head(pub(super) Call);

impl<S: Sync> FromRequestParts<S> for Head
where
    Sources: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Call::of_head(head, Sources::from_ref(state)).map(Self)
    }
}

impl<S: Sync> FromRequest<S> for Call
where
    Sources: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (head, body) = request.into_parts();
        let mut call = Self::of_head(&head, Sources::from_ref(state))?;
        call.body = read_body(&head.headers, body, BODY_LIMIT, BODY_TIME).await?;
        Ok(call)
    }
}

/// The token: the first of `?token=`, `X-Consul-Token` and `Authorization: Bearer` that is set.
fn token_of(params: &Params, headers: &HeaderMap) -> String {
    if let Some(token) = params.get("token").filter(|token| !token.is_empty()) {
        tracing::warn!(
            "a request contains its token in the URL, which proxies log: send it in the \
             X-Consul-Token header"
        );
        return token.to_owned();
    }
    token_in(headers)
}

/// The token in the request's headers.
pub(super) fn token_in(headers: &HeaderMap) -> String {
    // A token that is not valid UTF-8 is an unknown token, not a missing one.
    let text = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let own = text("x-consul-token").filter(|token| !token.is_empty());
    let bearer = || {
        let value = text(AUTHORIZATION.as_str())?;
        let (scheme, token) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| token.trim().to_owned())
    };
    own.or_else(bearer).unwrap_or_default()
}

/// Rejects a body that is announced to be larger than `limit` bytes.
pub(super) fn refuse_announced(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    match announced.is_some_and(|length| length > limit) {
        true => Err(ApiError::too_large(limit)),
        false => Ok(()),
    }
}

/// Receives a body within `time`.
pub(super) async fn within<T>(
    time: Duration,
    receive: impl Future<Output = T>,
) -> Result<T, ApiError> {
    timeout(time, receive).await.map_err(|_| {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("The request body did not arrive within {time:?}: send it again"),
        )
    })
}

/// Reads a body of at most `limit` bytes within `time`.
pub(super) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    time: Duration,
) -> Result<Bytes, ApiError> {
    refuse_announced(headers, limit)?;
    let body = within(time, to_bytes(body, limit)).await?;
    body.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|source| source.is::<LengthLimitError>());
        if too_large {
            ApiError::too_large(limit)
        } else {
            ApiError::bad_request(format!("The request body could not be read: {error}"))
        }
    })
}

/// The tenancy named by the query or the headers, and whether it includes all namespaces of the partition.
fn tenancy_of(params: &Params, headers: &HeaderMap) -> Result<(Tenancy, bool), ApiError> {
    let in_headers = |header: &str| {
        let value = headers.get(header).map(HeaderValue::as_bytes);
        let text = String::from_utf8_lossy(value.unwrap_or_default());
        text.parse::<TenancyName>()
            .map_err(|error| ApiError::bad_request(format!("Invalid header {header}: {error}")))
    };
    let named = |parameter, header| match params.tenancy_name(parameter)? {
        none if none.is_empty() => in_headers(header),
        named => Ok(named),
    };
    let partition = named("partition", "X-Consul-Partition")?;
    let namespace = named("ns", "X-Consul-Namespace")?;
    if partition.is_every() {
        return Err(ApiError::bad_request(
            "Invalid partition \"*\": a request is about one partition, name it",
        ));
    }
    if namespace.is_every() {
        let default = TenancyName::default();
        return Ok((Tenancy::new(&partition, &default), true));
    }
    Ok((Tenancy::new(&partition, &namespace), false))
}

/// Rejects `?dry-run` on endpoints that do not support it, rather than performing the write.
fn refuse_dry_run(params: &Params, uri: &Uri) -> Result<(), ApiError> {
    if uri.path().starts_with("/v1/config") || !params.flag("dry-run")? {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "Invalid query parameter ?dry-run: only writes of /v1/config support it; leave it out",
    ))
}

impl Call {
    /// Creates a call from the head of a request, with an empty body.
    fn of_head(head: &Parts, sources: Sources) -> Result<Self, ApiError> {
        let Sources {
            config,
            reader,
            rights,
            stop,
        } = sources;
        let params = Params::parse(&head.uri)?;
        params.refuse_unserved(&config.datacenter)?;
        refuse_dry_run(&params, &head.uri)?;
        let (tenancy, every_namespace) = tenancy_of(&params, &head.headers)?;
        tracing::debug!(method = %head.method, path = head.uri.path(), "HTTP request");
        let mut token = token_of(&params, &head.headers);
        if token.is_empty() {
            token = rights.default_token();
        }
        let named = params.get("ns").is_some_and(|name| !name.is_empty())
            || head.headers.contains_key("x-consul-namespace");
        let tenancy = match named {
            true => tenancy,
            false => rights.own_namespace(&token, tenancy),
        };
        let tenancy = tenancy.of_peer(&params.peer(head.uri.path())?);
        let asker = head.extensions.get::<Asker>().cloned().unwrap_or_default();
        asker.note(&token);
        let translate_for = match head.extensions.get::<Caller>() {
            None => config.translates_for(),
            Some(_) => {
                let header = head.headers.get(TRANSLATE_FOR);
                header.and_then(|own| own.to_str().ok().map(str::to_owned))
            }
        };
        let mut call = Self(Box::new(Asked {
            config,
            asker,
            reader,
            rights,
            stop,
            cache: CacheControl::parse(&head.headers)?,
            params,
            tenancy,
            every_namespace,
            takes_every: OnceLock::new(),
            token,
            body: Bytes::new(),
            filtered: OnceLock::new(),
            translate_for,
            not_served: OnceLock::new(),
        }));
        let tenancy = call.tenancy.clone();
        call.set_tenancy(tenancy);
        Ok(call)
    }

    /// Changes the tenancy of the request.
    pub(super) fn set_tenancy(&mut self, tenancy: Tenancy) {
        let shown = match self.every_namespace {
            true => Tenancy {
                namespace: EVERY_TENANCY.into(),
                ..tenancy.clone()
            },
            false => tenancy.clone(),
        };
        self.asker.note_tenancy(shown);
        self.tenancy = tenancy;
    }

    /// Whether the client gets the addresses for other datacenters of what is in this one.
    pub(super) fn translates(&self, datacenter: &str) -> bool {
        let own = self.translate_for.as_ref();
        own.is_some_and(|own| !own.eq_ignore_ascii_case(datacenter))
    }

    /// The same for what is here: only servers of other datacenters ask for it.
    pub(super) fn translates_own(&self) -> bool {
        self.translates(&self.config.datacenter)
    }

    /// Sets the body that the endpoint has read.
    pub(super) fn with_body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// The permissions of the caller's token, in the tenancy of the request.
    pub(crate) fn authorizer(&self) -> Result<Authorizer, ApiError> {
        Ok(self.rights.of(&self.token)?.within(&self.tenancy))
    }

    /// The permissions of another token, in the tenancy of the request.
    pub(crate) fn authorizer_of(&self, token: &Secret) -> Result<Authorizer, ApiError> {
        Ok(self.rights.of(token.expose())?.within(&self.tenancy))
    }

    /// Applies the tenancy named in the body. It takes precedence over headers and must not contradict the
    /// query.
    ///
    /// # Errors
    ///
    /// 400 that names both values.
    pub(crate) fn settle(
        &mut self,
        partition: &TenancyName,
        namespace: &TenancyName,
    ) -> Result<(), ApiError> {
        let named = [
            ("Partition", "partition", partition),
            ("Namespace", "ns", namespace),
        ];
        for (field, parameter, name) in named {
            let asked = self.params.tenancy_name(parameter)?;
            if !name.is_empty() && !asked.is_empty() && asked != *name {
                return Err(ApiError::bad_request(format!(
                    "Invalid request: {field} is {name:?} in the body and {asked:?} in \
                     ?{parameter}=: name one"
                )));
            }
            if name.is_every() {
                return Err(ApiError::bad_request(format!(
                    "Invalid request: {field}: \"*\" is not permitted in this request: name one"
                )));
            }
        }
        self.every_namespace &= namespace.is_empty();
        self.set_tenancy(self.tenancy.resolve(partition, namespace));
        Ok(())
    }

    /// Ignores the namespace, for requests that have none. Clients may set a default namespace for all their
    /// requests.
    pub(crate) fn leave_namespace(&mut self) {
        self.every_namespace = false;
        self.set_tenancy(self.tenancy.of_partition());
    }

    /// A read transaction within the tenancy of the request.
    pub(crate) fn txn<'s>(&self, state: &'s State) -> ReadTxn<'s> {
        state.read().within(self.tenancy.clone())
    }

    /// Reads a list in the namespace of the request or, for `?ns=*`, in every namespace of the partition. The
    /// endpoint must call [`Self::take_every`] first.
    pub(crate) fn each<T>(
        &self,
        txn: &ReadTxn<'_>,
        look: impl Fn(&ReadTxn<'_>) -> Vec<T>,
    ) -> Vec<T> {
        if !self.every_namespace {
            return look(txn);
        }
        let all = txn.tenancies_here();
        all.iter()
            .flat_map(|tenancy| txn.in_tenancy(tenancy, |txn| look(txn)))
            .collect()
    }

    /// Declares that the endpoint supports `?ns=*`.
    pub(crate) fn take_every(&self) {
        // Idempotent: a second call sets the same value.
        let _ = self.takes_every.set(());
    }

    /// The authorizer for a row in `namespace`, which for `?ns=*` differs from row to row.
    pub(crate) fn at<'a>(
        &self,
        authorizer: &'a Authorizer,
        namespace: &TenancyName,
    ) -> Cow<'a, Authorizer> {
        match self.every_namespace {
            true => Cow::Owned(authorizer.within(&self.tenancy.in_namespace(namespace))),
            false => Cow::Borrowed(authorizer),
        }
    }

    /// Whether the request names every namespace (`?ns=*`).
    pub(crate) fn asks_every(&self) -> bool {
        self.every_namespace
    }

    /// Rejects `?ns=*`.
    pub(crate) fn refuse_every(&self) -> Result<(), ApiError> {
        match self.every_namespace {
            false => Ok(()),
            true => Err(ApiError::bad_request(
                "Invalid query parameter ?ns=*: this endpoint is about one namespace, name it",
            )),
        }
    }

    /// Like [`Self::authorizer`], for endpoints that exist only if ACLs are enabled.
    pub(crate) fn acl_authorizer(&self) -> Result<Authorizer, ApiError> {
        if self.rights.are_checked() {
            self.authorizer()
        } else {
            Err(ApiError::acl_disabled())
        }
    }

    /// Decodes the body as JSON. Unknown fields are rejected. Fields that are stored without effect are named
    /// in the response.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if !self.has_body() {
            return Err(ApiError::bad_request(
                "Request decoding failed: the body is empty; send a JSON object",
            ));
        }
        let request = json::request(&self.body)?;
        // Set at most once, because a body is decoded once.
        let _ = self.not_served.set(request.not_served);
        Ok(request.value)
    }

    /// Adds fields of the body that have no effect, for reasons that only the endpoint can determine.
    pub(crate) fn note_not_served(&mut self, more: Vec<String>) {
        let mut all = self.not_served.take().unwrap_or_default();
        all.extend(more);
        // Empty: it was just taken.
        let _ = self.not_served.set(all);
    }

    /// Runs a write transaction within the tenancy. Checks made in it apply to the state that it changes.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        writer: &Writer,
        mut transaction: impl FnMut(&mut WriteTxn) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.refuse_every()?;
        let tenancy = self.tenancy.clone();
        let within = move |txn: &mut WriteTxn| {
            txn.in_tenancy(&tenancy, |txn| {
                txn.read().require_tenancy()?;
                transaction(txn)
            })
        };
        let (_, value) = writer.write(within).await?;
        Ok(value)
    }

    /// The filter of the request, for items with these fields. Matches everything if there is none.
    ///
    /// # Errors
    ///
    /// 400 with Consul's text. Consul's own status is 500.
    pub(crate) fn filter(&self, fields: &[Field]) -> Result<Filter, ApiError> {
        // Idempotent: a second call sets the same value.
        let _ = self.filtered.set(());
        Filter::parse(self.params.filter().unwrap_or_default(), fields).map_err(|error| {
            ApiError::bad_request(format!(
                "Failed to create boolean expression evaluator: {error}"
            ))
        })
    }

    /// Rejects `?filter`.
    pub(crate) fn refuse_filter(&self) -> Result<(), ApiError> {
        match self.params.filter() {
            None => Ok(()),
            Some(_) => Err(ApiError::bad_request(
                "Invalid query parameter ?filter: this endpoint has nothing to filter; leave it out",
            )),
        }
    }

    /// The body, undecoded.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the body is non-empty.
    pub(crate) fn has_body(&self) -> bool {
        !self.body.iter().all(u8::is_ascii_whitespace)
    }

    /// Runs a read, as a blocking query if the client requested one. Ends at shutdown, and fails if the
    /// permissions of the token changed during the wait: the caller authorized the request before it.
    pub(crate) async fn read<T: Serialize + Send>(
        &self,
        read: impl Fn(&ReadTxn<'_>) -> T + Send,
    ) -> Result<Answer<T>, ApiError> {
        self.params.consistency()?;
        if self.filtered.get().is_none() {
            self.refuse_filter()?;
        }
        let query = self
            .params
            .blocking(self.config.query_times, rand::random())?;
        if self.takes_every.get().is_none() {
            self.refuse_every()?;
        }
        let before = self.rights.of(&self.token);
        let read = |txn: &ReadTxn<'_>| txn.in_tenancy(&self.tenancy, |txn| read(txn));
        let answer = tokio::select! {
            answer = self.reader.blocking(query, read) => answer,
            () = self.stop.cancelled() => return Err(shutting_down()),
        };
        // If the token was invalid before, the endpoint needs no token, and the answer is valid.
        if let Ok(before) = before
            && self.rights.of(&self.token)? != before
        {
            return Err(token_changed());
        }
        Ok(answer)
    }

    /// Awaits work that does not read the store, until shutdown.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, ApiError> {
        let done = self.stop.run_until_cancelled(work).await;
        done.ok_or_else(shutting_down)
    }

    /// Runs a hash-based blocking query: if the client sends `?hash`, waits until the result's hash differs
    /// from it.
    pub(crate) async fn read_hashed<T: Send>(
        &self,
        read: impl Fn(&ReadTxn<'_>) -> Result<(String, T), ApiError> + Send + Sync,
    ) -> Result<(String, T), ApiError> {
        let seen = self.params.get("hash").unwrap_or_default();
        let deadline = Instant::now()
            + self
                .params
                .blocking(self.config.query_times, rand::random())?
                .wait;
        let before = self.rights.of(&self.token)?;
        loop {
            let (found, mut watch) = {
                let state = self.reader.state();
                let txn = self.txn(&state);
                let found = read(&txn)?;
                (found, self.reader.watch(&txn.into_reads()))
            };
            if seen.is_empty() || found.0 != seen {
                return Ok(found);
            }
            let ended = tokio::select! {
                () = watch.changed() => false,
                () = sleep_until(deadline) => true,
                () = self.stop.cancelled() => return Err(shutting_down()),
            };
            if self.rights.of(&self.token)? != before {
                return Err(token_changed());
            }
            if ended {
                return Ok(found);
            }
        }
    }

    /// Runs a blocking query on data outside the store: waits until the index differs from the client's. These
    /// indexes have no order.
    pub(crate) async fn read_changing<T>(
        &self,
        mut changed: watch::Receiver<()>,
        read: impl Fn() -> (u64, T) + Send,
    ) -> Result<(u64, T), ApiError> {
        self.refuse_filter()?;
        let query = self
            .params
            .blocking(self.config.query_times, rand::random())?;
        let deadline = Instant::now() + query.wait;
        let before = self.rights.of(&self.token)?;
        loop {
            changed.mark_unchanged();
            let (index, found) = read();
            if index != query.min_index {
                return Ok((index, found));
            }
            let ended = tokio::select! {
                news = changed.changed() => news.is_err(),
                () = sleep_until(deadline) => true,
                () = self.stop.cancelled() => return Err(shutting_down()),
            };
            if self.rights.of(&self.token)? != before {
                return Err(token_changed());
            }
            if ended {
                return Ok(read());
            }
        }
    }

    /// A response with a JSON body.
    pub(crate) fn json<T: Serialize + ?Sized>(&self, value: &T) -> Result<Response, ApiError> {
        let text = self.encode(value).map_err(|error| {
            tracing::error!(%error, "a response could not be encoded as JSON");
            ApiError::internal(format!(
                "The response could not be encoded as JSON: {error}"
            ))
        })?;
        let mut response = Response::new(Body::from(text));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.add_not_served(headers);
        Ok(response)
    }

    fn encode<T: Serialize + ?Sized>(&self, value: &T) -> serde_json::Result<Vec<u8>> {
        if !self.params.has("pretty") {
            return serde_json::to_vec(value);
        }
        let mut text = Vec::new();
        let pretty = PrettyFormatter::with_indent(b"    ");
        value.serialize(&mut Serializer::with_formatter(&mut text, pretty))?;
        text.push(b'\n');
        Ok(text)
    }

    /// The response to a write without a result.
    pub(crate) fn empty(&self) -> Response {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.add_not_served(headers);
        response
    }

    /// A response with a JSON list, with a header if ACLs have removed items.
    pub(crate) fn list<T: Serialize>(
        &self,
        value: &T,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let mut response = self.json(value)?;
        self.add_filtered(response.headers_mut(), filtered);
        Ok(response)
    }

    /// Requests without a token do not learn that anything was removed.
    fn add_filtered(&self, headers: &mut HeaderMap, filtered: bool) {
        if filtered && !self.token.is_empty() {
            headers.insert(FILTERED, HeaderValue::from_static("true"));
        }
    }

    /// The response to a read: JSON, with the headers for index, consistency and ACL filtering.
    pub(crate) fn answer<T: Serialize>(
        &self,
        index: u64,
        value: &T,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let response = self.json(value)?;
        self.mark(response, index, filtered)
    }

    /// 404 for a read that found nothing, with an index, so that the client can wait for the object to appear.
    pub(crate) fn absent(&self, index: u64, text: &str) -> Result<Response, ApiError> {
        self.nothing(index, text, false)
    }

    /// Like [`Self::absent`], with the ACL filtering header if `filtered`.
    pub(crate) fn nothing(
        &self,
        index: u64,
        text: &str,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let mut response = Response::new(Body::from(text.to_owned()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        if !text.is_empty() {
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, plain);
        }
        self.mark(response, index, filtered)
    }

    /// Adds the headers of a read.
    pub(crate) fn mark(
        &self,
        mut response: Response,
        index: u64,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let consistency = self.params.consistency()?;
        let headers = response.headers_mut();
        headers.insert(INDEX, HeaderValue::from(index.max(1)));
        headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
        headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
        headers.insert(CONSISTENCY, HeaderValue::from_static(consistency.as_str()));
        headers.insert(BACKEND, HeaderValue::from_static("blocking-query"));
        self.add_filtered(headers, filtered);
        self.add_cache(headers);
        Ok(response)
    }

    /// Adds the cache headers. The state in memory corresponds to the cache of a Consul agent: always a hit,
    /// with age 0.
    pub(crate) fn add_cache(&self, headers: &mut HeaderMap) {
        if !self.params.has("cached") {
            return;
        }
        if self.cache.must_revalidate {
            headers.insert(CACHE, HeaderValue::from_static("MISS"));
        } else {
            headers.insert(CACHE, HeaderValue::from_static("HIT"));
            headers.insert(AGE, HeaderValue::from_static("0"));
        }
    }

    /// Names the fields of an accepted write that have no effect, in a header and in the log.
    fn add_not_served(&self, headers: &mut HeaderMap) {
        let Some(fields) = self.not_served.get().filter(|fields| !fields.is_empty()) else {
            return;
        };
        // Keys of free-form maps are arbitrary text, so characters that headers do not permit are replaced.
        let all = fields.join(", ");
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        let mut text: String = all.chars().take(NAMED_BYTES).map(printable).collect();
        if all.chars().nth(NAMED_BYTES).is_some() {
            text.push_str("...");
        }
        tracing::warn!(
            fields = text,
            "a write was accepted whose fields have no effect here"
        );
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(NOT_SERVED, value);
        }
    }
}

/// Adds the headers for a read without an index.
pub(crate) fn fresh(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
}

fn shutting_down() -> ApiError {
    ApiError::unavailable("The server is shutting down: retry later, or with another server")
}

fn token_changed() -> ApiError {
    ApiError::unavailable("The token was changed while the query waited: retry")
}

/// Keeps the items that the caller may see. Also returns whether any were removed.
pub(crate) fn visible<T>(items: Vec<T>, may_see: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    let before = items.len();
    let kept: Vec<T> = items.into_iter().filter(may_see).collect();
    let filtered = kept.len() < before;
    (kept, filtered)
}
