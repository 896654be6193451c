//! What operators set for servers, and the clusters that are known.

use std::sync::Arc;

use legate_model::{AutopilotConfiguration, Peering};

use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// How servers look after each other, if anybody has said so.
    pub fn autopilot(&self) -> Option<Arc<AutopilotConfiguration>> {
        self.get(&[])
    }

    /// Another cluster, by what it is called here.
    pub fn peering(&self, name: &str) -> Option<Arc<Peering>> {
        self.get(&[name])
    }

    /// All other clusters in the order of their names.
    pub fn peerings(&self) -> Vec<Arc<Peering>> {
        self.scan(&[])
    }
}

impl WriteTxn {
    /// Replaces how servers look after each other. `cas`: only when the stored modify index is this one;
    /// 0: only when there is none.
    ///
    /// # Errors
    /// [`Rejected::CasMismatch`].
    pub fn put_autopilot(
        &mut self,
        mut configuration: AutopilotConfiguration,
        cas: Option<u64>,
    ) -> Result<(), Rejected> {
        let existing = self.read().autopilot();
        let actual = existing.as_ref().map_or(0, |old| old.modify_index);
        if let Some(expected) = cas
            && expected != actual
        {
            return Err(Rejected::CasMismatch {
                object: "the autopilot configuration".to_owned(),
                expected,
                actual,
            });
        }
        let index = self.index();
        configuration.create_index = existing.as_ref().map_or(index, |old| old.create_index);
        configuration.modify_index = index;
        self.put(configuration);
        Ok(())
    }

    /// Adds or replaces what is known of another cluster, found by its name.
    pub fn put_peering(&mut self, mut peering: Peering) {
        let existing = self.read().peering(&peering.name);
        let index = self.index();
        peering.create_index = existing.as_ref().map_or(index, |old| old.create_index);
        peering.modify_index = index;
        self.put(peering);
    }

    /// Forgets another cluster. One that does not exist is no error.
    pub fn remove_peering(&mut self, name: &str) {
        self.remove::<Peering>(&[name]);
    }
}
