//! Pods that are not injected or refused, and arbitrary input from users.

use std::collections::BTreeMap;

use legate_kubernetes::annotations::KEYS;
use legate_kubernetes::inject::Refusal;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{
    admit_pod, admit_with, changed, config, installation, plain, pod, service, services,
};

fn refused(installation: &legate_kubernetes::inject::Installation, pod: &Value, parts: &[&str]) {
    let refusal = admit_pod(installation, pod).unwrap_err().to_string();
    for part in parts {
        assert!(refusal.contains(part), "{refusal:?} does not say {part:?}");
    }
    assert!(
        !refusal.contains('\n') && !refusal.contains(". "),
        "{refusal}"
    );
}

#[test]
fn refusals_name_the_cause_and_the_remedy() {
    let spec = |spec: Value| changed(pod(&[]), json!({ "spec": spec }));
    let plain = plain();
    refused(
        &plain,
        &spec(json!({ "hostNetwork": true })),
        &["hostNetwork", "connect-inject"],
    );
    refused(
        &plain,
        &spec(json!({ "securityContext": { "runAsUser": 5995 } })),
        &["spec.securityContext.runAsUser", "5995"],
    );
    let container = |container: Value| spec(json!({ "containers": [container] }));
    refused(
        &plain,
        &container(json!({ "name": "app", "securityContext": { "runAsUser": 5995 } })),
        &["\"app\"", "5995"],
    );
    refused(
        &plain,
        &container(json!({ "name": "consul-dataplane" })),
        &["rename it"],
    );
    refused(
        &plain,
        &spec(json!({ "volumes": [{ "name": "consul-connect-inject-ca" }] })),
        &["volume", "rename it"],
    );
    refused(
        &plain,
        &spec(json!({ "dnsConfig": { "options": [] } })),
        &["dnsConfig", "consul-dns to false"],
    );
    refused(
        &plain,
        &pod(&[("consul-dns", "true"), ("transparent-proxy", "false")]),
        &["consul-dns needs redirected traffic"],
    );
    refused(
        &installation(),
        &spec(json!({ "serviceAccountName": "default" })),
        &["service account is \"default\"", "service is \"web\""],
    );
    refused(
        &plain,
        &pod(&[("connect-service-port", "nope")]),
        &["\"nope\"", "no container"],
    );
    refused(
        &plain,
        &pod(&[("connect-service", "a,b")]),
        &["only one service"],
    );
    for (missing, given) in [
        ("prometheus-ca-file", "prometheus-cert-file"),
        ("prometheus-cert-file", "prometheus-ca-path"),
    ] {
        refused(&plain, &pod(&[(given, "/x")]), &[missing]);
    }
    let both = [("prometheus-ca-file", "/x"), ("prometheus-cert-file", "/x")];
    refused(&plain, &pod(&both), &["prometheus-key-file"]);
    let volume = r#"[{"name": "consul-connect-inject-ca", "emptyDir": {}}]"#;
    refused(
        &plain,
        &pod(&[("consul-sidecar-user-volume", volume)]),
        &["volume", "rename it"],
    );
    let mut waiting = installation();
    waiting.ca_certs = None;
    refused(&waiting, &pod(&[]), &["servers' CA", "try again"]);
}

#[test]
fn an_ambiguous_service_is_refused() {
    let none = BTreeMap::new();
    let nobody = admit_with(&plain(), &pod(&[]), &[], &none).unwrap_err();
    assert_eq!(
        nobody.to_string(),
        "no Service in shop selects the pod: create one, or name the pod's service with \
         consul.hashicorp.com/connect-service"
    );
    let mut several = services();
    several.push(service("web-admin", "shop", json!({ "app": "web" })));
    let unclear = admit_with(&plain(), &pod(&[]), &several, &none).unwrap_err();
    assert!(
        unclear
            .to_string()
            .contains("2 Services in shop select the pod (web, web-admin)")
    );
    let named = pod(&[("kubernetes-service", "web-admin")]);
    let admitted = admit_with(&plain(), &named, &several, &none).unwrap();
    let mut result = named;
    json_patch::patch(&mut result, &admitted.patch.unwrap()).unwrap();
    let service = &result["metadata"]["annotations"]["consul.hashicorp.com/connect-service"];
    assert_eq!(service, "web-admin");
    let wrong = pod(&[("kubernetes-service", "other")]);
    let wrong = admit_with(&plain(), &wrong, &several, &none).unwrap_err();
    assert!(
        wrong.to_string().contains("does not select the pod"),
        "{wrong}"
    );
}

#[test]
fn with_the_gateway_api_several_services_may_select_a_pod() {
    let mut installation = plain();
    installation.config = config(r#"{"apiGateway": {"enabled": true}}"#);
    let annotations = |pod: &Value, services: &[std::sync::Arc<_>]| {
        let admitted = admit_with(&installation, pod, services, &BTreeMap::new());
        let mut result = pod.clone();
        json_patch::patch(&mut result, &admitted?.patch.unwrap()).unwrap();
        let annotations = &result["metadata"]["annotations"];
        let of = |name: &str| annotations[format!("consul.hashicorp.com/{name}")].clone();
        Ok::<_, Refusal>((of("connect-service"), of("connect-service-port")))
    };
    let services = ["a", "b"].map(|name| service(name, "shop", json!({ "app": "web" })));
    let named = |change: Value| annotations(&changed(pod(&[]), change), &services);
    let name = |change: Value| named(change).unwrap().0;
    assert_eq!(name(json!({})), "web", "of the account");
    let nobody = annotations(&pod(&[]), &[]).unwrap().0;
    assert_eq!(nobody, "web", "no Service selects it");
    let owned = |kind: &str, owner: &str| {
        json!({
            "metadata": {
                "labels": { "app": "web", "pod-template-hash": "5d4f" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": owner,
                                      "uid": "u", "controller": true }],
            },
            "spec": { "serviceAccountName": "default" },
        })
    };
    assert_eq!(name(owned("ReplicaSet", "front-5d4f")), "front");
    assert_eq!(name(owned("ReplicaSet", "alone")), "alone");
    assert_eq!(name(owned("StatefulSet", "db-5d4f")), "db-5d4f");
    let bare = json!({ "spec": { "serviceAccountName": null } });
    assert_eq!(name(bare.clone()), "web-5d4f", "what its name begins with");
    let mut with_name = bare;
    with_name["metadata"] = json!({ "name": "job" });
    assert_eq!(name(with_name), "job");
    let odd = named(owned("StatefulSet", "db.v1"))
        .unwrap_err()
        .to_string();
    assert!(odd.contains("\"db.v1\", is not a service name"), "{odd}");
}

#[test]
fn upstreams_that_these_servers_do_not_support() {
    for (text, what) in [
        ("a.svc.east.peer:1", "a cluster peer (a of east)"),
        ("a.svc.east.peer:1", "set global.peering.enabled"),
        ("a:1:dc2", "set global.federation.enabled"),
        ("a.svc.dc2.dc:1", "another datacenter (a in dc2)"),
        ("a:1,b:1", "two upstreams on port 1"),
        ("a:nope", "no container"),
    ] {
        refused(
            &plain(),
            &pod(&[("connect-service-upstreams", text)]),
            &[what],
        );
    }
    for text in ["a:1:dc1", "prepared_query:a:1"] {
        let upstream = pod(&[("connect-service-upstreams", text)]);
        assert!(admit_pod(&plain(), &upstream).is_ok(), "{text}");
    }
    let mut federated = plain();
    federated.config = config(r#"{"federation": {"enabled": true}}"#);
    for text in [
        "a:1:dc2",
        "a:1:dc2?mesh_gateway_mode=local",
        "a.svc.dc2.dc:1",
    ] {
        let upstream = pod(&[("connect-service-upstreams", text)]);
        assert!(admit_pod(&federated, &upstream).is_ok(), "{text}");
    }
    let peer = pod(&[("connect-service-upstreams", "a.svc.east.peer:1")]);
    refused(&federated, &peer, &["a cluster peer"]);
    let mut peered = plain();
    peered.config = config(r#"{"peering": {"enabled": true}}"#);
    assert!(admit_pod(&peered, &peer).is_ok());
    refused(
        &peered,
        &pod(&[("connect-service-upstreams", "a:1:dc2")]),
        &["another datacenter"],
    );
}

#[test]
fn probes_and_hooks_that_cannot_reach_the_application() {
    let with =
        |container: Value| changed(pod(&[]), json!({ "spec": { "containers": [container] } }));
    let https = json!({ "name": "app", "readinessProbe": {
        "httpGet": { "port": 8443, "scheme": "HTTPS" } } });
    refused(
        &plain(),
        &with(https),
        &["uses HTTPS", "8443", "exclude-inbound-ports"],
    );
    let hook = json!({ "name": "app", "lifecycle": { "postStart": {
        "httpGet": { "port": 80 } } } });
    refused(&plain(), &with(hook), &["postStart", "is an HTTP hook"]);
    let unknown = json!({ "name": "app", "livenessProbe": { "httpGet": { "port": "nope" } } });
    refused(&plain(), &with(unknown), &["livenessProbe", "\"nope\""]);
    let port = json!({ "name": "app", "livenessProbe": { "tcpSocket": { "port": -3 } } });
    refused(&plain(), &with(port), &["port -3"]);
}

#[test]
fn pods_that_are_not_injected() {
    let asks = pod(&[]);
    let left =
        |installation: &legate_kubernetes::inject::Installation, namespace: &str, pod: &Value| {
            let typed = serde_json::from_value(pod.clone()).unwrap();
            let request = legate_kubernetes::inject::Request {
                namespace,
                namespace_labels: &BTreeMap::new(),
                services: &services(),
                pod: &typed,
            };
            let admitted = legate_kubernetes::inject::admit(installation, &request).unwrap();
            assert_eq!(admitted.patch, None);
            admitted.warnings
        };
    let said = |warnings: Vec<String>, part: &str| {
        assert!(
            warnings.len() == 1 && warnings[0].contains(part),
            "{warnings:?}"
        );
    };
    said(left(&plain(), "kube-system", &asks), "kube-system");
    said(left(&plain(), "kube-public", &asks), "kube-public");
    said(left(&plain(), "mesh", &asks), "the mesh itself runs there");
    let mut denied = plain();
    denied.config = config(r#"{"k8sDenyNamespaces": ["shop"]}"#);
    said(left(&denied, "shop", &asks), "k8sDenyNamespaces");
    let mut others = plain();
    others.config = config(r#"{"k8sAllowNamespaces": ["stock"]}"#);
    said(left(&others, "shop", &asks), "k8sAllowNamespaces");
    let managed = json!({ "metadata": { "labels": {
        "consul.hashicorp.com/connect-inject-managed-by": "consul-k8s-endpoints-controller" } } });
    said(
        left(&plain(), "shop", &changed(asks.clone(), managed)),
        "another integration",
    );
    // Pods that did not request injection get no warning.
    let quiet = |pod: &Value, installation: &legate_kubernetes::inject::Installation| {
        assert!(left(installation, "shop", pod).is_empty());
    };
    let silent = changed(asks.clone(), json!({ "metadata": { "annotations": null } }));
    quiet(&silent, &plain());
    quiet(&pod(&[("connect-inject-status", "injected")]), &plain());
    let mut by_default = plain();
    by_default.config = config(r#"{"default": true}"#);
    quiet(
        &changed(silent, json!({ "spec": { "hostNetwork": true } })),
        &by_default,
    );
    let no = json!({ "metadata": { "annotations": { "consul.hashicorp.com/connect-inject": "false" } } });
    quiet(&changed(asks, no), &by_default);
}

fn port() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-2_i64..70_000).prop_map(Value::from),
        "[a-z]{0,8}|http".prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Every pod is admitted with a patch that applies, or refused with one sentence.
    #[test]
    fn garbage_in_annotations_has_a_clear_answer(
        values in proptest::collection::vec(
            (0..KEYS.len(), "\\PC{0,30}|true|false|[0-9]{1,6}|[a-z0-9:.,?=&/_-]{0,40}"), 0..6,
        ),
        port in port(),
    ) {
        let values: Vec<(&str, &str)> = values
            .iter()
            .map(|(key, value)| (KEYS[*key].name, value.as_str()))
            .collect();
        let probe = json!({ "spec": { "containers": [{
            "name": "app", "fieldOfLater": { "a": 1 },
            "ports": [{ "name": "http", "containerPort": 8080 }],
            "livenessProbe": { "httpGet": { "port": port } },
        }] } });
        let pod = changed(pod(&values), probe);
        for installation in [plain(), installation()] {
            match admit_pod(&installation, &pod) {
                Ok(admitted) => {
                    prop_assert!(admitted.warnings.len() < 20);
                    if let Some(patch) = admitted.patch {
                        let mut result = pod.clone();
                        prop_assert!(json_patch::patch(&mut result, &patch).is_ok());
                    }
                }
                Err(refusal) => {
                    let text = refusal.to_string();
                    prop_assert!(!text.is_empty() && text.len() < 2_000, "{}", text);
                }
            }
        }
    }
}

#[test]
fn another_tenant_than_that_of_the_installation_is_refused() {
    let plain = plain();
    for (text, parts) in [
        (
            "db.stock:1",
            ["the namespace stock", "enableConsulNamespaces"],
        ),
        (
            "db.svc.stock.ns.east.ap:1",
            ["the partition east", "adminPartitions.enabled"],
        ),
    ] {
        let pod = pod(&[("connect-service-upstreams", text)]);
        refused(&plain, &pod, &parts);
    }
    let asks = |namespace: &str| pod(&[("consul-namespace", namespace)]);
    assert!(admit_pod(&plain, &asks("default")).is_ok());
    refused(&plain, &asks("shop"), &["\"shop\"", "in \"default\""]);
    let mut mirrored = plain;
    mirrored.servers.http.tenancy.mirror_namespaces = Some(String::new());
    assert!(admit_pod(&mirrored, &asks("shop")).is_ok());
    refused(&mirrored, &asks("stock"), &["\"stock\"", "in \"shop\""]);
}
