//! Peerings: connections to other clusters, and the tokens that establish them.
//!
//! Peerings are created and stored. No data is exchanged with other clusters yet.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::json::decode::{UnknownFields, from_slice};
use crate::json::shown::null_if_empty;
use crate::locality::Locality;
use crate::meta;
use crate::secret::Secret;
use crate::tenancy::TenancyName;

/// The maximum number of addresses in a token.
const MAX_ADDRESSES: usize = 64;
/// The maximum length of a token, in bytes.
const MAX_TOKEN: usize = 256 * 1024;

/// State of a peering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PeeringState {
    /// A token was generated; the other cluster has not connected.
    #[default]
    Pending,
    /// A token was accepted; the other cluster has not been reached.
    Establishing,
}

/// A peering with another cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Peering {
    /// Unique and immutable id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Local name of the other cluster.
    pub name: String,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// State of the peering.
    pub state: PeeringState,
    /// Id of the peering in the other cluster; empty if this cluster generated the token.
    #[serde(rename = "PeerID")]
    pub peer_id: String,
    /// CA certificates of the other cluster.
    #[serde(rename = "PeerCAPems")]
    pub peer_ca_pems: Vec<String>,
    /// TLS server name of the other cluster's servers.
    pub peer_server_name: String,
    /// Addresses of the other cluster's servers.
    pub peer_server_addresses: Vec<String>,
    /// Secret that proves possession of the token.
    pub establishment_secret: Secret,
    /// Location of the other cluster.
    pub remote: PeeringRemote,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Peering {
    /// Whether this cluster connects to the other.
    pub fn dials(&self) -> bool {
        !self.peer_id.is_empty()
    }
}

/// Location of another cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeeringRemote {
    /// Its partition.
    pub partition: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
}

/// Body of `POST /v1/peering/token`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GeneratePeeringToken {
    /// Local name of the other cluster.
    pub peer_name: String,
    /// The partition that is peered; empty means the request's.
    pub partition: TenancyName,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// External addresses of this cluster's servers.
    pub server_external_addresses: Vec<String>,
}

/// Body of `POST /v1/peering/establish`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EstablishPeering {
    /// Local name of the other cluster.
    pub peer_name: String,
    /// The other cluster's token.
    pub peering_token: Secret,
    /// The partition that is peered; empty means the request's.
    pub partition: TenancyName,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
}

/// Contents of a token, in Consul's format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeeringToken {
    /// CA certificates of the cluster that generated it.
    #[serde(rename = "CA", serialize_with = "null_if_empty")]
    pub ca: Vec<String>,
    /// Addresses of its servers, as set by the operator who requested the token.
    #[serde(serialize_with = "null_if_empty")]
    pub manual_server_addresses: Vec<String>,
    /// Addresses of its servers.
    #[serde(serialize_with = "null_if_empty")]
    pub server_addresses: Vec<String>,
    /// TLS server name of its servers.
    pub server_name: String,
    /// Id of the peering in that cluster.
    #[serde(rename = "PeerID")]
    pub peer_id: String,
    /// Secret that proves possession of the token.
    pub establishment_secret: Secret,
    /// Location of that cluster.
    pub remote: TokenRemote,
}

/// Location of the cluster that generated a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TokenRemote {
    /// Its partition.
    pub partition: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Region and zone.
    pub locality: Option<Locality>,
}

impl GeneratePeeringToken {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        validate_peer_name(&self.peer_name)?;
        meta::validate_entry("Meta", &self.meta)?;
        validate_addresses("ServerExternalAddresses", &self.server_external_addresses)
    }
}

impl EstablishPeering {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        validate_peer_name(&self.peer_name)?;
        meta::validate_entry("Meta", &self.meta)
    }
}

/// Validates a name that becomes part of host names, with Consul's rule and error text.
fn validate_peer_name(name: &str) -> Result<(), Invalid> {
    let end = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = end(name.bytes().next()) && end(name.bytes().last());
    if ends && name.len() <= 63 && name.bytes().all(inner) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Invalid::new(
        "PeerName",
        format!(
            "{shown} is not a valid peer name: a valid peering name must consist of lower case \
             alphanumeric characters or '-', and must start and end with an alphanumeric character"
        ),
    ))
}

fn validate_addresses(field: &str, addresses: &[String]) -> Result<(), Invalid> {
    if addresses.len() > MAX_ADDRESSES {
        let reason = format!("at most {MAX_ADDRESSES} addresses can be given");
        return Err(Invalid::new(field, reason));
    }
    let valid = |address: &String| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| {
            let port = port.parse::<u16>().is_ok_and(|port| port != 0);
            let bare = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
            port && bare && address.len() <= 512
        })
    };
    match addresses.iter().find(|address| !valid(address)) {
        None => Ok(()),
        Some(address) => {
            let shown: String = address.chars().take(80).collect();
            let reason = format!("{shown} is not a valid peering server address");
            Err(Invalid::new(field, reason))
        }
    }
}

impl PeeringToken {
    /// Encodes the token for the operator.
    pub fn encode(&self) -> Secret {
        // Serialising texts and lists of texts cannot fail.
        let text = serde_json::to_vec(self).unwrap_or_default();
        Secret::new(STANDARD.encode(text))
    }

    /// Decodes a token.
    ///
    /// # Errors
    ///
    /// [`Invalid`] contains the problem, with Consul's error texts. The caller verifies that `CA`
    /// contains certificates.
    pub fn decode(text: &Secret) -> Result<Self, Invalid> {
        const FIELD: &str = "PeeringToken";
        let refused = |reason: String| Invalid::new(FIELD, reason);
        if text.expose().len() > MAX_TOKEN {
            return Err(refused(format!("at most {MAX_TOKEN} bytes are allowed")));
        }
        let bytes = STANDARD.decode(text.expose().trim());
        // The decoder's own message could contain a part of the secret.
        let bytes =
            bytes.map_err(|_| refused("failed to decode token: it is not base64".to_owned()))?;
        let token: Self = from_slice(&bytes, UnknownFields::Ignore).map_err(|_| {
            refused("failed to decode token: it is not the JSON of a token".to_owned())
        })?;
        let within = |error: Invalid| error.within(FIELD);
        validate_addresses("ManualServerAddresses", &token.manual_server_addresses)
            .map_err(within)?;
        validate_addresses("ServerAddresses", &token.server_addresses).map_err(within)?;
        if token.server_addresses.is_empty() && token.manual_server_addresses.is_empty() {
            let reason = "peering token server addresses value is empty";
            return Err(refused(reason.to_owned()));
        }
        if !token.ca.is_empty() && token.server_name.is_empty() {
            let reason = "peering token server name value is empty";
            return Err(refused(reason.to_owned()));
        }
        if token.peer_id.is_empty() {
            return Err(refused("peering token peer ID value is empty".to_owned()));
        }
        Ok(token)
    }
}
