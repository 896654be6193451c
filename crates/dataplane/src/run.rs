//! The life of the process in order: listeners, session, bootstrap, Envoy, then shutdown in
//! reverse.
//!
//! Whichever way the process ends, everything that was started is stopped: Envoy first, then
//! everything that served it, then the session with a logout. It reads no environment and never
//! exits.

mod auto;
mod built_in;
mod choice;
mod desired;
mod ending;
mod exposition;
mod ports;
mod process;
mod refresh;
mod sidecar;
mod state_dir;

use anyhow::anyhow;
use legate_client::{ClientConfig, ConfigError, HttpProxy, Timing, connect};
use legate_runtime::{Readiness, Scope};
use tokio::time::Instant;

use crate::lifecycle;
use crate::reaper;
use crate::session_ready;
use crate::settings::{Environment, Mode, Settings};
use crate::signals::{Signals, StopSender};
use crate::telemetry::{Stage, Telemetry};

use self::process::Process;
use self::sidecar::Sidecar;

/// Runs the dataplane until it is asked to stop or cannot continue. `started` is the start time of
/// the program; `stop` and `signals` are the two ends of one channel. `scope` is the root scope of
/// the program: when a task in it or in a scope below it fails, the dataplane stops. It is stopped
/// at the end.
///
/// Call it on a thread that lives as long as the process: Envoy ends with the thread that started
/// it.
///
/// # Errors
/// When a component cannot work or ends by itself; the text names the setting to check.
pub async fn run(
    settings: Settings,
    started: Instant,
    stop: StopSender,
    signals: Signals,
    scope: Scope,
) -> anyhow::Result<()> {
    let telemetry = Telemetry::new(started)
        .map_err(|error| anyhow!("the dataplane's metrics cannot be registered: {error}"))?;
    tracing::info!("legate-dataplane mode: {}", mode_name(settings.mode));
    // Everything that can fail without a server fails before the login, which would have to be
    // undone.
    let sidecar = match settings.mode {
        Mode::Sidecar => Some(Sidecar::prepare(&settings, &telemetry).await?),
        Mode::DnsProxy => None,
    };
    let connection = scope.spawner().child("session");
    let config = client_config(&settings)?;
    let spawner = connection.spawner();
    reaper::start(&spawner);
    let session = connect(config, &spawner, telemetry.registry())?;
    telemetry.observe_session(session.clone());
    telemetry.stages().reached(Stage::Listen);
    let mut process = Process {
        settings,
        stop,
        signals,
        telemetry,
        readiness: Readiness::new(),
        session,
        work: scope.spawner().child("dataplane"),
        connection,
        scope,
    };
    // The first component: the others depend on it.
    let spawner = process.work.spawner();
    session_ready::watch(process.session.clone(), &process.readiness, &spawner);
    let outcome = match sidecar {
        Some(sidecar) => sidecar.run(&mut process).await,
        None => answer_dns(&mut process).await,
    };
    let failure = process.end().await;
    outcome?;
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Runs a process that only answers DNS, from start to end.
async fn answer_dns(process: &mut Process) -> anyhow::Result<()> {
    let ready = process.readiness.register("dns");
    ready.pending("no server is connected yet");
    // Optional in this mode, and Consul's dataplane does not have this server then: if a sidecar on
    // the same host occupies the port, DNS is served all the same.
    match lifecycle::bind(process.settings.lifecycle.bind) {
        Ok(listener) => process.serve_lifecycle(listener, process.status(None, None), None),
        Err(error) => {
            tracing::warn!(%error, "continuing without health, status and metrics over HTTP");
        }
    }
    if !process.connect().await? {
        return Ok(());
    }
    let proxy = &process.settings.proxy;
    process
        .start_dns(&proxy.namespace, &proxy.partition)
        .await?;
    ready.ready();
    let stages = process.telemetry.stages();
    stages.reached(Stage::Ready);
    tracing::info!("ready: {stages}");
    process.unless_stopped(std::future::pending::<()>()).await?;
    ready.pending("stopping");
    Ok(())
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Sidecar => "sidecar",
        Mode::DnsProxy => "dns-proxy",
    }
}

/// The HTTP proxy towards the servers, from the usual variables. The upper-case name takes
/// precedence, as in Go.
fn http_proxy(environment: &Environment, port: u16) -> Option<HttpProxy> {
    let either = |upper, lower| {
        let set = |name| environment.get(name).filter(|value| !value.is_empty());
        set(upper).or_else(|| set(lower)).unwrap_or_default()
    };
    HttpProxy::new(
        either("HTTPS_PROXY", "https_proxy"),
        either("NO_PROXY", "no_proxy"),
        port,
    )
}

/// The configuration of the session.
fn client_config(settings: &Settings) -> Result<ClientConfig, ConfigError> {
    let servers = &settings.servers;
    Ok(ClientConfig {
        addresses: servers.addresses.parse()?,
        grpc_port: servers.grpc_port,
        server_watch_disabled: servers.watch_disabled,
        tls: servers.tls.clone(),
        credentials: servers.credentials.clone(),
        proxy: http_proxy(&settings.environment, servers.grpc_port),
        timing: Timing::default(),
    })
}
