//! Settings of sidecars from config entries and registrations, by their effect on traffic.

use std::net::SocketAddr;

use http::Method;
use legate_tests::mesh::NODE;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};

use crate::{API, WEB};

/// `web` with its upstream `api`, with permission.
async fn start() -> (Mesh, Sidecar, Sidecar) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let api = mesh.add(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    (mesh, web, api)
}

async fn stop(mesh: Mesh, sidecars: impl IntoIterator<Item = Sidecar>) {
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

/// The lines of a log that are JSON objects with a status.
fn logged(text: &str) -> Vec<Value> {
    let objects = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects
        .filter(|object| object["response_code"].is_number())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_logged_on_both_sides() {
    let (mesh, web, api) = start().await;
    assert_eq!(logged(&web.log()), Vec::<Value>::new());
    mesh.entry(json!({
        "Kind": "proxy-defaults", "Name": "global", "AccessLogs": {"Enabled": true},
    }))
    .await;
    let upstream = mesh.upstream("web", 0);
    for sidecar in [&web, &api] {
        let lines = eventually(
            "a request is logged",
            || async {
                let _ = client::get(upstream, "/").await;
                logged(&sidecar.log())
            },
            |lines| !lines.is_empty(),
        )
        .await;
        assert_eq!(lines[0].as_object().expect("an object").len(), 24);
        assert_eq!(lines[0]["path"], "/");
        assert_eq!(lines[0]["response_code"], 200);
    }

    let file = mesh.file("access.log");
    mesh.entry(json!({
        "Kind": "proxy-defaults", "Name": "global",
        "AccessLogs": {
            "Enabled": true, "Type": "file", "Path": file, "TextFormat": "status %RESPONSE_CODE%",
        },
    }))
    .await;
    let written = || async {
        let _ = client::get(upstream, "/").await;
        std::fs::read_to_string(&file).unwrap_or_default()
    };
    let text = eventually("a file is written", written, |text| !text.is_empty()).await;
    assert_eq!(text.lines().next(), Some("status 200"), "{text}");
    stop(mesh, [web, api]).await;
}

const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Envoy buffers spans of five requests before it sends them, here to the application.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_traced() {
    let (mesh, web, api) = start().await;
    let zipkin = json!({
        "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
        "collector_cluster": "local_app", "collector_endpoint": "/spans",
        "collector_endpoint_version": "HTTP_JSON",
    });
    let tracing = json!({
        "@type": format!("{MANAGER}.Tracing"),
        "random_sampling": {"value": 100},
        "provider": {"name": "envoy.tracers.zipkin", "typed_config": zipkin},
    });
    mesh.configure(
        &API,
        json!({"Config": {"envoy_listener_tracing_json": tracing.to_string()}}),
    )
    .await;
    let upstream = mesh.upstream("web", 0);
    eventually(
        "spans are sent",
        || async {
            let _ = client::get(upstream, "/").await;
            api.stat("tracing.zipkin.spans_sent").await
        },
        |sent| *sent > 0,
    )
    .await;
    stop(mesh, [web, api]).await;
}

/// A custom listener without TLS and intentions gets both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_listener_is_protected() {
    let (mesh, web, api) = start().await;
    let public = mesh.public("api");
    let listener = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "own",
        "address": {"socket_address": {"address": public.ip(), "port_value": public.port()}},
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": MANAGER,
                "stat_prefix": "own",
                "route_config": {"virtual_hosts": [{
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "local_app"}}],
                    "response_headers_to_add": [{"header": {"key": "x-own", "value": "yes"}}],
                }]},
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                }],
            },
        }]}],
    });
    mesh.configure(
        &API,
        json!({"Config": {"envoy_public_listener_json": listener.to_string()}}),
    )
    .await;
    let upstream = mesh.upstream("web", 0);
    eventually(
        "the listener is there",
        || async {
            let _ = client::get(upstream, "/").await;
            api.stat("http.own.downstream_rq_2xx").await
        },
        |requests| *requests > 0,
    )
    .await;
    assert!(
        client::get(public, "/").await.is_err(),
        "it takes mutual TLS only"
    );
    mesh.intend("web", "api", "deny").await;
    mesh.settle("web", 403).await;
    stop(mesh, [web, api]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_the_limit_are_answered_with_429() {
    let (mesh, web, api) = start().await;
    let limits = |limits: Value| {
        json!({
            "Kind": "service-defaults", "Name": "api", "Protocol": "http",
            "RateLimits": {"InstanceLevel": limits},
        })
    };
    let upstream = mesh.upstream("web", 0);
    let statuses = async |path: &str| {
        let mut statuses = Vec::new();
        for _ in 0..20 {
            let (status, _) = client::get(upstream, path).await.expect("an answer");
            statuses.push(status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses("/").await, [200; 20]);
    mesh.entry(limits(json!({"RequestsPerSecond": 1}))).await;
    mesh.settle("web", 429).await;
    mesh.entry(limits(json!({
        "RequestsPerSecond": 1,
        "Routes": [{"PathPrefix": "/free", "RequestsPerSecond": 1000}],
    })))
    .await;
    let free = || statuses("/free");
    eventually("the path is free", free, |statuses| *statuses == [200; 20]).await;
    assert!(statuses("/").await.contains(&429));
    mesh.entry(limits(json!({}))).await;
    mesh.settle("web", 200).await;
    stop(mesh, [web, api]).await;
}

/// The agent's check reaches the application through its proxy, without a certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_are_exposed_on_their_assigned_port() {
    let (mut mesh, web, api) = start().await;
    let exposed = SocketAddr::new(mesh.public("api").ip(), 21500);
    let target = mesh.application("api");
    let check = json!({
        "Node": NODE, "Address": "127.0.0.1",
        "Check": {
            "CheckID": "health", "Name": "health", "Status": "passing", "ServiceID": "api",
            "ExposedPort": exposed.port(),
            "Definition": {"HTTP": format!("http://{target}/"), "Interval": "10s"},
        },
    });
    mesh.api(Method::PUT, "/v1/catalog/register", Some(check))
        .await;
    assert!(client::get(exposed, "/").await.is_err());
    mesh.configure(&API, json!({"Expose": {"Checks": true}}))
        .await;
    let ask = || async {
        let answer = client::get(exposed, "/").await;
        answer.map(|(status, _)| status.as_u16()).map_err(drop)
    };
    eventually("the check is exposed", ask, |answer| *answer == Ok(200))
        .await
        .expect("accepted");
    let (status, _) = client::get(exposed, "/other").await.expect("an answer");
    assert_eq!(status.as_u16(), 404, "that path alone");
    mesh.configure(&API, json!({})).await;
    eventually("it is exposed no longer", ask, Result::is_err)
        .await
        .expect_err("accepted");
    stop(mesh, [web, api]).await;
}

const NEAR: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "near",
    protocol: "http",
    upstreams: &[],
};

/// Instances in the caller's zone are preferred, and others are used on failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_instances_are_preferred() {
    let (mut mesh, web, api) = start().await;
    let near = mesh.add(&NEAR).await;
    mesh.entry(json!({
        "Kind": "service-resolver", "Name": "api", "PrioritizeByLocality": {"Mode": "failover"},
    }))
    .await;
    for (spec, zone) in [(&WEB, "a"), (&NEAR, "a"), (&API, "b")] {
        mesh.locate(spec, json!({"Region": "r1", "Zone": zone}))
            .await;
    }
    let upstream = mesh.upstream("web", 0);
    let answers = async || {
        let mut names = Vec::new();
        for _ in 0..10 {
            let (_, body) = client::get(upstream, "/").await.unwrap_or_default();
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            names.push(body["instance"].as_str().unwrap_or_default().to_owned());
        }
        names
    };
    let all = |name: &'static str| move |names: &Vec<String>| names.iter().all(|one| one == name);
    eventually("the near one answers", &answers, all("near")).await;
    mesh.check("near", "critical").await;
    eventually("the other one answers", &answers, all("api")).await;
    mesh.check("near", "passing").await;
    eventually("the near one answers again", &answers, all("near")).await;
    stop(mesh, [web, api, near]).await;
}
