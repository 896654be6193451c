//! Requests to the HTTP API recorded with a real Consul, as data in `http/`: Legate's responses are equal
//! field by field, except for differences listed with their reasons.
//!
//! Every file is run against a separate agent, started as `consul agent -dev`; files whose names begin with
//! `acl` have ACLs. Requests are sent in order. If a real Consul is available, it is tested against the
//! recordings as well; `LEGATE_RECORD=1` updates them instead.

mod compare;
mod file;
mod masks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use legate_testkit::envoy::workspace_binary;
use legate_tests::interop::Pair;
use legate_tests::{client, eventually};
use tokio::time::{Instant, sleep};

use self::compare::Differences;
use self::file::{Answer, Exchange, Recording};
use self::masks::Masks;
use crate::consul_catalog::consul;

const ACL: &str = r#"
    acl { enabled = true default_policy = "deny" tokens { initial_management = "root" agent = "root" } }
"#;
/// The deadline for a response that is reached eventually.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a recording waits for such a response.
const SETTLED: Duration = Duration::from_secs(3);

/// The server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Consul,
    Legate,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legate_answers_as_recorded() {
    let mut requests = 0;
    let mut differ = Vec::new();
    let program = workspace_binary("legate");
    for (place, path) in files().iter().enumerate() {
        let mut recording = Recording::read(path);
        requests += recording.exchanges.len();
        let address = format!("127.0.78.{}", place + 1);
        differ.extend(replay(&mut recording, &program, &address, Server::Legate, false).await);
    }
    assert!(
        set("LEGATE_ONLY") || requests >= 300,
        "there are {requests} requests"
    );
    assert!(
        differ.is_empty(),
        "{}\n{} of {requests} differ",
        differ.join("\n"),
        differ.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_answers_as_recorded() {
    let Some(program) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let record = set("LEGATE_RECORD");
    let mut differ = Vec::new();
    for (place, path) in files().iter().enumerate() {
        let mut recording = Recording::read(path);
        let address = format!("127.0.79.{}", place + 1);
        differ.extend(replay(&mut recording, &program, &address, Server::Consul, record).await);
        if record {
            recording.write(path);
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether and what is recorded"
)]
pub(crate) fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// The recordings; with `LEGATE_ONLY`, those whose names contain it.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether and what is recorded"
)]
fn files() -> Vec<PathBuf> {
    let only = std::env::var("LEGATE_ONLY").unwrap_or_default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/http");
    let entries = std::fs::read_dir(folder).expect("the recordings");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "txt"));
    files.retain(|file| file.to_string_lossy().contains(&only));
    files.sort();
    files
}

/// Sends the requests of a file to a new agent and reports differences. When recording, the file's responses
/// are replaced instead.
async fn replay(
    recording: &mut Recording,
    program: &Path,
    address: &str,
    server: Server,
    record: bool,
) -> Vec<String> {
    let acl = recording.name.starts_with("acl");
    let settings = format!("node_name = \"n1\"\n{}", if acl { ACL } else { "" });
    let (mut child, http) = consul(program, address, &settings).await;
    wait_until_settled(http).await;
    let mut kept = BTreeMap::from([("address".to_owned(), address.to_owned())]);
    let mut differ = Vec::new();
    for exchange in &mut recording.exchanges {
        if record {
            if exchange.eventually {
                sleep(SETTLED).await;
            }
            let (answer, masks) = ask(http, exchange, &kept).await;
            kept = masks.kept;
            exchange.answer = Some(answer);
            continue;
        }
        if let Err(text) = compared(http, exchange, &mut kept, server).await {
            let what = format!("{}:{}: {}", recording.name, exchange.line, exchange.first);
            differ.push(format!("{what}\n{text}"));
        }
    }
    child.kill().await.expect("the agent ends");
    differ
}

async fn compared(
    http: SocketAddr,
    exchange: &Exchange,
    kept: &mut BTreeMap<String, String>,
    server: Server,
) -> Result<(), String> {
    let Some(recorded) = &exchange.answer else {
        return Err("it is not recorded".to_owned());
    };
    let begin = Instant::now();
    loop {
        let (answer, masks) = ask(http, exchange, kept).await;
        let found = Differences::between(recorded, &answer);
        let judged = found.judge(exchange, server == Server::Legate);
        if judged.is_ok() || !exchange.eventually || begin.elapsed() > LIMIT {
            *kept = masks.kept;
            return judged;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a request and returns the masked response; saves values to keep.
async fn ask(
    http: SocketAddr,
    exchange: &Exchange,
    kept: &BTreeMap<String, String>,
) -> (Answer, Masks) {
    let filled = |text: &str| {
        kept.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), value)
        })
    };
    let mut request = Request::builder()
        .method(exchange.method.as_str())
        .uri(filled(&exchange.path))
        .header("host", "localhost");
    for (name, value) in &exchange.headers {
        request = request.header(name, filled(value));
    }
    let body = Full::new(Bytes::from(filled(&exchange.body)));
    let request = request.body(body).expect("a request");
    let reply = client::ask(http, request).await;
    let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", exchange.first));
    let mut masks = Masks { kept: kept.clone() };
    let answer = masks.answer(exchange, &reply);
    (answer, masks)
}

/// Consul's agent registers itself some time after a leader is elected.
pub(crate) async fn wait_until_settled(http: SocketAddr) {
    for (path, has) in [
        ("/v1/catalog/service/consul", "ServiceName"),
        ("/v1/health/node/n1", "\"passing\""),
        ("/v1/catalog/node/n1", "\"lan\""),
        ("/v1/agent/connect/ca/roots", "RootCert"),
    ] {
        let answer = || async move {
            let token = Some("root");
            let answer = client::send(http::Method::GET, http, path, token, None).await;
            answer.map(|(_, body)| body).unwrap_or_default()
        };
        eventually(path, answer, |body| body.contains(has)).await;
    }
}
