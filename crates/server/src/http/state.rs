//! The handles available to endpoints. An endpoint receives those that it names as parameters, as in
//! `State(writer): State<Writer>`. None of them can sign arbitrary certificates: endpoints can only issue
//! service leaves and change the CA configuration.

use std::sync::Arc;

use axum::extract::FromRef;
use legate_ca::{CaManager, ServiceLeaves};
use legate_checks::Reports;
use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Clock};
use legate_store::{Mirror, Writer};
use legate_wan::Wan;
use legate_xds::Proxies;

use super::call::Sources;
use super::dry_run::DryRuns;
use super::events::Events;
use super::operator::Started;
use super::snapshot::Snapshots;
use crate::acl::Logins;
use crate::agent::Agent;
use crate::config::ServerConfig;
use crate::dns::Responder;
use crate::handles::Handles;
use crate::peering::Peerings;
use crate::problems::Problems;
use crate::replication::Status;

/// The router's state.
#[derive(Clone)]
pub(super) struct ApiState {
    handles: Arc<Handles>,
    snapshots: Snapshots,
    dry_runs: DryRuns,
    events: Events,
    started: Started,
}

impl ApiState {
    pub(super) fn new(handles: Handles) -> Self {
        Self {
            snapshots: Snapshots::new(&handles),
            dry_runs: DryRuns::new(&handles),
            events: Events::new(),
            started: Started(handles.clock.now()),
            handles: Arc::new(handles),
        }
    }
}

/// Implements the extraction of handles from the state.
macro_rules! handles {
    ($($handle:ty: $get:expr;)+) => {$(
        impl FromRef<ApiState> for $handle {
            fn from_ref(state: &ApiState) -> Self {
                let get: fn(&ApiState) -> Self = $get;
                get(state)
            }
        }
    )+};
}

handles! {
    Sources: |state| Sources {
        config: Arc::clone(&state.handles.config),
        reader: state.handles.store.reader(),
        rights: state.handles.rights(),
        stop: state.handles.spawner.token(),
    };
    Writer: |state| state.handles.store.writer();
    Arc<Agent>: |state| Arc::clone(&state.handles.agent);
    CaManager: |state| state.handles.ca_manager.clone();
    ServiceLeaves: |state| state.handles.leaves.clone();
    Reports: |state| state.handles.reports.clone();
    Logins: |state| state.handles.logins();
    DryRuns: |state| state.dry_runs.clone();
    Events: |state| state.events.clone();
    Started: |state| state.started;
    Snapshots: |state| state.snapshots.clone();
    Arc<ServerConfig>: |state| Arc::clone(&state.handles.config);
    Clock: |state| state.handles.clock.clone();
    Proxies: |state| state.handles.proxies.clone();
    Option<Status>: |state| state.handles.replication.clone();
    Option<Wan>: |state| state.handles.wan.clone();
    Option<Mirror>: |state| state.handles.mirror.clone();
    Peerings: |state| state.handles.peerings.clone();
    Problems: |state| state.handles.problems.clone();
    Responder: |state| state.handles.responder();
    Registry: |state| state.handles.registry.clone();
    CancellationToken: |state| state.handles.spawner.token();
}
