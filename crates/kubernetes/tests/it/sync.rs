//! One golden registration for each row of the registration table. `INSTA_UPDATE=always` updates
//! them.

use k8s_openapi::api::core::v1 as k8s;
use legate_kubernetes::sync::catalog::Catalog;
use legate_kubernetes::sync::difference::{Known, plan};
use legate_kubernetes::sync::facts::{Node, Pod, Service};
use legate_kubernetes::sync::registration::Settings;
use legate_kubernetes::sync::wanted::{Wanted, wanted};
use legate_kubernetes::tenancy::{TenancyFlags, Tenants};
use serde_json::{Value, json};

fn settings() -> Settings {
    Settings {
        cluster: "7f0e1b1e-0000-4000-8000-000000000001".to_owned(),
        node_meta: [("team".to_owned(), "a".to_owned())].into(),
        tenants: Tenants::default(),
        installation: "mesh/legate".to_owned(),
        gateway_api: false,
    }
}

/// A pod as the API server returns it, with these annotations.
fn pod(annotations: &[(&str, &str)]) -> Value {
    let annotations = annotations
        .iter()
        .map(|(key, value)| (format!("consul.hashicorp.com/{key}"), Value::from(*value)));
    json!({
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"},
            "annotations": annotations.collect::<serde_json::Map<_, _>>(),
        },
        "spec": {"nodeName": "n1", "containers": [
            {"name": "app", "ports": [{"name": "http", "containerPort": 8080}]},
        ]},
        "status": {
            "phase": "Running", "podIP": "10.244.0.5", "hostIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// An injected pod with these additional annotations.
fn meshed(annotations: &[(&str, &str)]) -> Value {
    let own = [
        ("connect-inject-status", "injected"),
        ("connect-service", "web"),
        ("connect-service-port", "8080"),
    ];
    let mut all: Vec<_> = own.to_vec();
    all.extend_from_slice(annotations);
    pod(&all)
}

fn service(change: Value) -> Value {
    let mut service = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.7", "type": "ClusterIP",
            "ports": [{"port": 9, "targetPort": 9}, {"port": 80, "targetPort": "http"}]},
    });
    merge(&mut service, change);
    service
}

fn merge(object: &mut Value, change: Value) {
    match change {
        Value::Object(fields) if object.is_object() => {
            for (key, value) in fields {
                merge(&mut object[key], value);
            }
        }
        other => *object = other,
    }
}

fn facts(pod: Value) -> Pod {
    Pod::of(serde_json::from_value::<k8s::Pod>(pod).unwrap())
}

fn made(pod: Value, services: &[Value]) -> (Pod, Wanted) {
    made_with(&settings(), pod, services)
}

fn made_with(settings: &Settings, pod: Value, services: &[Value]) -> (Pod, Wanted) {
    let services: Vec<Service> = services
        .iter()
        .map(|service| Service::of(serde_json::from_value(service.clone()).unwrap()))
        .collect();
    let node = Node {
        name: "n1".to_owned(),
        region: "r1".to_owned(),
        zone: "z1".to_owned(),
    };
    let pod = facts(pod);
    let wanted = wanted(&pod, &services, Some(&node), settings);
    (pod, wanted)
}

/// Writes the bodies of the calls for a pod that is not in the catalog yet.
fn golden(name: &str, pod: Value, services: &[Value]) {
    golden_with(&settings(), name, pod, services);
}

fn golden_with(settings: &Settings, name: &str, pod: Value, services: &[Value]) {
    let (pod, wanted) = made_with(settings, pod, services);
    let plan = plan(
        &pod.key.clone(),
        Some((&pod, wanted)),
        &Catalog::default(),
        true,
        &Known::default(),
    );
    let calls: Vec<Value> = plan
        .calls
        .iter()
        .map(|call| match call {
            legate_kubernetes::sync::difference::Call::Register(wanted) => wanted.body.clone(),
            other => format!("{other:?}").into(),
        })
        .collect();
    let reason = plan.reason.map(|reason| reason.message);
    let document = json!({"calls": calls, "reason": reason});
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../golden/sync");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, format!("{document:#}")));
}

#[test]
fn a_service_and_its_sidecar() {
    golden("plain", meshed(&[]), &[service(json!({}))]);
    let mut unready = meshed(&[]);
    unready["status"]["conditions"][0]["status"] = "False".into();
    golden("not-ready", unready, &[service(json!({}))]);
    let mut ending = meshed(&[]);
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    golden("terminating", ending, &[service(json!({}))]);
}

#[test]
fn without_a_service_of_kubernetes_the_annotation_is_enough() {
    golden("no-service", meshed(&[("connect-service-port", "")]), &[]);
}

#[test]
fn tags_meta_and_names_of_ports() {
    golden(
        "tags-and-meta",
        meshed(&[
            ("service-tags", "v1, pod-$POD_NAME,a\\,b"),
            ("service-meta-version", "v1"),
            ("service-meta-name", "is $POD_NAME"),
            ("service-meta-pod-uid", "forged"),
            ("connect-service-port", "http"),
        ]),
        &[service(json!({}))],
    );
}

#[test]
fn transparent_proxy_with_virtual_address_and_probes() {
    let probes = "[{\"ListenerPort\":20300,\"LocalPathPort\":8080,\"Path\":\"/healthz\",\"Protocol\":\"http\"}]";
    let annotations = [
        ("transparent-proxy-status", "enabled"),
        ("expose-paths", probes),
    ];
    golden(
        "transparent-proxy",
        meshed(&annotations),
        &[service(json!({}))],
    );
    let headless = service(json!({"spec": {"clusterIP": "None"}}));
    golden(
        "transparent-proxy-headless",
        meshed(&annotations),
        &[headless],
    );
    let other_port = service(json!({"spec": {"ports": [{"port": 80, "targetPort": 81}]}}));
    golden(
        "transparent-proxy-other-port",
        meshed(&annotations),
        &[other_port],
    );
}

#[test]
fn pods_of_another_installation_in_the_cluster_are_left_alone() {
    for (annotation, kind) in [("connect-service", "web"), ("gateway-kind", "mesh-gateway")] {
        let of = |mark| meshed(&[(annotation, kind), ("connect-inject-installation", mark)]);
        let (_, other) = made(of("west/legate"), &[service(json!({}))]);
        assert_eq!(other, Wanted::Nothing, "{kind}");
        let (_, own) = made(of("mesh/legate"), &[service(json!({}))]);
        assert_ne!(own, Wanted::Nothing, "{kind}");
    }
}

#[test]
fn upstreams_in_all_their_forms() {
    let upstreams = "api:1234, db:1235:dc2, other.svc:1236, far.svc.east.peer:1237, \
                     prepared_query:nearest:1238, opt:1239:local_bind_address=127.0.0.9&mesh_gateway_mode=local";
    let pod = meshed(&[("connect-service-upstreams", upstreams)]);
    golden("upstreams", pod, &[service(json!({}))]);
}

#[test]
fn namespaces_and_partitions_of_the_mesh() {
    let flags = TenancyFlags {
        mirror_namespaces: Some("k8s-".to_owned()),
        ..TenancyFlags::default()
    };
    let mirrored = Settings {
        tenants: Tenants::of(&flags),
        ..settings()
    };
    let annotations = [
        ("transparent-proxy-status", "enabled"),
        (
            "connect-service-upstreams",
            "db:1,db.stock:2,db.stock.east:3",
        ),
        // The chart determines it, not users who can annotate pods.
        ("consul-namespace", "elsewhere"),
    ];
    let services = [service(json!({}))];
    golden_with(
        &mirrored,
        "mirrored-namespaces",
        meshed(&annotations),
        &services,
    );
    let of = |kind: &str, annotations: &[(&str, &str)]| {
        let pod = gateway(kind, &[&WAN[..], annotations].concat());
        match made_with(&mirrored, pod, &services).1 {
            Wanted::Instances { registrations, .. } => registrations[0].id.namespace.clone(),
            other => format!("{other:?}"),
        }
    };
    let own = [("gateway-namespace", "Edge")];
    assert_eq!(of("mesh-gateway", &own), "default");
    assert_eq!(of("ingress-gateway", &own), "edge", "as servers write it");
    let wrong = of("ingress-gateway", &[("gateway-namespace", "*")]);
    assert!(wrong.contains("is not a valid namespace"), "{wrong}");
    assert_eq!(of("terminating-gateway", &[]), "default");
}

#[test]
fn opaque_configuration_and_metrics() {
    golden(
        "proxy-config",
        meshed(&[
            (
                "proxy-config-map",
                "{\"local_connect_timeout_ms\": 1000, \"x\": {\"y\": 0}}",
            ),
            ("prometheus-scrape-port", "20200"),
        ]),
        &[service(json!({}))],
    );
}

#[test]
fn selection_of_the_kubernetes_service() {
    let named = |name: &str| service(json!({"metadata": {"name": name}}));
    let ignored = |name: &str| {
        service(json!({"metadata": {"name": name,
            "labels": {"consul.hashicorp.com/service-ignore": "true"}}}))
    };
    let of = |pod: Value, services: &[Value]| match made(pod, services).1 {
        Wanted::Instances {
            registrations,
            remark,
            ..
        } => {
            let meta = &registrations[0].body["Service"]["Meta"]["k8s-service-name"];
            let remark = remark.map(|remark| remark.reason);
            (meta.as_str().unwrap().to_owned(), remark)
        }
        other => (format!("{other:?}"), None),
    };
    let some = |name: &str| (name.to_owned(), None);
    assert_eq!(of(meshed(&[]), &[named("a"), named("web")]), some("web"));
    assert_eq!(of(meshed(&[]), &[ignored("web"), named("b")]), some("b"));
    assert_eq!(of(meshed(&[]), &[ignored("web")]), some("Nothing"));
    let by_annotation = meshed(&[("kubernetes-service", "b")]);
    assert_eq!(
        of(by_annotation.clone(), &[named("web"), named("b")]),
        some("b")
    );
    let several = of(meshed(&[]), &[named("c"), named("b")]);
    assert_eq!(several, ("b".to_owned(), Some("SeveralServices")));
    let missing = of(by_annotation, &[named("web")]).0;
    assert!(missing.contains("No Service \\\"b\\\""), "{missing}");
    let elsewhere = service(json!({"metadata": {"namespace": "other"}}));
    assert_eq!(of(meshed(&[]), &[elsewhere]), some("web"));
    let selects_none = service(json!({"metadata": {"name": "x"}, "spec": {"selector": null}}));
    assert_eq!(of(meshed(&[]), &[selects_none]), some("web"));
}

fn with_gateway_api() -> Settings {
    Settings {
        gateway_api: true,
        ..settings()
    }
}

#[test]
fn sidecars_lead_to_the_ports_of_all_services_with_the_gateway_api() {
    let ports = |settings: &Settings, pod: Value, services: &[Value]| {
        let Wanted::Instances { registrations, .. } = made_with(settings, pod, services).1 else {
            panic!("it is registered");
        };
        registrations[1].body["Service"]["Proxy"]["Config"]["legate_ports"].clone()
    };
    let with = |name: &str, ports: Value| {
        service(json!({"metadata": {"name": name}, "spec": {"ports": ports}}))
    };
    let services = [
        with(
            "web",
            json!([{"port": 80, "targetPort": "http"}, {"port": 9090}]),
        ),
        with(
            "all",
            json!([
                {"port": 1, "targetPort": 7070, "protocol": "TCP"},
                {"port": 2, "targetPort": "missing"},
                {"port": 3, "targetPort": 20000},
                {"port": 53, "protocol": "UDP"},
                {"port": 9090},
            ]),
        ),
        service(json!({
            "metadata": {"name": "x", "labels": {"consul.hashicorp.com/service-ignore": "true"}},
            "spec": {"ports": [{"port": 1234}]},
        })),
        service(json!({"metadata": {"name": "y"}, "spec": {
            "selector": {"app": "other"}, "ports": [{"port": 1234}],
        }})),
    ];
    let on = with_gateway_api();
    assert_eq!(ports(&on, meshed(&[]), &services), json!([7070, 9090]));
    assert_eq!(ports(&settings(), meshed(&[]), &services), Value::Null);
    let one = [with("web", json!([{"port": 80, "targetPort": "http"}]))];
    assert_eq!(ports(&on, meshed(&[]), &one), Value::Null);
    let many: Vec<_> = (1..100).map(|port| json!({"port": port})).collect();
    let many = ports(&on, meshed(&[]), &[with("web", json!(many))]);
    assert_eq!(many.as_array().map(Vec::len), Some(64));
}

#[test]
fn a_pod_without_a_port_has_that_of_a_service_with_the_gateway_api() {
    let port = |settings: &Settings, services: &[Value]| {
        let pod = meshed(&[("connect-service-port", "")]);
        let Wanted::Instances { registrations, .. } = made_with(settings, pod, services).1 else {
            panic!("it is registered");
        };
        let port = registrations[0].body["Service"]["Port"].as_u64();
        let proxy = &registrations[1].body["Service"]["Proxy"];
        assert_eq!(proxy["LocalServicePort"].as_u64().or(Some(0)), port);
        port.unwrap()
    };
    let with = |name: &str, ports: Value| {
        service(json!({"metadata": {"name": name}, "spec": {"ports": ports}}))
    };
    let udp = json!({"port": 53, "protocol": "UDP"});
    let own = with("web", json!([udp, {"port": 80, "targetPort": "http"}]));
    let first = with("all", json!([{"port": 7070}]));
    let on = with_gateway_api();
    assert_eq!(
        port(&on, &[first.clone(), own.clone()]),
        8080,
        "that with its name"
    );
    assert_eq!(
        port(&on, &[with("b", json!([{"port": 1}])), first]),
        7070,
        "the first"
    );
    assert_eq!(
        port(
            &on,
            &[with("b", json!([{"port": 1, "targetPort": "none"}]))]
        ),
        0
    );
    assert_eq!(port(&settings(), &[own]), 0);
}

#[test]
fn a_pod_that_is_none_of_its_services_has_no_virtual_ip_with_the_gateway_api() {
    let named = |name: &str| service(json!({"metadata": {"name": name}}));
    let of = |settings: &Settings, names: &[&str]| {
        let pod = meshed(&[("transparent-proxy-status", "enabled")]);
        let services: Vec<_> = names.iter().map(|name| named(name)).collect();
        let Wanted::Instances {
            registrations,
            virtual_ip,
            remark,
        } = made_with(settings, pod, &services).1
        else {
            panic!("it is registered");
        };
        let name = registrations[0].body["Service"]["Service"].clone();
        assert_eq!(name, "web");
        (virtual_ip.is_some(), remark.is_some())
    };
    let on = with_gateway_api();
    assert_eq!(of(&on, &["a", "b"]), (false, false));
    assert_eq!(of(&on, &["a", "web"]), (true, false));
    assert_eq!(of(&on, &["a"]), (true, false));
    assert_eq!(of(&settings(), &["a", "b"]), (true, true));
}

fn gateway(kind: &str, annotations: &[(&str, &str)]) -> Value {
    let mut all = vec![
        ("gateway-kind", kind),
        ("gateway-consul-service-name", kind),
        ("connect-inject", "false"),
    ];
    all.extend_from_slice(annotations);
    pod(&all)
}

const WAN: [(&str, &str); 2] = [
    ("mesh-gateway-container-port", "8443"),
    ("gateway-wan-port", "443"),
];

#[test]
fn gateways() {
    let cluster_ip = [service(json!({}))];
    golden("mesh-gateway", gateway("mesh-gateway", &WAN), &cluster_ip);
    let metrics = [("prometheus-scrape-port", "20200")];
    golden(
        "terminating-gateway",
        gateway("terminating-gateway", &metrics),
        &cluster_ip,
    );
    let port = [("gateway-wan-port", "8080")];
    golden(
        "ingress-gateway",
        gateway("ingress-gateway", &port),
        &cluster_ip,
    );
    let mut pod = gateway("ingress-gateway", &port);
    pod["status"]["podIP"] = json!("fd00::5");
    let Wanted::Instances { registrations, .. } = made(pod, &cluster_ip).1 else {
        panic!("it is registered");
    };
    let config = &registrations[0].body["Service"]["Proxy"]["Config"];
    let every = &config["envoy_gateway_bind_addresses"]["all-interfaces"];
    assert_eq!(every["address"], "::");
    let mut both = gateway("api-gateway", &[]);
    let ips = [both["status"]["podIP"].clone(), json!("fd00::5")];
    both["status"]["podIPs"] = ips.iter().map(|ip| json!({"ip": ip})).collect();
    golden("api-gateway", both, &cluster_ip);
}

#[test]
fn the_outer_address_of_a_mesh_gateway() {
    let wan = |source: &str, more: &[(&str, &str)], service: Value| {
        let mut annotations = WAN.to_vec();
        annotations.push(("gateway-wan-address-source", source));
        annotations.extend_from_slice(more);
        match made(gateway("mesh-gateway", &annotations), &[service]).1 {
            Wanted::Instances { registrations, .. } => {
                registrations[0].body["Service"]["TaggedAddresses"]["wan"]["Address"].clone()
            }
            Wanted::Wrong(reason) => reason.message.into(),
            other => format!("{other:?}").into(),
        }
    };
    let of_type = |kind: &str| service(json!({"spec": {"type": kind}}));
    let balancer = |first: Value| {
        let mut service = of_type("LoadBalancer");
        service["status"] = json!({"loadBalancer": {"ingress": [first]}});
        service
    };
    assert_eq!(wan("NodeName", &[], of_type("ClusterIP")), "n1");
    assert_eq!(wan("NodeIP", &[], of_type("ClusterIP")), "192.0.2.1");
    let fixed = [("gateway-wan-address-static", "gw.example.com")];
    assert_eq!(
        wan("Static", &fixed, of_type("ClusterIP")),
        "gw.example.com"
    );
    assert_eq!(wan("Service", &[], of_type("ClusterIP")), "10.96.0.7");
    assert_eq!(wan("Service", &[], of_type("NodePort")), "192.0.2.1");
    assert_eq!(
        wan("Service", &[], balancer(json!({"ip": "203.0.113.1"}))),
        "203.0.113.1"
    );
    assert_eq!(
        wan("Service", &[], balancer(json!({"hostname": "lb.example"}))),
        "lb.example"
    );
    let waiting = wan("Service", &[], of_type("LoadBalancer"));
    assert_eq!(
        waiting,
        "The load balancer of the Service web has no address yet"
    );
    let unknown = wan("Moon", &[], of_type("ClusterIP"));
    assert!(unknown.as_str().unwrap().contains("\"Moon\""), "{unknown}");
}

#[test]
fn pods_that_are_not_registered() {
    let nothing = |pod: Value| made(pod, &[]).1;
    assert_eq!(nothing(self::pod(&[])), Wanted::Nothing);
    for phase in ["Succeeded", "Failed"] {
        let mut done = meshed(&[]);
        done["status"]["phase"] = phase.into();
        assert_eq!(nothing(done), Wanted::Nothing, "{phase}");
    }
    for (field, parent) in [
        ("podIP", "status"),
        ("hostIP", "status"),
        ("nodeName", "spec"),
    ] {
        let mut early = meshed(&[]);
        early[parent].as_object_mut().unwrap().remove(field);
        let namespace = String::new();
        assert_eq!(nothing(early), Wanted::Later { namespace }, "{field}");
    }
    for annotation in [
        ("connect-service", "a,b"),
        ("connect-service-port", "nothing"),
        ("connect-service-upstreams", "api"),
        ("proxy-config-map", "no json"),
    ] {
        let wrong = nothing(meshed(&[annotation]));
        assert!(
            matches!(wrong, Wanted::Wrong(_)),
            "{annotation:?}: {wrong:?}"
        );
    }
}
