//! The handles that one server has, for the places that put an API together.
//!
//! What serves a request gets those that it names, each a value of its own: a [`Reader`], a
//! [`Writer`], the [`Rights`] of tokens, the [`Ca`] that signs. So what a part of an API can do to
//! the mesh stands in its types: DNS and xDS have no writer, and HTTP has nothing that signs what it is
//! given: it yields leaves of services, and changes the CA's configuration.
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
use legate_store::Store;
use legate_xds::Proxies;

use crate::acl::{Logins, Methods, Rights};
use crate::agent::Agent;
use crate::audit::Audit;
use crate::config::ServerConfig;
use crate::dns::{CurrentDns, Responder};
use crate::rates::Rates;
use crate::telemetry::Traces;

/// All handles of one server.
#[derive(Clone)]
pub(crate) struct Handles {
    /// The settings the server was started with.
    pub(crate) config: Arc<ServerConfig>,
    /// The catalog, config entries, CA state and ACL tables.
    pub(crate) store: Store,
    /// What tokens allow, resolved once for all APIs.
    pub(crate) rights: Rights,
    /// Signs certificates.
    pub(crate) ca: Ca,
    /// Changes what certificates are signed with.
    pub(crate) ca_manager: CaManager,
    /// Yields leaves of services for callers without a proxy.
    pub(crate) leaves: ServiceLeaves,
    /// The time, as tests want it to be.
    pub(crate) clock: Clock,
    /// Keeps a snapshot for every proxy that is connected.
    pub(crate) manager: Manager,
    /// The proxies that are connected, for people.
    pub(crate) proxies: Proxies,
    /// What proofs of identity are verified with.
    pub(crate) methods: Arc<Methods>,
    /// Hands reports for TTL checks to the runner of this node's checks.
    pub(crate) reports: Reports,
    /// Turns snapshots into Envoy resources, shared by all streams.
    pub(crate) generator: Arc<Generator>,
    /// Metrics of this server; two servers in one process do not share them.
    pub(crate) registry: Registry,
    /// The server as the agent of its node.
    pub(crate) agent: Arc<Agent>,
    /// How DNS answers now.
    pub(crate) dns: CurrentDns,
    /// How many requests are answered.
    pub(crate) rates: Rates,
    /// Where requests are logged.
    pub(crate) audit: Audit,
    /// Takes the traces of requests.
    pub(crate) traces: Traces,
    /// Starts tasks that end with the server.
    pub(crate) spawner: Spawner,
}

impl Handles {
    /// What tokens allow.
    pub(crate) fn rights(&self) -> Rights {
        self.rights.clone()
    }

    /// What exchanges proofs for tokens.
    pub(crate) fn logins(&self) -> Logins {
        let (clock, config) = (self.clock.clone(), Arc::clone(&self.config));
        let (reader, writer) = (self.store.reader(), self.store.writer());
        Logins::new(reader, writer, clock, config, Arc::clone(&self.methods))
    }

    /// What answers DNS messages.
    pub(crate) fn responder(&self) -> Responder {
        let (clock, config) = (self.clock.clone(), Arc::clone(&self.config));
        let (settings, rates) = (self.dns.clone(), self.rates.clone());
        Responder::new(
            self.store.reader(),
            self.rights(),
            clock,
            config,
            settings,
            rates,
        )
    }
}
