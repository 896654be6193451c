//! TLS server names (SNI) inside the mesh.

use crate::spiffe::TrustDomain;
use crate::tenancy::{DEFAULT_TENANCY, ServiceName};

/// The server name of a service: `<service>.<namespace>.<datacenter>.internal.<trust domain>`, or
/// `<service>.<namespace>.<partition>.<datacenter>.internal-v1.<trust domain>` in a partition other
/// than `default`.
pub fn service(service: &ServiceName, datacenter: &str, trust_domain: &TrustDomain) -> String {
    let ServiceName { tenancy, name } = service;
    let (partition, namespace) = (&tenancy.partition, &tenancy.namespace);
    match tenancy.is_default_partition() {
        true => format!("{name}.{namespace}.{datacenter}.internal.{trust_domain}"),
        false => format!("{name}.{namespace}.{partition}.{datacenter}.internal-v1.{trust_domain}"),
    }
}

/// The server name of a subset of a service, which precedes that of the service. The empty subset is
/// the service.
pub fn subset(
    service: &ServiceName,
    subset: &str,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> String {
    let name = self::service(service, datacenter, trust_domain);
    match subset {
        "" => name,
        subset => format!("{subset}.{name}"),
    }
}

/// The server name of a port of a service's application other than the one that its sidecar is registered
/// with. No subset has such a name.
pub fn application(
    service: &ServiceName,
    port: u16,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> String {
    let name = self::service(service, datacenter, trust_domain);
    format!("_{port}.{name}")
}

/// The server name for the results of a prepared query: `<query>.default.<datacenter>.query.<trust
/// domain>`.
pub fn query(query: &str, datacenter: &str, trust_domain: &TrustDomain) -> String {
    format!("{query}.{DEFAULT_TENANCY}.{datacenter}.query.{trust_domain}")
}

/// The server name of the mesh gateways of a partition. The names of the services behind them are below it:
/// `<datacenter>.internal.<trust domain>`, or `<partition>.<datacenter>.internal-v1.<trust domain>` in a partition other
/// than `default`.
pub fn gateway(partition: &str, datacenter: &str, trust_domain: &TrustDomain) -> String {
    match partition {
        DEFAULT_TENANCY => format!("{datacenter}.internal.{trust_domain}"),
        _ => format!("{partition}.{datacenter}.internal-v1.{trust_domain}"),
    }
}

/// The server name by which a peer calls a service that is exported to it:
/// `<service>.<namespace>.<partition>.<peer>.external.<trust domain>`. The peer's name and the trust domain are those of
/// the exporting cluster.
pub fn exported(service: &ServiceName, peer: &str, trust_domain: &TrustDomain) -> String {
    let ServiceName { tenancy, name } = service;
    let (partition, namespace) = (&tenancy.partition, &tenancy.namespace);
    format!("{name}.{namespace}.{partition}.{peer}.external.{trust_domain}")
}

/// The server name of the servers of a datacenter for those of its peers:
/// `server.<datacenter>.peering.<trust domain>`.
pub fn peering_server(datacenter: &str, trust_domain: &TrustDomain) -> String {
    format!("server.{datacenter}.peering.{trust_domain}")
}

#[cfg(test)]
mod tests {
    use crate::{ServiceName, Tenancy};

    #[test]
    fn the_name_has_all_parts() {
        let trust_domain = crate::TrustDomain::of_cluster("c1");
        assert_eq!(
            super::service(&"web".into(), "dc1", &trust_domain),
            "web.default.dc1.internal.c1.consul"
        );
        let name = |text: &str| text.parse().unwrap();
        let tenancy = Tenancy::new(&name("shop"), &name("team"));
        assert_eq!(
            super::service(&ServiceName::new(&tenancy, "web"), "dc1", &trust_domain),
            "web.team.shop.dc1.internal-v1.c1.consul"
        );
        assert_eq!(
            super::exported(&ServiceName::new(&tenancy, "web"), "alpha", &trust_domain),
            "web.team.shop.alpha.external.c1.consul"
        );
        assert_eq!(
            super::peering_server("dc1", &trust_domain),
            "server.dc1.peering.c1.consul"
        );
        assert_eq!(
            super::query("near", "dc1", &trust_domain),
            "near.default.dc1.query.c1.consul"
        );
    }
}
