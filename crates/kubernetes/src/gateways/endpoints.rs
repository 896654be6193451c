//! The endpoints of ports of Services, from EndpointSlices. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use legate_gateway_api::{Key, Service};
use legate_routes::{Endpoint, ServicePort, Transport};

/// The parts of an EndpointSlice that gateways depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    /// Name, number and transport of each port.
    ports: Vec<(String, u16, Transport)>,
    /// The addresses of ready endpoints.
    ready: Vec<IpAddr>,
}

impl Slice {
    pub(super) fn of(slice: &EndpointSlice) -> Self {
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let transport = match port.protocol.as_deref().unwrap_or("TCP") {
                "TCP" => Transport::Tcp,
                "UDP" => Transport::Udp,
                _ => return None,
            };
            let number = u16::try_from(port.port?).ok()?;
            Some((port.name.clone().unwrap_or_default(), number, transport))
        });
        let ready = slice.endpoints.iter().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            // Unset means ready.
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        });
        let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
        Self {
            ports: ports.collect(),
            ready: addresses.filter_map(|one| one.parse().ok()).collect(),
        }
    }
}

/// The endpoints of a port, sorted.
pub(super) fn endpoints(
    port: &ServicePort,
    services: &BTreeMap<Key, Service>,
    slices: &BTreeMap<Key, BTreeMap<String, Slice>>,
) -> BTreeSet<Endpoint> {
    let key = Key::new(&port.namespace, &port.name);
    let is_it = |one: &&legate_gateway_api::ServicePort| {
        one.port == port.port && one.udp == (port.transport == Transport::Udp)
    };
    let service = services.get(&key);
    let Some(name) = service.and_then(|service| service.ports.iter().find(is_it)) else {
        return BTreeSet::new();
    };
    let slices = slices.get(&key).into_iter().flat_map(BTreeMap::values);
    let endpoints = slices.flat_map(|slice| {
        let ports = slice.ports.iter();
        let ports =
            ports.filter(|(of, _, transport)| *of == name.name && *transport == port.transport);
        ports.flat_map(|(_, number, _)| {
            slice.ready.iter().map(|address| Endpoint {
                address: *address,
                port: *number,
                identity: None,
            })
        })
    });
    endpoints.collect()
}
