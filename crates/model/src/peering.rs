//! Connections to other clusters: what is known of each, and the tokens that introduce one to another.
//!
//! A peering is agreed on and remembered. Nothing is exchanged with another cluster yet.

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

/// Addresses in a token at most.
const MAX_ADDRESSES: usize = 64;
/// Longest token, in bytes.
const MAX_TOKEN: usize = 256 * 1024;

/// How far a peering has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PeeringState {
    /// A token was given out; the other cluster has not called.
    #[default]
    Pending,
    /// A token was taken; the other cluster was not reached.
    Establishing,
}

/// What is known of another cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Peering {
    /// Unique, and the same for as long as it exists.
    #[serde(rename = "ID")]
    pub id: String,
    /// What it is called here.
    pub name: String,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// How far it has come.
    pub state: PeeringState,
    /// The id that the other cluster has for it; empty where this one gave out the token.
    #[serde(rename = "PeerID")]
    pub peer_id: String,
    /// The other cluster's CA.
    #[serde(rename = "PeerCAPems")]
    pub peer_ca_pems: Vec<String>,
    /// The name in the certificates of the other cluster's servers.
    pub peer_server_name: String,
    /// Where the other cluster's servers are.
    pub peer_server_addresses: Vec<String>,
    /// What proves that who calls has the token, or that this cluster has it.
    pub establishment_secret: Secret,
    /// Where the other cluster is.
    pub remote: PeeringRemote,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Peering {
    /// Whether this cluster is the one that calls the other.
    pub fn dials(&self) -> bool {
        !self.peer_id.is_empty()
    }
}

/// Where another cluster is.
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
    /// What the other cluster is called here.
    pub peer_name: String,
    /// The partition that is peered; empty for that of the request.
    pub partition: TenancyName,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// Where this cluster's servers are reached from outside.
    pub server_external_addresses: Vec<String>,
}

/// Body of `POST /v1/peering/establish`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EstablishPeering {
    /// What the other cluster is called here.
    pub peer_name: String,
    /// The other cluster's token.
    pub peering_token: Secret,
    /// The partition that is peered; empty for that of the request.
    pub partition: TenancyName,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
}

/// What a token says, in the form that Consul gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeeringToken {
    /// The CA of the cluster that gave it out.
    #[serde(rename = "CA", serialize_with = "null_if_empty")]
    pub ca: Vec<String>,
    /// Where its servers are, as whoever asked for it says.
    #[serde(serialize_with = "null_if_empty")]
    pub manual_server_addresses: Vec<String>,
    /// Where its servers are.
    #[serde(serialize_with = "null_if_empty")]
    pub server_addresses: Vec<String>,
    /// The name in their certificates.
    pub server_name: String,
    /// The id of the peering there.
    #[serde(rename = "PeerID")]
    pub peer_id: String,
    /// What proves that who calls has the token.
    pub establishment_secret: Secret,
    /// Where that cluster is.
    pub remote: TokenRemote,
}

/// Where the cluster of a token is.
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

/// A name as it becomes part of host names. Consul's rule and words.
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
    /// As it is handed on.
    pub fn encode(&self) -> Secret {
        // Texts and lists of texts can always be written.
        let text = serde_json::to_vec(self).unwrap_or_default();
        Secret::new(STANDARD.encode(text))
    }

    /// Reads a token.
    ///
    /// # Errors
    ///
    /// [`Invalid`] says what is wrong with it. Consul's words; that its `CA` are certificates is for the
    /// caller to look at.
    pub fn decode(text: &Secret) -> Result<Self, Invalid> {
        const FIELD: &str = "PeeringToken";
        let refused = |reason: String| Invalid::new(FIELD, reason);
        if text.expose().len() > MAX_TOKEN {
            return Err(refused(format!("at most {MAX_TOKEN} bytes are allowed")));
        }
        let bytes = STANDARD.decode(text.expose().trim());
        // The reader's own message could repeat a part of the secret.
        let bytes =
            bytes.map_err(|_| refused("failed to decode token: it is no base64".to_owned()))?;
        let token: Self = from_slice(&bytes, UnknownFields::Ignore)
            .map_err(|_| refused("failed to decode token: it is no token's JSON".to_owned()))?;
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
