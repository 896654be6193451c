//! What gateways of Kubernetes clusters serve, as the operator of a cluster writes it.
//!
//! A gateway has a row for each of its ports, for each port of a Service that one of them leads to,
//! and for each secret. So the endpoints of a rollout and a renewed certificate change no other row.
//! Rows belong to one gateway: what it does not lead to is removed in the same transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{Invalid, Secret};
use legate_routes::{Endpoint, Listener, ServicePort, Transport};
use serde::{Deserialize, Serialize};

use crate::gateway_status::Generations;
use crate::read::ReadTxn;
use crate::write::WriteTxn;

/// The most ports of a gateway.
pub const MAX_LISTENERS: usize = 128;
/// The most endpoints of a port of a Service.
pub const MAX_ENDPOINTS: usize = 5_000;

/// A gateway that is served from rows, whatever it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewayRow {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) generations: Arc<Generations>,
    pub(crate) modify_index: u64,
}

/// What a gateway serves on a port.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GatewayListenerRow {
    pub(crate) gateway: String,
    pub(crate) listener: Arc<Listener>,
    pub(crate) modify_index: u64,
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
            one.validate().map_err(within)
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
    /// What is on its ports, all of them.
    pub listeners: Vec<Arc<Listener>>,
    /// Endpoints of ports that the listeners lead to.
    pub endpoints: Vec<(ServicePort, Vec<Endpoint>)>,
    /// Secrets that the listeners name.
    pub secrets: Vec<Arc<GatewaySecret>>,
    /// The generations of the objects that this was made from.
    pub generations: BTreeMap<String, i64>,
}

/// Why something of a gateway is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayProblem {
    /// There is no such gateway.
    Missing,
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

    /// What a gateway serves, by port.
    pub fn gateway_listeners(&self, gateway: &str) -> Vec<Arc<Listener>> {
        let rows: Vec<Arc<GatewayListenerRow>> = self.scan(&[gateway]);
        rows.iter().map(|row| Arc::clone(&row.listener)).collect()
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
    /// [`GatewayProblem`] if there are endpoints or secrets that nothing leads to.
    pub fn put_gateway(
        &mut self,
        gateway: &str,
        content: &GatewayContent,
    ) -> Result<(), GatewayProblem> {
        let modify_index = self.index();
        self.put_generations(gateway, &content.generations);
        let before = self.read().gateway_listeners(gateway);
        for listener in &before {
            let mut now = content.listeners.iter();
            if !now.any(|now| now.port == listener.port) {
                self.remove_listener(gateway, listener.port);
            }
        }
        for listener in &content.listeners {
            if !before.contains(listener) {
                let listener = Arc::clone(listener);
                self.put(GatewayListenerRow {
                    gateway: gateway.to_owned(),
                    listener,
                    modify_index,
                });
            }
        }
        self.remove_unused(gateway, &content.listeners);
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
        let listeners = self.written(gateway)?;
        let used = ports(&listeners);
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
        let listeners = self.written(gateway)?;
        let used = secrets(&listeners);
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
        for listener in self.read().gateway_listeners(gateway) {
            self.remove_listener(gateway, listener.port);
        }
        self.remove_unused(gateway, &[]);
        self.remove_gateway_status(gateway);
        self.remove::<GatewayRow>(&[gateway]);
    }

    fn written(&self, gateway: &str) -> Result<Vec<Arc<Listener>>, GatewayProblem> {
        let read = self.read();
        match read.is_gateway(gateway) {
            true => Ok(read.gateway_listeners(gateway)),
            false => Err(GatewayProblem::Missing),
        }
    }

    fn remove_listener(&mut self, gateway: &str, port: u16) {
        let names = [gateway, Transport::Tcp.as_str(), &port_name(port)];
        self.remove::<GatewayListenerRow>(&names);
    }

    /// Removes the endpoints and secrets that these listeners of a gateway do not lead to.
    fn remove_unused(&mut self, gateway: &str, listeners: &[Arc<Listener>]) {
        let (ports, secrets) = (ports(listeners), secrets(listeners));
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

/// The ports of Services that listeners lead to.
fn ports(listeners: &[Arc<Listener>]) -> BTreeSet<ServicePort> {
    let backends = listeners.iter().flat_map(|one| one.backends());
    backends.map(|backend| backend.service_port()).collect()
}

/// The secrets that listeners name.
fn secrets(listeners: &[Arc<Listener>]) -> BTreeSet<&str> {
    listeners.iter().flat_map(|one| one.secrets()).collect()
}
