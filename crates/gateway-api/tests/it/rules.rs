//! What rules of HTTPRoutes and GRPCRoutes become.

use std::time::Duration;

use legate_gateway_api::{Outcome, RouteKind};
use legate_routes::{
    Action, BackendProtocol, Content, PathMatch, Redirect, Rewrite, Rule, Target, TextMatch,
};
use serde_json::{Value, json};

use crate::clusters::later;
use crate::support::{Asked, ask, gateway, get, listener, of_route, resolved, route, served, to};

const GOOD: &str = "Accepted ResolvedRefs";

fn with(rules: Value) -> Outcome {
    resolved(&[
        gateway(json!([
            listener("plain", 80, "HTTP", ""),
            listener("secure", 8443, "HTTPS", ""),
        ])),
        route("HTTPRoute", "r", json!([]), rules),
    ])
}

fn said(outcome: &Outcome) -> String {
    of_route(outcome, RouteKind::Http, "r").remove(0)
}

fn rules(outcome: &Outcome, port: u16) -> Vec<Rule> {
    let mut listeners = served(outcome).listeners.iter();
    let listener = listeners.find(|one| one.port == port).unwrap();
    let [Content::Http(hosts)] = &listener.contents[..] else {
        panic!("{listener:?}")
    };
    hosts[0].rules.clone()
}

/// The only rule of a route with one filter.
fn filtered(filter: Value) -> Rule {
    let outcome = with(json!([{
        "filters": [filter], "backendRefs": [{"name": "a", "port": 80}],
    }]));
    assert_eq!(said(&outcome), GOOD);
    rules(&outcome, 80).remove(0)
}

#[test]
fn the_order_of_conditions_is_that_of_the_api() {
    let rule = |matched: Value, service: &str| json!({"matches": [matched], "backendRefs": [{"name": service, "port": 80}]});
    let path = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
    let header = json!([{"name": "Version", "value": "one"}, {"name": "version", "value": "two"}]);
    let mut with_header = path("PathPrefix", "/m");
    with_header["headers"] = header;
    let mut with_method = path("PathPrefix", "/m");
    with_method["method"] = json!("GET");
    let outcome = with(json!([
        rule(path("PathPrefix", "/"), "a"),
        rule(path("PathPrefix", "/m"), "a"),
        rule(with_header, "a"),
        rule(with_method, "a"),
        rule(path("PathPrefix", "/m/long/"), "a"),
        rule(path("RegularExpression", "/r.*"), "a"),
        rule(path("Exact", "/m"), "a"),
    ]));
    let order: Vec<_> = rules(&outcome, 80)
        .iter()
        .map(|rule| rule.origin.rule)
        .collect();
    assert_eq!(order, [6, 5, 4, 3, 2, 1, 0]);
    let all = rules(&outcome, 80);
    assert_eq!(
        all[2].matched.path,
        PathMatch::Segments("/m/long".to_owned())
    );
    // Of several conditions on one header, the first counts.
    assert_eq!(all[4].matched.headers.len(), 1);
    assert_eq!(all[4].matched.headers[0].name, "version");
    assert_eq!(
        all[4].matched.headers[0].value,
        TextMatch::Exact("one".to_owned())
    );
}

#[test]
fn among_equals_the_older_route_and_the_first_rule_win() {
    let objects = [
        gateway(json!([listener("one", 80, "HTTP", "")])),
        later(
            1,
            route("HTTPRoute", "a", json!([]), json!([to("/x", "a")])),
        ),
        route(
            "HTTPRoute",
            "z",
            json!([]),
            json!([to("/x", "missing"), to("/x", "c")]),
        ),
    ];
    // A rule that cannot be served keeps its place.
    assert_eq!(ask(&resolved(&objects), get("a", "/x")), "500");
}

#[test]
fn what_is_not_served_is_answered_and_named() {
    let rule = |field: &str, value: Value| {
        let mut rule = to("/odd", "a");
        rule[field] = value;
        rule
    };
    for (rule, path) in [
        (
            rule("sessionPersistence", json!({"type": "Cookie"})),
            "rules[0].sessionPersistence",
        ),
        (
            rule("filters", json!([{"type": "ExternalAuth"}])),
            "filters[0].type",
        ),
        (
            rule(
                "filters",
                json!([{"type": "ExtensionRef", "extensionRef": {"name": "x"}}]),
            ),
            "filters[0].extensionRef",
        ),
        (
            rule("filters", json!([{"type": "CORS"}])),
            "filters[0].cors",
        ),
        (
            rule("timeouts", json!({"request": "soon"})),
            "timeouts.request",
        ),
        (rule("retry", json!({"codes": [200]})), "retry.codes"),
        (
            rule(
                "matches",
                json!([{"path": {"type": "Glob", "value": "/odd"}}]),
            ),
            "matches.path.type",
        ),
        (
            rule(
                "matches",
                json!([{"path": {"type": "RegularExpression", "value": "/(odd"}}]),
            ),
            "matches.path",
        ),
        (
            rule(
                "filters",
                json!([{
                    "type": "RequestHeaderModifier",
                    "requestHeaderModifier": {"set": [{"name": "Host", "value": "x"}]},
                }]),
            ),
            "requestHeaderModifier.set",
        ),
        (
            rule(
                "backendRefs",
                json!([{
                    "name": "a", "port": 80, "filters": [{"type": "URLRewrite"}],
                }]),
            ),
            "backendRefs[0].filters[0].type",
        ),
    ] {
        let outcome = with(json!([rule, to("/", "b")]));
        assert_eq!(ask(&outcome, get("a", "/odd")), "500", "{rule}");
        let partially = "Accepted ResolvedRefs PartiallyInvalid:UnsupportedValue";
        assert_eq!(said(&outcome), partially, "{rule}");
        let verdict = outcome.routes.values().next().unwrap();
        let message = &verdict.parents[0].conditions[2].message;
        assert!(message.contains(path), "{path} is not in {message}");
        // Without a rule that is served, the route is not accepted, and answers nevertheless.
        let outcome = with(json!([rule]));
        assert_eq!(
            said(&outcome),
            "!Accepted:UnsupportedValue ResolvedRefs",
            "{rule}"
        );
        assert_eq!(ask(&outcome, get("a", "/odd")), "500", "{rule}");
    }
}

/// Envoy refuses everything on a port for one text that it cannot have.
#[test]
fn texts_that_cannot_be_sent_are_answered() {
    let filter = |kind: &str, field: &str, value: Value| {
        let mut rule = to("/odd", "a");
        rule["filters"] = json!([{"type": kind, field: value}]);
        rule
    };
    let matched = |value: Value| {
        let mut rule = to("/odd", "a");
        rule["matches"] = json!([value]);
        rule
    };
    let rewrite = json!({"type": "ReplaceFullPath", "replaceFullPath": "/a\nb"});
    let rules = [
        filter("URLRewrite", "urlRewrite", json!({"path": rewrite})),
        filter(
            "RequestRedirect",
            "requestRedirect",
            json!({"path": rewrite}),
        ),
        filter(
            "RequestRedirect",
            "requestRedirect",
            json!({"hostname": "a b"}),
        ),
        filter("CORS", "cors", json!({"allowOrigins": ["https://a\r\nb"]})),
        filter("CORS", "cors", json!({"allowMethods": [""]})),
        filter(
            "RequestHeaderModifier",
            "requestHeaderModifier",
            json!({"set": [{"name": "x", "value": "\u{1}"}]}),
        ),
        matched(json!({"path": {"value": "/a?b"}})),
        matched(json!({"path": {"value": "/a b"}})),
        matched(json!({"path": {"type": "Exact", "value": "a"}})),
        matched(json!({"path": {"type": "RegularExpression", "value": ""}})),
        matched(json!({"headers": [{"name": "", "value": "x"}]})),
        matched(json!({"headers": [{"name": "a b", "value": "x"}]})),
        matched(json!({"queryParams": [{"name": "", "value": "x"}]})),
        matched(json!({"method": "GET|PUT"})),
    ];
    for rule in rules {
        let outcome = with(json!([rule]));
        assert_eq!(
            said(&outcome),
            "!Accepted:UnsupportedValue ResolvedRefs",
            "{rule}"
        );
    }
    let objects = [
        gateway(json!([listener("one", 80, "HTTP", "")])),
        route(
            "HTTPRoute",
            "r",
            json!(["a b", "a.test"]),
            json!([to("/", "a")]),
        ),
    ];
    let outcome = resolved(&objects);
    assert_eq!(said(&outcome), "!Accepted:UnsupportedValue ResolvedRefs");
    assert_eq!(ask(&outcome, get("a.test", "/")), "500");
}

#[test]
fn a_field_of_the_whole_route_concerns_all_its_rules() {
    let mut whole = route("HTTPRoute", "r", json!([]), json!([to("/", "a")]));
    whole["spec"]["useDefaultGateways"] = json!("All");
    let outcome = resolved(&[gateway(json!([listener("one", 80, "HTTP", "")])), whole]);
    assert_eq!(said(&outcome), "!Accepted:UnsupportedValue ResolvedRefs");
    assert_eq!(ask(&outcome, get("a", "/")), "500");
}

#[test]
fn shares_of_backends() {
    let to = |weights: &[Value]| {
        let names = ["a", "b", "c"];
        let each = names.iter().zip(weights);
        let each = each.map(|(name, weight)| json!({"name": name, "port": 80, "weight": weight}));
        let outcome = with(json!([{"backendRefs": each.collect::<Vec<_>>()}]));
        assert_eq!(said(&outcome), GOOD);
        ask(&outcome, get("a", "/"))
    };
    assert_eq!(to(&[]), "500");
    assert_eq!(to(&[json!(0)]), "500");
    assert_eq!(to(&[Value::Null]), "infra/a:80");
    let shares = to(&[json!(70), json!(30), json!(0)]);
    assert_eq!(shares, "70*infra/a:80 30*infra/b:80");
}

#[test]
fn headers_are_changed() {
    let changes = json!({
        "set": [{"name": "X-Set", "value": "100%"}, {"name": "x-set", "value": "later"}],
        "add": [{"name": "X-Add", "value": "a"}],
        "remove": ["X-Remove"],
    });
    let rule = filtered(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes}));
    assert_eq!(rule.request.set["x-set"], "100%%");
    assert_eq!(rule.request.add["x-add"], "a");
    assert_eq!(rule.request.remove, ["x-remove"]);
    let changes = json!({"add": [{"name": "X-Add", "value": "b"}]});
    let filter = json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": changes});
    assert_eq!(filtered(filter.clone()).response.add["x-add"], "b");
    let outcome = with(json!([{
        "backendRefs": [{"name": "a", "port": 80, "filters": [filter]}],
    }]));
    let Action::Forward(backends) = &rules(&outcome, 80)[0].action else {
        panic!("{outcome:?}")
    };
    assert_eq!(backends[0].response.add["x-add"], "b");
}

#[test]
fn redirects_name_the_port_of_the_listener() {
    let with = |redirect: Value, port: u16| {
        let filter = json!({"type": "RequestRedirect", "requestRedirect": redirect});
        let outcome = with(json!([{"filters": [filter]}]));
        assert_eq!(said(&outcome), GOOD);
        match rules(&outcome, port).remove(0).action {
            Action::Redirect(redirect) => redirect,
            other => panic!("{other:?}"),
        }
    };
    let host = || Some("a.test".to_owned());
    let plain = Redirect {
        host: host(),
        status: 302,
        ..Redirect::default()
    };
    assert_eq!(with(json!({"hostname": "a.test"}), 80), plain);
    let on = |port| Redirect {
        port: Some(port),
        ..plain.clone()
    };
    assert_eq!(with(json!({"hostname": "a.test"}), 8443), on(8443));
    assert_eq!(with(json!({"hostname": "a.test", "port": 81}), 80), on(81));
    assert_eq!(with(json!({"hostname": "a.test", "port": 80}), 80), plain);
    let to_https = Redirect {
        scheme: Some("https".to_owned()),
        port: Some(443),
        status: 301,
        ..Redirect::default()
    };
    let written = json!({"scheme": "https", "statusCode": 301});
    assert_eq!(with(written.clone(), 80), to_https);
    assert_eq!(with(written, 8443), to_https);
    let path = json!({"type": "ReplaceFullPath", "replaceFullPath": "/new"});
    let found = with(json!({"path": path}), 80);
    assert_eq!(found.path, Some(Rewrite::Whole("/new".to_owned())));
    assert_eq!(found.port, Some(80));
}

#[test]
fn hosts_and_paths_are_rewritten() {
    let rewrite = |rewrite: Value| filtered(json!({"type": "URLRewrite", "urlRewrite": rewrite}));
    let rule = rewrite(json!({
        "hostname": "b.test",
        "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"},
    }));
    assert_eq!(rule.host_rewrite.as_deref(), Some("b.test"));
    assert_eq!(rule.rewrite, Some(Rewrite::Segments("/new".to_owned())));
    // What takes the place of a prefix needs one.
    let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"});
    let outcome = with(json!([{
        "matches": [{"path": {"type": "Exact", "value": "/odd"}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": {"path": path}}],
        "backendRefs": [{"name": "a", "port": 80}],
    }]));
    assert_eq!(said(&outcome), "!Accepted:UnsupportedValue ResolvedRefs");
    assert_eq!(ask(&outcome, get("a", "/odd")), "500");
}

#[test]
fn copies_go_to_backends_that_exist() {
    let mirror = |extra: Value, name: &str| {
        let mut mirror = json!({"backendRef": {"name": name, "port": 80}});
        mirror
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        json!({"type": "RequestMirror", "requestMirror": mirror})
    };
    for (extra, expected) in [
        (json!({}), Some(1_000_000)),
        (json!({"percent": 20}), Some(200_000)),
        (json!({"percent": 0}), None),
        (json!({"fraction": {"numerator": 1}}), Some(10_000)),
        (
            json!({"fraction": {"numerator": 1, "denominator": 3}}),
            Some(333_333),
        ),
    ] {
        let mirrors = filtered(mirror(extra.clone(), "b")).mirrors;
        let parts: Vec<_> = mirrors.iter().map(|one| one.per_million).collect();
        assert_eq!(parts, expected.into_iter().collect::<Vec<_>>(), "{extra}");
    }
    let outcome = with(json!([{
        "filters": [mirror(json!({}), "b"), mirror(json!({}), "missing")],
        "backendRefs": [{"name": "a", "port": 80}],
    }]));
    assert_eq!(said(&outcome), "Accepted !ResolvedRefs:BackendNotFound");
    assert_eq!(rules(&outcome, 80)[0].mirrors.len(), 1);
    assert_eq!(ask(&outcome, get("a", "/")), "infra/a:80");
}

#[test]
fn origins_are_expressions() {
    let rule = filtered(json!({"type": "CORS", "cors": {
        "allowOrigins": ["https://www.foo.com", "https://*.bar.com", "*"],
        "allowMethods": ["GET"],
    }}));
    let cors = rule.cors.unwrap();
    assert_eq!(
        cors.origins,
        [
            TextMatch::Exact("https://www.foo.com".to_owned()),
            TextMatch::Regex(r"https://.+\.bar\.com".to_owned()),
            TextMatch::Regex(".*".to_owned()),
        ]
    );
    assert!(!cors.credentials);
    assert_eq!(cors.max_age, Duration::from_secs(5));
}

#[test]
fn timeouts_and_retries() {
    let timeouts = |timeouts: Value, retry: Value| {
        let mut rule = to("/", "a");
        rule["timeouts"] = timeouts;
        rule["retry"] = retry;
        let outcome = with(json!([rule]));
        assert_eq!(said(&outcome), GOOD);
        rules(&outcome, 80).remove(0)
    };
    let millis = Duration::from_millis;
    let both = json!({"request": "500ms", "backendRequest": "200ms"});
    let alone = timeouts(both.clone(), Value::Null);
    assert_eq!(alone.timeouts.request, Some(millis(200)));
    assert_eq!(alone.timeouts.one_try, None);
    let off = timeouts(json!({"request": "0s"}), Value::Null);
    assert_eq!(off.timeouts.request, Some(Duration::ZERO));
    let retried = timeouts(
        both,
        json!({"codes": [500], "attempts": 2, "backoff": "50ms"}),
    );
    assert_eq!(retried.timeouts.request, Some(millis(500)));
    assert_eq!(retried.timeouts.one_try, Some(millis(200)));
    let retry = retried.retry.unwrap();
    assert_eq!((retry.count, &retry.statuses[..]), (Some(2), &[500][..]));
    assert!(retry.of_unseen && retry.pause == Some(millis(50)));
}

#[test]
fn backends_are_called_as_their_ports_say() {
    let protocol = |kind: &str, port: u16| {
        let rules = json!([{"backendRefs": [{"name": "a", "port": port}]}]);
        let outcome = resolved(&[
            gateway(json!([listener("one", 80, "HTTP", "")])),
            route(kind, "r", json!([]), rules),
        ]);
        let Action::Forward(backends) = rules_of(&outcome).remove(0).action else {
            panic!("{outcome:?}")
        };
        match &backends[0].target {
            Target::Backend(backend) => backend.protocol,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(protocol("HTTPRoute", 80), BackendProtocol::Http1);
    assert_eq!(protocol("HTTPRoute", 81), BackendProtocol::Http2);
    assert_eq!(protocol("GRPCRoute", 80), BackendProtocol::Http2);
}

fn rules_of(outcome: &Outcome) -> Vec<Rule> {
    rules(outcome, 80)
}

#[test]
fn calls_of_grpc_are_paths() {
    let method = |kind: Option<&str>, service: Option<&str>, method: Option<&str>| {
        let matched = json!({"method": {"type": kind, "service": service, "method": method}});
        let rules = json!([{
            "matches": [matched], "backendRefs": [{"name": "missing", "port": 80}],
        }]);
        let outcome = resolved(&[
            gateway(json!([listener("one", 80, "HTTP", "")])),
            route("GRPCRoute", "r", json!([]), rules),
        ]);
        let rule = rules_of(&outcome).remove(0);
        let Action::Forward(backends) = &rule.action else {
            panic!("{rule:?}")
        };
        // Callers see that the service is unavailable.
        assert_eq!(backends[0].target, Target::Answer(503));
        rule.matched.path
    };
    let regex = |text: &str| PathMatch::Regex(text.to_owned());
    let exact = PathMatch::Exact("/s.S/m".to_owned());
    assert_eq!(method(None, Some("s.S"), Some("m")), exact);
    let prefix = PathMatch::Prefix("/s.S/".to_owned());
    assert_eq!(method(Some("Exact"), Some("s.S"), None), prefix);
    assert_eq!(method(None, None, Some("m.")), regex(r"/[^/]+/m\."));
    let both = method(Some("RegularExpression"), Some("s|t"), None);
    assert_eq!(both, regex("/(?:s|t)/[^/]+"));
}

#[test]
fn headers_choose_rules() {
    let rule = |value: &str, service: &str| {
        json!({
            "matches": [{"headers": [{"name": "version", "value": value}]}],
            "backendRefs": [{"name": service, "port": 80}],
        })
    };
    let outcome = with(json!([rule("one", "a"), rule("two", "b")]));
    let asked = |value| {
        let headers = [("version", value)];
        let asked = Asked {
            headers: &headers,
            ..get("a", "/")
        };
        ask(&outcome, asked)
    };
    assert_eq!(asked("one"), "infra/a:80");
    assert_eq!(asked("two"), "infra/b:80");
    assert_eq!(asked("three"), "404");
}
