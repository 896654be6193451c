//! Recorded calls of the fake server.

use std::net::SocketAddr;

use legate_api::acl::{LoginRequest, LogoutRequest};
use legate_api::dataplane::GetEnvoyBootstrapParamsRequest;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::dns::QueryRequest;
use legate_api::serverdiscovery::WatchServersRequest;
use tonic::metadata::MetadataMap;

/// A method of the fake server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `DataplaneService.GetSupportedDataplaneFeatures`
    Features,
    /// `DataplaneService.GetEnvoyBootstrapParams`
    BootstrapParams,
    /// `ServerDiscoveryService.WatchServers`
    WatchServers,
    /// `ACLService.Login`
    Login,
    /// `ACLService.Logout`
    Logout,
    /// `DNSService.Query`
    Dns,
    /// `AggregatedDiscoveryService.DeltaAggregatedResources`
    Discovery,
}

/// The message of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A request for features, which has no fields.
    Features,
    /// A request for bootstrap parameters.
    BootstrapParams(GetEnvoyBootstrapParamsRequest),
    /// A request to watch servers.
    WatchServers(WatchServersRequest),
    /// Credentials.
    Login(LoginRequest),
    /// Token to delete.
    Logout(LogoutRequest),
    /// DNS query.
    Dns(QueryRequest),
    /// A message of a stream, recorded when the test reads it.
    Discovery(DeltaDiscoveryRequest),
}

/// A recorded call, including refused ones.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Method.
    pub call: Call,
    /// ACL token: `None` if it was not sent, empty if it was sent empty.
    pub token: Option<String>,
    /// All metadata.
    pub metadata: MetadataMap,
    /// `:authority` of the request.
    pub authority: Option<String>,
    /// Address of the client, unique per connection.
    pub peer: Option<SocketAddr>,
    /// Message.
    pub body: Body,
}

/// The caller's part of a [`Recorded`].
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) token: Option<String>,
    pub(super) metadata: MetadataMap,
    pub(super) authority: Option<String>,
    pub(super) peer: Option<SocketAddr>,
}
