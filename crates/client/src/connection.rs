//! A connection for callers: gRPC clients of one server that send the session's token.

use std::net::SocketAddr;
use std::sync::Arc;

use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::dns::dns_service_client::DnsServiceClient;
use legate_api::metadata;
use legate_model::Secret;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Largest accepted message, 512 MiB. The configuration of a large mesh is much smaller.
pub(crate) const MAX_MESSAGE: usize = 512 * 1024 * 1024;

/// An ACL token with its header.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) secret: Secret,
    header: MetadataValue<Ascii>,
    /// Accessor id of a token from a login.
    pub(crate) accessor: Option<Arc<str>>,
}

impl Token {
    /// `None` if the secret has characters that are not allowed in a header.
    pub(crate) fn new(secret: Secret, accessor: Option<&str>) -> Option<Self> {
        let mut header: MetadataValue<Ascii> = secret.expose().parse().ok()?;
        header.set_sensitive(true);
        Some(Self {
            secret,
            header,
            accessor: accessor.map(Arc::from),
        })
    }
}

/// A connection to a server that has accepted the session's token.
///
/// It can be used as long as the server keeps it open, even after the session has switched to
/// another server: open streams end when their users end them. It always refers to the same server.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Increases with every connection of a session, even if only the token is new.
    pub generation: u64,
    /// The server.
    pub server: SocketAddr,
    channel: AuthenticatedChannel,
}

impl Connection {
    pub(crate) fn new(
        generation: u64,
        server: SocketAddr,
        channel: Channel,
        token: Option<&Token>,
    ) -> Self {
        Self {
            generation,
            server,
            channel: authenticated(channel, token),
        }
    }

    /// Client for bootstrap parameters and features.
    #[must_use]
    pub fn dataplane(&self) -> DataplaneServiceClient<AuthenticatedChannel> {
        DataplaneServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Client for DNS over gRPC.
    #[must_use]
    pub fn dns(&self) -> DnsServiceClient<AuthenticatedChannel> {
        DnsServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Client for xDS.
    #[must_use]
    pub fn discovery(&self) -> AggregatedDiscoveryServiceClient<AuthenticatedChannel> {
        AggregatedDiscoveryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
    }
}

/// A channel that adds the token to calls. Clones share the connection.
pub type AuthenticatedChannel = InterceptedService<Channel, Authenticate>;

/// Adds `x-consul-token` to every call that does not already have one. Without a token it adds
/// nothing.
#[derive(Clone)]
pub struct Authenticate(Option<MetadataValue<Ascii>>);

impl Interceptor for Authenticate {
    fn call(&mut self, mut call: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0
            && !call.metadata().contains_key(metadata::TOKEN)
        {
            call.metadata_mut().insert(metadata::TOKEN, token.clone());
        }
        Ok(call)
    }
}

pub(crate) fn authenticated(channel: Channel, token: Option<&Token>) -> AuthenticatedChannel {
    let token = token.map(|token| token.header.clone());
    InterceptedService::new(channel, Authenticate(token))
}
