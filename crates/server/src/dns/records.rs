//! Builds DNS records from catalog data. Pure.

use std::net::IpAddr;

use hickory_proto::ProtoError;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record};
use legate_model::{Node, Tenancy};

/// The longest string in a TXT record, in bytes (RFC 1035 §3.3).
const MAX_TEXT: usize = 255;

/// `ttl` is in seconds in all functions of this file.
pub(super) fn record(name: &Name, ttl: u32, data: RData) -> Record {
    Record::from_rdata(name.clone(), ttl, data)
}

pub(super) fn address_record(name: &Name, ttl: u32, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    record(name, ttl, data)
}

pub(super) fn alias_record(name: &Name, ttl: u32, alias: Name) -> Record {
    record(name, ttl, RData::CNAME(CNAME(alias)))
}

/// A node's metadata as TXT records, one per pair, in RFC 1464 format. For keys that begin with `rfc1035-`, the
/// record contains the value only, as in Consul.
pub(super) fn meta_records(name: &Name, ttl: u32, node: &Node) -> Vec<Record> {
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
        record(name, ttl, RData::TXT(TXT::from_bytes(parts)))
    };
    node.meta.iter().map(text).map(record_of).collect()
}

/// A name below a domain.
pub(super) fn name_below(labels: &[&str], domain: &Name) -> Result<Name, ProtoError> {
    Name::from_labels(labels.iter().map(|label| label.as_bytes()))?.append_domain(domain)
}

/// The labels for a location: the datacenter or the peer, and the parts of the tenancy that are not `default`. Nodes have
/// no namespace.
fn place<'a>(tenancy: &'a Tenancy, of_service: bool, datacenter: &'a str) -> Vec<&'a str> {
    let default = Tenancy::default();
    let mut labels = Vec::new();
    if of_service && tenancy.namespace != default.namespace {
        labels.extend([&*tenancy.namespace, "ns"]);
    }
    if tenancy.partition != default.partition {
        labels.extend([&*tenancy.partition, "ap"]);
    }
    if !tenancy.peer.is_empty() {
        labels.extend([&*tenancy.peer, "peer"]);
        return labels;
    }
    labels.push(datacenter);
    if labels.len() > 1 {
        labels.push("dc");
    }
    labels
}

/// The DNS name of a node, whose name may contain dots.
pub(super) fn node_name(
    node: &str,
    tenancy: &Tenancy,
    datacenter: &str,
    domain: &Name,
) -> Result<Name, ProtoError> {
    let mut labels: Vec<&str> = node.split('.').collect();
    labels.push("node");
    labels.extend(place(tenancy, false, datacenter));
    name_below(&labels, domain)
}

/// The DNS name of a service.
pub(super) fn service_name(
    service: &str,
    tenancy: &Tenancy,
    datacenter: &str,
    domain: &Name,
) -> Result<Name, ProtoError> {
    let mut labels = vec![service, "service"];
    labels.extend(place(tenancy, true, datacenter));
    name_below(&labels, domain)
}

/// A DNS name that encodes an address in a datacenter, or of a peer.
pub(super) fn address_name(
    ip: IpAddr,
    datacenter: Option<&str>,
    domain: &Name,
) -> Result<Name, ProtoError> {
    let digits = match ip {
        IpAddr::V4(ip) => format!("{:08x}", ip.to_bits()),
        IpAddr::V6(ip) => format!("{:032x}", ip.to_bits()),
    };
    let labels: Vec<&str> = [&*digits, "addr"].into_iter().chain(datacenter).collect();
    name_below(&labels, domain)
}

/// A host name, fully qualified.
pub(super) fn host_name(host: &str) -> Result<Name, ProtoError> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}
