//! The registered mesh: services, upstreams, and the changes that are measured. Pure.
//!
//! The first proxies are the instances of one service and the only callers of another, so that a
//! change of either concerns only them. The remaining proxies are spread over the other services.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// Services in the mesh.
pub(crate) const SERVICES: usize = 1_000;

/// Upstreams of each proxy.
const UPSTREAMS: usize = 5;

/// The number of proxies affected by a change of an endpoint or an intention.
pub(crate) const CONCERNED: usize = 100;

/// The service of the affected proxies.
const OWN: usize = 0;

/// The service that only the affected proxies call.
const CALLED: usize = 1;

/// The number of instances of that service, none of which connects.
const INSTANCES: usize = 10;

/// The number of proxies that call the service with a router.
pub(crate) const ROUTED: usize = 500;

/// The index of the service with a router, after all others.
const ROUTER: usize = SERVICES;

/// Routes of the router.
const ROUTES: usize = 200;

/// The number of services of the other proxies.
const OTHERS: usize = SERVICES - 2;

/// The number of proxies per node.
const ON_A_NODE: usize = 10;

/// The path and body of a write.
pub(crate) type Write = (&'static str, Value);

pub(crate) const CONFIG: &str = "/v1/config";
pub(crate) const REGISTER: &str = "/v1/catalog/register";

/// The node of a proxy.
pub(crate) fn node(proxy: usize) -> String {
    format!("node-{}", proxy / ON_A_NODE)
}

/// ID of a proxy's registration.
pub(crate) fn id(proxy: usize) -> String {
    format!("instance-{proxy}-sidecar-proxy")
}

/// The service of a proxy.
pub(crate) fn service(proxy: usize) -> String {
    name(match proxy.checked_sub(CONCERNED) {
        None => OWN,
        Some(proxy) => 2 + proxy % OTHERS,
    })
}

pub(crate) fn name(service: usize) -> String {
    format!("service-{service}")
}

/// The service with a router.
pub(crate) fn routed() -> String {
    name(ROUTER)
}

/// The upstreams of a proxy, which are the same for all instances of a service.
fn upstreams(proxy: usize) -> Vec<String> {
    let spread = |place: usize| 2 + (proxy * 31 + place * 199) % OTHERS;
    let mut services: Vec<usize> = (0..UPSTREAMS).map(spread).collect();
    if proxy < CONCERNED {
        services = (0..UPSTREAMS).map(|place| 2 + place).collect();
        services[0] = CALLED;
    }
    if proxy < ROUTED {
        services[1] = ROUTER;
    }
    services.into_iter().map(name).collect()
}

/// Config entries for the whole mesh: intentions allow all calls, and every service uses HTTP.
pub(crate) fn configuration() -> Vec<Write> {
    let allow = json!({
        "Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": "allow"}],
    });
    let defaults = (0..=ROUTER).map(
        |service| json!({"Kind": "service-defaults", "Name": name(service), "Protocol": "http"}),
    );
    let entries = [allow, proxy_defaults(0)].into_iter().chain(defaults);
    let entries = entries.map(|entry| (CONFIG, entry));
    entries.chain([router(0)]).collect()
}

/// The instances with their proxies, and those of the called service.
pub(crate) fn instances(proxies: usize) -> Vec<Write> {
    let own = (0..proxies).flat_map(|proxy| {
        let calls = upstreams(proxy);
        instance(&node(proxy), &service(proxy), proxy, &calls)
    });
    let called = (proxies..proxies + INSTANCES)
        .flat_map(|proxy| instance(&node(proxy), &name(CALLED), proxy, &[]));
    let behind = proxies + INSTANCES;
    let routed = (behind..behind + INSTANCES)
        .flat_map(|proxy| instance(&node(proxy), &routed(), proxy, &[]));
    own.chain(called).chain(routed).collect()
}

pub(crate) fn instance(node: &str, service: &str, number: usize, calls: &[String]) -> [Write; 2] {
    let id = format!("instance-{number}");
    let address = Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap_or_default());
    let ports = 9_000..;
    let upstreams = ports.zip(calls).map(|(port, service)| {
        json!({"DestinationName": service, "LocalBindAddress": "127.0.0.1", "LocalBindPort": port})
    });
    let proxy = json!({
        "Kind": "connect-proxy",
        "ID": format!("{id}-sidecar-proxy"),
        "Service": format!("{service}-sidecar-proxy"),
        "Address": address,
        "Port": 20_000,
        "Proxy": {
            "DestinationServiceName": service,
            "DestinationServiceID": id,
            "LocalServiceAddress": "127.0.0.1",
            "LocalServicePort": 8_080,
            "Upstreams": upstreams.collect::<Vec<_>>(),
        },
    });
    let application = json!({"ID": id, "Service": service, "Address": address, "Port": 8_080});
    let on_node = |service| json!({"Node": node, "Address": "10.255.0.1", "Service": service});
    let mut proxy = on_node(proxy);
    proxy["Check"] = check(number, true);
    [(REGISTER, on_node(application)), (REGISTER, proxy)]
}

pub(crate) fn check(proxy: usize, passing: bool) -> Value {
    let status = if passing { "passing" } else { "critical" };
    json!({
        "CheckID": format!("{}-ready", id(proxy)), "Name": "ready", "ServiceID": id(proxy),
        "Status": status,
    })
}

/// Removes an endpoint of the called service, or adds it again in the next round.
pub(crate) fn flap(proxies: usize, round: usize) -> Write {
    let change = json!({
        "Node": node(proxies), "Address": "10.255.0.1", "SkipNodeUpdate": true,
        "Check": check(proxies, round % 2 == 1),
    });
    (REGISTER, change)
}

/// Denies one caller of the affected proxies, or allows it again in the next round.
pub(crate) fn intention(round: usize) -> Write {
    let action = if round % 2 == 1 { "allow" } else { "deny" };
    let change = json!({
        "Kind": "service-intentions", "Name": name(OWN),
        "Sources": [{"Name": name(2), "Action": action}],
    });
    (CONFIG, change)
}

/// A router whose last route changes each round.
pub(crate) fn router(round: usize) -> Write {
    let route = |place: usize| {
        let last = place + 1 == ROUTES;
        json!({
            "Match": {"HTTP": {
                "PathPrefix": format!("/{place}/{}", if last { round } else { 0 }),
                "Header": [{"Name": "x-version", "Exact": format!("v{place}")}],
            }},
            "Destination": {"Service": name(2 + place % UPSTREAMS), "NumRetries": 3},
        })
    };
    let routes: Vec<Value> = (0..ROUTES).map(route).collect();
    (
        CONFIG,
        json!({"Kind": "service-router", "Name": routed(), "Routes": routes}),
    )
}

/// A setting of every proxy that changes each round.
pub(crate) fn proxy_defaults_change(round: usize) -> Write {
    (CONFIG, proxy_defaults(1 + round))
}

fn proxy_defaults(round: usize) -> Value {
    let config = json!({"protocol": "http", "local_connect_timeout_ms": 5_000 + round});
    json!({"Kind": "proxy-defaults", "Name": "global", "Config": config})
}
