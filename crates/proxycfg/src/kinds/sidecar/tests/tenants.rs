//! Upstreams of a proxy in other partitions.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use legate_model::{Tenancy, TenancyName};

use super::transparent::{captured, dialled, names, service, transparent};
use super::*;

fn west() -> Tenancy {
    let west: TenancyName = "west".parse().unwrap();
    Tenancy::new(&west, &TenancyName::default())
}

fn in_west(store: &Store, write: impl Fn(&mut WriteTxn) + Send + 'static) {
    let written = store.write(move |txn| {
        txn.in_tenancy(&west(), &write);
        Ok::<_, Unavailable>(())
    });
    written.now_or_never().unwrap().unwrap();
}

fn entry_in_west(store: &Store, entry: Value) {
    let entry: ConfigEntry = serde_json::from_value(entry).unwrap();
    in_west(store, move |txn| {
        txn.put_config_entry(entry.clone(), None).unwrap();
    });
}

/// `west` exports only `stock`, to the given partition.
fn export(store: &Store, to: &str) {
    let exported = json!({"Name": "stock", "Consumers": [{"Partition": to}]});
    entry_in_west(
        store,
        json!({"Kind": "exported-services", "Name": "west", "Services": [exported]}),
    );
}

/// `web` in transparent mode, and `stock` in the partition `west`, whose cluster may use addresses
/// that are also in use in the cluster of `web`.
fn with_stock() -> Store {
    let store = captured();
    let mut stock = instance("stock", "stock-proxy", 1);
    stock["TaggedAddresses"] = json!({"virtual": {"Address": "10.96.0.6", "Port": 80}});
    let Command::Register(stock) = register("n9", stock, Vec::new()) else {
        panic!("it is a registration");
    };
    in_west(&store, move |txn| {
        txn.register((*stock).clone()).unwrap();
        let assigned = BTreeSet::from([Ipv4Addr::new(10, 96, 0, 5)]);
        txn.assign_virtual_ips("stock", &assigned).unwrap();
    });
    let web = json!({"Name": "web", "Partition": "default", "Action": "allow"});
    entry_in_west(
        &store,
        json!({"Kind": "service-intentions", "Name": "stock", "Sources": [web]}),
    );
    store
}

/// `web` has `stock` as an upstream.
fn call_stock(store: &Store) {
    let upstream = json!([{
        "DestinationName": "stock", "DestinationPartition": "west", "LocalBindPort": 9000,
    }]);
    apply(store, transparent(json!({"Upstreams": upstream})));
}

#[test]
fn a_service_of_another_partition_is_dialled_by_its_unique_address() {
    let store = with_stock();
    export(&store, "default");
    assert_eq!(dialled(&store, "stock"), [service("240.0.0.4")]);
}

#[test]
fn a_service_that_is_no_longer_exported_is_removed() {
    let store = with_stock();
    assert_eq!(names(&store), [""; 0], "it is not exported");
    call_stock(&store);
    let found = || (names(&store), instances(&snapshot(&store).unwrap()).len());
    assert_eq!(found(), (Vec::new(), 0));
    for (to, expected) in [
        ("default", (vec!["stock".to_owned()], 1)),
        ("other", (Vec::new(), 0)),
    ] {
        let (_, reads) = compute(&store, true);
        let mut watch = store.watch(&reads);
        export(&store, to);
        assert!(woken(&mut watch), "{to}");
        assert_eq!(found(), expected, "{to}");
    }
}

#[test]
fn reads_of_another_partition_are_watched() {
    let store = with_stock();
    export(&store, "default");
    call_stock(&store);
    let entries = [
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}),
        json!({"Kind": "service-defaults", "Name": "stock", "Protocol": "grpc"}),
        json!({"Kind": "service-resolver", "Name": "stock", "ConnectTimeout": "3s"}),
        json!({"Kind": "service-resolver", "Name": "stock", "Redirect": {
            "Service": "api", "Partition": "default",
        }}),
        json!({"Kind": "service-intentions", "Name": "stock", "Sources": [
            {"Name": "web", "Partition": "default", "Action": "deny"},
        ]}),
    ];
    for entry in entries {
        let (before, reads) = compute(&store, true);
        let mut watch = store.watch(&reads);
        entry_in_west(&store, entry.clone());
        assert!(woken(&mut watch), "{entry}");
        let (now, _) = compute(&store, true);
        assert!(!same_outcome(&before, &now), "{entry}");
        assert!(same_outcome(&now, &anew(&store)), "{entry}");
    }
    assert_eq!(names(&store), [""; 0], "it is denied");
}

#[test]
fn only_exported_services_have_their_routing() {
    let store = with_stock();
    call_stock(&store);
    for entry in [
        json!({"Kind": "service-defaults", "Name": "stock", "Protocol": "http"}),
        json!({"Kind": "service-resolver", "Name": "stock", "DefaultSubset": "v1", "Subsets": {"v1": {}}}),
    ] {
        entry_in_west(&store, entry);
    }
    let shown = || {
        let snapshot = snapshot(&store).unwrap();
        let chain = sidecar(&snapshot).upstreams[0]
            .resolved
            .chain
            .as_ref()
            .unwrap();
        let targets: Vec<_> = chain.targets.keys().cloned().collect();
        (chain.protocol.to_string(), targets.join(" "))
    };
    let http = |target: &str| ("http".to_owned(), target.to_owned());
    assert_eq!(shown(), http("stock.default.west.dc1"));
    export(&store, "default");
    assert_eq!(shown(), http("v1.stock.default.west.dc1"));
}
