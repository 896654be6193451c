//! A redirection as one nftables table, in the syntax of `nft`. Pure.
//!
//! The family `inet` covers IPv4 and IPv6. The table is added, deleted and written again in one
//! transaction, because `delete` alone would fail without an existing table.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Dns, Redirection};

/// The table's name. Nothing else on the node uses it; deleting it removes the redirection.
pub const TABLE: &str = "legate_redirect";

/// The input of `nft -f -` that replaces the table.
#[must_use]
pub fn script(redirection: &Redirection) -> String {
    let mut rules = String::new();
    let mut line = |depth: usize, text: &str| {
        for part in ["\t".repeat(depth).as_str(), text, "\n"] {
            rules.push_str(part);
        }
    };
    line(0, &format!("add table inet {TABLE}"));
    line(0, &format!("delete table inet {TABLE}"));
    line(0, &format!("table inet {TABLE} {{"));
    line(1, "chain output {");
    line(2, "type nat hook output priority -100; policy accept;");
    for rule in output(redirection) {
        line(2, &rule);
    }
    line(1, "}");
    line(1, "chain prerouting {");
    line(2, "type nat hook prerouting priority -100; policy accept;");
    for rule in prerouting(redirection) {
        line(2, &rule);
    }
    line(1, "}");
    line(0, "}");
    rules
}

/// Rules for connections that originate in the pod.
fn output(redirection: &Redirection) -> Vec<String> {
    let mut rules = Vec::new();
    // Before the exemptions: DNS of excluded users and of the sidecar itself is redirected, too.
    rules.extend(redirection.dns.map(dns));
    rules.push("meta l4proto != tcp return".to_owned());
    let mut uids = redirection.exclude_uids.clone();
    uids.insert(redirection.proxy_uid);
    rules.push(format!("meta skuid {} return", set(&uids)));
    rules.extend(ports(&redirection.exclude_outbound_ports));
    rules.push("ip daddr 127.0.0.0/8 return".to_owned());
    rules.push("ip6 daddr ::1 return".to_owned());
    let networks = &redirection.exclude_outbound_cidrs;
    let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) = networks
        .iter()
        .partition(|network| network.addr().is_ipv4());
    for (family, networks) in [("ip", v4), ("ip6", v6)] {
        if !networks.is_empty() {
            rules.push(format!("{family} daddr {} return", set(networks)));
        }
    }
    let port = redirection.outbound_port;
    rules.push(format!("meta l4proto tcp redirect to :{port}"));
    rules
}

/// Rules for connections from outside the pod. Connections that originate in the pod are handled in
/// `output`, also if they end in the pod.
fn prerouting(redirection: &Redirection) -> Vec<String> {
    let mut rules: Vec<String> = ports(&redirection.exclude_inbound_ports).collect();
    let port = redirection.inbound_port;
    rules.push(format!("meta l4proto tcp redirect to :{port}"));
    rules
}

fn ports(ports: &BTreeSet<u16>) -> impl Iterator<Item = String> {
    let rule = (!ports.is_empty()).then(|| format!("tcp dport {} return", set(ports)));
    rule.into_iter()
}

fn dns(dns: Dns) -> String {
    let ip = dns.ip;
    let family = if ip.is_ipv4() { "ip" } else { "ip6" };
    match dns.port {
        Some(port) => {
            let to = match ip {
                IpAddr::V4(ip) => format!("{ip}:{port}"),
                IpAddr::V6(ip) => format!("[{ip}]:{port}"),
            };
            format!(
                "{family} daddr {ip} meta l4proto {{ tcp, udp }} th dport 53 dnat {family} to {to}"
            )
        }
        None => format!(
            "meta nfproto {} meta l4proto {{ tcp, udp }} th dport 53 dnat {family} to {ip}",
            if ip.is_ipv4() { "ipv4" } else { "ipv6" },
        ),
    }
}

fn set<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        let before = if text.is_empty() { "{ " } else { ", " };
        // Writing to a `String` never fails.
        let _ = write!(text, "{before}{item}");
    }
    text.push_str(" }");
    text
}
