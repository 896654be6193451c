//! Chains of config entries, handwritten and generated.

mod generated;

use std::collections::BTreeMap;

use legate_model::{
    Locality, LocalityMode, ProxyDefaults, SamenessGroup, ServiceDefaults, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, Tenancy, TrustDomain,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// Config entries as JSON, by kind and name.
#[derive(Debug, Default)]
struct Written(BTreeMap<(String, String), Value>);

impl Written {
    /// Each entry has `Kind` and `Name`.
    fn new(entries: impl IntoIterator<Item = Value>) -> Self {
        let key = |entry: &Value| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            let tenant = |field: &str| text(field).parse().unwrap();
            let tenancy = Tenancy::new(&tenant("Partition"), &tenant("Namespace"));
            let name = ServiceName::new(&tenancy, text("Name"));
            (text("Kind").to_owned(), name.to_string())
        };
        Self(
            entries
                .into_iter()
                .map(|entry| (key(&entry), entry))
                .collect(),
        )
    }

    fn read<T: DeserializeOwned>(&self, kind: &str, name: &ServiceName) -> Option<T> {
        let entry = self.0.get(&(kind.to_owned(), name.to_string()))?.clone();
        Some(serde_json::from_value(entry).unwrap())
    }
}

impl Entries for Written {
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter> {
        self.read("service-router", service)
    }
    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter> {
        self.read("service-splitter", service)
    }
    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver> {
        self.read("service-resolver", service)
    }
    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        self.read("service-defaults", service)
    }
    fn proxy_defaults(&self, tenancy: &Tenancy) -> Option<ProxyDefaults> {
        let name = ServiceName::new(&tenancy.of_partition(), "global");
        self.read("proxy-defaults", &name)
    }
    fn default_sameness_group(&self, tenancy: &Tenancy) -> Option<SamenessGroup> {
        self.read(
            "sameness-group",
            &ServiceName::new(&tenancy.of_partition(), "group"),
        )
    }
    fn peer_locality(&self, _: &Tenancy, peer: &str) -> Option<Locality> {
        let region = format!("r of {peer}");
        let zone = String::new();
        Some(Locality { region, zone })
    }
}

/// The chain of `web` in `dc1`.
fn chain_with(entries: &Written, overrides: Overrides) -> Result<Chain, ChainError> {
    let request = Request {
        service: &"web".into(),
        datacenter: "dc1",
        trust_domain: &TrustDomain::of_cluster("c1"),
        overrides,
    };
    compile(&request, entries)
}

fn chain(entries: impl IntoIterator<Item = Value>) -> Result<Chain, ChainError> {
    chain_with(&Written::new(entries), Overrides::default())
}

fn json_of(entries: impl IntoIterator<Item = Value>) -> Value {
    serde_json::to_value(chain(entries).unwrap()).unwrap()
}

fn refused(entries: impl IntoIterator<Item = Value>) -> String {
    chain(entries).unwrap_err().to_string()
}

/// A `proxy-defaults` entry that sets HTTP for all services.
fn http() -> Value {
    json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}})
}

fn resolver(name: &str, more: Value) -> Value {
    entry("service-resolver", name, more)
}

fn entry(kind: &str, name: &str, mut more: Value) -> Value {
    more["Kind"] = kind.into();
    more["Name"] = name.into();
    more
}

fn splits(name: &str, splits: &[(f32, &str, &str)]) -> Value {
    let splits: Vec<Value> = splits
        .iter()
        .map(|(weight, service, subset)| {
            json!({"Weight": weight, "Service": service, "ServiceSubset": subset})
        })
        .collect();
    entry("service-splitter", name, json!({"Splits": splits}))
}

#[test]
fn a_reference_to_another_tenant_is_resolved_there() {
    let web = json!({
        "Redirect": {"Service": "api", "Namespace": "team", "Partition": "shop"},
    });
    let api = json!({
        "Namespace": "team",
        "Partition": "shop",
        "Failover": {"*": {"Namespace": "spare"}},
        "ConnectTimeout": "3s",
    });
    let chain = json_of([resolver("web", web), resolver("api", api)]);
    assert_eq!(chain["Namespace"], "default");
    assert_eq!(chain["StartNode"], "resolver:api.team.shop.dc1");
    let target = &chain["Targets"]["api.team.shop.dc1"];
    assert_eq!(target["Namespace"], "team");
    assert_eq!(target["Partition"], "shop");
    assert_eq!(target["ConnectTimeout"], "3s");
    assert_eq!(target["SNI"], "api.team.shop.dc1.internal-v1.c1.consul");
    let spare = &chain["Targets"]["api.spare.shop.dc1"];
    assert_eq!(spare["SNI"], "api.spare.shop.dc1.internal-v1.c1.consul");
}

#[test]
fn routes_and_splits_default_to_the_tenant_of_their_entry() {
    let split = json!({"Splits": [
        {"Weight": 50, "Namespace": "team"},
        {"Weight": 50, "Service": "api"},
    ]});
    let team = json!({"Namespace": "team", "Splits": [{"Weight": 100, "Service": "api"}]});
    let chain = json_of([
        http(),
        entry("service-splitter", "web", split),
        entry("service-splitter", "web", team),
    ]);
    let splits = &chain["Nodes"]["splitter:web.default.default"]["Splits"];
    assert_eq!(splits[0]["NextNode"], "resolver:api.team.default.dc1");
    assert_eq!(splits[1]["NextNode"], "resolver:api.default.default.dc1");
    assert_eq!(
        chain["Targets"]["api.team.default.dc1"]["SNI"],
        "api.team.dc1.internal.c1.consul"
    );
}

#[test]
fn without_entries_the_service_itself_answers() {
    let id = "web.default.default.dc1";
    let expected = json!({
        "ServiceName": "web", "Namespace": "default", "Partition": "default", "Datacenter": "dc1",
        "Default": true, "Protocol": "tcp", "StartNode": format!("resolver:{id}"),
        "Nodes": {format!("resolver:{id}"): {
            "Type": "resolver", "Name": id,
            "Resolver": {"Default": true, "ConnectTimeout": "5s", "Target": id},
        }},
        "Targets": {id: {
            "ID": id, "Service": "web", "Namespace": "default", "Partition": "default",
            "Datacenter": "dc1", "MeshGateway": {}, "Subset": {}, "TransparentProxy": {},
            "ConnectTimeout": "5s",
            "SNI": "web.default.dc1.internal.c1.consul", "Name": "web.default.dc1.internal.c1.consul",
        }},
    });
    assert_eq!(json_of([]), expected);
}

#[test]
fn routes_lead_to_splits_subsets_and_the_service_itself() {
    let routes = json!({"Routes": [
        {"Match": {"HTTP": {"PathPrefix": "/v2"}}, "Destination": {"Service": "api"}},
        {"Match": {"HTTP": {"PathExact": "/old"}}, "Destination": {"ServiceSubset": "v1"}},
        {},
    ]});
    let chain = chain([
        http(),
        entry("service-router", "web", routes),
        splits("api", &[(90.0, "", ""), (10.0, "beta", "")]),
        resolver(
            "web",
            json!({"Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}}}),
        ),
    ])
    .unwrap();
    assert_eq!(chain.start_node, "router:web.default.default");
    let Some(NodeKind::Router(routes)) = chain.start().map(|node| &node.kind) else {
        panic!("{chain:?}");
    };
    let next: Vec<&str> = routes.iter().map(|route| &*route.next_node).collect();
    let own = "resolver:web.default.default.dc1";
    let subset = "resolver:v1.web.default.default.dc1";
    assert_eq!(next, ["splitter:api.default.default", subset, own, own]);
    let filter = &chain.targets["v1.web.default.default.dc1"].subset.filter;
    assert_eq!(filter, "Service.Meta.version == v1");
    assert_eq!(chain.targets.len(), 4, "{:?}", chain.targets.keys());
    assert!(!chain.default);
}

#[test]
fn splits_that_lead_to_splits_become_one() {
    let outer = json!({"Splits": [
        {"Weight": 60, "Service": "a", "RequestHeaders": {"Set": {"x": "outer", "y": "outer"}},
         "ResponseHeaders": {"Set": {"x": "outer"}}},
        {"Weight": 40},
    ]});
    let inner = json!({"Splits": [
        {"Weight": 50, "RequestHeaders": {"Set": {"x": "inner"}},
         "ResponseHeaders": {"Set": {"x": "inner", "z": "inner"}}},
        {"Weight": 50, "Service": "b"},
    ]});
    let chain = json_of([
        http(),
        entry("service-splitter", "web", outer),
        entry("service-splitter", "a", inner),
    ]);
    let splits = &chain["Nodes"]["splitter:web.default.default"]["Splits"];
    let parts: Vec<(f64, &str)> = splits
        .as_array()
        .unwrap()
        .iter()
        .map(|split| {
            (
                split["Weight"].as_f64().unwrap(),
                split["NextNode"].as_str().unwrap(),
            )
        })
        .collect();
    let a = "resolver:a.default.default.dc1";
    let b = "resolver:b.default.default.dc1";
    let web = "resolver:web.default.default.dc1";
    assert_eq!(parts, [(30.0, a), (30.0, b), (40.0, web)]);
    let first = &splits[0]["Definition"];
    assert_eq!(
        first["RequestHeaders"]["Set"],
        json!({"x": "inner", "y": "outer"})
    );
    assert_eq!(
        first["ResponseHeaders"]["Set"],
        json!({"x": "outer", "z": "inner"})
    );
    assert!(chain["Nodes"]["splitter:a.default.default"].is_null());
}

#[test]
fn redirects_and_default_subsets_are_followed() {
    let chain = chain([
        resolver(
            "web",
            json!({"Redirect": {"Service": "api", "Datacenter": "dc2"}}),
        ),
        resolver(
            "api",
            json!({"DefaultSubset": "v2", "Subsets": {"v2": {"OnlyPassing": true}}}),
        ),
    ])
    .unwrap();
    assert_eq!(chain.start_node, "resolver:v2.api.default.default.dc2");
    let targets: Vec<&String> = chain.targets.keys().collect();
    assert_eq!(targets, ["v2.api.default.default.dc2"]);
    let target = &chain.targets["v2.api.default.default.dc2"];
    assert_eq!(target.sni, "v2.api.default.dc2.internal.c1.consul");
    assert!(target.subset.only_passing && !chain.default);
}

#[test]
fn failover_follows_redirects_and_leaves_out_the_target_itself() {
    let failover = json!({"Failover": {"*": {"Targets": [
        {"Service": "web"}, {"Service": "old"}, {"Datacenter": "dc2"}, {"Peer": "east"},
    ]}}});
    let chain = json_of([
        resolver("web", failover),
        resolver(
            "old",
            json!({"Redirect": {"Service": "new"}, "ConnectTimeout": "1s"}),
        ),
        resolver(
            "new",
            json!({"ConnectTimeout": "2s", "Failover": {"*": {"Service": "none"}}}),
        ),
    ]);
    let node = &chain["Nodes"]["resolver:web.default.default.dc1"]["Resolver"];
    let new = "new.default.default.dc1";
    assert_eq!(
        node["Failover"]["Targets"],
        json!([
            new,
            "web.default.default.dc2",
            "web.default.default.external.east"
        ])
    );
    assert_eq!(chain["Targets"][new]["ConnectTimeout"], "2s");
    assert_eq!(chain["Targets"].as_object().unwrap().len(), 4);
    let imported = &chain["Targets"]["web.default.default.external.east"];
    assert!(imported["SNI"].is_null() && imported["Datacenter"].is_null());
}

#[test]
fn failover_may_be_for_one_subset() {
    let entries = |subset: &str| {
        [resolver(
            "web",
            json!({
                "DefaultSubset": subset, "Subsets": {"v1": {}, "v2": {}},
                "Failover": {"v1": {"Datacenters": ["dc2", "dc1", "dc3"],
                                    "Policy": {"Mode": "sequential"}}},
            }),
        )]
    };
    let chain = json_of(entries("v1"));
    let failover = &chain["Nodes"]["resolver:v1.web.default.default.dc1"]["Resolver"]["Failover"];
    let expected = json!(["v1.web.default.default.dc2", "v1.web.default.default.dc3"]);
    assert_eq!(failover["Targets"], expected);
    assert_eq!(failover["Policy"]["Mode"], "sequential");
    let chain = json_of(entries("v2"));
    let node = &chain["Nodes"]["resolver:v2.web.default.default.dc1"]["Resolver"];
    assert!(node["Failover"].is_null());
}

#[test]
fn contradicting_entries_are_refused_with_consuls_texts() {
    let speaks = |name, protocol| entry("service-defaults", name, json!({"Protocol": protocol}));
    assert_eq!(
        refused([
            http(),
            speaks("api", "grpc"),
            splits("web", &[(50.0, "", ""), (50.0, "api", "")])
        ]),
        "discovery chain \"web\" uses inconsistent protocols; service \"api\" has \"grpc\" which is \
         not \"http\""
    );
    assert_eq!(
        refused([splits("web", &[(100.0, "", "")])]),
        "discovery chain \"web\" uses a protocol \"tcp\" that does not permit advanced routing or \
         splitting behavior"
    );
    assert_eq!(
        refused([
            http(),
            splits("web", &[(100.0, "api", "")]),
            splits("api", &[(100.0, "web", "")])
        ]),
        "detected circular reference: [splitter:web.default.default -> splitter:api.default.default \
         -> splitter:web.default.default]"
    );
    let redirect = |to| json!({"Redirect": {"Service": to}});
    assert_eq!(
        refused([
            resolver("web", redirect("api")),
            resolver("api", redirect("web"))
        ]),
        "detected circular resolver redirect: [web.default.default.dc1 -> api.default.default.dc1 -> \
         web.default.default.dc1]"
    );
    assert_eq!(
        refused([http(), splits("web", &[(100.0, "", "v9")])]),
        "service \"web\" does not have a subset named \"v9\""
    );
    let outside = || {
        entry(
            "service-defaults",
            "web",
            json!({"ExternalSNI": "example.com"}),
        )
    };
    assert_eq!(
        refused([outside(), resolver("web", json!({"Subsets": {"v1": {}}}))]),
        "service \"web\" has an external SNI set; cannot define subsets for external services"
    );
}

#[test]
fn services_outside_of_the_mesh_have_no_gateways() {
    let defaults = json!({"ExternalSNI": "example.com", "MeshGateway": {"Mode": "local"}});
    let chain = chain([entry("service-defaults", "web", defaults)]).unwrap();
    let target = &chain.targets["web.default.default.dc1"];
    assert!(target.external && target.sni == "example.com");
    assert_eq!(target.name, "web.default.dc1.internal.c1.consul");
    assert_eq!(
        target.mesh_gateway.mode,
        legate_model::MeshGatewayMode::Default
    );
}

#[test]
fn overrides_are_hashed_only_if_they_have_an_effect() {
    use legate_model::{MeshGatewayMode, Protocol};
    let entries = Written::new([
        http(),
        splits("web", &[(100.0, "", "")]),
        resolver("web", json!({"ConnectTimeout": "3s"})),
    ]);
    let same = Overrides {
        protocol: Some(Protocol::Http),
        connect_timeout: std::time::Duration::from_secs(3),
        ..Overrides::default()
    };
    let chain = chain_with(&entries, same).unwrap();
    assert_eq!(chain.customization_hash, None);
    let other = Overrides {
        protocol: Some(Protocol::Tcp),
        mesh_gateway: MeshGatewayMode::Local,
        connect_timeout: std::time::Duration::from_secs(4),
    };
    let chain = chain_with(&entries, other).unwrap();
    assert_eq!(
        (chain.customization_hash, chain.protocol),
        (other.hash(), Protocol::Tcp)
    );
    assert_eq!(chain.start_node, "resolver:web.default.default.dc1");
}

#[test]
fn a_splitter_hashes_as_its_first_leg_does() {
    let balancer = json!({"Policy": "maglev", "HashPolicies": [{"SourceIP": true}]});
    let chain = json_of([
        http(),
        splits("web", &[(50.0, "", ""), (50.0, "api", "")]),
        resolver("api", json!({"LoadBalancer": balancer})),
    ]);
    let splitter = &chain["Nodes"]["splitter:web.default.default"];
    assert_eq!(splitter["LoadBalancer"]["Policy"], "maglev");
}

#[test]
fn chains_of_unbounded_length_are_refused() {
    let name = |at: usize| match at {
        0 => "web".to_owned(),
        at => format!("s{at}"),
    };
    let redirect = |at| resolver(&name(at), json!({"Redirect": {"Service": name(at + 1)}}));
    let split = |at| splits(&name(at), &[(100.0, &name(at + 1), "")]);
    let text = |what: String| assert!(what.contains("more than 64 services"), "{what}");
    text(refused((0..100_000).map(redirect)));
    text(refused((0..100_000).map(split).chain([http()])));
    assert!(chain((0..60).map(redirect)).is_ok());
    assert!(chain((0..60).map(split).chain([http()])).is_ok());
    // Each service splits between two, each of which splits again.
    let two = |at: usize, place: usize| (50.0, format!("{}-{}", at + 1, place));
    let fan = |at: usize, place: usize| {
        let parts = [two(at, 0), two(at, 1)];
        let parts: Vec<(f32, &str, &str)> = parts.iter().map(|(w, s)| (*w, &**s, "")).collect();
        match at {
            0 => splits("web", &parts),
            _ => splits(&format!("{at}-{place}"), &parts),
        }
    };
    let all = (0..40).flat_map(|at| [fan(at, 0), fan(at, 1)]);
    let all: Vec<Value> = all.chain([http()]).collect();
    let what = refused(all);
    assert!(what.contains("into more than 10000 parts in all"), "{what}");
}

/// The header changes of a split are repeated in every split that it refers to.
#[test]
fn splits_and_routes_that_repeat_too_many_headers_are_refused() {
    let inner: Vec<(f32, String)> = (0..100).map(|at| (1.0, format!("s{at}"))).collect();
    let inner: Vec<_> = inner.iter().map(|(w, s)| (*w, &**s, "")).collect();
    let with = |bytes: usize| {
        let mut outer = splits("web", &[(100.0, "api", "")]);
        outer["Splits"][0]["RequestHeaders"] = json!({"Set": {"x": "v".repeat(bytes)}});
        chain([http(), outer, splits("api", &inner)])
    };
    assert!(with(1_000).is_ok());
    let error = with(100_000).unwrap_err().to_string();
    assert!(error.contains("100 bytes count as a part"), "{error}");
    let routed = |bytes: usize| {
        let to_api = json!({"Destination": {"Service": "api"}});
        let router = json!({
            "Kind": "service-router", "Name": "web", "Routes": vec![to_api; 1_000],
        });
        let mut api = splits("api", &[(100.0, "s0", "")]);
        api["Splits"][0]["ResponseHeaders"] = json!({"Remove": ["v".repeat(bytes)]});
        chain([http(), router, api])
    };
    assert!(routed(1_000).is_ok());
    assert!(routed(100_000).is_err());
}

#[test]
fn weights_are_rounded_as_consul_does() {
    let chain = json_of([
        http(),
        splits("web", &[(0.5, "a", ""), (99.5, "", "")]),
        splits("a", &[(53.0, "", ""), (47.0, "b", "")]),
    ]);
    let splits = &chain["Nodes"]["splitter:web.default.default"]["Splits"];
    let first = splits[0]["Weight"].as_f64().unwrap();
    assert!((first - 0.26).abs() < 0.001, "{first}");
}

#[test]
fn a_service_of_a_peer_has_no_subset() {
    let more = json!({
        "DefaultSubset": "v1", "Subsets": {"v1": {}},
        "Failover": {"*": {"Targets": [{"Peer": "east"}]}},
    });
    let chain = chain([resolver("web", more)]).unwrap();
    let targets: Vec<&String> = chain.targets.keys().collect();
    let expected = [
        "v1.web.default.default.dc1",
        "web.default.default.external.east",
    ];
    assert_eq!(targets, expected);
}

#[test]
fn a_redirect_to_a_peer_ends_there() {
    let to = |service: &str, peer: &str| json!({"Redirect": {"Service": service, "Peer": peer}});
    let local = json!({"DefaultSubset": "v1", "Subsets": {"v1": {}}});
    for entries in [
        vec![resolver("web", to("web", "east"))],
        vec![resolver("web", to("api", "east")), resolver("api", local)],
        vec![
            resolver("web", to("api", "east")),
            resolver("api", to("web", "west")),
        ],
    ] {
        let chain = chain(entries).unwrap();
        let [target] = &chain.targets.values().collect::<Vec<_>>()[..] else {
            panic!("{chain:?}");
        };
        assert_eq!(
            (target.peer.as_str(), target.service_subset.as_str()),
            ("east", "")
        );
        assert!(target.datacenter.is_empty() && target.sni.is_empty());
    }
}

#[test]
fn what_is_imported_is_in_the_partition_of_the_chain() {
    let resolver = |namespace: &str, more: Value| {
        let mut entry = resolver("web", more);
        entry["Namespace"] = json!(namespace);
        entry
    };
    let target = |entry: Value, namespace: &str| {
        let own = Tenancy::new(&"".parse().unwrap(), &namespace.parse().unwrap());
        let request = Request {
            service: &ServiceName::new(&own, "web"),
            datacenter: "dc1",
            trust_domain: &TrustDomain::of_cluster("c1"),
            overrides: Overrides::default(),
        };
        let chain = compile(&request, &Written::new([entry])).unwrap();
        let mut targets = chain.targets.into_values();
        let found = targets.find(|target| !target.peer.is_empty()).unwrap();
        (found.id.clone(), found.locality.clone())
    };
    // The namespace is that of the peer, which need not be the caller's. Names of peers are in lower case.
    let to_peer = json!({"Redirect": {"Service": "api", "Peer": "East"}});
    let (id, locality) = target(resolver("team", to_peer), "team");
    assert_eq!(id, "api.default.default.external.east");
    assert_eq!(locality.unwrap().region, "r of east");
    let failover = json!({"Failover": {"*": {"Targets": [{"Peer": "west", "Namespace": "x"}]}}});
    let (id, _) = target(resolver("team", failover), "team");
    assert_eq!(id, "web.x.default.external.west");
}

#[test]
fn the_locality_of_a_peer_is_not_compared() {
    let usual = json!({
        "Kind": "proxy-defaults", "Name": "global", "PrioritizeByLocality": {"Mode": "failover"},
    });
    let to_peer = json!({"Redirect": {"Service": "web", "Peer": "east"}});
    let chain = json_of([usual, resolver("web", to_peer)]);
    let target = &chain["Targets"]["web.default.default.external.east"];
    assert_eq!(target["Locality"]["Region"], "r of east");
    assert_eq!(target["PrioritizeByLocality"], Value::Null);
    assert_eq!(target["SNI"], Value::Null);
}

#[test]
fn locality_preference_comes_from_the_resolver_or_else_the_defaults() {
    let usual = json!({
        "Kind": "proxy-defaults", "Name": "global", "PrioritizeByLocality": {"Mode": "failover"},
    });
    let mode = |entries: &[Value]| {
        let chain = chain(entries.iter().cloned()).unwrap();
        let target = chain.targets.values().next().unwrap();
        target.prioritize_by_locality.as_ref().map(|near| near.mode)
    };
    assert_eq!(mode(&[]), None);
    assert_eq!(
        mode(std::slice::from_ref(&usual)),
        Some(LocalityMode::Failover)
    );
    let none = resolver("web", json!({"PrioritizeByLocality": {"Mode": "none"}}));
    assert_eq!(mode(&[usual, none]), Some(LocalityMode::None));
}

/// A default group with these members.
fn group(members: Value) -> Value {
    json!({
        "Kind": "sameness-group", "Name": "group", "DefaultForFailover": true, "Members": members,
    })
}

/// The failover targets of the resolver with which a chain starts.
fn failover_of(entries: impl IntoIterator<Item = Value>) -> Vec<String> {
    let chain = chain(entries).unwrap();
    let NodeKind::Resolver(resolver) = &chain.nodes[&chain.start_node].kind else {
        panic!("{chain:?}");
    };
    assert_eq!(resolver.target, "web.default.default.dc1");
    let failover = resolver.failover.as_ref();
    let targets = failover.map_or_else(Vec::new, |failover| failover.targets.clone());
    // A chain with failover is none that callers may do without.
    assert_eq!(chain.default, targets.is_empty() && resolver.default);
    for id in &targets {
        assert!(chain.targets.contains_key(id), "{chain:?}");
    }
    targets
}

#[test]
fn a_service_without_a_resolver_fails_over_to_the_default_group_in_its_order() {
    let members = json!([
        {"Peer": "West"}, {"Partition": "default"}, {"Partition": "shop"}, {"Peer": "east"},
    ]);
    let expected = [
        "web.default.default.external.west",
        "web.default.shop.dc1",
        "web.default.default.external.east",
    ];
    assert_eq!(failover_of([group(members.clone())]), expected);
    assert_eq!(failover_of([group(json!([]))]), [""; 0]);
    // A resolver of the service says itself where it fails over, even if it says nothing.
    let own = resolver("web", json!({"ConnectTimeout": "3s"}));
    assert_eq!(failover_of([own, group(members.clone())]), [""; 0]);
    let own = resolver(
        "web",
        json!({"Failover": {"*": {"Targets": [{"Peer": "north"}]}}}),
    );
    let expected = ["web.default.default.external.north"];
    assert_eq!(failover_of([own, group(members)]), expected);
}

#[test]
fn a_member_that_cannot_be_used_is_left_out() {
    let members = group(json!([{"Partition": "shop"}, {"Partition": "depot"}, {"Peer": "east"}]));
    let in_partition = |partition: &str, mut entry: Value| {
        entry["Partition"] = json!(partition);
        entry
    };
    let http = in_partition(
        "shop",
        entry("service-defaults", "web", json!({"Protocol": "http"})),
    );
    // Its redirects apply, and one to where callers are already is no failover.
    let back = json!({"Redirect": {"Service": "web", "Partition": "default"}});
    let back = in_partition("depot", resolver("web", back));
    let expected = ["web.default.default.external.east"];
    assert_eq!(failover_of([members.clone(), http, back]), expected);
    let circle = json!({"Redirect": {"Service": "api"}});
    let circle = in_partition("shop", resolver("web", circle));
    let back = json!({"Redirect": {"Service": "web"}});
    let back = in_partition("shop", resolver("api", back));
    let expected = ["web.default.depot.dc1", "web.default.default.external.east"];
    assert_eq!(failover_of([members, circle, back]), expected);
}

#[test]
fn the_default_group_is_for_services_of_its_partition() {
    let members = group(json!([{"Peer": "east"}]));
    let away = |to: Value| resolver("web", json!({"Redirect": to}));
    let has_peer = |entries: Vec<Value>| {
        let chain = chain(entries).unwrap();
        chain
            .targets
            .values()
            .filter(|target| !target.peer.is_empty())
            .count()
    };
    // It is the service at the end of redirects that counts.
    assert_eq!(
        has_peer(vec![members.clone(), away(json!({"Service": "api"}))]),
        1
    );
    let shop = away(json!({"Service": "api", "Partition": "shop"}));
    assert_eq!(has_peer(vec![members.clone(), shop]), 0);
    let peer = away(json!({"Service": "api", "Peer": "west"}));
    assert_eq!(has_peer(vec![members.clone(), peer]), 1);
    let external = entry(
        "service-defaults",
        "web",
        json!({"ExternalSNI": "web.example.com"}),
    );
    assert_eq!(has_peer(vec![members.clone(), external]), 0);
    // Each destination of a split fails over by itself.
    let split = splits("web", &[(50.0, "", ""), (50.0, "api", "")]);
    assert_eq!(has_peer(vec![members, http(), split]), 2);
}
