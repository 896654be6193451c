//! `builtin/wasm`: a filter in WebAssembly.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use super::target::{TargetService, validate_duration};
use crate::duration::GoDuration;
use crate::invalid::Invalid;

/// The machines that Consul knows. Which of them an Envoy has was decided when it was built; the
/// published ones have `v8`.
const RUNTIMES: [&str; 4] = ["v8", "wamr", "wavm", "wasmtime"];

/// The arguments.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Wasm {
    /// Whether it sees requests or connections.
    pub protocol: WasmProtocol,
    /// `connect-proxy`, or left out.
    pub proxy_type: String,
    /// The listeners that it is for.
    pub listener_type: Direction,
    /// The filter.
    pub plugin_config: WasmPlugin,
}

/// What a filter sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WasmProtocol {
    /// Not said.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Connections.
    Tcp,
    /// Requests.
    Http,
}

/// The filter.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmPlugin {
    /// Its name, for filters that share a machine, and for logs.
    pub name: String,
    /// Filters with the same one share their root context.
    #[serde(rename = "RootID")]
    pub root_id: String,
    /// The machine that it runs in.
    pub vm_config: WasmVm,
    /// Handed to the filter when it starts.
    pub configuration: String,
    /// What the filter may call.
    pub capability_restriction_configuration: CapabilityRestriction,
}

/// The machine that a filter runs in.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmVm {
    /// Filters with the same one and the same code share the machine.
    #[serde(rename = "VmID")]
    pub vm_id: String,
    /// `v8`, `wamr`, `wavm` or `wasmtime`; empty is `v8`.
    pub runtime: String,
    /// Where the code is.
    pub code: WasmCode,
    /// Handed to the machine when it starts.
    pub configuration: String,
    /// What the filter sees as environment variables.
    pub environment_variables: EnvironmentVariables,
}

/// Where the code is: exactly one of the two.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmCode {
    /// A file where Envoy runs.
    pub local: WasmLocal,
    /// A file that Envoy gets from an upstream.
    pub remote: WasmRemote,
}

/// A file where Envoy runs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmLocal {
    /// Its path.
    pub filename: String,
}

/// A file that Envoy gets from an upstream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRemote {
    /// Where it is.
    #[serde(rename = "HttpURI")]
    pub http_uri: WasmUri,
    /// SHA-256 of the file in hexadecimal: another file is not run.
    #[serde(rename = "SHA256")]
    pub sha256: String,
    /// When it is asked for again.
    pub retry_policy: WasmRetryPolicy,
}

/// Where a file is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmUri {
    /// The upstream.
    pub service: TargetService,
    /// The file on it.
    #[serde(rename = "URI")]
    pub uri: String,
    /// How long it may take, such as `2s`; empty is a second.
    pub timeout: String,
}

/// When a file is asked for again.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRetryPolicy {
    /// The time between.
    pub retry_back_off: WasmRetryBackOff,
    /// How often at most; 0 is Envoy's default.
    pub num_retries: u32,
}

/// The time between two attempts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WasmRetryBackOff {
    /// The first one, such as `1s`.
    pub base_interval: String,
    /// The longest; empty is ten times the first one.
    pub max_interval: String,
}

/// What a filter sees as environment variables.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EnvironmentVariables {
    /// Those of Envoy with these names.
    pub host_env_keys: Vec<String>,
    /// Others.
    pub key_values: BTreeMap<String, String>,
}

/// What a filter may call; everything when nothing is named.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CapabilityRestriction {
    /// By name; the values say nothing.
    pub allowed_capabilities: BTreeMap<String, IgnoredAny>,
}

fn duration(text: &str) -> Option<Duration> {
    let duration: GoDuration = text.parse().ok()?;
    Some(duration.to_duration())
}

impl WasmUri {
    /// How long the file may take.
    pub fn timeout(&self) -> Duration {
        duration(&self.timeout).unwrap_or(Duration::from_secs(1))
    }
}

impl WasmRetryBackOff {
    /// The first time between two attempts, when it is said.
    pub fn base(&self) -> Option<Duration> {
        duration(&self.base_interval)
    }

    /// The longest, when it is said.
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
            let reason = format!("invalid HttpURI.URI: {:?} is no URL", uri.uri);
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
