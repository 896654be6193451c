//! The exact JSON that clients of Consul's API expect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use legate_model::acl::{AuthMethod, BindType, BindingRule, PolicyLink, ServiceIdentity, Token};
use legate_model::*;
use litemap::LiteMap;
use serde::Serialize;
use serde_json::{Value, json};

fn shape(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_else(|error| panic!("{error}"))
}

fn node() -> Node {
    Node {
        id: "00000000-0000-0000-0000-00000000000a".into(),
        node: "n1".into(),
        address: "10.0.0.1".into(),
        datacenter: "dc1".into(),
        tagged_addresses: BTreeMap::from([("lan".into(), "10.0.0.1".into())]),
        meta: BTreeMap::new(),
        locality: None,
        partition: Default::default(),
        peer_name: Default::default(),
        create_index: 3,
        modify_index: 4,
    }
}

fn web() -> ServiceInstance {
    ServiceInstance {
        id: "web-1".into(),
        service: "web".into(),
        tags: vec!["v1".into()],
        port: 8080,
        create_index: 5,
        modify_index: 6,
        ..ServiceInstance::default()
    }
}

fn sidecar() -> ServiceInstance {
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: "web-1-sidecar-proxy".into(),
        service: "web-sidecar-proxy".into(),
        address: "10.0.0.2".into(),
        port: 21000,
        tagged_addresses: LiteMap::from_iter([(
            "virtual".into(),
            ServiceAddress {
                address: "10.9.0.1".into(),
                port: 80,
            },
        )]),
        proxy: ConnectProxy {
            destination_service_name: "web".into(),
            destination_service_id: "web-1".into(),
            local_service_address: "127.0.0.1".into(),
            local_service_port: 8080,
            config: Opaque::from_iter([("protocol".to_owned(), json!("http"))]),
            upstreams: vec![
                Upstream {
                    destination_name: "api".into(),
                    local_bind_port: 9191,
                    ..Upstream::default()
                }
                .into(),
            ],
            mesh_gateway: MeshGateway {
                mode: MeshGatewayMode::Local,
            },
            ..ConnectProxy::default()
        },
        ..ServiceInstance::default()
    }
}

fn web_json() -> Value {
    json!({
        "ID": "web-1", "Service": "web", "Tags": ["v1"], "Address": "", "Meta": {},
        "Port": 8080, "Weights": {"Passing": 1, "Warning": 1}, "EnableTagOverride": false,
        "Proxy": {"Mode": "", "MeshGateway": {}, "Expose": {}}, "Connect": {}, "PeerName": "",
        "CreateIndex": 5, "ModifyIndex": 6,
    })
}

fn node_json() -> Value {
    json!({
        "ID": "00000000-0000-0000-0000-00000000000a", "Node": "n1", "Address": "10.0.0.1",
        "Datacenter": "dc1", "TaggedAddresses": {"lan": "10.0.0.1"}, "Meta": {},
        "CreateIndex": 3, "ModifyIndex": 4,
    })
}

#[test]
fn health_results_have_node_service_and_checks() {
    let check = HealthCheck {
        node: "n1".into(),
        check_id: "service:web-1".into(),
        name: "Service 'web' check".into(),
        status: CheckStatus::Passing,
        service_id: "web-1".into(),
        service_name: "web".into(),
        service_tags: vec!["v1".into()],
        r#type: "ttl".into(),
        create_index: 7,
        modify_index: 8,
        ..HealthCheck::default()
    };
    let found = CheckServiceNode {
        node: Arc::new(node()),
        service: Arc::new(web()),
        checks: vec![Arc::new(check)],
    };
    assert_eq!(
        shape(&found),
        json!({
            "Node": node_json(),
            "Service": web_json(),
            "Checks": [{
                "Node": "n1", "CheckID": "service:web-1", "Name": "Service 'web' check",
                "Status": "passing", "Notes": "", "Output": "", "ServiceID": "web-1",
                "ServiceName": "web", "ServiceTags": ["v1"], "Type": "ttl", "Interval": "",
                "Timeout": "", "ExposedPort": 0, "Definition": {}, "CreateIndex": 7,
                "ModifyIndex": 8,
            }],
        })
    );
}

#[test]
fn a_sidecar_includes_its_proxy_settings() {
    assert_eq!(
        shape(&sidecar()),
        json!({
            "Kind": "connect-proxy", "ID": "web-1-sidecar-proxy", "Service": "web-sidecar-proxy",
            "Tags": [], "Address": "10.0.0.2", "Meta": {}, "Port": 21000,
            "TaggedAddresses": {"virtual": {"Address": "10.9.0.1", "Port": 80}},
            "Weights": {"Passing": 1, "Warning": 1}, "EnableTagOverride": false,
            "Proxy": {
                "DestinationServiceName": "web", "DestinationServiceID": "web-1",
                "LocalServiceAddress": "127.0.0.1", "LocalServicePort": 8080, "Mode": "",
                "Config": {"protocol": "http"},
                "Upstreams": [{
                    "DestinationType": "", "DestinationName": "api", "Datacenter": "",
                    "LocalBindPort": 9191, "MeshGateway": {},
                }],
                "MeshGateway": {"Mode": "local"}, "Expose": {},
            },
            "Connect": {}, "PeerName": "", "CreateIndex": 0, "ModifyIndex": 0,
        })
    );
}

#[test]
fn the_catalog_lists_node_and_service_side_by_side() {
    let found = CheckServiceNode {
        node: Arc::new(node()),
        service: Arc::new(web()),
        checks: vec![],
    };
    assert_eq!(
        shape(&ServiceNode::from(&found)),
        json!({
            "ID": "00000000-0000-0000-0000-00000000000a", "Node": "n1", "Address": "10.0.0.1",
            "Datacenter": "dc1", "TaggedAddresses": {"lan": "10.0.0.1"}, "NodeMeta": {},
            "ServiceKind": "", "ServiceID": "web-1", "ServiceName": "web", "ServiceTags": ["v1"],
            "ServiceAddress": "", "ServiceWeights": {"Passing": 1, "Warning": 1},
            "ServiceMeta": {}, "ServicePort": 8080, "ServiceSocketPath": "",
            "ServiceEnableTagOverride": false,
            "ServiceProxy": {"Mode": "", "MeshGateway": {}, "Expose": {}}, "ServiceConnect": {},
            "ServiceLocality": null,
            "CreateIndex": 5, "ModifyIndex": 6,
        })
    );
}

#[test]
fn serialized_registrations_can_be_registered_again() {
    let again: ServiceInstance =
        json::from_value(shape(&sidecar()), json::UnknownFields::Refuse).unwrap();
    assert_eq!(again, sidecar());
}

#[test]
fn address_health_and_weight_of_an_instance() {
    let check = |status| {
        Arc::new(HealthCheck {
            status,
            ..HealthCheck::default()
        })
    };
    let mut found = CheckServiceNode {
        node: Arc::new(node()),
        service: Arc::new(ServiceInstance {
            weights: Weights {
                passing: 10,
                warning: 3,
            },
            ..web()
        }),
        checks: vec![],
    };
    assert_eq!(found.address(), ("10.0.0.1", 8080));
    assert_eq!((found.health(), found.weight()), (CheckStatus::Passing, 10));
    found.checks = vec![check(CheckStatus::Warning), check(CheckStatus::Passing)];
    assert_eq!((found.health(), found.weight()), (CheckStatus::Warning, 3));
    found.checks.push(check(CheckStatus::Critical));
    assert_eq!((found.health(), found.weight()), (CheckStatus::Critical, 0));
    found.service = Arc::new(sidecar());
    assert_eq!(found.address(), ("10.0.0.2", 21000));
}

#[test]
fn destinations_of_instances() {
    assert_eq!(web().destination(), None);
    assert_eq!(sidecar().destination(), Some("web"));
    assert_eq!(sidecar().identity(), "web");
    let native = ServiceInstance {
        connect: ServiceConnect {
            native: true,
            ..ServiceConnect::default()
        },
        ..web()
    };
    assert_eq!(native.destination(), Some("web"));
    let gateway = ServiceInstance {
        kind: ServiceKind::MeshGateway,
        ..web()
    };
    assert_eq!((gateway.destination(), gateway.identity()), (None, "web"));
}

#[test]
fn upstream_ids_are_formatted_as_envoy_names() {
    let mut upstream = Upstream {
        destination_name: "api".into(),
        ..Upstream::default()
    };
    assert_eq!(upstream.id().to_string(), "api");
    upstream.datacenter = "dc2".into();
    assert_eq!(upstream.id().to_string(), "api?dc=dc2");
    upstream.destination_type = UpstreamType::PreparedQuery;
    assert_eq!(upstream.id().to_string(), "prepared_query:api?dc=dc2");
    upstream.destination_peer = "east".into();
    assert_eq!(upstream.id().to_string(), "prepared_query:api?peer=east");
}

#[test]
fn roots_and_their_bundle() {
    let root = |id: &str, active| CaRoot {
        id: id.into(),
        name: "Root".into(),
        serial_number: 7,
        signing_key_id: "aa:bb".into(),
        external_trust_domain: "c1".into(),
        not_before: UNIX_EPOCH,
        not_after: UNIX_EPOCH + Duration::from_secs(60),
        root_cert: format!("{id}\n\n"),
        intermediate_certs: vec![format!("{id}-intermediate")],
        active,
        private_key_type: "ec".into(),
        private_key_bits: 256,
        create_index: 1,
        modify_index: 2,
    };
    let roots = CaRoots {
        active_root_id: "b".into(),
        trust_domain: "c1.consul".into(),
        roots: vec![root("a", false), root("b", true)],
    };
    assert_eq!(roots.active().map(|root| root.id.as_str()), Some("b"));
    assert_eq!(roots.bundle_pem(), "a\nb\n");
    assert_eq!(roots.chain_pem(), "a\na-intermediate\nb\nb-intermediate\n");
    let value = shape(&roots);
    assert_eq!(value["ActiveRootID"], "b");
    assert_eq!(value["TrustDomain"], "c1.consul");
    assert_eq!(
        value["Roots"][1],
        json!({
            "ID": "b", "Name": "Root", "SerialNumber": 7, "SigningKeyID": "aa:bb",
            "ExternalTrustDomain": "c1", "NotBefore": "1970-01-01T00:00:00Z",
            "NotAfter": "1970-01-01T00:01:00Z", "RootCert": "b\n\n",
            "IntermediateCerts": ["b-intermediate"], "Active": true, "PrivateKeyType": "ec",
            "PrivateKeyBits": 256, "CreateIndex": 1, "ModifyIndex": 2,
        })
    );
    let again: CaRoots = json::from_value(value, json::UnknownFields::Refuse).unwrap();
    assert_eq!(again, roots);
}

#[test]
fn an_intention_has_namespaces_and_precedence() {
    let mut intention = Intention {
        source_name: "web".into(),
        destination_name: "*".into(),
        action: Some(IntentionAction::Deny),
        create_index: 9,
        modify_index: 10,
        ..Intention::default()
    };
    intention.normalise(&legate_model::Tenancy::default());
    assert_eq!(
        shape(&intention),
        json!({
            "SourceNS": "default", "SourceName": "web", "DestinationNS": "default",
            "DestinationName": "*", "SourceType": "consul", "Action": "deny", "Precedence": 6,
            "CreateIndex": 9, "ModifyIndex": 10,
        })
    );
}

#[test]
fn access_control_objects() {
    let token = Token {
        accessor_id: "a".into(),
        secret_id: Secret::new("s"),
        description: "d".into(),
        policies: vec![PolicyLink::global_management()],
        service_identities: vec![ServiceIdentity {
            service_name: "web".into(),
            datacenters: vec![],
        }],
        expiration_time: Some(UNIX_EPOCH),
        create_time: Some(UNIX_EPOCH),
        ..Token::default()
    };
    assert_eq!(
        shape(&token),
        json!({
            "AccessorID": "a", "SecretID": "s", "Description": "d",
            "Policies": [
                {"ID": "00000000-0000-0000-0000-000000000001", "Name": "global-management"}
            ],
            "ServiceIdentities": [{"ServiceName": "web"}], "Local": false,
            "ExpirationTime": "1970-01-01T00:00:00Z", "CreateTime": "1970-01-01T00:00:00Z",
            "CreateIndex": 0, "ModifyIndex": 0,
        })
    );
    assert!(!format!("{token:?}").contains("\"s\""));
    let method = AuthMethod {
        name: "jwt".into(),
        r#type: "jwt".into(),
        max_token_ttl: Duration::from_secs(3600),
        ..AuthMethod::default()
    };
    assert_eq!(
        shape(&method),
        json!({
            "Name": "jwt", "Type": "jwt", "Description": "", "MaxTokenTTL": "1h0m0s",
            "Config": {}, "CreateIndex": 0, "ModifyIndex": 0,
        })
    );
    let rule = BindingRule {
        auth_method: "jwt".into(),
        bind_type: BindType::Service,
        bind_name: "${value.name}".into(),
        ..BindingRule::default()
    };
    assert_eq!(
        shape(&rule),
        json!({
            "ID": "", "Description": "", "AuthMethod": "jwt", "Selector": "",
            "BindType": "service", "BindName": "${value.name}", "CreateIndex": 0, "ModifyIndex": 0,
        })
    );
}
