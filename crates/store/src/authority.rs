//! The CA's roots, its signing key and its configuration.

use std::sync::Arc;

use legate_model::{CaConfiguration, CaRoots};

use crate::ca_state::CaState;
use crate::read::ReadTxn;
use crate::rows::CaRow;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// The CA's state with its signing key, `None` until the CA is initialised.
    pub fn ca(&self) -> Option<Arc<CaState>> {
        self.get::<CaRow>(&[]).map(|row| Arc::clone(&row.ca))
    }

    /// The CA's public certificates, `None` until the CA is initialised.
    pub fn ca_roots(&self) -> Option<Arc<CaRoots>> {
        self.ca().map(|ca| Arc::clone(&ca.roots))
    }

    /// The CA's configuration with its secrets, `None` until it is set.
    pub fn ca_configuration(&self) -> Option<Arc<CaConfiguration>> {
        self.get::<CaConfiguration>(&[])
    }
}

impl WriteTxn {
    /// Replaces the CA's roots and signing key.
    pub fn put_ca(&mut self, mut ca: CaState) {
        let old = self.read().ca();
        let index = self.index();
        let mut roots = CaRoots::clone(&ca.roots);
        for root in &mut roots.roots {
            let old = old.as_ref();
            let known = old.and_then(|old| old.roots.roots.iter().find(|r| r.id == root.id));
            root.create_index = known.map_or(index, |r| r.create_index);
            root.modify_index = known.map_or(index, |r| r.modify_index);
            if known.is_some_and(|known| known != root) {
                root.modify_index = index;
            }
        }
        ca.roots = Arc::new(roots);
        if old.as_deref() != Some(&ca) {
            self.put(CaRow {
                ca: Arc::new(ca),
                modify_index: index,
            });
        }
    }

    /// Replaces the CA's configuration. Its indexes are ignored.
    pub fn put_ca_configuration(&mut self, mut configuration: CaConfiguration) {
        let old = self.read().ca_configuration();
        let old = old.as_deref();
        configuration.create_index = old.map_or(self.index(), |old| old.create_index);
        configuration.modify_index = old.map_or(0, |old| old.modify_index);
        if old != Some(&configuration) {
            configuration.modify_index = self.index();
            self.put(configuration);
        }
    }
}
