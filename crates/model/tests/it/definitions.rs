//! Service definitions in the short form that agents accept.

use std::collections::BTreeSet;

use legate_model::json::{UnknownFields, from_value};
use legate_model::{
    CheckStatus, CheckType, DefinedCheck, ServiceDefinition, ServiceKind, UpstreamType,
};
use serde_json::{Value, json};

fn definition(value: Value) -> ServiceDefinition {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_sidecar_inherits_from_its_service() {
    let definition = definition(json!({
        "Name": "web", "ID": "web-1", "Port": 8080, "Address": "10.0.0.7", "Tags": ["t"],
        "Meta": {"m": "1"},
        "Connect": {"SidecarService": {
            "Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191}]},
        }},
    }));
    assert_eq!(definition.validate(), Ok(()));
    let taken = BTreeSet::from([21000, 21001, 21003]);
    let parts = definition.into_parts("n1", &taken).unwrap();
    let (service, checks) = parts.service;
    assert_eq!(
        (service.id.as_str(), service.service.as_str()),
        ("web-1", "web")
    );
    assert!(checks.is_empty());
    let (sidecar, checks) = parts.sidecar.unwrap();
    let [listening, aliasing] = checks.as_slice() else {
        panic!("{checks:?}")
    };
    assert_eq!(listening.check.check_id, "service:web-1-sidecar-proxy:1");
    assert_eq!(listening.check.name, "Connect Sidecar Listening");
    assert_eq!(listening.definition.tcp, "10.0.0.7:21002");
    assert_eq!(listening.check.interval, "10s");
    assert_eq!(aliasing.check.name, "Connect Sidecar Aliasing web-1");
    assert_eq!(aliasing.definition.alias_service, "web-1");
    assert_eq!(sidecar.kind, ServiceKind::ConnectProxy);
    assert_eq!(sidecar.id, "web-1-sidecar-proxy");
    assert_eq!(sidecar.service, "web-sidecar-proxy");
    assert_eq!(sidecar.port, 21002);
    assert_eq!(sidecar.address, "10.0.0.7");
    assert_eq!((sidecar.tags, sidecar.meta), (service.tags, service.meta));
    assert_eq!(sidecar.proxy.destination_service_name, "web");
    assert_eq!(sidecar.proxy.destination_service_id, "web-1");
    assert_eq!(sidecar.proxy.local_service_address, "127.0.0.1");
    assert_eq!(sidecar.proxy.local_service_port, 8080);
    let [upstream] = &sidecar.proxy.upstreams[..] else {
        panic!("one upstream");
    };
    // An agent returns defaults that a registration omits; the catalog stores it as written.
    assert_eq!(upstream.destination_type, UpstreamType::Service);
}

#[test]
fn settings_of_the_sidecar_take_precedence() {
    let parts = definition(json!({
        "Name": "web", "SocketPath": "/run/web.sock",
        "Connect": {"SidecarService": {
            "Name": "own", "Port": 1234, "Tags": ["own"], "Proxy": {"LocalServicePort": 9},
        }},
    }))
    .into_parts("n1", &BTreeSet::new())
    .unwrap();
    let (sidecar, _) = parts.sidecar.unwrap();
    assert_eq!((sidecar.service.as_str(), sidecar.port), ("own", 1234));
    assert_eq!(sidecar.tags, ["own"]);
    assert_eq!(sidecar.id, "web-sidecar-proxy");
}

#[test]
fn sidecar_ports_run_out() {
    let taken = (21000..=21255).collect();
    let error = definition(json!({"Name": "web", "Connect": {"SidecarService": {}}}))
        .into_parts("n1", &taken)
        .unwrap_err();
    assert_eq!(error.path(), "Connect.SidecarService.Port");
}

#[test]
fn checks_are_named_and_numbered() {
    let one = definition(json!({
        "Name": "web", "Check": {"TTL": "10s", "Status": "passing", "Notes": "n"},
    }));
    assert_eq!(one.validate(), Ok(()));
    let (_, checks) = one.into_parts("n1", &BTreeSet::new()).unwrap().service;
    let [DefinedCheck { check, .. }] = checks.as_slice() else {
        panic!("{checks:?}")
    };
    assert_eq!(check.check_id, "service:web");
    assert_eq!(check.name, "Service 'web' check");
    assert_eq!(
        (check.status, check.r#type.as_str()),
        (CheckStatus::Passing, "ttl")
    );
    assert_eq!(
        (check.node.as_str(), check.service_id.as_str()),
        ("n1", "web")
    );

    let several = definition(json!({
        "Name": "web", "ID": "w", "Check": {},
        "Checks": [
            {"HTTP": "http://127.0.0.1/", "Interval": "10s", "Timeout": "1s"},
            {"ID": "own", "Name": "Own", "TCP": "127.0.0.1:1", "Interval": 1_000_000_000},
            {"AliasService": "db"},
        ],
    }));
    assert_eq!(several.validate(), Ok(()));
    let (_, checks) = several.into_parts("n1", &BTreeSet::new()).unwrap().service;
    let shown: Vec<_> = checks
        .iter()
        .map(|defined| &defined.check)
        .map(|c| [&c.check_id, &c.name, &c.r#type, &c.interval, &c.timeout].map(String::as_str))
        .collect();
    assert_eq!(
        shown,
        [
            ["service:w:1", "Service 'web' check", "http", "10s", "1s"],
            ["own", "Own", "tcp", "1s", ""],
            ["service:w:3", "Service 'web' check", "alias", "", ""],
        ]
    );
}

#[test]
fn refusals_name_the_field() {
    for (value, field, part) in [
        (json!({}), "Name", "must not be empty"),
        (json!({"Name": "a/b"}), "Name", "slash"),
        (
            json!({"Name": "web", "Address": "::"}),
            "Address",
            "the unspecified address",
        ),
        (
            json!({"Name": "web", "Kind": "connect-proxy"}),
            "Proxy.DestinationServiceName",
            "needs",
        ),
        (
            json!({"Name": "web", "Check": {"Interval": "1s"}}),
            "Check.TTL",
            "must be > 0",
        ),
        (
            json!({"Name": "web", "Checks": [{"TTL": "1s", "TCP": "a:1"}]}),
            "Checks[0].TTL",
            "exactly one",
        ),
        (
            json!({"Name": "web", "Check": {"TCP": "a:1"}}),
            "Check.Interval",
            "10s",
        ),
        (
            json!({"Name": "web", "Connect": {"SidecarService": {"ID": "x"}}}),
            "Connect.SidecarService.ID",
            "cannot be chosen",
        ),
        (
            json!({"Name": "web", "Connect": {"SidecarService": {
                "Connect": {"SidecarService": {}}
            }}}),
            "Connect.SidecarService.Connect.SidecarService",
            "cannot have a sidecar",
        ),
        (
            json!({"Name": "web", "Connect": {"SidecarService": {
                "Proxy": {"Upstreams": [{"DestinationName": "a"}]}
            }}}),
            "Connect.SidecarService.Proxy.Upstreams[0].LocalBindPort",
            "connects to it",
        ),
        (
            json!({
                "Name": "gw", "Kind": "mesh-gateway", "Port": 1, "Connect": {"SidecarService": {}},
            }),
            "Connect.SidecarService.Kind",
            "cannot have a sidecar",
        ),
    ] {
        let error = definition(value.clone())
            .validate()
            .expect_err(&value.to_string());
        assert_eq!(error.path(), field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    // No port is allocated to a proxy that is registered by itself.
    let proxy = json!({
        "Name": "p", "Kind": "connect-proxy", "Proxy": {"DestinationServiceName": "web"},
    });
    let refused = definition(proxy).validate().unwrap_err();
    assert_eq!(refused.path(), "Port", "{refused}");
}

/// As in Consul's agent: an omitted weight is 0 if the other one is set, and a service must have a
/// passing weight.
#[test]
fn an_omitted_weight_is_zero() {
    let with = |weights: Value| definition(json!({"Name": "web", "Weights": weights}));
    let passing = with(json!({"Passing": 10}));
    passing.validate().unwrap();
    assert_eq!((passing.weights.passing, passing.weights.warning), (10, 0));
    for refused in [json!({}), json!({"Warning": 10})] {
        let refused = with(refused).validate().unwrap_err().to_string();
        assert!(refused.contains("Weights.Passing"), "{refused}");
    }
}

#[test]
fn a_separate_check_belongs_to_the_node_or_a_service() {
    let check = |value| -> CheckType { from_value(value, UnknownFields::Refuse).unwrap() };
    let own = check(json!({"Name": "disk", "TTL": "10s", "ServiceID": "web"}));
    assert_eq!(own.validate(), Ok(()));
    let defined = own.into_defined("n1");
    assert_eq!(
        (
            defined.check.check_id.as_str(),
            defined.check.service_id.as_str()
        ),
        ("disk", "web")
    );
    for (value, field) in [
        (json!({"Name": "x"}), "TTL"),
        (
            json!({"Name": "x", "HTTP": "127.0.0.1", "Interval": "1s"}),
            "HTTP",
        ),
        (
            json!({"Name": "x", "TCP": "127.0.0.1", "Interval": "1s"}),
            "TCP",
        ),
        (
            json!({"Name": "x", "GRPC": "a:0/b", "Interval": "1s"}),
            "GRPC",
        ),
        (
            json!({"Name": "x", "TTL": "1s", "OutputMaxSize": 1_000_000}),
            "OutputMaxSize",
        ),
        (
            json!({"Name": "x", "TTL": "1s", "DockerContainerID": "web"}),
            "DockerContainerID",
        ),
        (
            json!({"Name": "x", "Args": ["true"], "Interval": "1s", "DockerContainerID": "../web"}),
            "DockerContainerID",
        ),
    ] {
        let error = check(value.clone()).validate().unwrap_err();
        assert_eq!(error.path(), field, "{value}");
    }
    let other = definition(json!({"Name": "web", "Check": {"TTL": "10s", "ServiceID": "db"}}));
    assert_eq!(other.validate().unwrap_err().path(), "Check.ServiceID");
}
