//! Timeouts and retries of routes, as counted by the application.

use std::net::SocketAddr;

use http::Request;
use legate_tests::scripted::Requests;
use legate_tests::{Mesh, MeshOptions, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::chains::resolver;
use crate::{API, WEB};

struct Scene {
    mesh: Mesh,
    requests: Requests,
    sidecars: [Sidecar; 2],
}

impl Scene {
    async fn start() -> Self {
        let requests = Requests::default();
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.intend("web", "api", "allow").await;
        mesh.register_scripted(&API, "x-unused", &requests).await;
        let api = mesh.join(&API).await;
        let web = mesh.add(&WEB).await;
        mesh.settle("web", 200).await;
        Self {
            mesh,
            requests,
            sidecars: [web, api],
        }
    }

    /// Creates a route for each path prefix; the rest of the path is for the application.
    async fn routes(&self, destinations: &[(&str, Value)]) {
        let route = |(prefix, destination): &(&str, Value)| {
            let mut destination = destination.clone();
            destination["PrefixRewrite"] = json!("/");
            json!({"Match": {"HTTP": {"PathPrefix": format!("/{prefix}/")}}, "Destination": destination})
        };
        let mut routes: Vec<Value> = destinations.iter().map(route).collect();
        // This header is present as soon as the routes apply.
        let known = json!({"ResponseHeaders": {"Set": {"x-routes": "there"}}});
        routes.push(route(&("known", known)));
        let router = json!({"Kind": "service-router", "Name": "api", "Routes": routes});
        self.mesh.entry(router).await;
        let asked = || async {
            let answer = ask(self.upstream(), "/known/").await;
            answer.headers().contains_key("x-routes")
        };
        eventually("the routes are there", asked, |known| *known).await;
    }

    fn upstream(&self) -> SocketAddr {
        self.mesh.upstream("web", 0)
    }

    /// Status and text of the response, and the number of requests that reached the application.
    async fn ask(&self, prefix: &str, path: &str) -> (u16, String, usize) {
        let before = self.requests.to(path);
        let answer = ask(self.upstream(), &format!("{prefix}{path}")).await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        let asked = self.requests.to(path) - before;
        (answer.status().as_u16(), text, asked)
    }

    async fn stop(self) {
        for mut sidecar in self.sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

async fn ask(upstream: SocketAddr, path: &str) -> http::Response<bytes::Bytes> {
    let stream = TcpStream::connect(upstream)
        .await
        .expect("the upstream listens");
    let request = Request::get(path).header("host", "api");
    client::answer_on(stream, request).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_retried_as_their_route_specifies() {
    let scene = Scene::start().await;
    scene
        .routes(&[
            ("plain", json!({})),
            ("often", json!({"NumRetries": 4})),
            ("5xx", json!({"NumRetries": 2, "RetryOn": ["5xx"]})),
            (
                "codes",
                json!({"NumRetries": 3, "RetryOnStatusCodes": [503]}),
            ),
            (
                "others",
                json!({"NumRetries": 3, "RetryOnStatusCodes": [500]}),
            ),
            ("once", json!({"RetryOn": ["gateway-error"]})),
            ("reset", json!({"NumRetries": 2, "RetryOn": ["reset"]})),
            (
                "connect",
                json!({"NumRetries": 2, "RetryOnConnectFailure": true}),
            ),
        ])
        .await;
    // Requests that the application has received are retried only if the route specifies it.
    for (prefix, path, times) in [
        ("", "/fails", 1),
        ("/plain", "/fails", 1),
        ("/often", "/fails", 1),
        ("/5xx", "/fails", 3),
        ("/codes", "/fails", 4),
        ("/others", "/fails", 1),
        ("/once", "/fails", 2),
        ("/reset", "/fails", 1),
        ("/connect", "/fails", 1),
        ("/plain", "/closes", 1),
    ] {
        let (status, text, asked) = scene.ask(prefix, path).await;
        assert_eq!((status, asked), (503, times), "{prefix}{path}: {text}");
    }
    let (status, _, asked) = scene.ask("/5xx", "/ok").await;
    assert_eq!((status, asked), (200, 1));
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_have_the_timeout_of_their_route() {
    let scene = Scene::start().await;
    scene
        .routes(&[
            ("plain", json!({})),
            ("brief", json!({"RequestTimeout": "100ms"})),
            ("long", json!({"RequestTimeout": "20s"})),
            ("idle", json!({"IdleTimeout": "100ms"})),
        ])
        .await;
    assert_eq!(scene.ask("/plain", "/slow").await.0, 200);
    assert_eq!(scene.ask("/long", "/slow").await.0, 200);
    for (prefix, path, text) in [
        ("/brief", "/slow", "upstream request timeout"),
        ("/brief", "/waits", "upstream request timeout"),
        ("/idle", "/waits", "stream timeout"),
    ] {
        let (status, answer, _) = scene.ask(prefix, path).await;
        assert_eq!((status, answer.as_str()), (504, text), "{prefix}{path}");
    }
    // The resolver's timeout applies to routes without one.
    let brief = json!({"RequestTimeout": "100ms"});
    scene.mesh.entry(resolver("api", brief)).await;
    let asked = || async { scene.ask("/plain", "/slow").await.0 };
    eventually("the resolver's limit counts", asked, |status| {
        *status == 504
    })
    .await;
    assert_eq!(scene.ask("/long", "/slow").await.0, 200);
    scene.stop().await;
}
