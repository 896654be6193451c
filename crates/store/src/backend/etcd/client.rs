//! Calls etcd through any available member, in bounded time.
//!
//! There is one current connection. A failed call drops it, and the next attempt uses the next
//! member. Callers ensure that their calls may be repeated.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use legate_identity::tls::ClientTls;
use legate_model::Secret;
use legate_runtime::Spawner;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::api::auth_client::AuthClient;
use super::api::kv_client::KvClient;
use super::api::lease_client::LeaseClient;
use super::api::watch_client::WatchClient;
use super::api::{self, AuthenticateRequest};
use super::config::{EtcdConfig, Member};
use super::dial;
use crate::open_error::OpenError;

/// The timeout of one call to one member, unless another one is set.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The pause after a failure, to avoid a busy loop.
const PAUSE: Duration = Duration::from_millis(50);
/// etcd's responses have no limit; this is far above the limits of its requests.
const MAX_MESSAGE: usize = 512 * 1024 * 1024;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// No member answered in time. The call may have been executed.
    Away(String),
    /// etcd refused the call, and retries do not help.
    Refused(String),
    /// The request exceeds etcd's limit.
    TooLarge(String),
    /// The revision was compacted.
    Compacted,
}

impl Failed {
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::Away(reason) | Self::Refused(reason) | Self::TooLarge(reason) => reason,
            Self::Compacted => "the revision was compacted".to_owned(),
        }
    }
}

/// A client of all members. Clones share the current connection.
#[derive(Clone)]
pub(super) struct Client {
    shared: Arc<Shared>,
    /// The timeout of one call to one member.
    attempt: Duration,
}

struct Shared {
    members: Vec<Member>,
    tls: ClientTls,
    user: Option<(String, Secret)>,
    spawner: Spawner,
    current: Mutex<Current>,
    /// [`Current::failures`], for waiting tasks.
    failures: watch::Sender<usize>,
}

struct Current {
    /// The number of dropped connections. Determines the member.
    failures: usize,
    connection: Option<Connection>,
}

/// An authenticated connection to one member.
#[derive(Clone)]
pub(super) struct Connection {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// [`Current::failures`] when the connection was made.
    number: usize,
}

impl Connection {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(super) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// A request with the token. A member without a leader refuses it, and ends a watch
    /// (`WithRequireLeader` in etcd's own client).
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }
}

impl Client {
    pub(super) fn new(config: &EtcdConfig, spawner: Spawner) -> Result<Self, OpenError> {
        Ok(Self {
            attempt: ATTEMPT,
            shared: Arc::new(Shared {
                members: config.members()?,
                tls: config.tls(),
                user: config.user.clone(),
                spawner,
                current: Mutex::new(Current {
                    failures: 0,
                    connection: None,
                }),
                failures: watch::Sender::new(0),
            }),
        })
    }

    /// The same with another timeout of one call to one member.
    pub(super) fn with_attempts_of(&self, attempt: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            attempt,
        }
    }

    /// Retries a call until a member answers or `deadline` is reached.
    pub(super) async fn call<T, F>(
        &self,
        deadline: Instant,
        mut send: impl FnMut(Connection) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut last = "no answer in time".to_owned();
        loop {
            match timeout_at(deadline, self.attempt(&mut send)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Failed::Away(reason))) => last = reason,
                Ok(Err(failed)) => return Err(failed),
                Err(_) => return Err(Failed::Away(last)),
            }
            sleep(PAUSE).await;
        }
    }

    /// Makes a call once. After a failure, the next call uses the next member.
    pub(super) async fn attempt<T, F>(
        &self,
        send: impl FnOnce(Connection) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut number = *self.shared.failures.borrow();
        let made = async {
            let connection = self.connection().await?;
            number = connection.number;
            send(connection).await.map(Response::into_inner)
        };
        let outcome = match timeout(self.attempt, made).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => failed(&status),
            Err(_) => Failed::Away(format!("no answer within {:?}", self.attempt)),
        };
        match outcome {
            Failed::Away(reason) => {
                let member = self.discard(number).await;
                Err(Failed::Away(format!("{member}: {reason}")))
            }
            other => Err(other),
        }
    }

    async fn connection(&self) -> Result<Connection, Status> {
        let shared = &*self.shared;
        let mut current = shared.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        let member = shared.member(current.failures);
        let channel = dial::channel(member, &shared.tls, &shared.spawner);
        let mut connection = Connection {
            channel: channel.map_err(Status::unavailable)?,
            token: None,
            number: current.failures,
        };
        if let Some((name, password)) = &shared.user {
            let request = AuthenticateRequest {
                name: name.clone(),
                password: password.expose().to_owned(),
            };
            let answer = AuthClient::new(connection.channel.clone())
                .authenticate(request)
                .await?;
            let token = MetadataValue::try_from(answer.into_inner().token);
            let mut token =
                token.map_err(|_| Status::internal("its token is not a valid header"))?;
            token.set_sensitive(true);
            connection.token = Some(token);
        }
        current.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Drops a connection, or the attempt to make it, unless it was dropped already. Returns its
    /// member.
    pub(super) async fn discard(&self, number: usize) -> &Member {
        let mut current = self.shared.current.lock().await;
        if number == current.failures {
            current.failures += 1;
            current.connection = None;
            self.shared.failures.send_replace(current.failures);
        }
        self.shared.member(number)
    }

    /// Waits until the connection was dropped. Its member may hang, which a watch detects late.
    pub(super) async fn discarded(&self, number: usize) {
        let mut failures = self.shared.failures.subscribe();
        // Never fails, because `self` holds the sender.
        let _ = failures.wait_for(|failures| *failures > number).await;
    }

    /// Reads one key or range at a revision; 0 means the newest, confirmed by a majority of the
    /// members.
    pub(super) async fn range(
        &self,
        deadline: Instant,
        request: api::RangeRequest,
    ) -> Result<api::RangeResponse, Failed> {
        self.call(deadline, |connection| {
            let request = connection.request(request.clone());
            async move { connection.kv().range(request).await }
        })
        .await
    }

    /// A transaction. It is repeated if a response was lost, so its conditions must detect that.
    pub(super) async fn txn(
        &self,
        deadline: Instant,
        attempts: &mut u32,
        request: &api::TxnRequest,
    ) -> Result<api::TxnResponse, Failed> {
        self.call(deadline, |connection| {
            *attempts += 1;
            let request = connection.request(request.clone());
            async move { connection.kv().txn(request).await }
        })
        .await
    }
}

impl Shared {
    fn member(&self, failures: usize) -> &Member {
        &self.members[failures % self.members.len()]
    }
}

/// Classifies an error of etcd. The texts are those of etcd's `rpctypes`.
pub(super) fn failed(status: &Status) -> Failed {
    let text = text(status);
    let says = |what: &str| status.message().contains(what);
    match status.code() {
        Code::OutOfRange if says("compacted") => Failed::Compacted,
        Code::InvalidArgument if says("too large") || says("too many operations") => {
            Failed::TooLarge(text)
        }
        Code::ResourceExhausted if says("larger than max") => Failed::TooLarge(text),
        Code::ResourceExhausted if says("space exceeded") => Failed::Refused(format!(
            "{text}: compact and defragment it, raise --quota-backend-bytes, then disarm the alarm"
        )),
        // A user was changed, so that a new token is needed.
        Code::InvalidArgument if says("auth store is old") => Failed::Away(text),
        Code::InvalidArgument | Code::PermissionDenied | Code::FailedPrecondition => {
            Failed::Refused(text)
        }
        _ => Failed::Away(text),
    }
}

/// The message with its causes, such as errors of the system or of TLS.
fn text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
