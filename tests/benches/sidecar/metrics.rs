//! The cost of forwarding a large metrics page: 50 MB of an application, and a page of Envoy. Both
//! are simulated, so that only the dataplane is measured.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_api::json::to_struct;
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::FakeServer;
use legate_testkit::network::free_port;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::relay::{LIMIT, POLL, SERVER_NAME, arguments, sleeper};
use legate_tests::program::{Program, Running};
use legate_tests::table::Table;

/// The minimum size of the application's page in bytes.
const APPLICATION: usize = 50_000_000;
/// The minimum size of Envoy's page in bytes.
const ENVOY: usize = 300_000;
/// The number of scrapes.
const SCRAPES: usize = 3;

/// The usage of one program, in MiB and milliseconds.
struct Cost {
    before: f64,
    peak: f64,
    after: f64,
    processor: f64,
}

pub(crate) async fn measure(programs: &[Program]) {
    let mut plain = Vec::new();
    let mut gzip = Vec::new();
    for program in programs {
        plain.push(cost(program, "").await);
        gzip.push(cost(program, "accept-encoding: gzip\r\n").await);
    }
    let title = format!(
        "application page of {} MB, {SCRAPES} scrapes, MiB",
        APPLICATION / 1_000_000
    );
    let table = Table::new(&title, programs, 1);
    for (how, costs) in [("", &plain), (", gzip if offered", &gzip)] {
        let values = |value: fn(&Cost) -> f64| -> Vec<Option<f64>> {
            costs.iter().map(|cost| cost.as_ref().map(value)).collect()
        };
        table.row(
            &format!("peak resident before{how}"),
            &values(|cost| cost.before),
        );
        table.row(&format!("peak resident{how}"), &values(|cost| cost.peak));
        table.row(
            &format!("resident afterwards, in no file{how}"),
            &values(|cost| cost.after),
        );
        table.row(
            &format!("CPU of a scrape, ms{how}"),
            &values(|cost| cost.processor),
        );
    }
}

/// Metrics lines with at least this many bytes.
pub(crate) fn page(prefix: &str, bytes: usize) -> String {
    let mut page = String::new();
    let mut family = 0;
    while page.len() < bytes {
        let name = format!("{prefix}_requests_{family}_total");
        let _ = writeln!(page, "# HELP {name} Requests.\n# TYPE {name} counter");
        for series in 0..50 {
            let _ = writeln!(page, "{name}{{route=\"/a/long/path/{series}\"}} {series}");
        }
        family += 1;
    }
    page
}

/// Serves a page on every connection, in repeated pieces.
pub(crate) async fn serve(
    scope: &Scope,
    address: SocketAddr,
    piece: String,
    count: usize,
) -> SocketAddr {
    let listener = TcpListener::bind(address).await.expect("a free address");
    let address = listener.local_addr().expect("it listens");
    let (piece, spawner) = (Arc::new(piece), scope.spawner());
    scope.spawn("page", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let piece = Arc::clone(&piece);
            spawner.spawn("answer", async move {
                let mut request = [0; 4096];
                if stream.read(&mut request).await.unwrap_or_default() > 0 {
                    let length = piece.len() * count;
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                    let mut written = stream.write_all(head.as_bytes()).await;
                    for _ in 0..count {
                        if written.is_ok() {
                            written = stream.write_all(piece.as_bytes()).await;
                        }
                    }
                }
                Ok::<_, Infallible>(())
            });
        }
        Ok::<_, Infallible>(())
    });
    address
}

/// `None` if the application's page is not forwarded.
async fn cost(program: &Program, headers: &str) -> Option<Cost> {
    let scope = Scope::new("in place of application and Envoy");
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let piece = page("app", 1_000_000);
    let count = APPLICATION.div_ceil(piece.len());
    // The metadata of a family may occur only once.
    let lines = piece.lines().filter(|line| !line.starts_with('#'));
    let size = lines.map(str::len).sum::<usize>() * count;
    let app = serve(&scope, local(0), piece, count).await;
    let admin = local(free_port());
    let ca = TestCa::new();
    let config = ca.server_config(&[SERVER_NAME], ServerTls::default());
    let server = FakeServer::tls(config).await;
    let listener = json!({ "envoy_prometheus_bind_addr": "127.0.0.1:9102" });
    server
        .script()
        .bootstrap_params(GetEnvoyBootstrapParamsResponse {
            config: listener.as_object().map(to_struct),
            ..GetEnvoyBootstrapParamsResponse::default()
        });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let merged = local(free_port());
    let envoy = sleeper(folder.path());
    let mut arguments = arguments(&server, &envoy, local(free_port()));
    arguments.retain(|argument| !argument.starts_with("-envoy-admin-bind-port="));
    arguments.extend([
        format!("-ca-certs={}", ca.ca_file().display()),
        format!("-tls-server-name={SERVER_NAME}"),
        format!("-envoy-admin-bind-port={}", admin.port()),
        format!("-telemetry-prom-merge-port={}", merged.port()),
        format!("-telemetry-prom-service-metrics-url=http://{app}/metrics"),
    ]);
    let mut running = Running::start(&program.path, &arguments, folder.path().join("log"));
    let started = async {
        while running.children().is_empty() || TcpStream::connect(merged).await.is_err() {
            running.check();
            sleep(POLL).await;
        }
    };
    if timeout(LIMIT, started).await.is_err() {
        panic!("{} serves no metrics:\n{}", program.name, running.log());
    }
    // Not earlier, because a port that is in use before Envoy starts is refused.
    serve(&scope, admin, page("envoy", ENVOY), 1).await;
    let (before, processor) = (running.peak() / 1024.0, running.processor_time());
    for _ in 0..SCRAPES {
        let read = timeout(LIMIT, scrape(merged, headers))
            .await
            .expect("a page");
        let gzip = headers.contains("gzip");
        if read < if gzip { size / 1_000 } else { size } {
            println!(
                "{} passes {read} bytes on:\n{}",
                program.name,
                running.log()
            );
            return None;
        }
    }
    let scrapes = SCRAPES as f64;
    Some(Cost {
        before,
        peak: running.peak() / 1024.0,
        after: running.memory().anonymous / 1024.0,
        processor: (running.processor_time() - processor) / scrapes,
    })
}

/// The size of the merged page in bytes.
async fn scrape(merged: SocketAddr, headers: &str) -> usize {
    let mut stream = TcpStream::connect(merged).await.expect("it listens");
    let request = format!(
        "GET /stats/prometheus HTTP/1.1\r\nhost: {merged}\r\nconnection: close\r\n\
         x-prometheus-scrape-timeout-seconds: 60\r\n{headers}\r\n"
    );
    let written = stream.write_all(request.as_bytes()).await;
    written.expect("the request can be written");
    let (mut read, mut piece) = (0, vec![0; 64 * 1024]);
    while let Ok(length @ 1..) = stream.read(&mut piece).await {
        read += length;
    }
    read
}
