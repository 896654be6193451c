//! `legate dev`: a control plane in this process, two demo services, and beside each a dataplane
//! process with an Envoy of its own.
//!
//! Everything goes through the public APIs, exactly as a user would do it. Nothing is kept: state
//! lives in memory and in a temporary folder.

mod control_plane;
mod proof;
mod service;
mod sidecar;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use legate_runtime::Scope;
use tokio::signal::unix::{SignalKind, signal};

use control_plane::ControlPlane;
use service::Service;
use sidecar::Sidecar;

/// How long everything together may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Options of `legate dev`.
#[derive(Args)]
pub(crate) struct Options {
    /// Envoy binary of the sidecars; default: `envoy` on PATH
    #[arg(long, env = "LEGATE_ENVOY")]
    envoy: Option<PathBuf>,
    /// `legate-dataplane` binary; default: the one beside this program
    #[arg(long)]
    dataplane: Option<PathBuf>,
    /// Port of the HTTP API, 0 for a free one
    #[arg(long, default_value_t = 8500)]
    http_port: u16,
    /// Port of the gRPC API with TLS, 0 for a free one
    #[arg(long, default_value_t = 8503)]
    grpc_tls_port: u16,
    /// Port of DNS, 0 for a free one
    #[arg(long, default_value_t = 8600)]
    dns_port: u16,
    /// End after the proof instead of waiting for Ctrl-C
    #[arg(long)]
    once: bool,
}

/// Runs the mesh until Ctrl-C, or until the proof is done with `--once`.
///
/// # Errors
///
/// When a part cannot be started, ends by itself, or the proof fails; the error says which.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(&options).await?;
    let services = Scope::new("demo services");
    let mut sidecars = Vec::new();
    let mut outcome = tokio::select! {
        outcome = operate(&options, &control_plane, &services, &mut sidecars) => outcome,
        error = control_plane.failed() => Err(error),
        error = services.failed() => Err(error.into()),
        interrupted = interrupted() => interrupted,
    };
    if outcome.is_ok() {
        println!("\nstopping");
    }
    // Also after an error: nothing that was started is left behind.
    for sidecar in sidecars {
        outcome = outcome.and(sidecar.stop(STOP_LIMIT).await);
    }
    outcome = outcome.and(services.stop(STOP_LIMIT).await.map_err(anyhow::Error::from));
    outcome.and(control_plane.stop(STOP_LIMIT).await)
}

/// Starts services and sidecars, proves that the mesh does what it promises, and stays.
async fn operate(
    options: &Options,
    control_plane: &ControlPlane,
    services: &Scope,
    sidecars: &mut Vec<Sidecar>,
) -> anyhow::Result<()> {
    let api = Service::start("api", None, services).await?;
    let api_proxy = control_plane.register(&api, &[]).await?;
    let web_upstream = control_plane::free_address()?;
    let web = Service::start("web", Some(web_upstream), services).await?;
    let web_proxy = control_plane
        .register(&web, &[("api", web_upstream)])
        .await?;
    control_plane.intend("web", "api", "allow").await?;

    for proxy in [web_proxy, api_proxy] {
        sidecars.push(Sidecar::start(options, control_plane, proxy)?);
    }
    for sidecar in sidecars.iter_mut() {
        sidecar.ready().await?;
    }
    let [web_sidecar, api_sidecar] = sidecars.as_slice() else {
        anyhow::bail!("two sidecars were started")
    };
    proof::describe(control_plane, &[(&web, web_sidecar), (&api, api_sidecar)]).await?;
    proof::run(control_plane, &web, web_sidecar, api_sidecar).await?;
    if options.once {
        println!(
            "\nproved: web reaches api through mutual TLS only, and only while an intention allows it"
        );
        return Ok(());
    }
    println!("\nThe mesh is running. Try it:");
    println!("  curl {}", web.url());
    println!(
        "  curl -X PUT -d '{{\"Action\":\"deny\"}}' '{}'",
        control_plane.intention_url("web", "api")
    );
    println!("Ctrl-C stops everything.");
    sidecar::first_exit(sidecars).await
}

/// Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("cannot listen for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}
