//! Check definitions as agents accept them: the target, the interval and how results are evaluated.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::{CheckDefinition, CheckStatus, HealthCheck};
use crate::duration;
use crate::invalid::Invalid;
use crate::secret::Secret;
use crate::tenancy::TenancyName;

/// A check as agents accept it, by itself or in a service definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckType {
    /// Unique on the node; empty means `service:<service id>`, numbered when there are several.
    #[serde(rename = "CheckID", alias = "ID")]
    pub check_id: String,
    /// Human-readable name.
    pub name: String,
    /// Status until the first result; critical by default.
    pub status: CheckStatus,
    /// Free text for operators; not interpreted.
    pub notes: String,
    /// Command to run.
    #[serde(alias = "Args")]
    pub script_args: Vec<String>,
    /// URL to request.
    #[serde(rename = "HTTP")]
    pub http: String,
    /// `host:port` of an HTTP/2 server to ping.
    #[serde(rename = "H2PING")]
    pub h2ping: String,
    /// `host:port` to connect to.
    #[serde(rename = "TCP")]
    pub tcp: String,
    /// `host:port` to send to.
    #[serde(rename = "UDP")]
    pub udp: String,
    /// `host:port[/service]` of a gRPC health service.
    #[serde(rename = "GRPC")]
    pub grpc: String,
    /// Service of the operating system to query.
    #[serde(rename = "OSService")]
    pub os_service: String,
    /// Node whose health is mirrored.
    pub alias_node: String,
    /// Instance whose health is mirrored.
    pub alias_service: String,
    /// Container to run the command in.
    #[serde(rename = "DockerContainerID")]
    pub docker_container_id: String,
    /// Shell in that container. Ignored, since commands are run with explicit arguments.
    pub shell: String,
    /// How long a reported status remains valid.
    #[serde(rename = "TTL", with = "duration::text")]
    pub ttl: Duration,
    /// Time between runs.
    #[serde(with = "duration::text")]
    pub interval: Duration,
    /// Timeout of a run.
    #[serde(with = "duration::text")]
    pub timeout: Duration,
    /// Deregister the service after it has been critical for this long.
    #[serde(with = "duration::text")]
    pub deregister_critical_service_after: Duration,
    /// Request headers.
    pub header: BTreeMap<String, Vec<String>>,
    /// Request method.
    pub method: String,
    /// Request body.
    pub body: String,
    /// Whether redirects are not followed.
    pub disable_redirects: bool,
    /// TLS server name to verify.
    #[serde(rename = "TLSServerName")]
    pub tls_server_name: String,
    /// Whether any server certificate is accepted.
    #[serde(rename = "TLSSkipVerify")]
    pub tls_skip_verify: bool,
    /// Whether the gRPC connection uses TLS.
    #[serde(rename = "GRPCUseTLS")]
    pub grpc_use_tls: bool,
    /// Whether the TCP connection uses TLS.
    #[serde(rename = "TCPUseTLS")]
    pub tcp_use_tls: bool,
    /// Whether HTTP/2 pings use TLS; the default is true.
    #[serde(rename = "H2PingUseTLS", skip_serializing_if = "Option::is_none")]
    pub h2ping_use_tls: Option<bool>,
    /// Consecutive successes required to become passing.
    pub success_before_passing: u32,
    /// Consecutive failures required to become warning.
    pub failures_before_warning: u32,
    /// Consecutive failures required to become critical.
    pub failures_before_critical: u32,
    /// URL to request through the sidecar instead of `http`.
    #[serde(rename = "ProxyHTTP")]
    pub proxy_http: String,
    /// gRPC health service to query through the sidecar instead of `grpc`.
    #[serde(rename = "ProxyGRPC")]
    pub proxy_grpc: String,
    /// Maximum number of bytes of output that is stored; 0 means [`OUTPUT_MAX_SIZE`].
    pub output_max_size: u64,
    /// Id of the checked instance; empty for the node. For checks that are registered by themselves;
    /// in a service definition it must be empty or the definition's own id.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// Token that an agent uses to write to the catalog; not used by servers.
    #[serde(skip_serializing)]
    pub token: Secret,
    /// Namespace; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Default limit for stored output in bytes, as in Consul.
pub const OUTPUT_MAX_SIZE: u64 = 4096;

/// The maximum timeout of a check, since only a few run at a time.
const TIMEOUT_LIMIT: Duration = Duration::from_secs(60);

/// The maximum of `OutputMaxSize`.
const OUTPUT_MAX_SIZE_LIMIT: u64 = 64 * 1024;

/// A check in the catalog together with the definition that its agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinedCheck {
    /// The check as the catalog returns it.
    pub check: HealthCheck,
    /// How the check is run.
    pub definition: CheckType,
}

fn time(duration: Duration) -> String {
    match duration {
        Duration::ZERO => String::new(),
        set => duration::format(set),
    }
}

/// A URL for logs and responses, with user and password replaced by `***`.
pub fn printed_url(url: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(begin);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}***{}", &rest[at..]),
        None => url.to_owned(),
    }
}

impl HealthCheck {
    /// Sets the check's port on the sidecar of its service; 0 means none. The definition in the
    /// catalog then has the exposed target, without headers, body and password, which are secrets.
    pub fn expose(&mut self, port: u16, run: &CheckType) {
        self.exposed_port = port;
        self.definition = CheckDefinition::default();
        if port != 0 {
            self.definition.http = printed_url(&run.http);
            self.definition.grpc.clone_from(&run.grpc);
        }
    }
}

impl CheckType {
    /// Check kinds that run at an interval, and whether each is set.
    fn probes(&self) -> [(&'static str, bool); 7] {
        [
            ("http", !self.http.is_empty()),
            ("h2ping", !self.h2ping.is_empty()),
            ("tcp", !self.tcp.is_empty()),
            ("udp", !self.udp.is_empty()),
            ("grpc", !self.grpc.is_empty()),
            ("os_service", !self.os_service.is_empty()),
            ("script", !self.script_args.is_empty()),
        ]
    }

    fn is_alias(&self) -> bool {
        !self.alias_node.is_empty() || !self.alias_service.is_empty()
    }

    /// The check's `Type`.
    pub fn type_name(&self) -> &'static str {
        let probe = self.probes().into_iter().find(|(_, set)| *set);
        match probe {
            Some(("script", _)) if !self.docker_container_id.is_empty() => "docker",
            Some((name, _)) => name,
            None if self.is_alias() => "alias",
            None => "ttl",
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that is invalid in a definition of this service.
    pub(crate) fn validate_of(&self, service_id: &str) -> Result<(), Invalid> {
        if !self.service_id.is_empty() && self.service_id != service_id {
            return Err(Invalid::new(
                "ServiceID",
                format!(
                    "it differs from the service {service_id:?} of the definition: leave it out"
                ),
            ));
        }
        self.validate()
    }

    /// Converts a check that is registered by itself, for the node or an instance whose name and tags
    /// the catalog adds. The check must be valid.
    pub fn into_defined(self, node: &str) -> DefinedCheck {
        let id = match self.check_id.as_str() {
            "" => &self.name,
            own => own,
        };
        let name = match self.name.as_str() {
            "" => id,
            own => own,
        };
        let owner = (self.service_id.as_str(), "", [].as_slice());
        self.defined(node, id.to_owned(), name.to_owned(), owner)
    }

    /// Converts a check; `owner` has the id, name and tags of the instance.
    pub(crate) fn defined(
        &self,
        node: &str,
        check_id: String,
        name: String,
        owner: (&str, &str, &[String]),
    ) -> DefinedCheck {
        let (service_id, service_name, service_tags) = owner;
        let check = HealthCheck {
            node: node.to_owned(),
            check_id,
            name,
            status: self.status,
            notes: self.notes.clone(),
            service_id: service_id.to_owned(),
            service_name: service_name.to_owned(),
            service_tags: service_tags.to_vec(),
            r#type: self.type_name().to_owned(),
            interval: time(self.interval),
            timeout: time(self.timeout),
            ..HealthCheck::default()
        };
        let definition = self.clone();
        DefinedCheck { check, definition }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.refuse_unserved()?;
        let probes = self.probes().iter().filter(|(_, set)| *set).count();
        if probes == 0 && !self.is_alias() && self.ttl.is_zero() {
            return Err(Invalid::new("TTL", "TTL must be > 0 for TTL checks"));
        }
        if !self.interval.is_zero() && !self.ttl.is_zero() {
            let reason = "Interval and TTL cannot both be specified";
            return Err(Invalid::new("Interval", reason));
        }
        let kinds = probes + usize::from(!self.ttl.is_zero()) + usize::from(self.is_alias());
        if kinds != 1 {
            return Err(Invalid::new(
                "TTL",
                "exactly one of TTL, HTTP, H2PING, TCP, UDP, GRPC, OSService, ScriptArgs, \
                 AliasNode/AliasService must be set",
            ));
        }
        self.validate_target()?;
        self.validate_container()?;
        if self.output_max_size > OUTPUT_MAX_SIZE_LIMIT {
            return Err(Invalid::new(
                "OutputMaxSize",
                format!("it must be at most {OUTPUT_MAX_SIZE_LIMIT} bytes"),
            ));
        }
        if self.timeout > TIMEOUT_LIMIT {
            let reason = "it must be at most 1m: slower checks would hold up the others";
            return Err(Invalid::new("Timeout", reason));
        }
        if probes == 1 && self.interval.is_zero() {
            return Err(Invalid::new(
                "Interval",
                "Interval must be > 0 for Script, HTTP, H2PING, TCP, UDP or OSService checks: \
                 write it as 10s",
            ));
        }
        if self.failures_before_warning > self.failures_before_critical {
            let reason = "FailuresBeforeWarning can't be higher than FailuresBeforeCritical";
            return Err(Invalid::new("FailuresBeforeWarning", reason));
        }
        Ok(())
    }

    fn refuse_unserved(&self) -> Result<(), Invalid> {
        if self.os_service.is_empty() {
            return Ok(());
        }
        Err(Invalid::new(
            "OSService",
            "services of the operating system are not checked; Consul does on Windows only",
        ))
    }

    /// Whether it runs a program, on the agent's machine or in a container there.
    pub fn is_script(&self) -> bool {
        !self.script_args.is_empty()
    }

    /// Requires a name or id that Docker accepts, so that it is a single path segment.
    fn validate_container(&self) -> Result<(), Invalid> {
        let id = &self.docker_container_id;
        let reason = if id.is_empty() {
            return Ok(());
        } else if !self.is_script() {
            "ScriptArgs must contain the program to run in the container"
        } else if !id.starts_with(|first: char| first.is_ascii_alphanumeric())
            || !id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
        {
            "it must be the id or the name of a container: letters, digits, and then also _ . -"
        } else {
            return Ok(());
        };
        Err(Invalid::new("DockerContainerID", reason))
    }

    /// Targets must have valid addresses. Host names are resolved when the check runs.
    fn validate_target(&self) -> Result<(), Invalid> {
        let http = self.http.as_str();
        if !http.is_empty() && !["http://", "https://"].iter().any(|s| http.starts_with(s)) {
            let url = printed_url(http);
            let reason = format!("{url:?} must be a URL that begins with http:// or https://");
            return Err(Invalid::new("HTTP", reason));
        }
        let (grpc, _) = self.grpc.split_once('/').unwrap_or((&self.grpc, ""));
        for (field, address) in [
            ("TCP", self.tcp.as_str()),
            ("UDP", &self.udp),
            ("H2PING", &self.h2ping),
            ("GRPC", grpc),
        ] {
            let port = address
                .rsplit_once(':')
                .map(|(_, port)| port.parse::<u16>());
            if !address.is_empty() && !matches!(port, Some(Ok(1..))) {
                let reason = format!("{address:?} must be host:port");
                return Err(Invalid::new(field, reason));
            }
        }
        Ok(())
    }
}
