//! `legate-k8s redirect`: redirects a pod's TCP traffic to its sidecar, and its DNS queries to the sidecar's
//! DNS proxy. It runs once, in an init container of the pod, and changes only its own network namespace.
//!
//! The configuration is one JSON document ([`config`]), in the format that consul-k8s passes to its own init
//! container and CNI plugin. It is validated completely before anything is changed. All rules are in one
//! nftables table ([`nftables`]), which is replaced in one transaction: the container can run again in the
//! same pod, and the rules are never partially in force. On kernels without nftables, the same rules are
//! applied with iptables ([`iptables`]), in one transaction each for IPv4 and IPv6.
//!
//! Both families are always redirected. A connection over IPv6 to a sidecar that listens on IPv4 only is
//! refused; without the redirection it would bypass the intentions.
//!
//! # Why it calls `nft`
//!
//! Debian's programs `nft` and `iptables-restore` write the rules ([`apply`]). The crates that implement the
//! nftables protocol are GPL (`rustables`), need C libraries at build time (`nftnl`), lack an expression for
//! address translation (`netlink-packet-netfilter` 0.4), or cover all of Linux networking with an unstable
//! interface (`nlink` 0.33). Our own encoder for the kernel's rule expressions would be protocol code without
//! other users. The image has `iptables` for old kernels anyway. `nft` checks every rule before it sends any,
//! and its input is readable, so that the golden files of the tests are what an operator sees in `nft list
//! ruleset`.
//!
//! # Privileges
//!
//! `nft` requires only the capability `NET_ADMIN`. `iptables` opens a raw socket and requires `NET_RAW` as
//! well. Neither writes a file.

pub mod apply;
pub mod config;
pub mod iptables;
pub mod nftables;

use anyhow::Context;

pub use self::config::{ConfigError, Redirection};

/// Options of `legate-k8s redirect`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to redirect: a JSON document with the fields ProxyUserID, ProxyInboundPort,
    /// ProxyOutboundPort, ExcludeInboundPorts, ExcludeOutboundPorts, ExcludeOutboundCIDRs,
    /// ExcludeUIDs, ConsulDNSIP and ConsulDNSPort
    #[arg(long, env = "CONSUL_REDIRECT_TRAFFIC_CONFIG", value_name = "JSON")]
    pub config: String,
}

/// Redirects the traffic of this process's network namespace.
///
/// # Errors
///
/// The configuration is invalid, in which case nothing was changed; or neither nftables nor iptables accepts
/// the rules.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let redirection = Redirection::parse(&options.config)
        .context("CONSUL_REDIRECT_TRAFFIC_CONFIG is invalid, nothing was changed")?;
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
