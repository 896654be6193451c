//! `legate proxy config POD`: prints the configuration of the sidecar's Envoy, from `/config_dump`.

use clap::{Args, ValueEnum};

use super::target::Target;
use crate::kubernetes::forward::LARGE;
use crate::kubernetes::{Output, dump};

/// Options of `legate proxy config`.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// The part to print
    #[arg(value_enum, default_value_t = Part::All, value_name = "PART")]
    part: Part,
    /// Output format; JSON is Envoy's own document
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

/// A part of Envoy's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Clusters,
    Endpoints,
    Listeners,
    Routes,
    Secrets,
    All,
}

impl Part {
    fn kinds(self) -> &'static [dump::Kind] {
        use dump::Kind;
        match self {
            Part::Clusters => &[Kind::Clusters],
            Part::Endpoints => &[Kind::Endpoints],
            Part::Listeners => &[Kind::Listeners],
            Part::Routes => &[Kind::Routes],
            Part::Secrets => &[Kind::Secrets],
            Part::All => &Kind::ALL,
        }
    }
}

pub(super) async fn run(options: Options) -> anyhow::Result<String> {
    let found = options.target.find().await?;
    let (client, sidecar) = (&found.client, &found.sidecar);
    // Only the port of the admin interface is needed.
    let status = sidecar.status(client).await.ok();
    let path = "/config_dump?include_eds";
    let mut document = sidecar.admin(client, status.as_ref(), path, LARGE).await?;
    dump::redact(&mut document);
    Ok(match (options.output, options.part) {
        (Output::Json, Part::All) => format!("{document:#}\n"),
        (Output::Json, part) => {
            let configs = part.kinds().iter();
            let configs: Vec<_> = configs.filter_map(|kind| kind.of(&document)).collect();
            format!("{:#}\n", serde_json::json!({ "configs": configs }))
        }
        (Output::Text, part) => {
            let tables = part.kinds().iter().map(|kind| kind.text(&document));
            tables.collect::<Vec<_>>().join("\n")
        }
    })
}
