//! Snapshots that watchers receive, and cleanup after the last watcher.

use std::sync::Arc;
use std::time::Duration;

use legate_ca::CaConfig;
use legate_model::{CheckStatus, HealthCheck, IntentionAction, Protocol};
use legate_proxycfg::{Ended, ProxyId, Snapshot, WatchError};
use legate_runtime::Scope;
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::support::{Mesh, api, at_once, instances, next, ports, quiet, sidecar, web, web_proxy};

#[tokio::test(start_paused = true)]
async fn the_first_snapshot_is_complete_and_comes_at_once() {
    let mesh = Mesh::new();
    mesh.intention("shop", "web", IntentionAction::Allow);
    let snapshot = at_once(&mut mesh.watch()).await;
    assert_eq!(snapshot.proxy.id, web_proxy());
    assert_eq!(&*snapshot.proxy.datacenter, "dc1");
    assert_eq!(&*snapshot.proxy.node_address, "10.0.0.1");
    assert_eq!(snapshot.proxy.trust_domain, mesh.ca.trust_domain());
    assert_eq!(sidecar(&snapshot).protocol, Protocol::Tcp);
    assert_eq!(sidecar(&snapshot).leaf.id, "web".into());
    assert_eq!(sidecar(&snapshot).intentions.len(), 1);
    assert_eq!(snapshot.proxy.roots.roots.len(), 1);
    assert!(snapshot.proxy.mesh.is_none());
    assert_eq!(ports(&snapshot), [20001]);
}

#[tokio::test(start_paused = true)]
async fn relevant_changes_are_published_at_once_after_a_quiet_time() {
    let mesh = Mesh::new();
    let (mut watch, _) = mesh.settled().await;

    mesh.register("n2", api(2));
    assert_eq!(ports(&at_once(&mut watch).await), [20001, 20002]);
    quiet(&mut watch).await;

    mesh.deregister("n2", "api-proxy-1");
    assert_eq!(ports(&at_once(&mut watch).await), [20002]);
    quiet(&mut watch).await;

    mesh.intention("*", "*", IntentionAction::Deny);
    assert_eq!(sidecar(&*at_once(&mut watch).await).intentions.len(), 1);
    quiet(&mut watch).await;

    mesh.entry(json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"}));
    assert_eq!(
        sidecar(&*at_once(&mut watch).await).upstreams[0]
            .resolved
            .protocol(),
        Protocol::Http
    );
    quiet(&mut watch).await;

    mesh.entry(json!({"Kind": "service-defaults", "Name": "web", "Protocol": "grpc"}));
    assert_eq!(
        sidecar(&*at_once(&mut watch).await).protocol,
        Protocol::Grpc
    );
    quiet(&mut watch).await;

    mesh.entry(json!({"Kind": "mesh", "TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}}));
    assert!(at_once(&mut watch).await.proxy.mesh.is_some());
    quiet(&mut watch).await;

    mesh.entry(json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 7},
    }));
    let snapshot = at_once(&mut watch).await;
    assert_eq!(
        snapshot.proxy.instance.proxy.config["local_connect_timeout_ms"],
        7
    );
    assert_eq!(sidecar(&snapshot).protocol, Protocol::Grpc);
    quiet(&mut watch).await;
}

/// Unchanged parts are the same `Arc`, so that later stages detect changes by address.
#[tokio::test(start_paused = true)]
async fn unchanged_parts_are_the_same_arc() {
    let mesh = Mesh::new();
    mesh.register("n1", web(&["api", "db"]));
    let (mut watch, before) = mesh.settled().await;

    mesh.register("n2", api(2));
    let after = at_once(&mut watch).await;
    let same = |before: &Snapshot, after: &Snapshot| {
        let upstreams = sidecar(before)
            .upstreams
            .iter()
            .zip(&sidecar(after).upstreams);
        let upstreams = upstreams.flat_map(|(before, after)| {
            [
                Arc::ptr_eq(&before.upstream, &after.upstream),
                Arc::ptr_eq(&before.resolved, &after.resolved),
            ]
        });
        [
            Arc::ptr_eq(&before.proxy.instance, &after.proxy.instance),
            Arc::ptr_eq(&before.proxy.roots, &after.proxy.roots),
            Arc::ptr_eq(&sidecar(before).leaf, &sidecar(after).leaf),
            Arc::ptr_eq(&sidecar(before).intentions, &sidecar(after).intentions),
            Arc::ptr_eq(&before.proxy.mesh, &after.proxy.mesh),
        ]
        .into_iter()
        .chain(upstreams)
        .collect::<Vec<bool>>()
    };
    let [api, db] = [[true, false], [true, true]];
    assert_eq!(same(&before, &after), [&[true; 5][..], &api, &db].concat());
    quiet(&mut watch).await;

    // The registration and its first upstream changed; the rest is the same.
    mesh.register("n1", web(&["cache", "db"]));
    let last = at_once(&mut watch).await;
    let [instance, rest] = [[false; 1], [true; 1]];
    let own = [&instance[..], &rest.repeat(4)].concat();
    assert_eq!(same(&after, &last), [&own[..], &[false; 2], &db].concat());
}

#[tokio::test(start_paused = true)]
async fn irrelevant_changes_are_not_published() {
    let mesh = Mesh::new();
    let check = |output: &str| {
        vec![HealthCheck {
            node: "n2".to_owned(),
            check_id: "alive".to_owned(),
            service_id: "api-proxy-1".to_owned(),
            status: CheckStatus::Passing,
            output: output.to_owned(),
            ..HealthCheck::default()
        }]
    };
    mesh.register_with("n2", api(1), check("200 OK in 1 ms"));
    let (mut watch, _) = mesh.settled().await;

    mesh.register_with("n2", api(1), check("200 OK in 2 ms"));
    quiet(&mut watch).await;
    mesh.register("n3", json!({"ID": "other", "Service": "other", "Port": 1}));
    quiet(&mut watch).await;
    mesh.register("n2", json!({"ID": "api", "Service": "api", "Port": 1}));
    quiet(&mut watch).await;
    mesh.intention("web", "api", IntentionAction::Deny);
    quiet(&mut watch).await;
    mesh.entry(json!({"Kind": "service-defaults", "Name": "other", "Protocol": "http"}));
    quiet(&mut watch).await;
    mesh.entry(json!({"Kind": "service-defaults", "Name": "api", "Meta": {"a": "b"}}));
    quiet(&mut watch).await;
    let mut tagged = web(&["api"]);
    tagged["Tags"] = json!(["new"]);
    mesh.register("n1", tagged);
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn changes_soon_after_a_snapshot_are_folded_into_one() {
    let mesh = Mesh::new();
    let mut watch = mesh.watch();
    next(&mut watch).await;
    let start = Instant::now();
    for n in 2..=4 {
        mesh.register("n2", api(n));
        assert!(
            timeout(Duration::from_millis(50), watch.next())
                .await
                .is_err()
        );
    }
    assert_eq!(ports(&next(&mut watch).await).len(), 4);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
    assert!(waited < Duration::from_millis(210), "{waited:?}");
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_applies_to_all_proxies_together() {
    let mesh = Mesh::with(
        |config| config.max_updates_per_second = 10,
        CaConfig::default(),
    );
    mesh.register("n4", web(&[]));
    let other = ProxyId {
        node: "n4".into(),
        ..web_proxy()
    };
    let (mut first, mut second) = (mesh.watch(), mesh.manager.watch(other).unwrap());
    let start = Instant::now();
    next(&mut first).await;
    next(&mut second).await;
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "the first ones do not wait"
    );
    quiet(&mut second).await;

    let start = Instant::now();
    mesh.entry(json!({"Kind": "mesh", "TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}}));
    next(&mut first).await;
    next(&mut second).await;
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(100), "{waited:?}");
    assert!(waited < Duration::from_millis(110), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_proxy_share_one_source() {
    let mesh = Mesh::new();
    let (mut first, seen) = mesh.settled().await;
    let mut second = mesh.watch();
    assert!(Arc::ptr_eq(&at_once(&mut second).await, &seen));
    assert_eq!(mesh.manager.proxies(), [web_proxy()]);

    mesh.register("n2", api(2));
    let (a, b) = (next(&mut first).await, next(&mut second).await);
    assert!(Arc::ptr_eq(&a, &b));

    drop(first);
    mesh.register("n2", api(3));
    assert_eq!(ports(&next(&mut second).await).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn proxies_share_common_parts() {
    let mesh = Mesh::new();
    mesh.register("n4", web(&["api"]));
    let other = ProxyId {
        node: "n4".into(),
        ..web_proxy()
    };
    let a = next(&mut mesh.watch()).await;
    let mut watch = mesh.manager.watch(other).unwrap();
    let b = next(&mut watch).await;
    assert!(Arc::ptr_eq(&sidecar(&a).leaf, &sidecar(&b).leaf));
    assert!(Arc::ptr_eq(&a.proxy.roots, &b.proxy.roots));
    assert!(Arc::ptr_eq(
        &sidecar(&a).intentions,
        &sidecar(&b).intentions
    ));
    let instances = |snapshot: &Arc<Snapshot>| instances(snapshot, 0);
    assert!(Arc::ptr_eq(&instances(&a), &instances(&b)));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_watch_ends_the_source() {
    let mesh = Mesh::new();
    let (first, _) = mesh.settled().await;
    let second = mesh.watch();
    drop(first);
    assert_eq!(mesh.manager.proxies(), [web_proxy()]);
    drop(second);
    assert!(mesh.manager.proxies().is_empty());
    let gone = async {
        while !mesh.leaves.watched().is_empty() {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
    mesh.scope.stop(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_during_the_teardown_works() {
    let mesh = Mesh::new();
    for _ in 0..5 {
        let (watch, _) = mesh.settled().await;
        drop(watch);
        // The old task has not run since: it is being torn down now.
        let mut again = mesh.watch();
        assert_eq!(ports(&next(&mut again).await), [20001]);
        mesh.register("n2", api(2));
        assert_eq!(ports(&next(&mut again).await), [20001, 20002]);
        mesh.deregister("n2", "api-proxy-2");
        next(&mut again).await;
        assert_eq!(mesh.manager.proxies(), [web_proxy()]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_survives_a_deregistration() {
    let mesh = Mesh::new();
    let (mut watch, _) = mesh.settled().await;
    mesh.deregister("n1", "web-proxy");
    mesh.register("n2", api(2));
    quiet(&mut watch).await;
    assert!(matches!(
        mesh.manager.watch(web_proxy()),
        Err(WatchError::UnknownNode(_) | WatchError::UnknownProxy(_))
    ));

    mesh.register("n1", web(&["api"]));
    assert_eq!(ports(&at_once(&mut watch).await), [20001, 20002]);

    mesh.deregister("n1", "web-proxy");
    mesh.register("n1", web(&["api"]));
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn upstreams_come_and_go_with_the_registration() {
    let mesh = Mesh::new();
    let (mut watch, _) = mesh.settled().await;
    let names = |snapshot: &Arc<Snapshot>| -> Vec<String> {
        let upstreams = sidecar(snapshot).upstreams.iter();
        upstreams
            .map(|upstream| upstream.upstream.id().to_string())
            .collect()
    };

    mesh.register("n1", web(&["api", "db"]));
    let snapshot = at_once(&mut watch).await;
    assert_eq!(names(&snapshot), ["api", "db"]);
    assert_eq!(instances(&snapshot, 1).len(), 0);
    quiet(&mut watch).await;

    mesh.entry(json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http2"}));
    assert_eq!(
        sidecar(&*at_once(&mut watch).await).upstreams[1]
            .resolved
            .protocol(),
        Protocol::Http2
    );
    quiet(&mut watch).await;

    mesh.register("n1", web(&["db"]));
    assert_eq!(names(&at_once(&mut watch).await), ["db"]);
    quiet(&mut watch).await;
    mesh.register("n2", api(2));
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn another_destination_brings_its_own_identity() {
    let mesh = Mesh::new();
    mesh.intention("web", "shop", IntentionAction::Allow);
    let (mut watch, _) = mesh.settled().await;
    let mut shop = web(&["api"]);
    shop["Proxy"]["DestinationServiceName"] = json!("shop");
    mesh.register("n1", shop);
    let snapshot = next(&mut watch).await;
    assert_eq!(sidecar(&snapshot).leaf.id, "shop".into());
    assert_eq!(sidecar(&snapshot).intentions.len(), 1);
    assert_eq!(mesh.leaves.watched(), ["shop".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_certificate_is_published() {
    let ca = CaConfig {
        leaf_ttl: Duration::from_secs(1000),
        ..CaConfig::default()
    };
    let mesh = Mesh::with(|_| {}, ca);
    let (mut watch, first) = mesh.settled().await;
    let renewed = timeout(Duration::from_secs(1000), watch.next())
        .await
        .unwrap()
        .unwrap();
    assert_ne!(sidecar(&first).leaf.serial, sidecar(&renewed).leaf.serial);
    assert!(Arc::ptr_eq(&first.proxy.roots, &renewed.proxy.roots));
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_usable_registration_is_refused() {
    let mesh = Mesh::new();
    mesh.register("n1", json!({"ID": "web", "Service": "web", "Port": 80}));
    mesh.register(
        "n1",
        json!({"ID": "lost", "Service": "lost", "Kind": "connect-proxy", "Port": 81}),
    );
    let refused = |node: &str, id: &str| {
        let proxy = ProxyId {
            tenancy: legate_model::Tenancy::default(),
            node: node.into(),
            service_id: id.into(),
        };
        let error = mesh.manager.watch(proxy).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(id) && text.contains(node), "{text}");
        (error, text)
    };
    let (error, text) = refused("n9", "web-proxy");
    assert!(matches!(error, WatchError::UnknownNode(_)));
    assert!(text.contains("proxy-node-name"), "{text}");

    let (error, text) = refused("n1", "nobody");
    assert!(matches!(error, WatchError::UnknownProxy(_)));
    assert!(text.contains("proxy-id"), "{text}");

    let (error, text) = refused("n1", "web");
    assert!(matches!(error, WatchError::NotAProxy { .. }));
    assert!(text.contains("connect-proxy"), "{text}");

    let (error, text) = refused("n1", "lost");
    assert!(matches!(error, WatchError::NoDestination(_)));
    assert!(text.contains("DestinationServiceName"), "{text}");
    assert!(mesh.manager.proxies().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_registration_of_another_kind_ends_the_watch() {
    let mesh = Mesh::new();
    let (mut watch, _) = mesh.settled().await;
    mesh.register(
        "n1",
        json!({"ID": "web-proxy", "Service": "web-proxy", "Port": 20000}),
    );
    let end = timeout(Duration::from_secs(10), watch.next())
        .await
        .unwrap();
    assert!(end.is_none());
    let reason = watch.reason().unwrap();
    assert!(
        matches!(reason, Ended::Registration(WatchError::NotAProxy { .. })),
        "{reason}"
    );
    assert!(watch.next().await.is_none());

    // The next watcher gets a new source, even while the old watch is held.
    mesh.register("n1", web(&["api"]));
    let mut again = mesh.watch();
    assert_eq!(ports(&next(&mut again).await), [20001]);
    drop(watch);
    assert_eq!(mesh.manager.proxies(), [web_proxy()]);
    mesh.register("n2", api(2));
    assert_eq!(ports(&next(&mut again).await), [20001, 20002]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_watches_and_drops_work() {
    let edit = |config: &mut legate_proxycfg::ManagerConfig| config.max_updates_per_second = 0;
    let mesh = Mesh::with(edit, CaConfig::default());
    let scope = Scope::new("watchers");
    for n in 0..4 {
        let manager = mesh.manager.clone();
        scope.spawn(format!("watcher {n}"), async move {
            for _ in 0..50 {
                let mut watch = manager.watch(web_proxy())?;
                let snapshot = watch.next().await;
                assert!(snapshot.is_some(), "{:?}", watch.reason());
            }
            Ok::<_, WatchError>(())
        });
    }
    scope.stop(Duration::from_secs(60)).await.unwrap();
    assert!(mesh.manager.proxies().is_empty());
    mesh.scope.stop(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_every_watch_with_the_reason() {
    let mesh = Mesh::new();
    let (mut watch, _) = mesh.settled().await;
    let manager = mesh.manager.clone();
    mesh.scope.stop(Duration::from_secs(1)).await.unwrap();
    assert!(watch.next().await.is_none());
    assert_eq!(watch.reason(), Some(&Ended::Stopping));
    assert_eq!(
        manager.watch(web_proxy()).unwrap_err(),
        WatchError::Stopping
    );
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_waits_for_the_first_attempt_to_ask_another_datacenter() {
    let mesh = Mesh::new();
    let mirror = mesh.store.mirror();
    mirror.set_datacenters(vec!["dc2".into()]);
    let (mut watch, _) = mesh.settled().await;
    mesh.entry(json!({
        "Kind": "service-resolver", "Name": "api", "Redirect": {"Datacenter": "dc2"},
    }));
    quiet(&mut watch).await;
    let wanted = mirror.wanted().await;
    assert_eq!(wanted.len(), 1);
    mirror.fail(&wanted[0], "away", Instant::now());
    assert_eq!(ports(&at_once(&mut watch).await), [0_u16; 0]);
    quiet(&mut watch).await;
    mesh.entry(json!({"Kind": "service-resolver", "Name": "api"}));
    assert_eq!(ports(&at_once(&mut watch).await), [20001]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_asked_for_ever_more_of_another_datacenter_waits_for_a_limited_time() {
    let mesh = Mesh::new();
    let mirror = mesh.store.mirror();
    mirror.set_datacenters(vec!["dc2".into()]);
    let (mut watch, _) = mesh.settled().await;
    mesh.intention("shop", "web", IntentionAction::Allow);
    assert_eq!(sidecar(&*at_once(&mut watch).await).intentions.len(), 1);
    quiet(&mut watch).await;
    // Nobody there answers, and each change asks for something else.
    let start = Instant::now();
    let published = async {
        let mut number = 0;
        loop {
            number += 1;
            mesh.entry(json!({
                "Kind": "service-resolver", "Name": "api",
                "Redirect": {"Service": format!("s{number}"), "Datacenter": "dc2"},
            }));
            if number == 2 {
                mesh.intention("blog", "web", IntentionAction::Allow);
            }
            if let Ok(snapshot) = timeout(Duration::from_secs(2), watch.next()).await {
                return snapshot.expect("a source that lives");
            }
        }
    };
    let snapshot = timeout(Duration::from_secs(60), published).await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(10), "{waited:?}");
    assert!(waited < Duration::from_millis(10_500), "{waited:?}");
    assert_eq!(sidecar(&snapshot).intentions.len(), 2);
    assert_eq!(ports(&snapshot), [0_u16; 0]);
}
