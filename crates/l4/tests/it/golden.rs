//! All resources of the golden cases: those without HTTP are served, the others need Envoy, with the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use legate_l4::decode::{self, Refused};
use serde_json::Value;

use crate::support::{self, TYPES};

/// The encoded resources of a case: type, name, bytes.
pub(crate) struct Resource {
    pub(crate) message: &'static str,
    pub(crate) name: String,
    pub(crate) json: Value,
    pub(crate) bytes: Vec<u8>,
}

/// The golden cases with their resources.
pub(crate) fn cases() -> BTreeMap<String, Vec<Resource>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../resources/tests/golden");
    let cases = std::fs::read_dir(&folder).expect("the golden cases of legate-resources");
    let cases = cases.map(|case| {
        let case = case.unwrap();
        let text = std::fs::read_to_string(case.path().join("resources.json")).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        unmask(&mut document);
        let resources = TYPES.into_iter().flat_map(|(kind, message)| {
            let resources = document[kind].as_object().unwrap().clone().into_iter();
            resources.map(move |(name, json)| Resource {
                message,
                name,
                bytes: support::encode(message, &json),
                json,
            })
        });
        let name = case.file_name().into_string().unwrap();
        (name, resources.collect())
    });
    cases.collect()
}

/// The golden files show `***` instead of a certificate or a key; here it is a text again.
fn unmask(json: &mut Value) {
    match json {
        Value::Object(fields) => fields.values_mut().for_each(unmask),
        Value::Array(values) => values.iter_mut().for_each(unmask),
        Value::String(text) if text == "***" => *json = serde_json::json!({"inlineString": "***"}),
        _ => {}
    }
}

/// Whether a case has something for HTTP: then it is not a matter of the proxy.
fn has_http(resources: &[Resource]) -> bool {
    let mut texts = resources.iter().map(|resource| resource.json.to_string());
    texts.any(|text| {
        text.contains("HttpConnectionManager") || text.contains("typedExtensionProtocolOptions")
    })
}

#[test]
fn every_case_is_served_or_needs_envoy() {
    let mut report = String::new();
    let cases = cases();
    assert!(cases.len() > 300, "{} cases", cases.len());
    let mut served = 0;
    for (case, resources) in &cases {
        let mut reasons = Vec::new();
        for resource in resources {
            match support::decode(resource.message, &resource.bytes) {
                Ok(()) => {}
                Err(Refused::NeedsEnvoy { what }) => reasons.push(what),
                Err(refused) => panic!("{case}, {}: {refused}", resource.name),
            }
        }
        if has_http(resources) {
            assert!(!reasons.is_empty(), "{case} has HTTP, but is served");
        }
        reasons.sort();
        reasons.dedup();
        match reasons.is_empty() {
            true => {
                served += 1;
                writeln!(report, "{case}: served").unwrap();
            }
            false => writeln!(report, "{case}: {}", reasons.join("; ")).unwrap(),
        }
    }
    assert!(served > 60, "only {served} cases are served");
    insta::assert_snapshot!(report);
}

/// The JSON of a resource has all of its fields, named as in the schema.
#[test]
fn the_json_has_every_field() {
    for (case, resources) in cases() {
        for resource in resources {
            if support::decode(resource.message, &resource.bytes).is_err() {
                continue;
            }
            let url = format!("type.googleapis.com/{}", resource.message);
            let mut shown = decode::to_json(&url, &resource.bytes);
            let fields = shown.as_object_mut().unwrap();
            assert_eq!(fields.remove("@type"), Some(url.into()));
            let mut expected = camel(&resource.json);
            mask(&mut expected);
            assert_eq!(camel(&shown), expected, "{case}, {}", resource.name);
        }
    }
}

/// Renames fields as JSON has them by default. Keys of maps are renamed too, on both sides of the comparison.
fn camel(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let mut words = name.split('_');
                let mut renamed = words.next().unwrap_or_default().to_owned();
                for word in words {
                    let (first, rest) = word.split_at(word.len().min(1));
                    renamed.push_str(&first.to_ascii_uppercase());
                    renamed.push_str(rest);
                }
                (renamed, camel(value))
            });
            Value::Object(fields.collect())
        }
        Value::Array(values) => values.iter().map(camel).collect(),
        other => other.clone(),
    }
}

fn mask(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "privateKey" {
                    *value = serde_json::json!({"inlineString": "[redacted]"});
                }
                mask(value);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask),
        _ => {}
    }
}
