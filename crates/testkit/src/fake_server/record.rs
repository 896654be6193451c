//! What arrived at the fake server.

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

/// Message of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Features are asked for without any.
    Features,
    /// Whose parameters are wanted.
    BootstrapParams(GetEnvoyBootstrapParamsRequest),
    /// Which addresses are wanted.
    WatchServers(WatchServersRequest),
    /// Credentials.
    Login(LoginRequest),
    /// Token to delete.
    Logout(LogoutRequest),
    /// Question.
    Dns(QueryRequest),
    /// One message of a stream, recorded when the test has read it.
    Discovery(DeltaDiscoveryRequest),
}

/// A call that arrived, refused ones too.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Method.
    pub call: Call,
    /// ACL token: `None` without the key, empty when it was sent empty.
    pub token: Option<String>,
    /// All metadata.
    pub metadata: MetadataMap,
    /// `:authority` of the request.
    pub authority: Option<String>,
    /// Address of the client: one a connection.
    pub peer: Option<SocketAddr>,
    /// Message.
    pub body: Body,
}

/// Who calls: what [`Recorded`] says of it.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) token: Option<String>,
    pub(super) metadata: MetadataMap,
    pub(super) authority: Option<String>,
    pub(super) peer: Option<SocketAddr>,
}
