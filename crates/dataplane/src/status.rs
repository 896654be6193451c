//! The one document that answers "why is this proxy not configured?". It is put together when
//! somebody asks, and holds no secret.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use legate_client::{Session, SessionSnapshot};
use legate_envoy::epochs::{EpochReport, ExitRecord};
use legate_model::timestamp;
use legate_runtime::{Component, Readiness, ReadyState};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::relay::{Relay, RelayStatus};
use crate::settings::Proxy;
use crate::telemetry::Stages;

/// How long the relay may take to tell its state; it only has to get to it.
const RELAY_ANSWER: Duration = Duration::from_secs(2);

/// Everything the document is made of. Copies see the same process.
#[derive(Debug, Clone)]
pub struct StatusSource {
    /// Which proxy this is.
    pub proxy: Proxy,
    /// The session with the servers.
    pub session: Session,
    /// The relay; absent when this process only answers DNS.
    pub relay: Option<Relay>,
    /// The state of Envoy.
    pub envoy: watch::Receiver<EnvoyStatus>,
    /// What has to be ready.
    pub readiness: Readiness,
    /// How the start went.
    pub stages: Stages,
}

/// The state of the Envoy process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EnvoyStatus {
    /// Its process id, once it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Where it is in its life.
    pub state: String,
    /// Its admin interface.
    pub admin: String,
    /// How many processes were started.
    pub starts: u64,
    /// The living epochs, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochStatus>,
    /// The last exits, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exits: Vec<ExitStatus>,
}

/// A living epoch of Envoy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EpochStatus {
    epoch: u32,
    pid: u32,
    state: &'static str,
}

impl From<&EpochReport> for EpochStatus {
    fn from(report: &EpochReport) -> Self {
        Self {
            epoch: report.epoch,
            pid: report.pid,
            state: report.state.as_str(),
        }
    }
}

/// An epoch of Envoy that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExitStatus {
    epoch: u32,
    pid: u32,
    reason: String,
    expected: bool,
    lived_milliseconds: u128,
}

impl From<&ExitRecord> for ExitStatus {
    fn from(record: &ExitRecord) -> Self {
        Self {
            epoch: record.epoch,
            pid: record.pid,
            reason: record.reason.to_string(),
            expected: record.expected,
            lived_milliseconds: record.lived.as_millis(),
        }
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub struct StatusDocument {
    version: &'static str,
    ready: bool,
    components: Vec<ComponentStatus>,
    proxy: ProxyStatus,
    session: SessionStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay: Option<RelayStatus>,
    envoy: EnvoyStatus,
    startup_seconds: BTreeMap<&'static str, f64>,
}

#[derive(Debug, Serialize)]
struct ComponentStatus {
    name: &'static str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct ProxyStatus {
    id: String,
    node_name: String,
    node_id: String,
    namespace: String,
    partition: String,
}

/// The session with the servers. Durations are in seconds.
#[derive(Debug, Serialize)]
struct SessionStatus {
    state: &'static str,
    state_age: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// All servers that could be used.
    known_servers: Vec<String>,
    /// Since the server last said something to the session itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    heard: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<LastErrorStatus>,
    logins: u64,
    /// Public name of the token, when it came from a login.
    #[serde(skip_serializing_if = "Option::is_none")]
    accessor_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_age: Option<f64>,
    /// Until the token is replaced, where its lifetime is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_renewal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", with = "timestamp::option")]
    bearer_expires: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none", with = "timestamp::option")]
    client_certificate_expires: Option<SystemTime>,
}

/// What went wrong last; it may have been repaired since.
#[derive(Debug, Serialize)]
struct LastErrorStatus {
    error: String,
    /// The gRPC status, when a server answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    age: f64,
}

/// State and reason of a component.
fn component(component: Component) -> ComponentStatus {
    let (state, reason) = match component.state {
        ReadyState::Ready => ("ready", None),
        ReadyState::Pending(why) => ("pending", Some(why)),
        ReadyState::Failed(why) => ("failed", Some(why)),
    };
    ComponentStatus {
        name: component.name,
        state,
        reason,
    }
}

fn session(snapshot: SessionSnapshot) -> SessionStatus {
    let seconds = |duration: Duration| duration.as_secs_f64();
    let servers = snapshot.servers.iter();
    SessionStatus {
        state: snapshot.stage.as_str(),
        state_age: seconds(snapshot.stage_age),
        server: snapshot.server.map(|server| server.to_string()),
        known_servers: servers.map(|known| known.address.to_string()).collect(),
        heard: snapshot.heard.map(seconds),
        last_error: snapshot.last_error.map(|last| LastErrorStatus {
            error: last.error.to_string(),
            code: last.code.map(|code| format!("{code:?}")),
            age: seconds(last.age),
        }),
        logins: snapshot.logins,
        accessor_id: snapshot.accessor_id.as_deref().map(str::to_owned),
        token_age: snapshot.token_age.map(seconds),
        token_renewal: snapshot.token_renewal.map(seconds),
        bearer_expires: snapshot.bearer_expires,
        client_certificate_expires: snapshot.client_certificate_expires,
    }
}

/// One line for each component that is not ready, and why; empty when all are.
pub fn reasons(readiness: &Readiness) -> String {
    let lines = readiness
        .report()
        .into_iter()
        .filter_map(|part| match part.state {
            ReadyState::Ready => None,
            ReadyState::Pending(why) => Some(format!("{}: {why}\n", part.name)),
            ReadyState::Failed(why) => Some(format!("{}: failed: {why}\n", part.name)),
        });
    lines.collect()
}

impl StatusSource {
    /// The document of now.
    pub async fn document(&self) -> StatusDocument {
        let relay = match &self.relay {
            Some(relay) => timeout(RELAY_ANSWER, relay.status()).await.ok().flatten(),
            None => None,
        };
        StatusDocument {
            version: env!("CARGO_PKG_VERSION"),
            ready: self.readiness.is_ready(),
            components: self.readiness.report().into_iter().map(component).collect(),
            proxy: ProxyStatus {
                id: self.proxy.id.clone(),
                node_name: self.proxy.node_name.clone(),
                node_id: self.proxy.node_id.clone(),
                namespace: self.proxy.namespace.clone(),
                partition: self.proxy.partition.clone(),
            },
            session: session(self.session.snapshot()),
            relay,
            envoy: self.envoy.borrow().clone(),
            startup_seconds: self
                .stages
                .all()
                .into_iter()
                .map(|(stage, elapsed)| (stage, elapsed.as_secs_f64()))
                .collect(),
        }
    }
}
