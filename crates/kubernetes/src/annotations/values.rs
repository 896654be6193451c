//! Parsers for values of annotations: Go's booleans, ports, lists, quantities.

use std::net::IpAddr;

use super::ProxyKind;

/// A port of a pod, by number or name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// Its number, 1 to 65535.
    Number(u16),
    /// The name of a container's port.
    Name(String),
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Port::Number(number) => number.fmt(f),
            Port::Name(name) => f.write_str(name),
        }
    }
}

/// Why a value cannot be used, to follow the value in a sentence.
pub(super) type Reason = String;

/// Parses the spellings that Go's `strconv.ParseBool` accepts, which consul-k8s uses.
pub(super) fn boolean(text: &str) -> Result<bool, Reason> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("is neither true nor false".to_owned()),
    }
}

pub(super) fn proxy_kind(text: &str) -> Result<ProxyKind, Reason> {
    match text {
        "envoy" => Ok(ProxyKind::Envoy),
        "builtin" => Ok(ProxyKind::Builtin),
        "auto" => Ok(ProxyKind::Auto),
        _ => Err("is not envoy, builtin or auto".to_owned()),
    }
}

pub(super) fn number(text: &str) -> Result<u32, Reason> {
    text.parse()
        .map_err(|_| "is not a number from 0 to 4294967295".to_owned())
}

/// Parses a number that Kubernetes uses for seconds and counts, which are signed there.
pub(super) fn count(text: &str) -> Result<i32, Reason> {
    text.parse()
        .ok()
        .filter(|number| *number >= 0)
        .ok_or_else(|| "is not a number from 0 to 2147483647".to_owned())
}

/// Parses a count greater than zero.
pub(super) fn positive(text: &str) -> Result<i32, Reason> {
    match count(text) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("is not a number from 1 to 2147483647".to_owned()),
    }
}

pub(super) fn text(text: &str) -> Result<String, Reason> {
    Ok(text.to_owned())
}

/// Parses the name of a service in the mesh, which becomes part of ids and DNS names.
pub(crate) fn service(text: &str) -> Result<String, Reason> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if text.contains(',') {
        return Err("names several services; only one service per pod is supported".to_owned());
    }
    if text.len() > 63 || text.is_empty() || !text.bytes().all(allowed) {
        return Err(
            "is not a service name: use letters, digits, - and _, at most 63 characters".to_owned(),
        );
    }
    Ok(text.to_owned())
}

pub(super) fn port(text: &str) -> Result<Port, Reason> {
    let text = text.trim();
    if let Ok(number) = text.parse::<u32>() {
        return match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(Port::Number(number)),
            _ => Err("is not a port from 1 to 65535".to_owned()),
        };
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match !text.is_empty() && text.len() <= 15 && text.bytes().all(allowed) {
        true => Ok(Port::Name(text.to_owned())),
        false => Err("is neither a port number nor the name of a container's port".to_owned()),
    }
}

pub(super) fn ports(text: &str) -> Result<Vec<Port>, Reason> {
    list(text).map(port).collect()
}

pub(super) fn port_number(text: &str) -> Result<u16, Reason> {
    match port(text)? {
        Port::Number(number) => Ok(number),
        Port::Name(_) => Err("is not a port number".to_owned()),
    }
}

pub(super) fn port_numbers(text: &str) -> Result<Vec<u16>, Reason> {
    list(text).map(port_number).collect()
}

/// Parses a port on which an unprivileged process may listen.
pub(super) fn unprivileged_port(text: &str) -> Result<u16, Reason> {
    match port(text) {
        Ok(Port::Number(number)) if number >= 1024 => Ok(number),
        _ => Err("is not a port from 1024 to 65535".to_owned()),
    }
}

pub(super) fn path(text: &str) -> Result<String, Reason> {
    let graphic = text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.starts_with('/') && graphic {
        true => Ok(text.to_owned()),
        false => Err("is not a path: paths begin with / and contain no spaces".to_owned()),
    }
}

/// Parses `10.0.0.0/8` or a single address.
pub(super) fn cidrs(text: &str) -> Result<Vec<String>, Reason> {
    list(text).map(cidr).collect()
}

fn cidr(text: &str) -> Result<String, Reason> {
    let wrong =
        || format!("contains {text:?}, which is neither a CIDR such as 10.0.0.0/8 nor an address");
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match length.map(str::parse::<u8>) {
        None => Ok(format!("{text}/{most}")),
        Some(Ok(length)) if length <= most => Ok(text.to_owned()),
        Some(_) => Err(wrong()),
    }
}

pub(super) fn user_ids(text: &str) -> Result<Vec<u32>, Reason> {
    let user = |text: &str| {
        text.parse()
            .map_err(|_| "is not a list of user ids".to_owned())
    };
    list(text).map(user).collect()
}

/// Parses comma-separated tags; `\,` is a comma within a tag.
pub(super) fn tags(text: &str) -> Result<Vec<String>, Reason> {
    let mut tags = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = tags.len() - 1;
        match letter {
            '\\' if letters.peek() == Some(&',') => tags[last].extend(letters.next()),
            ',' => tags.push(String::new()),
            other => tags[last].push(other),
        }
    }
    let tags = tags.iter().map(|tag| tag.trim().to_owned());
    Ok(tags.filter(|tag| !tag.is_empty()).collect())
}

/// Parses a quantity of Kubernetes: a decimal number with a suffix or an exponent.
pub(super) fn quantity(text: &str) -> Result<String, Reason> {
    const SUFFIXES: [&str; 15] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi",
    ];
    let wrong = || "is not a quantity such as 100m or 50Mi".to_owned();
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let digits: f64 = digits.parse().map_err(|_| wrong())?;
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .is_some_and(|exponent| exponent.parse::<i8>().is_ok());
    match digits.is_finite() && (SUFFIXES.contains(&suffix) || suffix == "Ei" || exponent) {
        true => Ok(text.to_owned()),
        false => Err(wrong()),
    }
}

/// Parses a list of names of containers.
pub(super) fn containers(text: &str) -> Result<Vec<String>, Reason> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let name = |name: &str| match name.len() <= 63 && name.bytes().all(allowed) {
        true => Ok(name.to_owned()),
        false => Err("is not a list of names of containers".to_owned()),
    };
    list(text).map(name).collect()
}

/// Parses a JSON list of objects of the Kubernetes API, which have type `T` and these fields, and
/// returns them with their unknown fields.
pub(super) fn objects<T: serde::de::DeserializeOwned>(
    text: &str,
    required: &[&str],
) -> Result<Vec<serde_json::Value>, Reason> {
    let wrong = |error: serde_json::Error| format!("is not a JSON list of such objects: {error}");
    let objects: Vec<serde_json::Value> = serde_json::from_str(text).map_err(wrong)?;
    for object in &objects {
        T::deserialize(object).map_err(wrong)?;
        let missing = |field: &&&str| object[**field].as_str().is_none_or(str::is_empty);
        if let Some(field) = required.iter().find(missing) {
            return Err(format!("contains an object without {field}"));
        }
    }
    Ok(objects)
}

pub(super) fn object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, Reason> {
    serde_json::from_str(text).map_err(|error| format!("is not a JSON object: {error}"))
}

/// The items between commas, trimmed and without empty ones.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}
