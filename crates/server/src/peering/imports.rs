//! Stores what another cluster exports.
//!
//! What has arrived is stored together, in transactions of a size that every store takes.

use std::sync::Arc;

use legate_model::{CheckServiceNode, PeerTrustBundle, Peering, Tenancy};
use legate_peering::import::{Import, ImportedService, kept};
use legate_peering::{ImportId, PendingImport};
use legate_store::{Rejected, Store, Unavailable, WriteTxn};

use super::removal::home;

/// The largest sum of bytes of rows in a transaction, about. Those of etcd have at most 1.5 MiB.
const LARGEST_BATCH: usize = 512 * 1024;
/// The largest number of rows that are removed in a transaction, about. Those of etcd have at most 4,032.
const AT_ONCE: usize = 1_000;
/// About how many bytes of such a transaction a removed instance stands for, with its checks and its node.
const REMOVED: usize = 2 * 1024;

/// Why something was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStored {
    /// The peering was deleted, or another stream has replaced this one.
    #[error(
        "peering does not exist or has been marked for deletion, or another stream has replaced this one"
    )]
    Replaced,
    #[error(transparent)]
    Rejected(#[from] Rejected),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Writes what a stream imports.
#[derive(Clone)]
pub(super) struct Importer {
    pub(super) store: Store,
    /// Id of the peering.
    pub(super) id: String,
    /// The tenancy of what is imported.
    pub(super) of_peer: Tenancy,
    /// Id of the stream.
    pub(super) stream: String,
}

/// The result of each import.
pub(super) type Stored = Vec<(ImportId, Result<(), String>)>;

impl Importer {
    /// Stores these imports in their order.
    ///
    /// # Errors
    /// [`NotStored::Replaced`], and [`NotStored::Unavailable`]: the stream must end. With the next one everything is sent
    /// again, which a cluster does not do for what was refused.
    pub(super) async fn store(&self, pending: Vec<PendingImport>) -> Result<Stored, NotStored> {
        let mut stored = Vec::new();
        let mut small = Vec::new();
        let mut size = 0;
        for PendingImport { id, import } in pending {
            let own = self.size(&import);
            if size + own > LARGEST_BATCH {
                self.store_small(std::mem::take(&mut small), &mut stored)
                    .await?;
                size = 0;
            }
            if own > LARGEST_BATCH || matches!(import, Import::ServiceList(_)) {
                self.store_small(std::mem::take(&mut small), &mut stored)
                    .await?;
                size = 0;
                let result = self.store_in_steps(import).await;
                stored.push((id, result_of(result)?));
            } else {
                size += own;
                small.push((id, import));
            }
        }
        self.store_small(small, &mut stored).await?;
        Ok(stored)
    }

    /// About how many bytes an import is in a transaction, with what it may remove.
    fn size(&self, import: &Import) -> usize {
        match import {
            Import::Service(service) => {
                let state = self.store.state();
                let of_peer = state.read().within(self.of_peer.clone());
                let stored = of_peer.count_of_imported(&service.name) * REMOVED;
                let new: usize = service.instances.iter().map(instance_size).sum();
                stored + new
            }
            Import::TrustBundle(bundle) => {
                2 * bundle.root_pems.iter().map(String::len).sum::<usize>()
            }
            Import::ServiceList(_) | Import::ServerAddresses(_) => 0,
        }
    }

    /// Stores imports in one transaction. If the store refuses a part of it, each is stored by itself, so that the refusal
    /// concerns only that one.
    async fn store_small(
        &self,
        imports: Vec<(ImportId, Import)>,
        stored: &mut Stored,
    ) -> Result<(), NotStored> {
        if imports.is_empty() {
            return Ok(());
        }
        let all: Arc<[Import]> = imports.iter().map(|(_, import)| import.clone()).collect();
        let written = self.write(move |txn, peering| {
            let mut imports = all.iter();
            imports.try_for_each(|import| apply(txn, peering, import))
        });
        match written.await {
            Err(NotStored::Rejected(_) | NotStored::Unavailable(_)) if imports.len() > 1 => {
                for (id, import) in imports {
                    let written = self.write(move |txn, peering| apply(txn, peering, &import));
                    stored.push((id, result_of(written.await)?));
                }
            }
            written => {
                let result = result_of(written)?;
                stored.extend(imports.into_iter().map(|(id, _)| (id, result.clone())));
            }
        }
        Ok(())
    }

    /// Stores an import that may change many rows, in several transactions.
    async fn store_in_steps(&self, import: Import) -> Result<(), NotStored> {
        match import {
            Import::Service(ImportedService { name, instances }) => {
                for chunk in chunks(&instances) {
                    self.write(move |txn, peering| {
                        let of_peer = home(peering).of_peer(&peering.name);
                        txn.in_tenancy(&of_peer, |txn| txn.add_imported(&chunk))
                    })
                    .await?;
                }
                let (name, instances): (Arc<str>, Arc<[_]>) = (name.into(), instances.into());
                self.until_done(move |txn| txn.trim_imported(&name, &instances, AT_ONCE))
                    .await
            }
            Import::ServiceList(names) => {
                let kept = Arc::new(kept(&names));
                self.until_done(move |txn| txn.keep_imported(&kept, AT_ONCE))
                    .await
            }
            small => {
                self.write(move |txn, peering| apply(txn, peering, &small))
                    .await
            }
        }
    }

    /// Repeats a change of what is imported until it says that nothing is left.
    async fn until_done(
        &self,
        change: impl Fn(&mut WriteTxn) -> bool + Clone + Send + 'static,
    ) -> Result<(), NotStored> {
        loop {
            let change = change.clone();
            let is_done = self.write(move |txn, peering| {
                let of_peer = home(peering).of_peer(&peering.name);
                Ok(txn.in_tenancy(&of_peer, &change))
            });
            if is_done.await? {
                return Ok(());
            }
        }
    }

    /// Writes, if the peering is in use and this stream is its newest one.
    async fn write<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut WriteTxn, &Peering) -> Result<T, Rejected> + Send + 'static,
    ) -> Result<T, NotStored> {
        let (id, stream) = (self.id.clone(), self.stream.clone());
        let written = self.store.write(move |txn| {
            let peering = current(txn, &id, &stream).ok_or(NotStored::Replaced)?;
            Ok::<_, NotStored>(change(txn, &peering)?)
        });
        written.await.map(|(_, value)| value)
    }
}

/// The result for the session, unless the stream must end.
fn result_of(written: Result<(), NotStored>) -> Result<Result<(), String>, NotStored> {
    match written {
        Ok(()) => Ok(Ok(())),
        Err(NotStored::Rejected(error)) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// About how many bytes an instance with its node and checks is in the store.
fn instance_size(instance: &CheckServiceNode) -> usize {
    let CheckServiceNode {
        node,
        service,
        checks,
    } = instance;
    let pairs = node.meta.iter().chain(&service.meta);
    let pairs = pairs.chain(&node.tagged_addresses);
    let pairs: usize = pairs.map(|(key, value)| key.len() + value.len() + 8).sum();
    let tags: usize = service.tags.iter().map(|tag| tag.len() + 4).sum();
    let checks = checks.iter();
    let checks: usize = checks
        .map(|check| 256 + check.output.len() + check.notes.len())
        .sum();
    let meta = service.connect.peer_meta.as_deref();
    let meta = meta.map_or(0, |meta| {
        let texts = meta.sni.iter().chain(&meta.spiffe_ids);
        texts.map(|text| text.len() + 4).sum()
    });
    1024 + pairs + 2 * tags + checks + meta
}

/// Instances in groups of at most [`LARGEST_BATCH`].
fn chunks(instances: &[CheckServiceNode]) -> Vec<Arc<[CheckServiceNode]>> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    let mut size = 0;
    for instance in instances {
        let own = instance_size(instance);
        if size + own > LARGEST_BATCH && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk).into());
            size = 0;
        }
        size += own;
        chunk.push(instance.clone());
    }
    chunks.push(chunk.into());
    chunks
}

/// The peering, if it is in use and the stream is its newest one.
pub(super) fn current(txn: &WriteTxn, id: &str, stream: &str) -> Option<Arc<Peering>> {
    let read = txn.read();
    let peering = read
        .peering_by_id(id)
        .filter(|peering| peering.is_active())?;
    let row = read.in_tenancy(&home(&peering), |txn| txn.peering_stream(&peering.name))?;
    (row.id == stream).then_some(peering)
}

fn apply(txn: &mut WriteTxn, peering: &Peering, import: &Import) -> Result<(), Rejected> {
    let home = home(peering);
    let of_peer = home.of_peer(&peering.name);
    match import {
        Import::Service(service) => txn.in_tenancy(&of_peer, |txn| {
            txn.put_imported(&service.name, &service.instances)
        })?,
        // In steps, see `Importer::store_in_steps`.
        Import::ServiceList(names) => {
            let kept = kept(names);
            txn.in_tenancy(&of_peer, |txn| txn.keep_imported(&kept, usize::MAX));
        }
        Import::TrustBundle(bundle) => {
            let bundle = PeerTrustBundle {
                peer_name: peering.name.clone(),
                ..bundle.clone()
            };
            // The next stream is dialed with the roots of now. Servers without TLS stay without.
            let pems = bundle.root_pems.iter();
            let pems: Vec<_> = pems.map(|pem| format!("{}\n", pem.trim_end())).collect();
            txn.in_tenancy(&home, |txn| txn.put_trust_bundle(bundle));
            txn.change_peering(&peering.id, |peering| {
                if !peering.peer_ca_pems.is_empty() {
                    peering.peer_ca_pems = pems;
                }
            });
        }
        Import::ServerAddresses(addresses) => {
            txn.change_peering(&peering.id, |peering| {
                peering.peer_server_addresses.clone_from(addresses);
            });
        }
    }
    Ok(())
}
