//! Extensions of Envoy's configuration change how requests are handled, and real Envoys accept all
//! their settings.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use legate_runtime::{BoxError, Scope};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::{API, WEB};

const STOP_LIMIT: Duration = Duration::from_secs(10);

/// `web` calls `api`, with permission.
async fn web_and_api() -> (Mesh, Sidecar, Sidecar) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let api = mesh.add(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    (mesh, web, api)
}

async fn extend(mesh: &Mesh, service: &str, extensions: Value) {
    let entry = json!({
        "Kind": "service-defaults", "Name": service, "Protocol": "http",
        "EnvoyExtensions": extensions,
    });
    mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
}

fn extension(name: &str, required: bool, arguments: Value) -> Value {
    json!({"Name": format!("builtin/{name}"), "Required": required, "Arguments": arguments})
}

async fn stop(mesh: Mesh, mut web: Sidecar, mut api: Sidecar) {
    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_runs_for_allowed_callers() {
    let (mesh, web, api) = web_and_api().await;
    let script = r#"
        function envoy_on_request(handle)
          local caller = handle:streamInfo():dynamicMetadata():get("consul")
          handle:respond({[":status"] = "418"}, "no tea for " .. caller["service"])
        end"#;
    let lua = extension(
        "lua",
        true,
        json!({"Listener": "inbound", "Script": script}),
    );
    extend(&mesh, "api", json!([lua])).await;
    mesh.settle("web", 418).await;
    // Envoy's threads switch to a new listener independently.
    let answer = || async {
        let answer = client::get(mesh.upstream("web", 0), "/").await;
        answer.expect("an answer").1
    };
    eventually("the script answers", answer, |body| {
        body == "no tea for web"
    })
    .await;
    // Access rules come before it.
    mesh.intend("web", "api", "deny").await;
    mesh.settle("web", 403).await;
    mesh.intend("web", "api", "allow").await;
    extend(&mesh, "api", json!([])).await;
    mesh.settle("web", 200).await;
    let script =
        r#"function envoy_on_request(handle) handle:respond({[":status"] = "416"}, "") end"#;
    let lua = extension(
        "lua",
        false,
        json!({"Listener": "outbound", "Script": script}),
    );
    extend(&mesh, "web", json!([lua])).await;
    mesh.settle("web", 416).await;
    stop(mesh, web, api).await;
}

/// Decides by a switch, and counts requests with the configured header.
#[derive(Clone, Default)]
struct Authority {
    allows: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

async fn decide(State(authority): State<Authority>, headers: HeaderMap) -> StatusCode {
    if headers.get("x-from").is_some_and(|from| from == "mesh") {
        authority.asked.fetch_add(1, Ordering::SeqCst);
    }
    match authority.allows.load(Ordering::SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::UNAUTHORIZED,
    }
}

async fn serve(router: Router, address: SocketAddr, scope: &Scope) -> SocketAddr {
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    let address = listener.local_addr().expect("it listens");
    let stop = scope.token().cancelled_owned();
    scope.spawn("server of a test".to_owned(), async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_external_authorizer_decides_and_requests_fail_without_it() {
    let (mesh, web, api) = web_and_api().await;
    let authority = Authority::default();
    let scope = Scope::new("authority");
    let router = Router::new()
        .fallback(any(decide))
        .with_state(authority.clone());
    let address = serve(router, ([127, 0, 0, 1], 0).into(), &scope).await;
    let authz = |required: bool| {
        let service = json!({
            "Target": {"URI": format!("127.0.0.1:{}", address.port()), "Timeout": "5s"},
            "AuthorizationRequest": {"HeadersToAdd": [{"Key": "x-from", "Value": "mesh"}]},
        });
        let config = json!({"StatusOnError": 503, "HttpService": service});
        json!([extension("ext-authz", required, json!({"Config": config}))])
    };
    extend(&mesh, "api", authz(true)).await;
    mesh.settle("web", 401).await;
    authority.allows.store(true, Ordering::SeqCst);
    let asked = || async {
        mesh.settle("web", 200).await;
        authority.asked.load(Ordering::SeqCst)
    };
    eventually("the authority is asked", asked, |times| *times >= 3).await;
    scope.stop(STOP_LIMIT).await.expect("the authority stops");
    mesh.settle("web", 503).await;
    // Without Required, requests pass if there is no decision.
    extend(&mesh, "api", authz(false)).await;
    mesh.settle("web", 200).await;
    stop(mesh, web, api).await;
}

/// Responds with 422 to every request. The runtime requires functions for memory and ABI version.
const MODULE: &str = r#"(module
  (import "env" "proxy_send_local_response"
    (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (global $free (mut i32) (i32.const 4096))
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "_initialize"))
  (func (export "malloc") (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $free))
    (global.set $free (i32.add (global.get $free) (local.get $size)))
    (local.get $at))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $respond (i32.const 422) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
      (i32.const 0) (i32.const 0) (i32.const -1)))
    (i32.const 1)))"#;

fn wasm(listener: &str, code: &Value) -> Value {
    let plugin = json!({"VmConfig": {"Code": code}, "Configuration": "settings"});
    let arguments = json!({"Protocol": "http", "ListenerType": listener, "PluginConfig": plugin});
    json!([extension("wasm", true, arguments)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_in_webassembly_from_a_file() {
    let (mesh, web, api) = web_and_api().await;
    let module = wat::parse_str(MODULE).expect("the module is WebAssembly");
    let file = mesh.file("filter.wasm");
    std::fs::write(&file, &module).expect("the folder can be written");
    let local = json!({"Local": {"Filename": file}});
    extend(&mesh, "api", wasm("inbound", &local)).await;
    mesh.settle("web", 422).await;
    extend(&mesh, "api", json!([])).await;
    mesh.settle("web", 200).await;
    stop(mesh, web, api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_in_webassembly_from_an_upstream() {
    const FILES: ServiceSpec = ServiceSpec {
        service: "files",
        instance: "files",
        protocol: "http",
        upstreams: &[],
    };
    const WEB: ServiceSpec = ServiceSpec {
        service: "web",
        instance: "web",
        protocol: "http",
        upstreams: &["api", "files"],
    };
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for callee in ["api", "files"] {
        mesh.intend("web", callee, "allow").await;
    }
    let module = Bytes::from(wat::parse_str(MODULE).expect("the module is WebAssembly"));
    mesh.register_dead(&FILES).await;
    let scope = Scope::new("files");
    let served = module.clone();
    let router = Router::new().route("/filter.wasm", any(move || async move { served }));
    serve(router, (mesh.public("files").ip(), 8080).into(), &scope).await;
    let mut files = mesh.join(&FILES).await;
    let api = mesh.add(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    let remote = |sum: &str| {
        json!({"Remote": {
            "HttpURI": {"Service": {"Name": "files"}, "URI": "http://files/filter.wasm"},
            "SHA256": sum,
        }})
    };
    let sum = sha256(&module);
    extend(&mesh, "web", wasm("outbound", &remote(&sum))).await;
    mesh.settle("web", 422).await;
    assert!(files.stop().await.success());
    scope.stop(STOP_LIMIT).await.expect("the files stop");
    stop(mesh, web, api).await;
}

fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("a text grows");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_listeners_and_clusters_are_replaced() {
    let (mesh, web, api) = web_and_api().await;
    let patch = |kind: &str, direction: &str, path: &str, value: Value| {
        json!({
            "ResourceFilter": {"ResourceType": kind, "TrafficDirection": direction},
            "Op": "add", "Path": path, "Value": value,
        })
    };
    let patches = json!([
        patch("listener", "inbound", "/stat_prefix", json!("renamed")),
        patch(
            "route",
            "inbound",
            "/request_headers_to_remove",
            json!(["x-gone"])
        ),
        patch(
            "cluster",
            "inbound",
            "/upstream_connection_options/tcp_keepalive",
            json!({
                "keepalive_probes": 3,
            })
        ),
    ]);
    let arguments = json!({"Patches": patches});
    extend(
        &mesh,
        "api",
        json!([extension("property-override", true, arguments)]),
    )
    .await;
    eventually(
        "connections are counted by the other name",
        || async {
            mesh.settle("web", 200).await;
            api.stat("listener.renamed.downstream_cx_total").await
        },
        |count| *count > 0,
    )
    .await;
    let zero = patch(
        "cluster",
        "outbound",
        "/circuit_breakers",
        json!({
            "thresholds": [{"max_requests": 0}],
        }),
    );
    let arguments = json!({"Patches": [zero]});
    extend(
        &mesh,
        "web",
        json!([extension("property-override", true, arguments)]),
    )
    .await;
    mesh.settle("web", 503).await;
    stop(mesh, web, api).await;
}

/// Accepts every gRPC call and returns its body.
async fn log_sink(scope: &Scope) -> (SocketAddr, mpsc::Receiver<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let (sender, logs) = mpsc::channel(16);
    let (stop, spawner) = (scope.token(), scope.spawner());
    scope.spawn("log sink".to_owned(), async move {
        loop {
            let (stream, _) = tokio::select! {
                () = stop.cancelled() => return Ok::<(), BoxError>(()),
                accepted = listener.accept() => accepted?,
            };
            let (sender, stop) = (sender.clone(), stop.clone());
            spawner.spawn("connection of a log".to_owned(), async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    // Interrupted calls end with an error, which is expected.
                    _ = take_calls(stream, sender) => {}
                }
                Ok::<(), BoxError>(())
            });
        }
    });
    (address, logs)
}

async fn take_calls(
    stream: tokio::net::TcpStream,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), BoxError> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(call) = connection.accept().await {
        let (request, mut respond) = call?;
        let mut body = request.into_body();
        let head = Response::builder().header("content-type", "application/grpc");
        let mut reply = respond.send_response(head.body(())?, false)?;
        while let Some(Ok(chunk)) = futures_util::future::poll_fn(|context| {
            // The connection must be polled for the body to arrive.
            let _ = connection.poll_closed(context);
            body.poll_data(context)
        })
        .await
        {
            body.flow_control().release_capacity(chunk.len())?;
            sender.send(chunk).await?;
        }
        reply.send_data(Bytes::from_static(&[0; 5]), false)?;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        reply.send_trailers(trailers)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_logged_by_opentelemetry() {
    let (mesh, web, api) = web_and_api().await;
    let scope = Scope::new("logs");
    let (address, mut logs) = log_sink(&scope).await;
    let config = json!({
        "GrpcService": {"Target": {"URI": format!("127.0.0.1:{}", address.port())}},
        "Body": "asked for %REQ(:PATH)%", "Attributes": {"of": "the test"},
        "BufferFlushInterval": "1s",
    });
    let log = extension("otel-access-logging", true, json!({"Config": config}));
    extend(&mesh, "api", json!([log])).await;
    let needle = b"asked for /";
    let logged = eventually(
        "a request is logged",
        || {
            let log = logs.try_recv().unwrap_or_default();
            let mesh = &mesh;
            async move {
                mesh.settle("web", 200).await;
                log
            }
        },
        |log| log.windows(needle.len()).any(|part| part == needle),
    )
    .await;
    assert!(logged.windows(8).any(|part| part == b"the test"));
    scope.stop(STOP_LIMIT).await.expect("the sink stops");
    stop(mesh, web, api).await;
}

/// The server's status of the sidecar of `web`.
async fn status(mesh: &Mesh) -> Value {
    let path = "/v1/internal/legate/proxy/node-1/web-sidecar-proxy";
    let text = mesh.api(Method::GET, path, None).await;
    serde_json::from_str(&text).expect("the server answers JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_invalid_listener_is_reported_and_blocks_no_other() {
    let (mesh, web, api) = web_and_api().await;
    let settled = |status: &Value| status["InSync"] == true;
    eventually("the proxy is in sync", || status(&mesh), settled).await;
    // Both listeners change at once, and Envoy rejects one of them.
    let both = |script: &str, prefix: &str| {
        let patch = json!({
            "ResourceFilter": {"ResourceType": "listener", "TrafficDirection": "outbound"},
            "Op": "add", "Path": "/stat_prefix", "Value": prefix,
        });
        let lua = json!({"Listener": "inbound", "Script": script});
        json!([
            extension("lua", false, lua),
            extension("property-override", false, json!({"Patches": [patch]})),
        ])
    };
    extend(&mesh, "web", both("this is no script", "first")).await;
    let refused = |status: &Value| status["Types"]["listener"]["LastRefusal"]["Count"] == 1;
    let seen = eventually("the refusal is shown", || status(&mesh), refused).await;
    let listeners = &seen["Types"]["listener"];
    let name = listeners["RefusedResources"][0].as_str().expect("a name");
    assert!(name.starts_with("public_listener:"), "{seen:#}");
    let reason = listeners["LastRefusal"]["Reason"]
        .as_str()
        .expect("a reason");
    assert!(reason.contains("script load error"), "{reason}");
    assert_eq!(seen["InSync"], false);
    // The other listener has changed, and changes again without the invalid one.
    for prefix in ["first", "second"] {
        extend(&mesh, "web", both("this is no script", prefix)).await;
        let counted = || async {
            mesh.settle("web", 200).await;
            web.stat(&format!("listener.{prefix}.downstream_cx_total"))
                .await
        };
        eventually("the other listener has changed", counted, |count| {
            *count > 0
        })
        .await;
    }
    let again = status(&mesh).await;
    assert_eq!(
        again["Types"]["listener"]["LastRefusal"],
        listeners["LastRefusal"]
    );
    extend(&mesh, "web", json!([])).await;
    let mended = eventually("the proxy is in sync", || status(&mesh), settled).await;
    assert_eq!(mended["Types"]["listener"]["Refused"], 0);
    stop(mesh, web, api).await;
}
