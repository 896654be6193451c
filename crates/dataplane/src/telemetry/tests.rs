//! Merging over real connections.

use std::net::SocketAddr;
use std::time::Duration;

use legate_runtime::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;

/// Answers every connection with these bytes and closes it; what it was asked goes to the log.
async fn page(scope: &Scope, answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    scope.spawn("page", async move {
        loop {
            let (mut stream, _) = listener.accept().await?;
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await?;
            let asked = String::from_utf8_lossy(&request[..read]).into_owned();
            let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
            let text = answer.replace("{path}", &path);
            stream.write_all(text.as_bytes()).await?;
        }
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<_, std::io::Error>(())
    });
    address
}

fn source(name: &'static str, address: SocketAddr, takes_query: bool) -> Source {
    Source {
        name,
        target: Target::new(address, "/stats/prometheus"),
        takes_query,
    }
}

async fn merged(scope: &Scope, sources: Vec<Source>, query: Option<&str>) -> String {
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let merger = Merger::new(telemetry, sources, scope.spawner());
    let mut pieces = merger.page(query).unwrap();
    let mut text = Vec::new();
    while let Some(piece) = pieces.recv().await {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn sources_stand_one_after_the_other_and_end_their_lines() {
    let scope = Scope::new("test");
    let envoy = page(
        &scope,
        "HTTP/1.1 200 OK\r\n\r\nenvoy_metric{p=\"{path}\"} 1\nlast",
    )
    .await;
    let app = page(&scope, "HTTP/1.1 200 OK\r\n\r\napp_metric 2").await;
    let sources = vec![source("envoy", envoy, true), source("service", app, false)];
    let text = merged(&scope, sources, Some("usedonly")).await;
    let tail: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("envoy_metric"))
        .collect();
    assert!(text.contains("consul_dataplane_go_goroutines"));
    assert!(
        tail[0] == "envoy_metric{p=\"/stats/prometheus?usedonly\"} 1" && tail[1] == "last",
        "{text}"
    );
    assert!(tail.contains(&"app_metric 2"), "{text}");
    assert!(text.ends_with(
        "consul_dataplane_metrics_source_up{source=\"envoy\"} 1\n\
         consul_dataplane_metrics_source_up{source=\"service\"} 1\n"
    ));
}

#[tokio::test]
async fn a_source_that_fails_is_cut_at_a_line_and_leaves_the_others_alone() {
    let scope = Scope::new("test");
    let broken = page(
        &scope,
        "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nwhole 1\nhalf",
    )
    .await;
    let missing = page(
        &scope,
        "HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nno\n",
    )
    .await;
    let good = page(
        &scope,
        "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ngood 1\n",
    )
    .await;
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let sources = vec![
        source("broken", broken, false),
        source("missing", missing, false),
        source("closed", closed, false),
        source("good", good, false),
    ];
    let text = merged(&scope, sources, None).await;
    assert!(
        text.contains("whole 1\n") && text.contains("good 1\n"),
        "{text}"
    );
    assert!(!text.contains("half") && !text.contains("no\n"), "{text}");
    for (name, up) in [("broken", 0), ("missing", 0), ("closed", 0), ("good", 1)] {
        let line = format!("consul_dataplane_metrics_source_up{{source=\"{name}\"}} {up}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn pages_that_nobody_reads_are_limited_and_end() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let endless = page(&scope, "HTTP/1.1 200 OK\r\n\r\nx 1\n").await;
    let merger = Merger::new(
        telemetry,
        vec![source("envoy", endless, false); 9],
        scope.spawner(),
    );
    let unread: Vec<_> = std::iter::from_fn(|| merger.page(None)).take(100).collect();
    assert_eq!(unread.len(), 4);
    drop(unread);
    let freed = async {
        while merger.page(None).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), freed)
        .await
        .expect("abandoned pages end");
}

#[tokio::test]
async fn stages_are_noted_once_in_their_order() {
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    for stage in [Stage::Listen, Stage::Connect, Stage::Listen] {
        telemetry.stages().reached(stage);
    }
    let names: Vec<&str> = telemetry
        .stages()
        .all()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(names, ["listen", "connect"]);
    let text = telemetry.render();
    assert!(
        text.contains("consul_dataplane_startup_stage_seconds{stage=\"connect\"}"),
        "{text}"
    );
    assert!(
        text.contains("consul_dataplane_process_resident_memory_bytes"),
        "{text}"
    );
}
