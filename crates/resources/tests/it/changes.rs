//! Property: resources made from a snapshot and its predecessor equal those made from the snapshot
//! alone, for any sequence of changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use legate_intentions::Action;
use legate_model::{Protocol, TrustDomain};
use legate_proxycfg::{
    Destination, Destinations, DialledKind, ImplicitUpstream, ImplicitUpstreams, UpstreamSnapshot,
};
use legate_resources::ResourceSet;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::support::{
    Generator, Web, chained, connect_within, customise, edit_chain, instance, intentions, leaf,
    mesh, roots, set_instances, sidecar, upstream, web,
};

/// A change. Numbers select one of a few values, so that a value can also return as another `Arc`.
/// Resources can be made from all values.
#[derive(Clone, Debug)]
enum Change {
    Leaf(u8),
    Roots(u8),
    Intentions(u8),
    DefaultIntention(bool),
    Protocol(u8),
    Mesh(u8),
    Registration(u8),
    TrustDomain(u8),
    Datacenter(u8),
    AddUpstream(u8, u8),
    RemoveUpstream(u8),
    SwapUpstreams(u8, u8),
    Upstream(u8, UpstreamChange),
    /// Another mode, or the implicit upstreams with these numbers, each in one of a few forms.
    Implicit(Option<Vec<(u8, u8)>>),
    /// The services outside the mesh with these numbers, each in one of a few forms.
    Destinations(Vec<(u8, u8)>),
}

#[derive(Clone, Debug)]
enum UpstreamChange {
    Definition(u8, u8),
    Protocol(u8),
    Timeout(u8),
    Customisation(bool),
    Instances(u8),
    Chain(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let few = 0..3u8;
    let of_upstream = prop_oneof![
        (0..3u8, 0..4u8).prop_map(|(name, form)| UpstreamChange::Definition(name, form)),
        few.clone().prop_map(UpstreamChange::Protocol),
        few.clone().prop_map(UpstreamChange::Timeout),
        any::<bool>().prop_map(UpstreamChange::Customisation),
        few.clone().prop_map(UpstreamChange::Instances),
        (0..7u8).prop_map(UpstreamChange::Chain),
    ];
    prop_oneof![
        few.clone().prop_map(Change::Leaf),
        few.clone().prop_map(Change::Roots),
        few.clone().prop_map(Change::Intentions),
        any::<bool>().prop_map(Change::DefaultIntention),
        few.clone().prop_map(Change::Protocol),
        few.clone().prop_map(Change::Mesh),
        (0..5u8).prop_map(Change::Registration),
        few.clone().prop_map(Change::TrustDomain),
        few.clone().prop_map(Change::Datacenter),
        (0..3u8, 0..4u8).prop_map(|(name, form)| Change::AddUpstream(name, form)),
        (0..4u8).prop_map(Change::RemoveUpstream),
        (0..4u8, 0..4u8).prop_map(|(a, b)| Change::SwapUpstreams(a, b)),
        (0..4u8, of_upstream).prop_map(|(at, change)| Change::Upstream(at, change)),
        prop::option::weighted(0.9, prop::collection::btree_map(0..5u8, 0..5u8, 0..5))
            .prop_map(|all| Change::Implicit(all.map(|all| all.into_iter().collect()))),
        prop::collection::btree_map(0..4u8, 0..6u8, 0..4)
            .prop_map(|all| Change::Destinations(all.into_iter().collect())),
    ]
}

fn protocol(number: u8) -> Protocol {
    [Protocol::Tcp, Protocol::Http, Protocol::Grpc][usize::from(number)]
}

/// A service in transparent mode. The first three may also be explicit upstreams.
fn implicit(name: u8, form: u8) -> Arc<ImplicitUpstream> {
    let mut upstream = upstream(
        json!({"DestinationName": format!("api-{name}")}),
        protocol(form % 3),
        vec![instance("10.0.0.1", 20000 + u16::from(form), &[])],
    );
    let mut addresses = vec![(DialledKind::Service, format!("240.0.0.{}", name + 1))];
    match form {
        0 => {}
        1 => addresses.push((DialledKind::Instance, format!("10.0.1.{name}"))),
        2 => addresses.push((DialledKind::Tagged, "10.96.0.1".to_owned())),
        3 => customise(&mut upstream, Some("12345678")),
        _ => addresses.clear(),
    }
    crate::transparent::implicit(upstream, &addresses)
}

/// A service outside the mesh. Some share an address with each other, or with a service in the
/// mesh.
fn destination(name: u8, form: u8) -> Arc<Destination> {
    let own = format!("{name}.example");
    let addresses = match form {
        0 | 5 => vec!["192.0.2.1".to_owned(), own],
        1 => vec!["same.example".to_owned(), format!("192.0.2.{name}")],
        2 => vec!["240.0.0.1".to_owned()],
        3 => vec!["same.example".to_owned(), "2001:db8::1".to_owned()],
        _ => vec![own],
    };
    // The last one has no address, which is a warning.
    let gateway = ["10.0.3.1", "10.0.3.2", "nowhere"][usize::from(form % 3)];
    Arc::new(Destination {
        name: format!("outside-{name}"),
        protocol: protocol(form / 2),
        addresses,
        port: 80 + u16::from(form % 2),
        gateways: Arc::new(vec![instance(gateway, 8443, &[])].into()),
    })
}

/// One of three services, in one of four forms. Two forms listen on the same port.
fn defined(name: u8, form: u8) -> UpstreamSnapshot {
    let mut definition = json!({"DestinationName": format!("api-{name}"), "LocalBindPort": 9191});
    match form {
        0 => {}
        1 => definition["LocalBindPort"] = json!(9200 + u16::from(name)),
        2 => definition["LocalBindSocketPath"] = json!(format!("/run/{name}")),
        _ => {
            definition["Config"] = json!({"limits": {"max_connections": 7}, "envoy_cluster_json": format!(r#"{{
                    "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "own-{name}"
                }}"#)})
        }
    }
    upstream(definition, Protocol::Tcp, Vec::new())
}

/// Exposed paths: on another port, on the application's port with HTTP/2, and on the ports of the
/// public listener and of an upstream.
fn exposed(most: usize) -> Value {
    let paths = [
        json!({"Path": "/a", "ListenerPort": 20001, "LocalPathPort": 9000}),
        json!({"Path": "/b", "ListenerPort": 20402, "LocalPathPort": 8081, "Protocol": "http2"}),
        json!({"Path": "/c", "ListenerPort": 20000, "LocalPathPort": 8081}),
    ];
    json!(paths[..most])
}

fn registered(form: u8) -> Value {
    match form {
        0 => json!({"LocalServicePort": 8080}),
        1 => json!({"LocalServicePort": 8081, "Expose": {"Checks": true, "Paths": exposed(3)}}),
        2 => json!({"Config": {"xds_fetch_timeout_ms": 9, "local_request_timeout_ms": "soon"}}),
        3 => json!({
            "AccessLogs": {"Enabled": true},
            "Config": {
                "bind_port": 20001, "max_inbound_connections": 5,
                "envoy_public_listener_json": r#"{
                    "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
                    "name": "own", "filterChains": [{}]
                }"#,
            },
            "Expose": {"Paths": exposed(2)},
        }),
        _ => json!({
            "LocalServiceSocketPath": "/run/app", "TransparentProxy": {"OutboundListenerPort": 9191},
        }),
    }
}

fn apply(snapshot: &mut Web, change: &Change) {
    let upstreams = &mut snapshot.upstreams;
    let at = |place: u8| usize::from(place) % upstreams.len().max(1);
    match change {
        Change::Leaf(n) => snapshot.leaf = leaf("web", &n.to_string()),
        Change::Roots(n) => snapshot.roots = roots(&n.to_string()),
        Change::Intentions(n) => {
            let sources = [("a", json!("allow")), ("b", json!("deny"))];
            snapshot.intentions = intentions(&sources[..usize::from(*n)]);
        }
        Change::DefaultIntention(true) => snapshot.default_intention = Action::Allow,
        Change::DefaultIntention(false) => snapshot.default_intention = Action::Deny,
        Change::Protocol(n) => snapshot.protocol = protocol(*n),
        Change::Mesh(0) => snapshot.mesh = Arc::new(None),
        Change::Implicit(all) => {
            let all = all
                .as_ref()
                .map(|all| all.iter().map(|(name, form)| implicit(*name, *form)));
            let all = all.map(|all| Arc::new(ImplicitUpstreams(all.collect())));
            snapshot.implicit = all;
        }
        Change::Destinations(all) => {
            let all = all.iter().map(|(name, form)| destination(*name, *form));
            snapshot.destinations = Arc::new(Destinations(all.collect()));
        }
        Change::Mesh(1) => {
            snapshot.mesh = mesh(json!({"TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}}));
        }
        Change::Mesh(_) => {
            snapshot.mesh = mesh(json!({
                "TLS": {"Outgoing": {"TLSMinVersion": "TLSv1_3"}},
                "TransparentProxy": {"MeshDestinationsOnly": true},
            }));
        }
        Change::Registration(form) => snapshot.instance = sidecar(registered(*form)),
        Change::TrustDomain(n) => {
            snapshot.trust_domain = TrustDomain::of_cluster(&format!("c{n}"));
        }
        Change::Datacenter(n) => snapshot.datacenter = format!("dc{n}").into(),
        Change::AddUpstream(name, form) if upstreams.len() < 5 => {
            upstreams.push(defined(*name, *form));
        }
        Change::RemoveUpstream(place) if !upstreams.is_empty() => {
            upstreams.remove(at(*place));
        }
        Change::SwapUpstreams(a, b) if !upstreams.is_empty() => {
            let (a, b) = (at(*a), at(*b));
            upstreams.swap(a, b);
        }
        Change::Upstream(place, change) if !upstreams.is_empty() => {
            let place = at(*place);
            apply_to(&mut upstreams[place], change);
        }
        Change::AddUpstream(..)
        | Change::RemoveUpstream(_)
        | Change::SwapUpstreams(..)
        | Change::Upstream(..) => {}
    }
}

fn apply_to(upstream: &mut UpstreamSnapshot, change: &UpstreamChange) {
    match change {
        UpstreamChange::Definition(name, form) => {
            upstream.upstream = defined(*name, *form).upstream;
        }
        UpstreamChange::Protocol(n) => edit_chain(upstream, |chain| chain.protocol = protocol(*n)),
        UpstreamChange::Chain(form) => {
            let definition = serde_json::to_value(&*upstream.upstream).unwrap();
            let entries = entries(&upstream.upstream.destination_name, *form);
            let instances = |_: &str| vec![instance("10.0.0.1", 20001, &[])];
            upstream.resolved = chained(definition, &entries, instances).resolved;
        }
        UpstreamChange::Timeout(n) => {
            connect_within(upstream, Duration::from_secs(u64::from(*n) + 1));
        }
        UpstreamChange::Customisation(set) => {
            customise(upstream, set.then_some("12345678"));
        }
        UpstreamChange::Instances(n) => {
            // The last one has no address, which is a warning.
            let address = ["10.0.0.1", "10.0.0.2", "nowhere"][usize::from(*n)];
            let instances = vec![instance(address, 20001, &[])];
            set_instances(upstream, &Arc::new(instances.into()));
        }
    }
}

/// A service with its own instances, with others, or without any.
fn entries(name: &str, form: u8) -> Vec<Value> {
    let defaults =
        |name: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    let resolver = |more: Value| {
        let mut entry = more;
        entry["Kind"] = json!("service-resolver");
        entry["Name"] = json!(name);
        entry
    };
    let more = match form {
        0 => return Vec::new(),
        1 => resolver(json!({"Redirect": {"Service": "b"}})),
        2 => {
            resolver(json!({"Failover": {"*": {"Targets": [{"Service": "b"}, {"Service": "c"}]}}}))
        }
        3 => json!({
            "Kind": "service-splitter", "Name": name,
            "Splits": [{"Weight": 90}, {"Weight": 10, "Service": "b"}],
        }),
        // With the resolvers of the previous one and of the last one.
        4 => json!({
            "Kind": "service-splitter", "Name": name,
            "Splits": [{"Weight": 50, "Service": "b"}, {"Weight": 50}],
        }),
        5 => json!({
            "Kind": "service-router", "Name": name, "Routes": [
                {"Match": {"HTTP": {"PathPrefix": "/c"}}, "Destination": {"Service": "c"}},
                {"Match": {"HTTP": {"PathPrefix": "/b"}}, "Destination": {"Service": "b"}},
            ],
        }),
        _ => json!({
            "Kind": "service-router", "Name": name, "Routes": [
                {"Match": {"HTTP": {"PathPrefix": "/b"}}, "Destination": {"Service": "b"}},
                {"Match": {"HTTP": {"PathExact": "/c"}}, "Destination": {"Service": "c"}},
            ],
        }),
    };
    vec![defaults(name), defaults("b"), defaults("c"), more]
}

type Versions = BTreeMap<(String, Arc<str>), Arc<str>>;

fn versions(set: &ResourceSet) -> Versions {
    let of_type = |url: String| {
        let resources = set.get(&url).values();
        resources.map(move |one| ((url.clone(), one.name.clone()), Arc::clone(&one.version)))
    };
    type_urls().into_iter().flat_map(of_type).collect()
}

proptest! {
    #[test]
    fn an_incremental_set_equals_a_full_one(
        history in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..12),
    ) {
        let mut snapshot = web();
        let mut set = Generator::new().generate(&snapshot, None);
        let generator = Generator::new();
        for changes in history {
            let last = snapshot.clone();
            changes.iter().for_each(|change| apply(&mut snapshot, change));
            set = generator.generate(&snapshot, Some((&last, &set)));
            let whole = Generator::new().generate(&snapshot, None);
            prop_assert_eq!(versions(&set), versions(&whole));
            prop_assert_eq!(set.warnings(), whole.warnings());
            prop_assert_eq!(set.failures(), []);
        }
    }
}
