//! Entries are compared with what they are made from: by the order in which Consul tries conditions.

use legate_model::Tenancy;
use legate_routes::{Origin, WeightedBackend};
use proptest::prelude::*;

use super::*;

fn service(name: &str) -> ServiceName {
    ServiceName::new(&Tenancy::default(), name)
}

fn to(name: &str, matched: Match) -> Rule {
    let origin = Origin {
        route: service("route"),
        rule: 0,
    };
    let backend = WeightedBackend::only(Target::Service(service(name)));
    Rule {
        matched,
        ..Rule::plain(origin, Action::Forward(vec![backend]))
    }
}

fn segments(path: &str) -> Match {
    Match {
        path: PathMatch::Segments(path.to_owned()),
        ..Match::default()
    }
}

fn host(domains: &[&str], rules: Vec<Rule>) -> VirtualHost {
    VirtualHost {
        domains: domains.iter().map(ToString::to_string).collect(),
        rules,
        otherwise: 404,
    }
}

fn port(content: Content, tls: Tls) -> Listener {
    let chain = legate_routes::Chain {
        name: None,
        server_names: Vec::new(),
        tls,
        content: 0,
    };
    Listener {
        port: 80,
        chains: vec![chain],
        contents: vec![content],
        host_ports: legate_routes::HostPorts::Any,
    }
}

#[test]
fn hosts_have_routes_and_the_widest_is_the_listeners() {
    let rules = vec![to("a", segments("/x"))];
    let hosts = vec![
        host(&["*.example.com"], rules.clone()),
        host(&["a.example.com", "b.example.com"], rules),
        host(&["c.example.com"], Vec::new()),
    ];
    let listener = port(Content::Http(hosts), Tls::None);
    let entry = super::listener("edge", &listener);
    assert_eq!(
        entry,
        json!({"Name": "port-80", "Port": 80, "Protocol": "http", "Hostname": "*.example.com"})
    );
    let routes = routes("edge", &listener);
    let names = routes
        .iter()
        .map(|(kind, route)| (*kind, route["Name"].as_str(), &route["Hostnames"]));
    let names: Vec<_> = names.collect();
    assert_eq!(
        names,
        [
            (HTTP_ROUTE, Some("edge-80"), &Value::Null),
            (
                HTTP_ROUTE,
                Some("edge-80-a.example.com"),
                &json!(["a.example.com"])
            ),
            (
                HTTP_ROUTE,
                Some("edge-80-b.example.com"),
                &json!(["b.example.com"])
            ),
        ]
    );
}

#[test]
fn segments_are_a_whole_path_and_a_beginning() {
    let mut rule = to("a", segments("/x"));
    rule.rewrite = Some(Rewrite::Segments("/y".to_owned()));
    rule.timeouts.request = Some(std::time::Duration::ZERO);
    let rules = rules(&[rule]);
    let of = |at: usize| {
        let rule = &rules[at];
        (
            rule["Matches"][0]["Path"]["Match"].as_str(),
            rule["Matches"][0]["Path"]["Value"].as_str(),
            rule["Filters"]["URLRewrite"]["Path"].as_str(),
        )
    };
    assert_eq!(of(0), (Some("exact"), Some("/x"), Some("/y")));
    assert_eq!(of(1), (Some("prefix"), Some("/x/"), Some("/y/")));
    assert_eq!(
        rules[0]["Filters"]["TimeoutFilter"]["RequestTimeout"],
        "-1s"
    );
}

#[test]
fn what_cannot_be_served_goes_to_nobody() {
    let mut rule = to("a", Match::default());
    rule.action = Action::Answer(500);
    let host = host(&["*"], vec![rule]);
    let mut entries = Entries::default();
    for (kind, route) in routes("edge", &port(Content::Http(vec![host]), Tls::None)) {
        entries.add(kind, route, BTreeMap::new());
    }
    let requests = entries.requests(&BTreeMap::new());
    let [Request::Put(service), Request::Put(route)] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!(service["Kind"], "service-defaults");
    assert_eq!(service["Name"], route["Rules"][0]["Services"][0]["Name"]);

    // What is there already is not written again, and what is not wanted goes.
    assert_eq!(entries.requests(&entries.digests()), []);
    let gone = Entries::default().requests(&entries.digests());
    assert_eq!(gone, [Request::Delete(HTTP_ROUTE, "edge-80".to_owned())]);
}

#[test]
fn keys_are_in_no_output() {
    let mut entries = Entries::default();
    let body = json!({"Name": "a", "PrivateKey": "the key"});
    entries.add(CERTIFICATE, body, BTreeMap::new());
    let text = format!("{entries:?} {:?}", entries.requests(&BTreeMap::new()));
    assert!(!text.contains("the key"), "{text}");
}

/// A request, and whether a condition of an entry holds for it.
type Asked = (&'static str, &'static str, [bool; 2]);

fn holds(condition: &Value, (method, path, headers): Asked) -> bool {
    let wanted = condition["Path"]["Value"].as_str().unwrap();
    let fits = match condition["Path"]["Match"].as_str().unwrap() {
        "exact" => path == wanted,
        _ => path.starts_with(wanted),
    };
    let method = condition["Method"].as_str().is_none_or(|one| one == method);
    let mut all = condition["Headers"].as_array().unwrap().iter();
    let has = |name: &str| match name {
        ":method" => true,
        "x" => headers[0],
        _ => headers[1],
    };
    fits && method && all.all(|header| has(header["Name"].as_str().unwrap()))
}

fn fits(rule: &Rule, (method, path, headers): Asked) -> bool {
    let wanted = &rule.matched;
    let is_path = match &wanted.path {
        PathMatch::Exact(one) => path == one,
        PathMatch::Segments(one) => path
            .strip_prefix(one.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        other => path.starts_with(other.text()),
    };
    let has = |one: &ValueMatch| headers[usize::from(one.name != "x")];
    is_path
        && wanted.method.as_ref().is_none_or(|one| one == method)
        && wanted.headers.iter().all(has)
}

fn any_match() -> impl Strategy<Value = Match> {
    let paths = prop::sample::select(vec!["/a", "/a/", "/b", "/a/b", "/ab", "/"]);
    let path = (0..3, paths).prop_map(|(kind, path)| match kind {
        0 => PathMatch::Exact(path.to_owned()),
        1 if path != "/" => PathMatch::Segments(path.trim_end_matches('/').to_owned()),
        _ => PathMatch::default(),
    });
    let method = prop::option::of(prop::sample::select(vec!["GET", "POST"]));
    let headers = prop::sample::subsequence(vec!["x", "y"], 0..=2);
    (path, method, headers).prop_map(|(path, method, headers)| Match {
        path,
        method: method.map(str::to_owned),
        headers: headers
            .into_iter()
            .map(|name| ValueMatch {
                name: name.to_owned(),
                value: TextMatch::Exact("1".to_owned()),
            })
            .collect(),
        query: Vec::new(),
    })
}

/// The order of the Gateway API.
fn rank(one: &Match) -> std::cmp::Reverse<(bool, usize, bool, usize)> {
    std::cmp::Reverse((
        matches!(one.path, PathMatch::Exact(_)),
        one.path.text().len(),
        one.method.is_some(),
        one.headers.len(),
    ))
}

proptest! {
    /// Consul sorts conditions before it tries them, as
    /// `agent/consul/discoverychain/gateway_httproute.go` does.
    #[test]
    fn consul_tries_the_same_rule_first(mut matches in prop::collection::vec(any_match(), 1..8)) {
        matches.sort_by_key(rank);
        let all: Vec<_> = matches
            .into_iter()
            .enumerate()
            .map(|(at, matched)| to(&at.to_string(), matched))
            .collect();
        let mut entry = rules(&all);
        entry.sort_by_key(|rule| {
            let condition = &rule["Matches"][0];
            let count = |field: &str| condition[field].as_array().unwrap().len();
            let path = condition["Path"]["Value"].as_str().unwrap().len();
            std::cmp::Reverse((path, count("Headers"), count("Query")))
        });
        for method in ["GET", "POST"] {
            for path in ["/a", "/a/", "/a/b", "/a/b/c", "/ab", "/abc", "/b", "/"] {
                for headers in [[false, false], [true, false], [false, true], [true, true]] {
                    let asked = (method, path, headers);
                    let wanted = all.iter().position(|rule| fits(rule, asked));
                    let found = entry.iter().find(|rule| holds(&rule["Matches"][0], asked));
                    let found = found.map(|rule| {
                        let name = rule["Services"][0]["Name"].as_str().unwrap();
                        name.parse::<usize>().unwrap()
                    });
                    prop_assert_eq!(found, wanted, "{:?}", asked);
                }
            }
        }
    }
}
