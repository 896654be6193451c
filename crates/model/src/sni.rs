//! Server names in TLS handshakes inside the mesh.

use crate::{DEFAULT_TENANCY, TrustDomain};

/// The server name under which a service is dialled:
/// `<service>.default.<datacenter>.internal.<trust domain>`.
pub fn service(service: &str, datacenter: &str, trust_domain: &TrustDomain) -> String {
    format!("{service}.{DEFAULT_TENANCY}.{datacenter}.internal.{trust_domain}")
}

/// The server name under which the instances that a prepared query finds are dialled:
/// `<query>.default.<datacenter>.query.<trust domain>`.
pub fn query(query: &str, datacenter: &str, trust_domain: &TrustDomain) -> String {
    format!("{query}.{DEFAULT_TENANCY}.{datacenter}.query.{trust_domain}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_name_has_all_parts() {
        let trust_domain = crate::TrustDomain::of_cluster("c1");
        assert_eq!(
            super::service("web", "dc1", &trust_domain),
            "web.default.dc1.internal.c1.consul"
        );
        assert_eq!(
            super::query("near", "dc1", &trust_domain),
            "near.default.dc1.query.c1.consul"
        );
    }
}
