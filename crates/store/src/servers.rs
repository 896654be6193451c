//! Settings of operators for servers.

use std::sync::Arc;

use legate_model::AutopilotConfiguration;

use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// The autopilot configuration, `None` until it is set.
    pub fn autopilot(&self) -> Option<Arc<AutopilotConfiguration>> {
        self.get(&[])
    }
}

impl WriteTxn {
    /// Replaces the autopilot configuration. `cas`: only if this is the stored modify index; 0:
    /// only if there is none.
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
}
