//! `operator usage`: prints usage of the cluster.

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::input;
use crate::output::{line, number, tabbed};
use crate::server_api::ApiOptions;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the number of service instances
    Instances(Instances),
}

#[derive(Args)]
pub(crate) struct Instances {
    /// Only instances that a Consul licence would bill
    #[arg(long)]
    billable: bool,
    /// Only instances in the mesh
    #[arg(long)]
    connect: bool,
    /// Include all datacenters
    #[arg(long)]
    all_datacenters: bool,
    #[command(flatten)]
    api: ApiOptions,
}

pub(super) async fn run(Command::Instances(options): Command) -> anyhow::Result<()> {
    input::none(&options.api.arguments)?;
    ensure!(
        !(options.billable && options.connect),
        "Cannot specify both -billable and -connect flags"
    );
    let api = options.api.connect()?;
    let usage = api
        .get("/v1/operator/usage")
        .flag("global", options.all_datacenters)
        .value();
    let usage = usage.await.context("Error fetching usage information")?;
    let usage = &usage["Usage"];
    if !options.connect {
        let total: u64 = each(usage).map(|(_, usage)| billable(usage)).sum();
        line(&format!("Billable Service Instances Total: {total}"))?;
        for (datacenter, usage) in each(usage) {
            let count = billable(usage);
            line(&format!("{datacenter} Billable Service Instances: {count}"))?;
        }
        line("\nBillable Services")?;
        line(&format!("{}\n", services(usage, options.all_datacenters)))?;
        line("\nNodes")?;
        line(&format!("{}\n\n", nodes(usage)))?;
    }
    if !options.billable {
        line("Connect Services")?;
        line(&connect(usage, options.all_datacenters))?;
    }
    Ok(())
}

/// The datacenters with their usage, sorted by name.
fn each(usage: &Value) -> impl Iterator<Item = (&String, &Value)> {
    usage.as_object().into_iter().flatten()
}

fn billable(usage: &Value) -> u64 {
    number(usage, "BillableServiceInstances")
}

/// Formats rows, with the datacenter as first column if shown.
fn table(rows: Vec<Vec<String>>, datacenter: bool) -> String {
    let skip = usize::from(!datacenter);
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.into_iter().skip(skip).collect())
        .collect();
    tabbed(&rows).trim().to_owned()
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn services(usage: &Value, datacenter: bool) -> String {
    let mut rows = vec![row(["Datacenter", "Services", "Service instances"])];
    let (mut all, mut all_instances) = (0, 0);
    for (name, usage) in each(usage) {
        let (services, instances) = (number(usage, "Services"), billable(usage));
        rows.push(row([name, &services.to_string(), &instances.to_string()]));
        (all, all_instances) = (all + services, all_instances + instances);
    }
    if datacenter {
        rows.push(row(["", "", ""]));
        rows.push(row(["Total", &all.to_string(), &all_instances.to_string()]));
    }
    table(rows, datacenter)
}

fn connect(usage: &Value, datacenter: bool) -> String {
    let mut rows = vec![row(["Datacenter", "Type", "Service instances"])];
    let mut all = 0;
    for (name, usage) in each(usage) {
        for (kind, count) in usage["ConnectServiceInstances"]
            .as_object()
            .into_iter()
            .flatten()
        {
            rows.push(row([name, kind, &count.to_string()]));
            all += count.as_u64().unwrap_or_default();
        }
    }
    if datacenter {
        rows.push(row(["", "", ""]));
        rows.push(row(["Total", "", &all.to_string()]));
    }
    table(rows, datacenter)
}

fn nodes(usage: &Value) -> String {
    let mut rows = vec![row(["Datacenter", "Count", "", ""])];
    let mut all = 0;
    for (name, usage) in each(usage) {
        let nodes = number(usage, "Nodes");
        rows.push(row([name, &nodes.to_string()]));
        all += nodes;
    }
    rows.push(row(["", ""]));
    rows.push(row(["Total", &all.to_string()]));
    table(rows, true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_formatted_as_tables() {
        let usage = json!({"dc1": {"Services": 1, "BillableServiceInstances": 0, "Nodes": 1,
            "ConnectServiceInstances": {"connect-native": 0, "mesh-gateway": 2}}});
        assert_eq!(
            services(&usage, false),
            "Services      Service instances\n1             0"
        );
        assert_eq!(
            connect(&usage, false),
            "Type                Service instances\nconnect-native      0\nmesh-gateway        2"
        );
        assert!(nodes(&usage).ends_with("\nTotal           1"));
    }
}
