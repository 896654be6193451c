//! The merged metrics page while real Envoys are replaced under load.

use std::cell::Cell;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use legate_dataplane::telemetry::{self, Endpoints, Merger, Source, Target, Telemetry};
use legate_envoy::admin::AdminClient;
use legate_envoy::process::{DrainStrategy, EnvoyLog, Launch};
use legate_envoy::supervision::{
    EnvoyConfig, EnvoyHost, Handle, HotRestart, Options, Report, handle, run,
};
use legate_runtime::Scope;
use legate_runtime::logging::Level;
use legate_testkit::metrics::series;
use legate_testkit::network::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::envoy_side::PATIENCE;

const RESTARTS: u32 = 3;
const REQUESTS: &str = "envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix=\"load\"}";
const EPOCH: &str = "envoy_server_hot_restart_epoch{}";
const ENVOY_UP: &str = "consul_dataplane_metrics_source_up{source=\"envoy\"}";

/// Addresses of all listeners.
#[derive(Clone, Copy)]
struct Place {
    admin: SocketAddr,
    http: SocketAddr,
    merged: SocketAddr,
}

impl Place {
    fn new() -> Place {
        let address = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        Place {
            admin: address(),
            http: address(),
            merged: address(),
        }
    }

    /// An Envoy that answers HTTP.
    fn config(self) -> EnvoyConfig {
        let at = |address: SocketAddr| {
            let ip = address.ip().to_string();
            json!({ "socket_address": { "address": ip, "port_value": address.port() } })
        };
        let kind = |kind: &str| format!("type.googleapis.com/envoy.extensions.filters.{kind}");
        let route = json!({ "match": { "prefix": "/" },
            "direct_response": { "status": 200, "body": { "inline_string": "ok" } } });
        let http = json!({ "name": "http", "typed_config": {
            "@type": kind("network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "load",
            "http_filters": [{ "name": "router",
                "typed_config": { "@type": kind("http.router.v3.Router") } }],
            "route_config": { "virtual_hosts": [
                { "name": "all", "domains": ["*"], "routes": [route] }] },
        }});
        let document = json!({
            "admin": { "address": at(self.admin) },
            "node": { "id": "web", "cluster": "web" },
            // A new Envoy gets only the counts since the last flush of the old one.
            "stats_flush_interval": "0.2s",
            "static_resources": { "listeners": [{ "name": "http", "address": at(self.http),
                "filter_chains": [{ "filters": [http] }] }] },
        });
        EnvoyConfig::new(Launch {
            executable: legate_testkit::envoy::binary(),
            bootstrap: document.to_string(),
            log: EnvoyLog {
                level: Level::Error,
                json: false,
            },
            concurrency: 2,
            drain_time: Duration::from_secs(1),
            drain_strategy: DrainStrategy::Immediate,
            extra_args: Vec::new(),
        })
    }

    fn host(self, folder: &Path) -> EnvoyHost {
        let hot = HotRestart {
            base_id: folder.join("base-id"),
            parent_shutdown: Duration::from_secs(2),
            ..HotRestart::new(Duration::ZERO)
        };
        EnvoyHost::new(AdminClient::new(self.admin), Some(hot), None)
    }

    /// The merged page for a request with this query and these headers.
    async fn scrape(self, query: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.merged).await.unwrap();
        let request = format!("GET /stats/prometheus{query} HTTP/1.0\r\nhost: x\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let head = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let body = answer.split_off(head + 4);
        if !headers.contains("gzip") {
            return String::from_utf8(body).unwrap();
        }
        let mut page = String::new();
        let mut gzip = flate2::read::GzDecoder::new(body.as_slice());
        gzip.read_to_string(&mut page).unwrap();
        page
    }

    /// Sends requests over persistent connections, one after another, forever.
    async fn load(self, answered: &Cell<u32>) {
        loop {
            let Ok(mut stream) = TcpStream::connect(self.http).await else {
                continue;
            };
            loop {
                let request = b"GET / HTTP/1.1\r\nhost: load\r\n\r\n";
                if stream.write_all(request).await.is_err() {
                    break;
                }
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\nok") {
                    if !matches!(stream.read_buf(&mut answer).await, Ok(1..)) {
                        break;
                    }
                }
                if !answer.ends_with(b"ok") {
                    break;
                }
                answered.set(answered.get() + 1);
                if String::from_utf8_lossy(&answer).contains("connection: close") {
                    break;
                }
                sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// Counts restarts.
fn counting(telemetry: &Telemetry) -> Options {
    let telemetry = telemetry.clone();
    Options {
        on_restart: Some(Box::new(move |kind| telemetry.envoy_restarted(kind))),
        ..Options::default()
    }
}

/// Scrapes repeatedly, forever: every page has to be complete and valid.
async fn watch(place: Place, query: &str, headers: &str, pages: &Cell<u32>) {
    loop {
        let page = place.scrape(query, headers).await;
        let series = series(&page);
        // There may be no answer while one Envoy takes over from the other.
        match series.get(ENVOY_UP) {
            Some(1.0) => {
                assert!(series.keys().any(|name| name.starts_with("envoy_")));
                pages.set(pages.get() + 1);
            }
            Some(0.0) => {}
            _ => panic!("{query}: the page has no end:\n{page}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn until(handle: &Handle<EnvoyConfig>, wanted: impl FnMut(&Report) -> bool) -> Report {
    let mut seen = handle.watch();
    let report = timeout(PATIENCE, seen.wait_for(wanted)).await;
    report
        .expect("in time")
        .expect("the supervisor runs")
        .clone()
}

fn alone(report: &Report, epoch: u32) -> bool {
    matches!(report.epochs.as_slice(), [only] if only.epoch == epoch && only.state.serves())
}

async fn metrics(place: Place, telemetry: &Telemetry, scope: &Scope) {
    let source = Source {
        name: "envoy",
        target: Target::new(place.admin, "/stats/prometheus"),
        takes_query: true,
    };
    let spawner = scope.spawner();
    let merger = Merger::new(telemetry.clone(), vec![source], spawner.clone());
    let endpoints = Endpoints {
        own: ([127, 0, 0, 1], free_port()).into(),
        merged: place.merged,
        exposed: None,
    };
    telemetry::start(endpoints, telemetry.clone(), merger, &spawner);
}

/// A value of Envoy on the merged page, once it appears.
async fn value(place: Place, name: &str) -> f64 {
    loop {
        let page = place.scrape("", "").await;
        if let Some(value) = series(&page).get(name) {
            return *value;
        }
    }
}

#[tokio::test]
async fn pages_stay_valid_while_envoys_take_over_from_one_another_under_load() {
    let (place, folder) = (Place::new(), tempfile::tempdir().unwrap());
    let (telemetry, scope) = (Telemetry::new(Instant::now()).unwrap(), Scope::new("test"));
    metrics(place, &telemetry, &scope).await;
    let (handle, controls) = handle();
    let host = place.host(folder.path());
    let running = run(host, place.config(), counting(&telemetry), controls);
    let answered = Cell::new(0_u32);
    let pages: [Cell<u32>; 3] = Default::default();
    let scenario = async {
        until(&handle, |report| alone(report, 0)).await;
        let restarts = async {
            for epoch in 1..=RESTARTS {
                sleep(Duration::from_secs(1)).await;
                handle.restart().unwrap();
                until(&handle, |report| alone(report, epoch)).await;
                assert_eq!(value(place, EPOCH).await, f64::from(epoch));
            }
        };
        let openmetrics = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.1\r\n";
        tokio::select! {
            () = restarts => {}
            () = place.load(&answered) => unreachable!(),
            () = place.load(&answered) => unreachable!(),
            () = watch(place, "", "", &pages[0]) => unreachable!(),
            () = watch(place, "?usedonly", openmetrics, &pages[1]) => unreachable!(),
            () = watch(place, "?filter=downstream", "accept-encoding: gzip\r\n", &pages[2]) => {
                unreachable!()
            }
        };
        let requests = value(place, REQUESTS).await;
        println!("{requests} requests of {}; {pages:?}", answered.get());
        // The last Envoy starts with new counters: a reset, which Prometheus handles.
        assert!(requests < f64::from(answered.get()) / 2.0, "{requests}");
        for pages in &pages {
            assert!(pages.get() > 10 * RESTARTS, "{pages:?}");
        }
        let text = telemetry.render();
        assert!(text.contains(&format!(
            "envoy_restarts_total{{kind=\"hot\"}} {RESTARTS}\n"
        )));

        // The same applies to a crash.
        let pid = handle.report().current().unwrap().pid;
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        until(&handle, |report| alone(report, 0)).await;
        assert!(value(place, REQUESTS).await < 2.0);
        let text = telemetry.render();
        assert!(
            text.contains("envoy_restarts_total{kind=\"crash\"} 1\n"),
            "{text}"
        );
        handle.stop();
    };
    let (ended, ()) = tokio::join!(running, scenario);
    ended.unwrap();
}

#[tokio::test]
async fn a_cold_restart_resets_counters_and_is_counted_as_cold() {
    let place = Place::new();
    let (telemetry, scope) = (Telemetry::new(Instant::now()).unwrap(), Scope::new("test"));
    metrics(place, &telemetry, &scope).await;
    let (handle, controls) = handle();
    let host = EnvoyHost::new(AdminClient::new(place.admin), None, None);
    let running = run(host, place.config(), counting(&telemetry), controls);
    let answered = Cell::new(0);
    let scenario = async {
        let first = until(&handle, |report| alone(report, 0)).await.epochs[0].pid;
        let enough = async {
            while answered.get() < 100 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! { () = enough => {}, () = place.load(&answered) => unreachable!() }
        assert!(value(place, REQUESTS).await >= 100.0);
        handle.restart().unwrap();
        until(&handle, |report| {
            alone(report, 0) && report.epochs[0].pid != first
        })
        .await;
        assert!(value(place, REQUESTS).await < 2.0);
        let text = telemetry.render();
        for line in [
            "kind=\"cold\"} 1\n",
            "kind=\"hot\"} 0\n",
            "kind=\"crash\"} 0\n",
        ] {
            assert!(
                text.contains(&format!("envoy_restarts_total{{{line}")),
                "{text}"
            );
        }
        handle.stop();
    };
    let (ended, ()) = tokio::join!(running, scenario);
    ended.unwrap();
}
