//! The names of targets and nodes. Consul's.

use legate_model::{DEFAULT_TENANCY, TrustDomain};

use crate::chain::Target;

/// `<service>.default.default`, the name of a router or a splitter.
pub(crate) fn of_service(service: &str) -> String {
    format!("{service}.{DEFAULT_TENANCY}.{DEFAULT_TENANCY}")
}

impl Target {
    /// `[<subset>.]<service>.default.default.<datacenter>`, or `….external.<peer>`.
    pub(crate) fn make_id(&self) -> String {
        let service = of_service(&self.service);
        let place = match self.peer.as_str() {
            "" => self.datacenter.clone(),
            peer => format!("external.{peer}"),
        };
        match self.service_subset.as_str() {
            // A peer exports services, not subsets.
            subset if !subset.is_empty() && self.peer.is_empty() => {
                format!("{subset}.{service}.{place}")
            }
            _ => format!("{service}.{place}"),
        }
    }

    /// The server name under which it is dialled; empty for what is imported from a peer, whose trust
    /// domain is another.
    pub(crate) fn make_sni(&self, trust_domain: &TrustDomain) -> String {
        if !self.peer.is_empty() {
            return String::new();
        }
        let Target {
            service,
            datacenter,
            ..
        } = self;
        let name = format!("{service}.{DEFAULT_TENANCY}.{datacenter}.internal.{trust_domain}");
        match self.service_subset.as_str() {
            "" => name,
            subset => format!("{subset}.{name}"),
        }
    }
}
