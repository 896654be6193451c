//! Tenancies: isolation, effects across namespaces, and removal.

use std::time::{Duration, SystemTime};

use legate_model::{
    CheckStatus, ConfigEntry, EVERY_TENANCY, HealthCheck, IntentionAction, KvValue, Namespace,
    NewSession, Partition, ServiceCheck, ServiceIntentions, Session, SourceIntention, Tenancy,
    TenancyName, WILDCARD,
};

use super::durable::open;
use super::{instance, node, proxy, watch, woken};
use crate::{
    KvWrite, ReadTxn, Registration, Rejected, Store, Tenant, TenantConflict, WriteError, WriteTxn,
};

fn name(text: &str) -> TenancyName {
    text.parse().unwrap()
}

fn team() -> Tenancy {
    Tenancy::new(&name(""), &name("team"))
}

fn west() -> Tenancy {
    Tenancy::new(&name("west"), &name("team"))
}

async fn write<T: Send + 'static>(
    store: &Store,
    mut transaction: impl FnMut(&mut WriteTxn) -> Result<T, Rejected> + Send + 'static,
) -> Result<T, WriteError> {
    let written = store.write(move |txn| Ok::<_, WriteError>(transaction(txn)?));
    written.await.map(|(_, value)| value)
}

async fn tenants(store: &Store) {
    write(store, |txn| {
        let named = |text| Namespace {
            name: name(text),
            ..Namespace::default()
        };
        txn.put_namespace(named("team"))?;
        txn.put_partition(Partition {
            name: name("west"),
            ..Partition::default()
        })?;
        txn.set_tenancy(west());
        txn.put_namespace(named("team")).map(|_| ())
    })
    .await
    .unwrap();
}

fn check(id: &str, of: &str, status: CheckStatus) -> HealthCheck {
    HealthCheck {
        check_id: id.to_owned(),
        name: id.to_owned(),
        service_id: of.to_owned(),
        status,
        ..HealthCheck::default()
    }
}

/// The instance `web` and checks of node `n1` in a tenancy.
async fn register(store: &Store, tenancy: Tenancy, checks: Vec<HealthCheck>) {
    let registration = Registration {
        node: node("n1"),
        service: Some(instance("web", "web")),
        checks,
        skip_node_update: false,
    };
    write(store, move |txn| {
        txn.in_tenancy(&tenancy, |txn| txn.register(registration.clone()))
    })
    .await
    .unwrap();
}

fn look<T>(store: &Store, tenancy: Tenancy, look: impl Fn(&ReadTxn<'_>) -> T) -> T {
    look(&store.state().read().within(tenancy))
}

#[tokio::test]
async fn each_tenant_reads_and_watches_its_own_rows() {
    let store = Store::new();
    tenants(&store).await;
    let alive = || check("alive", "", CheckStatus::Passing);
    register(&store, Tenancy::default(), vec![alive()]).await;
    register(&store, west(), vec![alive()]).await;
    let mut seen = watch(&store, |txn| {
        txn.in_tenancy(&team(), |txn| txn.service("web").len())
    });
    register(
        &store,
        Tenancy::default(),
        vec![check("c", "web", CheckStatus::Passing)],
    )
    .await;
    assert!(!woken(&mut seen));
    register(
        &store,
        team(),
        vec![check("c", "web", CheckStatus::Warning)],
    )
    .await;
    assert!(woken(&mut seen));
    let health = |tenancy| {
        look(&store, tenancy, |txn| {
            let all = txn.service("web");
            all.iter()
                .map(|one| (one.checks.len(), one.health()))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(health(Tenancy::default()), [(2, CheckStatus::Passing)]);
    // The node check applies in every namespace.
    assert_eq!(health(team()), [(2, CheckStatus::Warning)]);
    assert_eq!(
        look(&store, team(), |txn| txn.instances()[0].checks.len()),
        2
    );
    assert_eq!(health(west()), [(1, CheckStatus::Passing)]);
    let shown = look(&store, west(), |txn| {
        let one = txn.service("web").remove(0);
        (one.service.namespace.clone(), one.node.partition.clone())
    });
    assert_eq!(shown, (name("team"), name("west")));
    let missing = look(&store, Tenancy::new(&name("no"), &name("")), |txn| {
        txn.require_tenancy()
    });
    assert_eq!(missing, Err(TenantConflict::NoPartition("no".to_owned())));
}

#[tokio::test]
async fn a_session_ends_with_the_checks_that_it_names_wherever_they_are() {
    let passing = CheckStatus::Passing;
    let ends = async |critical: (Tenancy, HealthCheck)| {
        let store = Store::new();
        tenants(&store).await;
        let of_web = || check("web", "web", passing);
        register(
            &store,
            Tenancy::default(),
            vec![check("alive", "", passing), of_web()],
        )
        .await;
        register(&store, team(), vec![of_web(), check("own", "web", passing)]).await;
        let session = Session {
            id: "s".to_owned(),
            node: "n1".to_owned(),
            node_checks: vec!["alive".to_owned()],
            service_checks: Some(vec![
                ServiceCheck {
                    id: "own".to_owned(),
                    namespace: name(""),
                },
                ServiceCheck {
                    id: "web".to_owned(),
                    namespace: name("default"),
                },
            ]),
            lock_delay: Duration::ZERO,
            ..Session::default()
        };
        write(&store, move |txn| {
            let new = NewSession {
                session: session.clone(),
                default_check: false,
            };
            txn.in_tenancy(&team(), |txn| txn.create_session(new).unwrap());
            Ok(())
        })
        .await
        .unwrap();
        assert!(store.state().read().session("s").is_none());
        register(&store, critical.0, vec![critical.1]).await;
        look(&store, team(), |txn| txn.session("s").is_none())
    };
    let critical = |id, of| check(id, of, CheckStatus::Critical);
    let default = Tenancy::default;
    assert!(ends((default(), critical("alive", ""))).await);
    assert!(ends((team(), critical("own", "web"))).await);
    assert!(ends((default(), critical("web", "web"))).await);
    assert!(!ends((team(), critical("web", "web"))).await, "not named");
    assert!(
        !ends((default(), critical("own", "web"))).await,
        "not named"
    );
}

#[tokio::test]
async fn virtual_ips_are_one_range_for_all_tenants() {
    let store = Store::new();
    tenants(&store).await;
    for tenancy in [Tenancy::default(), team(), west()] {
        let registration = Registration {
            node: node("n1"),
            service: Some(proxy("web", "web-proxy")),
            checks: Vec::new(),
            skip_node_update: false,
        };
        write(&store, move |txn| {
            txn.in_tenancy(&tenancy, |txn| txn.register(registration.clone()))
        })
        .await
        .unwrap();
    }
    let ip = |tenancy| {
        look(&store, tenancy, |txn| {
            txn.virtual_ip("web").unwrap().number()
        })
    };
    let all = [ip(Tenancy::default()), ip(team()), ip(west())];
    assert_eq!(all, [all[0], all[0] + 1, all[0] + 2]);
    let mut taken_from = Vec::new();
    for tenancy in [Tenancy::default(), west(), team()] {
        let assign = move |txn: &mut WriteTxn| {
            let manual = [[10, 0, 0, 9].into()].into();
            Ok(txn.in_tenancy(&tenancy, |txn| txn.assign_virtual_ips("web", &manual)))
        };
        taken_from.extend(write(&store, assign).await.unwrap().unwrap());
    }
    assert_eq!(taken_from, ["web"]);
    let held = |tenancy| look(&store, tenancy, |txn| txn.manual_virtual_ips("web").len());
    // Across the namespaces of a partition, services lose reassigned addresses.
    let all = [held(Tenancy::default()), held(team()), held(west())];
    assert_eq!(all, [0, 1, 1]);
}

/// An intention for all namespaces of the partition, which is in none of them.
async fn allow_everybody_in_west(store: &Store) {
    let every = Tenancy {
        namespace: EVERY_TENANCY.into(),
        ..west()
    };
    let intentions = move |txn: &mut WriteTxn| {
        let everybody = SourceIntention {
            name: WILDCARD.to_owned(),
            action: Some(IntentionAction::Allow),
            ..SourceIntention::default()
        };
        let entry = ConfigEntry::ServiceIntentions(ServiceIntentions {
            name: WILDCARD.to_owned(),
            sources: vec![everybody],
            ..ServiceIntentions::default()
        });
        txn.in_tenancy(&every, |txn| txn.put_config_entry(entry, None))
    };
    write(store, intentions).await.unwrap();
}

#[tokio::test]
async fn a_deleted_tenant_is_removed_in_steps_across_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let store = opened.store.clone();
    tenants(&store).await;
    register(
        &store,
        west(),
        vec![check("web", "web", CheckStatus::Passing)],
    )
    .await;
    let set = |txn: &mut WriteTxn| {
        for key in 0..20 {
            txn.kv_set(KvWrite {
                key: key.to_string(),
                flags: 0,
                value: KvValue::from(&b"v"[..]),
            });
        }
    };
    for tenancy in [Tenancy::default(), team(), west()] {
        write(&store, move |txn| {
            txn.in_tenancy(&tenancy, set);
            Ok(())
        })
        .await
        .unwrap();
    }
    let deleted = [Tenant::Namespace(team()), Tenant::Partition(name("west"))];
    let marked = deleted.clone();
    let step = async |store: &Store| {
        let deleted = deleted.clone();
        write(store, move |txn| {
            let gone = deleted.iter().map(|tenant| txn.remove_tenant(tenant, 10));
            Ok(gone.collect::<Vec<_>>())
        })
        .await
        .unwrap()
    };
    allow_everybody_in_west(&store).await;
    write(&store, move |txn| {
        for tenant in &marked {
            txn.mark_deleted(tenant, SystemTime::UNIX_EPOCH)?;
        }
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(step(&store).await, [false, false]);
    let late = look(&store, team(), |txn| txn.require_tenancy());
    assert!(matches!(late, Err(TenantConflict::Deleting { .. })));
    drop(store);
    opened.stop().await;
    let opened = open(directory.path()).await;
    let store = opened.store.clone();
    assert_eq!(store.state().read().tenants_to_remove(), deleted);
    assert_eq!(step(&store).await, [true, false]);
    while step(&store).await != [true, true] {}
    assert_eq!(store.state().read().tenancies(), [Tenancy::default()]);
    for tenancy in [team(), west()] {
        let left = look(&store, tenancy, |txn| {
            (
                txn.kv_below("").len(),
                txn.services().len(),
                txn.nodes().len(),
            )
        });
        assert_eq!(left, (0, 0, 0));
    }
    assert!(store.state().read().intentions_everywhere().is_empty());
    assert_eq!(store.state().read().kv_below("").len(), 20);
    drop(store);
    opened.stop().await;
}

#[tokio::test]
async fn the_default_tenancies_cannot_be_deleted() {
    let store = Store::new();
    for builtin in [
        Tenant::Namespace(Tenancy::default()),
        Tenant::Partition(name("default")),
    ] {
        let mark = move |txn: &mut WriteTxn| txn.mark_deleted(&builtin, SystemTime::UNIX_EPOCH);
        let refused = write(&store, mark).await;
        assert!(matches!(
            refused,
            Err(WriteError::Rejected(Rejected::Tenant(
                TenantConflict::Builtin { .. }
            )))
        ));
    }
}
