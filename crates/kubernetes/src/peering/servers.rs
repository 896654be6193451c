//! A peering as the servers report it: the fields that decide about it. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::entry::SOURCE;

/// The value of the meta [`SOURCE`].
pub(super) const FROM_KUBERNETES: &str = "kubernetes";

/// The answer to `GET /v1/peering/:name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Peering {
    /// Its id, which tokens contain.
    #[serde(rename = "ID")]
    pub(super) id: String,
    /// Its id in the other cluster; empty if a token was made here.
    #[serde(rename = "PeerID")]
    pub(super) peer_id: String,
    peer_server_addresses: Option<Vec<String>>,
    state: String,
    meta: Option<BTreeMap<String, String>>,
}

impl Peering {
    /// Whether this cluster uses the other one's token.
    pub(super) fn dials(&self) -> bool {
        let addresses = self.peer_server_addresses.as_ref();
        !self.peer_id.is_empty() || addresses.is_some_and(|all| !all.is_empty())
    }

    /// Whether both clusters are connected.
    pub(super) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether the other cluster has deleted it.
    pub(super) fn is_terminated(&self) -> bool {
        self.state == "TERMINATED"
    }

    /// Whether it was deleted here, and is being removed.
    pub(super) fn is_leaving(&self) -> bool {
        self.state == "DELETING"
    }

    /// Whether an operator has made it.
    pub(super) fn is_from_kubernetes(&self) -> bool {
        let meta = self.meta.as_ref().and_then(|meta| meta.get(SOURCE));
        meta.is_some_and(|source| source == FROM_KUBERNETES)
    }

    #[cfg(test)]
    pub(super) fn accepting(id: &str, state: &str) -> Peering {
        Peering {
            id: id.to_owned(),
            state: state.to_owned(),
            meta: Some([(SOURCE.to_owned(), FROM_KUBERNETES.to_owned())].into()),
            ..Peering::default()
        }
    }

    #[cfg(test)]
    pub(super) fn dialing(peer_id: &str, state: &str) -> Peering {
        Peering {
            peer_id: peer_id.to_owned(),
            ..Peering::accepting("own", state)
        }
    }
}
