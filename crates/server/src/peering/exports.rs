//! What is exported to a peer, encoded: a function of the state, of which each service is a shared result.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_api::internal::peering::PeeringTrustBundle;
use legate_model::{CaRoots, Peering, ServiceName, TrustDomain};
use legate_peering::export::{MeshForm, mesh, mesh_id, plain};
use legate_peering::{Exports, Payload, ServiceList};
use legate_proxycfg::exports::{MeshExport, PeerExports, exports_to_peer, mesh_gateways};
use legate_store::ReadTxn;

use super::{addresses, establish};
use crate::config::ServerConfig;

/// What the current partition exports to a peer.
pub(super) fn exports(txn: &ReadTxn<'_>, peering: &Peering, config: &ServerConfig) -> Exports {
    let roots = txn.ca_roots().filter(|_| config.connect);
    let trust_domain = super::trust_domain(txn).unwrap_or_else(|| TrustDomain::of_cluster(""));
    let datacenter = config.datacenter.as_str();
    let peer = Peer {
        name: &peering.name,
        datacenter,
        trust_domain: &trust_domain,
    };
    let exported = exports_to_peer(txn, peer.name, datacenter, &trust_domain);
    let mut services = BTreeMap::new();
    for service in exported.services.iter().filter(is_sent) {
        if let Some(payload) = &*plain_form(txn, service) {
            services.insert(Arc::clone(&service.name), payload.clone());
        }
    }
    if roots.is_some() {
        let forms = peer.mesh_forms(txn);
        let forms = forms.iter();
        services.extend(forms.map(|(id, payload)| (Arc::clone(id), payload.clone())));
    }
    Exports {
        list: Some(ServiceList::clone(&peer.list(txn))),
        services,
        trust_bundle: roots.map(|roots| trust_bundle(&roots, peering)),
        server_addresses: match peering.dials() {
            true => None,
            // Without an address, the last ones stay in use.
            false => addresses::advertised(txn, config)
                .ok()
                .map(Payload::server_addresses),
        },
    }
}

/// Resources are identified by bare names, so that there is one namespace of them.
fn is_sent(service: &&ServiceName) -> bool {
    service.tenancy.is_default_namespace()
}

/// The instances of a service for callers outside the mesh. They are the same for all peers.
fn plain_form(txn: &ReadTxn<'_>, service: &ServiceName) -> Arc<Option<Payload>> {
    txn.in_tenancy(&service.tenancy, |txn| {
        txn.shared("instances for peers", &service.name, |txn| {
            let instances = txn.service(&service.name);
            plain(&service.name, &instances).map(|form| Payload::service(&form))
        })
    })
}

/// A peer by its local name, and this cluster.
struct Peer<'a> {
    name: &'a str,
    datacenter: &'a str,
    trust_domain: &'a TrustDomain,
}

impl Peer<'_> {
    fn argument(&self) -> String {
        format!("{}/{}/{}", self.name, self.datacenter, self.trust_domain)
    }

    fn exports(&self, txn: &ReadTxn<'_>) -> Arc<PeerExports> {
        exports_to_peer(txn, self.name, self.datacenter, self.trust_domain)
    }

    /// The list of services. No instance changes it.
    fn list(&self, txn: &ReadTxn<'_>) -> Arc<ServiceList> {
        txn.shared("list of services for a peer", &self.argument(), |txn| {
            let exported = self.exports(txn);
            let names = exported.services.iter().filter(is_sent);
            ServiceList::new(names.map(|service| service.name.as_ref().to_owned()))
        })
    }

    /// All services in the mesh, by the ids of their mesh forms. No instance but those of mesh gateways changes one.
    fn mesh_forms(&self, txn: &ReadTxn<'_>) -> Arc<BTreeMap<Arc<str>, Payload>> {
        txn.shared("mesh forms for a peer", &self.argument(), |txn| {
            let exported = self.exports(txn);
            let in_mesh = exported.in_mesh.iter();
            let in_mesh = in_mesh.filter(|(service, _)| is_sent(service));
            let forms = in_mesh.map(|(service, export)| {
                let payload = self.mesh_form(txn, service, export);
                (mesh_id(&service.name).into(), Payload::clone(&payload))
            });
            forms.collect()
        })
    }

    fn mesh_form(
        &self,
        txn: &ReadTxn<'_>,
        service: &ServiceName,
        export: &MeshExport,
    ) -> Arc<Payload> {
        let ids = export.spiffe_ids(service, self.datacenter, self.trust_domain);
        let spiffe_ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let protocol = export.protocol.as_str();
        let ids = spiffe_ids.join(",");
        let argument = format!("{}/{service}/{protocol}/{ids}", self.name);
        txn.shared("mesh form for a peer", &argument, |txn| {
            let tenancy = &service.tenancy;
            let sni = format!(
                "{}.{}.{}.{}.external.{}",
                service.name, tenancy.namespace, tenancy.partition, self.name, self.trust_domain
            );
            let gateways = mesh_gateways(txn, &tenancy.partition);
            Payload::service(&mesh(&MeshForm {
                service: &service.name,
                gateways: &gateways,
                protocol,
                sni: &sni,
                spiffe_ids: &spiffe_ids,
            }))
        })
    }
}

/// The roots of this cluster, also those that were rotated and still verify certificates.
fn trust_bundle(roots: &CaRoots, peering: &Peering) -> Payload {
    Payload::trust_bundle(&PeeringTrustBundle {
        trust_domain: roots.trust_domain.clone(),
        root_pems: establish::pems(roots),
        exported_partition: peering.partition.to_string(),
        ..PeeringTrustBundle::default()
    })
}
