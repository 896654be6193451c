//! Services outside the mesh: what of them cannot be had, whose an address is, and how much they may add.

use std::sync::Arc;

use legate_model::Protocol;
use legate_proxycfg::{Destination, Snapshot};
use serde_json::json;

use crate::support::{instance, made};
use crate::transparent::{captured, outbound, two};

fn destination(name: &str, protocol: Protocol, addresses: &[&str], port: u16) -> Arc<Destination> {
    Arc::new(Destination {
        name: name.to_owned(),
        protocol,
        addresses: addresses.iter().map(|one| (*one).to_owned()).collect(),
        port,
        gateways: Arc::new(vec![instance("10.0.3.1", 8443, &[])].into()),
    })
}

/// A proxy that may call two services in the mesh, and these outside.
fn outside(all: Vec<Arc<Destination>>) -> Snapshot {
    Snapshot {
        destinations: Arc::new(all.into()),
        ..captured(json!({}), two())
    }
}

/// The cluster of an address.
fn cluster(label: &str, service: &str) -> String {
    format!("destination.{label}.{service}.default.dc1.internal.c1.consul")
}

#[test]
fn addresses_of_services_in_the_mesh_stay_with_those() {
    // A cluster IP, a virtual IP and an instance that is dialled directly.
    let taken = ["10.96.0.5", "240.0.0.1", "10.0.2.1", "192.0.2.1"];
    let set = made(&outside(vec![destination(
        "out",
        Protocol::Tcp,
        &taken,
        443,
    )]));
    let listener = outbound(&set).unwrap();
    assert!(listener.contains(&cluster("192-0-2-1", "out")));
    for label in ["10-96-0-5", "240-0-0-1", "10-0-2-1"] {
        assert!(!listener.contains(&cluster(label, "out")), "{label}");
    }
    let expected = taken[..3].iter().map(|ip| {
        format!("{ip}:443 of the destination out is an address of a service in the mesh, to which it leads")
    });
    assert_eq!(set.warnings(), expected.collect::<Vec<_>>());
}

#[test]
fn who_waits_for_a_server_name_waits_no_longer_than_a_second() {
    let by_name = destination("out", Protocol::Tcp, &["out.example"], 5432);
    let listener = outbound(&made(&outside(vec![by_name]))).unwrap();
    assert!(
        listener.contains("continue_on_listener_filters_timeout: true"),
        "{listener}"
    );
    let by_ip = destination("out", Protocol::Tcp, &["192.0.2.1"], 5432);
    let listener = outbound(&made(&outside(vec![by_ip]))).unwrap();
    assert!(!listener.contains("listener_filters_timeout"), "{listener}");
}
