//! `mesh`: settings of the whole mesh.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use crate::invalid::Invalid;
use crate::meta;
use crate::served::field::Served::{Inside, Yes};
use crate::served::field::{REPORTED, Rows};
use crate::tenancy::TenancyName;

/// Settings of the whole mesh; the only name is `mesh`, and it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Mesh {
    /// `mesh` or empty; it is not shown, as the kind says it.
    #[serde(skip_serializing)]
    pub name: String,
    /// The namespace that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Captured traffic.
    pub transparent_proxy: MeshTransparentProxy,
    /// Whether entries may be written that let services take plain connections. Those that are there
    /// already keep what they say.
    #[serde(
        rename = "AllowEnablingPermissiveMutualTLS",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub allow_enabling_permissive_mutual_tls: bool,
    /// Versions and cipher suites.
    #[serde(rename = "TLS", skip_serializing_if = "Option::is_none")]
    pub tls: Option<MeshTls>,
    /// HTTP handling.
    #[serde(rename = "HTTP", skip_serializing_if = "Option::is_none")]
    pub http: Option<MeshHttp>,
    /// Connections to other clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peering: Option<MeshPeering>,
    /// Whether Envoy refuses routes to clusters that it does not know.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub validate_clusters: bool,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Written by Consul when it shows an entry, so that one can be copied from there; not used.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// Settings for captured traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshTransparentProxy {
    /// Refuse connections to destinations outside the mesh.
    pub mesh_destinations_only: bool,
}

/// Settings for connections to other clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshPeering {
    /// Servers are reached through mesh gateways.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub peer_through_mesh_gateways: bool,
}

/// TLS settings by direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshTlsDirection {
    /// `TLS_AUTO`, `TLSv1_0`, `TLSv1_1`, `TLSv1_2`, `TLSv1_3`.
    #[serde(rename = "TLSMinVersion", skip_serializing_if = "String::is_empty")]
    pub tls_min_version: String,
    /// The same names.
    #[serde(rename = "TLSMaxVersion", skip_serializing_if = "String::is_empty")]
    pub tls_max_version: String,
    /// `TLS_…` names; not with TLS 1.3 as the lowest version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cipher_suites: Vec<String>,
}

/// HTTP settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshHttp {
    /// Do not tell applications who called, in `x-forwarded-client-cert`.
    pub sanitize_x_forwarded_client_cert: bool,
    /// Inbound requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incoming: Option<MeshHttpDirection>,
}

/// HTTP settings of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshHttpDirection {
    /// How paths and headers are brought into one form before intentions are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_normalization: Option<RequestNormalization>,
}

/// How paths and headers are brought into one form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequestNormalization {
    /// Leave `.` and `..` in paths: intentions on paths can then be evaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_disable_path_normalization: bool,
    /// Turn `//` into `/`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge_slashes: bool,
    /// `IMPLEMENTATION_SPECIFIC_DEFAULT`, `KEEP_UNCHANGED`, `REJECT_REQUEST`,
    /// `UNESCAPE_AND_REDIRECT`, `UNESCAPE_AND_FORWARD`, or empty for the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_with_escaped_slashes_action: String,
    /// `ALLOW`, `REJECT_REQUEST`, `DROP_HEADER`, or empty for the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub headers_with_underscores_action: String,
}

const TLS_VERSIONS: [&str; 6] = ["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"];
/// The suites of TLS 1.2 and below that can be chosen; Consul's list.
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

    /// The settings for requests that proxies accept, or their defaults.
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
    const SERVED: &'static [Rows] = &[
        (
            "Mesh",
            &[
                (Yes, "Name Meta Hash CreateIndex ModifyIndex"),
                (Yes, "Namespace Partition"),
                (Yes, "AllowEnablingPermissiveMutualTLS ValidateClusters"),
                (Inside, "TransparentProxy TLS HTTP Peering"),
            ],
        ),
        ("MeshTransparentProxy", &[(Yes, "MeshDestinationsOnly")]),
        ("MeshPeering", &[(REPORTED, "PeerThroughMeshGateways")]),
        ("MeshTls", &[(Inside, "Incoming Outgoing")]),
        (
            "MeshTlsDirection",
            &[(Yes, "TLSMinVersion TLSMaxVersion CipherSuites")],
        ),
        (
            "MeshHttp",
            &[(Yes, "SanitizeXForwardedClientCert"), (Inside, "Incoming")],
        ),
        ("MeshHttpDirection", &[(Inside, "RequestNormalization")]),
        (
            "RequestNormalization",
            &[(
                Yes,
                "InsecureDisablePathNormalization MergeSlashes \
                 PathWithEscapedSlashesAction HeadersWithUnderscoresAction",
            )],
        ),
    ];

    fn name(&self) -> &str {
        Self::NAME
    }

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

/// Versions and cipher suites that Envoy takes. The fields are `<prefix>MinVersion`,
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
