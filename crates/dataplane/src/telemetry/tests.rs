//! Merging over real connections.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{StreamExt, poll};
use legate_envoy::supervision::RestartKind;
use legate_metrics_page::{Broken, Format, Merge};
use legate_runtime::Scope;
use legate_testkit::network::free_port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, advance};

use super::*;

/// Parses a page like a reader of the text format.
pub(super) fn read(page: &str) -> Result<String, Broken> {
    let (mut merge, mut out) = (Merge::default(), Vec::new());
    merge.begin(Format::Text);
    merge.push(page.as_bytes(), &mut out)?;
    merge.end(&mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// Sends these bytes on every connection and closes it; `{path}` and `{accept}` are replaced by values of the
/// request. `endless` is repeated after the answer.
async fn page_then(scope: &Scope, answer: &'static str, endless: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let spawner = scope.spawner();
    scope.spawn("page", async move {
        loop {
            let (mut stream, _) = listener.accept().await?;
            spawner.spawn("answer", async move {
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await?;
                let asked = String::from_utf8_lossy(&request[..read]).into_owned();
                let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
                let open = asked.contains("application/openmetrics-text");
                let accept = if open { "open" } else { "text" };
                let text = answer.replace("{path}", &path).replace("{accept}", accept);
                stream.write_all(text.as_bytes()).await?;
                while !endless.is_empty() && stream.write_all(endless.as_bytes()).await.is_ok() {
                    tokio::task::yield_now().await;
                }
                Ok::<_, std::io::Error>(())
            });
        }
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<_, std::io::Error>(())
    });
    address
}

async fn page(scope: &Scope, answer: &'static str) -> SocketAddr {
    page_then(scope, answer, "").await
}

fn source(name: &'static str, address: SocketAddr, takes_query: bool) -> Source {
    Source {
        name,
        target: Target::new(address, "/stats/prometheus"),
        takes_query,
    }
}

async fn merged(scope: &Scope, sources: Vec<Source>, time: Duration) -> String {
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let merger = Merger::new(telemetry, sources, scope.spawner());
    let page = merger.page(Some("usedonly"), time).unwrap();
    let pieces: Vec<_> = page.map(Result::unwrap).collect().await;
    String::from_utf8(pieces.concat()).unwrap()
}

async fn text(scope: &Scope, sources: Vec<Source>) -> String {
    merged(scope, sources, Duration::from_secs(10)).await
}

#[track_caller]
fn assert_ups(text: &str, ups: &[(&str, u8)]) {
    for (name, up) in ups {
        let line = format!("consul_dataplane_metrics_source_up{{source=\"{name}\"}} {up}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn sources_stand_one_after_the_other_and_end_their_lines() {
    let scope = Scope::new("test");
    let envoy = page(
        &scope,
        "HTTP/1.1 200 OK\r\n\r\n# TYPE e gauge\ne{p=\"{path}\"} 1\nlast 1",
    )
    .await;
    let app = page(
        &scope,
        "HTTP/1.1 200 OK\r\n\r\n# TYPE e gauge\ne{p=\"{path}\"} 2",
    )
    .await;
    let sources = vec![source("envoy", envoy, true), source("service", app, false)];
    let text = text(&scope, sources).await;
    assert!(text.contains("consul_dataplane_go_goroutines"));
    for line in [
        "e{p=\"/stats/prometheus?usedonly\"} 1\n",
        "last 1\n",
        "e{p=\"/stats/prometheus\"} 2\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(text.matches("# TYPE e ").count(), 1, "{text}");
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
    let welcome = page(&scope, "HTTP/1.1 200 OK\r\n\r\n<html>\nwelcome 1\n").await;
    let lost = page(
        &scope,
        "HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    let good = page(
        &scope,
        "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ngood 1\n",
    )
    .await;
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let sources = vec![
        source("broken", broken, false),
        source("missing", missing, false),
        source("welcome", welcome, false),
        source("lost", lost, false),
        source("closed", closed, false),
        source("good", good, false),
    ];
    let text = text(&scope, sources).await;
    assert!(
        text.contains("whole 1\n") && text.contains("good 1\n"),
        "{text}"
    );
    assert!(
        !text.contains("half") && !text.contains("\nwelcome 1"),
        "{text}"
    );
    assert_ups(
        &text,
        &[
            ("broken", 0),
            ("missing", 0),
            ("welcome", 0),
            ("lost", 0),
            ("closed", 0),
            ("good", 1),
        ],
    );
    let remark = |name: &str| {
        let begin = format!("# metrics of {name} are missing: http://");
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(&begin));
        line.unwrap_or_else(|| panic!("no remark about {name} in\n{text}"))
    };
    assert!(remark("missing").ends_with("status 404 Not Found"));
    assert!(remark("welcome").ends_with("line 1 is not a metric"));
    assert!(remark("lost").contains("redirects") && remark("closed").contains("refused"));
    // Readers accept the page.
    read(&text).unwrap();
}

#[tokio::test]
async fn sources_that_are_slow_or_have_no_end_leave_time_for_the_others() {
    let scope = Scope::new("test");
    let endless = page_then(&scope, "HTTP/1.1 200 OK\r\n\r\n", "endless 1\n").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = page(&scope, "HTTP/1.1 200 OK\r\n\r\ngood 1\n").await;
    let sources = vec![
        source("silent", silent.local_addr().unwrap(), false),
        source("endless", endless, false),
        source("good", good, false),
    ];
    let text = merged(&scope, sources, Duration::from_secs(3)).await;
    assert!(text.contains("\ngood 1\n") && text.contains("\nendless 1\n"));
    assert_ups(&text, &[("silent", 0), ("endless", 0), ("good", 1)]);
}

#[tokio::test]
async fn redirects_are_followed() {
    let scope = Scope::new("test");
    let there = page(&scope, "HTTP/1.1 200 OK\r\n\r\nthere{p=\"{path}\"} 1\n").await;
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{there}/m\r\ncontent-length: 0\r\n\r\n"
    );
    let here = page(&scope, answer.leak()).await;
    let text = text(&scope, vec![source("service", here, false)]).await;
    assert!(text.contains("there{p=\"/m\"} 1\n"), "{text}");
    assert_ups(&text, &[("service", 1)]);
}

const OPEN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/openmetrics-text; version=1.0.0\r\n\r\n\
                    # TYPE a counter\na_total{asked=\"{accept}\"} 1 1.5\n# EOF\n";

#[tokio::test]
async fn a_source_that_sends_openmetrics_is_written_as_text() {
    let scope = Scope::new("test");
    let open = page(&scope, OPEN).await;
    let plain = page(&scope, "HTTP/1.1 200 OK\r\n\r\nplain 1\n").await;
    let sources = vec![source("service", open, false), source("envoy", plain, true)];
    let text = text(&scope, sources).await;
    assert!(
        text.contains("# TYPE a_total counter\na_total{asked=\"text\"} 1 1500\n"),
        "{text}"
    );
    assert!(
        text.contains("plain 1\n") && !text.contains("# EOF"),
        "{text}"
    );
    assert_ups(&text, &[("service", 1), ("envoy", 1)]);
}

#[tokio::test(start_paused = true)]
async fn pages_that_nobody_reads_are_limited_and_end() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let endless = page_then(&scope, "HTTP/1.1 200 OK\r\n\r\n", "x 1\n").await;
    let sources = vec![source("envoy", endless, false); 2];
    let merger = Merger::new(telemetry, sources, scope.spawner());
    let hour = Duration::from_secs(3600);
    let mut unread = Vec::new();
    while let Some(page) = merger.page(None, hour) {
        let mut page = Box::pin(page);
        page.next().await.unwrap().unwrap();
        unread.push(page);
    }
    assert_eq!(unread.len(), 4);
    drop(unread);
    assert!(merger.page(None, hour).is_some(), "abandoned pages end");
}

#[tokio::test(start_paused = true)]
async fn stalled_readers_do_not_block_others() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let endless = page_then(&scope, "HTTP/1.1 200 OK\r\n\r\n", "x 1\n").await;
    let sources = vec![source("service", endless, false)];
    let merger = Merger::new(telemetry, sources, scope.spawner());
    let hour = Duration::from_secs(3600);
    let mut pages = Vec::new();
    for _ in 0..4 {
        let mut page = Box::pin(merger.page(None, hour).expect("there is room"));
        page.next().await.unwrap().unwrap();
        pages.push(page);
    }
    assert!(
        merger.page(None, hour).is_none(),
        "nobody has waited for long"
    );
    advance(Duration::from_secs(5)).await;
    // A page that is being read is not evicted.
    pages[0].next().await.unwrap().unwrap();
    let _fifth = merger.page(None, hour).expect("one makes room");
    let mut whole = Vec::new();
    for page in &mut pages {
        whole.push(page.next().await.unwrap().is_ok());
    }
    assert_eq!(whole, [true, false, true, true], "the longest");
}

#[tokio::test(start_paused = true)]
async fn pages_that_wait_for_their_sources_make_no_room() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sources = vec![source("service", silent.local_addr().unwrap(), false)];
    let merger = Merger::new(telemetry, sources, scope.spawner());
    let hour = Duration::from_secs(3600);
    let pages = (0..4).map(|_| Box::pin(merger.page(None, hour).unwrap()));
    let mut pages: Vec<_> = pages.collect();
    for page in &mut pages {
        assert!(poll!(page.next()).is_pending());
    }
    advance(Duration::from_secs(5)).await;
    assert!(merger.page(None, hour).is_none());
}

#[tokio::test]
async fn a_page_that_is_cut_off_does_not_look_complete() {
    let scope = Scope::new("test");
    let pages = Scope::new("pages");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let endless = page_then(&scope, "HTTP/1.1 200 OK\r\n\r\n", "x 1\n").await;
    let sources = vec![source("service", endless, false)];
    let merger = Merger::new(telemetry, sources, pages.spawner());
    let mut page = Box::pin(merger.page(None, Duration::from_secs(3600)).unwrap());
    page.next().await.unwrap().unwrap();
    pages.stop(Duration::from_secs(10)).await.unwrap();
    let rest: Vec<_> = page.collect().await;
    assert!(rest.last().unwrap().is_err(), "it looks whole");
}

/// Headers and body of a response, which ends with the connection.
async fn ask(address: SocketAddr, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    (head.to_lowercase(), answer[end + 4..].to_vec())
}

#[tokio::test]
async fn servers_negotiate_format_and_compression() {
    let scope = Scope::new("test");
    let open = page(&scope, OPEN).await;
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let merger = Merger::new(
        telemetry.clone(),
        vec![source("service", open, false)],
        scope.spawner(),
    );
    let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (own, merged) = (address(), address());
    let endpoints = Endpoints {
        own,
        merged,
        exposed: None,
    };
    start(endpoints.clone(), telemetry, merger, &scope.spawner());

    // Envoy serves only text, and so does the merged page.
    for (address, path, open) in [(own, "/any", true), (merged, "/stats/prometheus", false)] {
        let (head, body) = ask(address, path, "").await;
        assert!(
            head.contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(!head.contains("content-encoding"), "{head}");
        let plain = String::from_utf8(body).unwrap();
        assert!(
            plain.contains("\nconsul_dataplane_go_goroutines "),
            "{plain}"
        );

        let wanted =
            "accept: application/openmetrics-text;version=1.0.0\r\naccept-encoding: gzip\r\n";
        let (head, body) = ask(address, path, wanted).await;
        let expected = match open {
            true => "content-type: application/openmetrics-text; version=1.0.0",
            false => "content-type: text/plain; version=0.0.4",
        };
        assert!(head.contains(expected), "{head}");
        assert!(head.contains("content-encoding: gzip"), "{head}");
        assert!(head.contains("vary: accept-encoding"), "{head}");
        let mut page = String::new();
        flate2::read::GzDecoder::new(body.as_slice())
            .read_to_string(&mut page)
            .unwrap();
        assert!(
            page.contains("\nconsul_dataplane_go_goroutines ") && page.ends_with("# EOF\n") == open,
            "{page}"
        );
        assert!(body.len() < page.len() / 2);
    }
    assert!(ask(merged, "/metrics", "").await.0.contains(" 404 "));
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
    telemetry.envoy_restarted(RestartKind::Hot);
    let text = telemetry.render();
    for line in [
        "consul_dataplane_startup_stage_seconds{stage=\"connect\"}",
        "consul_dataplane_process_resident_memory_bytes",
        "consul_dataplane_envoy_restarts_total{kind=\"hot\"} 1\n",
        "consul_dataplane_envoy_restarts_total{kind=\"crash\"} 0\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
