//! The real API server validates the rendered chart in a dry run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::json;

use crate::cluster::Cluster;
use crate::namespace::Namespace;
use crate::run::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "the_api_server_accepts_every_manifest",
    run: the_api_server_accepts_every_manifest,
}];

/// The namespaces in `tests/chart`: that of the release, and that of its peerings.
const NAMESPACES: [&str; 2] = ["consul", "peers"];

/// Foreign kinds of resources in the chart: group, version, plural and kind.
const FOREIGN: [(&str, &str, &str, &str); 4] = [
    ("cert-manager.io", "v1", "certificates", "Certificate"),
    ("cert-manager.io", "v1", "issuers", "Issuer"),
    ("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    (
        "monitoring.coreos.com",
        "v1",
        "servicemonitors",
        "ServiceMonitor",
    ),
];

fn the_api_server_accepts_every_manifest(space: &Namespace) -> anyhow::Result<()> {
    let cluster = space.cluster;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    dry_run(cluster, &root.join("charts/legate/crds"))?;
    let [release, peers] = NAMESPACES.map(|name| Namespace::create(cluster, name));
    let (release, peers) = (release?, peers?);
    let mut made = Vec::new();
    let accepted = define_foreign_kinds(cluster, &mut made).and_then(|()| {
        let rendered = rendered(&root.join("tests/chart"))?;
        rendered.iter().try_for_each(|file| dry_run(cluster, file))
    });
    let deleted = made.iter().try_for_each(|name| {
        let words = ["delete", "customresourcedefinition", name];
        cluster.kubectl(&words).map(|_| ())
    });
    accepted?;
    deleted?;
    peers.delete()?;
    release.delete()
}

/// A file for each set of values; `cargo xtask chart` compares them with the chart.
fn rendered(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with(".values.yaml") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    Ok(files)
}

fn dry_run(cluster: &Cluster, file: &Path) -> anyhow::Result<()> {
    let file = file.to_str().context("a path that is text")?;
    let words = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--filename",
        file,
    ];
    // Removes the resources of an earlier run.
    cluster
        .kubectl(&[&words[..], &["--force-conflicts"]].concat())
        .map(|_| ())
}

/// Creates definitions of foreign kinds that this cluster lacks, which accept any resource.
fn define_foreign_kinds(cluster: &Cluster, made: &mut Vec<String>) -> anyhow::Result<()> {
    for (group, version, plural, kind) in FOREIGN {
        let name = format!("{plural}.{group}");
        let get = [
            "get",
            "customresourcedefinition",
            &name,
            "--ignore-not-found",
        ];
        if !cluster.kubectl(&get)?.is_empty() {
            continue;
        }
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group,
                "names": {"plural": plural, "kind": kind},
                "scope": "Namespaced",
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": any},
                }],
            },
        });
        cluster.kubectl_with(&definition.to_string(), &["create", "--filename", "-"])?;
        let object = format!("customresourcedefinition/{name}");
        made.push(name);
        cluster.kubectl(&[
            "wait",
            &object,
            "--for=condition=Established",
            "--timeout=60s",
        ])?;
    }
    Ok(())
}
