//! The definitions that the chart installs, with their validation rules.

use kube::core::cel::Validator;
use legate_kubernetes::config::crds;
use legate_kubernetes::config::kinds::{KINDS, Kind};
use legate_kubernetes::peering;
use legate_model::duration::GoDuration;
use serde_json::{Value, json};

use super::{manifests, manifests_in, repository, schema};

#[test]
fn the_files_of_the_chart_match_the_types() {
    let of_entries = KINDS
        .iter()
        .map(|kind| (kind.plural, crds::definition(kind)));
    let of_peerings = peering::kinds::Kind::ALL.into_iter();
    let of_peerings = of_peerings.map(|kind| (kind.plural(), peering::crds::definition(kind)));
    for (plural, definition) in of_entries.chain(of_peerings) {
        let path = format!("charts/legate/crds/{plural}.yaml");
        let file = std::fs::read_to_string(repository().join(&path)).unwrap();
        let made = serde_saphyr::to_string(&definition).unwrap();
        assert!(
            file == made,
            "{path} is old: run `cargo run -p legate-kubernetes --example crds`"
        );
    }
}

/// Requirements of the API server that generic checks miss: every level has a type, and only free
/// maps accept unknown fields.
#[test]
fn schemas_are_structural() {
    fn check(path: &str, schema: &Value) {
        let fields = schema.as_object().unwrap();
        assert!(fields["type"].is_string(), "{path}: {schema}");
        for key in [
            "$ref",
            "anyOf",
            "oneOf",
            "nullable",
            "title",
            "default",
            "definitions",
        ] {
            assert!(!fields.contains_key(key), "{path} has {key}");
        }
        let format = fields.get("format").and_then(Value::as_str);
        let known = [
            None,
            Some("int64"),
            Some("double"),
            Some("date-time"),
            Some("byte"),
        ];
        assert!(known.contains(&format), "{path}: {format:?}");
        let inner = fields.get("properties").and_then(Value::as_object);
        for (name, schema) in inner.into_iter().flatten() {
            check(&format!("{path}.{name}"), schema);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(schema) = fields.get(key) {
                check(&format!("{path}.{key}"), schema);
            }
        }
    }
    for kind in &KINDS {
        check(kind.name, &schema::of_resource(kind));
    }
    for kind in peering::kinds::Kind::ALL {
        check(kind.as_str(), &schema_of_peering(kind));
    }
}

fn schema_of_peering(kind: peering::kinds::Kind) -> Value {
    peering::crds::definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The schema of the kind with this name.
fn schema_named(name: &str) -> Value {
    let mut peerings = peering::kinds::Kind::ALL.into_iter();
    match peerings.find(|kind| kind.as_str() == name) {
        Some(kind) => schema_of_peering(kind),
        None => schema::of_resource(Kind::named(name).unwrap()),
    }
}

/// Lists with rules are bounded, because the API server limits the estimated cost of a rule.
#[test]
fn lists_with_rules_are_bounded() {
    fn has_rules(schema: &Value) -> bool {
        match schema {
            Value::Object(fields) => {
                fields.contains_key("x-kubernetes-validations") || fields.values().any(has_rules)
            }
            _ => false,
        }
    }
    fn check(path: &str, schema: &Value) {
        let Value::Object(fields) = schema else {
            return;
        };
        for (inner, bound) in [
            ("items", "maxItems"),
            ("additionalProperties", "maxProperties"),
        ] {
            if fields.get(inner).is_some_and(has_rules) {
                assert!(fields.contains_key(bound), "{path} has no {bound}");
            }
        }
        for (key, inner) in fields {
            check(&format!("{path}.{key}"), inner);
        }
    }
    for kind in &KINDS {
        check(kind.name, &schema::of_resource(kind));
    }
}

/// The violations of types and bounds, in the API server's words.
fn refusals(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        found.push(format!("{path}: Unsupported value"));
    }
    match value {
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                if !fields.contains_key(name) {
                    found.push(format!("{path}.{name}: Required value"));
                }
            }
            for (name, value) in fields {
                let inner = schema["properties"].get(name);
                if let Some(inner) = inner.or_else(|| schema.get("additionalProperties")) {
                    refusals(&format!("{path}.{name}"), inner, value, found);
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                refusals(&format!("{path}[{i}]"), &schema["items"], item, found);
            }
        }
        Value::Number(number) => {
            let bound = |key: &str| schema[key].as_f64();
            let number = number.as_f64().unwrap();
            if bound("minimum").is_some_and(|it| number < it)
                || bound("maximum").is_some_and(|it| number > it)
            {
                found.push(format!("{path}: Invalid value"));
            }
        }
        Value::String(text)
            if schema["minLength"]
                .as_u64()
                .is_some_and(|least| (text.len() as u64) < least) =>
        {
            found.push(format!("{path}: Invalid value"));
        }
        // Durations: the only pattern that a manifest here violates.
        Value::String(text)
            if schema["pattern"]
                .as_str()
                .is_some_and(|it| it.contains("ms|s"))
                && text.parse::<GoDuration>().is_err() =>
        {
            found.push(format!("{path}: Invalid value"));
        }
        _ => {}
    }
}

fn refused(resource: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = schema_named(resource["kind"].as_str().unwrap());
    let mut found = Vec::new();
    refusals(
        "spec",
        &schema["properties"]["spec"],
        &resource["spec"],
        &mut found,
    );
    if let Err(errors) = Validator::new().validate(&schema, resource, old) {
        found.extend(errors.into_vec().iter().map(ToString::to_string));
    }
    found
}

#[test]
fn good_manifests_are_accepted() {
    let peerings = manifests_in("peering", "good");
    for (name, _, resource) in manifests("good").into_iter().chain(peerings) {
        assert_eq!(refused(&resource, None), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn bad_manifests_are_refused_for_their_stated_reason() {
    let manifests = manifests("bad");
    assert!(manifests.len() > 30);
    let peerings = manifests_in("peering", "bad");
    for (name, text, resource) in manifests.into_iter().chain(peerings) {
        let first = text.lines().next().unwrap();
        let reason = first.strip_prefix("# refused: ").unwrap();
        let found = refused(&resource, None);
        assert!(
            found.iter().any(|refusal| refusal.contains(reason)),
            "{name}: {reason:?} is not in {found:?}"
        );
    }
}

#[test]
fn the_destination_of_intentions_cannot_be_changed() {
    let (_, _, old) = manifests("good")
        .into_iter()
        .find(|(name, ..)| name == "service-intentions")
        .unwrap();
    let mut new = old.clone();
    new["spec"]["sources"][0]["action"] = json!("allow");
    assert_eq!(refused(&new, Some(&old)), Vec::<String>::new());
    new["spec"]["destination"]["name"] = json!("other");
    let found = refused(&new, Some(&old));
    assert!(found[0].contains("cannot be changed"), "{found:?}");
}
