//! Probes: one run of a check connects, sends a request, and returns a status with an output, within
//! the timeout.

mod dial;
mod docker;
mod grpc;
mod h2ping;
mod http;
mod names;
pub(crate) mod output;
mod script;
mod udp;

use std::time::Duration;

use legate_model::{CheckStatus, CheckType};
use tokio::time::timeout;

use self::dial::Dialer;
use self::output::{RunResult, cut, size};
use crate::settings::Settings;

/// Default timeout of a run, as in Consul.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default timeout of a program.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs checks; contains the state that all runs share.
#[derive(Debug, Default)]
pub(crate) struct Prober {
    settings: Settings,
    dialer: Dialer,
}

impl Prober {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Runs a check once.
    pub(crate) async fn run(&self, check: &CheckType) -> RunResult {
        let kind = check.type_name();
        let (settings, dialer) = (&self.settings, &self.dialer);
        let size = size(check, settings);
        let limit = match check.timeout {
            Duration::ZERO if check.is_script() => SCRIPT_TIMEOUT,
            Duration::ZERO => DEFAULT_TIMEOUT,
            own => own,
        };
        if kind == "script" {
            return script::run(&check.script_args, limit, size).await;
        }
        if kind == "docker" {
            return docker::run(dialer, &settings.docker_host, check, limit, size).await;
        }
        let run = async {
            match kind {
                "http" => http::run(dialer, check, size).await,
                "grpc" => grpc::run(dialer, check).await,
                "h2ping" => h2ping::run(dialer, check).await,
                "udp" => udp::run(dialer, check).await,
                _ => tcp(dialer, check).await,
            }
        };
        let (status, mut output) = timeout(limit, run).await.unwrap_or_else(|_| {
            let output = format!("no answer within {limit:?}");
            (CheckStatus::Critical, output)
        });
        cut(&mut output, size);
        (status, output)
    }
}

async fn tcp(dialer: &Dialer, check: &CheckType) -> RunResult {
    let address = check.tcp.as_str();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let tls = check.tcp_use_tls.then_some([].as_slice());
    let over = if check.tcp_use_tls { "TCP+TLS" } else { "TCP" };
    match dialer.connect(check, address, host, tls).await {
        Ok(_) => (
            CheckStatus::Passing,
            format!("{over} connect {address}: Success"),
        ),
        Err(error) => (
            CheckStatus::Critical,
            format!("{over} connect {address}: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests;
