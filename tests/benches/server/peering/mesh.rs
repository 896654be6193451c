//! The exported mesh, the entry that exports it, and the change that is measured. Pure.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::catalog::{self, CONFIG, REGISTER, Write};

/// Instances of each service.
pub(super) const INSTANCES: usize = 10;

/// Mesh gateways of the exporting cluster, which are the endpoints that proxies of the other one get.
pub(super) const GATEWAYS: usize = 2;

/// Nodes of the exporting cluster. The instances of a service are on different ones.
const NODES: usize = 1_000;

/// The name of the importing cluster in the exporting one.
pub(super) const IMPORTER: &str = "importer";

/// The name of the exporting cluster in the importing one.
pub(super) const EXPORTER: &str = "exporter";

/// The services with all instances and their proxies, and the gateways.
pub(super) fn services(count: usize) -> Vec<Write> {
    let instances = (0..count * INSTANCES).flat_map(|number| {
        let service = catalog::name(number / INSTANCES);
        let [mut application, proxy] = catalog::instance(&node(number), &service, number, &[]);
        application.1["Check"] = check(number, true);
        [application, proxy]
    });
    instances.chain((0..GATEWAYS).map(gateway)).collect()
}

fn node(number: usize) -> String {
    format!("node-{}", number % NODES)
}

fn check(number: usize, passing: bool) -> Value {
    let status = if passing { "passing" } else { "critical" };
    json!({
        "CheckID": check_id(number), "Name": "alive", "ServiceID": instance(number), "Status": status,
    })
}

fn check_id(number: usize) -> String {
    format!("{}-alive", instance(number))
}

fn instance(number: usize) -> String {
    format!("instance-{number}")
}

fn gateway(number: usize) -> Write {
    let address = Ipv4Addr::from_bits(0x0a80_0001 + u32::try_from(number).unwrap_or_default());
    let addresses = json!({"Address": address, "Port": 8443});
    let body = json!({
        "Node": format!("gateway-{number}"), "Address": address,
        "Service": {
            "Kind": "mesh-gateway", "ID": format!("gateway-{number}"), "Service": "mesh-gateway",
            "Address": address, "Port": 8443,
            "TaggedAddresses": {"lan": addresses, "wan": addresses},
        },
    });
    (REGISTER, body)
}

/// Exports all services.
pub(super) fn export() -> Write {
    let entry = json!({
        "Kind": "exported-services", "Name": "default",
        "Services": [{"Name": "*", "Consumers": [{"Peer": IMPORTER}]}],
    });
    (CONFIG, entry)
}

/// A query of the importing cluster for the instances of a service, and how many there should be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    pub(super) service: usize,
    /// Whether for proxies, which get the gateways, instead of other clients, which get the instances.
    pub(super) connect: bool,
}

impl Query {
    /// Both queries for each service.
    pub(super) fn all(count: usize) -> impl Iterator<Item = Query> {
        (0..count).flat_map(|service| [false, true].map(|connect| Query { service, connect }))
    }

    pub(super) fn path(self) -> String {
        let kind = if self.connect { "connect" } else { "service" };
        let service = catalog::name(self.service);
        format!("/v1/health/{kind}/{service}?peer={EXPORTER}")
    }

    pub(super) fn expected(self) -> usize {
        match self.connect {
            true => GATEWAYS,
            false => INSTANCES,
        }
    }
}

/// A change of one instance.
pub(super) struct Change {
    pub(super) write: Write,
    /// What shows it in the importing cluster.
    pub(super) query: Query,
    /// The number of healthy instances afterwards.
    pub(super) healthy: usize,
}

/// An instance of each service in turn becomes critical, and then healthy again.
pub(super) fn change(count: usize, round: usize) -> Change {
    let service = round % count;
    let number = service * INSTANCES;
    let passing = (round / count) % 2 == 1;
    let body = json!({
        "Node": node(number), "Address": "10.255.0.1", "SkipNodeUpdate": true,
        "Check": check(number, passing),
    });
    Change {
        write: (REGISTER, body),
        query: Query {
            service,
            connect: false,
        },
        healthy: INSTANCES - usize::from(!passing),
    }
}

/// The number of healthy instances in the answer to a query.
pub(super) fn healthy(answer: &[u8]) -> Option<usize> {
    let instances: Value = serde_json::from_slice(answer).ok()?;
    let is_passing = |instance: &&Value| {
        let checks = instance["Checks"].as_array();
        let mut checks = checks.into_iter().flatten();
        checks.all(|check| check["Status"] == "passing")
    };
    Some(instances.as_array()?.iter().filter(is_passing).count())
}
