//! What a gateway serves on its ports.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::WILDCARD;
use legate_routes::{Certificate, Chain, Content, Datagrams, HostPorts, Listener, ServerTls, Tls};

use super::backend::secret;
use super::gateway::GatewayPlan;
use super::listener::ListenerPlan;
use super::tables::{self, ListenerRoutes};
use crate::kind::Protocol;
use crate::outcome::{InfrastructurePlan, Served};

/// What a gateway serves, from all its listeners without conflicts, and the indexes of listeners with
/// too many rules.
pub(super) fn served(
    gateway: &GatewayPlan<'_>,
    all: Vec<ListenerRoutes<'_>>,
) -> (Served, Vec<usize>) {
    let mut crowded = Vec::new();
    let mut by_port = BTreeMap::<_, Vec<_>>::new();
    for routes in all {
        let is_udp = routes.listener.protocol == Some(Protocol::Udp);
        let here = by_port.entry((routes.listener.spec.port, is_udp));
        here.or_default().push(routes);
    }
    let mut served = Served {
        infrastructure: infrastructure(gateway),
        ..Served::default()
    };
    for ((port, is_udp), here) in by_port {
        if !here.iter().any(|routes| routes.listener.is_served()) {
            continue;
        }
        served.infrastructure.ports.push((port, is_udp));
        match is_udp {
            true => served.datagrams.push(Datagrams {
                port,
                backends: oldest(&here[0]),
            }),
            false => served.listeners.push(listener(port, &here, &mut crowded)),
        }
    }
    (served, crowded)
}

fn infrastructure(gateway: &GatewayPlan<'_>) -> InfrastructurePlan {
    let spec = &gateway.object.spec;
    let written = spec.infrastructure.clone().unwrap_or_default();
    let of_class = gateway.class.object.spec.parameters_ref.clone();
    InfrastructurePlan {
        ports: Vec::new(),
        addresses: spec.addresses.clone(),
        labels: written.labels,
        annotations: written.annotations,
        parameters: written.parameters_ref.or(of_class),
    }
}

/// Where the connections of a listener go without server names: to the oldest route's backends.
fn oldest(routes: &ListenerRoutes<'_>) -> Vec<legate_routes::WeightedBackend> {
    let oldest = routes.attached.first();
    oldest.map_or_else(Vec::new, |route| route.connections.clone())
}

fn listener(port: u16, here: &[ListenerRoutes<'_>], crowded: &mut Vec<usize>) -> Listener {
    let protocol = here[0].listener.protocol;
    let content = match protocol {
        Some(Protocol::Http) => {
            let mut hosts = Vec::new();
            for routes in here {
                let made = tables::hosts(routes, here);
                crowded.extend(made.is_crowded.then_some(routes.at));
                hosts.extend(made.hosts);
            }
            hosts.sort_by(|a, b| a.domains.cmp(&b.domains));
            Content::Http(hosts)
        }
        Some(Protocol::Tcp | Protocol::Udp) | None => Content::Tcp(oldest(&here[0])),
        Some(_) => return by_name(port, here, crowded),
    };
    plain(port, content)
}

/// A port without TLS.
pub(super) fn plain(port: u16, content: Content) -> Listener {
    let chain = Chain {
        name: None,
        server_names: Vec::new(),
        tls: Tls::None,
        content: 0,
    };
    Listener {
        port,
        chains: vec![chain],
        contents: vec![content],
        host_ports: HostPorts::Any,
    }
}

/// A port on which connections are chosen by server name.
fn by_name(port: u16, here: &[ListenerRoutes<'_>], crowded: &mut Vec<usize>) -> Listener {
    let mut port = Listener {
        port,
        chains: Vec::new(),
        contents: Vec::new(),
        host_ports: HostPorts::Any,
    };
    let mut closed = BTreeSet::new();
    for routes in here {
        let own = routes.listener;
        let tls = match own.is_served() {
            true => tls(own),
            // Its names are not for others: a listener that verifies no clients could have them.
            false => {
                closed.extend((own.host != WILDCARD).then(|| own.host.clone()));
                continue;
            }
        };
        if own.protocol == Some(Protocol::Https) {
            let made = tables::hosts_by_name(routes, here);
            crowded.extend(made.is_crowded.then_some(routes.at));
            let content = Content::Http(made.hosts);
            add(&mut port, vec![own.host.clone()], tls, content);
            continue;
        }
        for (name, backends) in tables::server_names(routes, here) {
            if backends.is_empty() {
                closed.insert(name);
            } else {
                add(&mut port, vec![name], tls.clone(), Content::Tcp(backends));
            }
        }
    }
    // Envoy needs a chain, even if nothing is behind the port yet.
    if !closed.is_empty() || port.chains.is_empty() {
        let names = closed.into_iter().collect();
        add(
            &mut port,
            names,
            Tls::PassedThrough,
            Content::Tcp(Vec::new()),
        );
    }
    port
}

fn add(port: &mut Listener, mut server_names: Vec<String>, tls: Tls, content: Content) {
    server_names.retain(|name| name != WILDCARD);
    let known = port.contents.iter().position(|known| *known == content);
    let content = known.unwrap_or_else(|| {
        port.contents.push(content);
        port.contents.len() - 1
    });
    port.chains.push(Chain {
        name: None,
        server_names,
        tls,
        content,
    });
}

fn tls(listener: &ListenerPlan<'_>) -> Tls {
    if listener.protocol == Some(Protocol::TlsPassedThrough) {
        return Tls::PassedThrough;
    }
    let certificates = listener.certificates.iter();
    Tls::Terminated(ServerTls {
        certificates: certificates
            .map(|key| Certificate::Secret(secret(key)))
            .collect(),
        clients: listener.clients.clone(),
        ..ServerTls::default()
    })
}
