//! Backends: what a route's references to them lead to.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_model::ServiceName;
use legate_routes::{Backend, BackendProtocol, Certificate, Target};

use super::lookup::{Lookup, NOT_PERMITTED, Referrer};
use super::policy::Policies;
use super::route::{Route, RouteReport};
use crate::condition::{Problem, UNSUPPORTED};
use crate::kind::{Protocol, RouteKind};
use crate::object::Key;
use crate::types::{BackendReference, CONSUL_GROUP, GROUP};
use crate::world::{Servers, ServicePort};

/// A route at a listener, or at a port of a Service.
#[derive(Clone, Copy)]
pub(super) struct RouteContext<'a> {
    pub(super) lookup: &'a Lookup<'a>,
    pub(super) policies: &'a Policies<'a>,
    pub(super) route: &'a Route<'a>,
    /// The port of the listener.
    pub(super) port: u16,
    /// What it understands; `None` without a listener.
    pub(super) protocol: Option<Protocol>,
    /// What the gateway presents to backends.
    pub(super) presented: Option<&'a Result<Key, Problem>>,
    /// The Service that the route is attached to; `None` for a gateway.
    pub(super) frontend: Option<&'a Key>,
}

/// What is collected while a route is resolved.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) report: RouteReport,
    /// The Services that the route leads to.
    pub(super) services: BTreeSet<Key>,
}

/// What a reference leads to.
enum Backends<'a> {
    /// A service of the mesh.
    InMesh(&'a ServiceName),
    /// A port of a Service.
    Port(Key, &'a ServicePort),
}

const MESH_SERVICE: &str = "MeshService";
const NOT_FOUND: &str = "BackendNotFound";

/// The protocol of HTTP that a port says it understands.
pub(super) fn http_protocol(app_protocol: Option<&str>) -> Option<BackendProtocol> {
    match app_protocol? {
        "http" | "ws" | "kubernetes.io/ws" => Some(BackendProtocol::Http1),
        "http2" | "grpc" | "kubernetes.io/h2c" => Some(BackendProtocol::Http2),
        _ => None,
    }
}

/// The name of the secret in which a gateway gets a certificate.
pub(super) fn secret(key: &Key) -> String {
    format!("kubernetes/{key}")
}

impl RouteContext<'_> {
    /// The status of requests that cannot be served. Callers of gRPC understand this one.
    pub(super) fn unusable(&self) -> u16 {
        match self.route.id.kind {
            RouteKind::Grpc => 503,
            _ => 500,
        }
    }

    /// What a reference leads to: an answer if it leads nowhere.
    pub(super) fn target(&self, reference: &BackendReference, collected: &mut Collected) -> Target {
        let unusable = Target::Answer(self.unusable());
        match self.look_up(reference) {
            Ok(Backends::InMesh(service)) => Target::Service(service.clone()),
            Ok(Backends::Port(key, port)) => self.of_port(key, port, collected),
            Err(problem) => {
                collected.report.unresolved(problem);
                unusable
            }
        }
    }

    /// A port of a Service, as the gateway calls it.
    fn of_port(&self, key: Key, port: &ServicePort, collected: &mut Collected) -> Target {
        let unusable = Target::Answer(self.unusable());
        if self.lookup.world.servers == Servers::Consul {
            return self.of_mesh(&key, port).unwrap_or_else(|problem| {
                collected.report.unresolved(problem);
                unusable
            });
        }
        let protocol = match self.understood(port) {
            Ok(protocol) => protocol,
            Err(problem) => {
                collected.report.unresolved(problem);
                return unusable;
            }
        };
        // TLS that is passed through is already that of the backend.
        let encrypts = !matches!(
            self.protocol,
            Some(Protocol::TlsPassedThrough | Protocol::Udp)
        );
        let tls = self.policies.of(&key, &port.name).filter(|_| encrypts);
        let tls = match (tls, self.presented) {
            (None, _) => None,
            (Some(Ok(tls)), None) => Some(tls.clone()),
            (Some(Ok(tls)), Some(Ok(presented))) => {
                let mut tls = tls.clone();
                tls.presented = Some(Certificate::Secret(secret(presented)));
                Some(tls)
            }
            // Never in plain text, and never without what the gateway has to present.
            (Some(_), _) => {
                collected.services.insert(key);
                return unusable;
            }
        };
        collected.services.insert(key.clone());
        Target::Backend(Arc::new(Backend {
            namespace: key.namespace,
            name: key.name,
            port: port.port,
            protocol,
            tls,
        }))
    }

    /// The service of the mesh behind a port of a Service.
    fn of_mesh(&self, key: &Key, port: &ServicePort) -> Result<Target, Problem> {
        let service = self.lookup.world.services.get(key);
        let service = service.and_then(|service| service.of_mesh.as_ref());
        let service = service.filter(|_| port.is_of_mesh).ok_or_else(|| {
            let message = format!(
                "backends outside of the mesh are not served with Consul's servers: no service of \
                 the mesh is behind port {} of Service {key}",
                port.port
            );
            Problem::new(UNSUPPORTED, message)
        })?;
        Ok(Target::Service(service.clone()))
    }

    fn look_up(&self, reference: &BackendReference) -> Result<Backends<'_>, Problem> {
        let group = reference.group.as_deref().unwrap_or_default();
        let kind = reference.kind.as_deref().unwrap_or("Service");
        if ![("", "Service"), (CONSUL_GROUP, MESH_SERVICE)].contains(&(group, kind)) {
            let message = format!("{kind} of group {group:?} cannot be a backend");
            return Err(Problem::new("InvalidKind", message));
        }
        let own = &self.route.meta.namespace;
        let key = Key::new(reference.namespace.as_ref().unwrap_or(own), &reference.name);
        let from = Referrer {
            group: GROUP,
            kind: self.route.id.kind.as_str(),
            namespace: own,
        };
        // Callers reach the Service of the route without it, too.
        let is_parent = kind == "Service" && self.frontend == Some(&key);
        if !is_parent && !self.lookup.permits(from, (group, kind), &key) {
            let message = format!(
                "no ReferenceGrant in namespace {} lets a {} of namespace {own} refer to the \
                 {kind} {}",
                key.namespace, from.kind, key.name
            );
            return Err(Problem::new(NOT_PERMITTED, message));
        }
        if kind == MESH_SERVICE {
            if self.frontend.is_some() {
                let message = format!(
                    "the {kind} {key} is not served in routes that are attached to Services: name a \
                     Service"
                );
                return Err(Problem::new(UNSUPPORTED, message));
            }
            let service = self.lookup.world.mesh_services.get(&key);
            let missing = || Problem::new(NOT_FOUND, format!("there is no {kind} {key}"));
            return service.map(Backends::InMesh).ok_or_else(missing);
        }
        self.port_of(key, reference.port)
    }

    fn port_of(&self, key: Key, number: Option<u16>) -> Result<Backends<'_>, Problem> {
        let missing = |message| Problem::new(NOT_FOUND, message);
        let service = self.lookup.world.services.get(&key);
        let service = service.ok_or_else(|| missing(format!("there is no Service {key}")))?;
        if service.external_name {
            let message = format!("the Service {key} is a name outside of the cluster");
            return Err(missing(message));
        }
        let number = number.ok_or_else(|| missing(format!("no port of Service {key} is named")))?;
        let is_udp = self.route.id.kind == RouteKind::Udp;
        let mut ports = service.ports.iter();
        let port = ports.find(|port| port.port == number && port.udp == is_udp);
        let transport = if is_udp { "UDP" } else { "TCP" };
        let port = port
            .ok_or_else(|| missing(format!("Service {key} has no port {number} of {transport}")))?;
        Ok(Backends::Port(key, port))
    }

    fn understood(&self, port: &ServicePort) -> Result<BackendProtocol, Problem> {
        match self.route.id.kind {
            RouteKind::Udp => return Ok(BackendProtocol::Udp),
            RouteKind::Tcp | RouteKind::Tls => return Ok(BackendProtocol::Tcp),
            RouteKind::Grpc => return Ok(BackendProtocol::Http2),
            RouteKind::Http => {}
        }
        let app_protocol = port.app_protocol.as_deref();
        match (http_protocol(app_protocol), app_protocol) {
            (Some(protocol), _) => Ok(protocol),
            (None, Some(other)) if other.starts_with("kubernetes.io/") => {
                let message = format!("the appProtocol {other:?} is not served");
                Err(Problem::new("UnsupportedProtocol", message))
            }
            (None, _) => Ok(BackendProtocol::Http1),
        }
    }
}
