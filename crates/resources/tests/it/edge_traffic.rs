//! What a real Envoy does with requests at a gateway.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use legate_resources::Generator;
use legate_routes::{
    Action, Content, Cors, NOT_FOUND, PathMatch, Redirect, Retry, Rewrite, Rule, Target, TextMatch,
    Timeouts,
};
use legate_testkit::envoy;
use serde_json::{Value, json};

use crate::edge_rules::{api, forward, host, on, plain, rule, segments, share, snapshot};
use crate::golden_cases::written;

/// The path of a backend that never answers.
const SILENT: &str = "/silent";

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// Sends a request, and reads its answer.
fn send(port: u16, request: &str, host: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = format!("{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{text}\r\n").as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let head = stream.by_ref().lines().map(Result::unwrap);
    let head: Vec<_> = head.take_while(|line| !line.is_empty()).collect();
    let status = head[0].split(' ').nth(1).unwrap();
    let headers = head.iter().filter_map(|line| line.split_once(": "));
    let mut answer = Answer {
        status: status.parse().unwrap(),
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: String::new(),
    };
    // Envoy waits a second for the client to close the connection after an answer of its own.
    let length = answer.header("content-length").parse().unwrap_or(u64::MAX);
    let mut body = stream.take(length);
    body.read_to_string(&mut answer.body).unwrap();
    answer
}

/// Answers the request of a connection with what it is, and those for `/retry` with 500 as often as
/// there are failures.
fn answer(mut stream: TcpStream, failures: &AtomicUsize) {
    let mut head = Vec::new();
    for line in BufReader::new(&stream).lines() {
        match line {
            Ok(line) if !line.is_empty() => head.push(line),
            _ => break,
        }
    }
    let first = head.first().map_or("", String::as_str);
    let path = first.split(' ').nth(1).unwrap_or_default();
    let header = |name: &str| {
        let mut lines = head.iter().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    };
    if path == SILENT {
        // Until Envoy gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let one_less = |left: usize| left.checked_sub(1);
    let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
    let fails = path == "/retry" && failures.fetch_update(set, get, one_less).is_ok();
    let status = if fails { "500 No" } else { "200 OK" };
    let body = format!("{path} {} {}", header("host"), header("x-a"));
    let length = body.len();
    let answer =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    // Envoy may have gone.
    let _ = stream.write_all(answer.as_bytes());
}

/// The resources as a document of its own, with a backend at this port for every cluster.
fn bootstrap(resources: &Value, backend: u16) -> Value {
    let mut listener = resources["Listeners"]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap()
        .clone();
    let address = |port: u16| json!({"socketAddress": {"address": "127.0.0.1", "portValue": port}});
    listener["address"] = address(0);
    listener.as_object_mut().unwrap().remove("accessLog");
    let manager = &mut listener["filterChains"][0]["filters"][0]["typedConfig"];
    manager["routeConfig"] = resources["Routes"]["8443"].clone();
    manager["routeConfig"]["validateClusters"] = json!(false);
    let fields = manager.as_object_mut().unwrap();
    fields.remove("rds");
    fields.remove("accessLog");
    let clusters = resources["Clusters"].as_object().unwrap().keys();
    let clusters = clusters.map(|name| {
        let endpoint = json!({"endpoint": {"address": address(backend)}});
        json!({
            "name": name, "type": "STATIC",
            "loadAssignment": {
                "clusterName": name, "endpoints": [{"lbEndpoints": [endpoint]}],
            },
        })
    });
    json!({
        "admin": {"address": address(0)},
        "node": {"id": "edge", "cluster": "edge"},
        "staticResources": {"listeners": [listener], "clusters": clusters.collect::<Vec<_>>()},
    })
}

/// An Envoy that ends with the test.
struct Running {
    process: Child,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Running {
    fn new(document: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admin = folder.path().join("admin");
        let mut process = Command::new(envoy::binary())
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "--log-level",
                "error",
            ])
            .args([
                "--component-log-level",
                "main:info",
                "--config-yaml",
                &document.to_string(),
            ])
            .arg("--admin-address-path")
            .arg(&admin)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut running = Self { process, port: 0 };
        let mut lines = Vec::new();
        for line in log.lines() {
            lines.push(line.unwrap());
            if lines
                .last()
                .is_some_and(|line| line.contains("starting main dispatch loop"))
            {
                break;
            }
        }
        let address = std::fs::read_to_string(&admin).unwrap_or_else(|_| panic!("{lines:?}"));
        let port = address.trim().rsplit(':').next().unwrap().parse().unwrap();
        let listeners = send(port, "GET /listeners?format=json", "admin", &[]).body;
        let listeners = &listeners[listeners.find('{').unwrap()..=listeners.rfind('}').unwrap()];
        let listeners: Value = serde_json::from_str(listeners).unwrap();
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        running.port = address["port_value"].as_u64().unwrap().try_into().unwrap();
        running
    }
}

/// Runs requests at a gateway with these rules for all hosts, and with `b.test` for requests that
/// belong elsewhere.
fn with(rules: Vec<Rule>, requests: impl FnOnce(u16)) {
    let hosts = vec![host("*", rules, NOT_FOUND), host("b.test", Vec::new(), 421)];
    let snapshot = snapshot(vec![Content::Http(hosts)], vec![plain()]);
    let set = Generator::new().generate(&snapshot, None);
    let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = backend.local_addr().unwrap().port();
    let envoy = Running::new(&bootstrap(&written::document(&set), port));
    let (failures, ended) = (AtomicUsize::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (backend, failures, ended) = (&backend, &failures, &ended);
        scope.spawn(move || {
            for stream in backend.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // Envoy also makes connections that it does not use.
                scope.spawn(move || answer(stream.unwrap(), failures));
            }
        });
        let port_of_envoy = envoy.port;
        let requests = std::panic::AssertUnwindSafe(|| requests(port_of_envoy));
        let done = std::panic::catch_unwind(requests);
        drop(envoy);
        ended.store(true, Ordering::Relaxed);
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if let Err(cause) = done {
            std::panic::resume_unwind(cause);
        }
    });
}

fn rewritten(path: PathMatch, rewrite: Rewrite) -> Rule {
    let rule = Rule {
        rewrite: Some(rewrite),
        host_rewrite: Some("new.test".to_owned()),
        ..forward(api())
    };
    on(path, rule)
}

fn part(text: &str) -> Rewrite {
    Rewrite::Segments(text.to_owned())
}

#[test]
fn paths_and_hosts() {
    let mut header = forward(api());
    header
        .request
        .set
        .insert("x-a".to_owned(), "100%%".to_owned());
    let rules = vec![
        rewritten(segments("/strip"), part("/")),
        rewritten(segments("/one"), part("/two")),
        rewritten(segments("/slash"), part("/new/")),
        rewritten(segments("/full"), Rewrite::Whole(r"/who\1le".to_owned())),
        on(segments("/plain"), header),
        rewritten(PathMatch::default(), part("/root")),
    ];
    with(rules, |port| {
        for (path, expected) in [
            ("/strip", "/ new.test "),
            ("/strip/", "/ new.test "),
            ("/strip/three?q=1", "/three?q=1 new.test "),
            ("/one", "/two new.test "),
            ("/one/x?q=1", "/two/x?q=1 new.test "),
            ("/onex", "/root/onex new.test "),
            ("/slash/x", "/new/x new.test "),
            ("/full/x?q=1", r"/who\1le?q=1 new.test "),
            ("/plain", "/plain a.test 100%"),
        ] {
            let answer = send(port, &format!("GET {path}"), "a.test", &[]);
            assert_eq!((answer.status, &*answer.body), (200, expected), "{path}");
        }
        // The port in a host does not matter.
        assert_eq!(send(port, "GET /", "b.test:81", &[]).status, 421);
    });
}

#[test]
fn redirects_and_shares() {
    let redirect = |path: &str, redirect: Redirect| {
        let redirect = Redirect {
            status: redirect.status.max(302),
            ..redirect
        };
        on(segments(path), rule(Action::Redirect(redirect)))
    };
    let to_80 = |path: Rewrite| Redirect {
        path: Some(path),
        port: Some(80),
        ..Redirect::default()
    };
    let shares = vec![share(1, api()), share(1, Target::Answer(500))];
    let rules = vec![
        redirect(
            "/host",
            Redirect {
                host: Some("x.test".to_owned()),
                ..Redirect::default()
            },
        ),
        redirect(
            "/scheme",
            Redirect {
                scheme: Some("https".to_owned()),
                port: Some(443),
                status: 308,
                ..Redirect::default()
            },
        ),
        redirect("/part", to_80(part("/q"))),
        redirect("/root", to_80(part("/"))),
        redirect("/full", to_80(Rewrite::Whole("/f".to_owned()))),
        on(segments("/share"), rule(Action::Forward(shares))),
    ];
    with(rules, |port| {
        for (path, status, expected) in [
            ("/host/x?q=1", 302, "http://x.test/host/x?q=1"),
            ("/scheme/x", 308, "https://a.test:443/scheme/x"),
            ("/part/a/b?q=1", 302, "http://a.test:80/q/a/b?q=1"),
            ("/root/three", 302, "http://a.test:80/three"),
            ("/root", 302, "http://a.test:80/"),
            ("/full/x?q=1", 302, "http://a.test:80/f?q=1"),
        ] {
            let answer = send(port, &format!("GET {path}"), "a.test:8080", &[]);
            let found = (answer.status, answer.header("location"));
            assert_eq!(found, (status, expected), "{path}");
        }
        let mut counts = BTreeMap::<_, u32>::new();
        for _ in 0..200 {
            *counts
                .entry(send(port, "GET /share", "a.test", &[]).status)
                .or_default() += 1;
        }
        let both = [200, 500].map(|status| counts.get(&status).copied().unwrap_or_default());
        assert!(
            both[0] > 50 && both[1] > 50 && both[0] + both[1] == 200,
            "{counts:?}"
        );
    });
}

#[test]
fn pages_of_other_origins() {
    let cors = |path: &str, origins: &[TextMatch], (methods, headers): (&[&str], &[&str])| {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let cors = Cors {
            origins: origins.to_vec(),
            credentials: true,
            methods: texts(methods),
            headers: texts(headers),
            exposed: Vec::new(),
            max_age: Duration::from_secs(5),
        };
        let rule = Rule {
            cors: Some(Arc::new(cors)),
            ..forward(api())
        };
        on(segments(path), rule)
    };
    let some = [
        TextMatch::Exact("https://www.foo.com".to_owned()),
        TextMatch::Regex(r"https://.+\.bar\.com".to_owned()),
    ];
    let any = [TextMatch::Regex(".*".to_owned())];
    let rules = vec![
        cors("/some", &some, (&["GET", "OPTIONS"], &["x-a"])),
        cors("/any", &any, (&["*"], &["*"])),
    ];
    with(rules, |port| {
        let ask = |request: &str, origin: &str| {
            let headers = [
                ("origin", origin),
                ("access-control-request-method", "PUT"),
                ("access-control-request-headers", "x-b, x-c"),
            ];
            send(port, request, "a.test", &headers)
        };
        let origin = "access-control-allow-origin";
        for (from, allowed) in [
            ("https://www.foo.com", true),
            ("https://a.b.bar.com", true),
            ("https://foobar.com", false),
        ] {
            let expected = if allowed { from } else { "" };
            for method in ["OPTIONS", "GET"] {
                let answer = ask(&format!("{method} /some"), from);
                assert_eq!(
                    (answer.status, answer.header(origin)),
                    (200, expected),
                    "{from}"
                );
                // A preflight reaches no backend.
                assert_eq!(answer.body.is_empty(), method == "OPTIONS", "{from}");
            }
        }
        let methods = "access-control-allow-methods";
        let known = ask("OPTIONS /some", "https://www.foo.com");
        assert_eq!(known.header(methods), "GET, OPTIONS");
        // What is allowed for everything is what was asked for, which also counts with cookies.
        let answer = ask("OPTIONS /any", "https://else.test");
        assert_eq!(answer.header(origin), "https://else.test");
        assert_eq!(answer.header(methods), "PUT");
        assert_eq!(answer.header("access-control-allow-headers"), "x-b, x-c");
    });
}

#[test]
fn tries_and_times() {
    let retry = Retry {
        count: Some(2),
        statuses: vec![500],
        on_connect_failure: true,
        of_unseen: true,
        ..Retry::default()
    };
    let limited = Timeouts {
        request: Some(Duration::from_millis(300)),
        ..Timeouts::default()
    };
    let rules = vec![
        on(
            segments("/retry"),
            Rule {
                retry: Some(retry),
                ..forward(api())
            },
        ),
        on(
            segments(SILENT),
            Rule {
                timeouts: limited,
                ..forward(api())
            },
        ),
    ];
    with(rules, |port| {
        assert_eq!(send(port, "GET /retry", "a.test", &[]).status, 200);
        assert_eq!(
            send(port, &format!("GET {SILENT}"), "a.test", &[]).status,
            504
        );
    });
}
