//! The JWT providers that the intentions of a service name.

use super::*;

fn provider(name: &str, meta: &str) -> Command {
    entry(json!({
        "Kind": "jwt-provider", "Name": name, "Meta": {"note": meta},
        "JSONWebKeySet": {"Local": {"Filename": "/keys.json"}},
    }))
}

fn asks(destination: &str, own: &str, of_permission: &str) -> Command {
    let required = |name: &str| json!({"Providers": [{"Name": name}]});
    entry(json!({
        "Kind": "service-intentions", "Name": destination, "JWT": required(own),
        "Sources": [{"Name": "shop", "Permissions": [{
            "Action": "allow", "HTTP": {"PathPrefix": "/"}, "JWT": required(of_permission),
        }]}],
    }))
}

fn names(store: &Store) -> Vec<String> {
    let snapshot = snapshot(store).unwrap();
    sidecar(&snapshot).jwt_providers.keys().cloned().collect()
}

#[test]
fn a_proxy_has_the_existing_providers_that_its_intentions_name() {
    let store = mesh();
    for name in ["okta", "corp", "other"] {
        apply(&store, provider(name, "first"));
    }
    assert_eq!(names(&store), [""; 0]);
    apply(&store, asks("web", "okta", "corp"));
    assert_eq!(names(&store), ["corp", "okta"]);
    apply(&store, asks("web", "okta", "lost"));
    assert_eq!(names(&store), ["okta"]);
    // Including those of intentions for every destination.
    let any = json!({
        "Kind": "service-intentions", "Name": "*", "JWT": {"Providers": [{"Name": "other"}]},
        "Sources": [{"Name": "*", "Action": "allow"}],
    });
    apply(&store, entry(any));
    assert_eq!(names(&store), ["okta", "other"]);
}

#[test]
fn a_provider_wakes_only_proxies_that_use_it() {
    let store = mesh();
    apply(&store, asks("web", "okta", "okta"));
    let mut watch = store.watch(&compute(&store, true).1);
    apply(&store, provider("other", ""));
    assert!(!woken(&mut watch));
    apply(&store, provider("okta", "first"));
    assert!(woken(&mut watch));
    let before = snapshot(&store).unwrap();
    assert_eq!(sidecar(&before).jwt_providers.len(), 1);
    apply(&store, provider("okta", "second"));
    assert!(is_same(&before, &snapshot(&store).unwrap()));
    let moved = json!({
        "Kind": "jwt-provider", "Name": "okta", "Issuer": "another",
        "JSONWebKeySet": {"Local": {"Filename": "/keys.json"}},
    });
    apply(&store, entry(moved));
    assert!(!is_same(&before, &snapshot(&store).unwrap()));
}
