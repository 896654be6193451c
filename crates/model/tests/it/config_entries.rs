//! Config entries: kinds, decoding, normalisation, refusals.

use legate_model::json::{UnknownFields, from_value};
use legate_model::{
    ConfigEntry, ConfigKind, IntentionAction, Protocol, ServiceIntentions, ServiceName,
    SourceIntention,
};
use serde_json::{Value, json};

pub(crate) fn entry(value: Value) -> ConfigEntry {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn refused(value: Value) -> String {
    match from_value::<ConfigEntry>(value, UnknownFields::Refuse) {
        Ok(decoded) => panic!("{decoded:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_kind_is_accepted_in_any_spelling() {
    for (value, kind, name) in [
        (
            json!({"Kind": "service-defaults", "Name": "web"}),
            ConfigKind::ServiceDefaults,
            "web",
        ),
        (
            json!({"kind": "proxy-defaults", "name": "global"}),
            ConfigKind::ProxyDefaults,
            "global",
        ),
        (json!({"KIND": "mesh"}), ConfigKind::Mesh, "mesh"),
        (
            json!({"Kind": "service-intentions", "Name": "*"}),
            ConfigKind::ServiceIntentions,
            "*",
        ),
    ] {
        let entry = entry(value);
        assert_eq!((entry.kind(), entry.name()), (kind, name));
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
}

#[test]
fn unknown_kinds_are_refused_with_a_list_of_kinds() {
    let error = refused(json!({"Kind": "nonsense", "Name": "web"}));
    for part in [
        "invalid config entry kind: nonsense",
        "ingress-gateway",
        "service-router",
        "service-defaults",
        "proxy-defaults",
        "mesh",
        "service-intentions",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        refused(json!({"Name": "web"})),
        "Payload does not contain a kind/Kind key at the top level"
    );
    assert_eq!(
        refused(json!({"Kind": 1})),
        "Kind value in payload is not a string"
    );
    assert!(refused(json!({"Kind": "mesh", "kind": "mesh"})).contains("twice"));
    assert!(refused(json!([])).contains("an object with the field Kind"));
}

#[test]
fn unknown_fields_are_refused() {
    assert_eq!(
        refused(json!({
            "Kind": "service-defaults", "Name": "web", "Protcol": "http",
            "UpstreamConfig": {"Defaults": {"Limits": {"MaxConections": 1}}},
        })),
        "2 errors: invalid config key \"Protcol\", \
         invalid config key \"UpstreamConfig.Defaults.Limits.MaxConections\""
    );
}

#[test]
fn every_decoder_accepts_the_serialized_form() {
    for value in [
        json!({
            "Kind": "service-defaults", "Name": "web", "Protocol": "http",
            "TransparentProxy": {}, "MeshGateway": {}, "Expose": {},
            "UpstreamConfig": {
                "Overrides": [{
                    "Name": "api", "ConnectTimeoutMs": 100, "MeshGateway": {},
                    "PassiveHealthCheck": {"Interval": 10_000_000_000_u64, "MaxFailures": 5},
                }],
                "Defaults": {"Limits": {"MaxConnections": 3}, "MeshGateway": {"Mode": "none"}},
            },
            "MaxInboundConnections": 7, "LocalConnectTimeoutMs": 8, "LocalRequestTimeoutMs": 9,
            "Meta": {"consul.hashicorp.com/source-datacenter": "dc1"},
            "CreateIndex": 1, "ModifyIndex": 2,
        }),
        json!({
            "Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http", "X_y": 1},
            "TransparentProxy": {}, "MeshGateway": {}, "Expose": {},
            "AccessLogs": {"Enabled": true, "JSONFormat": "{}"},
            "CreateIndex": 1, "ModifyIndex": 2,
        }),
        json!({
            "Kind": "mesh", "TransparentProxy": {"MeshDestinationsOnly": false},
            "TLS": {"Incoming": {"TLSMinVersion": "TLSv1_2", "CipherSuites": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]}},
            "HTTP": {"SanitizeXForwardedClientCert": true},
            "CreateIndex": 1, "ModifyIndex": 2,
        }),
        json!({
            "Kind": "service-intentions", "Name": "api",
            "Sources": [
                {"Name": "web", "Permissions": [{
                    "Action": "allow",
                    "HTTP": {"PathPrefix": "/", "Methods": ["GET"], "Header": [
                        {"Name": "x", "Present": true, "Invert": true},
                    ]},
                }], "Precedence": 9, "Type": "consul"},
                {"Name": "*", "Action": "deny", "Precedence": 8, "Type": "consul"},
            ],
            "CreateIndex": 1, "ModifyIndex": 2,
        }),
    ] {
        let mut entry = entry(value.clone());
        assert_eq!(entry.validate(), Ok(()));
        entry.normalise();
        assert_eq!(serde_json::to_value(&entry).unwrap(), value);
        let plain: ConfigEntry = serde_json::from_value(value).unwrap();
        assert_eq!(plain, entry);
        assert_eq!((entry.create_index(), entry.modify_index()), (1, 2));
        entry.set_indexes(3, 4);
        assert_eq!((entry.create_index(), entry.modify_index()), (3, 4));
    }
}

#[test]
fn entries_from_consul_can_be_written_here() {
    let copied = entry(json!({
        "Kind": "service-defaults", "Name": "web", "Protocol": "http", "TransparentProxy": {},
        "MeshGateway": {}, "Expose": {}, "Hash": 12345678901234567890_u64, "Namespace": "default",
        "CreateIndex": 1, "ModifyIndex": 2,
    }));
    assert_eq!(copied.name(), "web");
}

#[test]
fn entries_are_normalised() {
    let mut defaults = entry(json!({
        "kind": "service-defaults", "name": "web", "protocol": "HTTP2",
        "upstream_config": {"defaults": {"protocol": "GRPC"}, "overrides": [
            {"name": "a", "protocol": "Tcp"},
        ]},
    }));
    assert_eq!(defaults.validate(), Ok(()));
    defaults.normalise();
    let ConfigEntry::ServiceDefaults(defaults) = defaults else {
        panic!()
    };
    assert_eq!(defaults.protocol(), Some(Protocol::Http2));
    let upstreams = defaults.upstream_config.unwrap();
    assert_eq!(upstreams.defaults.unwrap().protocol, "grpc");
    assert_eq!(upstreams.overrides[0].protocol, "tcp");

    let mut global = entry(json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "Http"},
    }));
    global.normalise();
    let ConfigEntry::ProxyDefaults(global) = global else {
        panic!()
    };
    assert_eq!(global.config["protocol"], "http");
    assert_eq!(global.protocol(), Some(Protocol::Http));

    let mut intentions = entry(json!({
        "Kind": "service-intentions", "Name": "api", "Sources": [
            {"Name": "*", "Action": "deny", "Precedence": 99},
            {"Name": "web", "Action": "allow"},
            {"Name": "admin", "Permissions": [
                {"Action": "allow", "HTTP": {"Methods": ["get"]}},
            ]},
        ],
    }));
    intentions.normalise();
    let ConfigEntry::ServiceIntentions(intentions) = intentions else {
        panic!()
    };
    let shown: Vec<_> = intentions
        .sources
        .iter()
        .map(|s| (s.name.as_str(), s.precedence, s.r#type.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("web", 9, "consul"),
            ("admin", 9, "consul"),
            ("*", 8, "consul")
        ]
    );
    assert_eq!(intentions.sources[1].permissions[0].http.methods, ["GET"]);
    check_objects(&intentions);
}

fn check_objects(entry: &ServiceIntentions) {
    let objects: Vec<_> = entry.intentions().collect();
    assert_eq!(objects[0].source_name, "web");
    assert_eq!(objects[0].destination_name, "api");
    assert_eq!(objects[0].action, Some(IntentionAction::Allow));
    assert_eq!(objects[2].precedence, 8);
    for (object, source) in objects.into_iter().zip(&entry.sources) {
        assert_eq!(object.validate(), Ok(()));
        assert_eq!(&legate_model::SourceIntention::from(object), source);
    }
}

/// Asserts that every entry is refused, with an error at the field that contains the text.
pub(crate) fn refuses<const N: usize>(cases: [(Value, &str, &str); N]) {
    for (value, field, part) in cases {
        let Err(error) = entry(value.clone()).validate() else {
            panic!("{value} is accepted");
        };
        assert_eq!(error.path(), field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn refusals_of_service_defaults_name_the_field() {
    let defaults =
        |changes: Value| with(json!({"Kind": "service-defaults", "Name": "web"}), changes);
    refuses([
        (defaults(json!({"Name": ""})), "Name", "must not be empty"),
        (defaults(json!({"Name": "*"})), "Name", "every service"),
        (
            defaults(json!({"Protocol": "udp"})),
            "Protocol",
            "tcp, http, http2 or grpc",
        ),
        (
            defaults(json!({"BalanceInboundConnections": "x"})),
            "BalanceInboundConnections",
            "exact_balance",
        ),
        (
            defaults(json!({"UpstreamConfig": {"Defaults": {"Name": "a"}}})),
            "UpstreamConfig.Defaults.Name",
            "left out",
        ),
        (
            defaults(json!({"UpstreamConfig": {"Overrides": [{}]}})),
            "UpstreamConfig.Overrides[0].Name",
            "Defaults",
        ),
        (
            defaults(json!({"UpstreamConfig": {"Overrides": [{"Name": "a"}, {"Name": "a"}]}})),
            "UpstreamConfig.Overrides[1].Name",
            "twice",
        ),
        (
            defaults(
                json!({"UpstreamConfig": {"Overrides": [{"Name": "a", "PassiveHealthCheck":
                {"MaxEjectionPercent": 101}}]}}),
            ),
            "UpstreamConfig.Overrides[0].PassiveHealthCheck.MaxEjectionPercent",
            "at most 100",
        ),
        (
            defaults(json!({"Meta": {"k": "v".repeat(513)}})),
            "Meta",
            "more than 512",
        ),
    ]);
    let limits = |level: Value| defaults(json!({"RateLimits": {"InstanceLevel": level}}));
    let route = |route: Value| limits(json!({"Routes": [route]}));
    refuses([
        (
            limits(json!({"RequestsPerSecond": 3, "RequestsMaxBurst": 2})),
            "RateLimits.InstanceLevel.RequestsMaxBurst",
            "2 is below RequestsPerSecond, 3",
        ),
        (
            limits(json!({"RequestsMaxBurst": 2})),
            "RateLimits.InstanceLevel.RequestsPerSecond",
            "must be set",
        ),
        (
            route(json!({"RequestsPerSecond": 1})),
            "RateLimits.InstanceLevel.Routes[0].PathExact",
            "exactly one",
        ),
        (
            route(json!({"PathPrefix": "a", "RequestsPerSecond": 1})),
            "RateLimits.InstanceLevel.Routes[0].PathPrefix",
            "start with /",
        ),
        (
            route(json!({"PathRegex": "(", "RequestsPerSecond": 1})),
            "RateLimits.InstanceLevel.Routes[0].PathRegex",
            "unclosed",
        ),
        (
            route(json!({"PathExact": "/"})),
            "RateLimits.InstanceLevel.Routes[0].RequestsPerSecond",
            "at least 1",
        ),
    ]);
}

#[test]
fn refusals_of_proxy_defaults_and_mesh_name_the_field() {
    let global =
        |changes: Value| with(json!({"Kind": "proxy-defaults", "Name": "global"}), changes);
    let mesh = |changes: Value| with(json!({"Kind": "mesh"}), changes);
    refuses([
        (global(json!({"Name": "web"})), "Name", "\"global\""),
        (
            global(json!({"Config": {"protocol": 1}})),
            "Config.protocol",
            "text",
        ),
        (
            global(json!({"Config": {"protocol": "x"}})),
            "Config.protocol",
            "tcp",
        ),
        (
            global(json!({"AccessLogs": {"JSONFormat": "[]"}})),
            "AccessLogs.JSONFormat",
            "JSON object",
        ),
        (
            global(json!({"AccessLogs": {"JSONFormat": "{}", "TextFormat": "x"}})),
            "AccessLogs.TextFormat",
            "together",
        ),
        (mesh(json!({"Name": "other"})), "Name", "\"mesh\""),
        (
            mesh(json!({"TLS": {"Outgoing": {"TLSMinVersion": "1.2"}}})),
            "TLS.Outgoing.TLSMinVersion",
            "TLSv1_2",
        ),
        (
            mesh(json!({"TLS": {"Incoming":
                {"TLSMinVersion": "TLSv1_3", "TLSMaxVersion": "TLSv1_2"}}})),
            "TLS.Incoming.TLSMaxVersion",
            "below",
        ),
        (
            mesh(json!({"TLS": {"Incoming":
                {"TLSMinVersion": "TLSv1_3", "CipherSuites": ["TLS_X"]}}})),
            "TLS.Incoming.CipherSuites",
            "TLSv1_3",
        ),
        (
            mesh(json!({"HTTP": {"Incoming": {"RequestNormalization":
                {"HeadersWithUnderscoresAction": "x"}}}})),
            "HTTP.Incoming.RequestNormalization.HeadersWithUnderscoresAction",
            "DROP_HEADER",
        ),
    ]);
}

pub(crate) fn with(mut base: Value, changes: Value) -> Value {
    if let (Value::Object(base), Value::Object(changes)) = (&mut base, changes) {
        base.extend(changes);
    }
    base
}

fn sources(list: Value) -> Value {
    json!({"Kind": "service-intentions", "Name": "api", "Sources": list})
}

fn http(http: Value) -> Value {
    sources(json!([{"Name": "web", "Permissions": [{"Action": "allow", "HTTP": http}]}]))
}

#[test]
fn refusals_of_sources_name_the_field() {
    let long = "d".repeat(513);
    refuses([
        (
            sources(json!([])),
            "Sources",
            "At least one source is required",
        ),
        (
            sources(json!([{"Name": "web"}])),
            "Sources[0].Action",
            "must be set to 'allow' or 'deny'",
        ),
        (
            sources(json!([{"Name": "we*", "Action": "deny"}])),
            "Sources[0].Name",
            "wildcard",
        ),
        (
            sources(json!([{"Name": "a", "Action": "deny"}, {"Name": "a", "Action": "allow"}])),
            "Sources[1].Name",
            "defines \"a\" more than once",
        ),
        (
            sources(json!([{"Name": "a", "Peer": "p*", "Action": "deny"}])),
            "Sources[0].Peer",
            "cannot use wildcard '*' in peer",
        ),
        (
            sources(json!([{"Name": "a", "Peer": "p", "Partition": "shop", "Action": "deny"}])),
            "Sources[0].Peer",
            "cannot set Peer and Partition at the same time.",
        ),
        (
            sources(json!([
                {"Name": "a", "Action": "deny"}, {"Name": "a", "Peer": "p", "Action": "deny"},
                {"Name": "a", "Peer": "P", "Action": "deny"},
            ])),
            "Sources[2].Name",
            "defines peer(\"p\") \"a\" more than once",
        ),
        (
            sources(json!([{"Name": "a", "Action": "deny", "Type": "vm"}])),
            "Sources[0].Type",
            "consul",
        ),
        (
            sources(json!([{"Name": "a", "Action": "deny", "Description": long}])),
            "Sources[0].Description",
            "512",
        ),
        (
            sources(json!([{"Name": "a", "Action": "deny", "Permissions": [
                {"Action": "deny", "HTTP": {"PathExact": "/"}}
            ]}])),
            "Sources[0].Action",
            "must be omitted if Permissions are specified",
        ),
        (
            with(http(json!({"PathExact": "/"})), json!({"Name": "*"})),
            "Sources[0].Permissions",
            "wildcarded destinations",
        ),
        (
            with(http(json!({})), json!({"Name": "a*"})),
            "Name",
            "wildcard",
        ),
    ]);
}

#[test]
fn refusals_of_permissions_name_the_field() {
    refuses([
        (
            http(json!({})),
            "Sources[0].Permissions[0].HTTP.PathExact",
            "should not be empty",
        ),
        (
            http(json!({"PathExact": "/", "PathPrefix": "/"})),
            "Sources[0].Permissions[0].HTTP.PathExact",
            "should only contain at most one of PathExact, PathPrefix, or PathRegex",
        ),
        (
            http(json!({"PathRegex": "/(v1"})),
            "Sources[0].Permissions[0].HTTP.PathRegex",
            "not a regular expression",
        ),
        (
            http(json!({"Header": [{"Name": "x-a", "Regex": "(?!b)"}]})),
            "Sources[0].Permissions[0].HTTP.Header[0].Regex",
            "not a regular expression",
        ),
        (
            http(json!({"Header": [{"Name": "x a", "Present": true}]})),
            "Sources[0].Permissions[0].HTTP.Header[0].Name",
            "no header has",
        ),
        (
            http(json!({"PathPrefix": "v1"})),
            "Sources[0].Permissions[0].HTTP.PathPrefix",
            "doesn't start with '/'",
        ),
        (
            http(json!({"Methods": ["FETCH"]})),
            "Sources[0].Permissions[0].HTTP.Methods[0]",
            "contains an invalid method",
        ),
        (
            http(json!({"Methods": ["GET", "get"]})),
            "Sources[0].Permissions[0].HTTP.Methods[1]",
            "more than once",
        ),
        (
            http(json!({"Header": [{"Exact": "x"}]})),
            "Sources[0].Permissions[0].HTTP.Header[0].Name",
            "missing required Name field",
        ),
        (
            http(json!({"Header": [{"Name": "x", "Exact": "x", "Prefix": "y"}]})),
            "Sources[0].Permissions[0].HTTP.Header[0].Name",
            "should only contain one of Present",
        ),
        (
            http(json!({"Header": [{"Name": "x", "Regex": "x", "IgnoreCase": true}]})),
            "Sources[0].Permissions[0].HTTP.Header[0].IgnoreCase",
            "when using IgnoreCase",
        ),
    ]);
}

/// A source of a peer is another service than that of the same name here, in the namespace `default` unless it names one.
#[test]
fn sources_of_peers_are_services_of_their_own() {
    let mut entry = sources(json!([
        {"Name": "a", "Action": "deny"}, {"Name": "a", "Peer": "Alpha", "Action": "allow"},
        {"Name": "*", "Peer": "alpha", "Namespace": "team", "Action": "deny"},
    ]));
    entry["Namespace"] = json!("shop");
    entry["Partition"] = json!("p");
    let mut entry = self::entry(entry);
    entry.validate().unwrap();
    entry.normalise();
    let ConfigEntry::ServiceIntentions(entry) = entry else {
        panic!("it is of another kind");
    };
    let shown = |source: &ServiceName| source.to_string();
    let own = entry.destination().tenancy;
    let of_sources: Vec<_> = entry
        .sources
        .iter()
        .map(|one| shown(&one.service(&own)))
        .collect();
    let expected = [
        "p/shop/a",
        "p/default/a of peer alpha",
        "p/team/* of peer alpha",
    ];
    assert_eq!(of_sources, expected);
    let intentions: Vec<_> = entry.intentions().collect();
    let of_intentions: Vec<_> = intentions.iter().map(|one| shown(&one.source())).collect();
    assert_eq!(of_intentions, expected);
    let json = serde_json::to_value(&intentions[1]).unwrap();
    assert_eq!(
        (
            &json["SourcePeer"],
            &json["SourceNS"],
            json.get("SourcePartition")
        ),
        (&json!("alpha"), &json!("default"), None)
    );
    for (source, intention) in entry.sources.iter().zip(intentions) {
        let back = SourceIntention::from(intention);
        assert_eq!(back.service(&own), source.service(&own));
    }
}

#[test]
fn refusals_of_intentions_name_the_field_in_decoding() {
    let error = refused(sources(json!([{"Name": "a", "Action": "maybe"}])));
    assert!(
        error.starts_with("Sources[0].Action: unknown variant `maybe`"),
        "{error}"
    );
    let error = refused(sources(json!([{"Name": "a", "Permissions": [{}]}])));
    assert!(
        error.starts_with("Sources[0].Permissions[0]: missing field `Action`"),
        "{error}"
    );
}

/// In a proxy's configuration, every permission repeats the earlier ones with the other action. A
/// body of 512 KiB would expand to gigabytes.
#[test]
fn permissions_too_large_for_a_proxy_are_refused() {
    let sources = |count: usize, actions: [&str; 2]| {
        let permission = |at: usize| {
            let path = format!("/{}/{at}", "x".repeat(80));
            json!({"Action": actions[at % 2], "HTTP": {"PathExact": path}})
        };
        let permissions: Vec<Value> = (0..count).map(permission).collect();
        json!([{"Name": "web", "Permissions": permissions}])
    };
    let validate = |sources: Value| {
        let entry = json!({"Kind": "service-intentions", "Name": "api", "Sources": sources});
        self::entry(entry).validate()
    };
    for mixed in [["allow", "deny"], ["deny", "allow"]] {
        let refused = validate(sources(500, mixed)).unwrap_err().to_string();
        assert!(refused.contains("Sources[0].Permissions"), "{refused}");
        assert_eq!(validate(sources(100, mixed)), Ok(()));
    }
    for alike in ["allow", "deny"] {
        assert_eq!(validate(sources(4_000, [alike, alike])), Ok(()));
    }
}
