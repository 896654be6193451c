//! The conversion of resources to entries: every field of every kind.

use legate_kubernetes::config::entry::{Entry, entry, place};
use legate_kubernetes::config::kinds::{KINDS, Kind, Naming};
use legate_kubernetes::config::same;
use legate_model::ConfigEntry;
use legate_model::json::{DecodeError, request};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{manifests, resource, schema};
use legate_kubernetes::tenancy::{TenancyFlags, Tenants};

/// Fields without an equivalent in a config entry, which are refused by name.
const NOT_SERVED: [&str; 2] = ["deployment", "secretRef"];

fn convert(kind: &'static Kind, spec: Value) -> Result<Entry, String> {
    let name = match kind.naming {
        Naming::Only(name) => name,
        Naming::Partition => "default",
        _ => "web",
    };
    // If a namespace is named, namespaces are used.
    let named = spec["destination"]["namespace"].as_str();
    let named = named.is_some_and(|name| !name.is_empty());
    let tenants = Tenants::of(&TenancyFlags {
        mirror_namespaces: named.then(String::new),
        ..TenancyFlags::default()
    });
    entry(
        kind,
        &resource(kind, "default", name, spec),
        "dc1",
        &tenants,
    )
}

/// A spec with every supported field of a kind.
fn full(kind: &Kind) -> Value {
    let mut spec = schema::full(&schema::of_spec(kind), &mut 0);
    if kind.name == "TerminatingGateway" {
        spec.as_object_mut().unwrap().remove("deployment");
        spec["services"][0]
            .as_object_mut()
            .unwrap()
            .remove("secretRef");
    }
    spec
}

fn golden(name: &str, value: &Value) {
    insta::with_settings!({
        snapshot_path => "../../golden/config", prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { insta::assert_snapshot!(name, serde_json::to_string_pretty(value).unwrap()) });
}

#[test]
fn manifests_become_these_entries() {
    for (name, _, manifest) in manifests("good") {
        let kind = Kind::named(manifest["kind"].as_str().unwrap()).unwrap();
        let metadata = manifest["metadata"]["name"].as_str().unwrap();
        let resource = resource(kind, "default", metadata, manifest["spec"].clone());
        golden(
            &name,
            &entry(kind, &resource, "dc1", &Tenants::default())
                .unwrap()
                .body,
        );
    }
}

#[test]
fn every_field_becomes_this_entry() {
    for kind in &KINDS {
        golden(
            &format!("every-field-{}", kind.entry.as_str()),
            &convert(kind, full(kind)).unwrap().body,
        );
    }
}

/// Compares a spec with its entry: the same structure and values, and names that differ in case
/// only.
fn same_fields(path: &str, spec: &Value, entry: &Value) {
    match (spec, entry) {
        (Value::Object(spec), Value::Object(entry)) => {
            assert_eq!(spec.len(), entry.len(), "{path}: {spec:?} {entry:?}");
            for (name, value) in spec {
                let (written, other) = entry
                    .iter()
                    .find(|(written, _)| written.eq_ignore_ascii_case(name))
                    .unwrap_or_else(|| panic!("{path}.{name} is missing in {entry:?}"));
                match written.as_str() {
                    // Maps with the user's own keys.
                    "Config" | "Arguments" | "Add" | "Set" => assert_eq!(value, other, "{path}"),
                    _ => same_fields(&format!("{path}.{name}"), value, other),
                }
            }
        }
        (Value::Array(spec), Value::Array(entry)) => {
            assert_eq!(spec.len(), entry.len(), "{path}");
            for (spec, entry) in spec.iter().zip(entry) {
                same_fields(path, spec, entry);
            }
        }
        (Value::Number(a), Value::Number(b)) => assert_eq!(a.as_f64(), b.as_f64(), "{path}"),
        _ => assert_eq!(spec, entry, "{path}"),
    }
}

fn check(kind: &Kind, mut spec: Value, entry: Entry) {
    let mut fields: Map<String, Value> = entry.body.as_object().unwrap().clone();
    assert_eq!(fields.remove("Kind").unwrap(), kind.entry.as_str());
    assert_eq!(
        fields.remove("Meta").unwrap(),
        json!({
            "external-source": "kubernetes",
            "consul.hashicorp.com/source-datacenter": "dc1",
        })
    );
    let name = fields.remove("Name");
    match kind.name {
        "Mesh" => assert_eq!(name, None),
        _ => assert_eq!(name, Some(entry.name.clone().into())),
    }
    if kind.naming == Naming::Destination {
        let destination = spec.as_object_mut().unwrap().remove("destination").unwrap();
        assert_eq!(destination["name"], entry.name);
        let namespace = destination.get("namespace").map(|name| match name {
            Value::String(name) => json!(name.to_ascii_lowercase()),
            other => other.clone(),
        });
        assert_eq!(namespace, fields.remove("Namespace"));
    }
    same_fields("spec", &spec, &Value::Object(fields));
}

#[test]
fn no_field_is_dropped_or_renamed() {
    for kind in &KINDS {
        let spec = full(kind);
        check(kind, spec.clone(), convert(kind, spec).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Anything that the schema accepts is converted completely, or refused by name.
    #[test]
    fn specs_that_the_schema_accepts_are_converted_completely(
        (index, spec) in (0..KINDS.len()).prop_flat_map(|index| {
            (Just(index), schema::any(&schema::of_spec(&KINDS[index])))
        })
    ) {
        let kind = &KINDS[index];
        match convert(kind, spec.clone()) {
            Ok(entry) => check(kind, spec, entry),
            Err(error) if kind.naming == Naming::Destination => {
                prop_assert_eq!(error, "spec.destination.name is missing");
                prop_assert_eq!(&spec["destination"]["name"], "");
            }
            Err(error) => {
                prop_assert!(NOT_SERVED.iter().any(|it| error.contains(it)), "{}", error);
            }
        }
    }
}

/// Every field by itself, in the smallest spec that has it: its path and the spec.
fn single_fields(value: &Value) -> Vec<(String, Value)> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                single_fields(value)
                    .into_iter()
                    .map(move |(path, value)| (format!("{name}.{path}"), json!({ name: value })))
            })
            .collect(),
        Value::Array(items) => {
            let inner = single_fields(&items[0]).into_iter();
            inner.map(|(path, value)| (path, json!([value]))).collect()
        }
        leaf => vec![(String::new(), leaf.clone())],
    }
}

/// The servers accept a field and store it, or refuse the entry with an error; they never require
/// other names.
#[test]
fn the_servers_support_every_field() {
    for kind in &KINDS {
        for (path, mut spec) in single_fields(&full(kind)) {
            if kind.naming == Naming::Destination {
                spec["destination"]["name"] = json!("web");
            }
            let entry = convert(kind, spec).unwrap();
            match request::<ConfigEntry>(entry.body.to_string().as_bytes()) {
                Ok(read) => {
                    if read.value.validate().is_ok() {
                        let kept = serde_json::to_value(&read.value).unwrap();
                        let lost = same::differences(&entry, &kept, 5);
                        assert!(lost.is_empty(), "{} {path}: {lost:?}", kind.name);
                    }
                }
                Err(DecodeError::UnknownFields { fields }) => {
                    panic!("{} {path}: {fields:?}", kind.name);
                }
                Err(DecodeError::Value { path: at, message }) => {
                    let kind_not_served = message.contains("invalid config entry kind");
                    assert!(kind_not_served || !at.is_empty(), "{path}: {message}");
                }
                Err(error) => panic!("{} {path}: {error}", kind.name),
            }
        }
    }
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let kind = |name| Kind::named(name).unwrap();
    let cases = [
        (
            "ServiceDefaults",
            json!({ "protocl": "http" }),
            "spec.protocl: unknown field `protocl`",
        ),
        (
            "ServiceDefaults",
            json!({ "protocol": 5 }),
            "spec.protocol: invalid type",
        ),
        (
            "ServiceRouter",
            json!({ "routes": [{ "match": { "http": { "pathGlob": "/*" } } }] }),
            "spec.routes[0].match.http.pathGlob: unknown field `pathGlob`",
        ),
        (
            "ServiceResolver",
            json!({ "connectTimeout": "5 apples" }),
            "spec.connectTimeout: \"5 apples\" is not a duration",
        ),
        (
            "ServiceResolver",
            json!({ "subsets": { "v1": null } }),
            "spec.subsets.v1: invalid type",
        ),
        (
            "TerminatingGateway",
            json!({ "deployment": {} }),
            "spec.deployment is not supported",
        ),
        (
            "TerminatingGateway",
            json!({ "services": [{ "name": "a" }, { "secretRef": { "name": "s" } }] }),
            "spec.services[1].secretRef is not supported",
        ),
        (
            "ServiceIntentions",
            json!({}),
            "spec.destination.name is missing",
        ),
    ];
    for (name, spec, reason) in cases {
        let error = convert(kind(name), spec).unwrap_err();
        assert!(error.starts_with(reason), "{error}");
        assert!(error.len() < 200, "{error}");
    }
    let misnamed = resource(kind("Mesh"), "default", "other", json!({}));
    let error = entry(kind("Mesh"), &misnamed, "dc1", &Tenants::default()).unwrap_err();
    assert_eq!(error, "the only Mesh is named mesh");
    let misnamed = resource(kind("ExportedServices"), "default", "east", json!({}));
    let none = Tenants::default();
    let error = entry(kind("ExportedServices"), &misnamed, "dc1", &none).unwrap_err();
    assert_eq!(error, "the only ExportedServices is named default");
}

#[test]
fn without_namespaces_none_but_the_default_one_is_written_to() {
    let kind = Kind::named("ServiceIntentions").unwrap();
    let to = |namespace: &str| {
        let destination = json!({ "name": "web", "namespace": namespace });
        let sources = json!([{ "name": "a", "action": "allow" }]);
        let spec = json!({ "destination": destination, "sources": sources });
        resource(kind, "shop", "x", spec)
    };
    let tenants = Tenants::default();
    let refused = entry(kind, &to("stock"), "dc1", &tenants).unwrap_err();
    assert!(
        refused.contains("global.enableConsulNamespaces"),
        "{refused}"
    );
    assert_eq!(place(kind, &to("stock"), &tenants), None);
    let own = place(kind, &to("Default"), &tenants).unwrap();
    assert_eq!((own.namespace, own.name.as_str()), (None, "web"));
    assert!(entry(kind, &to("Default"), "dc1", &tenants).is_ok());
}

#[test]
fn a_resource_without_a_spec_becomes_an_entry_without_fields() {
    let entry = convert(Kind::named("ServiceResolver").unwrap(), Value::Null).unwrap();
    assert_eq!(entry.body.as_object().unwrap().len(), 3, "{:?}", entry.body);
}

#[test]
fn entries_are_in_the_mapped_namespace_of_their_resource() {
    let flags = TenancyFlags {
        mirror_namespaces: Some("k8s-".to_owned()),
        partition: Some("east".parse().unwrap()),
        ..TenancyFlags::default()
    };
    let tenants = Tenants::of(&flags);
    let made = |kind: &str, name: &str, spec: Value| {
        let kind = Kind::named(kind).unwrap();
        entry(kind, &resource(kind, "shop", name, spec), "dc1", &tenants).unwrap()
    };
    let namespace = |entry: &Entry| {
        assert_eq!(entry.body["Namespace"].as_str(), entry.namespace.as_deref());
        entry.namespace.clone().unwrap()
    };
    let router = made("ServiceRouter", "web", json!({}));
    assert_eq!(namespace(&router), "k8s-shop");
    for (kind, name) in [
        ("ProxyDefaults", "global"),
        ("Mesh", "mesh"),
        ("ExportedServices", "east"),
        ("JWTProvider", "okta"),
    ] {
        let made = made(kind, name, json!({}));
        assert_eq!(namespace(&made), "default", "{kind}");
        assert_eq!(made.name, name);
    }
    let to = |destination: Value| {
        let sources = json!([{ "name": "a", "action": "allow" }]);
        let spec = json!({ "destination": destination, "sources": sources });
        namespace(&made("ServiceIntentions", "x", spec))
    };
    assert_eq!(to(json!({ "name": "web" })), "k8s-shop");
    assert_eq!(to(json!({ "name": "web", "namespace": "stock" })), "stock");

    // Servers may add the entry's own tenant to references; any other tenant is a difference.
    let found = |namespace: &str, partition: &str| json!({ "Splits": [{ "Weight": 100, "Namespace": namespace, "Partition": partition }] });
    let splitter = made(
        "ServiceSplitter",
        "web",
        json!({ "splits": [{ "weight": 100 }] }),
    );
    let differ = |found: Value| !same::differences(&splitter, &found, 5).is_empty();
    assert!(!differ(found("k8s-shop", "east")));
    assert!(differ(found("default", "east")) && differ(found("k8s-shop", "default")));
}
