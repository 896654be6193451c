//! A connection as callers get it: gRPC clients of one server, with the session's token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::dns::dns_service_client::DnsServiceClient;
use legate_api::metadata;
use legate_model::Secret;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::transport::channel::ResponseFuture;
use tower::Service;

/// Largest message that is accepted, 512 MiB: the configuration of a large mesh is much smaller.
pub(crate) const MAX_MESSAGE: usize = 512 * 1024 * 1024;

/// An ACL token as it is sent.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) secret: Secret,
    header: HeaderValue,
    /// Public name of a token from a login.
    pub(crate) accessor: Option<Arc<str>>,
}

impl Token {
    /// `None` when the secret has characters that a header cannot hold.
    pub(crate) fn new(secret: Secret, accessor: Option<&str>) -> Option<Self> {
        let mut header = HeaderValue::try_from(secret.expose()).ok()?;
        header.set_sensitive(true);
        Some(Self {
            secret,
            header,
            accessor: accessor.map(Arc::from),
        })
    }
}

/// A server that has accepted the session's token.
///
/// It can be used for as long as the server keeps it open, also after the session has moved to
/// another server: open streams end when their users end them. It always leads to the same server.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Grows with every connection of a session, also when only the token is new.
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
            channel: AuthenticatedChannel::new(channel, token),
        }
    }

    /// Bootstrap parameters and features.
    #[must_use]
    pub fn dataplane(&self) -> DataplaneServiceClient<AuthenticatedChannel> {
        DataplaneServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// DNS over gRPC.
    #[must_use]
    pub fn dns(&self) -> DnsServiceClient<AuthenticatedChannel> {
        DnsServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// xDS.
    #[must_use]
    pub fn discovery(&self) -> AggregatedDiscoveryServiceClient<AuthenticatedChannel> {
        AggregatedDiscoveryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
    }
}

/// A channel that adds `x-consul-token` to every call that does not carry one already. Without a
/// token it adds nothing. Clones share the connection.
#[derive(Clone, Debug)]
pub struct AuthenticatedChannel {
    channel: Channel,
    token: Option<HeaderValue>,
}

impl AuthenticatedChannel {
    pub(crate) fn new(channel: Channel, token: Option<&Token>) -> Self {
        Self {
            channel,
            token: token.map(|token| token.header.clone()),
        }
    }
}

impl Service<Request<Body>> for AuthenticatedChannel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request
                .headers_mut()
                .entry(metadata::TOKEN)
                .or_insert_with(|| token.clone());
        }
        Service::call(&mut self.channel, request)
    }
}
