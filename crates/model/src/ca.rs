//! CA roots as the API returns them: certificates only, never keys.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::timestamp;

/// One root certificate of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CaRoot {
    /// SHA-1 of the certificate in colon-separated hex.
    #[serde(rename = "ID")]
    pub id: String,
    /// Human-readable name.
    pub name: String,
    /// The certificate's serial number.
    pub serial_number: u64,
    /// Key id of the key that signs leaves, as colon-separated hex.
    #[serde(rename = "SigningKeyID")]
    pub signing_key_id: String,
    /// Trust domain without the `.consul` suffix: the cluster id.
    #[serde(default)]
    pub external_trust_domain: String,
    /// Start of validity.
    #[serde(with = "timestamp")]
    pub not_before: SystemTime,
    /// End of validity.
    #[serde(with = "timestamp")]
    pub not_after: SystemTime,
    /// PEM.
    pub root_cert: String,
    /// PEM; appended to every leaf, in this order.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub intermediate_certs: Vec<String>,
    /// Whether it signs new leaves; exactly one does.
    pub active: bool,
    /// `ec` or `rsa`.
    #[serde(default)]
    pub private_key_type: String,
    /// Size of the key.
    #[serde(default)]
    pub private_key_bits: u32,
    /// Index of the write that created it.
    #[serde(default)]
    pub create_index: u64,
    /// Index of the last write that changed it.
    #[serde(default)]
    pub modify_index: u64,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// All trusted roots, and which one is active.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CaRoots {
    /// Id of the root that signs new leaves.
    #[serde(rename = "ActiveRootID")]
    pub active_root_id: String,
    /// `<cluster id>.consul`.
    pub trust_domain: String,
    /// All trusted roots.
    pub roots: Vec<CaRoot>,
}

impl CaRoots {
    /// The root that signs new leaves.
    pub fn active(&self) -> Option<&CaRoot> {
        self.roots
            .iter()
            .find(|root| root.id == self.active_root_id)
    }

    /// All root certificates concatenated, each ending with one newline: the trust bundle of peers.
    pub fn bundle_pem(&self) -> String {
        pem_lines(self.roots.iter().map(|root| root.root_cert.as_str()))
    }

    /// Roots, each followed by its intermediates: the response to `?pem=true`.
    pub fn chain_pem(&self) -> String {
        pem_lines(self.roots.iter().flat_map(|root| {
            std::iter::once(root.root_cert.as_str())
                .chain(root.intermediate_certs.iter().map(String::as_str))
        }))
    }
}

fn pem_lines<'a>(blocks: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::new();
    for block in blocks {
        out.push_str(block.trim_end());
        out.push('\n');
    }
    out
}
