//! Addresses in settings: literal, or HashiCorp's address templates such as `{{ GetInterfaceIP
//! "eth0" }}`.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, bail};
use nix::ifaddrs::getifaddrs;

/// Resolves a setting to its addresses, separated by spaces.
///
/// # Errors
/// If one is not an address, or a template without a result on this machine.
pub(super) fn resolve_all(text: &str) -> anyhow::Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = match rest.starts_with("{{") {
            true => rest.find("}}").map_or(rest.len(), |at| at + 2),
            false => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        let (one, more) = rest.split_at(end);
        let ip = resolve(one)?;
        if !all.contains(&ip) {
            all.push(ip);
        }
        rest = more.trim_start();
    }
    if all.is_empty() {
        bail!("there is no address in {text:?}");
    }
    Ok(all)
}

/// Resolves a setting to one address.
///
/// # Errors
/// If it is not an address, or a template without exactly one result on this machine.
pub(super) fn resolve(text: &str) -> anyhow::Result<IpAddr> {
    let text = text.trim();
    let Some(template) = text.strip_prefix("{{") else {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        return bare
            .parse()
            .with_context(|| format!("{text:?} is not an IP address; give one address"));
    };
    let inner = template.strip_suffix("}}");
    let inner = inner.with_context(|| format!("the template {text:?} does not end with }}}}"))?;
    let words: Vec<&str> = inner.split_whitespace().collect();
    match words.as_slice() {
        ["GetInterfaceIP", name] => {
            let name = name.trim_matches(['"', '`']);
            only(
                interfaces(|interface, ip| interface == name && !is_link_local(ip))?,
                text,
            )
        }
        ["GetPrivateIP"] => private(),
        ["GetPublicIP"] => only(interfaces(|_, ip| is_public(ip))?, text),
        _ => bail!(
            "the template {text:?} is not supported: use GetInterfaceIP \"NAME\", GetPrivateIP \
             or GetPublicIP, or give an IP address"
        ),
    }
}

/// The only private IPv4 address of this machine.
///
/// # Errors
/// If there is none or more than one.
pub(super) fn private() -> anyhow::Result<IpAddr> {
    let is_private = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.is_private());
    only(
        interfaces(|_, ip| is_private(ip))?,
        "the private IPv4 address",
    )
}

/// Selects the only address; IPv4 is preferred, as in Consul.
fn only(mut found: Vec<IpAddr>, what: &str) -> anyhow::Result<IpAddr> {
    if found.iter().any(IpAddr::is_ipv4) {
        found.retain(IpAddr::is_ipv4);
    }
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => bail!("{what}: this machine has none; give an IP address"),
        several => {
            let all: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!(
                "{what}: this machine has {}; give one of them",
                all.join(" and ")
            )
        }
    }
}

fn interfaces(accept: impl Fn(&str, IpAddr) -> bool) -> anyhow::Result<Vec<IpAddr>> {
    let all = getifaddrs().context("cannot read the addresses of this machine")?;
    let ips = all.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))?;
        accept(&one.interface_name, ip).then_some(ip)
    });
    Ok(ips.collect())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let reserved = ip.is_private() || ip.is_loopback() || ip.is_link_local();
            let shared = u32::from(ip) & 0xffc0_0000 == u32::from(Ipv4Addr::new(100, 64, 0, 0));
            !reserved && !shared && !ip.is_unspecified()
        }
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_templates() {
        let resolve = |text| resolve(text).map_err(|error| format!("{error:#}"));
        assert_eq!(resolve("0.0.0.0"), Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        assert_eq!(resolve("[::1]").map(|ip| ip.is_loopback()), Ok(true));
        let loopback = resolve("{{ GetInterfaceIP \"lo\" }}");
        assert_eq!(loopback, Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        for (text, says) in [
            ("{{ GetInterfaceIP \"none0\" }}", "none0"),
            ("{{ GetAllInterfaces | attr \"x\" }}", "is not supported"),
            ("{{ GetPrivateIP", "}}"),
            ("eth0", "is not an IP address"),
            ("127.0.0.1 ::1", "is not an IP address"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
