//! `legate-kind bench`: what the mesh costs in a cluster. It installs the chart, measures, prints tables
//! and removes what it made, the chart included. It passes no judgement.
//!
//! Times are by this program's clock: it watches the API server, and asks the servers with requests that
//! wait for a change. What only a container knows is read from its log.

mod admission;
mod api;
mod figures;
mod readiness;
mod scale;
mod simulated;
mod stages;

use clap::Args;

use self::api::Api;
use crate::cluster::Cluster;
use crate::mesh;

/// How much is measured.
#[derive(Args)]
pub(crate) struct Options {
    /// How often a pod is started
    #[arg(long, default_value_t = 10)]
    pod_starts: u32,
    /// How many pods are simulated for the operator's memory
    #[arg(long, default_value_t = 1000)]
    simulated_pods: u32,
    /// How many pods are sent to admission in each row
    #[arg(long, default_value_t = 500)]
    admissions: u32,
    /// How often the readiness of a pod changes
    #[arg(long, default_value_t = 50)]
    changes: u32,
}

/// Measures everything, one part after the other.
pub(crate) fn run(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    mesh::install(cluster)?;
    let measured = runtime.block_on(measure(cluster, options));
    let release = mesh::namespace(cluster);
    let measured = measured.map_err(|error| error.context(release.describe()));
    let removed = mesh::OWN.uninstall();
    measured.and(removed)
}

async fn measure(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let api = Api::connect().await?;
    let memory = scale::idle(&api).await?;
    simulated::add_node(&api).await?;
    // A part that fails does not keep the others from being measured.
    let parts = [
        stages::measure(cluster, &api, options.pod_starts).await,
        readiness::measure(cluster, &api, options.changes).await,
        admission::measure(cluster, &api, options.admissions).await,
        scale::measure(cluster, &api, memory, options.simulated_pods).await,
    ];
    let removed = simulated::remove_node(&api).await;
    parts
        .into_iter()
        .collect::<anyhow::Result<()>>()
        .and(removed)
}
