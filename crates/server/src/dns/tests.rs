//! Questions to a small catalog.

use futures_util::FutureExt;
use hickory_proto::op::ResponseCode::{self, NXDomain, NoError, Refused};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use legate_model::acl::{Authorizer, DefaultPolicy, ServiceIdentity, Token};
use legate_model::{CheckStatus, HealthCheck, Node, ServiceInstance, ServiceKind};
use legate_store::{Command, Registration, Store};

use super::answer::{Answer, Resolver};

/// One instance on a node of its own.
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

fn catalog() -> Store {
    let store = Store::new();
    for instance in [
        Instance::new("vm-1", "10.0.0.1", "web", 80).tagged("v1"),
        Instance::new("vm-2", "10.0.0.2", "web", 81)
            .at("10.1.0.2")
            .tagged("V2"),
        Instance::new("vm-3", "10.0.0.3", "web", 82).with_status(CheckStatus::Critical),
        Instance::new("vm-4", "10.0.0.4", "web", 83).with_status(CheckStatus::Warning),
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
    let state = catalog().state();
    let resolver = Resolver {
        state: &state.read(),
        access,
        datacenter: "dc1",
        server: "192.0.2.1".parse().unwrap(),
        serial: 7,
    };
    resolver.answer(&Name::from_ascii(name).unwrap(), kind)
}

fn ask(name: &str, kind: RecordType) -> Answer {
    ask_as(&Authorizer::allow_all(), name, kind)
}

/// The data of records as text, sorted.
fn data(records: &[Record]) -> Vec<String> {
    let mut data: Vec<String> = records.iter().map(|one| one.data.to_string()).collect();
    data.sort();
    data
}

/// Code and answers; what has no answer tells the zone.
fn short(answer: &Answer) -> (ResponseCode, Vec<String>) {
    let told = answer
        .authorities
        .iter()
        .any(|one| matches!(one.data, RData::SOA(_)));
    let negative = answer.answers.is_empty() && answer.code != Refused;
    assert_eq!(told, negative, "{answer:?}");
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
    assert_eq!(named(RecordType::TXT), nothing(NoError));
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
        "web.virtual.consul.",
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
    let named = ask("named.service.consul.", RecordType::SRV);
    assert_eq!(short(&named), answers(&["1 1 87 vm-6.node.dc1.consul."]));
    assert!(named.additionals.is_empty());
}

#[test]
fn the_zone_itself() {
    let soa = ask("consul.", RecordType::SOA);
    let record = "ns.consul. hostmaster.consul. 7 3600 600 86400 0";
    assert_eq!(short(&soa), answers(&[record]));
    let ns = ask("consul.", RecordType::NS);
    assert_eq!(short(&ns), answers(&["ns.consul."]));
    assert_eq!(data(&ns.additionals), ["192.0.2.1"]);
    let server = ask("ns.consul.", RecordType::A);
    assert_eq!(short(&server), answers(&["192.0.2.1"]));
    assert_eq!(short(&ask("consul.", RecordType::A)), nothing(NoError));
}

#[test]
fn what_may_not_be_seen_does_not_exist() {
    let nobody = Authorizer::deny_all();
    for name in [
        "web.service.consul.",
        "web.connect.consul.",
        "vm-1.node.consul.",
    ] {
        let hidden = ask_as(&nobody, name, RecordType::A);
        assert_eq!(short(&hidden), nothing(NXDomain), "{name}");
    }
    let token = Token {
        service_identities: vec![ServiceIdentity {
            service_name: "other".to_owned(),
            ..ServiceIdentity::default()
        }],
        ..Token::default()
    };
    let some = Authorizer::new(&token, DefaultPolicy::Deny, "dc1");
    let seen = ask_as(&some, "web.service.consul.", RecordType::A);
    assert_eq!(short(&seen), answers(&["10.0.0.1", "10.1.0.2"]));
}
