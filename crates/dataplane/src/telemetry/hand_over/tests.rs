//! What Envoy is asked, and when, by a server in its place.

use std::net::SocketAddr;

use legate_runtime::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::{ENVOY, Merger, PageRequest, Source, Telemetry};
use super::*;

/// What the server says, and what it was asked.
#[derive(Debug, Default)]
struct Script {
    /// None: it has no such gauges.
    epoch: Option<u32>,
    uptime: u64,
    counter: u64,
    asked: Vec<String>,
}

type Shared = Arc<Mutex<Script>>;

/// The answer to a request; every third question finds a flush.
fn answer(script: &Shared, path: &str) -> String {
    let mut script = script.lock().unwrap();
    script.asked.push(path.to_owned());
    let body = match path.split('?').next().unwrap() {
        "/stats" => {
            script.uptime += 1;
            let uptime = script.uptime / 3;
            let epoch = script.epoch;
            epoch.map_or_else(String::new, |epoch| {
                format!("server.hot_restart_epoch: {epoch}\nserver.uptime: {uptime}\n")
            })
        }
        "/server_info" => {
            r#"{"state":"LIVE","command_line_options":{"restart_epoch":7}}"#.to_owned()
        }
        "/stats/prometheus" => {
            let counter = script.counter;
            script.counter += 1;
            format!("# TYPE a counter\na{{}} {counter}\n")
        }
        path => panic!("{path}"),
    };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn serve(mut stream: TcpStream, script: Shared) -> std::io::Result<()> {
    let mut request = vec![0; 4096];
    loop {
        let read = stream.read(&mut request).await?;
        if read == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&request[..read]).into_owned();
        let answer = answer(&script, text.split(' ').nth(1).unwrap());
        stream.write_all(answer.as_bytes()).await?;
    }
}

async fn envoy(scope: &Scope, epoch: Option<u32>) -> (SocketAddr, Shared) {
    let script = Arc::new(Mutex::new(Script {
        epoch,
        counter: 10,
        ..Script::default()
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (spawner, shared) = (scope.spawner(), Arc::clone(&script));
    scope.spawn("envoy", async move {
        loop {
            let (stream, _) = listener.accept().await?;
            spawner.spawn("connection", serve(stream, Arc::clone(&shared)));
        }
        #[expect(unreachable_code, reason = "names the error type")]
        Ok::<_, std::io::Error>(())
    });
    (address, script)
}

fn merger(telemetry: &Telemetry, envoy: SocketAddr, scope: &Scope) -> Merger {
    let source = Source {
        name: ENVOY,
        target: Target::new(envoy, "/stats/prometheus"),
        takes_query: true,
    };
    Merger::new(telemetry.clone(), vec![source], scope.spawner())
}

async fn page(merger: &Merger) -> String {
    let request = PageRequest {
        query: Some("usedonly".to_owned()),
        format: Format::Text,
        time: Duration::from_secs(10),
    };
    let mut page = merger.page(&request).await.unwrap();
    let mut text = Vec::new();
    while let Some(piece) = page.pieces.recv().await {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).unwrap()
}

fn asked(script: &Shared) -> Vec<String> {
    std::mem::take(&mut script.lock().unwrap().asked)
}

#[tokio::test]
async fn nothing_is_asked_before_the_first_hand_over_which_waits_for_a_flush() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    // Nobody reads: there is nothing to carry on.
    telemetry.carry().hand_over().await;
    let (address, script) = envoy(&scope, Some(0)).await;
    let merger = merger(&telemetry, address, &scope);
    assert!(page(&merger).await.contains("\na{} 10\n"));
    assert_eq!(asked(&script), ["/stats/prometheus?usedonly"]);

    telemetry.carry().hand_over().await;
    let (first, last) = (asked(&script), "/stats/prometheus");
    assert_eq!(first.last().unwrap(), last, "without the reader's query");
    assert_eq!(first.len(), 4, "{first:?}");
    assert!(first[..3].iter().all(|path| path == WHO), "{first:?}");

    assert!(page(&merger).await.contains("\na{} 12\n"));
    assert_eq!(asked(&script), [WHO, "/stats/prometheus?usedonly"]);
    {
        let mut script = script.lock().unwrap();
        (script.epoch, script.counter) = (Some(1), 3);
    }
    assert!(page(&merger).await.contains("\na{} 15\n"));
    // One that has been replaced meanwhile: its counters are the other's by now.
    script.lock().unwrap().epoch = Some(0);
    let text = page(&merger).await;
    assert!(text.contains("another Envoy has taken over"), "{text}");
    assert!(
        text.contains("metrics_source_up{source=\"envoy\"} 0\n"),
        "{text}"
    );
    telemetry.carry().starting(0);
    assert!(page(&merger).await.contains("\na{} 4\n"));
}

#[tokio::test]
async fn an_envoy_without_these_gauges_is_asked_for_all_it_says_of_itself() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let (address, script) = envoy(&scope, None).await;
    let merger = merger(&telemetry, address, &scope);
    telemetry.carry().hand_over().await;
    assert_eq!(asked(&script), [WHO, INFO, "/stats/prometheus"]);
    assert!(page(&merger).await.contains("\na{} 11\n"));
    assert_eq!(asked(&script), [WHO, INFO, "/stats/prometheus?usedonly"]);
}

#[tokio::test]
async fn a_hand_over_that_cannot_be_read_ends_and_loses_nothing_that_was_read_before() {
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let (address, script) = envoy(&scope, Some(0)).await;
    let merger = merger(&telemetry, address, &scope);
    telemetry.carry().hand_over().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::new(silent.local_addr().unwrap(), "/");
    drop(silent);
    telemetry
        .carry()
        .reads(target, Dialer::new(scope.spawner()));
    telemetry.carry().hand_over().await;
    script.lock().unwrap().epoch = Some(1);
    assert!(page(&merger).await.contains("\na{} 21\n"));
}
