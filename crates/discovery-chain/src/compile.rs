//! Compiles config entries to a chain: routes, then splits, then redirects, default subsets and failover of each
//! target.

mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use legate_model::{
    HttpMatch, Locality, MeshGatewayMode, Protocol, ProxyDefaults, Route, RouteDestination,
    RouteMatch, SamenessGroup, ServiceDefaults, ServiceName, ServiceResolver, ServiceRouter,
    ServiceSplitter, Split, Tenancy, TrustDomain,
};

use crate::chain::{Chain, Node, NodeKind, Nodes, RouteStep, SplitStep, Target};
use crate::error::ChainError;
use crate::{merge, names};

/// The maximum number of services that redirects or nested splits pass through in sequence.
const MAX_LENGTH: usize = 64;

/// The config entries, either as stored or as a pending write would change them.
pub trait Entries {
    /// The `service-router` of a service.
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter>;
    /// The `service-splitter` of a service.
    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter>;
    /// The `service-resolver` of a service.
    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver>;
    /// The `service-defaults` of a service.
    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults>;
    /// The `proxy-defaults` of a partition.
    fn proxy_defaults(&self, tenancy: &Tenancy) -> Option<ProxyDefaults>;
    /// The `sameness-group` of a partition to whose members services fail over by default, if there is one.
    fn default_sameness_group(&self, _: &Tenancy) -> Option<SamenessGroup> {
        None
    }
    /// Where a peer of a partition is, if that is known.
    fn peer_locality(&self, _: &Tenancy, _peer: &str) -> Option<Locality> {
        None
    }
}

/// The chain to compile, and for which callers.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The service that callers request.
    pub service: &'a ServiceName,
    /// The callers' datacenter.
    pub datacenter: &'a str,
    /// The mesh's trust domain.
    pub trust_domain: &'a TrustDomain,
    /// Settings of the caller that override the config entries.
    pub overrides: Overrides,
}

/// Settings of an upstream in a caller's registration, which override the config entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Whether traffic is routed through mesh gateways.
    pub mesh_gateway: MeshGatewayMode,
    /// The protocol. If it is not HTTP, routers and splitters are ignored.
    pub protocol: Option<Protocol>,
    /// The connect timeout; zero means no override.
    pub connect_timeout: Duration,
}

/// Compiles the chain of a service.
///
/// # Errors
///
/// [`ChainError`] names the entries that contradict each other. Where each write is checked by compiling, stored
/// entries do not fail.
pub fn compile(request: &Request<'_>, entries: &dyn Entries) -> Result<Chain, ChainError> {
    let mut compiler = Compiler::new(request, entries);
    let start = compiler.start()?;
    merge::check_cycles(&compiler.nodes, &start)?;
    merge::flatten_splits(
        &mut compiler.nodes,
        &compiler.finished,
        &request.service.name,
    )?;
    merge::check_routes(&compiler.nodes, &start, &request.service.name)?;
    merge::drop_unused(&mut compiler.nodes, &start);
    compiler.finish(start)
}

struct Compiler<'a> {
    request: &'a Request<'a>,
    entries: &'a dyn Entries,
    /// Entries already read, so that each is read once.
    proxy_defaults: BTreeMap<Arc<str>, Option<Arc<ProxyDefaults>>>,
    resolvers: BTreeMap<ServiceName, Option<Arc<ServiceResolver>>>,
    group: Option<Option<Arc<SamenessGroup>>>,
    defaults: BTreeMap<ServiceName, Option<Arc<ServiceDefaults>>>,
    nodes: Nodes,
    targets: BTreeMap<String, Box<Target>>,
    /// The targets that the finished chain uses.
    retained: BTreeSet<String>,
    protocol: Option<Protocol>,
    routes_or_splits: bool,
    /// Depth of the splitters that contain the current one.
    splitters: usize,
    /// The keys of the completed splitters, each after the splitters that it refers to.
    finished: Vec<String>,
    customised: Overrides,
    ignored_routes: bool,
}

impl<'a> Compiler<'a> {
    fn new(request: &'a Request<'a>, entries: &'a dyn Entries) -> Self {
        Self {
            request,
            entries,
            proxy_defaults: BTreeMap::new(),
            resolvers: BTreeMap::new(),
            group: None,
            defaults: BTreeMap::new(),
            nodes: Nodes::new(),
            targets: BTreeMap::new(),
            retained: BTreeSet::new(),
            protocol: None,
            routes_or_splits: false,
            splitters: 0,
            finished: Vec::new(),
            customised: Overrides::default(),
            ignored_routes: false,
        }
    }

    /// Compiles the first node and returns its key.
    fn start(&mut self) -> Result<String, ChainError> {
        let service = self.request.service;
        let router = self.entries.router(service);
        match self.unless_ignored(router) {
            Some(router) => self.router(router),
            None => self.splitter_or_resolver(service),
        }
    }

    /// The router or splitter, unless the caller overrides the protocol with one that is not HTTP.
    fn unless_ignored<T>(&mut self, entry: Option<T>) -> Option<T> {
        let protocol = self.request.overrides.protocol;
        let ignored = protocol.is_some_and(|protocol| !protocol.is_http());
        self.ignored_routes |= ignored && entry.is_some();
        entry.filter(|_| !ignored)
    }

    fn router(&mut self, router: ServiceRouter) -> Result<String, ChainError> {
        self.routes_or_splits = true;
        let service = self.request.service;
        let own = &service.tenancy;
        self.record_protocol(service)?;
        let mut steps = Vec::with_capacity(router.routes.len() + 1);
        for definition in router.routes.into_iter().chain([catch_all(service)]) {
            let destination = definition.destination.as_ref();
            let subset = destination.map_or("", |to| to.service_subset.as_str());
            let to = destination.map_or_else(
                || service.clone(),
                |to| {
                    let tenancy = own.resolve(&to.partition, &to.namespace);
                    ServiceName::new(&tenancy, first_given(&to.service, &service.name))
                },
            );
            let next_node = match subset {
                "" => self.splitter_or_resolver(&to)?,
                subset => self.resolver(self.target(&to, subset))?,
            };
            steps.push(RouteStep {
                definition,
                next_node,
            });
        }
        Ok(self.add(Node {
            name: names::of_service(service),
            kind: NodeKind::Router(steps),
            load_balancer: None,
        }))
    }

    fn splitter_or_resolver(&mut self, service: &ServiceName) -> Result<String, ChainError> {
        match self.splitter(service)? {
            Some(key) => Ok(key),
            None => self.resolver(self.target(service, "")),
        }
    }

    /// Compiles the service's splitter; `None` if it has none.
    fn splitter(&mut self, service: &ServiceName) -> Result<Option<String>, ChainError> {
        let mut node = Node {
            name: names::of_service(service),
            kind: NodeKind::Splitter(Vec::new()),
            load_balancer: None,
        };
        let key = node.key();
        if self.nodes.contains_key(&key) {
            return Ok(Some(key));
        }
        let splitter = self.entries.splitter(service);
        let Some(splitter) = self.unless_ignored(splitter) else {
            return Ok(None);
        };
        self.routes_or_splits = true;
        // Inserted before its splits, so that a split that refers back here finds it; such a cycle is refused later.
        self.nodes.insert(key.clone(), Box::new(node.clone()));
        self.splitters += 1;
        self.check_length(self.splitters)?;
        let mut steps = Vec::with_capacity(splitter.splits.len());
        for definition in splitter.splits {
            let next_node = self.split(service, &definition)?;
            let next = self.nodes.get(&next_node);
            let balancer = next.and_then(|next| next.load_balancer.as_ref());
            // A route has one hash policy: that of the first split that has one.
            if let Some(balancer) = balancer.filter(|balancer| balancer.is_hash_based())
                && node.load_balancer.is_none()
                && next.is_some_and(|next| matches!(next.kind, NodeKind::Resolver(_)))
            {
                node.load_balancer = Some(balancer.clone());
            }
            steps.push(SplitStep {
                weight: definition.weight,
                definition,
                next_node,
            });
        }
        self.splitters -= 1;
        node.kind = NodeKind::Splitter(steps);
        self.finished.push(key);
        Ok(Some(self.add(node)))
    }

    /// Compiles the destination of a split, which can be a splitter again.
    fn split(&mut self, service: &ServiceName, split: &Split) -> Result<String, ChainError> {
        let tenancy = service.tenancy.resolve(&split.partition, &split.namespace);
        let to = ServiceName::new(&tenancy, first_given(&split.service, &service.name));
        if to != *service
            && split.service_subset.is_empty()
            && let Some(key) = self.splitter(&to)?
        {
            return Ok(key);
        }
        self.resolver(self.target(&to, &split.service_subset))
    }

    fn check_length(&self, length: usize) -> Result<(), ChainError> {
        if length <= MAX_LENGTH {
            return Ok(());
        }
        Err(ChainError::TooLong {
            chain: self.chain_name(),
            limit: MAX_LENGTH,
        })
    }

    fn chain_name(&self) -> String {
        self.request.service.name.as_ref().to_owned()
    }

    fn add(&mut self, node: Node) -> String {
        let key = node.key();
        self.nodes.insert(key.clone(), Box::new(node));
        key
    }

    /// A target in the callers' datacenter.
    fn target(&self, service: &ServiceName, subset: &str) -> Target {
        self.named(Target {
            service: service.name.as_ref().to_owned(),
            tenancy: service.tenancy.clone(),
            service_subset: subset.to_owned(),
            datacenter: self.request.datacenter.to_owned(),
            ..Target::default()
        })
    }

    /// Sets the target's id, SNI and cluster name.
    fn named(&self, mut target: Target) -> Target {
        target.id = target.make_id();
        target.sni = target.make_sni(self.request.trust_domain);
        target.name.clone_from(&target.sni);
        target
    }

    fn service_defaults(&mut self, service: &ServiceName) -> Option<Arc<ServiceDefaults>> {
        let read = || self.entries.defaults(service).map(Arc::new);
        let entry = self.defaults.entry(service.clone());
        entry.or_insert_with(read).clone()
    }

    fn proxy_defaults(&mut self, tenancy: &Tenancy) -> Option<Arc<ProxyDefaults>> {
        let read = || self.entries.proxy_defaults(tenancy).map(Arc::new);
        let entry = self.proxy_defaults.entry(tenancy.partition.clone());
        entry.or_insert_with(read).clone()
    }

    /// Refuses a service whose protocol differs from that of the others in the chain.
    fn record_protocol(&mut self, service: &ServiceName) -> Result<(), ChainError> {
        let own = self.service_defaults(service);
        let own = own.and_then(|own| own.protocol());
        let usual = self.proxy_defaults(&service.tenancy);
        let usual = usual.and_then(|usual| usual.protocol());
        let protocol = own.or(usual).unwrap_or_default();
        let expected = *self.protocol.get_or_insert(protocol);
        if protocol == expected {
            return Ok(());
        }
        Err(ChainError::Protocols {
            chain: self.chain_name(),
            service: service.name.as_ref().to_owned(),
            protocol: protocol.to_string(),
            expected: expected.to_string(),
        })
    }

    fn finish(mut self, start_node: String) -> Result<Chain, ChainError> {
        let service = self.request.service;
        let mut protocol = self.protocol.unwrap_or_default();
        if self.routes_or_splits && !protocol.is_http() {
            return Err(ChainError::NotHttp {
                chain: self.chain_name(),
                protocol: protocol.to_string(),
            });
        }
        let wanted = self.request.overrides.protocol;
        if let Some(wanted) = wanted
            && (wanted != protocol || self.ignored_routes)
        {
            protocol = wanted;
            self.customised.protocol = Some(wanted);
        }
        let own = self.service_defaults(service);
        let usual = self.proxy_defaults(&service.tenancy);
        let usual = usual.map(|entry| entry.envoy_extensions.clone());
        let (service_meta, extensions) = own.map_or_else(Default::default, |own| {
            (own.meta.clone(), own.envoy_extensions.clone())
        });
        self.targets.retain(|id, _| self.retained.contains(id));
        let default = self.is_default(&start_node);
        Ok(Chain {
            service_name: self.chain_name(),
            tenancy: service.tenancy.clone(),
            datacenter: self.request.datacenter.to_owned(),
            customization_hash: self.customised.hash(),
            default,
            protocol,
            service_meta,
            envoy_extensions: usual.into_iter().flatten().chain(extensions).collect(),
            start_node,
            nodes: self.nodes,
            targets: self.targets,
        })
    }

    fn is_default(&self, start: &str) -> bool {
        let Some(NodeKind::Resolver(resolver)) = self.nodes.get(start).map(|node| &node.kind)
        else {
            return false;
        };
        let target = self.targets.get(&resolver.target);
        resolver.default
            && target.is_some_and(|target| target.service_name() == *self.request.service)
    }
}

/// The last route: requests that match no other are routed to the service itself.
fn catch_all(service: &ServiceName) -> Route {
    let http = HttpMatch {
        path_prefix: "/".to_owned(),
        ..HttpMatch::default()
    };
    Route {
        matched: Some(RouteMatch { http: Some(http) }),
        destination: Some(RouteDestination {
            service: service.name.as_ref().to_owned(),
            partition: service.tenancy.shown_partition(),
            namespace: service.tenancy.shown_namespace(),
            ..RouteDestination::default()
        }),
    }
}

fn first_given<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.is_empty() { otherwise } else { text }
}
