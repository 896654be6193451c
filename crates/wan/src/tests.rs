//! Real servers with real TLS on loopback.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use legate_identity::tls::{ExpectedServer, ServerPolicy};
use legate_runtime::Scope;
use legate_testkit::certs::{CertFiles, TestCa};
use legate_testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::dial::dial;

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    wan: Wan,
    scope: Scope,
    /// Where it listens.
    port: SocketAddr,
}

fn gateway_address(address: SocketAddr) -> GatewayAddress {
    address.to_string().parse().unwrap()
}

/// A gateway that leads to one server, whatever name the connection is for.
async fn gateway_to(server: &Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, port) = (listener.local_addr().unwrap(), server.port);
    server
        .scope
        .spawner()
        .spawn_until_stop("gateway", async move {
            let mut open = FuturesUnordered::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (mut client, _) = accepted.unwrap();
                        open.push(async move {
                            let mut to = TcpStream::connect(port).await?;
                            tokio::io::copy_bidirectional(&mut client, &mut to).await
                        });
                    }
                    Some(_) = open.next() => {}
                }
            }
        });
    address
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Answers with the name of the server, the datacenter of the caller and the path.
fn service(name: String) -> Service {
    Arc::new(move |request, caller| {
        let text = format!(
            "{name} {} {}",
            caller.datacenters.join("+"),
            request.uri().path()
        );
        let body = match request.uri().path() {
            "/large" => full(vec![0; 16 * 1024 * 1024]),
            _ => full(text),
        };
        async move { Response::new(body) }.boxed()
    })
}

fn files(ca: &TestCa, names: &[&str]) -> AgentFiles {
    let CertFiles { cert, key, .. } = ca.agent(names);
    AgentFiles {
        certificate: cert,
        key,
        policy: ServerPolicy {
            client_authorities: vec![ca.ca_file()],
            ..ServerPolicy::default()
        },
    }
}

impl Server {
    async fn start(ca: &TestCa, datacenter: &str, node: &str) -> Self {
        let name = format!("server.{datacenter}.consul");
        Self::start_with(files(ca, &[&name]), datacenter, node).await
    }

    async fn start_with(files: AgentFiles, datacenter: &str, node: &str) -> Self {
        Self::start_at(files, datacenter, node, None, None).await
    }

    /// A server of a mesh whose primary is `dc1` and whose datacenters are reached through gateways only. `gateway` leads
    /// to the primary.
    async fn behind_gateways(
        ca: &TestCa,
        datacenter: &str,
        node: &str,
        gateway: Option<SocketAddr>,
    ) -> Self {
        let name = format!("server.{datacenter}.consul");
        let files = files(ca, &[&name, &format!("{node}.{name}")]);
        let settings = GatewaySettings {
            primary: "dc1".to_owned(),
            primary_gateways: gateway.into_iter().map(gateway_address).collect(),
            interval: Duration::from_secs(1),
        };
        // Nobody is at the address that others know.
        let nowhere = SocketAddr::from(([192, 0, 2, 1], 8300));
        Self::start_at(files, datacenter, node, Some(settings), Some(nowhere)).await
    }

    async fn start_at(
        files: AgentFiles,
        datacenter: &str,
        node: &str,
        gateways: Option<GatewaySettings>,
        advertise: Option<SocketAddr>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = WanConfig {
            datacenter: datacenter.to_owned(),
            node: node.to_owned(),
            domain: "consul".to_owned(),
            advertise: advertise.unwrap_or(listener.local_addr().unwrap()),
            tags: BTreeMap::new(),
            files,
            join: Vec::new(),
            retry_interval: Duration::from_secs(1),
            retry_max: 0,
            gateways,
        };
        let scope = Scope::new("test");
        let port = listener.local_addr().unwrap();
        let wan = Wan::new(config.clone(), &Clock::system(), scope.spawner()).unwrap();
        wan.serve(listener, service(format!("{node}.{datacenter}")));
        Self { wan, scope, port }
    }

    fn address(&self) -> SocketAddr {
        self.wan.own().address
    }

    async fn knows(&self, count: usize) {
        wait::until(async || {
            let members = self.wan.members();
            match members.len() == count {
                true => Ok(()),
                false => Err(format!("{count} other servers, but {members:?}")),
            }
        })
        .await;
    }

    async fn ask(&self, datacenter: &str) -> Result<String, RequestError> {
        let request = Request::get("http://server/v1/path")
            .body(full(""))
            .unwrap();
        let answer = self.wan.request(datacenter, request).await?;
        assert_eq!(answer.status(), StatusCode::OK);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }

    async fn stop(self) {
        self.scope.stop(PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn servers_that_join_one_of_them_know_all_and_answer_each_other() {
    let ca = TestCa::new();
    let one = Server::start(&ca, "dc1", "a").await;
    let two = [
        Server::start(&ca, "dc2", "b").await,
        Server::start(&ca, "dc2", "c").await,
    ];
    let unknown = one.ask("dc2").await.unwrap_err();
    assert!(
        unknown
            .to_string()
            .starts_with("No path to datacenter \"dc2\""),
        "{unknown}"
    );
    one.wan.join(&two[0].address().to_string()).await.unwrap();
    let named = format!("b.dc2/{}", two[0].address());
    two[1].wan.join(&named).await.unwrap();
    for server in [&one, &two[0], &two[1]] {
        server.knows(2).await;
    }
    assert_eq!(one.wan.datacenters(), ["dc1", "dc2"]);
    assert_eq!(two[1].ask("dc1").await.unwrap(), "a.dc1 dc2 /v1/path");
    assert!(one.ask("dc2").await.unwrap().ends_with(".dc2 dc1 /v1/path"));

    // One is gone: the other one answers, and at last nobody.
    let [b, c] = two;
    b.stop().await;
    for _ in 0..4 {
        assert_eq!(one.ask("dc2").await.unwrap(), "c.dc2 dc1 /v1/path");
    }
    c.wan.leave().await;
    let c_name = ServerName {
        datacenter: "dc2".to_owned(),
        node: "c".to_owned(),
    };
    let left = one
        .wan
        .members()
        .into_iter()
        .find(|member| member.name == c_name);
    assert_eq!(left.unwrap().status, Status::Left);
    c.stop().await;
    let gone = one.ask("dc2").await.unwrap_err().to_string();
    assert!(gone.contains("b.dc2: "), "{gone}");
    one.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_does_not_hold_up_requests_of_its_server() {
    let ca = TestCa::new();
    let one = Server::start(&ca, "dc1", "a").await;
    let two = Server::start(&ca, "dc2", "b").await;
    one.wan.join(&two.address().to_string()).await.unwrap();
    let request = Request::get("http://server/large").body(full("")).unwrap();
    // More than may be on its way. It is never read.
    let unread = one.wan.forward("dc2", request).await.unwrap();
    assert_eq!(unread.status(), StatusCode::OK);
    let answer = timeout(PATIENCE, one.ask("dc2")).await.unwrap();
    assert_eq!(answer.unwrap(), "b.dc2 dc1 /v1/path");
    drop(unread);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn who_is_not_a_server_of_the_ca_is_refused() {
    let (ca, other_ca) = (TestCa::new(), TestCa::new());
    let server = Server::start(&ca, "dc1", "a").await;
    let stranger = Server::start(&other_ca, "dc2", "b").await;
    let client = Server::start_with(files(&ca, &["client.dc2.consul"]), "dc2", "c").await;
    let liar = Server::start_with(files(&ca, &["server.dc3.consul"]), "dc2", "d").await;
    for (refused, why) in [(&stranger, "certificate"), (&client, ""), (&liar, "")] {
        let error = refused.wan.join(&server.address().to_string()).await;
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("Failed to join 127.0.0.1") && error.contains(why),
            "{error}"
        );
    }
    // The other way round the reason is known.
    let error = server
        .wan
        .join(&liar.address().to_string())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its certificate is of [\"dc3\"]"),
        "{error}"
    );
    let error = server
        .wan
        .join(&client.address().to_string())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no name server.<datacenter>.consul"),
        "{error}"
    );
    assert!(server.wan.members().is_empty());
    for server in [server, stranger, client, liar] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_certificate_can_be_of_several_datacenters() {
    let ca = TestCa::new();
    let one = Server::start(&ca, "dc1", "a").await;
    let files = files(&ca, &["server.dc3.consul", "server.dc2.consul"]);
    let several = Server::start_with(files, "dc2", "b").await;
    several.wan.join(&one.address().to_string()).await.unwrap();
    one.knows(1).await;
    assert_eq!(one.ask("dc2").await.unwrap(), "b.dc2 dc1 /v1/path");
    assert_eq!(several.ask("dc1").await.unwrap(), "a.dc1 dc3+dc2 /v1/path");
    one.stop().await;
    several.stop().await;
}

#[tokio::test]
async fn connections_that_speak_something_else_are_closed() {
    let ca = TestCa::new();
    let server = Server::start(&ca, "dc1", "a").await;
    // Consul's RPC, whose first byte is its kind.
    let mut plain = TcpStream::connect(server.address()).await.unwrap();
    plain.write_all(&[4, 0, 0, 0]).await.unwrap();
    let mut answer = Vec::new();
    // Closed, in whatever way.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    // A message that is announced and never sent, and one that is too long, close the connection.
    let identity = Identity::read(files(&ca, &["server.dc2.consul"]), "consul".to_owned()).unwrap();
    let mut other = dial(
        &identity,
        server.address(),
        ExpectedServer::OfDatacenter("dc1"),
        Protocol::Members,
    )
    .await
    .unwrap()
    .stream;
    other.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let _ = other.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    let wrong = dial(
        &identity,
        server.address(),
        ExpectedServer::OfDatacenter("dc2"),
        Protocol::Members,
    )
    .await;
    assert!(wrong.is_err(), "it is of another datacenter");
    server.stop().await;
}

#[tokio::test]
async fn a_server_joins_those_of_its_settings_when_they_are_there() {
    let ca = TestCa::new();
    let first = Server::start(&ca, "dc1", "a").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = WanConfig {
        datacenter: "dc2".to_owned(),
        node: "b".to_owned(),
        domain: "consul".to_owned(),
        advertise: listener.local_addr().unwrap(),
        tags: BTreeMap::new(),
        files: files(&ca, &["server.dc2.consul"]),
        join: vec!["127.0.0.1:1".to_owned(), first.address().to_string()],
        retry_interval: Duration::from_millis(50),
        retry_max: 0,
        gateways: None,
    };
    let scope = Scope::new("test");
    let wan = Wan::new(config.clone(), &Clock::system(), scope.spawner()).unwrap();
    wan.serve(listener, service("b.dc2".to_owned()));
    first.knows(1).await;
    assert_eq!(first.ask("dc2").await.unwrap(), "b.dc2 dc1 /v1/path");
    scope.stop(PATIENCE).await.unwrap();
    first.stop().await;
}

#[tokio::test]
async fn who_has_no_certificate_yet_cannot_keep_servers_away() {
    let ca = TestCa::new();
    let server = Server::start(&ca, "dc1", "a").await;
    let mut idle = Vec::new();
    for _ in 0..arrivals::MOST + 32 {
        idle.push(TcpStream::connect(server.address()).await.unwrap());
    }
    // The first ones yield.
    let mut closed = 0;
    for stream in &mut idle[..32] {
        let mut byte = [0];
        let read = timeout(PATIENCE, stream.read(&mut byte)).await;
        closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
    }
    assert_eq!(closed, 32);
    let other = Server::start(&ca, "dc2", "b").await;
    other.wan.join(&server.address().to_string()).await.unwrap();
    drop(idle);
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn one_address_has_a_limited_number_of_connections() {
    let ca = TestCa::new();
    let server = Server::start(&ca, "dc1", "a").await;
    let files = files(&ca, &["server.dc2.consul"]);
    let identity = dial::Identity::read(files, "consul".to_owned()).unwrap();
    let expected = ExpectedServer::OfDatacenter("dc1");
    let mut open = FuturesUnordered::new();
    for _ in 0..130 {
        let connected = dial(&identity, server.address(), expected, Protocol::Members);
        let mut stream = connected.await.unwrap().stream;
        open.push(async move { stream.read(&mut [0]).await });
    }
    for _ in 0..2 {
        let closed = timeout(PATIENCE, open.next()).await.unwrap().unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }
    assert!(open.next().now_or_never().is_none(), "the others stay");
    server.stop().await;
}

#[tokio::test]
async fn datacenters_are_reached_through_gateways_only() {
    let ca = TestCa::new();
    let one = Server::behind_gateways(&ca, "dc1", "a", None).await;
    let to_one = gateway_to(&one).await;
    let two = Server::behind_gateways(&ca, "dc2", "b", Some(to_one)).await;
    two.knows(1).await;
    assert_eq!(two.ask("dc1").await.unwrap(), "a.dc1 dc2 /v1/path");
    let through = two.wan.members()[0].gateway.clone();
    assert_eq!(through, Some(to_one.to_string()));

    // The primary needs a gateway of its own.
    let error = wait::until(async || match one.ask("dc2").await {
        Err(error) => Ok(error.to_string()),
        Ok(answer) => Err(answer),
    });
    let error = error.await;
    assert!(
        error.contains("no mesh gateway that leads there"),
        "{error}"
    );
    let dead = "127.0.0.1:1".parse().unwrap();
    let to_two = gateway_to(&two).await;
    let known = [dead, to_two].map(gateway_address).to_vec();
    one.wan.set_gateways(KnownGateways {
        own: known,
        elsewhere: BTreeMap::new(),
    });
    let answered = wait::until(async || one.ask("dc2").await.map_err(|error| error.to_string()));
    assert_eq!(answered.await, "b.dc2 dc1 /v1/path");

    // What is at the other end has to be the server that is meant.
    let three = Server::behind_gateways(&ca, "dc3", "c", Some(to_one)).await;
    three.knows(2).await;
    let error = wait::until(async || match one.ask("dc3").await {
        Err(error) if error.to_string().contains("has no name") => Ok(error.to_string()),
        other => Err(format!("{other:?}")),
    });
    let error = error.await;
    assert!(error.contains("c.server.dc3.consul"), "{error}");
    for server in [one, two, three] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_gateways_cannot_find_does_not_start() {
    let ca = TestCa::new();
    let scope = Scope::new("test");
    let config = |names: &[&str]| WanConfig {
        datacenter: "dc1".to_owned(),
        node: "a".to_owned(),
        domain: "consul".to_owned(),
        advertise: "127.0.0.1:8300".parse().unwrap(),
        tags: BTreeMap::new(),
        files: files(&ca, names),
        join: Vec::new(),
        retry_interval: Duration::from_secs(1),
        retry_max: 0,
        gateways: Some(GatewaySettings {
            primary: "dc1".to_owned(),
            primary_gateways: Vec::new(),
            interval: Duration::from_secs(1),
        }),
    };
    let new = |names: &[&str]| Wan::new(config(names), &Clock::system(), scope.spawner());
    let refused = new(&["server.dc1.consul"]).unwrap_err().to_string();
    assert!(refused.contains("-server -dc dc1 -node a"), "{refused}");
    new(&["server.dc1.consul", "a.server.dc1.consul"]).unwrap();
    new(&["server.dc1.consul", "*.server.dc1.consul"]).unwrap();
}
