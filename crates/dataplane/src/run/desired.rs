//! The configuration that Envoy should run with: program, arguments and bootstrap document, built
//! from the settings, the proxy's parameters and the current files. Contacts no server and starts
//! nothing.

use std::path::PathBuf;

use anyhow::anyhow;
use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::bootstrap::{
    self as envoy_bootstrap, BootstrapError, BootstrapInputs, ProxyConfig, XdsAddress,
};
use legate_envoy::find_executable;
use legate_envoy::process::Launch;
use legate_envoy::supervision::EnvoyConfig;
use legate_runtime::file_stamp::FileStamp;

use crate::bootstrap;
use crate::settings::{ProxyKind, Settings};

/// Builds configurations of Envoy.
#[derive(Debug, Clone)]
pub(super) struct Desired {
    pub(super) settings: Settings,
    /// Address at which the relay listens.
    pub(super) xds: XdsAddress,
}

/// A configuration of Envoy.
#[derive(Debug, Clone)]
pub(super) struct Configured {
    pub(super) envoy: EnvoyConfig,
    /// The proxy's telemetry keys, which the dataplane follows too.
    pub(super) telemetry: ProxyConfig,
    /// Problems of the document that operators should see.
    warnings: Vec<String>,
}

impl Configured {
    /// Logs the warnings. Called once for each configuration that is used.
    pub(super) fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

impl Desired {
    /// The program that would be started now.
    ///
    /// # Errors
    /// When it cannot be found.
    pub(super) fn executable(settings: &Settings) -> anyhow::Result<PathBuf> {
        let path = settings.environment.get_os("PATH");
        Ok(find_executable(settings.envoy.executable.as_deref(), path)?)
    }

    /// A cheap fingerprint of the program and the files, which changes when one of them is
    /// replaced.
    pub(super) fn stamp(&self) -> FileStamp {
        let program = Self::executable(&self.settings).ok();
        let tls = self.settings.telemetry.prometheus_tls.iter();
        let files = tls.flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key]);
        FileStamp::of(program.iter().chain(files).map(PathBuf::as_path))
    }

    /// The configuration that results from `params` and the current files.
    ///
    /// # Errors
    /// When a telemetry key, a file, the program or an argument cannot be used.
    pub(super) fn configure(
        &self,
        params: &GetEnvoyBootstrapParamsResponse,
    ) -> anyhow::Result<Configured> {
        let settings = &self.settings;
        let mut inputs = bootstrap::inputs(settings, params, self.xds.clone()).map_err(failed)?;
        if settings.envoy.kind == ProxyKind::Auto {
            // This process serves these pages, whichever proxy they are of.
            inputs.ready = None;
            inputs.proxy_config.stats_bind_addr = None;
            if settings.telemetry.prometheus_tls.is_none() {
                inputs.proxy_config.prometheus_bind_addr = None;
            }
        }
        let built = envoy_bootstrap::build(&inputs).map_err(failed)?;
        let launch = launch(settings, built.document.to_string())?;
        launch.check()?;
        Ok(Configured {
            envoy: EnvoyConfig::new(launch).reading(files(&inputs)),
            warnings: built.warnings,
            telemetry: inputs.proxy_config,
        })
    }
}

/// Wraps the error in the message of Consul's dataplane.
pub(super) fn failed(error: BootstrapError) -> anyhow::Error {
    anyhow!("failed to get bootstrap config: {error}")
}

/// A configuration that is never started. Used to end Envoys that a former dataplane left running.
///
/// # Errors
/// When the program cannot be found.
pub(super) fn none(settings: &Settings) -> anyhow::Result<EnvoyConfig> {
    let launch = launch(settings, "{}".to_owned())?;
    Ok(EnvoyConfig::new(launch))
}

fn launch(settings: &Settings, bootstrap: String) -> anyhow::Result<Launch> {
    Ok(Launch {
        executable: Desired::executable(settings)?,
        bootstrap,
        log: settings.logging,
        concurrency: settings.envoy.concurrency,
        drain_time: settings.envoy.drain_time,
        drain_strategy: settings.envoy.drain_strategy,
        extra_args: settings.envoy.extra_args.clone(),
    })
}

/// Files that the bootstrap document refers to. Envoy reads them only when it starts.
fn files(inputs: &BootstrapInputs) -> Vec<PathBuf> {
    let Some(tls) = inputs
        .prometheus
        .tls
        .as_ref()
        .filter(|_| inputs.proxy_config.prometheus_bind_addr.is_some())
    else {
        return Vec::new();
    };
    let mut files = vec![tls.certificate.clone(), tls.key.clone()];
    if tls.ca_pem.is_none() {
        files.push(tls.ca.clone());
    }
    files
}
