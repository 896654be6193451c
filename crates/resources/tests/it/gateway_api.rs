//! Gateways of the Gateway API: Envoy accepts what they resolve to.

use std::sync::Arc;

use legate_gateway_api::{Key, Object, Served, Service, ServicePort, World, resolve};
use legate_proxycfg::Kind;
use legate_proxycfg::gateways::api::{CertificateSource, GatewayCertificate};
use legate_resources::{Generator, ResourceSet};
use legate_routes::{Action, Content, Target, Tls};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::edge_rules::configured;
use crate::golden_cases::envoy::Envoy;
use crate::golden_cases::written;

#[path = "../../../gateway-api/tests/it/clusters.rs"]
mod clusters;

/// The resources of a gateway, in a form that Envoy validates like those that are sent to it: it
/// validates the clusters of routes in a bootstrap document by default.
fn written_for_envoy(set: &ResourceSet) -> Value {
    assert!(set.failures().is_empty(), "{:?}", set.failures());
    let mut document = written::document(set);
    for routes in document["Routes"].as_object_mut().unwrap().values_mut() {
        routes["validateClusters"] = json!(false);
    }
    document
}

fn certificate(namespace: &str) -> Arc<Option<GatewayCertificate>> {
    Arc::new(Some(GatewayCertificate {
        secret: format!("kubernetes/{namespace}/cert"),
        source: CertificateSource::Inline {
            certificate: "certificate".to_owned(),
            key: "key".to_owned().into(),
        },
        expires: None,
    }))
}

fn object(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "infra", "name": name}, "spec": spec})
}

fn gateway() -> Value {
    let all = json!({"namespaces": {"from": "All"}});
    let certificates = json!([{"name": "cert"}]);
    let listener = |name: &str, port: u16, protocol: &str, host: &str, tls: Value| {
        json!({
            "name": name, "port": port, "protocol": protocol, "hostname": host, "tls": tls,
            "allowedRoutes": all,
        })
    };
    let none = || Value::Null;
    let https = || json!({"certificateRefs": certificates});
    let ended = json!({"mode": "Terminate", "certificateRefs": certificates});
    let passed = || json!({"mode": "Passthrough"});
    let odd = json!({"certificateRefs": [{"name": "missing"}]});
    json!({
        "gatewayClassName": "mesh",
        "listeners": [
            listener("any", 80, "HTTP", "", none()),
            listener("wild", 80, "HTTP", "*.wild.test", none()),
            listener("exact", 80, "HTTP", "exact.wild.test", none()),
            listener("https", 443, "HTTPS", "", https()),
            listener("https-exact", 443, "HTTPS", "exact.test", https()),
            listener("https-wild", 443, "HTTPS", "*.wild.test", https()),
            listener("closed", 443, "HTTPS", "closed.test", odd),
            listener("ended", 443, "TLS", "ended.test", ended),
            listener("passed", 443, "TLS", "*.passed.test", passed()),
            listener("idle", 443, "TLS", "idle.test", passed()),
            listener("only-passed", 444, "TLS", "", passed()),
            {"name": "nothing-passed", "port": 445, "protocol": "TLS", "tls": passed(),
                "allowedRoutes": {"namespaces": {"from": "Selector"}}},
            listener("tcp", 81, "TCP", "", none()),
            listener("empty", 82, "TCP", "", none()),
        ],
        "tls": {"frontend": {
            "default": {"validation": {"caCertificateRefs": [
                {"group": "", "kind": "ConfigMap", "name": "ca"},
            ]}},
        }},
    })
}

/// Backends of every kind.
fn backends() -> Value {
    let service =
        |name: &str, port: u16, weight: u32| json!({"name": name, "port": port, "weight": weight});
    json!([
        {"group": "consul.hashicorp.com", "kind": "MeshService", "name": "api", "weight": 3},
        service("web", 80, 2), service("missing", 80, 1),
    ])
}

fn rules() -> Value {
    let path = |kind: &str, value: &str| json!([{"path": {"type": kind, "value": value}}]);
    let filter = |kind: &str, field: &str, value: Value| json!([{"type": kind, field: value}]);
    let with = |matches: Value, filters: Value| json!({"matches": matches, "filters": filters, "backendRefs": backends()});
    let prefix = |text: &str| json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": text});
    let redirect = json!({"scheme": "https", "path": prefix("/"), "statusCode": 308});
    let headers = json!({
        "set": [{"name": "X-A", "value": "100% %START_TIME%"}], "remove": ["x-b"],
    });
    let mirror = json!({"backendRef": backends()[0], "percent": 10});
    json!([
        with(path("Exact", "/"), filter("RequestHeaderModifier", "requestHeaderModifier", headers)),
        with(path("PathPrefix", "/a/"), filter("URLRewrite", "urlRewrite", json!({
            "hostname": "b.test", "path": prefix("/"),
        }))),
        with(path("PathPrefix", "/"), filter("URLRewrite", "urlRewrite", json!({
            "path": prefix("/root"),
        }))),
        with(path("RegularExpression", "/r(a|b)+"), filter("RequestMirror", "requestMirror", mirror)),
        with(path("PathPrefix", "/odd"), filter("Odd", "odd", json!({}))),
        {"matches": path("PathPrefix", "/away"),
            "filters": filter("RequestRedirect", "requestRedirect", redirect)},
        {"matches": [{
            "method": "GET", "path": {"value": "/m"},
            "headers": [{"name": "Host", "value": "a.test"},
                {"type": "RegularExpression", "name": "x", "value": "a.*"}],
            "queryParams": [{"name": "q", "value": "1"}],
        }], "backendRefs": backends(), "timeouts": {"request": "0s", "backendRequest": "1s"},
            "retry": {"codes": [500], "attempts": 2, "backoff": "10ms"}},
        with(path("PathPrefix", "/cors"), filter("CORS", "cors", json!({
            "allowOrigins": ["https://*.test", "*"], "allowMethods": ["*"], "maxAge": 1,
        }))),
    ])
}

fn world() -> World {
    let mut world = World {
        controller: "legate".to_owned(),
        ..World::default()
    };
    let class = json!({"metadata": {"name": "mesh"}, "spec": {"controllerName": "legate"}});
    world.classes.push(Object::decode(&class));
    world
        .gateways
        .push(Object::decode(&object("gw", &gateway())));
    let route = |section: Option<&str>, hosts: &[&str], rules: &Value| {
        json!({
            "parentRefs": [{"name": "gw", "sectionName": section}], "hostnames": hosts,
            "rules": rules,
        })
    };
    let calls = json!([
        {"matches": [{"method": {"service": "s.S"}}, {"method": {"method": "m"}}],
            "backendRefs": backends()},
    ]);
    let connections = json!([{"backendRefs": backends()}]);
    let nowhere = json!([{"backendRefs": [{"name": "missing", "port": 80}]}]);
    let here = |name: &str, spec: Value| object(name, &spec);
    world.http_routes = vec![
        Object::decode(&here("all", route(None, &[], &rules()))),
        Object::decode(&here(
            "some",
            route(None, &["*.wild.test", "a.test"], &rules()),
        )),
    ];
    let grpc = route(Some("https-exact"), &["exact.test"], &calls);
    world.grpc_routes = vec![Object::decode(&here("calls", grpc))];
    world.tls_routes = vec![
        Object::decode(&here(
            "tls",
            route(None, &["ended.test", "a.passed.test"], &connections),
        )),
        Object::decode(&here(
            "nowhere",
            route(Some("passed"), &["b.passed.test"], &nowhere),
        )),
        Object::decode(&here("all", route(Some("only-passed"), &[], &connections))),
    ];
    let mut tcp = route(Some("tcp"), &[], &connections);
    tcp.as_object_mut().unwrap().remove("hostnames");
    world.tcp_routes = vec![Object::decode(&object("tcp", &tcp))];
    let key = |name: &str| Key::new("infra", name);
    world.certificates.insert(key("cert"), Ok(()));
    let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
    world
        .authorities
        .insert(key("ca"), Ok(authority.cert.pem()));
    world.mesh_services.insert(key("api"), "api".into());
    let port = ServicePort {
        port: 80,
        ..ServicePort::default()
    };
    let web = Service {
        ports: vec![port],
        ..Service::default()
    };
    world.services.insert(key("web"), web);
    world
}

#[test]
fn envoy_accepts_what_a_gateway_resolves_to() {
    let outcome = resolve(&world());
    let served = &outcome.served[&Key::new("infra", "gw")];
    let ports: Vec<_> = served.listeners.iter().map(|one| one.port).collect();
    assert_eq!(ports, [80, 81, 82, 443, 444, 445]);
    let mut snapshot = configured();
    let Kind::ApiGateway(own) = &mut snapshot.kind else {
        panic!("{:?}", snapshot.kind)
    };
    let compiled = Arc::make_mut(&mut own.served);
    let listeners = served.listeners.iter();
    compiled.listeners = listeners.cloned().map(Arc::new).collect();
    compiled.certificates = vec![certificate("infra")];
    let document = written_for_envoy(&Generator::new().generate(&snapshot, None));
    let names: Vec<_> = document["Routes"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(names, ["443/*", "443/*.wild.test", "443/exact.test", "80"]);
    let all = [("gateway".to_owned(), document)];
    assert_eq!(Envoy::new().refusals(&all), Vec::<String>::new());
}

/// The number of generated clusters.
const SAMPLE: usize = 25;

/// The resources of a gateway with these listeners. The backends with the name `a` are services of
/// the mesh, so that they have clusters.
fn resources(served: &Served, authority: &str) -> Value {
    let mut snapshot = configured();
    let Kind::ApiGateway(own) = &mut snapshot.kind else {
        panic!("{:?}", snapshot.kind)
    };
    let mut listeners = served.listeners.clone();
    for listener in &mut listeners {
        for chain in &mut listener.chains {
            if let Tls::Terminated(tls) = &mut chain.tls
                && let Some(clients) = &mut tls.clients
            {
                authority.clone_into(&mut clients.authorities);
            }
        }
        for content in &mut listener.contents {
            let (name, all): (_, Vec<_>) = match content {
                Content::Tcp(all) => ("db", all.iter_mut().collect()),
                Content::Http(hosts) => {
                    let rules = hosts.iter_mut().flat_map(|host| &mut host.rules);
                    let forwarded = rules.filter_map(|rule| match &mut rule.action {
                        Action::Forward(all) => Some(all),
                        Action::Redirect(_) | Action::Answer(_) => None,
                    });
                    ("api", forwarded.flatten().collect())
                }
            };
            for backend in all {
                let is_a = matches!(&backend.target, Target::Backend(one) if one.name == "a");
                if is_a {
                    backend.target = Target::Service(name.into());
                }
            }
        }
    }
    let compiled = Arc::make_mut(&mut own.served);
    compiled.listeners = listeners.into_iter().map(Arc::new).collect();
    compiled.certificates = ["infra", "other"].map(certificate).into();
    written_for_envoy(&Generator::new().generate(&snapshot, None))
}

#[test]
fn envoy_accepts_what_generated_clusters_resolve_to() {
    let mut runner = TestRunner::default();
    let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
    let authority = authority.cert.pem();
    let mut all = Vec::new();
    while all.len() < SAMPLE {
        let documents = clusters::documents()
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let outcome = resolve(&clusters::world(&documents));
        let with_listeners = outcome.served.iter();
        let with_listeners = with_listeners.filter(|(_, served)| !served.listeners.is_empty());
        for (key, served) in with_listeners {
            let name = format!("{}-{}-{}", all.len(), key.namespace, key.name);
            all.push((name, resources(served, &authority)));
        }
    }
    let refused = Envoy::new().refusals(&all);
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
