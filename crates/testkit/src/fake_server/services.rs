//! The gRPC services of the fake server: each records the call, then behaves as scripted.

use std::pin::Pin;

use legate_api::acl::acl_service_server::{AclService, AclServiceServer};
use legate_api::acl::{LoginRequest, LoginResponse, LoginToken, LogoutRequest, LogoutResponse};
use legate_api::dataplane::dataplane_service_server::{DataplaneService, DataplaneServiceServer};
use legate_api::dataplane::{
    DataplaneFeatureSupport, DataplaneFeatures, GetEnvoyBootstrapParamsRequest,
    GetEnvoyBootstrapParamsResponse, GetSupportedDataplaneFeaturesRequest,
    GetSupportedDataplaneFeaturesResponse,
};
use legate_api::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::dns::dns_service_server::{DnsService, DnsServiceServer};
use legate_api::dns::{QueryRequest, QueryResponse};
use legate_api::metadata;
use legate_api::serverdiscovery::server_discovery_service_server::{
    ServerDiscoveryService, ServerDiscoveryServiceServer,
};
use legate_api::serverdiscovery::{WatchServersRequest, WatchServersResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};

use super::ads::{self, AdsStream};
use super::record::{Body, Call, Caller};
use super::script::{Script, Watched};

/// `:authority` of a request, stored in its extensions because tonic drops it.
#[derive(Clone)]
pub(super) struct Authority(pub(super) Option<String>);

#[derive(Clone)]
pub(super) struct Services {
    pub(super) script: Script,
    accepted: mpsc::Sender<AdsStream>,
}

impl Services {
    pub(super) fn new(script: Script, accepted: mpsc::Sender<AdsStream>) -> Self {
        Self { script, accepted }
    }

    pub(super) fn add_to<L: Clone>(self, mut server: Server<L>) -> Router<L> {
        server
            .add_service(DataplaneServiceServer::new(self.clone()))
            .add_service(ServerDiscoveryServiceServer::new(self.clone()))
            .add_service(AclServiceServer::new(self.clone()))
            .add_service(DnsServiceServer::new(self.clone()))
            .add_service(AggregatedDiscoveryServiceServer::new(self))
    }
}

fn caller<T>(request: &Request<T>) -> Caller {
    let token = request.metadata().get(metadata::TOKEN);
    Caller {
        token: token.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
        metadata: request.metadata().clone(),
        authority: request
            .extensions()
            .get::<Authority>()
            .and_then(|authority| authority.0.clone()),
        peer: request.remote_addr(),
    }
}

#[tonic::async_trait]
impl DataplaneService for Services {
    async fn get_supported_dataplane_features(
        &self,
        request: Request<GetSupportedDataplaneFeaturesRequest>,
    ) -> Result<Response<GetSupportedDataplaneFeaturesResponse>, Status> {
        let caller = caller(&request);
        self.script
            .enter(Call::Features, &caller, Some(Body::Features))
            .await?;
        self.script.authenticate(&caller)?;
        let known = [
            DataplaneFeatures::WatchServers,
            DataplaneFeatures::EdgeCertificateManagement,
            DataplaneFeatures::EnvoyBootstrapConfiguration,
            DataplaneFeatures::Fips,
        ];
        let supported_dataplane_features = known
            .map(|feature| DataplaneFeatureSupport {
                feature_name: feature.into(),
                supported: self.script.supported(feature),
            })
            .to_vec();
        Ok(Response::new(GetSupportedDataplaneFeaturesResponse {
            supported_dataplane_features,
        }))
    }

    async fn get_envoy_bootstrap_params(
        &self,
        request: Request<GetEnvoyBootstrapParamsRequest>,
    ) -> Result<Response<GetEnvoyBootstrapParamsResponse>, Status> {
        let caller = caller(&request);
        let body = Body::BootstrapParams(request.into_inner());
        self.script
            .enter(Call::BootstrapParams, &caller, Some(body))
            .await?;
        self.script.authenticate(&caller)?;
        Ok(Response::new(self.script.params()))
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ServerDiscoveryService for Services {
    type WatchServersStream = Responses<WatchServersResponse>;

    async fn watch_servers(
        &self,
        request: Request<WatchServersRequest>,
    ) -> Result<Response<Self::WatchServersStream>, Status> {
        let caller = caller(&request);
        let body = Body::WatchServers(request.into_inner());
        self.script
            .enter(Call::WatchServers, &caller, Some(body))
            .await?;
        self.script.authenticate(&caller)?;
        let follow = Follow::new(self.script.watched());
        let stream = futures_util::stream::unfold(Some(follow), |follow| async move {
            let mut follow = follow?;
            let item = follow.next().await?;
            let rest = item.is_ok().then_some(follow);
            Some((item, rest))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// A watch of the server list.
struct Follow {
    watched: watch::Receiver<Watched>,
    /// The version of the list that was sent last.
    sent: Option<u64>,
    ended: u64,
}

impl Follow {
    fn new(watched: watch::Receiver<Watched>) -> Self {
        let ended = watched.borrow().ended;
        Self {
            watched,
            sent: None,
            ended,
        }
    }

    /// The next message. The latest list is sent before the end of the stream.
    async fn next(&mut self) -> Option<Result<WatchServersResponse, Status>> {
        loop {
            let watched = self.watched.borrow_and_update().clone();
            if self.sent != Some(watched.version) {
                self.sent = Some(watched.version);
                let servers = watched.servers;
                return Some(Ok(WatchServersResponse { servers }));
            }
            if watched.ended != self.ended {
                return watched.status.map(Err);
            }
            self.watched.changed().await.ok()?;
        }
    }
}

#[tonic::async_trait]
impl AclService for Services {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let caller = caller(&request);
        let request = request.into_inner();
        self.script
            .enter(Call::Login, &caller, Some(Body::Login(request.clone())))
            .await?;
        let (accessor_id, secret_id) = self.script.log_in(&request)?;
        Ok(Response::new(LoginResponse {
            token: Some(LoginToken {
                accessor_id,
                secret_id,
            }),
        }))
    }

    async fn logout(
        &self,
        request: Request<LogoutRequest>,
    ) -> Result<Response<LogoutResponse>, Status> {
        let caller = caller(&request);
        let request = request.into_inner();
        self.script
            .enter(Call::Logout, &caller, Some(Body::Logout(request.clone())))
            .await?;
        self.script.log_out(&request);
        Ok(Response::new(LogoutResponse {}))
    }
}

#[tonic::async_trait]
impl DnsService for Services {
    async fn query(
        &self,
        request: Request<QueryRequest>,
    ) -> Result<Response<QueryResponse>, Status> {
        let caller = caller(&request);
        let question = request.into_inner();
        self.script
            .enter(Call::Dns, &caller, Some(Body::Dns(question.clone())))
            .await?;
        let msg = self.script.dns_answer()(&question)?;
        Ok(Response::new(QueryResponse { msg }))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Services {
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let caller = caller(&request);
        self.script.enter(Call::Discovery, &caller, None).await?;
        self.script.authenticate(&caller)?;
        let (responses, outgoing) = mpsc::channel(ads::RESPONSES);
        let stream = AdsStream {
            caller,
            script: self.script.clone(),
            requests: request.into_inner(),
            responses,
        };
        self.accepted
            .try_send(stream)
            .map_err(|_| Status::resource_exhausted("the test does not take its ADS streams"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}
