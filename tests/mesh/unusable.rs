//! A resource that Envoy rejects among others that it accepts: the others are applied, and the last
//! good version of the rejected one stays.

use http::Request;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};

use crate::API;
use crate::chains::ask;

const OTHER: ServiceSpec = ServiceSpec {
    service: "other",
    instance: "other",
    ..API
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    upstreams: &["api", "other"],
    ..API
};
const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";

/// A custom listener for the upstream `api`, which responds with this text.
fn listener(mesh: &Mesh, text: &str) -> Value {
    let upstream = mesh.upstream("web", 0);
    let respond = json!({"status": 200, "body": {"inline_string": text}});
    json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "written",
        "address": {"socket_address": {"address": upstream.ip(), "port_value": upstream.port()}},
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": MANAGER, "stat_prefix": "written",
                "route_config": {"virtual_hosts": [{
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": respond}],
                }]},
                "http_filters": [{
                    "name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER},
                }],
            },
        }]}],
    })
}

/// Registers `web` again with this listener for `api`, and with `other` on this port.
async fn configure(mesh: &Mesh, listener: &Value, port: u16) {
    let upstream = mesh.upstream("web", 0);
    let upstreams = json!([
        {
            "DestinationName": "api", "LocalBindAddress": upstream.ip(),
            "LocalBindPort": upstream.port(),
            "Config": {"envoy_listener_json": listener.to_string()},
        },
        {"DestinationName": "other", "LocalBindAddress": upstream.ip(), "LocalBindPort": port},
    ]);
    mesh.configure(&WEB, json!({"Upstreams": upstreams})).await;
}

async fn refusals(web: &Sidecar) -> u64 {
    web.stat("listener_manager.lds.update_rejected").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_are_used_and_the_last_good_version_stays() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut sidecars = Vec::new();
    for spec in [&API, &OTHER] {
        mesh.intend("web", spec.service, "allow").await;
        sidecars.push(mesh.add(spec).await);
    }
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    let (written, other) = (mesh.upstream("web", 0), mesh.upstream("web", 1));
    let says = async |text: &'static str| {
        let asked = || async {
            let answer = client::get(written, "/").await;
            answer.map(|(_, body)| body).unwrap_or_default()
        };
        eventually(text, asked, |body| body == text).await;
    };
    configure(&mesh, &listener(&mesh, "first"), other.port()).await;
    says("first").await;
    assert_eq!(refusals(&web).await, 0);

    // Envoy rejects two chains with the same match. In the same change another listener moves.
    let mut bad = listener(&mesh, "second");
    let chain = bad["filter_chains"][0].clone();
    bad["filter_chains"] = json!([chain.clone(), chain]);
    let moved = other.port() + 10;
    configure(&mesh, &bad, moved).await;
    eventually("it is refused", || refusals(&web), |count| *count > 0).await;
    let at = std::net::SocketAddr::new(other.ip(), moved);
    let asked = || async {
        let answer = client::get(at, "/").await;
        answer.map(|(_, body)| body).unwrap_or_default()
    };
    eventually("the other one has moved", asked, |body| {
        body.contains("\"instance\":\"other\"")
    })
    .await;
    says("first").await;

    // It is not sent again together with other changes.
    let before = refusals(&web).await;
    for version in ["2", "3"] {
        mesh.entry(json!({
            "Kind": "service-router", "Name": "other", "Routes": [{
                "Match": {"HTTP": {"PathPrefix": "/"}},
                "Destination": {"RequestHeaders": {"Set": {"x-version": version}}},
            }],
        }))
        .await;
        let asked = || async { ask(at, Request::get("/")).await.1["headers"]["x-version"].clone() };
        eventually("the routes have changed", asked, |set| set == version).await;
    }
    configure(&mesh, &bad, moved + 1).await;
    let at = std::net::SocketAddr::new(other.ip(), moved + 1);
    let asked = || async { client::get(at, "/").await.is_ok() };
    eventually("it has moved again", asked, |open| *open).await;
    assert_eq!(refusals(&web).await, before);

    configure(&mesh, &listener(&mesh, "third"), moved + 1).await;
    says("third").await;
    for mut sidecar in sidecars.into_iter().chain([web]) {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
