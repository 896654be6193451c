//! Spellings of keys, nulls, unknown fields, and positions in errors.

use legate_model::json::{DecodeError, UnknownFields, from_slice, from_value};
use legate_model::{
    CaRoots, CheckStatus, ConfigEntry, ConnectProxy, Intention, Node, RegisterRequest, Secret,
    ServiceDefinition, ServiceKind, UpstreamType,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ignore<T: serde::de::DeserializeOwned>(value: Value) -> T {
    from_value(value, UnknownFields::Ignore).unwrap_or_else(|error| panic!("{error}"))
}

fn refused<T: serde::de::DeserializeOwned + std::fmt::Debug>(value: Value) -> String {
    match from_value::<T>(value, UnknownFields::Refuse) {
        Ok(decoded) => panic!("{decoded:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn keys_are_accepted_in_common_spellings() {
    for spelling in [
        "DestinationServiceName",
        "destination_service_name",
        "destinationservicename",
        "DESTINATION_SERVICE_NAME",
        "destinationServiceName",
    ] {
        let proxy: ConnectProxy = ignore(json!({ spelling: "web" }));
        assert_eq!(proxy.destination_service_name, "web", "{spelling}");
    }
    let definition: ServiceDefinition = ignore(json!({
        "service": "web",
        "connect": {"sidecar_service": {"proxy": {"upstreams": [
            {"destination_name": "api", "local_bind_port": 9191, "destination_type": ""},
        ]}}},
        "check": {"ttl": "10s", "status": "passing", "tls_skip_verify": true},
    }));
    assert_eq!(definition.name, "web");
    let sidecar = definition.connect.sidecar_service.unwrap();
    assert_eq!(sidecar.proxy.upstreams[0].local_bind_port, 9191);
    assert_eq!(
        sidecar.proxy.upstreams[0].destination_type,
        UpstreamType::Unset
    );
    let check = definition.check.unwrap();
    assert!(check.tls_skip_verify);
    assert_eq!(check.ttl.as_secs(), 10);
    assert_eq!(check.status, CheckStatus::Passing);
}

#[test]
fn keys_of_maps_are_data() {
    let request: RegisterRequest = ignore(json!({
        "Node": "n", "Address": "a",
        "node_meta": {"My_Key": "x"},
        "Service": {
            "Service": "web",
            "Proxy": {"Config": {"Envoy_Thing": null, "nested": {"Local_Port": [1, null]}}},
        },
    }));
    assert_eq!(request.node_meta["My_Key"], "x");
    let config = request.service.unwrap().proxy.config;
    assert_eq!(
        Value::Object(config),
        json!({"Envoy_Thing": null, "nested": {"Local_Port": [1, null]}})
    );
}

#[test]
fn null_means_absent() {
    let definition: ServiceDefinition = ignore(json!({
        "Name": "web", "ID": null, "Port": null, "Tags": null, "Meta": null, "Weights": null,
        "Check": null, "Checks": null, "Proxy": null, "Connect": null, "Kind": null,
        "TaggedAddresses": null,
    }));
    assert_eq!(
        definition,
        ServiceDefinition {
            name: "web".into(),
            ..Default::default()
        }
    );
    assert_eq!(definition.weights.passing, 1);
    assert_eq!(definition.kind, ServiceKind::Typical);
}

#[test]
fn unknown_fields_are_ignored_or_all_reported() {
    let value = json!({
        "Node": "n", "Nodes": 1,
        "Service": {"Proxy": {"Upstreams": [{}, {"Bogus": true, "Config": {"anything": 1}}]}},
    });
    let request: RegisterRequest = ignore(value.clone());
    assert_eq!(request.node, "n");
    assert_eq!(
        refused::<RegisterRequest>(value),
        "2 errors: invalid config key \"Nodes\", \
         invalid config key \"Service.Proxy.Upstreams[1].Bogus\""
    );
    assert_eq!(
        refused::<Node>(json!({"Nam": null})),
        "1 error: invalid config key \"Nam\""
    );
}

#[test]
fn errors_contain_the_position() {
    for (value, expected) in [
        (
            json!({"Service": {"Proxy": {"Upstreams": [{}, {"local_bind_port": 70000}]}}}),
            "Service.Proxy.Upstreams[1].LocalBindPort: invalid value: integer `70000`, expected u16",
        ),
        (
            json!({"service": {"kind": "proxy"}}),
            "Service.Kind: unknown variant `proxy`",
        ),
        (
            json!({"Service": {"Tags": ["a", 1]}}),
            "Service.Tags[1]: invalid type: integer `1`, expected a string",
        ),
        (json!({"NodeMeta": {"a": 1}}), "NodeMeta.a: invalid type"),
        (
            json!({"Service": []}),
            "Service: invalid type: sequence, expected an object",
        ),
        (json!([]), "invalid type: sequence, expected an object"),
        (
            json!({"Node": "a", "node": "b"}),
            "Node: the field is given twice, in two spellings",
        ),
        (
            json!({"Service": {"Namespace": "no name"}}),
            "Service.Namespace: \"no name\" cannot name a namespace",
        ),
        (
            json!({"PeerName": "p"}),
            "PeerName: the peer \"p\" cannot be named here",
        ),
        (
            json!({"Checks": [{"Status": "good"}]}),
            "Checks[0].Status: unknown variant `good`",
        ),
        (
            json!({"Check": {"Definition": {"Interval": "10 parsecs"}}}),
            "Check.Definition.Interval: \"10 parsecs\" is not a duration",
        ),
    ] {
        let error = refused::<RegisterRequest>(value);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn invalid_json_is_a_separate_error() {
    for text in ["", "{", "{\"Node\": \"n\"} x", "{'Node': 1}"] {
        let result = from_slice::<Node>(text.as_bytes(), UnknownFields::Ignore);
        assert!(matches!(result, Err(DecodeError::Syntax(_))), "{text}");
    }
    let deep = format!("{{\"Meta\": {}", "[".repeat(10_000));
    assert!(from_slice::<Node>(deep.as_bytes(), UnknownFields::Ignore).is_err());
}

#[test]
fn unsupported_restrictions_are_never_ignored() {
    for value in [
        json!({"SourceName": "a", "SourceSamenessGroup": "g"}),
        json!({"SourceName": "a", "SourcePeer": "p", "SourceSamenessGroup": {"a": 1}}),
    ] {
        let result = from_value::<Intention>(value.clone(), UnknownFields::Ignore);
        let error = result.unwrap_err().to_string();
        let is_refused = error.contains("not served") || error.contains("cannot be named");
        assert!(is_refused, "{value}: {error}");
    }
    let empty = json!({"SourceName": "a", "SourceSamenessGroup": "", "SourcePeer": "", "SourcePartition": "default"});
    assert_eq!(ignore::<Intention>(empty).source_name, "a");
}

#[test]
fn secrets_print_as_stars() {
    let secret: Secret = ignore(json!("s3cret"));
    assert_eq!(format!("{secret} {secret:?}"), "*** ***");
    assert_eq!(secret.expose(), "s3cret");
    assert_eq!(serde_json::to_value(&secret).unwrap(), json!("s3cret"));
}

proptest! {
    /// Any input results in a value or an error.
    #[test]
    fn decoding_never_panics(value in any_json()) {
        for mode in [UnknownFields::Ignore, UnknownFields::Refuse] {
            let _ = from_value::<RegisterRequest>(value.clone(), mode);
            let _ = from_value::<ServiceDefinition>(value.clone(), mode);
            let _ = from_value::<ConfigEntry>(value.clone(), mode);
            let _ = from_value::<Intention>(value.clone(), mode);
            let _ = from_value::<CaRoots>(value.clone(), mode);
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "Kind",
        "kind",
        "Name",
        "Node",
        "Service",
        "Proxy",
        "Upstreams",
        "Config",
        "Checks",
        "Check",
        "TTL",
        "Sources",
        "Permissions",
        "HTTP",
        "Action",
        "Roots",
        "Meta",
        "Connect",
        "SidecarService",
        "Port",
        "JWT",
        "TLS",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "mesh",
            "service-defaults",
            "allow",
            "10s",
            "web",
            "\0"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}
