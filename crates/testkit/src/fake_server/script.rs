//! The scripted behaviour of the fake server, and its recorded calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use legate_api::acl::{LoginRequest, LogoutRequest};
use legate_api::dataplane::{DataplaneFeatures, GetEnvoyBootstrapParamsResponse};
use legate_api::dns::QueryRequest;
use legate_api::serverdiscovery::Server;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::record::{Body, Call, Caller, Recorded};

/// The timeout of waiting helpers.
pub const WAIT: Duration = Duration::from_secs(20);

/// A handler of DNS queries.
pub type DnsAnswer = dyn Fn(&QueryRequest) -> Result<Bytes, Status> + Send + Sync;

/// An entry of the server list, as sent by a real server.
#[must_use]
pub fn server_entry(address: &str) -> Server {
    Server {
        id: format!("server-{address}"),
        address: address.to_owned(),
        version: "1.21.0".to_owned(),
    }
}

#[derive(Clone)]
enum Fault {
    Status(Status),
    Hang,
}

/// The state that open watch streams follow.
#[derive(Clone, Default)]
pub(super) struct Watched {
    pub(super) servers: Vec<Server>,
    /// The number of times the list was set.
    pub(super) version: u64,
    /// The number of times watches were ended, and the status of the last end.
    pub(super) ended: u64,
    pub(super) status: Option<Status>,
}

struct State {
    /// Valid tokens with their expiry. `None`: ACLs are disabled.
    tokens: Option<BTreeMap<String, Option<Instant>>>,
    /// The lifetime of tokens created by login.
    token_lifetime: Option<Duration>,
    features: Vec<DataplaneFeatures>,
    params: GetEnvoyBootstrapParamsResponse,
    /// Bearer tokens by auth method.
    bearers: BTreeMap<String, BTreeSet<String>>,
    logins: u64,
    next: BTreeMap<Call, VecDeque<Fault>>,
    always: BTreeMap<Call, Fault>,
    dns: Arc<DnsAnswer>,
    recorded: Vec<Recorded>,
}

/// A handle to a server's behaviour; clones share the state.
#[derive(Clone)]
pub struct Script {
    state: Arc<Mutex<State>>,
    watched: watch::Sender<Watched>,
    /// The number of recorded calls.
    count: watch::Sender<usize>,
}

impl Default for Script {
    /// ACLs are disabled, all features are supported, the server list and bootstrap parameters are
    /// empty, DNS queries get empty responses.
    fn default() -> Self {
        let state = State {
            tokens: None,
            token_lifetime: None,
            features: vec![
                DataplaneFeatures::WatchServers,
                DataplaneFeatures::EdgeCertificateManagement,
                DataplaneFeatures::EnvoyBootstrapConfiguration,
            ],
            params: GetEnvoyBootstrapParamsResponse::default(),
            bearers: BTreeMap::new(),
            logins: 0,
            next: BTreeMap::new(),
            always: BTreeMap::new(),
            dns: Arc::new(|question| Ok(as_answer(&question.msg))),
            recorded: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            watched: watch::Sender::new(Watched::default()),
            count: watch::Sender::new(0),
        }
    }
}

impl Script {
    /// Enables ACLs and accepts this token in addition to others.
    pub fn accept_token(&self, secret: &str) {
        self.state()
            .tokens
            .get_or_insert_default()
            .insert(secret.to_owned(), None);
    }

    /// Enables ACLs and accepts this bearer token for logins with this auth method.
    pub fn accept_login(&self, auth_method: &str, bearer: &str) {
        let mut state = self.state();
        state.tokens.get_or_insert_default();
        state
            .bearers
            .entry(auth_method.to_owned())
            .or_default()
            .insert(bearer.to_owned());
    }

    /// Refuses this bearer token from now on; the auth method stays.
    pub fn refuse_login(&self, auth_method: &str, bearer: &str) {
        self.state()
            .bearers
            .entry(auth_method.to_owned())
            .or_default()
            .remove(bearer);
    }

    /// Removes all tokens, as if they had expired. Open streams stay open.
    pub fn revoke_tokens(&self) {
        self.state().tokens.get_or_insert_default().clear();
    }

    /// Sets the lifetime of tokens created by logins from now on.
    pub fn token_lifetime(&self, lifetime: Duration) {
        self.state().token_lifetime = Some(lifetime);
    }

    /// Removes one token, as if it was deleted.
    pub fn delete_token(&self, secret: &str) {
        if let Some(tokens) = &mut self.state().tokens {
            tokens.remove(secret);
        }
    }

    /// The tokens that are valid now.
    #[must_use]
    pub fn tokens(&self) -> Vec<String> {
        let state = self.state();
        let tokens = state.tokens.iter().flatten();
        let valid = tokens.filter(|(_, end)| is_ahead(**end));
        valid.map(|(token, _)| token.clone()).collect()
    }

    /// Sets the supported features; others are listed as unsupported or not at all.
    pub fn features(&self, features: &[DataplaneFeatures]) {
        self.state().features = features.to_vec();
    }

    /// Sets the bootstrap parameters of every proxy.
    pub fn bootstrap_params(&self, params: GetEnvoyBootstrapParamsResponse) {
        self.state().params = params;
    }

    /// Sets the handler of DNS queries.
    pub fn dns(
        &self,
        answer: impl Fn(&QueryRequest) -> Result<Bytes, Status> + Send + Sync + 'static,
    ) {
        self.state().dns = Arc::new(answer);
    }

    /// Sets the server list, which open watches get at once.
    pub fn servers(&self, servers: Vec<Server>) {
        self.watched.send_modify(|watched| {
            watched.servers = servers;
            watched.version += 1;
        });
    }

    /// Ends all open watches of the server list with this status.
    pub fn end_watches(&self, status: Status) {
        self.watched.send_modify(|watched| {
            watched.ended += 1;
            watched.status = Some(status);
        });
    }

    /// Makes the next call of this method fail; several failures are queued.
    pub fn fail_next(&self, call: Call, status: Status) {
        self.state()
            .next
            .entry(call)
            .or_default()
            .push_back(Fault::Status(status));
    }

    /// Makes the next call of this method hang; queued together with
    /// [`fail_next`](Self::fail_next).
    pub fn hang_next(&self, call: Call) {
        self.state()
            .next
            .entry(call)
            .or_default()
            .push_back(Fault::Hang);
    }

    /// Makes every call of this method fail, after those of [`fail_next`](Self::fail_next).
    pub fn fail_always(&self, call: Call, status: Status) {
        self.state().always.insert(call, Fault::Status(status));
    }

    /// Makes all calls of this method hang.
    pub fn hang(&self, call: Call) {
        self.state().always.insert(call, Fault::Hang);
    }

    /// Restores normal behaviour of this method.
    pub fn heal(&self, call: Call) {
        let mut state = self.state();
        state.next.remove(&call);
        state.always.remove(&call);
    }

    /// All calls so far.
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        self.state().recorded.clone()
    }

    /// All calls of one method so far.
    #[must_use]
    pub fn calls(&self, call: Call) -> Vec<Recorded> {
        self.state()
            .recorded
            .iter()
            .filter(|recorded| recorded.call == call)
            .cloned()
            .collect()
    }

    /// All logins so far.
    #[must_use]
    pub fn logins(&self) -> Vec<LoginRequest> {
        self.bodies(|body| {
            if let Body::Login(request) = body {
                Some(request.clone())
            } else {
                None
            }
        })
    }

    /// All logouts so far.
    #[must_use]
    pub fn logouts(&self) -> Vec<LogoutRequest> {
        self.bodies(|body| {
            if let Body::Logout(request) = body {
                Some(request.clone())
            } else {
                None
            }
        })
    }

    /// Waits until at least this many calls of a method have been recorded, and returns all of
    /// them.
    ///
    /// # Panics
    ///
    /// If they do not arrive within [`WAIT`].
    pub async fn wait_for_calls(&self, call: Call, count: usize) -> Vec<Recorded> {
        self.wait_for(&format!("{count} calls of {call:?}"), |_| {
            let calls = self.calls(call);
            (calls.len() >= count).then_some(calls)
        })
        .await
    }

    /// Waits until `look` returns a value for the calls so far.
    ///
    /// # Panics
    ///
    /// If it does not within [`WAIT`]; the message contains `what` and lists the calls.
    pub async fn wait_for<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&[Recorded]) -> Option<T>,
    ) -> T {
        let mut count = self.count.subscribe();
        let found = async {
            loop {
                count.borrow_and_update();
                let recorded = self.recorded();
                if let Some(found) = look(&recorded) {
                    return found;
                }
                count
                    .changed()
                    .await
                    .expect("the script holds the other end");
            }
        };
        match tokio::time::timeout(WAIT, found).await {
            Ok(found) => found,
            Err(_) => panic!("no {what} in {WAIT:?}; recorded: {:#?}", self.recorded()),
        }
    }

    pub(super) fn record(&self, call: Call, caller: &Caller, body: Body) {
        let Caller {
            token,
            metadata,
            authority,
            peer,
        } = caller.clone();
        self.state().recorded.push(Recorded {
            call,
            token,
            metadata,
            authority,
            peer,
            body,
        });
        self.count.send_modify(|count| *count += 1);
    }

    /// Records a call and applies scripted failures.
    pub(super) async fn enter(
        &self,
        call: Call,
        caller: &Caller,
        body: Option<Body>,
    ) -> Result<(), Status> {
        if let Some(body) = body {
            self.record(call, caller, body);
        }
        let fault = {
            let mut state = self.state();
            let next = state.next.get_mut(&call).and_then(VecDeque::pop_front);
            next.or_else(|| state.always.get(&call).cloned())
        };
        match fault {
            None => Ok(()),
            Some(Fault::Status(status)) => Err(status),
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    /// Checks the token like a server with ACLs; any valid token is sufficient.
    pub(super) fn authenticate(&self, caller: &Caller) -> Result<(), Status> {
        let state = self.state();
        match (&state.tokens, caller.token.as_deref()) {
            (None, _) => Ok(()),
            (Some(_), None | Some("")) => Err(Status::unauthenticated(
                "a token must be provided through x-consul-token",
            )),
            (Some(tokens), Some(token)) if tokens.get(token).copied().is_some_and(is_ahead) => {
                Ok(())
            }
            (Some(_), Some(_)) => Err(Status::unauthenticated("ACL not found")),
        }
    }

    /// Accessor and secret of a new token.
    pub(super) fn log_in(&self, request: &LoginRequest) -> Result<(String, String), Status> {
        let mut state = self.state();
        if state.tokens.is_none() {
            return Err(Status::failed_precondition("ACL support disabled"));
        }
        let Some(bearers) = state.bearers.get(&request.auth_method) else {
            let method = &request.auth_method;
            return Err(Status::invalid_argument(format!(
                "auth method {method:?} not found"
            )));
        };
        if !bearers.contains(&request.bearer_token) {
            return Err(Status::unauthenticated("bearer token does not verify"));
        }
        state.logins += 1;
        let number = state.logins;
        let secret = format!("login-secret-{number}");
        let end = state
            .token_lifetime
            .map(|lifetime| Instant::now() + lifetime);
        let tokens = state.tokens.get_or_insert_default();
        tokens.insert(secret.clone(), end);
        Ok((format!("login-accessor-{number}"), secret))
    }

    pub(super) fn log_out(&self, request: &LogoutRequest) {
        if let Some(tokens) = &mut self.state().tokens {
            tokens.remove(&request.token);
        }
    }

    pub(super) fn supported(&self, feature: DataplaneFeatures) -> bool {
        self.state().features.contains(&feature)
    }

    pub(super) fn params(&self) -> GetEnvoyBootstrapParamsResponse {
        self.state().params.clone()
    }

    pub(super) fn dns_answer(&self) -> Arc<DnsAnswer> {
        Arc::clone(&self.state().dns)
    }

    pub(super) fn watched(&self) -> watch::Receiver<Watched> {
        self.watched.subscribe()
    }

    fn bodies<T>(&self, mut select: impl FnMut(&Body) -> Option<T>) -> Vec<T> {
        self.state()
            .recorded
            .iter()
            .filter_map(|recorded| select(&recorded.body))
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}

/// Whether a token with this expiry is still valid.
fn is_ahead(end: Option<Instant>) -> bool {
    end.is_none_or(|end| Instant::now() < end)
}

/// Turns a query into an empty response with the same id by setting the response bit.
fn as_answer(question: &Bytes) -> Bytes {
    let mut answer = question.to_vec();
    if let Some(flags) = answer.get_mut(2) {
        *flags |= 0x80;
    }
    answer.into()
}
