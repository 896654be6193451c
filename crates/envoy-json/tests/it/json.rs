//! The JSON form of messages.

use std::io::Read;

use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use envoy_types::pb::google::protobuf::Any;
use legate_envoy_json::{JsonError, canonical, decode, decode_any, encode};
use prost::Message;
use serde_json::json;

use crate::source;

const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

#[test]
fn the_descriptors_are_those_of_envoy_types() {
    let mut held = Vec::new();
    flate2::read::GzDecoder::new(include_bytes!("../../src/envoy.binpb.gz").as_slice())
        .read_to_end(&mut held)
        .unwrap();
    assert!(
        held == source::descriptors(),
        "run `cargo run -p legate-envoy-json --example descriptors`"
    );
}

fn document() -> serde_json::Value {
    json!({
        "@type": LISTENER,
        "name": "public",
        "trafficDirection": "INBOUND",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 8080}},
        "listener_filters_timeout": "3.5s",
        "per_connection_buffer_limit_bytes": 65536,
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": "public",
                "cluster": "local_app",
            },
        }]}],
    })
}

#[test]
fn a_document_becomes_the_message_and_back() {
    let (type_url, bytes) = decode_any(&document().to_string()).unwrap();
    assert_eq!(type_url, LISTENER);
    let listener = Listener::decode(bytes.as_slice()).unwrap();
    assert_eq!(listener.name, "public");
    assert_eq!(listener.traffic_direction, 1);
    assert_eq!(
        listener.per_connection_buffer_limit_bytes.unwrap().value,
        65536
    );
    assert_eq!(
        listener.listener_filters_timeout.unwrap().nanos,
        500_000_000
    );
    let again = encode(LISTENER, &bytes).unwrap();
    assert_eq!(decode(LISTENER, &again).unwrap(), bytes);
    assert_eq!(
        again["filterChains"][0]["filters"][0]["typedConfig"]["cluster"],
        "local_app"
    );
}

#[test]
fn errors_name_the_problem() {
    let error = |document: &str| decode_any(document).unwrap_err();
    assert!(matches!(error("{"), JsonError::Syntax(_)));
    assert!(matches!(error("[]"), JsonError::Syntax(_)));
    assert_eq!(error("{}"), JsonError::NoType);
    assert_eq!(
        error(r#"{"@type": "type.googleapis.com/envoy.Nothing"}"#),
        JsonError::UnknownType("type.googleapis.com/envoy.Nothing".to_owned())
    );
    let mut listener = document();
    listener["filter_chains"][0]["filters"][0]["typed_config"]["clutser"] = json!("x");
    let text = error(&listener.to_string()).to_string();
    assert!(text.contains("envoy.config.listener.v3.Listener"), "{text}");
    assert!(text.contains("clutser"), "{text}");
}

#[test]
fn deeply_nested_documents_are_handled() {
    let mut text = r#"{"@type":"type.googleapis.com/google.protobuf.Struct","value":"#.to_owned();
    text.push_str(&"{\"a\":".repeat(100_000));
    assert!(matches!(decode_any(&text), Err(JsonError::Syntax(_))));
    let any = r#"{"@type":"type.googleapis.com/google.protobuf.Any","value":"#;
    let text = format!("{}{}{}", any.repeat(120), "{}", "}".repeat(120));
    drop(decode_any(&text));
}

#[test]
fn maps_are_encoded_in_the_order_of_their_keys() {
    let settings = (0..20).map(|n| (format!("filter{n}"), Any::default()));
    let host = VirtualHost {
        name: "all".to_owned(),
        domains: vec!["*".to_owned()],
        typed_per_filter_config: settings.collect(),
        ..VirtualHost::default()
    };
    let name = "envoy.config.route.v3.VirtualHost";
    let first = canonical(name, &host.encode_to_vec());
    assert_eq!(VirtualHost::decode(first.as_slice()).unwrap(), host);
    for _ in 0..10 {
        let again = VirtualHost::decode(first.as_slice()).unwrap();
        assert_eq!(canonical(name, &again.encode_to_vec()), first);
    }
    let inside = Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: host.encode_to_vec(),
    };
    let inside = canonical("google.protobuf.Any", &inside.encode_to_vec());
    assert_eq!(Any::decode(inside.as_slice()).unwrap().value, first);
}
