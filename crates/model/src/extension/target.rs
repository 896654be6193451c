//! Targets that extensions call: an upstream service, or an address on the proxy's own machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;
use crate::invalid::Invalid;
use crate::tenancy::TenancyName;

/// A service reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TargetService {
    /// Name of the service.
    pub name: String,
    /// Namespace; empty means the proxy's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the proxy's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl TargetService {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        for (field, name) in [
            ("Namespace", &self.namespace),
            ("Partition", &self.partition),
        ] {
            if name.is_every() {
                let reason = "\"*\" is not allowed here: name one";
                return Err(Invalid::new(field, reason));
            }
        }
        Ok(())
    }
}

/// The called service; exactly one of `Service` and `URI` is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Target {
    /// An upstream of the proxy.
    pub service: TargetService,
    /// `host:port`, optionally after `http://`. The host is `localhost`, `127.0.0.1` or `::1`.
    #[serde(rename = "URI")]
    pub uri: String,
    /// Timeout, such as `2s`; empty means Envoy's default.
    pub timeout: String,
}

/// An address on the proxy's own machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// `localhost`, `127.0.0.1` or `::1`.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// The address of a target that is not a service.
    pub fn address(&self) -> Option<Address> {
        let (_, address) = self.uri.split_once("://").unwrap_or(("", &self.uri));
        let (host, port) = address.rsplit_once(':')?;
        let host = match host {
            "" => "localhost",
            host => host,
        };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Address {
            host: host.to_owned(),
            port,
        })
    }

    /// The timeout, if it is set.
    pub fn timeout(&self) -> Option<Duration> {
        let timeout: GoDuration = self.timeout.parse().ok()?;
        Some(timeout.to_duration())
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let uri = &self.uri;
        if uri.is_empty() == self.service.name.is_empty() {
            return Err(Invalid::new(
                "Service",
                "exactly one of Target.Service or Target.URI must be set",
            ));
        }
        let service = self.service.validate();
        service.map_err(|error| error.within("Service"))?;
        if !uri.is_empty() {
            let Some(address) = self.address() else {
                let reason = format!("invalid format for Target.URI {uri:?}: expected host:port");
                return Err(Invalid::new("URI", reason));
            };
            if !matches!(address.host.as_str(), "localhost" | "127.0.0.1" | "::1") {
                let reason = format!(
                    "invalid host for Target.URI {uri:?}: expected \"localhost\", \"127.0.0.1\", or \"::1\""
                );
                return Err(Invalid::new("URI", reason));
            }
        }
        validate_duration("Timeout", &self.timeout)
    }
}

/// Validates a positive duration, or an empty text.
pub(super) fn validate_duration(field: &str, text: &str) -> Result<(), Invalid> {
    let refuse = |reason: String| Err(Invalid::new(field, reason));
    if text.is_empty() {
        return Ok(());
    }
    match text.parse::<GoDuration>() {
        Ok(duration) if duration.is_negative() || duration.is_zero() => {
            refuse(format!("{text:?} must be longer than zero"))
        }
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("failed to parse {text:?} as a duration: {error}")),
    }
}

/// A header that is added to every call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HeaderValue {
    /// The header's name.
    pub key: String,
    /// The header's value.
    pub value: String,
}

impl HeaderValue {
    pub(super) fn validate_all(field: &str, headers: &[Self]) -> Result<(), Invalid> {
        match headers.iter().position(|header| header.key.is_empty()) {
            Some(at) => Err(Invalid::new(format!("{field}[{at}].Key"), "it is required")),
            None => Ok(()),
        }
    }
}

/// A gRPC service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GrpcService {
    /// Address of the service.
    pub target: Target,
    /// `:authority` of calls; empty means the name of the cluster.
    pub authority: String,
    /// Headers that are added to every call.
    pub initial_metadata: Vec<HeaderValue>,
}

impl GrpcService {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        self.target
            .validate()
            .map_err(|error| error.within("Target"))?;
        HeaderValue::validate_all("InitialMetadata", &self.initial_metadata)
    }
}
