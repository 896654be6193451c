//! The keys that JSON Web Tokens are signed with: given in the entry, in a file of every proxy, or
//! on a server that proxies ask.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::tenancy::NotServed;

/// How a server's address is found, where nothing is said. Consul's.
const STRICT_DNS: &str = "STRICT_DNS";
const DISCOVERY: [&str; 3] = [STRICT_DNS, "STATIC", "LOGICAL_DNS"];

/// The keys that tokens are signed with; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JsonWebKeySet {
    /// Given here, or in a file of every proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalJwks>,
    /// On a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteJwks>,
}

/// Keys that proxies need not ask for; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LocalJwks {
    /// The JSON Web Key Set in base64.
    #[serde(rename = "JWKS", skip_serializing_if = "String::is_empty")]
    pub jwks: String,
    /// A file with the JSON Web Key Set, which every proxy has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filename: String,
}

/// Keys on a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RemoteJwks {
    /// `http://…` or `https://…`.
    #[serde(rename = "URI", skip_serializing_if = "String::is_empty")]
    pub uri: String,
    /// How long a request may take, in milliseconds; 5,000 for 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub request_timeout_ms: u32,
    /// How long keys are kept before they are asked for again; Envoy's 10 min for 0.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub cache_duration: Duration,
    /// Whether the listener serves requests before it has the keys, without which it refuses them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fetch_asynchronously: bool,
    /// Whether the server is named in the TLS handshake.
    #[serde(rename = "UseSNI", skip_serializing_if = "std::ops::Not::not")]
    pub use_sni: bool,
    /// How requests are tried again; they are not without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<JwksRetryPolicy>,
    /// How the server is reached.
    #[serde(rename = "JWKSCluster", skip_serializing_if = "Option::is_none")]
    pub jwks_cluster: Option<JwksCluster>,
}

/// How requests for keys are tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksRetryPolicy {
    /// How often.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_retries: u32,
    /// How long is waited in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy_back_off: Option<JwksBackOff>,
}

/// How long is waited between requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksBackOff {
    /// Before the first repetition; Envoy's 1 s for 0.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub base_interval: Duration,
    /// At most; Envoy's ten times the first for 0.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub max_interval: Duration,
}

/// How the server of the keys is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksCluster {
    /// How its address is found: `STRICT_DNS`, which is meant when it is empty, `LOGICAL_DNS`, or
    /// `STATIC` for an IP address; a name that is given with that is looked up all the same.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub discovery_type: String,
    /// What its certificate is verified with. Without, it is not verified.
    #[serde(rename = "TLSCertificates", skip_serializing_if = "Option::is_none")]
    pub tls_certificates: Option<JwksTlsCertificates>,
    /// How long a connection may take; Envoy's 5 s for 0.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub connect_timeout: Duration,
}

/// What the certificate of the server of the keys is verified with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksTlsCertificates {
    /// Refused: Envoy has no providers of certificates and would verify nothing.
    #[serde(skip_serializing)]
    pub ca_certificate_provider_instance: NotServed,
    /// Certificates of authorities.
    #[serde(rename = "TrustedCA", skip_serializing_if = "Option::is_none")]
    pub trusted_ca: Option<JwksTrustedCa>,
}

/// Certificates of authorities in PEM; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwksTrustedCa {
    /// A file of every proxy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filename: String,
    /// An environment variable of every Envoy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub environment_variable: String,
    /// The PEM itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inline_string: String,
    /// The PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inline_bytes: String,
}

/// Where the server of the keys is, as its URI says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyServer {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// 80 or 443 where the URI has none.
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
    /// The key set that is given here, as JSON. `None` where it is in a file, or is none: entries
    /// with such keys are refused when they are written.
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

/// Text in base64. As in Go, line breaks do not count.
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
    /// Where the server is. `None`: the URI does not say.
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

    /// How the server's address is found.
    pub fn discovery_type(&self) -> &str {
        let named = self.jwks_cluster.as_ref().map(|one| &*one.discovery_type);
        named.filter(|name| !name.is_empty()).unwrap_or(STRICT_DNS)
    }

    /// What the server's certificate is verified with.
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
        // Envoy's bounds.
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
        // Envoy's bound.
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
    /// The PEM that is given here.
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
