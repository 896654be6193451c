//! Permissions and policies.

use serde::{Deserialize, Serialize};

/// A ReferenceGrant: its namespace permits references to some of its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReferenceGrant {
    /// Who may refer.
    pub from: Vec<GrantFrom>,
    /// To what.
    pub to: Vec<GrantTo>,
}

/// Who may refer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrantFrom {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
}

/// To what may be referred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrantTo {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name; unset for all.
    pub name: Option<String>,
}

/// A BackendTLSPolicy: how gateways call backends by TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicy {
    /// The backends.
    pub target_refs: Vec<PolicyTarget>,
    /// How their certificates are verified.
    pub validation: BackendValidation,
}

/// What a policy is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The name of a port; unset for all.
    pub section_name: Option<String>,
}

/// How certificates of backends are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    /// The authorities.
    pub ca_certificate_refs: Vec<LocalReference>,
    /// `System` for those of the image instead.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// The server name of handshakes, which the certificate has if there are no alternatives.
    pub hostname: String,
    /// Names of which the certificate has one.
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A reference to an object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalReference {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// A name in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    pub r#type: String,
    /// For `Hostname`.
    pub hostname: Option<String>,
    /// For `URI`.
    pub uri: Option<String>,
}
