//! Strategies for config entries as users could write them: few service names, so that entries
//! interact, and mostly valid values.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// An optional field.
pub(crate) type Field = (&'static str, BoxedStrategy<Option<Value>>);

/// An object with some of the fields.
pub(crate) fn object(fields: Vec<Field>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let with_names = move |values: Vec<Option<Value>>| {
        let pairs = names.iter().zip(values);
        let given = pairs.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(given.collect())
    };
    values.prop_map(with_names).boxed()
}

pub(crate) fn always(name: &'static str, value: impl Strategy<Value = Value> + 'static) -> Field {
    (name, value.prop_map(Some).boxed())
}

/// A field that is rarely present.
pub(crate) fn maybe(name: &'static str, value: impl Strategy<Value = Value> + 'static) -> Field {
    (name, option::weighted(0.3, value).boxed())
}

pub(crate) fn list(
    item: impl Strategy<Value = Value> + 'static,
    most: usize,
) -> BoxedStrategy<Value> {
    vec(item, 0..=most).prop_map(Value::from).boxed()
}

pub(crate) fn one_of(values: &'static [&'static str]) -> BoxedStrategy<Value> {
    select(values).prop_map(Value::from).boxed()
}

pub(crate) fn number(range: std::ops::RangeInclusive<u32>) -> BoxedStrategy<Value> {
    range.prop_map(Value::from).boxed()
}

pub(crate) fn flag() -> BoxedStrategy<Value> {
    any::<bool>().prop_map(Value::from).boxed()
}

pub(crate) fn duration() -> BoxedStrategy<Value> {
    one_of(&["0s", "1ns", "1ms", "1500ms", "7s", "90m", "2562047h"])
}

/// A duration, of which negative values disable a limit.
fn limit() -> BoxedStrategy<Value> {
    prop_oneof![4 => duration(), 1 => one_of(&["-1s", "-1ns"])].boxed()
}

/// Values for text fields.
pub(crate) fn text() -> BoxedStrategy<Value> {
    prop_oneof![
        4 => one_of(&["a", "v1", "x-one", "A-b_c.d", "100%", "%", "%%", "a b", " ", "ü", "a,b", "{\"a\": 1}"]),
        1 => "[ -~]{1,12}".prop_map(Value::from),
        1 => "\\PC{1,6}".prop_map(Value::from),
    ]
    .boxed()
}

pub(crate) fn regex() -> BoxedStrategy<Value> {
    prop_oneof![
        4 => one_of(&["a+", "/v[0-9]+/.*", ".*", "(a|b)?", "\\d{2,3}", "[^/]+", "^$", "(?i)a", "a{1000}", "\\p{Greek}", "(a"]),
        1 => "[ -~]{1,10}".prop_map(Value::from),
    ]
    .boxed()
}

pub(crate) fn path() -> BoxedStrategy<Value> {
    prop_oneof![
        4 => one_of(&["/", "/a", "/a/", "/a/b", "/a//b", "/%2f", "/a?b", "/a#b", "/ä", "/a b"]),
        1 => "/[ -~]{0,10}".prop_map(Value::from),
    ]
    .boxed()
}

pub(crate) fn header_name() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => one_of(&["x-one", "X-Two", "accept", "cookie", "user-agent", "te", "connection"]),
        1 => one_of(&["host", ":path", ":method", ":authority", "x one", ""]),
        1 => "[!-~]{1,8}".prop_map(Value::from),
    ]
    .boxed()
}

pub(crate) fn service() -> BoxedStrategy<Value> {
    one_of(&["api", "admin", "backup", "other"])
}

fn subset() -> BoxedStrategy<Value> {
    one_of(&["v1", "v2", "well"])
}

fn methods() -> BoxedStrategy<Value> {
    let all: &[&str] = &["GET", "post", "PUT", "DELETE", "OPTIONS"];
    proptest::sample::subsequence(all, 0..=3)
        .prop_map(Value::from)
        .boxed()
}

/// Almost always exactly one of the fields.
pub(crate) fn one_field(
    fields: Vec<(&'static str, BoxedStrategy<Value>)>,
) -> BoxedStrategy<Map<String, Value>> {
    let one = select((0..fields.len()).collect::<Vec<_>>());
    one.prop_flat_map(move |at| {
        let (name, value) = fields[at].clone();
        value.prop_map(move |value| Map::from_iter([(name.to_owned(), value)]))
    })
    .boxed()
}

fn merged(
    one: BoxedStrategy<Map<String, Value>>,
    rest: BoxedStrategy<Value>,
) -> BoxedStrategy<Value> {
    (one, rest)
        .prop_map(|(mut one, rest)| {
            one.extend(rest.as_object().cloned().unwrap_or_default());
            Value::Object(one)
        })
        .boxed()
}

pub(crate) fn protocol() -> BoxedStrategy<Value> {
    prop_oneof![5 => Just(json!("http")), 1 => one_of(&["tcp", "http2", "grpc", ""])].boxed()
}

pub(crate) fn header_changes() -> BoxedStrategy<Value> {
    let pairs = || {
        let pair = (header_name(), text());
        let all = vec(pair, 0..=2).prop_map(|pairs| {
            let pairs = pairs.into_iter();
            let pairs = pairs.filter_map(|(name, value)| Some((name.as_str()?.to_owned(), value)));
            Value::Object(pairs.collect())
        });
        all.boxed()
    };
    object(vec![
        maybe("Add", pairs()),
        maybe("Set", pairs()),
        maybe("Remove", list(header_name(), 2)),
    ])
}

/// A condition on a value, with additional operators.
fn value(more: &[&'static str]) -> BoxedStrategy<Map<String, Value>> {
    let mut fields = vec![
        ("Present", Just(json!(true)).boxed()),
        ("Exact", text()),
        ("Regex", regex()),
    ];
    fields.extend(more.iter().map(|name| (*name, text())));
    one_field(fields)
}

fn http_match() -> BoxedStrategy<Value> {
    let matched = one_field(vec![
        ("PathExact", path()),
        ("PathPrefix", path()),
        ("PathRegex", regex()),
        ("CaseInsensitive", flag()),
    ]);
    let header = merged(
        value(&["Prefix", "Suffix"]),
        object(vec![always("Name", header_name()), maybe("Invert", flag())]),
    );
    let parameter = merged(value(&[]), object(vec![always("Name", text())]));
    let rest = object(vec![
        maybe("CaseInsensitive", flag()),
        maybe("Header", list(header, 2)),
        maybe("QueryParam", list(parameter, 2)),
        maybe("Methods", methods()),
    ]);
    merged(matched, rest)
}

fn route() -> BoxedStrategy<Value> {
    let conditions = [
        "5xx",
        "reset",
        "connect-failure",
        "retriable-4xx",
        "unavailable",
    ];
    let conditions = proptest::sample::subsequence(conditions.to_vec(), 0..=3);
    let destination = object(vec![
        maybe("Service", service()),
        maybe("ServiceSubset", subset()),
        maybe("PrefixRewrite", path()),
        maybe("RequestTimeout", limit()),
        maybe("IdleTimeout", limit()),
        maybe("NumRetries", number(0..=u32::MAX)),
        maybe("RetryOnConnectFailure", flag()),
        maybe("RetryOn", conditions.prop_map(Value::from)),
        maybe("RetryOnStatusCodes", list(number(100..=599), 3)),
        maybe("RequestHeaders", header_changes()),
        maybe("ResponseHeaders", header_changes()),
    ]);
    let matched = http_match().prop_map(|http| json!({"HTTP": http}));
    object(vec![
        maybe("Match", matched),
        always("Destination", destination),
    ])
}

pub(crate) fn router() -> BoxedStrategy<Value> {
    object(vec![
        always("Kind", Just(json!("service-router"))),
        always("Name", service()),
        always("Routes", list(route(), 3)),
    ])
}

pub(crate) fn splitter() -> BoxedStrategy<Value> {
    let split = || {
        object(vec![
            maybe("Service", service()),
            maybe("ServiceSubset", subset()),
            maybe("RequestHeaders", header_changes()),
            maybe("ResponseHeaders", header_changes()),
        ])
    };
    let splits = (split(), split(), 0_u32..=10_000).prop_map(|(mut a, mut b, weight)| {
        a["Weight"] = json!(f64::from(weight) / 100.0);
        b["Weight"] = json!(f64::from(10_000 - weight) / 100.0);
        json!([a, b])
    });
    object(vec![
        always("Kind", Just(json!("service-splitter"))),
        always("Name", service()),
        always("Splits", splits),
    ])
}

pub(crate) fn load_balancer() -> BoxedStrategy<Value> {
    let cookie = object(vec![
        maybe("Session", flag()),
        maybe("TTL", duration()),
        maybe("Path", path()),
    ]);
    let field = object(vec![
        always("Field", one_of(&["header", "cookie", "query_parameter"])),
        always("FieldValue", prop_oneof![header_name(), text()]),
        maybe("Terminal", flag()),
    ]);
    let with_cookie = object(vec![
        always("Field", Just(json!("cookie"))),
        always("FieldValue", text()),
        always("CookieConfig", cookie),
    ]);
    let policies = || {
        let source = Just(json!({"SourceIP": true})).boxed();
        list(prop_oneof![field.clone(), with_cookie.clone(), source], 2)
    };
    let sizes = object(vec![
        maybe(
            "MinimumRingSize",
            prop_oneof![number(0..=3000), number(0..=u32::MAX)],
        ),
        maybe(
            "MaximumRingSize",
            prop_oneof![number(0..=3000), number(0..=u32::MAX)],
        ),
    ]);
    let choices = object(vec![always("ChoiceCount", number(0..=5))]);
    prop_oneof![
        object(vec![always(
            "Policy",
            one_of(&["", "random", "round_robin"])
        )]),
        object(vec![
            always("Policy", Just(json!("least_request"))),
            maybe("LeastRequestConfig", choices),
        ]),
        object(vec![
            always("Policy", Just(json!("ring_hash"))),
            maybe("RingHashConfig", sizes),
            always("HashPolicies", policies()),
        ]),
        object(vec![
            always("Policy", Just(json!("maglev"))),
            always("HashPolicies", policies()),
        ]),
    ]
    .boxed()
}

pub(crate) fn resolver() -> BoxedStrategy<Value> {
    let target = || {
        object(vec![
            maybe("Service", service()),
            maybe("ServiceSubset", subset()),
        ])
    };
    let failover = prop_oneof![
        target(),
        list(target(), 2).prop_map(|targets| json!({"Targets": targets})),
    ];
    let failovers = |value: Value| json!({"*": value});
    let subsets = json!({
        "v1": {"Filter": "Service.Meta.version == v1"},
        "v2": {"Filter": "Service.Meta.version == v2", "OnlyPassing": true},
        "well": {"OnlyPassing": true},
    });
    let rest = object(vec![
        always("Kind", Just(json!("service-resolver"))),
        always("Name", service()),
        ("Subsets", option::weighted(0.8, Just(subsets)).boxed()),
        maybe("DefaultSubset", subset()),
        maybe("ConnectTimeout", duration()),
        maybe("RequestTimeout", duration()),
        maybe("LoadBalancer", load_balancer()),
    ]);
    let leads = prop_oneof![
        2 => Just(Map::new()).boxed(),
        1 => one_field(vec![
            ("Redirect", target()),
            ("Failover", failover.prop_map(failovers).boxed()),
        ]),
    ];
    merged(leads.boxed(), rest)
}

pub(crate) fn passive_health() -> BoxedStrategy<Value> {
    object(vec![
        maybe("Interval", duration()),
        maybe("MaxFailures", number(0..=u32::MAX)),
        maybe("EnforcingConsecutive5xx", number(0..=101)),
        maybe("MaxEjectionPercent", number(0..=101)),
        maybe("BaseEjectionTime", duration()),
    ])
}

fn upstream_settings() -> BoxedStrategy<Value> {
    let limits = object(vec![
        maybe("MaxConnections", number(0..=u32::MAX)),
        maybe("MaxPendingRequests", number(0..=9)),
        maybe("MaxConcurrentRequests", number(0..=9)),
    ]);
    object(vec![
        maybe("Limits", limits),
        maybe("PassiveHealthCheck", passive_health()),
        maybe("ConnectTimeoutMs", number(0..=u32::MAX)),
        maybe("BalanceOutboundConnections", Just(json!("exact_balance"))),
        maybe("Protocol", protocol()),
    ])
}

fn rate_limits() -> BoxedStrategy<Value> {
    let path = one_field(vec![
        ("PathExact", path()),
        ("PathPrefix", path()),
        ("PathRegex", regex()),
    ]);
    let limits = || {
        vec![
            always(
                "RequestsPerSecond",
                prop_oneof![number(1..=9), number(0..=u32::MAX)],
            ),
            maybe(
                "RequestsMaxBurst",
                prop_oneof![number(9..=99), number(0..=u32::MAX)],
            ),
        ]
    };
    let route = merged(path, object(limits()));
    let mut all = limits();
    all.push(maybe("Routes", list(route, 2)));
    object(all)
        .prop_map(|all| json!({"InstanceLevel": all}))
        .boxed()
}

fn expose() -> BoxedStrategy<Value> {
    let one = object(vec![
        always("Path", path()),
        always("ListenerPort", number(21500..=21502)),
        always("LocalPathPort", number(8080..=8081)),
        maybe("Protocol", one_of(&["http", "http2"])),
    ]);
    object(vec![always("Paths", list(one, 2))])
}

pub(crate) fn service_defaults() -> BoxedStrategy<Value> {
    let upstreams = object(vec![
        maybe("Defaults", upstream_settings()),
        maybe(
            "Overrides",
            (service(), upstream_settings()).prop_map(|(name, mut settings)| {
                settings["Name"] = name;
                json!([settings])
            }),
        ),
    ]);
    object(vec![
        always("Kind", Just(json!("service-defaults"))),
        always("Name", prop_oneof![service(), Just(json!("web"))]),
        always("Protocol", protocol()),
        maybe("Mode", Just(json!("transparent"))),
        maybe("MaxInboundConnections", number(0..=u32::MAX)),
        maybe("LocalConnectTimeoutMs", number(0..=u32::MAX)),
        maybe("LocalRequestTimeoutMs", number(0..=u32::MAX)),
        maybe("BalanceInboundConnections", Just(json!("exact_balance"))),
        maybe("UpstreamConfig", upstreams),
        maybe("RateLimits", rate_limits()),
        maybe("Expose", expose()),
    ])
}

pub(crate) fn proxy_defaults() -> BoxedStrategy<Value> {
    let format = one_field(vec![
        (
            "TextFormat",
            prop_oneof![one_of(&["%PROTOCOL%", "%START_TIME(%s)%"]), text()].boxed(),
        ),
        (
            "JSONFormat",
            one_of(&["{}", "{\"a\": \"%PROTOCOL%\"}", "{\"a\": 1.5}", "[]"]),
        ),
    ]);
    let logs = merged(
        format,
        object(vec![
            always("Enabled", Just(json!(true))),
            maybe("DisableListenerLogs", flag()),
            maybe("Type", one_of(&["stdout", "stderr"])),
        ]),
    );
    let config = object(vec![
        always("protocol", protocol()),
        maybe("local_idle_timeout_ms", number(0..=u32::MAX)),
        maybe("max_inbound_connections", number(0..=9)),
        maybe("balance_inbound_connections", Just(json!("exact_balance"))),
        maybe("bind_address", one_of(&["0.0.0.0", "127.0.0.1", "::1"])),
    ]);
    object(vec![
        always("Kind", Just(json!("proxy-defaults"))),
        always("Name", Just(json!("global"))),
        always("Config", config),
        maybe("AccessLogs", logs),
        maybe("Expose", expose()),
    ])
}

pub(crate) fn mesh() -> BoxedStrategy<Value> {
    let versions = || one_of(&["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"]);
    let suites = || {
        let suites: &[&str] = &[
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_RSA_WITH_AES_256_CBC_SHA",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ];
        proptest::sample::subsequence(suites, 0..=3).prop_map(Value::from)
    };
    let direction = || {
        object(vec![
            maybe("TLSMinVersion", versions()),
            maybe("TLSMaxVersion", versions()),
            maybe("CipherSuites", suites()),
        ])
    };
    let tls = object(vec![
        maybe("Incoming", direction()),
        maybe("Outgoing", direction()),
    ]);
    let normalization = object(vec![
        maybe("InsecureDisablePathNormalization", flag()),
        maybe("MergeSlashes", flag()),
        maybe(
            "PathWithEscapedSlashesAction",
            one_of(&["KEEP_UNCHANGED", "REJECT_REQUEST", "UNESCAPE_AND_FORWARD"]),
        ),
        maybe(
            "HeadersWithUnderscoresAction",
            one_of(&["ALLOW", "REJECT_REQUEST", "DROP_HEADER"]),
        ),
    ]);
    let http = object(vec![
        maybe("SanitizeXForwardedClientCert", flag()),
        maybe(
            "Incoming",
            normalization.prop_map(|one| json!({"RequestNormalization": one})),
        ),
    ]);
    object(vec![
        always("Kind", Just(json!("mesh"))),
        maybe("TLS", tls),
        maybe("HTTP", http),
        maybe("ValidateClusters", flag()),
        maybe(
            "TransparentProxy",
            flag().prop_map(|only| json!({"MeshDestinationsOnly": only})),
        ),
    ])
}

pub(crate) fn requirement() -> BoxedStrategy<Value> {
    let claim = object(vec![
        always("Path", list(text(), 2)),
        always("Value", text()),
    ]);
    let provider = object(vec![
        always("Name", one_of(&["okta", "auth0"])),
        maybe("VerifyClaims", list(claim, 2)),
    ]);
    object(vec![always("Providers", list(provider, 2))])
}

pub(crate) fn intentions() -> BoxedStrategy<Value> {
    let matched = one_field(vec![
        ("PathExact", path()),
        ("PathPrefix", path()),
        ("PathRegex", regex()),
    ]);
    let header = merged(
        value(&["Prefix", "Suffix", "Contains"]),
        object(vec![
            always("Name", header_name()),
            maybe("Invert", flag()),
            maybe("IgnoreCase", flag()),
        ]),
    );
    let rest = object(vec![
        maybe("Header", list(header, 2)),
        maybe("Methods", methods()),
    ]);
    let permission = object(vec![
        always("Action", one_of(&["allow", "deny"])),
        always("HTTP", merged(matched, rest)),
        maybe("JWT", requirement()),
    ]);
    let says = one_field(vec![
        ("Action", one_of(&["allow", "deny"])),
        (
            "Permissions",
            vec(permission, 1..=3).prop_map(Value::from).boxed(),
        ),
    ]);
    let source = merged(
        says,
        object(vec![always("Name", one_of(&["shop", "cart", "web", "*"]))]),
    );
    object(vec![
        always("Kind", Just(json!("service-intentions"))),
        always("Name", one_of(&["web", "web", "api", "admin", "*"])),
        always("Sources", vec(source, 1..=3).prop_map(Value::from)),
        maybe("JWT", requirement()),
    ])
}

pub(crate) fn jwt_provider() -> BoxedStrategy<Value> {
    let location = one_field(vec![
        (
            "Header",
            object(vec![
                always("Name", header_name()),
                maybe("ValuePrefix", text()),
                maybe("Forward", flag()),
            ]),
        ),
        ("QueryParam", object(vec![always("Name", text())])),
        ("Cookie", object(vec![always("Name", text())])),
    ]);
    let retry = object(vec![
        maybe("NumRetries", number(0..=u32::MAX)),
        maybe(
            "RetryPolicyBackOff",
            object(vec![
                always("BaseInterval", duration()),
                maybe("MaxInterval", duration()),
            ]),
        ),
    ]);
    let cluster = object(vec![
        maybe(
            "DiscoveryType",
            one_of(&["STATIC", "STRICT_DNS", "LOGICAL_DNS"]),
        ),
        maybe("ConnectTimeout", duration()),
    ]);
    let remote = object(vec![
        always(
            "URI",
            one_of(&[
                "https://keys.example/a",
                "http://10.1.1.1:80/k",
                "http://[::1]:81",
                "https://k?a=b",
            ]),
        ),
        maybe("RequestTimeoutMs", number(0..=u32::MAX)),
        maybe("CacheDuration", duration()),
        maybe("FetchAsynchronously", flag()),
        maybe("UseSNI", flag()),
        maybe("RetryPolicy", retry),
        maybe("JWKSCluster", cluster),
    ]);
    // {"keys": [{"kty": "oct", "alg": "HS256", "kid": "one", "k": "c2VjcmV0"}]}
    let keys = "eyJrZXlzIjogW3sia3R5IjogIm9jdCIsICJhbGciOiAiSFMyNTYiLCAia2lkIjogIm9uZSIsICJrIjogImMyVmpjbVYwIn1dfQ==";
    let local = Just(json!({"Local": {"JWKS": keys}}));
    let remote = remote.prop_map(|remote| json!({"Remote": remote}));
    let forwarding = object(vec![
        always("HeaderName", header_name()),
        maybe("PadForwardPayloadHeader", flag()),
    ]);
    object(vec![
        always("Kind", Just(json!("jwt-provider"))),
        always("Name", one_of(&["okta", "auth0"])),
        always("JSONWebKeySet", prop_oneof![local, remote]),
        maybe("Issuer", text()),
        maybe("Audiences", list(text(), 2)),
        maybe("Locations", list(location.prop_map(Value::Object), 2)),
        maybe("Forwarding", forwarding),
        maybe("ClockSkewSeconds", number(0..=u32::MAX)),
        maybe(
            "CacheConfig",
            number(0..=9).prop_map(|size| json!({"Size": size})),
        ),
    ])
}

/// Config entries in the order in which they are written.
/// Services outside the mesh, which the captured sidecar of `web` may call.
fn egress() -> BoxedStrategy<Vec<Value>> {
    let address = one_of(&[
        "a.example",
        "A.Example",
        "b.example.",
        "a-example",
        "*.example",
        "192.0.2.1",
        "2001:db8::1",
        "2001:DB8:0::1",
        "240.0.0.1",
        "a b",
    ]);
    let addresses = vec(address, 1..=3).prop_map(Value::from);
    let place = object(vec![
        always("Addresses", addresses),
        always("Port", prop_oneof![number(80..=81), number(0..=65535)]),
    ]);
    let outside = object(vec![
        always("Kind", Just(json!("service-defaults"))),
        always("Name", one_of(&["api", "out-a", "out-b", "out-c"])),
        always("Protocol", protocol()),
        always("Destination", place),
    ]);
    vec(outside, 1..=4)
        .prop_map(|mut all| {
            let allowed = |entry: &Value| {
                json!({"Kind": "service-intentions", "Name": entry["Name"],
                    "Sources": [{"Name": "web", "Action": "allow"}]})
            };
            let intentions: Vec<_> = all.iter().map(allowed).collect();
            all.extend(intentions);
            all.push(
                json!({"Kind": "terminating-gateway", "Name": "api-sidecar-proxy",
                "Services": [{"Name": "*"}]}),
            );
            all.push(json!({"Kind": "service-defaults", "Name": "web", "Mode": "transparent"}));
            all
        })
        .boxed()
}

pub(crate) fn entries() -> impl Strategy<Value = Vec<Value>> {
    let some = |entry: BoxedStrategy<Value>, most| vec(entry, 0..=most);
    let first = (
        option::weighted(0.8, proxy_defaults()),
        some(service_defaults(), 3),
        option::of(mesh()),
        some(jwt_provider(), 2),
    );
    let later = (
        some(resolver(), 2),
        some(splitter(), 2),
        some(router(), 2),
        some(intentions(), 2),
        option::weighted(0.3, egress()),
    );
    (first, later).prop_map(|((proxies, services, mesh, providers), chains)| {
        let (resolvers, splitters, routers, intentions, egress) = chains;
        let mut all: Vec<Value> = proxies.into_iter().chain(services).chain(mesh).collect();
        for more in [providers, resolvers, splitters, routers, intentions] {
            all.extend(more);
        }
        all.extend(egress.into_iter().flatten());
        all
    })
}
