//! A delta xDS client that behaves like Envoy and stores resources as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::node::{BuildVersion, Node, SemanticVersion};
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::Resources;

/// When no response arrives for this long, no more are expected.
const QUIET: Duration = Duration::from_secs(5);

/// The deadline for all resources.
const LIMIT: Duration = Duration::from_secs(15);

/// The resources of a proxy: returns as soon as all expected ones are present, else when no new ones
/// arrive.
///
/// # Errors
///
/// If the server ends the stream, or a referenced resource does not arrive.
pub(super) async fn resources(
    server: SocketAddr,
    node: &str,
    proxy: &str,
    is_expected: impl Fn(&Resources) -> bool,
) -> Result<Resources, String> {
    let channel = Endpoint::from_shared(format!("http://{server}"))
        .expect("an address")
        .connect()
        .await
        .expect("a connection");
    let (requests, outbound) = mpsc::channel(64);
    let mut first = request(CLUSTER, Vec::new());
    first.node = identity(node, proxy).encode_to_vec().into();
    requests.send(first).await.expect("the stream is open");
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    // Consul answers a stream with its first resources.
    let stream = client.delta_aggregated_resources(ReceiverStream::new(outbound));
    let stream = timeout(LIMIT, stream).await;
    let stream = stream.map_err(|_| "Consul sends nothing".to_owned())?;
    let stream = stream.map_err(|status| format!("Consul refuses the stream: {status}"))?;
    let mut responses = stream.into_inner();
    let mut known = Known::default();
    let start = Instant::now();
    loop {
        match timeout(QUIET, responses.message()).await {
            Ok(Ok(Some(response))) => {
                for request in known.take(&response)? {
                    requests.send(request).await.expect("the stream is open");
                }
                if known.is_complete() && is_expected(&known.resources) {
                    return Ok(known.resources);
                }
            }
            Ok(ended) => return Err(format!("Consul ends the stream: {ended:?}")),
            Err(_) if known.is_complete() => return Ok(known.resources),
            Err(_) if start.elapsed() < LIMIT => {}
            Err(_) => return Err(format!("Consul does not send {:?}", known.missing)),
        }
    }
}

fn identity(node: &str, proxy: &str) -> Node {
    let text = |value: &str| prost_types::Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    };
    let fields = [
        ("node_name", node),
        ("namespace", "default"),
        ("partition", "default"),
    ];
    let fields = fields.map(|(key, value)| (key.to_owned(), text(value)));
    let version = SemanticVersion {
        major: 1,
        minor: 34,
        patch: 1,
    };
    Node {
        id: proxy.to_owned(),
        cluster: "web".to_owned(),
        metadata: Some(Struct {
            fields: fields.into(),
        }),
        user_agent_name: "envoy".to_owned(),
        user_agent_build_version: Some(BuildVersion {
            version: Some(version),
            ..BuildVersion::default()
        }),
        ..Node::default()
    }
}

fn request(type_url: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

#[derive(Default)]
struct Known {
    resources: Resources,
    subscribed: BTreeMap<&'static str, BTreeSet<String>>,
    missing: BTreeSet<String>,
    has_listeners: bool,
}

impl Known {
    fn is_complete(&self) -> bool {
        self.has_listeners && self.missing.is_empty()
    }

    /// Processes a response. Returns its ACK and the resulting subscriptions.
    ///
    /// # Errors
    ///
    /// If a resource cannot be decoded.
    fn take(
        &mut self,
        response: &DeltaDiscoveryResponse,
    ) -> Result<Vec<DeltaDiscoveryRequest>, String> {
        let mut requests = vec![DeltaDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            ..request(&response.type_url, Vec::new())
        }];
        let key = |name: &str| key(&response.type_url, name);
        let mut names: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for resource in &response.resources {
            let key = key(&resource.name);
            let any = Any::decode(&*resource.resource).expect("a resource");
            let value = legate_envoy_json::encode(&any.type_url, &any.value);
            let value = value.map_err(|error| format!("Consul sends {key}: {error}"))?;
            references(&value, &mut names);
            self.missing.remove(&key);
            self.resources.insert(key, value);
        }
        for name in &response.removed_resources {
            self.resources.remove(&key(name));
        }
        if response.type_url == CLUSTER
            && self.subscribed.insert(LISTENER, BTreeSet::new()).is_none()
        {
            requests.push(request(LISTENER, Vec::new()));
        }
        self.has_listeners |= response.type_url == LISTENER;
        for (kind, names) in names {
            let subscribed = self.subscribed.entry(kind).or_default();
            let new: Vec<String> = names
                .into_iter()
                .filter(|name| subscribed.insert(name.clone()))
                .collect();
            self.missing
                .extend(new.iter().map(|name| self::key(kind, name)));
            if !new.is_empty() {
                requests.push(request(kind, new));
            }
        }
        Ok(requests)
    }
}

/// The key of a resource: its type without the package, and its name.
pub(super) fn key(type_url: &str, name: &str) -> String {
    let short = type_url.rsplit('.').next().unwrap_or_default();
    format!("{short} {name}")
}

/// The endpoints and routes that a resource refers to, by type URL.
pub(super) fn references(value: &Value, names: &mut BTreeMap<&'static str, Vec<String>>) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match value {
        Value::Object(fields) => {
            if fields.contains_key("edsClusterConfig") {
                names
                    .entry(ENDPOINT)
                    .or_default()
                    .extend(fields.get("name").and_then(text));
            }
            if let Some(routes) = fields.get("rds") {
                names
                    .entry(ROUTE)
                    .or_default()
                    .extend(text(&routes["routeConfigName"]));
            }
            fields.values().for_each(|value| references(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}
