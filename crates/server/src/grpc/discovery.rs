//! `ServerDiscoveryService`: the servers available to dataplanes. The list contains this server only.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream;
use legate_api::serverdiscovery::server_discovery_service_server::ServerDiscoveryService;
use legate_api::serverdiscovery::{Server, WatchServersRequest, WatchServersResponse};
use legate_runtime::CancellationToken;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::auth;
use crate::acl::Rights;
use crate::config::ServerConfig;
use crate::own_node::CONSUL_VERSION;

pub(super) struct Service {
    rights: Rights,
    config: Arc<ServerConfig>,
    stop: CancellationToken,
}

impl Service {
    pub(super) fn new(rights: Rights, config: Arc<ServerConfig>, stop: CancellationToken) -> Self {
        Self {
            rights,
            config,
            stop,
        }
    }

    /// Constant while the server runs.
    fn servers(&self) -> WatchServersResponse {
        let config = &self.config;
        WatchServersResponse {
            servers: vec![Server {
                id: config.node_name.clone(),
                address: config.advertise.to_string(),
                version: CONSUL_VERSION.to_owned(),
            }],
        }
    }
}

#[tonic::async_trait]
impl ServerDiscoveryService for Service {
    type WatchServersStream =
        Pin<Box<dyn Stream<Item = Result<WatchServersResponse, Status>> + Send>>;

    async fn watch_servers(
        &self,
        request: Request<WatchServersRequest>,
    ) -> Result<Response<Self::WatchServersStream>, Status> {
        let token = auth::token(request.metadata()).to_owned();
        auth::any_valid_token(&self.rights, &token)?;
        let end = auth::ended(self.rights.clone(), token, self.stop.clone());
        let end = async move { Some((Err(end.await), Step::Done)) };
        let first = Step::First(self.servers(), Box::pin(end));
        let responses = stream::unfold(first, |step| async {
            match step {
                Step::First(servers, end) => Some((Ok(servers), Step::Wait(end))),
                Step::Wait(end) => end.await,
                Step::Done => None,
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

type Last = Option<(Result<WatchServersResponse, Status>, Step)>;

/// State of a watch: sends one message at once, then waits until it ends with an error.
enum Step {
    First(
        WatchServersResponse,
        Pin<Box<dyn Future<Output = Last> + Send>>,
    ),
    Wait(Pin<Box<dyn Future<Output = Last> + Send>>),
    Done,
}
