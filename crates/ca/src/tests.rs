//! The CA over a real store, with paused time that advances only when all tasks are idle.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_identity::{Authority, CertificateInfo, RootRequest};
use legate_model::{CaRoot, Secret, SpiffeId};
use legate_runtime::{Clock, Scope};
use legate_store::{CaState, Command, Store};
use tokio::time::timeout;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const DEADLINE: Duration = Duration::from_secs(5);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

/// A CA over a new store with its own clock.
struct Fixture {
    store: Store,
    clock: Clock,
    ca: Ca,
    scope: Scope,
}

impl Fixture {
    async fn new() -> Fixture {
        let (store, clock) = (Store::new(), Clock::at(start()));
        let ca = Ca::initialise(&store, "dc1", clock.clone(), CaConfig::default())
            .await
            .unwrap();
        let scope = Scope::new("test");
        Fixture {
            store,
            clock,
            ca,
            scope,
        }
    }

    fn leaves(&self) -> LeafStore {
        self.ca.leaves(&self.scope.spawner())
    }

    fn state(&self) -> CaState {
        CaState::clone(&self.store.state().read().ca().unwrap())
    }

    async fn set(&self, state: CaState) {
        let command = Command::SetCa(Box::new(state));
        self.store.apply(command).await.unwrap();
    }

    /// Makes another root active; the old one remains trusted.
    async fn rotate(&self) -> CaRoot {
        let mut state = self.state();
        let authority = Authority::generate_root(RootRequest {
            common_name: "another root".to_owned(),
            uri: format!("spiffe://{}", state.roots.trust_domain),
            serial: 1000,
            now: self.clock.now(),
            ttl: 1000 * HOUR,
        })
        .unwrap();
        let roots = Arc::make_mut(&mut state.roots);
        for root in &mut roots.roots {
            root.active = false;
        }
        let info = authority.info();
        let root = CaRoot {
            id: info.id.clone(),
            signing_key_id: info.subject_key_id.clone(),
            root_cert: authority.cert_pem().to_owned(),
            intermediate_certs: vec!["cross-signed\n".to_owned()],
            active: true,
            not_before: info.not_before,
            not_after: info.not_after,
            ..roots.roots[0].clone()
        };
        roots.active_root_id.clone_from(&root.id);
        roots.roots.push(root.clone());
        state.signing_key = Secret::new(authority.key_pem());
        self.set(state).await;
        root
    }
}

/// The next certificate of this watch.
async fn next(watch: &mut LeafWatch) -> Arc<Leaf> {
    watch.changed().await.unwrap();
    watch.current().unwrap()
}

/// A request for a key that is then discarded.
fn csr(uris: &[&str]) -> String {
    csr_with_hosts(uris, &[])
}

fn csr_with_hosts(uris: &[&str], hosts: &[&str]) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for uri in uris {
        let name = (*uri).try_into().unwrap();
        params.subject_alt_names.push(rcgen::SanType::URI(name));
    }
    for host in hosts {
        let name = match host.parse() {
            Ok(ip) => rcgen::SanType::IpAddress(ip),
            Err(_) => rcgen::SanType::DnsName((*host).try_into().unwrap()),
        };
        params.subject_alt_names.push(name);
    }
    params.serialize_request(&key).unwrap().pem().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_new_mesh_gets_a_root_and_a_trust_domain() {
    let fixture = Fixture::new().await;
    let state = fixture.state();
    let root = state.roots.active().unwrap();
    assert_eq!(state.cluster_id.len(), 36);
    assert_eq!(
        state.roots.trust_domain,
        format!("{}.consul", state.cluster_id)
    );
    assert_eq!(fixture.ca.trust_domain().as_str(), state.roots.trust_domain);
    assert_eq!(root.external_trust_domain, state.cluster_id);
    let info = CertificateInfo::from_pem(&root.root_cert).unwrap();
    assert!(info.is_ca);
    assert_eq!(
        info.uris,
        [format!("spiffe://{}", state.roots.trust_domain)]
    );
    assert_eq!((&info.id, info.serial.as_str()), (&root.id, "01"));
    assert_eq!(info.subject_key_id, root.signing_key_id);
    assert_eq!(info.not_after, start() + 87_600 * HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_the_same_store_keeps_the_root() {
    let fixture = Fixture::new().await;
    let before = fixture.state();
    let clock = Clock::at(start() + HOUR);
    let again = Ca::initialise(&fixture.store, "dc1", clock, CaConfig::default())
        .await
        .unwrap();
    assert_eq!(again.trust_domain(), fixture.ca.trust_domain());
    assert_eq!(fixture.state(), before);
    let (first, second) = (
        fixture.ca.issue(&"web".into()).await.unwrap(),
        again.issue(&"web".into()).await.unwrap(),
    );
    assert_eq!(first.authority_key_id, second.authority_key_id);
    assert_ne!(first.serial, second.serial, "serial numbers are unique");
}

#[tokio::test(start_paused = true)]
async fn an_unusable_ca_in_the_store_is_an_error_and_is_not_changed() {
    let fixture = Fixture::new().await;
    let mut broken = fixture.state();
    broken.signing_key = Secret::new("hunter2");
    fixture.set(broken.clone()).await;
    let config = CaConfig::default();
    let error = Ca::initialise(&fixture.store, "dc1", Clock::system(), config)
        .await
        .unwrap_err();
    assert!(matches!(error, CaError::Stored { .. }));
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    assert_eq!(fixture.state(), broken);
}

#[tokio::test]
async fn lifetimes_are_checked() {
    let check = async |leaf_ttl, root_ttl, expected: &str| {
        let config = CaConfig {
            leaf_ttl,
            root_ttl,
            ..CaConfig::default()
        };
        let store = Store::new();
        let error = Ca::initialise(&store, "dc1", Clock::system(), config)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(store.state().read().ca().is_none());
    };
    check(Duration::from_secs(1), HOUR, "leaf_ttl is 1s").await;
    check(2 * HOUR, HOUR, "root_ttl is 3600s").await;
}

#[tokio::test(start_paused = true)]
async fn a_leaf_contains_the_identity_of_the_service() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.leaves().watch("web");
    assert!(watch.current().is_none());
    let leaf = next(&mut watch).await;
    let td = fixture.ca.trust_domain();
    let uri = format!("spiffe://{td}/ns/default/dc/dc1/svc/web");
    assert_eq!((&leaf.id, &leaf.uri), (&"web".into(), &uri));
    let info = CertificateInfo::from_pem(&leaf.cert_pem).unwrap();
    assert_eq!(info.uris, [uri]);
    assert_eq!(info.serial, leaf.serial);
    assert_eq!(info.authority_key_id.as_ref(), Some(&leaf.authority_key_id));
    assert_eq!(
        (info.not_before, info.not_after),
        (leaf.valid_after, leaf.valid_before)
    );
    assert_eq!(leaf.valid_before, leaf.valid_after + 72 * HOUR);
    assert!(leaf.key_pem.expose().contains("PRIVATE KEY"));
    assert!(!format!("{leaf:?}").contains("PRIVATE KEY"));
}

#[tokio::test(start_paused = true)]
async fn a_leaf_contains_its_dns_names_and_the_identity_of_a_gateway() {
    let fixture = Fixture::new().await;
    let td = fixture.ca.trust_domain();
    let names = ["*.ingress.consul", "shop.example.com"].map(str::to_owned);
    let id = LeafId::from("ingress").with_dns_names(names.clone());
    let leaf = fixture.ca.issue(&id).await.unwrap();
    let info = CertificateInfo::from_pem(&leaf.cert_pem).unwrap();
    assert_eq!(info.dns_names, names);
    let uri = format!("spiffe://{td}/ns/default/dc/dc1/svc/ingress");
    assert_eq!(info.uris, [uri]);
    let id = LeafId::of_mesh_gateway(&"default".into());
    let leaf = fixture.ca.issue(&id).await.unwrap();
    assert_eq!(leaf.uri, format!("spiffe://{td}/gateway/mesh/dc/dc1"));
    let info = CertificateInfo::from_pem(&leaf.cert_pem).unwrap();
    assert_eq!(
        (info.uris, info.dns_names),
        (vec![leaf.uri.clone()], vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_with_different_names_are_separate() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let named = LeafId::from("web").with_dns_names(["web.example".to_owned()]);
    let (mut plain, mut other) = (leaves.watch("web"), leaves.watch(named.clone()));
    let (plain_leaf, other_leaf) = (next(&mut plain).await, next(&mut other).await);
    assert_ne!(plain_leaf.serial, other_leaf.serial);
    assert!(Arc::ptr_eq(&leaves.current(&named).unwrap(), &other_leaf));
    drop(other);
    settle().await;
    assert_eq!(leaves.watched(), ["web".into()]);
    assert!(leaves.current(&named).is_none());
}

#[tokio::test(start_paused = true)]
async fn names_of_servers_are_not_issued_to_proxies() {
    let fixture = Fixture::new().await;
    let td = fixture.ca.trust_domain();
    let issue = async |name: &str| {
        let id = LeafId::from("ingress").with_dns_names([name.to_owned()]);
        fixture.ca.issue(&id).await
    };
    for refused in [
        "server.dc1.consul",
        "Server.DC1.consul.",
        "server.dc2.consul",
        "node.server.dc1.consul",
        "localhost",
        "*",
        "*.*.consul",
        "foo.*.example",
        "*.consul",
        "*.dc1.consul",
        "*.dc2.consul",
        "*.server.dc1.consul",
        &format!("server.dc1.peering.{td}"),
        &format!("*.dc1.peering.{td}"),
    ] {
        let error = issue(refused).await.unwrap_err().to_string();
        assert!(error.contains("impersonate a server"), "{refused}: {error}");
    }
    for issued in [
        "*.ingress.consul",
        "*.ingress.dc1.consul",
        "*.example.com",
        "server.example.com",
        "consul",
    ] {
        issue(issued)
            .await
            .unwrap_or_else(|error| panic!("{issued}: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaf_is_renewed_repeatedly_before_it_expires() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.leaves().watch("web");
    let mut old = next(&mut watch).await;
    for _ in 0..5 {
        let new = next(&mut watch).await;
        let now = fixture.clock.now();
        let age = now.duration_since(old.valid_after).unwrap();
        let life = 72 * HOUR;
        assert!(
            age >= life.mul_f64(0.6) && age <= life.mul_f64(0.9) + DEADLINE,
            "{age:?}"
        );
        assert!(new.valid_after > old.valid_after && new.valid_after <= now);
        assert_ne!(new.serial, old.serial);
        assert_ne!(new.key_pem, old.key_pem, "every certificate has a new key");
        // It is the current one, and there is no further change.
        assert!(timeout(HOUR, watch.changed()).await.is_err());
        assert!(Arc::ptr_eq(&watch.current().unwrap(), &new));
        old = new;
    }
}

#[tokio::test(start_paused = true)]
async fn watchers_of_a_service_share_one_leaf() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let (mut one, mut two) = (leaves.watch("web"), leaves.clone().watch("web"));
    let mut other = leaves.watch("api");
    let first = next(&mut one).await;
    assert!(Arc::ptr_eq(&first, &next(&mut two).await));
    assert_ne!(next(&mut other).await.serial, first.serial);
    let late = leaves.watch("web");
    assert!(Arc::ptr_eq(&first, &late.current().unwrap()));
    let renewed = next(&mut one).await;
    assert!(Arc::ptr_eq(&renewed, &next(&mut two).await));
    assert!(Arc::ptr_eq(&renewed, &late.current().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn the_last_watcher_removes_the_entry() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let (mut one, two) = (leaves.watch("web"), leaves.watch("web"));
    let first = next(&mut one).await;
    drop(one);
    settle().await;
    assert_eq!(leaves.watched(), ["web".into()]);
    drop(two);
    settle().await;
    assert!(leaves.watched().is_empty());
    let mut again = leaves.watch("web");
    assert_ne!(next(&mut again).await.serial, first.serial);
}

#[tokio::test(start_paused = true)]
async fn a_watch_added_during_removal_gets_a_leaf() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let mut one = leaves.watch("web");
    let first = next(&mut one).await;
    drop(one);
    // The task has not run since then.
    let two = leaves.watch("web");
    settle().await;
    assert!(Arc::ptr_eq(&first, &two.current().unwrap()));
    assert_eq!(leaves.watched(), ["web".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_new_active_root_reissues_every_leaf() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.leaves().watch("web");
    let old = next(&mut watch).await;
    let root = fixture.rotate().await;
    let new = timeout(Duration::from_secs(31), next(&mut watch))
        .await
        .unwrap();
    assert_eq!(new.authority_key_id, root.signing_key_id);
    assert_ne!(new.authority_key_id, old.authority_key_id);
    let info = CertificateInfo::from_pem(&new.cert_pem).unwrap();
    assert_eq!(info.authority_key_id, Some(root.signing_key_id));
    assert!(
        new.cert_pem
            .ends_with("-----END CERTIFICATE-----\ncross-signed\n")
    );
    // One renewal is sufficient.
    assert!(timeout(HOUR, watch.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_retains_the_certificate_and_is_retried() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.leaves().watch("web");
    let old = next(&mut watch).await;
    let good = fixture.state();
    let mut broken = good.clone();
    broken.signing_key = Secret::new("broken");
    fixture.set(broken).await;
    assert!(timeout(100 * HOUR, watch.changed()).await.is_err());
    assert!(Arc::ptr_eq(&watch.current().unwrap(), &old));
    fixture.set(good).await;
    let new = timeout(Duration::from_secs(91), next(&mut watch))
        .await
        .unwrap();
    assert!(new.valid_before > fixture.clock.now());
}

#[tokio::test(start_paused = true)]
async fn an_expired_root_signs_nothing() {
    let (store, clock) = (Store::new(), Clock::at(start()));
    let config = CaConfig {
        leaf_ttl: HOUR,
        root_ttl: HOUR,
        ..CaConfig::default()
    };
    let ca = Ca::initialise(&store, "dc1", clock, config).await.unwrap();
    ca.issue_server(&[], &[]).await.unwrap();
    tokio::time::advance(2 * HOUR).await;
    let error = ca.issue_server(&[], &[]).await.unwrap_err();
    assert!(matches!(error, CaError::RootExpired { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_watches() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let mut watch = leaves.watch("web");
    let leaf = next(&mut watch).await;
    fixture.scope.stop(DEADLINE).await.unwrap();
    let ended = watch.changed().await.unwrap_err();
    assert_eq!(ended.leaf, "service web");
    assert!(Arc::ptr_eq(&watch.current().unwrap(), &leaf));
    // A watch that is created too late does not wait forever.
    leaves.watch("api").changed().await.unwrap_err();
    assert!(leaves.watched().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_certificate_has_the_names_that_clients_verify() {
    let fixture = Fixture::new().await;
    let (names, ips) = (["consul.example".to_owned()], ["10.0.0.7".parse().unwrap()]);
    let issued = fixture.ca.issue_server(&names, &ips).await.unwrap();
    let td = fixture.ca.trust_domain();
    let peering = format!("server.dc1.peering.{td}");
    let expected = ["server.dc1.consul", &peering, "localhost", "consul.example"];
    assert_eq!(issued.info.dns_names, expected);
    assert_eq!(
        issued.info.uris,
        [format!("spiffe://{td}/agent/server/dc/dc1")]
    );
    let addresses: Vec<String> = issued.info.ips.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["127.0.0.1", "::1", "10.0.0.7"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_identity_of_this_datacenter_is_signed() {
    let fixture = Fixture::new().await;
    fixture.rotate().await;
    let td = fixture.ca.trust_domain();
    for path in [
        "ns/default/dc/dc1/svc/web",
        "gateway/mesh/dc/dc1",
        "agent/server/dc/dc1",
    ] {
        let uri = format!("spiffe://{td}/{path}");
        let csr = csr(&[&uri]);
        let expected: SpiffeId = uri.parse().unwrap();
        let request = fixture.ca.check_csr(&csr).unwrap();
        assert_eq!(*request.identity(), expected);
        let signed = fixture.ca.sign_csr(&request).await.unwrap();
        assert_eq!(CertificateInfo::from_pem(&signed).unwrap().uris, [uri]);
        assert!(signed.ends_with("cross-signed\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn other_requests_are_refused() {
    let fixture = Fixture::new().await;
    let td = fixture.ca.trust_domain();
    let own = format!("spiffe://{td}");
    for (csr, expected) in [
        (csr(&[&own]), "it is the CA itself"),
        (
            csr(&[&format!("{own}/ns/default/dc/dc2/svc/web")]),
            "this datacenter is dc1",
        ),
        (
            csr(&["spiffe://other.consul/ns/default/dc/dc1/svc/web"]),
            "this mesh is",
        ),
        (
            csr(&[&format!("{own}/agent/client/dc/dc1/id/n")]),
            "not a SPIFFE id",
        ),
        (csr(&["https://example.com"]), "not a SPIFFE id"),
        (
            csr(&[&format!("{own}/ap/default/ns/default/dc/dc1/svc/web")]),
            "it is written",
        ),
        (
            csr(&[&format!("{own}/ns/Default/dc/dc1/svc/web")]),
            "it is written",
        ),
        (
            csr(&[&format!("{own}/ns/default/dc/dc1/svc/%77eb")]),
            "it is written",
        ),
        (csr(&[]), "it has 0 URI names"),
        (csr(&[&own, &own]), "it has 2 URI names"),
        ("no request".to_owned(), "invalid CSR"),
    ] {
        let error = fixture.ca.check_csr(&csr).unwrap_err();
        assert!(error.is_invalid_request(), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("invalid CSR: ") && text.contains(expected),
            "{text}"
        );
    }
}

/// Dataplanes of all tenants identify servers by such names.
#[tokio::test(start_paused = true)]
async fn tenants_cannot_get_server_names() {
    let fixture = Fixture::new().await;
    let td = fixture.ca.trust_domain();
    for (path, is_signed) in [
        ("ns/default/dc/dc1/svc/web", false),
        ("ap/west/ns/team/dc/dc1/svc/web", false),
        ("ap/west/gateway/mesh/dc/dc1", false),
        ("gateway/mesh/dc/dc1", false),
        ("agent/server/dc/dc1", true),
    ] {
        let uri = format!("spiffe://{td}/{path}");
        let csr = csr_with_hosts(&[&uri], &["server.dc1.consul"]);
        let checked = fixture.ca.check_csr(&csr);
        assert_eq!(checked.is_ok(), is_signed, "{path}: {checked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mesh_gateway_has_names_but_none_of_a_server() {
    let fixture = Fixture::new().await;
    let td = fixture.ca.trust_domain();
    let uri = format!("spiffe://{td}/gateway/mesh/dc/dc1");
    let trust_domain = format!("server.dc1.{td}");
    let peering = format!("server.dc1.peering.{td}");
    for (host, is_accepted) in [
        ("gateway.example.com", true),
        ("server.example.com", true),
        ("server.dc1.consul", false),
        ("Server.DC2.Consul", false),
        ("server.dc1.consul.", false),
        (&trust_domain, false),
        (&peering, false),
        ("*.dc1.consul", false),
        ("localhost", false),
        ("127.0.0.1", false),
        ("10.0.0.1", false),
    ] {
        for hosts in [&[host][..], &["gateway.example.com", host]] {
            let csr = csr_with_hosts(&[&uri], hosts);
            match fixture.ca.check_csr(&csr) {
                Ok(checked) => {
                    assert!(is_accepted, "{host}");
                    assert_eq!(checked.dns_names(), hosts);
                }
                Err(error) => {
                    assert!(!is_accepted && error.is_invalid_request(), "{error}");
                    assert!(error.to_string().contains(host), "{error}");
                }
            }
        }
    }
}

/// Runs all tasks until they wait: paused time advances only when all tasks are idle.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The configuration with changed keys.
fn with(fixture: &Fixture, keys: serde_json::Value) -> legate_model::CaConfiguration {
    let mut asked = CaManager::new(fixture.ca.clone(), fixture.store.writer())
        .configuration()
        .unwrap();
    let keys = keys.as_object().unwrap().clone();
    asked.config.extend(keys);
    asked
}

#[tokio::test(start_paused = true)]
async fn a_rotation_renews_leaves_and_later_removes_the_old_root() {
    let fixture = Fixture::new().await;
    let manager = CaManager::new(fixture.ca.clone(), fixture.store.writer());
    let tend = manager.clone();
    let leadership = fixture.store.leadership().clone();
    let stop = fixture.scope.token();
    fixture.scope.spawn("tend", tend.run(leadership, stop));
    let mut watch = fixture.leaves().watch("web");
    let before = next(&mut watch).await;
    let old = fixture.state().roots.active().unwrap().clone();
    let asked = with(&fixture, serde_json::json!({"PrivateKeyBits": 384}));
    manager.reconfigure(asked).await.unwrap();

    let after = timeout(Duration::from_secs(31), next(&mut watch))
        .await
        .unwrap();
    let new = fixture.state().roots.active().unwrap().clone();
    assert_eq!(after.authority_key_id, new.signing_key_id);
    assert!(after.index > before.index);
    let chain = legate_identity::split_certificates(&after.cert_pem).unwrap();
    assert!(legate_identity::is_issued_by(&chain[1], &old.root_cert).unwrap());
    // Two lifetimes of leaves later; links are valid for a week.
    tokio::time::sleep(143 * HOUR).await;
    assert_eq!(fixture.state().roots.roots.len(), 2);
    tokio::time::sleep(2 * HOUR).await;
    let left = fixture.state();
    assert_eq!(left.roots.roots.len(), 1);
    assert_eq!(left.roots.roots[0].intermediate_certs.len(), 1);
    tokio::time::sleep(24 * HOUR).await;
    assert!(fixture.state().roots.roots[0].intermediate_certs.is_empty());
    fixture.scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_of_two_concurrent_changes_succeeds() {
    let fixture = Fixture::new().await;
    // Two servers over one store.
    let managers = [(); 2].map(|()| CaManager::new(fixture.ca.clone(), fixture.store.writer()));
    let rsa = serde_json::json!({"PrivateKeyType": "rsa", "PrivateKeyBits": 2048});
    let asked = with(&fixture, rsa);
    let (one, two) = tokio::join!(
        managers[0].reconfigure(asked.clone()),
        managers[1].reconfigure(asked.clone()),
    );
    let refused = [one, two].into_iter().filter_map(Result::err);
    let refused: Vec<_> = refused.map(|error| error.to_string()).collect();
    assert_eq!(refused, ["could not atomically update roots and config"]);
    assert_eq!(fixture.state().roots.roots.len(), 2);
    // On the same server, the second change is refused immediately.
    let other = with(&fixture, serde_json::json!({"PrivateKeyBits": 4096}));
    let (one, two) = tokio::join!(
        managers[0].reconfigure(other.clone()),
        managers[0].reconfigure(other),
    );
    one.unwrap();
    assert!(matches!(two, Err(CaError::Busy)));
}

#[tokio::test(start_paused = true)]
async fn an_expired_root_can_be_replaced() {
    let (store, clock) = (Store::new(), Clock::at(start()));
    let config = CaConfig {
        leaf_ttl: HOUR,
        root_ttl: HOUR,
        ..CaConfig::default()
    };
    let ca = Ca::initialise(&store, "dc1", clock, config).await.unwrap();
    tokio::time::advance(2 * HOUR).await;
    let manager = CaManager::new(ca.clone(), store.writer());
    let asked = legate_model::CaConfiguration {
        provider: "consul".to_owned(),
        config: serde_json::json!({"PrivateKeyBits": 521})
            .as_object()
            .cloned()
            .unwrap(),
        ..legate_model::CaConfiguration::default()
    };
    manager.reconfigure(asked).await.unwrap();
    ca.issue_server(&[], &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requested_leaves_are_cached_with_an_index() {
    let fixture = Fixture::new().await;
    let leaves = fixture.leaves();
    let served = ServiceLeaves::new(fixture.ca.clone(), leaves.clone());
    let soon = || tokio::time::Instant::now() + DEADLINE;
    let first = served.leaf(&"web".into(), 0, soon()).await.unwrap();
    assert!(Arc::ptr_eq(
        &first,
        &served.leaf(&"web".into(), 0, soon()).await.unwrap()
    ));
    // No newer leaf before the deadline; an unknown index is from an earlier process.
    let same = served
        .leaf(&"web".into(), first.index, soon())
        .await
        .unwrap();
    assert!(Arc::ptr_eq(&first, &same));
    assert!(Arc::ptr_eq(
        &first,
        &served.leaf(&"web".into(), 9, soon()).await.unwrap()
    ));
    let late = tokio::time::Instant::now() + 100 * HOUR;
    let renewed = served.leaf(&"web".into(), first.index, late).await.unwrap();
    assert!(renewed.index > first.index);
    // New callers do not wait for the scheduled renewal after a rotation.
    let root = fixture.rotate().await;
    let began = tokio::time::Instant::now();
    let anew = served.leaf(&"web".into(), 0, soon()).await.unwrap();
    assert_eq!(anew.authority_key_id, root.signing_key_id);
    assert!(began.elapsed() < Duration::from_millis(10));
    // It is evicted when it is no longer requested.
    tokio::time::sleep(73 * HOUR).await;
    served.leaf(&"api".into(), 0, soon()).await.unwrap();
    settle().await;
    assert_eq!(leaves.watched(), ["api".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_mesh_without_stored_configuration_retains_its_root() {
    let before = Fixture::new().await.state();
    let store = Store::new();
    let command = Command::SetCa(Box::new(before.clone()));
    store.apply(command).await.unwrap();
    let mut config = CaConfig {
        leaf_ttl: 5 * HOUR,
        ..CaConfig::default()
    };
    config
        .more
        .0
        .insert("private_key_bits".to_owned(), 384.into());
    let ca = Ca::initialise(&store, "dc1", Clock::at(start()), config).await;
    let ca = ca.unwrap();
    let state = store.state();
    assert_eq!(
        state.read().ca_roots().unwrap().active_root_id,
        before.roots.active_root_id
    );
    let stored = state.read().ca_configuration().unwrap();
    assert_eq!(stored.config["LeafCertTTL"], "5h");
    assert!(!stored.config.contains_key("PrivateKeyBits"));
    let issued = ca.issue_server(&[], &[]).await.unwrap();
    let life = issued.info.not_after.duration_since(issued.info.not_before);
    assert_eq!(life.unwrap(), 5 * HOUR);
}
