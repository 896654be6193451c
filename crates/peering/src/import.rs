//! Conversion of what another cluster sends to the model.
//!
//! The other cluster may be hostile: every value is checked, and the error says what is wrong with it. A converted
//! value has no name of the peering and no indexes; its receiver sets them.
//!
//! Pure. It does not know what is stored; [`Rules`] has what a value is compared with.

mod instance;

use std::collections::{BTreeMap, BTreeSet};

use legate_api::internal::peering::{PeeringServerAddresses, PeeringTrustBundle};
use legate_api::internal::peerstream::{ExportedService, ExportedServiceList};
use legate_identity::split_certificates;
use legate_model::name::validate_service_name;
use legate_model::{
    CheckServiceNode, Invalid, PeerTrustBundle, TenancyName, TrustDomain, validate_server_addresses,
};
use prost::Message;
use prost_types::Any;

use crate::export::mesh_id;
use crate::refusal::{Refusal, code, shown};
use crate::resource::ResourceType;

/// The largest number of services that a peer may export.
pub const SERVICES: usize = 10_000;
/// The largest size of the names of all services that a peer exports, in bytes. They are stored in one row.
pub const SERVICES_BYTES: usize = 384 * 1024;
/// The largest number of instances of a service.
pub const INSTANCES: usize = 4_096;
/// The largest number of instances of all services of a peer, in both forms.
pub const INSTANCES_OF_PEER: usize = 200_000;
/// The largest number of checks of an instance. Exporters combine all checks into one.
pub const CHECKS: usize = 64;
/// The largest size of an instance with its node and checks, in bytes.
pub const INSTANCE_BYTES: usize = 64 * 1024;
/// The largest number of root certificates of a peer.
pub const ROOTS: usize = 32;
/// The largest size of a root certificate in PEM form, in bytes.
pub const ROOT_BYTES: usize = 64 * 1024;

/// A validated resource of another cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum Import {
    /// All instances of a service. Replaces those that are stored.
    Service(ImportedService),
    /// The names of all services, sorted. All other services are removed: see [`kept`].
    ServiceList(Vec<String>),
    /// The root certificates.
    TrustBundle(PeerTrustBundle),
    /// The addresses of the servers.
    ServerAddresses(Vec<String>),
}

/// All instances of an imported service.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedService {
    /// The name of the service, or of its mesh form.
    pub name: String,
    /// Its instances. None: it has none, or is not exported any more.
    pub instances: Vec<CheckServiceNode>,
}

/// The services that stay when a list of services is imported, in lower case: those of the list and their mesh forms.
pub fn kept(list: &[String]) -> BTreeSet<String> {
    let names = list.iter().map(|name| name.to_lowercase());
    names.flat_map(|name| [mesh_id(&name), name]).collect()
}

/// What the trust domain of a peer must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The trust domain of this cluster.
    pub own: TrustDomain,
    /// Those of all other peers, with their names.
    pub others: BTreeMap<TrustDomain, String>,
}

impl Rules {
    /// Checks the trust domain of a peer. The roots of a peer replace those of its trust domain, so that it must belong
    /// to no one else.
    ///
    /// # Errors
    ///
    /// [`Invalid`] says whom it belongs to.
    pub fn check(&self, trust_domain: &TrustDomain) -> Result<(), Invalid> {
        let reason = if *trust_domain == self.own {
            format!("{trust_domain} is the trust domain of this cluster")
        } else if let Some(peer) = self.others.get(trust_domain) {
            format!("{trust_domain} is the trust domain of the peer {peer:?}")
        } else {
            return Ok(());
        };
        Err(Invalid::new("TrustDomain", reason))
    }
}

/// Reads a resource: `any` is the encoded `google.protobuf.Any` of a response.
pub(crate) fn read(
    kind: ResourceType,
    id: &str,
    any: &[u8],
    rules: &Rules,
) -> Result<Import, Refusal> {
    let failed = |code: i32, error: &str| {
        let (url, id) = (kind.url(), shown(id));
        let error = shown(error);
        let text = format!("upsert error, ResourceURL: {url:?}, ResourceID: {id:?}: {error}");
        Refusal::new(code, text)
    };
    let malformed = |error| {
        let text = format!("failed to unmarshal resource: {error}");
        failed(code::INTERNAL, &text)
    };
    let any = Any::decode(any).map_err(malformed)?;
    if any.type_url != kind.url() {
        let (url, other) = (kind.url(), shown(&any.type_url));
        let text = format!("mismatched resourceURL {url:?} and Any typeUrl {other:?}");
        return Err(failed(code::INTERNAL, &text));
    }
    let value = any.value.as_slice();
    let import = match kind {
        ResourceType::Service => {
            let message = ExportedService::decode(value).map_err(malformed)?;
            service(id, message, rules).map(Import::Service)
        }
        ResourceType::ServiceList => {
            let message = ExportedServiceList::decode(value).map_err(malformed)?;
            service_list(message).map(Import::ServiceList)
        }
        ResourceType::TrustBundle => {
            let message = PeeringTrustBundle::decode(value).map_err(malformed)?;
            trust_bundle(message, rules).map(Import::TrustBundle)
        }
        ResourceType::ServerAddresses => {
            let message = PeeringServerAddresses::decode(value).map_err(malformed)?;
            server_addresses(message).map(Import::ServerAddresses)
        }
    };
    import.map_err(|error| failed(code::INVALID_ARGUMENT, &error.to_string()))
}

/// Converts the instances of a service, whose resource has the id `id`.
///
/// # Errors
///
/// [`Invalid`] names the first field that cannot be accepted.
pub fn service(
    id: &str,
    message: ExportedService,
    rules: &Rules,
) -> Result<ImportedService, Invalid> {
    let named = validate_service_name(id);
    named.map_err(|error| Invalid::new("ResourceID", error.to_string()))?;
    at_most("Nodes", "instances", message.nodes.len(), INSTANCES)?;
    let mut seen = BTreeSet::new();
    let mut instances = Vec::with_capacity(message.nodes.len());
    for (i, one) in message.nodes.into_iter().enumerate() {
        let within = |error: Invalid| error.within(format_args!("Nodes[{i}]"));
        let one = instance::read(id, one, rules).map_err(within)?;
        let key = (one.node.node.to_lowercase(), one.service.id.to_lowercase());
        if !seen.insert(key) {
            let reason = format!("{:?} is on its node twice", one.service.id);
            return Err(within(Invalid::new("Service.ID", reason)));
        }
        instances.push(one);
    }
    Ok(ImportedService {
        name: id.to_owned(),
        instances,
    })
}

/// Converts the list of services, sorted and without repetitions.
///
/// # Errors
///
/// [`Invalid`] names the first entry that cannot be accepted.
pub fn service_list(message: ExportedServiceList) -> Result<Vec<String>, Invalid> {
    let mut names = message.services;
    at_most("Services", "services", names.len(), SERVICES)?;
    let bytes = names.iter().map(String::len).sum();
    at_most("Services", "bytes of names", bytes, SERVICES_BYTES)?;
    for (i, name) in names.iter().enumerate() {
        let named = validate_service_name(name);
        named.map_err(|error| Invalid::new(format!("Services[{i}]"), error.to_string()))?;
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Converts the root certificates of a peer. Its trust domain must belong to no one else.
///
/// # Errors
///
/// [`Invalid`] names the first field that cannot be accepted.
pub fn trust_bundle(
    message: PeeringTrustBundle,
    rules: &Rules,
) -> Result<PeerTrustBundle, Invalid> {
    let trust_domain = instance::trust_domain("TrustDomain", &message.trust_domain)?;
    rules.check(&trust_domain)?;
    if message.root_pems.is_empty() {
        let reason = "there must be at least one root certificate";
        return Err(Invalid::new("RootPEMs", reason));
    }
    at_most(
        "RootPEMs",
        "root certificates",
        message.root_pems.len(),
        ROOTS,
    )?;
    let mut root_pems = Vec::new();
    for (i, pem) in message.root_pems.iter().enumerate() {
        let field = format!("RootPEMs[{i}]");
        at_most(&field, "bytes", pem.len(), ROOT_BYTES)?;
        let roots = split_certificates(pem);
        root_pems.extend(roots.map_err(|error| Invalid::new(field, error.to_string()))?);
    }
    at_most("RootPEMs", "root certificates", root_pems.len(), ROOTS)?;
    let partition = message.exported_partition.parse::<TenancyName>();
    let partition =
        partition.map_err(|error| Invalid::new("ExportedPartition", error.to_string()))?;
    if partition.is_every() {
        return Err(Invalid::new(
            "ExportedPartition",
            "it must be one partition",
        ));
    }
    Ok(PeerTrustBundle {
        trust_domain: trust_domain.to_string(),
        root_pems,
        exported_partition: partition.to_string(),
        ..PeerTrustBundle::default()
    })
}

/// Converts the addresses of a peer's servers.
///
/// # Errors
///
/// [`Invalid`] names the first address that is not `host:port`.
pub fn server_addresses(message: PeeringServerAddresses) -> Result<Vec<String>, Invalid> {
    let addresses = message.addresses;
    if addresses.is_empty() {
        let reason = "there must be at least one address";
        return Err(Invalid::new("Addresses", reason));
    }
    validate_server_addresses("Addresses", &addresses)?;
    Ok(addresses)
}

fn at_most(field: &str, what: &str, count: usize, most: usize) -> Result<(), Invalid> {
    match count > most {
        true => {
            let reason = format!("at most {most} {what} are accepted, not {count}");
            Err(Invalid::new(field, reason))
        }
        false => Ok(()),
    }
}
