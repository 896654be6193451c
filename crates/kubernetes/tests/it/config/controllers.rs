//! The controllers between a Kubernetes API server and the servers, both with failures.

use std::time::Duration;

use legate_kubernetes::config::kinds::{KINDS, Kind};
use legate_kubernetes::config::{ConfigMetrics, FINALIZER, Settings, start};
use legate_kubernetes::leader::Lead;
use legate_kubernetes::servers::{Credentials, Options, Servers};
use legate_kubernetes::tenancy::{TenancyFlags, Tenants};
use legate_runtime::metrics::{Registry, encode};
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
    registry: Registry,
    _scope: Scope,
}

impl World {
    async fn start() -> World {
        World::start_with(|_, _| {}).await
    }

    /// `prepare` runs before the operator starts.
    async fn start_with(prepare: impl FnOnce(&FakeApi, &FakeServers)) -> World {
        World::start_as(Tenants::default(), prepare).await
    }

    async fn start_as(tenants: Tenants, prepare: impl FnOnce(&FakeApi, &FakeServers)) -> World {
        let scope = Scope::new("test");
        let (api, client) = FakeApi::start(&scope).await;
        let servers = FakeServers::start(&scope).await;
        prepare(&api, &servers);
        let options = Options {
            host: servers.address.ip().to_string(),
            port: servers.address.port(),
            tls: None,
            credentials: Credentials::None,
            partition: None,
        };
        let registry = Registry::new();
        let settings = Settings {
            datacenter: "dc1".into(),
            tenants,
            clock: Clock::system(),
            metrics: ConfigMetrics::register(&registry).unwrap(),
        };
        let lead = Lead::forever();
        let spawner = scope.spawner();
        let handle = Servers::new(options, spawner.clone()).unwrap();
        start(&client, &handle, &settings, &lead, &spawner);
        World {
            api,
            servers,
            lead,
            registry,
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

    fn resource(&self) -> Option<Value> {
        self.api.get("ServiceDefaults", "default", "web")
    }

    fn delete(&self) {
        self.api.delete("ServiceDefaults", "default", "web");
    }

    async fn until_gone(&self) {
        self.until("gone", |it| it.resource().is_none()).await;
    }

    /// An operator with one resource that is already synchronized.
    async fn synced() -> World {
        let world = World::start().await;
        world.defaults("default", "http");
        world.until_synced("True").await;
        world
    }

    fn assert_nothing_was_removed(&self) {
        let writes = self.servers.writes();
        assert!(writes.iter().all(|it| it.starts_with("PUT")), "{writes:?}");
    }
}

#[tokio::test]
async fn a_resource_is_written_changed_and_removed() {
    let world = World::synced().await;
    let entry = world.entry().unwrap();
    assert_eq!(entry["Protocol"], "http");
    assert_eq!(entry["Meta"]["external-source"], "kubernetes");
    let object = world.resource().unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(object["status"]["lastSyncedTime"].is_string());
    assert_eq!(object["spec"], json!({ "protocol": "http" }));

    world.defaults("default", "grpc");
    world.until_protocol("grpc").await;

    world.delete();
    world.until_gone().await;
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
            world.servers.entry(kind.entry.as_str(), name).is_some(),
            "{}",
            kind.name
        );
    }
}

#[tokio::test]
async fn nothing_is_written_twice() {
    let world = World::synced().await;
    // The new status triggers another reconciliation.
    world
        .until("read again", |it| it.servers.reads() >= 2)
        .await;
    // Reconciliations of a resource are sequential: when this one starts, the previous one is over.
    world.api.forget_history();
    world
        .until("read once more", |it| it.servers.reads() >= 3)
        .await;
    let puts = world.servers.writes();
    assert_eq!(puts, ["PUT /v1/config?cas=0"]);
    // The finalizer and one status.
    assert_eq!(world.api.patches().len(), 2, "{:?}", world.api.patches());
}

#[tokio::test]
async fn at_start_changed_resources_are_written() {
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
async fn a_foreign_entry_is_left_alone() {
    let world = World::start().await;
    let theirs = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "tcp" });
    world.servers.put(theirs);
    world.defaults("default", "http");
    world.until_synced("False").await;
    let condition = world.condition("default");
    assert_eq!(condition["reason"], "ExternallyManagedConfigError");
    world.delete();
    world.until_gone().await;
    assert_eq!(world.entry().unwrap()["Protocol"], "tcp");
    assert_eq!(world.servers.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_refusal_is_in_the_condition_until_the_servers_accept() {
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

/// A reason that changes with every attempt must not turn each status change into an attempt.
#[tokio::test]
async fn changing_reasons_do_not_shorten_the_wait() {
    let world = World::start().await;
    world.servers.refuse_with_changing_texts();
    world.defaults("default", "http");
    world
        .until("four attempts", |it| it.servers.writes().len() >= 4)
        .await;
    for (pause, least) in world.servers.pauses().iter().zip([200, 400, 800]) {
        let least = Duration::from_millis(least);
        assert!(*pause >= least, "{:?}", world.servers.pauses());
    }
}

#[tokio::test]
async fn an_outage_of_the_servers_loses_nothing() {
    let world = World::synced().await;
    world.servers.set_away(true);
    world.defaults("default", "grpc");
    world.until_synced("Unknown").await;
    assert_eq!(world.condition("default")["reason"], "ConsulAgentError");
    world.servers.set_away(false);
    world.until_synced("True").await;
    world.until_protocol("grpc").await;

    world.servers.set_away(true);
    world.delete();
    world.until_synced("Unknown").await;
    assert!(world.resource().is_some());
    world.servers.set_away(false);
    world.until("gone", |it| it.entry().is_none()).await;
}

#[tokio::test]
async fn a_removal_that_is_refused_keeps_the_resource() {
    let world = World::synced().await;
    world.servers.refuse(Some("a router needs it"));
    world.delete();
    world.until_synced("False").await;
    let message = world.condition("default")["message"].clone();
    assert_eq!(message, "removing the config entry: a router needs it");
    world.servers.refuse(None);
    world.until_gone().await;
    assert_eq!(world.entry(), None);
}

#[tokio::test]
async fn an_outage_of_the_api_server_deletes_nothing() {
    let world = World::synced().await;
    world.api.set_away(true);
    // Every kind's watch was cut and retried.
    let noticed = |it: &World| it.api.unanswered() >= KINDS.len();
    world.until("noticed", noticed).await;
    world.defaults("default", "grpc");
    assert!(world.entry().is_some());
    world.api.set_away(false);
    world.until_protocol("grpc").await;
    world.assert_nothing_was_removed();
}

#[tokio::test]
async fn an_expired_watch_is_restarted() {
    let world = World::synced().await;
    world.api.forget_history();
    world.defaults("default", "grpc");
    world.until_protocol("grpc").await;
    world.assert_nothing_was_removed();
}

#[tokio::test]
async fn conflicts_and_slow_responses_of_the_api_server_are_tolerated() {
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

    world.delete();
    world.until_protocol("grpc").await;
    world
        .until("synced", |it| it.condition("other")["status"] == "True")
        .await;
    // The entry was never missing.
    world.assert_nothing_was_removed();
}

#[tokio::test]
async fn mirrored_namespaces_have_entries_of_the_same_name() {
    let flags = TenancyFlags {
        mirror_namespaces: Some("k8s-".to_owned()),
        cross_namespace_acl_policy: Some("all".to_owned()),
        ..TenancyFlags::default()
    };
    let world = World::start_as(Tenants::of(&flags), |_, _| {}).await;
    world.defaults("default", "http");
    world.defaults("other", "grpc");
    let synced = |it: &World, namespace| it.condition(namespace)["status"] == "True";
    world
        .until("synced", |it| synced(it, "default") && synced(it, "other"))
        .await;
    let entry = |namespace| world.servers.entry_of("service-defaults", "web", namespace);
    assert_eq!(entry("k8s-default").unwrap()["Protocol"], "http");
    assert_eq!(entry("k8s-other").unwrap()["Protocol"], "grpc");
    let made = world.servers.namespaces();
    let policies = json!({ "PolicyDefaults": [{ "Name": "all" }] });
    assert!(
        made.len() == 2 && made.iter().all(|it| it["ACLs"] == policies),
        "{made:?}"
    );

    world.delete();
    world.until_gone().await;
    assert_eq!(entry("k8s-default"), None);
    assert!(entry("k8s-other").is_some());
}

#[tokio::test]
async fn resources_of_a_newer_version_are_neither_damaged_nor_partially_written() {
    let world = World::start().await;
    let kind = Kind::named("ServiceDefaults").unwrap();
    let spec = json!({ "protocol": "http", "novelty": { "a": [1, null, "x"] } });
    let mut newer = resource(kind, "default", "web", spec.clone());
    let ready = json!({ "type": "Ready", "status": "True", "novelty": 1 });
    newer.data["status"] = json!({ "conditions": [ready] });
    world.api.apply(newer);
    let said = |it: &World| {
        let object = it.resource().unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap().clone();
        conditions
            .iter()
            .any(|it| it["type"] == "Synced" && it["status"] == "False")
    };
    world.until("said", said).await;
    let object = world.resource().unwrap();
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
async fn the_service_gets_the_address_of_the_kubernetes_service() {
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
    // The resource was reconciled.
    let failed = "legate_k8s_config_reconciles_total{kind=\"ServiceDefaults\",result=\"failed\"} 1";
    world
        .until("looked at", |it| encode(&it.registry).contains(failed))
        .await;
    assert_eq!(world.servers.writes(), Vec::<String>::new());
    assert_eq!(world.api.patches(), []);
}
