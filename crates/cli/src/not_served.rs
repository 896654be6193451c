//! Commands of Consul that are not supported: each error has the reason and an alternative.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// The ignored arguments of an unsupported command.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Anything {
    /// Ignored
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<String>,
}

/// # Errors
///
/// Always.
pub(crate) fn exec() -> anyhow::Result<ExitCode> {
    bail!(
        "exec is not supported: there is no remote execution. Use ssh, or kubectl exec on \
         Kubernetes"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn keyring() -> anyhow::Result<ExitCode> {
    bail!("keyring is not supported: there is no gossip and no encryption key for it")
}

/// # Errors
///
/// Always.
pub(crate) fn resource() -> anyhow::Result<ExitCode> {
    bail!(
        "resource is not supported: it uses an API that Consul itself has removed. Use \
         config, intention and services"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn troubleshoot() -> anyhow::Result<ExitCode> {
    bail!(
        "troubleshoot is not supported: `legate proxy` shows the state of a proxy, and `legate \
         check` checks a mesh on Kubernetes"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn connect_proxy() -> anyhow::Result<ExitCode> {
    bail!(
        "connect proxy is not supported: it is for tests only. Use `connect envoy -sidecar-for SERVICE`, \
         or legate-dataplane"
    )
}
