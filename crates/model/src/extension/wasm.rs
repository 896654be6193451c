//! `builtin/wasm`: a WebAssembly filter.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use super::target::{TargetService, validate_duration};
use crate::duration::GoDuration;
use crate::invalid::Invalid;

/// Runtimes that Consul accepts. Which ones are available depends on Envoy's build; official builds
/// have `v8`.
const RUNTIMES: [&str; 4] = ["v8", "wamr", "wavm", "wasmtime"];

/// Arguments of the extension.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Wasm {
    /// Whether it filters requests or connections.
    pub protocol: WasmProtocol,
    /// `connect-proxy` or empty.
    pub proxy_type: String,
    /// Listeners that it applies to.
    pub listener_type: Direction,
    /// The filter's settings.
    pub plugin_config: WasmPlugin,
}

/// Level of a filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WasmProtocol {
    /// Unset.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Filters connections.
    Tcp,
    /// Filters requests.
    Http,
}

/// A filter's settings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmPlugin {
    /// Its name, for logs and for filters that share a VM.
    pub name: String,
    /// Filters with the same id share their root context.
    #[serde(rename = "RootID")]
    pub root_id: String,
    /// The VM of the filter.
    pub vm_config: WasmVm,
    /// Configuration that is passed to the filter when it starts.
    pub configuration: String,
    /// Functions that the filter may call.
    pub capability_restriction_configuration: CapabilityRestriction,
}

/// The VM of a filter.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmVm {
    /// Filters with the same id and the same code share a VM.
    #[serde(rename = "VmID")]
    pub vm_id: String,
    /// `v8`, `wamr`, `wavm` or `wasmtime`; empty means `v8`.
    pub runtime: String,
    /// Source of the code.
    pub code: WasmCode,
    /// Configuration that is passed to the VM when it starts.
    pub configuration: String,
    /// Environment variables that the filter can read.
    pub environment_variables: EnvironmentVariables,
}

/// Source of the code; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmCode {
    /// A file on Envoy's machine.
    pub local: WasmLocal,
    /// A file that Envoy fetches from an upstream.
    pub remote: WasmRemote,
}

/// A file on Envoy's machine.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmLocal {
    /// Its path.
    pub filename: String,
}

/// A file that Envoy fetches from an upstream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRemote {
    /// URL of the file.
    #[serde(rename = "HttpURI")]
    pub http_uri: WasmUri,
    /// SHA-256 of the file in hexadecimal. Files with another checksum are not run.
    #[serde(rename = "SHA256")]
    pub sha256: String,
    /// Retry policy of the download.
    pub retry_policy: WasmRetryPolicy,
}

/// URL of a file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmUri {
    /// The upstream that serves the file.
    pub service: TargetService,
    /// URL of the file on the upstream.
    #[serde(rename = "URI")]
    pub uri: String,
    /// Timeout of the download, such as `2s`; empty means 1 s.
    pub timeout: String,
}

/// Retry policy of a download.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRetryPolicy {
    /// Backoff between attempts.
    pub retry_back_off: WasmRetryBackOff,
    /// The maximum number of retries; 0 means Envoy's default.
    pub num_retries: u32,
}

/// Backoff between attempts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRetryBackOff {
    /// Initial backoff, such as `1s`.
    pub base_interval: String,
    /// Maximum backoff; empty means ten times the initial one.
    pub max_interval: String,
}

/// Environment variables that a filter can read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EnvironmentVariables {
    /// Names of Envoy's variables that are passed on.
    pub host_env_keys: Vec<String>,
    /// Additional variables.
    pub key_values: BTreeMap<String, String>,
}

/// Functions that a filter may call; empty permits all.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CapabilityRestriction {
    /// Permitted functions by name; values are ignored.
    pub allowed_capabilities: BTreeMap<String, IgnoredAny>,
}

fn duration(text: &str) -> Option<Duration> {
    let duration: GoDuration = text.parse().ok()?;
    Some(duration.to_duration())
}

impl WasmUri {
    /// Timeout of the download.
    pub fn timeout(&self) -> Duration {
        duration(&self.timeout).unwrap_or(Duration::from_secs(1))
    }
}

impl WasmRetryBackOff {
    /// Initial backoff, if it is set.
    pub fn base(&self) -> Option<Duration> {
        duration(&self.base_interval)
    }

    /// Maximum backoff, if it is set.
    pub fn max(&self) -> Option<Duration> {
        duration(&self.max_interval)
    }
}

impl Wasm {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.protocol == WasmProtocol::Default {
            return Err(Invalid::new(
                "Protocol",
                "it is required: set it to tcp or http",
            ));
        }
        validate_proxy_type(&self.proxy_type)?;
        self.listener_type.require("ListenerType")?;
        let machine = &self.plugin_config.vm_config;
        let at = |error: Invalid| error.within("PluginConfig.VmConfig");
        if !machine.runtime.is_empty() && !RUNTIMES.contains(&machine.runtime.as_str()) {
            let reason = format!(
                "unsupported runtime {:?}: there are {}",
                machine.runtime,
                RUNTIMES.join(", ")
            );
            return Err(at(Invalid::new("Runtime", reason)));
        }
        machine
            .code
            .validate()
            .map_err(|error| at(error.within("Code")))
    }
}

impl WasmCode {
    fn validate(&self) -> Result<(), Invalid> {
        let uri = &self.remote.http_uri;
        let is_local = !self.local.filename.is_empty();
        let is_remote = !uri.service.name.is_empty() || !uri.uri.is_empty();
        if is_local == is_remote {
            let reason = "VmConfig.Code must provide exactly one of Local or Remote data source";
            return Err(Invalid::new("Local", reason));
        }
        match is_local {
            true => Ok(()),
            false => self
                .remote
                .validate()
                .map_err(|error| error.within("Remote")),
        }
    }
}

impl WasmRemote {
    fn validate(&self) -> Result<(), Invalid> {
        let uri = &self.http_uri;
        if uri.service.name.is_empty() || uri.uri.is_empty() {
            let reason = "both Service and URI are required for Remote data sources";
            return Err(Invalid::new("HttpURI", reason));
        }
        let service = uri.service.validate();
        service.map_err(|error| error.within("HttpURI.Service"))?;
        let (scheme, rest) = uri.uri.split_once("://").unwrap_or(("http", &uri.uri));
        let is_text = uri.uri.bytes().all(|byte| byte.is_ascii_graphic());
        if scheme.is_empty() || rest.is_empty() || rest.starts_with('/') || !is_text {
            let reason = format!("invalid HttpURI.URI: {:?} is not a URL", uri.uri);
            return Err(Invalid::new("HttpURI.URI", reason));
        }
        validate_duration("HttpURI.Timeout", &uri.timeout)?;
        let is_hex = self.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if self.sha256.len() != 64 || !is_hex {
            let reason =
                "SHA256 checksum is required for Remote data sources: 64 hexadecimal digits";
            return Err(Invalid::new("SHA256", reason));
        }
        let back_off = &self.retry_policy.retry_back_off;
        let at = |error: Invalid| error.within("RetryPolicy.RetryBackOff");
        validate_duration("BaseInterval", &back_off.base_interval).map_err(at)?;
        validate_duration("MaxInterval", &back_off.max_interval).map_err(at)?;
        match (back_off.base(), back_off.max()) {
            (None, Some(_)) => Err(at(Invalid::new(
                "BaseInterval",
                "it is required with MaxInterval",
            ))),
            (Some(base), Some(max)) if max < base => Err(at(Invalid::new(
                "MaxInterval",
                "it must be greater than or equal to RetryBackOff.BaseInterval",
            ))),
            _ => Ok(()),
        }
    }
}
