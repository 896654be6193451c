//! `cargo xtask kind gateway-api`: the conformance suite of the Gateway API, with its own images, in a cluster
//! with the chart. `legate-kind gateway-api` (`tests/kind/src/gateway_api`) runs it there; this module builds it
//! and selects its tests.

mod images;
mod suite;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use self::suite::{CHANNELS, Suite};
use super::cache::Cache;
use super::node::{LOAD_BALANCERS, Lifetime};
use super::{Kind, Times, image};
use crate::workspace::{self, Workspace};

/// The suite's profiles for gateways, and those for the mesh.
const GATEWAY: [&str; 5] = [
    "GATEWAY-HTTP",
    "GATEWAY-GRPC",
    "GATEWAY-TLS",
    "GATEWAY-TCP",
    "GATEWAY-UDP",
];
const MESH: [&str; 2] = ["MESH-HTTP", "MESH-GRPC"];
/// The profiles of which the core tests run if nothing is named.
const DEFAULT: [&str; 2] = [GATEWAY[0], GATEWAY[1]];
/// What the mesh claims. No object of the standard channel could claim it; a GatewayClass claims the features of
/// gateways. The last five are those of HTTPRoutes that tests in no profile of the mesh need.
const MESH_FEATURES: &str = "Mesh,MeshClusterIPMatching,MeshConsumerRoute,MeshHTTPRouteRewritePath,\
                             MeshHTTPRouteSchemeRedirect,MeshHTTPRouteRedirectPort,MeshHTTPRouteRedirectPath,\
                             MeshHTTPRouteBackendRequestHeaderModification,MeshHTTPRouteQueryParamMatching,\
                             MeshHTTPRouteNamedRouteRule,HTTPRouteResponseHeaderModification,\
                             HTTPRouteParentRefPort,HTTPRoute303RedirectStatusCode,\
                             HTTPRoute307RedirectStatusCode,HTTPRoute308RedirectStatusCode";
/// The page of this project in reports. It is not published anywhere.
const PAGE: &str = "https://legate.test";

/// Options of `cargo xtask kind gateway-api`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run these profiles, with all features that the GatewayClass claims; default: the core tests of GATEWAY-HTTP
    /// and GATEWAY-GRPC
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = profiles())]
    profiles: Vec<String>,
    /// Run all profiles: those for gateways, then those for the mesh
    #[arg(long, conflicts_with = "profiles")]
    all: bool,
    /// Run only the core tests of the profiles
    #[arg(long)]
    core: bool,
    /// Run one test, without a report
    #[arg(long, value_name = "NAME", conflicts_with_all = ["profiles", "all", "core"])]
    run_test: Option<String>,
    /// The channel of the resource definitions
    #[arg(long, default_value = CHANNELS[0], value_parser = CHANNELS)]
    channel: String,
    /// The folder for reports and logs; default: gateway-api below the target folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// The time limit of the tests for gateways, and of those for the mesh
    #[arg(long, value_name = "MINUTES", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Further flags of the suite, such as -debug or -cleanup-base-resources=false
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<String>,
}

/// One process of the suite. Its tests for gateways and for the mesh need different features and make a report
/// each.
#[derive(Debug, PartialEq)]
struct Run {
    /// The beginning of the names of its files.
    name: &'static str,
    /// The flags that select tests.
    flags: Vec<String>,
    reported: bool,
    /// Whether its tests are for the mesh.
    in_mesh: bool,
}

fn profiles() -> PossibleValuesParser {
    PossibleValuesParser::new(GATEWAY.into_iter().chain(MESH))
}

impl Options {
    /// The suite with the applications of its tests.
    fn suite(&self, workspace: &Workspace) -> anyhow::Result<Suite> {
        let has_mesh = self.runs().iter().any(|run| run.in_mesh);
        Suite::get(workspace, &Cache::find()?, has_mesh)
    }

    /// The processes of the suite, in order.
    fn runs(&self) -> Vec<Run> {
        if let Some(test) = &self.run_test {
            return vec![Run {
                name: "test",
                flags: vec![format!("-run-test={test}")],
                reported: false,
                in_mesh: test.starts_with("Mesh"),
            }];
        }
        let nothing_named = !self.all && self.profiles.is_empty();
        let core = self.core || nothing_named;
        let is_chosen = |profile: &str| {
            if nothing_named {
                DEFAULT.contains(&profile)
            } else {
                self.all || self.profiles.iter().any(|name| name == profile)
            }
        };
        let chosen = |profiles: &[&'static str]| -> Vec<&'static str> {
            let all = profiles.iter().copied();
            all.filter(|profile| is_chosen(profile)).collect()
        };
        // A profile adds its core features to those that are named.
        let gateway = core.then_some("Gateway");
        let mesh = Some(if core { "Mesh" } else { MESH_FEATURES });
        [
            ("gateway", chosen(&GATEWAY), gateway),
            ("mesh", chosen(&MESH), mesh),
        ]
        .into_iter()
        .filter(|(_, profiles, _)| !profiles.is_empty())
        .map(|(name, profiles, features)| {
            let profiles = format!("-conformance-profiles={}", profiles.join(","));
            let features = features.map(|names| format!("-supported-features={names}"));
            Run {
                name,
                flags: [profiles].into_iter().chain(features).collect(),
                reported: true,
                in_mesh: name == "mesh",
            }
        })
        .collect()
    }
}

/// The folder with the definitions of the standard channel, which Go fetches if necessary.
pub(super) fn definitions(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    suite::fetched_definitions(workspace, "standard")
}

/// Builds everything, starts the cluster and runs the tests. All runs take place before the first failure is
/// returned.
pub(super) fn run(
    workspace: &Workspace,
    options: &Options,
    kind: &Kind,
    lifetime: Lifetime,
    times: &mut Times,
) -> anyhow::Result<()> {
    let suite = times.measure("suite", || options.suite(workspace))?;
    times.measure("build", || workspace.build_programs())?;
    let programs = workspace.target.join("debug");
    let archives = times.measure("images", || {
        let folder = workspace.target.join("kind-gateway-api");
        let applications = images::archive(&suite, &folder)?;
        let own = image::archive(workspace, kind.node_images(), &programs)?;
        Ok([own, applications])
    })?;
    times.measure("up", || kind.up(lifetime))?;
    times.measure("load", || {
        archives.iter().try_for_each(|archive| kind.load(archive))
    })?;
    times.measure("ready", || kind.ready(workspace))?;
    let folder = match &options.report {
        Some(folder) => std::path::absolute(folder)?,
        None => workspace.target.join("gateway-api"),
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut failed = Vec::new();
    for run in options.runs() {
        let mut command = Command::new(programs.join("legate-kind"));
        command.current_dir(&workspace.root);
        kind.environment(&mut command)?;
        if let Kind::Node(node) = kind {
            command.args(["--node", &node.init()?]);
        }
        let name = format!("{}-{}", options.channel, run.name);
        command
            .arg("gateway-api")
            .arg("--definitions")
            .arg(suite.definitions(&options.channel))
            .args(["--load-balancers", LOAD_BALANCERS])
            .args(run.in_mesh.then_some("--without-acls"))
            .arg("--log")
            .arg(folder.join(format!("{name}.log")))
            .arg("--")
            .arg(suite.program())
            .arg(format!("-test.timeout={}m", options.limit))
            // Tests that may run concurrently mostly wait.
            .arg("-test.parallel=4")
            .args(&run.flags);
        if run.reported {
            let report = folder.join(format!("{name}-report.yaml"));
            command.args(described(workspace, &report)?);
        }
        command.args(&options.flags);
        let outcome = times.measure(run.name, || workspace::run(&mut command));
        if outcome.is_err() {
            failed.push(run.name);
        }
    }
    if !failed.is_empty() {
        bail!(
            "failed: {}: see above, and the logs in {}",
            failed.join(", "),
            folder.display()
        );
    }
    Ok(())
}

/// The flags of a report, which must say whose it is.
fn described(workspace: &Workspace, report: &Path) -> anyhow::Result<[String; 6]> {
    let version = workspace.manifest["workspace"]["package"]["version"].as_str();
    let version = version.context("the workspace has a version")?;
    Ok([
        format!("-report-output={}", report.display()),
        "-organization=legate".to_owned(),
        "-project=legate".to_owned(),
        format!("-version=v{version}"),
        format!("-url={PAGE}"),
        format!("-contact={PAGE}"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn flags(words: &[&str]) -> Vec<(&'static str, Vec<String>)> {
        let line = Line::try_parse_from([&["gateway-api"], words].concat()).unwrap();
        let runs = line.options.runs().into_iter();
        runs.map(|run| (run.name, run.flags)).collect()
    }

    #[test]
    fn without_names_the_core_of_two_profiles_runs() {
        let expected = [
            "-conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC",
            "-supported-features=Gateway",
        ];
        let [("gateway", found)] = &flags(&[])[..] else {
            panic!("it is one run");
        };
        assert_eq!(found, &expected);
    }

    #[test]
    fn profiles_for_gateways_and_for_the_mesh_run_separately() {
        let [("gateway", gateway), ("mesh", mesh)] = &flags(&["--all"])[..] else {
            panic!("these are two runs");
        };
        // The suite reads the features from the GatewayClass only if none are named.
        let profiles = GATEWAY.join(",");
        assert_eq!(gateway, &[format!("-conformance-profiles={profiles}")]);
        assert_eq!(mesh[0], "-conformance-profiles=MESH-HTTP,MESH-GRPC");
        assert_eq!(mesh[1], format!("-supported-features={MESH_FEATURES}"));
        let [("gateway", _), ("mesh", mesh)] =
            &flags(&["--profiles", "MESH-GRPC,GATEWAY-UDP", "--core"])[..]
        else {
            panic!("these are two runs");
        };
        let expected = [
            "-conformance-profiles=MESH-GRPC",
            "-supported-features=Mesh",
        ];
        assert_eq!(mesh, &expected);
    }

    #[test]
    fn one_test_runs_whatever_is_claimed() {
        let expected = vec!["-run-test=MeshPorts".to_owned()];
        assert_eq!(flags(&["--run-test", "MeshPorts"]), [("test", expected)]);
    }
}
