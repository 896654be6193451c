//! Hand-made, deterministic snapshots.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_discovery_chain::{Chain, Entries, NodeKind, Overrides, Request, compile};
use legate_intentions::Action;
use legate_model::{
    CaRoot, CaRoots, CheckServiceNode, CheckStatus, ConfigEntry, HealthCheck, Intention, Mesh,
    Node, Protocol, ProxyDefaults, Secret, ServiceDefaults, ServiceInstance, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, Tenancy, TrustDomain, Upstream,
};
use legate_proxycfg::{
    Destinations, Frontends, ImplicitUpstreams, Instances, JwtProviders, Kind, Leaf, LeafId,
    PeerCallers, Proxy, ProxyId, ResolvedChain, Sidecar, Snapshot, UpstreamSnapshot,
};
use legate_resources::{ResourceSet, Work};
use serde_json::{Value, json};

/// The snapshot of the sidecar of `web`, as one struct: a test writes the values that differ from
/// [`web`].
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) proxy: ProxyId,
    pub(crate) datacenter: Arc<str>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) instance: Arc<ServiceInstance>,
    pub(crate) node_address: Arc<str>,
    pub(crate) agent_ipv6: bool,
    pub(crate) protocol: Protocol,
    pub(crate) roots: Arc<CaRoots>,
    pub(crate) leaf: Arc<Leaf>,
    pub(crate) intentions: Arc<Vec<Arc<Intention>>>,
    pub(crate) jwt_providers: Arc<JwtProviders>,
    pub(crate) peers: Arc<PeerCallers>,
    pub(crate) default_intention: Action,
    pub(crate) mesh: Arc<Option<Mesh>>,
    pub(crate) upstreams: Vec<UpstreamSnapshot>,
    pub(crate) implicit: Option<Arc<ImplicitUpstreams>>,
    pub(crate) destinations: Arc<Destinations>,
    pub(crate) frontends: Arc<Frontends>,
}

impl Web {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let own = self.clone();
        Snapshot {
            proxy: Proxy {
                id: own.proxy,
                datacenter: own.datacenter,
                trust_domain: own.trust_domain,
                instance: own.instance,
                node_address: own.node_address,
                agent_ipv6: own.agent_ipv6,
                roots: own.roots,
                mesh: own.mesh,
                default_intention: own.default_intention,
            },
            kind: Kind::Sidecar(Sidecar {
                protocol: own.protocol,
                leaf: own.leaf,
                intentions: own.intentions,
                jwt_providers: own.jwt_providers,
                peers: own.peers,
                upstreams: own.upstreams,
                implicit: own.implicit,
                destinations: own.destinations,
                frontends: own.frontends,
            }),
        }
    }
}

/// Makes the resources of [`Web`].
pub(crate) struct Generator(legate_resources::Generator);

impl Generator {
    pub(crate) fn new() -> Self {
        Self(legate_resources::Generator::new())
    }

    pub(crate) fn generate(
        &self,
        now: &Web,
        previous: Option<(&Web, &ResourceSet)>,
    ) -> ResourceSet {
        let last = previous.map(|(last, set)| (last.snapshot(), set));
        let last = last.as_ref().map(|(last, set)| (last, *set));
        self.0.generate(&now.snapshot(), last)
    }

    pub(crate) fn work(&self) -> Work {
        self.0.work()
    }
}

/// The sidecar of `web` without upstreams and intentions, with a default of deny.
pub(crate) fn web() -> Web {
    Web {
        proxy: ProxyId {
            tenancy: Tenancy::default(),
            node: "node".into(),
            service_id: "web-proxy".into(),
        },
        datacenter: "dc1".into(),
        trust_domain: TrustDomain::of_cluster("c1"),
        instance: sidecar(json!({"LocalServicePort": 8080})),
        node_address: "10.0.0.1".into(),
        agent_ipv6: false,
        protocol: Protocol::Tcp,
        roots: roots("one"),
        leaf: leaf("web", "first"),
        intentions: Arc::default(),
        jwt_providers: Arc::default(),
        peers: Arc::default(),
        default_intention: Action::Deny,
        mesh: Arc::new(None),
        upstreams: Vec::new(),
        implicit: None,
        destinations: Arc::default(),
        frontends: Arc::default(),
    }
}

/// The resources of a snapshot without failures.
pub(crate) fn made(snapshot: &Web) -> ResourceSet {
    let set = Generator::new().generate(snapshot, None);
    assert_eq!(set.failures(), []);
    set
}

pub(crate) fn sidecar(mut proxy: Value) -> Arc<ServiceInstance> {
    proxy["DestinationServiceName"] = json!("web");
    let instance = serde_json::from_value(json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": proxy,
    }));
    Arc::new(instance.unwrap())
}

pub(crate) fn leaf(service: &str, version: &str) -> Arc<Leaf> {
    Arc::new(leaf_of(&service.into(), service, version))
}

/// A certificate of `name`.
pub(crate) fn leaf_of(id: &LeafId, service: &str, version: &str) -> Leaf {
    Leaf {
        index: 1,
        id: id.clone(),
        uri: format!("spiffe://c1.consul/ns/default/dc/dc1/svc/{service}"),
        cert_pem: format!("the {version} certificate of {service}\n"),
        key_pem: Secret::new(format!("the {version} key of {service}\n")),
        serial: "01".to_owned(),
        valid_after: SystemTime::UNIX_EPOCH,
        valid_before: SystemTime::UNIX_EPOCH,
        authority_key_id: String::new(),
    }
}

pub(crate) fn roots(name: &str) -> Arc<CaRoots> {
    Arc::new(CaRoots {
        active_root_id: name.to_owned(),
        trust_domain: "c1.consul".to_owned(),
        roots: vec![CaRoot {
            id: name.to_owned(),
            name: String::new(),
            serial_number: 1,
            signing_key_id: String::new(),
            external_trust_domain: String::new(),
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
            root_cert: format!("root {name}\n"),
            intermediate_certs: Vec::new(),
            active: true,
            private_key_type: String::new(),
            private_key_bits: 0,
            create_index: 1,
            modify_index: 1,
        }],
    })
}

/// Intentions for `web`, each a source with an action or with permissions.
pub(crate) fn intentions(list: &[(&str, Value)]) -> Arc<Vec<Arc<Intention>>> {
    let one = |(source, says): &(&str, Value)| {
        let mut intention = json!({"SourceName": source, "DestinationName": "web"});
        let field = if says.is_array() {
            "Permissions"
        } else {
            "Action"
        };
        intention[field] = says.clone();
        let mut intention: Intention = serde_json::from_value(intention).unwrap();
        intention.normalise(&Tenancy::default());
        intention.validate().unwrap();
        Arc::new(intention)
    };
    Arc::new(list.iter().map(one).collect())
}

/// JWT providers by name.
pub(crate) fn providers(list: &[Value]) -> Arc<JwtProviders> {
    let one = |entry: &Value| {
        let mut entry = entry.clone();
        entry["Kind"] = json!("jwt-provider");
        let mut entry: ConfigEntry = serde_json::from_value(entry).unwrap();
        entry.validate().unwrap();
        entry.normalise();
        match entry {
            ConfigEntry::JwtProvider(provider) => (provider.name.clone(), provider),
            other => panic!("{other:?}"),
        }
    };
    Arc::new(list.iter().map(one).collect())
}

pub(crate) fn mesh(entry: Value) -> Arc<Option<Mesh>> {
    let mut entry = entry;
    entry["Kind"] = json!("mesh");
    match serde_json::from_value(entry).unwrap() {
        ConfigEntry::Mesh(mesh) => Arc::new(Some(mesh)),
        other => panic!("{other:?}"),
    }
}

/// An upstream without config entries other than its protocol.
pub(crate) fn upstream(
    definition: Value,
    protocol: Protocol,
    instances: Vec<CheckServiceNode>,
) -> UpstreamSnapshot {
    let name = &definition["DestinationName"];
    let entries =
        [json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol.as_str()})];
    chained(definition, &entries, |_| instances.clone())
}

/// An upstream with the chain of these entries, and the instances of each target by id.
pub(crate) fn chained(
    definition: Value,
    entries: &[Value],
    instances: impl Fn(&str) -> Vec<CheckServiceNode>,
) -> UpstreamSnapshot {
    let definition: Upstream = serde_json::from_value(definition).unwrap();
    let datacenter = match definition.datacenter.as_str() {
        "" => "dc1",
        other => other,
    };
    let request = Request {
        service: &(&*definition.destination_name).into(),
        datacenter,
        trust_domain: &TrustDomain::of_cluster("c1"),
        overrides: Overrides::default(),
    };
    let entries = entries.iter().map(|entry| {
        let mut entry: ConfigEntry = serde_json::from_value(entry.clone()).unwrap();
        entry.validate().unwrap();
        entry.normalise();
        entry
    });
    let chain = Arc::new(compile(&request, &Written(entries.collect())).unwrap());
    let lists = chain.targets.values().map(|target| {
        let mut list = Instances::from(instances(&target.id));
        list.only_passing = target.subset.only_passing;
        Arc::new(list)
    });
    let resolved = ResolvedChain::new(Arc::clone(&chain), lists.collect::<Vec<_>>());
    UpstreamSnapshot {
        upstream: Arc::new(definition),
        resolved: Arc::new(resolved),
    }
}

/// Config entries as in documents.
struct Written(Vec<ConfigEntry>);

/// The entry of this kind and name.
macro_rules! written {
    ($entries:expr, $kind:ident, $name:expr) => {
        $entries.0.iter().find_map(|entry| match entry {
            ConfigEntry::$kind(found) if found.name == $name => Some(found.clone()),
            _ => None,
        })
    };
}

impl Entries for Written {
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter> {
        written!(self, ServiceRouter, *service.name)
    }

    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter> {
        written!(self, ServiceSplitter, *service.name)
    }

    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver> {
        written!(self, ServiceResolver, *service.name)
    }

    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        written!(self, ServiceDefaults, *service.name)
    }

    fn proxy_defaults(&self, _: &Tenancy) -> Option<ProxyDefaults> {
        None
    }
}

/// Changes the chain of an upstream, but not its instances.
pub(crate) fn edit_chain(upstream: &mut UpstreamSnapshot, edit: impl FnOnce(&mut Chain)) {
    let mut chain = Chain::clone(upstream.resolved.chain.as_ref().unwrap());
    let ids = chain.targets.keys();
    let lists = ids.map(|id| Arc::clone(upstream.resolved.instances(id).unwrap()));
    let lists: Vec<_> = lists.collect();
    edit(&mut chain);
    upstream.resolved = Arc::new(ResolvedChain::new(Arc::new(chain), lists));
}

/// Sets the customization hash in the names of an upstream's clusters.
pub(crate) fn customise(upstream: &mut UpstreamSnapshot, hash: Option<&str>) {
    edit_chain(upstream, |chain| {
        chain.customization_hash = hash.map(str::to_owned);
    });
}

pub(crate) fn connect_within(upstream: &mut UpstreamSnapshot, timeout: Duration) {
    edit_chain(upstream, |chain| {
        for node in chain.nodes.values_mut() {
            if let NodeKind::Resolver(resolver) = &mut node.kind {
                resolver.connect_timeout = timeout;
            }
        }
    });
}

/// Gives every target of an upstream these instances.
pub(crate) fn set_instances(upstream: &mut UpstreamSnapshot, instances: &Arc<Instances>) {
    let chain = Arc::clone(upstream.resolved.chain.as_ref().unwrap());
    let lists: Vec<_> = chain
        .targets
        .iter()
        .map(|_| Arc::clone(instances))
        .collect();
    upstream.resolved = Arc::new(ResolvedChain::new(chain, lists));
}

/// `api` on 127.0.0.1:9191 with one healthy instance.
pub(crate) fn api(protocol: Protocol) -> UpstreamSnapshot {
    upstream(
        json!({"DestinationName": "api", "LocalBindPort": 9191}),
        protocol,
        vec![instance("10.0.2.1", 20001, &[])],
    )
}

pub(crate) fn instance(address: &str, port: u16, checks: &[CheckStatus]) -> CheckServiceNode {
    weighted(address, port, checks, (1, 1))
}

pub(crate) fn weighted(
    address: &str,
    port: u16,
    checks: &[CheckStatus],
    (passing, warning): (u32, u32),
) -> CheckServiceNode {
    let service = serde_json::from_value(json!({
        "Kind": "connect-proxy", "ID": format!("proxy-{port}"), "Service": "proxy",
        "Address": address, "Port": port, "Weights": {"Passing": passing, "Warning": warning},
    }));
    let check = |status: &CheckStatus| {
        Arc::new(HealthCheck {
            check_id: status.to_string(),
            status: *status,
            ..HealthCheck::default()
        })
    };
    CheckServiceNode {
        node: Arc::new(Node {
            node: "far".to_owned(),
            address: "10.0.9.9".to_owned(),
            ..Node::default()
        }),
        service: Arc::new(service.unwrap()),
        checks: checks.iter().map(check).collect(),
    }
}
