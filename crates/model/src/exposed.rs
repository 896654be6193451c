//! Paths that a proxy exposes for the health checks of its application (`Proxy.Expose.Checks`). The
//! agent allocates a port to each such check ([`HealthCheck::exposed_port`]) and sends the check's
//! requests there. The proxy listens on that port and forwards to the application.

use crate::check::{CheckDefinition, HealthCheck};
use crate::proxy::ExposePath;

/// Path of gRPC's health service.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";

impl HealthCheck {
    /// The path that the proxy exposes for this check. `None` if the check has no exposed port or
    /// cannot be exposed (see [`CheckDefinition::exposable_path`]).
    pub fn exposed_path(&self) -> Option<ExposePath> {
        let path = self.definition.exposable_path()?;
        (self.exposed_port != 0).then_some(ExposePath {
            listener_port: self.exposed_port,
            ..path
        })
    }
}

impl CheckDefinition {
    /// The exposed path for HTTP and gRPC checks whose target has a port, without the listener's
    /// port: path, application port and protocol. `None` for other checks, and for checks with TLS,
    /// because the proxy forwards in plaintext.
    pub fn exposable_path(&self) -> Option<ExposePath> {
        let (path, port, protocol) = if !self.http.is_empty() {
            let (port, path) = http_target(&self.http)?;
            (path, port, "http")
        } else if !self.grpc.is_empty() && !self.grpc_use_tls {
            let host = self.grpc.split('/').next()?;
            (GRPC_HEALTH.to_owned(), port_of(host)?, "http2")
        } else {
            return None;
        };
        Some(ExposePath {
            listener_port: 0,
            path,
            local_path_port: port,
            protocol: protocol.to_owned(),
            parsed_from_check: true,
        })
    }
}

/// Port and path of an `http://` URL, without the query.
fn http_target(url: &str) -> Option<(u16, String)> {
    let rest = url.strip_prefix("http://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let path = if path.is_empty() { "/" } else { path };
    let host = authority.rsplit('@').next().unwrap_or(authority);
    Some((port_of(host)?, path.to_owned()))
}

/// The port of `host:port`; IPv6 hosts are in brackets.
fn port_of(host: &str) -> Option<u16> {
    let (_, port) = host.rsplit_once(':')?;
    port.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(url: &str) -> Option<(u16, String)> {
        let definition = CheckDefinition {
            http: url.to_owned(),
            ..CheckDefinition::default()
        };
        let path = definition.exposable_path()?;
        assert_eq!(path.protocol, "http");
        Some((path.local_path_port, path.path))
    }

    #[test]
    fn http_checks_have_a_path_and_a_port() {
        let is = |url, port, path: &str| assert_eq!(http(url), Some((port, path.to_owned())));
        is("http://127.0.0.1:8080/health?full=1", 8080, "/health");
        is("http://localhost:9000", 9000, "/");
        is("http://[::1]:9000?x", 9000, "/");
        is("http://user:pw@localhost:81/a/b", 81, "/a/b");
        assert_eq!(http("http://localhost/health"), None);
        assert_eq!(http("https://localhost:8443/health"), None);
        assert_eq!(http("http://[::1]/"), None);
    }

    #[test]
    fn grpc_checks_use_the_health_service() {
        let definition = |tls| CheckDefinition {
            grpc: "127.0.0.1:9090/shop".to_owned(),
            grpc_use_tls: tls,
            ..CheckDefinition::default()
        };
        let path = definition(false).exposable_path().unwrap();
        assert_eq!(path.path, GRPC_HEALTH);
        assert_eq!((path.local_path_port, &*path.protocol), (9090, "http2"));
        assert!(path.parsed_from_check);
        assert_eq!(definition(true).exposable_path(), None);
    }

    #[test]
    fn a_check_is_exposed_if_it_has_a_port() {
        let mut check = HealthCheck {
            definition: CheckDefinition {
                http: "http://127.0.0.1:8080/health".to_owned(),
                ..CheckDefinition::default()
            },
            ..HealthCheck::default()
        };
        assert_eq!(check.exposed_path(), None);
        check.exposed_port = 21500;
        assert_eq!(check.exposed_path().unwrap().listener_port, 21500);
    }
}
