//! `legate check`: checks the health of the mesh on a Kubernetes cluster.

pub(super) mod collect;
mod datacenters;
mod facts;
mod finding;
mod findings;
pub(super) mod mesh_pods;
mod pods;
pub(super) mod release;
mod report;
mod servers;
#[cfg(test)]
mod tests;
mod validity;
mod webhook;

use std::io::Write;

use clap::Args;

use super::{Cluster, Output};

/// Options of `legate check`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Namespace of the release. Default: found by the operator's labels
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

/// Runs all checks, prints a line for each finding, and returns whether none failed.
///
/// # Errors
///
/// If there is no cluster, or more than one release to choose from.
pub(crate) async fn run(options: Options) -> anyhow::Result<bool> {
    let client = options.cluster.client().await?;
    let findings = match collect::collect(&client, options.namespace.as_deref()).await? {
        Ok(facts) => findings::all(&facts),
        // Without a release or an API server no other check is possible.
        Err(finding) => vec![*finding],
    };
    let text = match options.output {
        Output::Text => report::text(&findings),
        Output::Json => report::json(&findings),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(report::healthy(&findings))
}
