//! What a dry run tells is what the write then does, for generated writes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use legate_ca::{Ca, CaConfig};
use legate_intentions::Action;
use legate_model::{ConfigEntry, Node, ServiceInstance};
use legate_proxycfg::{ManagerConfig, Snapshot, SnapshotWatch};
use legate_resources::ResourceSet;
use legate_runtime::{Clock, Scope};
use legate_store::{Command, Registration, Store};
use proptest::prelude::*;
use serde_json::json;
use tokio::time::timeout;

use super::*;

/// What has not come by then will not come; time is paused.
const SILENCE: Duration = Duration::from_secs(5);

fn ready<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("a store in memory answers at once")
}

struct Mesh {
    store: Store,
    runs: DryRuns,
    scope: Scope,
}

/// A sidecar, as its stream has it.
struct Proxy {
    id: ProxyId,
    watch: SnapshotWatch,
    current: (Arc<Snapshot>, ResourceSet),
}

impl Mesh {
    /// `web` calls `api`; there are `canary` and `old` as well.
    fn new() -> Self {
        let store = Store::new();
        let clock = Clock::system();
        let ca = ready(Ca::initialise(&store, "dc1", clock, CaConfig::default()));
        let scope = Scope::new("test");
        let leaves = ca.expect("a CA").leaves(&scope.spawner());
        let config = ManagerConfig::new("dc1", Action::Allow);
        let mesh = Self {
            runs: DryRuns {
                manager: Manager::new(store.reader(), leaves, scope.spawner(), config),
                generator: Arc::default(),
                pool: Pool::with(scope.spawner(), NonZeroUsize::MIN),
            },
            store,
            scope,
        };
        for (service, upstreams) in [
            (
                "web",
                json!([{"DestinationName": "api", "LocalBindPort": 9191}]),
            ),
            ("api", json!([])),
            ("canary", json!([])),
            ("old", json!([])),
        ] {
            let proxy = json!({
                "Kind": "connect-proxy", "ID": service, "Service": format!("{service}-proxy"),
                "Port": 20000, "Meta": {"version": "1"}, "Proxy": {
                    "DestinationServiceName": service, "LocalServicePort": 80,
                    "Upstreams": upstreams,
                },
            });
            let service: ServiceInstance = serde_json::from_value(proxy).expect("a registration");
            let registration = Registration {
                node: Node {
                    node: "n1".to_owned(),
                    address: "10.0.0.1".to_owned(),
                    datacenter: "dc1".to_owned(),
                    ..Node::default()
                },
                service: Some(service),
                checks: Vec::new(),
                skip_node_update: false,
            };
            let command = Command::Register(Box::new(registration));
            ready(mesh.store.apply(command)).expect("it is registered");
        }
        mesh
    }

    async fn proxy(&self, id: &str) -> Proxy {
        let id = ProxyId {
            node: "n1".into(),
            service_id: id.into(),
        };
        let mut watch = self.runs.manager.watch(id.clone()).expect("a watch");
        let mut snapshot = watch.next().await.expect("a snapshot");
        while let Ok(Some(later)) = timeout(SILENCE, watch.next()).await {
            snapshot = later;
        }
        let set = self.runs.generator.generate(&snapshot, None);
        Proxy {
            id,
            watch,
            current: (snapshot, set),
        }
    }
}

impl Proxy {
    /// What the proxy's stream would send now.
    async fn changes(&mut self, runs: &DryRuns) -> Vec<ResourceChange> {
        let mut latest = None;
        while let Ok(Some(snapshot)) = timeout(SILENCE, self.watch.next()).await {
            latest = Some(snapshot);
        }
        let Some(snapshot) = latest else {
            return Vec::new();
        };
        let (before, had) = &self.current;
        let has = runs.generator.generate(&snapshot, Some((before, had)));
        let found = difference::resources(had, &has, &mut Budget { left: FIELDS });
        self.current = (snapshot, has);
        found
    }
}

/// An entry, and whether it is removed.
fn step() -> impl Strategy<Value = (bool, Value)> {
    let service = || prop::sample::select(vec!["web", "api", "canary", "old"]);
    let protocol = prop::sample::select(vec!["tcp", "http", "http", "http", "grpc"]);
    let defaults = (service(), protocol.clone()).prop_map(
        |(name, protocol)| json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol}),
    );
    let usual = protocol.prop_map(|protocol| {
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": protocol}})
    });
    let router = (service(), service(), "/[ab]").prop_map(|(name, to, path)| {
        json!({"Kind": "service-router", "Name": name, "Routes": [{
            "Match": {"HTTP": {"PathPrefix": path}}, "Destination": {"Service": to},
        }]})
    });
    let splitter = (service(), service(), 1..99u32).prop_map(|(name, to, weight)| {
        json!({"Kind": "service-splitter", "Name": name, "Splits": [
            {"Weight": weight}, {"Weight": 100 - weight, "Service": to},
        ]})
    });
    let resolver = prop_oneof![
        service().prop_map(|to| json!({"Redirect": {"Service": to}})),
        service().prop_map(|to| json!({"Failover": {"*": {"Service": to}}})),
        (1..9u32).prop_map(|seconds| json!({"ConnectTimeout": format!("{seconds}s")})),
        (1..3u32).prop_map(|version| json!({"DefaultSubset": "v", "Subsets": {
            "v": {"Filter": format!("Service.Meta.version == {version}")},
        }})),
    ];
    let resolver = (service(), resolver).prop_map(|(name, mut entry)| {
        entry["Kind"] = "service-resolver".into();
        entry["Name"] = name.into();
        entry
    });
    let action = prop::sample::select(vec!["allow", "deny"]);
    let intentions = (service(), service(), action).prop_map(|(name, source, action)| {
        json!({"Kind": "service-intentions", "Name": name, "Sources": [
            {"Name": source, "Action": action},
        ]})
    });
    let entry = prop_oneof![
        3 => defaults, 1 => usual, 2 => router, 2 => splitter, 3 => resolver, 2 => intentions
    ];
    (prop::bool::weighted(0.25), entry)
}

fn change(removed: bool, entry: &Value) -> Option<Change> {
    let mut entry: ConfigEntry = serde_json::from_value(entry.clone()).ok()?;
    if removed {
        return Some(Change::Remove {
            kind: entry.kind(),
            name: entry.name().to_owned(),
            cas: None,
        });
    }
    // Entries that are wrong by themselves do not come so far.
    entry.validate().ok()?;
    entry.normalise();
    let entry = Box::new(entry);
    Some(Change::Put { entry, cas: None })
}

async fn check(steps: Vec<(bool, Value)>) -> Result<(usize, usize), TestCaseError> {
    let mesh = Mesh::new();
    let mut proxies = [mesh.proxy("web").await, mesh.proxy("api").await];
    let (mut changed, mut refused) = (0, 0);
    for (removed, entry) in steps {
        let Some(change) = change(removed, &entry) else {
            continue;
        };
        let before = mesh.store.state();
        let told = before.after(|txn| change.apply(txn, "dc1"));
        let index = mesh.store.state().index();
        prop_assert_eq!(before.index(), index, "a dry run has written");
        let wrote = change.clone();
        let done = ready(mesh.store.write(move |txn| wrote.apply(txn, "dc1")));
        let after = match (told, done) {
            (Ok((after, _)), Ok(_)) => after,
            (Err(told), Err(done)) => {
                prop_assert_eq!(told, done);
                refused += 1;
                continue;
            }
            (told, done) => {
                let told = told.map(|_| ());
                return Err(TestCaseError::fail(format!(
                    "{told:?} but {:?}",
                    done.map(|_| ())
                )));
            }
        };
        for proxy in &mut proxies {
            let mut budget = Budget { left: FIELDS };
            let seen = mesh
                .runs
                .compare(proxy.id.clone(), &before, &after, &mut budget);
            let told = match seen {
                Seen::Changed(change) => change.resources,
                Seen::Same => Vec::new(),
                Seen::Waiting => return Err(TestCaseError::fail("the proxy waits")),
            };
            changed += usize::from(!told.is_empty());
            let done = proxy.changes(&mesh.runs).await;
            prop_assert_eq!(told, done, "{} {} for {}", removed, entry, proxy.id);
        }
    }
    drop(proxies);
    let stopped = mesh.scope.stop(SILENCE).await;
    prop_assert!(stopped.is_ok(), "{:?}", stopped);
    Ok((changed, refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn what_is_told_is_what_the_write_does(steps in prop::collection::vec(step(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(check(steps))?;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_told_can_be_read() {
    let protocol =
        |name: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    let router = json!({"Kind": "service-router", "Name": "api", "Routes": [{
        "Match": {"HTTP": {"PathPrefix": "/beta"}}, "Destination": {"Service": "canary"},
    }]});
    let intentions = json!({"Kind": "service-intentions", "Name": "api", "Sources": [
        {"Name": "old", "Action": "deny"},
    ]});
    let steps = vec![
        (false, protocol("api")),
        (false, router.clone()),
        (false, protocol("canary")),
        (false, router.clone()),
        (false, intentions.clone()),
        (true, protocol("canary")),
    ];
    // The protocol for both, the routes and the new cluster for web, the access rules for api.
    let counts = check(steps).await.map_err(|error| error.to_string());
    assert_eq!(counts, Ok((4, 2)));

    let mesh = Mesh::new();
    let proxies = [mesh.proxy("web").await, mesh.proxy("api").await];
    for entry in [protocol("api"), protocol("canary")] {
        let change = change(false, &entry).expect("a change");
        ready(mesh.store.write(move |txn| change.apply(txn, "dc1"))).expect("it is written");
    }
    let told = |entry: &Value, of: &Proxy| {
        let change = change(false, entry).expect("a change");
        let before = mesh.store.state();
        let after = before.after(|txn| change.apply(txn, "dc1"));
        let (after, _) = after.expect("it is accepted");
        let mut budget = Budget { left: FIELDS };
        match mesh
            .runs
            .compare(of.id.clone(), &before, &after, &mut budget)
        {
            Seen::Changed(change) => serde_json::to_value(change.resources).expect("JSON"),
            Seen::Same | Seen::Waiting => Value::Null,
        }
    };
    assert_eq!(told(&router, &proxies[1]), Value::Null);
    let routes = told(&router, &proxies[0]);
    let of = |kind: &str, name: &str| {
        let all = routes.as_array().expect("a list").iter();
        let mut found = all.filter(|one| one["Type"] == kind);
        let named = |one: &&Value| one["Name"].as_str().is_some_and(|one| one.contains(name));
        found.find(|one| named(one)).cloned()
    };
    assert_eq!(
        of("clusters", "canary.default").expect("a cluster")["Change"],
        "added"
    );
    assert_eq!(
        of("endpoints", "canary.default").expect("endpoints")["Change"],
        "added"
    );
    let changed = of("routes", "api").or_else(|| of("listeners", "api"));
    let changed = changed.expect("routes").to_string();
    assert!(changed.contains("\"prefix\":\"/beta\""), "{changed}");
    assert!(!changed.contains("unreadable"), "{changed}");
    let rules = told(&intentions, &proxies[1]);
    assert!(
        !rules[0]["AccessRules"]
            .as_array()
            .expect("rules")
            .is_empty(),
        "{rules}"
    );
    assert_eq!(rules[0]["Fields"], json!([]), "{rules}");
}
