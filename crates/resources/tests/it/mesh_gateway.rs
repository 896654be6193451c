//! A mesh gateway: the cost of changes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use legate_model::UpstreamLimits;
use legate_proxycfg::{
    GatewaysElsewhere, GatewaysOf, Instances, Kind, MeshGateway, MeshService, MeshServices,
    PeerExports, PeerRoutes, Servers, Snapshot,
};
use legate_resources::{Generator, ResourceSet};
use serde_json::{Value, json};

use crate::golden_cases::written;
use crate::support::{instance, web};

/// The same for all gateways, as in the snapshots of one store.
static NO_LIMITS: LazyLock<Arc<Option<UpstreamLimits>>> = LazyLock::new(|| Arc::new(None));

static NO_SERVERS: LazyLock<Arc<Option<Servers>>> = LazyLock::new(|| Arc::new(None));

static NO_EXPORTS: LazyLock<Arc<PeerExports>> = LazyLock::new(Arc::default);

static NO_PEERS: LazyLock<Arc<PeerRoutes>> = LazyLock::new(Arc::default);

fn service(name: &str, port: u16) -> Arc<MeshService> {
    Arc::new(MeshService {
        service: name.into(),
        connect_timeout: Duration::ZERO,
        load_balancer: None,
        instances: Arc::new(Instances::from(vec![instance("10.0.2.1", port, &[])])),
        subsets: Vec::new(),
    })
}

fn gateway(services: &[&Arc<MeshService>]) -> Snapshot {
    let mut snapshot = web().snapshot();
    let services = services.iter().map(|one| Arc::clone(one));
    snapshot.kind = Kind::MeshGateway(MeshGateway {
        limits: Arc::clone(&NO_LIMITS),
        services: Arc::new(MeshServices(services.collect())),
        elsewhere: Arc::default(),
        servers: Arc::clone(&NO_SERVERS),
        exports: Arc::clone(&NO_EXPORTS),
        leaf: None,
        peers: Arc::clone(&NO_PEERS),
    });
    snapshot
}

/// The number of parts that are made for a change.
fn cost(before: &Snapshot, after: &Snapshot) -> u64 {
    // Both have the same registration.
    let after = Snapshot {
        proxy: before.proxy.clone(),
        kind: after.kind.clone(),
    };
    let generator = Generator::new();
    let first = generator.generate(before, None);
    let computed = generator.work().computed;
    let set = generator.generate(&after, Some((before, &first)));
    let cost = generator.work().computed - computed;
    let whole = Generator::new().generate(&after, None);
    assert_eq!(names(&set), names(&whole));
    cost
}

fn names(set: &ResourceSet) -> Vec<(String, String)> {
    let types = [
        "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "type.googleapis.com/envoy.config.listener.v3.Listener",
    ];
    let of_type = |url: &str| {
        let all = set.get(url).values();
        let one = all.map(|one| (one.name.to_string(), one.version.to_string()));
        one.collect::<Vec<_>>()
    };
    types.iter().flat_map(|url| of_type(url)).collect()
}

#[test]
fn a_change_makes_only_the_parts_of_its_service() {
    let (api, db, web) = (service("api", 1), service("db", 2), service("web", 3));
    let all = gateway(&[&api, &db, &web]);
    assert_eq!(cost(&all, &all), 0);
    let moved = MeshService {
        instances: service("db", 4).instances.clone(),
        ..MeshService::clone(&db)
    };
    assert_eq!(
        cost(&all, &gateway(&[&api, &Arc::new(moved), &web])),
        1,
        "its endpoints"
    );
    let slower = MeshService {
        connect_timeout: Duration::from_secs(1),
        ..MeshService::clone(&db)
    };
    assert_eq!(
        cost(&all, &gateway(&[&api, &Arc::new(slower), &web])),
        1,
        "its cluster"
    );
    assert_eq!(cost(&all, &gateway(&[&db, &web])), 0, "a service is gone");
    assert_eq!(cost(&gateway(&[&db, &web]), &all), 2, "a service is new");
}

#[test]
fn a_gateway_that_was_a_sidecar_reuses_nothing_of_it() {
    let generator = Generator::new();
    let sidecar = web().snapshot();
    let before = generator.generate(&sidecar, None);
    let api = service("api", 1);
    let now = gateway(&[&api]);
    let set = generator.generate(&now, Some((&sidecar, &before)));
    assert_eq!(names(&set), names(&Generator::new().generate(&now, None)));
    assert!(set.failures().is_empty());
}

/// A gateway to a service, and to the gateways of another datacenter at this address.
fn to_dc2(api: &Arc<MeshService>, host: &str, port: u16) -> Snapshot {
    let mut snapshot = gateway(&[api]);
    let instances = Arc::new(Instances::from(vec![instance(host, port, &[])]));
    let there = GatewaysOf {
        datacenter: "dc2".to_owned(),
        to_servers: Arc::clone(&instances),
        instances,
    };
    if let Kind::MeshGateway(own) = &mut snapshot.kind {
        own.elsewhere = Arc::new(GatewaysElsewhere(vec![there]));
    }
    snapshot
}

#[test]
fn connections_to_another_datacenter_go_to_its_gateways() {
    const DC2: &str = "dc2.internal.c1.consul";
    let set = Generator::new().generate(&to_dc2(&service("api", 1), "203.0.113.1", 443), None);
    let document = written::document(&set);
    let cluster = &document["Clusters"][DC2];
    assert_eq!(cluster["type"], "EDS");
    assert!(cluster.get("transportSocket").is_none(), "{cluster}");
    let endpoints = &document["Endpoints"][DC2]["endpoints"][0]["lbEndpoints"];
    let address = &endpoints[0]["endpoint"]["address"]["socketAddress"];
    assert_eq!(
        address,
        &json!({"address": "203.0.113.1", "portValue": 443})
    );
    let listeners = document["Listeners"].as_object().unwrap();
    let chains = &listeners.values().next().unwrap()["filterChains"];
    let [first, last] = &chains.as_array().unwrap()[..] else {
        panic!("{chains}");
    };
    let names = &first["filterChainMatch"]["serverNames"];
    assert_eq!(names, &json!([format!("*.{DC2}")]));
    let filter = &first["filters"][0]["typedConfig"];
    assert_eq!(filter["cluster"], DC2);
    assert_eq!(filter["statPrefix"], "mesh_gateway_remote.default.dc2");
    assert!(last.get("filterChainMatch").is_none());

    let named =
        Generator::new().generate(&to_dc2(&service("api", 1), "gateway.example", 443), None);
    let document = written::document(&named);
    assert_eq!(document["Clusters"][DC2]["type"], "LOGICAL_DNS");
    assert!(document["Endpoints"].get(DC2).is_none());
}

#[test]
fn a_changed_gateway_of_another_datacenter_makes_its_endpoints() {
    let api = service("api", 1);
    let before = to_dc2(&api, "203.0.113.1", 443);
    assert_eq!(cost(&before, &to_dc2(&api, "203.0.113.2", 443)), 1);
    // The cluster, and no endpoints.
    assert_eq!(cost(&before, &to_dc2(&api, "gateway.example", 443)), 2);
    let alone = gateway(&[&api]);
    assert_eq!(
        cost(&alone, &before),
        3,
        "a cluster, endpoints and the listener"
    );
    assert_eq!(cost(&before, &alone), 1, "the listener");
}

/// A gateway that leads to the servers of these ports, which are on nodes named after them.
fn to_servers(before: &Snapshot, ports: &[u16]) -> Snapshot {
    let server = |port: &u16| instance("10.0.3.1", *port, &[]);
    let all = ports.iter().map(server).collect::<Vec<_>>();
    let by_node = ports.iter().map(|port| {
        let server = Instances::from(vec![server(port)]);
        (format!("s{port}"), Arc::new(server))
    });
    let mut snapshot = before.clone();
    if let Kind::MeshGateway(own) = &mut snapshot.kind {
        own.servers = Arc::new(Some(Servers {
            domain: "consul".into(),
            by_node: by_node.collect(),
            all: Arc::new(Instances::from(all)),
        }));
    }
    snapshot
}

#[test]
fn servers_are_reached_by_their_names() {
    let there = to_dc2(&service("api", 1), "203.0.113.1", 443);
    let snapshot = to_servers(&there, &[8300, 8301]);
    let set = Generator::new().generate(&snapshot, None);
    assert!(set.failures().is_empty());
    let document = written::document(&set);
    let ports = |cluster: &str| {
        let endpoints = &document["Endpoints"][cluster]["endpoints"][0]["lbEndpoints"];
        let endpoints = endpoints.as_array().unwrap().iter();
        let port = |one: &Value| one["endpoint"]["address"]["socketAddress"]["portValue"].clone();
        Value::from(endpoints.map(port).collect::<Vec<_>>())
    };
    assert_eq!(ports("server.dc1.consul"), json!([8300, 8301]));
    assert_eq!(ports("s8301.server.dc1.consul"), json!([8301]));
    assert_eq!(ports("server.dc2.consul"), json!([443]));
    let listeners = document["Listeners"].as_object().unwrap();
    let chains = &listeners.values().next().unwrap()["filterChains"];
    let chains = chains.as_array().unwrap().iter();
    let chains: Vec<_> = chains
        .map(|chain| {
            let filter = &chain["filters"].as_array().unwrap().last().unwrap()["typedConfig"];
            let name = &chain["filterChainMatch"]["serverNames"][0];
            [name, &filter["cluster"], &filter["statPrefix"]]
                .map(|text| text.as_str().unwrap_or("-").to_owned())
        })
        .collect();
    let servers = "mesh_gateway_local_server.default.dc1";
    assert_eq!(
        chains,
        [
            [
                "*.dc2.internal.c1.consul",
                "dc2.internal.c1.consul",
                "mesh_gateway_remote.default.dc2"
            ],
            [
                "*.server.dc2.consul",
                "server.dc2.consul",
                "mesh_gateway_remote.default.dc2"
            ],
            [
                "s8300.server.dc1.consul",
                "s8300.server.dc1.consul",
                servers
            ],
            [
                "s8301.server.dc1.consul",
                "s8301.server.dc1.consul",
                servers
            ],
            ["-", "", "mesh_gateway_local.default"],
        ]
    );
    // The way to servers of dc2 too, two clusters with their endpoints, and the listener.
    let added = "clusters of dc2, of all and of one server, with endpoints, and the listener";
    assert_eq!(cost(&there, &to_servers(&there, &[8300])), 7, "{added}");
    let one = to_servers(&there, &[8300]);
    assert_eq!(
        cost(&one, &to_servers(&there, &[8300])),
        2,
        "endpoints are others"
    );
    assert_eq!(cost(&one, &there), 1, "the listener");
}

#[test]
fn servers_come_and_go_in_any_order() {
    let there = to_dc2(&service("api", 1), "203.0.113.1", 443);
    let of = |ports: &[u16]| {
        let snapshot = to_servers(&there, ports);
        Snapshot {
            proxy: there.proxy.clone(),
            kind: snapshot.kind,
        }
    };
    let generator = Generator::new();
    let mut before = of(&[1, 2]);
    let mut set = generator.generate(&before, None);
    for ports in [&[2][..], &[1, 2, 3], &[3, 2], &[], &[4, 1], &[1]] {
        let after = of(ports);
        set = generator.generate(&after, Some((&before, &set)));
        let whole = Generator::new().generate(&after, None);
        assert_eq!(names(&set), names(&whole), "{ports:?}");
        assert_eq!(
            written::document(&set),
            written::document(&whole),
            "{ports:?}"
        );
        before = after;
    }
}
