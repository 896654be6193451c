//! What the fake server answers, and what it was asked.

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

/// How long the waiting helpers wait before they give the test up.
pub const WAIT: Duration = Duration::from_secs(20);

/// Answers a DNS question.
pub type DnsAnswer = dyn Fn(&QueryRequest) -> Result<Bytes, Status> + Send + Sync;

/// An entry of the server list as a real server sends it.
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

/// What open watch streams follow.
#[derive(Clone, Default)]
pub(super) struct Watched {
    pub(super) servers: Vec<Server>,
    /// How often the list was set.
    pub(super) version: u64,
    /// How often watches were ended, and the last end's status.
    pub(super) ended: u64,
    pub(super) status: Option<Status>,
}

struct State {
    /// Tokens and when they end. `None`: ACLs are off.
    tokens: Option<BTreeMap<String, Option<Instant>>>,
    /// How long tokens of logins live.
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

/// Handle to a server's behaviour; all clones are the same script.
#[derive(Clone)]
pub struct Script {
    state: Arc<Mutex<State>>,
    watched: watch::Sender<Watched>,
    /// Counts what has been recorded.
    count: watch::Sender<usize>,
}

impl Default for Script {
    /// ACLs are off, all features are there, the server list is empty, bootstrap parameters are
    /// empty, DNS questions come back as empty answers.
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
    /// Turns ACLs on and accepts this token, besides those accepted before.
    pub fn accept_token(&self, secret: &str) {
        self.state()
            .tokens
            .get_or_insert_default()
            .insert(secret.to_owned(), None);
    }

    /// Turns ACLs on and lets this bearer token log in with this auth method.
    pub fn accept_login(&self, auth_method: &str, bearer: &str) {
        let mut state = self.state();
        state.tokens.get_or_insert_default();
        state
            .bearers
            .entry(auth_method.to_owned())
            .or_default()
            .insert(bearer.to_owned());
    }

    /// No longer lets this bearer token log in; the auth method stays.
    pub fn refuse_login(&self, auth_method: &str, bearer: &str) {
        self.state()
            .bearers
            .entry(auth_method.to_owned())
            .or_default()
            .remove(bearer);
    }

    /// Forgets all tokens, as if they had expired. Open streams stay open.
    pub fn revoke_tokens(&self) {
        self.state().tokens.get_or_insert_default().clear();
    }

    /// Tokens of logins from now on end after this time.
    pub fn token_lifetime(&self, lifetime: Duration) {
        self.state().token_lifetime = Some(lifetime);
    }

    /// Forgets one token, as if somebody had deleted it.
    pub fn delete_token(&self, secret: &str) {
        if let Some(tokens) = &mut self.state().tokens {
            tokens.remove(secret);
        }
    }

    /// Tokens that are valid now.
    #[must_use]
    pub fn tokens(&self) -> Vec<String> {
        let state = self.state();
        let tokens = state.tokens.iter().flatten();
        let valid = tokens.filter(|(_, end)| is_ahead(**end));
        valid.map(|(token, _)| token.clone()).collect()
    }

    /// Features that the server has; others are listed as unsupported or not at all.
    pub fn features(&self, features: &[DataplaneFeatures]) {
        self.state().features = features.to_vec();
    }

    /// What every proxy gets as bootstrap parameters.
    pub fn bootstrap_params(&self, params: GetEnvoyBootstrapParamsResponse) {
        self.state().params = params;
    }

    /// How DNS questions are answered.
    pub fn dns(
        &self,
        answer: impl Fn(&QueryRequest) -> Result<Bytes, Status> + Send + Sync + 'static,
    ) {
        self.state().dns = Arc::new(answer);
    }

    /// The server list: what new watches get, and open ones at once.
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

    /// The next call of this method fails so; several wait in line.
    pub fn fail_next(&self, call: Call, status: Status) {
        self.state()
            .next
            .entry(call)
            .or_default()
            .push_back(Fault::Status(status));
    }

    /// The next call of this method is never answered; takes its place in the line of
    /// [`fail_next`](Self::fail_next).
    pub fn hang_next(&self, call: Call) {
        self.state()
            .next
            .entry(call)
            .or_default()
            .push_back(Fault::Hang);
    }

    /// Every call of this method fails so, after those of [`fail_next`](Self::fail_next).
    pub fn fail_always(&self, call: Call, status: Status) {
        self.state().always.insert(call, Fault::Status(status));
    }

    /// Calls of this method are never answered.
    pub fn hang(&self, call: Call) {
        self.state().always.insert(call, Fault::Hang);
    }

    /// Ends all misbehaviour of this method.
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

    /// Waits until at least this many calls of one method have arrived, and returns all of them.
    ///
    /// # Panics
    ///
    /// When they do not arrive within [`WAIT`].
    pub async fn wait_for_calls(&self, call: Call, count: usize) -> Vec<Recorded> {
        self.wait_for(&format!("{count} calls of {call:?}"), |_| {
            let calls = self.calls(call);
            (calls.len() >= count).then_some(calls)
        })
        .await
    }

    /// Waits until `look` finds what it looks for in the calls so far.
    ///
    /// # Panics
    ///
    /// When it does not within [`WAIT`]; the message says `what` and lists the calls.
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

    /// Records a call and misbehaves as the script says.
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

    /// As a server with ACLs does: any token that it knows is enough.
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

/// Whether a token that ends then is still valid.
fn is_ahead(end: Option<Instant>) -> bool {
    end.is_none_or(|end| Instant::now() < end)
}

/// The question with its response bit set: an empty answer with the same id.
fn as_answer(question: &Bytes) -> Bytes {
    let mut answer = question.to_vec();
    if let Some(flags) = answer.get_mut(2) {
        *flags |= 0x80;
    }
    answer.into()
}
