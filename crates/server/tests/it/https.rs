//! The HTTP API with TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_server::{ApiLimit, Server, ServerConfig};
use legate_testkit::certs::TestCa;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http_client::start;

const PATIENCE: Duration = Duration::from_secs(60);

fn with_https(config: &mut ServerConfig) {
    config.https = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
}

/// A connection with a server certificate of these authorities.
async fn connect(
    address: SocketAddr,
    authorities: &str,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, authorities).unwrap();
    let config = client_config(&ClientTls {
        ca: Some(file),
        ..ClientTls::default()
    });
    let mut config = Arc::unwrap_or_clone(config.unwrap());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(server_name(name).unwrap(), stream).await
}

async fn get(stream: TlsStream<TcpStream>, path: &str) -> (http::StatusCode, String) {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let request = http::Request::get(path).header("host", "localhost");
    let exchange = async move {
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}

fn mesh_roots(server: &Server) -> String {
    let roots = server.store().state().read().ca_roots();
    roots.unwrap().bundle_pem()
}

#[tokio::test]
async fn the_api_is_served_with_a_certificate_of_the_mesh_authority() {
    let (server, client) = start(with_https).await;
    let address = server.https_addr().unwrap();
    let roots = mesh_roots(&server);
    for name in ["localhost", "127.0.0.1", "server.dc1.consul"] {
        let stream = connect(address, &roots, name).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let (status, body) = get(stream, "/v1/catalog/datacenters").await;
        assert_eq!((status.as_u16(), body.as_str()), (200, "[\"dc1\"]"));
    }
    assert!(connect(address, &roots, "elsewhere.example").await.is_err());
    // The API is served without TLS too.
    client.get("/v1/catalog/datacenters").await.json();
    server.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn one_pair_of_files_serves_http_and_grpc() {
    let ca = TestCa::new();
    let files = ca.server(&["legate.example"]);
    let pair = Some((files.cert.clone(), files.key.clone()));
    let (server, _) = start(|config| {
        with_https(config);
        config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.grpc_tls = config.https;
        config.https_files.clone_from(&pair);
        config.grpc_tls_files.clone_from(&pair);
    })
    .await;
    for address in [server.https_addr(), server.grpc_tls_addr()] {
        let stream = connect(address.unwrap(), &ca.ca_pem(), "legate.example").await;
        let stream = stream.unwrap();
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        assert_eq!(h2, address == server.grpc_tls_addr());
    }
    server.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn tls_and_plain_connections_share_a_limit_and_silent_ones_delay_none() {
    let (server, client) = start(|config| {
        with_https(config);
        config.connections.http = ApiLimit {
            in_all: 100,
            per_address: 8,
        };
    })
    .await;
    let address = server.https_addr().unwrap();
    let roots = mesh_roots(&server);
    let mut silent = Vec::new();
    for _ in 0..7 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let stream = timeout(PATIENCE, connect(address, &roots, "localhost")).await;
    let stream = stream.expect("nobody waits for the silent ones").unwrap();
    // All eight permits are taken: a further connection is closed with TLS, and gets a response without.
    let mut ninth = TcpStream::connect(address).await.unwrap();
    assert_eq!(ninth.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let refused = client.get("/v1/status/leader").await;
    assert_eq!(refused.status.as_u16(), 429);
    let (status, _) = get(stream, "/v1/status/leader").await;
    assert_eq!(status.as_u16(), 200);
    drop(silent);
    server.stop(PATIENCE).await.unwrap();
}
