//! Settings from the opaque maps of a registration.
//!
//! The maps are not validated when they are stored. As in Consul, invalid values are replaced by
//! defaults with a warning. Nothing here fails.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::time::Duration;

use legate_model::duration::GoDuration;
use legate_model::{
    MutualTlsMode, Opaque, ProxyMode, ServiceInstance, ServiceKind, Upstream, UpstreamLimits,
};
use legate_proxycfg::opaque::{self, OpaqueError};
use serde_json::Value;

use crate::gateway::edge::Edge;
use crate::telemetry::Telemetry;

/// The default connect timeout of the application.
const LOCAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The key with a listener for the mesh, as Envoy's JSON.
pub(crate) const PUBLIC_LISTENER_JSON: &str = "envoy_public_listener_json";
/// The key with a cluster for the application, as Envoy's JSON.
pub(crate) const LOCAL_CLUSTER_JSON: &str = "envoy_local_cluster_json";

/// The key with the ports of the application, besides the registered one, that callers in the mesh reach by the server
/// name of the port. The operator of a cluster writes it. Not one of Consul's.
pub(crate) const APPLICATION_PORTS: &str = "legate_ports";
/// The most such ports.
const MAX_APPLICATION_PORTS: usize = 64;

/// The key of an upstream with its listener, as Envoy's JSON.
pub(crate) const LISTENER_JSON: &str = "envoy_listener_json";
/// The key of an upstream with its cluster, as Envoy's JSON.
pub(crate) const CLUSTER_JSON: &str = "envoy_cluster_json";

/// Whether a user wrote the listener for the mesh.
pub(crate) fn has_public_listener(instance: &ServiceInstance) -> bool {
    is_written(&instance.proxy.config, PUBLIC_LISTENER_JSON)
}

/// Whether a user wrote the listener of an upstream.
pub(crate) fn has_listener(upstream: &Upstream) -> bool {
    is_written(&upstream.config, LISTENER_JSON)
}

fn is_written(config: &Opaque, key: &str) -> bool {
    matches!(opaque::text(config, key), Ok(Some(text)) if !text.is_empty())
}

/// Settings of the proxy's own side, from `Proxy.Config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxySettings {
    /// The public listener's address, instead of the registration's.
    pub(crate) bind_address: Option<String>,
    /// The public listener's port, instead of the registration's.
    pub(crate) bind_port: Option<u16>,
    pub(crate) local_connect_timeout: Duration,
    /// The request timeout of the application; zero disables it, `None` means Envoy's default of 15
    /// s.
    pub(crate) local_request_timeout: Option<Duration>,
    /// The idle timeout of requests; zero disables it, `None` means Envoy's default of 5 min.
    pub(crate) local_idle_timeout: Option<Duration>,
    /// The maximum number of connections from the mesh; 0 means no limit.
    pub(crate) max_inbound_connections: u32,
    /// Whether connections are balanced exactly over Envoy's threads.
    pub(crate) balance_inbound: bool,
    /// Envoy's initial fetch timeout for endpoints and routes; `None` means its default of 15 s.
    pub(crate) fetch_timeout: Option<Duration>,
    /// The public listener, if a user wrote it.
    pub(crate) public_listener: Option<String>,
    /// The application's cluster, if a user wrote it.
    pub(crate) local_cluster: Option<String>,
    /// Ports of the application besides the registered one, sorted.
    pub(crate) application_ports: Vec<u16>,
    /// How a gateway meets clients outside the mesh; the default for other proxies.
    pub(crate) edge: Edge,
    /// Access logs and tracing.
    pub(crate) telemetry: Telemetry,
}

type ReadSettings = (ProxySettings, Vec<String>);

/// The proxy's settings with their warnings, parsed on first use.
pub(crate) type Settings<'a> = LazyCell<ReadSettings, Box<dyn FnOnce() -> ReadSettings + 'a>>;

impl ProxySettings {
    pub(crate) fn read(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Self {
        let config = &instance.proxy.config;
        let mut read = Reader {
            at: "Proxy.Config".to_owned(),
            warnings,
        };
        read.unsupported(config, &["envoy_telemetry_collector_bind_socket_dir"]);
        let settings = Self {
            bind_address: read
                .text(config, "bind_address")
                .filter(|text| !text.is_empty()),
            bind_port: read.port(config, "bind_port"),
            local_connect_timeout: read
                .millis(config, "local_connect_timeout_ms")
                .filter(|timeout| !timeout.is_zero())
                .unwrap_or(LOCAL_CONNECT_TIMEOUT),
            local_request_timeout: read.millis(config, "local_request_timeout_ms"),
            local_idle_timeout: read.millis(config, "local_idle_timeout_ms"),
            max_inbound_connections: read.count(config, "max_inbound_connections").unwrap_or(0),
            balance_inbound: read.balance(config, "balance_inbound_connections"),
            fetch_timeout: read.millis(config, "xds_fetch_timeout_ms"),
            public_listener: read.written(config, PUBLIC_LISTENER_JSON),
            local_cluster: read.written(config, LOCAL_CLUSTER_JSON),
            application_ports: read.ports(config, APPLICATION_PORTS),
            edge: match instance.kind {
                ServiceKind::IngressGateway | ServiceKind::ApiGateway => {
                    Edge::read(instance, warnings)
                }
                _ => Edge::default(),
            },
            telemetry: Telemetry::read(instance, warnings),
        };
        let exposed = &instance.proxy.expose;
        if exposed.checks && !exposed.paths.iter().any(|path| path.parsed_from_check) {
            warnings.push(
                "Proxy.Expose.Checks exposes nothing: no check of the instance over HTTP or gRPC has an \
                 ExposedPort, which the agent that runs it gives it; name paths in Proxy.Expose.Paths"
                    .to_owned(),
            );
        }
        if instance.proxy.mutual_tls_mode == MutualTlsMode::Permissive
            && instance.proxy.mode != ProxyMode::Transparent
        {
            warnings.push(
                "MutualTLSMode permissive has no effect: the proxy is not in transparent mode"
                    .to_owned(),
            );
        }
        settings
    }
}

/// Settings of one upstream, from its `Config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct UpstreamSettings {
    /// Circuit breakers, if any is set.
    pub(crate) limits: Option<Limits>,
    pub(crate) outliers: Outliers,
    /// Whether connections are balanced exactly over Envoy's threads.
    pub(crate) balance_outbound: bool,
    /// The listener, if a user wrote it.
    pub(crate) listener: Option<String>,
    /// The cluster, if a user wrote it.
    pub(crate) cluster: Option<String>,
}

/// Circuit breakers; zero allows nothing, `None` means Envoy's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    pub(crate) max_connections: Option<u32>,
    pub(crate) max_pending_requests: Option<u32>,
    pub(crate) max_concurrent_requests: Option<u32>,
}

impl Limits {
    pub(crate) fn of(limits: &UpstreamLimits) -> Self {
        Self {
            max_connections: limits.max_connections,
            max_pending_requests: limits.max_pending_requests,
            max_concurrent_requests: limits.max_concurrent_requests,
        }
    }
}

/// Outlier detection; `None` means Envoy's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outliers {
    pub(crate) interval: Option<Duration>,
    pub(crate) max_failures: Option<u32>,
    pub(crate) enforcing_consecutive_5xx: Option<u32>,
    pub(crate) max_ejection_percent: Option<u32>,
    pub(crate) base_ejection_time: Option<Duration>,
}

impl UpstreamSettings {
    pub(crate) fn read(upstream: &Upstream, warnings: &mut Vec<String>) -> Self {
        let config = &upstream.config;
        let mut read = Reader {
            at: format!("Config of upstream {}", upstream.id()),
            warnings,
        };
        let limits = read.section(config, "limits").map(|limits| Limits {
            max_connections: read.count(limits, "max_connections"),
            max_pending_requests: read.count(limits, "max_pending_requests"),
            max_concurrent_requests: read.count(limits, "max_concurrent_requests"),
        });
        let check = read.section(config, "passive_health_check");
        let outliers = check.map(|check| Outliers {
            interval: read.duration(check, "interval"),
            max_failures: read.count(check, "max_failures").filter(|count| *count > 0),
            enforcing_consecutive_5xx: read.count(check, "enforcing_consecutive_5xx"),
            max_ejection_percent: read.count(check, "max_ejection_percent"),
            base_ejection_time: read.duration(check, "base_ejection_time"),
        });
        let mut outliers = outliers.unwrap_or_default();
        if !upstream.destination_peer.is_empty() {
            // As in Consul: the peer says how its gateways are, and not how the service behind them is.
            outliers.max_ejection_percent = Some(100);
        }
        Self {
            limits: limits.filter(|limits| *limits != Limits::default()),
            outliers,
            balance_outbound: read.balance(config, "balance_outbound_connections"),
            listener: read.written(config, LISTENER_JSON),
            cluster: read.written(config, CLUSTER_JSON),
        }
    }
}

/// Parses values and collects warnings.
pub(crate) struct Reader<'a> {
    at: String,
    warnings: &'a mut Vec<String>,
}

impl<'a> Reader<'a> {
    /// `at` names the map in warnings.
    pub(crate) fn new(at: &str, warnings: &'a mut Vec<String>) -> Self {
        Self {
            at: at.to_owned(),
            warnings,
        }
    }

    fn take<T>(&mut self, read: Result<Option<T>, OpaqueError>) -> Option<T> {
        read.unwrap_or_else(|error| {
            self.warnings
                .push(format!("{}: {error}; the default is used", self.at));
            None
        })
    }

    pub(crate) fn text(&mut self, config: &Opaque, key: &str) -> Option<String> {
        let read = opaque::text(config, key).map(|text| text.map(Into::into));
        self.take(read)
    }

    /// A resource in JSON.
    fn written(&mut self, config: &Opaque, key: &str) -> Option<String> {
        self.text(config, key).filter(|text| !text.is_empty())
    }

    pub(crate) fn count(&mut self, config: &Opaque, key: &str) -> Option<u32> {
        self.take(opaque::count(config, key))
    }

    fn section<'b>(&mut self, config: &'b Opaque, key: &str) -> Option<&'b Opaque> {
        self.take(opaque::section(config, key))
    }

    fn port(&mut self, config: &Opaque, key: &str) -> Option<u16> {
        let port = self.count(config, key).filter(|port| *port != 0)?;
        let read = u16::try_from(port)
            .map(Some)
            .map_err(|_| OpaqueError::new(key, &Value::from(port), "a port"));
        self.take(read)
    }

    /// A list of different ports, sorted.
    fn ports(&mut self, config: &Opaque, key: &str) -> Vec<u16> {
        let number = |value: &Value| u16::try_from(value.as_u64()?).ok().filter(|port| *port > 0);
        let ports: Option<BTreeSet<u16>> = match opaque::lookup(config, key) {
            None => return Vec::new(),
            Some(Value::Array(all)) => all.iter().map(number).collect(),
            Some(_) => None,
        };
        match ports.filter(|ports| ports.len() <= MAX_APPLICATION_PORTS) {
            Some(ports) => ports.into_iter().collect(),
            None => self.unusable(config, key, "a list of at most 64 ports"),
        }
    }

    /// Milliseconds. As in Consul, negative numbers are ignored silently.
    pub(crate) fn millis(&mut self, config: &Opaque, key: &str) -> Option<Duration> {
        let millis = self.take(opaque::integer(config, key))?;
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    /// A duration in Go's notation, or in nanoseconds. Zero means unset.
    fn duration(&mut self, config: &Opaque, key: &str) -> Option<Duration> {
        let value = opaque::lookup(config, key)?;
        let read = match value {
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => text
                .parse::<GoDuration>()
                .map(Some)
                .map_err(|_| OpaqueError::new(key, value, "a duration like \"10s\"")),
            _ => opaque::integer(config, key).map(|nanos| nanos.map(GoDuration::from_nanos)),
        };
        self.take(read)
            .map(GoDuration::to_duration)
            .filter(|duration| !duration.is_zero())
    }

    /// A boolean, in any form that Go's `strconv.ParseBool` accepts.
    pub(crate) fn flag(&mut self, config: &Opaque, key: &str) -> bool {
        match opaque::lookup(config, key) {
            None => false,
            Some(Value::Bool(is)) => *is,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::String(text)) => match text.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => self.unusable(config, key, "true or false"),
            },
            Some(_) => self.unusable(config, key, "true or false"),
        }
    }

    /// The default instead of a value, with a warning.
    pub(crate) fn unusable<T: Default>(
        &mut self,
        config: &Opaque,
        key: &str,
        wanted: &'static str,
    ) -> T {
        let found = opaque::lookup(config, key).unwrap_or(&Value::Null);
        let error = OpaqueError::new(key, found, wanted);
        self.take(Err::<Option<T>, _>(error)).unwrap_or_default()
    }

    fn balance(&mut self, config: &Opaque, key: &str) -> bool {
        match self.text(config, key).as_deref() {
            None | Some("") => false,
            Some("exact_balance") => true,
            Some(other) => {
                let error =
                    OpaqueError::new(key, &Value::from(other), "\"exact_balance\" or left out");
                self.take(Err::<Option<()>, _>(error));
                false
            }
        }
    }

    fn unsupported(&mut self, config: &Opaque, keys: &[&str]) {
        for key in keys {
            if opaque::lookup(config, key).is_some() {
                self.warnings.push(format!(
                    "{}: {key} is not supported and has no effect",
                    self.at
                ));
            }
        }
    }
}
