//! `inline-certificate` and `file-system-certificate`: certificates that API gateways present to
//! clients outside the mesh, in the entry itself or in files on the gateway.
//!
//! Entries are stored; no API gateway is served yet. The server, which can parse keys, checks that a
//! certificate matches its key.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use crate::invalid::Invalid;
use crate::secret::Secret;
use crate::served::field::Rows;
use crate::served::field::Served::Yes;
use crate::tenancy::TenancyName;
use crate::{meta, name};

/// A certificate with its key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InlineCertificate {
    /// Its name.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Certificate chain in PEM, the leaf first.
    pub certificate: String,
    /// Private key in PEM.
    pub private_key: Secret,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// Files with a certificate and its key on a gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FileSystemCertificate {
    /// Its name.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Path of the certificate.
    pub certificate: String,
    /// Path of the key.
    pub private_key: String,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Entry for InlineCertificate {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;
    const IN_EFFECT: bool = false;
    const SERVED: &'static [Rows] = &[(
        "InlineCertificate",
        &[
            (
                Yes,
                "Name Certificate PrivateKey Meta Hash CreateIndex ModifyIndex",
            ),
            (Yes, "Namespace Partition"),
        ],
    )];

    fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)
    }
}

impl Entry for FileSystemCertificate {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;
    const IN_EFFECT: bool = false;
    const SERVED: &'static [Rows] = &[(
        "FileSystemCertificate",
        &[
            (
                Yes,
                "Name Certificate PrivateKey Meta Hash CreateIndex ModifyIndex",
            ),
            (Yes, "Namespace Partition"),
        ],
    )];

    fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)
    }
}
