//! The one document that answers "why is this proxy not configured?". It is put together when
//! somebody asks, and holds no secret.

mod connections;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use legate_client::{Session, SessionSnapshot};
use legate_envoy::epochs::{EpochReport, ExitRecord, Report};
use legate_model::timestamp;
use legate_runtime::{Component, Readiness, ReadyState};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::relay::{Relay, RelayStatus};
use crate::settings::Proxy;
use crate::telemetry::Stages;

pub use self::connections::ConnectionCounter;

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
    /// Envoy's admin interface.
    pub admin: SocketAddr,
    /// What the supervisor of Envoys does; absent when this process only answers DNS.
    pub envoy: Option<watch::Receiver<Report>>,
    /// What has to be ready.
    pub readiness: Readiness,
    /// How the start went.
    pub stages: Stages,
    /// Counts the connections of Envoys.
    pub counter: ConnectionCounter,
}

/// The state of the Envoy process. Durations are in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EnvoyStatus {
    /// Its process id, once it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Where it is in its life.
    state: String,
    /// Its admin interface.
    admin: String,
    /// How many processes were started.
    starts: u64,
    /// Until the next start, while one is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_seconds: Option<f64>,
    /// Why the last start or configuration was refused, until one is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    /// Why it cannot be replaced without a gap, when it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_hot_restart: Option<String>,
    /// The living epochs, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    epochs: Vec<EpochStatus>,
    /// The last exits, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exits: Vec<ExitStatus>,
}

/// A living epoch of Envoy.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct EpochStatus {
    epoch: u32,
    pid: u32,
    state: &'static str,
    /// Since it was started, or adopted.
    age_seconds: f64,
    /// A former dataplane started it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    adopted: bool,
    /// Connections that clients have to its listeners, where the kernel lets this user count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
}

impl EpochStatus {
    fn of(report: &EpochReport) -> Self {
        Self {
            epoch: report.epoch,
            pid: report.pid,
            state: report.state.as_str(),
            age_seconds: report.since.elapsed().as_secs_f64(),
            adopted: report.adopted,
            connections: None,
        }
    }
}

/// An epoch of Envoy that has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ExitStatus {
    epoch: u32,
    pid: u32,
    reason: String,
    expected: bool,
    lived_seconds: f64,
    age_seconds: f64,
}

impl From<&ExitRecord> for ExitStatus {
    fn from(record: &ExitRecord) -> Self {
        Self {
            epoch: record.epoch,
            pid: record.pid,
            reason: record.reason.to_string(),
            expected: record.expected,
            lived_seconds: record.lived.as_secs_f64(),
            age_seconds: record.at.elapsed().as_secs_f64(),
        }
    }
}

/// Where Envoy is in its life, for people.
pub fn state(report: &Report) -> &'static str {
    match report.current() {
        Some(epoch) => epoch.state.as_str(),
        None if report.stopping => "exited",
        None if report.starts == 0 => "not started",
        None => "waiting to be started again",
    }
}

fn envoy(report: &Report, admin: SocketAddr) -> EnvoyStatus {
    let wait = report.next_start.filter(|_| report.epochs.is_empty());
    EnvoyStatus {
        pid: report.current().map(|epoch| epoch.pid),
        state: state(report).to_owned(),
        admin: admin.to_string(),
        starts: report.starts,
        next_start_seconds: wait
            .map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64()),
        refusal: report.refusal.clone(),
        no_hot_restart: report.obstacle.clone(),
        epochs: report.epochs.iter().map(EpochStatus::of).collect(),
        exits: report.exits.iter().map(ExitStatus::from).collect(),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    envoy: Option<EnvoyStatus>,
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
    /// Until the next attempt, while it is waiting for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt: Option<f64>,
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
        next_attempt: snapshot.next_attempt.map(seconds),
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
    async fn envoy(&self) -> Option<EnvoyStatus> {
        let report = self.envoy.as_ref()?.borrow().clone();
        let mut status = envoy(&report, self.admin);
        let processes = status.epochs.iter().map(|epoch| epoch.pid).collect();
        let counted = self.counter.count(processes, self.admin.port()).await;
        for epoch in &mut status.epochs {
            epoch.connections = counted.get(&epoch.pid).copied();
        }
        Some(status)
    }

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
            envoy: self.envoy().await,
            startup_seconds: self
                .stages
                .all()
                .into_iter()
                .map(|(stage, elapsed)| (stage, elapsed.as_secs_f64()))
                .collect(),
        }
    }
}
