//! The end of a drain with a real Envoy: which connections count and delay it.

use std::net::SocketAddr;
use std::time::Duration;

use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::{
    BootstrapInputs, NodeInputs, PrometheusInputs, ProxyConfig, XdsAddress, build,
};
use legate_envoy::supervision::{EnvoyHost, EpochState, Options, Outcome, Policy, Report};
use legate_testkit::network::free_port;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::load;
use crate::place::{ADMIN, ECHO, HTTP, Place, TCP, config, supervise, until};

const STATS: u16 = 18083;
const PROMETHEUS: u16 = 18084;

/// The document of the place, with the listeners that the dataplane adds to every document.
fn document(place: Place, ready: SocketAddr) -> Value {
    let mut document = place.document();
    for name in 0..2 {
        document["static_resources"]["listeners"][name]["traffic_direction"] = "INBOUND".into();
    }
    let inputs = BootstrapInputs {
        node: NodeInputs::default(),
        admin: place.at(ADMIN),
        access_logs: Vec::new(),
        xds: XdsAddress::Tcp(place.at(1)),
        ready: Some(ready),
        prometheus: PrometheusInputs {
            scrape_path: "/metrics".to_owned(),
            backend: place.at(1),
            tls: None,
        },
        deprecated_tags: false,
        proxy_config: ProxyConfig {
            prometheus_bind_addr: Some(place.at(PROMETHEUS)),
            stats_bind_addr: Some(place.at(STATS)),
            ..ProxyConfig::default()
        },
    };
    let built = build(&inputs).unwrap().document;
    for kind in ["listeners", "clusters"] {
        let own = built["static_resources"][kind].as_array().unwrap().clone();
        let all = document["static_resources"][kind].as_array_mut().unwrap();
        all.extend(own);
    }
    document
}

/// The address for readiness: IPv6 if available, because Envoy formats it differently.
async fn ready_address(place: Place) -> SocketAddr {
    match TcpListener::bind("[::1]:0").await {
        Ok(listener) => listener.local_addr().unwrap(),
        Err(_) => place.at(free_port()),
    }
}

/// Sends a request and keeps the connection open if Envoy does. Returns the response head.
async fn request(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

async fn keep_alive(target: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(target).await.unwrap();
    request(&mut stream, path).await;
    stream
}

async fn until_active(admin: AdminClient, wanted: u64) {
    while admin.active_connections().await.unwrap() != wanted {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn connections_of_clients_count_and_those_for_metrics_and_readiness_do_not() {
    let place = Place::new(9);
    let ready = ready_address(place).await;
    let echo = TcpListener::bind(place.at(ECHO)).await.unwrap();
    let host = EnvoyHost::new(place.admin(), None, None);
    let config = config(&document(place, ready));
    supervise(host, config, Options::default(), async |supervisor| {
        let scenario = async {
            until(&supervisor, Report::ready).await;
            let admin = place.admin();
            assert_eq!(admin.active_connections().await.unwrap(), 0);
            let own = [
                (ready, "/ready"),
                (place.at(STATS), "/stats?filter=none"),
                (place.at(PROMETHEUS), "/metrics"),
            ];
            let mut held = Vec::new();
            for (address, path) in own {
                held.push(keep_alive(address, path).await);
            }
            let stats = admin.get("/stats?filter=downstream_cx_active").await;
            let stats = String::from_utf8(stats.unwrap().to_vec()).unwrap();
            for name in ["ready", "metrics", "prometheus_metrics"] {
                let line = format!("http.envoy_{name}.downstream_cx_active: 1\n");
                assert!(stats.contains(&line), "{stats}");
            }
            assert_eq!(admin.active_connections().await.unwrap(), 0);

            let mut tcp = TcpStream::connect(place.at(TCP)).await.unwrap();
            load::echo(&mut tcp).await.unwrap();
            assert_eq!(admin.active_connections().await.unwrap(), 1);
            let http = keep_alive(place.at(HTTP), "/").await;
            assert_eq!(admin.active_connections().await.unwrap(), 2);
            drop(tcp);
            until_active(admin, 1).await;
            drop(http);
            until_active(admin, 0).await;
        };
        tokio::select! { () = scenario => {}, () = load::echo_server(&echo) => {} }
        supervisor.stop();
    })
    .await;
}

#[tokio::test]
async fn an_envoy_that_does_not_count_is_not_taken_for_idle() {
    let place = Place::new(10);
    let mut document = place.document();
    document["stats_config"] = json!({ "stats_matcher": { "reject_all": true } });
    let host = EnvoyHost::new(place.admin(), None, None);
    supervise(
        host,
        config(&document),
        Options::default(),
        async |supervisor| {
            until(&supervisor, Report::ready).await;
            let error = place.admin().active_connections().await.unwrap_err();
            assert!(error.to_string().contains("stats_matcher"), "{error}");
            supervisor.stop();
        },
    )
    .await;
}

/// Number of earlier requests to the admin interface.
async fn asked(admin: AdminClient) -> u64 {
    let path = "/stats?filter=%5Ehttp.admin.downstream_rq_total%24";
    let answer = admin.get(path).await.unwrap();
    let text = std::str::from_utf8(&answer).unwrap();
    text.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Envoy's uptime in seconds, by its own clock. Its drain takes one second here.
async fn uptime(admin: AdminClient) -> u64 {
    let answer = admin.get("/server_info").await.unwrap();
    let info: Value = serde_json::from_slice(&answer).unwrap();
    let text = info["uptime_current_epoch"].as_str().unwrap();
    text.trim_end_matches('s').parse().unwrap()
}

/// Waits until the supervisor has counted connections a few times.
async fn until_looked(admin: AdminClient) {
    let (before, mut own) = (asked(admin).await, 1);
    while asked(admin).await < before + own + 6 {
        own += 1;
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_keep_envoy_until_the_last_one_closes() {
    let place = Place::new(11);
    let echo = TcpListener::bind(place.at(ECHO)).await.unwrap();
    let ready = ready_address(place).await;
    let host = EnvoyHost::new(place.admin(), None, None);
    // The test takes neither as short nor as long.
    let policy = Policy {
        drain: true,
        min_drain: Some(Duration::from_millis(50)),
        grace: Duration::from_secs(3600),
        ..Policy::default()
    };
    let options = Options {
        policy,
        ..Options::default()
    };
    let config = config(&document(place, ready));
    let ended = supervise(host, config, options, async |supervisor| {
        let scenario = async {
            until(&supervisor, Report::ready).await;
            let mut tcp = TcpStream::connect(place.at(TCP)).await.unwrap();
            load::echo(&mut tcp).await.unwrap();
            let mut http = keep_alive(place.at(HTTP), "/").await;
            let _scraper = keep_alive(ready, "/ready").await;
            supervisor.stop();
            until_looked(place.admin()).await;
            let report = supervisor.report();
            assert_eq!(report.epochs[0].state, EpochState::Draining);

            // A client that is asked to close its connection does so, and another one is still
            // served.
            let answer = request(&mut http, "/").await;
            assert!(answer.contains("connection: close"), "{answer}");
            drop(http);
            until_looked(place.admin()).await;
            load::echo(&mut tcp).await.unwrap();
            drop(tcp);
            until(&supervisor, |report| report.epochs.is_empty()).await;
        };
        tokio::select! { () = scenario => {}, () = load::echo_server(&echo) => {} }
    })
    .await;
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
    assert!(ended.last.unwrap().reason.success());
}

/// A server configures the listeners of gateways, none of which is inbound.
#[tokio::test]
async fn all_listeners_of_a_gateway_drain_and_close() {
    let place = Place::new(43);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("listeners.json");
    let mut document = place.document();
    let mut listener = document["static_resources"]["listeners"][0].take();
    document["static_resources"]["listeners"] = json!([]);
    listener["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener".into();
    listener["traffic_direction"] = "OUTBOUND".into();
    let listeners = json!({ "version_info": "1", "resources": [listener] });
    std::fs::write(&file, listeners.to_string()).unwrap();
    document["dynamic_resources"]["lds_config"] =
        json!({ "path_config_source": { "path": file }, "resource_api_version": "V3" });
    let host = EnvoyHost::new(place.admin(), None, None);
    supervise(
        host,
        config(&document),
        Options::default(),
        async |supervisor| {
            until(&supervisor, Report::ready).await;
            let admin = place.admin();
            let mut open = keep_alive(place.at(HTTP), "/").await;
            admin.drain_listeners().await.unwrap();
            let answer = request(&mut open, "/").await;
            assert!(answer.contains("connection: close"), "{answer}");
            let mut late = TcpStream::connect(place.at(HTTP)).await.unwrap();
            let answer = request(&mut late, "/").await;
            assert!(answer.contains("connection: close"), "{answer}");
            drop((open, late));
            until_active(admin, 0).await;
            admin.close_inbound_listeners().await.unwrap();
            while TcpStream::connect(place.at(HTTP)).await.is_ok() {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(supervisor.report().ready());
            supervisor.stop();
        },
    )
    .await;
}

#[tokio::test]
async fn closed_inbound_listeners_refuse_and_everything_else_goes_on() {
    let place = Place::new(42);
    let echo = TcpListener::bind(place.at(ECHO)).await.unwrap();
    let host = EnvoyHost::new(place.admin(), None, None);
    let mut document = place.document();
    let listeners = &mut document["static_resources"]["listeners"];
    listeners[0]["traffic_direction"] = "INBOUND".into();
    listeners[1]["traffic_direction"] = "OUTBOUND".into();
    supervise(
        host,
        config(&document),
        Options::default(),
        async |supervisor| {
            let scenario = async {
                until(&supervisor, Report::ready).await;
                let admin = place.admin();
                let mut open = keep_alive(place.at(HTTP), "/").await;
                let mut outbound = TcpStream::connect(place.at(TCP)).await.unwrap();
                admin.drain_listeners().await.unwrap();
                // New connections are still served, and asked to close.
                let mut late = TcpStream::connect(place.at(HTTP)).await.unwrap();
                let answer = request(&mut late, "/").await;
                assert!(answer.contains("connection: close"), "{answer}");

                admin.close_inbound_listeners().await.unwrap();
                while TcpStream::connect(place.at(HTTP)).await.is_ok() {
                    sleep(Duration::from_millis(5)).await;
                }
                let answer = request(&mut open, "/").await;
                assert!(answer.contains("connection: close"), "{answer}");
                load::echo(&mut outbound).await.unwrap();
                let mut another = TcpStream::connect(place.at(TCP)).await.unwrap();
                load::echo(&mut another).await.unwrap();
                drop((open, late));
                until_active(admin, 2).await;
                // Until the end of the drain, which could end Envoy.
                let began = uptime(admin).await;
                while uptime(admin).await < began + 3 {
                    sleep(Duration::from_millis(20)).await;
                }
                let report = supervisor.report();
                assert_eq!((report.starts, report.exits.len()), (1, 0));
                assert!(report.ready());
                supervisor.stop();
            };
            tokio::select! { () = scenario => {}, () = load::echo_server(&echo) => {} }
        },
    )
    .await;
}
