//! The status document, which answers "why is this proxy not configured?". It is built on request
//! and contains no secret.

mod connections;
mod troubles;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use legate_client::{Session, SessionSnapshot};
use legate_envoy::supervision::{EpochReport, ExitRecord, Report};
use legate_model::timestamp;
use legate_runtime::{Clock, Component, Readiness, ReadyState};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::l4::BuiltIn;
use crate::relay::Relay;
use crate::settings::Proxy;
use crate::telemetry::Telemetry;
use troubles::Troubles;

pub use self::connections::ConnectionCounter;

/// How long to wait for the relay's state.
const RELAY_ANSWER: Duration = Duration::from_secs(2);

/// Sources of the document. Clones refer to the same process.
#[derive(Debug, Clone)]
pub struct StatusSource {
    /// Identity of the proxy.
    pub proxy: Proxy,
    /// The session with the servers.
    pub session: Session,
    /// The relay; `None` if this process only answers DNS.
    pub relay: Option<Relay>,
    /// Envoy's admin interface.
    pub admin: SocketAddr,
    /// The report of Envoy's supervisor; `None` if this process only answers DNS.
    pub envoy: Option<watch::Receiver<Report>>,
    /// The built-in proxy, if it serves in the place of Envoy.
    pub built_in: Option<BuiltIn>,
    /// Which proxy serves and why, with the mode `auto`.
    pub choice: Option<watch::Receiver<Value>>,
    /// Readiness of all components.
    pub readiness: Readiness,
    /// Durations of the start's stages, and the dataplane's own metrics.
    pub telemetry: Telemetry,
    /// Counts the connections of Envoys.
    pub counter: ConnectionCounter,
}

/// Envoy's state in words.
pub fn state(report: &Report) -> &'static str {
    match report.current() {
        Some(epoch) => epoch.state.as_str(),
        None if report.stopping => "exited",
        None if report.starts == 0 => "not started",
        None => "waiting to be started again",
    }
}

/// One line with the reason for each component that is not ready; empty if all are ready.
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
    /// The current document. Durations are in seconds; unknown values are omitted.
    pub async fn document(&self) -> Value {
        let relay = match &self.relay {
            Some(relay) => timeout(RELAY_ANSWER, relay.status()).await.ok().flatten(),
            None => None,
        };
        let stages = self.telemetry.stages().all().into_iter();
        let stages = stages.map(|(stage, elapsed)| (stage, elapsed.as_secs_f64()));
        let mut document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.readiness.is_ready(),
            "components": list(self.readiness.report(), component),
            "proxy": self.proxy,
            "session": session(&self.session.snapshot()),
            "relay": relay,
            "envoy": self.envoy().await,
            "choice": self.choice.as_ref().map(|choice| choice.borrow().clone()),
            "built_in": self.built_in.as_ref().map(BuiltIn::status),
            "startup_seconds": stages.collect::<BTreeMap<_, _>>(),
        });
        remove_nulls(&mut document);
        document
    }

    async fn envoy(&self) -> Option<Value> {
        let report = self.envoy.as_ref()?.borrow().clone();
        let processes = report.epochs.iter().map(|epoch| epoch.pid).collect();
        let connections = self.counter.count(processes, self.admin.port()).await;
        // Without a process there is no answer to wait for.
        let troubles = match report.current() {
            Some(_) => Some(Troubles::of(self.admin, Clock::system().now()).await),
            None => None,
        };
        let (expired, without_endpoints) = troubles.map_or((None, None), |found| {
            (found.expired, found.without_endpoints)
        });
        let wait = report.next_start.filter(|_| report.epochs.is_empty());
        let wait = wait.map(|at| at.saturating_duration_since(Instant::now()));
        Some(json!({
            "pid": report.current().map(|epoch| epoch.pid),
            "state": state(&report),
            "admin": self.admin,
            // Number of processes started so far.
            "starts": report.starts,
            "next_start_seconds": wait.map(seconds),
            // Reason for the last refused start or configuration, until an Envoy becomes ready.
            "refusal": report.refusal,
            // Reason why Envoy cannot be replaced without a gap, if there is one.
            "no_hot_restart": report.obstacle,
            // What Envoy found wrong with what it was given.
            "expired_certificates": expired.filter(|names| !names.is_empty()),
            "clusters_without_endpoints": without_endpoints.filter(|names| !names.is_empty()),
            "epochs": list(&report.epochs, |it| epoch(it, connections.get(&it.pid))),
            "exits": list(&report.exits, exit),
        }))
    }
}

/// A running epoch of Envoy. `connections` counts the clients of its listeners.
fn epoch(report: &EpochReport, connections: Option<&u64>) -> Value {
    json!({
        "epoch": report.epoch,
        "pid": report.pid,
        "state": report.state.as_str(),
        "age_seconds": seconds(report.since.elapsed()),
        // Whether it was started by a former dataplane.
        "adopted": report.adopted.then_some(true),
        "connections": connections,
    })
}

/// An epoch of Envoy that has exited.
fn exit(record: &ExitRecord) -> Value {
    json!({
        "epoch": record.epoch,
        "pid": record.pid,
        "reason": record.reason.to_string(),
        "expected": record.expected,
        "lived_seconds": seconds(record.lived),
        "age_seconds": seconds(record.at.elapsed()),
    })
}

fn component(component: Component) -> Value {
    let (state, reason) = match component.state {
        ReadyState::Ready => ("ready", None),
        ReadyState::Pending(why) => ("pending", Some(why)),
        ReadyState::Failed(why) => ("failed", Some(why)),
    };
    json!({ "name": component.name, "state": state, "reason": reason })
}

/// The session with the servers.
fn session(snapshot: &SessionSnapshot) -> Value {
    let age = |at: Instant| seconds(at.elapsed());
    let time = |at: Option<SystemTime>| at.and_then(|at| timestamp::format(at).ok());
    json!({
        "state": snapshot.stage.as_str(),
        "state_age": snapshot.stage_since.map(age),
        // Time until the next attempt, while waiting for it.
        "next_attempt": snapshot.next_attempt.map(|at| seconds(at - Instant::now())),
        "server": snapshot.server,
        "known_servers": snapshot.servers,
        // Time since the last message from the server on the session's own streams.
        "heard": snapshot.heard.map(age),
        // The error may be resolved by now. The code is the gRPC status, if a server responded.
        "last_error": snapshot.last_error.as_ref().map(|last| json!({
            "error": last.error.to_string(),
            "code": last.error.code.map(|code| format!("{code:?}")),
            "age": age(last.at),
        })),
        "logins": snapshot.logins,
        // The accessor id of the token, if it came from a login.
        "accessor_id": snapshot.accessor_id.as_deref(),
        "token_age": snapshot.token_since.map(age),
        // When the bearer token expires, if its lifetime is known.
        "bearer_expires": time(snapshot.bearer_expires),
        "client_certificate_expires": time(snapshot.client_certificate_expires),
    })
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn list<T>(items: impl IntoIterator<Item = T>, value: impl Fn(T) -> Value) -> Vec<Value> {
    items.into_iter().map(value).collect()
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}
