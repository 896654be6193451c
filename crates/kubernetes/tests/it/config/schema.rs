//! Generates specs from the schemas for the API server.

use legate_kubernetes::config::crds;
use legate_kubernetes::config::kinds::Kind;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The schema of a whole resource.
pub(crate) fn of_resource(kind: &Kind) -> Value {
    crds::definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The schema of `spec`.
pub(crate) fn of_spec(kind: &Kind) -> Value {
    of_resource(kind)["properties"]["spec"].clone()
}

/// A value with every field set, each to a different value if the schema permits. It satisfies
/// types and bounds, but not rules that exclude fields.
pub(crate) fn full(schema: &Value, counter: &mut u64) -> Value {
    *counter += 1;
    let n = *counter;
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return json!({ format!("free{n}"): { "Nested": [n, null, "", false] }, "flag": true });
    }
    match schema["type"].as_str().unwrap() {
        "object" if schema.get("properties").is_some() => {
            let properties = schema["properties"].as_object().unwrap();
            let fields = properties.iter();
            let fields = fields.map(|(name, schema)| (name.clone(), full(schema, counter)));
            Value::Object(fields.collect())
        }
        "object" => json!({ format!("key{n}"): full(&schema["additionalProperties"], counter) }),
        "array" => json!([full(&schema["items"], counter)]),
        "boolean" => json!(true),
        "integer" | "number" => {
            let bound = |key: &str, default| schema[key].as_u64().unwrap_or(default);
            json!(n.clamp(bound("minimum", 1), bound("maximum", u64::from(u32::MAX))))
        }
        "string" => json!(text(schema, n)),
        other => panic!("type {other}"),
    }
}

fn text(schema: &Value, n: u64) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values.last().unwrap().as_str().unwrap().to_owned();
    }
    match schema["pattern"].as_str() {
        Some(pattern) if pattern.contains("ms|s") => format!("{n}s"),
        Some(_) => format!("/path{n}"),
        None => format!("Text{n}"),
    }
}

/// Any value that the types of a schema permit.
pub(crate) fn any(schema: &Value) -> BoxedStrategy<Value> {
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return prop_oneof![
            Just(json!({})),
            Just(json!({ "a": { "B": [1, 2.5, null, ""] } }))
        ]
        .boxed();
    }
    match schema["type"].as_str().unwrap() {
        "object" if schema.get("properties").is_some() => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = schema["properties"].as_object().unwrap().iter();
            let fields: Vec<_> = fields
                .map(|(name, schema)| {
                    let name = name.clone();
                    let value = match required.contains(&json!(name)) {
                        true => any(schema).prop_map(Some).boxed(),
                        false => proptest::option::weighted(0.4, any(schema)).boxed(),
                    };
                    value.prop_map(move |value| value.map(|value| (name.clone(), value)))
                })
                .collect();
            fields
                .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect()))
                .boxed()
        }
        "object" => proptest::collection::btree_map(
            "[a-z]{1,3}",
            any(&schema["additionalProperties"]),
            0..3,
        )
        .prop_map(|map| Value::Object(Map::from_iter(map)))
        .boxed(),
        "array" => proptest::collection::vec(any(&schema["items"]), 0..3)
            .prop_map(Value::Array)
            .boxed(),
        "boolean" => proptest::bool::ANY.prop_map(Value::Bool).boxed(),
        "integer" | "number" => {
            let bound = |key: &str, default| schema[key].as_u64().unwrap_or(default);
            (bound("minimum", 0)..=bound("maximum", u64::from(u32::MAX)))
                .prop_map(|n| json!(n))
                .boxed()
        }
        _ if schema.get("enum").is_some() => {
            proptest::sample::select(schema["enum"].as_array().unwrap().clone()).boxed()
        }
        _ if schema["pattern"]
            .as_str()
            .is_some_and(|it| it.contains("ms|s")) =>
        {
            proptest::sample::select(vec!["0s", "1h30m", "250ms", "1.5s", "0"])
                .prop_map(|text| json!(text))
                .boxed()
        }
        _ => "(/[a-z]{0,3})?".prop_map(Value::String).boxed(),
    }
}
