//! Tests of the crate through its public functions.

mod conversion;
mod hostile;
mod opening;
mod protocol;
mod retry;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use legate_api::internal::peerstream::replication_message::{Open, Payload as Content, Request};
use legate_api::internal::peerstream::{ExportedService, ReplicationMessage};
use legate_identity::{Authority, RootRequest};
use legate_model::{
    CheckServiceNode, CheckStatus, HealthCheck, Node, Secret, ServiceAddress, ServiceInstance,
    ServiceKind, TrustDomain,
};

use crate::export::{MeshForm, mesh};
use crate::import::Rules;
use crate::opening::open;
use crate::{Event, Session};

/// Rules of a cluster that has another peer.
fn rules() -> Rules {
    Rules {
        own: TrustDomain::of_cluster("own"),
        others: BTreeMap::from([(TrustDomain::of_cluster("third"), "third-peer".to_owned())]),
    }
}

fn opening_message() -> Open {
    open(
        "peering-id",
        &Secret::new("stream-secret"),
        Default::default(),
    )
}

fn dialer() -> Session {
    Session::dialer(opening_message(), rules(), BTreeMap::new())
}

fn acceptor() -> Session {
    Session::acceptor(rules(), BTreeMap::new())
}

/// The root certificate of a cluster.
fn root() -> String {
    static ROOT: LazyLock<String> = LazyLock::new(|| {
        let root = Authority::generate_root(RootRequest {
            common_name: "root".to_owned(),
            uri: "spiffe://exporter.consul".to_owned(),
            serial: 1,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
            ttl: Duration::from_secs(1_000_000),
        });
        root.unwrap().cert_pem().to_owned()
    });
    ROOT.clone()
}

/// An instance with a check, as it is registered.
fn instance(service: &str, number: usize, status: CheckStatus) -> CheckServiceNode {
    let node = format!("node-{number}");
    let id = format!("{service}-{number}");
    CheckServiceNode {
        node: Arc::new(Node {
            node: node.clone(),
            address: format!("10.0.0.{}", number % 250 + 1),
            datacenter: "dc1".to_owned(),
            meta: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
            create_index: 7,
            modify_index: 8,
            ..Node::default()
        }),
        service: Arc::new(ServiceInstance {
            id: id.clone(),
            service: service.to_owned(),
            port: 80,
            tags: vec!["v1".to_owned()],
            meta: BTreeMap::from([("a.key/with".to_owned(), "text".to_owned())]),
            create_index: 7,
            modify_index: 8,
            ..ServiceInstance::default()
        }),
        checks: vec![Arc::new(HealthCheck {
            node,
            check_id: format!("{id}-check"),
            name: "a check".to_owned(),
            status,
            output: "not for others".to_owned(),
            service_id: id,
            service_name: service.to_owned(),
            modify_index: 9,
            ..HealthCheck::default()
        })],
    }
}

fn gateway(number: usize) -> CheckServiceNode {
    let mut gateway = instance("gateway", number, CheckStatus::Passing);
    let service = Arc::make_mut(&mut gateway.service);
    service.kind = ServiceKind::MeshGateway;
    let tagged = |address: &str| ServiceAddress {
        address: address.to_owned(),
        port: 443,
    };
    service
        .tagged_addresses
        .insert("wan".to_owned(), tagged("gateway.example.com"));
    service
        .tagged_addresses
        .insert("consul-virtual".to_owned(), tagged("240.0.0.1"));
    gateway
}

/// The mesh form of a service of the cluster `exporter`.
fn mesh_of(service: &str, gateways: &[CheckServiceNode], protocol: &str) -> ExportedService {
    mesh(&MeshForm {
        service,
        gateways,
        protocol,
        sni: &format!("{service}.default.default.importer.external.exporter.consul"),
        spiffe_ids: &[
            format!("spiffe://exporter.consul/ns/default/dc/dc1/svc/{service}"),
            "spiffe://exporter.consul/gateway/mesh/dc/dc1".to_owned(),
        ],
    })
}

fn request(url: &str) -> Request {
    Request {
        resource_url: url.to_owned(),
        ..Request::default()
    }
}

fn message(content: Content) -> ReplicationMessage {
    ReplicationMessage {
        payload: Some(content),
    }
}

/// All messages that the session has to send now.
fn sent(session: &mut Session) -> Vec<Content> {
    std::iter::from_fn(|| session.next_message())
        .map(|message| message.payload.unwrap())
        .collect()
}

fn events(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.next_event()).collect()
}
