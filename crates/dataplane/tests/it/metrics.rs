//! Metrics of a whole dataplane: their names, their sinks, and the cost of a large page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_api::json::to_struct;
use legate_api::type_url::CLUSTER;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::FakeServer;
use legate_testkit::jwt::TestSigner;
use legate_testkit::network::free_port;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::envoy_side::{EnvoyStream, PATIENCE, resource};

/// The built binary, with an idle program in Envoy's place.
struct Dataplane {
    child: Child,
    server: FakeServer,
    merged: SocketAddr,
    xds: SocketAddr,
    folder: TempDir,
}

async fn start(config: &Value, flags: &[String]) -> Dataplane {
    start_trusting(None, config, flags).await
}

/// The same with a file in place of the system's CA certificates.
async fn start_trusting(roots: Option<&Path>, config: &Value, flags: &[String]) -> Dataplane {
    let server = FakeServer::plaintext().await;
    let bearer = TestSigner::generate().sign(&json!({"sub": "x", "exp": 4_000_000_000_u64}));
    server.script().accept_login("method", &bearer);
    server
        .script()
        .bootstrap_params(GetEnvoyBootstrapParamsResponse {
            config: Some(to_struct(config.as_object().unwrap())),
            ..GetEnvoyBootstrapParamsResponse::default()
        });
    let folder = tempfile::tempdir().unwrap();
    let envoy = folder.path().join("envoy");
    fs::write(&envoy, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
    let (merged, xds) = (free_port(), free_port());
    let child = Command::new(env!("CARGO_BIN_EXE_legate-dataplane"))
        .arg(format!("-addresses={}", server.address().ip()))
        .arg(format!("-grpc-port={}", server.address().port()))
        .args([
            "-tls-disabled",
            "-server-watch-disabled",
            "-proxy-id=web",
            "-log-level=warn",
        ])
        .args(["-credential-type=login", "-login-auth-method=method"])
        .arg(format!("-login-bearer-token={bearer}"))
        .arg(format!("-envoy-executable-path={}", envoy.display()))
        .arg(format!("-envoy-admin-bind-port={}", free_port()))
        .arg(format!("-graceful-port={}", free_port()))
        .arg(format!("-xds-bind-port={xds}"))
        .arg(format!("-telemetry-prom-merge-port={merged}"))
        .args(flags)
        .envs(roots.map(|roots| ("SSL_CERT_FILE", roots)))
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let on_loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Dataplane {
        child,
        server,
        merged: on_loopback(merged),
        xds: on_loopback(xds),
        folder,
    }
}

impl Dataplane {
    /// A connection to the merged page with a request sent, once the page is served.
    async fn ask(&self) -> TcpStream {
        let connected = async {
            loop {
                match TcpStream::connect(self.merged).await {
                    Ok(stream) => return stream,
                    // It is still starting.
                    Err(_) => sleep(std::time::Duration::from_millis(10)).await,
                }
            }
        };
        let mut stream = timeout(PATIENCE, connected)
            .await
            .expect("it serves metrics");
        let request = "GET /stats/prometheus HTTP/1.0\r\nhost: x\r\n\
                       x-prometheus-scrape-timeout-seconds: 130\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn page(&self) -> String {
        let mut page = String::new();
        self.ask().await.read_to_string(&mut page).await.unwrap();
        page
    }

    /// A memory value of the kernel for the process, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id().unwrap());
        let status = fs::read_to_string(path).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

/// Name, type, labels and help of every metric of the dataplane on a page.
fn names(page: &str) -> String {
    let mut families: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(what), Some(name), Some(text)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        match what {
            "HELP" => families.entry(name).or_default().1 = text,
            "TYPE" => families.entry(name).or_default().0 = text,
            _ => {}
        }
    }
    let mut text = String::new();
    for (name, (kind, help)) in families {
        writeln!(text, "{name} {kind}\n    {help}").unwrap();
    }
    text
}

#[tokio::test]
async fn every_metric_has_its_documented_name() {
    let certificates = TestCa::new();
    let files = certificates.server(&["localhost"]);
    let flags = [
        format!(
            "-telemetry-prom-ca-certs-path={}",
            certificates.ca_file().display()
        ),
        format!("-telemetry-prom-cert-file={}", files.cert.display()),
        format!("-telemetry-prom-key-file={}", files.key.display()),
        format!("-consul-dns-bind-port={}", free_port()),
    ];
    let config = json!({"envoy_prometheus_bind_addr": "127.0.0.1:9102"});
    let mut dataplane = start(&config, &flags).await;
    // Once metrics are served, the relay listens, too.
    drop(dataplane.ask().await);
    dataplane.server.script().token_lifetime(PATIENCE);
    let mut envoy = EnvoyStream::open(dataplane.xds).await;
    envoy.subscribe(CLUSTER).await;
    let stream = timeout(PATIENCE, dataplane.server.accept_ads())
        .await
        .unwrap();
    let sent = stream.send_resources(CLUSTER, "1", vec![resource("a", "1")]);
    assert!(sent.await);
    let response = envoy.next().await;
    envoy.accept(&response).await;
    let page = async {
        loop {
            let page = dataplane.page().await;
            if page.contains("answer=\"ack\"") {
                return page;
            }
        }
    };
    let page = timeout(PATIENCE, page).await.expect("the relay counts");
    for line in [
        "consul_dataplane_consul_connected 1\n",
        "consul_dataplane_session_state{state=\"connected\"} 1\n",
        "consul_dataplane_envoy_connected 1\n",
        "consul_dataplane_consul_connections_total 1\n",
        "consul_dataplane_xds_upstream_connected 1\n",
        "consul_dataplane_xds_responses_total{answer=\"ack\",type=\"clusters\"} 1\n",
        "consul_dataplane_envoy_restarts_total{kind=\"crash\"} 0\n",
        "consul_dataplane_envoy_restarts_total{kind=\"hot\"} 0\n",
        "consul_dataplane_envoy_restarts_total{kind=\"cold\"} 0\n",
        "consul_dataplane_startup_stage_seconds{stage=\"listen\"} ",
        "consul_dataplane_startup_stage_seconds{stage=\"connect\"} ",
        "consul_dataplane_startup_stage_seconds{stage=\"bootstrap\"} ",
        "consul_dataplane_startup_stage_seconds{stage=\"envoy\"} ",
        "consul_dataplane_xds_last_response_age_seconds ",
        "consul_dataplane_token_age_seconds ",
        "consul_dataplane_login_duration_count 1\n",
        "consul_dataplane_logins_total 1\n",
        "consul_dataplane_bearer_token_expiry_timestamp_seconds 4000000000\n",
        "consul_dataplane_certificate_expiry_timestamp_seconds{certificate=\"prometheus\"}",
        "consul_dataplane_metrics_source_up{source=\"envoy\"} 0\n",
    ] {
        assert!(page.contains(&format!("\n{line}")), "{line}\n{page}");
    }
    insta::assert_snapshot!("names", names(&page));
    dataplane.child.kill().await.unwrap();
}

/// Serves `count` copies of `block` to every client.
async fn application(block: String, count: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            if stream.read(&mut request).await.unwrap() == 0 {
                // The client has disconnected.
                continue;
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                block.len() * count
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..count {
                if stream.write_all(block.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    });
    address
}

#[tokio::test]
async fn a_page_of_50_megabytes_passes_through_a_few() {
    const COUNT: usize = 800;
    let mut block = String::new();
    for number in 0.. {
        let line = format!(
            "app_requests_{}{{route=\"/a/long/path/{number}\"}} {number}\n",
            number % 100
        );
        block.push_str(&line);
        if block.len() >= 64 * 1024 {
            break;
        }
    }
    let size = block.len() * COUNT;
    assert!(size > 50_000_000 && size < 60_000_000);
    let app = application(block, COUNT).await;
    let flags = [format!(
        "-telemetry-prom-service-metrics-url=http://{app}/metrics"
    )];
    let config = json!({"envoy_prometheus_bind_addr": "127.0.0.1:9102"});
    let mut dataplane = start(&config, &flags).await;
    // It has started.
    drop(dataplane.ask().await);
    let before = dataplane.memory("VmHWM:");
    let mut stream = dataplane.ask().await;
    let (mut read, mut end) = (0, String::new());
    let mut piece = vec![0; 64 * 1024];
    loop {
        let length = timeout(PATIENCE, stream.read(&mut piece))
            .await
            .unwrap()
            .unwrap();
        if length == 0 {
            break;
        }
        read += length;
        end.push_str(&String::from_utf8_lossy(&piece[..length]));
        let tail = end.len().saturating_sub(1_000);
        end = end.split_off(end.ceil_char_boundary(tail));
    }
    assert!(read > size, "{read} of {size} bytes: {end}");
    assert!(
        end.contains("metrics_source_up{source=\"service\"} 1\n"),
        "{end}"
    );
    let (after, own) = (dataplane.memory("VmHWM:"), dataplane.memory("RssAnon:"));
    println!("peak of resident memory: {before} before, {after} after; anonymous {own}");
    assert!(
        after - before < 4 * 1024 * 1024,
        "{before} before, {after} after"
    );
    // Without optimisation, the code alone is larger than that.
    if !cfg!(debug_assertions) {
        assert!(after < 16 * 1024 * 1024, "{after}");
    }
    dataplane.child.kill().await.unwrap();
}

#[tokio::test]
async fn an_application_may_speak_https_with_a_trusted_certificate() {
    let certificates = TestCa::new();
    let tls = ServerTls {
        alpn: false,
        require_client_cert: false,
    };
    let acceptor = TlsAcceptor::from(certificates.server_config(&["localhost"], tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Fails if the client does not trust the certificate.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = [0; 4096];
            if matches!(stream.read(&mut request).await, Ok(1..)) {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsecure 1\n";
                stream.write_all(answer).await.unwrap();
                // The client may be gone.
                let _ = stream.shutdown().await;
            }
        }
    };
    let flags = [format!(
        "-telemetry-prom-service-metrics-url=https://localhost:{port}/metrics"
    )];
    let config = json!({"envoy_prometheus_bind_addr": "127.0.0.1:9102"});
    let strangers = TestCa::new();
    let scrape = async {
        for (roots, up) in [(certificates.ca_file(), 1), (strangers.ca_file(), 0)] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("roots.pem");
            fs::copy(roots, &file).unwrap();
            let mut dataplane = start_trusting(Some(&file), &config, &flags).await;
            for scrape in ["the first", "one without the file, which is read once"] {
                let page = timeout(PATIENCE, dataplane.page()).await.unwrap();
                let line = format!("metrics_source_up{{source=\"service\"}} {up}\n");
                assert!(page.contains(&line), "{scrape}: {page}");
                assert_eq!(page.contains("\nsecure 1\n"), up == 1, "{scrape}: {page}");
                let _ = fs::remove_file(&file);
            }
            dataplane.child.kill().await.unwrap();
        }
    };
    tokio::select! {
        () = serve => {}
        () = scrape => {}
    }
}

/// Waits until the received text contains all of these lines.
async fn arrives(receive: impl AsyncFn() -> Vec<u8>, lines: &[&str]) {
    let mut text = String::new();
    let all = async {
        while !lines.iter().all(|line| text.contains(line)) {
            text.push_str(&String::from_utf8(receive().await).unwrap());
        }
    };
    if timeout(PATIENCE, all).await.is_err() {
        panic!("not all of {lines:?} in\n{text}");
    }
}

#[tokio::test]
async fn own_metrics_reach_the_sinks() {
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dsd.socket");
    let dogstatsd = UnixDatagram::bind(&path).unwrap();
    let config = json!({
        "envoy_statsd_url": format!("udp://{}", statsd.local_addr().unwrap()),
        "envoy_dogstatsd_url": format!("unix://{}", path.display()),
        "envoy_stats_tags": ["foo=bar"],
    });
    let mut dataplane = start(&config, &[]).await;
    assert!(Path::new(&dataplane.folder.path().join("envoy")).exists());
    let udp = async || {
        let mut datagram = vec![0; 65_536];
        let length = statsd.recv(&mut datagram).await.unwrap();
        assert!(length <= 1_400);
        datagram.truncate(length);
        datagram
    };
    let lines = [
        "\nconsul_connected:1.000000|g\n",
        "login_duration:",
        "|ms\n",
        "\nlogins_total:1.000000|c\n",
        "\nruntime.num_goroutines:",
        "\nsession_state.connected:1.000000|g\n",
    ];
    arrives(udp, &lines).await;
    let unix = async || {
        let mut datagram = vec![0; 65_536];
        let length = dogstatsd.recv(&mut datagram).await.unwrap();
        assert!(length <= 8_192);
        datagram.truncate(length);
        datagram
    };
    let lines = [
        "\nconsul_connected:1|g|#foo=bar\n",
        "\nlogins_total:1|c|#foo=bar\n",
        "\nsession_state:1|g|#foo=bar,state:connected\n",
    ];
    arrives(unix, &lines).await;
    dataplane.child.kill().await.unwrap();
}
