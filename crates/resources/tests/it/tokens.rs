//! Intentions that require tokens: verification, requirements, and the resources that changes
//! affect.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use legate_intentions::Action;
use legate_model::{Intention, JwtRequirement, Protocol};
use legate_resources::ResourceSet;
use prost::Name;
use serde_json::{Value, json};

use crate::describe::{one, type_urls};
use crate::support::{Generator, Web, intentions, made, providers, web};

fn local(name: &str) -> Value {
    let keys = "eyJrZXlzIjogW3sia3R5IjogIkVDIn1dfQ==";
    json!({
        "Name": name, "Issuer": format!("https://{name}.example/"),
        "JSONWebKeySet": {"Local": {"JWKS": keys}},
    })
}

fn remote(name: &str) -> Value {
    json!({
        "Name": name,
        "JSONWebKeySet": {"Remote": {"URI": format!("https://{name}.example:8443/keys")}},
    })
}

fn required(names: &[&str]) -> Value {
    let claims = json!([{"Path": ["perms", "role"], "Value": "admin"}]);
    let one = |name: &&str| json!({"Name": name, "VerifyClaims": claims});
    json!({"Providers": names.iter().map(one).collect::<Vec<_>>()})
}

/// One intention with a requirement.
fn with_jwt(says: Value, jwt: Value) -> Arc<Vec<Arc<Intention>>> {
    let jwt: JwtRequirement = serde_json::from_value(jwt).unwrap();
    let all = intentions(&[("shop", says)]);
    let mut intention = Intention::clone(&all[0]);
    intention.jwt = Some(jwt);
    Arc::new(vec![Arc::new(intention)])
}

fn http() -> Web {
    Web {
        protocol: Protocol::Http,
        ..web()
    }
}

fn text(set: &ResourceSet, type_url: &str, name: &str) -> String {
    let all = set.get(type_url);
    let found = all.iter().find(|(own, _)| own.starts_with(name));
    found.map(|(_, resource)| one(resource)).unwrap_or_default()
}

fn listener(set: &ResourceSet) -> String {
    text(set, &Listener::type_url(), "public_listener")
}

fn routes(set: &ResourceSet) -> String {
    text(set, &RouteConfiguration::type_url(), "public_listener")
}

#[test]
fn providers_and_requirements_in_full() {
    let okta = json!({
        "Name": "okta", "Issuer": "https://okta.example/", "Audiences": ["mesh", "shop"],
        "JSONWebKeySet": {"Remote": {
            "URI": "https://okta.example:8443/keys", "RequestTimeoutMs": 1500,
            "CacheDuration": "2m", "FetchAsynchronously": true, "UseSNI": true,
            "RetryPolicy": {"NumRetries": 3, "RetryPolicyBackOff": {
                "BaseInterval": "100ms", "MaxInterval": "2s",
            }},
            "JWKSCluster": {
                "DiscoveryType": "LOGICAL_DNS", "ConnectTimeout": "2500ms",
                "TLSCertificates": {"TrustedCA": {"Filename": "/ca.pem"}},
            },
        }},
        "Locations": [
            {"Header": {"Name": "x-token", "ValuePrefix": "JWT ", "Forward": true}},
            {"QueryParam": {"Name": "token"}}, {"Cookie": {"Name": "session"}},
        ],
        "Forwarding": {"HeaderName": "x-claims", "PadForwardPayloadHeader": true},
        "ClockSkewSeconds": 7, "CacheConfig": {"Size": 50},
    });
    let permissions = json!([
        {"Action": "deny", "HTTP": {"Header": [
            {"Name": "x-role", "Exact": "admin", "Invert": true},
        ]}},
        {"Action": "allow", "HTTP": {"PathPrefix": "/admin"}, "JWT": required(&["okta", "corp"])},
        {"Action": "allow", "HTTP": {"PathPrefix": "/"}},
    ]);
    for default_intention in [Action::Deny, Action::Allow] {
        let snapshot = Web {
            intentions: with_jwt(permissions.clone(), required(&["corp"])),
            jwt_providers: providers(&[okta.clone(), local("corp")]),
            default_intention,
            ..http()
        };
        let set = made(&snapshot);
        assert_eq!(set.warnings(), [""; 0]);
        let mut all = text(&set, &Cluster::type_url(), "jwks_cluster_");
        all.push_str(&listener(&set));
        all.push_str(&routes(&set));
        insta::assert_snapshot!(format!("tokens_by_default_{default_intention}"), all);
    }
}

#[test]
fn a_missing_provider_denies_requests_and_is_reported() {
    for default_intention in [Action::Deny, Action::Allow] {
        for says in [
            json!("allow"),
            json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}, "JWT": required(&["lost"])}]),
        ] {
            let is_action = says.is_string();
            let snapshot = Web {
                intentions: match is_action {
                    true => with_jwt(says, required(&["lost"])),
                    false => intentions(&[("shop", says)]),
                },
                default_intention,
                ..http()
            };
            let set = made(&snapshot);
            let [warning] = set.warnings() else {
                panic!("{:?}", set.warnings());
            };
            assert!(
                warning.contains("\"lost\"") && warning.contains("\"shop\""),
                "{warning}"
            );
            // Independent of the tokens: the condition never matches.
            let routes = routes(&set);
            assert!(!routes.contains("jwt_payload"), "{routes}");
            assert!(!listener(&set).contains("jwt_authn"));
            let never = match is_action {
                true => "NotId",
                false => "NotRule",
            };
            let times = match default_intention {
                Action::Deny => 1,
                Action::Allow => 2,
            };
            assert_eq!(routes.matches(never).count(), times, "{routes}");
        }
    }
}

#[test]
fn one_of_two_providers_is_enough() {
    let snapshot = Web {
        intentions: with_jwt(json!("allow"), required(&["lost", "okta"])),
        jwt_providers: providers(&[local("okta")]),
        ..http()
    };
    let set = made(&snapshot);
    assert_eq!(set.warnings().len(), 1);
    assert!(routes(&set).contains("jwt_payload_okta"));
    assert!(listener(&set).contains("provider okta"));
}

#[test]
fn connections_of_tcp_services_are_refused() {
    for (default_intention, refused) in [(Action::Deny, "no policies"), (Action::Allow, "shop")] {
        let snapshot = Web {
            intentions: with_jwt(json!("allow"), required(&["okta"])),
            jwt_providers: providers(&[remote("okta")]),
            default_intention,
            ..web()
        };
        let set = made(&snapshot);
        let [warning] = set.warnings() else {
            panic!("{:?}", set.warnings());
        };
        assert!(warning.contains("refuses every connection"), "{warning}");
        let listener = listener(&set);
        assert_eq!(
            listener.contains("svc/shop"),
            refused == "shop",
            "{listener}"
        );
        assert!(
            !set.get(&Cluster::type_url())
                .contains_key("jwks_cluster_okta")
        );
    }
}

/// The resources that differ between two sets.
fn changed(before: &ResourceSet, after: &ResourceSet) -> BTreeSet<String> {
    let mut changed = BTreeSet::new();
    for type_url in type_urls() {
        let (before, after) = (before.get(&type_url), after.get(&type_url));
        let names = before.keys().chain(after.keys());
        let differ = names.filter(|name| before.get(name) != after.get(name));
        let kind = type_url.rsplit('.').next().unwrap();
        changed.extend(differ.map(|name| format!("{kind} {}", name.split(':').next().unwrap())));
    }
    changed
}

#[test]
fn a_requirement_changes_routes_and_a_provider_the_listener() {
    let generator = Generator::new();
    let of = |jwt: Value, providers| Web {
        intentions: with_jwt(json!("allow"), jwt),
        jwt_providers: providers,
        ..http()
    };
    let both = providers(&[remote("corp"), local("okta")]);
    let first = of(required(&["okta", "corp"]), Arc::clone(&both));
    let set = generator.generate(&first, None);
    let differs = |snapshot: &Web| {
        let now = generator.generate(snapshot, Some((&first, &set)));
        changed(&set, &now).into_iter().collect::<Vec<_>>()
    };
    let routes = "RouteConfiguration public_listener";
    let other = of(json!({"Providers": [{"Name": "okta"}]}), Arc::clone(&both));
    assert_eq!(differs(&other), [routes]);

    let mut moved = local("okta");
    moved["Audiences"] = json!(["shop"]);
    let moved = of(
        required(&["okta", "corp"]),
        providers(&[remote("corp"), moved]),
    );
    assert_eq!(differs(&moved), ["Listener public_listener"]);

    // The last provider with keys on a server: its cluster is removed.
    let without = of(required(&["okta"]), providers(&[local("okta")]));
    assert_eq!(
        differs(&without),
        [
            "Cluster jwks_cluster_corp",
            "Listener public_listener",
            routes
        ]
    );
    let none = Web {
        intentions: intentions(&[("shop", json!("allow"))]),
        jwt_providers: Arc::default(),
        ..http()
    };
    assert_eq!(
        differs(&none),
        [
            "Cluster jwks_cluster_corp",
            "Listener public_listener",
            routes
        ]
    );
}

#[test]
fn an_unverified_key_server_is_warned_about() {
    let set = made(&Web {
        intentions: with_jwt(json!("allow"), required(&["corp"])),
        jwt_providers: providers(&[remote("corp")]),
        ..http()
    });
    let [warning] = set.warnings() else {
        panic!("{:?}", set.warnings());
    };
    assert!(
        warning.contains("corp.example, is not verified"),
        "{warning}"
    );
}
