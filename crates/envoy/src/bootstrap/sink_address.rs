//! The address of a statsd sink, parsed from the user's text: `udp://IP:PORT`, `unix:///PATH`, or a
//! reference to an environment variable. The caller supplies the values of variables.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde_json::Value;

use super::endpoint::{pipe, socket_address};

/// The only variable that is expanded within a text.
const HOST_IP: &str = "HOST_IP";

/// Address of a sink for statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkAddress {
    /// UDP.
    Udp(SocketAddr),
    /// A unix datagram socket.
    Unix(PathBuf),
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl SinkAddress {
    /// The address in the form of the bootstrap document.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Udp(address) => socket_address(*address),
            Self::Unix(path) => pipe(path),
        }
    }

    /// Parses the user's text, with variables expanded.
    ///
    /// # Errors
    /// The reason why it is not an address.
    pub(super) fn read(
        url: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let value = match url.strip_prefix('$').filter(|name| name.len() > 1) {
            Some(name) => variable(name).filter(|value| !value.is_empty()).ok_or_else(|| {
                format!(
                    "{url:?} refers to the environment variable {name:?} as a whole, which is not set; within an \
                     address only ${{{HOST_IP}}} is expanded"
                )
            })?,
            None => expand(url, variable),
        };
        Self::parse(&value).map_err(|reason| format!("{value:?} {reason}"))
    }

    /// A warning about an address that is nevertheless usable.
    pub(super) fn warning(&self) -> Option<String> {
        let text = self.to_string();
        text.contains("${").then(|| {
            format!(
                "{text:?} contains a reference to a variable, because only ${{{HOST_IP}}} is expanded"
            )
        })
    }

    fn parse(value: &str) -> Result<Self, String> {
        let (scheme, rest) = value
            .split_once("://")
            .ok_or("has no protocol: write udp://IP:PORT or unix:///PATH")?;
        match scheme {
            "udp" => udp(rest).map(Self::Udp),
            "unix" if rest.starts_with('/') => Ok(Self::Unix(rest.into())),
            "unix" => Err("names no absolute path: write unix:///path/to/socket".to_owned()),
            _ => Err(format!(
                "has the unsupported protocol {scheme:?}: write udp://IP:PORT or unix:///PATH"
            )),
        }
    }
}

fn udp(authority: &str) -> Result<SocketAddr, String> {
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = authority
        .rsplit_once(':')
        .ok_or("has no port: write udp://IP:PORT")?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let port = port
        .parse()
        .map_err(|_| format!("has the invalid port {port:?}"))?;
    let ip: IpAddr = host.parse().map_err(|_| {
        format!(
            "needs an IP address instead of {host:?}, because Envoy does not resolve names here"
        )
    })?;
    Ok(SocketAddr::new(ip, port))
}

/// Expands `$HOST_IP` and `${HOST_IP}`. Other references are kept, in braces.
fn expand(url: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let (mut expanded, mut rest) = (String::new(), url);
    while let Some((before, after)) = rest.split_once('$') {
        let braced = after
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'));
        let (name, next) = braced.unwrap_or_else(|| {
            let is_of_name =
                |character: char| character.is_ascii_alphanumeric() || character == '_';
            let end = after.find(|character| !is_of_name(character));
            after.split_at(end.unwrap_or(after.len()))
        });
        expanded += before;
        match name {
            "" => expanded.push('$'),
            HOST_IP => expanded += &variable(HOST_IP).unwrap_or_default(),
            other => expanded += &format!("${{{other}}}"),
        }
        rest = next;
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "STATSD_URL" => Some("udp://10.0.0.9:9125".to_owned()),
            "DSD" => Some("unix:///run/dsd.socket".to_owned()),
            "INDIRECT" => Some("udp://${HOST_IP}:1".to_owned()),
            "EMPTY" => Some(String::new()),
            "HOST_IP" => Some("10.0.0.7".to_owned()),
            _ => None,
        }
    }

    fn address(url: &str) -> Result<String, String> {
        SinkAddress::read(url, &variable).map(|address| address.to_value().to_string())
    }

    #[test]
    fn sink_addresses_take_udp_unix_and_variables() {
        let socket = |ip: &str, port: u16| {
            Ok(format!(
                r#"{{"socket_address":{{"address":"{ip}","port_value":{port}}}}}"#
            ))
        };
        let pipe = |path: &str| Ok(format!(r#"{{"pipe":{{"path":"{path}"}}}}"#));
        for (url, expected) in [
            ("udp://127.0.0.1:8125", socket("127.0.0.1", 8125)),
            ("udp://127.0.0.1:8125/ignored", socket("127.0.0.1", 8125)),
            ("udp://[::1]:8125", socket("::1", 8125)),
            ("$STATSD_URL", socket("10.0.0.9", 9125)),
            ("$DSD", pipe("/run/dsd.socket")),
            ("udp://$HOST_IP:8125", socket("10.0.0.7", 8125)),
            ("udp://${HOST_IP}:8125", socket("10.0.0.7", 8125)),
            ("unix:///run/statsd", pipe("/run/statsd")),
            (
                "unix:///run/$HOST_IP/${HOST_IP}",
                pipe("/run/10.0.0.7/10.0.0.7"),
            ),
            ("unix:///run/$POD-$/x", pipe("/run/${POD}-$/x")),
        ] {
            assert_eq!(address(url), expected, "{url}");
        }
    }

    #[test]
    fn unusable_sink_addresses_name_the_reason() {
        for (url, reason) in [
            ("tcp://127.0.0.1:1", "unsupported protocol \"tcp\""),
            ("127.0.0.1:1", "has no protocol"),
            ("udp://127.0.0.1", "has no port"),
            ("udp://127.0.0.1:x", "invalid port"),
            ("udp://127.0.0.1:65536", "invalid port"),
            ("udp://:8125", "needs an IP address"),
            ("udp://statsd.local:8125", "does not resolve names"),
            ("udp://${OTHER}:8125", "does not resolve names"),
            ("udp://$HOST_IPS:8125", "does not resolve names"),
            // `$NAME` is a whole address; its value is not expanded again.
            ("$NOT_SET", "environment variable \"NOT_SET\""),
            ("$EMPTY", "environment variable \"EMPTY\""),
            ("${HOST_IP}:8125", "environment variable \"{HOST_IP}:8125\""),
            ("$INDIRECT", "does not resolve names"),
            ("$X", "has no protocol"),
            ("unix://", "no absolute path"),
            ("unix://run/statsd", "no absolute path"),
        ] {
            let error = address(url).unwrap_err();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
