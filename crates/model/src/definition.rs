//! Service definitions as agents take them, with checks and sidecars in short forms.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::check::{CheckStatus, HealthCheck};
use crate::invalid::Invalid;
use crate::proxy::ConnectProxy;
use crate::secret::Secret;
use crate::service::{ServiceAddress, ServiceConnect, ServiceInstance, ServiceKind, Weights};
use crate::tenancy::OnlyDefault;
use crate::{duration, name};

/// Ports that sidecars without one get, lowest free first.
const SIDECAR_PORTS: RangeInclusive<u16> = 21_000..=21_255;
const SIDECAR_SUFFIX: &str = "-sidecar-proxy";

/// Body of `PUT /v1/agent/service/register`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceDefinition {
    /// What the instance is for.
    pub kind: ServiceKind,
    /// Unique on the node; empty means the name.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service's name.
    #[serde(alias = "Service")]
    pub name: String,
    /// Free labels.
    pub tags: Vec<String>,
    /// Where it listens; empty means the node's address.
    pub address: String,
    /// Other addresses by purpose.
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// TCP port; 0 means none.
    pub port: u16,
    /// Unix socket instead of address and port.
    pub socket_path: String,
    /// One check, besides `checks`.
    pub check: Option<CheckType>,
    /// Checks.
    pub checks: Vec<CheckType>,
    /// Share of traffic by health.
    pub weights: Weights,
    /// Token with which an agent writes the catalog; not used by servers.
    #[serde(skip_serializing)]
    pub token: Secret,
    /// Whether tags may be changed through the catalog.
    pub enable_tag_override: bool,
    /// Proxy settings.
    pub proxy: ConnectProxy,
    /// Mesh settings.
    pub connect: ConnectDefinition,
    /// Region and zone: preference of near instances is not served.
    #[serde(skip_serializing)]
    pub locality: IgnoredAny,
    /// Only the default namespace is served.
    #[serde(skip_serializing)]
    pub namespace: OnlyDefault,
    /// Only the default partition is served.
    #[serde(skip_serializing)]
    pub partition: OnlyDefault,
}

/// Mesh settings of a definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ConnectDefinition {
    /// The application speaks mutual TLS itself.
    pub native: bool,
    /// The instance's sidecar; an empty object is enough.
    pub sidecar_service: Option<Box<ServiceDefinition>>,
}

/// A check of a definition. Servers do not run checks: they store the status that is given.
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
    /// `host:port/service` of HTTP/2 to ping.
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
    /// Shell in that container.
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
    /// Speak TLS for HTTP/2 pings.
    #[serde(rename = "H2PingUseTLS")]
    pub h2ping_use_tls: bool,
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
    /// Largest output kept, in bytes.
    pub output_max_size: u64,
}

/// What a definition registers.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinitionParts {
    /// The instance, with its checks.
    pub service: (ServiceInstance, Vec<HealthCheck>),
    /// Its sidecar, with the checks that the definition gives it.
    pub sidecar: Option<(ServiceInstance, Vec<HealthCheck>)>,
}

impl ServiceDefinition {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        self.instance().validate()?;
        let numbered = self.checks.iter().enumerate();
        let numbered = numbered.map(|(i, check)| (format!("Checks[{i}]"), check));
        let one = self.one_check().map(|check| ("Check".to_owned(), check));
        for (path, check) in one.into_iter().chain(numbered) {
            check.validate().map_err(|error| error.within(path))?;
        }
        let Some(sidecar) = &self.connect.sidecar_service else {
            return Ok(());
        };
        self.validate_sidecar(sidecar)
            .map_err(|error| error.within("Connect.SidecarService"))
    }

    fn validate_sidecar(&self, sidecar: &ServiceDefinition) -> Result<(), Invalid> {
        if self.kind != ServiceKind::Typical {
            return Err(Invalid::new("Kind", "a proxy cannot have a sidecar itself"));
        }
        if !sidecar.id.is_empty() {
            return Err(Invalid::new(
                "ID",
                "it cannot be chosen: a sidecar's id is its service's with -sidecar-proxy",
            ));
        }
        if sidecar.connect.sidecar_service.is_some() {
            return Err(Invalid::new(
                "Connect.SidecarService",
                "a sidecar cannot have a sidecar",
            ));
        }
        if !matches!(
            sidecar.kind,
            ServiceKind::Typical | ServiceKind::ConnectProxy
        ) {
            return Err(Invalid::new("Kind", "a sidecar is a connect-proxy"));
        }
        let whole = self.sidecar(sidecar);
        whole.validate()
    }

    /// The service id, which is the name when none is given.
    pub fn service_id(&self) -> &str {
        match self.id.as_str() {
            "" => &self.name,
            own => own,
        }
    }

    fn instance(&self) -> ServiceInstance {
        ServiceInstance {
            kind: self.kind,
            id: self.service_id().to_owned(),
            service: self.name.clone(),
            tags: self.tags.clone(),
            address: self.address.clone(),
            tagged_addresses: self.tagged_addresses.clone().into_iter().collect(),
            meta: self.meta.clone(),
            port: self.port,
            socket_path: self.socket_path.clone(),
            weights: self.weights,
            enable_tag_override: self.enable_tag_override,
            proxy: self.proxy.clone(),
            connect: ServiceConnect {
                native: self.connect.native,
            },
            ..ServiceInstance::default()
        }
    }

    /// The sidecar's own definition, with everything that it inherits from the service.
    fn sidecar(&self, short: &ServiceDefinition) -> ServiceDefinition {
        let mut whole = short.clone();
        whole.kind = ServiceKind::ConnectProxy;
        whole.id = format!("{}{SIDECAR_SUFFIX}", self.service_id());
        if whole.name.is_empty() {
            whole.name = format!("{}{SIDECAR_SUFFIX}", self.name);
        }
        if whole.address.is_empty() {
            whole.address.clone_from(&self.address);
        }
        if whole.meta.is_empty() {
            whole.meta.clone_from(&self.meta);
        }
        if whole.tags.is_empty() {
            whole.tags.clone_from(&self.tags);
        }
        let proxy = &mut whole.proxy;
        if proxy.destination_service_name.is_empty() {
            proxy.destination_service_name.clone_from(&self.name);
        }
        if proxy.destination_service_id.is_empty() {
            proxy.destination_service_id = self.service_id().to_owned();
        }
        if proxy.local_service_socket_path.is_empty() {
            if !self.socket_path.is_empty() {
                proxy
                    .local_service_socket_path
                    .clone_from(&self.socket_path);
            } else if proxy.local_service_port == 0 {
                proxy.local_service_port = self.port;
            }
            if self.socket_path.is_empty() && proxy.local_service_address.is_empty() {
                proxy.local_service_address = "127.0.0.1".to_owned();
            }
        }
        whole
    }

    /// The instances and checks that the definition stands for. `taken` are the ports in use on the
    /// node, from which a sidecar without a port keeps away. The definition is expected to be valid.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when every port for sidecars is taken.
    pub fn into_parts(self, node: &str, taken: &BTreeSet<u16>) -> Result<DefinitionParts, Invalid> {
        let sidecar = match &self.connect.sidecar_service {
            None => None,
            Some(short) => {
                let mut whole = self.sidecar(short);
                if whole.port == 0 && whole.socket_path.is_empty() {
                    let free = SIDECAR_PORTS.into_iter().find(|port| !taken.contains(port));
                    whole.port = free.ok_or_else(|| {
                        Invalid::new(
                            "Connect.SidecarService.Port",
                            "every port from 21000 to 21255 is taken on the node: give one",
                        )
                    })?;
                }
                Some((whole.instance(), whole.health_checks(node)))
            }
        };
        Ok(DefinitionParts {
            service: (self.instance(), self.health_checks(node)),
            sidecar,
        })
    }

    /// The single check, unless nothing in it is set: some clients always send the object.
    fn one_check(&self) -> Option<&CheckType> {
        self.check
            .as_ref()
            .filter(|check| **check != CheckType::default())
    }

    fn health_checks(&self, node: &str) -> Vec<HealthCheck> {
        let all: Vec<&CheckType> = self.one_check().into_iter().chain(&self.checks).collect();
        let several = all.len() > 1;
        let numbered = all.into_iter().enumerate();
        numbered
            .map(|(i, check)| HealthCheck {
                node: node.to_owned(),
                check_id: match check.check_id.as_str() {
                    "" if several => format!("service:{}:{}", self.service_id(), i + 1),
                    "" => format!("service:{}", self.service_id()),
                    own => own.to_owned(),
                },
                name: match check.name.as_str() {
                    "" => format!("Service '{}' check", self.name),
                    own => own.to_owned(),
                },
                status: check.status,
                notes: check.notes.clone(),
                service_id: self.service_id().to_owned(),
                service_name: self.name.clone(),
                service_tags: self.tags.clone(),
                r#type: check.type_name().to_owned(),
                interval: time(check.interval),
                timeout: time(check.timeout),
                ..HealthCheck::default()
            })
            .collect()
    }
}

fn time(duration: Duration) -> String {
    match duration {
        Duration::ZERO => String::new(),
        set => duration::format(set),
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
    fn type_name(&self) -> &'static str {
        let probe = self.probes().into_iter().find(|(_, set)| *set);
        match probe {
            Some(("script", _)) if !self.docker_container_id.is_empty() => "docker",
            Some((name, _)) => name,
            None if self.is_alias() => "alias",
            None => "ttl",
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        let probes = self.probes().iter().filter(|(_, set)| *set).count();
        let kinds = probes + usize::from(!self.ttl.is_zero()) + usize::from(self.is_alias());
        if kinds != 1 {
            return Err(Invalid::new(
                "TTL",
                "exactly one of TTL, HTTP, H2PING, TCP, UDP, GRPC, OSService, ScriptArgs, \
                 AliasNode/AliasService must be set",
            ));
        }
        if probes == 1 && self.interval.is_zero() {
            return Err(Invalid::new(
                "Interval",
                "it must be a time like 10s, because the check is run regularly",
            ));
        }
        Ok(())
    }
}
