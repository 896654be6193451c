//! Services outside the mesh: failures, conflicts of addresses, and limits.

use std::sync::Arc;

use legate_model::Protocol;
use legate_proxycfg::{Destination, Destinations};
use legate_resources::ResourceSet;
use serde_json::json;

use crate::describe::{one, type_urls};
use crate::support::{Generator, Web, instance, made};
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

/// A proxy that may call two services in the mesh and these services outside.
fn outside(all: Vec<Arc<Destination>>) -> Web {
    Web {
        destinations: Arc::new(Destinations(all)),
        ..captured(json!({}), two())
    }
}

/// The cluster of an address.
fn cluster(label: &str, service: &str) -> String {
    format!("destination.{label}.{service}.default.dc1.internal.c1.consul")
}

/// The routes of all ports.
fn routes(set: &ResourceSet) -> String {
    let routes = set.get(&type_urls()[3]);
    let of_ports = routes.iter().filter(|(name, _)| name.contains("~http"));
    of_ports.map(|(_, routes)| one(routes)).collect()
}

#[test]
fn addresses_of_services_in_the_mesh_take_precedence() {
    // A ClusterIP, a virtual IP and an instance that is dialled directly.
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
        format!("{ip}:443 of the destination out is also an address of a service in the mesh, which is used")
    });
    assert_eq!(set.warnings(), expected.collect::<Vec<_>>());
}

#[test]
fn addresses_are_compared_in_normal_form() {
    let mapped = destination("out", Protocol::Tcp, &["::ffff:203.0.113.7"], 443);
    let listener = outbound(&made(&outside(vec![mapped]))).unwrap();
    assert!(listener.contains("\"203.0.113.7\""), "{listener}");
    let mapped = destination("out", Protocol::Http, &["::ffff:203.0.113.7"], 443);
    let routes = routes(&made(&outside(vec![mapped])));
    assert!(routes.contains("\"203.0.113.7:443\""), "{routes}");
}

#[test]
fn one_address_of_tcp_and_http_is_a_warning() {
    let set = made(&outside(vec![
        destination("a", Protocol::Http, &["192.0.2.1"], 443),
        destination("b", Protocol::Tcp, &["192.0.2.1"], 443),
        destination("c", Protocol::Http, &["192.0.2.1"], 80),
    ]));
    assert_eq!(
        set.warnings(),
        [
            "192.0.2.1:443 of the destination a is also one of another destination, which gets its traffic"
        ]
    );
}

#[test]
fn a_name_too_long_for_envoy_fails_one_cluster() {
    let long = format!("{}.example", "a".repeat(63));
    let service = "b".repeat(150);
    for protocol in [Protocol::Tcp, Protocol::Http] {
        let snapshot = outside(vec![
            destination(&service, protocol, &[&long], 443),
            destination("out", protocol, &["out.example"], 443),
        ]);
        let set = Generator::new().generate(&snapshot, None);
        let [failure] = set.failures() else {
            panic!("{:?}", set.failures());
        };
        let reason = failure.reason.to_string();
        assert!(
            reason.contains("255") && reason.contains(&service),
            "{reason}"
        );
        let own = cluster("out-example", "out");
        assert!(set.get(&type_urls()[0]).contains_key(&own));
        let leads = outbound(&set).unwrap() + &routes(&set);
        assert!(leads.contains(&own), "{leads}");
        assert!(!routes(&set).contains(&long));
        if protocol == Protocol::Tcp {
            // Without a chain, traffic would bypass the gateway. Envoy closes connections to
            // unknown clusters.
            assert!(leads.contains(&format!("\"{long}\"")), "{leads}");
        }
        if protocol == Protocol::Http {
            assert_eq!(
                set.warnings(),
                [format!(
                    "{long}:443 of the destination {service} has no route: its cluster cannot be made"
                )]
            );
        }
    }
}

#[test]
fn a_failed_tcp_cluster_does_not_affect_routes() {
    let long = format!("{}.example", "a".repeat(63));
    let set = Generator::new().generate(
        &outside(vec![
            destination(&"b".repeat(150), Protocol::Tcp, &[&long], 5432),
            destination("out", Protocol::Http, &["out.example"], 80),
        ]),
        None,
    );
    assert_eq!(set.failures().len(), 1, "{:?}", set.failures());
    assert!(routes(&set).contains("out.example:80"));
    assert_eq!(set.warnings(), [""; 0]);
}

#[test]
fn ports_beyond_the_limit_are_omitted() {
    let on = |at: u16| {
        let protocol = [Protocol::Tcp, Protocol::Http][usize::from(at % 2)];
        let host = format!("h{at}.example");
        destination(&format!("out-{at:03}"), protocol, &[&host], 1000 + at)
    };
    let mut all: Vec<_> = (0..66).map(on).collect();
    // On a port within the limit.
    all.push(destination("z", Protocol::Tcp, &["192.0.2.1"], 1000));
    let set = made(&outside(all));
    let listener = outbound(&set).unwrap();
    assert!(listener.contains(&cluster("192-0-2-1", "z")));
    assert!(listener.contains(&cluster("h62-example", "out-062")));
    assert!(!listener.contains(&cluster("h64-example", "out-064")));
    assert_eq!(routes(&set).matches("h65.example").count(), 0);
    assert_eq!(
        set.warnings(),
        [
            "destinations use more than 64 ports, and only the first 64 are served; \
          omitted: out-064 (port 1064), out-065 (port 1065)"
        ]
    );
}

#[test]
fn the_wait_for_a_server_name_is_at_most_a_second() {
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
