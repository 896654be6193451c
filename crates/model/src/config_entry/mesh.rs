//! `mesh`: settings of the whole mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::meta;

entry! {
    /// Settings of the whole mesh. The only valid name is `mesh`, which may be omitted.
    #[derive(JsonSchema)]
    pub struct Mesh {
        /// `mesh` or empty. Not returned, since the kind implies it.
        #[serde(skip_serializing)]
        pub name: String,
        /// Settings for captured traffic.
        pub transparent_proxy: MeshTransparentProxy,
        /// Whether entries that permit plaintext connections to services may be written. Existing entries
        /// remain in effect.
        #[serde(
            rename = "AllowEnablingPermissiveMutualTLS",
            skip_serializing_if = "std::ops::Not::not"
        )]
        pub allow_enabling_permissive_mutual_tls: bool,
        /// TLS versions and cipher suites.
        #[serde(rename = "TLS", skip_serializing_if = "Option::is_none")]
        pub tls: Option<MeshTls>,
        /// HTTP settings.
        #[serde(rename = "HTTP", skip_serializing_if = "Option::is_none")]
        pub http: Option<MeshHttp>,
        /// Settings for connections to other clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub peering: Option<MeshPeering>,
        /// Whether Envoy refuses routes to unknown clusters.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub validate_clusters: bool,
    }
}

/// Settings for captured traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshTransparentProxy {
    /// Whether connections to destinations outside the mesh are refused.
    pub mesh_destinations_only: bool,
}

/// Settings for connections to other clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshPeering {
    /// Whether servers are reached through mesh gateways.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub peer_through_mesh_gateways: bool,
}

/// TLS settings by direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshTls {
    /// For connections that proxies accept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incoming: Option<MeshTlsDirection>,
    /// For connections that proxies open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<MeshTlsDirection>,
}

/// TLS settings of one direction; empty means Envoy's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshTlsDirection {
    /// `TLS_AUTO`, `TLSv1_0`, `TLSv1_1`, `TLSv1_2`, `TLSv1_3`.
    #[serde(rename = "TLSMinVersion", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = TLS_VERSIONS))]
    pub tls_min_version: String,
    /// Same values as the other bound.
    #[serde(rename = "TLSMaxVersion", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = TLS_VERSIONS))]
    pub tls_max_version: String,
    /// `TLS_…` names; not with TLS 1.3 as the lowest version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub cipher_suites: Vec<String>,
}

/// HTTP settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshHttp {
    /// Whether applications do not get the caller's identity in `x-forwarded-client-cert`.
    pub sanitize_x_forwarded_client_cert: bool,
    /// Settings for inbound requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incoming: Option<MeshHttpDirection>,
}

/// HTTP settings of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshHttpDirection {
    /// Normalization of paths and headers before intentions are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_normalization: Option<RequestNormalization>,
}

/// Normalization of paths and headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequestNormalization {
    /// Do not resolve `.` and `..` in paths. Intentions on paths can then be bypassed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_disable_path_normalization: bool,
    /// Replace `//` with `/`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge_slashes: bool,
    /// `IMPLEMENTATION_SPECIFIC_DEFAULT`, `KEEP_UNCHANGED`, `REJECT_REQUEST`,
    /// `UNESCAPE_AND_REDIRECT`, `UNESCAPE_AND_FORWARD`, or empty for the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ESCAPED_SLASHES))]
    pub path_with_escaped_slashes_action: String,
    /// `ALLOW`, `REJECT_REQUEST`, `DROP_HEADER`, or empty for the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = UNDERSCORES))]
    pub headers_with_underscores_action: String,
}

pub(super) const TLS_VERSIONS: [&str; 6] =
    ["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"];
/// The configurable cipher suites for TLS 1.2 and below, as in Consul.
const CIPHER_SUITES: [&str; 14] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
];
const ESCAPED_SLASHES: [&str; 6] = [
    "",
    "IMPLEMENTATION_SPECIFIC_DEFAULT",
    "KEEP_UNCHANGED",
    "REJECT_REQUEST",
    "UNESCAPE_AND_REDIRECT",
    "UNESCAPE_AND_FORWARD",
];
const UNDERSCORES: [&str; 4] = ["", "ALLOW", "REJECT_REQUEST", "DROP_HEADER"];

impl Mesh {
    /// The only name.
    pub const NAME: &'static str = "mesh";

    /// The effective settings for inbound requests.
    pub fn request_normalization(&self) -> RequestNormalization {
        self.http
            .as_ref()
            .and_then(|http| http.incoming.as_ref())
            .and_then(|incoming| incoming.request_normalization.clone())
            .unwrap_or_default()
    }
}

impl Entry for Mesh {
    const RIGHTS: EntryRights = EntryRights::Mesh;

    fn validate(&self) -> Result<(), Invalid> {
        if !matches!(self.name.as_str(), "" | Self::NAME) {
            return Err(Invalid::new(
                "Name",
                format!(
                    "{:?} must be {:?}: there is one entry of this kind",
                    self.name,
                    Self::NAME
                ),
            ));
        }
        if let Some(tls) = &self.tls {
            for (field, direction) in [("Incoming", &tls.incoming), ("Outgoing", &tls.outgoing)] {
                if let Some(direction) = direction {
                    direction
                        .validate()
                        .map_err(|error| error.within(format_args!("TLS.{field}")))?;
                }
            }
        }
        let normalization = self.request_normalization();
        one_of(
            "PathWithEscapedSlashesAction",
            &normalization.path_with_escaped_slashes_action,
            &ESCAPED_SLASHES,
        )
        .and_then(|()| {
            one_of(
                "HeadersWithUnderscoresAction",
                &normalization.headers_with_underscores_action,
                &UNDERSCORES,
            )
        })
        .map_err(|error| error.within("HTTP.Incoming.RequestNormalization"))?;
        meta::validate_entry("Meta", &self.meta)
    }
}

impl MeshTlsDirection {
    fn validate(&self) -> Result<(), Invalid> {
        validate_tls(
            "TLS",
            (&self.tls_min_version, &self.tls_max_version),
            &self.cipher_suites,
        )
    }
}

/// Validates TLS versions and cipher suites. The fields are `<prefix>MinVersion`,
/// `<prefix>MaxVersion` and `CipherSuites`.
pub(super) fn validate_tls(
    prefix: &str,
    (lowest, highest): (&str, &str),
    suites: &[String],
) -> Result<(), Invalid> {
    one_of(&format!("{prefix}MinVersion"), lowest, &TLS_VERSIONS)?;
    one_of(&format!("{prefix}MaxVersion"), highest, &TLS_VERSIONS)?;
    let bounded = |version: &str| version.starts_with("TLSv");
    if bounded(lowest) && bounded(highest) && lowest > highest {
        return Err(Invalid::new(
            format!("{prefix}MaxVersion"),
            format!("it is below {prefix}MinVersion, {lowest}"),
        ));
    }
    if !suites.is_empty() && lowest == "TLSv1_3" {
        return Err(Invalid::new(
            "CipherSuites",
            format!("they cannot be chosen when {prefix}MinVersion is TLSv1_3"),
        ));
    }
    for (i, suite) in suites.iter().enumerate() {
        one_of(&format!("CipherSuites[{i}]"), suite, &CIPHER_SUITES)?;
    }
    Ok(())
}

fn one_of(field: &str, value: &str, allowed: &[&str]) -> Result<(), Invalid> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let named: Vec<&str> = allowed.iter().copied().filter(|a| !a.is_empty()).collect();
    Err(Invalid::new(
        field,
        format!("{value:?} must be one of {}, or left out", named.join(", ")),
    ))
}
