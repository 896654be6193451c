//! Exports and imports.

use legate_api::internal::peering::{PeeringServerAddresses, PeeringTrustBundle};
use legate_api::internal::peerstream::ExportedServiceList;
use legate_api::internal::service as wire;
use legate_model::{Invalid, PeerMeta};

use super::*;
use crate::export::{mesh_id, plain};
use crate::import::{
    self, CHECKS, INSTANCES, ImportedService, ROOTS, SERVICES, server_addresses, service,
    service_list, trust_bundle,
};

fn imported(id: &str, message: ExportedService) -> Result<ImportedService, Invalid> {
    service(id, message, &rules())
}

#[test]
fn the_plain_form_has_typical_instances_with_one_check() {
    let mut sidecar = instance("web", 3, CheckStatus::Passing);
    Arc::make_mut(&mut sidecar.service).kind = ServiceKind::ConnectProxy;
    let mut two_checks = instance("web", 2, CheckStatus::Passing);
    let warning = instance("web", 2, CheckStatus::Warning).checks;
    two_checks.checks.extend(warning);
    let mut without = instance("web", 1, CheckStatus::Passing);
    without.checks.clear();
    let service = Arc::make_mut(&mut without.service);
    service.connect.native = true;
    let address = ServiceAddress {
        address: "240.0.0.9".to_owned(),
        port: 80,
    };
    let virtual_ip = "consul-virtual".to_owned();
    service.tagged_addresses.insert(virtual_ip, address);

    let all = [sidecar, two_checks.clone(), without.clone()];
    let exported = plain("web", &all).unwrap();
    let [first, second] = exported.nodes.as_slice() else {
        panic!("the sidecar is left out");
    };
    let service = first.service.as_ref().unwrap();
    assert_eq!((service.id.as_str(), service.port), ("web-1", 80));
    assert_eq!(
        (&service.connect, &service.proxy, &service.raft_index),
        (&None, &None, &None)
    );
    assert!(service.tagged_addresses.is_empty() && first.checks.is_empty());
    let [check] = second.checks.as_slice() else {
        panic!("one check");
    };
    let expected = wire::HealthCheck {
        node: "node-2".to_owned(),
        check_id: "web-2:overall-check".to_owned(),
        name: "overall-check".to_owned(),
        status: "warning".to_owned(),
        service_id: "web-2".to_owned(),
        service_name: "web".to_owned(),
        ..wire::HealthCheck::default()
    };
    assert_eq!(check, &expected);
    assert_eq!(
        plain("web", &[without, two_checks]),
        Some(exported),
        "in any order"
    );
    assert_eq!(plain(&mesh_id("web"), &all), None);
}

#[test]
fn maintenance_is_critical() {
    for id in ["_node_maintenance", "_service_maintenance:web-1"] {
        let mut one = instance("web", 1, CheckStatus::Warning);
        Arc::make_mut(&mut one.checks[0]).check_id = id.to_owned();
        let exported = plain("web", &[one]).unwrap();
        assert_eq!(exported.nodes[0].checks[0].status, "critical");
    }
    let mut exported = plain("web", &[instance("web", 1, CheckStatus::Passing)]).unwrap();
    for status in ["maintenance", "", "better"] {
        exported.nodes[0].checks[0].status = status.to_owned();
        let read = imported("web", exported.clone()).unwrap();
        assert_eq!(
            read.instances[0].health(),
            CheckStatus::Critical,
            "{status}"
        );
    }
}

#[test]
fn a_plain_instance_arrives_as_it_was_registered() {
    let mut one = instance("web", 1, CheckStatus::Warning);
    let exported = plain("web", std::slice::from_ref(&one)).unwrap();
    let read = imported("web", exported).unwrap();
    // Without indexes, and with one check for all.
    let node = Arc::make_mut(&mut one.node);
    (node.create_index, node.modify_index) = (0, 0);
    let service = Arc::make_mut(&mut one.service);
    (service.create_index, service.modify_index) = (0, 0);
    one.checks = vec![Arc::new(HealthCheck {
        node: "node-1".to_owned(),
        check_id: "web-1:overall-check".to_owned(),
        name: "overall-check".to_owned(),
        status: CheckStatus::Warning,
        service_id: "web-1".to_owned(),
        service_name: "web".to_owned(),
        ..HealthCheck::default()
    })];
    assert_eq!(read.instances, [one]);
}

#[test]
fn the_mesh_form_has_a_sidecar_for_each_gateway() {
    let mut second = gateway(2);
    Arc::make_mut(&mut second.checks[0]).status = CheckStatus::Critical;
    let exported = mesh_of("web", &[second, gateway(1)], "http");
    let read = imported("web-sidecar-proxy", exported).unwrap();
    let [one, two] = read.instances.as_slice() else {
        panic!("two gateways");
    };
    assert_eq!(
        (one.node.node.as_str(), two.node.node.as_str()),
        ("node-1", "node-2")
    );
    let service = &one.service;
    assert_eq!(service.id, "web-sidecar-proxy-instance-0");
    assert_eq!(service.kind, ServiceKind::ConnectProxy);
    assert_eq!(service.proxy.destination_service_name, "web");
    assert_eq!(service.proxy.destination_service_id, "web-instance-0");
    assert_eq!(one.wan_address(), ("gateway.example.com", 443));
    assert_eq!(service.tagged_addresses.len(), 1);
    let meta = PeerMeta {
        sni: vec!["web.default.default.importer.external.exporter.consul".to_owned()],
        spiffe_ids: vec![
            "spiffe://exporter.consul/ns/default/dc/dc1/svc/web".to_owned(),
            "spiffe://exporter.consul/gateway/mesh/dc/dc1".to_owned(),
        ],
        protocol: "http".to_owned(),
    };
    assert_eq!(service.connect.peer_meta.as_deref(), Some(&meta));
    assert_eq!(one.health(), CheckStatus::Passing);
    assert_eq!(two.health(), CheckStatus::Critical);
    assert_eq!(
        two.checks[0].check_id,
        "web-sidecar-proxy-instance-1:overall-check"
    );
    // Of a service without gateways.
    let none = imported("web-sidecar-proxy", mesh_of("web", &[], "http"));
    assert_eq!(none.unwrap().instances, []);
}

/// A change of an instance, and a part of the error.
type Hostile = (fn(&mut wire::CheckServiceNode), &'static str);

fn service_of(one: &mut wire::CheckServiceNode) -> &mut wire::NodeService {
    one.service.as_mut().unwrap()
}

fn node_of(one: &mut wire::CheckServiceNode) -> &mut wire::Node {
    one.node.as_mut().unwrap()
}

/// Changes of an instance of the service `web`.
const HOSTILE: [Hostile; 26] = [
    (|one| one.node = None, "Nodes[0].Node: it is missing"),
    (|one| one.service = None, "Nodes[0].Service: it is missing"),
    (|one| node_of(one).node.clear(), "Nodes[0].Node.Node"),
    (
        |one| node_of(one).node = "n".repeat(600),
        "at most 512 bytes",
    ),
    (|one| node_of(one).address.clear(), "Nodes[0].Node.Address"),
    (
        |one| node_of(one).address = "0.0.0.0".to_owned(),
        "unspecified",
    ),
    (|one| node_of(one).id = "x".to_owned(), "not a UUID"),
    (
        |one| node_of(one).datacenter = "DC 1".to_owned(),
        "Nodes[0].Node.Datacenter",
    ),
    (
        |one| {
            node_of(one)
                .tagged_addresses
                .insert("wan".to_owned(), "a:1".to_owned());
        },
        "Nodes[0].Node.TaggedAddresses.wan",
    ),
    (
        |one| {
            let pairs = (0..65).map(|i| (i.to_string(), String::new()));
            node_of(one).meta.extend(pairs);
        },
        "at most 64 pairs",
    ),
    (
        |one| service_of(one).id.clear(),
        "Nodes[0].Service.ID: it is missing",
    ),
    (
        |one| service_of(one).id = "a/b".to_owned(),
        "Nodes[0].Service.ID",
    ),
    (
        |one| service_of(one).service = "api".to_owned(),
        "not that of the resource, \"web\"",
    ),
    (
        |one| service_of(one).kind = "mesh-gateway".to_owned(),
        "Nodes[0].Service.Kind",
    ),
    (|one| service_of(one).port = 65_536, "from 0 to 65535"),
    (|one| service_of(one).port = -1, "from 0 to 65535"),
    (
        |one| service_of(one).address = "a b".to_owned(),
        "Nodes[0].Service.Address",
    ),
    (
        |one| {
            let weights = wire::Weights {
                passing: -1,
                warning: 1,
            };
            service_of(one).weights = Some(weights);
        },
        "must not be negative",
    ),
    (
        |one| {
            service_of(one).meta.insert("k".repeat(129), String::new());
        },
        "Nodes[0].Service.Meta",
    ),
    (
        |one| {
            service_of(one).enterprise_meta = Some(legate_api::internal::common::EnterpriseMeta {
                namespace: "team".to_owned(),
                partition: String::new(),
            });
        },
        "\"team\" is not served",
    ),
    (
        |one| service_of(one).tags = vec!["t".repeat(70_000)],
        "at most 65536 bytes",
    ),
    (
        |one| one.checks[0].check_id.clear(),
        "Checks[0].CheckID: it is missing",
    ),
    (
        |one| one.checks[0].node = "other".to_owned(),
        "Checks[0].Node",
    ),
    (
        |one| one.checks[0].service_id = "other".to_owned(),
        "Checks[0].ServiceID",
    ),
    (
        |one| one.checks.push(one.checks[0].clone()),
        "is there twice",
    ),
    (
        |one| one.checks = vec![wire::HealthCheck::default(); CHECKS + 1],
        "at most 64 checks",
    ),
];

#[test]
fn hostile_instances_are_refused_with_the_reason() {
    for (change, text) in HOSTILE {
        let mut exported = plain("web", &[instance("web", 1, CheckStatus::Passing)]).unwrap();
        change(&mut exported.nodes[0]);
        let error = imported("web", exported).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn hostile_mesh_forms_are_refused_with_the_reason() {
    fn meta(one: &mut wire::CheckServiceNode) -> &mut wire::PeeringServiceMeta {
        let connect = service_of(one).connect.as_mut().unwrap();
        connect.peer_meta.as_mut().unwrap()
    }
    let cases: [Hostile; 12] = [
        (
            |one| service_of(one).connect = None,
            "SpiffeID: there must be at least one",
        ),
        (
            |one| meta(one).sni.clear(),
            "SNI: there must be at least one",
        ),
        (
            |one| meta(one).spiffe_id.clear(),
            "SpiffeID: there must be at least one",
        ),
        (
            |one| meta(one).spiffe_id.push("x".to_owned()),
            "start with spiffe://",
        ),
        (
            |one| meta(one).spiffe_id[0] = "spiffe://own.consul/ns/default/dc/d/svc/w".to_owned(),
            "own.consul is the trust domain of this cluster",
        ),
        (
            |one| meta(one).spiffe_id[0] = "spiffe://third.consul/ns/default/dc/d/svc/w".to_owned(),
            "third.consul is the trust domain of the peer \"third-peer\"",
        ),
        (
            |one| {
                meta(one)
                    .spiffe_id
                    .push("spiffe://own.consul/ns/default/dc/d/svc/w".to_owned())
            },
            "must be a service or a mesh gateway in exporter.consul",
        ),
        (
            |one| {
                meta(one)
                    .spiffe_id
                    .push("spiffe://exporter.consul/agent/server/dc/d".to_owned())
            },
            "must be a service or a mesh gateway in exporter.consul",
        ),
        (
            |one| meta(one).sni = vec!["web.default.dc1.internal.own.consul".to_owned()],
            "ends with \".external.exporter.consul\"",
        ),
        (|one| meta(one).protocol = "p".repeat(65), "Protocol"),
        (
            |one| service_of(one).proxy = None,
            "Proxy.DestinationServiceName",
        ),
        (|one| service_of(one).kind.clear(), "Service.Kind"),
    ];
    for (change, text) in cases {
        let mut exported = mesh_of("web", &[gateway(1)], "tcp");
        change(&mut exported.nodes[0]);
        let error = imported("web-sidecar-proxy", exported)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn services_are_bounded_and_named() {
    let one = plain("web", &[instance("web", 1, CheckStatus::Passing)]).unwrap();
    let twice = ExportedService {
        nodes: vec![one.nodes[0].clone(), one.nodes[0].clone()],
    };
    let many = ExportedService {
        nodes: vec![wire::CheckServiceNode::default(); INSTANCES + 1],
    };
    for (id, message, text) in [
        (
            "web",
            twice,
            "Nodes[1].Service.ID: \"web-1\" is on its node twice",
        ),
        ("web", many, "at most 4096 instances"),
        ("", one.clone(), "ResourceID"),
        ("team/web", one.clone(), "ResourceID"),
        ("*", one, "ResourceID"),
    ] {
        let error = imported(id, message).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let list = |services: Vec<String>| service_list(ExportedServiceList { services });
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    assert_eq!(list(names(&["b", "a", "b"])).unwrap(), ["a", "b"]);
    assert!(
        list(names(&["a", ""]))
            .unwrap_err()
            .to_string()
            .starts_with("Services[1]")
    );
    let many = (0..=SERVICES).map(|i| i.to_string()).collect();
    assert!(
        list(many)
            .unwrap_err()
            .to_string()
            .contains("at most 10000")
    );
    let kept = import::kept(&["Web".to_owned()]);
    assert_eq!(
        kept.into_iter().collect::<Vec<_>>(),
        ["web", "web-sidecar-proxy"]
    );
}

#[test]
fn roots_are_certificates_of_the_peers_own_domain() {
    let bundle = |domain: &str, roots: Vec<String>| {
        let message = PeeringTrustBundle {
            trust_domain: domain.to_owned(),
            peer_name: "ignored".to_owned(),
            root_pems: roots,
            exported_partition: "default".to_owned(),
            modify_index: 9,
            ..PeeringTrustBundle::default()
        };
        trust_bundle(message, &rules())
    };
    let both = format!("{}{}", root(), root());
    let read = bundle("Exporter.consul", vec![both]).unwrap();
    assert_eq!(read.root_pems, [root(), root()]);
    assert_eq!(
        (read.trust_domain.as_str(), read.peer_name.as_str()),
        ("exporter.consul", "")
    );
    assert_eq!(read.modify_index, 0);
    for (domain, roots, text) in [
        (
            "own.consul",
            vec![root()],
            "is the trust domain of this cluster",
        ),
        (
            "THIRD.consul",
            vec![root()],
            "is the trust domain of the peer",
        ),
        ("localhost", vec![root()], "TrustDomain"),
        ("exporter.consul", vec![], "at least one root"),
        ("exporter.consul", vec!["x".to_owned()], "RootPEMs[0]"),
        ("exporter.consul", vec![root(); ROOTS + 1], "at most 32"),
        (
            "exporter.consul",
            vec![root().repeat(ROOTS + 1)],
            "at most 32",
        ),
        (
            "exporter.consul",
            vec![root().repeat(200)],
            "at most 65536 bytes",
        ),
    ] {
        let error = bundle(domain, roots).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn addresses_have_host_and_port() {
    let read = |addresses: Vec<&str>| {
        server_addresses(PeeringServerAddresses {
            addresses: addresses.into_iter().map(str::to_owned).collect(),
        })
    };
    assert_eq!(read(vec!["a:1", "[::1]:2"]).unwrap(), ["a:1", "[::1]:2"]);
    for wrong in [
        vec![],
        vec!["a"],
        vec!["a:0"],
        vec!["a:1", ":"],
        vec!["a:1"; 65],
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong:?}");
    }
}
