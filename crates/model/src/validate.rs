//! Validation of service instances and their proxy settings.

use std::net::IpAddr;

use crate::invalid::Invalid;
use crate::json::decode::Opaque;
use crate::json::nesting::validate_nesting;
use crate::name::{self, WILDCARD};
use crate::peering;
use crate::proxy::{AccessLogs, AccessLogsType, ConnectProxy, Expose, Upstream};
use crate::register::OF_PEER;
use crate::service::{ServiceInstance, ServiceKind, Weights};
use crate::{format_string, meta};

const MAX_WEIGHT: u32 = 65_535;
const DEFAULT_BIND: &str = "127.0.0.1";
const BIND_ADDRESS: &str = "bind_address";

impl ServiceInstance {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.validate_names_and_addresses()?;
        if !self.socket_path.is_empty() && self.port != 0 {
            return Err(Invalid::new(
                "SocketPath",
                "it cannot be used together with Port",
            ));
        }
        if self.kind == ServiceKind::ConnectProxy {
            self.validate_proxy_address()?;
        }
        self.validate_weights_and_locality()?;
        meta::validate_service(self.kind, &self.meta)?;
        if !self.peer_name.is_empty() {
            return Err(Invalid::new("PeerName", OF_PEER));
        }
        if self.connect.peer_meta.is_some() {
            return Err(Invalid::new("Connect.PeerMeta", OF_PEER));
        }
        if self.kind != ServiceKind::Typical && self.connect.native {
            return Err(Invalid::new(
                "Connect.Native",
                "a proxy cannot be native: leave it out, or leave Kind out",
            ));
        }
        let proxy = match self.kind {
            ServiceKind::Typical => self.proxy.validate(false),
            ServiceKind::ConnectProxy => self.proxy.validate(true),
            _ => {
                self.validate_gateway_port()?;
                self.validate_gateway_proxy()
            }
        };
        proxy.map_err(|error| error.within("Proxy"))
    }

    /// Validates an instance that a peer exports, whose proxy is not configured here. Its metadata may have any keys: what
    /// another cluster has registered cannot be changed here.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate_imported(&self) -> Result<(), Invalid> {
        self.validate_names_and_addresses()?;
        self.validate_weights_and_locality()?;
        meta::validate_entry("Meta", &self.meta)
    }

    fn validate_names_and_addresses(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.service)
            .map_err(|error| Invalid::new("Service", error.to_string()))?;
        name::validate_length(&self.id).map_err(|error| Invalid::new("ID", error.to_string()))?;
        if self.id.contains('/') || self.id.chars().any(char::is_control) {
            return Err(Invalid::new(
                "ID",
                format!(
                    "{:?} must have no slashes and no control characters",
                    self.id
                ),
            ));
        }
        validate_address("Address", &self.address)?;
        for (key, tagged) in &self.tagged_addresses {
            let field = format!("TaggedAddresses.{key}.Address");
            validate_host(&field, &tagged.address)?;
        }
        Ok(())
    }

    fn validate_weights_and_locality(&self) -> Result<(), Invalid> {
        self.weights
            .validate()
            .map_err(|error| error.within("Weights"))?;
        if let Some(locality) = &self.locality {
            locality
                .validate()
                .map_err(|error| error.within("Locality"))?;
        }
        Ok(())
    }

    /// Checks only the nesting of the proxy's settings, for instances that were accepted by another server.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the setting that is nested too deeply.
    pub fn validate_nesting(&self) -> Result<(), Invalid> {
        let nested = self.proxy.validate_nesting();
        nested.map_err(|error| error.within("Proxy"))
    }

    /// The proxy's listener binds to the registered address, unless its config overrides it.
    fn validate_proxy_address(&self) -> Result<(), Invalid> {
        if !self.socket_path.is_empty() {
            return Err(Invalid::new(
                "SocketPath",
                "the listener of a connect-proxy is reached at a port; a socket is not served",
            ));
        }
        if self.proxy.config.contains_key(BIND_ADDRESS) {
            return Ok(());
        }
        validate_ip("Address", &self.address).map_err(|error| {
            let reason = error.reason();
            Invalid::new(
                "Address",
                format!(
                    "{reason}, or Proxy.Config.{BIND_ADDRESS} must be one: the proxy binds to it"
                ),
            )
        })
    }

    fn validate_gateway_port(&self) -> Result<(), Invalid> {
        let needs_port = !matches!(
            self.kind,
            ServiceKind::IngressGateway | ServiceKind::ApiGateway
        );
        if needs_port && self.port == 0 {
            return Err(Invalid::new(
                "Port",
                format!("a {} needs the port of its listener", self.kind.as_str()),
            ));
        }
        Ok(())
    }

    fn validate_gateway_proxy(&self) -> Result<(), Invalid> {
        let proxy = &self.proxy;
        for (field, set) in [
            (
                "DestinationServiceName",
                !proxy.destination_service_name.is_empty(),
            ),
            (
                "DestinationServiceID",
                !proxy.destination_service_id.is_empty(),
            ),
            (
                "LocalServiceAddress",
                !proxy.local_service_address.is_empty(),
            ),
            ("LocalServicePort", proxy.local_service_port != 0),
            (
                "LocalServiceSocketPath",
                !proxy.local_service_socket_path.is_empty(),
            ),
            ("Upstreams", !proxy.upstreams.is_empty()),
        ] {
            if set {
                return Err(Invalid::new(
                    field,
                    format!("it has no meaning for a {}", self.kind.as_str()),
                ));
            }
        }
        proxy.validate_parts()
    }
}

/// An address that others connect to must not be the unspecified address. Empty is permitted.
pub(crate) fn validate_address(field: &str, address: &str) -> Result<(), Invalid> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err(Invalid::new(
            field,
            format!("{address:?} is the unspecified address; give one that others can connect to"),
        )),
        _ => validate_host(field, address),
    }
}

/// Requires a host name or an IP address, without a port. Empty is permitted.
pub(crate) fn validate_host(field: &str, address: &str) -> Result<(), Invalid> {
    let label = |label: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        (1..=63).contains(&label.len()) && label.bytes().all(allowed)
    };
    let name = address.strip_suffix('.').unwrap_or(address);
    let host_name = name.len() <= 253 && name.split('.').all(label);
    if address.is_empty() || host_name || address.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let shown: String = address.chars().take(80).collect();
    Err(Invalid::new(
        field,
        format!("{shown:?} must be a host name or an IP address, without a port"),
    ))
}

/// Requires an IP address, since Envoy's listeners and static clusters support nothing else. Empty is
/// permitted.
pub(crate) fn validate_ip(field: &str, address: &str) -> Result<(), Invalid> {
    if address.is_empty() || address.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let shown: String = address.chars().take(80).collect();
    Err(Invalid::new(
        field,
        format!("{shown:?} must be an IP address"),
    ))
}

/// Validates the only opaque setting of a proxy without which its listener cannot be built.
pub(crate) fn validate_bind_address(config: &Opaque) -> Result<(), Invalid> {
    const FIELD: &str = "Config.bind_address";
    match config.get(BIND_ADDRESS) {
        None | Some(serde_json::Value::Null) => Ok(()),
        Some(serde_json::Value::String(address)) => validate_ip(FIELD, address),
        Some(_) => Err(Invalid::new(FIELD, "it must be a text with an IP address")),
    }
}

/// Permissions of a socket: up to three octal digits, with or without the usual prefixes.
fn validate_socket_mode(mode: &str) -> Result<(), Invalid> {
    let digits = mode.trim();
    let digits = digits.strip_prefix("0o").unwrap_or(digits);
    let octal = u32::from_str_radix(digits, 8).is_ok_and(|mode| mode <= 0o777);
    if digits.is_empty() || octal {
        return Ok(());
    }
    Err(Invalid::new(
        "LocalBindSocketMode",
        format!("{mode:?} must be octal permissions from 0 to 0777"),
    ))
}

impl Weights {
    fn validate(self) -> Result<(), Invalid> {
        if !(1..=MAX_WEIGHT).contains(&self.passing) {
            return Err(Invalid::new(
                "Passing",
                format!("{} must be from 1 to {MAX_WEIGHT}", self.passing),
            ));
        }
        if self.warning > MAX_WEIGHT {
            return Err(Invalid::new(
                "Warning",
                format!("{} must be from 0 to {MAX_WEIGHT}", self.warning),
            ));
        }
        Ok(())
    }
}

impl ConnectProxy {
    fn validate(&self, sidecar: bool) -> Result<(), Invalid> {
        if sidecar {
            const FIELD: &str = "DestinationServiceName";
            match self.destination_service_name.as_str() {
                "" => {
                    return Err(Invalid::new(
                        FIELD,
                        "a connect-proxy needs the name of the service that it represents",
                    ));
                }
                WILDCARD => {
                    return Err(Invalid::new(
                        FIELD,
                        "a connect-proxy represents one service, so it cannot be \"*\"",
                    ));
                }
                destination => name::validate_service_name(destination)
                    .map_err(|error| Invalid::new(FIELD, error.to_string()))?,
            }
        }
        validate_ip("LocalServiceAddress", &self.local_service_address)?;
        if self.local_service_port != 0 && !self.local_service_socket_path.is_empty() {
            return Err(Invalid::new(
                "LocalServiceSocketPath",
                "it cannot be used together with LocalServicePort",
            ));
        }
        self.validate_parts()
    }

    fn validate_parts(&self) -> Result<(), Invalid> {
        self.validate_upstreams()?;
        validate_bind_address(&self.config)?;
        self.validate_nesting()?;
        self.expose
            .validate()
            .map_err(|error| error.within("Expose"))?;
        self.access_logs
            .validate()
            .map_err(|error| error.within("AccessLogs"))
    }

    fn validate_nesting(&self) -> Result<(), Invalid> {
        for (i, upstream) in self.upstreams.iter().enumerate() {
            validate_nesting(&format!("Upstreams[{i}].Config"), &upstream.config)?;
        }
        validate_nesting("Config", &self.config)
    }

    fn validate_upstreams(&self) -> Result<(), Invalid> {
        for (i, upstream) in self.upstreams.iter().enumerate() {
            upstream
                .validate()
                .map_err(|error| error.within(format_args!("Upstreams[{i}]")))?;
            for (j, earlier) in self.upstreams[..i].iter().enumerate() {
                if earlier.id() == upstream.id() {
                    return Err(Invalid::new(
                        format!("Upstreams[{i}]"),
                        format!("{} is already given as Upstreams[{j}]", upstream.id()),
                    ));
                }
                let bind = upstream.bind_key();
                if bind.is_some() && bind == earlier.bind_key() {
                    return Err(Invalid::new(
                        format!("Upstreams[{i}]"),
                        format!("Upstreams[{j}] listens on the same {}", Bind(upstream)),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Prints where an upstream's listener binds, for error messages.
struct Bind<'a>(&'a Upstream);

impl std::fmt::Display for Bind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.bind_key() {
            Some(("", 0)) | None => f.write_str("address"),
            Some((path, 0)) => write!(f, "socket, {path}"),
            Some((address, port)) => write!(f, "address, {address}:{port}"),
        }
    }
}

impl Upstream {
    /// What two upstreams of a proxy must not share: a socket path, or an address with a port.
    fn bind_key(&self) -> Option<(&str, u16)> {
        if self.has_local_socket() {
            return Some((&self.local_bind_socket_path, 0));
        }
        let address = match self.local_bind_address.as_str() {
            "" => DEFAULT_BIND,
            own => own,
        };
        (self.local_bind_port != 0).then_some((address, self.local_bind_port))
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.destination_name == WILDCARD {
            // Consul's error text.
            return Err(Invalid::new(
                "DestinationName",
                "upstream destination name cannot be a wildcard; settings for all upstreams go to \
                 UpstreamConfig.Defaults of service-defaults",
            ));
        }
        name::validate_upstream(&self.destination_name)
            .map_err(|error| Invalid::new("DestinationName", error.to_string()))?;
        for (field, name) in [
            ("DestinationNamespace", &self.destination_namespace),
            ("DestinationPartition", &self.destination_partition),
        ] {
            if name.is_every() {
                return Err(Invalid::new(
                    field,
                    "an upstream calls one service: name one",
                ));
            }
        }
        validate_ip("LocalBindAddress", &self.local_bind_address)?;
        validate_socket_mode(&self.local_bind_socket_mode)?;
        if self.has_local_socket() {
            if self.local_bind_port != 0 || !self.local_bind_address.is_empty() {
                return Err(Invalid::new(
                    "LocalBindSocketPath",
                    "it cannot be used together with LocalBindAddress or LocalBindPort",
                ));
            }
        } else if self.local_bind_port == 0 {
            return Err(Invalid::new(
                "LocalBindPort",
                "LocalBindPort or LocalBindSocketPath must be set: the application connects to it",
            ));
        }
        self.validate_peer()
    }

    fn validate_peer(&self) -> Result<(), Invalid> {
        if self.destination_peer.is_empty() {
            return Ok(());
        }
        peering::validate_reference("DestinationPeer", &self.destination_peer)?;
        if !self.destination_type.is_service() {
            return Err(Invalid::new(
                "DestinationPeer",
                "a prepared query names the peer itself: set Service.Peer there, and leave it out here",
            ));
        }
        if !self.datacenter.is_empty() {
            // Consul's error text.
            return Err(Invalid::new(
                "DestinationPeer",
                "upstream cannot specify both destination peer and datacenter",
            ));
        }
        if !self.destination_partition.is_default() {
            return Err(Invalid::new(
                "DestinationPartition",
                "a peering belongs to the partition of the proxy: leave the partition out",
            ));
        }
        Ok(())
    }
}

impl Expose {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        for (i, path) in self.paths.iter().enumerate() {
            let fail = |field: &str, reason: String| {
                Err(Invalid::new(format!("Paths[{i}].{field}"), reason))
            };
            if !path.path.starts_with('/') {
                return fail("Path", format!("{:?} must start with /", path.path));
            }
            for (field, port) in [
                ("ListenerPort", path.listener_port),
                ("LocalPathPort", path.local_path_port),
            ] {
                if port == 0 {
                    return fail(field, "it must be a port from 1 to 65535".to_owned());
                }
            }
            if !matches!(path.protocol.as_str(), "" | "http" | "http2") {
                return fail(
                    "Protocol",
                    format!("{:?} must be http or http2", path.protocol),
                );
            }
            let twice = self.paths[..i]
                .iter()
                .any(|other| other.listener_port == path.listener_port);
            if twice {
                return fail(
                    "ListenerPort",
                    format!("{} is already used by another path", path.listener_port),
                );
            }
        }
        Ok(())
    }
}

impl AccessLogs {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        let to_file = self.r#type == AccessLogsType::File;
        if to_file && self.path.is_empty() {
            return Err(Invalid::new("Path", "the type \"file\" needs a path"));
        }
        if !to_file && !self.path.is_empty() {
            return Err(Invalid::new("Path", "a path needs the type \"file\""));
        }
        if !self.json_format.is_empty() && !self.text_format.is_empty() {
            return Err(Invalid::new(
                "TextFormat",
                "it cannot be used together with JSONFormat",
            ));
        }
        format_string::validate(&self.text_format)
            .map_err(|reason| Invalid::new("TextFormat", reason))?;
        if self.json_format.is_empty() {
            return Ok(());
        }
        let json: Opaque = serde_json::from_str(&self.json_format).map_err(|error| {
            Invalid::new("JSONFormat", format!("it must be a JSON object: {error}"))
        })?;
        format_string::validate_all(&json.into())
            .map_err(|reason| Invalid::new("JSONFormat", reason))
    }
}
