//! Key sets for verifying JSON Web Tokens: in the entry, in a file of every proxy, or on a server
//! that proxies fetch them from.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::schema;
use crate::tenancy::NotServed;

/// Default discovery type of the key server's address, as in Consul.
const STRICT_DNS: &str = "STRICT_DNS";
const DISCOVERY: [&str; 3] = [STRICT_DNS, "STATIC", "LOGICAL_DNS"];

/// Source of the keys for verifying tokens; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "has(self.local) != has(self.remote)",
        "exactly one of local and remote is needed",
    ),
]))]
pub struct JsonWebKeySet {
    /// Keys in the entry, or in a file of every proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalJwks>,
    /// Keys on a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteJwks>,
}

/// Keys that proxies do not have to fetch; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule("{jwks} != {filename}", "exactly one of jwks and filename is needed"),
]))]
pub struct LocalJwks {
    /// The JSON Web Key Set in base64.
    #[serde(rename = "JWKS", skip_serializing_if = "String::is_empty")]
    pub jwks: String,
    /// Path of a file with the JSON Web Key Set on every proxy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filename: String,
}

/// Keys on a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["URI"]))]
pub struct RemoteJwks {
    /// `http://…` or `https://…`.
    #[serde(rename = "URI", skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1))]
    pub uri: String,
    /// Request timeout in milliseconds; 0 means 5,000.
    #[serde(skip_serializing_if = "is_zero")]
    pub request_timeout_ms: u32,
    /// How long keys are cached before they are fetched again; 0 means Envoy's 10 min.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub cache_duration: Duration,
    /// Whether the listener accepts connections before the keys have been fetched. Until then it
    /// refuses requests with tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fetch_asynchronously: bool,
    /// Whether the TLS handshake includes the server name (SNI).
    #[serde(rename = "UseSNI", skip_serializing_if = "std::ops::Not::not")]
    pub use_sni: bool,
    /// Retry policy of requests; if unset, there are no retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<JwksRetryPolicy>,
    /// Connection to the server.
    #[serde(rename = "JWKSCluster", skip_serializing_if = "Option::is_none")]
    pub jwks_cluster: Option<JwksCluster>,
}

/// Retry policy of requests for keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksRetryPolicy {
    /// The maximum number of retries.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_retries: u32,
    /// Backoff between retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy_back_off: Option<JwksBackOff>,
}

/// Backoff between requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksBackOff {
    /// Initial backoff; 0 means Envoy's 1 s.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub base_interval: Duration,
    /// Maximum backoff; 0 means Envoy's default, ten times the initial one.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub max_interval: Duration,
}

/// Connection to the key server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksCluster {
    /// How the address is resolved: `STRICT_DNS` (the default when empty), `LOGICAL_DNS`, or `STATIC`
    /// for an IP address. With `STATIC`, host names are resolved as well.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["", "STRICT_DNS", "STATIC", "LOGICAL_DNS", "EDS", "ORIGINAL_DST"]))]
    pub discovery_type: String,
    /// Trusted certificates for the server. If unset, its certificate is not verified.
    #[serde(rename = "TLSCertificates", skip_serializing_if = "Option::is_none")]
    pub tls_certificates: Option<JwksTlsCertificates>,
    /// Connect timeout; 0 means Envoy's 5 s.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub connect_timeout: Duration,
}

/// Trusted certificates for the key server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "has(self.caCertificateProviderInstance) != has(self.trustedCA)",
        "exactly one of caCertificateProviderInstance and trustedCA is needed",
    ),
]))]
pub struct JwksTlsCertificates {
    /// Refused: Envoy has no certificate providers and would verify nothing.
    #[serde(skip_serializing)]
    #[schemars(schema_with = "certificate_provider")]
    pub ca_certificate_provider_instance: NotServed,
    /// CA certificates.
    #[serde(rename = "TrustedCA", skip_serializing_if = "Option::is_none")]
    pub trusted_ca: Option<JwksTrustedCa>,
}

/// CA certificates in PEM; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::exactly_one(&["filename", "environmentVariable", "inlineString", "inlineBytes"]),
]))]
pub struct JwksTrustedCa {
    /// Path of a file on every proxy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filename: String,
    /// Name of an environment variable of every Envoy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub environment_variable: String,
    /// The PEM itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inline_string: String,
    /// The PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "byte"))]
    pub inline_bytes: String,
}

fn certificate_provider(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "InstanceName": { "type": "string", "description": "Its name. Default `default`." },
            "CertificateName": { "type": "string", "description": "The name of the certificate." },
        },
    })
}

/// Location of the key server, parsed from its URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyServer {
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Host name or IP address, without brackets.
    pub host: String,
    /// The port; 80 or 443 if the URI has none.
    pub port: u16,
}

impl JsonWebKeySet {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match (&self.local, &self.remote) {
            (Some(local), None) => local.validate().map_err(|error| error.within("Local")),
            (None, Some(remote)) => remote.validate().map_err(|error| error.within("Remote")),
            _ => Err(Invalid::new(
                "Local",
                "must specify exactly one of Local or Remote JSON Web key set",
            )),
        }
    }
}

impl LocalJwks {
    /// The inline key set as JSON. `None` if it is in a file or invalid; writes refuse entries with
    /// invalid keys.
    pub fn key_set(&self) -> Option<String> {
        decode(&self.jwks).filter(|text| is_key_set(text))
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.jwks.is_empty() == self.filename.is_empty() {
            return Err(Invalid::new(
                "JWKS",
                "must specify exactly one of String or filename for local keyset",
            ));
        }
        if self.jwks.is_empty() {
            return Ok(());
        }
        let Some(text) = decode(&self.jwks) else {
            return Err(Invalid::new(
                "JWKS",
                "JWKS must be valid base64 encoded string",
            ));
        };
        match is_key_set(&text) {
            true => Ok(()),
            false => Err(Invalid::new(
                "JWKS",
                "it is not the base64 of a JSON Web Key Set, {\"keys\": [{\"kty\": …}, …]}",
            )),
        }
    }
}

/// Decodes base64 text. Line breaks are ignored, as in Go.
fn decode(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = STANDARD.decode(text).ok()?;
    String::from_utf8(bytes).ok()
}

fn is_key_set(text: &str) -> bool {
    let set: Option<Value> = serde_json::from_str(text).ok();
    let keys = set.as_ref().and_then(|set| set.get("keys")?.as_array());
    let is_key = |key: &Value| key.get("kty").is_some_and(Value::is_string);
    keys.is_some_and(|keys| !keys.is_empty() && keys.iter().all(is_key))
}

impl RemoteJwks {
    /// The server's location, or `None` if the URI is invalid.
    pub fn server(&self) -> Option<KeyServer> {
        let (scheme, rest) = self.uri.split_once("://")?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}#".contains(c);
        if !rest.chars().all(plain) {
            return None;
        }
        let authority = rest.split(['/', '?']).next()?;
        let default = if tls { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(address) => {
                let (address, port) = address.split_once(']')?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':')?),
                };
                (address, port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = port.map_or(Some(default), |port| port.parse().ok())?;
        let named = |c: char| c.is_ascii_alphanumeric() || "-._~:".contains(c);
        let is_host = !host.is_empty() && host.chars().all(named) && port != 0;
        is_host.then(|| KeyServer {
            tls,
            host: host.to_owned(),
            port,
        })
    }

    /// The discovery type, or its default.
    pub fn discovery_type(&self) -> &str {
        let named = self.jwks_cluster.as_ref().map(|one| &*one.discovery_type);
        named.filter(|name| !name.is_empty()).unwrap_or(STRICT_DNS)
    }

    /// The CA certificates for the server.
    pub fn trusted_ca(&self) -> Option<&JwksTrustedCa> {
        let certificates = self.jwks_cluster.as_ref()?.tls_certificates.as_ref()?;
        certificates.trusted_ca.as_ref()
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.uri.is_empty() {
            return Err(Invalid::new("URI", "Remote JWKS URI is required"));
        }
        if self.server().is_none() {
            return Err(Invalid::new(
                "URI",
                format!(
                    "Remote JWKS URI is invalid: it must be http:// or https:// with a host, uri: {}",
                    self.uri
                ),
            ));
        }
        // Envoy's limits.
        let cacheable = Duration::from_millis(1)..Duration::from_secs(2_500_000 * 60 * 60);
        if !self.cache_duration.is_zero() && !cacheable.contains(&self.cache_duration) {
            let reason = "it must be at least 1ms and less than 2500000h";
            return Err(Invalid::new("CacheDuration", reason));
        }
        let back_off = self.retry_policy.as_ref();
        if let Some(back_off) = back_off.and_then(|policy| policy.retry_policy_back_off.as_ref()) {
            back_off
                .validate()
                .map_err(|error| error.within("RetryPolicy.RetryPolicyBackOff"))?;
        }
        if let Some(cluster) = &self.jwks_cluster {
            cluster
                .validate()
                .map_err(|error| error.within("JWKSCluster"))?;
        }
        Ok(())
    }
}

impl JwksBackOff {
    fn validate(&self) -> Result<(), Invalid> {
        if !self.max_interval.is_zero() && self.base_interval > self.max_interval {
            return Err(Invalid::new(
                "MaxInterval",
                "retry policy backoff's MaxInterval should be greater or equal to BaseInterval",
            ));
        }
        // Envoy's minimum.
        let shortest = Duration::from_millis(1);
        for (field, interval) in [
            ("BaseInterval", self.base_interval),
            ("MaxInterval", self.max_interval),
        ] {
            if !interval.is_zero() && interval < shortest {
                return Err(Invalid::new(field, "it must be at least 1ms"));
            }
        }
        if self.base_interval.is_zero() && !self.max_interval.is_zero() {
            return Err(Invalid::new(
                "BaseInterval",
                "it is needed with MaxInterval",
            ));
        }
        Ok(())
    }
}

impl JwksCluster {
    fn validate(&self) -> Result<(), Invalid> {
        match self.discovery_type.as_str() {
            "" => {}
            name if DISCOVERY.contains(&name) => {}
            name @ ("EDS" | "ORIGINAL_DST") => {
                return Err(Invalid::new(
                    "DiscoveryType",
                    format!(
                        "{name} is not served: the address is the one in URI, which Envoy takes \
                         with {} only",
                        DISCOVERY.join(", ")
                    ),
                ));
            }
            other => {
                return Err(Invalid::new(
                    "DiscoveryType",
                    format!("unsupported jwks cluster discovery type: {other:?}"),
                ));
            }
        }
        let Some(certificates) = &self.tls_certificates else {
            return Ok(());
        };
        let Some(ca) = &certificates.trusted_ca else {
            return Err(Invalid::new(
                "TLSCertificates.TrustedCA",
                "must specify exactly one of: CaCertificateProviderInstance or TrustedCA for \
                 JKWS' TLSCertificates, of which TrustedCA is served",
            ));
        };
        ca.validate()
            .map_err(|error| error.within("TLSCertificates.TrustedCA"))
    }
}

impl JwksTrustedCa {
    /// The inline PEM.
    pub fn inline(&self) -> Option<String> {
        match self.inline_string.is_empty() {
            false => Some(self.inline_string.clone()),
            true => decode(&self.inline_bytes).filter(|pem| !pem.is_empty()),
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        let places = [
            &self.filename,
            &self.environment_variable,
            &self.inline_string,
            &self.inline_bytes,
        ];
        if places.iter().filter(|text| !text.is_empty()).count() != 1 {
            return Err(Invalid::new(
                "Filename",
                "must specify exactly one of: Filename, EnvironmentVariable, InlineString or \
                 InlineBytes for JWKS' TrustedCA",
            ));
        }
        let inline = [&self.inline_string, &self.inline_bytes];
        let is_inline = inline.iter().any(|text| !text.is_empty());
        let pem = self.inline().unwrap_or_default();
        if is_inline && !pem.contains("-----BEGIN CERTIFICATE-----") {
            return Err(Invalid::new(
                match self.inline_bytes.is_empty() {
                    true => "InlineString",
                    false => "InlineBytes",
                },
                "it has no certificate in PEM",
            ));
        }
        Ok(())
    }
}
