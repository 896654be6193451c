//! The mesh gateways of each datacenter. The primary stores what each datacenter says of itself; secondaries get it by
//! replication.

use std::sync::Arc;
use std::time::SystemTime;

use legate_model::{CheckServiceNode, FederationState, ServiceKind, Tenancy};

use crate::read::ReadTxn;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// The mesh gateways of a datacenter, as it last said.
    pub fn federation_state(&self, datacenter: &str) -> Option<Arc<FederationState>> {
        self.get(&[datacenter])
    }

    /// The mesh gateways of all datacenters, ordered by datacenter.
    pub fn federation_states(&self) -> Vec<Arc<FederationState>> {
        self.scan(&[])
    }

    /// The mesh gateways of this datacenter that others are to know: those of the default partition.
    pub fn own_mesh_gateways(&self) -> Vec<CheckServiceNode> {
        self.in_tenancy(&Tenancy::default(), |txn| {
            txn.gateways_of_kind(ServiceKind::MeshGateway)
        })
    }
}

impl WriteTxn {
    /// Stores the mesh gateways of a datacenter, unless they are stored already. For the primary datacenter.
    pub fn put_mesh_gateways(
        &mut self,
        datacenter: &str,
        gateways: &[CheckServiceNode],
        now: SystemTime,
    ) {
        let existing = self.read().federation_state(datacenter);
        if existing
            .as_ref()
            .is_some_and(|existing| existing.has_gateways(gateways))
        {
            return;
        }
        let index = self.index();
        self.put(FederationState {
            datacenter: datacenter.to_ascii_lowercase(),
            mesh_gateways: gateways.to_vec(),
            updated_at: now,
            primary_modify_index: index,
            create_index: existing.map_or(index, |existing| existing.create_index),
            modify_index: index,
        });
    }

    /// Forgets the mesh gateways of a datacenter. A no-op if they are not stored.
    pub fn remove_mesh_gateways(&mut self, datacenter: &str) {
        self.remove::<FederationState>(&[datacenter]);
    }
}
