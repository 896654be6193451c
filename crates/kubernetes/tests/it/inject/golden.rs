//! One golden patch for each row of the injection table. `INSTA_UPDATE=always` updates them.

use std::collections::BTreeMap;

use legate_kubernetes::inject::{Cluster, Installation};
use serde_json::{Value, json};

use super::support::{
    admit_pod, admit_with, changed, config, injected, installation, options, plain, pod, services,
};

fn golden(name: &str, installation: &Installation, pod: &Value) {
    let admitted = admit_pod(installation, pod).unwrap();
    check(name, installation, pod, &admitted);
}

fn check(
    name: &str,
    installation: &Installation,
    pod: &Value,
    admitted: &legate_kubernetes::inject::Admitted,
) {
    injected(installation, pod, admitted);
    let document = json!({ "warnings": admitted.warnings, "patch": admitted.patch });
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../golden/inject");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, format!("{document:#}")));
}

#[test]
fn with_the_defaults_of_the_chart() {
    golden("defaults", &installation(), &pod(&[]));
}

#[test]
fn without_access_control_and_tls() {
    golden("plain", &plain(), &pod(&[]));
}

#[test]
fn classic_where_the_cluster_is_older_than_1_29_or_by_annotation() {
    let mut old = installation();
    old.cluster = Cluster::of_version("1", "28");
    let init = json!({ "spec": { "initContainers": [{ "name": "migrate", "image": "web:1" }] } });
    golden("classic", &old, &changed(pod(&[]), init));
    golden(
        "classic-by-annotation",
        &installation(),
        &pod(&[("enable-consul-dataplane-as-sidecar", "false")]),
    );
    let mut by_value = installation();
    by_value.config = config(r#"{"dataplaneAsSidecarInitContainer": {"defaultEnabled": false}}"#);
    let native = pod(&[
        ("enable-consul-dataplane-as-sidecar", "true"),
        ("sidecar-initial-probe-check-delay-seconds", "3"),
        ("sidecar-probe-period-seconds", "2"),
        ("sidecar-probe-failure-threshold", "7"),
        ("sidecar-probe-check-timeout-seconds", "4"),
    ]);
    golden("native-by-annotation", &by_value, &native);
}

#[test]
fn restarts_of_a_sidecar_that_is_not_ready() {
    let seconds = [
        ("sidecar-proxy-startup-failure-seconds", "40"),
        ("sidecar-proxy-liveness-failure-seconds", "20"),
    ];
    golden("failure-seconds", &installation(), &pod(&seconds));
    let classic = [("enable-consul-dataplane-as-sidecar", "false")];
    let classic = [&seconds[..], &classic].concat();
    golden("failure-seconds-classic", &installation(), &pod(&classic));
    let zero = seconds.map(|(key, _)| (key, "0"));
    let zero = admit_pod(&installation(), &pod(&zero)).unwrap();
    let without = admit_pod(&installation(), &pod(&[])).unwrap();
    let sidecar = |admitted: legate_kubernetes::inject::Admitted| {
        let mut result = pod(&[]);
        json_patch::patch(&mut result, &admitted.patch.unwrap()).unwrap();
        result["spec"].clone()
    };
    assert_eq!(sidecar(zero), sidecar(without), "0 is the default");
}

#[test]
fn volumes_and_files_of_the_sidecar() {
    let volumes = r#"[{"name": "certs", "secret": {"secretName": "certs"}, "later": 1}]"#;
    let mounts = r#"[{"name": "certs", "mountPath": "/certs", "readOnly": true}]"#;
    let annotations = [
        ("consul-sidecar-user-volume", volumes),
        ("consul-sidecar-user-volume-mount", mounts),
        ("enable-metrics", "true"),
        ("prometheus-ca-file", "/certs/ca.pem"),
        ("prometheus-cert-file", "/certs/cert.pem"),
        ("prometheus-key-file", "/certs/key.pem"),
    ];
    golden("prometheus-tls", &plain(), &pod(&annotations));
    let mut by_path = annotations;
    by_path[2] = ("enable-metrics", "false");
    by_path[3] = ("prometheus-ca-path", "/certs/ca");
    golden("prometheus-tls-without-metrics", &plain(), &pod(&by_path));
    by_path[2] = ("enable-metrics", "true");
    golden("prometheus-tls-by-path", &plain(), &pod(&by_path));
}

#[test]
fn files_of_the_mesh_for_containers() {
    let shared = [("connect-inject-mount-volume", "app, other")];
    golden("mount-volume", &installation(), &pod(&shared));
    let classic = [shared[0], ("enable-consul-dataplane-as-sidecar", "false")];
    golden("mount-volume-classic", &plain(), &pod(&classic));
}

#[test]
fn native_before_the_pods_own_init_containers() {
    let init = json!({ "spec": { "initContainers": [
        { "name": "migrate", "image": "web:1" },
        { "name": "cache", "image": "cache:1", "restartPolicy": "Always",
          "readinessProbe": { "httpGet": { "path": "/ok", "port": 7000 } } },
    ] } });
    golden(
        "native-init-containers",
        &installation(),
        &changed(pod(&[]), init),
    );
}

#[test]
fn every_container_gets_the_upstreams_variables() {
    let env = json!({ "spec": {
        "containers": [{
            "name": "app", "image": "web:1", "fieldOfLater": { "a": 1 },
            "ports": [{ "name": "http", "containerPort": 8080 }, { "name": "db", "containerPort": 5432 }],
            "env": [{ "name": "CACHE_CONNECT_SERVICE_PORT", "value": "1" }],
        }],
        "initContainers": [{ "name": "migrate", "image": "web:1" }],
    } });
    let text = "order-db:db, cache:6379:dc1?local_bind_address=127.0.0.2";
    let pod = changed(pod(&[("connect-service-upstreams", text)]), env.clone());
    golden("upstreams", &plain(), &pod);
    let mut external = plain();
    external.config = config(r#"{"externalServers": {"enabled": true}}"#);
    let text = "a.svc.east.peer:1,b:2:dc2,prepared_query:c:3";
    let pod = changed(
        super::support::pod(&[("connect-service-upstreams", text)]),
        env,
    );
    golden("upstreams-of-consul", &external, &pod);
}

#[test]
fn namespaces_and_partitions_of_the_mesh() {
    let upstreams = [(
        "connect-service-upstreams",
        "db:1,db.stock:2,db.svc.stock.ns.west.ap:main",
    )];
    let ports = json!({ "spec": { "containers": [{
        "name": "app", "image": "web:1", "fieldOfLater": { "a": 1 },
        "ports": [{ "name": "main", "containerPort": 3 }],
    }] } });
    let mut one = installation();
    one.servers.http.tenancy = options(&["--partition=east", "--destination-namespace=apps"])
        .servers
        .http
        .tenancy;
    golden("partition", &one, &changed(pod(&upstreams), ports));
    let mut mirrored = plain();
    mirrored.servers.http.tenancy.mirror_namespaces = Some("k8s-".to_owned());
    // An annotation with the value that applies anyway is accepted.
    let said = pod(&[("consul-namespace", "k8s-shop")]);
    golden("mirrored-namespaces", &mirrored, &said);
}

#[test]
fn lifecycle() {
    golden(
        "lifecycle-off",
        &plain(),
        &pod(&[
            ("enable-sidecar-proxy-lifecycle", "false"),
            ("enable-consul-dataplane-as-sidecar", "false"),
        ]),
    );
    let annotated = pod(&[
        (
            "enable-sidecar-proxy-lifecycle-shutdown-drain-listeners",
            "false",
        ),
        (
            "sidecar-proxy-lifecycle-shutdown-grace-period-seconds",
            "30",
        ),
        ("sidecar-proxy-lifecycle-startup-grace-period-seconds", "9"),
        ("sidecar-proxy-lifecycle-graceful-port", "20601"),
        ("sidecar-proxy-lifecycle-graceful-shutdown-path", "/bye"),
        ("sidecar-proxy-lifecycle-graceful-startup-path", "/hello"),
    ]);
    golden("lifecycle-annotations", &plain(), &annotated);
    // The application's own hooks stay, and a pod with a short grace period gets none.
    let own = json!({ "spec": { "containers": [
        { "name": "app", "image": "web:1", "fieldOfLater": { "a": 1 },
          "lifecycle": { "preStop": { "exec": { "command": ["true"] } } } },
        { "name": "helper", "image": "web:1",
          "lifecycle": { "postStart": { "exec": { "command": ["true"] } } } },
    ] } });
    golden("lifecycle-own-hooks", &plain(), &changed(pod(&[]), own));
    let short = json!({ "spec": { "terminationGracePeriodSeconds": 0 } });
    golden("lifecycle-short-grace", &plain(), &changed(pod(&[]), short));
    let mut old = plain();
    old.cluster = Cluster::of_version("1", "29");
    golden("lifecycle-without-sleep-hooks", &old, &pod(&[]));
}

#[test]
fn probes() {
    let containers = json!({ "spec": { "containers": [
        { "name": "app", "image": "web:1", "fieldOfLater": { "a": 1 },
          "ports": [{ "name": "http", "containerPort": 8080 }],
          "livenessProbe": { "httpGet": { "path": "/live?full=1", "port": "http" } },
          "readinessProbe": { "tcpSocket": { "port": 8080 }, "periodSeconds": 3 },
          "startupProbe": { "httpGet": { "port": 8080 } } },
        { "name": "rpc", "image": "web:1",
          "livenessProbe": { "exec": { "command": ["true"] } },
          "readinessProbe": { "grpc": { "port": 9000, "service": "x" } },
          "startupProbe": { "httpGet": { "path": "/", "port": 80, "host": "example.org" } } },
        { "name": "outside", "image": "web:1",
          "livenessProbe": { "httpGet": { "path": "/live", "port": 7001, "scheme": "HTTPS" } },
          "readinessProbe": { "tcpSocket": { "port": 7001 } },
          "lifecycle": { "preStop": { "httpGet": { "path": "/bye", "port": 7001 } } } },
    ] } });
    let with = |annotations: &[(&str, &str)]| changed(pod(annotations), containers.clone());
    let excluded = ("transparent-proxy-exclude-inbound-ports", "7001");
    golden("probes", &plain(), &with(&[excluded]));
    let left = ("transparent-proxy-overwrite-probes", "false");
    golden("probes-left", &plain(), &with(&[left]));
    golden(
        "probes-without-redirection",
        &plain(),
        &with(&[("transparent-proxy", "false")]),
    );
}

#[test]
fn the_built_in_proxy() {
    golden(
        "built-in-proxy",
        &plain(),
        &pod(&[("sidecar-proxy-kind", "builtin")]),
    );
}

#[test]
fn redirection() {
    let annotated = pod(&[
        ("transparent-proxy-exclude-inbound-ports", "9000, 9001"),
        ("transparent-proxy-exclude-outbound-ports", "25"),
        (
            "transparent-proxy-exclude-outbound-cidrs",
            "10.0.0.0/8,fd00::1",
        ),
        ("transparent-proxy-exclude-uids", "1000"),
        ("use-proxy-health-check", "true"),
        ("enable-metrics", "true"),
    ]);
    golden("redirection", &plain(), &annotated);
    golden(
        "redirection-off",
        &plain(),
        &pod(&[("transparent-proxy", "false")]),
    );
    let labels =
        |key: &str| BTreeMap::from([(format!("consul.hashicorp.com/{key}"), "false".to_owned())]);
    for key in ["transparent-proxy", "consul-dns"] {
        let pod = pod(&[]);
        let admitted = admit_with(&plain(), &pod, &services(), &labels(key)).unwrap();
        check(&format!("namespace-label-{key}"), &plain(), &pod, &admitted);
    }
    let pod = pod(&[("transparent-proxy", "true")]);
    let admitted = admit_with(&plain(), &pod, &services(), &labels("transparent-proxy")).unwrap();
    check("annotation-over-namespace-label", &plain(), &pod, &admitted);
    golden(
        "dns-off",
        &plain(),
        &super::support::pod(&[("consul-dns", "false")]),
    );
}

#[test]
fn metrics() {
    golden("metrics", &plain(), &pod(&[("enable-metrics", "true")]));
    let merged = pod(&[
        ("enable-metrics", "true"),
        ("enable-metrics-merging", "true"),
        ("merged-metrics-port", "20900"),
        ("prometheus-scrape-port", "21200"),
        ("prometheus-scrape-path", "/all"),
        ("service-metrics-port", "admin"),
        ("service-metrics-path", "/own"),
    ]);
    golden("metrics-merged", &plain(), &merged);
    let mut by_value = plain();
    by_value.config =
        config(r#"{"metrics": {"defaultEnabled": true, "defaultEnableMerging": true}}"#);
    golden("metrics-by-value", &by_value, &pod(&[]));
}

#[test]
fn resources_and_concurrency() {
    let mut by_value = plain();
    by_value.config = config(
        r#"{"sidecarProxy": {"concurrency": 3, "resources": {
            "requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": null, "memory": "200Mi"}}}}"#,
    );
    golden("resources-by-value", &by_value, &pod(&[]));
    let annotated = pod(&[
        ("sidecar-proxy-cpu-limit", "1"),
        ("sidecar-proxy-cpu-request", "50m"),
        ("sidecar-proxy-memory-limit", "64Mi"),
        ("consul-envoy-proxy-concurrency", "1"),
    ]);
    golden("resources-by-annotation", &by_value, &annotated);
    golden(
        "envoy-extra-args",
        &plain(),
        &pod(&[(
            "envoy-extra-args",
            "--log-level debug --concurrency=4 --component-log-level upstream:trace --disable-hot-restart",
        )]),
    );
}

#[test]
fn servers() {
    let mut external = installation();
    external.servers.http.tls_server_name = Some("server.dc1.consul".to_owned());
    external.servers.managed_ca = false;
    external.servers.skip_server_watch = true;
    external.servers.server_grpc_port = 8503;
    external.ca_certs = None;
    external.sidecars.image_pull_policy = Some("Never".to_owned());
    external.log_level = "debug".to_owned();
    external.log_json = true;
    golden("external-servers", &external, &pod(&[]));
}

#[test]
fn the_service_and_its_port() {
    let ports = pod(&[
        ("connect-service-port", "http,admin"),
        ("connect-service-default-port", "admin"),
    ]);
    golden("service-ports", &plain(), &ports);
    let catalog = pod(&[
        ("connect-service", "shop-front"),
        ("service-tags", "a,$POD_NAME"),
        ("service-meta-version", "2"),
        ("proxy-config-map", r#"{"xds_fetch_timeout_ms": 1}"#),
        ("kubernetes-service", "web"),
        ("conect-service-port", "1"),
    ]);
    golden("service-annotations", &plain(), &catalog);
    // A pod without ports, labels and annotations, injected by default.
    let mut by_default = plain();
    by_default.config = config(r#"{"default": true}"#);
    let bare = json!({
        "metadata": { "name": "job", "labels": { "app": "web" }, "annotations": null },
        "spec": { "containers": [{ "name": "app", "image": "web:1", "fieldOfLater": { "a": 1 } }],
                  "initContainers": null, "volumes": [] },
    });
    golden("bare", &by_default, &bare);
}
