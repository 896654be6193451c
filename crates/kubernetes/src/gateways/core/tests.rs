//! From objects to calls, with a clock that tests advance.

use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use legate_gateway_api::Key;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AllAcknowledged, Call, Core, Ended, Stored, Subject, entries};
use crate::context::{Config, Options};
use crate::gateways::CONTROLLER;
use crate::gateways::cluster::{Item, Source};
use crate::gateways::kinds::Kind;
use crate::inject::{Cluster as Version, Installation, ResolvConf};
use crate::sync::objects::Change;
use crate::sync::registration::Settings;
use legate_gateway_api::RouteKind;

const OWNER: &str = "this cluster";
const NOW: &str = "2026-01-01T00:00:00Z";
const GATEWAY: &str = "edge";
const SERVICE: &str = "shop--edge-legate";

#[derive(clap::Parser)]
struct Program {
    #[command(flatten)]
    options: Options,
}

fn installation() -> Arc<Installation> {
    let flags = [
        "program",
        "--full-name=legate",
        "--namespace=mesh",
        "--pod-name=legate-operator-0",
        "--server-addresses=servers",
        "--dataplane-image=dataplane",
        "--redirect-image=redirect",
    ];
    let program: Program = clap::Parser::parse_from(flags);
    Arc::new(Installation {
        full_name: program.options.names.full_name,
        namespace: program.options.names.namespace,
        servers: program.options.servers,
        sidecars: program.options.sidecars,
        config: Config::default(),
        log_level: "info".to_owned(),
        log_json: false,
        cluster: Version::of_version("1", "33"),
        ca_certs: Some("PEM".to_owned()),
        resolv_conf: ResolvConf::parse("nameserver 10.96.0.10\n"),
    })
}

fn settings() -> Settings {
    Settings {
        cluster: OWNER.to_owned(),
        gateway_api: true,
        ..Settings::default()
    }
}

/// A core that has listed everything and whose servers answer.
struct Cluster {
    core: Core,
    now: Instant,
    version: u64,
}

impl Cluster {
    fn new() -> Self {
        let now = Instant::now();
        let mut core = Core::new(CONTROLLER, settings(), installation(), now);
        let kinds = Kind::ALL.map(Source::Resources);
        for source in kinds.into_iter().chain(Source::OF_KUBERNETES) {
            core.start(source);
            core.object(source, Change::Begin, now);
            core.object(source, Change::Complete, now);
        }
        core.acknowledged(AllAcknowledged::new(), now);
        core.bundle(Some("v1.6.3".to_owned()), false, now);
        Self {
            core,
            now,
            version: 0,
        }
    }

    fn object(&mut self, kind: Kind, name: &str, spec: Value, status: Value) -> DynamicObject {
        self.version += 1;
        let mut metadata = json!({
            "name": name, "uid": name, "generation": 1,
            "resourceVersion": self.version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        if kind != Kind::GatewayClass {
            metadata["namespace"] = json!("shop");
        }
        let object = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind.as_str(),
            "metadata": metadata, "spec": spec, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn put(&mut self, kind: Kind, name: &str, spec: Value, status: Value) {
        let object = self.object(kind, name, spec, status);
        let item = Item::Resource(kind, Box::new(object));
        let source = Source::Resources(kind);
        self.core.object(source, Change::Applied(item), self.now);
    }

    fn class(&mut self, controller: &str) {
        let spec = json!({"controllerName": controller});
        self.put(Kind::GatewayClass, "legate", spec, Value::Null);
    }

    fn gateway(&mut self) {
        let spec = json!({
            "gatewayClassName": "legate",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        });
        self.put(Kind::Gateway, GATEWAY, spec, Value::Null);
    }

    /// What Kubernetes makes of the applied objects.
    fn deployed(&mut self, name: &str) {
        self.deployment(name);
        self.service(name);
    }

    fn metadata(name: &str) -> Value {
        json!({
            "name": name, "namespace": "shop",
            "ownerReferences": [{
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": GATEWAY,
                "uid": GATEWAY, "controller": true,
            }],
        })
    }

    fn deployment(&mut self, name: &str) {
        let metadata = Self::metadata(name);
        let deployment = json!({"metadata": metadata, "status": {"readyReplicas": 1}});
        let deployment = Item::Deployment(serde_json::from_value(deployment).unwrap());
        let change = Change::Applied(deployment);
        self.core.object(Source::Deployments, change, self.now);
    }

    fn service(&mut self, name: &str) {
        let service = json!({
            "metadata": Self::metadata(name),
            "spec": {"type": "LoadBalancer", "ports": [{"name": "tcp-80", "port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
        });
        let service = Item::Service(serde_json::from_value(service).unwrap());
        let change = Change::Applied(service);
        self.core.object(Source::Services, change, self.now);
    }

    /// The calls after some time.
    fn calls(&mut self) -> Vec<Call> {
        self.now += Duration::from_secs(1);
        self.core.poll(self.now, NOW)
    }

    /// Ends calls as servers do that accept everything. Returns their subjects.
    fn accept(&mut self, calls: Vec<Call>) -> Vec<Subject> {
        let mut subjects = Vec::new();
        for call in calls {
            let subject = call.subject();
            let ended = match call {
                Call::Status {
                    kind,
                    key,
                    resource_version,
                    change,
                    ..
                } => {
                    let known = &self.core.cluster.known[&(kind, key.clone())];
                    let mut status = known.status.clone();
                    json_patch::merge(&mut status, &change);
                    let object = self.object(kind, &key.name, Value::Null, status);
                    Ended::Status {
                        before: resource_version,
                        object: Some(Box::new(object)),
                    }
                }
                Call::Apply { manifests, .. } => Ended::Applied(manifests),
                Call::Remove { .. } => Ended::Removed,
                Call::Rows { rows, .. } => Ended::Rows(rows),
                Call::RemoveRows { .. } => Ended::RowsRemoved,
                Call::Entries { digests, .. } => Ended::Entries(digests),
            };
            self.core.ended(subject.clone(), ended, self.now, 0.5);
            subjects.push(subject);
        }
        subjects
    }

    /// Accepts all calls until there are none.
    fn settle(&mut self) -> Vec<Subject> {
        let mut all = Vec::new();
        for _ in 0..10 {
            let calls = self.calls();
            if calls.is_empty() {
                return all;
            }
            all.extend(self.accept(calls));
        }
        panic!("calls are made again and again: {all:?}");
    }

    /// The subjects of the next calls, after which the servers have no such rows.
    fn settle_removing(&mut self, service: &str) -> Vec<Subject> {
        let calls = self.calls();
        let subjects = self.accept(calls);
        let mut stored = self.core.acknowledged.clone().unwrap_or_default();
        stored.remove(service);
        self.core.acknowledged(stored, self.now);
        assert!(self.settle().is_empty());
        subjects
    }

    fn served() -> Self {
        let mut cluster = Self::new();
        cluster.class(CONTROLLER);
        cluster.gateway();
        cluster.settle();
        cluster.deployed("edge-legate");
        cluster.settle();
        cluster
    }
}

fn gateway_key() -> Key {
    Key::new("shop", GATEWAY)
}

fn condition(call: &Call, name: &str) -> Value {
    let Call::Status { change, .. } = call else {
        panic!("{call:?}");
    };
    let conditions = change["conditions"].as_array().unwrap().iter();
    let mut conditions = conditions.filter(|one| one["type"] == name);
    conditions.next().cloned().unwrap_or_default()
}

#[test]
fn a_gateway_gets_proxies_rows_and_conditions_and_then_nothing_more() {
    let mut cluster = Cluster::new();
    assert!(cluster.settle().is_empty());
    cluster.class(CONTROLLER);
    cluster.gateway();
    let subjects = cluster.settle();
    for subject in [
        Subject::Status(Kind::GatewayClass, Key::new("", "legate")),
        Subject::Status(Kind::Gateway, gateway_key()),
        Subject::Infrastructure(gateway_key()),
        Subject::Rows(SERVICE.to_owned()),
    ] {
        assert_eq!(
            subjects.iter().filter(|one| **one == subject).count(),
            1,
            "{subject:?}"
        );
    }
}

#[test]
fn what_is_reported_first_is_not_removed() {
    let mut cluster = Cluster::new();
    cluster.class(CONTROLLER);
    cluster.gateway();
    cluster.settle();
    cluster.service("edge-legate");
    let subjects = cluster.settle();
    let infrastructure = Subject::Infrastructure(gateway_key());
    assert!(!subjects.contains(&infrastructure), "{subjects:?}");
    cluster.deployment("edge-legate");
    let subjects = cluster.settle();
    assert!(!subjects.contains(&infrastructure), "{subjects:?}");
}

#[test]
fn programmed_waits_for_a_proxy() {
    let mut cluster = Cluster::served();
    let acknowledged = json!({SERVICE: {"Acknowledged": {GATEWAY: 1}, "Rejected": {}}});
    let acknowledged = serde_json::from_value(acknowledged).unwrap();
    cluster.core.acknowledged(acknowledged, cluster.now);
    let calls = cluster.calls();
    let [call] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(condition(call, "Programmed")["status"], "True");
    cluster.accept(calls);
    assert!(cluster.settle().is_empty());
}

#[test]
fn a_deleted_class_takes_nothing_away_and_another_controllers_class_does() {
    let mut cluster = Cluster::served();
    let class = cluster.object(Kind::GatewayClass, "legate", Value::Null, Value::Null);
    let item = Item::Resource(Kind::GatewayClass, Box::new(class));
    let source = Source::Resources(Kind::GatewayClass);
    cluster.core.object(source, Change::Gone(item), cluster.now);
    assert!(cluster.settle().is_empty());

    cluster.class("another/controller");
    let calls = cluster.calls();
    let removes = |call: &&Call| matches!(call, Call::Remove { .. } | Call::RemoveRows { .. });
    assert_eq!(calls.iter().filter(removes).count(), 2, "{calls:?}");
}

#[test]
fn rows_of_a_deleted_gateway_are_removed() {
    let mut cluster = Cluster::served();
    let gateway = cluster.object(Kind::Gateway, GATEWAY, Value::Null, Value::Null);
    let item = Item::Resource(Kind::Gateway, Box::new(gateway));
    let source = Source::Resources(Kind::Gateway);
    cluster.core.object(source, Change::Gone(item), cluster.now);
    let calls = cluster.calls();
    assert!(
        matches!(&calls[..], [Call::RemoveRows { service }] if service == SERVICE),
        "Kubernetes removes what it owned: {calls:?}"
    );
}

#[test]
fn a_failed_call_is_made_again_with_everything() {
    let mut cluster = Cluster::served();
    let spec = json!({"parentRefs": [{"name": GATEWAY}]});
    cluster.put(Kind::Route(RouteKind::Http), "route", spec, Value::Null);
    let calls = cluster.calls();
    for call in calls {
        let now = cluster.now;
        let failed = Ended::Failed("no room".to_owned());
        cluster.core.ended(call.subject(), failed, now, 0.5);
    }
    assert!(cluster.core.poll(cluster.now, NOW).is_empty(), "it waits");
    assert!(cluster.core.wake(cluster.now) > cluster.now);
    cluster.now += Duration::from_secs(30);
    let again = cluster.core.poll(cluster.now, NOW);
    let rows = again.iter().find_map(|call| match call {
        Call::Rows { requests, .. } => Some(requests),
        _ => None,
    });
    let rows = rows.expect("the rows of the gateway");
    assert_eq!(rows[0].part, None);
    assert_eq!(rows[0].body["Generations"], json!({GATEWAY: 1}));
}

#[test]
fn nothing_is_said_before_everything_is_listed() {
    let mut cluster = Cluster::new();
    cluster.core.start(Source::Resources(Kind::Gateway));
    let source = Source::Services;
    cluster.core.end(source, cluster.now);
    cluster.core.start(source);
    cluster.class(CONTROLLER);
    assert!(cluster.calls().is_empty());
    cluster.core.object(source, Change::Begin, cluster.now);
    cluster.core.object(source, Change::Complete, cluster.now);
    assert_eq!(cluster.settle().len(), 1);
}

#[test]
fn an_outcome_does_not_wait_for_servers_for_ever() {
    let mut cluster = Cluster::new();
    cluster.core.acknowledged = None;
    cluster.class(CONTROLLER);
    assert!(cluster.calls().is_empty());
    let wake = cluster.core.wake(cluster.now);
    assert!(wake > cluster.now);
    let calls = cluster.core.poll(wake, NOW);
    assert_eq!(calls.len(), 1);
}

#[test]
fn a_write_does_not_hide_a_change_that_the_watch_has_reported_before() {
    let mut cluster = Cluster::new();
    cluster.class(CONTROLLER);
    let calls = cluster.calls();
    // The answer of this write arrives after the next change of the class.
    cluster.class(CONTROLLER);
    let newest = cluster.version.to_string();
    cluster.accept(calls);
    let calls = cluster.calls();
    assert!(
        matches!(&calls[..], [Call::Status { resource_version, .. }] if *resource_version == newest),
        "{calls:?}"
    );
}

#[test]
fn rows_that_no_gateway_has_are_removed_unless_they_are_another_clusters() {
    let mut cluster = Cluster::new();
    let stored = json!({
        "shop--gone-legate": {"Owner": OWNER},
        "shop--other-legate": {"Owner": "another cluster"},
    });
    let stored = serde_json::from_value(stored).unwrap();
    cluster.core.acknowledged(stored, cluster.now);
    let subjects = cluster.settle_removing("shop--gone-legate");
    assert_eq!(subjects, [Subject::Rows("shop--gone-legate".to_owned())]);
}

#[test]
fn why_a_gateway_is_not_served_is_in_its_conditions() {
    let mut cluster = Cluster::new();
    cluster.class(CONTROLLER);
    cluster.gateway();
    let mut calls = cluster.calls();
    calls.retain(|call| matches!(call, Call::Apply { .. }));
    let failed = Ended::Failed("no room".to_owned());
    let subject = calls[0].subject();
    cluster.core.ended(subject, failed, cluster.now, 0.5);
    let calls = cluster.calls();
    let of_gateway = Subject::Status(Kind::Gateway, gateway_key());
    cluster.core.busy.remove(&of_gateway);
    let calls = calls.into_iter().chain(cluster.calls());
    let mut statuses = calls.filter(|call| call.subject() == of_gateway);
    let status = statuses.next().expect("a status");
    assert_eq!(condition(&status, "Programmed")["message"], "no room");
}

#[test]
fn what_a_gateway_had_under_another_class_is_removed() {
    let mut cluster = Cluster::served();
    cluster.deployed("edge-earlier");
    let calls = cluster.calls();
    let [Call::Remove { name, uid, .. }] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!((&**name, &**uid), ("edge-earlier", GATEWAY));
}

#[test]
fn nothing_is_due_while_a_list_is_missing() {
    let mut cluster = Cluster::new();
    cluster.core.start(Source::Resources(Kind::Gateway));
    cluster.core.end(Source::Services, cluster.now);
    cluster.core.start(Source::Services);
    cluster.now += Duration::from_secs(3600);
    assert!(cluster.calls().is_empty());
    assert!(cluster.core.wake(cluster.now) > cluster.now);
}

/// The Service `cart` with one endpoint.
fn cart(cluster: &mut Cluster) {
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http"},
        {"name": "admin", "port": 90, "targetPort": 9090},
    ]);
    cart_service(cluster, "cart", ports);
    let slice = json!({
        "metadata": {
            "name": "cart-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "cart"},
        },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.244.0.5"], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "cart-0", "namespace": "shop"},
        }],
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "admin", "port": 9090, "protocol": "TCP"},
        ],
    });
    let slice = Item::EndpointSlice(serde_json::from_value(slice).unwrap());
    let change = Change::Applied(slice);
    cluster
        .core
        .object(Source::EndpointSlices, change, cluster.now);
}

fn cart_service(cluster: &mut Cluster, name: &str, ports: Value) {
    let service = json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"app": "cart"},
            "ports": ports,
        },
    });
    let service = Item::Service(serde_json::from_value(service).unwrap());
    let change = Change::Applied(service);
    cluster.core.object(Source::Services, change, cluster.now);
}

fn cart_pod(cluster: &mut Cluster, apply: fn(Item) -> Change<Item>) {
    let pod = json!({
        "metadata": {
            "name": "cart-0", "namespace": "shop",
            "labels": {"app": "cart", "consul.hashicorp.com/connect-inject-managed-by": "legate"},
            "annotations": {
                "consul.hashicorp.com/connect-inject-status": "injected",
                "consul.hashicorp.com/connect-service": "cart",
                "consul.hashicorp.com/connect-service-port": "8080",
            },
        },
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"podIP": "10.244.0.5", "hostIP": "192.0.2.1"},
    });
    let metadata = Item::Pod(serde_json::from_value(pod.clone()).unwrap());
    cluster
        .core
        .object(Source::Pods, apply(metadata), cluster.now);
    let pod = Item::MeshPod(serde_json::from_value(pod).unwrap());
    cluster
        .core
        .object(Source::MeshPods, apply(pod), cluster.now);
}

/// The only calls: for rows, by name.
fn bodies(calls: &[Call]) -> Vec<(&str, &Value)> {
    let bodies = calls.iter().map(|call| match call {
        Call::Rows {
            service, requests, ..
        } => (&**service, &requests[0].body),
        other => panic!("{other:?}"),
    });
    bodies.collect()
}

#[test]
fn a_service_whose_pods_are_in_the_mesh_has_a_frontend_while_it_needs_one() {
    let mut cluster = Cluster::new();
    cart(&mut cluster);
    assert!(cluster.settle().is_empty(), "nothing of it is in the mesh");
    cart_pod(&mut cluster, Change::Applied);
    let calls = cluster.calls();
    let [(name, body)] = &bodies(&calls)[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(*name, "_cart.shop");
    assert_eq!(
        body["Frontend"],
        json!({
            "Namespace": "shop", "Name": "cart", "Addresses": ["10.96.0.7"], "MeshPorts": [80],
        })
    );
    assert_eq!(body["Owner"], OWNER);
    assert_eq!(body["Generations"], json!({}));
    assert_eq!(body["Listeners"].as_array().map(Vec::len), Some(2));
    let endpoint = |port: u16, application: Option<u16>| {
        let mut endpoint =
            json!({"Address": "10.244.0.5", "Port": 20000, "Identity": {"Name": "cart"}});
        if let Some(application) = application {
            endpoint["Application"] = json!(application);
        }
        let of = json!({"Namespace": "shop", "Name": "cart", "Port": port, "Transport": "Tcp"});
        json!({"Of": of, "Endpoints": [endpoint]})
    };
    assert_eq!(
        body["Endpoints"],
        json!([endpoint(80, None), endpoint(90, Some(9090))])
    );
    cluster.accept(calls);
    assert!(cluster.settle().is_empty());

    cart_pod(&mut cluster, Change::Gone);
    let stored = json!({"_cart.shop": {"Owner": OWNER}});
    let stored = serde_json::from_value(stored).unwrap();
    cluster.core.acknowledged(stored, cluster.now);
    let subjects = cluster.settle_removing("_cart.shop");
    assert_eq!(subjects, [Subject::Rows("_cart.shop".to_owned())]);
}

#[test]
fn a_service_that_the_mesh_has_by_its_name_needs_no_frontend() {
    let mut cluster = Cluster::new();
    let port = || json!([{"port": 80, "targetPort": 8080}, {"port": 53, "protocol": "UDP"}]);
    cart_service(&mut cluster, "cart", port());
    cart_pod(&mut cluster, Change::Applied);
    assert!(cluster.settle().is_empty());
    cart_service(&mut cluster, "all", port());
    let subjects = cluster.settle();
    assert_eq!(subjects, [Subject::Rows("_all.shop".to_owned())]);
}

#[test]
fn routes_of_another_namespace_have_a_frontend_of_their_own() {
    let mut cluster = Cluster::new();
    cart(&mut cluster);
    let spec = json!({
        "parentRefs": [{"group": "", "kind": "Service", "name": "cart", "namespace": "shop"}],
    });
    let kind = Kind::Route(RouteKind::Http);
    let mut route = cluster.object(kind, "r", spec, Value::Null);
    route.metadata.namespace = Some("web".to_owned());
    let item = Item::Resource(kind, Box::new(route));
    let source = Source::Resources(kind);
    cluster
        .core
        .object(source, Change::Applied(item), cluster.now);
    let mut calls = cluster.calls();
    let status = calls.remove(0);
    let Call::Status { change, .. } = &status else {
        panic!("{status:?}");
    };
    let parent = &change["parents"][0];
    assert_eq!(
        parent["parentRef"],
        json!({"group": "", "kind": "Service", "name": "cart", "namespace": "shop"})
    );
    assert_eq!(parent["conditions"][0]["reason"], "Accepted");
    let [(name, body)] = &bodies(&calls)[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(*name, "_cart.shop.web");
    assert_eq!(body["Frontend"]["Callers"], "web");

    let subject = Subject::Rows("_cart.shop.web".to_owned());
    let failed = Ended::Failed("no room".to_owned());
    cluster.core.ended(subject, failed, cluster.now, 0.5);
    cluster.core.busy.clear();
    let calls = cluster.calls();
    let status = calls.iter().find_map(|call| match call {
        Call::Status { change, .. } => Some(&change["parents"][0]["conditions"][2]),
        _ => None,
    });
    let condition = status.expect("a status");
    assert_eq!(condition["type"], "Programmed");
    assert_eq!(condition["message"], "no room");
}

#[test]
fn a_status_alone_is_no_reason_to_resolve() {
    let mut cluster = Cluster::served();
    let known = &cluster.core.cluster.known[&(Kind::Gateway, gateway_key())];
    let status = known.status.clone();
    let spec = json!({
        "gatewayClassName": "legate",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
    });
    cluster.put(Kind::Gateway, GATEWAY, spec.clone(), status);
    assert!(cluster.core.resolve_at.is_none());
    assert!(cluster.settle().is_empty());

    // What somebody else has written is corrected all the same.
    cluster.put(Kind::Gateway, GATEWAY, spec, json!({"addresses": []}));
    assert!(cluster.core.resolve_at.is_none());
    let calls = cluster.calls();
    assert!(matches!(&calls[..], [Call::Status { .. }]), "{calls:?}");
}

/// What Consul's servers have after requests, with the conditions that they give each entry.
fn stored(requests: &[entries::Request], conditions: &Value) -> Stored {
    let mut all = Stored::default();
    for request in requests {
        let entries::Request::Put(body) = request else {
            panic!("{request:?}");
        };
        let kind = entries::KINDS.iter().position(|kind| body["Kind"] == *kind);
        let mut entry = body.clone();
        entry["Status"] = json!({"Conditions": conditions});
        if let Some(kind) = kind {
            all[kind].push(serde_json::from_value(entry).unwrap());
        }
    }
    all
}

fn requests(calls: &[Call]) -> &[entries::Request] {
    let requests = calls.iter().find_map(|call| match call {
        Call::Entries { requests, .. } => Some(&requests.as_ref().unwrap()[..]),
        _ => None,
    });
    requests.unwrap_or_else(|| panic!("{calls:?}"))
}

#[test]
fn consuls_servers_get_entries_and_say_what_has_become_of_them() {
    let mut cluster = Cluster::new();
    cluster.core.stored(Stored::default(), cluster.now);
    cluster.class(CONTROLLER);
    cluster.gateway();
    let service = json!({"name": "cart"});
    cluster.put(Kind::MeshService, "cart", service, Value::Null);
    let spec = json!({
        "parentRefs": [{"name": GATEWAY}],
        "rules": [{"backendRefs": [
            {"group": "consul.hashicorp.com", "kind": "MeshService", "name": "cart"},
        ]}],
    });
    cluster.put(Kind::Route(RouteKind::Http), "route", spec, Value::Null);
    let calls = cluster.calls();
    let written = requests(&calls).to_vec();
    let [entries::Request::Put(gateway), entries::Request::Put(route)] = &written[..] else {
        panic!("{written:?}");
    };
    assert_eq!(
        (&gateway["Kind"], &gateway["Name"]),
        (&json!("api-gateway"), &json!(SERVICE))
    );
    assert_eq!(route["Kind"], "http-route");
    assert_eq!(route["Rules"][0]["Services"][0]["Name"], "cart");
    cluster.accept(calls);
    cluster.settle();
    cluster.deployed("edge-legate");
    cluster.settle();

    // An entry is new until the servers have said something.
    cluster
        .core
        .stored(stored(&written, &json!([])), cluster.now);
    assert!(cluster.settle().is_empty());
    let bad = json!([{"Type": "Bound", "Status": "False", "Reason": "FailedToBind",
                      "Message": "no listener"}]);
    cluster.core.stored(stored(&written, &bad), cluster.now);
    let calls = cluster.calls();
    let [Call::Status { change, .. }] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert!(
        change.to_string().contains("FailedToBind: no listener"),
        "{change}"
    );
    cluster.accept(calls);
    let good = json!([{"Type": "Accepted", "Status": "True"}]);
    cluster.core.stored(stored(&written, &good), cluster.now);
    let calls = cluster.calls();
    let [Call::Status { change, .. }] = &calls[..] else {
        panic!("{calls:?}");
    };
    let conditions = change["listeners"][0]["conditions"].as_array().unwrap();
    let programmed = conditions.iter().find(|one| one["type"] == "Programmed");
    assert_eq!(programmed.unwrap()["status"], "True");
    cluster.accept(calls);

    // Another operator leads: it writes nothing again, and removes what nobody wants any more.
    cluster.core.entries.clear();
    assert!(cluster.settle().is_empty());
    let gateway = cluster.object(Kind::Gateway, GATEWAY, Value::Null, Value::Null);
    let item = Item::Resource(Kind::Gateway, Box::new(gateway));
    let source = Source::Resources(Kind::Gateway);
    cluster.core.object(source, Change::Gone(item), cluster.now);
    let calls = cluster.calls();
    let removed = requests(&calls);
    let kinds = removed.iter().map(|one| match one {
        entries::Request::Delete(kind, _) => *kind,
        entries::Request::Put(_) => panic!("{one:?}"),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["http-route", "api-gateway"]);
}

#[test]
fn entries_of_others_are_left_alone() {
    for (meta, whose) in [
        (json!({"legate-cluster": "another"}), "another cluster"),
        (Value::Null, "somebody else"),
    ] {
        let mut cluster = Cluster::new();
        let mut there = Stored::default();
        let entry = json!({"Name": SERVICE, "Meta": meta});
        there[1].push(serde_json::from_value(entry).unwrap());
        cluster.core.stored(there, cluster.now);
        cluster.class(CONTROLLER);
        cluster.gateway();
        let calls = cluster.calls();
        let reason = calls.iter().find_map(|call| match call {
            Call::Entries { requests, .. } => requests.as_ref().err(),
            _ => None,
        });
        let reason = reason.unwrap_or_else(|| panic!("{calls:?}"));
        assert!(reason.contains(whose), "{reason}");
    }
}

#[test]
fn what_is_left_of_a_gateway_is_removed() {
    let mut cluster = Cluster::new();
    let mut left = Stored::default();
    let meta = json!({"legate-cluster": OWNER, "legate-gateway": SERVICE});
    let entry = json!({"Name": "a.certificate", "Meta": meta});
    left[0].push(serde_json::from_value(entry).unwrap());
    cluster.core.stored(left, cluster.now);
    let calls = cluster.calls();
    let expected = entries::Request::Delete("inline-certificate", "a.certificate".to_owned());
    assert_eq!(requests(&calls), [expected]);
}
