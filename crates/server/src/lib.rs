//! The control plane: HTTP and gRPC APIs, DNS, and their composition.
//!
//! This crate joins the store, the CA, proxycfg, resources and xDS into one [`Server`] that other
//! programs can start inside themselves (`legate dev`, tests) or run alone (`legate-server`).
//! It decides nothing about the mesh: who may call whom, what a proxy gets and how data is
//! stored live in the crates below.

mod acl;
mod audit;
mod certificate;
mod config;
mod control;
mod dns;
mod grpc;
mod handles;
mod http;
mod net;
mod operations;
mod program;
mod reload;
mod seed;
mod server;
mod sessions;

pub use audit::AuditError;
pub use certificate::CertificateError;
pub use config::{
    AclConfig, AgentConfig, DefaultPolicy, EtcdConfig, KvConfig, ServerConfig, StoreConfig,
};
pub use control::Control;
pub use legate_ca::CaConfig;
pub use legate_intentions::Action as IntentionAction;
pub use net::{ApiLimit, ConnectionLimits};
pub use operations::{
    AgentTokens, AuditSink, HttpPolicy, LimitMode, MoreListeners, QueryTimes, RequestLimits,
    ScriptChecks, SizeLimits, TelemetryConfig, TlsPolicy, TlsVersion, UnixSocket,
};
pub use program::{Program, Settings, run};
pub use server::{Parts, Server, StartError};
