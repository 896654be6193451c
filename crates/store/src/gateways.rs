//! What gateways of Kubernetes clusters serve, as the operator of a cluster writes it.
//!
//! A gateway has a row for each of its ports, for each port of a Service that one of them leads to,
//! and for each secret. So the endpoints of a rollout and a renewed certificate change no other row.
//! Rows belong to one gateway: what it does not lead to is removed in the same transaction.
//!
//! What callers in the mesh get of a Service of a cluster, its frontend, has rows like those of a gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{Invalid, Secret};
use legate_routes::{
    Datagrams, Endpoint, Frontend, Listener, MAX_ENDPOINTS, ServicePort, Transport,
};
use serde::{Deserialize, Serialize};

use crate::gateway_status::Generations;
use crate::read::ReadTxn;
use crate::write::WriteTxn;

/// The most ports of a gateway, of TCP and of UDP.
pub const MAX_LISTENERS: usize = 128;

/// A gateway that is served from rows, whatever it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewayRow {
    pub(crate) name: String,
    /// Who writes it; empty if that was not said.
    #[serde(default)]
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) generations: Arc<Generations>,
    /// Which Service it is the frontend of; `None` for a gateway.
    #[serde(default)]
    pub(crate) frontend: Option<Arc<Frontend>>,
    pub(crate) modify_index: u64,
}

/// What a gateway serves on a port.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewayListenerRow {
    pub(crate) gateway: String,
    #[serde(flatten)]
    pub(crate) serves: OnPort,
    pub(crate) modify_index: u64,
}

/// What is on a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnPort {
    Listener(Arc<Listener>),
    Datagrams(Arc<Datagrams>),
}

impl OnPort {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Listener(_) => Transport::Tcp,
            Self::Datagrams(_) => Transport::Udp,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Listener(listener) => listener.port,
            Self::Datagrams(datagrams) => datagrams.port,
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Listener(listener) => listener.validate(),
            Self::Datagrams(datagrams) => datagrams.validate(),
        }
    }
}

/// The endpoints of a port of a Service that a gateway leads to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewayEndpointsRow {
    pub(crate) gateway: String,
    pub(crate) of: ServicePort,
    pub(crate) endpoints: Arc<Vec<Endpoint>>,
    pub(crate) modify_index: u64,
}

impl GatewayEndpointsRow {
    /// # Errors
    ///
    /// [`Invalid`] names the first endpoint that cannot be served.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        if self.endpoints.len() > MAX_ENDPOINTS {
            let reason = format!("{} is more than {MAX_ENDPOINTS}", self.endpoints.len());
            return Err(Invalid::new("Endpoints", reason));
        }
        let mut endpoints = self.endpoints.iter().enumerate();
        endpoints.try_for_each(|(at, one)| {
            let within = |error: Invalid| error.within(format!("Endpoints[{at}]"));
            one.validate(self.of.transport).map_err(within)
        })
    }
}

/// A secret of a gateway.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewaySecretRow {
    pub(crate) gateway: String,
    pub(crate) secret: Arc<GatewaySecret>,
    pub(crate) modify_index: u64,
}

/// A certificate with its key, as a gateway presents it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct GatewaySecret {
    /// The name by which listeners and backends refer to it.
    pub name: String,
    /// The chain in PEM, the leaf first.
    pub certificate: String,
    /// The key in PEM.
    pub private_key: Secret,
}

/// What a gateway serves. Without `endpoints` and `secrets` those that it has remain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayContent {
    /// What is on its ports of TCP, all of them.
    pub listeners: Vec<Arc<Listener>>,
    /// What is on its ports of UDP, all of them.
    pub datagrams: Vec<Arc<Datagrams>>,
    /// Endpoints of ports that these lead to.
    pub endpoints: Vec<(ServicePort, Vec<Endpoint>)>,
    /// Secrets that the listeners name.
    pub secrets: Vec<Arc<GatewaySecret>>,
    /// The generations of the objects that this was made from.
    pub generations: BTreeMap<String, i64>,
    /// Who writes this: the cluster. What is another's is not written.
    pub owner: String,
    /// Which Service it is the frontend of; `None` for a gateway.
    pub frontend: Option<Arc<Frontend>>,
}

impl GatewayContent {
    fn on_ports(&self) -> impl Iterator<Item = OnPort> {
        let listeners = self.listeners.iter().cloned().map(OnPort::Listener);
        listeners.chain(self.datagrams.iter().cloned().map(OnPort::Datagrams))
    }
}

/// Why something of a gateway is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayProblem {
    /// There is no such gateway.
    Missing,
    /// It is another owner's.
    Owned,
    /// The gateway does not lead to the port at this place of the list.
    UnusedEndpoints(usize),
    /// The gateway does not name the secret at this place of the list.
    UnusedSecret(usize),
}

/// A port in a key, padded so that keys sort by number.
pub(crate) fn port_name(port: u16) -> String {
    format!("{port:05}")
}

impl ReadTxn<'_> {
    /// The names of the gateways that are served from rows, in order.
    pub fn gateways(&self) -> Vec<String> {
        let rows: Vec<Arc<GatewayRow>> = self.scan(&[]);
        rows.iter().map(|row| row.name.clone()).collect()
    }

    /// Whether a gateway is served from rows.
    pub fn is_gateway(&self, gateway: &str) -> bool {
        self.get::<GatewayRow>(&[gateway]).is_some()
    }

    /// Who writes a gateway; `None` if there is no such gateway.
    pub fn gateway_owner(&self, gateway: &str) -> Option<String> {
        let row: Arc<GatewayRow> = self.get(&[gateway])?;
        Some(row.owner.clone())
    }

    /// The frontends of the Services of a cluster, with the names under which they are written.
    pub fn frontends(&self, cluster: &str) -> Vec<(String, Arc<Frontend>)> {
        let rows: Vec<Arc<GatewayRow>> = self.scan(&[]);
        let own = rows.iter().filter(|row| row.owner == cluster);
        let frontends = own.filter_map(|row| {
            let frontend = Arc::clone(row.frontend.as_ref()?);
            Some((row.name.clone(), frontend))
        });
        frontends.collect()
    }

    /// Which Service something is the frontend of; `None` for a gateway.
    pub fn frontend(&self, gateway: &str) -> Option<Arc<Frontend>> {
        let row: Arc<GatewayRow> = self.get(&[gateway])?;
        row.frontend.clone()
    }

    /// What a gateway serves on TCP, by port.
    pub fn gateway_listeners(&self, gateway: &str) -> Vec<Arc<Listener>> {
        let found = self.on_ports(gateway).into_iter();
        let listeners = found.filter_map(|one| match one {
            OnPort::Listener(listener) => Some(listener),
            OnPort::Datagrams(_) => None,
        });
        listeners.collect()
    }

    /// What a gateway serves on UDP, by port.
    pub fn gateway_datagrams(&self, gateway: &str) -> Vec<Arc<Datagrams>> {
        let found = self.on_ports(gateway).into_iter();
        let datagrams = found.filter_map(|one| match one {
            OnPort::Datagrams(datagrams) => Some(datagrams),
            OnPort::Listener(_) => None,
        });
        datagrams.collect()
    }

    /// The ports of Services that a gateway leads to.
    pub fn gateway_service_ports(&self, gateway: &str) -> BTreeSet<ServicePort> {
        let mut ports = BTreeSet::new();
        for one in self.on_ports(gateway) {
            let backends = match &one {
                OnPort::Listener(listener) => listener.backends(),
                OnPort::Datagrams(datagrams) => datagrams.backends(),
            };
            ports.extend(backends.into_iter().map(|backend| backend.service_port()));
        }
        ports
    }

    fn on_ports(&self, gateway: &str) -> Vec<OnPort> {
        let rows: Vec<Arc<GatewayListenerRow>> = self.scan(&[gateway]);
        rows.iter().map(|row| row.serves.clone()).collect()
    }

    /// The names of the secrets that a gateway names.
    fn gateway_secret_names(&self, gateway: &str) -> BTreeSet<String> {
        let listeners = self.gateway_listeners(gateway);
        let names = listeners.iter().flat_map(|one| one.secrets());
        names.map(str::to_owned).collect()
    }

    /// The endpoints of a port of a Service that a gateway leads to; `None` if nobody has named any.
    pub fn gateway_endpoints(&self, gateway: &str, of: &ServicePort) -> Option<Arc<Vec<Endpoint>>> {
        let names = [
            gateway,
            &of.namespace,
            &of.name,
            of.transport.as_str(),
            &port_name(of.port),
        ];
        let row: Arc<GatewayEndpointsRow> = self.get(&names)?;
        Some(Arc::clone(&row.endpoints))
    }

    /// A secret of a gateway.
    pub fn gateway_secret(&self, gateway: &str, name: &str) -> Option<Arc<GatewaySecret>> {
        let row: Arc<GatewaySecretRow> = self.get(&[gateway, name])?;
        Some(Arc::clone(&row.secret))
    }
}

impl WriteTxn {
    /// Replaces what a gateway serves. What stays equal is not written.
    ///
    /// # Errors
    ///
    /// [`GatewayProblem`] if it is another's, or there are endpoints or secrets that nothing leads to.
    pub fn put_gateway(
        &mut self,
        gateway: &str,
        content: &GatewayContent,
    ) -> Result<(), GatewayProblem> {
        let modify_index = self.index();
        let owner = self.read().gateway_owner(gateway).unwrap_or_default();
        if !owner.is_empty() && owner != content.owner {
            return Err(GatewayProblem::Owned);
        }
        self.put_generations(gateway, content);
        let before = self.read().on_ports(gateway);
        let place = |one: &OnPort| (one.transport(), one.port());
        for old in &before {
            if !content.on_ports().any(|now| place(&now) == place(old)) {
                self.remove_port(gateway, old);
            }
        }
        for serves in content.on_ports().filter(|now| !before.contains(now)) {
            self.put(GatewayListenerRow {
                gateway: gateway.to_owned(),
                serves,
                modify_index,
            });
        }
        self.remove_unused(gateway);
        self.put_gateway_endpoints(gateway, &content.endpoints)?;
        self.put_gateway_secrets(gateway, &content.secrets)
    }

    /// Replaces the endpoints of some ports of Services that a gateway leads to.
    ///
    /// # Errors
    ///
    /// [`GatewayProblem`].
    pub fn put_gateway_endpoints(
        &mut self,
        gateway: &str,
        all: &[(ServicePort, Vec<Endpoint>)],
    ) -> Result<(), GatewayProblem> {
        self.require_gateway(gateway)?;
        let used = self.read().gateway_service_ports(gateway);
        for (place, (of, endpoints)) in all.iter().enumerate() {
            if !used.contains(of) {
                return Err(GatewayProblem::UnusedEndpoints(place));
            }
            let mut endpoints = endpoints.clone();
            endpoints.sort_unstable();
            endpoints.dedup();
            let before = self.read().gateway_endpoints(gateway, of);
            if before.as_deref() != Some(&endpoints) {
                self.put(GatewayEndpointsRow {
                    gateway: gateway.to_owned(),
                    of: of.clone(),
                    endpoints: Arc::new(endpoints),
                    modify_index: self.index(),
                });
            }
        }
        Ok(())
    }

    /// Replaces some secrets that a gateway names.
    ///
    /// # Errors
    ///
    /// [`GatewayProblem`].
    pub fn put_gateway_secrets(
        &mut self,
        gateway: &str,
        all: &[Arc<GatewaySecret>],
    ) -> Result<(), GatewayProblem> {
        self.require_gateway(gateway)?;
        let used = self.read().gateway_secret_names(gateway);
        for (place, secret) in all.iter().enumerate() {
            if !used.contains(secret.name.as_str()) {
                return Err(GatewayProblem::UnusedSecret(place));
            }
            let before = self.read().gateway_secret(gateway, &secret.name);
            if before.as_ref() != Some(secret) {
                self.put(GatewaySecretRow {
                    gateway: gateway.to_owned(),
                    secret: Arc::clone(secret),
                    modify_index: self.index(),
                });
            }
        }
        Ok(())
    }

    /// Removes a gateway with everything that it has. A no-op if there is none.
    pub fn remove_gateway(&mut self, gateway: &str) {
        for one in self.read().on_ports(gateway) {
            self.remove_port(gateway, &one);
        }
        self.remove_unused(gateway);
        self.remove_gateway_status(gateway);
        self.remove::<GatewayRow>(&[gateway]);
    }

    fn require_gateway(&self, gateway: &str) -> Result<(), GatewayProblem> {
        match self.read().is_gateway(gateway) {
            true => Ok(()),
            false => Err(GatewayProblem::Missing),
        }
    }

    fn remove_port(&mut self, gateway: &str, one: &OnPort) {
        let names = [gateway, one.transport().as_str(), &port_name(one.port())];
        self.remove::<GatewayListenerRow>(&names);
    }

    /// Removes the endpoints and secrets that no port of a gateway leads to.
    fn remove_unused(&mut self, gateway: &str) {
        let ports = self.read().gateway_service_ports(gateway);
        let secrets = self.read().gateway_secret_names(gateway);
        let rows: Vec<Arc<GatewayEndpointsRow>> = self.read().scan(&[gateway]);
        for of in rows.iter().map(|row| &row.of) {
            if !ports.contains(of) {
                let (transport, port) = (of.transport.as_str(), port_name(of.port));
                let names = [gateway, &of.namespace, &of.name, transport, &port];
                self.remove::<GatewayEndpointsRow>(&names);
            }
        }
        let rows: Vec<Arc<GatewaySecretRow>> = self.read().scan(&[gateway]);
        for secret in rows.iter().map(|row| &row.secret) {
            if !secrets.contains(secret.name.as_str()) {
                self.remove::<GatewaySecretRow>(&[gateway, &secret.name]);
            }
        }
    }
}
