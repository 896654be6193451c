//! Resources of a proxy in transparent mode: golden files, conflicts of addresses, and the cost of
//! changes.

use std::sync::Arc;

use legate_model::Protocol;
use legate_proxycfg::{
    Destination, Destinations, Dialled, DialledKind, ImplicitUpstream, ImplicitUpstreams,
    UpstreamSnapshot,
};
use legate_resources::ResourceSet;
use serde_json::{Value, json};

use crate::describe::{one, type_urls};
use crate::support::{
    Generator, Web, api, customise, instance, made, mesh, roots, set_instances, sidecar, upstream,
    web,
};

use DialledKind::{Instance, Service, Tagged};

pub(crate) fn implicit(
    upstream: UpstreamSnapshot,
    addresses: &[(DialledKind, String)],
) -> Arc<ImplicitUpstream> {
    let dialled = |(kind, ip): &(DialledKind, String)| Dialled {
        kind: *kind,
        age: 0,
        ip: ip.parse().unwrap(),
    };
    Arc::new(ImplicitUpstream {
        upstream,
        addresses: addresses.iter().map(dialled).collect(),
    })
}

fn service(
    name: &str,
    protocol: Protocol,
    addresses: &[(DialledKind, &str)],
) -> Arc<ImplicitUpstream> {
    let instances = vec![instance("10.0.2.1", 20001, &[])];
    let upstream = upstream(json!({"DestinationName": name}), protocol, instances);
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(kind, ip)| (*kind, (*ip).to_owned()))
        .collect();
    implicit(upstream, &addresses)
}

/// `web`, which may call these services.
pub(crate) fn captured(proxy: Value, implicit: Vec<Arc<ImplicitUpstream>>) -> Web {
    let mut proxy = proxy;
    proxy["Mode"] = json!("transparent");
    proxy["LocalServicePort"] = json!(8080);
    Web {
        instance: sidecar(proxy),
        implicit: Some(Arc::new(ImplicitUpstreams(implicit))),
        ..web()
    }
}

pub(crate) fn two() -> Vec<Arc<ImplicitUpstream>> {
    let addresses = [
        (Service, "10.96.0.5"),
        (Service, "240.0.0.1"),
        (Tagged, "10.96.0.6"),
    ];
    let directly = [
        (Service, "240.0.0.2"),
        (Instance, "10.0.2.1"),
        (Instance, "fd00::1"),
    ];
    vec![
        service("api", Protocol::Http, &addresses),
        service("db", Protocol::Tcp, &directly),
    ]
}

/// Only the resources that a proxy in any other mode does not have.
pub(crate) fn described(snapshot: &Web) -> String {
    let (set, usual) = (made(snapshot), made(&web()));
    let mut out = String::new();
    for type_url in type_urls() {
        let own = usual.get(&type_url);
        let added = set
            .get(&type_url)
            .iter()
            .filter(|(name, _)| !own.contains_key(name));
        added.for_each(|(_, resource)| out.push_str(&one(resource)));
    }
    for warning in set.warnings() {
        out.push_str(&format!("# warning: {warning}\n"));
    }
    out
}

pub(crate) fn outbound(set: &ResourceSet) -> Option<String> {
    let mut listeners = set.get(&type_urls()[2]).iter();
    let found = listeners.find(|(name, _)| name.starts_with("outbound_listener"));
    found.map(|(_, listener)| one(listener))
}

#[test]
fn services_by_virtual_ip_and_instances_and_the_world_outside() {
    insta::assert_snapshot!(described(&captured(json!({}), two())));
}

#[test]
fn only_the_mesh_on_another_port() {
    let proxy = json!({"TransparentProxy": {"OutboundListenerPort": 15099}});
    let snapshot = Web {
        mesh: mesh(json!({"TransparentProxy": {"MeshDestinationsOnly": true}})),
        ..captured(
            proxy,
            vec![service("db", Protocol::Tcp, &[(Service, "240.0.0.2")])],
        )
    };
    insta::assert_snapshot!(described(&snapshot));
    let nowhere = Web {
        implicit: Some(Arc::default()),
        ..snapshot
    };
    assert_eq!(described(&nowhere), "");
}

#[test]
fn an_explicit_upstream_has_one_cluster_for_both_ways() {
    let mut explicit = api(Protocol::Grpc);
    customise(&mut explicit, Some("12345678"));
    let snapshot = Web {
        upstreams: vec![explicit],
        ..captured(json!({}), two())
    };
    let set = made(&snapshot);
    assert_eq!(set.warnings(), [""; 0]);
    let clusters: Vec<_> = set
        .get(&type_urls()[0])
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        clusters,
        [
            "12345678~api.default.dc1.internal.c1.consul",
            "db.default.dc1.internal.c1.consul",
            "local_app",
            "original-destination",
            "passthrough~db.default.dc1.internal.c1.consul",
        ]
    );
    let listener = outbound(&set).unwrap();
    assert!(listener.contains("12345678~api"), "{listener}");
    assert!(listener.contains("240.0.0.1"), "{listener}");
}

#[test]
fn an_explicit_upstream_cannot_take_the_port() {
    let proxy = json!({"TransparentProxy": {"OutboundListenerPort": 9191}});
    let snapshot = Web {
        upstreams: vec![api(Protocol::Tcp)],
        ..captured(proxy, two())
    };
    let set = made(&snapshot);
    assert!(outbound(&set).is_some());
    let warnings = set.warnings().join("\n");
    assert!(
        warnings.contains("upstream api listens on 127.0.0.1:9191"),
        "{warnings}"
    );
}

/// Envoy refuses a listener in which two chains have the same address.
#[test]
fn an_address_leads_to_one_service() {
    let new = |one: &mut ImplicitUpstream| {
        let all = std::mem::take(&mut one.addresses).into_iter();
        let older = |dialled: Dialled| Dialled { age: 1, ..dialled };
        one.addresses = all.map(older).collect();
    };
    let mut old = service(
        "old",
        Protocol::Tcp,
        &[(Instance, "10.0.2.1"), (Tagged, "10.96.0.6")],
    );
    new(Arc::get_mut(&mut old).unwrap());
    let snapshot = captured(
        json!({}),
        vec![
            service("api", Protocol::Tcp, &[(Tagged, "10.96.0.5")]),
            service("db", Protocol::Tcp, &[(Service, "10.96.0.5")]),
            old,
            service(
                "young",
                Protocol::Tcp,
                &[(Instance, "10.0.2.1"), (Instance, "10.96.0.5")],
            ),
            service("zero", Protocol::Tcp, &[(Tagged, "10.96.0.6")]),
        ],
    );
    let set = made(&snapshot);
    assert_eq!(
        set.warnings(),
        [
            "services db and api both have the virtual IP 10.96.0.5: it is routed to db",
            "services zero and old both have the virtual IP 10.96.0.6: it is routed to zero",
        ]
    );
    insta::assert_snapshot!(outbound(&set).unwrap());
}

#[test]
fn a_service_whose_cluster_cannot_be_made_does_not_leave_the_mesh() {
    let generator = Generator::new();
    let bad = Web {
        mesh: mesh(json!({"TLS": {"Outgoing": {"CipherSuites": ["ROT13"]}}})),
        ..captured(json!({}), two())
    };
    let first = generator.generate(&bad, None);
    assert_eq!(
        first.failures().len(),
        3,
        "two services, one of them by its instances"
    );
    let listener = outbound(&first).unwrap();
    assert!(listener.contains("240.0.0.1") && !listener.contains("http_connection_manager"));

    // Once the cluster can be made, the listener gets its routes.
    let good = captured(json!({}), two());
    let after = generator.generate(&good, Some((&bad, &first)));
    assert_eq!(after.failures(), []);
    assert_eq!(outbound(&after), outbound(&made(&good)));
    // The previous version stays, and the listener with it.
    let again = generator.generate(&bad, Some((&good, &after)));
    assert!(again.failures().iter().all(|failure| failure.kept));
    assert_eq!(outbound(&again), outbound(&after));
}

/// The cost of a change: recomputed parts and encoded resources.
fn cost(change: impl FnOnce(&mut Web)) -> (u64, u64) {
    let generator = Generator::new();
    let before = captured(json!({}), two());
    let set = generator.generate(&before, None);
    let work = generator.work();
    let mut after = before.clone();
    change(&mut after);
    let made = generator.generate(&after, Some((&before, &set)));
    assert_eq!(made.failures(), []);
    let done = generator.work();
    (done.computed - work.computed, done.encoded - work.encoded)
}

fn edit(snapshot: &mut Web, change: impl FnOnce(&mut Vec<Arc<ImplicitUpstream>>)) {
    let mut all = snapshot.implicit.as_ref().unwrap().0.clone();
    change(&mut all);
    snapshot.implicit = Some(Arc::new(ImplicitUpstreams(all)));
}

#[test]
fn a_change_costs_what_it_changes() {
    assert_eq!(cost(|_| {}), (0, 0));
    assert_eq!(cost(|s| s.roots = roots("two")), (1, 1), "the roots");
    assert_eq!(
        cost(|s| edit(s, |_| {})),
        (0, 0),
        "another list of the same"
    );
    let instances = |s: &mut Web| {
        edit(s, |all| {
            let mut api = ImplicitUpstream::clone(&all[0]);
            set_instances(&mut api.upstream, &Arc::default());
            all[0] = Arc::new(api);
        });
    };
    assert_eq!(cost(instances), (1, 1), "the endpoints");
    let address = |s: &mut Web| {
        edit(s, |all| {
            let mut api = ImplicitUpstream::clone(&all[0]);
            let other = implicit(api.upstream.clone(), &[(Service, "10.96.0.9".to_owned())]);
            api.addresses.clone_from(&other.addresses);
            all[0] = Arc::new(api);
        });
    };
    assert_eq!(cost(address), (1, 1), "the listener");
    let more = |s: &mut Web| {
        edit(s, |all| {
            all.insert(0, service("a", Protocol::Tcp, &[(Service, "240.0.0.3")]))
        });
    };
    assert_eq!(
        cost(more),
        (5, 3),
        "what it has and does not have of its own, and the listener"
    );
    assert_eq!(
        cost(|s| edit(s, |all| drop(all.remove(0)))),
        (1, 1),
        "the listener"
    );
}

#[test]
fn a_change_of_a_destination_costs_what_it_changes() {
    let destination = |name: &str, gateway: &str| {
        Arc::new(Destination {
            name: name.to_owned(),
            protocol: Protocol::Http,
            addresses: vec![format!("{name}.example")],
            port: 80,
            gateways: Arc::new(vec![instance(gateway, 8443, &[])].into()),
        })
    };
    let outside = |all: &[&Arc<Destination>]| {
        let all: Vec<_> = all.iter().map(|one| Arc::clone(one)).collect();
        Web {
            destinations: Arc::new(Destinations(all)),
            ..captured(json!({}), two())
        }
    };
    let (a, b) = (destination("a", "10.0.3.1"), destination("b", "10.0.3.1"));
    let both = outside(&[&a, &b]);
    let cost = |after: Web| {
        let generator = Generator::new();
        let set = generator.generate(&both, None);
        let work = generator.work();
        let after = Web {
            instance: Arc::clone(&both.instance),
            implicit: both.implicit.clone(),
            leaf: Arc::clone(&both.leaf),
            roots: Arc::clone(&both.roots),
            mesh: Arc::clone(&both.mesh),
            intentions: Arc::clone(&both.intentions),
            jwt_providers: Arc::clone(&both.jwt_providers),
            peers: Arc::clone(&both.peers),
            ..after
        };
        let made = generator.generate(&after, Some((&both, &set)));
        assert_eq!(made.failures(), []);
        let done = generator.work();
        (done.computed - work.computed, done.encoded - work.encoded)
    };
    assert_eq!(cost(outside(&[&a, &b])), (0, 0), "another list of the same");
    let moved = destination("b", "10.0.3.2");
    assert_eq!(cost(outside(&[&a, &moved])), (1, 1), "the endpoints");
    assert_eq!(
        cost(outside(&[&b])),
        (2, 1),
        "the routes, and the same listener"
    );
}

#[test]
fn implicit_and_explicit_upstreams_share_their_bytes() {
    let generator = Generator::new();
    let explicit = Web {
        upstreams: vec![api(Protocol::Http)],
        ..web()
    };
    let sets = [explicit, captured(json!({}), two())].map(|one| generator.generate(&one, None));
    let name = "api.default.dc1.internal.c1.consul";
    for type_url in &type_urls()[..2] {
        let [a, b] = [&sets[0], &sets[1]].map(|set| &set.get(type_url)[name]);
        assert!(Arc::ptr_eq(a, b), "{type_url}");
    }
}
