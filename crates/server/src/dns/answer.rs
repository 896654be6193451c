//! Answers questions from the catalog. Pure: tables and a question in, records out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{NS, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use legate_model::acl::Authorizer;
use legate_model::{CheckServiceNode, CheckStatus, Node};
use legate_store::ReadTxn;

use super::question::Target;
use super::records::{
    address_name, address_record, alias_record, domain_name, host_name, meta_records, node_name,
    record,
};

/// How many aliases are followed from one name of the domain to the next. Consul's limit.
const MAX_ALIASES: u8 = 3;

/// What is known besides the question.
pub(super) struct Resolver<'a> {
    /// The catalog.
    pub(super) state: &'a ReadTxn<'a>,
    /// Whose names may be seen.
    pub(super) access: &'a Authorizer,
    /// Leave out instances in `warning` as well as critical ones.
    pub(super) only_passing: bool,
    /// The datacenter that is served.
    pub(super) datacenter: &'a str,
    /// This server's address, as the domain's name server.
    pub(super) server: IpAddr,
    /// Serial number of the zone: the time in seconds.
    pub(super) serial: u32,
}

/// The records of a reply.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) code: ResponseCode,
    pub(super) answers: Vec<Record>,
    pub(super) authorities: Vec<Record>,
    pub(super) additionals: Vec<Record>,
}

/// What a target turned out to be.
enum Found {
    /// Instances of a service.
    Instances(Vec<CheckServiceNode>),
    Node(Arc<Node>),
    /// One address.
    Address(IpAddr),
    /// A name that has no address.
    NoAddress,
    /// The name that an address has.
    Name(Name),
    Nothing,
}

/// Where an instance is reached.
enum Place<'a> {
    /// At its node's address.
    Node(IpAddr),
    /// At an address of its own.
    Own(IpAddr),
    /// At a host name, its own or its node's.
    Host(&'a str),
}

impl<'a> Place<'a> {
    /// `asked` is the name that is being answered: an instance whose address is just that would
    /// lead nowhere, so its node's address is taken, as in Consul.
    fn of(instance: &'a CheckServiceNode, asked: &Name) -> Self {
        let (own, node) = (&instance.service.address, &instance.node.address);
        let of_node = || node.parse().map_or(Self::Host(node.as_str()), Self::Node);
        if own.is_empty() {
            return of_node();
        }
        match (own.parse(), of_node()) {
            (Ok(ip), _) => Self::Own(ip),
            (Err(_), Self::Node(ip)) if host_name(own).is_ok_and(|name| name == *asked) => {
                Self::Node(ip)
            }
            (Err(_), _) => Self::Host(own),
        }
    }
}

impl Resolver<'_> {
    /// The answer to a question.
    pub(super) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let mut answer = self.follow(name, kind, 0);
        if answer.answers.is_empty() && answer.code != ResponseCode::Refused {
            // Tells how long the absence may be remembered: not at all.
            if answer.authorities.is_empty() {
                answer.authorities.extend(self.soa());
            }
        }
        answer
    }

    /// The answer to a question that `aliases` led to.
    fn follow(&self, name: &Name, kind: RecordType, aliases: u8) -> Answer {
        let found = match Target::of(name, self.datacenter) {
            Target::Elsewhere => {
                return Answer {
                    code: ResponseCode::Refused,
                    ..Answer::default()
                };
            }
            Target::Apex => return self.apex(name, kind),
            Target::NameServer => Found::Address(self.server),
            Target::Address(ip) => Found::Address(ip),
            Target::Reverse(ip) => self.reverse(ip),
            Target::Node { name } => self.node(&name),
            Target::Service { name, tag } => {
                let instances = self.state.service(&name);
                self.instances(instances, tag.as_deref())
            }
            // Who may not see the service sees no proxy of it, whatever its name.
            Target::Connect { name } if !self.access.service_read(&name) => Found::Nothing,
            Target::Connect { name } => self.instances(self.state.connect(&name), None),
            Target::Virtual { name } => self.virtual_ip(&name),
            Target::Nothing => Found::Nothing,
        };
        let mut answer = Answer::default();
        match found {
            Found::Nothing => answer.code = ResponseCode::NXDomain,
            Found::NoAddress => {}
            Found::Name(target) if matches!(kind, RecordType::PTR | RecordType::ANY) => {
                answer.answers.push(record(name, RData::PTR(PTR(target))));
            }
            Found::Name(_) => {}
            Found::Address(ip) => answer.answers.extend(address_of_kind(name, ip, kind)),
            Found::Node(node) => self.node_records(&mut answer, name, &node, kind, aliases),
            Found::Instances(instances) if kind == RecordType::SRV => {
                self.srv(&mut answer, name, &instances);
            }
            Found::Instances(instances) => {
                answer.answers = self.instance_records(name, &instances, kind, aliases);
            }
        }
        answer
    }

    fn node(&self, name: &str) -> Found {
        match self.state.node(name) {
            Some(node) if self.access.node_read(&node.node) => Found::Node(node.clone()),
            _ => Found::Nothing,
        }
    }

    /// The ones that are well enough and may be seen; without any the name does not exist.
    fn instances(&self, mut instances: Vec<CheckServiceNode>, tag: Option<&str>) -> Found {
        let worst = if self.only_passing {
            CheckStatus::Passing
        } else {
            CheckStatus::Warning
        };
        instances.retain(|one| {
            let tagged = |tag: &str| {
                one.service
                    .tags
                    .iter()
                    .any(|own| own.eq_ignore_ascii_case(tag))
            };
            one.health() <= worst
                && tag.is_none_or(tagged)
                && self.access.service_read(&one.service.service)
                && self.access.node_read(&one.node.node)
        });
        if instances.is_empty() {
            Found::Nothing
        } else {
            Found::Instances(instances)
        }
    }

    /// The virtual IP of a service, whatever the health of its instances. As in Consul, every name
    /// exists here: one without an address has no records. One that may not be seen is the same.
    fn virtual_ip(&self, service: &str) -> Found {
        let seen = self.access.service_read(service);
        let ip = seen.then(|| self.state.virtual_ip(service)).flatten();
        ip.map_or(Found::NoAddress, |ip| Found::Address(ip.address().into()))
    }

    /// The node that has an address, else the service of an instance that has it. Consul's order.
    fn reverse(&self, ip: IpAddr) -> Found {
        let node = self
            .state
            .node_at(ip, |node| self.access.node_read(&node.node));
        let named = node.and_then(|node| node_name(&node.node, self.datacenter).ok());
        if let Some(name) = named {
            return Found::Name(name);
        }
        let may_see = |node: &str| {
            let node = self.state.node(node);
            node.is_some_and(|node| self.access.node_read(&node.node))
        };
        let service_name = |service: &str| domain_name(&[service, "service", self.datacenter]).ok();
        let instance = self.state.instance_at(ip, |node, one| {
            may_see(node)
                && self.access.service_read(&one.service)
                && service_name(&one.service).is_some()
        });
        instance
            .and_then(|one| service_name(&one.service))
            .map_or(Found::Nothing, Found::Name)
    }

    fn apex(&self, name: &Name, kind: RecordType) -> Answer {
        let mut answer = Answer::default();
        match kind {
            RecordType::SOA => answer.answers.extend(self.soa()),
            RecordType::NS => {
                if let Ok(server) = domain_name(&["ns"]) {
                    let ns = RData::NS(NS(server.clone()));
                    answer.answers.push(record(name, ns));
                    answer
                        .additionals
                        .push(address_record(&server, self.server));
                }
            }
            _ => {}
        }
        answer
    }

    /// The zone's own record. The values are Consul's.
    fn soa(&self) -> Option<Record> {
        let zone = domain_name(&[]).ok()?;
        let soa = SOA::new(
            domain_name(&["ns"]).ok()?,
            domain_name(&["hostmaster"]).ok()?,
            self.serial,
            3_600,
            600,
            86_400,
            0,
        );
        Some(record(&zone, RData::SOA(soa)))
    }

    /// Address and metadata. Who asks for the address gets the metadata as well, as in Consul.
    fn node_records(
        &self,
        answer: &mut Answer,
        name: &Name,
        node: &Node,
        kind: RecordType,
        aliases: u8,
    ) {
        answer.answers = match node.address.parse() {
            Ok(ip) => address_of_kind(name, ip, kind).into_iter().collect(),
            Err(_) => self.host_records(name, &node.address, kind, aliases),
        };
        match kind {
            RecordType::TXT | RecordType::ANY => answer.answers.extend(meta_records(name, node)),
            RecordType::A | RecordType::AAAA => answer.additionals = meta_records(name, node),
            _ => {}
        }
    }

    /// One record an address; instances may share one. A host name is answered only when there is no
    /// address, and one at most: a name has one alias and then nothing else (RFC 1034 §3.6.2).
    fn instance_records(
        &self,
        name: &Name,
        instances: &[CheckServiceNode],
        kind: RecordType,
        aliases: u8,
    ) -> Vec<Record> {
        let mut seen = BTreeSet::new();
        let mut host = None;
        let mut records = Vec::new();
        for instance in instances {
            match Place::of(instance, name) {
                Place::Node(ip) | Place::Own(ip) if seen.insert(ip) => {
                    records.extend(address_of_kind(name, ip, kind));
                }
                Place::Node(_) | Place::Own(_) => {}
                Place::Host(other) => host = host.or(Some(other)),
            }
        }
        match host {
            Some(host) if records.is_empty() => self.host_records(name, host, kind, aliases),
            _ => records,
        }
    }

    /// The alias to a host name and, when that is of this domain, what it leads to.
    fn host_records(&self, name: &Name, host: &str, kind: RecordType, aliases: u8) -> Vec<Record> {
        use RecordType::{A, AAAA, ANY, CNAME};
        let Ok(alias) = host_name(host) else {
            return Vec::new();
        };
        if !matches!(kind, A | AAAA | ANY | CNAME) {
            return Vec::new();
        }
        let mut records = vec![alias_record(name, alias.clone())];
        if kind != CNAME && aliases < MAX_ALIASES {
            let further = self.follow(&alias, kind, aliases + 1).answers;
            let wanted = [A, AAAA, CNAME];
            for one in further {
                // Aliases may go round in circles.
                if wanted.contains(&one.record_type()) && !records.contains(&one) {
                    records.push(one);
                }
            }
        }
        records
    }

    fn srv(&self, answer: &mut Answer, name: &Name, instances: &[CheckServiceNode]) {
        let mut seen = BTreeSet::new();
        for instance in instances {
            let place = Place::of(instance, name);
            // Names that are no DNS names cannot be targets; HTTP still serves them.
            let target = match place {
                Place::Node(_) => node_name(&instance.node.node, self.datacenter),
                Place::Own(ip) => address_name(ip, self.datacenter),
                Place::Host(host) => host_name(host),
            };
            let Ok(target) = target else { continue };
            let port = instance.service.port;
            if !seen.insert((target.to_lowercase(), port)) {
                continue;
            }
            let weight = u16::try_from(instance.weight()).unwrap_or(u16::MAX);
            let srv = SRV::new(1, weight, port, target.clone());
            answer.answers.push(record(name, RData::SRV(srv)));
            let help = match place {
                Place::Node(ip) => {
                    let mut help = vec![address_record(&target, ip)];
                    help.extend(meta_records(&target, &instance.node));
                    help
                }
                Place::Own(ip) => vec![address_record(&target, ip)],
                Place::Host(_) => self.follow(&target, RecordType::ANY, 1).answers,
            };
            for one in help {
                if !answer.additionals.contains(&one) {
                    answer.additionals.push(one);
                }
            }
        }
    }
}

/// The record of an address, when the question is about addresses of its kind.
fn address_of_kind(name: &Name, ip: IpAddr, kind: RecordType) -> Option<Record> {
    let own = if ip.is_ipv4() {
        RecordType::A
    } else {
        RecordType::AAAA
    };
    (kind == own || kind == RecordType::ANY).then(|| address_record(name, ip))
}
