//! What proxies of gateways of clusters have acknowledged and rejected.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::Tenancy;

use super::{deregister, instance, node, register, rows};
use crate::{
    GatewayContent, GatewayProblem, GatewayReport, GatewayStatus, Generations, Store, Unavailable,
    WriteTxn,
};

/// A write that is refused, or cannot be stored.
#[derive(Debug)]
struct Refused;

impl From<GatewayProblem> for Refused {
    fn from(_: GatewayProblem) -> Self {
        Self
    }
}

impl From<Unavailable> for Refused {
    fn from(_: Unavailable) -> Self {
        Self
    }
}

async fn write(store: &Store, mut write: impl FnMut(&mut WriteTxn) + Send + 'static) {
    let written = store.write(move |txn| {
        write(txn);
        Ok::<_, Refused>(())
    });
    written.await.unwrap();
}

fn map<T: Clone>(pairs: &[(&str, T)]) -> BTreeMap<String, T> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect()
}

async fn put(store: &Store, generations: &[(&str, i64)]) {
    let content = GatewayContent {
        generations: map(generations),
        ..GatewayContent::default()
    };
    write(store, move |txn| txn.put_gateway("edge", &content).unwrap()).await;
}

/// A report of a proxy that has acknowledged what is written now.
fn report(store: &Store, proxy: &str, rejected: &[(&str, &str)]) -> GatewayReport {
    let rejected: Vec<_> = rejected
        .iter()
        .map(|(port, reason)| (*port, (*reason).to_owned()))
        .collect();
    GatewayReport {
        tenancy: Tenancy::default(),
        gateway: "edge".to_owned(),
        node: "n".to_owned(),
        proxy: proxy.to_owned(),
        acknowledged: store.state().read().gateway_generations("edge"),
        rejected: map(&rejected),
    }
}

/// Notes a report, and whether that has taken an index.
async fn note(store: &Store, report: &GatewayReport) -> bool {
    let before = store.state().index();
    let is_noted = store.state().read().is_noted(report);
    let reports = [report.clone()];
    write(store, move |txn| txn.note_gateway_reports(&reports)).await;
    let is_written = store.state().index() > before;
    assert_eq!(is_written, !is_noted);
    is_written
}

fn status(store: &Store) -> GatewayStatus {
    store.state().read().gateway_status("edge").unwrap()
}

fn acknowledged(store: &Store) -> Vec<(String, i64)> {
    status(store).acknowledged.into_iter().collect()
}

async fn register_proxies(store: &Store) {
    for id in ["a", "b"] {
        let command = register(node("n"), Some(instance("edge", id)), Vec::new());
        store.apply(command).await.unwrap();
    }
}

#[tokio::test]
async fn the_newest_generation_that_a_proxy_has_acknowledged_counts() {
    let store = Store::new();
    assert_eq!(store.state().read().gateway_status("edge"), None);
    put(&store, &[("", 1), ("shop/more", 7)]).await;
    assert_eq!(status(&store), GatewayStatus::default());
    let old = report(&store, "a", &[]);
    put(&store, &[("", 2), ("shop/more", 7)]).await;
    assert!(note(&store, &old).await);
    let pair = |object: &str, generation| (object.to_owned(), generation);
    assert_eq!(acknowledged(&store), [pair("", 1), pair("shop/more", 7)]);
    assert!(note(&store, &report(&store, "b", &[])).await);
    assert_eq!(acknowledged(&store), [pair("", 2), pair("shop/more", 7)]);
    assert!(!note(&store, &old).await, "it is behind");
    assert!(!note(&store, &report(&store, "a", &[])).await);

    put(&store, &[("", 2)]).await;
    assert_eq!(acknowledged(&store), [pair("", 2)]);
    assert!(!note(&store, &old).await, "the object is gone");
    put(&store, &[("", 1)]).await;
    assert_eq!(acknowledged(&store), [], "created again");
    let late = GatewayReport {
        acknowledged: Some(Arc::new(Generations {
            since: old.acknowledged.clone().unwrap().since,
            of: map(&[("", 2)]),
        })),
        ..old
    };
    assert!(!note(&store, &late).await);
}

#[tokio::test]
async fn a_gateway_that_is_written_again_is_another() {
    let store = Store::new();
    put(&store, &[("", 1)]).await;
    let old = report(&store, "a", &[]);
    assert!(note(&store, &old).await);
    write(&store, |txn| txn.remove_gateway("edge")).await;
    assert!(!note(&store, &old).await, "there is no gateway");
    put(&store, &[("", 1)]).await;
    assert!(!note(&store, &old).await);
    assert_eq!(status(&store), GatewayStatus::default());
    assert!(note(&store, &report(&store, "a", &[])).await);
    write(&store, |txn| txn.remove_gateway("edge")).await;
    assert!(rows(&store).1.is_empty());
}

#[tokio::test]
async fn a_rejection_lasts_until_its_proxy_accepts_or_is_gone() {
    let store = Store::new();
    register_proxies(&store).await;
    put(&store, &[("", 1)]).await;
    let rejecting = |proxy, reason| report(&store, proxy, &[("443", reason)]);
    assert!(note(&store, &rejecting("a", "taken")).await);
    assert!(note(&store, &rejecting("b", "in use")).await);
    assert!(!note(&store, &rejecting("b", "in use")).await);
    let rejected = || status(&store).rejected.into_iter().collect::<Vec<_>>();
    let pair = |port: &str, reason: &str| (port.to_owned(), reason.to_owned());
    assert_eq!(rejected(), [pair("443", "taken")]);
    assert!(note(&store, &report(&store, "a", &[])).await);
    assert_eq!(rejected(), [pair("443", "in use")]);
    let gone = deregister("n", Some("b"), None);
    store.apply(gone).await.unwrap();
    assert_eq!(rejected(), []);
}

#[tokio::test]
async fn few_proxies_that_reject_are_noted() {
    let store = Store::new();
    put(&store, &[]).await;
    let mut noted = 0;
    for at in 0..6 {
        let id = format!("proxy-{at}");
        let command = register(node("n"), Some(instance("edge", &id)), Vec::new());
        store.apply(command).await.unwrap();
        noted += usize::from(note(&store, &report(&store, &id, &[("443", "taken")])).await);
    }
    assert_eq!(noted, 4);
}
