//! Names of targets and nodes, in Consul's format.

use legate_model::{ServiceName, TrustDomain, sni};

use crate::chain::Target;

/// `<service>.<namespace>.<partition>`, the name of a router or a splitter.
pub(crate) fn of_service(service: &ServiceName) -> String {
    let ServiceName { tenancy, name } = service;
    format!("{name}.{}.{}", tenancy.namespace, tenancy.partition)
}

impl Target {
    /// `[<subset>.]<service>.<namespace>.<partition>.<datacenter>`, or `….external.<peer>`.
    pub(crate) fn make_id(&self) -> String {
        let service = of_service(&self.service_name());
        let place = match self.peer.as_str() {
            "" => self.datacenter.clone(),
            peer => format!("external.{peer}"),
        };
        match self.service_subset.as_str() {
            // A peer exports whole services.
            subset if !subset.is_empty() && self.peer.is_empty() => {
                format!("{subset}.{service}.{place}")
            }
            _ => format!("{service}.{place}"),
        }
    }

    /// The target's SNI; empty for a service of a peer, which has another trust domain.
    pub(crate) fn make_sni(&self, trust_domain: &TrustDomain) -> String {
        if !self.peer.is_empty() {
            return String::new();
        }
        let name = sni::service(&self.service_name(), &self.datacenter, trust_domain);
        match self.service_subset.as_str() {
            "" => name,
            subset => format!("{subset}.{name}"),
        }
    }
}
