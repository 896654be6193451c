//! The operator's composition, startup and shutdown. The work is done in the modules that it starts.

mod health;
mod writers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use legate_runtime::logging::LogOptions;
use legate_runtime::metrics::{ProcessMetrics, Registry};
use legate_runtime::{Clock, Readiness, Scope};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{Caches, Config, Context, Options, listen};
use crate::{certificates, inject};

/// How long requests are still served after shutdown was requested: the API server continues to send them
/// until it sees that this pod is not ready.
const STILL_ANSWERED: Duration = Duration::from_secs(5);
/// The deadline for controllers: stopping the writers, releasing the lease, logging out from the servers,
/// each with its own timeout.
const CONTROLLERS_END: Duration = Duration::from_secs(15);
/// The deadline for requests in flight.
const ANSWERS_END: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or a component failed.
pub fn run(options: Options, log: LogOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    legate_runtime::block_on(runtime, operate(options, log))
}

async fn operate(options: Options, log: LogOptions) -> anyhow::Result<()> {
    // Installed first, so that no signal ends the process without a shutdown.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let scope = Scope::new("operator");
    let answers = scope.spawner().child_with_own_token("answers");
    let context = start(options, log, &scope, &answers).await?;
    let stopping = context.readiness.register("operator");
    stopping.ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");

    let failure = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        failure = scope.failed() => Some(failure),
    };
    tracing::info!("stopping");
    stopping.pending("stopping");
    let still_answered = async {
        if failure.is_none() {
            tokio::time::sleep(STILL_ANSWERED).await;
        }
        answers.stop(ANSWERS_END).await
    };
    let (controllers, answers) = tokio::join!(scope.stop(CONTROLLERS_END), still_answered);
    if let Some(failure) = failure {
        return Err(failure).context("a component of the operator failed");
    }
    controllers.context("the controllers did not stop cleanly")?;
    answers.context("the servers did not stop cleanly")
}

/// Starts every component; each has its line here.
async fn start(
    options: Options,
    log: LogOptions,
    scope: &Scope,
    answers: &Scope,
) -> anyhow::Result<Context> {
    let config = Config::load(options.sidecars.config.as_deref())?;
    let client = client().await?;
    let readiness = Readiness::new();
    let registry = Registry::new();
    ProcessMetrics::register(&registry)?;
    let health = SocketAddr::new(options.ports.bind, options.ports.health_port);
    let health = listen("/livez, /readyz and /metrics", health)?;
    health::serve(
        health,
        readiness.clone(),
        registry.clone(),
        &answers.spawner(),
    );
    let context = Context {
        options: Arc::new(options),
        config: Arc::new(config),
        log,
        caches: Caches::start(&client, &readiness, &answers.spawner()),
        client,
        controllers: scope.spawner(),
        answers: answers.spawner(),
        readiness,
        registry,
        clock: Clock::system(),
    };
    let certificates = certificates::start(&context)?;
    let webhook = inject::start(&context, &certificates).await?;
    writers::start(&context, &certificates, &webhook.installation)?;
    Ok(context)
}

/// The client of the API server, from the pod's service account or from KUBECONFIG.
async fn client() -> anyhow::Result<Client> {
    let config = kube::Config::infer().await.context(
        "cannot determine the address of the API server: run the operator in a pod with a service account \
         token (automountServiceAccountToken), or set KUBECONFIG",
    )?;
    let server = config.cluster_url.to_string();
    Client::try_from(config)
        .with_context(|| format!("cannot create a client for the API server at {server}"))
}
