//! An invalid value affects one resource: the others are made, and the failed one keeps its last
//! version. A change recomputes only the affected parts.

use std::sync::Arc;

use legate_intentions::Action;
use legate_model::{Intention, Protocol};
use legate_resources::{EncodedResource, GenerateError, ResourceSet, Work};
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::support::{
    Generator, Web, api, customise, instance, intentions, leaf, mesh, roots, set_instances,
    sidecar, upstream, web, weighted,
};

const API: &str = "api.default.dc1.internal.c1.consul";

fn get(set: &ResourceSet, kind: usize, name: &str) -> Option<Arc<EncodedResource>> {
    set.get(&type_urls()[kind]).get(name).cloned()
}

fn cluster(set: &ResourceSet, name: &str) -> Option<Arc<EncodedResource>> {
    get(set, 0, name)
}

fn endpoints(set: &ResourceSet, name: &str) -> Option<Arc<EncodedResource>> {
    get(set, 1, name)
}

fn listener(set: &ResourceSet, name: &str) -> Option<Arc<EncodedResource>> {
    get(set, 2, name)
}

fn routes(set: &ResourceSet) -> Option<Arc<EncodedResource>> {
    get(set, 3, "public_listener")
}

const PUBLIC: &str = "public_listener:0.0.0.0:20000";

fn names(set: &ResourceSet) -> Vec<String> {
    let of_type = |url: String| set.get(&url).keys().map(ToString::to_string).collect();
    let all: Vec<Vec<String>> = type_urls().into_iter().map(of_type).collect();
    all.concat()
}

fn with_api(protocol: Protocol) -> Web {
    Web {
        protocol,
        upstreams: vec![api(Protocol::Http)],
        ..web()
    }
}

fn bad_incoming() -> Arc<Option<legate_model::Mesh>> {
    mesh(json!({"TLS": {"Incoming": {"CipherSuites": ["ROT13"]}}}))
}

/// An intention whose condition cannot become a rule.
fn bad_intentions() -> Arc<Vec<Arc<Intention>>> {
    let list = intentions(&[(
        "shop",
        json!([{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]),
    )]);
    let mut broken: Intention = (*list[0]).clone();
    broken.permissions[0].http =
        serde_json::from_value(json!({"Header": [{"Name": "x"}]})).unwrap();
    Arc::new(vec![Arc::new(broken)])
}

/// An upstream `api` with additional fields.
fn odd_api(more: &Value) -> legate_proxycfg::UpstreamSnapshot {
    let mut definition = json!({"DestinationName": "api", "LocalBindPort": 9191});
    for (key, value) in more.as_object().unwrap() {
        definition[key] = value.clone();
    }
    upstream(definition, Protocol::Http, Vec::new())
}

#[test]
fn an_invalid_value_affects_one_resource_of_a_new_proxy() {
    let generator = Generator::new();
    let all = names(&generator.generate(&with_api(Protocol::Http), None));
    let without = |missing: &str| -> Vec<String> {
        let all = all.iter().filter(|name| *name != missing);
        all.cloned().collect()
    };
    let bad_mesh = Web {
        mesh: bad_incoming(),
        ..with_api(Protocol::Http)
    };
    let bad_app = Web {
        instance: sidecar(json!({"LocalServiceAddress": "localhost"})),
        ..with_api(Protocol::Http)
    };
    let bad_bind = Web {
        upstreams: vec![odd_api(&json!({"LocalBindAddress": "localhost"}))],
        ..with_api(Protocol::Http)
    };
    let bad_mode = Web {
        upstreams: vec![odd_api(
            &json!({"LocalBindSocketPath": "/a", "LocalBindSocketMode": "rw"}),
        )],
        ..with_api(Protocol::Http)
    };
    for (snapshot, missing, failed) in [
        (bad_mesh, PUBLIC, "public_listener"),
        (bad_app, "local_app", "local_app"),
        (bad_bind, "api:127.0.0.1:9191", "api"),
        (bad_mode, "api:127.0.0.1:9191", "api"),
    ] {
        let set = generator.generate(&snapshot, None);
        assert_eq!(names(&set), without(missing));
        let [failure] = set.failures() else {
            panic!("{:?}", set.failures())
        };
        assert_eq!((failure.resource.as_str(), failure.kept), (failed, false));
        assert!(set.cannot_make(failure.type_url(), missing));
        assert_eq!(set.unusable(), None);
    }
}

#[test]
fn a_failed_resource_keeps_its_last_good_version() {
    let generator = Generator::new();
    let first = with_api(Protocol::Http);
    let before = generator.generate(&first, None);
    let second = Web {
        mesh: bad_incoming(),
        leaf: leaf("web", "second"),
        ..first.clone()
    };
    let after = generator.generate(&second, Some((&first, &before)));
    assert_eq!(listener(&after, PUBLIC), listener(&before, PUBLIC));
    assert_ne!(get(&after, 4, "leaf"), get(&before, 4, "leaf"));
    assert!(after.failures()[0].kept);
    assert!(!after.cannot_make(after.failures()[0].type_url(), PUBLIC));
    // The version stays through later changes until the value is corrected.
    let third = Web {
        upstreams: Vec::new(),
        ..second.clone()
    };
    let later = generator.generate(&third, Some((&second, &after)));
    assert_eq!(listener(&later, PUBLIC), listener(&before, PUBLIC));
    let mended = Web {
        mesh: mesh(json!({"TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}})),
        ..third.clone()
    };
    let mended = generator.generate(&mended, Some((&third, &later)));
    assert_eq!(mended.failures(), []);
    assert!(listener(&mended, PUBLIC).is_some());
    assert_ne!(listener(&mended, PUBLIC), listener(&before, PUBLIC));
}

#[test]
fn a_written_listener_that_cannot_be_read_keeps_its_last_version() {
    const TYPE: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
    let generator = Generator::new();
    let base = web();
    let with = |own_public: &str, own_api: &str| {
        let config = json!({"envoy_public_listener_json": own_public});
        let api = odd_api(&json!({"Config": {"envoy_listener_json": own_api}}));
        Web {
            instance: sidecar(json!({"LocalServicePort": 8080, "Config": config})),
            upstreams: vec![api],
            ..base.clone()
        }
    };
    let written = |name: &str| {
        json!({"@type": TYPE, "name": name, "filterChains": [{}],
            "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 9777}}})
        .to_string()
    };
    let good = with(&written("own"), &written("own_api"));
    let before = generator.generate(&good, None);
    assert_eq!(before.failures(), []);
    // Neither the name nor anything else can be parsed.
    let typo = with("{\"name\": ", "{");
    let after = generator.generate(&typo, Some((&good, &before)));
    assert!(after.failures().iter().all(|failure| failure.kept));
    assert_eq!(after.failures().len(), 2);
    assert_eq!(names(&after), names(&before));
    let renamed = with(&written("renamed"), &written("renamed_api"));
    let mended = generator.generate(&renamed, Some((&typo, &after)));
    assert_eq!(names(&mended), names(&generator.generate(&renamed, None)));
    // A removed upstream leaves nothing behind.
    let gone = Web {
        upstreams: Vec::new(),
        ..typo.clone()
    };
    let last = generator.generate(&gone, Some((&typo, &after)));
    assert_eq!(listener(&last, "own_api"), None);
    assert!(listener(&last, "own").is_some());
}

/// A user cannot bypass a new rule by breaking another setting of their service.
#[test]
fn a_failed_listener_is_dropped_when_its_access_rules_change() {
    let generator = Generator::new();
    let written = json!({"envoy_public_listener_json": "{"});
    for (config, protocol) in [
        (written, Protocol::Http),
        (json!({"bind_address": "localhost"}), Protocol::Tcp),
    ] {
        let good = with_api(protocol);
        let before = generator.generate(&good, None);
        let broken = Web {
            instance: sidecar(json!({"LocalServicePort": 8080, "Config": config})),
            ..good.clone()
        };
        let kept = generator.generate(&broken, Some((&good, &before)));
        assert!(kept.failures().iter().all(|failure| failure.kept));
        let denied = Web {
            intentions: intentions(&[("shop", json!("deny"))]),
            ..broken.clone()
        };
        let after = generator.generate(&denied, Some((&broken, &kept)));
        assert_eq!(listener(&after, PUBLIC), None);
        let later = Web {
            upstreams: Vec::new(),
            ..denied.clone()
        };
        let last = generator.generate(&later, Some((&denied, &after)));
        assert_eq!(listener(&last, PUBLIC), None);
    }
}

#[test]
fn a_kept_listener_keeps_what_it_refers_to() {
    let generator = Generator::new();
    let first = with_api(Protocol::Http);
    let before = generator.generate(&first, None);
    let mut odd = odd_api(&json!({"LocalBindAddress": "localhost"}));
    customise(&mut odd, Some("12345678"));
    let second = Web {
        protocol: Protocol::Tcp,
        mesh: bad_incoming(),
        upstreams: vec![odd.clone()],
        ..first.clone()
    };
    let after = generator.generate(&second, Some((&first, &before)));
    assert!(listener(&after, "api:127.0.0.1:9191").is_some());
    assert!(cluster(&after, API).is_some() && endpoints(&after, API).is_some());
    assert!(cluster(&after, &format!("12345678~{API}")).is_some());
    assert_eq!(listener(&after, PUBLIC), listener(&before, PUBLIC));
    assert_eq!(routes(&after), routes(&before));
    // Only one earlier version is kept, however often other inputs change.
    customise(&mut odd, Some("87654321"));
    let third = Web {
        upstreams: vec![odd],
        ..second.clone()
    };
    let later = generator.generate(&third, Some((&second, &after)));
    assert!(cluster(&later, API).is_some());
    assert!(cluster(&later, &format!("12345678~{API}")).is_none());
}

#[test]
fn a_listener_is_not_made_without_its_cluster() {
    let generator = Generator::new();
    let bad_outgoing = |mut snapshot: Web| {
        snapshot.mesh = mesh(json!({"TLS": {"Outgoing": {"CipherSuites": ["ROT13"]}}}));
        snapshot
    };
    let first = with_api(Protocol::Http);
    let upstream = "api:127.0.0.1:9191";
    let new = generator.generate(&bad_outgoing(first.clone()), None);
    assert_eq!(listener(&new, upstream), None);
    assert_eq!(new.failures().len(), 2);
    assert!(listener(&new, PUBLIC).is_some());

    let before = generator.generate(&first, None);
    let after = generator.generate(&bad_outgoing(first.clone()), Some((&first, &before)));
    assert_eq!(after.failures().len(), 1);
    assert_eq!(names(&after), names(&before));
    // Another cluster that cannot be made either: the listener stays with the existing cluster.
    let mut moved = bad_outgoing(first.clone());
    customise(&mut moved.upstreams[0], Some("12345678"));
    let after = generator.generate(&moved, Some((&first, &before)));
    assert_eq!(listener(&after, upstream), listener(&before, upstream));
    assert_eq!(cluster(&after, API), cluster(&before, API));
    assert!(endpoints(&after, API).is_some());
}

#[test]
fn failed_access_rules_are_never_omitted() {
    let generator = Generator::new();
    let bad = |protocol| Web {
        intentions: bad_intentions(),
        default_intention: Action::Allow,
        ..with_api(protocol)
    };
    let closed = generator.generate(&bad(Protocol::Http), None);
    assert_eq!(listener(&closed, PUBLIC), None);
    assert_eq!(routes(&closed), None);
    assert!(listener(&closed, "api:127.0.0.1:9191").is_some());

    let (tcp, http) = (with_api(Protocol::Tcp), with_api(Protocol::Http));
    let spoke_tcp = generator.generate(&tcp, None);
    let turned = generator.generate(&bad(Protocol::Http), Some((&tcp, &spoke_tcp)));
    assert_eq!(listener(&turned, PUBLIC), listener(&spoke_tcp, PUBLIC));
    let spoke_http = generator.generate(&http, None);
    let stays = generator.generate(&bad(Protocol::Http), Some((&http, &spoke_http)));
    assert_eq!(routes(&stays), routes(&spoke_http));

    // The routes can be made again, so that the listener is made, although nothing else has
    // changed.
    let next = generator.generate(&http, Some((&bad(Protocol::Http), &closed)));
    assert_eq!(next.failures(), []);
    assert!(listener(&next, PUBLIC).is_some() && routes(&next).is_some());
}

#[test]
fn a_kept_listener_yields_its_address_to_a_new_one() {
    let generator = Generator::new();
    let first = with_api(Protocol::Http);
    let before = generator.generate(&first, None);
    let db = json!({"DestinationName": "db", "LocalBindPort": 9191});
    let second = Web {
        upstreams: vec![
            odd_api(&json!({"LocalBindAddress": "localhost"})),
            upstream(db, Protocol::Tcp, Vec::new()),
        ],
        ..first.clone()
    };
    let after = generator.generate(&second, Some((&first, &before)));
    assert!(listener(&after, "db:127.0.0.1:9191").is_some());
    assert_eq!(listener(&after, "api:127.0.0.1:9191"), None);
}

#[test]
fn a_proxy_without_secrets_or_listeners_is_unusable() {
    let generator = Generator::new();
    let good = web();
    let snapshot = Web {
        mesh: bad_incoming(),
        ..good.clone()
    };
    let set = generator.generate(&snapshot, None);
    let Some(GenerateError::CipherSuite { value, .. }) = set.unusable() else {
        panic!("{:?}", set.unusable())
    };
    assert_eq!(value, "ROT13");
    let mut no_roots = Arc::unwrap_or_clone(roots("one"));
    no_roots.roots.clear();
    let untrusting = Web {
        roots: Arc::new(no_roots),
        ..with_api(Protocol::Tcp)
    };
    let set = generator.generate(&untrusting, None);
    assert_eq!(set.unusable(), Some(&GenerateError::NoRoots));
    let before = generator.generate(&good, None);
    let after = generator.generate(&snapshot, Some((&good, &before)));
    assert_eq!(after.unusable(), None);
}

#[test]
fn a_change_computes_only_affected_parts() {
    let first = Web {
        protocol: Protocol::Http,
        upstreams: (0..50)
            .map(|n| {
                upstream(
                    json!({"DestinationName": format!("api-{n}"), "LocalBindPort": 9000 + n}),
                    Protocol::Http,
                    vec![instance("10.0.2.1", 20001, &[])],
                )
            })
            .collect(),
        ..web()
    };
    let cost = |edit: &dyn Fn(&mut Web)| {
        let generator = Generator::new();
        let before = generator.generate(&first, None);
        let start = generator.work();
        let mut second = first.clone();
        edit(&mut second);
        let after = generator.generate(&second, Some((&first, &before)));
        let Work { computed, encoded } = generator.work();
        let fresh = generator.generate(&second, None);
        assert_eq!(names(&after), names(&fresh));
        (computed - start.computed, encoded - start.encoded)
    };
    assert_eq!(cost(&|_| {}), (0, 0));
    assert_eq!(cost(&|s| s.leaf = leaf("web", "second")), (1, 1));
    assert_eq!(cost(&|s| s.roots = roots("two")), (1, 1));
    let flap = weighted("10.0.2.2", 20001, &[], (2, 1));
    let flap = Arc::new(vec![flap].into());
    assert_eq!(cost(&|s| set_instances(&mut s.upstreams[7], &flap)), (1, 1));
    let allow = intentions(&[("shop", json!("allow"))]);
    assert_eq!(cost(&|s| s.intentions = Arc::clone(&allow)), (1, 1));
    // The public listener and each upstream's cluster contain the mesh's TLS settings.
    let tls = mesh(json!({"TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}}));
    assert_eq!(cost(&|s| s.mesh = Arc::clone(&tls)), (51, 1));
    assert_eq!(
        cost(&|s| {
            s.upstreams.remove(0);
        }),
        (0, 0)
    );
}

#[test]
fn common_resources_are_encoded_once() {
    let generator = Generator::new();
    let proxies: Vec<Web> = (0..20).map(|_| with_api(Protocol::Http)).collect();
    let sets: Vec<ResourceSet> = proxies
        .iter()
        .map(|proxy| generator.generate(proxy, None))
        .collect();
    let start = generator.work();
    let flap = Arc::new(vec![instance("10.0.2.2", 20001, &[])].into());
    let after: Vec<ResourceSet> = proxies
        .iter()
        .zip(&sets)
        .map(|(proxy, set)| {
            let mut next = proxy.clone();
            set_instances(&mut next.upstreams[0], &flap);
            generator.generate(&next, Some((proxy, set)))
        })
        .collect();
    let Work { computed, encoded } = generator.work();
    assert_eq!(
        (computed - start.computed, encoded - start.encoded),
        (20, 1)
    );
    for (before, after) in sets.iter().zip(&after) {
        assert_ne!(endpoints(before, API), endpoints(after, API));
    }
}

/// A sidecar with exposed paths on these listener ports, and with this application address.
fn exposing(ports: &[u16], local_service_address: &str) -> Web {
    let path = |port: &u16| json!({"Path": "/x", "ListenerPort": port, "LocalPathPort": port - 1});
    let paths: Vec<Value> = ports.iter().map(path).collect();
    Web {
        instance: sidecar(json!({
            "LocalServicePort": 8080, "LocalServiceAddress": local_service_address,
            "Expose": {"Paths": paths},
        })),
        ..with_api(Protocol::Http)
    }
}

const EXPOSED: &str = "exposed_path_x:0.0.0.0:20300";

#[test]
fn fewer_exposed_paths_while_something_fails() {
    let generator = Generator::new();
    let good = exposing(&[20300, 20301], "127.0.0.1");
    let first = generator.generate(&good, None);
    assert_eq!(first.failures(), []);
    // No cluster of the application can be made: the current resources stay.
    let bad = exposing(&[20300], "localhost");
    let after = generator.generate(&bad, Some((&good, &first)));
    assert!(after.failures().iter().all(|failure| failure.kept));
    assert_eq!(listener(&after, EXPOSED), listener(&first, EXPOSED));
    assert_eq!(listener(&after, "exposed_path_x:0.0.0.0:20301"), None);
    assert_eq!(cluster(&after, "exposed_cluster_20300"), None);
    let mended = exposing(&[20300], "127.0.0.1");
    let last = generator.generate(&mended, Some((&bad, &after)));
    assert_eq!(names(&last), names(&generator.generate(&mended, None)));
}

#[test]
fn an_exposed_path_needs_its_cluster() {
    let set = Generator::new().generate(&exposing(&[20300], "localhost"), None);
    let failed: Vec<_> = set.failures().iter().map(|one| &*one.resource).collect();
    let expected = ["local_app", "exposed_cluster_20299", "exposed_path_x"];
    assert_eq!(failed, expected);
    assert_eq!(listener(&set, EXPOSED), None);
    assert!(listener(&set, PUBLIC).is_some() && set.unusable().is_none());
}

#[test]
fn exposed_paths_are_made_again_with_their_registration_only() {
    let generator = Generator::new();
    let before = exposing(&[20300, 20301], "127.0.0.1");
    let first = generator.generate(&before, None);
    let work = |after: &Web| {
        let start = generator.work();
        let set = generator.generate(after, Some((&before, &first)));
        assert_eq!(set.failures(), []);
        generator.work().computed - start.computed
    };
    let renewed = Web {
        leaf: leaf("web", "second"),
        roots: roots("two"),
        intentions: intentions(&[("shop", json!("allow"))]),
        ..before.clone()
    };
    // The two secrets and the routes.
    assert_eq!(work(&renewed), 3);
    let registered = Web {
        instance: exposing(&[20300, 20301, 20302], "127.0.0.1").instance,
        ..before.clone()
    };
    // The application's cluster, routes and listener, two parts for each path, and the upstream's
    // cluster.
    assert_eq!(work(&registered), 3 + 6 + 1);
}
