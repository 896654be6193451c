//! Data types of the mesh: nodes, services, checks, proxies, intentions, config entries, identities.
//!
//! Every type of Consul's HTTP API is defined here once, with Consul's field names and JSON form. The
//! crate is pure: no IO, clock or tasks. It decodes values ([`json`]), validates them with errors
//! that name the invalid field ([`Invalid`]), and computes what follows from values alone.

mod access_logs;
pub mod acl;
mod autopilot;
mod ca;
mod ca_configuration;
mod catalog;
mod chain_overrides;
mod check;
mod check_type;
mod config_entry;
mod connect_authorize;
mod coordinate;
mod definition;
pub mod duration;
mod exposed;
pub mod extension;
mod federation;
pub mod filters;
mod format_string;
pub mod hcl;
mod instance;
mod intention;
mod invalid;
pub mod json;
mod jwt_requirement;
mod kv;
mod locality;
mod meta;
pub mod name;
mod named;
mod node;
mod peering;
mod prepared_query;
mod protocol;
mod proxy;
mod rate_limits;
mod register;
mod schema;
mod secret;
pub mod served;
mod service;
mod session;
pub mod sni;
mod spiffe;
mod tenancy;
mod tenant;
pub mod timestamp;
pub mod transaction;
mod validate;
pub mod virtual_ip;
mod wan_address;

pub use access_logs::LogFormat;
pub use autopilot::AutopilotConfiguration;
pub use ca::{CaRoot, CaRoots};
pub use ca_configuration::{CaConfiguration, HIDDEN};
pub use catalog::ServiceNode;
pub use chain_overrides::ChainOverrides;
pub use check::{CheckDefinition, CheckStatus, HealthCheck};
pub use check_type::{CheckType, DefinedCheck, OUTPUT_MAX_SIZE, printed_url};
pub use config_entry::*;
pub use connect_authorize::ConnectAuthorize;
pub use coordinate::{Coordinate, NodeCoordinate};
pub use definition::{ConnectDefinition, DefinitionParts, ServiceDefinition, sidecar_id};
pub use federation::FederationState;
pub use instance::CheckServiceNode;
pub use intention::{
    HttpHeaderPermission, HttpPermission, Intention, IntentionAction, IntentionPermission,
    SOURCE_TYPE_CONSUL, precedence,
};
pub use invalid::Invalid;
pub use json::decode::Opaque;
pub use jwt_requirement::{JwtRequirement, RequiredClaim, RequiredProvider};
pub use kv::{KvEntry, KvValue, MAX_KEY};
pub use locality::{Distance, Locality, LocalityMode, PrioritizeByLocality};
pub use name::WILDCARD;
pub use node::Node;
pub use peering::{
    EstablishPeering, GeneratePeeringToken, PeerTrustBundle, Peering, PeeringRemote, PeeringState,
    PeeringStream, PeeringToken, STREAM_COUNTS, STREAM_WRITTEN, TokenRemote,
    validate_server_addresses,
};
pub use prepared_query::{
    InvalidQuery, MAX_QUERY_NAME, PreparedQuery, QueryDns, QueryFailover, QueryFailoverTarget,
    QueryScope, QueryTemplate, ServiceQuery, TemplateError, UnusableQuery, put_node_first,
};
pub use protocol::{Protocol, UnknownProtocol};
pub use proxy::{
    AccessLogs, AccessLogsType, ConnectProxy, EnvoyExtension, Expose, ExposePath, MeshGateway,
    MeshGatewayMode, MutualTlsMode, ProxyMode, TransparentProxy, Upstream, UpstreamId,
    UpstreamType,
};
pub use rate_limits::{InstanceRateLimits, RateLimits, RouteRateLimits};
pub use register::{DeregisterRequest, RegisterRequest, RegistrationParts};
pub use secret::Secret;
pub use service::{
    PeerMeta, ServiceAddress, ServiceConnect, ServiceInstance, ServiceKind, Weights,
};
pub use session::{
    InvalidSession, LockDelay, NewSession, ServiceCheck, Session, SessionBehavior, SessionRequest,
};
pub use spiffe::{InvalidSpiffeId, SpiffeId, TrustDomain};
pub use tenancy::{
    DEFAULT_TENANCY, EVERY_TENANCY, Ignored, InvalidTenancyName, MAX_TENANCY_NAME, NoPeer,
    NotServed, PeerName, ServiceName, Tenancy, TenancyName,
};
pub use tenant::{Namespace, NamespaceAcls, Partition};
pub use wan_address::{WAN_FAMILIES, wan_address};
