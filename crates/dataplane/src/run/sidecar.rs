//! A sidecar's part of the process's life: relay, bootstrap, Envoy, and its supervision.

use std::sync::Arc;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::admin::AdminClient;
use legate_envoy::supervision::{
    self, Controls, EnvoyConfig, EnvoyHost, HotRestart, Options, Policy, Report,
};
use legate_runtime::ReadyHandle;

use super::Process;
use super::desired::{self, Configured, Desired};
use super::ending::{End, judge, more_urgent};
use super::exposition::Exposition;
use super::refresh::Refresh;
use super::state_dir::{self, StateDir};
use crate::bootstrap;
use crate::lifecycle::LifecycleListener;
use crate::relay::{Listener, Relay, RelayMetrics};
use crate::restart;
use crate::signals::Urgency;
use crate::status::state;
use crate::telemetry::Stage;

/// By how much an older epoch of Envoy may outlive the time after which it ends by itself.
const HAND_OVER_MARGIN: Duration = Duration::from_secs(5);

/// What a sidecar has before there is a session.
pub(super) struct Sidecar {
    pub(super) listener: Listener,
    pub(super) metrics: RelayMetrics,
    /// The folder of Envoys that outlive the dataplane.
    pub(super) state: Option<StateDir>,
}

impl Sidecar {
    pub(super) async fn run(
        self,
        process: &mut Process,
        lifecycle: Option<LifecycleListener>,
    ) -> anyhow::Result<()> {
        let ready = process.readiness.register("envoy");
        ready.pending("not started yet: it needs the proxy's parameters from a server");
        let state = self.state.as_ref();
        let (handle, controls) = supervision::handle();
        let (restarter, requests) = restart::channel(handle.watch());
        let xds = self.listener.address().clone();
        let relay = Relay::start(
            self.listener,
            process.session.clone(),
            process.readiness.register("configuration"),
            self.metrics,
            &process.work.spawner(),
        );
        let mut source = process.status(Some(handle.watch()));
        source.relay = Some(relay);
        if let Some(lifecycle) = lifecycle {
            process.serve_lifecycle(lifecycle, source, Some(restarter));
        }
        if process.connect().await?.is_none() {
            return process.end_left(state, (handle, controls), &ready).await;
        }
        let Some(params) = parameters(process).await? else {
            return process.end_left(state, (handle, controls), &ready).await;
        };
        let desired = Arc::new(Desired {
            settings: process.settings.clone(),
            xds,
        });
        // Whoever asked for a new Envoy before there was one gets it now.
        let mut signals = process.signals.clone();
        signals.forget_restarts();
        let looked = Some(desired.stamp());
        let configured = desired.configure(&params)?;
        let exposition = expose(process, &configured).await?;
        announce_ready(process);
        let refresh = Refresh {
            desired,
            exposition,
            session: process.session.clone(),
            params,
            handle: handle.clone(),
            requests,
            signals,
            current: configured.envoy.clone(),
            looked,
            found: None,
            logged: None,
        };
        let stop = process.work.token();
        process.work.spawn("envoy configuration", refresh.run(stop));
        // Nobody has asked for an end of what the last dataplane left.
        let envoy = configured.envoy.hot_only();
        process
            .supervise(state, envoy, (handle, controls), &ready)
            .await
    }
}

/// The proxy's parameters, and DNS, which follows from them. `None` when a stop is asked for
/// meanwhile.
async fn parameters(
    process: &mut Process,
) -> anyhow::Result<Option<GetEnvoyBootstrapParamsResponse>> {
    let (session, proxy) = (process.session.clone(), process.settings.proxy.clone());
    let fetched = process
        .unless_stopped(bootstrap::fetch(&session, &proxy, bootstrap::REGISTRATION))
        .await?;
    let Some(params) = fetched.transpose()? else {
        return Ok(None);
    };
    process.telemetry.stages().reached(Stage::Bootstrap);
    let GetEnvoyBootstrapParamsResponse {
        namespace,
        partition,
        ..
    } = &params;
    process.start_dns(namespace, partition).await?;
    Ok(Some(params))
}

async fn expose(process: &Process, configured: &Configured) -> anyhow::Result<Exposition> {
    configured.warn();
    let (settings, spawner) = (process.settings.clone(), process.work.spawner());
    let mut exposition = Exposition::new(settings, process.telemetry.clone(), spawner);
    let followed = exposition.follow(&configured.telemetry).await;
    followed.map_err(desired::failed)?;
    Ok(exposition)
}

/// Says once, when everything is ready, how long that took.
fn announce_ready(process: &Process) {
    let (readiness, stages) = (
        process.readiness.clone(),
        process.telemetry.stages().clone(),
    );
    let stop = process.work.token();
    process.work.spawn("readiness", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = readiness.wait_ready() => {
                stages.reached(Stage::Ready);
                tracing::info!("ready: {stages}");
            }
        }
        Ok::<_, std::convert::Infallible>(())
    });
}

/// Envoys as the settings want them, and how they are supervised.
fn host(process: &Process, state: Option<&StateDir>) -> (EnvoyHost, Options) {
    let (envoy, lifecycle) = (&process.settings.envoy, &process.settings.lifecycle);
    let mut hot = envoy.hot_restart.then(|| HotRestart::new(envoy.drain_time));
    if let (Some(hot), Some(state)) = (&mut hot, state) {
        // Where the next dataplane looks for it.
        hot.base_id = state.file(state_dir::BASE_ID);
    }
    let defaults = Policy::default();
    let parent_shutdown = hot.as_ref().map(|hot| hot.parent_shutdown);
    let policy = Policy {
        drain: lifecycle.drain_listeners,
        grace: lifecycle.shutdown_grace,
        min_drain: lifecycle.end_when_idle.then_some(supervision::MIN_DRAIN),
        hand_over: parent_shutdown.map_or(defaults.hand_over, |time| time + HAND_OVER_MARGIN),
        // Without a drain a wait would only put the new Envoy off.
        cold_restart_grace: match lifecycle.drain_listeners {
            true => lifecycle.shutdown_grace,
            false => Duration::ZERO,
        },
        ..defaults
    };
    let telemetry = process.telemetry.clone();
    let mut options = Options {
        policy,
        on_restart: Some(Box::new(move |kind| telemetry.envoy_restarted(kind))),
        ..Options::default()
    };
    let mut host = EnvoyHost::new(AdminClient::new(envoy.admin), hot, state.is_some());
    if let Some(state) = state {
        options.snapshot = Some(state.file(state_dir::SNAPSHOT));
        options.pid_file = Some(state.file(state_dir::PID_FILE));
        options.owner = Some(state.owner.clone());
        host = host.logging_to(state.file(state_dir::LOG));
    }
    (host, options)
}

/// Both ends of a supervisor.
type Supervisor = (supervision::Handle<EnvoyConfig>, Controls<EnvoyConfig>);

impl Process {
    /// Ends the Envoys that a former dataplane left, where this one is asked to end before it
    /// could adopt them: whoever ends a service means all of it.
    async fn end_left(
        &mut self,
        state: Option<&StateDir>,
        supervisor: Supervisor,
        ready: &ReadyHandle,
    ) -> anyhow::Result<()> {
        let (handle, left) = (&supervisor.0, state.is_some_and(|state| state.occupied));
        // Before supervision begins, so that it starts nothing.
        match self.signals.urgency() {
            Urgency::Graceful if left => handle.stop(),
            Urgency::Now if left => handle.kill(),
            _ => return Ok(()),
        }
        let envoy = desired::none(&self.settings)?;
        self.supervise(state, envoy, supervisor, ready).await
    }

    /// Keeps Envoy running until that was asked to end, or makes no sense any more.
    async fn supervise(
        &mut self,
        state: Option<&StateDir>,
        envoy: EnvoyConfig,
        (handle, controls): Supervisor,
        ready: &ReadyHandle,
    ) -> anyhow::Result<()> {
        let (host, options) = host(self, state);
        let settings = &self.settings;
        let mut seen = handle.watch();
        let running = supervision::run(host, envoy, options, controls);
        tokio::pin!(running);
        let dump = settings.lifecycle.dump_envoy_config;
        let outlives = state.is_some();
        let mut end = End::new(
            handle.clone(),
            outlives,
            dump.then(|| AdminClient::new(settings.envoy.admin)),
        );
        let mut failure = None;
        let ended = loop {
            tokio::select! {
                ended = &mut running => break ended?,
                error = self.scope.failed(), if failure.is_none() => {
                    // An Envoy that serves is worth more than a clean end.
                    if outlives && seen.borrow().ready() {
                        tracing::warn!("envoy serves on, for the next dataplane to adopt");
                        handle.release();
                    } else {
                        end.shut_down(&error);
                    }
                    failure = Some(error);
                }
                urgency = more_urgent(&mut self.signals, end.urgency) => end.ask(urgency),
                () = end.dumped() => {}
                Ok(()) = seen.changed() => {
                    self.telemetry.stages().reached(Stage::Envoy);
                    show(ready, &seen.borrow_and_update());
                }
            }
        };
        ready.failed("Envoy has exited");
        judge(ended, failure)
    }
}

/// Whether Envoy serves, and if not, why.
fn show(ready: &ReadyHandle, report: &Report) {
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
