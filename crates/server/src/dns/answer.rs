//! Answers queries from the catalog: a state and a query in, records out, in random order where order has no
//! meaning. Lookups that recursors must perform are collected, not performed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{NS, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use legate_model::acl::Authorizer;
use legate_model::{
    CheckServiceNode, CheckStatus, Node, PreparedQuery, QueryFailover, Tenancy, WAN_FAMILIES,
    duration, wan_address,
};
use legate_proxycfg::gateways::{connect_to, ingress_to};
use legate_store::{ReadTxn, State};
use rand::seq::SliceRandom;

use super::question::{Names, Target};
use super::records::{
    address_name, address_record, alias_record, host_name, meta_records, name_below, node_name,
    record, service_name,
};
use crate::config::dns::{DnsSettings, Domain, seconds};
use crate::own_node::OWN_SERVICE;
use crate::prepared::{self, Selected};

/// How many aliases within the domain are followed. Consul's limit.
const MAX_ALIASES: u8 = 3;

/// Maximum records behind an alias for a client without EDNS. Consul's limit.
const MAX_BEHIND_ALIAS: usize = 5;

/// Maximum name servers in an answer. Consul's limit.
const MAX_NAME_SERVERS: usize = 3;

/// Maximum records in one section of an answer: more do not fit into 64 KiB.
const MAX_RECORDS: usize = 4096;

/// Host names in other domains that need a recursor lookup, with the address type.
pub(super) type Wanted = BTreeSet<(Name, RecordType)>;

/// Results of recursor lookups.
pub(super) type Known = BTreeMap<(Name, RecordType), Vec<Record>>;

/// The client of a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker<'a> {
    /// Its permissions.
    pub(super) access: &'a Authorizer,
    /// Its address, if known.
    pub(super) source: Option<IpAddr>,
    /// Whether it accepts large answers.
    pub(super) has_edns: bool,
}

/// The context of a query.
pub(super) struct Resolver<'a> {
    /// The catalog.
    pub(super) state: &'a State,
    pub(super) asker: Asker<'a>,
    /// Resolves another token's permissions; `None` if the token does not exist.
    pub(super) rights: &'a dyn Fn(&str) -> Option<Authorizer>,
    pub(super) settings: &'a DnsSettings,
    pub(super) names: Names<'a>,
    /// The node of this server.
    pub(super) node: &'a str,
    /// This server's address, for the domain's NS records.
    pub(super) server: IpAddr,
    /// Serial number of the zone: the current time, in seconds.
    pub(super) serial: u32,
    pub(super) known: &'a Known,
    /// What the prepared query of the name has selected in all datacenters, if that was asked for.
    pub(super) executed: Option<Selected>,
    /// The datacenter whose clients get the addresses `wan` of what is in others.
    pub(super) translate_for: Option<&'a str>,
    /// The prepared query of the name, if it selects nothing here and may in other datacenters.
    pub(super) fails_over: RefCell<Option<Arc<PreparedQuery>>>,
    /// Lookups that are missing from `known`. With their results, a second attempt gives a complete answer.
    pub(super) wanted: RefCell<Wanted>,
}

/// The records of a response.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) code: ResponseCode,
    pub(super) answers: Vec<Record>,
    pub(super) authorities: Vec<Record>,
    pub(super) additionals: Vec<Record>,
    /// Whether the answer depends on the client's address.
    pub(super) depends_on_client: bool,
    /// Whether the queried name is in another domain.
    pub(super) is_foreign: bool,
}

impl Answer {
    pub(super) fn failed(code: ResponseCode) -> Self {
        Self {
            code,
            ..Self::default()
        }
    }
}

/// A query, either the client's or one for an alias that it led to.
#[derive(Clone, Copy)]
struct Question<'q> {
    name: &'q Name,
    kind: RecordType,
    domain: &'q Domain,
    /// The number of aliases followed so far.
    aliases: u8,
}

/// The address of an instance.
enum InstanceAddress<'a> {
    /// Its node's address.
    Node(IpAddr),
    /// An address of its own.
    Own(IpAddr),
    /// A host name, its own or its node's.
    Host(&'a str),
}

/// The address for a record type: the tagged one for its family, else the general one. If both families fit,
/// IPv6 is preferred, as in Consul. `is_far`: those for clients in other datacenters, as far as there are any.
fn of_family<'a>(
    kind: RecordType,
    own: &'a str,
    tagged: impl Fn(&str) -> Option<&'a str>,
    is_far: bool,
) -> &'a str {
    let families: &[&str] = match kind {
        RecordType::A => &["wan_ipv4"],
        RecordType::AAAA => &["wan_ipv6"],
        _ => &WAN_FAMILIES,
    };
    if is_far && let Some(address) = wan_address(families, &tagged) {
        return address;
    }
    let tags: &[&str] = match kind {
        RecordType::A => &["lan_ipv4"],
        RecordType::AAAA => &["lan_ipv6"],
        _ => &["lan_ipv6", "lan_ipv4"],
    };
    let mut found = tags.iter().filter_map(|tag| tagged(tag));
    found.find(|address| !address.is_empty()).unwrap_or(own)
}

fn address_of(node: &Node, kind: RecordType, is_far: bool) -> &str {
    let tagged = |tag: &str| node.tagged_addresses.get(tag).map(String::as_str);
    of_family(kind, &node.address, tagged, is_far)
}

impl<'a> InstanceAddress<'a> {
    /// `asked` is the queried name. If an instance's address is that same name, the node's address is used
    /// instead, as in Consul: an alias to itself would not resolve.
    fn of(instance: &'a CheckServiceNode, asked: &Question<'_>, is_far: bool) -> Self {
        let service = &instance.service;
        let tagged = |tag: &str| {
            service
                .tagged_addresses
                .get(tag)
                .map(|at| at.address.as_str())
        };
        let own = of_family(asked.kind, &service.address, tagged, is_far);
        let node = address_of(&instance.node, asked.kind, is_far);
        let of_node = || match node.parse() {
            Ok(ip) if node == instance.node.address => Self::Node(ip),
            // The node's own name resolves to its general address, so a tagged one needs another target.
            Ok(ip) => Self::Own(ip),
            Err(_) => Self::Host(node),
        };
        if own.is_empty() {
            return of_node();
        }
        match (own.parse(), of_node()) {
            (Ok(ip), _) => Self::Own(ip),
            (Err(_), at @ (Self::Node(_) | Self::Own(_)))
                if host_name(own).is_ok_and(|name| name == *asked.name) =>
            {
                at
            }
            (Err(_), _) => Self::Host(own),
        }
    }
}

impl<'a> Resolver<'a> {
    /// Answers a query.
    pub(super) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let mut answer = self.follow(name, kind, 0);
        let says_nothing = matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain);
        if answer.answers.is_empty() && says_nothing && answer.authorities.is_empty() {
            // The SOA record sets the TTL of the negative answer.
            let (_, domain) = self.names.read(name, kind);
            answer.authorities.extend(self.soa(domain));
        }
        answer.answers.truncate(MAX_RECORDS);
        answer.additionals.truncate(MAX_RECORDS);
        answer
    }

    fn read(&self, tenancy: &Tenancy) -> ReadTxn<'a> {
        self.state.read().within(tenancy.clone())
    }

    /// The client's permissions in a tenancy.
    fn access(&self, tenancy: &Tenancy) -> Authorizer {
        self.asker.access.within(tenancy)
    }

    /// Answers a query that was reached through `aliases` aliases.
    fn follow(&self, name: &Name, kind: RecordType, aliases: u8) -> Answer {
        let (target, domain) = self.names.read(name, kind);
        let question = Question {
            name,
            kind,
            domain,
            aliases,
        };
        if !matches!(target, Target::Elsewhere | Target::Reverse(_)) {
            match kind {
                RecordType::SOA => return self.zone(&question, true),
                RecordType::NS => return self.zone(&question, false),
                RecordType::AXFR => return Answer::failed(ResponseCode::NotImp),
                _ => {}
            }
        }
        match target {
            Target::Elsewhere => Answer {
                is_foreign: true,
                ..Answer::failed(ResponseCode::Refused)
            },
            Target::Nothing => {
                tracing::debug!(%name, "unsupported DNS name");
                Answer::failed(ResponseCode::NXDomain)
            }
            Target::Apex => Answer::default(),
            Target::NameServer => self.address(&question, self.server),
            Target::Address(ip) => self.address(&question, ip),
            Target::Reverse(ip) => self.reverse_records(&question, ip),
            Target::Node { name, tenancy } => self.node_records(&question, &name, &tenancy),
            Target::Service { name, tag, tenancy } => {
                let found = self.read(&tenancy).service(&name);
                let found = self.visible(found, tag.as_deref());
                self.instances(
                    &question,
                    &tenancy,
                    found,
                    self.settings.service_ttl.of(&name),
                )
            }
            // Proxies of a service require `service:read` on the service, whatever their own names are.
            Target::Connect { name, tenancy } | Target::Ingress { name, tenancy }
                if !self.access(&tenancy).service_read(&name) =>
            {
                Answer::failed(ResponseCode::NXDomain)
            }
            Target::Connect { name, tenancy } => {
                let found = self.visible(connect_to(&self.read(&tenancy), &name), None);
                self.instances(
                    &question,
                    &tenancy,
                    found,
                    self.settings.service_ttl.of(&name),
                )
            }
            Target::Ingress { name, tenancy } => {
                let found = self.visible(ingress_to(&self.read(&tenancy), &name), None);
                self.instances(
                    &question,
                    &tenancy,
                    found,
                    self.settings.service_ttl.of(&name),
                )
            }
            Target::Virtual { name, tenancy } => {
                match self.virtual_ip(&name, &tenancy) {
                    Some(ip) => self.address(&question, ip),
                    // As in Consul, every name exists here.
                    None => Answer::default(),
                }
            }
            Target::Query { name } => self.prepared_query(&question, &name),
        }
    }

    /// The healthy instances that the client may see, in random order.
    fn visible(
        &self,
        mut instances: Vec<CheckServiceNode>,
        tag: Option<&str>,
    ) -> Vec<CheckServiceNode> {
        let worst = match self.settings.only_passing {
            true => CheckStatus::Passing,
            false => CheckStatus::Warning,
        };
        instances.retain(|one| {
            let access = self.access(&one.service.tenancy());
            let mut tags = one.service.tags.iter();
            one.health() <= worst
                && tag.is_none_or(|tag| tags.any(|own| own.eq_ignore_ascii_case(tag)))
                && access.service_read(&one.service.service)
                && access.node_read(&one.node.node)
        });
        instances.shuffle(&mut rand::rng());
        instances
    }

    /// NXDOMAIN if there are no instances. `ttl` is in seconds.
    fn instances(
        &self,
        question: &Question<'_>,
        tenancy: &Tenancy,
        found: Vec<CheckServiceNode>,
        ttl: u32,
    ) -> Answer {
        if found.is_empty() {
            return Answer::failed(ResponseCode::NXDomain);
        }
        if question.kind == RecordType::SRV {
            return self.srv(question, tenancy, &found, ttl);
        }
        Answer {
            answers: self.instance_records(question, &found, ttl),
            ..Answer::default()
        }
    }

    /// Executes a prepared query, with its own token's permissions if it has one.
    fn prepared_query(&self, question: &Question<'_>, name: &str) -> Answer {
        let depends = |answer| Answer {
            depends_on_client: true,
            ..answer
        };
        let txn = self.state.read();
        let query = match txn.find_prepared_query(name) {
            Ok(Some(query)) => query,
            Ok(None) => return depends(Answer::failed(ResponseCode::NXDomain)),
            Err(error) => {
                tracing::debug!(%error, query = name, "a prepared query cannot be executed");
                return depends(Answer::failed(ResponseCode::ServFail));
            }
        };
        let own = match query.token.is_empty() {
            true => None,
            false => match (self.rights)(query.token.expose()) {
                Some(own) => Some(own),
                None => return depends(Answer::failed(ResponseCode::ServFail)),
            },
        };
        let caller = prepared::Caller {
            authorizer: own.as_ref().unwrap_or(self.asker.access),
            node: self.node,
            source: self.asker.source,
        };
        let wanted = &query.service;
        let sought = prepared::Sought {
            wanted,
            connect: wanted.connect,
            near: &wanted.near,
        };
        let selected = match &self.executed {
            Some(executed) => executed.clone(),
            None => prepared::select(&txn, &caller, sought),
        };
        if self.executed.is_none()
            && selected.nodes.is_empty()
            && wanted.failover != QueryFailover::default()
        {
            self.fails_over.replace(Some(Arc::clone(&query)));
        }
        let ttl = match duration::parse(&query.dns.ttl) {
            Ok(ttl) if !query.dns.ttl.is_empty() => seconds(ttl),
            _ => self.settings.service_ttl.of(&wanted.service),
        };
        depends(self.instances(question, &selected.tenancy, selected.nodes, ttl))
    }

    /// The virtual IP of a service, whatever its health. `None` also if the client may not see the service.
    fn virtual_ip(&self, service: &str, tenancy: &Tenancy) -> Option<IpAddr> {
        if !self.access(tenancy).service_read(service) {
            return None;
        }
        let ip = self.read(tenancy).virtual_ip(service)?;
        Some(ip.address().into())
    }

    fn node_ttl(&self) -> u32 {
        seconds(self.settings.node_ttl)
    }

    /// One address: as the answer if the query is for its type, else as an additional record.
    fn address(&self, question: &Question<'_>, ip: IpAddr) -> Answer {
        let record = address_record(question.name, self.node_ttl(), ip);
        let (answers, additionals) = match is_of_kind(ip, question.kind) {
            true => (vec![record], Vec::new()),
            false => (Vec::new(), vec![record]),
        };
        Answer {
            answers,
            additionals,
            ..Answer::default()
        }
    }

    fn reverse_records(&self, question: &Question<'_>, ip: IpAddr) -> Answer {
        let found = self.reverse(&self.read(self.names.tenancy), ip);
        let Some(name) = found else {
            return Answer::failed(ResponseCode::NXDomain);
        };
        let is_asked = matches!(question.kind, RecordType::PTR | RecordType::ANY);
        Answer {
            answers: match is_asked {
                true => vec![record(question.name, 0, RData::PTR(PTR(name)))],
                false => Vec::new(),
            },
            ..Answer::default()
        }
    }

    /// The name of the node with this address, else of the service of an instance with it, in any namespace of
    /// the partition. Consul's order.
    pub(super) fn reverse(&self, txn: &ReadTxn<'_>, ip: IpAddr) -> Option<Name> {
        let own = self.names.tenancy;
        let (access, domain) = (self.access(own), &self.names.domains.main().name);
        let node = txn.node_at(ip, |node| access.node_read(&node.node));
        let name_of = |node: &Node| node_name(&node.node, own, self.names.datacenter, domain);
        if let Some(name) = node.and_then(|node| name_of(&node).ok()) {
            return Some(name);
        }
        let namespaces = txn.tenancies_here();
        let mut all = std::iter::once(own).chain(&namespaces);
        all.find_map(|tenancy| txn.in_tenancy(tenancy, |txn| self.service_at(txn, ip)))
    }

    /// The service of an instance with this address, in the current namespace.
    fn service_at(&self, txn: &ReadTxn<'_>, ip: IpAddr) -> Option<Name> {
        let (access, domain) = (self.access(txn.tenancy()), self.names.domains.main());
        let may_see = |node: &str| {
            let node = txn.node(node);
            node.is_some_and(|node| access.node_read(&node.node))
        };
        let name_of = |service: &str| {
            let datacenter = self.names.datacenter;
            service_name(service, txn.tenancy(), datacenter, &domain.name).ok()
        };
        let instance = txn.instance_at(ip, |node, one| {
            may_see(node) && access.service_read(&one.service) && name_of(&one.service).is_some()
        });
        name_of(&instance?.service)
    }

    /// The zone's SOA record if `own`, else its NS records.
    fn zone(&self, question: &Question<'_>, own: bool) -> Answer {
        let (servers, additionals) = self.name_servers(question);
        match own {
            true => Answer {
                answers: self.soa(question.domain).into_iter().collect(),
                authorities: servers,
                additionals,
                ..Answer::default()
            },
            false => Answer {
                answers: servers,
                additionals,
                ..Answer::default()
            },
        }
    }

    /// NS records for the servers in the catalog, else for this one, with their addresses.
    fn name_servers(&self, question: &Question<'_>) -> (Vec<Record>, Vec<Record>) {
        let (zone, ttl) = (&question.domain.name, self.node_ttl());
        let ns = |name: Name| record(zone, ttl, RData::NS(NS(name)));
        let (mut servers, mut addresses) = (Vec::new(), Vec::new());
        let tenancy = Tenancy::default();
        let found = self.visible(self.read(&tenancy).service(OWN_SERVICE), None);
        for server in found.iter().take(MAX_NAME_SERVERS) {
            let node = &server.node;
            let name = node.node.to_lowercase();
            let is_valid = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            let named = node_name(&name, &tenancy, self.names.datacenter, zone);
            let (true, Ok(named)) = (is_valid, named) else {
                tracing::warn!(node = name, "the name of a server is not a valid DNS name");
                continue;
            };
            servers.push(ns(named.clone()));
            addresses.extend(self.node_address(
                &Question {
                    name: &named,
                    kind: RecordType::ANY,
                    ..*question
                },
                node,
            ));
        }
        if let (true, Ok(name)) = (servers.is_empty(), name_below(&["ns"], zone)) {
            servers.push(ns(name.clone()));
            addresses.push(address_record(&name, ttl, self.server));
        }
        (servers, addresses)
    }

    /// The zone's SOA record.
    fn soa(&self, domain: &Domain) -> Option<Record> {
        let (zone, times) = (&domain.name, &self.settings.soa);
        let signed = |seconds: u32| i32::try_from(seconds).unwrap_or(i32::MAX);
        let soa = SOA::new(
            name_below(&["ns"], zone).ok()?,
            name_below(&["hostmaster"], zone).ok()?,
            self.serial,
            signed(times.refresh),
            signed(times.retry),
            signed(times.expire),
            times.min_ttl,
        );
        // A resolver uses the lower of these two as the negative TTL.
        Some(record(zone, times.min_ttl, RData::SOA(soa)))
    }

    /// The node's address and metadata. Address queries also get the metadata as additional records, as in
    /// Consul.
    fn node_records(&self, question: &Question<'_>, name: &str, tenancy: &Tenancy) -> Answer {
        let node: Option<Arc<Node>> = self.read(tenancy).node(name);
        let access = self.access(tenancy);
        let may_see = |node: &Arc<Node>| access.node_read(&node.node);
        let Some(node) = node.filter(may_see) else {
            return Answer::failed(ResponseCode::NXDomain);
        };
        let mut answer = Answer {
            answers: self.node_address(question, &node),
            ..Answer::default()
        };
        let meta = || meta_records(question.name, self.node_ttl(), &node);
        match question.kind {
            RecordType::TXT | RecordType::ANY => answer.answers.extend(meta()),
            RecordType::A | RecordType::AAAA if self.settings.node_meta_txt => {
                answer.additionals = meta();
            }
            _ => {}
        }
        answer
    }

    fn datacenter_of<'n>(&'n self, node: &'n Node) -> &'n str {
        match node.datacenter.as_str() {
            "" => self.names.datacenter,
            datacenter => datacenter,
        }
    }

    /// Whether the client gets the addresses of a node for other datacenters.
    fn is_far(&self, node: &Node) -> bool {
        let own = self.translate_for;
        own.is_some_and(|own| !own.eq_ignore_ascii_case(self.datacenter_of(node)))
    }

    fn node_address(&self, question: &Question<'_>, node: &Node) -> Vec<Record> {
        if question.kind == RecordType::TXT {
            return Vec::new();
        }
        let is_far = self.is_far(node);
        let (address, ttl) = (address_of(node, question.kind, is_far), self.node_ttl());
        match address.parse() {
            Ok(ip) if is_of_kind(ip, question.kind) => {
                vec![address_record(question.name, ttl, ip)]
            }
            Ok(_) => Vec::new(),
            Err(_) => self.host_records(question, address, ttl),
        }
    }

    /// One record per distinct address. A host name is returned only if there is no address, and at most one: a
    /// name with a CNAME has no other records (RFC 1034 §3.6.2).
    fn instance_records(
        &self,
        question: &Question<'_>,
        instances: &[CheckServiceNode],
        ttl: u32,
    ) -> Vec<Record> {
        let mut seen = BTreeSet::new();
        let mut host = None;
        let mut records = Vec::new();
        for instance in instances {
            match InstanceAddress::of(instance, question, self.is_far(&instance.node)) {
                InstanceAddress::Node(ip) | InstanceAddress::Own(ip) => {
                    if is_of_kind(ip, question.kind) && seen.insert(ip) {
                        records.push(address_record(question.name, ttl, ip));
                    }
                }
                InstanceAddress::Host(other) => host = host.or(Some(other)),
            }
            // 0 is no limit: here the number of records is at least 1.
            if !records.is_empty() && records.len() == self.settings.a_record_limit {
                break;
            }
        }
        match host {
            Some(host) if records.is_empty() => self.host_records(question, host, ttl),
            _ => records,
        }
    }

    /// The CNAME to a host name and, as far as known, the records of its target.
    fn host_records(&self, question: &Question<'_>, host: &str, ttl: u32) -> Vec<Record> {
        let Ok(alias) = host_name(host) else {
            return Vec::new();
        };
        let mut records = vec![alias_record(question.name, ttl, alias.clone())];
        if question.kind != RecordType::CNAME {
            for one in self.behind(question, &alias, ttl) {
                // Aliases may form a loop.
                if !records.contains(&one) {
                    records.push(one);
                }
            }
        }
        records
    }

    /// The records of an alias's target: addresses and further aliases.
    fn behind(&self, question: &Question<'_>, alias: &Name, ttl: u32) -> Vec<Record> {
        use RecordType::{A, AAAA, ANY, CNAME, SRV};
        if !matches!(question.kind, A | AAAA | ANY | SRV) {
            return Vec::new();
        }
        let (target, _) = self.names.read(alias, question.kind);
        let found = match target {
            Target::Elsewhere => self.elsewhere(question, alias),
            _ if question.aliases >= MAX_ALIASES => Vec::new(),
            _ => {
                let kind = if question.kind == SRV {
                    ANY
                } else {
                    question.kind
                };
                self.follow(alias, kind, question.aliases + 1).answers
            }
        };
        let most = if self.asker.has_edns {
            MAX_RECORDS
        } else {
            MAX_BEHIND_ALIAS
        };
        let is_wanted = |one: &Record| [A, AAAA, CNAME].contains(&one.record_type());
        let found = found.into_iter().filter(is_wanted).take(most);
        found
            .map(|mut one| {
                one.ttl = ttl;
                one
            })
            .collect()
    }

    /// Recursors' results for a name in another domain. A missing lookup is added to `wanted`.
    fn elsewhere(&self, question: &Question<'_>, alias: &Name) -> Vec<Record> {
        if self.settings.recursors.is_empty() {
            return Vec::new();
        }
        let kind = match question.kind {
            RecordType::AAAA => RecordType::AAAA,
            _ => RecordType::A,
        };
        let key = (alias.to_lowercase(), kind);
        let known = self.known.get(&key).cloned();
        known.unwrap_or_else(|| {
            self.wanted.borrow_mut().insert(key);
            Vec::new()
        })
    }

    fn srv(
        &self,
        question: &Question<'_>,
        tenancy: &Tenancy,
        instances: &[CheckServiceNode],
        ttl: u32,
    ) -> Answer {
        let mut answer = Answer::default();
        let mut seen = BTreeSet::new();
        let domain = &question.domain.name;
        let (mut helped, mut described) = (BTreeSet::new(), BTreeSet::new());
        for instance in instances {
            let is_far = self.is_far(&instance.node);
            let place = InstanceAddress::of(instance, question, is_far);
            let datacenter = self.datacenter_of(&instance.node);
            let node = node_name(&instance.node.node, tenancy, datacenter, domain);
            // Invalid DNS names cannot be SRV targets; HTTP still returns them.
            let target = match place {
                InstanceAddress::Node(_) => node.clone(),
                InstanceAddress::Own(ip) => {
                    let datacenter = tenancy.peer.is_empty().then_some(datacenter);
                    address_name(ip, datacenter, domain)
                }
                InstanceAddress::Host(host) => host_name(host),
            };
            let Ok(target) = target else { continue };
            let port = match is_far {
                true => instance.service.wan_port(),
                false => instance.service.port,
            };
            if !seen.insert((target.to_lowercase(), port)) {
                continue;
            }
            let weight = u16::try_from(instance.weight()).unwrap_or(u16::MAX);
            let srv = SRV::new(1, weight, port, target.clone());
            answer
                .answers
                .push(record(question.name, ttl, RData::SRV(srv)));
            if helped.insert(target.to_lowercase()) {
                answer.additionals.extend(match place {
                    InstanceAddress::Node(ip) | InstanceAddress::Own(ip) => {
                        vec![address_record(&target, ttl, ip)]
                    }
                    InstanceAddress::Host(_) => self.behind(question, &target, ttl),
                });
            }
            if let (true, Ok(node)) = (self.settings.node_meta_txt, node)
                && described.insert(node.to_lowercase())
            {
                let meta = meta_records(&node, ttl, &instance.node);
                answer.additionals.extend(meta);
            }
        }
        answer
    }
}

/// Whether a query is for addresses of this family.
fn is_of_kind(ip: IpAddr, kind: RecordType) -> bool {
    let own = match ip {
        IpAddr::V4(_) => RecordType::A,
        IpAddr::V6(_) => RecordType::AAAA,
    };
    kind == own || kind == RecordType::ANY
}
