//! Tests of the pages: their text, their form compared with a real Envoy's, and over HTTP.

mod envoy;

use std::net::{Ipv4Addr, SocketAddr};

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use legate_envoy::admin::AdminClient;
use legate_l4::config::{Kind, Model, Resource};
use legate_runtime::Scope;
use legate_runtime::http_client::{Body, send};
use legate_testkit::certs::TestCa;
use legate_testkit::wait;
use prost::encoding::encode_varint;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::l4::Options;
use crate::l4::registry::Times;
use crate::l4::serving::Serving;
use crate::l4::tls::Material;

/// The trust domain in names of clusters.
const DOMAIN: &str = "11111111-2222-3333-4444-555555555555.consul";

/// Resources as JSON.
struct Resources {
    clusters: Vec<Value>,
    listeners: Vec<Value>,
    endpoints: Vec<Value>,
}

fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

/// The endpoints of a cluster.
fn assignment(name: &str, hosts: &[(u16, &str)]) -> Value {
    let hosts = hosts.iter().map(|(port, health)| {
        json!({
            "endpoint": { "address": socket("127.0.0.1", *port) },
            "health_status": health,
            "load_balancing_weight": 1,
        })
    });
    let hosts: Vec<Value> = hosts.collect();
    json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": hosts }] })
}

fn cluster(name: &str) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": assignment(name, &[(1, "HEALTHY"), (2, "UNHEALTHY")]),
    })
}

/// A certificate and its authority, for both directions.
fn common_tls(ca: &TestCa) -> Value {
    let own = ca.agent(&["web.example"]);
    json!({
        "tls_certificates": [{
            "certificate_chain": { "inline_string": own.cert_pem },
            "private_key": { "inline_string": own.key_pem },
        }],
        "validation_context": { "trusted_ca": { "inline_string": ca.ca_pem() } },
    })
}

fn transport_socket(message: &str, common: &Value) -> Value {
    json!({ "name": "tls", "typed_config": {
        "@type": format!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{message}"),
        "common_tls_context": common,
    } })
}

fn filter(message: &str, mut fields: Value) -> Value {
    let url = format!("type.googleapis.com/envoy.extensions.filters.network.{message}");
    fields["@type"] = url.into();
    json!({ "name": message, "typed_config": fields })
}

fn tcp_proxy(prefix: &str, cluster: &str) -> Value {
    let fields = json!({ "stat_prefix": prefix, "cluster": cluster });
    filter("tcp_proxy.v3.TcpProxy", fields)
}

fn listener(name: &str, address: Value, filters: &[Value]) -> Value {
    json!({
        "name": name,
        "address": address,
        "traffic_direction": "OUTBOUND",
        "filter_chains": [{ "filters": filters }],
    })
}

/// What a proxy with upstreams of many kinds has. `ports` are those of its listeners.
fn resources(ca: &TestCa, ports: [u16; 6], pipe: &str) -> Resources {
    let common = common_tls(ca);
    let target = |name: &str| format!("{name}.{DOMAIN}");
    let api = target("api.default.dc1.internal");
    let mut clusters: Vec<Value> = [
        target("v1.api.default.dc1.internal"),
        target("hash1~v1.api.ns1.part1.dc1.internal-v1"),
        target("hash1~api.default.dc2.internal"),
        target("api.default.peer-a.external"),
        target("passthrough~api.default.dc1.internal"),
        "local_app".to_owned(),
        "exposed:8080".to_owned(),
    ]
    .iter()
    .map(|name| cluster(name))
    .collect();
    let mut secure = cluster(&api);
    secure["outlier_detection"] = json!({});
    secure["circuit_breakers"] = json!({ "thresholds": [{ "max_connections": 7 }] });
    secure["transport_socket"] = transport_socket("UpstreamTlsContext", &common);
    clusters.push(secure);
    let limit = json!({ "stat_prefix": "inbound_connections", "max_connections": 100 });
    let rules = json!({ "stat_prefix": "connect_authz", "rules": { "action": "DENY" } });
    let mut public = listener(
        "public_listener:127.0.0.1",
        socket("127.0.0.1", ports[0]),
        &[
            filter("connection_limit.v3.ConnectionLimit", limit),
            filter("rbac.v3.RBAC", rules),
            tcp_proxy("public_listener", "local_app"),
        ],
    );
    public["traffic_direction"] = "INBOUND".into();
    public["filter_chains"][0]["transport_socket"] =
        transport_socket("DownstreamTlsContext", &common);
    let outbound = |name: &str, address: Value, prefix: &str| {
        listener(name, address, &[tcp_proxy(prefix, &api)])
    };
    let mut named = outbound(
        "named",
        socket("127.0.0.1", ports[4]),
        "terminating_gateway.api",
    );
    named["stat_prefix"] = "my.prefix".into();
    let listeners = vec![
        public,
        outbound(
            "api",
            socket("127.0.0.1", ports[1]),
            "upstream.api.default.default.dc1",
        ),
        outbound(
            "peer",
            socket("127.0.0.1", ports[2]),
            "upstream_peered.api.default.peer-a",
        ),
        outbound("six", socket("::1", ports[3]), "upstream.api.dc1"),
        named,
        outbound(
            "any",
            socket("0.0.0.0", ports[5]),
            "mesh_gateway_local.default.dc1",
        ),
        outbound(
            "pipe",
            json!({ "pipe": { "path": pipe } }),
            "upstream.pre_query.default.dc1",
        ),
    ];
    Resources {
        clusters,
        listeners,
        endpoints: Vec::new(),
    }
}

/// An encoded `google.protobuf.Any`.
fn any(message: &str, json: &Value) -> Vec<u8> {
    let value = legate_envoy_json::decode(message, json).unwrap();
    let url = format!("type.googleapis.com/{message}");
    let mut bytes = Vec::new();
    for (key, field) in [(0x0a, url.as_bytes()), (0x12, &value)] {
        bytes.push(key);
        encode_varint(field.len() as u64, &mut bytes);
        bytes.extend(field);
    }
    bytes
}

/// A proxy that serves resources, without sockets.
fn built_in(resources: &Resources) -> BuiltIn {
    let built_in = BuiltIn::new(&Options {
        threads: 2,
        files: 1024,
        host_name: String::new(),
        times: Times {
            half_closed: None,
            drain: Duration::ZERO,
        },
    });
    let all = [
        (
            Kind::Cluster,
            "envoy.config.cluster.v3.Cluster",
            &resources.clusters,
        ),
        (
            Kind::Endpoints,
            "envoy.config.endpoint.v3.ClusterLoadAssignment",
            &resources.endpoints,
        ),
        (
            Kind::Listener,
            "envoy.config.listener.v3.Listener",
            &resources.listeners,
        ),
    ];
    for (kind, message, resources) in all {
        let resources = resources.iter().map(|json| {
            let name = json.get("name").or(json.get("cluster_name")).unwrap();
            Resource {
                name: name.as_str().unwrap().into(),
                version: "1".to_owned(),
                body: any(message, json).into(),
            }
        });
        let resources: Vec<Resource> = resources.collect();
        let mut config = built_in
            .config
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *config = config.apply(kind, &resources, &[]).unwrap();
    }
    let model = built_in.config.read().unwrap().model(&Model::default());
    let shared = &built_in.shared;
    let serving = Serving::new(
        &model,
        &shared.serving(),
        &Material::default(),
        &shared.stats,
    );
    shared.replace(Arc::new(serving.unwrap()));
    shared.live.store(true, Ordering::Relaxed);
    built_in
}

fn document() -> Value {
    json!({
        "node": { "id": "web-proxy", "cluster": "web" },
        "stats_config": { "stats_tags": [{ "tag_name": "local_cluster", "fixed_value": "web" }] },
    })
}

/// The interface over HTTP, and whether it was asked to quit.
async fn served(built_in: BuiltIn, scope: &Scope) -> (SocketAddr, watch::Receiver<bool>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (quit, asked) = watch::channel(false);
    let parts = Parts {
        built_in,
        bootstrap: document(),
        drain_time: Duration::ZERO,
        quit: Box::new(move || {
            quit.send_replace(true);
        }),
        envoy: watch::channel(None).1,
    };
    Pages::new(parts, &scope.spawner()).serve(listener, &scope.spawner());
    (address, asked)
}

async fn call(address: SocketAddr, method: Method, path: &str) -> (u16, String) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let request = http::Request::builder().method(method).uri(path);
    let request = request.body(Body::default()).unwrap();
    let reply = send(address, request, deadline).await.unwrap();
    let status = reply.status.as_u16();
    let body = reply.body(1024 * 1024, deadline).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// A cluster with discovered endpoints, and a listener for it.
fn small() -> Resources {
    let mut api = cluster("api");
    api["type"] = "EDS".into();
    api["eds_cluster_config"] =
        json!({ "eds_config": { "ads": {}, "resource_api_version": "V3" } });
    api.as_object_mut().unwrap().remove("load_assignment");
    let mut public = listener(
        "public_listener",
        socket("127.0.0.1", 20000),
        &[tcp_proxy("public_listener", "api")],
    );
    public["traffic_direction"] = "INBOUND".into();
    Resources {
        clusters: vec![api],
        listeners: vec![
            public,
            listener(
                "out",
                socket("::1", 9191),
                &[tcp_proxy("upstream.api.dc1", "api")],
            ),
        ],
        endpoints: vec![assignment("api", &[(1, "HEALTHY"), (2, "UNHEALTHY")])],
    }
}

#[tokio::test]
async fn pages_have_the_form_of_envoys() {
    let built_in = built_in(&small());
    let stats = &built_in.shared.stats;
    let listener = stats.listener("127.0.0.1_20000");
    listener.cx_total.add(3);
    listener.cx_active.inc();
    for milliseconds in [0, 4, 70] {
        listener
            .cx_length
            .record(Duration::from_millis(milliseconds));
    }
    let scope = Scope::new("test");
    let (address, _) = served(built_in.clone(), &scope).await;
    let mut pages = String::new();
    for path in [
        "/ready",
        "/listeners",
        "/listeners?format=json",
        "/clusters",
        "/clusters?format=json",
        "/certs",
        "/config_dump?include_eds",
        "/config_dump?resource=dynamic_listeners&name_regex=out",
        "/stats?usedonly",
        "/stats?filter=%5Elistener%5C.127.*%28length_ms%7Ccx_total%29$&format=json",
        "/stats/prometheus?usedonly&filter=%5Elistener",
    ] {
        let (status, body) = call(address, Method::GET, path).await;
        pages += &format!("== {path} {status}\n{body}");
    }
    insta::assert_snapshot!(pages);
}

#[tokio::test]
async fn the_dataplanes_own_client_is_served() {
    let built_in = built_in(&small());
    built_in
        .shared
        .stats
        .listener("127.0.0.1_20000")
        .cx_active
        .set(2);
    let scope = Scope::new("test");
    let (address, mut asked) = served(built_in.clone(), &scope).await;
    let admin = AdminClient::new(address);
    let info = admin.server_info().await.unwrap();
    assert!(
        info.live() && info.version.contains("/legate-l4/"),
        "{info:?}"
    );
    assert_eq!(admin.active_connections().await.unwrap(), 2);
    // Only inbound listeners: it is no gateway.
    admin.close_inbound_listeners().await.unwrap();
    assert_eq!(built_in.draining(), Draining::Inbound);
    assert!(!*asked.borrow());
    admin.quit().await.unwrap();
    asked.wait_for(|asked| *asked).await.unwrap();
}

#[tokio::test]
async fn changes_take_post() {
    let built_in = built_in(&small());
    let total = &built_in.shared.stats.tcp("public_listener").cx_total;
    total.inc();
    let scope = Scope::new("test");
    let (address, mut asked) = served(built_in.clone(), &scope).await;
    for path in CHANGES {
        let (status, body) = call(address, Method::GET, path).await;
        assert_eq!(
            (status, body.as_str()),
            (405, "Method GET not allowed, POST required.")
        );
    }
    assert!(!*asked.borrow() && total.get() == 1);
    assert_eq!(call(address, Method::POST, "/reset_counters").await.0, 200);
    assert_eq!(total.get(), 0);
    let (_, used) = call(address, Method::GET, "/stats?usedonly&filter=tcp.*cx_total").await;
    assert_eq!(used, "tcp.public_listener.downstream_cx_total: 0\n");
    assert_eq!(
        call(address, Method::POST, "/healthcheck/fail").await.0,
        200
    );
    let failed = call(address, Method::GET, "/ready").await;
    assert_eq!((failed.0, failed.1.as_str()), (503, "DRAINING\n"));
    assert_eq!(call(address, Method::POST, "/healthcheck/ok").await.0, 200);
    built_in.shared.live.store(false, Ordering::Relaxed);
    let waiting = call(address, Method::GET, "/ready").await;
    assert_eq!((waiting.0, waiting.1.as_str()), (503, "PRE_INITIALIZING\n"));
    let graceful = "/drain_listeners?graceful&skip_exit";
    assert_eq!(call(address, Method::POST, graceful).await.0, 200);
    wait::until(async || match built_in.draining() {
        Draining::All => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(!*asked.borrow_and_update());
    assert_eq!(
        call(address, Method::POST, "/drain_listeners?skip_exit")
            .await
            .0,
        400
    );
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let scope = Scope::new("test");
    let (address, _) = served(built_in(&small()), &scope).await;
    for (path, status, expected) in [
        (
            "/heapprofiler",
            404,
            "serves no /heapprofiler: run with -proxy envoy",
        ),
        (
            "/config_dump?mask=x",
            400,
            "does not serve the parameter mask",
        ),
        ("/config_dump?resource=x", 404, "x not found in config dump"),
        (
            "/stats?format=html",
            400,
            "usage: /stats?format=(text|json|prometheus)",
        ),
        (
            "/stats?filter=(",
            400,
            "Invalid regular expression in filter",
        ),
        ("/stats?type=x", 400, "usage: /stats?type=("),
        (
            "/stats?histogram_buckets=detailed",
            400,
            "the parameter histogram_buckets",
        ),
    ] {
        let (found, body) = call(address, Method::GET, path).await;
        assert!(
            found == status && body.contains(expected),
            "{path}: {found} {body}"
        );
    }
}
