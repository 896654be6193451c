//! Builders and queries that the tests share.

mod access;
mod catalog;
mod committing;
mod durable;
mod entries;
mod etcd;
mod gateway_status;
mod gateways;
mod imports;
mod kv;
mod mirror;
mod policies;
mod prepared_queries;
mod processes;
mod random;
mod replication;
mod restarts;
mod snapshots;
mod tenants;
mod upgrade;
mod virtual_ips;
mod watching;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use legate_model::{
    ConfigEntry, ConnectProxy, HealthCheck, Intention, IntentionAction, Node, ServiceConnect,
    ServiceDefaults, ServiceInstance, ServiceKind, Tenancy,
};

use futures_util::FutureExt;

use crate::{
    Applied, Command, Deregistration, ReadTxn, Registration, Rejected, Store, Watch, WriteError,
};

pub(crate) fn node(name: &str) -> Node {
    Node {
        node: name.to_owned(),
        address: "10.0.0.1".to_owned(),
        datacenter: "dc1".to_owned(),
        ..Node::default()
    }
}

fn instance(service: &str, id: &str) -> ServiceInstance {
    ServiceInstance {
        id: id.to_owned(),
        service: service.to_owned(),
        port: 8080,
        ..ServiceInstance::default()
    }
}

fn proxy(destination: &str, id: &str) -> ServiceInstance {
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        proxy: ConnectProxy {
            destination_service_name: destination.to_owned(),
            ..ConnectProxy::default()
        },
        ..instance(&format!("{destination}-sidecar-proxy"), id)
    }
}

fn native(service: &str, id: &str) -> ServiceInstance {
    ServiceInstance {
        connect: ServiceConnect {
            native: true,
            ..ServiceConnect::default()
        },
        ..instance(service, id)
    }
}

fn check(id: &str, service_id: &str) -> HealthCheck {
    HealthCheck {
        check_id: id.to_owned(),
        name: id.to_owned(),
        service_id: service_id.to_owned(),
        ..HealthCheck::default()
    }
}

pub(crate) fn register(
    node: Node,
    service: Option<ServiceInstance>,
    checks: Vec<HealthCheck>,
) -> Command {
    Command::Register(Box::new(Registration {
        node,
        service,
        checks,
        skip_node_update: false,
    }))
}

fn deregister(node: &str, service_id: Option<&str>, check_id: Option<&str>) -> Command {
    Command::Deregister(Deregistration {
        node: node.to_owned(),
        service_id: service_id.map(str::to_owned),
        check_id: check_id.map(str::to_owned),
    })
}

fn defaults(name: &str, protocol: &str) -> Box<ConfigEntry> {
    Box::new(ConfigEntry::ServiceDefaults(ServiceDefaults {
        name: name.to_owned(),
        protocol: protocol.to_owned(),
        ..ServiceDefaults::default()
    }))
}

fn intention(source: &str, destination: &str, action: IntentionAction) -> Command {
    let mut intention = Intention {
        source_name: source.to_owned(),
        destination_name: destination.to_owned(),
        action: Some(action),
        ..Intention::default()
    };
    intention.normalise(&Tenancy::default());
    Command::UpsertIntention(Box::new(intention))
}

/// Applies a command that must not be refused.
fn apply(store: &Store, command: Command) -> Applied {
    attempt(store, command).expect("the command is accepted")
}

/// Operations of a store in memory complete at once.
fn attempt(store: &Store, command: Command) -> Result<Applied, Rejected> {
    let applied = store.apply(command).now_or_never();
    applied
        .expect("nothing to wait for")
        .map_err(|error| match error {
            WriteError::Rejected(rejected) => rejected,
            WriteError::Unavailable(error) => panic!("{error}"),
        })
}

/// Watches the reads of a question.
fn watch<T>(store: &Store, question: impl Fn(&ReadTxn<'_>) -> T) -> Watch {
    let state = store.state();
    let txn = state.read();
    question(&txn);
    store.watch(&txn.into_reads())
}

/// The index of a question's reads.
fn index_of<T>(store: &Store, question: impl Fn(&ReadTxn<'_>) -> T) -> u64 {
    let state = store.state();
    let txn = state.read();
    question(&txn);
    txn.into_reads().index()
}

/// Applies a command that must be refused, and checks that nothing changed.
fn refuse(store: &Store, command: Command) -> Rejected {
    let before = store.state().index();
    let rejected = attempt(store, command).expect_err("the command is refused");
    assert_eq!(store.state().index(), before, "{rejected}");
    rejected
}

/// The index and all rows as text.
fn rows(store: &Store) -> (u64, Vec<(String, String)>) {
    let state = store.state();
    let rows = state.all().map(|(key, row)| {
        let text = String::from_utf8(row.to_bytes().unwrap()).unwrap();
        (format!("{key:?}"), text)
    });
    (state.index(), rows.collect())
}

/// Whether a change is pending; consumes it.
fn woken(watch: &mut Watch) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(watch.changed()).poll(&mut context).is_ready()
}
