//! Identifies the proxy from the node message in a stream's first request. Makes no authorization
//! decisions.

use std::sync::Arc;

use legate_api::node::Node;
use legate_model::{Tenancy, TenancyName};
use legate_proxycfg::ProxyId;
use prost::Message;
use prost_types::value::Kind;

/// The oldest Envoy that supports the resources, as major and minor version. The same as in Consul
/// 1.20.
const OLDEST_ENVOY: (u32, u32) = (1, 28);

/// Maximum length of an id or node name in bytes, because they appear in logs and errors.
const MAX_NAME: usize = 1_024;

/// Node metadata key of the catalog node.
const NODE_NAME: &str = "node_name";

/// Node metadata keys of the tenancy, which the dataplane gets with its bootstrap parameters.
const NAMESPACE: &str = "namespace";
const PARTITION: &str = "partition";

/// Why a stream's first request does not identify a proxy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(
        "the first request of an xDS stream must carry the node; it names the proxy by node.id, \
         which the dataplane takes from its setting proxy-id"
    )]
    Missing,
    #[error("the node of the first request cannot be decoded: {0}; it must be an Envoy v3 node")]
    Malformed(prost::DecodeError),
    #[error(
        "node.id is empty; it must be the ID of the proxy's registration, which the dataplane \
         takes from its setting proxy-id"
    )]
    NoId,
    #[error(
        "node.id or the metadata's node_name is longer than {MAX_NAME} bytes; they must be the ID \
         and the node of the proxy's registration"
    )]
    LongName,
    #[error(
        "the {0} in the node's metadata is not a valid name; it must be that of the proxy's \
         registration, which the dataplane takes from its setting proxy-{0}"
    )]
    Tenancy(&'static str),
    #[error(
        "Envoy {major}.{minor}.{patch} is too old: use {}.{} or later",
        OLDEST_ENVOY.0, OLDEST_ENVOY.1
    )]
    OldEnvoy { major: u32, minor: u32, patch: u32 },
}

/// The proxy identified by the `node` of a first request.
///
/// The catalog node is `node_name` in the node's metadata, or else `default_node`.
pub(crate) fn identify(node: &[u8], default_node: &Arc<str>) -> Result<ProxyId, NodeError> {
    if node.is_empty() {
        return Err(NodeError::Missing);
    }
    let node = Node::decode(node).map_err(NodeError::Malformed)?;
    if node.id.is_empty() {
        return Err(NodeError::NoId);
    }
    refuse_old_envoy(&node)?;
    let tenancy = Tenancy::new(&tenant(&node, PARTITION)?, &tenant(&node, NAMESPACE)?);
    let named = text(&node, NODE_NAME);
    if node.id.len() > MAX_NAME || named.is_some_and(|name| name.len() > MAX_NAME) {
        return Err(NodeError::LongName);
    }
    Ok(ProxyId {
        tenancy,
        node: named.map_or_else(|| default_node.clone(), Arc::from),
        service_id: node.id.into(),
    })
}

/// The namespace or partition in the node's metadata; the default one if there is none.
fn tenant(node: &Node, key: &'static str) -> Result<TenancyName, NodeError> {
    let name = text(node, key).unwrap_or_default().parse::<TenancyName>();
    let one = name.ok().filter(|name| !name.is_every());
    one.ok_or(NodeError::Tenancy(key))
}

/// The value of a metadata key, if it is non-empty text.
fn text<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let value = node.metadata.as_ref()?.fields.get(key)?;
    match &value.kind {
        Some(Kind::StringValue(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// Rejects Envoys that report a version that is too old. Other clients are accepted, because the
/// resources are for any client that speaks the protocol.
fn refuse_old_envoy(node: &Node) -> Result<(), NodeError> {
    let version = node
        .user_agent_build_version
        .as_ref()
        .and_then(|build| build.version.as_ref());
    match version {
        Some(version)
            if node.user_agent_name == "envoy" && (version.major, version.minor) < OLDEST_ENVOY =>
        {
            Err(NodeError::OldEnvoy {
                major: version.major,
                minor: version.minor,
                patch: version.patch,
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use legate_api::node::{BuildVersion, SemanticVersion};
    use prost_types::{Struct, Value};

    use super::*;

    fn identified(node: &Node) -> Result<ProxyId, NodeError> {
        identify(&node.encode_to_vec(), &"server".into())
    }

    fn envoy(major: u32, minor: u32) -> Node {
        Node {
            id: "web-sidecar-proxy".to_owned(),
            user_agent_name: "envoy".to_owned(),
            user_agent_build_version: Some(BuildVersion {
                version: Some(SemanticVersion {
                    major,
                    minor,
                    patch: 3,
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn metadata(key: &str, kind: Kind) -> Option<Struct> {
        let value = Value { kind: Some(kind) };
        Some(Struct {
            fields: [(key.to_owned(), value)].into(),
        })
    }

    #[test]
    fn a_proxy_is_of_the_tenancy_that_its_node_names() {
        let mut node = envoy(1, 31);
        for key in [NAMESPACE, PARTITION] {
            for default in ["", "default", "Default"] {
                node.metadata = metadata(key, Kind::StringValue(default.to_owned()));
                let proxy = identified(&node).unwrap();
                assert!(proxy.tenancy.is_default(), "{key} {default:?}");
            }
            for bad in ["*", "a.b"] {
                node.metadata = metadata(key, Kind::StringValue(bad.to_owned()));
                assert_eq!(identified(&node), Err(NodeError::Tenancy(key)));
            }
        }
        node.metadata = metadata(PARTITION, Kind::StringValue("Shop".to_owned()));
        let tenancy = identified(&node).unwrap().tenancy;
        assert_eq!(
            (&*tenancy.partition, &*tenancy.namespace),
            ("shop", "default")
        );
    }

    #[test]
    fn the_catalog_node_is_from_the_metadata_or_the_servers_own() {
        let mut node = envoy(1, 31);
        assert_eq!(identified(&node).unwrap().node.as_ref(), "server");
        node.metadata = metadata(NODE_NAME, Kind::StringValue("vm-1".to_owned()));
        let proxy = identified(&node).unwrap();
        assert_eq!(proxy.node.as_ref(), "vm-1");
        assert_eq!(proxy.service_id.as_ref(), "web-sidecar-proxy");
        for unusable in [Kind::StringValue(String::new()), Kind::BoolValue(true)] {
            node.metadata = metadata(NODE_NAME, unusable);
            assert_eq!(identified(&node).unwrap().node.as_ref(), "server");
        }
    }

    #[test]
    fn a_request_without_a_usable_node_is_refused() {
        let server = "server".into();
        assert_eq!(identify(&[], &server), Err(NodeError::Missing));
        let garbage = identify(&[0xff, 0xff, 0xff], &server);
        assert!(matches!(garbage, Err(NodeError::Malformed(_))));
        let mut node = envoy(1, 31);
        node.id = "x".repeat(MAX_NAME + 1);
        assert_eq!(identified(&node), Err(NodeError::LongName));
        node.id = String::new();
        assert_eq!(identified(&node), Err(NodeError::NoId));
    }

    #[test]
    fn an_old_envoy_is_refused_and_other_clients_are_accepted() {
        assert!(identified(&envoy(1, 28)).is_ok());
        assert!(identified(&envoy(2, 0)).is_ok());
        let refused = identified(&envoy(1, 27)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Envoy 1.27.3 is too old: use 1.28 or later"
        );
        let mut other = envoy(0, 1);
        other.user_agent_name = "legate-proxy".to_owned();
        assert!(identified(&other).is_ok());
    }
}
