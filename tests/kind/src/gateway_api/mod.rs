//! `legate-kind gateway-api`: the conformance suite of the Gateway API against the chart in a cluster, with a
//! load balancer. `cargo xtask kind gateway-api` builds the suite and selects its tests.

mod load_balancer;
mod verdicts;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use clap::Args;
use kube::Client;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdout, Command};

use self::load_balancer::Network;
use self::verdicts::{Verdict, Verdicts};
use crate::cluster::Cluster;
use crate::mesh;

/// The class of the Gateways, and the controller that it is for.
const CLASS: &str = "legate";
const CONTROLLER: &str = "legate/gateway-controller";

/// An address that no load balancer has: it is for documentation only.
const UNUSABLE: &str = "192.0.2.7";

/// The chart's values: the applications of the tests for gateways are outside of the mesh, and those of the tests
/// for the mesh are inside, where they may call each other.
const VALUES: [&str; 6] = [
    "connectInject.apiGateway.enabled=true",
    "connectInject.default=true",
    "connectInject.namespaceSelector.matchExpressions[0].key=gateway-conformance",
    "connectInject.namespaceSelector.matchExpressions[0].operator=In",
    "connectInject.namespaceSelector.matchExpressions[0].values={mesh,mesh-consumer}",
    "server.defaultIntentionPolicy=allow",
];

/// Where to run what.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder with the definitions of the resources
    #[arg(long, value_name = "DIR")]
    definitions: PathBuf,
    /// The addresses of the load balancer
    #[arg(long, value_name = "NETWORK")]
    load_balancers: Network,
    /// Without ACLs: pods of the suite's mesh have the default service account, which cannot log in
    #[arg(long)]
    without_acls: bool,
    /// The file for the output of the suite
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// The program of the suite, and flags that select its tests
    #[arg(last = true, required = true)]
    suite: Vec<String>,
}

/// Installs everything and runs the suite. The error names the tests that failed.
pub(crate) fn run(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let definitions = options.definitions.display().to_string();
    let apply = ["apply", "--server-side", "--filename", &definitions];
    cluster.kubectl(&apply)?;
    let all = ["--for=condition=Established", "crd", "--all"];
    cluster.kubectl(&[&["wait", "--timeout=60s"][..], &all].concat())?;
    println!("the resources of {definitions} are defined");
    let acls = format!("global.acls.manageSystemACLs={}", !options.without_acls);
    let values = [&VALUES[..], &[&acls]].concat();
    let installed = mesh::OWN.upgrade(&values);
    installed.map_err(|error| error.context(mesh::namespace(cluster).describe()))?;
    println!("the chart is installed");
    create_class(cluster)?;
    reach_pods(cluster)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        let client = Client::try_default().await?;
        let network = options.load_balancers;
        tokio::select! {
            outcome = suite(options) => outcome,
            ended = load_balancer::run(&client, network) => match ended? {},
        }
    });
    if outcome.is_err() {
        let state = options.log.with_extension("pods.log");
        fs::write(&state, mesh::namespace(cluster).describe())?;
        println!("the state of the mesh afterwards: {}", state.display());
    }
    outcome
}

/// The class is created as by a user.
fn create_class(cluster: &Cluster) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": CLASS},
        "spec": {"controllerName": CONTROLLER},
    });
    let apply = ["apply", "--filename", "-"];
    cluster.kubectl_with(&class.to_string(), &apply).map(|_| ())
}

/// Lets applications call pods of the mesh by their addresses, which is off by default as in Consul.
fn reach_pods(cluster: &Cluster) -> anyhow::Result<()> {
    let defaults = json!({
        "apiVersion": "consul.hashicorp.com/v1alpha1",
        "kind": "ProxyDefaults",
        "metadata": {"name": "global"},
        "spec": {"transparentProxy": {"dialedDirectly": true}},
    });
    mesh::namespace(cluster).apply(&defaults.to_string())
}

/// Runs the suite and prints the verdict of each test when it ends.
async fn suite(options: &Options) -> anyhow::Result<()> {
    let (program, flags) = options.suite.split_first().context("a program is named")?;
    let log = &options.log;
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new("setpriv");
    command
        // The kernel kills it when this program dies.
        .args(["--pdeathsig", "KILL", program])
        .arg("-test.v=test2json")
        .arg(format!("-gateway-class={CLASS}"))
        .arg(format!(
            "-usable-address={}",
            options.load_balancers.on_request()
        ))
        .arg(format!("-unusable-address={UNUSABLE}"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file.try_clone()?)
        .kill_on_drop(true);
    let child = command.spawn();
    let mut child = child.context("cannot start setpriv (Debian: util-linux)")?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let verdicts = follow(output, file).await?;
    let status = child.wait().await?;
    conclude(&verdicts, status.success(), log)
}

/// Copies the output to the log, and prints verdicts.
async fn follow(output: ChildStdout, log: File) -> anyhow::Result<Verdicts> {
    let mut verdicts = Verdicts::default();
    let mut log = BufWriter::new(log);
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).await? > 0 {
        log.write_all(&line)?;
        log.flush()?;
        let text = String::from_utf8_lossy(&line);
        match verdicts.read(text.trim_end()) {
            // Most tests are for features that are not claimed.
            None | Some((_, Verdict::Skipped | Verdict::None, _)) => {}
            Some((name, Verdict::Passed, took)) => println!("{took:>9}  ok      {name}"),
            Some((name, Verdict::Failed, took)) => {
                println!("{took:>9}  FAILED  {name}");
                for assertion in verdicts.assertions(name) {
                    println!("                   {assertion}");
                }
            }
        }
        line.clear();
    }
    Ok(verdicts)
}

/// Prints numbers, and fails unless every test that ran has passed, and one did.
fn conclude(verdicts: &Verdicts, success: bool, log: &Path) -> anyhow::Result<()> {
    let count = |verdict| verdicts.with(verdict).len();
    let (passed, open) = (count(Verdict::Passed), verdicts.with(Verdict::None));
    let failed = [&verdicts.with(Verdict::Failed)[..], &open].concat();
    println!(
        "{passed} tests passed, {} failed, {} did not end, {} were skipped (their features are not claimed, or \
         others are named)\nlog: {}",
        count(Verdict::Failed),
        open.len(),
        count(Verdict::Skipped),
        log.display()
    );
    if !failed.is_empty() {
        bail!("{} tests failed: {}", failed.len(), failed.join(", "));
    }
    if !success {
        let mut why = verdicts.assertions("").join("\n");
        if why.is_empty() {
            let text = fs::read_to_string(log)?;
            let lines: Vec<&str> = text.lines().collect();
            why = lines[lines.len().saturating_sub(20)..].join("\n");
        }
        bail!("the suite failed outside of its tests: {why}");
    }
    ensure!(passed > 0, "the suite ran no test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a run with this output is a success, with the error.
    fn concluded(output: &str, success: bool) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(&log, output).unwrap();
        let mut verdicts = Verdicts::default();
        for line in output.lines() {
            verdicts.read(line);
        }
        conclude(&verdicts, success, &log).map_err(|error| error.to_string())
    }

    #[test]
    fn only_passed_tests_are_a_success() {
        let run = |name: &str, verdict: &str| {
            format!("\u{16}=== RUN   All/{name}\n\u{16}--- {verdict}: All/{name} (1.00s)\n")
        };
        let [passed, skipped] = [run("A", "PASS"), run("B", "SKIP")];
        assert_eq!(concluded(&(passed.clone() + &skipped), true), Ok(()));
        assert_eq!(
            concluded(&skipped, true),
            Err("the suite ran no test".to_owned())
        );
        let outside = concluded(&(passed.clone() + "no report"), false).unwrap_err();
        assert!(outside.contains("outside of its tests:"), "{outside}");
        assert!(outside.contains("no report"), "{outside}");
        let open = "\u{16}=== RUN   All/D\n";
        let failed = concluded(&(passed + &run("C", "FAIL") + open), false);
        assert_eq!(failed, Err("2 tests failed: C, D".to_owned()));
    }
}
