//! The control plane: HTTP and gRPC APIs, DNS, and their composition.
//!
//! This crate joins the store, the CA, proxycfg, resources and xDS into one [`Server`] that other
//! programs can start inside themselves (`legate dev`, tests) or run alone (`legate-server`).
//! It decides nothing about the mesh: who may call whom, what a proxy gets and how data is
//! stored live in the crates below.
//!
//! Files import each other downwards only. From the bottom up:
//!
//! 1. Settings, as values: `config`, `operations`; and how connections are accepted: `net`.
//! 2. What a token allows (`acl`), and how a request is refused (`api_error`).
//! 3. Questions and writes as functions of a state, whoever asks: `own_node`, `gateways`, `distance`, `prepared`,
//!    `entries`, `registration`.
//! 4. What a server has besides its tables (`audit`, `certificate`, `rates`, `telemetry`), what is in those from
//!    the first moment (`seed`), what answers DNS (`dns`), and the server as the agent of its node (`agent`).
//! 5. The handles of all that: `handles`.
//! 6. The APIs with handles: `grpc`, and `http`, where endpoints stand below the table of routes.
//! 7. `server` starts all of it, and `program` makes it a whole program.

mod acl;
mod agent;
mod api_error;
mod audit;
mod certificate;
mod config;
mod distance;
mod dns;
mod entries;
mod gateways;
mod grpc;
mod handles;
mod http;
mod net;
mod operations;
mod own_node;
mod prepared;
mod program;
mod rates;
mod registration;
mod seed;
mod server;
mod sessions;
mod start_error;
mod telemetry;
mod tenants;

pub use agent::{Reload, ReloadError};
pub use audit::AuditError;
pub use certificate::CertificateError;
pub use config::dns::{
    DnsDomains, DnsSettings, DnsSoa, InvalidDomain, RecursorStrategy, ServiceTtls,
};
pub use config::{
    AclConfig, AgentConfig, DefaultPolicy, Definitions, EtcdConfig, ServerConfig, StoreConfig,
    TokenSet,
};
pub use legate_ca::CaConfig;
pub use legate_checks::{Scripts, Settings as CheckSettings};
pub use legate_intentions::Action as IntentionAction;
pub use net::{ApiLimit, ConnectionLimits};
pub use operations::{
    AuditSink, HttpPolicy, LimitMode, MoreListeners, QueryTimes, RequestLimits, SizeLimits,
    TelemetryConfig, TlsPolicy, TlsVersion, UnixSocket,
};
pub use own_node::CONSUL_VERSION;
pub use program::{Program, run};
pub use server::{Parts, Server};
pub use start_error::StartError;
pub use telemetry::TelemetryError;
