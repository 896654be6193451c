use super::*;

fn read(name: &str, kind: RecordType, prefer_namespace: bool) -> (Target, String) {
    // As bytes, because names on the wire may contain any byte.
    let labels = name.split('.').filter(|label| !label.is_empty());
    let name = Name::from_labels(labels.map(str::as_bytes)).unwrap();
    let domains = DnsDomains::new("consul", Some("mesh.example")).unwrap();
    let names = Names {
        domains: &domains,
        datacenter: "dc1",
        tenancy: &Tenancy::default(),
        prefer_namespace,
    };
    let (target, domain) = names.read(&name, kind);
    (target, domain.name.to_ascii())
}

fn target(name: &str) -> Target {
    read(name, RecordType::A, false).0
}

fn within(partition: &str, namespace: &str, peer: &str) -> Tenancy {
    Tenancy {
        partition: partition.into(),
        namespace: namespace.into(),
        peer: peer.into(),
    }
}

fn service(name: &str, tag: Option<&str>) -> Target {
    Target::Service {
        name: name.to_owned(),
        tag: tag.map(str::to_owned),
        tenancy: Tenancy::default(),
    }
}

#[test]
fn services() {
    let web = service("web", None);
    for name in [
        "web.service.consul.",
        "WEB.Service.Consul.",
        "web.service.dc1.consul.",
        "web.service.dc1.dc.consul.",
        "web.service.default.ns.default.ap.dc1.dc.consul.",
        "web.service.dc1.dc.default.ap.consul.",
        "web.service.default.dc1.consul.",
        "_web._tcp.service.consul.",
        "web.service.mesh.example.",
    ] {
        assert_eq!(target(name), web, "{name}");
    }
    assert_eq!(target("v2.web.service.consul."), service("web", Some("v2")));
    let tagged = target("_web._v2.service.consul.");
    assert_eq!(tagged, service("web", Some("v2")));
    let tagged = target("a.b.web.service.consul.");
    assert_eq!(tagged, service("web", Some("a.b")));
    assert_eq!(target("service.service.consul."), service("service", None));
    for name in ["_web._tcp.consul.", "_web._tcp.dc1.mesh.example."] {
        assert_eq!(read(name, RecordType::SRV, false).0, web, "{name}");
        assert_eq!(target(name), Target::Nothing, "{name}");
    }
}

#[test]
fn answers_use_the_queried_domain() {
    for (name, domain) in [
        ("web.service.consul.", "consul."),
        ("web.service.Mesh.Example.", "mesh.example."),
        ("1.0.0.10.in-addr.arpa.", "consul."),
    ] {
        assert_eq!(read(name, RecordType::A, false).1, domain);
    }
}

#[test]
fn tenancies() {
    let of = |name: &str, prefer_namespace| match read(name, RecordType::A, prefer_namespace).0 {
        Target::Service { tenancy, .. }
        | Target::Connect { tenancy, .. }
        | Target::Ingress { tenancy, .. }
        | Target::Node { tenancy, .. }
        | Target::Virtual { tenancy, .. } => Some(tenancy),
        _ => None,
    };
    for (name, partition, namespace, peer) in [
        ("web.service.team.ns.consul.", "default", "team", ""),
        ("web.service.team.ns.west.ap.consul.", "west", "team", ""),
        (
            "v1.web.service.west.ap.dc1.dc.consul.",
            "west",
            "default",
            "",
        ),
        ("web.service.team.dc1.consul.", "default", "team", ""),
        ("web.connect.team.ns.dc1.dc.consul.", "default", "team", ""),
        ("web.ingress.west.ap.consul.", "west", "default", ""),
        ("web.virtual.team.ns.west.ap.consul.", "west", "team", ""),
        ("web.virtual.east.consul.", "default", "default", "east"),
        ("web.virtual.team.east.consul.", "default", "team", "east"),
        (
            "web.virtual.team.ns.east.peer.consul.",
            "default",
            "team",
            "east",
        ),
        (
            "web.service.east.peer.consul.",
            "default",
            "default",
            "east",
        ),
        ("vm.node.west.ap.dc1.dc.consul.", "west", "default", ""),
    ] {
        let expected = within(partition, namespace, peer);
        assert_eq!(of(name, false), Some(expected), "{name}");
    }
    let team = within("default", "team", "");
    assert_eq!(of("web.service.team.consul.", true), Some(team));
    let default = Some(Tenancy::default());
    assert_eq!(of("vm.node.dc1.consul.", true), default);
    for name in [
        "web.service.team.consul.",
        "web.service.dc1.team.consul.",
        "web.service.a.ns.b.ns.consul.",
        "web.service.dc1.dc.east.peer.consul.",
        "web.service.group.sg.consul.",
        "vm.node.team.ns.consul.",
        "web.virtual.team.ns.dc2.dc.consul.",
    ] {
        assert_eq!(target(name), Target::Nothing, "{name}");
    }
}

#[test]
fn the_other_kinds() {
    let (name, tenancy) = ("web".to_owned(), Tenancy::default());
    let (one, two) = (name.clone(), tenancy.clone());
    let connect = Target::Connect {
        name: one,
        tenancy: two,
    };
    assert_eq!(target("web.connect.consul."), connect);
    assert_eq!(target("v1.web.connect.consul."), connect);
    let node = |name: &str| Target::Node {
        name: name.to_owned(),
        tenancy: Tenancy::default(),
    };
    assert_eq!(target("web.node.dc1.consul."), node("web"));
    assert_eq!(target("vm.example.node.consul."), node("vm.example"));
    let ip = "127.0.0.1".parse().unwrap();
    assert_eq!(target("7f000001.addr.dc1.consul."), Target::Address(ip));
    assert_eq!(
        target("7f000001.addr.any.where.consul."),
        Target::Address(ip)
    );
    let ip = "::1".parse().unwrap();
    let long = "00000000000000000000000000000001.addr.consul.";
    assert_eq!(target(long), Target::Address(ip));
    let expected = Target::Virtual { name, tenancy };
    assert_eq!(target("web.virtual.consul."), expected);
    let ip = "10.0.0.1".parse().unwrap();
    assert_eq!(target("1.0.0.10.in-addr.arpa."), Target::Reverse(ip));
    assert_eq!(target("consul."), Target::Apex);
    assert_eq!(target("ns.consul."), Target::NameServer);
    let query = |name: &str| Target::Query {
        name: name.to_owned(),
    };
    assert_eq!(target("near.query.consul."), query("near"));
    assert_eq!(target("geo.db.query.dc1.consul."), query("geo.db"));
    assert_eq!(target("_geo.db._tcp.query.consul."), query("geo.db"));
}

#[test]
fn unsupported_names_in_the_domain() {
    for name in [
        "web.consul.",
        "virtual.consul.",
        "10.in-addr.arpa.",
        "in-addr.arpa.",
        "arpa.",
        "query.consul.",
        "web.query.dc2.consul.",
        "service.consul.",
        "node.consul.",
        "addr.consul.",
        "web.service.dc2.consul.",
        "web.service.dc2.dc.consul.",
        "web.service.dc1.extra.more.consul.",
        "7f00001.addr.consul.",
        "+f000001.addr.consul.",
        "mesh.service.example.",
    ] {
        let found = target(name);
        let expected = match name.ends_with("example.") {
            true => Target::Elsewhere,
            false => Target::Nothing,
        };
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn other_domains() {
    for name in [".", "example.com.", "consul.example.com.", "web.service."] {
        assert_eq!(target(name), Target::Elsewhere, "{name}");
    }
}
