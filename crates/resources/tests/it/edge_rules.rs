//! What gateways can do that config entries cannot ask for: redirects, copies, other hosts and paths,
//! answers, shares of connections, and server names that lead to different things.

use std::sync::Arc;
use std::time::Duration;

use legate_model::ServiceName;
use legate_proxycfg::{Kind, Snapshot};
use legate_resources::Generator;
use legate_routes::{
    Action, Backend, BackendProtocol, Certificate, Chain, Clients, Content, Cors, HostPorts, Match,
    Mirror, NOT_FOUND, Origin, PathMatch, Redirect, Retry, Rewrite, Rule, ServerTls, Target,
    TextMatch, Timeouts, Tls, VirtualHost, WeightedBackend,
};
use serde_json::{Value, json};

use crate::golden_cases::documents::Documents;
use crate::golden_cases::envoy::Envoy;
use crate::golden_cases::written;

/// A gateway with one port, and services for requests and for connections.
pub(crate) fn snapshot(contents: Vec<Content>, chains: Vec<Chain>) -> Snapshot {
    let mut snapshot = configured();
    let Kind::ApiGateway(own) = &mut snapshot.kind else {
        panic!("{:?}", snapshot.kind)
    };
    let served = Arc::make_mut(&mut own.served);
    served.listeners.truncate(1);
    let listener = Arc::make_mut(&mut served.listeners[0]);
    listener.contents = contents;
    listener.host_ports = HostPorts::Any;
    listener.chains = chains;
    snapshot
}

/// A gateway that is configured by entries, with the services `api` and `db`.
pub(crate) fn configured() -> Snapshot {
    let documents: Documents = serde_json::from_value(json!({
        "Gateway": {"Kind": "api-gateway", "Service": "edge"},
        "Entries": [
            {"Kind": "service-defaults", "Name": "api", "Protocol": "http"},
            {"Kind": "api-gateway", "Name": "edge", "Listeners": [
                {"Name": "one", "Port": 8443, "Protocol": "http"},
                {"Name": "two", "Port": 9000, "Protocol": "tcp"},
            ]},
            {"Kind": "http-route", "Name": "a", "Parents": [{"Name": "edge"}], "Rules": [
                {"Services": [{"Name": "api"}]},
            ]},
            {"Kind": "tcp-route", "Name": "b", "Parents": [{"Name": "edge"}],
                "Services": [{"Name": "db"}]},
        ],
    }))
    .unwrap();
    documents.snapshot().unwrap()
}

/// The resources of a gateway, which Envoy accepts.
fn made(contents: Vec<Content>, chains: Vec<Chain>) -> Value {
    let set = Generator::new().generate(&snapshot(contents, chains), None);
    assert!(set.failures().is_empty(), "{:?}", set.failures());
    let document = written::document(&set);
    let mut validated = document.clone();
    for routes in validated["Routes"].as_object_mut().unwrap().values_mut() {
        // As for routes that are sent: those in a bootstrap document are validated by default.
        routes["validateClusters"] = json!(false);
    }
    let all = [("edge".to_owned(), validated)];
    assert_eq!(Envoy::new().refusals(&all), Vec::<String>::new());
    document
}

pub(crate) fn plain() -> Chain {
    Chain {
        name: None,
        server_names: Vec::new(),
        tls: Tls::None,
        content: 0,
    }
}

pub(crate) fn host(domain: &str, rules: Vec<Rule>, otherwise: u16) -> VirtualHost {
    VirtualHost {
        domains: vec![domain.to_owned()],
        rules,
        otherwise,
    }
}

pub(crate) fn api() -> Target {
    Target::Service("api".into())
}

fn backend(name: &str) -> Target {
    Target::Backend(Arc::new(Backend {
        namespace: "infra".to_owned(),
        name: name.to_owned(),
        port: 80,
        protocol: BackendProtocol::Http1,
        tls: None,
    }))
}

pub(crate) fn rule(action: Action) -> Rule {
    let origin = Origin {
        route: ServiceName::from("r"),
        rule: 0,
    };
    Rule::plain(origin, action)
}

pub(crate) fn forward(target: Target) -> Rule {
    rule(Action::Forward(vec![WeightedBackend::only(target)]))
}

pub(crate) fn share(weight: u32, target: Target) -> WeightedBackend {
    WeightedBackend {
        weight,
        ..WeightedBackend::only(target)
    }
}

/// The routes of the only host.
fn routes(rules: Vec<Rule>) -> Vec<Value> {
    let hosts = vec![host("*", rules, NOT_FOUND)];
    let made = made(vec![Content::Http(hosts)], vec![plain()]);
    let host = &made["Routes"]["8443"]["virtualHosts"][0];
    host["routes"].as_array().unwrap().clone()
}

fn only(rule: Rule) -> Value {
    routes(vec![rule]).remove(0)
}

pub(crate) fn on(path: PathMatch, rule: Rule) -> Rule {
    Rule {
        matched: Match {
            path,
            ..Match::default()
        },
        ..rule
    }
}

pub(crate) fn segments(path: &str) -> PathMatch {
    PathMatch::Segments(path.to_owned())
}

#[test]
fn answers_of_hosts() {
    let hosts = vec![
        host("a.test", Vec::new(), NOT_FOUND),
        host("b.test", vec![on(segments("/a"), forward(api()))], 421),
    ];
    let made = made(vec![Content::Http(hosts)], vec![plain()]);
    let routes = &made["Routes"]["8443"];
    assert_eq!(routes["ignorePortInHostMatching"], true);
    let hosts = &routes["virtualHosts"];
    assert_eq!(hosts[0].get("routes"), None);
    assert_eq!(hosts[0]["domains"], json!(["a.test"]));
    assert_eq!(
        hosts[1]["routes"][0]["match"],
        json!({"pathSeparatedPrefix": "/a"})
    );
    assert_eq!(
        hosts[1]["routes"][1],
        json!({"match": {"prefix": "/"}, "directResponse": {"status": 421}})
    );
}

#[test]
fn redirects() {
    let redirect = |path: PathMatch, redirect: Redirect| {
        let made = only(on(path, rule(Action::Redirect(redirect))));
        made["redirect"].clone()
    };
    let whole = Redirect {
        scheme: Some("https".to_owned()),
        host: Some("b.test".to_owned()),
        port: Some(8443),
        path: Some(Rewrite::Whole("/new".to_owned())),
        status: 308,
    };
    assert_eq!(
        redirect(segments("/a"), whole),
        json!({
            "schemeRedirect": "https", "hostRedirect": "b.test", "portRedirect": 8443,
            "pathRedirect": "/new", "responseCode": "PERMANENT_REDIRECT",
        })
    );
    let part = |path: &str| Redirect {
        path: Some(Rewrite::Segments(path.to_owned())),
        status: 302,
        ..Redirect::default()
    };
    assert_eq!(
        redirect(segments("/a"), part("/b")),
        json!({"prefixRewrite": "/b", "responseCode": "FOUND"})
    );
    let to_root = redirect(segments("/a.b"), part("/"));
    assert_eq!(to_root["regexRewrite"]["pattern"]["regex"], r"^/a\.b/*");
    assert_eq!(to_root["regexRewrite"]["substitution"], "/");
}

#[test]
fn paths_and_hosts_are_rewritten() {
    let rewritten = |path: PathMatch, rewrite: Rewrite| {
        let rule = Rule {
            rewrite: Some(rewrite),
            host_rewrite: Some("b.test".to_owned()),
            ..forward(api())
        };
        only(on(path, rule))["route"].clone()
    };
    let part = |text: &str| Rewrite::Segments(text.to_owned());
    let made = rewritten(segments("/a"), part("/b/"));
    assert_eq!(made["prefixRewrite"], "/b");
    assert_eq!(made["hostRewriteLiteral"], "b.test");
    assert_eq!(
        rewritten(PathMatch::default(), part("/b"))["prefixRewrite"],
        "/b/"
    );
    let to_root = rewritten(segments("/a"), part(""));
    assert_eq!(to_root["regexRewrite"]["pattern"]["regex"], "^/a/*");
    assert_eq!(to_root["regexRewrite"]["substitution"], "/");
    let whole = rewritten(segments("/a"), Rewrite::Whole(r"/b\1".to_owned()));
    assert_eq!(whole["regexRewrite"]["pattern"]["regex"], "^.*$");
    assert_eq!(whole["regexRewrite"]["substitution"], r"/b\\1");
    let nothing = rewritten(PathMatch::default(), part("/"));
    assert_eq!(nothing.get("prefixRewrite"), None);
}

#[test]
fn copies_are_for_one_cluster() {
    let rule = Rule {
        mirrors: vec![
            Mirror {
                target: api(),
                per_million: 200_000,
            },
            Mirror {
                target: backend("b"),
                per_million: 1,
            },
        ],
        ..forward(api())
    };
    let made = only(rule);
    let copies = made["route"]["requestMirrorPolicies"].as_array().unwrap();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0]["cluster"], made["route"]["cluster"]);
    assert_eq!(copies[0]["disableShadowHostSuffixAppend"], true);
    let part = json!({"numerator": 200_000, "denominator": "MILLION"});
    assert_eq!(copies[0]["runtimeFraction"]["defaultValue"], part);
}

#[test]
fn pages_of_other_origins() {
    let cors = Cors {
        origins: vec![
            TextMatch::Exact("https://a.test".to_owned()),
            TextMatch::Regex(".*".to_owned()),
        ],
        credentials: true,
        methods: vec!["GET".to_owned(), "PUT".to_owned()],
        headers: vec!["*".to_owned()],
        exposed: vec!["x-a".to_owned()],
        max_age: Duration::from_secs(5),
    };
    let rule = Rule {
        cors: Some(Arc::new(cors)),
        ..forward(api())
    };
    let hosts = vec![host("*", vec![rule], NOT_FOUND)];
    let made = made(vec![Content::Http(hosts)], vec![plain()]);
    let route = &made["Routes"]["8443"]["virtualHosts"][0]["routes"][0];
    let policy = &route["typedPerFilterConfig"]["envoy.filters.http.cors"];
    assert_eq!(policy["allowMethods"], "GET, PUT");
    assert_eq!(
        policy["allowOriginStringMatch"][0],
        json!({"exact": "https://a.test"})
    );
    assert_eq!(policy["maxAge"], "5");
    assert_eq!(policy["forwardNotMatchingPreflights"], false);
    let listener = made["Listeners"]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap();
    let filters = &listener["filterChains"][0]["filters"][0]["typedConfig"]["httpFilters"];
    assert_eq!(filters[0]["name"], "envoy.filters.http.cors");
}

#[test]
fn timeouts_and_retries() {
    let rule = Rule {
        timeouts: Timeouts {
            request: Some(Duration::ZERO),
            one_try: Some(Duration::from_millis(200)),
            idle: None,
        },
        retry: Some(Retry {
            count: Some(2),
            pause: Some(Duration::from_millis(50)),
            statuses: vec![500],
            on_connect_failure: true,
            of_unseen: true,
            ..Retry::default()
        }),
        ..forward(api())
    };
    let made = only(rule);
    assert_eq!(made["route"]["timeout"], "0s");
    let policy = &made["route"]["retryPolicy"];
    let conditions = "connect-failure,retriable-status-codes,refused-stream,retriable-headers";
    assert_eq!(policy["retryOn"], conditions);
    assert_eq!(
        (&policy["numRetries"], &policy["perTryTimeout"]),
        (&json!(2), &json!("0.200s"))
    );
    assert_eq!(policy["retryBackOff"]["baseInterval"], "0.050s");
    assert!(policy["retriableHeaders"].is_array());
    let never = Rule {
        retry: Some(Retry {
            count: Some(0),
            ..Retry::default()
        }),
        ..forward(api())
    };
    assert_eq!(
        only(never)["route"]["retryPolicy"],
        json!({"numRetries": 0})
    );
}

#[test]
fn a_share_that_is_answered_keeps_its_weight() {
    let shares = |all: Vec<WeightedBackend>| only(rule(Action::Forward(all)));
    let made = shares(vec![share(3, api()), share(1, Target::Answer(500))]);
    let route = &made["route"];
    assert_eq!(
        route["clusterNotFoundResponseCode"],
        "INTERNAL_SERVER_ERROR"
    );
    let clusters = route["weightedClusters"]["clusters"].as_array().unwrap();
    assert_eq!(clusters[0]["weight"], 3);
    assert_eq!(clusters[1], json!({"name": "no_cluster", "weight": 1}));
    let made = shares(vec![
        share(3, Target::Answer(500)),
        share(1, Target::Answer(503)),
    ]);
    assert_eq!(made["directResponse"]["status"], 500);
    // Nobody has made clusters for it yet.
    assert_eq!(only(forward(backend("a")))["directResponse"]["status"], 503);
}

#[test]
fn the_only_backend_may_have_changes_of_its_own() {
    let mut backend = share(1, api());
    backend
        .request
        .set
        .insert("x-a".to_owned(), "100%%".to_owned());
    let made = only(rule(Action::Forward(vec![backend])));
    let cluster = &made["route"]["weightedClusters"]["clusters"][0];
    let header = json!({"key": "x-a", "value": "100%%"});
    assert_eq!(cluster["requestHeadersToAdd"][0]["header"], header);
}

#[test]
fn server_names_lead_to_different_things() {
    let certificate = || vec![Certificate::OfGateway];
    let chain = |names: &[&str], tls, content| Chain {
        name: None,
        server_names: names.iter().map(|name| (*name).to_owned()).collect(),
        tls,
        content,
    };
    let clients = Clients {
        authorities: rcgen::generate_simple_self_signed(Vec::new())
            .unwrap()
            .cert
            .pem(),
        required: true,
    };
    let verified = ServerTls {
        certificates: certificate(),
        clients: Some(clients.clone()),
        ..ServerTls::default()
    };
    let asked = ServerTls {
        clients: Some(Clients {
            required: false,
            ..clients
        }),
        ..verified.clone()
    };
    let http = |domain: &str| Content::Http(vec![host(domain, vec![forward(api())], NOT_FOUND)]);
    let db = || Target::Service("db".into());
    let contents = vec![
        http("a.test"),
        http("b.test"),
        Content::Tcp(vec![share(2, db()), share(1, Target::Answer(500))]),
        Content::Tcp(Vec::new()),
        Content::Tcp(vec![share(1, db())]),
        Content::Tcp(vec![share(1, Target::Answer(500))]),
        Content::Tcp(vec![share(1, backend("a"))]),
    ];
    let made = made(
        contents,
        vec![
            chain(&["a.test"], Tls::Terminated(verified), 0),
            chain(&["*.b.test"], Tls::Terminated(asked), 1),
            chain(&["c.test"], Tls::PassedThrough, 2),
            chain(&["d.test"], Tls::PassedThrough, 3),
            chain(&[], Tls::PassedThrough, 4),
            chain(&["e.test"], Tls::PassedThrough, 5),
            chain(&["f.test"], Tls::PassedThrough, 6),
        ],
    );
    let names: Vec<_> = made["Routes"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["8443/*.b.test", "8443/a.test"]);
    let listener = made["Listeners"]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap();
    let chains = &listener["filterChains"];
    let context = |at: usize| &chains[at]["transportSocket"]["typedConfig"];
    assert_eq!(context(0)["requireClientCertificate"], true);
    assert_eq!(context(1)["requireClientCertificate"], false);
    let validation = &context(1)["commonTlsContext"]["validationContext"];
    assert_eq!(validation["trustChainVerification"], "ACCEPT_UNTRUSTED");
    let matched = json!({"serverNames": ["c.test"], "transportProtocol": "tls"});
    assert_eq!(chains[2]["filterChainMatch"], matched);
    let clusters = &chains[2]["filters"][0]["typedConfig"]["weightedClusters"]["clusters"];
    assert_eq!(clusters[1], json!({"name": "no_cluster", "weight": 1}));
    assert_eq!(chains[3].get("filters"), None);
    assert_eq!(
        chains[4]["filterChainMatch"],
        json!({"transportProtocol": "tls"})
    );
}
