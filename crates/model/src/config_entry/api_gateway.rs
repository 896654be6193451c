//! `api-gateway`: the listeners of a gateway that routes are bound to. `bound-api-gateway`: the
//! routes that are bound, computed when the entry is read and never stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::mesh::validate_tls;
use super::reference::{ResourceReference, Status};
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::jwt_requirement::JwtRequirement;
use crate::{meta, name};

/// Config entry kinds that a listener's certificate can refer to; the first is the default.
const CERTIFICATES: [&str; 2] = ["inline-certificate", "file-system-certificate"];

entry! {
    /// The listeners of one gateway.
    pub struct ApiGateway {
        /// The service that the gateway is registered as.
        pub name: String,
        /// Listeners, each with a port and a protocol.
        #[serde(serialize_with = "null_if_empty")]
        pub listeners: Vec<ApiGatewayListener>,
        /// Status, computed when the entry is read.
        pub status: Status,
    }
}

/// A port of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ApiGatewayListener {
    /// Name that routes refer to, unique in the gateway.
    pub name: String,
    /// The host name of its requests; empty means any.
    pub hostname: String,
    /// The port; several listeners can share one.
    pub port: u16,
    /// `http` or `tcp`.
    pub protocol: String,
    /// TLS settings.
    #[serde(rename = "TLS")]
    pub tls: ApiGatewayTls,
    /// Policy that takes precedence over that of routes.
    #[serde(rename = "Override", skip_serializing_if = "Option::is_none")]
    pub overrides: Option<ApiGatewayPolicy>,
    /// Policy for routes without one.
    #[serde(rename = "Default", skip_serializing_if = "Option::is_none")]
    pub defaults: Option<ApiGatewayPolicy>,
}

/// TLS of a listener; without certificates it accepts plaintext connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ApiGatewayTls {
    /// References to certificate entries.
    #[serde(serialize_with = "null_if_empty")]
    pub certificates: Vec<ResourceReference>,
    /// `TLS_AUTO`, `TLSv1_0`, `TLSv1_1`, `TLSv1_2`, `TLSv1_3`.
    pub max_version: String,
    /// Same values as the other bound.
    pub min_version: String,
    /// `TLS_…` names; not with TLS 1.3 as the lowest version.
    #[serde(serialize_with = "null_if_empty")]
    pub cipher_suites: Vec<String>,
}

/// Authentication of requests. Consul Enterprise only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ApiGatewayPolicy {
    /// The required token.
    #[serde(rename = "JWT", skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRequirement>,
}

impl Entry for ApiGateway {
    const RIGHTS: EntryRights = EntryRights::Gateway;

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        if self.listeners.is_empty() {
            return Err(Invalid::new(
                "Listeners",
                "api gateway must have at least one listener",
            ));
        }
        for (at, listener) in self.listeners.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Listeners[{at}]"));
            listener
                .validate_among(&self.listeners[..at])
                .map_err(within)?;
            listener.validate().map_err(within)?;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        for listener in &mut self.listeners {
            listener.protocol = listener.protocol.to_lowercase();
            for certificate in &mut listener.tls.certificates {
                if certificate.kind.is_empty() {
                    certificate.kind = CERTIFICATES[0].to_owned();
                }
            }
        }
    }
}

impl ApiGatewayListener {
    /// Names must be unique, and listeners on one port must be compatible.
    fn validate_among(&self, earlier: &[Self]) -> Result<(), Invalid> {
        if !is_listener_name(&self.name) {
            return Err(Invalid::new(
                "Name",
                format!(
                    "listener name {:?} is invalid, must be at least 1 character and contain only \
                     letters, numbers, or dashes",
                    self.name
                ),
            ));
        }
        if earlier.iter().any(|other| other.name == self.name) {
            let reason = format!("found multiple listeners with the name {:?}", self.name);
            return Err(Invalid::new("Name", reason));
        }
        let same = |other: &Self| {
            other.hostname == self.hostname && other.protocol.eq_ignore_ascii_case(&self.protocol)
        };
        let mut of_port = earlier.iter().filter(|other| other.port == self.port);
        match of_port.find(|other| !same(other)) {
            None => Ok(()),
            Some(other) => Err(Invalid::new(
                "Port",
                format!(
                    "listeners {:?} and {:?} cannot be merged",
                    other.name, self.name
                ),
            )),
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        let is_tcp = self.protocol.eq_ignore_ascii_case("tcp");
        if !is_tcp && !self.protocol.eq_ignore_ascii_case("http") {
            return Err(Invalid::new(
                "Protocol",
                format!(
                    "unsupported listener protocol {:?}, must be one of 'tcp', or 'http'",
                    self.protocol.to_lowercase()
                ),
            ));
        }
        if is_tcp && !self.hostname.is_empty() {
            return Err(Invalid::new(
                "Hostname",
                "hostname specification is not supported when using TCP",
            ));
        }
        if self.port == 0 {
            return Err(Invalid::new(
                "Port",
                "listener port 0 not in the range 1-65535",
            ));
        }
        let host = self.hostname.strip_prefix("*.").unwrap_or(&self.hostname);
        if host.contains('*') {
            return Err(Invalid::new(
                "Hostname",
                format!(
                    "host {:?} is not valid, a wildcard specifier is only allowed as the left-most \
                     label",
                    self.hostname
                ),
            ));
        }
        self.tls.validate().map_err(|error| error.within("TLS"))?;
        for (field, policy) in [("Override", &self.overrides), ("Default", &self.defaults)] {
            if let Some(jwt) = policy.as_ref().and_then(|policy| policy.jwt.as_ref()) {
                jwt.validate()
                    .map_err(|error| error.within(format_args!("{field}.JWT")))?;
            }
        }
        Ok(())
    }
}

impl ApiGatewayTls {
    /// Whether nothing is set, so that the listener accepts plaintext connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
            && self.min_version.is_empty()
            && self.max_version.is_empty()
            && self.cipher_suites.is_empty()
    }

    fn validate(&self) -> Result<(), Invalid> {
        for (at, certificate) in self.certificates.iter().enumerate() {
            let refused = |reason: String| Err(Invalid::new(format!("Certificates[{at}]"), reason));
            let kind = certificate.kind.as_str();
            if !kind.is_empty() && !CERTIFICATES.contains(&kind) {
                return refused(format!(
                    "unsupported certificate kind: {kind:?}, must be 'file-system-certificate' or \
                     'inline-certificate'"
                ));
            }
            if certificate.name.is_empty() {
                return refused("certificate reference must have a name".to_owned());
            }
        }
        validate_tls(
            "",
            (&self.min_version, &self.max_version),
            &self.cipher_suites,
        )
    }
}

/// Lower-case labels of letters, digits and dashes, separated by dots.
fn is_listener_name(name: &str) -> bool {
    let end = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.split('.').all(|label| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        end(label.bytes().next()) && end(label.bytes().last()) && label.bytes().all(inner)
    })
}

entry! {
    /// Bindings of a gateway. Clients can read it; nobody writes it.
    pub struct BoundApiGateway {
        /// The gateway.
        pub name: String,
        /// Bindings of each listener.
        #[serde(serialize_with = "null_if_empty")]
        pub listeners: Vec<BoundListener>,
        /// Routes by the service that they route to.
        pub services: BTreeMap<String, Vec<ResourceReference>>,
    }
}

/// Bindings of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BoundListener {
    /// The listener.
    pub name: String,
    /// Bound routes.
    #[serde(serialize_with = "null_if_empty")]
    pub routes: Vec<ResourceReference>,
    /// Certificates in use.
    #[serde(serialize_with = "null_if_empty")]
    pub certificates: Vec<ResourceReference>,
}

impl Entry for BoundApiGateway {
    const RIGHTS: EntryRights = EntryRights::Bound;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)
    }
}
