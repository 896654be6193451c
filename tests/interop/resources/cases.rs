//! The documents.

use serde_json::{Value, json};

use super::{NODE, PROXY};

/// Documents in the order in which they are written.
pub(super) struct Case {
    /// What it is about.
    pub(super) about: &'static str,
    pub(super) registrations: Vec<Value>,
    pub(super) entries: Vec<Value>,
}

fn registration(service: Value) -> Value {
    json!({"Node": NODE, "Address": "10.0.0.1", "Service": service})
}

/// `web` with these fields of its proxy.
fn web(mut proxy: Value) -> Value {
    proxy["DestinationServiceName"] = json!("web");
    proxy["DestinationServiceID"] = json!("web");
    if proxy.get("LocalServiceSocketPath").is_none() {
        proxy["LocalServicePort"] = json!(8080);
    }
    registration(json!({
        "Kind": "connect-proxy", "ID": PROXY, "Service": PROXY, "Address": "10.0.0.1",
        "Port": 20000, "Proxy": proxy,
    }))
}

/// A proxy of a service.
fn instance(service: &str, version: &str, port: u16) -> Value {
    registration(json!({
        "Kind": "connect-proxy", "ID": format!("{service}-{version}"),
        "Service": format!("{service}-sidecar-proxy"), "Address": "10.0.0.2", "Port": port,
        "Meta": {"version": version}, "Proxy": {"DestinationServiceName": service},
    }))
}

fn upstream(config: Value) -> Value {
    json!({"Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191, "Config": config}]})
}

fn calling(config: Value) -> Vec<Value> {
    vec![
        web(upstream(config)),
        instance("api", "1", 20001),
        instance("api", "2", 20002),
        instance("other", "1", 20003),
    ]
}

fn http() -> Value {
    json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}})
}

fn resolver(name: &str, mut entry: Value) -> Value {
    entry["Kind"] = json!("service-resolver");
    entry["Name"] = json!(name);
    entry
}

fn splitter(splits: Value) -> Value {
    json!({"Kind": "service-splitter", "Name": "api", "Splits": splits})
}

fn router(routes: Value) -> Value {
    json!({"Kind": "service-router", "Name": "api", "Routes": routes})
}

fn subsets() -> Value {
    resolver(
        "api",
        json!({"Subsets": {
            "v1": {"Filter": "Service.Meta.version == 1"},
            "v2": {"Filter": "Service.Meta.version == 2", "OnlyPassing": true},
        }}),
    )
}

fn case(about: &'static str, entries: Vec<Value>) -> Case {
    Case {
        about,
        registrations: calling(json!({})),
        entries,
    }
}

fn with_config(about: &'static str, config: Value, entries: Vec<Value>) -> Case {
    Case {
        about,
        registrations: calling(config),
        entries,
    }
}

fn with_proxy(about: &'static str, proxy: Value, entries: Vec<Value>) -> Case {
    Case {
        about,
        registrations: vec![web(proxy)],
        entries,
    }
}

pub(super) fn all() -> Vec<Case> {
    let mut cases = plain();
    cases.extend(chains());
    cases.extend(routes());
    cases.extend(own_side());
    cases
}

fn plain() -> Vec<Case> {
    let defaults = |more: Value| {
        let mut entry = more;
        entry["Kind"] = json!("service-defaults");
        entry["Name"] = json!("web");
        entry
    };
    let protocol =
        |protocol: &str| json!({"Kind": "service-defaults", "Name": "api", "Protocol": protocol});
    vec![
        case("bytes", vec![]),
        case("HTTP", vec![http()]),
        case("an upstream of HTTP/2", vec![protocol("http2")]),
        case("an upstream of gRPC", vec![protocol("grpc")]),
        with_config(
            "settings of an upstream",
            json!({
                "connect_timeout_ms": 1234,
                "limits": {"max_connections": 3, "max_pending_requests": 0},
                "passive_health_check": {
                    "interval": "11s", "max_failures": 7, "enforcing_consecutive_5xx": 99,
                    "max_ejection_percent": 5, "base_ejection_time": "3s",
                },
                "balance_outbound_connections": "exact_balance",
            }),
            vec![http()],
        ),
        with_config(
            "another protocol for one caller",
            json!({"protocol": "http"}),
            vec![],
        ),
        case(
            "settings of upstreams in service-defaults",
            vec![defaults(json!({"UpstreamConfig": {
                "Defaults": {"ConnectTimeoutMs": 777, "Limits": {"MaxConnections": 9}},
                "Overrides": [{"Name": "api", "Limits": {"MaxConcurrentRequests": 4}}],
            }}))],
        ),
    ]
}

fn chains() -> Vec<Case> {
    let balancer = |policy: Value| vec![http(), resolver("api", json!({"LoadBalancer": policy}))];
    vec![
        case(
            "a redirect of bytes",
            vec![resolver("api", json!({"Redirect": {"Service": "other"}}))],
        ),
        case(
            "a redirect",
            vec![
                http(),
                resolver("api", json!({"Redirect": {"Service": "other"}})),
            ],
        ),
        case(
            "failover of bytes",
            vec![resolver(
                "api",
                json!({"Failover": {"*": {"Service": "other"}}}),
            )],
        ),
        case(
            "failover to several",
            vec![
                http(),
                resolver(
                    "api",
                    json!({
                        "ConnectTimeout": "2s", "DefaultSubset": "v1", "Subsets": {"v1": {"Filter": "Service.Meta.version == 1"}, "v2": {}},
                        "Failover": {"v1": {"Targets": [{"ServiceSubset": "v2"}, {"Service": "other"}]}},
                    }),
                ),
            ],
        ),
        case(
            "a default subset of those that pass",
            vec![
                http(),
                resolver(
                    "api",
                    json!({"DefaultSubset": "v2", "Subsets": {"v2": {"OnlyPassing": true}}, "RequestTimeout": "7s"}),
                ),
            ],
        ),
        case(
            "splits",
            vec![
                http(),
                subsets(),
                splitter(json!([
                    {"Weight": 33.33, "ServiceSubset": "v1", "RequestHeaders": {"Set": {"x": "1"}, "Remove": ["y"]}},
                    {"Weight": 66.67, "Service": "other", "ResponseHeaders": {"Add": {"z": "2"}}},
                ])),
            ],
        ),
        case(
            "least request",
            balancer(json!({"Policy": "least_request", "LeastRequestConfig": {"ChoiceCount": 5}})),
        ),
        case("random", balancer(json!({"Policy": "random"}))),
        case("round robin", balancer(json!({"Policy": "round_robin"}))),
        case(
            "a ring",
            balancer(json!({
                "Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 20, "MaximumRingSize": 30},
                "HashPolicies": [
                    {"Field": "header", "FieldValue": "x", "Terminal": true},
                    {"Field": "cookie", "FieldValue": "c", "CookieConfig": {"TTL": "9s", "Path": "/p"}},
                    {"Field": "cookie", "FieldValue": "s", "CookieConfig": {"Session": true}},
                    {"Field": "query_parameter", "FieldValue": "q"},
                    {"SourceIP": true},
                ],
            })),
        ),
        case(
            "maglev",
            balancer(
                json!({"Policy": "maglev", "HashPolicies": [{"Field": "header", "FieldValue": "x"}]}),
            ),
        ),
    ]
}

fn routes() -> Vec<Case> {
    let matched =
        |http: Value| json!({"Match": {"HTTP": http}, "Destination": {"Service": "other"}});
    let to = |destination: Value| json!({"Match": {"HTTP": {"PathPrefix": "/a"}}, "Destination": destination});
    vec![
        case(
            "matches",
            vec![
                http(),
                router(json!([
                    matched(json!({"PathExact": "/a"})),
                    matched(json!({"PathPrefix": "/b", "CaseInsensitive": true})),
                    matched(json!({"PathRegex": "/c.*"})),
                    matched(
                        json!({"Header": [{"Name": "a", "Present": true}, {"Name": "b", "Exact": "1", "Invert": true}]})
                    ),
                    matched(
                        json!({"Header": [{"Name": "c", "Prefix": "p"}, {"Name": "d", "Suffix": "s"}, {"Name": "e", "Regex": "r+"}]})
                    ),
                    matched(
                        json!({"QueryParam": [{"Name": "a", "Present": true}, {"Name": "b", "Exact": "1"}, {"Name": "c", "Regex": "r+"}]})
                    ),
                    matched(json!({"Methods": ["GET", "PUT"]})),
                ])),
            ],
        ),
        case(
            "destinations",
            vec![
                http(),
                subsets(),
                router(json!([
                    to(
                        json!({"ServiceSubset": "v2", "PrefixRewrite": "/b", "RequestTimeout": "3s", "IdleTimeout": "4s"})
                    ),
                    to(
                        json!({"RequestHeaders": {"Add": {"a": "1"}, "Remove": ["c"]}, "ResponseHeaders": {"Set": {"b": "2"}}})
                    ),
                    to(
                        json!({"NumRetries": 3, "RetryOnConnectFailure": true, "RetryOn": ["5xx", "reset"], "RetryOnStatusCodes": [401, 409]})
                    ),
                    to(json!({"RetryOnStatusCodes": [503]})),
                ])),
            ],
        ),
        case(
            "routes to splits",
            vec![
                http(),
                subsets(),
                splitter(
                    json!([{"Weight": 10, "ServiceSubset": "v1"}, {"Weight": 90, "ServiceSubset": "v2"}]),
                ),
                router(json!([to(json!({"Service": "other"}))])),
            ],
        ),
    ]
}

fn own_side() -> Vec<Case> {
    let sources =
        |sources: Value| json!({"Kind": "service-intentions", "Name": "web", "Sources": sources});
    let web =
        |protocol: &str| json!({"Kind": "service-defaults", "Name": "web", "Protocol": protocol});
    vec![
        with_proxy(
            "local settings",
            json!({"Config": {
                "local_connect_timeout_ms": 111, "local_request_timeout_ms": 222, "local_idle_timeout_ms": 333,
                "max_inbound_connections": 44, "balance_inbound_connections": "exact_balance",
            }}),
            vec![http()],
        ),
        with_proxy(
            "a unix socket",
            json!({"LocalServiceSocketPath": "/run/app", "Upstreams": [
                {"DestinationName": "api", "LocalBindSocketPath": "/run/api", "LocalBindSocketMode": "0640"},
            ]}),
            vec![],
        ),
        with_proxy(
            "exposed paths",
            json!({"Expose": {"Paths": [
                {"Path": "/health", "ListenerPort": 21500, "LocalPathPort": 8080},
                {"Path": "/grpc", "ListenerPort": 21501, "LocalPathPort": 9090, "Protocol": "http2"},
            ]}}),
            vec![],
        ),
        with_proxy(
            "intentions about connections",
            json!({}),
            vec![sources(json!([
                {"Name": "a", "Action": "deny"}, {"Name": "b", "Action": "allow"}, {"Name": "*", "Action": "deny"},
            ]))],
        ),
        with_proxy(
            "intentions about requests",
            json!({}),
            vec![
                web("http"),
                sources(json!([
                    {"Name": "a", "Permissions": [
                        {"Action": "deny", "HTTP": {"PathPrefix": "/admin", "Methods": ["POST"]}},
                        {"Action": "allow", "HTTP": {"PathExact": "/x", "Header": [
                            {"Name": "h", "Exact": "1"}, {"Name": "i", "Prefix": "p", "Invert": true},
                            {"Name": "j", "Contains": "c", "IgnoreCase": true}, {"Name": "k", "Regex": "r+"},
                        ]}},
                        {"Action": "allow", "HTTP": {"PathRegex": "/r.*"}},
                    ]},
                    {"Name": "b", "Action": "deny"},
                ])),
            ],
        ),
        with_proxy("gRPC", json!({}), vec![web("grpc")]),
        with_proxy(
            "access logs",
            json!({}),
            vec![
                json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}, "AccessLogs": {"Enabled": true}}),
            ],
        ),
        with_proxy(
            "the mesh's settings",
            json!({}),
            vec![
                web("http"),
                json!({"Kind": "mesh",
                    "TLS": {"Incoming": {"TLSMinVersion": "TLSv1_2", "CipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}},
                    "HTTP": {"SanitizeXForwardedClientCert": true, "Incoming": {"RequestNormalization": {
                        "MergeSlashes": true, "PathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD",
                        "HeadersWithUnderscoresAction": "REJECT_REQUEST",
                    }}},
                }),
            ],
        ),
    ]
}
