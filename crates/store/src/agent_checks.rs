//! How the agents of nodes run their checks. Each such check also has a row in the catalog with its
//! results; the two rows are removed together.

use std::sync::Arc;

use legate_model::{CheckStatus, CheckType, DefinedCheck, HealthCheck, Tenancy, sidecar_id};

use crate::read::ReadTxn;
use crate::registration::Deregistration;
use crate::rejected::Rejected;
use crate::rows::{AgentCheckRow, FileServiceRow, Source};
use crate::write::WriteTxn;

/// How a node's agent runs one check.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentCheck {
    /// The tenancy of the check.
    pub tenancy: Tenancy,
    /// The id of the check on its node.
    pub check_id: String,
    /// The check's type, target and interval.
    pub definition: Arc<CheckType>,
    /// The source of the definition.
    pub source: Source,
}

impl ReadTxn<'_> {
    /// The checks that a node's agent runs, ordered by id.
    pub fn agent_checks(&self, node: &str) -> Vec<AgentCheck> {
        let rows: Vec<Arc<AgentCheckRow>> = self.scan(&[node]);
        rows.iter()
            .map(|row| AgentCheck::of(row, &self.tenancy))
            .collect()
    }

    /// The ids of the instances defined in the configuration files of the node's agent, including
    /// deregistered ones.
    pub fn services_from_files(&self, node: &str) -> Vec<String> {
        let rows: Vec<Arc<FileServiceRow>> = self.scan(&[node]);
        rows.iter().map(|row| row.id.clone()).collect()
    }

    fn is_from_files(&self, node: &str, id: &str) -> bool {
        self.get::<FileServiceRow>(&[node, id]).is_some()
    }

    /// One check that a node's agent runs.
    pub fn agent_check(&self, node: &str, check_id: &str) -> Option<AgentCheck> {
        let home = self.home_of_check(node, check_id);
        let row: Arc<AgentCheckRow> = self.in_tenancy(&home, |txn| txn.get(&[node, check_id]))?;
        Some(AgentCheck::of(&row, &home))
    }
}

impl AgentCheck {
    fn of(row: &AgentCheckRow, tenancy: &Tenancy) -> Self {
        Self {
            tenancy: tenancy.clone(),
            check_id: row.check_id.clone(),
            definition: Arc::clone(&row.definition),
            source: row.source,
        }
    }
}

impl WriteTxn {
    /// Upserts a check that the node's agent runs.
    ///
    /// # Errors
    /// [`Rejected`] names the problem. The transaction must be aborted then.
    pub fn put_agent_check(
        &mut self,
        node: &str,
        defined: DefinedCheck,
        source: Source,
    ) -> Result<(), Rejected> {
        let DefinedCheck {
            check,
            mut definition,
        } = defined;
        definition.namespace = self.tenancy.shown_namespace();
        definition.partition = self.tenancy.shown_partition();
        let check_id = check.check_id.clone();
        self.put_check(node, check)?;
        let known = self.read().agent_check(node, &check_id);
        let same = |known: AgentCheck| {
            *known.definition == definition && known.check_id == check_id && known.source == source
        };
        if !known.is_some_and(same) {
            let row = AgentCheckRow {
                node: node.to_owned(),
                check_id,
                definition: Arc::new(definition),
                source,
                modify_index: self.index(),
            };
            let home = self.read().home_of_check(node, &row.check_id);
            self.in_tenancy(&home, |txn| txn.put(row));
        }
        Ok(())
    }

    /// Stores the result of a check run, if the check is still the one that was run. Returns
    /// whether it is.
    pub fn put_check_result(
        &mut self,
        node: &str,
        run: &AgentCheck,
        status: CheckStatus,
        output: &str,
    ) -> bool {
        let same = self.read().agent_check(node, &run.check_id).as_ref() == Some(run);
        let Some(check) = self.read().check(node, &run.check_id).filter(|_| same) else {
            return false;
        };
        if status == CheckStatus::Critical {
            self.end_sessions_of_check(&check);
        }
        if check.status != status || check.output != output {
            let changed = HealthCheck {
                status,
                output: output.to_owned(),
                modify_index: self.index(),
                ..HealthCheck::clone(&check)
            };
            self.put_at_home(changed);
        }
        true
    }

    /// Assigns a check a port at the sidecar of its service, or removes it (0), if the check is
    /// unchanged since `run` was read. The catalog's check then also contains the sidecar's target:
    /// the URL or the gRPC service.
    pub fn expose_check(&mut self, node: &str, run: &AgentCheck, port: u16) {
        let same = self.read().agent_check(node, &run.check_id).as_ref() == Some(run);
        let Some(check) = self.read().check(node, &run.check_id).filter(|_| same) else {
            return;
        };
        let mut exposed = HealthCheck::clone(&check);
        exposed.expose(port, &run.definition);
        if exposed != *check {
            exposed.modify_index = self.index();
            self.put_at_home(exposed);
        }
    }

    /// Replaces a check in its own tenancy.
    fn put_at_home(&mut self, check: HealthCheck) {
        let home = Tenancy::new(&check.partition, &check.namespace);
        self.in_tenancy(&home, |txn| txn.put(check));
    }

    /// Removes an instance and the sidecar that was registered with it.
    pub fn deregister_with_sidecar(&mut self, node: &str, id: &str) {
        let instance = |id: &str| Deregistration {
            node: node.to_owned(),
            service_id: Some(id.to_owned()),
            check_id: None,
        };
        self.deregister(&instance(id));
        let sidecar = sidecar_id(id);
        let found = self.read().instance(node, &sidecar);
        let is_of_it = |proxy: &legate_model::CheckServiceNode| {
            let of = &proxy.service.proxy.destination_service_id;
            of.eq_ignore_ascii_case(id)
        };
        if found.as_ref().is_some_and(is_of_it) {
            self.deregister(&instance(&sidecar));
        }
    }

    /// Records the source of an instance's definition.
    pub fn set_service_source(&mut self, node: &str, id: &str, source: Source) {
        let known = self.read().is_from_files(node, id);
        match source {
            Source::Files if !known => {
                let row = FileServiceRow {
                    node: node.to_owned(),
                    id: id.to_owned(),
                    modify_index: self.index(),
                };
                self.put(row);
            }
            Source::Api if known => {
                self.remove::<FileServiceRow>(&[node, id]);
            }
            Source::Files | Source::Api => {}
        }
    }
}
