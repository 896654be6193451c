//! Peerings with other clusters: their secrets, the streams that servers hold, and the roots of the other clusters.
//!
//! What is imported is in [`crate::imports`].

use std::sync::Arc;
use std::time::SystemTime;

use legate_model::{PeerTrustBundle, Peering, PeeringState, PeeringStream, Secret, Tenancy};
use subtle::ConstantTimeEq;

use crate::key::Table;
use crate::read::ReadTxn;
use crate::write::WriteTxn;

/// Why a secret of a peering was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretRefused {
    /// There is no such peering, or it was deleted.
    #[error("there is no peering with this id: a new peering token must be generated")]
    NoPeering,
    /// It is not the secret of the peering.
    #[error("it is not the secret of the peering: a new peering token must be generated")]
    Wrong,
}

impl ReadTxn<'_> {
    /// The peering with another cluster, by its local name, in the current partition.
    pub fn peering(&self, name: &str) -> Option<Arc<Peering>> {
        self.here(|txn| txn.get(&[name]))
    }

    /// The peering with an id, in any partition.
    pub fn peering_by_id(&self, id: &str) -> Option<Arc<Peering>> {
        self.find(self.key(Table::PeeringsById, &[id]))
    }

    /// The peerings of the current partition, ordered by name.
    pub fn peerings(&self) -> Vec<Arc<Peering>> {
        self.here(|txn| txn.scan(&[]))
    }

    /// The peerings of all partitions, ordered by id.
    pub fn peerings_of_all(&self) -> Vec<Arc<Peering>> {
        self.find_all(Table::PeeringsById, &[])
    }

    /// What is known of the stream of a peering.
    pub fn peering_stream(&self, peer: &str) -> Option<Arc<PeeringStream>> {
        self.here(|txn| txn.get(&[peer]))
    }

    /// The roots of another cluster.
    pub fn trust_bundle(&self, peer: &str) -> Option<Arc<PeerTrustBundle>> {
        self.here(|txn| txn.get(&[peer]))
    }

    /// The roots of all other clusters that the current partition is peered with, ordered by name of the peer.
    pub fn trust_bundles(&self) -> Vec<Arc<PeerTrustBundle>> {
        self.here(|txn| txn.scan(&[]))
    }

    /// Peerings belong to a partition of this cluster, from wherever in it they are read.
    fn here<T>(&self, look: impl FnOnce(&Self) -> T) -> T {
        match self.tenancy.peer.is_empty() {
            true => look(self),
            false => {
                let own = self.tenancy.of_peer("");
                self.in_tenancy(&own, |txn| look(txn))
            }
        }
    }
}

/// The tenancy of what belongs to a peering: the partition that is peered.
fn home(peering: &Peering) -> Tenancy {
    Tenancy::new(&peering.partition, &legate_model::TenancyName::default())
}

impl WriteTxn {
    /// Upserts a peering by its name.
    pub fn put_peering(&mut self, mut peering: Peering) {
        peering.partition = self.tenancy.shown_partition();
        let existing = self.read().peering(&peering.name);
        let index = self.index();
        peering.create_index = existing.as_ref().map_or(index, |old| old.create_index);
        peering.modify_index = existing.as_ref().map_or(index, |old| old.modify_index);
        if existing.as_deref() != Some(&peering) {
            peering.modify_index = index;
            self.put(peering);
        }
    }

    /// Changes a peering that was not deleted here. Returns whether there is one.
    pub fn change_peering(&mut self, id: &str, change: impl FnOnce(&mut Peering)) -> bool {
        let Some(existing) = self.read().peering_by_id(id) else {
            return false;
        };
        if existing.deleted_at.is_some() {
            return false;
        }
        let mut peering = Peering::clone(&existing);
        change(&mut peering);
        self.in_tenancy(&home(&existing), |txn| txn.put_peering(peering));
        true
    }

    /// Marks a peering as deleted. It is removed when nothing is imported from it any more. Without effect if it is
    /// absent or marked already.
    pub fn mark_peering_deleted(&mut self, name: &str, now: SystemTime) {
        let Some(existing) = self.read().peering(name) else {
            return;
        };
        self.change_peering(&existing.id, |peering| {
            peering.state = PeeringState::Deleting;
            peering.deleted_at = Some(now);
            peering.establishment_secret = Secret::default();
            peering.pending_secret = Secret::default();
            peering.active_secret = Secret::default();
        });
    }

    /// Notes that the other cluster has deleted the peering.
    pub fn terminate_peering(&mut self, id: &str) {
        self.change_peering(id, |peering| peering.state = PeeringState::Terminated);
    }

    /// Removes a peering of which nothing is left, with its stream and trust bundle.
    pub fn remove_peering(&mut self, name: &str) {
        self.remove_peering_roots(name);
        self.remove::<Peering>(&[name]);
    }

    /// Removes the roots of another cluster, and what is known of the stream.
    pub fn remove_peering_roots(&mut self, name: &str) {
        self.remove::<PeerTrustBundle>(&[name]);
        self.remove::<PeeringStream>(&[name]);
    }

    /// Exchanges the secret of a token, which can be used once, for one that opens the stream.
    ///
    /// # Errors
    /// [`SecretRefused`]. Nothing is changed.
    pub fn exchange_peering_secret(
        &mut self,
        id: &str,
        given: &Secret,
        pending: Secret,
    ) -> Result<(), SecretRefused> {
        let peering = self.read().peering_by_id(id);
        let peering = peering.filter(|peering| peering.is_active());
        let peering = peering.ok_or(SecretRefused::NoPeering)?;
        if !is_same(given, &peering.establishment_secret) {
            return Err(SecretRefused::Wrong);
        }
        self.change_peering(id, |peering| {
            peering.establishment_secret = Secret::default();
            peering.pending_secret = pending;
        });
        Ok(())
    }

    /// Makes the pending secret the one that opens the stream.
    ///
    /// # Errors
    /// [`SecretRefused`]. Nothing is changed.
    pub fn promote_peering_secret(
        &mut self,
        id: &str,
        given: &Secret,
    ) -> Result<(), SecretRefused> {
        let peering = self.read().peering_by_id(id);
        let peering = peering.ok_or(SecretRefused::NoPeering)?;
        if !is_same(given, &peering.pending_secret) {
            return Err(SecretRefused::Wrong);
        }
        self.change_peering(id, |peering| {
            peering.active_secret = std::mem::take(&mut peering.pending_secret);
        });
        Ok(())
    }

    /// Makes a stream the one that may import, in the place of any earlier one.
    pub fn open_peering_stream(&mut self, mut stream: PeeringStream) {
        stream.was_connected = stream.is_connected
            || self
                .read()
                .peering_stream(&stream.peer)
                .is_some_and(|earlier| earlier.was_connected);
        stream.modify_index = self.index();
        self.put(stream);
    }

    /// Stores what is known of a stream, unless another one has replaced it. Returns whether it is still the one.
    pub fn put_peering_stream(&mut self, mut stream: PeeringStream) -> bool {
        let Some(existing) = self.read().peering_stream(&stream.peer) else {
            return false;
        };
        if existing.id != stream.id {
            return false;
        }
        stream.was_connected |= existing.was_connected;
        stream.modify_index = existing.modify_index;
        if *existing != stream {
            stream.modify_index = self.index();
            self.put(stream);
        }
        true
    }

    /// Stores the roots of another cluster, unless they are stored already.
    pub fn put_trust_bundle(&mut self, mut bundle: PeerTrustBundle) {
        let existing = self.read().trust_bundle(&bundle.peer_name);
        let index = self.index();
        bundle.partition = self.tenancy.shown_partition().to_string();
        bundle.create_index = existing.as_ref().map_or(index, |old| old.create_index);
        bundle.modify_index = existing.as_ref().map_or(index, |old| old.modify_index);
        if existing.as_deref() != Some(&bundle) {
            bundle.modify_index = index;
            self.put(bundle);
        }
    }
}

/// Whether two secrets are the same, in constant time. An empty one is never accepted.
pub(crate) fn is_same(given: &Secret, stored: &Secret) -> bool {
    let (given, stored) = (given.expose().as_bytes(), stored.expose().as_bytes());
    !stored.is_empty() && bool::from(given.ct_eq(stored))
}
