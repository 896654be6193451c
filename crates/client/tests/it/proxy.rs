//! Servers behind an HTTP proxy.

use std::sync::{Arc, Mutex};

use legate_client::{HttpProxy, TlsConfig};
use legate_testkit::certs::{ServerTls, TestCa};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// An unassigned address, which only the proxy can reach.
const FAR: &str = "192.0.2.7";

/// Connects every CONNECT to this server, and records the requests.
struct Proxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _scope: Scope,
}

impl Proxy {
    async fn start(server: SocketAddr, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (scope, heads) = (Scope::new("proxy"), Arc::new(Mutex::new(Vec::new())));
        let (spawner, kept) = (scope.spawner(), Arc::clone(&heads));
        scope.spawn("listen", async move {
            loop {
                let (client, _) = listener.accept().await?;
                spawner.spawn("tunnel", tunnel(client, server, answer, Arc::clone(&kept)));
            }
            #[expect(unreachable_code, reason = "names the error type")]
            Ok::<_, std::io::Error>(())
        });
        Self {
            address,
            heads,
            _scope: scope,
        }
    }

    /// A session that uses this proxy.
    fn client(&self, config: ClientConfig, except: &str) -> Client {
        let url = format!("http://user:pass@{}", self.address);
        Client::start(ClientConfig {
            proxy: HttpProxy::new(&url, except, config.grpc_port),
            ..config
        })
    }
}

async fn tunnel(
    mut client: TcpStream,
    server: SocketAddr,
    answer: &'static str,
    heads: Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    heads
        .lock()
        .unwrap()
        .push(String::from_utf8_lossy(&head).into_owned());
    if !answer.contains(" 200 ") {
        client.write_all(answer.as_bytes()).await?;
        return Ok(());
    }
    let mut server = TcpStream::connect(server).await?;
    // The server's first bytes arrive in one piece with the proxy's response.
    let mut together = answer.as_bytes().to_vec();
    let mut first = [0; 1024];
    let length = tokio::time::timeout(Duration::from_millis(100), server.read(&mut first)).await;
    together.extend_from_slice(&first[..length.unwrap_or(Ok(0))?]);
    client.write_all(&together).await?;
    copy_bidirectional(&mut client, &mut server)
        .await
        .map(drop)
        .or(Ok(()))
}

const YES: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[tokio::test]
async fn servers_are_reached_through_a_tunnel() {
    let ca = TestCa::new();
    let tls = ca.server_config(&["server.dc1.consul"], ServerTls::default());
    for tls in [None, Some(tls)] {
        let secure = tls.clone().map(|_| TlsConfig {
            ca: Some(ca.ca_file()),
            server_name: Some("server.dc1.consul".to_owned()),
            ..TlsConfig::default()
        });
        let server = FakeServer::start(FakeServerOptions {
            tls,
            ..FakeServerOptions::default()
        })
        .await;
        let proxy = Proxy::start(server.address(), YES).await;
        let config = ClientConfig {
            tls: secure,
            ..config(FAR, 8502)
        };
        let client = proxy.client(config, "10.0.0.0/8");
        let connection = client.connected().await;
        assert_eq!(connection.server.to_string(), format!("{FAR}:8502"));
        call(&connection).await.unwrap();
        let head = proxy.heads.lock().unwrap()[0].to_lowercase();
        assert!(
            head.starts_with("connect 192.0.2.7:8502 http/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("\r\nproxy-authorization: basic dxnlcjpwyxnz\r\n"),
            "{head}"
        );
        client.close().await;
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_distinguished_from_a_server() {
    let server = FakeServer::plaintext().await;
    for (answer, words) in [
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
            "403 Forbidden",
        ),
        ("nonsense\r\n\r\n", "HTTPS_PROXY"),
        ("", "HTTPS_PROXY"),
    ] {
        let proxy = Proxy::start(server.address(), answer).await;
        let client = proxy.client(config(FAR, 8502), "");
        let snapshot = client
            .shows("refused", |now| now.last_error.is_some())
            .await;
        let error = snapshot.last_error.unwrap().error.to_string();
        let named = error.contains(words) && error.contains(&proxy.address.to_string());
        assert!(named && !error.contains("pass"), "{answer:?}: {error}");
        client.close().await;
    }
}

#[tokio::test]
async fn servers_on_this_host_and_exceptions_are_reached_directly() {
    let server = FakeServer::plaintext().await;
    let proxy = Proxy::start(server.address(), YES).await;
    let client = proxy.client(config("127.0.0.1", server.address().port()), "");
    client.connected().await;
    client.close().await;
    assert!(proxy.heads.lock().unwrap().is_empty());
}
