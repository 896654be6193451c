//! Property: the effects that a dry run shows are those of the write, for generated writes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use legate_ca::{Ca, CaConfig};
use legate_intentions::Action;
use legate_model::acl::{DefaultPolicy, Rules};
use legate_model::{ConfigEntry, Node, ServiceInstance};
use legate_proxycfg::{ManagerConfig, Snapshot, SnapshotWatch};
use legate_resources::ResourceSet;
use legate_runtime::{Clock, Scope};
use legate_store::{Command, Registration, Store};
use proptest::prelude::*;
use serde_json::json;
use tokio::time::timeout;

use super::difference::FIELDS;
use super::*;

/// Time without an event after which none is expected; time is paused.
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

/// A sidecar, in the state of its stream.
struct Proxy {
    id: ProxyId,
    watch: SnapshotWatch,
    current: (Arc<Snapshot>, ResourceSet),
}

impl Mesh {
    /// `web` calls `api`; `canary` and `old` are registered too.
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
        for service in ["web", "api", "canary", "old"] {
            mesh.register(service, service);
        }
        mesh
    }

    /// Registers a proxy. Proxies of `web` have the upstream `api`.
    fn register(&self, id: &str, service: &str) {
        let upstreams = match service {
            "web" => json!([{"DestinationName": "api", "LocalBindPort": 9191}]),
            _ => json!([]),
        };
        let proxy = json!({
            "Kind": "connect-proxy", "ID": id, "Service": format!("{service}-proxy"),
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
        ready(self.store.apply(command)).expect("it is registered");
    }

    async fn proxy(&self, id: &str) -> Proxy {
        let id = ProxyId {
            tenancy: legate_model::Tenancy::default(),
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
    /// The changes that the proxy's stream would send now.
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
        let found = difference::resources(had, &has, &mut Budget::default());
        self.current = (snapshot, has);
        found
    }
}

/// A write (or removal, if true) of an entry.
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
            tenancy: legate_model::Tenancy::default(),
            kind: entry.kind(),
            name: entry.name().to_owned(),
            cas: None,
        });
    }
    // Invalid entries never get this far.
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
        let shown = before.after(|txn| change.apply(txn, "dc1"));
        let index = mesh.store.state().index();
        prop_assert_eq!(before.index(), index, "a dry run has written");
        let wrote = change.clone();
        let done = ready(mesh.store.write(move |txn| wrote.apply(txn, "dc1")));
        let after = match (shown, done) {
            (Ok((after, _)), Ok(_)) => after,
            (Err(shown), Err(done)) => {
                prop_assert_eq!(shown, done);
                refused += 1;
                continue;
            }
            (shown, done) => {
                let shown = shown.map(|_| ());
                return Err(TestCaseError::fail(format!(
                    "{shown:?} but {:?}",
                    done.map(|_| ())
                )));
            }
        };
        for proxy in &mut proxies {
            let seen = mesh.runs.compare(proxy.id.clone(), &before, &after);
            let shown = match seen {
                Comparison::Changed(change) => change.resources,
                Comparison::Same => Vec::new(),
                Comparison::Waiting => return Err(TestCaseError::fail("the proxy waits")),
            };
            changed += usize::from(!shown.is_empty());
            let done = proxy.changes(&mesh.runs).await;
            prop_assert_eq!(shown, done, "{} {} for {}", removed, entry, proxy.id);
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
    fn a_dry_run_shows_the_effects_of_the_write(steps in prop::collection::vec(step(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(check(steps))?;
    }
}

#[tokio::test(start_paused = true)]
async fn dry_runs_show_readable_fields() {
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
    // Protocol: both proxies. Routes and the new cluster: `web`. Access rules: `api`.
    let counts = check(steps).await.map_err(|error| error.to_string());
    assert_eq!(counts, Ok((4, 2)));

    let mesh = Mesh::new();
    let proxies = [mesh.proxy("web").await, mesh.proxy("api").await];
    for entry in [protocol("api"), protocol("canary")] {
        let change = change(false, &entry).expect("a change");
        ready(mesh.store.write(move |txn| change.apply(txn, "dc1"))).expect("it is written");
    }
    let shown = |entry: &Value, of: &Proxy| {
        let change = change(false, entry).expect("a change");
        let before = mesh.store.state();
        let after = before.after(|txn| change.apply(txn, "dc1"));
        let (after, _) = after.expect("it is accepted");
        match mesh.runs.compare(of.id.clone(), &before, &after) {
            Comparison::Changed(change) => serde_json::to_value(change.resources).expect("JSON"),
            Comparison::Same | Comparison::Waiting => Value::Null,
        }
    };
    assert_eq!(shown(&router, &proxies[1]), Value::Null);
    let routes = shown(&router, &proxies[0]);
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
    let rules = shown(&intentions, &proxies[1]);
    assert!(
        !rules[0]["AccessRules"]
            .as_array()
            .expect("rules")
            .is_empty(),
        "{rules}"
    );
    assert_eq!(rules[0]["Fields"], json!([]), "{rules}");
}

fn speaks_http(name: &str) -> Change {
    let entry = json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    change(false, &entry).expect("a change")
}

/// The permissions of a token with these rules.
fn permitted(rules: &str) -> Authorizer {
    let rules = Rules::parse(rules).expect("rules");
    Authorizer::new([&rules], DefaultPolicy::Deny)
}

#[tokio::test(start_paused = true)]
async fn only_shown_changes_use_the_budget() {
    let mesh = Mesh::new();
    let mut proxies = vec![mesh.proxy("web").await, mesh.proxy("api").await];
    for number in 0..5 {
        let id = format!("web-{number}");
        mesh.register(&id, "web");
        proxies.push(mesh.proxy(&id).await);
    }
    let before = mesh.store.state();
    let after = before.after(|txn| speaks_http("api").apply(txn, "dc1"));
    let states = (before, Arc::new(after.expect("it is accepted").0));
    let look = async |rules: &str, left: usize| {
        let budget = Budget {
            left,
            ..Budget::default()
        };
        let (share, token) = (Share::default(), permitted(rules));
        let found = mesh
            .runs
            .compare_all(states.clone(), &token, &share, budget);
        found.await.expect("it is computed")
    };
    let all = "node_prefix \"\" { policy = \"read\" } service_prefix \"\" { policy = \"read\" }";
    let of_web = "node_prefix \"\" { policy = \"read\" } service \"web\" { policy = \"read\" }";

    let found = look(of_web, FIELDS).await;
    assert_eq!((found.groups.len(), found.groups[0].count), (1, 6));
    assert_eq!((found.proxies.changed, found.proxies.hidden), (7, 1));
    let shown = serde_json::to_value(&found.groups[0].resources).expect("JSON");
    let fields =
        |one: &Value| ["Fields", "AccessRules"].map(|of| one[of].as_array().map_or(0, Vec::len));
    let shown = shown.as_array().expect("a list").iter();
    let shown: usize = shown
        .map(|one| 1 + fields(one).into_iter().sum::<usize>())
        .sum();
    assert_eq!(FIELDS - found.budget.left, shown);
    let exact = look(of_web, shown).await;
    assert_eq!((exact.budget.left, exact.budget.exceeded), (0, false));
    assert_eq!(exact.groups[0].resources, found.groups[0].resources);
    // With an exhausted budget, proxies with the same changes still form one group.
    let short = look(all, 1).await;
    assert!(short.budget.exceeded);
    assert_eq!(
        short.groups.iter().map(|group| group.count).sum::<usize>(),
        7
    );
    assert_eq!(short.groups.len(), 2);
    let resources = short.groups.iter().map(|group| group.resources.len());
    assert_eq!(resources.sum::<usize>(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_waits_for_its_turn() {
    let mesh = Mesh::new();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let share = Share::default();
    let other = mesh
        .runs
        .pool
        .run("other work", &share, move || wait.recv());
    let mut other = std::pin::pin!(other);
    assert!(other.as_mut().now_or_never().is_none());

    let router = json!({"Kind": "service-router", "Name": "api", "Routes": []});
    let refused = change(false, &router).expect("a change");
    let all = permitted("");
    let answer = mesh.runs.answer(mesh.store.state(), "dc1", &all, &refused);
    let mut answer = std::pin::pin!(answer);
    assert!(answer.as_mut().now_or_never().is_none());
    done.send(()).expect("the other work waits");
    let (_, answer) = tokio::join!(other, answer);
    assert!(answer.is_err());
}
