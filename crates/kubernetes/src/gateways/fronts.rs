//! What the resolver learns of a gateway's proxies: from the objects that were made for it, and from
//! what its proxies have acknowledged to the servers. Pure.

use std::collections::BTreeMap;

use legate_gateway_api::{Front, Key};
use serde::Deserialize;

use super::cluster::Cluster;
use super::infrastructure::Owner;
use super::kinds::Kind;

/// What the proxies of a gateway have acknowledged, as the servers say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Acknowledged {
    /// The cluster whose gateway it is.
    pub(super) owner: String,
    /// Generations, by the uids of the Gateway and of its ListenerSets.
    acknowledged: BTreeMap<String, i64>,
    /// What they have refused, by port: `443` or `53/udp`. What is not of one port has none.
    rejected: BTreeMap<String, String>,
}

/// The names of gateways in the mesh, with what their proxies have acknowledged.
pub(super) type AllAcknowledged = BTreeMap<String, Acknowledged>;

/// The proxies of all gateways.
pub(super) fn fronts(cluster: &Cluster, acknowledged: &AllAcknowledged) -> BTreeMap<Key, Front> {
    let mut fronts = BTreeMap::<_, Front>::new();
    let made = |key: &Key, gateway: &str| Key::new(&key.namespace, gateway);
    for (key, deployment) in &cluster.deployments {
        let front = fronts.entry(made(key, &deployment.gateway)).or_default();
        front.ready |= deployment.ready;
    }
    for (key, service) in &cluster.services {
        let front = fronts.entry(made(key, &service.gateway)).or_default();
        front.addresses.extend(service.addresses.iter().cloned());
    }
    let none = BTreeMap::new();
    for gateway in &cluster.world.gateways {
        let key = gateway.meta.key();
        let Some(front) = fronts.get_mut(&key) else {
            continue;
        };
        let owner = Owner {
            key: &key,
            uid: "",
            class: &gateway.spec.gateway_class_name,
            annotations: &none,
        };
        let Some(known) = acknowledged.get(&owner.service()) else {
            continue;
        };
        for (port, reason) in &known.rejected {
            let number = port.strip_suffix("/udp").unwrap_or(port);
            if let Ok(number) = number.parse() {
                front.rejected.insert(number, reason.clone());
            }
        }
        let of = |kind, key: &Key| {
            let generation = known.acknowledged.get(cluster.uid(kind, key)?);
            generation.copied()
        };
        front.generation = of(Kind::Gateway, &key).unwrap_or_default();
        let sets = cluster.world.listener_sets.iter().map(|set| set.meta.key());
        let sets = sets.filter_map(|key| Some((key.clone(), of(Kind::ListenerSet, &key)?)));
        front.sets = sets.collect();
    }
    fronts
}
