//! `legate dev`: a control plane in this process, and two demo services with a dataplane process
//! and an Envoy each.
//!
//! Everything uses the public APIs, as a user would. Nothing is persistent: state is in memory and
//! in a temporary folder.

mod control_plane;
mod folder;
mod proof;
mod service;
mod sidecar;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use legate_runtime::Scope;

use crate::signals::Interrupt;
use control_plane::{ControlPlane, ControlPlaneOptions};
use service::Service;
use sidecar::{Programs, Sidecar};

/// The deadline for the shutdown of all components.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Options of `legate dev`.
#[derive(Args)]
pub(crate) struct Options {
    /// Envoy binary of the sidecars; default: `envoy` on PATH
    // An empty variable counts as unset, so an empty value must be accepted.
    #[arg(long, env = "LEGATE_ENVOY", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    envoy: Option<PathBuf>,
    /// `legate-dataplane` binary; default: the one in this program's folder
    #[arg(long)]
    dataplane: Option<PathBuf>,
    #[command(flatten)]
    control_plane: ControlPlaneOptions,
    /// Exit after the verification instead of waiting for Ctrl-C
    #[arg(long)]
    once: bool,
}

/// Runs the mesh until Ctrl-C, SIGTERM or the end of the terminal; with `--once` until the
/// verification is done. Must be awaited on the main thread, because sidecars are killed when the
/// thread that started them exits.
///
/// # Errors
///
/// If a component cannot start, ends unexpectedly, or the verification fails; the error names it.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::listen()?;
    let programs = Programs::find(options.envoy.as_deref(), options.dataplane.as_deref())?;
    let control_plane = ControlPlane::start(&options.control_plane).await?;
    let services = Scope::new("demo services");
    let mut sidecars = Vec::new();
    let mut outcome = tokio::select! {
        outcome = operate(&options, &programs, &control_plane, &services, &mut sidecars) => outcome,
        error = control_plane.failed() => Err(error),
        error = services.failed() => Err(error.into()),
        () = interrupt.wait() => Ok(()),
    };
    if outcome.is_ok() {
        // The terminal may be closed.
        let _ = writeln!(std::io::stdout(), "\nstopping");
    }
    // Also after an error, so that no process is left behind.
    for sidecar in sidecars {
        outcome = outcome.and(sidecar.stop(STOP_LIMIT).await);
    }
    outcome = outcome.and(services.stop(STOP_LIMIT).await.map_err(anyhow::Error::from));
    outcome.and(control_plane.stop(STOP_LIMIT).await)
}

/// Starts services and sidecars, verifies the mesh, and waits.
async fn operate(
    options: &Options,
    programs: &Programs,
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
        sidecars.push(Sidecar::start(programs, control_plane, proxy)?);
    }
    println!(
        "starting; the logs of the sidecars are in {}",
        control_plane.folder().display()
    );
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
            "\nverified: web reaches api through mutual TLS only, and only while an intention allows it"
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
