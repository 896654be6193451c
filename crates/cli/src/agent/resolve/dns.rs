//! DNS settings: `domain`, `alt_domain`, `recursors` and `dns_config`.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use legate_server::{DnsDomains, DnsSettings, DnsSoa, RecursorStrategy, ServiceTtls};

use super::super::config::{Settings, Soa, time};
use super::super::sockaddr;

/// The default port of recursors.
const PORT: u16 = 53;

/// The maximum number of recursors.
const MAX_RECURSORS: usize = 16;

/// The domains of DNS names.
///
/// # Errors
/// Names the key.
pub(super) fn domains(settings: &Settings) -> anyhow::Result<DnsDomains> {
    let set = |domain: &Option<String>| domain.clone().filter(|domain| !domain.is_empty());
    let domain = set(&settings.domain).unwrap_or_else(|| "consul".to_owned());
    let domains = DnsDomains::new(&domain, None).context("domain")?;
    match set(&settings.alt_domain) {
        None => Ok(domains),
        Some(other) => DnsDomains::new(&domain, Some(&other)).context("alt_domain"),
    }
}

/// # Errors
/// Names the key.
pub(super) fn settings(settings: &Settings) -> anyhow::Result<DnsSettings> {
    let own = settings.dns_config.clone().unwrap_or_default();
    let default = DnsSettings::default();
    let duration =
        |key: &str, text: Option<String>| time(&format!("dns_config.{key}"), text.as_deref());
    let mut service_ttl = Vec::new();
    for (service, text) in own.service_ttl.unwrap_or_default() {
        let ttl = duration(&format!("service_ttl.{service}"), Some(text))?;
        service_ttl.push((service, ttl.unwrap_or_default()));
    }
    let strategy = own.recursor_strategy.unwrap_or_default();
    let recursor_strategy = match strategy.as_str() {
        "" | "sequential" => RecursorStrategy::Sequential,
        "random" => RecursorStrategy::Random,
        _ => bail!("dns_config.recursor_strategy is {strategy:?}: it must be sequential or random"),
    };
    let is_on = |value: Option<bool>, default: bool| value.unwrap_or(default);
    Ok(DnsSettings {
        only_passing: is_on(own.only_passing, default.only_passing),
        node_ttl: duration("node_ttl", own.node_ttl)?.unwrap_or(default.node_ttl),
        service_ttl: ServiceTtls::new(service_ttl),
        soa: soa(own.soa.unwrap_or_default()),
        udp_answer_limit: count("udp_answer_limit", own.udp_answer_limit)?
            .unwrap_or(default.udp_answer_limit),
        a_record_limit: count("a_record_limit", own.a_record_limit)?
            .unwrap_or(default.a_record_limit),
        enable_truncate: is_on(own.enable_truncate, default.enable_truncate),
        disable_compression: is_on(own.disable_compression, default.disable_compression),
        node_meta_txt: is_on(own.enable_additional_node_meta_txt, default.node_meta_txt),
        prefer_namespace: is_on(own.prefer_namespace, default.prefer_namespace),
        recursors: recursors(settings.recursors.as_deref().unwrap_or_default())?,
        recursor_strategy,
        recursor_timeout: duration("recursor_timeout", own.recursor_timeout)?
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(default.recursor_timeout),
    })
}

fn soa(own: Soa) -> DnsSoa {
    let default = DnsSoa::default();
    DnsSoa {
        refresh: own.refresh.unwrap_or(default.refresh),
        retry: own.retry.unwrap_or(default.retry),
        expire: own.expire.unwrap_or(default.expire),
        min_ttl: own.min_ttl.unwrap_or(default.min_ttl),
    }
}

fn count(key: &str, count: Option<i64>) -> anyhow::Result<Option<usize>> {
    let checked = |count: i64| {
        usize::try_from(count).ok().with_context(|| {
            format!("dns_config.{key} cannot be {count}. Must be greater than or equal to zero")
        })
    };
    count.map(checked).transpose()
}

/// Parses addresses with or without a port.
fn recursors(list: &[String]) -> anyhow::Result<Vec<SocketAddr>> {
    if list.len() > MAX_RECURSORS {
        bail!("recursors: {} exceed {MAX_RECURSORS}", list.len());
    }
    let mut all = Vec::new();
    for text in list.iter().map(|text| text.trim()) {
        if let Ok(address) = text.parse() {
            all.push(address);
            continue;
        }
        let ips: Vec<IpAddr> = sockaddr::resolve_all(text).with_context(|| {
            format!("recursors: {text:?} must be an IP address with an optional port")
        })?;
        all.extend(ips.into_iter().map(|ip| SocketAddr::new(ip, PORT)));
    }
    Ok(all)
}
