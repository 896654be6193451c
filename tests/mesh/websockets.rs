//! Websockets through routers and splitters.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::Method;
use legate_runtime::{BoxError, Scope, Spawner};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async, client_async};

use crate::{API, WEB};

const LIMIT: Duration = Duration::from_secs(10);

const OTHER: ServiceSpec = ServiceSpec {
    service: "other",
    instance: "other",
    protocol: "http",
    upstreams: &[],
};

/// A WebSocket application that echoes each text with the instance's name.
pub(crate) async fn serve(instance: &'static str, address: SocketAddr, scope: &Scope) {
    let listener = TcpListener::bind(address).await.expect("a free address");
    let (stop, spawner) = (scope.token(), scope.spawner());
    scope.spawn(format!("app {instance}"), async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok::<(), std::io::Error>(()),
                accepted = listener.accept() => start(instance, accepted?.0, &spawner),
            }
        }
    });
}

fn start(instance: &'static str, stream: TcpStream, spawner: &Spawner) {
    let stop = spawner.token();
    spawner.spawn(format!("connection of {instance}"), async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // A disconnected caller is not a failure of the application.
            _ = answer(instance, stream) => {}
        }
        Ok::<(), std::io::Error>(())
    });
}

async fn answer(instance: &str, stream: TcpStream) -> Result<(), BoxError> {
    let mut socket = accept_async(stream).await?;
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message? else {
            continue;
        };
        let answer = format!("{instance}: {text}");
        socket.send(Message::text(answer)).await?;
    }
    Ok(())
}

pub(crate) async fn open(
    upstream: SocketAddr,
    path: &str,
) -> Result<WebSocketStream<TcpStream>, BoxError> {
    let connect = async {
        let stream = TcpStream::connect(upstream).await?;
        let (socket, _) = client_async(format!("ws://api{path}"), stream).await?;
        Ok::<_, BoxError>(socket)
    };
    timeout(LIMIT, connect).await?
}

pub(crate) async fn say(
    socket: &mut WebSocketStream<TcpStream>,
    text: &str,
) -> Result<String, BoxError> {
    let exchange = async {
        socket.send(Message::text(text)).await?;
        let answer = socket.next().await.ok_or("the socket was closed")??;
        Ok::<_, BoxError>(answer.into_text()?.to_string())
    };
    timeout(LIMIT, exchange).await?
}

/// Waits until a new socket for a path reaches an instance.
pub(crate) async fn leads(
    upstream: SocketAddr,
    path: &str,
    instance: &str,
) -> WebSocketStream<TcpStream> {
    let what = format!("a websocket for {path} leads to {instance}");
    let probe = || async {
        let mut socket = open(upstream, path)
            .await
            .map_err(|error| error.to_string())?;
        let answer = say(&mut socket, "hello").await;
        Ok::<_, String>((socket, answer.map_err(|error| error.to_string())?))
    };
    let expected = format!("{instance}: hello");
    let accept = |answer: &Result<(_, String), String>| {
        answer.as_ref().is_ok_and(|(_, answer)| *answer == expected)
    };
    eventually(&what, probe, accept).await.expect("accepted").0
}

fn router(others: &str) -> Value {
    json!({"Kind": "service-router", "Name": "api", "Routes": [
        {"Match": {"HTTP": {"PathPrefix": "/chat/"}}, "Destination": {"Service": "other"}},
        {"Match": {"HTTP": {"PathPrefix": "/split/"}}, "Destination": {"Service": "split"}},
        {"Match": {"HTTP": {"PathPrefix": others}}, "Destination": {"Service": "other"}},
    ]})
}

fn splitter(other: u8) -> Value {
    json!({"Kind": "service-splitter", "Name": "split", "Splits": [
        {"Weight": other, "Service": "other"}, {"Weight": 100 - other, "Service": "api"},
    ]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_are_routed_by_the_router_and_stay_open() {
    let scope = Scope::new("applications");
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.entry(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}))
        .await;
    let mut sidecars: Vec<Sidecar> = Vec::new();
    for spec in [&API, &OTHER] {
        let address = mesh.application(spec.instance);
        serve(spec.instance, address, &scope).await;
        mesh.register_dead(spec).await;
        mesh.intend("web", spec.service, "allow").await;
        sidecars.push(mesh.join(spec).await);
    }
    sidecars.push(mesh.add(&WEB).await);
    let upstream = mesh.upstream("web", 0);
    let mut before = leads(upstream, "/chat/a", "api").await;

    mesh.entry(splitter(100)).await;
    mesh.entry(router("/first/")).await;
    let mut routed = leads(upstream, "/chat/a", "other").await;
    let mut split = leads(upstream, "/split/a", "other").await;
    drop(leads(upstream, "/first/", "other").await);
    // Other routes change, and so does this route for new sockets.
    mesh.entry(splitter(0)).await;
    mesh.entry(router("/second/")).await;
    drop(leads(upstream, "/split/a", "api").await);
    drop(leads(upstream, "/second/", "other").await);
    drop(leads(upstream, "/first/", "api").await);
    let path = "/v1/config/service-router/api";
    mesh.api(Method::DELETE, path, None).await;
    drop(leads(upstream, "/chat/a", "api").await);
    for (socket, answer) in [(&mut routed, "other: again"), (&mut split, "other: again")] {
        let said = say(socket, "again").await.expect("the socket is open");
        assert_eq!(said, answer);
    }
    // It belongs to the listener from before the router, which drains.
    let _ = before.close(None).await;

    for sidecar in sidecars.iter_mut().rev() {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    scope.stop(LIMIT).await.expect("the applications stop");
    mesh.stop().await;
}
