//! The controllers between a Kubernetes API server and the servers, both of which misbehave.

use std::time::Duration;

use legate_kubernetes::config::kinds::Kind;
use legate_kubernetes::config::{FINALIZER, Settings, start};
use legate_kubernetes::leader::Lead;
use legate_kubernetes::servers::{Credentials, Options, Servers};
use legate_runtime::{Clock, Scope};
use serde_json::{Value, json};

use super::fake_api::FakeApi;
use super::fake_servers::FakeServers;
use super::resource;

const PATIENCE: Duration = Duration::from_secs(20);

/// Operator, API server and servers.
struct World {
    api: FakeApi,
    servers: FakeServers,
    lead: Lead,
    _scope: Scope,
}

impl World {
    async fn start() -> World {
        World::start_with(|_, _| {}).await
    }

    /// `prepare` runs before the operator starts.
    async fn start_with(prepare: impl FnOnce(&FakeApi, &FakeServers)) -> World {
        let scope = Scope::new("test");
        let (api, client) = FakeApi::start(&scope).await;
        let servers = FakeServers::start(&scope).await;
        prepare(&api, &servers);
        let options = Options {
            host: servers.address.ip().to_string(),
            port: servers.address.port(),
            tls: None,
            credentials: Credentials::None,
        };
        let settings = Settings {
            datacenter: "dc1".into(),
            clock: Clock::system(),
        };
        let lead = Lead::forever();
        let spawner = scope.spawner();
        let handle = Servers::new(options, spawner.clone()).unwrap();
        start(&client, &handle, &settings, &lead, &spawner);
        World {
            api,
            servers,
            lead,
            _scope: scope,
        }
    }

    fn defaults(&self, namespace: &str, protocol: &str) {
        let kind = Kind::named("ServiceDefaults").unwrap();
        self.api.apply(resource(
            kind,
            namespace,
            "web",
            json!({ "protocol": protocol }),
        ));
    }

    fn condition(&self, namespace: &str) -> Value {
        let object = self.api.get("ServiceDefaults", namespace, "web");
        object.map_or(Value::Null, |it| it["status"]["conditions"][0].clone())
    }

    fn entry(&self) -> Option<Value> {
        self.servers.entry("service-defaults", "web")
    }

    async fn until(&self, what: &str, mut reached: impl FnMut(&World) -> bool) {
        let wait = async {
            while !reached(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let object = self.api.get("ServiceDefaults", "default", "web");
            panic!(
                "not reached: {what}; {object:?}; {:?}",
                self.servers.writes()
            );
        }
    }

    async fn until_synced(&self, status: &str) {
        self.until(status, |it| it.condition("default")["status"] == status)
            .await;
    }

    async fn until_protocol(&self, protocol: &str) {
        let said = |it: &World| {
            it.entry()
                .is_some_and(|entry| entry["Protocol"] == protocol)
        };
        self.until(protocol, said).await;
    }
}

#[tokio::test]
async fn a_resource_is_written_changed_and_removed() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    let entry = world.entry().unwrap();
    assert_eq!(entry["Protocol"], "http");
    assert_eq!(entry["Meta"]["external-source"], "kubernetes");
    let object = world.api.get("ServiceDefaults", "default", "web").unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(object["status"]["lastSyncedTime"].is_string());
    assert_eq!(object["spec"], json!({ "protocol": "http" }));

    world.defaults("default", "grpc");
    world.until_protocol("grpc").await;

    world.api.delete("ServiceDefaults", "default", "web");
    let gone = |it: &World| it.api.get("ServiceDefaults", "default", "web").is_none();
    world.until("gone", gone).await;
    assert_eq!(world.entry(), None);
}

#[tokio::test]
async fn every_kind_is_watched() {
    let world = World::start().await;
    for (_, _, manifest) in super::manifests("good") {
        let kind = Kind::named(manifest["kind"].as_str().unwrap()).unwrap();
        let name = manifest["metadata"]["name"].as_str().unwrap();
        world
            .api
            .apply(resource(kind, "default", name, manifest["spec"].clone()));
        let written = |it: &World| {
            let object = it.api.get(kind.name, "default", name).unwrap();
            object["status"]["conditions"][0]["status"] == "True"
        };
        world.until(kind.name, written).await;
        assert!(
            world.servers.entry(kind.entry, name).is_some(),
            "{}",
            kind.name
        );
    }
}

#[tokio::test]
async fn nothing_is_written_twice() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let puts = world.servers.writes();
    assert_eq!(puts, ["PUT /v1/config?cas=0"]);
    // The finalizer and one status.
    assert_eq!(world.api.patches().len(), 2, "{:?}", world.api.patches());
}

#[tokio::test]
async fn at_start_the_servers_are_brought_to_what_resources_say() {
    let ours = |protocol: &str| {
        json!({
            "Kind": "service-defaults", "Name": "web", "Protocol": protocol,
            "Meta": { "consul.hashicorp.com/source-datacenter": "dc1" },
        })
    };
    let world = World::start_with(|api, servers| {
        let kind = Kind::named("ServiceDefaults").unwrap();
        api.apply(resource(
            kind,
            "default",
            "web",
            json!({ "protocol": "http" }),
        ));
        servers.put(ours("tcp"));
    })
    .await;
    world.until_protocol("http").await;
    assert_eq!(world.servers.writes(), ["PUT /v1/config?cas=1"]);
}

#[tokio::test]
async fn an_entry_of_somebody_else_is_left_alone() {
    let world = World::start().await;
    let theirs = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "tcp" });
    world.servers.put(theirs);
    world.defaults("default", "http");
    world.until_synced("False").await;
    let condition = world.condition("default");
    assert_eq!(condition["reason"], "ExternallyManagedConfigError");
    world.api.delete("ServiceDefaults", "default", "web");
    let gone = |it: &World| it.api.get("ServiceDefaults", "default", "web").is_none();
    world.until("gone", gone).await;
    assert_eq!(world.entry().unwrap()["Protocol"], "tcp");
    assert_eq!(world.servers.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_refusal_stands_in_the_condition_until_the_servers_accept() {
    let world = World::start().await;
    world.servers.refuse(Some("the protocol of web is tcp"));
    world.defaults("default", "http");
    world.until_synced("False").await;
    let condition = world.condition("default");
    assert_eq!(condition["reason"], "ConsulAgentError");
    assert_eq!(
        condition["message"],
        "writing the config entry: the protocol of web is tcp"
    );
    world.servers.refuse(None);
    world.until_synced("True").await;
    assert_eq!(world.condition("default").get("reason"), None);
}

/// A reason that is another one each time must not make an attempt of every change of the status.
#[tokio::test]
async fn changing_reasons_do_not_shorten_the_wait() {
    let world = World::start().await;
    world.servers.refuse(Some("reason 0"));
    world.defaults("default", "http");
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    for n in 1.. {
        world.servers.refuse(Some(&format!("reason {n}")));
        tokio::time::sleep(Duration::from_millis(5)).await;
        if tokio::time::Instant::now() > end {
            break;
        }
    }
    // 0, 200, 600, 1400 ms.
    let tried = world.servers.writes().len();
    assert!((2..=5).contains(&tried), "{tried} attempts");
}

#[tokio::test]
async fn servers_that_are_away_lose_nothing() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    world.servers.set_away(true);
    world.defaults("default", "grpc");
    world.until_synced("Unknown").await;
    assert_eq!(world.condition("default")["reason"], "ConsulAgentError");
    world.servers.set_away(false);
    world.until_synced("True").await;
    world.until_protocol("grpc").await;

    world.servers.set_away(true);
    world.api.delete("ServiceDefaults", "default", "web");
    world.until_synced("Unknown").await;
    assert!(world.api.get("ServiceDefaults", "default", "web").is_some());
    world.servers.set_away(false);
    world.until("gone", |it| it.entry().is_none()).await;
}

#[tokio::test]
async fn a_removal_that_is_refused_keeps_the_resource() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    world.servers.refuse(Some("a router needs it"));
    world.api.delete("ServiceDefaults", "default", "web");
    world.until_synced("False").await;
    let message = world.condition("default")["message"].clone();
    assert_eq!(message, "removing the config entry: a router needs it");
    world.servers.refuse(None);
    let gone = |it: &World| it.api.get("ServiceDefaults", "default", "web").is_none();
    world.until("gone", gone).await;
    assert_eq!(world.entry(), None);
}

#[tokio::test]
async fn an_api_server_that_is_away_deletes_nothing() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    world.api.set_away(true);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.defaults("default", "grpc");
    assert!(world.entry().is_some());
    world.api.set_away(false);
    world.until_protocol("grpc").await;
    assert!(
        world
            .servers
            .writes()
            .iter()
            .all(|it| it.starts_with("PUT"))
    );
}

#[tokio::test]
async fn a_watch_that_is_too_old_begins_again() {
    let world = World::start().await;
    world.defaults("default", "http");
    world.until_synced("True").await;
    world.api.forget_history();
    world.defaults("default", "grpc");
    world.until_protocol("grpc").await;
    assert!(
        world
            .servers
            .writes()
            .iter()
            .all(|it| it.starts_with("PUT"))
    );
}

#[tokio::test]
async fn conflicts_and_slowness_of_the_api_server_are_overcome() {
    let world = World::start().await;
    world.api.refuse_patches(3);
    world.api.set_delay(Duration::from_millis(100));
    world.defaults("default", "http");
    world.until_synced("True").await;
    assert!(world.entry().is_some());
}

#[tokio::test]
async fn the_older_of_two_resources_is_written_and_hands_over() {
    let world = World::start().await;
    let kind = Kind::named("ServiceDefaults").unwrap();
    world.defaults("default", "http");
    world.until_synced("True").await;
    let mut younger = resource(kind, "other", "web", json!({ "protocol": "grpc" }));
    let time = serde_json::from_value(json!("2026-01-02T00:00:00Z")).unwrap();
    younger.metadata.creation_timestamp = Some(time);
    world.api.apply(younger);
    world
        .until("said", |it| it.condition("other")["status"] == "False")
        .await;
    let condition = world.condition("other");
    assert_eq!(condition["reason"], "DuplicateResourceError");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.starts_with("ServiceDefaults default/web is older"),
        "{message}"
    );
    assert_eq!(world.entry().unwrap()["Protocol"], "http");

    world.api.delete("ServiceDefaults", "default", "web");
    world.until_protocol("grpc").await;
    world
        .until("synced", |it| it.condition("other")["status"] == "True")
        .await;
    // The entry was never missing.
    assert!(
        world
            .servers
            .writes()
            .iter()
            .all(|it| it.starts_with("PUT"))
    );
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_neither_damaged_nor_half_written() {
    let world = World::start().await;
    let kind = Kind::named("ServiceDefaults").unwrap();
    let spec = json!({ "protocol": "http", "novelty": { "a": [1, null, "x"] } });
    let mut newer = resource(kind, "default", "web", spec.clone());
    let ready = json!({ "type": "Ready", "status": "True", "novelty": 1 });
    newer.data["status"] = json!({ "conditions": [ready] });
    world.api.apply(newer);
    let said = |it: &World| {
        let object = it.api.get("ServiceDefaults", "default", "web").unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap().clone();
        conditions
            .iter()
            .any(|it| it["type"] == "Synced" && it["status"] == "False")
    };
    world.until("said", said).await;
    let object = world.api.get("ServiceDefaults", "default", "web").unwrap();
    assert_eq!(object["spec"], spec);
    let conditions = object["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0], ready);
    assert_eq!(conditions[1]["reason"], "InvalidResourceError");
    assert!(
        conditions[1]["message"]
            .as_str()
            .unwrap()
            .contains("`novelty`")
    );
    assert_eq!(world.entry(), None);
}

#[tokio::test]
async fn the_service_gets_the_address_of_its_namesake() {
    let world = World::start().await;
    let service = |address: &str| {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": "default", "generation": 1 },
            "spec": { "clusterIP": address },
        }))
        .unwrap()
    };
    world.api.apply(service("None"));
    world.defaults("default", "http");
    world.until_synced("True").await;
    assert_eq!(world.servers.virtual_ips(), Vec::<Value>::new());
    world.api.apply(service("10.96.0.7"));
    world.defaults("default", "grpc");
    world
        .until("given", |it| !it.servers.virtual_ips().is_empty())
        .await;
    assert_eq!(
        world.servers.virtual_ips()[0],
        json!({ "Service": "web", "ManualVIPs": ["10.96.0.7"] })
    );
}

#[tokio::test]
async fn an_operator_that_does_not_lead_writes_nothing() {
    let world = World::start().await;
    world.lead.token().cancel();
    world.defaults("default", "http");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.servers.writes(), Vec::<String>::new());
    assert_eq!(world.api.patches(), []);
}
