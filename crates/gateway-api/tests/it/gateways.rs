//! Classes, gateways and their listeners.

use legate_gateway_api::types::ParametersReference;
use legate_gateway_api::{Front, Key, resolve};
use serde_json::{Value, json};

use crate::clusters::{CLASS, grant, object, world};
use crate::support::{gateway, listener, of_gateway, resolved, short};

const GOOD: &str = "Accepted Programmed";
const SERVED: &str = "Accepted Programmed ResolvedRefs";

fn check(objects: &[Value], expected: &[&str]) {
    assert_eq!(of_gateway(&resolved(objects)), expected);
}

#[test]
fn classes_of_this_controller_are_accepted() {
    let mut world = world(&[]);
    let foreign = object("GatewayClass", "foreign", json!({"controllerName": "else"}));
    world
        .classes
        .push(legate_gateway_api::Object::decode(&foreign));
    let parameters = json!({"group": "g", "kind": "K", "name": "n"});
    let spec = json!({"controllerName": "legate", "parametersRef": parameters});
    let own = object("GatewayClass", "own", spec);
    world.classes.push(legate_gateway_api::Object::decode(&own));
    let check = |world: &_, expected: &[(&str, &str)]| {
        let outcome = resolve(world);
        let said = outcome.classes.iter();
        let said: Vec<_> = said
            .map(|(name, verdict)| (name.as_str(), short(&verdict.conditions)))
            .collect();
        let expected = expected
            .iter()
            .map(|(name, said)| (*name, (*said).to_owned()));
        assert_eq!(said, expected.collect::<Vec<_>>());
    };
    let accepted = "Accepted SupportedVersion";
    let missing = "!Accepted:InvalidParameters SupportedVersion";
    check(&world, &[(CLASS, accepted), ("own", missing)]);
    let reference: ParametersReference = serde_json::from_value(parameters).unwrap();
    world.parameters.insert(reference);
    check(&world, &[(CLASS, accepted), ("own", accepted)]);
    world.bundle = Some("v1.3.0".to_owned());
    let old = "Accepted !SupportedVersion:UnsupportedVersion";
    check(&world, &[(CLASS, old), ("own", old)]);
    let features = resolve(&world).classes[CLASS].supported_features.clone();
    assert!(features.contains(&"HTTPRoute") && !features.contains(&"HTTPRouteRetry"));
}

#[test]
fn a_gateway_of_another_class_is_left_alone() {
    let spec = json!({"gatewayClassName": "foreign", "listeners": []});
    let outcome = resolved(&[object("Gateway", "gw", spec)]);
    assert!(outcome.gateways.is_empty() && outcome.served.is_empty());
}

#[test]
fn unknown_protocols_are_refused() {
    let bad = listener("bad", 81, "INVALID", "");
    let refused = "bad [] 0: !Accepted:UnsupportedProtocol !Programmed:Invalid ResolvedRefs";
    check(
        &[gateway(json!([bad]))],
        &["!Accepted:ListenersNotValid !Programmed:Invalid", refused],
    );
    check(
        &[gateway(json!([listener("http", 80, "HTTP", ""), bad]))],
        &[
            "Accepted:ListenersNotValid Programmed",
            &format!("http [HTTPRoute GRPCRoute] 0: {SERVED}"),
            refused,
        ],
    );
}

#[test]
fn kinds_that_cannot_be_attached_are_named() {
    let with = |protocol: &str, kinds: &[&str]| {
        let mut listener = listener("one", 80, protocol, "");
        let kinds: Vec<_> = kinds.iter().map(|kind| json!({"kind": kind})).collect();
        listener["allowedRoutes"]["kinds"] = json!(kinds);
        gateway(json!([listener]))
    };
    let invalid = "!ResolvedRefs:InvalidRouteKinds";
    check(
        &[with("HTTP", &["InvalidRoute"])],
        &[
            "!Accepted:ListenersNotValid !Programmed:Invalid",
            &format!("one [] 0: Accepted !Programmed:Invalid {invalid}"),
        ],
    );
    check(
        &[with("HTTP", &["InvalidRoute", "HTTPRoute"])],
        &[GOOD, &format!("one [HTTPRoute] 0: {GOOD} {invalid}")],
    );
    check(
        &[with("TLS", &["TCPRoute", "TLSRoute"])],
        &[GOOD, &format!("one [TLSRoute] 0: {GOOD} {invalid}")],
    );
    check(
        &[with("TCP", &["TCPRoute"])],
        &[GOOD, &format!("one [TCPRoute] 0: {SERVED}")],
    );
}

fn https(reference: Value) -> Value {
    let mut listener = listener("https", 443, "HTTPS", "");
    listener["tls"]["certificateRefs"] = json!([reference]);
    gateway(json!([listener]))
}

fn unresolved(reason: &str) -> [String; 2] {
    [
        "!Accepted:ListenersNotValid !Programmed:Invalid".to_owned(),
        format!(
            "https [HTTPRoute GRPCRoute] 0: Accepted !Programmed:Invalid !ResolvedRefs:{reason}"
        ),
    ]
}

#[test]
fn certificates_must_be_usable() {
    for reference in [
        json!({"name": "missing"}),
        json!({"name": "bad"}),
        json!({"name": "cert", "group": "wrong.test"}),
        json!({"name": "cert", "kind": "ConfigMap"}),
    ] {
        let outcome = resolved(&[https(reference)]);
        assert_eq!(of_gateway(&outcome), unresolved("InvalidCertificateRef"));
        assert!(outcome.served.is_empty());
    }
}

#[test]
fn certificates_of_other_namespaces_need_a_grant() {
    let secret = |name: &str| json!({"name": name, "namespace": "other"});
    let own = [
        "Accepted Programmed".to_owned(),
        format!("https [HTTPRoute GRPCRoute] 0: {SERVED}"),
    ];
    let to = json!({"group": "", "kind": "Secret"});
    let named = |name: &str| json!({"group": "", "kind": "Secret", "name": name});
    let from = ("Gateway", "infra");
    for (grant, permits) in [
        (None, false),
        (Some(grant("other", from, to.clone())), true),
        (Some(grant("other", from, named("cert"))), true),
        (Some(grant("other", from, named("else"))), false),
        (Some(grant("infra", from, to.clone())), false),
        (Some(grant("other", ("Gateway", "else"), to.clone())), false),
        (
            Some(grant("other", ("HTTPRoute", "infra"), to.clone())),
            false,
        ),
        (
            Some(grant(
                "other",
                from,
                json!({"group": "", "kind": "Service"}),
            )),
            false,
        ),
        (
            Some(grant(
                "other",
                from,
                json!({"group": "x", "kind": "Secret"}),
            )),
            false,
        ),
    ] {
        let objects: Vec<_> = grant.into_iter().chain([https(secret("cert"))]).collect();
        let expected = if permits {
            own.clone()
        } else {
            unresolved("RefNotPermitted")
        };
        assert_eq!(of_gateway(&resolved(&objects)), expected, "{objects:?}");
    }
    // The verdict does not say whether it exists.
    let outcome = resolved(&[https(secret("missing"))]);
    assert_eq!(of_gateway(&outcome), unresolved("RefNotPermitted"));
    // A restriction that is not understood could be one.
    let mut unclear = grant("other", from, to);
    unclear["spec"]["only"] = json!("on mondays");
    let outcome = resolved(&[unclear, https(secret("cert"))]);
    assert_eq!(of_gateway(&outcome), unresolved("RefNotPermitted"));
}

#[test]
fn listeners_that_cannot_be_told_apart_all_lose() {
    let lost = |name: &str, kinds: &str, reason: &str| {
        format!(
            "{name} [{kinds}] 0: !Accepted:{reason} !Programmed:{reason} ResolvedRefs \
             Conflicted:{reason}"
        )
    };
    let http = "HTTPRoute GRPCRoute";
    let bad = "!Accepted:ListenersNotValid !Programmed:Invalid";
    check(
        &[gateway(json!([
            listener("a", 80, "HTTP", "a.test"),
            listener("b", 80, "HTTP", "A.test"),
        ]))],
        &[
            bad,
            &lost("a", http, "HostnameConflict"),
            &lost("b", http, "HostnameConflict"),
        ],
    );
    check(
        &[gateway(json!([
            listener("a", 80, "HTTP", ""),
            listener("b", 80, "TCP", ""),
        ]))],
        &[
            bad,
            &lost("a", http, "ProtocolConflict"),
            &lost("b", "TCPRoute", "ProtocolConflict"),
        ],
    );
    check(
        &[gateway(json!([
            listener("a", 80, "HTTP", "a.test"),
            listener("b", 80, "HTTP", "*.test"),
            listener("c", 443, "HTTPS", "a.test"),
            listener("d", 443, "TLS", "b.test"),
            listener("e", 53, "TCP", ""),
            listener("f", 53, "UDP", ""),
        ]))],
        &[
            GOOD,
            &format!("a [{http}] 0: {SERVED}"),
            &format!("b [{http}] 0: {SERVED}"),
            &format!("c [{http}] 0: {SERVED}"),
            &format!("d [TLSRoute] 0: {SERVED}"),
            &format!("e [TCPRoute] 0: {SERVED}"),
            &format!("f [UDPRoute] 0: {SERVED}"),
        ],
    );
}

#[test]
fn a_field_without_a_meaning_closes_its_listener() {
    let mut odd = listener("odd", 81, "HTTP", "");
    odd["protection"] = json!({"level": "high"});
    let outcome = resolved(&[gateway(json!([listener("http", 80, "HTTP", ""), odd]))]);
    let refused = "!Accepted:UnsupportedValue !Programmed:Invalid ResolvedRefs";
    assert_eq!(
        of_gateway(&outcome),
        [
            "Accepted:ListenersNotValid Programmed",
            &format!("http [HTTPRoute GRPCRoute] 0: {SERVED}"),
            &format!("odd [HTTPRoute GRPCRoute] 0: {refused}"),
        ]
    );
    let verdict = &outcome.gateways[&Key::new("infra", "gw")].listeners[1];
    let message = &verdict.conditions[0].message;
    assert!(
        message.contains("spec.listeners[1].protection"),
        "{message}"
    );
    // One of the whole gateway closes all of them.
    let mut whole = gateway(json!([listener("http", 80, "HTTP", "")]));
    whole["spec"]["defaultScope"] = json!("All");
    let outcome = resolved(&[whole.clone()]);
    assert!(outcome.served.is_empty());
    whole["spec"]["defaultScope"] = json!("None");
    check(
        &[whole],
        &[GOOD, &format!("http [HTTPRoute GRPCRoute] 0: {SERVED}")],
    );
}

#[test]
fn addresses_are_served_or_refused() {
    let with = |addresses: Value| {
        let mut gateway = gateway(json!([listener("http", 80, "HTTP", "")]));
        gateway["spec"]["addresses"] = addresses;
        resolved(&[gateway])
    };
    let ip = |value: &str| json!({"type": "IPAddress", "value": value});
    for (addresses, expected) in [
        (
            json!([{"type": "test/odd", "value": "x"}, ip("10.0.0.1")]),
            "!Accepted:UnsupportedAddress !Programmed:Invalid",
        ),
        (
            json!([ip("10.0.0.1"), ip("192.0.2.7")]),
            "Accepted !Programmed:AddressNotUsable",
        ),
        (json!([ip("10.0.0.1")]), GOOD),
        (json!([{"type": "IPAddress"}]), GOOD),
        (json!([{"value": "10.0.0.1"}]), GOOD),
    ] {
        let outcome = with(addresses.clone());
        assert_eq!(of_gateway(&outcome)[0], expected, "{addresses}");
    }
}

#[test]
fn a_gateway_is_programmed_when_proxies_say_so() {
    let mut world = world(&[gateway(json!([
        listener("http", 80, "HTTP", ""),
        listener("other", 81, "HTTP", ""),
    ]))]);
    let key = Key::new("infra", "gw");
    assert_eq!(of_gateway(&resolve(&world))[0], GOOD);
    let good = world.fronts[&key].clone();
    let mut change = |changed: Front| {
        world.fronts.insert(key.clone(), changed);
        of_gateway(&resolve(&world))
    };
    let mut stale = good.clone();
    stale.generation = 0;
    assert_eq!(change(stale)[0], "Accepted !Programmed:Pending");
    let mut idle = good.clone();
    idle.ready = false;
    assert_eq!(change(idle)[0], "Accepted !Programmed:Pending");
    let mut without = good.clone();
    without.addresses.clear();
    assert_eq!(
        change(without)[0],
        "Accepted !Programmed:AddressNotAssigned"
    );
    let mut rejected = good;
    rejected.rejected.insert(81, "bad regex".to_owned());
    let said = change(rejected);
    assert_eq!(
        said[2],
        "other [HTTPRoute GRPCRoute] 0: Accepted !Programmed:Invalid ResolvedRefs"
    );
}

#[test]
fn infrastructure_is_that_of_the_gateway_or_its_class() {
    let mut gateway = gateway(json!([
        listener("http", 8080, "HTTP", ""),
        listener("dns", 53, "UDP", ""),
    ]));
    gateway["spec"]["infrastructure"] = json!({
        "labels": {"team": "edge"}, "annotations": {"note": "x"},
    });
    let outcome = resolved(std::slice::from_ref(&gateway));
    let made = &outcome.served[&Key::new("infra", "gw")].infrastructure;
    assert_eq!(made.ports, [(53, true), (8080, false)]);
    assert_eq!(made.labels["team"], "edge");
    assert_eq!(made.annotations["note"], "x");
    let parameters = json!({"group": "g", "kind": "K", "name": "missing"});
    gateway["spec"]["infrastructure"]["parametersRef"] = parameters;
    let outcome = resolved(&[gateway]);
    let said = &of_gateway(&outcome)[0];
    assert_eq!(said, "!Accepted:InvalidParameters !Programmed:Invalid");
    assert!(outcome.served.is_empty());
}

#[test]
fn a_port_whose_clients_cannot_be_verified_is_closed() {
    let ca = |name: &str| json!([{"group": "", "kind": "ConfigMap", "name": name}]);
    let on = |port: u16, references: Value| json!({"port": port, "tls": {"validation": {"caCertificateRefs": references}}});
    let mut foreign = ca("ca");
    foreign[0]["namespace"] = json!("other");
    let mut service = ca("ca");
    service[0]["kind"] = json!("Service");
    let ports = [443, 444, 445, 446];
    let listeners = ports.map(|port| listener(&format!("on-{port}"), port, "HTTPS", ""));
    let mut gateway = gateway(json!(listeners));
    gateway["spec"]["tls"]["frontend"] = json!({
        "default": {"validation": {"caCertificateRefs": ca("ca")}},
        "perPort": [on(444, ca("missing")), on(445, service), on(446, foreign)],
    });
    let outcome = resolved(std::slice::from_ref(&gateway));
    let closed = |port: u16, reason: &str| {
        format!(
            "on-{port} [HTTPRoute GRPCRoute] 0: !Accepted:NoValidCACertificate \
             !Programmed:Invalid !ResolvedRefs:{reason}"
        )
    };
    assert_eq!(
        of_gateway(&outcome),
        [
            "Accepted:ListenersNotValid Programmed".to_owned(),
            format!("on-443 [HTTPRoute GRPCRoute] 0: {SERVED}"),
            closed(444, "InvalidCACertificateRef"),
            closed(445, "InvalidCACertificateKind"),
            closed(446, "RefNotPermitted"),
        ]
    );
    let served = &outcome.served[&Key::new("infra", "gw")];
    let open: Vec<_> = served.listeners.iter().map(|one| one.port).collect();
    assert_eq!(open, [443]);
    gateway["spec"]["tls"]["frontend"]["default"]["validation"]["mode"] =
        json!("AllowInsecureFallback");
    let said = &of_gateway(&resolved(&[gateway]))[0];
    let insecure = "InsecureFrontendValidationMode:ConfigurationChanged";
    assert_eq!(
        *said,
        format!("Accepted:ListenersNotValid Programmed {insecure}")
    );
}

#[test]
fn what_a_gateway_presents_to_backends_must_be_usable() {
    for (reference, expected) in [
        (json!({"name": "cert"}), "ResolvedRefs"),
        (
            json!({"name": "bad"}),
            "!ResolvedRefs:InvalidClientCertificateRef",
        ),
        (
            json!({"name": "missing"}),
            "!ResolvedRefs:InvalidClientCertificateRef",
        ),
        (
            json!({"name": "cert", "kind": "ConfigMap"}),
            "!ResolvedRefs:InvalidClientCertificateRef",
        ),
        (
            json!({"name": "cert", "namespace": "other"}),
            "!ResolvedRefs:RefNotPermitted",
        ),
    ] {
        let mut gateway = gateway(json!([listener("http", 80, "HTTP", "")]));
        gateway["spec"]["tls"] = json!({"backend": {"clientCertificateRef": reference}});
        let said = &of_gateway(&resolved(&[gateway]))[0];
        assert_eq!(*said, format!("{GOOD} {expected}"), "{reference}");
    }
}
