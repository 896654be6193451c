//! Commands of Consul that are not served: each says why, and what to use instead.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// All words of a command that is not looked at.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Anything {
    /// Whatever it is
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<String>,
}

/// # Errors
///
/// Always.
pub(crate) fn exec() -> anyhow::Result<ExitCode> {
    bail!(
        "exec is not served: nothing runs commands on other nodes. Use ssh, or kubectl exec on \
         Kubernetes"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn keyring() -> anyhow::Result<ExitCode> {
    bail!(
        "keyring is not served: there is no gossip, and so no key that it would be encrypted with"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn resource() -> anyhow::Result<ExitCode> {
    bail!(
        "resource is not served: it is for an API that Consul itself does not offer any more. Use \
         config, intention and services"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn troubleshoot() -> anyhow::Result<ExitCode> {
    bail!(
        "troubleshoot is not served: `legate proxy` shows what a proxy has and does, and `legate \
         check` looks at a mesh on Kubernetes"
    )
}

/// # Errors
///
/// Always.
pub(crate) fn connect_proxy() -> anyhow::Result<ExitCode> {
    bail!(
        "connect proxy is not served: it is for tests only. Use `connect envoy -sidecar-for SERVICE`, \
         or legate-dataplane"
    )
}
