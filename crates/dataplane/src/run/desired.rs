//! What Envoy shall run: the program, its arguments and its bootstrap document, made from the
//! settings, the proxy's parameters and the files of now. It asks no server and starts nothing.

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
use crate::settings::Settings;

/// Makes configurations of Envoy.
#[derive(Debug, Clone)]
pub(super) struct Desired {
    pub(super) settings: Settings,
    /// Where the relay listens.
    pub(super) xds: XdsAddress,
}

/// A configuration of Envoy.
#[derive(Debug, Clone)]
pub(super) struct Configured {
    pub(super) envoy: EnvoyConfig,
    /// The proxy's telemetry keys, which the dataplane follows as well.
    pub(super) telemetry: ProxyConfig,
    /// What people should know about the document.
    warnings: Vec<String>,
}

impl Configured {
    /// Tells what people should know; once for each configuration that is used.
    pub(super) fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

impl Desired {
    /// The program of now.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn executable(settings: &Settings) -> anyhow::Result<PathBuf> {
        let path = settings.environment.get_os("PATH");
        Ok(find_executable(settings.envoy.executable.as_deref(), path)?)
    }

    /// What tells, without reading them, whether another program or other files are there by now.
    pub(super) fn stamp(&self) -> FileStamp {
        let program = Self::executable(&self.settings).ok();
        let tls = self.settings.telemetry.prometheus_tls.iter();
        let files = tls.flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key]);
        FileStamp::of(program.iter().chain(files).map(PathBuf::as_path))
    }

    /// The configuration that follows from `params` and the files of now.
    ///
    /// # Errors
    /// When a telemetry key, a file, the program or an argument cannot be used.
    pub(super) fn configure(
        &self,
        params: &GetEnvoyBootstrapParamsResponse,
    ) -> anyhow::Result<Configured> {
        let settings = &self.settings;
        let inputs = bootstrap::inputs(settings, params, self.xds.clone()).map_err(failed)?;
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

/// In the words of Consul's dataplane.
pub(super) fn failed(error: BootstrapError) -> anyhow::Error {
    anyhow!("failed to get bootstrap config: {error}")
}

/// A configuration that nobody wants to run: for the end of what a former dataplane left.
///
/// # Errors
/// When there is no program.
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

/// The files that the document names. Envoy reads them when it starts and never again.
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
