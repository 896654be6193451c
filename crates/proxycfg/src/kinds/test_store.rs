//! A store with one gateway, for tests of its snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use legate_model::{CaRoots, ConfigEntry, Node, ServiceInstance, Tenancy};
use legate_store::{CaState, Command, Registration, Store};
use serde_json::{Value, json};

use super::leaves::Leaves;
use super::{Outcome, Parts, snapshot};
use crate::config::ManagerConfig;
use crate::snapshot::{ProxyId, Snapshot};

/// The ID of the gateway.
const GATEWAY: &str = "gateway-1";

/// A store with a CA and a gateway of this kind and service.
pub(crate) fn with_gateway(kind: &str, service: &str) -> Store {
    let store = Store::new();
    let ca = CaState {
        roots: Arc::new(CaRoots {
            active_root_id: "r1".to_owned(),
            trust_domain: "11111111-2222-3333-4444-555555555555.consul".to_owned(),
            roots: Vec::new(),
        }),
        signing_key: "key".into(),
        cluster_id: "11111111-2222-3333-4444-555555555555".to_owned(),
        lives: BTreeMap::new(),
        secondary: None,
    };
    apply(&store, Command::SetCa(Box::new(ca)));
    let gateway = json!({"Kind": kind, "ID": GATEWAY, "Service": service});
    apply(&store, register(gateway));
    store
}

pub(crate) fn apply(store: &Store, command: Command) {
    store.apply(command).now_or_never().unwrap().unwrap();
}

/// Registers an instance on the gateway's node.
pub(crate) fn register(service: Value) -> Command {
    let service: ServiceInstance = serde_json::from_value(service).unwrap();
    Command::Register(Box::new(Registration {
        node: Node {
            node: "n1".to_owned(),
            address: "10.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        },
        service: Some(service),
        checks: Vec::new(),
        skip_node_update: false,
    }))
}

/// Writes a config entry.
pub(crate) fn entry(entry: Value) -> Command {
    let mut entry: ConfigEntry = serde_json::from_value(entry).unwrap();
    entry.validate().unwrap();
    entry.normalise();
    Command::UpsertConfigEntry {
        entry: Box::new(entry),
        cas: None,
    }
}

/// The snapshot of the gateway; `None` while it waits.
pub(crate) fn computed(
    store: &Store,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
    parts: &mut Parts,
) -> Option<Snapshot> {
    let proxy = ProxyId {
        tenancy: Tenancy::default(),
        node: "n1".into(),
        service_id: GATEWAY.into(),
    };
    let state = store.state();
    match snapshot(&state.read(), &proxy, config, leaves, parts).unwrap() {
        Outcome::Ready(snapshot) => Some(*snapshot),
        Outcome::Pending => None,
    }
}
