//! Rate limiting of gRPC calls, and what servers of peered clusters may call. As in Consul, xDS streams are exempt: rejecting them would disconnect proxies.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::connection::Caller;
use crate::rates::{Rates, TOO_MANY};

/// The calls that count as writes.
const WRITES: [&str; 5] = [
    "/hashicorp.consul.internal.peerstream.PeerStreamService/StreamResources",
    "/hashicorp.consul.internal.peerstream.PeerStreamService/ExchangeSecret",
    "/hashicorp.consul.acl.ACLService/Login",
    "/hashicorp.consul.acl.ACLService/Logout",
    "/hashicorp.consul.connectca.ConnectCAService/Sign",
];

const XDS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";

/// The only service for connections of [`Caller::Peer`].
const PEERING: &str = "/hashicorp.consul.internal.peerstream.PeerStreamService/";

/// Wraps a service in [`Limited`].
#[derive(Debug, Clone)]
pub(super) struct LimitRates(pub(super) Rates);

impl<S> Layer<S> for LimitRates {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            rates: self.0.clone(),
        }
    }
}

/// Rejects calls beyond the rate limits with `RESOURCE_EXHAUSTED`.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    inner: S,
    rates: Rates,
}

impl<S, B> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path();
        let is_write = WRITES.contains(&method);
        let is_peer = request.extensions().get() == Some(&Caller::Peer);
        if is_peer && !method.starts_with(PEERING) {
            let refused = Status::permission_denied(
                "servers of peered clusters can call the peering service only: use another server name",
            );
            return Either::Right(ready(Ok(refused.into_http())));
        }
        if !method.starts_with(XDS) && self.rates.refuse(is_write, method) {
            let refused = Status::resource_exhausted(TOO_MANY).into_http();
            return Either::Right(ready(Ok(refused)));
        }
        Either::Left(self.inner.call(request))
    }
}
