//! The measured gateways: what is registered before they connect, and the changes that are measured. Pure, apart
//! from new keys.

use std::time::{Duration, SystemTime};

use legate_api::type_url::{CLUSTER, ENDPOINT};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::session::Size;
use crate::catalog::{self, CONFIG, REGISTER, Write, name};

/// Services behind the mesh gateway.
const MESH: usize = 2_000;

/// Services behind the ingress gateway.
const INGRESS: usize = 500;

/// Routes of the API gateway, each with a host and a certificate of its own.
const ROUTES: usize = 1_000;

/// Services behind these routes.
const ROUTED: usize = 100;

/// Instances of each service.
const INSTANCES: usize = 2;

/// The one that is changed.
const CHANGED: usize = 7;

/// The validity of certificates.
const VALID: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The name of every gateway's service, and its ID.
pub(super) const GATEWAY: &str = "gateway";

/// The node of every gateway.
pub(super) const NODE: &str = "edge";

/// How a response shows that it contains a change.
#[derive(Debug)]
pub(super) enum Mark {
    /// It has this type.
    Type(&'static str),
    /// It contains this text, which nothing had before.
    Text(String),
}

/// A change that is repeated with another value in each round.
pub(super) struct Change {
    pub(super) label: &'static str,
    pub(super) write: fn(usize) -> (Write, Mark),
}

/// One gateway.
pub(super) struct Scenario {
    pub(super) title: String,
    pub(super) expected: Size,
    /// Written in this order; the writes of one step in any order.
    pub(super) steps: Vec<Vec<Write>>,
    pub(super) changes: Vec<Change>,
}

/// Makes a scenario, with new keys.
pub(super) type Make = fn() -> Scenario;

/// The scenarios, by the name with which one is selected.
pub(super) const SCENARIOS: [(&str, Make); 3] =
    [("mesh", mesh), ("api", api), ("ingress", ingress)];

fn mesh() -> Scenario {
    Scenario {
        title: format!("mesh gateway, {MESH} services"),
        expected: Size {
            clusters: MESH,
            // Connections are forwarded by their server name.
            chains: 1,
            hosts: 0,
        },
        steps: vec![settings(), services(MESH), vec![gateway("mesh-gateway")]],
        changes: vec![
            Change {
                label: "instance",
                write: instance,
            },
            Change {
                label: "resolver",
                write: resolver,
            },
        ],
    }
}

fn ingress() -> Scenario {
    let entry = json!({"Kind": "ingress-gateway", "Name": GATEWAY, "Listeners": [
        {"Port": 8_080, "Protocol": "http", "Services": [{"Name": "*"}]},
    ]});
    Scenario {
        title: format!("ingress gateway, * over {INGRESS} services"),
        expected: Size {
            clusters: INGRESS,
            chains: 1,
            hosts: INGRESS,
        },
        steps: vec![
            settings(),
            services(INGRESS),
            vec![router(0).0],
            vec![gateway("ingress-gateway"), (CONFIG, entry)],
        ],
        changes: vec![
            Change {
                label: "instance",
                write: instance,
            },
            Change {
                label: "route",
                write: router,
            },
        ],
    }
}

fn api() -> Scenario {
    let certificates = (0..ROUTES)
        .map(|route| json!({"Kind": "inline-certificate", "Name": format!("certificate-{route}")}));
    let certificates: Vec<Value> = certificates.collect();
    let entry = json!({"Kind": "api-gateway", "Name": GATEWAY, "Listeners": [{
        "Name": "web", "Port": 8_443, "Protocol": "http", "TLS": {"Certificates": certificates},
    }]});
    let certificates = (0..ROUTES).map(|route| certificate(route).0);
    let routes = (0..ROUTES).map(|place| (CONFIG, http_route(place, "/0")));
    Scenario {
        title: format!("API gateway, {ROUTES} routes and certificates"),
        expected: Size {
            clusters: ROUTED,
            chains: ROUTES,
            hosts: ROUTES,
        },
        steps: vec![
            settings(),
            services(ROUTED),
            certificates.collect(),
            routes.collect(),
            vec![gateway("api-gateway"), (CONFIG, entry)],
        ],
        changes: vec![
            Change {
                label: "instance",
                write: instance,
            },
            Change {
                label: "route",
                write: |round| {
                    let path = format!("/changed-{round}");
                    ((CONFIG, http_route(CHANGED, &path)), Mark::Text(path))
                },
            },
            Change {
                label: "certificate",
                write: |_| certificate(CHANGED),
            },
        ],
    }
}

/// All services use HTTP, and all calls are allowed.
fn settings() -> Vec<Write> {
    let allow = json!({
        "Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": "allow"}],
    });
    let defaults =
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}});
    [allow, defaults].map(|entry| (CONFIG, entry)).into()
}

fn services(count: usize) -> Vec<Write> {
    let instances = 0..count * INSTANCES;
    let one =
        |number| catalog::instance(&catalog::node(number), &name(number % count), number, &[]);
    instances.flat_map(one).collect()
}

fn gateway(kind: &str) -> Write {
    let service = json!({
        "Kind": kind, "ID": GATEWAY, "Service": GATEWAY, "Address": "127.0.0.1", "Port": 8_443,
    });
    let node = json!({"Node": NODE, "Address": "127.0.0.1", "Service": service});
    (REGISTER, node)
}

/// Makes an instance fail, or pass again in the next round.
fn instance(round: usize) -> (Write, Mark) {
    let change = json!({
        "Node": catalog::node(CHANGED), "Address": "10.255.0.1", "SkipNodeUpdate": true,
        "Check": catalog::check(CHANGED, round.is_multiple_of(2)),
    });
    ((REGISTER, change), Mark::Type(ENDPOINT))
}

fn resolver(round: usize) -> (Write, Mark) {
    let change = json!({
        "Kind": "service-resolver", "Name": name(CHANGED),
        "ConnectTimeout": format!("{}s", 10 + round),
    });
    ((CONFIG, change), Mark::Type(CLUSTER))
}

fn router(round: usize) -> (Write, Mark) {
    let path = format!("/changed-{round}");
    let change = json!({
        "Kind": "service-router", "Name": name(CHANGED),
        "Routes": [{"Match": {"HTTP": {"PathPrefix": path}}, "Destination": {"PrefixRewrite": "/"}}],
    });
    ((CONFIG, change), Mark::Text(path))
}

fn host(route: usize) -> String {
    format!("host-{route}.example.com")
}

fn http_route(place: usize, path: &str) -> Value {
    json!({
        "Kind": "http-route", "Name": format!("route-{place}"),
        "Parents": [{"Kind": "api-gateway", "Name": GATEWAY, "SectionName": "web"}],
        "Hostnames": [host(place)],
        "Rules": [{
            "Matches": [{"Path": {"Match": "prefix", "Value": path}}],
            "Services": [{"Name": name(place % ROUTED)}],
        }],
    })
}

/// A new certificate for the host of a route.
fn certificate(route: usize) -> (Write, Mark) {
    let mut params = CertificateParams::new([host(route)]).expect("a host name");
    let now = SystemTime::now();
    params.not_before = now.into();
    params.not_after = (now + VALID).into();
    let key = KeyPair::generate().expect("a key");
    let signed = params.self_signed(&key).expect("a certificate");
    let pem = signed.pem();
    // Contains the serial number.
    let mark = pem.lines().nth(1).unwrap_or_default().to_owned();
    let entry = json!({
        "Kind": "inline-certificate", "Name": format!("certificate-{route}"),
        "Certificate": pem, "PrivateKey": key.serialize_pem(),
    });
    ((CONFIG, entry), Mark::Text(mark))
}
