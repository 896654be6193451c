//! The addresses that a gateway listens on.

use std::collections::BTreeSet;

use legate_model::{Opaque, ServiceInstance};
use legate_proxycfg::opaque;
use serde_json::Value;

/// The address for a gateway that is registered without one.
const ANY: &str = "0.0.0.0";

/// An address of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    /// `default`, the key of a tagged address, or the key in the gateway's settings.
    pub(crate) name: String,
    /// The host, in general an IP address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The addresses of a gateway, ordered by name. As in Consul, the first of several equal ones
/// counts.
pub(crate) fn addresses(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Vec<Address> {
    let config = &instance.proxy.config;
    let mut all = BTreeSet::new();
    if !flag(config, "no_default_bind", warnings) {
        let host = match instance.address.as_str() {
            "" => ANY,
            host => host,
        };
        all.insert(Address {
            name: "default".to_owned(),
            host: host.to_owned(),
            port: instance.port,
        });
    }
    if flag(config, "bind_tagged_addresses", warnings) {
        let tagged = instance.tagged_addresses.iter();
        all.extend(tagged.map(|(name, tagged)| Address {
            name: name.clone(),
            host: tagged.address.clone(),
            port: tagged.port,
        }));
    }
    all.extend(written(config, warnings));
    let mut seen = BTreeSet::new();
    let is_new = |one: &Address| seen.insert((one.host.clone(), one.port));
    all.into_iter().filter(is_new).collect()
}

/// The hosts of a gateway whose ports are those of its listeners, each once.
pub(crate) fn hosts(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let hosts = addresses(instance, warnings).into_iter();
    let hosts = hosts.map(|address| address.host);
    hosts.filter(|host| seen.insert(host.clone())).collect()
}

/// The value of a setting of gateways, by its name or by its older name for mesh gateways.
fn setting<'a>(config: &'a Opaque, name: &str) -> Option<(String, &'a Value)> {
    let names = ["envoy_gateway", "envoy_mesh_gateway"].map(|prefix| format!("{prefix}_{name}"));
    names
        .into_iter()
        .find_map(|key| Some((opaque::lookup(config, &key)?, key)))
        .map(|(value, key)| (key, value))
}

fn flag(config: &Opaque, name: &str, warnings: &mut Vec<String>) -> bool {
    let Some((key, value)) = setting(config, name) else {
        return false;
    };
    match value {
        Value::Bool(is) => *is,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => unusable(&key, value, "true or false", warnings),
        },
        _ => unusable(&key, value, "true or false", warnings),
    }
}

/// A warning about a value that is ignored.
fn unusable<T: Default>(
    key: &str,
    value: &Value,
    wanted: &'static str,
    warnings: &mut Vec<String>,
) -> T {
    let error = opaque::OpaqueError::new(key, value, wanted);
    warnings.push(format!("Proxy.Config: {error}; it is ignored"));
    T::default()
}

/// The addresses in the gateway's settings.
fn written(config: &Opaque, warnings: &mut Vec<String>) -> Vec<Address> {
    let Some((key, value)) = setting(config, "bind_addresses") else {
        return Vec::new();
    };
    let Value::Object(named) = value else {
        return unusable(
            &key,
            value,
            "a map from names to Address and Port",
            warnings,
        );
    };
    let mut found = Vec::new();
    for (name, one) in named {
        let Value::Object(fields) = one else {
            let key = format!("{key}.{name}");
            unusable::<()>(&key, one, "a map with Address and Port", warnings);
            continue;
        };
        let host = opaque::text(fields, "Address").map(Option::unwrap_or_default);
        let port = opaque::count(fields, "Port").map(Option::unwrap_or_default);
        match (host, port.map(u16::try_from)) {
            (Ok(host), Ok(Ok(port))) => found.push(Address {
                name: name.clone(),
                host: host.into_owned(),
                port,
            }),
            _ => unusable::<()>(
                &format!("{key}.{name}"),
                one,
                "an Address with a Port",
                warnings,
            ),
        }
    }
    found
}
