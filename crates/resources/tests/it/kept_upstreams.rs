//! Upstreams whose chains no longer compile keep all resources of their last good version.

use std::sync::Arc;

use legate_discovery_chain::ChainError;
use legate_model::Protocol;
use legate_proxycfg::{
    DialledKind, ImplicitUpstream, ImplicitUpstreams, ResolvedChain, UpstreamSnapshot,
};
use legate_resources::ResourceSet;
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::support::{Generator, Web, chained, edit_chain, instance, mesh, sidecar, upstream, web};
use crate::transparent::{implicit, outbound};

/// `api` with requests for `/beta` routed to `canary`, which fails over to `backup`.
fn routed() -> UpstreamSnapshot {
    let http = |name: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    let entries = [
        http("api"),
        http("canary"),
        http("backup"),
        json!({"Kind": "service-router", "Name": "api", "Routes": [{
            "Match": {"HTTP": {"PathPrefix": "/beta"}}, "Destination": {"Service": "canary"},
        }]}),
        json!({"Kind": "service-resolver", "Name": "canary", "Failover": {"*": {"Service": "backup"}}}),
    ];
    let definition = json!({"DestinationName": "api", "LocalBindPort": 9191});
    chained(definition, &entries, |_| {
        vec![instance("10.0.2.1", 20001, &[])]
    })
}

fn plain() -> UpstreamSnapshot {
    let definition = json!({"DestinationName": "api", "LocalBindPort": 9191});
    upstream(
        definition,
        Protocol::Tcp,
        vec![instance("10.0.2.1", 20001, &[])],
    )
}

/// The same upstream with conflicting entries.
fn broken(upstream: &UpstreamSnapshot) -> UpstreamSnapshot {
    let mut resolved = ResolvedChain::clone(&upstream.resolved);
    resolved.chain = Err(ChainError::Circle(vec!["api".to_owned()]));
    UpstreamSnapshot {
        resolved: Arc::new(resolved),
        ..upstream.clone()
    }
}

fn explicitly(upstream: UpstreamSnapshot) -> Web {
    Web {
        upstreams: vec![upstream],
        ..web()
    }
}

fn captured(proxy: Value, all: Vec<Arc<ImplicitUpstream>>) -> Web {
    let mut proxy = proxy;
    proxy["Mode"] = json!("transparent");
    proxy["LocalServicePort"] = json!(8080);
    Web {
        instance: sidecar(proxy),
        implicit: Some(Arc::new(ImplicitUpstreams(all))),
        ..web()
    }
}

fn dialled(upstream: UpstreamSnapshot, ip: &str) -> Arc<ImplicitUpstream> {
    let addresses = [
        (DialledKind::Service, ip.to_owned()),
        (DialledKind::Instance, "10.0.2.1".to_owned()),
    ];
    implicit(upstream, &addresses)
}

fn implicitly(upstream: UpstreamSnapshot) -> Web {
    captured(json!({}), vec![dialled(upstream, "240.0.0.1")])
}

/// The upstream both explicitly and implicitly.
fn both(upstream: UpstreamSnapshot) -> Web {
    Web {
        upstreams: vec![upstream.clone()],
        ..implicitly(upstream)
    }
}

/// All resources with their versions.
fn everything(set: &ResourceSet) -> Vec<(String, String)> {
    let of = |one: (&Arc<str>, &Arc<legate_resources::EncodedResource>)| {
        (one.0.to_string(), one.1.version.to_string())
    };
    type_urls()
        .iter()
        .flat_map(|url| set.get(url).iter().map(of).collect::<Vec<_>>())
        .collect()
}

#[test]
fn a_chain_that_no_longer_compiles_changes_nothing() {
    let ways: [fn(UpstreamSnapshot) -> Web; 3] = [explicitly, implicitly, both];
    for (way, snapshot) in ways.iter().enumerate() {
        for upstream in [routed(), plain()] {
            let generator = Generator::new();
            let good = snapshot(upstream.clone());
            let first = generator.generate(&good, None);
            assert_eq!(first.failures(), []);
            let bad = snapshot(broken(&upstream));
            let second = generator.generate(&bad, Some((&good, &first)));
            assert_eq!(everything(&second), everything(&first), "{way}");
            assert!(second.failures().iter().any(|one| one.kept), "{way}");
            // However often other inputs change.
            let mut last = (bad, second);
            for policy in ["TLSv1_2", "TLSv1_3"] {
                let next = Web {
                    mesh: mesh(json!({"TLS": {"Incoming": {"TLSMinVersion": policy}}})),
                    ..last.0.clone()
                };
                let set = generator.generate(&next, Some((&last.0, &last.1)));
                last = (next, set);
            }
            let back = snapshot(broken(&upstream));
            let third = generator.generate(&back, Some((&last.0, &last.1)));
            assert_eq!(everything(&third), everything(&first), "{way}");
            // The entries are corrected.
            let mended = generator.generate(&good, Some((&back, &third)));
            assert_eq!(mended.failures(), []);
            assert_eq!(everything(&mended), everything(&first), "{way}");
        }
    }
}

/// Other services are not affected: new addresses are routed at once, and removed ones are dropped.
#[test]
fn kept_resources_of_a_service_do_not_affect_others() {
    let generator = Generator::new();
    let good = implicitly(routed());
    let first = generator.generate(&good, None);
    let db = upstream(json!({"DestinationName": "db"}), Protocol::Tcp, Vec::new());
    let db = implicit(db, &[(DialledKind::Service, "240.0.0.2".to_owned())]);
    let api = dialled(broken(&routed()), "240.0.0.9");
    let bad = captured(json!({}), vec![api, db.clone()]);
    let second = generator.generate(&bad, Some((&good, &first)));
    let listener = outbound(&second).unwrap();
    assert!(listener.contains("240.0.0.9") && listener.contains("240.0.0.2"));
    assert!(!listener.contains("240.0.0.1\""), "{listener}");
    assert!(second.get(&type_urls()[3]).contains_key("api"));
    let gone = captured(json!({}), vec![db]);
    let third = generator.generate(&gone, Some((&bad, &second)));
    let fresh = Generator::new().generate(&gone, None);
    assert_eq!(everything(&third), everything(&fresh));
}

/// A chain that compiles, with a new cluster that cannot be made.
#[test]
fn a_new_chain_that_cannot_be_made_changes_nothing() {
    for snapshot in [explicitly, implicitly] {
        let generator = Generator::new();
        let good = snapshot(plain());
        let first = generator.generate(&good, None);
        let mut other = plain();
        edit_chain(&mut other, |chain| {
            chain.customization_hash = Some("12345678".to_owned());
        });
        let bad = Web {
            mesh: mesh(json!({"TLS": {"Outgoing": {"CipherSuites": ["ROT13"]}}})),
            ..snapshot(other)
        };
        let second = generator.generate(&bad, Some((&good, &first)));
        let clusters = second.get(&type_urls()[0]);
        assert!(clusters.contains_key("api.default.dc1.internal.c1.consul"));
        let listeners = |set: &ResourceSet| -> Vec<_> {
            let all = set.get(&type_urls()[2]).iter();
            all.map(|(_, one)| one.version.clone()).collect()
        };
        assert_eq!(listeners(&second), listeners(&first));
    }
}
