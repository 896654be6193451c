//! The configuration of a redirection, parsed from JSON and validated. Pure, independent of the kernel.
//!
//! Field names, and which values are strings, are those of consul-k8s (`sdk/iptables.Config` in Go,
//! whose JSON has `null` for an empty list and 0 for an unset port). Numbers and uids are accepted as
//! strings and as numbers. Unknown fields are refused, so that no exclusion is lost by a typing error.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use serde_json::{Map, Value};

/// The default port of captured outbound traffic, as in Consul.
pub const DEFAULT_OUTBOUND_PORT: u16 = 15001;

/// The traffic to redirect, with its exclusions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// The user of the sidecar, whose connections are not redirected.
    pub proxy_uid: u32,
    /// The sidecar's port for inbound connections.
    pub inbound_port: u16,
    /// The sidecar's port for outbound connections; 15001 by default.
    pub outbound_port: u16,
    /// Inbound ports that are not redirected.
    pub exclude_inbound_ports: BTreeSet<u16>,
    /// Outbound ports that are not redirected.
    pub exclude_outbound_ports: BTreeSet<u16>,
    /// Destination networks that are not redirected, without overlaps, sorted.
    pub exclude_outbound_cidrs: Vec<IpNet>,
    /// Other users whose connections are not redirected.
    pub exclude_uids: BTreeSet<u32>,
    /// The destination of DNS queries; `None` leaves them alone.
    pub dns: Option<Dns>,
}

/// Redirection of DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dns {
    /// The address of the DNS server.
    pub ip: IpAddr,
    /// With a port, queries to port 53 of `ip` are redirected to this port of it. Without, all queries
    /// to port 53 of any address are redirected to port 53 of `ip`.
    pub port: Option<u16>,
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Not a JSON object.
    #[error("it is not a JSON object: {0}")]
    NotAnObject(String),
    /// An unknown field.
    #[error("{0}: unknown field")]
    Unknown(String),
    /// A required field is missing.
    #[error("{0}: it must be set")]
    Missing(&'static str),
    /// A field with an invalid value.
    #[error("{field}: {value} is not {expected}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The value as JSON.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
}

const FIELDS: [&str; 11] = [
    "ProxyUserID",
    "ProxyInboundPort",
    "ProxyOutboundPort",
    "ExcludeInboundPorts",
    "ExcludeOutboundPorts",
    "ExcludeOutboundCIDRs",
    "ExcludeUIDs",
    "ConsulDNSIP",
    "ConsulDNSPort",
    "NetNS",
    // A field of Go's struct that is always null.
    "IptablesProvider",
];

impl Redirection {
    /// Parses and validates a whole configuration.
    ///
    /// # Errors
    ///
    /// The first missing, unknown or invalid field, by name.
    pub fn parse(json: &str) -> Result<Redirection, ConfigError> {
        let document: Map<String, Value> = serde_json::from_str(json)
            .map_err(|error| ConfigError::NotAnObject(error.to_string()))?;
        if let Some(name) = document
            .keys()
            .find(|name| !FIELDS.contains(&name.as_str()))
        {
            return Err(ConfigError::Unknown(name.clone()));
        }
        let document = Document(document);
        document.nothing(
            "NetNS",
            "empty: it always applies to the network namespace of this program",
        )?;
        document.nothing("IptablesProvider", "null")?;
        let inbound_port = document
            .port("ProxyInboundPort")?
            .ok_or(ConfigError::Missing("ProxyInboundPort"))?;
        let outbound_port = document.port("ProxyOutboundPort")?;
        let outbound_port = outbound_port.unwrap_or(DEFAULT_OUTBOUND_PORT);
        if outbound_port == inbound_port {
            let expected = "another port than ProxyInboundPort";
            let value = Value::from(outbound_port);
            return Err(invalid("ProxyOutboundPort", &value, expected));
        }
        let cidrs = document.list("ExcludeOutboundCIDRs", CIDR, cidr)?;
        Ok(Redirection {
            proxy_uid: document
                .one("ProxyUserID", UID, uid)?
                .ok_or(ConfigError::Missing("ProxyUserID"))?,
            inbound_port,
            outbound_port,
            exclude_inbound_ports: document.ports("ExcludeInboundPorts")?,
            exclude_outbound_ports: document.ports("ExcludeOutboundPorts")?,
            exclude_outbound_cidrs: IpNet::aggregate(&cidrs),
            exclude_uids: document
                .list("ExcludeUIDs", UID, uid)?
                .into_iter()
                .collect(),
            dns: document.dns()?,
        })
    }
}

const PORT: &str = "a port from 1 to 65535";
const UID: &str = "the number of a user, from 0 to 4294967294";
const CIDR: &str = "a network such as 10.0.0.0/8 or fd00::/8, or an address";
const DNS_IP: &str = "the address of a DNS server";

struct Document(Map<String, Value>);

impl Document {
    /// A field's value; `None` if it is absent, null or an empty string.
    fn get(&self, field: &'static str) -> Option<&Value> {
        let value = self.0.get(field)?;
        (!value.is_null() && value != "").then_some(value)
    }

    fn one<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(invalid(field, value, expected)),
        }
    }

    fn list<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(Vec::new());
        };
        let items = value
            .as_array()
            .ok_or_else(|| invalid(field, value, "a list"))?;
        items
            .iter()
            .map(|item| read(item).ok_or_else(|| invalid(field, item, expected)))
            .collect()
    }

    fn ports(&self, field: &'static str) -> Result<BTreeSet<u16>, ConfigError> {
        Ok(self.list(field, PORT, port)?.into_iter().collect())
    }

    /// A single port; Go writes 0 for an unset one.
    fn port(&self, field: &'static str) -> Result<Option<u16>, ConfigError> {
        if self.get(field) == Some(&Value::from(0)) {
            return Ok(None);
        }
        self.one(field, PORT, port)
    }

    fn dns(&self) -> Result<Option<Dns>, ConfigError> {
        let ip = self.one("ConsulDNSIP", DNS_IP, address)?;
        let port = self.port("ConsulDNSPort")?;
        if ip.is_none() && port.is_none() {
            return Ok(None);
        }
        // Consul's own rules have the same default.
        let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(Some(Dns { ip, port }))
    }

    fn nothing(&self, field: &'static str, expected: &'static str) -> Result<(), ConfigError> {
        match self.get(field) {
            None => Ok(()),
            Some(value) => Err(invalid(field, value, expected)),
        }
    }
}

fn invalid(field: &'static str, value: &Value, expected: &'static str) -> ConfigError {
    ConfigError::Invalid {
        field,
        value: value.to_string(),
        expected,
    }
}

/// An integer, as a number or as decimal digits.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        // `parse` alone would accept a sign.
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

fn port(value: &Value) -> Option<u16> {
    let port = u16::try_from(number(value)?).ok()?;
    (port != 0).then_some(port)
}

/// A uid. The largest number is the kernel's "no user".
fn uid(value: &Value) -> Option<u32> {
    let uid = u32::try_from(number(value)?).ok()?;
    (uid != u32::MAX).then_some(uid)
}

/// A network. Bits after the prefix are cleared, as nft and iptables do.
fn cidr(value: &Value) -> Option<IpNet> {
    let text = value.as_str()?;
    let network: Option<IpNet> = text.parse().ok();
    Some(
        network
            .or_else(|| Some(text.parse::<IpAddr>().ok()?.into()))?
            .trunc(),
    )
}

fn address(value: &Value) -> Option<IpAddr> {
    let ip: IpAddr = value.as_str()?.parse().ok()?;
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}
