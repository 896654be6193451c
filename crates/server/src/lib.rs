//! The control plane: HTTP and gRPC APIs, DNS, and their composition.
//!
//! This crate joins the store, the CA, proxycfg, resources and xDS into one [`Server`] that other
//! programs can start inside themselves (`legate dev`, tests) or run alone (`legate-server`).
//! It contains no mesh logic: authorization, proxy configuration and storage are in the crates below.
//!
//! Modules import only modules that come earlier in this list:
//!
//! 1. `config`, `operations`: settings as plain values. `net`: accepting connections.
//! 2. `acl`: token resolution. `api_error`: error responses.
//! 3. `own_node`, `distance`, `prepared`, `entries`, `registration`: reads and writes as functions
//!    of a state, shared by all APIs.
//! 4. `audit`, `certificate`, `rates`, `telemetry`, `dns`: services that run next to the store. `seed`: rows
//!    written at startup. `gateway_reports`: what proxies say about gateways. `agent`: the server in its role as
//!    agent of its node.
//!    `rehearsal`: whether settings could start a server. `wan`: servers of other datacenters. `replication`: rows of
//!    the primary datacenter. `primary_ca`: its CA. `mirror`: what proxies use of other datacenters.
//! 5. `handles`: shared handles to all of the above.
//! 6. `grpc` and `http`: the APIs. In `http`, the route table imports the endpoints, never the reverse.
//! 7. `server` wires the parts together and starts them; `program` adds signals and exit handling.

mod acl;
mod agent;
mod api_error;
mod audit;
mod certificate;
mod config;
mod distance;
mod dns;
mod entries;
mod federation;
mod gateway_reports;
mod grpc;
mod handles;
mod http;
mod mirror;
mod net;
mod operations;
mod own_node;
mod peering;
mod prepared;
mod primary_ca;
mod problems;
mod program;
mod rates;
mod registration;
mod rehearsal;
mod replication;
mod seed;
mod server;
mod sessions;
mod start_error;
mod telemetry;
mod tenants;
mod wan;

pub use agent::{Reload, ReloadError};
pub use audit::AuditError;
pub use certificate::CertificateError;
pub use config::dns::{
    DnsDomains, DnsSettings, DnsSoa, InvalidDomain, RecursorStrategy, ServiceTtls,
};
pub use config::{
    AclConfig, AgentConfig, DefaultPolicy, Definitions, EtcdConfig, GatewayAddress,
    InvalidGatewayAddress, PrimaryGateways, ServerConfig, StoreConfig, TokenSet, WanSettings,
};
pub use legate_ca::CaConfig;
pub use legate_checks::{Scripts, Settings as CheckSettings};
pub use legate_identity::tls::AgentFiles;
pub use legate_intentions::Action as IntentionAction;
pub use net::{ApiLimit, ConnectionLimits};
pub use operations::{
    AuditSink, HttpPolicy, LimitMode, MoreListeners, QueryTimes, RequestLimits, SizeLimits,
    TelemetryConfig, TlsPolicy, TlsVersion, UnixSocket,
};
pub use own_node::CONSUL_VERSION;
pub use program::{Program, run};
pub use rehearsal::rehearse;
pub use server::{Parts, Server};
pub use start_error::StartError;
pub use telemetry::TelemetryError;
