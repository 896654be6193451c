//! A sidecar's part of the process's life: relay, bootstrap, Envoy, and how Envoy ends.

use std::future::Future;
use std::io::Write;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::{
    self as envoy_bootstrap, BootstrapError, BootstrapInputs, ProxyConfig, XdsAddress,
};
use legate_envoy::epochs::{
    self, Ended, EnvoyConfig, EnvoyHost, Handle, Options, Outcome, Policy, Report,
};
use legate_envoy::process::{EnvoyLog, Launch, LogLevel};
use legate_runtime::logging::Level;
use legate_runtime::{ReadyHandle, TaskError};
use tokio::sync::watch;

use super::{Process, RunError, failed};
use crate::bootstrap::{self, on_host};
use crate::lifecycle::LifecycleListener;
use crate::relay::{Listener, Relay, RelayMetrics, RelayParts};
use crate::signals::{Signals, Urgency};
use crate::status::{EnvoyStatus, EpochStatus, ExitStatus};
use crate::telemetry::{
    self, Dialect, Endpoints, Merger, OWN_METRICS_PORT, Sink, SinkAddress, Source, Stage, Target,
};

/// How long Envoy may take to quit before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// Where Envoy's admin interface has its metrics.
const ENVOY_METRICS: &str = "/stats/prometheus";

/// What a sidecar has before there is a session.
pub(super) struct Sidecar {
    pub(super) executable: PathBuf,
    pub(super) listener: Listener,
    pub(super) metrics: RelayMetrics,
}

/// How Envoy is doing, for readiness and status.
struct Watched {
    ready: ReadyHandle,
    status: watch::Sender<EnvoyStatus>,
}

impl Sidecar {
    pub(super) async fn run(
        self,
        process: &mut Process,
        lifecycle: Option<LifecycleListener>,
    ) -> Result<(), RunError> {
        let ready = process.readiness.register("envoy");
        ready.pending("not started yet");
        let (status, seen) = watch::channel(EnvoyStatus {
            state: "not started".to_owned(),
            admin: process.settings.envoy.admin.to_string(),
            ..EnvoyStatus::default()
        });
        let watched = Watched { ready, status };
        let xds = self.listener.address().clone();
        let parts = RelayParts {
            listener: self.listener,
            session: process.session.clone(),
            readiness: process.readiness.register("configuration"),
            metrics: self.metrics,
        };
        let relay = Relay::start(parts, &process.work.spawner());
        let mut source = process.status(seen);
        source.relay = Some(relay);
        if let Some(lifecycle) = lifecycle {
            process.serve_lifecycle(lifecycle, source);
        }
        if process.connect().await?.is_none() {
            return Ok(());
        }
        let Some(inputs) = inputs(process, xds).await? else {
            return Ok(());
        };
        let envoy = launch(process, &self.executable, &inputs)?;
        announce_ready(process);
        process.supervise(envoy, watched).await
    }
}

/// Everything of the bootstrap document, and the servers that it refers to. `None` when a stop is
/// asked for meanwhile.
async fn inputs(
    process: &mut Process,
    xds: XdsAddress,
) -> Result<Option<BootstrapInputs>, RunError> {
    let (session, proxy) = (process.session.clone(), process.settings.proxy.clone());
    let fetched = process
        .unless_stopped(bootstrap::fetch(&session, &proxy))
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
    let inputs = bootstrap::inputs(&process.settings, &params, xds).map_err(RunError::Bootstrap)?;
    let retention = process.settings.telemetry.retention;
    process.telemetry.retain(retention);
    if inputs.proxy_config.prometheus_bind_addr.is_some() {
        serve_metrics(process).await;
    }
    let sinks = sinks(process, &inputs.proxy_config).map_err(RunError::Bootstrap)?;
    telemetry::push(process.telemetry.clone(), sinks, &process.work.spawner());
    Ok(Some(inputs))
}

/// Where the dataplane sends its own metrics: to the sinks that Envoy gets.
fn sinks(process: &Process, config: &ProxyConfig) -> Result<Vec<Sink>, BootstrapError> {
    let environment = &process.settings.environment;
    let variable = |name: &str| environment.get(name).map(str::to_owned);
    let dogstatsd = Dialect::Dogstatsd {
        tags: config.stats_tags.clone(),
    };
    let wanted = [
        (Dialect::Statsd, config.statsd_address(&variable)?),
        (dogstatsd, config.dogstatsd_address(&variable)?),
    ];
    let mut sinks = Vec::new();
    for (dialect, url) in wanted {
        let address = url.map(|url| url.parse::<SinkAddress>()).transpose();
        match address {
            Ok(address) => sinks.extend(address.map(|address| Sink { dialect, address })),
            Err(error) => tracing::warn!(%error, "own metrics are not sent there"),
        }
    }
    Ok(sinks)
}

async fn serve_metrics(process: &Process) {
    let (settings, spawner) = (&process.settings.telemetry, process.work.spawner());
    let admin = process.settings.envoy.admin;
    if let Some(tls) = &settings.prometheus_tls {
        let certificate = tls.certificate.clone();
        process
            .telemetry
            .observe_certificate("prometheus", certificate);
    }
    let mut sources = vec![Source {
        name: "envoy",
        target: Target::new(on_host(admin, admin.port()), ENVOY_METRICS),
        takes_query: true,
    }];
    match settings
        .service_metrics_url
        .as_deref()
        .map(str::parse::<Target>)
        .transpose()
    {
        Ok(target) => sources.extend(target.map(|target| Source {
            name: "service",
            target,
            takes_query: false,
        })),
        Err(error) => tracing::warn!(%error, "-telemetry-prom-service-metrics-url is left out"),
    }
    let endpoints = Endpoints {
        own: on_host(admin, OWN_METRICS_PORT),
        merged: on_host(admin, settings.merge_port),
    };
    let merger = Merger::new(process.telemetry.clone(), sources, spawner.clone());
    telemetry::start(endpoints, process.telemetry.clone(), merger, &spawner).await;
}

fn launch(
    process: &Process,
    executable: &std::path::Path,
    inputs: &BootstrapInputs,
) -> Result<Launch, RunError> {
    let settings = &process.settings;
    let variable = |name: &str| settings.environment.get(name).map(str::to_owned);
    let document = envoy_bootstrap::build(inputs, &variable).map_err(RunError::Bootstrap)?;
    for warning in document.warnings() {
        tracing::warn!("{warning}");
    }
    let launch = Launch {
        executable: executable.to_owned(),
        bootstrap: document.to_json(),
        log: EnvoyLog {
            level: envoy_level(settings.logging.level),
            json: settings.logging.json,
        },
        concurrency: settings.envoy.concurrency,
        drain_time: settings.envoy.drain_time,
        drain_strategy: settings.envoy.drain_strategy,
        extra_args: settings.envoy.extra_args.clone(),
        secret_variables: Vec::new(),
    };
    launch.check()?;
    Ok(launch)
}

fn envoy_level(level: Level) -> LogLevel {
    match level {
        Level::Trace => LogLevel::Trace,
        Level::Debug => LogLevel::Debug,
        Level::Info => LogLevel::Info,
        Level::Warn => LogLevel::Warn,
        Level::Error => LogLevel::Error,
    }
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

impl Process {
    /// Keeps Envoy running until that was asked to end, or makes no sense any more.
    async fn supervise(&mut self, envoy: Launch, watched: Watched) -> Result<(), RunError> {
        let settings = &self.settings;
        let policy = Policy {
            drain: settings.lifecycle.drain_listeners,
            grace: settings.lifecycle.shutdown_grace,
            kill_after: KILL_AFTER,
            ..Policy::default()
        };
        let options = Options {
            policy,
            ..Options::default()
        };
        let admin = AdminClient::new(settings.envoy.admin);
        let (handle, controls) = epochs::handle();
        let mut seen = handle.watch();
        let host = EnvoyHost::new(admin, None, false);
        let running = epochs::run(host, EnvoyConfig::new(envoy), options, controls);
        tokio::pin!(running);
        let mut end = End::new(
            handle,
            settings.lifecycle.dump_envoy_config.then_some(admin),
        );
        let mut failure = None;
        let ended = loop {
            tokio::select! {
                ended = &mut running => break ended?,
                error = failed(&self.work, &self.connection), if failure.is_none() => {
                    end.shut_down(&error);
                    failure = Some(error);
                }
                urgency = more_urgent(&mut self.signals, end.wished) => end.wish(urgency),
                () = end.dumped() => {}
                Ok(()) = seen.changed() => {
                    self.telemetry.stages().reached(Stage::Envoy);
                    watched.show(&seen.borrow_and_update());
                }
            }
        };
        watched.show(&seen.borrow());
        watched.ready.failed("Envoy has exited");
        judge(ended, failure)
    }
}

impl Watched {
    fn show(&self, report: &Report) {
        let current = report.current();
        let state = match current {
            Some(epoch) => epoch.state.as_str(),
            None if report.stopping => "exited",
            None => "waiting to be started again",
        };
        self.status.send_modify(|status| {
            status.pid = current.map(|epoch| epoch.pid);
            state.clone_into(&mut status.state);
            status.starts = report.starts;
            status.epochs = report.epochs.iter().map(EpochStatus::from).collect();
            status.exits = report.exits.iter().map(ExitStatus::from).collect();
        });
        if report.ready() {
            self.ready.ready();
        } else if report.exits.is_empty() && !report.stopping {
            self.ready
                .pending("Envoy does not answer that it is live yet");
        } else {
            let last = report.exits.back();
            let ended = last.map(|exit| format!(", the last one {}", exit.reason));
            self.ready
                .pending(format!("Envoy is {state}{}", ended.unwrap_or_default()));
        }
    }
}

/// What the end of supervision means for the process.
fn judge(ended: Ended, failure: Option<TaskError>) -> Result<(), RunError> {
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    match ended.outcome {
        Outcome::Stopped { forced: true } => tracing::warn!("envoy had to be killed"),
        Outcome::Unkillable => tracing::warn!("envoy did not end after SIGKILL"),
        Outcome::Stopped { forced: false } | Outcome::Ended | Outcome::Released => {}
        Outcome::Spent => {
            let last = ended.last.map(|exit| exit.reason);
            return Err(match (last, ended.refusal) {
                (Some(reason), _) => RunError::EnvoyEnded(reason),
                (None, refusal) => RunError::EnvoyNeverStarted(refusal.unwrap_or_default()),
            });
        }
    }
    Ok(())
}

type Dump = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How far the wish to end Envoy has got.
struct End {
    handle: Handle<EnvoyConfig>,
    wished: Urgency,
    /// Set when the configuration has to be written first.
    admin: Option<AdminClient>,
    dump: Option<Dump>,
}

impl End {
    fn new(handle: Handle<EnvoyConfig>, admin: Option<AdminClient>) -> End {
        End {
            handle,
            wished: Urgency::None,
            admin,
            dump: None,
        }
    }

    fn wish(&mut self, urgency: Urgency) {
        self.wished = urgency;
        if urgency == Urgency::Now {
            self.handle.kill();
            return;
        }
        tracing::info!("initiating shutdown");
        match self.admin.take() {
            Some(admin) => {
                tracing::info!("writing Envoy's configuration to standard output");
                self.dump = Some(Box::pin(dump(admin)));
            }
            None => self.handle.stop(),
        }
    }

    /// Without what failed Envoy is of no more use.
    fn shut_down(&self, error: &TaskError) {
        tracing::debug!(%error, "ending Envoy");
        self.handle.stop();
    }

    /// Ends Envoy when its configuration has been written.
    async fn dumped(&mut self) {
        match &mut self.dump {
            Some(dump) => dump.await,
            None => std::future::pending().await,
        }
        self.dump = None;
        self.handle.stop();
    }
}

/// The next wish that asks for more than the last.
async fn more_urgent(signals: &mut Signals, last: Urgency) -> Urgency {
    match last {
        Urgency::None => signals.at_least(Urgency::Graceful).await,
        Urgency::Graceful => signals.at_least(Urgency::Now).await,
        Urgency::Now => std::future::pending().await,
    }
}

async fn dump(admin: AdminClient) {
    match admin.config_dump().await {
        Ok(document) => {
            let mut output = std::io::stdout().lock();
            if let Err(error) = output.write_all(&document).and_then(|()| output.flush()) {
                tracing::warn!(%error, "Envoy's configuration could not be written");
            }
        }
        Err(error) => tracing::warn!(%error, "Envoy's configuration could not be read"),
    }
}
