//! Answers from a small catalog.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use hickory_proto::op::ResponseCode::{self, NXDomain, NoError, Refused};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use legate_model::acl::{Authorizer, DefaultPolicy, Rules, ServiceIdentity};
use legate_model::{CheckStatus, HealthCheck, Node, ServiceInstance, ServiceKind, Tenancy};
use legate_store::{Command, Registration, Store};

use super::answer::{Answer, Asker, Known, Resolver, Wanted};
use super::question::Names;
use crate::config::dns::{DnsDomains, DnsSettings, DnsSoa, ServiceTtls};

/// An instance on its own node.
struct Instance {
    node: &'static str,
    node_address: &'static str,
    service: ServiceInstance,
    status: CheckStatus,
}

impl Instance {
    fn new(node: &'static str, node_address: &'static str, name: &str, port: u16) -> Self {
        Self {
            node,
            node_address,
            service: ServiceInstance {
                id: name.to_owned(),
                service: name.to_owned(),
                port,
                ..ServiceInstance::default()
            },
            status: CheckStatus::Passing,
        }
    }

    fn at(mut self, address: &str) -> Self {
        self.service.address = address.to_owned();
        self
    }

    fn tagged(mut self, tag: &str) -> Self {
        self.service.tags = vec![tag.to_owned()];
        self
    }

    fn with_status(mut self, status: CheckStatus) -> Self {
        self.status = status;
        self
    }

    fn proxy_of(mut self, destination: &str) -> Self {
        self.service.kind = ServiceKind::ConnectProxy;
        self.service.proxy.destination_service_name = destination.to_owned();
        self
    }

    fn register(self, store: &Store) {
        let check = HealthCheck {
            node: self.node.to_owned(),
            check_id: format!("check-{}", self.service.id),
            service_id: self.service.id.clone(),
            status: self.status,
            ..HealthCheck::default()
        };
        let registration = Registration {
            node: Node {
                node: self.node.to_owned(),
                address: self.node_address.to_owned(),
                datacenter: "dc1".to_owned(),
                meta: meta(self.node),
                ..Node::default()
            },
            service: Some(self.service),
            checks: vec![check],
            skip_node_update: false,
        };
        store
            .apply(Command::Register(Box::new(registration)))
            .now_or_never()
            .unwrap()
            .unwrap();
    }
}

fn meta(node: &str) -> BTreeMap<String, String> {
    let pairs: &[(&str, &str)] = match node {
        "vm-5" => &[("rack", "r 1"), (" a=b`", "c`d"), ("RFC1035-x", "v=spf1")],
        _ => &[],
    };
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn catalog() -> Store {
    let store = Store::new();
    for instance in [
        Instance::new("vm-1", "10.0.0.1", "web", 80).tagged("v1"),
        Instance::new("vm-2", "10.0.0.2", "web", 81)
            .at("10.1.0.2")
            .tagged("V2"),
        Instance::new("vm-3", "10.0.0.3", "web", 82).with_status(CheckStatus::Critical),
        Instance::new("vm-4", "10.0.0.4", "slow", 83).with_status(CheckStatus::Warning),
        Instance::new("vm-7", "10.0.0.7", "slow", 84),
        Instance::new("vm-7", "10.0.0.7", "outside", 88).at("ext.example.com"),
        Instance::new("vm-7", "10.0.0.7", "mixed", 89).at("mix.example.com"),
        Instance::new("vm-4", "10.0.0.4", "mixed", 90).at("10.3.0.1"),
        Instance::new("vm-7", "10.0.0.7", "alias", 91).at("web.service.consul"),
        Instance::new("vm-7", "10.0.0.7", "own", 92).at("own.service.consul"),
        Instance::new("vm-7", "10.0.0.7", "one", 93).at("other.service.consul"),
        Instance::new("vm-7", "10.0.0.7", "other", 94).at("one.service.consul"),
        Instance::new("vm-8", "web.service.consul", "far", 95),
        Instance::new("vm-1", "10.0.0.1", "bare-sidecar-proxy", 20_001).proxy_of("bare"),
        Instance::new("vm-5", "fd00::5", "six", 86),
        Instance::new("vm-6", "host.example.com", "named", 87),
        Instance::new("vm-1", "10.0.0.1", "web-sidecar-proxy", 20_000).proxy_of("web"),
        Instance::new("vm-3", "10.0.0.3", "ill", 90).with_status(CheckStatus::Critical),
    ] {
        instance.register(&store);
    }
    store
}

fn ask_as(access: &Authorizer, name: &str, kind: RecordType) -> Answer {
    ask_of(&catalog(), access, false, name, kind)
}

fn ask_of(
    store: &Store,
    access: &Authorizer,
    only_passing: bool,
    name: &str,
    kind: RecordType,
) -> Answer {
    let settings = DnsSettings {
        only_passing,
        ..DnsSettings::default()
    };
    let name = Name::from_ascii(name).unwrap();
    with_resolver(store, access, &settings, &Known::new(), |resolver| {
        resolver.answer(&name, kind)
    })
}

fn with_resolver<T>(
    store: &Store,
    access: &Authorizer,
    settings: &DnsSettings,
    known: &Known,
    with: impl FnOnce(&Resolver<'_>) -> T,
) -> T {
    let domains = DnsDomains::new("consul", Some("mesh.example")).unwrap();
    let state = store.state();
    with(&Resolver {
        state: &state,
        asker: Asker {
            access,
            source: None,
            has_edns: false,
        },
        rights: &|token| (token == "all").then(Authorizer::manage_all),
        settings,
        names: Names {
            domains: &domains,
            datacenter: "dc1",
            tenancy: &Tenancy::default(),
            prefer_namespace: false,
        },
        node: "vm-1",
        server: "192.0.2.1".parse().unwrap(),
        serial: 7,
        known,
        executed: None,
        translate_for: None,
        fails_over: RefCell::default(),
        wanted: RefCell::default(),
    })
}

/// Answers a query with these settings.
fn ask_set(settings: &DnsSettings, name: &str, kind: RecordType) -> Answer {
    let (all, name) = (Authorizer::manage_all(), Name::from_ascii(name).unwrap());
    with_resolver(&catalog(), &all, settings, &Known::new(), |resolver| {
        resolver.answer(&name, kind)
    })
}

fn ask(name: &str, kind: RecordType) -> Answer {
    ask_as(&Authorizer::manage_all(), name, kind)
}

/// The data of records as text, sorted.
fn data(records: &[Record]) -> Vec<String> {
    let mut data: Vec<String> = records.iter().map(|one| one.data.to_string()).collect();
    data.sort();
    data
}

/// Code and answers. Asserts that negative answers contain the SOA record.
fn short(answer: &Answer) -> (ResponseCode, Vec<String>) {
    let output = answer
        .authorities
        .iter()
        .any(|one| matches!(one.data, RData::SOA(_)));
    let negative = answer.answers.is_empty() && answer.code != Refused;
    assert_eq!(output, negative, "{answer:?}");
    (answer.code, data(&answer.answers))
}

fn answers(records: &[&str]) -> (ResponseCode, Vec<String>) {
    let records = records.iter().map(|one| (*one).to_owned());
    (NoError, records.collect())
}

fn nothing(code: ResponseCode) -> (ResponseCode, Vec<String>) {
    (code, Vec::new())
}

#[test]
fn a_service_is_its_passing_instances() {
    let web = ask("web.service.consul.", RecordType::A);
    assert_eq!(short(&web), answers(&["10.0.0.1", "10.1.0.2"]));
    assert!(web.answers.iter().all(|one| one.ttl == 0));
    let any = ask("web.service.dc1.consul.", RecordType::ANY);
    assert_eq!(short(&any), answers(&["10.0.0.1", "10.1.0.2"]));
    let upper = ask("WEB.SERVICE.CONSUL.", RecordType::A);
    assert_eq!(short(&upper), answers(&["10.0.0.1", "10.1.0.2"]));
}

#[test]
fn an_address_has_one_kind() {
    let six = |kind| short(&ask("six.service.consul.", kind));
    assert_eq!(six(RecordType::AAAA), answers(&["fd00::5"]));
    assert_eq!(six(RecordType::A), nothing(NoError));
    let named = |kind| short(&ask("named.service.consul.", kind));
    assert_eq!(named(RecordType::A), answers(&["host.example.com."]));
    assert_eq!(named(RecordType::TXT), answers(&["host.example.com."]));
}

#[test]
fn a_tag_selects_instances() {
    let tagged = |name| short(&ask(name, RecordType::A));
    assert_eq!(tagged("v1.web.service.consul."), answers(&["10.0.0.1"]));
    assert_eq!(tagged("_web._v2.service.consul."), answers(&["10.1.0.2"]));
    assert_eq!(tagged("v3.web.service.consul."), nothing(NXDomain));
}

#[test]
fn a_name_without_healthy_instances_does_not_exist() {
    for name in [
        "ill.service.consul.",
        "missing.service.consul.",
        "missing.node.consul.",
        "missing.connect.consul.",
        "9.9.9.10.in-addr.arpa.",
        "web.service.dc2.consul.",
        "web.consul.",
    ] {
        assert_eq!(
            short(&ask(name, RecordType::A)),
            nothing(NXDomain),
            "{name}"
        );
    }
}

#[test]
fn other_domains_are_refused() {
    for name in ["example.com.", "."] {
        assert_eq!(short(&ask(name, RecordType::A)), nothing(Refused));
    }
}

#[test]
fn nodes_and_mesh_destinations() {
    let node = ask("vm-3.node.consul.", RecordType::A);
    assert_eq!(short(&node), answers(&["10.0.0.3"]));
    let proxies = ask("web.connect.consul.", RecordType::SRV);
    assert_eq!(
        short(&proxies),
        answers(&["1 1 20000 vm-1.node.dc1.consul."])
    );
}

#[test]
fn srv_targets_lead_to_the_instances() {
    let web = ask("web.service.consul.", RecordType::SRV);
    assert_eq!(
        short(&web),
        answers(&[
            "1 1 80 vm-1.node.dc1.consul.",
            "1 1 81 0a010002.addr.dc1.consul."
        ])
    );
    assert_eq!(data(&web.additionals), ["10.0.0.1", "10.1.0.2"]);
    for target in &web.additionals {
        let found = ask(&target.name.to_ascii(), RecordType::A);
        assert_eq!(data(&found.answers), [target.data.to_string()]);
    }
    let six = ask("six.service.consul.", RecordType::SRV);
    assert_eq!(
        data(&six.additionals),
        ["` a`=b``=c``d", "fd00::5", "rack=r 1", "v=spf1"]
    );
}

#[test]
fn host_names_are_targets_themselves() {
    for (name, target) in [
        ("named", "1 1 87 host.example.com."),
        ("outside", "1 1 88 ext.example.com."),
    ] {
        let srv = ask(&format!("{name}.service.consul."), RecordType::SRV);
        assert_eq!(short(&srv), answers(&[target]));
        assert!(srv.additionals.is_empty());
    }
    let alias = ask("alias.service.consul.", RecordType::SRV);
    assert_eq!(short(&alias), answers(&["1 1 91 web.service.consul."]));
    assert_eq!(data(&alias.additionals), ["10.0.0.1", "10.1.0.2"]);
    let own = ask("own.service.consul.", RecordType::SRV);
    assert_eq!(short(&own), answers(&["1 1 92 vm-7.node.dc1.consul."]));
}

#[test]
fn aliases_are_single_records_and_followed_within_the_domain() {
    let asked = |name: &str, kind| short(&ask(&format!("{name}.service.consul."), kind));
    assert_eq!(
        asked("outside", RecordType::A),
        answers(&["ext.example.com."])
    );
    assert_eq!(asked("mixed", RecordType::A), answers(&["10.3.0.1"]));
    assert_eq!(asked("mixed", RecordType::ANY), answers(&["10.3.0.1"]));
    let alone = answers(&["mix.example.com."]);
    assert_eq!(asked("mixed", RecordType::AAAA), alone);
    assert_eq!(asked("mixed", RecordType::CNAME), alone);
    let followed = answers(&["10.0.0.1", "10.1.0.2", "web.service.consul."]);
    assert_eq!(asked("alias", RecordType::A), followed);
    assert_eq!(asked("far", RecordType::A), followed);
    let alias = answers(&["web.service.consul."]);
    assert_eq!(asked("alias", RecordType::CNAME), alias);
    assert_eq!(asked("own", RecordType::A), answers(&["10.0.0.7"]));
    let circle = answers(&["one.service.consul.", "other.service.consul."]);
    assert_eq!(asked("one", RecordType::A), circle);
}

#[test]
fn instances_in_warning_are_shown_unless_only_passing_ones_are_wanted() {
    let all = Authorizer::manage_all();
    let slow = |only| {
        ask_of(
            &catalog(),
            &all,
            only,
            "slow.service.consul.",
            RecordType::A,
        )
    };
    assert_eq!(short(&slow(false)), answers(&["10.0.0.4", "10.0.0.7"]));
    assert_eq!(short(&slow(true)), answers(&["10.0.0.7"]));
}

#[test]
fn an_address_has_the_name_of_its_node_or_service() {
    let ptr = |name: &str| short(&ask(name, RecordType::PTR));
    let node = answers(&["vm-1.node.dc1.consul."]);
    assert_eq!(ptr("1.0.0.10.in-addr.arpa."), node);
    let service = answers(&["web.service.dc1.consul."]);
    assert_eq!(ptr("2.0.1.10.IN-ADDR.arpa."), service);
    let six = "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.";
    assert_eq!(ptr(six), answers(&["vm-5.node.dc1.consul."]));
    let address = ask("1.0.0.10.in-addr.arpa.", RecordType::A);
    assert_eq!(short(&address), nothing(NoError));
    let hidden = ask_as(
        &Authorizer::deny_all(),
        "1.0.0.10.in-addr.arpa.",
        RecordType::PTR,
    );
    assert_eq!(short(&hidden), nothing(NXDomain));
}

#[test]
fn reverse_lookups_read_only_rows_with_the_address() {
    let store = catalog();
    let all = Authorizer::manage_all();
    let newest = |name: &str| {
        let state = store.state();
        let txn = state.read();
        let ip = name.parse().unwrap();
        with_resolver(
            &store,
            &all,
            &DnsSettings::default(),
            &Known::new(),
            |resolver| {
                resolver.reverse(&txn, ip);
            },
        );
        txn.into_reads().index()
    };
    let asked = ["10.0.0.1", "10.1.0.2", "10.9.9.9"];
    let before = asked.map(newest);
    Instance::new("vm-0", "10.0.0.99", "web", 80)
        .at("10.1.0.99")
        .register(&store);
    assert_eq!(asked.map(newest), before);
    Instance::new("vm-0", "10.9.9.9", "web", 80).register(&store);
    assert_ne!(newest(asked[2]), before[2]);
}

#[test]
fn a_nodes_metadata_is_returned() {
    let texts = ["` a`=b``=c``d", "rack=r 1", "v=spf1"];
    let txt = ask("vm-5.node.consul.", RecordType::TXT);
    assert_eq!(short(&txt), answers(&texts));
    let address = ask("vm-5.node.consul.", RecordType::AAAA);
    assert_eq!(short(&address), answers(&["fd00::5"]));
    assert_eq!(data(&address.additionals), texts);
    let none = ask("vm-1.node.consul.", RecordType::TXT);
    assert_eq!(short(&none), nothing(NoError));
}

#[test]
fn a_mesh_service_has_a_virtual_ip() {
    let asked = |name: &str, kind| short(&ask(name, kind));
    let ip = answers(&["240.0.0.2"]);
    assert_eq!(asked("web.virtual.consul.", RecordType::A), ip);
    assert_eq!(asked("WEB.Virtual.Consul.", RecordType::ANY), ip);
    assert_eq!(asked("v1.web.virtual.consul.", RecordType::A), ip);
    let own = "web.virtual.default.ns.default.ap.dc1.dc.consul.";
    assert_eq!(asked(own, RecordType::A), ip);
    let first = answers(&["240.0.0.1"]);
    assert_eq!(asked("bare.virtual.consul.", RecordType::A), first);
    let answer = ask("web.virtual.consul.", RecordType::A);
    assert!(answer.answers.iter().all(|one| one.ttl == 0));

    let none = nothing(NoError);
    assert_eq!(asked("web.virtual.consul.", RecordType::AAAA), none);
    for name in ["missing", "ill", "web-sidecar-proxy"] {
        let name = format!("{name}.virtual.consul.");
        assert_eq!(asked(&name, RecordType::A), none, "{name}");
    }
}

#[test]
fn the_zone_itself() {
    let soa = ask("consul.", RecordType::SOA);
    let record = "ns.consul. hostmaster.consul. 7 3600 600 86400 0";
    assert_eq!(short(&soa), answers(&[record]));
    let ns = ask("consul.", RecordType::NS);
    assert_eq!(short(&ns), answers(&["ns.consul."]));
    assert_eq!(data(&ns.additionals), ["192.0.2.1"]);
    let elsewhere = ask("web.service.mesh.example.", RecordType::SOA);
    let record = "ns.mesh.example. hostmaster.mesh.example. 7 3600 600 86400 0";
    assert_eq!(short(&elsewhere), answers(&[record]));
    assert_eq!(data(&elsewhere.authorities), ["ns.mesh.example."]);
    assert_eq!(ask("consul.", RecordType::AXFR).code, ResponseCode::NotImp);
    let server = ask("ns.consul.", RecordType::A);
    assert_eq!(short(&server), answers(&["192.0.2.1"]));
    assert_eq!(short(&ask("consul.", RecordType::A)), nothing(NoError));
}

#[test]
fn names_without_read_permission_do_not_exist() {
    let nobody = Authorizer::deny_all();
    for name in [
        "web.service.consul.",
        "web.connect.consul.",
        "vm-1.node.consul.",
    ] {
        let hidden = ask_as(&nobody, name, RecordType::A);
        assert_eq!(short(&hidden), nothing(NXDomain), "{name}");
    }
    for name in ["web.virtual.consul.", "missing.virtual.consul."] {
        let hidden = ask_as(&nobody, name, RecordType::A);
        assert_eq!(short(&hidden), nothing(NoError), "{name}");
    }
    let other = ServiceIdentity {
        service_name: "other".to_owned(),
        ..ServiceIdentity::default()
    };
    let rules = other.policy().parsed().unwrap();
    let some = Authorizer::new([&rules], DefaultPolicy::Deny);
    let seen = ask_as(&some, "web.service.consul.", RecordType::A);
    assert_eq!(short(&seen), answers(&["10.0.0.1", "10.1.0.2"]));
    // Read permission on the proxy does not include the service behind it.
    let rules =
        "service_prefix \"web-\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }";
    let rules = Rules::parse(rules).unwrap();
    let proxies = Authorizer::new([&rules], DefaultPolicy::Deny);
    let hidden = ask_as(&proxies, "web.connect.consul.", RecordType::SRV);
    assert_eq!(short(&hidden), nothing(NXDomain));
}

#[test]
fn answers_use_the_queried_domain() {
    let srv = ask("web.service.mesh.example.", RecordType::SRV);
    let expected = [
        "1 1 80 vm-1.node.dc1.mesh.example.",
        "1 1 81 0a010002.addr.dc1.mesh.example.",
    ];
    assert_eq!(data(&srv.answers), expected);
    let missing = ask("missing.service.mesh.example.", RecordType::A);
    assert_eq!(missing.authorities[0].name.to_ascii(), "mesh.example.");
}

#[test]
fn answers_may_be_kept_as_long_as_the_settings_say() {
    let times = [("*", 1), ("web*", 20)];
    let times = times.map(|(name, time)| (name.to_owned(), Duration::from_secs(time)));
    let settings = DnsSettings {
        node_ttl: Duration::from_secs(5),
        service_ttl: ServiceTtls::new(times),
        soa: DnsSoa {
            min_ttl: 30,
            ..DnsSoa::default()
        },
        ..DnsSettings::default()
    };
    for (name, kind, ttl) in [
        ("web.service.consul.", RecordType::A, 20),
        ("web.service.consul.", RecordType::SRV, 20),
        ("web.connect.consul.", RecordType::A, 20),
        ("slow.service.consul.", RecordType::A, 1),
        ("alias.service.consul.", RecordType::A, 1),
        ("vm-1.node.consul.", RecordType::A, 5),
        ("vm-5.node.consul.", RecordType::TXT, 5),
        ("web.virtual.consul.", RecordType::A, 5),
        ("0a000001.addr.consul.", RecordType::A, 5),
        ("consul.", RecordType::SOA, 30),
    ] {
        let answer = ask_set(&settings, name, kind);
        assert!(!answer.answers.is_empty(), "{name}");
        let mut all = answer.answers.iter().chain(&answer.additionals);
        // Addresses of name servers have the TTL of nodes.
        let fits = all.all(|one| one.ttl == ttl || kind == RecordType::SOA);
        assert!(fits, "{name}: {answer:?}");
    }
    let missing = ask_set(&settings, "missing.service.consul.", RecordType::A);
    assert_eq!(missing.authorities[0].ttl, 30);
}

#[test]
fn addresses_are_limited_and_metadata_is_left_out_where_that_is_set() {
    let settings = DnsSettings {
        a_record_limit: 1,
        node_meta_txt: false,
        ..DnsSettings::default()
    };
    let answer = |name, kind| ask_set(&settings, name, kind);
    assert_eq!(
        answer("web.service.consul.", RecordType::A).answers.len(),
        1
    );
    assert_eq!(
        answer("web.service.consul.", RecordType::SRV).answers.len(),
        2
    );
    let six = answer("six.service.consul.", RecordType::SRV);
    assert_eq!(data(&six.additionals), ["fd00::5"]);
    assert!(
        answer("vm-5.node.consul.", RecordType::AAAA)
            .additionals
            .is_empty()
    );
    assert_eq!(
        answer("vm-5.node.consul.", RecordType::TXT).answers.len(),
        3
    );
}

#[test]
fn host_names_of_other_domains_are_wanted_and_used_once_known() {
    let settings = DnsSettings {
        recursors: vec!["192.0.2.53:53".parse().unwrap()],
        ..DnsSettings::default()
    };
    let (store, all) = (catalog(), Authorizer::manage_all());
    let ask = |name: &str, kind, known: &Known| -> (Answer, Wanted) {
        let name = Name::from_ascii(name).unwrap();
        with_resolver(&store, &all, &settings, known, |resolver| {
            let answer = resolver.answer(&name, kind);
            (answer, resolver.wanted.take())
        })
    };
    let host = Name::from_ascii("ext.example.com.").unwrap();
    for kind in [RecordType::A, RecordType::SRV] {
        let (_, wanted) = ask("outside.service.consul.", kind, &Known::new());
        let key = (host.clone(), RecordType::A);
        assert_eq!(wanted, Wanted::from([key.clone()]));
        let found = (1..=7).map(|last: u8| {
            let ip = hickory_proto::rr::rdata::A::new(192, 0, 2, last);
            Record::from_rdata(host.clone(), 300, RData::A(ip))
        });
        let known = Known::from([(key, found.collect())]);
        let (answer, wanted) = ask("outside.service.consul.", kind, &known);
        assert!(wanted.is_empty());
        let records = [answer.answers, answer.additionals].concat();
        // Clients without EDNS get at most five of them.
        assert_eq!(records.len(), 6, "{records:?}");
        assert!(records.iter().all(|one| one.ttl == 0));
    }
    let (_, wanted) = ask("vm-6.node.consul.", RecordType::AAAA, &Known::new());
    let host = Name::from_ascii("host.example.com.").unwrap();
    assert_eq!(wanted, Wanted::from([(host, RecordType::AAAA)]));
    let (_, wanted) = ask("alias.service.consul.", RecordType::A, &Known::new());
    assert!(wanted.is_empty(), "{wanted:?}");
}
