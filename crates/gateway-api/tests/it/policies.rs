//! BackendTLSPolicies.

use legate_gateway_api::{Key, Outcome};
use legate_routes::{Action, AltName, Authorities, BackendTls, Certificate, Content, Target};
use serde_json::{Value, json};

use crate::clusters::{later, object};
use crate::support::{ask, gateway, get, listener, resolved, route, served, short, to};

const GOOD: &str = "Accepted ResolvedRefs";

fn policy(name: &str, section: Option<&str>, validation: Value) -> Value {
    let target = json!({"group": "", "kind": "Service", "name": "a", "sectionName": section});
    let spec = json!({"targetRefs": [target], "validation": validation});
    object("BackendTLSPolicy", name, spec)
}

fn verified(host: &str, authority: &str) -> Value {
    json!({
        "hostname": host,
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": authority}],
    })
}

fn with(policies: &[Value]) -> Outcome {
    let mut objects = vec![
        gateway(json!([listener("one", 80, "HTTP", "")])),
        route(
            "HTTPRoute",
            "r",
            json!([]),
            json!([to("/", "a"), to("/b", "b")]),
        ),
    ];
    objects.extend_from_slice(policies);
    resolved(&objects)
}

/// What is said of a policy for each gateway.
fn said(outcome: &Outcome, name: &str) -> Vec<String> {
    let verdict = outcome.policies.get(&Key::new("infra", name));
    let ancestors = verdict.into_iter().flat_map(|verdict| &verdict.ancestors);
    ancestors
        .map(|one| format!("{}: {}", one.gateway, short(&one.conditions)))
        .collect()
}

fn check(policy: Value, expected: &str, answer: &str) {
    let outcome = with(&[policy]);
    assert_eq!(said(&outcome, "p"), [format!("infra/gw: {expected}")]);
    assert_eq!(ask(&outcome, get("x", "/")), answer);
    assert_eq!(ask(&outcome, get("x", "/b")), "infra/b:80");
}

#[test]
fn a_backend_is_never_called_in_plain_text_against_its_policy() {
    check(
        policy("p", None, verified("x.test", "ca")),
        GOOD,
        "infra/a:80 as x.test",
    );
    let no_authority = "!Accepted:NoValidCACertificate !ResolvedRefs:InvalidCACertificateRef";
    check(
        policy("p", None, verified("x.test", "missing")),
        no_authority,
        "500",
    );
    check(
        policy("p", None, verified("x.test", "bad")),
        no_authority,
        "500",
    );
    let mut secret = verified("x.test", "ca");
    secret["caCertificateRefs"][0]["kind"] = json!("Secret");
    let kind = "!Accepted:NoValidCACertificate !ResolvedRefs:InvalidKind";
    check(policy("p", None, secret), kind, "500");
    let invalid = "!Accepted:Invalid ResolvedRefs";
    let mut odd = policy("p", None, verified("x.test", "ca"));
    odd["spec"]["options"] = json!({"min-version": "1.3"});
    check(odd, invalid, "500");
    check(policy("p", None, verified("no host", "ca")), invalid, "500");
    let system = json!({"hostname": "x.test", "wellKnownCACertificates": "System"});
    check(policy("p", None, system), GOOD, "infra/a:80 as x.test");
    let other = json!({"hostname": "x.test", "wellKnownCACertificates": "Moon"});
    check(policy("p", None, other), invalid, "500");
}

#[test]
fn of_several_policies_the_one_for_the_port_and_the_older_one_hold() {
    let host = |policies: &[Value]| ask(&with(policies), get("x", "/"));
    let plain = |name: &str, seconds, section, host: &str| {
        later(seconds, policy(name, section, verified(host, "ca")))
    };
    let policies = [
        plain("younger", 2, None, "younger.test"),
        plain("older", 1, None, "older.test"),
    ];
    assert_eq!(host(&policies), "infra/a:80 as older.test");
    let outcome = with(&policies);
    assert_eq!(said(&outcome, "older"), [format!("infra/gw: {GOOD}")]);
    let conflicted = "infra/gw: !Accepted:Conflicted ResolvedRefs";
    assert_eq!(said(&outcome, "younger"), [conflicted]);
    let with_port = [
        plain("all", 1, None, "all.test"),
        plain("port", 2, Some("http"), "port.test"),
        plain("else", 0, Some("https"), "else.test"),
    ];
    assert_eq!(host(&with_port), "infra/a:80 as port.test");
    let outcome = with(&with_port);
    assert_eq!(said(&outcome, "all"), [format!("infra/gw: {GOOD}")]);
}

fn tls(outcome: &Outcome) -> BackendTls {
    let [Content::Http(hosts)] = &served(outcome).listeners[0].contents[..] else {
        panic!("{outcome:?}")
    };
    let rules = hosts[0].rules.iter();
    let mut backends = rules.filter_map(|rule| match &rule.action {
        Action::Forward(backends) => Some(&backends[0].target),
        _ => None,
    });
    backends
        .find_map(|target| match target {
            Target::Backend(backend) => backend.tls.clone(),
            _ => None,
        })
        .unwrap()
}

#[test]
fn names_of_certificates() {
    let mut validation = verified("x.test", "ca");
    let plain = tls(&with(&[policy("p", None, validation.clone())]));
    assert_eq!(plain.names, [AltName::Host("x.test".to_owned())]);
    let pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    assert_eq!(plain.authorities, Authorities::Pem(pem));
    validation["subjectAltNames"] = json!([
        {"type": "Hostname", "hostname": "y.test"},
        {"type": "URI", "uri": "spiffe://y"},
    ]);
    let named = tls(&with(&[policy("p", None, validation.clone())]));
    let names = [
        AltName::Host("y.test".to_owned()),
        AltName::Uri("spiffe://y".to_owned()),
    ];
    assert_eq!(
        (named.server_name.as_str(), &named.names[..]),
        ("x.test", &names[..])
    );
    validation["subjectAltNames"] = json!([{"type": "Odd"}]);
    check(
        policy("p", None, validation),
        "!Accepted:Invalid ResolvedRefs",
        "500",
    );
}

#[test]
fn a_gateway_presents_its_certificate_or_nothing_is_called() {
    let with_certificate = |name: &str| {
        let mut gateway = gateway(json!([listener("one", 80, "HTTP", "")]));
        gateway["spec"]["tls"] = json!({"backend": {"clientCertificateRef": {"name": name}}});
        resolved(&[
            gateway,
            route(
                "HTTPRoute",
                "r",
                json!([]),
                json!([to("/", "a"), to("/b", "b")]),
            ),
            policy("p", None, verified("x.test", "ca")),
        ])
    };
    let secret = Certificate::Secret("kubernetes/infra/cert".to_owned());
    assert_eq!(tls(&with_certificate("cert")).presented, Some(secret));
    let outcome = with_certificate("missing");
    assert_eq!(ask(&outcome, get("x", "/")), "500");
    assert_eq!(ask(&outcome, get("x", "/b")), "infra/b:80");
}

#[test]
fn policies_of_services_that_no_gateway_leads_to_are_left_alone() {
    let mut unused = policy("p", None, verified("x.test", "ca"));
    unused["spec"]["targetRefs"][0]["name"] = json!("c");
    assert!(with(&[unused]).policies.is_empty());
}

/// TLS that ends at the gateway begins again, and that which does not is left alone.
#[test]
fn policies_are_for_connections_that_the_gateway_can_read() {
    let mut ended = listener("ended", 443, "TLS", "ended.test");
    ended["tls"] = json!({"mode": "Terminate", "certificateRefs": [{"name": "cert"}]});
    let outcome = resolved(&[
        gateway(json!([
            listener("passed", 443, "TLS", "passed.test"),
            ended
        ])),
        route(
            "TLSRoute",
            "r",
            json!([]),
            json!([{"backendRefs": [{"name": "a", "port": 80}]}]),
        ),
        policy("p", None, verified("x.test", "ca")),
    ]);
    let connect = |server_name| {
        let asked = crate::support::Asked {
            port: 443,
            server_name,
            ..get("", "/")
        };
        ask(&outcome, asked)
    };
    assert_eq!(connect("passed.test"), "infra/a:80");
    assert_eq!(connect("ended.test"), "ended infra/a:80 as x.test");
}
