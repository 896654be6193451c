//! What the peer has sent and is not stored yet, and how much it exports.
//!
//! Stores nothing itself.

use std::collections::BTreeMap;

use legate_api::internal::peerstream::replication_message::Response;

use super::Import;
use crate::import::{INSTANCES_OF_PEER, SERVICES, kept};
use crate::refusal::{Refusal, code};
use crate::resource::ResourceType;

/// The number of resources that may wait for their import until no message is read.
pub const IMPORTS: usize = 64;
/// The size of all these resources in bytes from which on no message is read.
pub const IMPORT_BYTES: usize = 16 * 1024 * 1024;

/// Identifies an import on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImportId(u64);

/// A validated resource of the peer that is to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingImport {
    /// For [`super::Session::imported`].
    pub id: ImportId,
    /// What is to be stored.
    pub import: Import,
}

#[derive(Debug)]
pub(super) struct Incoming {
    waiting: BTreeMap<ImportId, Waiting>,
    bytes: usize,
    last: u64,
    /// The number of instances of each service of the peer, by its name in lower case.
    instances: BTreeMap<String, usize>,
    /// Their sum.
    total: usize,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) kind: ResourceType,
    pub(super) resource_id: String,
    pub(super) nonce: String,
    /// The names of a list of services.
    pub(super) names: Option<Vec<String>>,
    bytes: usize,
}

impl Incoming {
    pub(super) fn new(instances: BTreeMap<String, usize>) -> Self {
        Self {
            waiting: BTreeMap::new(),
            bytes: 0,
            last: 0,
            total: instances.values().sum(),
            instances,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < IMPORTS && self.bytes < IMPORT_BYTES
    }

    /// Adds a validated resource of the given size, unless the peer exports too much.
    pub(super) fn add(
        &mut self,
        import: Import,
        kind: ResourceType,
        response: &Response,
        bytes: usize,
    ) -> Result<PendingImport, Refusal> {
        let mut names = None;
        match &import {
            Import::Service(service) => self.count(&service.name, service.instances.len())?,
            Import::ServiceList(list) => {
                let kept = kept(list);
                self.instances.retain(|name, _| kept.contains(name));
                self.total = self.instances.values().sum();
                names = Some(list.clone());
            }
            Import::TrustBundle(_) | Import::ServerAddresses(_) => {}
        }
        self.last += 1;
        self.bytes += bytes;
        let id = ImportId(self.last);
        let waiting = Waiting {
            kind,
            resource_id: response.resource_id.clone(),
            nonce: response.nonce.clone(),
            names,
            bytes,
        };
        self.waiting.insert(id, waiting);
        Ok(PendingImport { id, import })
    }

    pub(super) fn finish(&mut self, id: ImportId) -> Option<Waiting> {
        let done = self.waiting.remove(&id)?;
        self.bytes -= done.bytes;
        Some(done)
    }

    /// Counts the instances of a service. Services that the peer does not export any more count until its next list.
    fn count(&mut self, service: &str, instances: usize) -> Result<(), Refusal> {
        let name = service.to_lowercase();
        let stored = self.instances.get(&name).copied();
        let others = self.total - stored.unwrap_or(0);
        let refused = |text: String| Err(Refusal::new(code::RESOURCE_EXHAUSTED, text));
        // Each service has two forms.
        let most = 2 * SERVICES;
        if instances > 0 && stored.is_none() && self.instances.len() >= most {
            return refused(format!(
                "{service:?} is not imported: {SERVICES} services of a peer are accepted, each in two forms, and it has \
                 {most} already"
            ));
        }
        if others + instances > INSTANCES_OF_PEER {
            return refused(format!(
                "{service:?} is not imported: {INSTANCES_OF_PEER} instances of a peer are accepted, and it has {others} \
                 others"
            ));
        }
        self.total = others + instances;
        match instances {
            0 => self.instances.remove(&name),
            _ => self.instances.insert(name, instances),
        };
        Ok(())
    }
}
