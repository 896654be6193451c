//! `rtt`: estimates the round-trip time between two nodes from their network coordinates.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::local_agent::node_name;
use crate::output::{line, list, text};
use crate::server_api::ApiFlags;

#[derive(Args)]
pub(crate) struct Options {
    /// Between servers of datacenters, given as SERVER.DATACENTER
    #[arg(long)]
    wan: bool,
    /// NODE, and another NODE [default: the agent's]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Prints the estimate.
///
/// # Errors
///
/// If a node has no coordinate, or the request fails.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let (one, other) = match options.arguments.as_slice() {
        [one] if options.wan => {
            bail!("Two server names must be specified when using -wan, only got {one:?}")
        }
        [one] => (one.clone(), node_name(&api).await?),
        [one, other] => {
            let named = [one, other].iter().all(|name| name.contains('.'));
            ensure!(
                named || !options.wan,
                "Node names must be specified as <node name>.<datacenter> with -wan"
            );
            (one.clone(), other.clone())
        }
        _ => bail!("One or two node names must be specified"),
    };
    let (path, area) = match options.wan {
        true => ("/v1/coordinate/datacenters", "WAN"),
        false => ("/v1/coordinate/nodes", "LAN"),
    };
    let coordinates = api
        .get(path)
        .value()
        .await
        .context("Error getting coordinates")?;
    let of = |node: &str| {
        let found = find(&coordinates, node, options.wan);
        found.with_context(|| format!("Could not find a coordinate for node {node:?}"))
    };
    let distance = distance(of(&one)?, of(&other)?);
    let milliseconds = distance.as_secs_f64() * 1000.0;
    line(&format!(
        "Estimated {one} <-> {other} rtt: {milliseconds:.3} ms (using {area} coordinates)"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn find<'a>(coordinates: &'a Value, node: &str, wan: bool) -> Option<&'a Value> {
    let mut all = coordinates.as_array().into_iter().flatten();
    if !wan {
        return all
            .find(|one| text(one, "Node") == node)
            .map(|one| &one["Coord"]);
    }
    let (server, datacenter) = node.rsplit_once('.')?;
    let area = all.find(|area| text(area, "Datacenter") == datacenter)?;
    let mut servers = list(area, "Coordinates").iter();
    servers
        .find(|one| text(one, "Node") == server)
        .map(|one| &one["Coord"])
}

/// The distance of two Vivaldi coordinates. The adjustments are added unless the result would not
/// be positive.
fn distance(one: &Value, other: &Value) -> Duration {
    let number = |of: &Value, field: &str| of[field].as_f64().unwrap_or_default();
    let vector =
        |of: &Value| -> Vec<f64> { list(of, "Vec").iter().filter_map(Value::as_f64).collect() };
    let (a, b) = (vector(one), vector(other));
    let squares = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2));
    let heights = number(one, "Height") + number(other, "Height");
    let plain = squares.sum::<f64>().sqrt() + heights;
    let adjusted = plain + number(one, "Adjustment") + number(other, "Adjustment");
    let seconds = if adjusted > 0.0 { adjusted } else { plain };
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn heights_and_adjustments_count() {
        let one = json!({"Vec": [0.0, 0.003], "Height": 0.001, "Adjustment": 0.0005});
        let other = json!({"Vec": [0.004, 0.0], "Height": 0.001, "Adjustment": 0.0005});
        assert_eq!(distance(&one, &other).as_micros(), 8000);
        let low = json!({"Vec": [0.0], "Height": 0.001, "Adjustment": -1.0});
        assert_eq!(distance(&low, &low).as_micros(), 2000);
    }
}
