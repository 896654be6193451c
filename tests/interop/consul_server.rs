//! `legate-dataplane` with a real Consul server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;

use http::Method;
use legate_testkit::envoy::workspace_binary;
use legate_tests::interop::Pair;
use legate_tests::load::Load;
use legate_tests::wait::{LIMIT, eventually_within};
use legate_tests::{MeshOptions, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{API, WEB, credentials, scenario};

/// The port of Envoy's Prometheus listener.
const PROMETHEUS: u16 = 20200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_traffic() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::http_traffic(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_traffic_and_end() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::tcp_traffic_and_end(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_traffic() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::http_traffic(&Pair { tls: false, ..pair }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn intentions() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::intentions(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::instances(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::outage(&pair).await;
    }
}

/// The server of all sidecars dies. Others, discovered at runtime, take over, and no Envoy is
/// affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_server() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair
        .mesh(MeshOptions {
            servers: 3,
            ..MeshOptions::default()
        })
        .await;
    mesh.intend("web", "api", "allow").await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));
    let before = (streams(&api).await, streams(&web).await);

    mesh.lose_server().await;
    let during = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(during.failures, none, "answers: {:?}", during.answers);
    for (action, status) in [("deny", 403), ("allow", 200)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
    assert_eq!((streams(&api).await, streams(&web).await), before);
    assert!(web.stop().await.success(), "{}", web.log());
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

/// The number of configuration streams that an Envoy has opened.
async fn streams(sidecar: &Sidecar) -> u64 {
    let name = "cluster.consul-dataplane.upstream_rq_total";
    sidecar.stat(name).await
}

/// A root rotation with requests in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_root() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));
    let serials = (api.leaf_serial().await, web.leaf_serial().await);

    let ca = mesh
        .api(Method::GET, "/v1/connect/ca/configuration", None)
        .await;
    let mut ca: Value = serde_json::from_str(&ca).expect("JSON");
    ca["Config"]["PrivateKeyBits"] = json!(384);
    mesh.api(Method::PUT, "/v1/connect/ca/configuration", Some(ca))
        .await;
    // Consul spreads new certificates over half a minute.
    eventually_within(
        LIMIT * 3,
        "both have other certificates",
        || async { (api.leaf_serial().await, web.leaf_serial().await) },
        |now| now.0 != serials.0 && now.1 != serials.1,
    )
    .await;
    let before = load.seen().of(API.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(API.instance) > before + 20,
    )
    .await;
    let seen = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
    assert!(web.stop().await.success(), "{}", web.log());
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_and_logout() {
    if let Some(pair) = Pair::legate_dataplane() {
        credentials::login_and_logout(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_token() {
    if let Some(pair) = Pair::legate_dataplane() {
        credentials::deleted_token(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names() {
    if let Some(pair) = Pair::legate_dataplane() {
        scenario::names(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_alone() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.register(&API).await;
    let instance = mesh.public(API.instance).ip();
    let flags = pair.flags(&mut mesh, "resolver").without("proxy-id");
    let own = flags.address;
    let flags = flags
        .with("mode", "dns-proxy")
        .with("consul-dns-bind-addr", own.to_string())
        .with("consul-dns-bind-port", "8653");
    let mut resolver = mesh.sidecar("resolver", &flags);
    resolver.ready().await;
    scenario::answers((own, 8653).into(), instance).await;
    assert!(resolver.stop().await.success(), "{}", resolver.log());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_probe() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    let mut api = pair.add(&mut mesh, &API).await;
    assert_eq!(
        probe(api.address).await,
        (
            true,
            "Checking envoy proxy health\nEnvoy proxy is ready.\n".into()
        )
    );
    let address = api.address;
    assert!(api.stop().await.success(), "{}", api.log());
    assert_eq!(
        probe(address).await,
        (false, "Checking envoy proxy health\n".into())
    );
    mesh.stop().await;
}

/// The success and standard output of `-check-proxy-health`.
async fn probe(address: IpAddr) -> (bool, String) {
    let program: PathBuf = workspace_binary("legate-dataplane");
    let output = Command::new(program)
        .arg("-check-proxy-health")
        .env("DP_ENVOY_ADMIN_BIND_ADDRESS", address.to_string())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the probe can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// Settings of the dataplane in the proxy's configuration in Consul.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_access_logs() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.register(&API).await;
    let prometheus = (mesh.public(API.instance).ip(), PROMETHEUS).into();
    let defaults = json!({
        "Kind": "proxy-defaults",
        "Name": "global",
        "Config": {"envoy_prometheus_bind_addr": format!("{prometheus}")},
        "AccessLogs": {"Enabled": true, "JSONFormat": "{\"asked\": \"%REQ(:path)%\"}"},
    });
    mesh.api(Method::PUT, "/v1/config", Some(defaults)).await;
    let flags = pair.flags(&mut mesh, API.instance);
    let mut api = pair.start(&mesh, API.instance, &flags).await;

    let page = eventually(
        "the merged metrics are served",
        || async move {
            client::get(prometheus, "/metrics")
                .await
                .map_err(|e| e.to_string())
        },
        |page| matches!(page, Ok((status, _)) if status.is_success()),
    )
    .await;
    let (_, page) = page.expect("just looked");
    for name in ["envoy_server_live", "consul_dataplane_consul_connected"] {
        assert!(page.contains(name), "{name} is not in:\n{page}");
    }
    // The access log of Envoy's admin interface is written to the dataplane's standard output.
    asked(&api, "/clusters").await;
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

async fn asked(sidecar: &Sidecar, path: &str) {
    let answer = client::get(sidecar.admin(), path).await;
    assert!(answer.is_ok_and(|(status, _)| status.is_success()));
    let line = format!("{{\"asked\":\"{path}\"}}");
    eventually(
        "the access log has the request",
        || async { sidecar.log() },
        |log| log.contains(&line),
    )
    .await;
}
