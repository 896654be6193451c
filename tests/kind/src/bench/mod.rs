//! `legate-kind bench`: the cost of the mesh in a cluster. It installs the chart, measures, prints
//! tables, and removes everything including the chart. It makes no assertions.
//!
//! Times are by this program's clock: it watches the API server and sends blocking queries to the
//! servers. Events inside a container are read from its log.

mod admission;
mod api;
mod figures;
mod gateway_api;
mod readiness;
mod scale;
mod simulated;
mod stages;

use clap::Args;

use self::api::Api;
use crate::cluster::Cluster;
use crate::{mesh, scenarios};

/// The scope of the measurement.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of pod starts
    #[arg(long, default_value_t = 10)]
    pod_starts: u32,
    /// Number of simulated pods for the operator's memory
    #[arg(long, default_value_t = 1000)]
    simulated_pods: u32,
    /// Number of admissions per row
    #[arg(long, default_value_t = 500)]
    admissions: u32,
    /// Number of readiness changes of a pod
    #[arg(long, default_value_t = 50)]
    changes: u32,
    /// Measure the operator with many objects of the Gateway API instead
    #[arg(long)]
    gateways: bool,
}

/// Runs all parts in sequence.
pub(crate) fn run(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if options.gateways {
        scenarios::define_gateway_api(cluster)?;
    }
    let values: &[&str] = match options.gateways {
        true => scenarios::GATEWAY_API_VALUES,
        false => &[],
    };
    mesh::install(cluster, values)?;
    let measured = runtime.block_on(measure(cluster, options));
    let release = mesh::namespace(cluster);
    let measured = measured.map_err(|error| error.context(release.describe()));
    let removed = mesh::OWN.uninstall();
    measured.and(removed)
}

async fn measure(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let api = Api::connect().await?;
    if options.gateways {
        return gateway_api::measure(cluster, &api).await;
    }
    let memory = scale::idle(&api).await?;
    simulated::add_node(&api).await?;
    // A failed part does not prevent the others.
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
