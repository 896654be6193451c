//! What is exported to a peer, encoded: a function of the state, of which each service is a shared result.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_api::internal::peering::PeeringTrustBundle;
use legate_model::{CaRoots, Peering, ServiceName, TrustDomain};
use legate_peering::export::{MeshForm, mesh, mesh_id, plain};
use legate_peering::{Exports, Payload, ServiceList};
use legate_proxycfg::exports::{MeshExport, exports_to_peer, mesh_gateways};
use legate_store::ReadTxn;

use super::{addresses, establish};
use crate::config::ServerConfig;

/// What the current partition exports to a peer.
pub(super) fn exports(txn: &ReadTxn<'_>, peering: &Peering, config: &ServerConfig) -> Exports {
    let roots = txn.ca_roots().filter(|_| config.connect);
    let trust_domain = super::trust_domain(txn).unwrap_or_else(|| TrustDomain::of_cluster(""));
    let datacenter = config.datacenter.as_str();
    let exported = exports_to_peer(txn, &peering.name, datacenter, &trust_domain);
    let mut services = BTreeMap::new();
    // Resources are identified by bare names, so that there is one namespace of them.
    let is_sent = |service: &&ServiceName| service.tenancy.is_default_namespace();
    for service in exported.services.iter().filter(is_sent) {
        if let Some(payload) = &*plain_form(txn, service) {
            services.insert(Arc::clone(&service.name), payload.clone());
        }
    }
    if roots.is_some() {
        let in_mesh = exported.in_mesh.iter();
        for (service, export) in in_mesh.filter(|(service, _)| is_sent(service)) {
            let id = mesh_id(&service.name);
            let form = MeshInputs {
                peering,
                service,
                export,
                datacenter,
                trust_domain: &trust_domain,
            };
            services.insert(id.into(), Payload::clone(&form.payload(txn)));
        }
    }
    let names = exported.services.iter().filter(is_sent);
    let names = names.map(|service| service.name.as_ref().to_owned());
    Exports {
        list: Some(ServiceList::new(names)),
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

/// The instances of a service for callers outside the mesh. They are the same for all peers.
fn plain_form(txn: &ReadTxn<'_>, service: &ServiceName) -> Arc<Option<Payload>> {
    txn.in_tenancy(&service.tenancy, |txn| {
        txn.shared("instances for peers", &service.name, |txn| {
            let instances = txn.service(&service.name);
            plain(&service.name, &instances).map(|form| Payload::service(&form))
        })
    })
}

struct MeshInputs<'a> {
    peering: &'a Peering,
    service: &'a ServiceName,
    export: &'a MeshExport,
    datacenter: &'a str,
    trust_domain: &'a TrustDomain,
}

impl MeshInputs<'_> {
    fn payload(&self, txn: &ReadTxn<'_>) -> Arc<Payload> {
        let Self {
            peering,
            service,
            export,
            datacenter,
            trust_domain,
        } = self;
        let ids = export.spiffe_ids(service, datacenter, trust_domain);
        let spiffe_ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let protocol = export.protocol.as_str();
        let argument = format!(
            "{}/{service}/{protocol}/{}",
            peering.name,
            spiffe_ids.join(",")
        );
        txn.shared("mesh form for a peer", &argument, |txn| {
            let tenancy = &service.tenancy;
            let sni = format!(
                "{}.{}.{}.{}.external.{trust_domain}",
                service.name, tenancy.namespace, tenancy.partition, peering.name
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
