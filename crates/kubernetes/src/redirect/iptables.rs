//! The rules of a redirection for iptables, for kernels without nftables: the input of
//! `iptables-restore --noflush` and `ip6tables-restore --noflush`. Pure.
//!
//! The rules are in two chains of their own, which the input declares and thereby flushes. One rule of
//! a built-in chain jumps to each; it is added if it is missing. Other rules of the table `nat` are
//! kept.

use std::fmt::Write;

use super::config::Redirection;

/// The program that the rules are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

/// A built-in chain of the table `nat`, and our chain that it jumps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// The kernel's chain.
    pub from: &'static str,
    /// Ours.
    pub to: &'static str,
}

/// For connections that originate in the pod.
pub const OUTPUT: Jump = Jump {
    from: "OUTPUT",
    to: "LEGATE_OUTPUT",
};

/// For connections from outside the pod.
pub const PREROUTING: Jump = Jump {
    from: "PREROUTING",
    to: "LEGATE_PREROUTING",
};

/// The rules of one family, and the `missing` jumps to them.
#[must_use]
pub fn script(redirection: &Redirection, family: Family, missing: &[Jump]) -> String {
    let mut rules = Rules::default();
    rules.line("*nat");
    rules.line(&format!(":{} - [0:0]", OUTPUT.to));
    rules.line(&format!(":{} - [0:0]", PREROUTING.to));
    rules.output(redirection, family);
    for port in &redirection.exclude_inbound_ports {
        rules.rule(PREROUTING, &format!("-p tcp --dport {port} -j RETURN"));
    }
    let port = redirection.inbound_port;
    rules.rule(PREROUTING, &format!("-p tcp -j REDIRECT --to-ports {port}"));
    for Jump { from, to } in missing {
        rules.line(&format!("-A {from} -j {to}"));
    }
    rules.line("COMMIT");
    rules.0
}

#[derive(Default)]
struct Rules(String);

impl Rules {
    fn line(&mut self, text: &str) {
        // Writing to a `String` never fails.
        let _ = writeln!(self.0, "{text}");
    }

    fn rule(&mut self, chain: Jump, text: &str) {
        self.line(&format!("-A {} {text}", chain.to));
    }

    fn output(&mut self, redirection: &Redirection, family: Family) {
        let of_family = |is_v4: bool| is_v4 == (family == Family::V4);
        if let Some(dns) = redirection.dns
            && of_family(dns.ip.is_ipv4())
        {
            let ip = dns.ip;
            let (only, to) = match dns.port {
                Some(port) if ip.is_ipv6() => (format!("-d {ip} "), format!("[{ip}]:{port}")),
                Some(port) => (format!("-d {ip} "), format!("{ip}:{port}")),
                None => (String::new(), ip.to_string()),
            };
            for protocol in ["udp", "tcp"] {
                let rule = format!("{only}-p {protocol} --dport 53 -j DNAT --to-destination {to}");
                self.rule(OUTPUT, &rule);
            }
        }
        for uid in redirection
            .exclude_uids
            .iter()
            .chain([&redirection.proxy_uid])
        {
            self.rule(OUTPUT, &format!("-m owner --uid-owner {uid} -j RETURN"));
        }
        for port in &redirection.exclude_outbound_ports {
            self.rule(OUTPUT, &format!("-p tcp --dport {port} -j RETURN"));
        }
        let loopback = match family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        self.rule(OUTPUT, &format!("-d {loopback} -j RETURN"));
        let networks = redirection.exclude_outbound_cidrs.iter();
        for network in networks.filter(|network| of_family(network.addr().is_ipv4())) {
            self.rule(OUTPUT, &format!("-d {network} -j RETURN"));
        }
        let port = redirection.outbound_port;
        self.rule(OUTPUT, &format!("-p tcp -j REDIRECT --to-ports {port}"));
    }
}
