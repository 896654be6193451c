//! Service definitions as agents accept them, with checks and sidecars in short forms.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check_type::{CheckType, DefinedCheck};
use crate::invalid::Invalid;
use crate::locality::Locality;
use crate::name;
use crate::proxy::{ConnectProxy, UpstreamType};
use crate::register::NATIVE_PORT;
use crate::secret::Secret;
use crate::service::{ServiceAddress, ServiceConnect, ServiceInstance, ServiceKind, Weights};
use crate::tenancy::TenancyName;

/// Ports for sidecars without one; the lowest free port is used.
const SIDECAR_PORTS: RangeInclusive<u16> = 21_000..=21_255;
const SIDECAR_SUFFIX: &str = "-sidecar-proxy";
/// Interval of the check that a sidecar listens, as in Consul.
const SIDECAR_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The id of the sidecar that is registered with a service.
pub fn sidecar_id(service_id: &str) -> String {
    format!("{service_id}{SIDECAR_SUFFIX}")
}

/// Body of `PUT /v1/agent/service/register`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceDefinition {
    /// The instance's kind.
    pub kind: ServiceKind,
    /// Unique on the node; empty means the name.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service's name.
    #[serde(alias = "Service")]
    pub name: String,
    /// Free labels.
    pub tags: Vec<String>,
    /// Address that it listens on; empty means the node's address.
    pub address: String,
    /// Other addresses by purpose.
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// TCP port; 0 means none.
    pub port: u16,
    /// Unix socket, instead of address and port.
    pub socket_path: String,
    /// A single check, in addition to `checks`.
    pub check: Option<CheckType>,
    /// Checks.
    pub checks: Vec<CheckType>,
    /// Load balancing weights by health.
    pub weights: Weights,
    /// Token that an agent uses to write to the catalog; not used by servers.
    #[serde(skip_serializing)]
    pub token: Secret,
    /// Whether tags may be changed through the catalog.
    pub enable_tag_override: bool,
    /// Proxy settings.
    pub proxy: ConnectProxy,
    /// Mesh settings.
    pub connect: ConnectDefinition,
    /// Region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Box<Locality>>,
    /// Namespace; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Mesh settings of a definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ConnectDefinition {
    /// Whether the application terminates mutual TLS itself.
    pub native: bool,
    /// The instance's sidecar; an empty object is enough.
    pub sidecar_service: Option<Box<ServiceDefinition>>,
}

/// The instances and checks that a definition registers.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinitionParts {
    /// The instance, with its checks.
    pub service: (ServiceInstance, Vec<DefinedCheck>),
    /// Its sidecar, with its own checks.
    pub sidecar: Option<(ServiceInstance, Vec<DefinedCheck>)>,
}

impl ServiceDefinition {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        self.instance().validate()?;
        self.validate_reachable()?;
        let numbered = self.checks.iter().enumerate();
        let numbered = numbered.map(|(i, check)| (format!("Checks[{i}]"), check));
        let one = self.one_check().map(|check| ("Check".to_owned(), check));
        for (path, check) in one.into_iter().chain(numbered) {
            check
                .validate_of(self.service_id())
                .map_err(|error| error.within(path))?;
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
        let mut whole = self.sidecar(sidecar);
        if whole.port == 0 && whole.socket_path.is_empty() {
            // A port is allocated later; any valid one passes the validation.
            whole.port = *SIDECAR_PORTS.start();
        }
        whole.validate()
    }

    /// A connect-proxy must have a port or a socket.
    fn validate_reachable(&self) -> Result<(), Invalid> {
        if self.port != 0 || !self.socket_path.is_empty() {
            return Ok(());
        }
        if self.kind == ServiceKind::ConnectProxy {
            let reason = "Port or SocketPath must be set for a connect-proxy";
            return Err(Invalid::new("Port", reason));
        }
        if self.connect.native {
            return Err(Invalid::new("Port", NATIVE_PORT));
        }
        Ok(())
    }

    /// All its checks, including those of its sidecar.
    pub fn all_checks(&self) -> impl Iterator<Item = &CheckType> {
        let sidecar = self.connect.sidecar_service.as_deref();
        let all = std::iter::once(self).chain(sidecar);
        all.flat_map(|one| one.one_check().into_iter().chain(&one.checks))
    }

    /// The service id; defaults to the name.
    pub fn service_id(&self) -> &str {
        match self.id.as_str() {
            "" => &self.name,
            own => own,
        }
    }

    fn instance(&self) -> ServiceInstance {
        let mut proxy = self.proxy.clone();
        for upstream in &mut proxy.upstreams {
            if upstream.destination_type == UpstreamType::Unset {
                Arc::make_mut(upstream).destination_type = UpstreamType::Service;
            }
        }
        ServiceInstance {
            kind: self.kind,
            id: self.service_id().to_owned(),
            service: self.name.clone(),
            tags: self.tags.clone(),
            address: self.address.clone(),
            tagged_addresses: self.all_addresses().into_iter().collect(),
            meta: self.meta.clone(),
            port: self.port,
            socket_path: self.socket_path.clone(),
            weights: self.weights,
            enable_tag_override: self.enable_tag_override,
            proxy,
            connect: ServiceConnect {
                native: self.connect.native,
                peer_meta: None,
            },
            locality: self.locality.clone(),
            ..ServiceInstance::default()
        }
    }

    /// Tagged addresses. As in Consul, an IP address is used for both the LAN and the WAN of its
    /// family.
    fn all_addresses(&self) -> BTreeMap<String, ServiceAddress> {
        let mut all = self.tagged_addresses.clone();
        let family = match self.address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => "ipv4",
            Ok(IpAddr::V6(_)) => "ipv6",
            Err(_) => return all,
        };
        for network in ["lan", "wan"] {
            let own = all.entry(format!("{network}_{family}"));
            own.or_insert_with(|| ServiceAddress {
                address: self.address.clone(),
                port: self.port,
            });
        }
        all
    }

    /// The sidecar's complete definition, with everything that it inherits from the service.
    fn sidecar(&self, short: &ServiceDefinition) -> ServiceDefinition {
        let mut whole = short.clone();
        whole.kind = ServiceKind::ConnectProxy;
        whole.id = sidecar_id(self.service_id());
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
        if whole.locality.is_none() {
            whole.locality.clone_from(&self.locality);
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

    /// Expands the definition into instances and checks. `taken` are the ports in use on the node,
    /// which are not allocated to a sidecar. The definition must be valid.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when all sidecar ports are taken.
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
                if whole.one_check().is_none() && whole.checks.is_empty() {
                    whole.checks = self.sidecar_checks(&whole);
                }
                Some((whole.instance(), whole.defined_checks(node)))
            }
        };
        Ok(DefinitionParts {
            service: (self.instance(), self.defined_checks(node)),
            sidecar,
        })
    }

    /// Default checks of a sidecar: that it listens, on its own address or else on the application's
    /// local address, and the health of its service.
    fn sidecar_checks(&self, sidecar: &ServiceDefinition) -> Vec<CheckType> {
        let host = match sidecar.address.as_str() {
            "" => &sidecar.proxy.local_service_address,
            own => own,
        };
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let listening = CheckType {
            name: "Connect Sidecar Listening".to_owned(),
            tcp: format!("{host}:{}", sidecar.port),
            interval: SIDECAR_CHECK_INTERVAL,
            ..CheckType::default()
        };
        let aliasing = CheckType {
            name: format!("Connect Sidecar Aliasing {}", self.service_id()),
            alias_service: self.service_id().to_owned(),
            ..CheckType::default()
        };
        let has_port = sidecar.port != 0;
        has_port
            .then_some(listening)
            .into_iter()
            .chain([aliasing])
            .collect()
    }

    /// The single check, unless it is empty: some clients always send the object.
    fn one_check(&self) -> Option<&CheckType> {
        self.check
            .as_ref()
            .filter(|check| **check != CheckType::default())
    }

    fn defined_checks(&self, node: &str) -> Vec<DefinedCheck> {
        let all: Vec<&CheckType> = self.one_check().into_iter().chain(&self.checks).collect();
        let several = all.len() > 1;
        let numbered = all.into_iter().enumerate();
        let owner = (self.service_id(), self.name.as_str(), self.tags.as_slice());
        numbered
            .map(|(i, check)| {
                let id = match check.check_id.as_str() {
                    "" if several => format!("service:{}:{}", self.service_id(), i + 1),
                    "" => format!("service:{}", self.service_id()),
                    own => own.to_owned(),
                };
                let name = match check.name.as_str() {
                    "" => format!("Service '{}' check", self.name),
                    own => own.to_owned(),
                };
                check.defined(node, id, name, owner)
            })
            .collect()
    }
}
