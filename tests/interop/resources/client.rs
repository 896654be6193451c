//! Delta xDS as an Envoy speaks it, which keeps what it gets as JSON.

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

/// A control plane that has said nothing for so long has said everything.
const QUIET: Duration = Duration::from_millis(1500);

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The resources of a proxy, once nothing new comes and nothing is missing.
pub(super) async fn resources(server: SocketAddr, node: &str, proxy: &str) -> Resources {
    let channel = Endpoint::from_shared(format!("http://{server}"))
        .expect("an address")
        .connect()
        .await
        .expect("a connection");
    let (requests, outbound) = mpsc::channel(64);
    let mut first = ask(CLUSTER, Vec::new());
    first.node = identity(node, proxy).encode_to_vec().into();
    requests.send(first).await.expect("the stream is open");
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client
        .delta_aggregated_resources(ReceiverStream::new(outbound))
        .await;
    let mut responses = stream.expect("a stream").into_inner();
    let mut known = Known::default();
    let start = Instant::now();
    loop {
        match timeout(QUIET, responses.message()).await {
            Ok(Ok(Some(response))) => {
                for request in known.take(&response) {
                    requests.send(request).await.expect("the stream is open");
                }
            }
            Ok(ended) => panic!("the stream of {server} ends: {ended:?}"),
            Err(_) if known.is_complete() => return known.resources,
            Err(_) => assert!(
                start.elapsed() < LIMIT,
                "{server}: {:?} do not come",
                known.missing
            ),
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

fn ask(type_url: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

#[derive(Default)]
struct Known {
    resources: Resources,
    asked: BTreeMap<&'static str, BTreeSet<String>>,
    missing: BTreeSet<String>,
    has_listeners: bool,
}

impl Known {
    fn is_complete(&self) -> bool {
        self.has_listeners && self.missing.is_empty()
    }

    /// Takes a response; returns its acceptance and what is to be asked for now.
    fn take(&mut self, response: &DeltaDiscoveryResponse) -> Vec<DeltaDiscoveryRequest> {
        let mut requests = vec![DeltaDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            ..ask(&response.type_url, Vec::new())
        }];
        let short = response.type_url.rsplit('.').next().unwrap_or_default();
        let mut names: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for resource in &response.resources {
            let key = format!("{short} {}", resource.name);
            let any = Any::decode(&*resource.resource).expect("a resource");
            let value = legate_envoy_json::encode(&any.type_url, &any.value);
            let value = value.unwrap_or_else(|error| panic!("{key}: {error}"));
            references(&value, &mut names);
            self.missing.remove(&key);
            self.resources.insert(key, value);
        }
        for name in &response.removed_resources {
            self.resources.remove(&format!("{short} {name}"));
        }
        if response.type_url == CLUSTER && self.asked.insert(LISTENER, BTreeSet::new()).is_none() {
            requests.push(ask(LISTENER, Vec::new()));
        }
        self.has_listeners |= response.type_url == LISTENER;
        for (kind, names) in names {
            let asked = self.asked.entry(kind).or_default();
            let new: Vec<String> = names
                .into_iter()
                .filter(|name| asked.insert(name.clone()))
                .collect();
            let short = kind.rsplit('.').next().unwrap_or_default();
            self.missing
                .extend(new.iter().map(|name| format!("{short} {name}")));
            if !new.is_empty() {
                requests.push(ask(kind, new));
            }
        }
        requests
    }
}

/// The endpoints and routes that a resource names.
fn references(value: &Value, names: &mut BTreeMap<&'static str, Vec<String>>) {
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
