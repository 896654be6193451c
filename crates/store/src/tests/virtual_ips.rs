//! Allocation of virtual IPs: unique, stable while needed, and freed ones first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use legate_model::virtual_ip::{COUNT, TAGGED_ADDRESS, VirtualIp};
use legate_model::{
    ConfigEntry, ConfigKind, IntentionAction, LinkedService, ServiceAddress, ServiceInstance,
    ServiceName, TerminatingGateway,
};
use proptest::prelude::*;

use super::durable::open;
use super::random::any_command;
use super::{
    apply, attempt, defaults, deregister, index_of, instance, intention, native, node, proxy,
    refuse, register, rows, watch, woken,
};
use crate::rows::LastVirtualIpRow;
use crate::{Command, Rejected, State, Store};

fn mesh(instance: ServiceInstance) -> Command {
    register(node("n"), Some(instance), Vec::new())
}

fn ip(store: &Store, service: &str) -> Option<String> {
    let ip = store.state().read().virtual_ip(service);
    ip.map(|ip| ip.address().to_string())
}

fn tagged(store: &Store, id: &str) -> Option<ServiceAddress> {
    let found = store.state().read().instance("n", id).unwrap();
    found.service.tagged_addresses.get(TAGGED_ADDRESS).cloned()
}

fn address(ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress {
        address: ip.to_owned(),
        port,
    }
}

fn terminating(name: &str, services: &[&str]) -> Box<ConfigEntry> {
    let linked = |name: &&str| LinkedService {
        name: (*name).to_owned(),
        ..LinkedService::default()
    };
    Box::new(ConfigEntry::TerminatingGateway(TerminatingGateway {
        name: name.to_owned(),
        services: services.iter().map(linked).collect(),
        ..TerminatingGateway::default()
    }))
}

fn delete(kind: ConfigKind, name: &str) -> Command {
    Command::DeleteConfigEntry {
        kind,
        name: name.to_owned(),
        cas: None,
    }
}

#[test]
fn a_service_gets_one_with_its_first_instance_in_the_mesh() {
    let store = Store::new();
    apply(&store, mesh(instance("web", "w")));
    assert_eq!(ip(&store, "web"), None);
    apply(&store, mesh(proxy("web", "p")));
    assert_eq!(ip(&store, "WEB").as_deref(), Some("240.0.0.1"));
    assert_eq!(ip(&store, "web-sidecar-proxy"), None);
    assert_eq!(tagged(&store, "p"), Some(address("240.0.0.1", 8080)));
    assert_eq!(tagged(&store, "w"), None);

    let mut own = native("api", "a");
    own.port = 9090;
    // The client's value is overwritten.
    let wanted = address("240.0.0.1", 1);
    own.tagged_addresses
        .insert(TAGGED_ADDRESS.to_owned(), wanted);
    let other = address("10.0.0.9", 1);
    own.tagged_addresses.insert("lan".to_owned(), other.clone());
    apply(&store, mesh(own));
    assert_eq!(tagged(&store, "a"), Some(address("240.0.0.2", 9090)));
    let api = store.state().read().instance("n", "a").unwrap();
    assert_eq!(api.service.tagged_addresses.get("lan"), Some(&other));

    let again = apply(&store, mesh(proxy("web", "p")));
    assert!(!again.changed, "the same registration");
    apply(&store, mesh(proxy("web", "second")));
    assert_eq!(tagged(&store, "second"), Some(address("240.0.0.1", 8080)));
}

#[test]
fn a_config_entry_gives_one() {
    let store = Store::new();
    let entry = |name: &str| Command::UpsertConfigEntry {
        entry: defaults(name, "http"),
        cas: None,
    };
    apply(&store, entry("web"));
    apply(&store, intention("web", "api", IntentionAction::Allow));
    apply(&store, intention("web", "*", IntentionAction::Deny));
    assert_eq!(ip(&store, "web").as_deref(), Some("240.0.0.1"));
    assert_eq!(ip(&store, "api").as_deref(), Some("240.0.0.2"));
    assert_eq!(ip(&store, "*"), None);
    apply(&store, mesh(native("web", "w")));
    assert_eq!(ip(&store, "web").as_deref(), Some("240.0.0.1"));

    apply(&store, delete(ConfigKind::ServiceDefaults, "web"));
    assert_eq!(ip(&store, "web").as_deref(), Some("240.0.0.1"));
    let last_source = Command::DeleteIntention {
        source: "web".to_owned(),
        destination: "api".to_owned(),
    };
    apply(&store, last_source);
    assert_eq!(ip(&store, "api"), None);
    let refused = Command::UpsertConfigEntry {
        entry: defaults("other", "http"),
        cas: Some(77),
    };
    refuse(&store, refused);
    assert_eq!(ip(&store, "other"), None);
}

#[test]
fn a_terminating_gateway_gives_one() {
    let store = Store::new();
    let gateway = |name: &str, services: &[&str]| Command::UpsertConfigEntry {
        entry: terminating(name, services),
        cas: None,
    };
    apply(&store, gateway("out", &["db", "*", "Mail"]));
    assert_eq!(ip(&store, "db").as_deref(), Some("240.0.0.2"));
    assert_eq!(ip(&store, "mail").as_deref(), Some("240.0.0.1"));
    assert_eq!(ip(&store, "*"), None);
    apply(&store, gateway("second", &["mail"]));
    apply(&store, gateway("out", &["*"]));
    assert_eq!(ip(&store, "db"), None);
    assert_eq!(ip(&store, "mail").as_deref(), Some("240.0.0.1"));
    apply(&store, mesh(native("mail", "m")));
    apply(&store, delete(ConfigKind::TerminatingGateway, "second"));
    assert_eq!(ip(&store, "mail").as_deref(), Some("240.0.0.1"), "instance");
    apply(&store, gateway("out", &["mail"]));
    apply(&store, deregister("n", Some("m"), None));
    assert_eq!(ip(&store, "mail").as_deref(), Some("240.0.0.1"), "gateway");
    apply(&store, delete(ConfigKind::TerminatingGateway, "out"));
    assert_eq!(ip(&store, "mail"), None);
}

#[test]
fn it_is_kept_while_anything_needs_it_and_given_to_the_next() {
    let store = Store::new();
    apply(&store, mesh(instance("web", "w")));
    apply(&store, mesh(proxy("web", "p")));
    apply(&store, mesh(native("api", "a")));
    apply(&store, deregister("n", Some("p"), None));
    assert_eq!(ip(&store, "web").as_deref(), Some("240.0.0.1"), "instance");
    apply(&store, mesh(proxy("web", "p")));
    apply(&store, deregister("n", Some("w"), None));
    assert_eq!(ip(&store, "web").as_deref(), Some("240.0.0.1"), "sidecar");
    apply(&store, mesh(proxy("other", "p")));
    assert_eq!(ip(&store, "web"), None);
    assert_eq!(tagged(&store, "p"), Some(address("240.0.0.3", 8080)));
    apply(&store, mesh(native("next", "x")));
    assert_eq!(ip(&store, "next").as_deref(), Some("240.0.0.1"));
    apply(&store, mesh(native("new", "y")));
    assert_eq!(ip(&store, "new").as_deref(), Some("240.0.0.4"));

    // A renamed instance leaves the old service without instances.
    apply(&store, mesh(native("renamed", "x")));
    assert_eq!(ip(&store, "next"), None);
    apply(&store, deregister("n", None, None));
    for service in ["api", "other", "new", "renamed"] {
        assert_eq!(ip(&store, service), None, "{service}");
    }
    for (service, expected) in [("e", "240.0.0.1"), ("f", "240.0.0.2")] {
        apply(&store, mesh(native(service, service)));
        assert_eq!(ip(&store, service).as_deref(), Some(expected));
    }
}

/// Assigns addresses manually. `None` if the service has no virtual IP.
async fn assign(store: &Store, service: &'static str, last: &[u8]) -> Option<Vec<ServiceName>> {
    let ips: BTreeSet<Ipv4Addr> = last.iter().map(|n| Ipv4Addr::new(10, 0, 0, *n)).collect();
    let written =
        store.write(move |txn| Ok::<_, crate::WriteError>(txn.assign_virtual_ips(service, &ips)));
    written.await.unwrap().1
}

fn assigned(store: &Store, service: &str) -> Vec<u8> {
    let ips = store.state().read().manual_virtual_ips(service);
    ips.iter().map(|ip| ip.octets()[3]).collect()
}

#[tokio::test]
async fn an_address_that_is_assigned_has_one_owner() {
    let store = Store::new();
    for service in ["a", "b", "c"] {
        apply(&store, mesh(native(service, service)));
    }
    assert_eq!(assign(&store, "nobody", &[1]).await, None);
    assert_eq!(assign(&store, "A", &[1, 2]).await, Some(vec![]));
    assert_eq!(assign(&store, "b", &[3]).await, Some(vec![]));
    let index = store.state().index();
    assert_eq!(assign(&store, "a", &[1, 2]).await, Some(vec![]));
    assert_eq!(store.state().index(), index, "nothing has changed");

    let mut waiting = watch(&store, |txn| txn.manual_virtual_ips("a"));
    let taken = assign(&store, "c", &[2, 3, 4]).await.unwrap();
    assert_eq!(taken, ["a", "b"]);
    assert!(woken(&mut waiting));
    assert_eq!(assigned(&store, "a"), [1]);
    assert_eq!(assigned(&store, "b"), [0; 0]);
    assert_eq!(assigned(&store, "c"), [2, 3, 4]);
    assert_eq!(ip(&store, "c").as_deref(), Some("240.0.0.3"));
    assert_eq!(
        store.state().read().services_with_virtual_ips(),
        ["a", "b", "c"].map(ServiceName::from)
    );

    // Assigning to a service that does not exist takes nothing from others.
    assert_eq!(assign(&store, "nobody", &[1]).await, None);
    assert_eq!(assigned(&store, "a"), [1]);
    // Manual addresses are released with the service.
    apply(&store, deregister("n", Some("c"), None));
    assert_eq!(assigned(&store, "c"), [0; 0]);
    apply(&store, mesh(native("c", "c")));
    assert_eq!(assigned(&store, "c"), [0; 0]);
    assert_eq!(assign(&store, "a", &[4]).await, Some(vec![]));
    assert_eq!(assign(&store, "a", &[]).await, Some(vec![]));
    assert_eq!(assigned(&store, "a"), [0; 0]);
}

#[test]
fn watches_of_a_virtual_ip_wake() {
    let store = Store::new();
    let mut waiting = watch(&store, |txn| txn.virtual_ip("web"));
    apply(&store, mesh(native("api", "a")));
    assert!(!woken(&mut waiting));
    let given = apply(&store, mesh(native("web", "w")));
    assert!(woken(&mut waiting));
    let index = |store: &Store| index_of(store, |txn| txn.virtual_ip("web"));
    assert_eq!(index(&store), given.index);
    let gone = apply(&store, deregister("n", Some("w"), None));
    assert_eq!(index(&store), gone.index);
}

#[tokio::test]
async fn without_one_left_the_registration_is_refused() {
    let store = Store::new();
    let nearly = VirtualIp::try_from(COUNT - 1).unwrap();
    let filled = store.write(move |txn| {
        txn.put(LastVirtualIpRow {
            ip: nearly,
            modify_index: txn.index(),
        });
        Ok::<_, crate::WriteError>(())
    });
    filled.await.unwrap();
    apply(&store, mesh(native("last", "l")));
    assert_eq!(ip(&store, "last").as_deref(), Some("255.255.255.253"));

    let (_, before) = rows(&store);
    let entry = Command::UpsertConfigEntry {
        entry: defaults("late", "http"),
        cas: None,
    };
    let allowed = intention("web", "late", IntentionAction::Allow);
    for late in [mesh(native("late", "x")), entry, allowed] {
        let rejected = refuse(&store, late);
        assert!(matches!(rejected, Rejected::NoVirtualIpLeft { .. }));
        assert!(rejected.to_string().contains("late"), "{rejected}");
    }
    assert_eq!(rows(&store).1, before);
    apply(&store, mesh(proxy("last", "p")));
    apply(&store, mesh(instance("plain", "i")));
    apply(&store, deregister("n", Some("p"), None));
    apply(&store, deregister("n", Some("l"), None));
    apply(&store, mesh(native("late", "x")));
    assert_eq!(ip(&store, "late").as_deref(), Some("255.255.255.253"));
}

#[tokio::test]
async fn a_restarted_server_knows_them_all() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    for service in ["a", "b", "c"] {
        let command = mesh(native(service, service));
        opened.store.apply(command).await.unwrap();
    }
    let gone = deregister("n", Some("a"), None);
    opened.store.apply(gone).await.unwrap();
    assign(&opened.store, "b", &[7]).await.unwrap();
    let before = rows(&opened.store);
    opened.stop().await;

    let opened = open(directory.path()).await;
    let store = &opened.store;
    assert_eq!(rows(store), before);
    assert_eq!(assigned(store, "b"), [7]);
    assert_eq!(assign(store, "c", &[7]).await.unwrap(), ["b"]);
    for service in ["d", "e"] {
        store.apply(mesh(native(service, service))).await.unwrap();
    }
    let all = ["a", "b", "c", "d", "e"].map(|service| ip(store, service).unwrap_or_default());
    assert_eq!(
        all,
        ["", "240.0.0.2", "240.0.0.3", "240.0.0.1", "240.0.0.4"]
    );
    opened.stop().await;
}

/// A model of the allocation without rows, which is recomputed after every command.
#[derive(Debug, Default)]
struct Numbers {
    given: BTreeMap<String, u32>,
    free: BTreeSet<u32>,
    last: u32,
}

impl Numbers {
    fn follow(&mut self, state: &State) {
        let state = state.read();
        let nodes = state.nodes();
        let instances = nodes.iter().flat_map(|node| state.instances_on(&node.node));
        let instances: Vec<_> = instances.collect();
        let entries = |kind| state.config_entries(kind);
        let named = [ConfigKind::ServiceDefaults, ConfigKind::ServiceIntentions].map(entries);
        let named = named.iter().flatten().map(|entry| entry.name().to_owned());
        let destinations = instances.iter().filter_map(|i| i.destination());
        let mut wanting: BTreeSet<String> = destinations.map(str::to_owned).collect();
        wanting.extend(named.filter(|name| name != "*"));
        let mut keeping = wanting.clone();
        keeping.extend(instances.iter().map(|i| i.service.clone()));

        // A command allocates for at most one service, and does so before others release theirs.
        for service in wanting {
            if !self.given.contains_key(&service) {
                let number = self.free.pop_first().unwrap_or(self.last + 1);
                self.last = self.last.max(number);
                self.given.insert(service, number);
            }
        }
        let gone = self.given.extract_if(.., |name, _| !keeping.contains(name));
        self.free.extend(gone.map(|(_, number)| number));

        let names = ["a", "b", "c", "*", "a-sidecar-proxy", "b-sidecar-proxy"];
        for name in names {
            let has = state.virtual_ip(name).map(VirtualIp::number);
            assert_eq!(has, self.given.get(name).copied(), "{name}");
        }
        for instance in instances {
            let tagged = instance.tagged_addresses.get(TAGGED_ADDRESS);
            let expected = instance.destination().map(|service| {
                let ip = VirtualIp::try_from(self.given[service]).unwrap();
                address(&ip.address().to_string(), instance.port)
            });
            assert_eq!(tagged, expected.as_ref(), "{}", instance.id);
        }
    }
}

proptest! {
    #[test]
    fn numbers_follow_the_commands(commands in prop::collection::vec(any_command(), 1..60)) {
        let store = Store::new();
        let mut numbers = Numbers::default();
        for command in commands {
            let before = numbers.given.clone();
            drop(attempt(&store, command));
            numbers.follow(&store.state());
            let distinct: BTreeSet<_> = numbers.given.values().chain(&numbers.free).collect();
            prop_assert_eq!(distinct.len(), numbers.given.len() + numbers.free.len());
            prop_assert_eq!(distinct.len(), numbers.last as usize);
            for (service, number) in &numbers.given {
                prop_assert!(before.get(service).is_none_or(|had| had == number));
            }
        }
    }
}
