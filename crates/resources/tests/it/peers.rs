//! Services of peers: what changes with what, and that nothing is ever sent to whoever cannot be verified.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use legate_model::{CheckServiceNode, PeerTrustBundle};
use legate_proxycfg::{DialledKind, ImplicitUpstreams, Instances, ResolvedChain, UpstreamSnapshot};
use legate_resources::ResourceSet;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::golden_cases::written;
use crate::support::{Generator, Web, chained, edit_chain, instance, web};
use crate::transparent::implicit;

const ROOTS: &str = "roots of peer alpha";

/// The trust bundles of `alpha`, one after the other.
static BUNDLES: LazyLock<[Arc<PeerTrustBundle>; 2]> = LazyLock::new(|| {
    let of = |roots: &[&str]| {
        Arc::new(PeerTrustBundle {
            trust_domain: "far.consul".to_owned(),
            peer_name: "alpha".to_owned(),
            root_pems: roots.iter().map(|root| (*root).to_owned()).collect(),
            ..PeerTrustBundle::default()
        })
    };
    [of(&["first"]), of(&["first", "second"])]
});

/// What is known of `s2` of `alpha`, and how it is called.
#[derive(Clone, Debug, Default)]
struct Form {
    /// Who may answer; 0 means that nobody knows.
    identities: u8,
    /// The bundle.
    roots: usize,
    /// Addresses of its gateways.
    gateways: Vec<&'static str>,
    /// Whether it stands in for a service of this cluster.
    fails_over: bool,
    is_http: bool,
}

fn reachable() -> Form {
    Form {
        identities: 1,
        gateways: vec!["192.0.2.1"],
        ..Form::default()
    }
}

impl Form {
    fn upstream(&self, port: u16) -> UpstreamSnapshot {
        let protocol = if self.is_http { "http" } else { "tcp" };
        let defaults = json!({"Kind": "service-defaults", "Name": "s2", "Protocol": protocol});
        let to_peer = json!({"Service": "s2", "Peer": "alpha"});
        let (name, mut definition) = ("s2", json!({"DestinationName": "s2"}));
        let mut resolver = json!({"Kind": "service-resolver", "Name": name});
        match self.fails_over {
            true => resolver["Failover"] = json!({"*": {"Targets": [to_peer]}}),
            false => {
                resolver["Redirect"] = to_peer;
                definition["DestinationPeer"] = json!("alpha");
            }
        }
        definition["LocalBindPort"] = json!(port);
        let gateways: Vec<CheckServiceNode> = match self.identities {
            0 => Vec::new(),
            _ => self
                .gateways
                .iter()
                .map(|address| instance(address, 443, &[]))
                .collect(),
        };
        let mut upstream = chained(definition, &[defaults, resolver], |target| {
            match target.ends_with(".external.alpha") {
                true => gateways.clone(),
                false => vec![instance("10.0.2.1", 20001, &[])],
            }
        });
        edit_chain(&mut upstream, |chain| {
            chain.default = !self.fails_over;
            for target in chain
                .targets
                .values_mut()
                .filter(|one| !one.peer.is_empty())
            {
                target.name = "s2.default.alpha.external.far.consul".to_owned();
                let ids = (0..self.identities).map(|id| format!("spiffe://far.consul/{id}"));
                target.peer_identities = ids.collect();
                if self.identities > 0 {
                    target.sni = "s2.here.external.far.consul".to_owned();
                }
            }
        });
        let bundles = match self.identities {
            0 => Vec::new(),
            _ => vec![Arc::clone(&BUNDLES[self.roots])],
        };
        let resolved = ResolvedChain::clone(&upstream.resolved);
        upstream.resolved = Arc::new(resolved.with_trust_bundles(bundles.into()));
        upstream
    }
}

type Versions = BTreeMap<(String, Arc<str>), Arc<str>>;

fn versions(set: &ResourceSet) -> Versions {
    let of_type = |url: String| {
        let resources = set.get(&url).values();
        resources.map(move |one| ((url.clone(), one.name.clone()), Arc::clone(&one.version)))
    };
    type_urls().into_iter().flat_map(of_type).collect()
}

/// The names of the resources that differ.
fn changed(before: &ResourceSet, after: &ResourceSet) -> BTreeSet<String> {
    let (before, after) = (versions(before), versions(after));
    let keys = before.keys().chain(after.keys());
    let differ = keys.filter(|key| before.get(*key) != after.get(*key));
    let short = |(url, name): &(String, Arc<str>)| {
        let kind = url.rsplit('.').next().unwrap();
        format!("{kind} {name}")
    };
    differ.map(short).collect()
}

/// `web` with this upstream, and what is made after the previous one.
fn next(
    generator: &Generator,
    upstream: UpstreamSnapshot,
    last: Option<(&Web, &ResourceSet)>,
) -> (Web, ResourceSet) {
    let snapshot = Web {
        upstreams: vec![upstream],
        ..web()
    };
    // All but the upstream is what it was.
    let snapshot = match last {
        Some((last, _)) => Web {
            upstreams: snapshot.upstreams,
            ..last.clone()
        },
        None => snapshot,
    };
    let set = generator.generate(&snapshot, last);
    (snapshot, set)
}

/// The upstream with another resolved chain, whose parts are the same where they are equal, as in a server.
fn after(before: &UpstreamSnapshot, form: &Form) -> UpstreamSnapshot {
    let now = form.upstream(9191);
    let (old, new) = (&before.resolved, &now.resolved);
    let chain = match old.chain == new.chain {
        true => Arc::clone(old.chain.as_ref().unwrap()),
        false => Arc::clone(new.chain.as_ref().unwrap()),
    };
    let lists = chain.targets.keys().map(|id| {
        let (old, new) = (old.instances(id), new.instances(id).unwrap());
        let same = old.filter(|old| **old == *new);
        Arc::<Instances>::clone(same.unwrap_or(new))
    });
    let lists: Vec<_> = lists.collect();
    let bundles = new.trust_bundles().to_vec().into();
    UpstreamSnapshot {
        upstream: Arc::clone(&before.upstream),
        resolved: Arc::new(ResolvedChain::new(chain, lists).with_trust_bundles(bundles)),
    }
}

#[test]
fn each_change_is_as_small_as_it_can_be() {
    const CLUSTER: &str = "Cluster s2.default.alpha.external.far.consul";
    const ENDPOINTS: &str = "ClusterLoadAssignment s2.default.alpha.external.far.consul";
    let generator = Generator::new();
    let first = reachable();
    let (mut snapshot, mut set) = next(&generator, first.upstream(9191), None);
    let secret = format!("Secret {ROOTS}");
    for (form, expected) in [
        (
            Form {
                roots: 1,
                ..reachable()
            },
            vec![&*secret],
        ),
        (
            Form {
                roots: 1,
                gateways: vec!["192.0.2.1", "192.0.2.2"],
                ..reachable()
            },
            vec![ENDPOINTS],
        ),
        (
            Form {
                roots: 1,
                identities: 2,
                gateways: vec!["192.0.2.1", "192.0.2.2"],
                ..reachable()
            },
            vec![CLUSTER],
        ),
        // Envoy resolves host names in clusters only.
        (
            Form {
                roots: 1,
                identities: 2,
                gateways: vec!["gateway.example"],
                ..reachable()
            },
            vec![CLUSTER, ENDPOINTS],
        ),
        (
            Form {
                roots: 1,
                identities: 2,
                gateways: vec!["other.example"],
                ..reachable()
            },
            vec![CLUSTER],
        ),
        (
            Form {
                identities: 0,
                ..reachable()
            },
            vec![CLUSTER, &*secret],
        ),
        (reachable(), vec![CLUSTER, ENDPOINTS, &*secret]),
    ] {
        let upstream = after(&snapshot.upstreams[0], &form);
        let (now, made) = next(&generator, upstream, Some((&snapshot, &set)));
        let expected: BTreeSet<_> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(changed(&set, &made), expected, "{form:?}");
        (snapshot, set) = (now, made);
    }
}

fn form() -> impl Strategy<Value = Form> {
    let gateway = prop::sample::select(vec!["192.0.2.1", "192.0.2.2", "gateway.example", ""]);
    let gateways = prop::collection::vec(gateway, 0..3);
    (0..3u8, 0..2usize, gateways, any::<bool>(), any::<bool>()).prop_map(
        |(identities, roots, gateways, fails_over, is_http)| Form {
            identities,
            roots,
            gateways,
            fails_over,
            is_http,
        },
    )
}

/// What a proxy calls: an explicit upstream, and one in transparent mode.
fn upstreams() -> impl Strategy<Value = (Option<Form>, Option<Form>)> {
    (prop::option::of(form()), prop::option::of(form()))
}

fn snapshot((explicit, captured): &(Option<Form>, Option<Form>)) -> Web {
    let captured = captured.as_ref().map(|form| {
        let addresses = [(DialledKind::Service, "240.0.0.1".to_owned())];
        let one = implicit(form.upstream(0), &addresses);
        Arc::new(ImplicitUpstreams(vec![one]))
    });
    Web {
        upstreams: explicit.iter().map(|form| form.upstream(9191)).collect(),
        implicit: captured,
        ..web()
    }
}

/// Asserts that each cluster of a peer has the roots of the peer and an identity, or no endpoint at all.
fn assert_verified(set: &ResourceSet) -> Result<(), TestCaseError> {
    let all = written::document(set);
    let (clusters, endpoints) = (&all["Clusters"], &all["Endpoints"]);
    for (name, cluster) in clusters.as_object().unwrap() {
        let text = cluster.to_string();
        if !name.contains("s2.default") || text.contains("aggregate") || text.contains("/svc/s2") {
            continue;
        }
        let context = &cluster["transportSocket"]["typedConfig"]["commonTlsContext"];
        let validation = &context["combinedValidationContext"];
        if validation.is_null() {
            let hosts = |value: &Value| value.to_string().contains("socketAddress");
            prop_assert!(!hosts(cluster) && endpoints.get(name).is_none(), "{}", text);
            continue;
        }
        let secret = validation["validationContextSdsSecretConfig"]["name"].as_str();
        prop_assert_eq!(secret, Some(ROOTS));
        prop_assert!(all["Secrets"][ROOTS].is_object());
        let names = &validation["defaultValidationContext"]["matchTypedSubjectAltNames"];
        prop_assert!(
            names.as_array().is_some_and(|names| !names.is_empty()),
            "{}",
            text
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever was before, the resources are those of the snapshot alone, and whoever answers is verified.
    #[test]
    fn peers_are_verified_whatever_was_before(history in prop::collection::vec(upstreams(), 1..6)) {
        let generator = Generator::new();
        let mut last: Option<(Web, ResourceSet)> = None;
        for forms in &history {
            let now = snapshot(forms);
            let before = last.as_ref().map(|(web, set)| (web, set));
            let set = generator.generate(&now, before);
            let whole = Generator::new().generate(&now, None);
            prop_assert_eq!(versions(&set), versions(&whole));
            prop_assert_eq!(set.failures(), []);
            assert_verified(&set)?;
            last = Some((now, set));
        }
    }
}
