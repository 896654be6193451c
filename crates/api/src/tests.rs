//! Field numbers are the contract with deployed versions of Consul: handwritten bytes must decode
//! to the right fields and encode to the same bytes again.

use bytes::Bytes;
use prost::Message;
use prost_types::Any;
use serde_json::json;

use crate::internal::peerstream::replication_message;
use crate::internal::{common, peering, peerstream, service, status};
use crate::{
    acl, connectca, dataplane, discovery, dns, json as convert, node, rpc, serverdiscovery,
    type_url,
};

/// A handwritten length-delimited field: (number << 3) | 2, length, body.
fn field(number: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    assert!(
        number < 16 && body.len() < 128,
        "one byte each is enough for the tests"
    );
    let mut out = vec![number << 3 | 2, body.len() as u8];
    out.extend_from_slice(body);
    out
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// A field whose number has two bytes, from 16 to 127.
fn high(number: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = field(0, body);
    let key = u16::from(number) << 3 | 2;
    out.splice(0..1, [key as u8 | 0x80, (key >> 7) as u8]);
    out
}

#[track_caller]
fn golden<M: Message + Default + PartialEq + std::fmt::Debug>(parts: &[Vec<u8>], expected: M) {
    let bytes = parts.concat();
    assert_eq!(M::decode(bytes.as_slice()).unwrap(), expected);
    assert_eq!(expected.encode_to_vec(), bytes);
}

#[test]
fn dataplane_field_numbers() {
    golden(
        &[
            field(1, [varint(1, 1), varint(2, 1)].concat()),
            field(1, [varint(1, 3), varint(2, 1)].concat()),
            field(1, varint(1, 4)),
        ],
        dataplane::GetSupportedDataplaneFeaturesResponse {
            supported_dataplane_features: [
                (dataplane::DataplaneFeatures::WatchServers, true),
                (
                    dataplane::DataplaneFeatures::EnvoyBootstrapConfiguration,
                    true,
                ),
                (dataplane::DataplaneFeatures::Fips, false),
            ]
            .map(|(name, supported)| dataplane::DataplaneFeatureSupport {
                feature_name: name.into(),
                supported,
            })
            .to_vec(),
        },
    );
    #[expect(deprecated, reason = "old dataplanes send the old field")]
    golden(
        &[
            field(2, "node"),
            field(3, "old"),
            field(4, "part"),
            field(5, "ns"),
            field(6, "id"),
        ],
        dataplane::GetEnvoyBootstrapParamsRequest {
            node_spec: Some(
                dataplane::get_envoy_bootstrap_params_request::NodeSpec::NodeName("node".into()),
            ),
            service_id: "old".into(),
            partition: "part".into(),
            namespace: "ns".into(),
            proxy_id: "id".into(),
        },
    );
    let config = field(
        1,
        [field(1, "protocol"), field(2, field(3, "http"))].concat(),
    );
    #[expect(deprecated, reason = "old dataplanes read the old field")]
    golden(
        &[
            field(2, "old"),
            field(3, "ns"),
            field(4, "part"),
            field(5, "dc1"),
            field(6, config),
            field(8, "node"),
            field(9, "{}"),
            field(10, "web"),
        ],
        dataplane::GetEnvoyBootstrapParamsResponse {
            service: "old".into(),
            namespace: "ns".into(),
            partition: "part".into(),
            datacenter: "dc1".into(),
            config: Some(convert::to_struct(
                json!({"protocol": "http"}).as_object().unwrap(),
            )),
            node_name: "node".into(),
            access_logs: vec!["{}".into()],
            identity: "web".into(),
        },
    );
}

#[test]
fn server_discovery_field_numbers() {
    golden(
        &[varint(1, 1)],
        serverdiscovery::WatchServersRequest { wan: true },
    );
    golden(
        &[field(
            1,
            [field(1, "id"), field(2, "10.0.0.1"), field(3, "1.20.0")].concat(),
        )],
        serverdiscovery::WatchServersResponse {
            servers: vec![serverdiscovery::Server {
                id: "id".into(),
                address: "10.0.0.1".into(),
                version: "1.20.0".into(),
            }],
        },
    );
}

#[test]
fn acl_field_numbers() {
    golden(
        &[
            field(1, "method"),
            field(2, "bearer"),
            field(3, [field(1, "pod"), field(2, "a/b")].concat()),
            field(4, "ns"),
            field(5, "part"),
            field(6, "dc1"),
        ],
        acl::LoginRequest {
            auth_method: "method".into(),
            bearer_token: "bearer".into(),
            meta: [("pod".to_owned(), "a/b".to_owned())].into(),
            namespace: "ns".into(),
            partition: "part".into(),
            datacenter: "dc1".into(),
        },
    );
    golden(
        &[field(
            1,
            [field(1, "accessor"), field(2, "secret")].concat(),
        )],
        acl::LoginResponse {
            token: Some(acl::LoginToken {
                accessor_id: "accessor".into(),
                secret_id: "secret".into(),
            }),
        },
    );
    golden(
        &[field(1, "secret"), field(2, "dc1")],
        acl::LogoutRequest {
            token: "secret".into(),
            datacenter: "dc1".into(),
        },
    );
}

#[test]
fn dns_field_numbers() {
    golden(
        &[field(1, "question"), varint(2, 2)],
        dns::QueryRequest {
            msg: "question".into(),
            protocol: dns::Protocol::Udp.into(),
        },
    );
    golden(
        &[field(1, "answer")],
        dns::QueryResponse {
            msg: "answer".into(),
        },
    );
}

#[test]
fn connect_ca_field_numbers() {
    golden(
        &[
            field(1, "root-id"),
            field(2, "td.consul"),
            field(
                3,
                [
                    field(1, "root-id"),
                    field(2, "name"),
                    varint(3, 7),
                    field(4, "key"),
                    field(5, "pem"),
                    field(6, "inter"),
                    varint(7, 1),
                    field(8, varint(1, 9)),
                ]
                .concat(),
            ),
        ],
        connectca::WatchRootsResponse {
            active_root_id: "root-id".into(),
            trust_domain: "td.consul".into(),
            roots: vec![connectca::CaRoot {
                id: "root-id".into(),
                name: "name".into(),
                serial_number: 7,
                signing_key_id: "key".into(),
                root_cert: "pem".into(),
                intermediate_certs: vec!["inter".into()],
                active: true,
                rotated_out_at: Some(prost_types::Timestamp {
                    seconds: 9,
                    nanos: 0,
                }),
            }],
        },
    );
    golden(
        &[field(1, "csr")],
        connectca::SignRequest { csr: "csr".into() },
    );
    golden(
        &[field(2, "cert")],
        connectca::SignResponse {
            cert_pem: "cert".into(),
        },
    );
}

fn in_stream(payload: replication_message::Payload) -> peerstream::ReplicationMessage {
    peerstream::ReplicationMessage {
        payload: Some(payload),
    }
}

#[test]
fn peer_stream_field_numbers() {
    use replication_message::{Open, Payload, Request};
    let locality = common::Locality {
        region: "r".into(),
        zone: "z".into(),
    };
    let remote = [
        field(1, "part"),
        field(2, "dc1"),
        field(3, [field(1, "r"), field(2, "z")].concat()),
    ];
    golden(
        &[field(
            1,
            [
                field(1, "id"),
                field(2, "secret"),
                field(3, remote.concat()),
            ]
            .concat(),
        )],
        in_stream(Payload::Open(Open {
            peer_id: "id".into(),
            stream_secret_id: "secret".into(),
            remote: Some(peering::RemoteInfo {
                partition: "part".into(),
                datacenter: "dc1".into(),
                locality: Some(locality),
            }),
        })),
    );
    let error = [varint(1, 3), field(2, "bad"), field(3, field(1, "url"))];
    golden(
        &[field(
            2,
            [
                field(1, "id"),
                field(2, "nonce"),
                field(3, "url"),
                field(5, error.concat()),
            ]
            .concat(),
        )],
        in_stream(Payload::Request(Request {
            peer_id: "id".into(),
            response_nonce: "nonce".into(),
            resource_url: "url".into(),
            error: Some(status::Status {
                code: 3,
                message: "bad".into(),
                details: vec![Any {
                    type_url: "url".into(),
                    value: Vec::new(),
                }],
            }),
        })),
    );
}

#[test]
fn peer_resource_field_numbers() {
    use replication_message::{Heartbeat, Payload, Response, Terminated};
    let any = Any {
        type_url: "url".into(),
        value: b"body".to_vec(),
    };
    golden(
        &[field(
            3,
            [
                field(1, "nonce"),
                field(2, "url"),
                field(3, "id"),
                field(4, [field(1, "url"), field(2, "body")].concat()),
                varint(5, 1),
            ]
            .concat(),
        )],
        in_stream(Payload::Response(Response {
            nonce: "nonce".into(),
            resource_url: "url".into(),
            resource_id: "id".into(),
            resource: Some(any.encode_to_vec().into()),
            operation: peerstream::Operation::Upsert.into(),
        })),
    );
    golden(
        &[field(4, "")],
        in_stream(Payload::Terminated(Terminated {})),
    );
    golden(&[field(5, "")], in_stream(Payload::Heartbeat(Heartbeat {})));
    golden(
        &[field(1, "a"), field(1, "b")],
        peerstream::ExportedServiceList {
            services: vec!["a".into(), "b".into()],
        },
    );
}

#[test]
fn peering_field_numbers() {
    golden(
        &[field(1, "id"), field(2, "secret")],
        peerstream::ExchangeSecretRequest {
            peer_id: "id".into(),
            establishment_secret: "secret".into(),
        },
    );
    let exchanged = peerstream::ExchangeSecretResponse {
        stream_secret: "secret".into(),
    };
    assert_eq!(
        format!("{exchanged:?}"),
        "ExchangeSecretResponse { stream_secret: \"***\" }"
    );
    golden(&[field(1, "secret")], exchanged);
    golden(
        &[
            field(1, "td"),
            field(2, "peer"),
            field(3, "part"),
            field(4, "pem"),
            field(5, "other"),
            varint(6, 7),
            varint(7, 8),
        ],
        peering::PeeringTrustBundle {
            trust_domain: "td".into(),
            peer_name: "peer".into(),
            partition: "part".into(),
            root_pems: vec!["pem".into()],
            exported_partition: "other".into(),
            create_index: 7,
            modify_index: 8,
        },
    );
    golden(
        &[field(1, "a:1")],
        peering::PeeringServerAddresses {
            addresses: vec!["a:1".into()],
        },
    );
}

/// A map with one entry.
fn pair(value: &[u8]) -> Vec<u8> {
    [field(1, "k"), field(2, value)].concat()
}

fn index() -> (common::RaftIndex, Vec<u8>) {
    let index = common::RaftIndex {
        create_index: 1,
        modify_index: 2,
    };
    (index, [varint(1, 1), varint(2, 2)].concat())
}

fn enterprise_meta() -> (common::EnterpriseMeta, Vec<u8>) {
    let meta = common::EnterpriseMeta {
        namespace: "ns".into(),
        partition: "part".into(),
    };
    (meta, [field(1, "ns"), field(2, "part")].concat())
}

fn locality() -> (common::Locality, Vec<u8>) {
    let locality = common::Locality {
        region: "r".into(),
        zone: "z".into(),
    };
    (locality, [field(1, "r"), field(2, "z")].concat())
}

#[test]
fn exported_node_field_numbers() {
    let ((index, index_bytes), (locality, locality_bytes)) = (index(), locality());
    golden(
        &[
            field(1, "id"),
            field(2, "node"),
            field(3, "addr"),
            field(4, "dc1"),
            field(5, pair(b"v")),
            field(6, pair(b"v")),
            field(7, &index_bytes),
            field(8, "part"),
            field(9, "peer"),
            field(10, &locality_bytes),
        ],
        service::Node {
            id: "id".into(),
            node: "node".into(),
            address: "addr".into(),
            datacenter: "dc1".into(),
            tagged_addresses: [("k".to_owned(), "v".to_owned())].into(),
            meta: [("k".to_owned(), "v".to_owned())].into(),
            raft_index: Some(index),
            partition: "part".into(),
            peer_name: "peer".into(),
            locality: Some(locality),
        },
    );
}

#[test]
fn exported_service_field_numbers() {
    let ((index, index_bytes), (locality, locality_bytes)) = (index(), locality());
    let (meta, meta_bytes) = enterprise_meta();
    let peer_meta = [field(1, "sni"), field(2, "spiffe"), field(3, "http")].concat();
    golden(
        &[
            field(1, "kind"),
            field(2, "id"),
            field(3, "web"),
            field(4, "tag"),
            field(5, "addr"),
            field(6, pair(b"v")),
            varint(7, 80),
            field(8, [varint(1, 1), varint(2, 2)].concat()),
            varint(9, 1),
            field(11, [field(1, "dest"), field(2, "dest-id")].concat()),
            field(12, [varint(1, 1), field(4, peer_meta)].concat()),
            varint(13, 1),
            field(14, &index_bytes),
            field(15, pair(&[field(1, "a"), varint(2, 9)].concat())),
            high(16, &meta_bytes),
            high(17, "sock"),
            high(18, "peer"),
            high(19, &locality_bytes),
        ],
        service::NodeService {
            kind: "kind".into(),
            id: "id".into(),
            service: "web".into(),
            tags: vec!["tag".into()],
            address: "addr".into(),
            meta: [("k".to_owned(), "v".to_owned())].into(),
            port: 80,
            weights: Some(service::Weights {
                passing: 1,
                warning: 2,
            }),
            enable_tag_override: true,
            proxy: Some(service::ConnectProxyConfig {
                destination_service_name: "dest".into(),
                destination_service_id: "dest-id".into(),
            }),
            connect: Some(service::ServiceConnect {
                native: true,
                peer_meta: Some(service::PeeringServiceMeta {
                    sni: vec!["sni".into()],
                    spiffe_id: vec!["spiffe".into()],
                    protocol: "http".into(),
                }),
            }),
            locally_registered_as_sidecar: true,
            raft_index: Some(index),
            tagged_addresses: [(
                "k".to_owned(),
                service::ServiceAddress {
                    address: "a".into(),
                    port: 9,
                },
            )]
            .into(),
            enterprise_meta: Some(meta),
            socket_path: "sock".into(),
            peer_name: "peer".into(),
            locality: Some(locality),
        },
    );
}

#[test]
fn exported_check_field_numbers() {
    let ((index, index_bytes), (meta, meta_bytes)) = (index(), enterprise_meta());
    golden(
        &[
            field(1, "node"),
            field(2, "check"),
            field(3, "name"),
            field(4, "passing"),
            field(5, "notes"),
            field(6, "output"),
            field(7, "id"),
            field(8, "web"),
            field(9, "tag"),
            field(11, &index_bytes),
            field(12, "http"),
            field(13, &meta_bytes),
            varint(14, 7),
            field(15, "1s"),
            high(16, "2s"),
            high(17, "peer"),
        ],
        service::HealthCheck {
            node: "node".into(),
            check_id: "check".into(),
            name: "name".into(),
            status: "passing".into(),
            notes: "notes".into(),
            output: "output".into(),
            service_id: "id".into(),
            service_name: "web".into(),
            service_tags: vec!["tag".into()],
            raft_index: Some(index),
            r#type: "http".into(),
            enterprise_meta: Some(meta),
            exposed_port: 7,
            interval: "1s".into(),
            timeout: "2s".into(),
            peer_name: "peer".into(),
        },
    );
    golden(
        &[field(
            1,
            [
                field(1, field(2, "node")),
                field(2, field(2, "id")),
                field(3, field(2, "check")),
            ]
            .concat(),
        )],
        peerstream::ExportedService {
            nodes: vec![service::CheckServiceNode {
                node: Some(service::Node {
                    node: "node".into(),
                    ..service::Node::default()
                }),
                service: Some(service::NodeService {
                    id: "id".into(),
                    ..service::NodeService::default()
                }),
                checks: vec![service::HealthCheck {
                    check_id: "check".into(),
                    ..service::HealthCheck::default()
                }],
            }],
        },
    );
}

#[test]
fn discovery_field_numbers() {
    golden(
        &[
            field(1, "node"),
            field(2, "type"),
            field(3, "sub"),
            field(4, "unsub"),
            field(5, [field(1, "name"), field(2, "v1")].concat()),
            field(6, "nonce"),
            field(7, [varint(1, 13), field(2, "bad")].concat()),
        ],
        discovery::DeltaDiscoveryRequest {
            node: "node".into(),
            type_url: "type".into(),
            resource_names_subscribe: vec!["sub".into()],
            resource_names_unsubscribe: vec!["unsub".into()],
            initial_resource_versions: [("name".to_owned(), "v1".to_owned())].into(),
            response_nonce: "nonce".into(),
            error_detail: Some(rpc::Status {
                code: 13,
                message: "bad".into(),
                details: vec![],
            }),
        },
    );
    golden(
        &[
            field(1, "v9"),
            field(
                2,
                [
                    field(1, "v1"),
                    field(2, "any"),
                    field(3, "name"),
                    field(4, "alias"),
                ]
                .concat(),
            ),
            field(4, "type"),
            field(5, "nonce"),
            field(6, "gone"),
        ],
        discovery::DeltaDiscoveryResponse {
            system_version_info: "v9".into(),
            resources: vec![discovery::Resource {
                version: "v1".into(),
                resource: "any".into(),
                name: "name".into(),
                aliases: vec!["alias".into()],
            }],
            type_url: "type".into(),
            nonce: "nonce".into(),
            removed_resources: vec!["gone".into()],
        },
    );
}

#[test]
fn node_field_numbers() {
    let version = [varint(1, 1), varint(2, 34), varint(3, 2)].concat();
    golden(
        &[
            field(1, "web-proxy"),
            field(2, "web"),
            field(
                3,
                field(
                    1,
                    [field(1, "node_name"), field(2, field(3, "n1"))].concat(),
                ),
            ),
            field(6, "envoy"),
            field(8, field(1, version)),
        ],
        node::Node {
            id: "web-proxy".into(),
            cluster: "web".into(),
            metadata: Some(convert::to_struct(
                json!({"node_name": "n1"}).as_object().unwrap(),
            )),
            user_agent_name: "envoy".into(),
            user_agent_version: String::new(),
            user_agent_build_version: Some(node::BuildVersion {
                version: Some(node::SemanticVersion {
                    major: 1,
                    minor: 34,
                    patch: 2,
                }),
                metadata: None,
            }),
        },
    );
}

/// Envoy's own definition, in which the resource is a message.
#[derive(Clone, PartialEq, prost::Message)]
struct TypedResource {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, optional, tag = "2")]
    resource: Option<Any>,
    #[prost(string, tag = "3")]
    name: String,
}

#[test]
fn a_relayed_resource_keeps_its_bytes() {
    // A body with an unknown field and in non-canonical order must not change.
    let body = [field(9, "later"), field(1, "sooner"), varint(15, 3)].concat();
    let any = Any {
        type_url: type_url::CLUSTER.into(),
        value: body,
    };
    let typed = TypedResource {
        version: "v1".into(),
        resource: Some(any.clone()),
        name: "web".into(),
    };
    let wire = Bytes::from(typed.encode_to_vec());
    let relayed = discovery::Resource::decode(wire.clone()).unwrap();
    assert_eq!(relayed.resource, any.encode_to_vec());
    assert!(
        wire.as_ptr_range().contains(&relayed.resource.as_ptr()),
        "the body shares the buffer that it was read from"
    );
    assert_eq!(relayed.encode_to_vec(), wire);
    assert_eq!(TypedResource::decode(wire).unwrap(), typed);
}

#[test]
fn json_survives_the_struct() {
    let value = json!({
        "protocol": "http",
        "local_connect_timeout_ms": 5000,
        "negative": -7,
        "ratio": 0.25,
        "nothing": null,
        "on": true,
        "list": ["a", 1, {"deep": []}],
        "map": {"k": "v"},
    });
    let object = value.as_object().unwrap();
    assert_eq!(&convert::from_struct(&convert::to_struct(object)), object);
}

#[test]
fn numbers_that_json_lacks_become_null() {
    let mut object = convert::to_struct(json!({"x": 1}).as_object().unwrap());
    for number in [f64::NAN, f64::INFINITY] {
        object.fields.get_mut("x").unwrap().kind =
            Some(prost_types::value::Kind::NumberValue(number));
        assert_eq!(convert::from_struct(&object)["x"], json!(null));
    }
}

#[test]
fn services_keep_their_names() {
    use tonic::server::NamedService;
    fn name<S: NamedService>(_: Option<S>) -> &'static str {
        S::NAME
    }
    assert_eq!(
        name::<dataplane::dataplane_service_server::DataplaneServiceServer<()>>(None),
        "hashicorp.consul.dataplane.DataplaneService"
    );
    assert_eq!(
        name::<serverdiscovery::server_discovery_service_server::ServerDiscoveryServiceServer<()>>(
            None
        ),
        "hashicorp.consul.serverdiscovery.ServerDiscoveryService"
    );
    assert_eq!(
        name::<acl::acl_service_server::AclServiceServer<()>>(None),
        "hashicorp.consul.acl.ACLService"
    );
    assert_eq!(
        name::<dns::dns_service_server::DnsServiceServer<()>>(None),
        "hashicorp.consul.dns.DNSService"
    );
    assert_eq!(
        name::<connectca::connect_ca_service_server::ConnectCaServiceServer<()>>(None),
        "hashicorp.consul.connectca.ConnectCAService"
    );
    assert_eq!(
        name::<peerstream::peer_stream_service_server::PeerStreamServiceServer<()>>(None),
        "hashicorp.consul.internal.peerstream.PeerStreamService"
    );
    assert_eq!(
        name::<discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer<()>>(
            None
        ),
        "envoy.service.discovery.v3.AggregatedDiscoveryService"
    );
}
