//! The life of a sidecar: relay, bootstrap, Envoy, and its supervision.

use std::sync::Arc;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::XdsAddress;
use legate_envoy::supervision::{
    self, Controls, EnvoyConfig, EnvoyHost, HotRestart, Options, Policy, Report,
};
use legate_runtime::{Clock, ReadyHandle};
use tokio::net::TcpListener;

use super::auto;
use super::built_in;
use super::desired::{self, Configured, Desired};
use super::ending::{Ending, process_outcome};
use super::exposition::Exposition;
use super::ports;
use super::process::Process;
use super::refresh::Refresh;
use super::state_dir::{self, StateDir};
use crate::bootstrap;
use crate::leave::Drainer;
use crate::lifecycle::{self, EnvoyControls};
use crate::relay::{Listener, Relay, RelayMetrics};
use crate::restart;
use crate::settings::{ProxyKind, Settings};
use crate::signals::Urgency;
use crate::status::state;
use crate::telemetry::{Stage, Telemetry};

/// Extra time that an older epoch of Envoy gets after the time at which it should end by itself.
const HAND_OVER_MARGIN: Duration = Duration::from_secs(5);

/// Everything a sidecar acquires before it has a session.
pub(super) struct Sidecar {
    pub(super) lifecycle: TcpListener,
    pub(super) listener: Listener,
    /// The address of `listener`.
    pub(super) xds: XdsAddress,
    pub(super) metrics: RelayMetrics,
    /// The state folder; `None` if Envoys do not outlive the dataplane.
    state: Option<StateDir>,
}

impl Sidecar {
    /// Acquires everything that needs no server.
    ///
    /// # Errors
    /// When something cannot be acquired; the error names the setting.
    pub(super) async fn prepare(
        settings: &Settings,
        telemetry: &Telemetry,
    ) -> anyhow::Result<Self> {
        // The folder comes first: its current user is the better explanation if a port is taken,
        // too.
        let state = StateDir::take(settings).await?;
        let lifecycle = lifecycle::bind(settings.lifecycle.bind)?;
        if settings.envoy.kind == ProxyKind::Envoy {
            Desired::executable(settings)?;
        }
        // An Envoy that will be adopted holds the ports already.
        if !state.as_ref().is_some_and(|state| state.occupied) {
            ports::check(&settings.envoy).await?;
        }
        let listener = Listener::bind(&settings.xds).await?;
        match listener.address() {
            XdsAddress::Tcp(address) => tracing::info!(%address, "starting envoy xDS server"),
            XdsAddress::Unix(path) => {
                tracing::info!(address = %path.display(), "starting envoy xDS server");
            }
        }
        Ok(Self {
            lifecycle,
            xds: listener.address().clone(),
            listener,
            metrics: RelayMetrics::register(telemetry.registry(), Clock::system())?,
            state,
        })
    }

    /// Runs until a stop is requested or Envoy ends.
    pub(super) async fn run(self, process: &mut Process) -> anyhow::Result<()> {
        match process.settings.envoy.kind {
            ProxyKind::Envoy => {}
            ProxyKind::BuiltIn => return built_in::run(self, process).await,
            ProxyKind::Auto => return auto::run(self, process).await,
        }
        let ready = process.readiness.register("envoy");
        ready.pending("not started yet: it needs the proxy's parameters from a server");
        let state = self.state.as_ref();
        let (handle, controls) = supervision::handle();
        let (restarter, requests) = restart::channel(handle.watch());
        let xds = self.xds;
        let spawner = process.work.spawner();
        let relay = relay(process, self.listener, self.metrics);
        let admin = AdminClient::new(process.settings.envoy.admin);
        let drainer = Drainer::new(admin, handle.clone(), spawner);
        process.serve_lifecycle(
            self.lifecycle,
            process.status(Some(relay), Some(handle.watch())),
            Some(EnvoyControls {
                restarter: Some(restarter),
                drainer,
            }),
        );
        let Some(params) = parameters(process).await? else {
            return end_leftovers(process, state, (handle, controls), &ready).await;
        };
        let desired = Arc::new(Desired {
            settings: process.settings.clone(),
            xds,
        });
        // Earlier requests for a new Envoy are fulfilled by the start that follows.
        process.signals.forget_restarts();
        let last_stamp = Some(desired.stamp());
        let configured = desired.configure(&params)?;
        let exposition = expose(process, &configured).await;
        announce_ready(process);
        let refresh = Refresh {
            desired,
            exposition,
            session: process.session.clone(),
            params,
            handle: handle.clone(),
            requests,
            signals: process.signals.clone(),
            current: configured.envoy.clone(),
            last_stamp,
            candidate: None,
            logged: None,
        };
        let stop = process.work.token();
        process.work.spawn("envoy configuration", refresh.run(stop));
        // No operator asked to end an Envoy that the last dataplane left running.
        let envoy = configured.envoy.hot_only();
        supervise(process, state, envoy, (handle, controls), &ready).await
    }
}

/// Starts the relay.
pub(super) fn relay(process: &Process, listener: Listener, metrics: RelayMetrics) -> Relay {
    let readiness = process.readiness.register("configuration");
    let session = process.session.clone();
    Relay::start(
        listener,
        session,
        readiness,
        metrics,
        &process.work.spawner(),
    )
}

/// Connects, requests the proxy's parameters, and starts DNS, which needs them. `None` if a stop is
/// requested first.
pub(super) async fn parameters(
    process: &mut Process,
) -> anyhow::Result<Option<GetEnvoyBootstrapParamsResponse>> {
    if !process.connect().await? {
        return Ok(None);
    }
    let (session, proxy) = (process.session.clone(), process.settings.proxy.clone());
    let fetched = bootstrap::fetch(&session, &proxy, bootstrap::REGISTRATION);
    let Some(params) = process.unless_stopped(fetched).await?.transpose()? else {
        return Ok(None);
    };
    process.telemetry.stages().reached(Stage::Bootstrap);
    process
        .start_dns(&params.namespace, &params.partition)
        .await?;
    Ok(Some(params))
}

async fn expose(process: &Process, configured: &Configured) -> Exposition {
    configured.warn();
    let (settings, spawner) = (process.settings.clone(), process.work.spawner());
    let mut exposition = Exposition::new(settings, process.telemetry.clone(), spawner);
    exposition.follow(&configured.telemetry).await;
    exposition
}

/// Logs once, when everything is ready, how long the stages of the start took.
pub(super) fn announce_ready(process: &Process) {
    let readiness = process.readiness.clone();
    let stages = process.telemetry.stages().clone();
    let spawner = process.work.spawner();
    spawner.spawn_until_stop("readiness", async move {
        readiness.wait_ready().await;
        stages.reached(Stage::Ready);
        tracing::info!("ready: {stages}");
    });
}

/// The host that starts Envoys, and the options of their supervision.
pub(super) fn host(
    settings: &Settings,
    telemetry: &Telemetry,
    state: Option<&StateDir>,
) -> (EnvoyHost, Options) {
    let (envoy, lifecycle) = (&settings.envoy, &settings.lifecycle);
    let mut hot = envoy.hot_restart.then(|| HotRestart::new(envoy.drain_time));
    if let (Some(hot), Some(state)) = (&mut hot, state) {
        // The next dataplane reads it there.
        hot.base_id = state.file(state_dir::BASE_ID);
    }
    let defaults = Policy::default();
    let parent_shutdown = hot.as_ref().map(|hot| hot.parent_shutdown);
    let policy = Policy {
        drain: lifecycle.drain_listeners,
        grace: lifecycle.shutdown_grace,
        min_drain: lifecycle.end_when_idle.then_some(supervision::MIN_DRAIN),
        hand_over: parent_shutdown.map_or(defaults.hand_over, |time| time + HAND_OVER_MARGIN),
        // Without a drain, a grace period would only delay the new Envoy.
        cold_restart_grace: match lifecycle.drain_listeners {
            true => lifecycle.shutdown_grace,
            false => Duration::ZERO,
        },
        ..defaults
    };
    let telemetry = telemetry.clone();
    let mut options = Options {
        policy,
        on_restart: Some(Box::new(move |kind| telemetry.envoy_restarted(kind))),
        ..Options::default()
    };
    if let Some(state) = state {
        options.snapshot = Some(state.file(state_dir::SNAPSHOT));
        options.pid_file = Some(state.file(state_dir::PID_FILE));
        options.owner = Some(state.owner.clone());
    }
    let log = state.map(|state| state.file(state_dir::LOG));
    let host = EnvoyHost::new(AdminClient::new(envoy.admin), hot, log);
    (host, options)
}

/// Both ends of a supervisor.
type Supervisor = (supervision::Handle<EnvoyConfig>, Controls<EnvoyConfig>);

/// Ends the Envoys that a former dataplane left running, if this one is asked to stop before it
/// could adopt them: stopping a service is meant for all of its processes.
async fn end_leftovers(
    process: &mut Process,
    state: Option<&StateDir>,
    supervisor: Supervisor,
    ready: &ReadyHandle,
) -> anyhow::Result<()> {
    let (handle, has_leftovers) = (&supervisor.0, state.is_some_and(|state| state.occupied));
    // Requested before supervision begins, so that it starts nothing.
    match process.signals.urgency() {
        Urgency::Graceful if has_leftovers => handle.stop(),
        Urgency::Now if has_leftovers => handle.kill(),
        _ => return Ok(()),
    }
    let envoy = desired::none(&process.settings)?;
    supervise(process, state, envoy, supervisor, ready).await
}

/// Supervises Envoy until it is asked to end or cannot be kept running.
async fn supervise(
    process: &mut Process,
    state: Option<&StateDir>,
    envoy: EnvoyConfig,
    (handle, controls): Supervisor,
    ready: &ReadyHandle,
) -> anyhow::Result<()> {
    let (host, options) = host(&process.settings, &process.telemetry, state);
    let mut seen = handle.watch();
    let running = supervision::run(host, envoy, options, controls);
    tokio::pin!(running);
    let settings = &process.settings;
    let dump = settings.lifecycle.dump_envoy_config;
    let mut ending = Ending {
        handle,
        outlives: state.is_some(),
        dump: dump.then(|| AdminClient::new(settings.envoy.admin)),
        spawner: process.work.spawner(),
    };
    let mut asked = Urgency::None;
    let mut failure = None;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended?,
            error = process.scope.failed(), if failure.is_none() => {
                // Keeping an Envoy that serves is more important than a clean end.
                if ending.outlives && seen.borrow().ready() {
                    tracing::warn!("envoy serves on, for the next dataplane to adopt");
                    ending.handle.release();
                } else {
                    tracing::debug!(%error, "ending Envoy");
                    ending.handle.stop();
                }
                failure = Some(error);
            }
            urgency = process.signals.beyond(asked) => {
                asked = urgency;
                ending.ask(urgency);
            }
            Ok(()) = seen.changed() => {
                process.telemetry.stages().reached(Stage::Envoy);
                show(ready, &seen.borrow_and_update());
            }
        }
    };
    ready.failed("Envoy has exited");
    process_outcome(ended, failure)
}
/// Shows in the readiness whether Envoy serves, and if not, why.
pub(super) fn show(ready: &ReadyHandle, report: &Report) {
    if report.ready() {
        ready.ready();
    } else if report.exits.is_empty() && !report.epochs.is_empty() && !report.stopping {
        ready.pending("Envoy does not answer that it is live yet");
    } else {
        let last = report.exits.back();
        let ended = last.map(|exit| format!(", the last one {}", exit.reason));
        let why = ended.or_else(|| report.refusal.as_ref().map(|why| format!(": {why}")));
        let state = state(report);
        ready.pending(format!("Envoy is {state}{}", why.unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::Readiness;

    use super::*;
    use crate::status::reasons;

    #[test]
    fn an_envoy_that_cannot_be_started_is_not_waited_for_in_silence() {
        let readiness = Readiness::new();
        let ready = readiness.register("envoy");
        let report = Report {
            starts: 1,
            refusal: Some("no such file".to_owned()),
            ..Report::default()
        };
        show(&ready, &report);
        assert_eq!(
            reasons(&readiness),
            "envoy: Envoy is waiting to be started again: no such file\n"
        );
    }
}
