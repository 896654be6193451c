//! Which fields of the Gateway API have a meaning here.
//!
//! `fields.txt` lists those of the version that is served, from the definitions of its kinds. A
//! field that is not understood must be found, and one that is understood must be kept as it is.

use legate_gateway_api::Object;
use legate_gateway_api::types::{
    BackendTlsPolicy, Gateway, GatewayClass, GrpcRoute, HttpRoute, ListenerSet, PlainRoute,
    ReferenceGrant, TlsRoute,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const FIELDS: &str = include_str!("fields.txt");

/// A spec with one field.
fn spec(path: &str, value: Value) -> Value {
    path.rsplit('.')
        .fold(value, |value, part| match part.strip_suffix("[]") {
            Some(part) => json!({part: [value]}),
            None => json!({part: value}),
        })
}

fn is_kept(written: &Value, understood: &Value) -> bool {
    match (written, understood) {
        (Value::Object(written), Value::Object(understood)) => written
            .iter()
            .all(|(name, value)| understood.get(name).is_some_and(|own| is_kept(value, own))),
        (Value::Array(written), Value::Array(understood)) => {
            let mut pairs = written.iter().zip(understood);
            written.len() == understood.len() && pairs.all(|(a, b)| is_kept(a, b))
        }
        (written, understood) => written == understood,
    }
}

fn read<T: DeserializeOwned + Serialize + Default>(spec: &Value) -> &'static str {
    let object = Object::<T>::decode(&json!({"metadata": {"name": "x"}, "spec": spec}));
    assert_eq!(object.broken, None, "{spec}");
    let understood = serde_json::to_value(&object.spec).unwrap();
    match object.unserved.is_empty() {
        false => "refused",
        true if is_kept(spec, &understood) => "served",
        true => "lost",
    }
}

#[test]
fn fields_are_served_or_refused() {
    let mut wrong = Vec::new();
    for line in FIELDS.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let &[kind, path, value, expected] = words.as_slice() else {
            panic!("{line:?}")
        };
        let value = match value {
            "string" => json!("x"),
            "integer" => json!(1),
            "boolean" => json!(true),
            "map" => json!({"x": "y"}),
            other => panic!("{other:?}"),
        };
        let spec = spec(path, value);
        let found = match kind {
            "BackendTLSPolicy" => read::<BackendTlsPolicy>(&spec),
            "GRPCRoute" => read::<GrpcRoute>(&spec),
            "Gateway" => read::<Gateway>(&spec),
            "GatewayClass" => read::<GatewayClass>(&spec),
            "HTTPRoute" => read::<HttpRoute>(&spec),
            "ListenerSet" => read::<ListenerSet>(&spec),
            "ReferenceGrant" => read::<ReferenceGrant>(&spec),
            "TCPRoute" | "UDPRoute" => read::<PlainRoute>(&spec),
            "TLSRoute" => read::<TlsRoute>(&spec),
            other => panic!("{other:?}"),
        };
        if found != expected {
            wrong.push(format!("{kind} {path} is {found}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
