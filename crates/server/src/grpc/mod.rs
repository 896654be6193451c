//! The gRPC API: Consul's public services and delta xDS, with and without TLS. It assembles the services and
//! authorizes calls; the responses come from the crates below.

mod access_logs;
mod acl;
mod auth;
mod authority;
mod connect_ca;
mod connection;
mod dataplane;
mod discovery;
mod dns;
mod limited;
mod panics;
mod peering;
mod xds;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use legate_api::acl::acl_service_server::AclServiceServer;
use legate_api::connectca::connect_ca_service_server::ConnectCaServiceServer;
use legate_api::dataplane::dataplane_service_server::DataplaneServiceServer;
use legate_api::dns::dns_service_server::DnsServiceServer;
use legate_api::internal::peerstream::peer_stream_service_server::PeerStreamServiceServer;
use legate_api::serverdiscovery::server_discovery_service_server::ServerDiscoveryServiceServer;
use legate_runtime::{BoxError, CancellationToken};
use legate_xds::XdsServer;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::rustls::ServerConfig as TlsConfig;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tower::layer::util::{Identity, Stack};

use crate::handles::Handles;
use crate::peering::LARGEST;
use connection::{Acceptor, Tls};
use limited::LimitRates;
use panics::ContainPanics;

/// Maximum concurrent calls per connection. Consul's limit.
const MAX_STREAMS: u32 = 2_048;

/// Timeout from the start of a call to the start of its response, including receipt of the request. Does not
/// apply to streams that have started.
const CALL: Duration = Duration::from_secs(30);

/// Idle time before a keepalive ping.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Time in which a keepalive ping must be answered before the connection is closed.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that open calls get at shutdown. Streams end at once.
const GRACE: Duration = Duration::from_secs(1);

/// Time limit for closing the remaining connections.
const CLOSE: Duration = Duration::from_secs(1);

/// Listeners of the gRPC API.
pub(crate) struct Listeners {
    /// Without TLS.
    pub(crate) plain: Vec<TcpListener>,
    /// With TLS; ALPN offers HTTP/2.
    pub(crate) tls: Option<(Vec<TcpListener>, Arc<TlsConfig>)>,
    /// With TLS for servers of peered clusters, on the same listeners; `None` without a mesh.
    pub(crate) tls_for_peers: Option<Arc<TlsConfig>>,
}

/// Serves until `stop`. Then ends all streams and closes connections that do not end in time.
///
/// # Errors
/// If a service cannot be built, or a listener fails.
pub(crate) async fn serve(
    handles: Handles,
    listeners: Listeners,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let router = router(&handles, &stop)?;
    let tasks = handles.spawner.child("grpc");
    let (acceptor, connections) = Acceptor::new(handles.config.connections.grpc, stop.clone());
    for listener in listeners.plain {
        let acceptor = acceptor.clone();
        tasks.spawn("plaintext listener", async move {
            acceptor.accept_plain(listener).await
        });
    }
    let (with_tls, config) = listeners.tls.unzip();
    for (listener, config) in with_tls
        .unwrap_or_default()
        .into_iter()
        .zip(config.into_iter().cycle())
    {
        let (acceptor, spawner) = (acceptor.clone(), tasks.spawner());
        let tls = Tls {
            config,
            for_peers: listeners.tls_for_peers.clone(),
            peering_name: format!(
                "server.{}.peering.",
                handles.config.datacenter.to_ascii_lowercase()
            ),
        };
        tasks.spawn("TLS listener", async move {
            acceptor.accept_tls(listener, tls, spawner).await
        });
    }
    let connections = ReceiverStream::new(connections)
        .map(|connection| Ok::<_, Infallible>(authority::Tolerant::new(connection)));
    let serving = router.serve_with_incoming_shutdown(connections, stop.cancelled());
    tokio::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result.map_err(Into::into),
        () = stop.cancelled() => match timeout(GRACE, &mut serving).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => {
                tracing::info!("closing gRPC connections that have not ended in time");
                Ok(())
            }
        },
    };
    acceptor.close_all(CLOSE).await;
    if let Err(error) = tasks.stop(CLOSE).await {
        tracing::debug!(%error, "gRPC listeners");
    }
    result
}

/// Checks a call before its service handles it.
type Check = fn(Request<()>) -> Result<Request<()>, Status>;
type Layers = Stack<LimitRates, Stack<ContainPanics, Stack<InterceptorLayer<Check>, Identity>>>;

fn router(handles: &Handles, stop: &CancellationToken) -> Result<Router<Layers>, BoxError> {
    let (reader, rights) = (handles.store.reader(), handles.rights());
    let (config, datacenter) = (&handles.config, &handles.config.datacenter);
    let xds = XdsServer::new(xds::service(handles, stop.clone())?);
    let dataplane = dataplane::Service::new(reader, rights.clone(), datacenter.clone());
    let dataplane = DataplaneServiceServer::new(dataplane);
    let discovery = discovery::Service::new(rights.clone(), config.clone(), stop.clone());
    let discovery = ServerDiscoveryServiceServer::new(discovery);
    let acl = acl::Service::new(handles);
    let acl = AclServiceServer::new(acl);
    let ca = connect_ca::Service::new(handles, stop.clone());
    let ca = ConnectCaServiceServer::new(ca);
    let dns = DnsServiceServer::new(dns::Service::new(handles.responder(), rights));
    let peering = peering::Service::new(handles.peerings.clone(), stop.clone());
    let peering = PeerStreamServiceServer::new(peering)
        .max_decoding_message_size(LARGEST)
        .max_encoding_message_size(LARGEST);
    Ok(Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .timeout(CALL)
        .layer(InterceptorLayer::new(auth::check_tenancy as Check))
        .layer(ContainPanics)
        .layer(LimitRates(handles.rates.clone()))
        .add_service(xds)
        .add_service(dataplane)
        .add_service(discovery)
        .add_service(acl)
        .add_service(ca)
        .add_service(dns)
        .add_service(peering))
}
