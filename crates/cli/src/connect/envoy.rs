//! `connect envoy`: runs Envoy for a registered proxy, or prints its bootstrap document. Envoy connects to
//! the server itself; legate-dataplane is the alternative with a supervisor.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use legate_envoy::find_executable;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Value;

use super::envoy_bootstrap;
use super::envoy_flags::Options;
use super::envoy_registration;
use crate::output::{line, quoted, text, warn};
use crate::server_api::environment;

pub(super) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    options.check()?;
    let api = options.api.connect()?;
    let proxy = options.which.proxy(&api, options.register.register).await?;
    if options.register.register {
        let Some(kind) = proxy.kind else {
            bail!("Auto-Registration can only be used for gateways");
        };
        let service = envoy_registration::service(&options.register, &proxy, kind)?;
        let name = text(&service, "Name");
        let done = api
            .put("/v1/agent/service/register")
            .json(&service)
            .ok()
            .await;
        done.with_context(|| format!("Error registering service {}", quoted(name)))?;
        if !options.bootstrap {
            line(&format!("Registered service: {name}"))?;
        }
    }
    if options.bootstrap_of.admin_access_log_path != "/dev/null" {
        warn(
            "-admin-access-log-path is deprecated and will be removed in a future version of Consul. \
             Configure access logging with proxy-defaults.accessLogs.",
        );
    }
    let document = envoy_bootstrap::document(&options, &api, &proxy).await?;
    if options.bootstrap {
        line(&crate::output::json(&document, "  "))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(execute(&options, &document))
}

/// Replaces this program by Envoy. Returns only on failure.
fn execute(options: &Options, document: &Value) -> anyhow::Error {
    let path = environment("PATH").map(OsString::from);
    let envoy = find_executable(options.envoy_binary.as_deref(), path.as_deref());
    let envoy = match envoy {
        Ok(envoy) => envoy,
        Err(error) => return anyhow!("Couldn't find envoy binary: {error}"),
    };
    let file = match inherited(document) {
        Ok(file) => file,
        Err(error) => return error.context("cannot pass the bootstrap document to Envoy"),
    };
    let mut command = std::process::Command::new(envoy);
    command
        .arg("--config-path")
        .arg(format!("/dev/fd/{}", file.as_raw_fd()));
    // Hot restarts are disabled, because several Envoys on one machine would share memory and sockets.
    let restarts = |argument: &String| argument.starts_with("--restart-epoch");
    if !options.arguments.iter().any(restarts) {
        command.arg("--disable-hot-restart");
    }
    anyhow!(
        "Failed to exec envoy: {}",
        command.args(&options.arguments).exec()
    )
}

/// An anonymous file that stays open across exec, because the document may contain a token.
fn inherited(document: &Value) -> anyhow::Result<std::fs::File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(document.to_string().as_bytes())?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(file)
}
