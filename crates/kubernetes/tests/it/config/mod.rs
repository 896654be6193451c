//! Tests of the synchronization of custom resources to config entries.

mod controllers;
mod decisions;
mod definitions;
mod entries;
mod fake_api;
mod fake_servers;
mod http;
mod schema;

use std::path::{Path, PathBuf};

use kube::core::DynamicObject;
use legate_kubernetes::config::kinds::Kind;
use serde_json::{Value, json};

/// A resource of a kind with this name and spec, as the API server returns it.
pub(crate) fn resource(kind: &Kind, namespace: &str, name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "consul.hashicorp.com/v1alpha1",
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": format!("{namespace}/{name}"),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    }))
    .unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The manifests of `tests/kind` in `good` or `bad`, by file name.
fn manifests(which: &str) -> Vec<(String, String, Value)> {
    manifests_in("config", which)
}

/// The same of config entries (`config`) or peerings (`peering`).
fn manifests_in(what: &str, which: &str) -> Vec<(String, String, Value)> {
    let folder = repository()
        .join("tests/kind/manifests")
        .join(what)
        .join(which);
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let value = serde_saphyr::from_str(&text).unwrap();
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                text,
                value,
            )
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
