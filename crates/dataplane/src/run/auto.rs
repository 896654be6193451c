//! The life of a sidecar with the mode `auto`: the built-in proxy serves as long as it can serve everything, and Envoy
//! otherwise. One takes over from the other without a lost connection. `choice` decides; this does.

mod envoy;

use std::net::SocketAddr;
use std::pin::pin;

use anyhow::{anyhow, bail};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::BootstrapInputs;
use legate_envoy::supervision::{self, EnvoyConfig, Handle, Report};
use legate_runtime::ReadyHandle;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use self::envoy::{News, Running, next_of_envoy};
use super::built_in::{self, expose, needs_envoy, node, pages};
use super::choice::{Action, Choice, Event, Phase};
use super::desired::{Desired, failed};
use super::ending::Ending;
use super::exposition::Exposition;
use super::process::Process;
use super::sidecar::{Sidecar, announce_ready, parameters, relay, show};
use crate::bootstrap;
use crate::l4::{BuiltIn, Control, Fit, Part, can_steer};
use crate::leave::Drainer;
use crate::lifecycle::EnvoyControls;
use crate::relay::Relay;
use crate::signals::Urgency;
use crate::telemetry::Stage;

/// How many Envoys that get no new connections there may be. The oldest one ends for another.
const LINGERING: usize = 2;

/// Runs until a stop is requested.
pub(super) async fn run(sidecar: Sidecar, process: &mut Process) -> anyhow::Result<()> {
    let (built_in, ready) = built_in::create(process);
    let spawner = process.work.spawner();
    let relay = relay(process, sidecar.listener, sidecar.metrics);
    let report = watch::Sender::new(Report::default());
    let shown = watch::Sender::new(json!(null));
    let mut status = process.status(Some(relay.clone()), Some(report.subscribe()));
    status.built_in = Some(built_in.clone());
    status.choice = Some(shown.subscribe());
    // The pages pass a drain on to the proxy that serves.
    let admin = AdminClient::new(process.settings.envoy.admin);
    let drainer = Drainer::new(admin, supervision::handle().0, spawner.clone());
    let controls = EnvoyControls {
        restarter: None,
        drainer,
    };
    process.serve_lifecycle(sidecar.lifecycle, status, Some(controls));
    let Some(params) = parameters(process).await? else {
        return Ok(());
    };
    let inputs = bootstrap::inputs(&process.settings, &params, sidecar.xds.clone());
    let inputs = inputs.map_err(failed)?;
    if process.settings.envoy.state_dir.is_some() {
        bail!("-envoy-state-dir needs -proxy envoy: remove it, or run with -proxy envoy");
    }
    let (admin_of_envoy, forwarded) = watch::channel(None);
    expose(
        process,
        &pages(process, &built_in, &inputs, forwarded)?,
        &inputs,
    )?;
    let (settings, telemetry) = (process.settings.clone(), process.telemetry.clone());
    let mut exposition = Exposition::new(settings.clone(), telemetry, spawner.clone());
    exposition.follow(&inputs.proxy_config).await;
    announce_ready(process);
    let mut auto = Auto {
        choice: Choice::new(settings.envoy.return_after),
        steers: spawn_blocking(can_steer).await?,
        control: None,
        built_in,
        desired: Desired {
            settings,
            xds: sidecar.xds,
        },
        params,
        ready,
        report,
        shown,
        admin: admin_of_envoy,
        envoy: None,
        lingering: FuturesUnordered::new(),
        handles: Vec::new(),
        change: None,
        part: Part::Yields,
        refuses: false,
    };
    auto.begin(process, relay, &inputs)?;
    let outcome = auto.serve(process).await;
    let stopping = process.readiness.register("end");
    stopping.pending("stopping");
    auto.end(process, outcome.is_ok()).await;
    exposition.stop().await;
    outcome
}

/// State of the task.
struct Auto {
    choice: Choice,
    /// Whether connections can be steered to another proxy here, and why not.
    steers: Result<(), String>,
    /// `None` if the built-in proxy never serves.
    control: Option<Control>,
    built_in: BuiltIn,
    desired: Desired,
    params: GetEnvoyBootstrapParamsResponse,
    ready: ReadyHandle,
    report: watch::Sender<Report>,
    shown: watch::Sender<serde_json::Value>,
    /// The admin interface of the Envoy that serves.
    admin: watch::Sender<Option<SocketAddr>>,
    envoy: Option<Running>,
    /// The ends of Envoys that get no new connections, and what stops them, oldest first.
    lingering: FuturesUnordered<BoxFuture<'static, u64>>,
    handles: Vec<(u64, Handle<EnvoyConfig>)>,
    /// One proxy is taking over from the other.
    change: Option<BoxFuture<'static, Result<(), String>>>,
    /// The part of the built-in proxy, and whether it accepts no connections to the application.
    part: Part,
    refuses: bool,
}

impl Auto {
    /// Starts the proxy that may serve.
    fn begin(
        &mut self,
        process: &Process,
        relay: Relay,
        inputs: &BootstrapInputs,
    ) -> anyhow::Result<()> {
        if let Err(why) = &self.steers {
            tracing::warn!(
                why,
                "once it serves, the built-in proxy cannot leave to Envoy"
            );
        }
        if let Some(what) = needs_envoy(&process.settings, &inputs.proxy_config) {
            self.on_event(Event::Needs(what.to_owned()), process);
            return Ok(());
        }
        let (control, orders) = self.built_in.control();
        self.control = Some(control);
        let ready = process.readiness.register("built-in proxy");
        let spawner = process.work.spawner();
        let started = self
            .built_in
            .start(node(inputs), relay, ready, Some(orders), &spawner);
        started.map_err(|error| {
            anyhow!("the threads of the built-in proxy cannot be started: {error}")
        })?;
        process.telemetry.stages().reached(Stage::Envoy);
        self.show();
        Ok(())
    }

    /// Until a stop is requested, a task fails, or nothing serves.
    async fn serve(&mut self, process: &mut Process) -> anyhow::Result<()> {
        let mut fit = self.control.as_ref().map(Control::fit);
        let mut signals = process.signals.clone();
        loop {
            let due = self.choice.due().filter(|due| *due > Instant::now());
            let event = tokio::select! {
                biased;
                _ = signals.beyond(Urgency::None) => return Ok(()),
                error = process.scope.failed() => return Err(error.into()),
                event = next_fit(&mut fit) => event,
                news = next_of_envoy(&mut self.envoy) => self.on_envoy(news),
                outcome = next_change(&mut self.change) => match outcome {
                    Ok(()) => Event::Changed,
                    Err(why) => Event::NotChanged(why),
                },
                Some(number) = self.lingering.next() => {
                    self.handles.retain(|(other, _)| *other != number);
                    Event::Time
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Event::Time,
            };
            if self.on_event(event, process) == Flow::Fails {
                let why = self.choice.failure().unwrap_or("it has ended");
                bail!("envoy cannot be kept running: {why}");
            }
            self.follow().await;
        }
    }

    /// Envoy has another state, or has ended.
    fn on_envoy(&mut self, news: News) -> Event {
        match news {
            News::Report(report) => {
                let serves = report.ready();
                self.report.send_replace(report);
                if serves {
                    Event::EnvoyServes
                } else {
                    Event::Time
                }
            }
            News::Ended(why) => {
                self.forget_envoy();
                Event::EnvoyEnded(why)
            }
        }
    }

    fn forget_envoy(&mut self) {
        self.envoy = None;
        self.admin.send_replace(None);
        self.report.send_replace(Report::default());
    }

    fn on_event(&mut self, event: Event, process: &Process) -> Flow {
        let mut next = self.choice.handle(event, Instant::now());
        while let Some(action) = next {
            let failed = match action {
                Action::StartEnvoy => self.start_envoy(process).err(),
                Action::StopEnvoy => {
                    self.end_envoy(Running::stop);
                    None
                }
                Action::DrainEnvoy => {
                    self.end_envoy(Running::linger);
                    None
                }
                Action::ToEnvoy => {
                    self.change_to_envoy();
                    None
                }
                Action::ToBuiltIn => {
                    self.change_to_built_in();
                    None
                }
                Action::Fail => return Flow::Fails,
            };
            let event = match failed {
                Some(why) => {
                    tracing::warn!(why, "envoy is needed and cannot be started");
                    Event::EnvoyEnded(why)
                }
                None => Event::Time,
            };
            next = self.choice.handle(event, Instant::now());
        }
        self.show();
        Flow::Continues
    }

    fn start_envoy(&mut self, process: &Process) -> Result<(), String> {
        let needs = self.choice.needs().unwrap_or_default();
        tracing::info!(
            needs,
            "starting envoy: the built-in proxy cannot serve everything"
        );
        // Without sockets, there is nothing to steer.
        if self.built_in.is_live() {
            self.steers.clone()?;
        }
        let started = Running::start(&self.desired, &self.params, &process.telemetry)?;
        self.envoy = Some(started);
        process.telemetry.stages().reached(Stage::Envoy);
        Ok(())
    }

    /// Lets Envoy end in this way.
    fn end_envoy<E>(&mut self, end: impl FnOnce(Running) -> E)
    where
        E: Future<Output = ()> + Send + 'static,
    {
        let Some(envoy) = self.envoy.take() else {
            return;
        };
        self.forget_envoy();
        let number = self.handles.last().map_or(0, |(last, _)| last + 1);
        self.handles.push((number, envoy.handle.clone()));
        for (_, oldest) in self.handles.iter().rev().skip(LINGERING) {
            oldest.stop();
        }
        self.lingering
            .push(end(envoy).map(move |()| number).boxed());
    }

    fn change_to_envoy(&mut self) {
        let Some(envoy) = &self.envoy else {
            return;
        };
        let (admin, report) = (envoy.admin, envoy.report.clone());
        let (control, built_in) = (self.control.clone(), self.built_in.clone());
        self.change = Some(Box::pin(async move {
            let admin = AdminClient::new(admin);
            envoy::listens(admin).await;
            if let Some(control) = control {
                control.leave(|| report.borrow().ready()).await?;
            }
            if built_in.is_draining()
                && let Err(error) = admin.close_inbound_listeners().await
            {
                tracing::warn!(%error, "inbound connections are accepted again");
            }
            Ok(())
        }));
    }

    fn change_to_built_in(&mut self) {
        let (Some(envoy), Some(control)) = (&self.envoy, self.control.clone()) else {
            return;
        };
        let (admin, steers) = (AdminClient::new(envoy.admin), self.steers.clone());
        tracing::info!("the built-in proxy can serve everything again and takes over");
        self.change = Some(Box::pin(async move {
            steers?;
            control.take(admin).await
        }));
    }

    /// Lets the built-in proxy do its part. While the rules that it serves by are outdated, it accepts no connections to
    /// the application, if that is wanted.
    async fn follow(&mut self) {
        let Some(control) = &self.control else {
            return;
        };
        let part = match self.choice.phase() {
            Phase::BuiltIn => Part::Yields,
            Phase::Waiting(_) => Part::Alone,
            Phase::Starting | Phase::ToEnvoy | Phase::Envoy | Phase::ToBuiltIn => Part::Observes,
        };
        let outdated = self.choice.outdated(Instant::now()).is_some();
        let refuses = outdated && self.desired.settings.envoy.close_outdated;
        let mut followed = Ok(());
        // By itself it yields only until Envoy is needed; it may have been in between.
        if part != self.part || part == Part::Yields {
            followed = control.take_part(part).await;
        }
        if refuses != self.refuses {
            followed = followed.and(control.accept_inbound(!refuses).await);
        }
        if let Err(error) = followed {
            tracing::warn!(error, "the built-in proxy does not follow");
        }
        (self.part, self.refuses) = (part, refuses);
    }

    /// Shows the state.
    fn show(&self) {
        let phase = self.choice.phase();
        let by_envoy = matches!(phase, Phase::Envoy | Phase::ToBuiltIn);
        let admin = self.envoy.as_ref().map(|envoy| envoy.admin);
        self.admin.send_replace(admin.filter(|_| by_envoy));
        let outdated = self.choice.outdated(Instant::now());
        match (&outdated, &self.envoy) {
            (Some(why), _) => self.ready.pending(why),
            (None, Some(envoy)) if by_envoy => show(&self.ready, &envoy.report.borrow()),
            // Until it serves for the first time, the built-in proxy says what is missing.
            _ if self.control.is_some() => self.ready.ready(),
            _ => self.ready.pending("Envoy does not serve yet"),
        }
        let cannot_steer = self.steers.as_ref().err();
        self.shown.send_replace(json!({
            "serves": if by_envoy { "envoy" } else { "builtin" },
            "changing": matches!(phase, Phase::ToEnvoy | Phase::ToBuiltIn),
            "needs_envoy": self.choice.needs(),
            "failure": self.choice.failure(),
            "outdated": outdated,
            "cannot_change": cannot_steer,
            "lingering_envoys": self.handles.len(),
        }));
    }

    /// Ends all proxies, with the time that connections have for it if the end was requested.
    async fn end(mut self, process: &mut Process, requested: bool) {
        let mut signals = process.signals.clone();
        let mut handles: Vec<_> = self.handles.into_iter().map(|(_, handle)| handle).collect();
        let mut ends: Vec<BoxFuture<'static, ()>> = Vec::new();
        let urgency = signals.urgency();
        for handle in &handles {
            match urgency {
                Urgency::Now => handle.kill(),
                _ => handle.stop(),
            }
        }
        if let Some(envoy) = self.envoy.take() {
            let dump = process.settings.lifecycle.dump_envoy_config;
            let mut ending = Ending {
                handle: envoy.handle.clone(),
                outlives: false,
                dump: dump.then(|| AdminClient::new(envoy.admin)),
                spawner: process.work.spawner(),
            };
            // A failed task is no request.
            ending.ask(urgency.max(Urgency::Graceful));
            ends.push(envoy.ended.map(drop).boxed());
            handles.push(envoy.handle);
        }
        let lingering = self.lingering.map(drop).collect::<()>();
        let envoys = async {
            let mut ended = pin!(async { tokio::join!(join_all(ends), lingering) });
            tokio::select! {
                _ = &mut ended => return,
                _ = signals.beyond(Urgency::Graceful) => {}
            }
            handles.iter().for_each(Handle::kill);
            ended.await;
        };
        let own = async {
            if requested {
                built_in::end(process, &self.built_in).await;
            }
        };
        tokio::join!(envoys, own);
    }
}

/// Whether the process goes on.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    Continues,
    Fails,
}

async fn next_fit(fit: &mut Option<watch::Receiver<Fit>>) -> Event {
    let Some(fit) = fit else {
        return std::future::pending().await;
    };
    if fit.changed().await.is_err() {
        // Its task has ended, which is a failure of its own.
        return std::future::pending().await;
    }
    match fit.borrow_and_update().clone() {
        Fit::Fits => Event::Fits,
        Fit::Needs(what) => Event::Needs(what),
        Fit::Unknown => Event::Time,
    }
}

async fn next_change(
    change: &mut Option<BoxFuture<'static, Result<(), String>>>,
) -> Result<(), String> {
    let Some(future) = change else {
        return std::future::pending().await;
    };
    let outcome = future.await;
    *change = None;
    outcome
}
