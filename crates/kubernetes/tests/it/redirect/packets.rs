//! Where connections of a redirected pod arrive. Each test covers nftables and iptables.

use std::io::ErrorKind;

use super::pod::{APPLICATION, Arrival, Method, Pod, SIDECAR, Side, possible};

const CONFIG: &str = r#"{"ProxyUserID": "5995", "ProxyInboundPort": 20000,
    "ExcludeInboundPorts": ["20200"], "ExcludeOutboundPorts": ["3306"],
    "ExcludeOutboundCIDRs": ["10.98.0.0/16", "fd98::/16"], "ExcludeUIDs": ["5996"],
    "ConsulDNSIP": "127.0.0.1", "ConsulDNSPort": 8600}"#;

/// A namespace's setting that disables IPv6.
const NO_IPV6: &str = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";

fn arrival(at: &str, addressed_to: &str) -> Arrival {
    Arrival {
        at: at.parse().expect("it is an address"),
        addressed_to: addressed_to.parse().expect("it is an address"),
    }
}

#[test]
fn outbound_connections_reach_the_sidecar_with_their_original_destination() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let v4 = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let v6 = pod.listen(Side::Pod, SIDECAR, "[::1]:15001");
        // 10.99.0.77 does not exist, and 240.0.0.1 is a virtual address of the mesh.
        for to in [
            "10.99.0.1:80",
            "10.99.0.77:80",
            "240.0.0.1:443",
            "10.99.0.1:53",
        ] {
            for user in [APPLICATION, 0] {
                let reached = pod.connect(Side::Pod, user, to, &[&v4, &v6]);
                let reached = reached.expect("the sidecar accepts");
                assert_eq!(reached, arrival("127.0.0.1:15001", to), "{method:?}");
            }
        }
        for to in ["[fd99::1]:80", "[2001:db8::1]:443"] {
            let reached = pod.connect(Side::Pod, APPLICATION, to, &[&v4, &v6]);
            let reached = reached.expect("the sidecar accepts");
            assert_eq!(reached, arrival("[::1]:15001", to), "{method:?}");
        }
    }
}

#[test]
fn inbound_connections_reach_the_sidecar_with_their_original_destination() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let v4 = pod.listen(Side::Pod, SIDECAR, "10.99.0.2:20000");
        let v6 = pod.listen(Side::Pod, SIDECAR, "[fd99::2]:20000");
        let application = pod.listen(Side::Pod, APPLICATION, "10.99.0.2:8080");
        let listeners = [&v4, &v6, &application];
        for (to, at) in [
            ("10.99.0.2:8080", "10.99.0.2:20000"),
            ("10.99.0.2:20000", "10.99.0.2:20000"),
            ("[fd99::2]:8080", "[fd99::2]:20000"),
        ] {
            let reached = pod.connect(Side::Peer, 0, to, &listeners);
            let reached = reached.expect("the sidecar accepts");
            assert_eq!(reached, arrival(at, to), "{method:?}");
        }
    }
}

#[test]
fn a_sidecar_on_one_ip_family_is_not_bypassed_by_the_other() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let _sidecar = pod.listen(Side::Pod, SIDECAR, "0.0.0.0:20000");
        let application = pod.listen(Side::Pod, APPLICATION, "[::]:8080");
        let reached = pod.connect(Side::Peer, 0, "[fd99::2]:8080", &[&application]);
        let error = reached.expect_err("nobody listens on the sidecar's port");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{method:?}");
    }
}

#[test]
fn excluded_connections_are_not_redirected() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let sidecar = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let addresses = [
            "10.99.0.1:80",
            "[fd99::1]:80",
            "10.99.0.1:3306",
            "[fd99::1]:3306",
            "10.98.0.1:80",
            "[fd98::1]:80",
        ];
        let peers = addresses.map(|address| pod.listen(Side::Peer, 0, address));
        let listeners: Vec<_> = peers.iter().chain([&sidecar]).collect();
        for (user, to) in [
            // The sidecar, and an excluded user.
            (SIDECAR, "10.99.0.1:80"),
            (SIDECAR, "[fd99::1]:80"),
            (5996, "10.99.0.1:80"),
            (5996, "[fd99::1]:80"),
            // An excluded port.
            (APPLICATION, "10.99.0.1:3306"),
            (APPLICATION, "[fd99::1]:3306"),
            // An excluded network.
            (APPLICATION, "10.98.0.1:80"),
            (APPLICATION, "[fd98::1]:80"),
        ] {
            let reached = pod.connect(Side::Pod, user, to, &listeners);
            let reached = reached.expect("the peer accepts");
            assert_eq!(reached, arrival(to, to), "{method:?} as {user}");
        }
        let inbound = pod.listen(Side::Pod, SIDECAR, "0.0.0.0:20000");
        let metrics = pod.listen(Side::Pod, SIDECAR, "10.99.0.2:20200");
        let reached = pod.connect(Side::Peer, 0, "10.99.0.2:20200", &[&inbound, &metrics]);
        let to = "10.99.0.2:20200";
        assert_eq!(reached.expect("it is open"), arrival(to, to), "{method:?}");
    }
}

#[test]
fn connections_within_the_pod_by_loopback_are_left_alone() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let outbound = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let inbound = pod.listen(Side::Pod, SIDECAR, "0.0.0.0:20000");
        for to in ["127.0.0.1:8080", "127.8.8.8:8080", "[::1]:8080"] {
            let application = pod.listen(Side::Pod, APPLICATION, to);
            let listeners = [&outbound, &inbound, &application];
            let reached = pod.connect(Side::Pod, APPLICATION, to, &listeners);
            assert_eq!(reached.expect("it is open"), arrival(to, to), "{method:?}");
        }
    }
}

#[test]
fn a_pod_reaches_its_own_address_through_the_outbound_port() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let outbound = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let inbound = pod.listen(Side::Pod, SIDECAR, "0.0.0.0:20000");
        let application = pod.listen(Side::Pod, APPLICATION, "10.99.0.2:8080");
        let listeners = [&outbound, &inbound, &application];
        let to = "10.99.0.2:8080";
        let first = pod.connect(Side::Pod, APPLICATION, to, &listeners);
        assert_eq!(
            first.expect("it is open"),
            arrival("127.0.0.1:15001", to),
            "{method:?}"
        );
        // Connections of the sidecar are not redirected again.
        let then = pod.connect(Side::Pod, SIDECAR, to, &listeners);
        assert_eq!(then.expect("it is open"), arrival(to, to), "{method:?}");
    }
}

#[test]
fn dns_queries_reach_the_sidecar_by_tcp_and_udp() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let server = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:8600");
        let outbound = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let datagrams = pod.udp(Side::Pod, SIDECAR, "127.0.0.1:8600");
        // The sidecar and excluded users have the same resolv.conf.
        for user in [APPLICATION, SIDECAR, 5996] {
            let to = "127.0.0.1:53";
            let reached = pod.connect(Side::Pod, user, to, &[&server, &outbound]);
            assert_eq!(
                reached.expect("it is open"),
                arrival("127.0.0.1:8600", to),
                "{method:?}"
            );

            let client = pod.udp(Side::Pod, user, "127.0.0.1:0");
            // Only responses from the queried address are received.
            client.connect(to).expect("datagrams need no listener");
            client.send(b"query").expect("it is sent");
            let mut buffer = [0; 16];
            let (length, from) = datagrams.recv_from(&mut buffer).expect("it arrives");
            assert_eq!(&buffer[..length], b"query");
            datagrams.send_to(b"answer", from).expect("it is sent");
            let length = client.recv(&mut buffer).expect("it arrives");
            assert_eq!(&buffer[..length], b"answer");
        }
        // Queries to other servers are redirected to the outbound port over TCP, and sent directly
        // over UDP.
        let peer = pod.udp(Side::Peer, 0, "10.99.0.1:53");
        let client = pod.udp(Side::Pod, APPLICATION, "10.99.0.2:0");
        client
            .send_to(b"query", "10.99.0.1:53")
            .expect("it is sent");
        peer.recv(&mut [0; 16]).expect("it arrives");
    }
}

#[test]
fn dns_without_a_port_takes_all_queries() {
    if !possible() {
        return;
    }
    let config = r#"{"ProxyUserID": 5995, "ProxyInboundPort": 20000, "ConsulDNSIP": "10.99.0.1"}"#;
    for method in Method::BOTH {
        let pod = Pod::redirected(method, config);
        let outbound = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let server = pod.listen(Side::Peer, 0, "10.99.0.1:53");
        let to = "192.0.2.1:53";
        let reached = pod.connect(Side::Pod, APPLICATION, to, &[&outbound, &server]);
        let at = "10.99.0.1:53";
        assert_eq!(reached.expect("it is open"), arrival(at, at), "{method:?}");
    }
}

#[test]
fn dns_over_ipv6() {
    if !possible() {
        return;
    }
    let config = r#"{"ProxyUserID": 5995, "ProxyInboundPort": 20000, "ConsulDNSIP": "::1",
        "ConsulDNSPort": 8600}"#;
    for method in Method::BOTH {
        let pod = Pod::redirected(method, config);
        let server = pod.listen(Side::Pod, SIDECAR, "[::1]:8600");
        let to = "[::1]:53";
        let reached = pod.connect(Side::Pod, APPLICATION, to, &[&server]);
        assert_eq!(
            reached.expect("it is open"),
            arrival("[::1]:8600", to),
            "{method:?}"
        );
    }
}

#[test]
fn running_again_leaves_the_same_rules_and_those_of_others() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::new();
        pod.must(&["nft", "add table inet others"]);
        pod.must(&[
            "iptables-legacy",
            "-t",
            "nat",
            "-A",
            "OUTPUT",
            "-d",
            "192.0.2.9",
            "-j",
            "RETURN",
        ]);
        let others = pod.rules();
        assert!(pod.redirect(method, CONFIG).status.success());
        let once = pod.rules();
        assert!(pod.redirect(method, CONFIG).status.success());
        assert_eq!(pod.rules(), once, "{method:?}");
        assert_ne!(once, others);
        for line in others.lines() {
            assert!(once.contains(line), "{line} in {once}");
        }
        // Another configuration replaces the first one.
        let least = r#"{"ProxyUserID": 7, "ProxyInboundPort": 20001}"#;
        assert!(pod.redirect(method, least).status.success());
        let after = pod.rules();
        assert!(
            after.contains("20001") && !after.contains("5995"),
            "{method:?}: {after}"
        );
    }
}

#[test]
fn a_refused_configuration_changes_nothing() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::redirected(method, CONFIG);
        let before = pod.rules();
        let output = pod.redirect(method, &CONFIG.replace("3306", "0"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = "CONSUL_REDIRECT_TRAFFIC_CONFIG is invalid, nothing was changed: \
                        ExcludeOutboundPorts: \"0\" is not a port from 1 to 65535";
        assert!(text.contains(expected), "{text}");
        assert_eq!(pod.rules(), before, "{method:?}");
    }
}

#[test]
fn missing_capabilities_are_named_and_nothing_is_changed() {
    if !possible() {
        return;
    }
    let pod = Pod::new();
    let before = pod.rules();
    for (method, capabilities) in [
        (Method::Nftables, "-all"),
        // iptables requires more than nftables.
        (Method::Iptables, "+net_admin"),
    ] {
        let output = pod.redirect_with(method, capabilities, CONFIG);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = "The container needs the capability NET_ADMIN";
        assert!(
            text.contains(expected) && text.contains("NET_RAW"),
            "{text}"
        );
        assert_eq!(pod.rules(), before, "{method:?}");
    }
}

#[test]
fn a_pod_without_ipv6_is_redirected() {
    if !possible() {
        return;
    }
    for method in Method::BOTH {
        let pod = Pod::new();
        pod.must(&["sh", "-c", NO_IPV6]);
        let output = pod.redirect(method, CONFIG);
        assert!(output.status.success(), "{method:?}: {output:?}");
        let sidecar = pod.listen(Side::Pod, SIDECAR, "127.0.0.1:15001");
        let to = "10.99.0.1:80";
        let reached = pod.connect(Side::Pod, APPLICATION, to, &[&sidecar]);
        assert_eq!(
            reached.expect("it is open"),
            arrival("127.0.0.1:15001", to),
            "{method:?}"
        );
    }
}
