//! The handles of one server, for the code that assembles an API.
//!
//! Each endpoint receives only the handles that it names as parameters: a [`Reader`], a [`Writer`], the
//! [`Rights`] of tokens, the [`Ca`]. So types limit what each part of an API can change: DNS and xDS have no
//! writer, and HTTP cannot sign arbitrary requests; it only issues service leaves and changes the CA
//! configuration.
//!
//! [`Reader`]: legate_store::Reader
//! [`Writer`]: legate_store::Writer

use std::sync::Arc;

use legate_ca::{Ca, CaManager, ServiceLeaves};
use legate_checks::Reports;
use legate_proxycfg::Manager;
use legate_resources::Generator;
use legate_runtime::metrics::Registry;
use legate_runtime::{Clock, Spawner};
use legate_store::{Mirror, Store};
use legate_wan::Wan;
use legate_xds::Proxies;

use crate::acl::{Logins, Methods, Rights};
use crate::agent::Agent;
use crate::audit::Audit;
use crate::config::ServerConfig;
use crate::dns::{CurrentDns, Responder};
use crate::peering::Peerings;
use crate::problems::Problems;
use crate::rates::Rates;
use crate::replication;
use crate::telemetry::Traces;

/// All handles of one server.
#[derive(Clone)]
pub(crate) struct Handles {
    /// The settings that the server was started with.
    pub(crate) config: Arc<ServerConfig>,
    /// The catalog, config entries, CA state and ACL tables.
    pub(crate) store: Store,
    /// Token resolution, shared by all APIs.
    pub(crate) rights: Rights,
    /// Signs certificates.
    pub(crate) ca: Ca,
    /// Changes the CA configuration and provider.
    pub(crate) ca_manager: CaManager,
    /// Issues service leaves to callers without a proxy.
    pub(crate) leaves: ServiceLeaves,
    /// The clock, which tests can control.
    pub(crate) clock: Clock,
    /// Builds and updates a snapshot for every connected proxy.
    pub(crate) manager: Manager,
    /// The connected proxies, for status reports.
    pub(crate) proxies: Proxies,
    /// The auth methods, which verify logins.
    pub(crate) methods: Arc<Methods>,
    /// Reports results of TTL checks to this node's check runner.
    pub(crate) reports: Reports,
    /// Turns snapshots into Envoy resources, shared by all streams.
    pub(crate) generator: Arc<Generator>,
    /// Metrics of this server; two servers in one process do not share them.
    pub(crate) registry: Registry,
    /// The server in its role as agent of its node.
    pub(crate) agent: Arc<Agent>,
    /// What does not work at present.
    pub(crate) problems: Problems,
    /// The current DNS settings.
    pub(crate) dns: CurrentDns,
    /// The rate limiter.
    pub(crate) rates: Rates,
    /// The audit log.
    pub(crate) audit: Audit,
    /// The exporter of traces.
    pub(crate) traces: Traces,
    /// Servers of other datacenters. `None`: this one has no port for servers.
    pub(crate) wan: Option<Wan>,
    /// How the primary datacenter is followed. `None`: this is the primary.
    pub(crate) replication: Option<replication::Status>,
    /// Peerings with other clusters.
    pub(crate) peerings: Peerings,
    /// What is read of other datacenters, if there is a port for servers.
    pub(crate) mirror: Option<Mirror>,
    /// Spawns tasks that end with the server.
    pub(crate) spawner: Spawner,
}

impl Handles {
    /// Token resolution.
    pub(crate) fn rights(&self) -> Rights {
        self.rights.clone()
    }

    /// The login service.
    pub(crate) fn logins(&self) -> Logins {
        let (clock, config) = (self.clock.clone(), Arc::clone(&self.config));
        let (reader, writer) = (self.store.reader(), self.store.writer());
        Logins::new(reader, writer, clock, config, Arc::clone(&self.methods))
    }

    /// The DNS responder.
    pub(crate) fn responder(&self) -> Responder {
        let (clock, config) = (self.clock.clone(), Arc::clone(&self.config));
        let (settings, rates) = (self.dns.clone(), self.rates.clone());
        let responder = Responder::new(
            self.store.reader(),
            self.rights(),
            clock,
            config,
            settings,
            rates,
        );
        responder.with_wan(self.wan.clone())
    }
}
