//! Generated config entries: compiling either fails or gives a complete chain.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SERVICES: [&str; 4] = ["web", "a", "b", "c"];

fn service() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&SERVICES[..])
}

fn subset() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["", "", "v1", "v2"][..])
}

fn peer() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["", "", "", "east", "West"][..])
}

fn destination() -> impl Strategy<Value = Value> {
    (service(), subset())
        .prop_map(|(service, subset)| json!({"Service": service, "ServiceSubset": subset}))
}

fn written() -> impl Strategy<Value = Value> {
    let router = vec(destination(), 0..4).prop_map(|all| {
        let routes: Vec<Value> = all
            .into_iter()
            .map(|to| json!({"Destination": to}))
            .collect();
        ("service-router", json!({"Routes": routes}))
    });
    let splitter = vec(destination(), 1..4).prop_map(|all| {
        let weight = 100.0 / all.len() as f32;
        let splits: Vec<Value> = all
            .into_iter()
            .map(|mut to| {
                to["Weight"] = json!((weight * 100.0).round() / 100.0);
                to
            })
            .collect();
        ("service-splitter", json!({"Splits": splits}))
    });
    let redirect = (service(), peer())
        .prop_map(|(to, peer)| json!({"Redirect": {"Service": to, "Peer": peer}}));
    let target = (service(), subset(), peer());
    let subsets = (subset(), vec(target, 0..3)).prop_map(|(default, others)| {
        let target = |(service, subset, peer)| match peer {
            "" => json!({"Service": service, "ServiceSubset": subset}),
            _ => json!({"Service": service, "Peer": peer}),
        };
        let targets: Vec<Value> = others.into_iter().map(target).collect();
        let failover = match targets.is_empty() {
            true => json!({}),
            false => json!({"*": {"Targets": targets}}),
        };
        json!({"DefaultSubset": default, "Subsets": {"v1": {}, "v2": {}}, "Failover": failover})
    });
    let resolver = prop_oneof![redirect, subsets].prop_map(|more| ("service-resolver", more));
    (prop_oneof![router, splitter, resolver], service())
        .prop_map(|((kind, more), name)| entry(kind, name, more))
}

/// Asserts that every path ends at a target and that every target is used.
fn assert_whole(chain: &Chain) -> Result<(), TestCaseError> {
    prop_assert!(chain.start().is_some());
    let mut ends = std::collections::BTreeSet::new();
    for (key, node) in &chain.nodes {
        prop_assert_eq!(key, &node.key());
        for next in node.next() {
            let next = chain.nodes.get(next).map(|next| &next.kind);
            let splitter = matches!(next, Some(NodeKind::Splitter(_)));
            prop_assert!(next.is_some() && !(splitter && key.starts_with("splitter:")));
        }
        match &node.kind {
            NodeKind::Router(routes) => prop_assert!(!routes.is_empty()),
            NodeKind::Splitter(splits) => {
                let sum: f32 = splits.iter().map(|split| split.weight).sum();
                // The weight of each split is rounded.
                let rounded = 0.02 * splits.len() as f32;
                prop_assert!((sum - 100.0).abs() <= rounded, "{} {:?}", sum, splits);
            }
            NodeKind::Resolver(resolver) => {
                ends.insert(resolver.target.clone());
                ends.extend(resolver.failover.iter().flat_map(|one| one.targets.clone()));
            }
        }
    }
    let targets: std::collections::BTreeSet<String> = chain.targets.keys().cloned().collect();
    // Failover of dropped nodes may leave unused targets behind, but none may be missing.
    prop_assert!(ends.is_subset(&targets), "{:?} {:?}", ends, targets);
    for target in chain.targets.values() {
        let is_of_peer = !target.peer.is_empty();
        prop_assert_eq!(target.id.contains(".external."), is_of_peer);
        prop_assert_eq!(target.datacenter.is_empty(), is_of_peer);
        // What these are is known when the peer says so.
        prop_assert_eq!(target.sni.is_empty() && target.name.is_empty(), is_of_peer);
        prop_assert!(target.peer_identities.is_empty());
        prop_assert_eq!(&target.peer, &target.peer.to_ascii_lowercase());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_chain_is_whole(entries in vec(written(), 0..8)) {
        let entries = Written::new(entries.into_iter().chain([http()]));
        if let Ok(chain) = chain_with(&entries, Overrides::default()) {
            assert_whole(&chain)?;
            // Compiling is deterministic.
            prop_assert_eq!(chain_with(&entries, Overrides::default()), Ok(chain));
        }
    }
}
