//! Resolves the names of hosts. It keeps nothing.

use std::net::SocketAddr;

use legate_l4::model::{Address, DnsFamily, Endpoint, Endpoints};

/// Resolves the name of an endpoint.
pub(super) async fn resolve(target: Endpoint, family: DnsFamily) -> Option<Endpoints> {
    let (name, port) = match &target.address {
        Address::Dns(name, port) => (name.to_string(), *port),
        _ => {
            return Some(Endpoints {
                priorities: vec![vec![target]],
            });
        }
    };
    let found = tokio::net::lookup_host((name.as_str(), port)).await;
    let found = found
        .inspect_err(|error| tracing::debug!(name, %error, "a name cannot be resolved"))
        .ok()?;
    let (v4, v6): (Vec<SocketAddr>, Vec<SocketAddr>) = found.partition(SocketAddr::is_ipv4);
    let address = match family {
        DnsFamily::V4 => v4.first(),
        DnsFamily::V6 => v6.first(),
        DnsFamily::V4Preferred => v4.first().or(v6.first()),
        DnsFamily::Auto | DnsFamily::All => v6.first().or(v4.first()),
    };
    let endpoint = Endpoint {
        address: Address::Socket(*address?),
        ..target
    };
    Some(Endpoints {
        priorities: vec![vec![endpoint]],
    })
}
