//! The servers: they speak the real protocol, tell sidecars about each other, and serve one resource,
//! the cluster `change`, to every proxy. They are in this process, and all but one of them survive.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_api::discovery::{DeltaDiscoveryRequest, Resource};
use legate_api::type_url::CLUSTER;
use legate_envoy_json::decode;
use legate_runtime::{Scope, Spawner};
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::{
    AdsStream, FakeServer, FakeServerOptions, resource, server_entry,
};
use prost_types::Any;
use serde_json::json;
use tokio::sync::watch;

use crate::network::{FIRST, SERVERS};

/// The port of gRPC over TLS.
pub(crate) const GRPC: u16 = 8503;

/// The name in the servers' certificates.
pub(crate) const SERVER_NAME: &str = "server.test";

/// The name of the resource.
const NAME: &str = "change";

/// The servers, which share the version of the resource.
pub(crate) struct Servers {
    servers: Vec<FakeServer>,
    version: watch::Sender<u16>,
    ca: TestCa,
    _scope: Scope,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        let ca = TestCa::new();
        let tls = ca.server_config(&[SERVER_NAME], ServerTls::default());
        let scope = Scope::new("servers");
        let version = watch::Sender::new(1);
        let mut servers = Vec::new();
        for place in 0..SERVERS {
            let options = FakeServerOptions {
                ip: address(place).into(),
                port: GRPC,
                tls: Some(tls.clone()),
            };
            let server = FakeServer::start(options).await;
            let addresses = (0..SERVERS).map(|place| address(place).to_string());
            let list = addresses.map(|address| server_entry(&address));
            server.script().servers(list.collect());
            server
                .script()
                .bootstrap_params(GetEnvoyBootstrapParamsResponse {
                    identity: "web".to_owned(),
                    node_name: "node-1".to_owned(),
                    ..GetEnvoyBootstrapParamsResponse::default()
                });
            let (streams, version) = (server.ads_streams(), version.clone());
            let spawner = scope.spawner();
            scope.spawn("streams", async move {
                while let Some(stream) = streams.next().await {
                    serve(stream, version.subscribe(), &spawner);
                }
                Ok::<_, Infallible>(())
            });
            servers.push(server);
        }
        Self {
            servers,
            version,
            ca,
            _scope: scope,
        }
    }

    /// The file that verifies their certificates.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.ca.ca_file()
    }

    /// Kills a server: its connections are closed, and new ones refused.
    pub(crate) async fn kill(&mut self, place: u8) {
        self.servers[usize::from(place)].stop().await;
    }

    pub(crate) async fn restart(&mut self, place: u8) {
        self.servers[usize::from(place)].restart().await;
    }

    /// Changes the resource, which all servers send to their clients. Returns the address in it.
    pub(crate) fn change(&self) -> String {
        self.version.send_modify(|version| *version += 1);
        self.current()
    }

    /// The address in the resource.
    pub(crate) fn current(&self) -> String {
        format!("{}:20000", endpoint(*self.version.borrow()))
    }
}

/// The address of a server.
pub(crate) fn address(place: u8) -> Ipv4Addr {
    let [a, b, c, d] = FIRST.octets();
    Ipv4Addr::new(a, b, c, d + place)
}

fn endpoint(version: u16) -> IpAddr {
    let [high, low] = version.to_be_bytes();
    Ipv4Addr::new(10, 77, high, low).into()
}

/// Serves a stream until its client ends or loses it.
fn serve(mut stream: AdsStream, mut version: watch::Receiver<u16>, spawner: &Spawner) {
    let stopped = spawner.token();
    spawner.spawn("stream", async move {
        let mut session = Session::default();
        loop {
            tokio::select! {
                () = stopped.cancelled() => break,
                request = stream.wait() => match request {
                    Some(request) => {
                        let version = *version.borrow();
                        session.requested(&stream, &request, version).await;
                    }
                    None => break,
                },
                Ok(()) = version.changed(), if session.subscribed => {
                    let version = *version.borrow_and_update();
                    session.send(&stream, CLUSTER, vec![cluster(version)]).await;
                }
            }
        }
        Ok::<_, Infallible>(())
    });
}

/// What a client has asked for.
#[derive(Default)]
struct Session {
    types: Vec<String>,
    /// Whether it gets the resource.
    subscribed: bool,
    nonce: u64,
}

impl Session {
    /// Responds to the first request of each type: without resources, except for clusters.
    async fn requested(
        &mut self,
        stream: &AdsStream,
        request: &DeltaDiscoveryRequest,
        version: u16,
    ) {
        if self.types.contains(&request.type_url) {
            return;
        }
        self.types.push(request.type_url.clone());
        let mut resources = Vec::new();
        if request.type_url == CLUSTER {
            self.subscribed = true;
            let known = request.initial_resource_versions.get(NAME);
            if known != Some(&version.to_string()) {
                resources.push(cluster(version));
            }
        }
        self.send(stream, &request.type_url, resources).await;
    }

    async fn send(&mut self, stream: &AdsStream, type_url: &str, resources: Vec<Resource>) {
        self.nonce += 1;
        // If the stream is closed, waiting for its next request tells.
        let _ = stream
            .send_resources(type_url, &self.nonce.to_string(), resources)
            .await;
    }
}

fn cluster(version: u16) -> Resource {
    let address = json!({"address": endpoint(version), "portValue": 20000});
    let endpoint = json!({"endpoint": {"address": {"socketAddress": address}}});
    let document = json!({
        "name": NAME,
        "connectTimeout": "1s",
        "loadAssignment": {"clusterName": NAME, "endpoints": [{"lbEndpoints": [endpoint]}]},
    });
    let body = Any {
        type_url: CLUSTER.to_owned(),
        value: decode(CLUSTER, &document).expect("a valid cluster"),
    };
    resource(NAME, &version.to_string(), &body)
}
