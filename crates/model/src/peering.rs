//! Peerings: connections to other clusters, the tokens that establish them, and what is known of their streams.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

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
use crate::timestamp;

/// The maximum number of addresses in a token.
const MAX_ADDRESSES: usize = 64;
/// The maximum length of a token, in bytes.
const MAX_TOKEN: usize = 256 * 1024;

/// How long a stream counts as connected after the server that holds it has last written so. Servers write every
/// [`STREAM_WRITTEN`].
pub const STREAM_COUNTS: Duration = Duration::from_secs(45);

/// How often servers write the status of the streams that they hold.
pub const STREAM_WRITTEN: Duration = Duration::from_secs(15);

/// State of a peering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PeeringState {
    /// A token was generated; the other cluster has not connected.
    #[default]
    Pending,
    /// A token was accepted; the other cluster has not been reached.
    Establishing,
    /// The clusters are connected. Never stored.
    Active,
    /// The clusters were connected, and are not any more. Never stored.
    Failing,
    /// It was deleted here, and what was imported is being removed.
    Deleting,
    /// It was deleted by the other cluster.
    Terminated,
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
    /// The partition that is peered; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// State of the peering, without what its stream adds: see [`Self::shown_state`].
    pub state: PeeringState,
    /// When it was deleted here.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<SystemTime>,
    /// Id of the peering in the other cluster; empty if this cluster generated the token.
    #[serde(rename = "PeerID")]
    pub peer_id: String,
    /// CA certificates of the other cluster.
    #[serde(rename = "PeerCAPems")]
    pub peer_ca_pems: Vec<String>,
    /// TLS server name of the other cluster's servers.
    pub peer_server_name: String,
    /// Addresses of the other cluster's servers, from the token and then from the stream.
    pub peer_server_addresses: Vec<String>,
    /// Addresses that the other cluster's operator gave. They are used instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manual_server_addresses: Vec<String>,
    /// Secret that proves possession of the token. It is used once. Kept only where the token was generated.
    pub establishment_secret: Secret,
    /// Secret that was exchanged for the token's, until the other cluster first uses it. Kept only where the token was
    /// generated.
    pub pending_secret: Secret,
    /// Secret with which the dialer opens the stream.
    pub active_secret: Secret,
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

    /// Whether it was deleted on neither side.
    pub fn is_active(&self) -> bool {
        self.state != PeeringState::Terminated && self.deleted_at.is_none()
    }

    /// The addresses of the other cluster's servers in use.
    pub fn addresses(&self) -> &[String] {
        match self.manual_server_addresses.is_empty() {
            true => &self.peer_server_addresses,
            false => &self.manual_server_addresses,
        }
    }

    /// The state, as Consul shows it, and the reason in words: why it is not active or, if it is, what was refused last.
    pub fn shown_state(
        &self,
        stream: Option<&PeeringStream>,
        now: SystemTime,
    ) -> (PeeringState, String) {
        let state = self.state;
        let reason = match state {
            PeeringState::Deleting => {
                "it was deleted, and what was imported is being removed".into()
            }
            PeeringState::Terminated => {
                "the other cluster has deleted it: delete it here, too".into()
            }
            _ => match stream {
                // Something may have been refused since it was opened.
                Some(stream) if stream.is_connected_at(now) => {
                    return (PeeringState::Active, stream.error.clone());
                }
                Some(stream) => return (stream.state_without(state), stream.reason_without()),
                None if self.dials() && self.active_secret.is_empty() => {
                    "the token was not exchanged yet".into()
                }
                None if self.dials() => "the other cluster was not reached yet".into(),
                None => "no cluster has connected with the token yet".into(),
            },
        };
        (state, reason)
    }
}

/// What is known of the stream of a peering, from the server that holds it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeeringStream {
    /// Local name of the other cluster.
    pub peer: String,
    /// Id of the stream. Only the stream with this id may write what it imports.
    #[serde(rename = "ID")]
    pub id: String,
    /// Name of the server that holds it.
    pub server: String,
    /// Whether it was open when this was written.
    pub is_connected: bool,
    /// Whether it was ever open.
    pub was_connected: bool,
    /// When this was written.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub written_at: Option<SystemTime>,
    /// The names that the other cluster exports to this one.
    pub imported: Vec<String>,
    /// The names that this cluster exports to the other one.
    pub exported: Vec<String>,
    /// The last heartbeat.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<SystemTime>,
    /// The last message from the other cluster.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub last_receive: Option<SystemTime>,
    /// The last message to the other cluster.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub last_send: Option<SystemTime>,
    /// Why it is not open, or what the other cluster refused last; empty for nothing.
    pub error: String,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl PeeringStream {
    /// Whether it is open: its server has said so less than [`STREAM_COUNTS`] ago.
    pub fn is_connected_at(&self, now: SystemTime) -> bool {
        // The clocks of servers may differ.
        let distance = |written: SystemTime| match now.duration_since(written) {
            Ok(age) => age,
            Err(error) => error.duration(),
        };
        self.is_connected
            && self
                .written_at
                .is_some_and(|written| distance(written) < STREAM_COUNTS)
    }

    /// The state of its peering while it is not open.
    fn state_without(&self, stored: PeeringState) -> PeeringState {
        match self.was_connected {
            true => PeeringState::Failing,
            false => stored,
        }
    }

    fn reason_without(&self) -> String {
        match (self.error.is_empty(), self.is_connected) {
            (false, _) => self.error.clone(),
            (true, true) => format!(
                "server {} has stopped, and no other one has taken over",
                self.server
            ),
            (true, false) => "the stream has ended".to_owned(),
        }
    }
}

/// The roots of the CA of another cluster, which issue the certificates of its services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerTrustBundle {
    /// The trust domain of its mesh.
    pub trust_domain: String,
    /// Local name of the other cluster.
    pub peer_name: String,
    /// The partition of the peering in this cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// The roots.
    #[serde(rename = "RootPEMs")]
    pub root_pems: Vec<String>,
    /// The partition of the peering in the other cluster; empty means its default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exported_partition: String,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
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

/// The maximum length of each text in a location, in bytes.
const MAX_LOCATION: usize = 128;

impl PeeringRemote {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        let empty = String::new();
        let locality = self.locality.as_ref();
        let (region, zone) = locality.map_or((&empty, &empty), |one| (&one.region, &one.zone));
        for (field, text) in [
            ("Remote.Partition", &self.partition),
            ("Remote.Datacenter", &self.datacenter),
            ("Remote.Locality.Region", region),
            ("Remote.Locality.Zone", zone),
        ] {
            if text.len() > MAX_LOCATION || text.chars().any(char::is_control) {
                let reason =
                    format!("it must have at most {MAX_LOCATION} bytes and no control characters");
                return Err(Invalid::new(field, reason));
            }
        }
        Ok(())
    }
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
        validate_server_addresses("ServerExternalAddresses", &self.server_external_addresses)
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

/// Validates the name of a peer in a field that refers to one, in any case of letters.
pub(crate) fn validate_reference(field: &str, name: &str) -> Result<(), Invalid> {
    validate_peer_name(&name.to_ascii_lowercase())
        .map_err(|invalid| Invalid::new(field, invalid.reason()))
}

/// Validates addresses of servers: each as `host:port`, at most 64.
///
/// # Errors
///
/// [`Invalid`] contains the first address that cannot be accepted.
pub fn validate_server_addresses(field: &str, addresses: &[String]) -> Result<(), Invalid> {
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
        validate_server_addresses("ManualServerAddresses", &token.manual_server_addresses)
            .map_err(within)?;
        validate_server_addresses("ServerAddresses", &token.server_addresses).map_err(within)?;
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
