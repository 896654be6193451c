//! Filters over the types that the API lists.

use std::sync::Arc;

use legate_filter::{Field, Filter};
use legate_model::filters;
use legate_model::{
    CheckServiceNode, CheckStatus, ConnectProxy, HealthCheck, Node, ServiceInstance, ServiceKind,
    ServiceNode, Upstream, Weights,
};

fn instance() -> CheckServiceNode {
    let node = Node {
        node: "n1".to_owned(),
        meta: [("zone".to_owned(), "a".to_owned())].into(),
        ..Node::default()
    };
    let service = ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: "web-1".to_owned(),
        service: "web".to_owned(),
        tags: vec!["blue".to_owned()],
        meta: [("version".to_owned(), "2".to_owned())].into(),
        port: 8080,
        weights: Weights {
            passing: 3,
            warning: 1,
        },
        proxy: ConnectProxy {
            destination_service_name: "app".to_owned(),
            upstreams: vec![Arc::new(Upstream {
                destination_name: "db".to_owned(),
                ..Upstream::default()
            })],
            ..ConnectProxy::default()
        },
        ..ServiceInstance::default()
    };
    let check = HealthCheck {
        check_id: "alive".to_owned(),
        status: CheckStatus::Warning,
        ..HealthCheck::default()
    };
    CheckServiceNode {
        node: Arc::new(node),
        service: Arc::new(service),
        checks: vec![Arc::new(check)],
    }
}

#[test]
fn instances_are_filtered_by_their_fields() {
    for (text, expected) in [
        ("Service.Meta.version == 2", true),
        ("Service.Meta.version == v2", false),
        ("Service.Meta.gone matches x", false),
        ("blue in Service.Tags and green not in Service.Tags", true),
        ("Node.Meta.zone == a and Node.Node == n1", true),
        ("Node.Partition == \"\" and Service.PeerName == \"\"", true),
        ("Checks.Status == passing", false),
        ("Checks.CheckID == alive and Checks.Status != passing", true),
        (
            "Service.Port == 8080 and Service.Weights.Passing == 3",
            true,
        ),
        ("Service.Kind == \"connect-proxy\"", true),
        ("Service.Proxy.Upstreams.DestinationName == db", true),
        ("Service.Proxy.Upstreams.LocalBindPort == 0", true),
        (
            "Service.Proxy.TransparentProxy.DialedDirectly == false",
            true,
        ),
        ("Service.Connect.Native == true", false),
        ("Service.TaggedAddresses.wan.Port == 0", false),
        ("Service.TaggedAddresses is empty", true),
    ] {
        let filter = CheckServiceNode::filter(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(instance().matches(&filter), expected, "{text}");
    }
    let row = ServiceNode::from(&instance());
    let filter =
        "ServiceMeta.version == 2 and ServiceKind contains proxy and NodeMeta is not empty";
    let filter = Filter::parse(filter, &filters::SERVICE_NODE[..]).unwrap();
    assert!(filter.matches(&row));
    assert!(CheckServiceNode::filter("Service.Locality.Region == x").is_err());
}

fn keys(value: &impl serde::Serialize) -> Vec<String> {
    let value = serde_json::to_value(value).expect("it serialises");
    value
        .as_object()
        .expect("an object")
        .keys()
        .cloned()
        .collect()
}

/// Every filterable field exists in a value with all fields set, or is listed as absent.
#[test]
fn field_names_match_the_json() {
    // Only the default tenancy and no peers are supported.
    let never = ["Partition", "PeerName"];
    let full = ServiceInstance {
        socket_path: "/s".to_owned(),
        tagged_addresses: [("lan".to_owned(), Default::default())]
            .into_iter()
            .collect(),
        ..(*instance().service).clone()
    };
    let with = CheckServiceNode {
        service: Arc::new(full),
        ..instance()
    };
    let cases: [(&[Field], Vec<String>); 5] = [
        (&filters::NODE, keys(&with.node)),
        (&filters::SERVICE, keys(&with.service)),
        (&filters::SERVICE_NODE, keys(&ServiceNode::from(&with))),
        (&filters::CHECK, keys(&with.checks[0])),
        (&filters::INSTANCE, keys(&with)),
    ];
    for (fields, keys) in cases {
        for field in fields {
            let name = field.key();
            assert!(
                keys.iter().any(|key| key == name) || never.contains(&name),
                "{name} is not among {keys:?}"
            );
        }
    }
}
