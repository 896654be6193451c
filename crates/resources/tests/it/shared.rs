//! Equal inputs give the same bytes, and one shared resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use legate_model::Protocol;
use legate_proxycfg::ProxyId;
use legate_resources::{EncodedResource, LEAF, ROOTS, ResourceSet};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::describe::type_urls;
use crate::support::{
    Generator, Web, api, instance, intentions, leaf, made, roots, set_instances, sidecar, upstream,
    web,
};

type Named = BTreeMap<(String, Arc<str>), Arc<EncodedResource>>;

fn named(set: &ResourceSet) -> Named {
    let of_type = |type_url: String| {
        let resources = set.get(&type_url).iter();
        resources.map(move |(name, one)| ((type_url.clone(), name.clone()), Arc::clone(one)))
    };
    type_urls().into_iter().flat_map(of_type).collect()
}

/// Names of the resources that differ between two sets.
fn changed(before: &ResourceSet, after: &ResourceSet) -> Vec<String> {
    let (before, after) = (named(before), named(after));
    let keys = before.keys().chain(after.keys());
    let mut names: Vec<String> = keys
        .filter(|key| before.get(*key).map(|r| &r.version) != after.get(*key).map(|r| &r.version))
        .map(|(_, name)| name.to_string())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// A snapshot with every feature, and several access policies.
fn rich() -> Web {
    let get = json!([{"Action": "allow", "HTTP": {"Methods": ["GET"]}}]);
    let sources: Vec<String> = (0..12).map(|n| format!("caller-{n}")).collect();
    let mut list: Vec<_> = sources
        .iter()
        .map(|name| (name.as_str(), get.clone()))
        .collect();
    list.push(("*", json!("allow")));
    Web {
        protocol: Protocol::Grpc,
        intentions: intentions(&list),
        upstreams: vec![
            api(Protocol::Http2),
            upstream(
                json!({"DestinationName": "db", "LocalBindPort": 5432}),
                Protocol::Tcp,
                (1..20).map(|n| instance("10.0.3.1", n, &[])).collect(),
            ),
        ],
        ..web()
    }
}

#[test]
fn fifty_times_the_same_bytes() {
    let bytes = || -> Vec<Bytes> {
        let set = made(&rich());
        named(&set)
            .into_values()
            .map(|resource| resource.body.clone())
            .collect()
    };
    let first = bytes();
    assert!((0..50).all(|_| bytes() == first));
}

#[test]
fn the_version_is_the_hash_of_the_body() {
    let set = made(&rich());
    for resource in named(&set).values() {
        let digest = Sha256::digest(&resource.body);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(*resource.version, *hex);
    }
}

#[test]
fn proxies_share_equal_resources() {
    let generator = Generator::new();
    let web = Web {
        upstreams: vec![api(Protocol::Http)],
        ..web()
    };
    let shop = Web {
        proxy: ProxyId {
            tenancy: legate_model::Tenancy::default(),
            node: "other".into(),
            service_id: "shop-proxy".into(),
        },
        leaf: leaf("shop", "first"),
        instance: sidecar(json!({"LocalServicePort": 9999})),
        ..web.clone()
    };
    let (web, shop) = (
        named(&generator.generate(&web, None)),
        named(&generator.generate(&shop, None)),
    );
    assert_eq!(web.len(), shop.len());
    for (key, resource) in &web {
        let own = [LEAF, "local_app"].contains(&&*key.1);
        assert_eq!(!own, Arc::ptr_eq(resource, &shop[key]), "{key:?}");
    }
}

#[test]
fn the_same_again_is_the_same_resource() {
    let generator = Generator::new();
    let first = named(&generator.generate(&rich(), None));
    let again = named(&generator.generate(&rich(), None));
    assert!(
        first
            .iter()
            .all(|(key, resource)| Arc::ptr_eq(resource, &again[key]))
    );
}

#[test]
fn a_change_affects_only_dependent_resources() {
    let generator = Generator::new();
    let before = generator.generate(&rich(), None);
    let after = |edit: &dyn Fn(&mut Web)| {
        let mut snapshot = rich();
        edit(&mut snapshot);
        changed(&before, &generator.generate(&snapshot, None))
    };
    assert_eq!(after(&|_| {}), [""; 0]);
    assert_eq!(after(&|s| s.leaf = leaf("web", "second")), [LEAF]);
    assert_eq!(after(&|s| s.roots = roots("two")), [ROOTS]);
    assert_eq!(
        after(&|s| s.intentions = intentions(&[("shop", json!("allow"))])),
        ["public_listener"]
    );
    assert_eq!(
        after(&|s| set_instances(&mut s.upstreams[0], &Arc::default())),
        ["api.default.dc1.internal.c1.consul"]
    );
    assert_eq!(
        after(&|s| {
            s.upstreams.remove(0);
        }),
        ["api.default.dc1.internal.c1.consul", "api:127.0.0.1:9191"]
    );
}

#[test]
fn clusters_name_their_endpoints_as_children() {
    let set = made(&rich());
    let clusters = set.get(&type_urls()[0]);
    let endpoints = set.get(&type_urls()[1]);
    assert_eq!(endpoints.len(), 2);
    for (name, cluster) in clusters {
        let expected: &[Arc<str>] = if &**name == "local_app" {
            &[]
        } else {
            std::slice::from_ref(name)
        };
        assert_eq!(&*cluster.children, expected);
        assert!(
            cluster
                .children
                .iter()
                .all(|child| endpoints.contains_key(child))
        );
    }
    assert!(set.get("type.googleapis.com/unknown").is_empty());
}

#[test]
fn keys_are_not_printed() {
    let set = made(&rich());
    let printed = format!("{set:?}");
    assert!(
        printed.contains("leaf") && !printed.contains("key of web"),
        "{printed}"
    );
}
