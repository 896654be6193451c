//! Server names in TLS handshakes inside the mesh.

use crate::{DEFAULT_TENANCY, TrustDomain};

/// The server name under which a service is dialled:
/// `<service>.default.<datacenter>.internal.<trust domain>`.
pub fn service(service: &str, datacenter: &str, trust_domain: &TrustDomain) -> String {
    format!("{service}.{DEFAULT_TENANCY}.{datacenter}.internal.{trust_domain}")
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
    }
}
