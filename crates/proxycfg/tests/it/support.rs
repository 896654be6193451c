//! A small mesh, and shorthand functions for the tests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use legate_ca::{Ca, CaConfig, LeafStore};
use legate_intentions::Action;
use legate_model::{ConfigEntry, HealthCheck, Intention, IntentionAction, Node, ServiceInstance};
use legate_proxycfg::{
    Instances, Manager, ManagerConfig, ProxyId, Sidecar, Snapshot, SnapshotWatch,
};
use legate_runtime::{Clock, Scope};
use legate_store::{Command, Deregistration, Registration, Store};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// Timeout for snapshots that are expected.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before concluding that no snapshot comes.
const SILENCE: Duration = Duration::from_secs(5);

/// Operations of a store in memory complete at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap()
}

pub(crate) struct Mesh {
    pub(crate) store: Store,
    pub(crate) ca: Ca,
    pub(crate) leaves: LeafStore,
    pub(crate) scope: Scope,
    pub(crate) manager: Manager,
}

impl Mesh {
    /// Node `n1` with `web` (upstream `api` on 9191) and one instance of `api`.
    pub(crate) fn new() -> Self {
        Self::with(|_| {}, CaConfig::default())
    }

    pub(crate) fn with(edit: impl FnOnce(&mut ManagerConfig), ca: CaConfig) -> Self {
        let store = Store::new();
        let clock = Clock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        let ca = ready(Ca::initialise(&store, "dc1", clock, ca)).unwrap();
        let scope = Scope::new("test");
        let leaves = ca.leaves(&scope.spawner());
        let mut config = ManagerConfig::new("dc1", Action::Deny);
        edit(&mut config);
        let manager = Manager::new(store.reader(), leaves.clone(), scope.spawner(), config);
        let mesh = Self {
            store,
            ca,
            leaves,
            scope,
            manager,
        };
        mesh.register("n1", web(&["api"]));
        mesh.register("n2", api(1));
        mesh
    }

    pub(crate) fn apply(&self, command: Command) {
        ready(self.store.apply(command)).unwrap();
    }

    pub(crate) fn register(&self, node: &str, service: Value) {
        self.register_with(node, service, Vec::new());
    }

    pub(crate) fn register_with(&self, node: &str, service: Value, checks: Vec<HealthCheck>) {
        let service: ServiceInstance = serde_json::from_value(service).unwrap();
        self.apply(Command::Register(Box::new(Registration {
            node: Node {
                node: node.to_owned(),
                address: "10.0.0.1".to_owned(),
                datacenter: "dc1".to_owned(),
                ..Node::default()
            },
            service: Some(service),
            checks,
            skip_node_update: false,
        })));
    }

    pub(crate) fn deregister(&self, node: &str, id: &str) {
        self.apply(Command::Deregister(Deregistration {
            node: node.to_owned(),
            service_id: Some(id.to_owned()),
            check_id: None,
        }));
    }

    pub(crate) fn entry(&self, entry: Value) {
        let mut entry: ConfigEntry = serde_json::from_value(entry).unwrap();
        entry.validate().unwrap();
        entry.normalise();
        self.apply(Command::UpsertConfigEntry {
            entry: Box::new(entry),
            cas: None,
        });
    }

    pub(crate) fn intention(&self, source: &str, destination: &str, action: IntentionAction) {
        let mut intention = Intention {
            source_name: source.to_owned(),
            destination_name: destination.to_owned(),
            action: Some(action),
            ..Intention::default()
        };
        intention.normalise(&legate_model::Tenancy::default());
        self.apply(Command::UpsertIntention(Box::new(intention)));
    }

    pub(crate) fn watch(&self) -> SnapshotWatch {
        self.manager.watch(web_proxy()).unwrap()
    }

    /// A watch whose first snapshot was received and whose schedule is idle.
    pub(crate) async fn settled(&self) -> (SnapshotWatch, Arc<Snapshot>) {
        let mut watch = self.watch();
        let first = next(&mut watch).await;
        quiet(&mut watch).await;
        (watch, first)
    }
}

pub(crate) fn web_proxy() -> ProxyId {
    ProxyId {
        tenancy: legate_model::Tenancy::default(),
        node: "n1".into(),
        service_id: "web-proxy".into(),
    }
}

pub(crate) fn web(upstreams: &[&str]) -> Value {
    let upstreams: Vec<Value> = upstreams
        .iter()
        .zip(9191..)
        .map(|(name, port)| json!({"DestinationName": name, "LocalBindPort": port}))
        .collect();
    json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": upstreams},
    })
}

pub(crate) fn api(n: u16) -> Value {
    json!({
        "Kind": "connect-proxy", "ID": format!("api-proxy-{n}"), "Service": "api-proxy",
        "Port": 20000 + n, "Proxy": {"DestinationServiceName": "api"},
    })
}

/// The next snapshot, which must come.
pub(crate) async fn next(watch: &mut SnapshotWatch) -> Arc<Snapshot> {
    timeout(PATIENCE, watch.next())
        .await
        .expect("a snapshot in time")
        .expect("a source that lives")
}

/// The next snapshot, which must come without delay.
pub(crate) async fn at_once(watch: &mut SnapshotWatch) -> Arc<Snapshot> {
    let start = Instant::now();
    let snapshot = next(watch).await;
    assert_eq!(Instant::now(), start, "it was held back");
    snapshot
}

/// Checks that no snapshot comes.
pub(crate) async fn quiet(watch: &mut SnapshotWatch) {
    if let Ok(snapshot) = timeout(SILENCE, watch.next()).await {
        panic!("something came: {snapshot:#?}");
    }
}

/// The values of a sidecar.
pub(crate) fn sidecar(snapshot: &Snapshot) -> &Sidecar {
    Sidecar::of(snapshot).expect("the proxy is a sidecar")
}

/// Ports of the instances of the first upstream.
pub(crate) fn ports(snapshot: &Arc<Snapshot>) -> Vec<u16> {
    let instances = instances(snapshot, 0);
    instances
        .iter()
        .map(|instance| instance.address().1)
        .collect()
}

/// The instances of the only target of an upstream.
pub(crate) fn instances(snapshot: &Snapshot, upstream: usize) -> Arc<Instances> {
    let resolved = &sidecar(snapshot).upstreams[upstream].resolved;
    let chain = resolved.chain.as_ref().unwrap();
    let target = chain.targets.keys().next().unwrap();
    Arc::clone(resolved.instances(target).unwrap())
}
