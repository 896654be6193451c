//! What the resolver learns of a gateway's proxies: from the objects that were made for it, and from
//! what its proxies have acknowledged to the servers. Pure.

use std::collections::BTreeMap;

use legate_gateway_api::{Front, Key};
use serde::Deserialize;

use super::cluster::{Cluster, OwnedObject};
use super::core::Subject;
use super::infrastructure::GatewayMeta;
use super::kinds::Kind;

/// What the proxies of a gateway have acknowledged, as the servers say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Acknowledged {
    /// The cluster whose gateway it is.
    pub(super) owner: String,
    /// Generations, by the uids of the Gateway and of its ListenerSets.
    pub(super) acknowledged: BTreeMap<String, i64>,
    /// What they have refused, by port: `443` or `53/udp`. What is not of one port has none.
    pub(super) rejected: BTreeMap<String, String>,
}

/// The names of gateways in the mesh, with what their proxies have acknowledged.
pub(super) type AllAcknowledged = BTreeMap<String, Acknowledged>;

/// The proxies of all gateways. `failures` are the reasons why the last calls for gateways failed.
pub(super) fn fronts(
    cluster: &Cluster,
    gateways: &BTreeMap<Key, GatewayMeta>,
    acknowledged: &AllAcknowledged,
    failures: &BTreeMap<Subject, String>,
) -> BTreeMap<Key, Front> {
    let fronts = gateways.iter().filter_map(|(key, gateway)| {
        let name = Key::new(&key.namespace, &gateway.name());
        let own = |all: &BTreeMap<Key, OwnedObject>| {
            let object = all.get(&name)?;
            (object.gateway_uid == gateway.uid).then(|| object.clone())
        };
        let (deployment, service) = (own(&cluster.deployments), own(&cluster.services));
        let subjects = [
            Subject::Infrastructure(key.clone()),
            Subject::Rows(gateway.service()),
        ];
        let failed = subjects.iter().find_map(|subject| failures.get(subject));
        if deployment.is_none() && service.is_none() && failed.is_none() {
            return None;
        }
        let mut front = Front {
            ready: deployment.is_some_and(|one| one.ready),
            addresses: service.map_or_else(Vec::new, |one| one.addresses),
            failed: failed.cloned(),
            ..Front::default()
        };
        if let Some(known) = acknowledged.get(&gateway.service()) {
            known.add_to(&mut front, cluster, &gateway.uid);
        }
        Some((key.clone(), front))
    });
    fronts.collect()
}

impl Acknowledged {
    fn add_to(&self, front: &mut Front, cluster: &Cluster, uid: &str) {
        for (port, reason) in &self.rejected {
            let number = port.strip_suffix("/udp").unwrap_or(port);
            if let Ok(number) = number.parse() {
                front.rejected.insert(number, reason.clone());
            }
        }
        let generation = self.acknowledged.get(uid);
        front.generation = generation.copied().unwrap_or_default();
        let sets = cluster.world.listener_sets.iter().filter_map(|set| {
            let key = set.meta.key();
            let uid = cluster.uid(Kind::ListenerSet, &key)?;
            let generation = *self.acknowledged.get(uid)?;
            Some((key, generation))
        });
        front.sets = sets.collect();
    }
}
