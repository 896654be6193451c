//! One request as the endpoints see it: its parameters, token and body, and how it is answered.

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
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::denial::Asker;
use super::params::{CacheControl, Params};
use crate::acl::Rights;
use crate::api_error::ApiError;
use crate::config::ServerConfig;

/// The largest request body, in bytes. Consul's limit.
pub(crate) const BODY_LIMIT: usize = 512 * 1024;

/// How long a client may take to send a body.
pub(super) const BODY_TIME: Duration = Duration::from_secs(30);

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const CONSISTENCY: HeaderName = HeaderName::from_static("x-consul-effective-consistency");
const BACKEND: HeaderName = HeaderName::from_static("x-consul-query-backend");
const CACHE: HeaderName = HeaderName::from_static("x-cache");
const FILTERED: HeaderName = HeaderName::from_static("x-consul-results-filtered-by-acls");
/// The fields of a write that are kept and have no effect. Consul has no such header.
const NOT_SERVED: HeaderName = HeaderName::from_static("x-legate-not-served");
/// How much of their names is said.
const NAMED_BYTES: usize = 1000;

/// A request that has been read completely, with what every endpoint needs. It reads and writes
/// nothing by itself: an endpoint that changes something names a [`Writer`] too.
///
/// It stands in a place of its own, because every part of a waiting request would hold it otherwise.
pub(crate) struct Call(Box<Asked>);

/// What a request asks, and what it is answered from.
pub(crate) struct Asked {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) reader: Reader,
    rights: Rights,
    stop: CancellationToken,
    pub(crate) params: Params,
    /// Whose rows it is about; [`Call::set_tenancy`] changes it.
    pub(crate) tenancy: Tenancy,
    /// Notes for others who asks, and about whose rows.
    asker: Asker,
    every_namespace: bool,
    /// Set where the endpoint can list the rows of every namespace.
    takes_every: OnceLock<()>,
    cache: CacheControl,
    /// The secret of the caller's token; empty when there is none.
    pub(crate) token: String,
    body: Bytes,
    /// Set once the endpoint has taken the filter.
    filtered: OnceLock<()>,
    /// Fields of the body that have no effect, once it is decoded.
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

/// What every request is judged by and answered from.
pub(crate) struct Sources {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) reader: Reader,
    pub(crate) rights: Rights,
    /// Cancelled when the server stops.
    pub(crate) stop: CancellationToken,
}

/// A request whose body is left to the endpoint.
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

/// The first of: `?token=`, `X-Consul-Token`, `Authorization: Bearer`.
fn token_of(params: &Params, headers: &HeaderMap) -> String {
    if let Some(token) = params.get("token").filter(|token| !token.is_empty()) {
        tracing::warn!(
            "a request carries its token in the URL, where proxies log it: send it in the \
             X-Consul-Token header"
        );
        return token.to_owned();
    }
    token_in(headers)
}

/// The token that a request carries in its headers.
pub(super) fn token_in(headers: &HeaderMap) -> String {
    // A token that is no text is still one, and not the absence of one.
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

/// Reads a body of at most `limit` bytes.
pub(super) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    time: Duration,
) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(ApiError::too_large(limit));
    }
    let body = timeout(time, to_bytes(body, limit)).await;
    let body = body.map_err(|_| {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("The request body did not arrive within {time:?}: send it again"),
        )
    })?;
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

/// What a request is about as far as its query and headers say, and whether that is every namespace.
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

/// Who only wants to look must not write.
fn refuse_dry_run(params: &Params, uri: &Uri) -> Result<(), ApiError> {
    if uri.path().starts_with("/v1/config") || !params.flag("dry-run")? {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "Invalid query parameter ?dry-run: only writes of /v1/config can be looked at first; leave it out",
    ))
}

impl Call {
    /// A request whose body is not read yet.
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
        let asker = head.extensions.get::<Asker>().cloned().unwrap_or_default();
        asker.note(&token);
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
            not_served: OnceLock::new(),
        }));
        let tenancy = call.tenancy.clone();
        call.set_tenancy(tenancy);
        Ok(call)
    }

    /// Says what the request is about after all.
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

    /// The same request with the body that the endpoint has read.
    pub(super) fn with_body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// What the caller's token allows in the tenancy that the request is about.
    pub(crate) fn authorizer(&self) -> Result<Authorizer, ApiError> {
        Ok(self.rights.of(&self.token)?.within(&self.tenancy))
    }

    /// What another token than the caller's allows there.
    pub(crate) fn authorizer_of(&self, token: &Secret) -> Result<Authorizer, ApiError> {
        Ok(self.rights.of(token.expose())?.within(&self.tenancy))
    }

    /// Takes over what the body says that the request is about. It goes before a header, and must not
    /// be otherwise than the query.
    ///
    /// # Errors
    ///
    /// 400 that names what the body and the query say.
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
                    "Invalid request: {field}: \"*\" stands for every one, and this request is about \
                     one"
                )));
            }
        }
        self.every_namespace &= namespace.is_empty();
        self.set_tenancy(self.tenancy.resolve(partition, namespace));
        Ok(())
    }

    /// For requests that are about no namespace, whichever the client names in all of its requests.
    pub(crate) fn leave_namespace(&mut self) {
        self.every_namespace = false;
        self.set_tenancy(self.tenancy.of_partition());
    }

    /// A look at a state, within the tenancy that the request is about.
    pub(crate) fn txn<'s>(&self, state: &'s State) -> ReadTxn<'s> {
        state.read().within(self.tenancy.clone())
    }

    /// Reads a list in the namespace that the request is about, or in every one of the partition.
    /// [`Self::take_every`] says before that this can be.
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

    /// For endpoints that can list the rows of every namespace.
    pub(crate) fn take_every(&self) {
        // A second call sets the same.
        let _ = self.takes_every.set(());
    }

    /// What a token allows with a row, whose namespace may be any where every one was asked for.
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

    /// Whether the request names every namespace.
    pub(crate) fn asks_every(&self) -> bool {
        self.every_namespace
    }

    /// For endpoints that are about one namespace.
    pub(crate) fn refuse_every(&self) -> Result<(), ApiError> {
        match self.every_namespace {
            false => Ok(()),
            true => Err(ApiError::bad_request(
                "Invalid query parameter ?ns=*: this endpoint is about one namespace, name it",
            )),
        }
    }

    /// The same, for endpoints that only exist where ACLs are on.
    pub(crate) fn acl_authorizer(&self) -> Result<Authorizer, ApiError> {
        if self.rights.are_checked() {
            self.authorizer()
        } else {
            Err(ApiError::acl_disabled())
        }
    }

    /// The body as JSON. Unknown fields are refused; those that are kept without an effect are
    /// named in the answer.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if !self.has_body() {
            return Err(ApiError::bad_request(
                "Request decoding failed: the body is empty; send a JSON object",
            ));
        }
        let request = json::request(&self.body)?;
        // A body is decoded once.
        let _ = self.not_served.set(request.not_served);
        Ok(request.value)
    }

    /// Adds fields of the body that have no effect here, for a reason that only an endpoint knows.
    pub(crate) fn note_not_served(&mut self, more: Vec<String>) {
        let mut all = self.not_served.take().unwrap_or_default();
        all.extend(more);
        // It was just taken.
        let _ = self.not_served.set(all);
    }

    /// Runs a transaction. What it checks holds for the state that it changes.
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

    /// What the client wants left of a list, by the fields of its items; everything if it does not say.
    ///
    /// # Errors
    ///
    /// 400 with Consul's text. Consul's own status is 500.
    pub(crate) fn filter(&self, fields: &[Field]) -> Result<Filter, ApiError> {
        // A second call sets the same.
        let _ = self.filtered.set(());
        Filter::parse(self.params.filter().unwrap_or_default(), fields).map_err(|error| {
            ApiError::bad_request(format!(
                "Failed to create boolean expression evaluator: {error}"
            ))
        })
    }

    /// For endpoints that do not filter what they answer with.
    pub(crate) fn refuse_filter(&self) -> Result<(), ApiError> {
        match self.params.filter() {
            None => Ok(()),
            Some(_) => Err(ApiError::bad_request(
                "Invalid query parameter ?filter: this endpoint has nothing to filter; leave it out",
            )),
        }
    }

    /// The body as it was sent.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether there is a body at all.
    pub(crate) fn has_body(&self) -> bool {
        !self.body.iter().all(u8::is_ascii_whitespace)
    }

    /// Reads, after waiting for news if the client asked for that. Ends when the server stops, and
    /// with an error when the token means something else by then: the caller has judged by what it
    /// allowed before the wait, and a query may wait for minutes.
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
        // What needs no token is answered to holders of bad ones too.
        if let Ok(before) = before
            && self.rights.of(&self.token)? != before
        {
            return Err(token_changed());
        }
        Ok(answer)
    }

    /// Waits for something that is not read from the store, until the server stops.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, ApiError> {
        let done = self.stop.run_until_cancelled(work).await;
        done.ok_or_else(shutting_down)
    }

    /// Reads, after waiting for something else than what the client has seen if it says what that
    /// was: the hash of it.
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

    /// Reads what is not in the store, after waiting for another index than the one that the client has
    /// seen, if it names one. Such indexes have no order.
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

    /// Answers with JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(&self, value: &T) -> Result<Response, ApiError> {
        let text = self.encode(value).map_err(|error| {
            tracing::error!(%error, "an answer could not be written as JSON");
            ApiError::internal(format!("The answer could not be written as JSON: {error}"))
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

    /// Answers a write that has nothing to say.
    pub(crate) fn empty(&self) -> Response {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.add_not_served(headers);
        response
    }

    /// Answers with a list as JSON, and says whether the token hides some of it.
    pub(crate) fn list<T: Serialize>(
        &self,
        value: &T,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let mut response = self.json(value)?;
        self.add_filtered(response.headers_mut(), filtered);
        Ok(response)
    }

    /// Those without a token do not learn what they may not see.
    fn add_filtered(&self, headers: &mut HeaderMap, filtered: bool) {
        if filtered && !self.token.is_empty() {
            headers.insert(FILTERED, HeaderValue::from_static("true"));
        }
    }

    /// Answers a read with JSON, and with the headers that say how fresh and complete it is.
    pub(crate) fn answer<T: Serialize>(
        &self,
        index: u64,
        value: &T,
        filtered: bool,
    ) -> Result<Response, ApiError> {
        let response = self.json(value)?;
        self.mark(response, index, filtered)
    }

    /// Answers a read that found nothing, so that the client can wait for it to appear.
    pub(crate) fn absent(&self, index: u64, text: &str) -> Result<Response, ApiError> {
        self.nothing(index, text, false)
    }

    /// The same, and says whether the token hides what there is.
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

    /// What is in memory is what an agent of Consul keeps up to date in its cache: it is always there,
    /// and never older than the moment.
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

    /// Says what of an accepted write has no effect, to the client and in the log.
    fn add_not_served(&self, headers: &mut HeaderMap) {
        let Some(fields) = self.not_served.get().filter(|fields| !fields.is_empty()) else {
            return;
        };
        // Keys of free maps are the client's own words.
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

/// Says of what was read without an index that it is not old.
pub(crate) fn fresh(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
}

fn shutting_down() -> ApiError {
    ApiError::unavailable("The server is shutting down: ask again later, or ask another server")
}

fn token_changed() -> ApiError {
    ApiError::unavailable("The token was changed while the query waited: ask again")
}

/// Keeps what may be seen, and says whether anything was left out.
pub(crate) fn visible<T>(items: Vec<T>, may_see: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    let before = items.len();
    let kept: Vec<T> = items.into_iter().filter(may_see).collect();
    let filtered = kept.len() < before;
    (kept, filtered)
}
