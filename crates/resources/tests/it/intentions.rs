//! Intentions are enforced in the routes of HTTP services and in the listeners of others, and never
//! omitted.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::{Listener, filter};
use envoy_types::pb::envoy::config::rbac::v3::{Principal, Rbac as Rules, principal, rbac};
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::{Rbac, RbacPerRoute};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier, http_filter,
};
use envoy_types::pb::google::protobuf::Any;
use legate_intentions::Action;
use legate_model::{Intention, Protocol};
use legate_resources::{EncodedResource, ResourceSet};
use prost::{Message, Name};
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::support::{Generator, Web, api, intentions, made, sidecar, web};

const HTTP: [Protocol; 3] = [Protocol::Http, Protocol::Http2, Protocol::Grpc];
const DEFAULTS: [Action; 2] = [Action::Allow, Action::Deny];
const FILTER: &str = "envoy.filters.http.rbac";

fn speaks(protocol: Protocol) -> Web {
    Web {
        protocol,
        upstreams: vec![api(Protocol::Http)],
        ..web()
    }
}

/// Sets of intentions: none, each action, and one for some requests only.
fn changes() -> Vec<Arc<Vec<Arc<Intention>>>> {
    let get = json!([{"Action": "allow", "HTTP": {"Methods": ["GET"]}}]);
    let of = |says: Value| intentions(&[("shop", says)]);
    vec![
        Arc::default(),
        of(json!("allow")),
        of(json!("deny")),
        of(get),
        intentions(&[("shop", json!("allow")), ("*", json!("deny"))]),
    ]
}

/// Type and name of the resources whose versions differ between the sets.
fn changed(before: &ResourceSet, after: &ResourceSet) -> BTreeSet<(String, Arc<str>)> {
    let mut changed = BTreeSet::new();
    for type_url in type_urls() {
        let (before, after) = (before.get(&type_url), after.get(&type_url));
        for name in before.keys().chain(after.keys()) {
            if before.get(name) != after.get(name) {
                changed.insert((type_url.clone(), Arc::clone(name)));
            }
        }
    }
    changed
}

fn decode<M: Message + Name + Default>(any: &Any) -> M {
    assert_eq!(any.type_url, M::type_url());
    M::decode(&*any.value).unwrap()
}

fn body<M: Message + Name + Default>(resource: &EncodedResource) -> M {
    decode(&Any::decode(resource.body.clone()).unwrap())
}

fn public_listener(set: &ResourceSet) -> &EncodedResource {
    set.get(&Listener::type_url())
        .values()
        .find(|listener| listener.name.starts_with("public_listener:"))
        .unwrap()
}

/// The connection manager of the public listener.
fn manager(set: &ResourceSet) -> HttpConnectionManager {
    let listener: Listener = body(public_listener(set));
    let last = listener.filter_chains[0].filters.last().unwrap();
    let Some(filter::ConfigType::TypedConfig(config)) = &last.config_type else {
        panic!("{last:?}");
    };
    decode(config)
}

/// The rules in the routes of the public listener.
fn rules(set: &ResourceSet) -> Rules {
    let routes: RouteConfiguration =
        body(&set.get(&RouteConfiguration::type_url())["public_listener"]);
    let [host] = &routes.virtual_hosts[..] else {
        panic!("{routes:?}");
    };
    let route: RbacPerRoute = decode(&host.typed_per_filter_config[FILTER]);
    route.rbac.unwrap().rules.unwrap()
}

#[test]
fn a_changed_intention_of_an_http_service_changes_its_routes_only() {
    let routes = (RouteConfiguration::type_url(), Arc::from("public_listener"));
    for protocol in HTTP {
        for default_intention in DEFAULTS {
            let generator = Generator::new();
            let mut seen = Vec::new();
            for intentions in changes() {
                let snapshot = Web {
                    intentions,
                    default_intention,
                    ..speaks(protocol)
                };
                seen.push(generator.generate(&snapshot, None));
            }
            let mut differed = false;
            for pair in seen.windows(2) {
                let changed = changed(&pair[0], &pair[1]);
                assert!(changed.iter().all(|one| *one == routes), "{changed:?}");
                differed |= !changed.is_empty();
            }
            assert!(differed);
        }
    }
}

#[test]
fn timeouts_of_an_http_service_change_its_routes_only() {
    let generator = Generator::new();
    let before = generator.generate(&speaks(Protocol::Http), None);
    for setting in ["local_request_timeout_ms", "local_idle_timeout_ms"] {
        let snapshot = Web {
            instance: sidecar(json!({"LocalServicePort": 8080, "Config": {setting: 700}})),
            ..speaks(Protocol::Http)
        };
        let changed = changed(&before, &generator.generate(&snapshot, None));
        let names: Vec<&str> = changed.iter().map(|(_, name)| &**name).collect();
        assert_eq!(names, ["public_listener"], "{setting}");
    }
}

#[test]
fn a_changed_intention_of_another_service_changes_its_listener() {
    let generator = Generator::new();
    let before = generator.generate(&speaks(Protocol::Tcp), None);
    let snapshot = Web {
        intentions: intentions(&[("shop", json!("allow"))]),
        ..speaks(Protocol::Tcp)
    };
    let changed = changed(&before, &generator.generate(&snapshot, None));
    let listener = Arc::clone(&public_listener(&before).name);
    assert_eq!(changed, BTreeSet::from([(Listener::type_url(), listener)]));
    assert!(before.get(&RouteConfiguration::type_url()).is_empty());
    assert!(public_listener(&before).children.is_empty());
}

#[test]
fn a_listener_without_its_routes_allows_nothing() {
    for protocol in HTTP {
        for default_intention in DEFAULTS {
            for intentions in changes() {
                let snapshot = Web {
                    intentions,
                    default_intention,
                    ..speaks(protocol)
                };
                let manager = manager(&made(&snapshot));
                let [filter] = manager
                    .http_filters
                    .iter()
                    .filter(|filter| filter.name == FILTER)
                    .collect::<Vec<_>>()[..]
                else {
                    panic!("{manager:?}");
                };
                assert!(!filter.is_optional && !filter.disabled);
                let Some(http_filter::ConfigType::TypedConfig(config)) = &filter.config_type else {
                    panic!("{filter:?}");
                };
                // Absent rules would allow everything, unlike empty ones.
                let rules = decode::<Rbac>(config).rules.unwrap();
                assert_eq!(rules.action(), rbac::Action::Allow);
                // The only policy matches no caller.
                let [policy] = &rules.policies.values().collect::<Vec<_>>()[..] else {
                    panic!("{rules:?}");
                };
                let anybody = Box::new(Principal {
                    identifier: Some(principal::Identifier::Any(true)),
                });
                let nobody = Principal {
                    identifier: Some(principal::Identifier::NotId(anybody)),
                };
                assert_eq!(policy.principals, [nobody]);
            }
        }
    }
}

#[test]
fn routes_always_have_rules() {
    for protocol in HTTP {
        for default_intention in DEFAULTS {
            for intentions in changes() {
                let snapshot = Web {
                    intentions,
                    default_intention,
                    ..speaks(protocol)
                };
                let rules = rules(&made(&snapshot));
                let expected = match default_intention {
                    Action::Deny => rbac::Action::Allow,
                    Action::Allow => rbac::Action::Deny,
                };
                assert_eq!(rules.action(), expected);
            }
        }
    }
}

#[test]
fn a_listener_names_its_routes_as_children() {
    for protocol in HTTP {
        let snapshot = Web {
            instance: sidecar(json!({
                "LocalServicePort": 8080, "Config": {"xds_fetch_timeout_ms": 0},
            })),
            ..speaks(protocol)
        };
        let set = made(&snapshot);
        let children = &public_listener(&set).children;
        assert_eq!(**children, [Arc::from("public_listener")]);
        assert!(
            set.get(&RouteConfiguration::type_url())
                .contains_key(&children[0])
        );
        let Some(RouteSpecifier::Rds(rds)) = manager(&set).route_specifier else {
            panic!("no RDS");
        };
        assert_eq!(*rds.route_config_name, *children[0]);
        let timeout = rds.config_source.unwrap().initial_fetch_timeout.unwrap();
        assert_eq!((timeout.seconds, timeout.nanos), (0, 0));
    }
}
