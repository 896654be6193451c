//! The life of the process, in order: listeners, session, bootstrap, Envoy, and the way back.
//!
//! Whatever was started is ended, whichever way the process ends: Envoy first, then everything
//! that served it, then the session with a logout. It reads no environment and never exits.

mod desired;
mod ending;
mod exposition;
mod ports;
mod refresh;
mod sidecar;
mod state_dir;

use std::future::Future;
use std::time::Duration;

use anyhow::anyhow;
use legate_client::{Session, connect};
use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::XdsAddress;
use legate_envoy::supervision::Report;
use legate_runtime::{Clock, Readiness, Scope, TaskError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::dns::{DnsOptions, DnsProxy, Limits};
use crate::leave::Drainer;
use crate::lifecycle::{self, EnvoyControls, LifecycleParts};
use crate::reaper;
use crate::relay::{Listener, RelayMetrics};
use crate::restart::Restarter;
use crate::session_ready;
use crate::settings::{Mode, Settings};
use crate::signals::{Signals, StopSender, Urgency};
use crate::status::{ConnectionCounter, StatusSource};
use crate::telemetry::{Stage, Telemetry};

use self::desired::Desired;
use self::sidecar::Sidecar;
use self::state_dir::StateDir;

/// How long everything but the session may take to end.
const STOP: Duration = Duration::from_secs(3);

/// How long the session may take to end; a logout has 5 s of its own.
const LOGOUT: Duration = Duration::from_secs(6);

/// Everything that the stages of the process share.
struct Process {
    settings: Settings,
    stop: StopSender,
    signals: Signals,
    telemetry: Telemetry,
    readiness: Readiness,
    session: Session,
    /// Hears of every task that fails, and ends last.
    scope: Scope,
    /// What works for Envoy and for clients; it ends before the session does.
    work: Scope,
    /// The session's own tasks.
    connection: Scope,
}

/// Runs the dataplane until it is asked to stop or cannot go on. `started` is when the program
/// started; `stop` and `signals` are the two ends of one channel. `scope` is that of the program:
/// when a task in it fails, or in a scope below it, the dataplane ends; it is stopped at the end.
///
/// Call it on the thread that lives as long as the process: Envoy ends with the thread that
/// started it.
///
/// # Errors
/// When a part cannot work or ends by itself; the text says which setting to look at.
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
    // Whatever can fail without a server fails before a login that would have to be undone. The
    // folder comes first: who has it is the better word for why a port is taken, too.
    let state = match settings.mode {
        Mode::Sidecar => StateDir::take(&settings).await?,
        Mode::DnsProxy => None,
    };
    let lifecycle = bind_lifecycle(&settings)?;
    let sidecar = match settings.mode {
        Mode::Sidecar => Some(prepare(&settings, &telemetry, state).await?),
        Mode::DnsProxy => None,
    };
    let connection = scope.spawner().child("session");
    let spawner = connection.spawner();
    reaper::start(&spawner);
    let session = connect(settings.servers.clone(), &spawner, telemetry.registry())?;
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
    // First of all components: the others wait for it.
    let spawner = process.work.spawner();
    session_ready::watch(process.session.clone(), &process.readiness, &spawner);
    let outcome = match sidecar {
        Some(sidecar) => sidecar.run(&mut process, lifecycle).await,
        None => process.answer_dns(lifecycle).await,
    };
    let failure = process.end().await;
    outcome?;
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Without a sidecar nothing depends on this server, and Consul's dataplane has none then: a port
/// that a sidecar on the same host has is no reason not to answer DNS.
fn bind_lifecycle(settings: &Settings) -> anyhow::Result<Option<TcpListener>> {
    match lifecycle::bind(settings.lifecycle.bind) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if settings.mode == Mode::DnsProxy => {
            tracing::warn!(%error, "going on without health, status and metrics over HTTP");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a sidecar needs before there is a session.
async fn prepare(
    settings: &Settings,
    telemetry: &Telemetry,
    state: Option<StateDir>,
) -> anyhow::Result<Sidecar> {
    Desired::executable(settings)?;
    // One that is adopted has them already.
    if !state.as_ref().is_some_and(|state| state.occupied) {
        ports::check(&settings.envoy).await?;
    }
    let listener = Listener::bind(&settings.xds).await?;
    let metrics = RelayMetrics::register(telemetry.registry(), Clock::system())?;
    match listener.address() {
        XdsAddress::Tcp(address) => tracing::info!(%address, "starting envoy xDS server"),
        XdsAddress::Unix(path) => {
            tracing::info!(address = %path.display(), "starting envoy xDS server");
        }
    }
    Ok(Sidecar {
        listener,
        metrics,
        state,
    })
}

impl Process {
    /// Waits for `work`, unless a stop is asked for (`None`) or a task fails.
    async fn unless_stopped<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            biased;
            _ = self.signals.beyond(Urgency::None) => Ok(None),
            error = self.scope.failed() => Err(error.into()),
            value = work => Ok(Some(value)),
        }
    }

    /// Answers lifecycle requests from now on.
    fn serve_lifecycle(
        &self,
        listener: TcpListener,
        status: StatusSource,
        restarter: Option<Restarter>,
    ) {
        let parts = LifecycleParts {
            settings: self.settings.lifecycle.clone(),
            status,
            telemetry: self.telemetry.clone(),
            stop: self.stop.clone(),
            envoy: restarter.map(|restarter| {
                let admin = AdminClient::new(self.settings.envoy.admin);
                let drainer = Drainer::new(admin, self.work.spawner());
                EnvoyControls { restarter, drainer }
            }),
        };
        lifecycle::serve(listener, parts, &self.work.spawner());
    }

    fn status(&self, envoy: Option<watch::Receiver<Report>>) -> StatusSource {
        StatusSource {
            proxy: self.settings.proxy.clone(),
            session: self.session.clone(),
            relay: None,
            admin: self.settings.envoy.admin,
            envoy,
            readiness: self.readiness.clone(),
            stages: self.telemetry.stages().clone(),
            counter: ConnectionCounter::default(),
        }
    }

    /// Waits for the first connection; `None` when a stop is asked for before.
    async fn connect(&mut self) -> anyhow::Result<Option<()>> {
        let session = self.session.clone();
        let Some(connected) = self.unless_stopped(session.connected()).await? else {
            return Ok(None);
        };
        let server = connected?.server;
        self.telemetry.stages().reached(Stage::Connect);
        tracing::info!(initial_server_address = %server, "connected to Consul server over gRPC");
        Ok(Some(()))
    }

    /// Answers DNS in the namespace and partition given, when that is configured.
    async fn start_dns(&self, namespace: &str, partition: &str) -> anyhow::Result<()> {
        let Some(address) = self.settings.dns else {
            tracing::info!("dns server disabled: configure the Consul DNS port to enable");
            return Ok(());
        };
        let options = DnsOptions {
            address,
            namespace: namespace.to_owned(),
            partition: partition.to_owned(),
            limits: Limits::default(),
        };
        let registry = self.telemetry.registry();
        DnsProxy::start(
            options,
            self.session.clone(),
            &self.work.spawner(),
            registry,
        )
        .await?;
        Ok(())
    }

    /// The whole life of a process that only answers DNS.
    async fn answer_dns(&mut self, lifecycle: Option<TcpListener>) -> anyhow::Result<()> {
        let ready = self.readiness.register("dns");
        ready.pending("no server is connected yet");
        if let Some(lifecycle) = lifecycle {
            self.serve_lifecycle(lifecycle, self.status(None), None);
        }
        if self.connect().await?.is_none() {
            return Ok(());
        }
        let proxy = self.settings.proxy.clone();
        self.start_dns(&proxy.namespace, &proxy.partition).await?;
        ready.ready();
        self.telemetry.stages().reached(Stage::Ready);
        tracing::info!("ready: {}", self.telemetry.stages());
        self.unless_stopped(std::future::pending::<()>()).await?;
        ready.pending("stopping");
        Ok(())
    }

    /// Ends what is left, the session last. A task that does not end has no one left to matter to;
    /// one that has failed is returned.
    async fn end(self) -> Option<TaskError> {
        tracing::info!("stopping");
        if let Err(error) = self.work.stop(STOP).await {
            tracing::debug!(%error, "not everything ended by itself");
        }
        self.session.close(LOGOUT).await;
        if let Err(error) = self.connection.stop(STOP).await {
            tracing::debug!(%error, "the session did not end by itself");
        }
        self.scope.stop(STOP).await.err()?.failure
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Sidecar => "sidecar",
        Mode::DnsProxy => "dns-proxy",
    }
}
