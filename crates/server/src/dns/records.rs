//! Builds records from what the catalog holds. Pure; it knows nothing of questions.

use std::net::IpAddr;

use hickory_proto::ProtoError;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record};
use legate_model::Node;

use super::question::DOMAIN;

/// How long an answer may be kept, in seconds. Consul's default: not at all, the catalog changes
/// at any time.
const TTL: u32 = 0;

/// The longest string in a TXT record, in bytes (RFC 1035 §3.3).
const MAX_TEXT: usize = 255;

pub(super) fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

pub(super) fn address_record(name: &Name, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    record(name, data)
}

pub(super) fn alias_record(name: &Name, alias: Name) -> Record {
    record(name, RData::CNAME(CNAME(alias)))
}

/// A node's metadata, one record a pair, as RFC 1464 spells them. The value of a key that begins
/// with `rfc1035-` stands for itself, as in Consul.
pub(super) fn meta_records(name: &Name, node: &Node) -> Vec<Record> {
    let text = |(key, value): (&String, &String)| {
        if key.to_ascii_lowercase().starts_with("rfc1035-") {
            return value.clone();
        }
        let bare = key.trim_start_matches(' ');
        let inner = bare.trim_end_matches(' ');
        let (before, after) = (key.len() - bare.len(), bare.len() - inner.len());
        format!(
            "{}{}{}={}",
            "` ".repeat(before),
            inner.replace('`', "``").replace('=', "`="),
            "` ".repeat(after),
            value.replace('`', "``")
        )
    };
    let record_of = |text: String| {
        let parts = text.as_bytes().chunks(MAX_TEXT).collect();
        record(name, RData::TXT(TXT::from_bytes(parts)))
    };
    node.meta.iter().map(text).map(record_of).collect()
}

/// A name below the served domain.
pub(super) fn domain_name(labels: &[&str]) -> Result<Name, ProtoError> {
    Name::from_labels(labels.iter().copied().chain([DOMAIN]).map(str::as_bytes))
}

/// The name of a node, which may hold dots.
pub(super) fn node_name(node: &str, datacenter: &str) -> Result<Name, ProtoError> {
    let mut labels: Vec<&str> = node.split('.').collect();
    labels.extend(["node", datacenter]);
    domain_name(&labels)
}

/// A name that spells an address.
pub(super) fn address_name(ip: IpAddr, datacenter: &str) -> Result<Name, ProtoError> {
    let digits = match ip {
        IpAddr::V4(ip) => format!("{:08x}", ip.to_bits()),
        IpAddr::V6(ip) => format!("{:032x}", ip.to_bits()),
    };
    domain_name(&[&digits, "addr", datacenter])
}

/// The name of a host, fully qualified.
pub(super) fn host_name(host: &str) -> Result<Name, ProtoError> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}
