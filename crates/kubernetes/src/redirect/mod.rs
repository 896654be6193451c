//! `legate-k8s redirect`: sends a pod's TCP traffic through its sidecar, and its DNS queries to the
//! sidecar's DNS proxy. It runs once, in an init container of the pod, and changes only the network
//! namespace that it runs in.
//!
//! The configuration is one JSON document ([`config`]), in the form that consul-k8s gives to its own
//! init container and CNI plugin. It is checked as a whole before anything is changed. All rules are
//! in one nftables table ([`nftables`]), which one transaction replaces: the container can run again
//! in the same pod, and at no moment only a part of the rules is in force. Where the kernel has no
//! nftables, the same rules are written for iptables ([`iptables`]), in one transaction for each of
//! IPv4 and IPv6.
//!
//! Both families are always redirected. A connection over IPv6 to a sidecar that listens on IPv4 only
//! is refused; if it were let through, it would pass by the intentions.
//!
//! # Why it calls `nft`
//!
//! The programs `nft` and `iptables-restore` of Debian write the rules ([`apply`]). The crates that
//! speak to nftables by themselves are GPL (`rustables`), need C libraries at build time (`nftnl`), have
//! no expression for address translation (`netlink-packet-netfilter` 0.4), or are a library for all of
//! Linux's networking whose interface is not settled (`nlink` 0.33). An encoder of our own for the kernel's
//! rule expressions would be protocol code that nobody else tests. The image has `iptables` for old
//! kernels anyway. `nft` checks every rule before it sends any, and its input is readable, so that the golden
//! files of the tests are what an operator sees in `nft list ruleset`.
//!
//! # Privileges
//!
//! `nft` takes the capability `NET_ADMIN` and nothing else. `iptables` opens a raw socket, and takes
//! `NET_RAW` as well. Neither writes a file.

pub mod apply;
pub mod config;
pub mod iptables;
pub mod nftables;

use anyhow::Context;

pub use self::config::{ConfigError, Redirection};

/// Settings of `legate-k8s redirect`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to redirect: a JSON document with the fields ProxyUserID, ProxyInboundPort,
    /// ProxyOutboundPort, ExcludeInboundPorts, ExcludeOutboundPorts, ExcludeOutboundCIDRs,
    /// ExcludeUIDs, ConsulDNSIP and ConsulDNSPort
    #[arg(long, env = "CONSUL_REDIRECT_TRAFFIC_CONFIG", value_name = "JSON")]
    pub config: String,
}

/// Redirects the traffic of the network namespace that the process runs in.
///
/// # Errors
///
/// The configuration is refused, in which case nothing was changed; or neither nftables nor iptables
/// takes the rules.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let redirection = Redirection::parse(&options.config)
        .context("CONSUL_REDIRECT_TRAFFIC_CONFIG is refused, and nothing was changed")?;
    let used = apply::apply(&redirection)?;
    tracing::info!(
        rules = %used,
        inbound = redirection.inbound_port,
        outbound = redirection.outbound_port,
        proxy_uid = redirection.proxy_uid,
        "the traffic of this pod is redirected to its sidecar"
    );
    Ok(())
}
