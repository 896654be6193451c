//! Answers questions from the catalog. Pure: tables and a question in, records out.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use legate_model::acl::Authorizer;
use legate_model::{CheckServiceNode, CheckStatus};
use legate_store::ReadTxn;

use super::question::{DOMAIN, Target};

/// How long an answer may be kept, in seconds. Consul's default: not at all, the catalog changes
/// at any time.
const TTL: u32 = 0;

/// What is known besides the question.
pub(super) struct Resolver<'a> {
    /// The catalog.
    pub(super) state: &'a ReadTxn<'a>,
    /// Whose names may be seen.
    pub(super) access: &'a Authorizer,
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
    /// One host: an IP address or a name outside the catalog.
    Host(String),
    Nothing,
}

impl Resolver<'_> {
    /// The answer to a question.
    pub(super) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let target = Target::of(name, self.datacenter);
        let found = match target {
            Target::Elsewhere => {
                return Answer {
                    code: ResponseCode::Refused,
                    ..Answer::default()
                };
            }
            Target::Apex => return self.apex(name, kind),
            Target::NameServer => Found::Host(self.server.to_string()),
            Target::Address(ip) => Found::Host(ip.to_string()),
            Target::Node { name } => self.node(&name),
            Target::Service { name, tag } => {
                let instances = self.state.service(&name);
                self.instances(instances, tag.as_deref())
            }
            Target::Connect { name } => self.instances(self.state.connect(&name), None),
            Target::Nothing => Found::Nothing,
        };
        let mut answer = match found {
            Found::Nothing => Answer {
                code: ResponseCode::NXDomain,
                ..Answer::default()
            },
            Found::Host(host) => Answer {
                answers: host_records(name, &host, kind),
                ..Answer::default()
            },
            Found::Instances(instances) if kind == RecordType::SRV => self.srv(name, &instances),
            Found::Instances(instances) => Answer {
                answers: instance_records(name, &instances, kind),
                ..Answer::default()
            },
        };
        if answer.answers.is_empty() {
            // Tells how long the absence may be remembered: not at all.
            answer.authorities.extend(self.soa());
        }
        answer
    }

    fn node(&self, name: &str) -> Found {
        match self.state.node(name) {
            Some(node) if self.access.node_read(&node.node) => Found::Host(node.address.clone()),
            _ => Found::Nothing,
        }
    }

    /// The healthy ones that may be seen; without any the name does not exist.
    fn instances(&self, mut instances: Vec<CheckServiceNode>, tag: Option<&str>) -> Found {
        instances.retain(|one| {
            let tagged = |tag: &str| {
                one.service
                    .tags
                    .iter()
                    .any(|own| own.eq_ignore_ascii_case(tag))
            };
            one.health() == CheckStatus::Passing
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
            _ => answer.authorities.extend(self.soa()),
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

    fn srv(&self, name: &Name, instances: &[CheckServiceNode]) -> Answer {
        let mut answer = Answer::default();
        let mut seen = BTreeSet::new();
        for instance in instances {
            let (host, port) = instance.address();
            let Ok(target) = self.srv_target(instance, host) else {
                // A node name that is no DNS name has no target; HTTP still serves it.
                continue;
            };
            let weight = u16::try_from(instance.weight()).unwrap_or(u16::MAX);
            if !seen.insert((target.to_lowercase(), port)) {
                continue;
            }
            let srv = SRV::new(1, weight, port, target.clone());
            answer.answers.push(record(name, RData::SRV(srv)));
            if let Ok(ip) = host.parse() {
                answer.additionals.push(address_record(&target, ip));
            }
        }
        answer
    }

    /// A name that leads to the instance: its node's when it has no address of its own, else one
    /// that spells the address.
    fn srv_target(
        &self,
        instance: &CheckServiceNode,
        host: &str,
    ) -> Result<Name, hickory_proto::ProtoError> {
        if instance.service.address.is_empty() {
            let mut labels: Vec<&str> = instance.node.node.split('.').collect();
            labels.extend(["node", self.datacenter]);
            return domain_name(&labels);
        }
        match host.parse() {
            Ok(IpAddr::V4(ip)) => {
                domain_name(&[&format!("{:08x}", ip.to_bits()), "addr", self.datacenter])
            }
            Ok(IpAddr::V6(ip)) => {
                domain_name(&[&format!("{:032x}", ip.to_bits()), "addr", self.datacenter])
            }
            Err(_) => external_name(host),
        }
    }
}

/// One record an address; instances may share one.
fn instance_records(name: &Name, instances: &[CheckServiceNode], kind: RecordType) -> Vec<Record> {
    let mut seen = BTreeSet::new();
    instances
        .iter()
        .map(|instance| instance.address().0)
        .filter(|host| seen.insert(*host))
        .flat_map(|host| host_records(name, host, kind))
        .collect()
}

/// The records of one host, as far as the question is about addresses.
fn host_records(name: &Name, host: &str, kind: RecordType) -> Vec<Record> {
    let any = kind == RecordType::ANY;
    match host.parse::<IpAddr>() {
        Ok(ip @ IpAddr::V4(_)) if any || kind == RecordType::A => vec![address_record(name, ip)],
        Ok(ip @ IpAddr::V6(_)) if any || kind == RecordType::AAAA => {
            vec![address_record(name, ip)]
        }
        Ok(_) => Vec::new(),
        Err(_) => {
            let asked = matches!(kind, RecordType::A | RecordType::AAAA | RecordType::CNAME);
            let alias = external_name(host).ok().filter(|_| any || asked);
            alias
                .map(|alias| record(name, RData::CNAME(CNAME(alias))))
                .into_iter()
                .collect()
        }
    }
}

fn address_record(name: &Name, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    record(name, data)
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

/// A name below the served domain.
fn domain_name(labels: &[&str]) -> Result<Name, hickory_proto::ProtoError> {
    Name::from_labels(labels.iter().copied().chain([DOMAIN]).map(str::as_bytes))
}

/// A name outside the catalog, fully qualified.
fn external_name(host: &str) -> Result<Name, hickory_proto::ProtoError> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}
