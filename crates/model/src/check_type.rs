//! Checks as agents take them: what is checked, how often, and what its results mean.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::{CheckDefinition, CheckStatus, HealthCheck};
use crate::duration;
use crate::invalid::Invalid;
use crate::secret::Secret;
use crate::tenancy::TenancyName;

/// A check as agents take it, by itself or in a service definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckType {
    /// Unique on the node; empty means `service:<service id>`, numbered when there are several.
    #[serde(rename = "CheckID", alias = "ID")]
    pub check_id: String,
    /// For people.
    pub name: String,
    /// Status until the first result; critical by default.
    pub status: CheckStatus,
    /// For people.
    pub notes: String,
    /// Command to run.
    #[serde(alias = "Args")]
    pub script_args: Vec<String>,
    /// URL to get.
    #[serde(rename = "HTTP")]
    pub http: String,
    /// `host:port` of HTTP/2 to ping.
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
    /// Service of the operating system.
    #[serde(rename = "OSService")]
    pub os_service: String,
    /// Node whose health is copied.
    pub alias_node: String,
    /// Instance whose health is copied.
    pub alias_service: String,
    /// Container to run the command in.
    #[serde(rename = "DockerContainerID")]
    pub docker_container_id: String,
    /// Shell in that container for a command line; without effect, for a command has its arguments.
    pub shell: String,
    /// How long a reported status stays good.
    #[serde(rename = "TTL", with = "duration::text")]
    pub ttl: Duration,
    /// Time between runs.
    #[serde(with = "duration::text")]
    pub interval: Duration,
    /// Longest run.
    #[serde(with = "duration::text")]
    pub timeout: Duration,
    /// Remove the service when it was critical for so long.
    #[serde(with = "duration::text")]
    pub deregister_critical_service_after: Duration,
    /// Request headers.
    pub header: BTreeMap<String, Vec<String>>,
    /// Request method.
    pub method: String,
    /// Request body.
    pub body: String,
    /// Do not follow redirects.
    pub disable_redirects: bool,
    /// Server name to verify.
    #[serde(rename = "TLSServerName")]
    pub tls_server_name: String,
    /// Accept any certificate.
    #[serde(rename = "TLSSkipVerify")]
    pub tls_skip_verify: bool,
    /// Speak TLS to the gRPC service.
    #[serde(rename = "GRPCUseTLS")]
    pub grpc_use_tls: bool,
    /// Speak TLS to the TCP address.
    #[serde(rename = "TCPUseTLS")]
    pub tcp_use_tls: bool,
    /// Whether HTTP/2 pings go over TLS; they do unless it says no.
    #[serde(rename = "H2PingUseTLS", skip_serializing_if = "Option::is_none")]
    pub h2ping_use_tls: Option<bool>,
    /// Results needed to become passing.
    pub success_before_passing: u32,
    /// Results needed to become warning.
    pub failures_before_warning: u32,
    /// Results needed to become critical.
    pub failures_before_critical: u32,
    /// URL to get through the sidecar, in place of the one in `http`.
    #[serde(rename = "ProxyHTTP")]
    pub proxy_http: String,
    /// gRPC health service to ask through the sidecar, in place of the one in `grpc`.
    #[serde(rename = "ProxyGRPC")]
    pub proxy_grpc: String,
    /// Largest output kept, in bytes; 0 means [`OUTPUT_MAX_SIZE`].
    pub output_max_size: u64,
    /// The instance that is checked; empty for the node. For checks that are registered by
    /// themselves: in a service definition it is the definition's own.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// Token with which an agent writes the catalog; not used by servers.
    #[serde(skip_serializing)]
    pub token: Secret,
    /// The namespace that it is of; empty for that of the request.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is of; empty for that of the request.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// How many bytes of a check's output are kept: Consul's default.
pub const OUTPUT_MAX_SIZE: u64 = 4096;

/// The longest time that a check may take: few run at a time.
const TIMEOUT_LIMIT: Duration = Duration::from_secs(60);

/// How many may be asked for.
const OUTPUT_MAX_SIZE_LIMIT: u64 = 64 * 1024;

/// A check as the catalog shows it, and how the agent of its node runs it.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinedCheck {
    /// What the catalog has.
    pub check: HealthCheck,
    /// How it is run.
    pub definition: CheckType,
}

fn time(duration: Duration) -> String {
    match duration {
        Duration::ZERO => String::new(),
        set => duration::format(set),
    }
}

/// A URL as it is printed: a user and password in it are `***`.
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
    /// Gives the check a port at the sidecar of its service, or none (0). The definition in the
    /// catalog has what the sidecar passes on, and no headers, body or password, which are secrets.
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
    /// The kinds of check that are run at an interval, with whether each is asked for.
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

    /// What the check's `Type` says.
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
    /// [`Invalid`] names the first field that cannot be accepted in a definition of this service.
    pub(crate) fn validate_of(&self, service_id: &str) -> Result<(), Invalid> {
        if !self.service_id.is_empty() && self.service_id != service_id {
            return Err(Invalid::new(
                "ServiceID",
                format!("a check of service {service_id:?} is about that one: leave it out"),
            ));
        }
        self.validate()
    }

    /// The check as it is registered by itself, for the node or for an instance whose name and tags
    /// the catalog adds. It is expected to be valid.
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

    /// `owner` has the id, name and tags of the instance.
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

    /// Whether it runs a program, on the machine of the agent or in a container there.
    pub fn is_script(&self) -> bool {
        !self.script_args.is_empty()
    }

    /// A container is named as Docker names it, so that the name is one part of a path.
    fn validate_container(&self) -> Result<(), Invalid> {
        let id = &self.docker_container_id;
        let reason = if id.is_empty() {
            return Ok(());
        } else if !self.is_script() {
            "ScriptArgs must say which program is run in the container"
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

    /// What is connected to must be an address; a name in it is looked up when the check runs.
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
