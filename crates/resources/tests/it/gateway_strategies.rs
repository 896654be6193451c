//! Strategies for config entries of gateways named `edge`, as users could write them.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::strategies::{
    always, duration, flag, header_changes, header_name, intentions, jwt_provider, list, maybe,
    mesh, number, object, one_of, passive_health, path, protocol, proxy_defaults, regex,
    requirement, resolver, router, service, service_defaults, splitter, text,
};

/// The kinds of gateways.
const KINDS: [&str; 4] = [
    "mesh-gateway",
    "ingress-gateway",
    "api-gateway",
    "terminating-gateway",
];

/// Certificates for hosts, some of them equal: name of the entry, certificate and key.
static CERTIFICATES: LazyLock<Vec<(&str, String, String)>> = LazyLock::new(|| {
    let made = |(name, hosts): (&'static str, &[&str])| {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(hosts).unwrap();
        (name, made.cert.pem(), made.signing_key.serialize_pem())
    };
    let all: [(&str, &[&str]); 3] = [
        ("one", &["a.test"]),
        ("two", &["a.test", "*.b.test"]),
        ("three", &["c.test"]),
    ];
    all.into_iter().map(made).collect()
});

fn host() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => one_of(&["a.test", "A.Test", "b.test", "*.test", "*.b.test", "x.b.test"]),
        1 => one_of(&["*", "", "a.test:80", "a.*", "a b", "192.0.2.1"]),
    ]
    .boxed()
}

fn port() -> BoxedStrategy<Value> {
    prop_oneof![6 => number(8080..=8082), 1 => number(0..=65535)].boxed()
}

fn version() -> BoxedStrategy<Value> {
    one_of(&["TLS_AUTO", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
}

fn ciphers() -> BoxedStrategy<Value> {
    let suites: &[&str] = &[
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_RSA_WITH_AES_128_CBC_SHA",
    ];
    subsequence(suites, 0..=2).prop_map(Value::from).boxed()
}

fn gateway_tls() -> BoxedStrategy<Value> {
    object(vec![
        always("Enabled", flag()),
        maybe("SDS", sds()),
        maybe("TLSMinVersion", version()),
        maybe("TLSMaxVersion", version()),
        maybe("CipherSuites", ciphers()),
    ])
}

fn sds() -> BoxedStrategy<Value> {
    object(vec![
        maybe("ClusterName", one_of(&["sds-cluster", "other-sds"])),
        maybe("CertResource", one_of(&["one", "two", "%"])),
    ])
}

fn ingress() -> BoxedStrategy<Value> {
    let of_service = object(vec![
        always("Name", prop_oneof![4 => service(), 1 => Just(json!("*"))]),
        maybe("Hosts", list(host(), 2)),
        maybe("TLS", object(vec![maybe("SDS", sds())])),
        maybe("RequestHeaders", header_changes()),
        maybe("ResponseHeaders", header_changes()),
        maybe("MaxConnections", number(0..=u32::MAX)),
        maybe("MaxPendingRequests", number(0..=9)),
        maybe("PassiveHealthCheck", passive_health()),
    ]);
    let listener = object(vec![
        always("Port", port()),
        always("Protocol", protocol()),
        maybe("TLS", gateway_tls()),
        always("Services", vec(of_service, 0..=3).prop_map(Value::from)),
    ]);
    let defaults = object(vec![
        maybe("MaxConnections", number(0..=u32::MAX)),
        maybe("MaxConcurrentRequests", number(0..=9)),
        maybe("PassiveHealthCheck", passive_health()),
    ]);
    object(vec![
        always("Kind", Just(json!("ingress-gateway"))),
        always("Name", Just(json!("edge"))),
        maybe("TLS", gateway_tls()),
        maybe("Defaults", defaults),
        always("Listeners", vec(listener, 0..=3).prop_map(Value::from)),
    ])
}

fn terminating() -> BoxedStrategy<Value> {
    let file = || one_of(&["/golden/ca.pem", "/missing.pem"]);
    let linked = object(vec![
        always("Name", prop_oneof![4 => service(), 1 => Just(json!("*"))]),
        maybe("CAFile", Just(json!("/golden/ca.pem"))),
        maybe("CertFile", file()),
        maybe("KeyFile", file()),
        maybe("SNI", prop_oneof![host(), text()]),
        maybe("DisableAutoHostRewrite", flag()),
    ]);
    object(vec![
        always("Kind", Just(json!("terminating-gateway"))),
        always("Name", Just(json!("edge"))),
        always("Services", vec(linked, 0..=4).prop_map(Value::from)),
    ])
}

fn api_gateway() -> BoxedStrategy<Value> {
    let certificate = object(vec![
        always("Kind", Just(json!("inline-certificate"))),
        always("Name", one_of(&["one", "two", "three", "missing"])),
    ]);
    let tls = object(vec![
        maybe("Certificates", list(certificate, 3)),
        maybe("MinVersion", version()),
        maybe("MaxVersion", version()),
        maybe("CipherSuites", ciphers()),
    ]);
    let policy = || object(vec![maybe("JWT", requirement())]);
    let listener = (0..3_usize, tls, policy(), policy(), host(), port(), flag());
    let listener = listener.prop_map(|(at, tls, over, default, host, port, is_tcp)| {
        let mut listener = json!({
            "Name": (["one", "two", "three"][at]), "Port": port, "TLS": tls,
            "Protocol": (if is_tcp == true && at == 2 { "tcp" } else { "http" }),
        });
        if at == 1 {
            listener["Hostname"] = host;
            listener["Override"] = over;
            listener["Default"] = default;
        }
        listener
    });
    object(vec![
        always("Kind", Just(json!("api-gateway"))),
        always("Name", Just(json!("edge"))),
        always("Listeners", vec(listener, 0..=3).prop_map(Value::from)),
    ])
}

fn certificates() -> BoxedStrategy<Vec<Value>> {
    let entries: Vec<Value> = CERTIFICATES
        .iter()
        .map(|(name, certificate, key)| {
            json!({"Kind": "inline-certificate", "Name": name, "Certificate": certificate, "PrivateKey": key})
        })
        .collect();
    subsequence(entries, 0..=3).boxed()
}

fn parents() -> BoxedStrategy<Value> {
    let parent = object(vec![
        always(
            "Name",
            prop_oneof![6 => Just(json!("edge")), 1 => Just(json!("other"))],
        ),
        maybe("SectionName", one_of(&["one", "two", "three", "missing"])),
    ]);
    vec(parent, 1..=2).prop_map(Value::from).boxed()
}

fn condition(kinds: &'static [&'static str], name: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    object(vec![
        always("Match", one_of(kinds)),
        always("Name", name),
        always("Value", prop_oneof![text(), regex()]),
    ])
}

fn route_match() -> BoxedStrategy<Value> {
    let of_path = object(vec![
        always("Match", one_of(&["exact", "prefix", "prefix", "regex"])),
        always("Value", prop_oneof![4 => path(), 1 => regex()]),
    ]);
    let headers = &["exact", "prefix", "suffix", "regex", "present"];
    object(vec![
        maybe("Path", of_path),
        maybe("Method", one_of(&["GET", "post", "PUT"])),
        maybe("Headers", list(condition(headers, header_name()), 2)),
        maybe(
            "Query",
            list(condition(&["exact", "regex", "present"], text()), 2),
        ),
    ])
}

fn filters() -> BoxedStrategy<Value> {
    let retry = object(vec![
        maybe("NumRetries", number(0..=9)),
        maybe(
            "RetryOn",
            list(one_of(&["5xx", "reset", "gateway-error", "cancelled"]), 2),
        ),
        maybe("RetryOnStatusCodes", list(number(500..=504), 2)),
        maybe("RetryOnConnectFailure", flag()),
    ]);
    let timeout = object(vec![
        maybe("RequestTimeout", duration()),
        maybe("IdleTimeout", duration()),
    ]);
    object(vec![
        maybe("Headers", list(header_changes(), 2)),
        maybe("URLRewrite", path().prop_map(|path| json!({"Path": path}))),
        maybe("RetryFilter", retry),
        maybe("TimeoutFilter", timeout),
        maybe("JWT", requirement()),
    ])
}

fn http_route() -> BoxedStrategy<Value> {
    let answers = || object(vec![maybe("Headers", list(header_changes(), 2))]);
    let of_service = object(vec![
        always("Name", service()),
        maybe("Weight", number(0..=100)),
        maybe("Filters", filters()),
        maybe("ResponseFilters", answers()),
    ]);
    let rule = object(vec![
        maybe("Matches", list(route_match(), 2)),
        maybe("Filters", filters()),
        maybe("ResponseFilters", answers()),
        always("Services", vec(of_service, 0..=2).prop_map(Value::from)),
    ]);
    object(vec![
        always("Kind", Just(json!("http-route"))),
        always("Name", one_of(&["r", "s", "t"])),
        always("Parents", parents()),
        maybe("Hostnames", list(host(), 2)),
        always("Rules", vec(rule, 0..=3).prop_map(Value::from)),
    ])
}

fn tcp_route() -> BoxedStrategy<Value> {
    let services = service().prop_map(|name| json!([{"Name": name}]));
    object(vec![
        always("Kind", Just(json!("tcp-route"))),
        always("Name", one_of(&["r", "s"])),
        always("Parents", parents()),
        always("Services", services),
    ])
}

/// What is written for a gateway of this kind itself.
fn of_kind(kind: &'static str) -> BoxedStrategy<Vec<Value>> {
    let one = |entry: BoxedStrategy<Value>| entry.prop_map(|entry| vec![entry]).boxed();
    match kind {
        "ingress-gateway" => one(ingress()),
        "terminating-gateway" => one(terminating()),
        "api-gateway" => {
            let routes = (vec(http_route(), 0..=3), option::of(tcp_route()));
            let all = (
                certificates(),
                vec(jwt_provider(), 0..=1),
                api_gateway(),
                routes,
            );
            let all = all.prop_map(|(mut all, providers, gateway, (http, tcp))| {
                all.extend(providers);
                all.push(gateway);
                all.extend(http.into_iter().chain(tcp));
                all
            });
            all.boxed()
        }
        _ => Just(Vec::new()).boxed(),
    }
}

/// A kind of gateway, and config entries in the order in which they are written.
pub(crate) fn gateways() -> impl Strategy<Value = (&'static str, Vec<Value>)> {
    select(&KINDS[..]).prop_flat_map(|kind| {
        let first = (
            option::weighted(0.8, proxy_defaults()),
            vec(service_defaults(), 0..=3),
            option::weighted(0.3, mesh()),
        );
        let chains = (
            vec(resolver(), 0..=2),
            vec(splitter(), 0..=1),
            vec(router(), 0..=1),
            vec(intentions(), 0..=2),
        );
        (first, chains, of_kind(kind), any::<bool>()).prop_map(
            move |(first, chains, own, own_first)| {
                let (proxies, services, mesh) = first;
                let (resolvers, splitters, routers, intentions) = chains;
                let mut all: Vec<Value> = proxies.into_iter().chain(services).chain(mesh).collect();
                let more = [resolvers, splitters, routers, intentions].concat();
                match own_first {
                    true => all.extend(own.into_iter().chain(more)),
                    false => all.extend(more.into_iter().chain(own)),
                }
                (kind, all)
            },
        )
    })
}
