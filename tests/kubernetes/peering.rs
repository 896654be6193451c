//! PeeringAcceptors and PeeringDialers between a fake API server with failures and two real control planes.

use std::time::Duration;

use kube::Client;
use legate_kubernetes::leader::Lead;
use legate_kubernetes::peering::{self, PeeringMetrics, TOKEN_LABEL, VERSION_ANNOTATION};
use legate_kubernetes::servers::{Credentials, Options, Servers};
use legate_runtime::metrics::{Registry, encode};
use legate_runtime::{Clock, Scope};
use legate_server::{Server, ServerConfig};
use legate_store::Store;
use legate_testkit::kubernetes::FakeKubernetes;
use legate_tests::{client, eventually};
use serde_json::{Value, json};

use crate::cluster::{config, start};

const STOP: Duration = Duration::from_secs(10);

/// A control plane with an operator, which has the objects of the namespace with the datacenter's name.
struct Datacenter {
    name: &'static str,
    server: Server,
    scope: Scope,
    lead: Lead,
    registry: Registry,
}

impl Datacenter {
    async fn start(name: &'static str, kubernetes: &FakeKubernetes) -> Datacenter {
        let config = ServerConfig {
            datacenter: name.to_owned(),
            grpc_tls: Some("127.0.0.1:0".parse().unwrap()),
            ..config()
        };
        let server = start(config, &Store::new()).await;
        let (scope, lead, registry) = operator(name, &server, kubernetes);
        Datacenter {
            name,
            server,
            scope,
            lead,
            registry,
        }
    }

    /// Another operator takes over.
    async fn replace_operator(&mut self, kubernetes: &FakeKubernetes) {
        self.lead.token().cancel();
        let (scope, lead, registry) = operator(self.name, &self.server, kubernetes);
        let before = std::mem::replace(&mut self.scope, scope);
        (self.lead, self.registry) = (lead, registry);
        before.stop(STOP).await.unwrap();
    }

    /// The names of its peerings, and whether each uses a token of another cluster.
    async fn peerings(&self) -> Vec<(String, bool)> {
        let http = self.server.http_addr().unwrap();
        let (_, body) = client::get(http, "/v1/peerings").await.unwrap();
        let all: Vec<Value> = serde_json::from_str(&body).unwrap();
        let all = all.iter().map(|peering| {
            let name = peering["Name"].as_str().unwrap().to_owned();
            (name, peering["PeerID"].is_string())
        });
        all.collect()
    }

    /// The state of a peering.
    async fn state(&self, name: &str) -> Value {
        let http = self.server.http_addr().unwrap();
        let path = format!("/v1/peering/{name}");
        let (_, body) = client::get(http, &path).await.unwrap();
        let peering: Value = serde_json::from_str(&body).unwrap();
        peering["State"].clone()
    }

    async fn stop(self) {
        self.lead.token().cancel();
        self.scope.stop(STOP).await.unwrap();
        self.server.stop(STOP).await.unwrap();
    }
}

fn operator(name: &str, server: &Server, kubernetes: &FakeKubernetes) -> (Scope, Lead, Registry) {
    let (scope, lead, registry) = (Scope::new("operator"), Lead::forever(), Registry::new());
    let http = server.http_addr().unwrap();
    let options = Options {
        host: http.ip().to_string(),
        port: http.port(),
        tls: None,
        credentials: Credentials::None,
        partition: None,
    };
    let servers = Servers::new(options, scope.spawner()).unwrap();
    let url = kubernetes.url().parse().unwrap();
    let client = Client::try_from(kube::Config::new(url)).unwrap();
    let options = peering::Options {
        reporter: "legate-operator".to_owned(),
        namespaces: vec![name.to_owned()],
        clock: Clock::system(),
        metrics: PeeringMetrics::register(&registry).unwrap(),
    };
    let run = peering::run(client, servers, lead.clone(), options);
    scope.spawn("peering", run);
    (scope, lead, registry)
}

fn object(kind: &str, namespace: &str, name: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "consul.hashicorp.com/v1alpha1", "kind": kind,
        "metadata": {
            "name": name, "namespace": namespace, "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"peer": {"secret": {"name": secret, "key": "data", "backend": "kubernetes"}}},
    })
}

fn find(kubernetes: &FakeKubernetes, kind: &str, namespace: &str, name: &str) -> Value {
    let all = kubernetes.objects(kind);
    let mut own = all.into_iter().filter(|object| {
        object["metadata"]["namespace"] == namespace && object["metadata"]["name"] == name
    });
    own.next().unwrap_or_default()
}

async fn until_synced(kubernetes: &FakeKubernetes, kind: &str, namespace: &str, name: &str) {
    let read = || async { find(kubernetes, kind, namespace, name)["status"].clone() };
    let synced = |status: &Value| {
        let condition = &status["conditions"][0];
        condition["type"] == "Synced" && condition["status"] == "True"
    };
    eventually(
        &format!("{kind} {namespace}/{name} is synced"),
        read,
        synced,
    )
    .await;
}

/// Copies the token, as a user does.
fn copy(kubernetes: &FakeKubernetes, from: (&str, &str), to: (&str, &str)) {
    let data = find(kubernetes, "Secret", from.0, from.1)["data"].clone();
    let labels = json!({ TOKEN_LABEL: "true" });
    kubernetes.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {"name": to.1, "namespace": to.0, "labels": labels},
    }));
}

#[tokio::test]
async fn two_clusters_are_peered_by_their_objects_and_parted_with_them() {
    let kubernetes = FakeKubernetes::start().await;
    let mut east = Datacenter::start("east", &kubernetes).await;
    let west = Datacenter::start("west", &kubernetes).await;

    kubernetes.apply(object("PeeringAcceptor", "east", "west", "token"));
    until_synced(&kubernetes, "PeeringAcceptor", "east", "west").await;
    let accepts = [("west".to_owned(), false)];
    assert_eq!(east.peerings().await, accepts);
    let secret = find(&kubernetes, "Secret", "east", "token");
    assert_eq!(secret["metadata"]["labels"][TOKEN_LABEL], "true");
    // In the other cluster there is no owner, so Kubernetes would delete a copy that names one.
    assert!(secret["metadata"]["ownerReferences"].is_null(), "{secret}");

    kubernetes.apply(object("PeeringDialer", "west", "east", "copied"));
    let dialer = || async { find(&kubernetes, "PeeringDialer", "west", "east")["status"].clone() };
    let missing = |status: &Value| status["conditions"][0]["reason"] == "secretMissing";
    eventually("the Secret is missing", dialer, missing).await;
    let events = kubernetes.objects("Event");
    assert!(
        events
            .iter()
            .any(|event| event["reason"] == "secretMissing"),
        "{events:?}"
    );
    let failing = |registry: &Registry, kind: &str, count: usize| {
        let line = format!("legate_k8s_peering_not_synced{{kind=\"{kind}\"}} {count}\n");
        let text = encode(registry);
        assert!(text.contains(&line), "{text}");
    };
    failing(&west.registry, "PeeringDialer", 1);
    copy(&kubernetes, ("east", "token"), ("west", "copied"));
    until_synced(&kubernetes, "PeeringDialer", "west", "east").await;
    failing(&west.registry, "PeeringDialer", 0);
    assert_eq!(west.peerings().await, [("east".to_owned(), true)]);

    for (datacenter, name) in [(&east, "west"), (&west, "east")] {
        let state = || datacenter.state(name);
        let active = |state: &Value| *state == "ACTIVE";
        eventually("the clusters are connected", state, active).await;
    }

    // A new operator does nothing again.
    let version = secret["metadata"]["resourceVersion"].clone();
    east.replace_operator(&kubernetes).await;
    let mut raised = find(&kubernetes, "PeeringAcceptor", "east", "west");
    raised["metadata"]["annotations"] = json!({ VERSION_ANNOTATION: "3" });
    assert_eq!(
        find(&kubernetes, "Secret", "east", "token")["metadata"]["resourceVersion"],
        version
    );
    kubernetes.apply(raised);
    let latest = || async {
        let object = find(&kubernetes, "PeeringAcceptor", "east", "west");
        object["status"]["latestPeeringVersion"].clone()
    };
    eventually("a new token is made", latest, |latest| *latest == 3).await;
    let renewed = find(&kubernetes, "Secret", "east", "token");
    assert_ne!(renewed["data"], secret["data"]);

    // Watches have ended, and everything is listed again.
    kubernetes.forget();
    kubernetes.delete("Secret", "east", "token");
    let again = || async { find(&kubernetes, "Secret", "east", "token")["data"].clone() };
    let made = |data: &Value| !data.is_null() && *data != renewed["data"];
    eventually("the token is made once more", again, made).await;

    kubernetes.delete("PeeringDialer", "west", "east");
    kubernetes.delete("PeeringAcceptor", "east", "west");
    let left = || async {
        let kinds = ["PeeringAcceptor", "PeeringDialer"];
        let objects: Vec<Value> = kinds
            .iter()
            .flat_map(|kind| kubernetes.objects(kind))
            .collect();
        (objects, east.peerings().await, west.peerings().await)
    };
    let nothing = |left: &(Vec<Value>, Vec<_>, Vec<_>)| {
        left.0.is_empty() && left.1.is_empty() && left.2.is_empty()
    };
    eventually("nothing is left", left, nothing).await;
    assert_eq!(find(&kubernetes, "Secret", "east", "token"), Value::Null);
    assert_ne!(
        find(&kubernetes, "Secret", "west", "copied"),
        Value::Null,
        "the user's"
    );
    east.stop().await;
    west.stop().await;
}

#[tokio::test]
async fn what_the_servers_refuse_is_in_the_condition() {
    let kubernetes = FakeKubernetes::start().await;
    let east = Datacenter::start("east", &kubernetes).await;
    kubernetes.apply(object("PeeringAcceptor", "east", "west", "token"));
    until_synced(&kubernetes, "PeeringAcceptor", "east", "west").await;
    // Its own token, by another name; and a text that is no token.
    for (name, secret, part) in [
        ("self", "token", "within the same cluster"),
        ("other", "text", "failed to decode token"),
    ] {
        let labels = json!({ TOKEN_LABEL: "true" });
        kubernetes.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"data": "dGV4dA=="},
            "metadata": {"name": "text", "namespace": "east", "labels": labels},
        }));
        kubernetes.apply(object("PeeringDialer", "east", name, secret));
        let status =
            || async { find(&kubernetes, "PeeringDialer", "east", name)["status"].clone() };
        let refused = |status: &Value| {
            let condition = &status["conditions"][0];
            let message = condition["message"].as_str().unwrap_or_default();
            condition["reason"] == "consulAgentError" && message.contains(part)
        };
        eventually("the condition has the reason", status, refused).await;
    }
    // Objects of other namespaces are not this operator's.
    kubernetes.apply(object("PeeringAcceptor", "north", "south", "token"));
    kubernetes.apply(object("PeeringAcceptor", "east", "south", "south"));
    until_synced(&kubernetes, "PeeringAcceptor", "east", "south").await;
    let other = find(&kubernetes, "PeeringAcceptor", "north", "south");
    assert!(other["status"].is_null(), "{other}");
    east.stop().await;
}
