//! The installation, pod and Service that the tests start from.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Parser;
use k8s_openapi::api::core::v1::{Pod, Service};
use legate_kubernetes::context::Options;
use legate_kubernetes::inject::{
    Admitted, Cluster, Installation, Refusal, Request, ResolvConf, admit,
};
use serde_json::{Value, json};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// The chart's defaults: ACLs, TLS, redirection, native sidecars.
pub(crate) fn installation() -> Installation {
    let mut installation = plain();
    installation.servers.http.tls = true;
    installation.servers.managed_ca = true;
    installation.ca_certs = Some("-----BEGIN CERTIFICATE-----\n".to_owned());
    installation.sidecars.sidecar_auth_method = Some("legate-k8s-auth-method".to_owned());
    installation
}

/// The operator's flags, with additional ones.
pub(crate) fn options(more: &[&str]) -> Options {
    let flags = [
        "operator",
        "--full-name=legate",
        "--namespace=mesh",
        "--pod-name=legate-operator-0",
        "--server-addresses=legate-server.mesh.svc",
        "--dataplane-image=legate-dataplane:test",
        "--redirect-image=legate-k8s:test",
    ];
    Cli::parse_from(flags.iter().chain(more)).options
}

/// Without ACLs and TLS.
pub(crate) fn plain() -> Installation {
    let options = options(&[]);
    Installation {
        full_name: options.names.full_name,
        namespace: options.names.namespace,
        servers: options.servers,
        sidecars: options.sidecars,
        config: serde_json::from_str("{}").unwrap(),
        log_level: "info".to_owned(),
        log_json: false,
        cluster: Cluster::of_version("1", "33"),
        ca_certs: None,
        resolv_conf: ResolvConf::parse(
            "search mesh.svc.cluster.local svc.cluster.local cluster.local\n\
             nameserver 10.96.0.10\noptions ndots:5\n",
        ),
    }
}

pub(crate) fn config(text: &str) -> legate_kubernetes::context::Config {
    serde_json::from_str(text).unwrap()
}

/// A pod as the API server sends it for a Deployment.
pub(crate) fn pod(annotations: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<String, &str> = annotations
        .iter()
        .map(|(key, value)| (format!("consul.hashicorp.com/{key}"), *value))
        .chain([("consul.hashicorp.com/connect-inject".to_owned(), "true")])
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "web-5d4f-",
            "labels": { "app": "web" },
            "annotations": annotations,
        },
        "spec": {
            "serviceAccountName": "web",
            "containers": [{
                "name": "app",
                "image": "web:1",
                "ports": [
                    { "name": "http", "containerPort": 8080 },
                    { "name": "admin", "containerPort": 9090 },
                ],
                // A field of a later version of Kubernetes is kept.
                "fieldOfLater": { "a": 1 },
            }],
        },
    })
}

/// The pod with the changes of a JSON merge patch.
pub(crate) fn changed(mut pod: Value, change: Value) -> Value {
    json_patch::merge(&mut pod, &change);
    pod
}

pub(crate) fn service(name: &str, namespace: &str, selector: Value) -> Arc<Service> {
    let service = json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "selector": selector, "ports": [{ "port": 80 }] },
    });
    Arc::new(serde_json::from_value(service).unwrap())
}

pub(crate) fn services() -> Vec<Arc<Service>> {
    vec![
        service("web", "shop", json!({ "app": "web" })),
        service("other", "shop", json!({ "app": "other" })),
        service("web-elsewhere", "stock", json!({ "app": "web" })),
        service("without-selector", "shop", json!({})),
    ]
}

pub(crate) fn admit_pod(installation: &Installation, pod: &Value) -> Result<Admitted, Refusal> {
    admit_with(installation, pod, &services(), &BTreeMap::new())
}

pub(crate) fn admit_with(
    installation: &Installation,
    pod: &Value,
    services: &[Arc<Service>],
    namespace_labels: &BTreeMap<String, String>,
) -> Result<Admitted, Refusal> {
    let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
    admit(
        installation,
        &Request {
            namespace: "shop",
            namespace_labels,
            services,
            pod: &typed,
        },
    )
}

/// The patched pod, after the checks for every patch: it applies to what the API server sent, no
/// field is lost, and the result is not injected again.
pub(crate) fn injected(installation: &Installation, pod: &Value, admitted: &Admitted) -> Value {
    let mut result = pod.clone();
    json_patch::patch(&mut result, admitted.patch.as_ref().unwrap()).unwrap();
    let kept = result["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .any(|container| container["fieldOfLater"] == json!({ "a": 1 }));
    assert!(kept);
    let again = admit_pod(installation, &result).unwrap();
    assert_eq!(again.patch, None);
    result
}
