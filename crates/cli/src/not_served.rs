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

pub(crate) const KEYRING: &str =
    "keyring is not supported: there is no gossip and no encryption key for it";
pub(crate) const RESOURCE: &str = "resource is not supported: it uses an API that Consul itself has removed. Use config, intention \
    and services";
pub(crate) const TROUBLESHOOT: &str = "troubleshoot is not supported: `legate proxy` shows the state of a proxy, and `legate check` \
    checks a mesh on Kubernetes";
pub(crate) const CONNECT_PROXY: &str = "connect proxy is not supported: it is for tests only. Use `connect envoy -sidecar-for SERVICE`, \
    or legate-dataplane";

/// # Errors
///
/// Always, with the reason.
pub(crate) fn refuse(reason: &'static str) -> anyhow::Result<ExitCode> {
    bail!(reason)
}
