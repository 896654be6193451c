//! `cargo xtask chart`: renders the chart with the real helm and compares it with the golden files
//! in `tests/chart`: for each `NAME.values.yaml` there is a `NAME.yaml`, which `--update` writes. No
//! cluster is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};

use crate::kind;
use crate::workspace::{self, Workspace};

const CHART: &str = "charts/legate";
const CASES: &str = "tests/chart";

/// The Kubernetes version of the rendered chart, unless the first line of the values sets another:
/// `# kubernetes 1.27`.
const KUBERNETES: &str = "1.33";

/// Parts of the values of several datacenters.
const FEDERATED: [&str; 2] = ["meshGateway.enabled=true", "global.federation.enabled=true"];
/// Values of peering.
const PEERED: [&str; 2] = ["meshGateway.enabled=true", "global.peering.enabled=true"];
const SECONDARY: &str = "global.federation.primaryDatacenter=dc0";
const CA: [&str; 2] = [
    "global.tls.caCert.secretName=ca",
    "global.tls.caKey.secretName=ca",
];
const GATEWAYS: &str = "global.federation.primaryGateways={a:443}";
const REPLICATION: &str = "global.acls.replicationToken.secretName=token";

/// Refused values: the arguments of `--set`, and a part of the error.
const REFUSED: [(&[&str], &str); 56] = [
    (
        &["syncCatalog.enabled=true"],
        "additional properties 'syncCatalog' not allowed",
    ),
    (
        &["global.peering.enabled=true"],
        "global.peering.enabled needs meshGateway.enabled",
    ),
    (
        &[PEERED[0], PEERED[1], "global.tls.enabled=false"],
        "global.peering.enabled needs global.tls.enabled",
    ),
    (
        &[
            PEERED[0],
            PEERED[1],
            "global.peering.k8sAllowNamespaces={*,shop}",
        ],
        "global.peering.k8sAllowNamespaces has * and other namespaces",
    ),
    (
        &["global.peering.tokenGeneration.serverAddresses.source=consul"],
        "additional properties 'tokenGeneration' not allowed",
    ),
    (
        &["server.exposeService.enabled=true"],
        "additional properties 'exposeService' not allowed",
    ),
    (
        &["global.adminPartitions.enabled=true"],
        "global.adminPartitions.enabled needs global.enableConsulNamespaces",
    ),
    (
        &[
            "global.enableConsulNamespaces=true",
            "global.adminPartitions.enabled=true",
            "global.adminPartitions.name=east",
        ],
        "must be \"default\" if the chart runs the servers",
    ),
    (
        &["connectInject.consulNamespaces.consulDestinationNamespace=*"],
        "consulDestinationNamespace",
    ),
    (
        &["externalServers.hosts={exec=discover}"],
        "'/externalServers/hosts/0'",
    ),
    (&["global.logLevel=loud"], "'/global/logLevel'"),
    (&["connectInject.failurePolicy=fail"], "failurePolicy"),
    (&["server.replicas=0"], "minimum: got 0, want 1"),
    (
        &["server.securityContext.runAsNonRoot=false"],
        "runAsNonRoot",
    ),
    (
        &["connectInject.metrics.defaultPrometheusScrapePort=70000"],
        "maximum",
    ),
    (
        &["server.replicas=3"],
        "server.replicas above 1 needs server.etcd.endpoints",
    ),
    (
        &["server.etcd.endpoints={https://etcd:2379}"],
        "needs server.encryptionKey.secretName",
    ),
    (
        &["server.etcd.user=legate"],
        "server.etcd.user and server.etcd.password.secretName require each other",
    ),
    (
        &["server.enabled=true", "externalServers.enabled=true"],
        "exclude each other",
    ),
    (
        &["externalServers.enabled=true"],
        "externalServers.hosts must have exactly one host",
    ),
    (
        &["externalServers.enabled=true", "externalServers.hosts={a}"],
        "external servers with TLS need global.tls.caCert.secretName",
    ),
    (
        &[
            "externalServers.enabled=true",
            "externalServers.hosts={a}",
            "externalServers.useSystemRoots=true",
        ],
        "needs global.acls.bootstrapToken.secretName",
    ),
    (
        &[
            "externalServers.enabled=true",
            "externalServers.hosts={a}",
            "externalServers.useSystemRoots=true",
            "global.acls.bootstrapToken.secretName=token",
        ],
        "needs externalServers.k8sAuthMethodHost",
    ),
    (
        &["server.enabled=false"],
        "the operator needs servers: set server.enabled",
    ),
    (
        &["global.tls.caCert.secretName=ca"],
        "global.tls.caCert.secretName needs global.tls.caKey.secretName",
    ),
    (
        &["server.serverCert.secretName=cert"],
        "need global.tls.caCert.secretName",
    ),
    (
        &[
            "global.tls.caCert.secretName=ca",
            "global.tls.caKey.secretName=ca",
            "server.serverCert.secretName=cert",
        ],
        "exclude each other: the operator signs the certificate",
    ),
    (
        &[
            "externalServers.enabled=true",
            "externalServers.hosts={a}",
            "global.acls.manageSystemACLs=false",
            "global.tls.caCert.secretName=ca",
            "global.tls.caKey.secretName=ca",
        ],
        "and the chart's own servers",
    ),
    (
        &["connectInject.enabled=false"],
        "there is no certificate for the servers",
    ),
    (
        &[
            "ingressGateways.enabled=true",
            "ingressGateways.gateways[0].name=operator",
        ],
        "the gateway operator needs another name",
    ),
    (
        &[
            "ingressGateways.enabled=true",
            "terminatingGateways.enabled=true",
            "terminatingGateways.gateways[0].name=ingress-gateway",
        ],
        "the gateway ingress-gateway needs another name",
    ),
    (
        &[
            "ingressGateways.enabled=true",
            "ingressGateways.defaults.consulNamespace=shop",
        ],
        "needs global.enableConsulNamespaces",
    ),
    (
        &[
            "ingressGateways.enabled=true",
            "ingressGateways.defaults.service.type=NodePort",
        ],
        "set the nodePort of its first port",
    ),
    (
        &[
            "meshGateway.enabled=true",
            "meshGateway.wanAddress.source=Static",
        ],
        "needs meshGateway.wanAddress.static",
    ),
    (
        &[
            "meshGateway.enabled=true",
            "meshGateway.hostNetwork=true",
            "meshGateway.containerPort=443",
        ],
        "needs a meshGateway.containerPort of 1024 or above",
    ),
    (
        &[
            "meshGateway.enabled=true",
            "meshGateway.hostNetwork=true",
            "meshGateway.hostPort=443",
        ],
        "meshGateway.hostNetwork and meshGateway.hostPort exclude each other",
    ),
    (
        &[
            "meshGateway.enabled=true",
            "connectInject.enabled=false",
            "global.tls.enabled=false",
        ],
        "the gateway mesh-gateway needs the operator",
    ),
    (
        &[
            "meshGateway.enabled=true",
            "meshGateway.horizontalPodAutoscaler.minReplicas=9",
        ],
        "horizontalPodAutoscaler.minReplicas of a gateway is above maxReplicas",
    ),
    (
        &["ingressGateways.defaults.terminationGracePeriodSeconds=10"],
        "minimum: got 10, want 20",
    ),
    (
        &[
            "terminatingGateways.gateways[0].name=a,terminatingGateways.gateways[0].hostNetwork=true",
        ],
        "additional properties 'hostNetwork' not allowed",
    ),
    (
        &["global.federation.enabled=true"],
        "global.federation.enabled needs meshGateway.enabled",
    ),
    (
        &[FEDERATED[0], FEDERATED[1], "global.tls.enabled=false"],
        "global.federation.enabled needs global.tls.enabled",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            "global.enableConsulNamespaces=true",
            "global.adminPartitions.enabled=true",
        ],
        "global.adminPartitions.enabled exclude each other",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            "externalServers.enabled=true",
            "externalServers.hosts={a}",
            "externalServers.useSystemRoots=true",
            "global.acls.manageSystemACLs=false",
        ],
        "global.federation.enabled needs the chart's own servers",
    ),
    (
        &["global.federation.createFederationSecret=true"],
        "need global.federation.enabled",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            "global.federation.createFederationSecret=true",
        ],
        "needs global.acls.createReplicationToken",
    ),
    (
        &[
            "global.acls.createReplicationToken=true",
            "global.acls.manageSystemACLs=false",
        ],
        "global.acls.createReplicationToken needs global.acls.manageSystemACLs",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            "global.federation.primaryGateways={a:443}",
        ],
        "are for secondary datacenters: set global.federation.primaryDatacenter",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            "global.federation.primaryGateways={a}",
        ],
        "'/global/federation/primaryGateways/0'",
    ),
    (
        &[FEDERATED[0], FEDERATED[1], SECONDARY],
        "a secondary datacenter needs the CA of the primary",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            SECONDARY,
            "global.acls.createReplicationToken=true",
        ],
        "are for the primary datacenter",
    ),
    (
        &[FEDERATED[0], FEDERATED[1], SECONDARY, CA[0], CA[1]],
        "needs global.federation.primaryGateways",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            SECONDARY,
            CA[0],
            CA[1],
            GATEWAYS,
        ],
        "needs global.acls.replicationToken.secretName",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            SECONDARY,
            CA[0],
            CA[1],
            GATEWAYS,
            REPLICATION,
        ],
        "needs global.federation.k8sAuthMethodHost",
    ),
    (
        &[
            FEDERATED[0],
            FEDERATED[1],
            SECONDARY,
            CA[0],
            CA[1],
            GATEWAYS,
            REPLICATION,
            "global.acls.bootstrapToken.secretName=token",
        ],
        "global.acls.bootstrapToken is for the primary datacenter",
    ),
    (
        &["global.name=a-name-that-makes-names-which-kubernetes-refuses"],
        "maxLength",
    ),
];

/// Options of `cargo xtask chart`.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Write the rendered files instead of comparing them
    #[arg(long)]
    update: bool,
}

/// `cargo xtask chart`
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let helm = Helm {
        program: helm(workspace)?,
        chart: workspace.root.join(CHART),
    };
    let mut cases = Vec::new();
    for entry in fs::read_dir(workspace.root.join(CASES))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.and_then(|name| name.strip_suffix(".values.yaml")) {
            cases.push((name.to_owned(), path));
        }
    }
    cases.sort();
    ensure!(!cases.is_empty(), "{CASES} has no values");
    let mut different = Vec::new();
    for (name, values) in cases {
        helm.lint(&values)?;
        let rendered = helm.template(&values)?;
        let golden = values.with_file_name(format!("{name}.yaml"));
        if options.update {
            fs::write(&golden, &rendered)?;
        } else if let Some(difference) = difference(&golden, &rendered) {
            different.push(difference);
        }
    }
    for (set, reason) in REFUSED {
        helm.refuses(set, reason)?;
    }
    ensure!(
        different.is_empty(),
        "the rendered chart differs; if that is intended: cargo xtask chart --update\n{}",
        different.join("\n")
    );
    Ok(())
}

struct Helm {
    program: PathBuf,
    chart: PathBuf,
}

impl Helm {
    fn call(&self, task: &str, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg(task);
        if task == "template" {
            command.args(["mesh", "--namespace", "consul"]);
        }
        let output = command.args(args).arg(&self.chart).output();
        output.with_context(|| format!("cannot start {}", self.program.display()))
    }

    fn must(&self, task: &str, args: &[&str]) -> anyhow::Result<String> {
        let output = self.call(task, args)?;
        ensure!(
            output.status.success(),
            "helm {task} {}:\n{}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn lint(&self, values: &Path) -> anyhow::Result<()> {
        let version = kubernetes(values)?;
        let values = values.to_string_lossy();
        let args = ["--strict", "--kube-version", &version, "--values", &values];
        self.must("lint", &args).map(|_| ())
    }

    fn template(&self, values: &Path) -> anyhow::Result<String> {
        let version = kubernetes(values)?;
        let values = values.to_string_lossy();
        self.must(
            "template",
            &["--kube-version", &version, "--values", &values],
        )
    }

    fn refuses(&self, set: &[&str], reason: &str) -> anyhow::Result<()> {
        let mut args = vec!["--kube-version", KUBERNETES];
        args.extend(set.iter().flat_map(|value| ["--set", value]));
        let output = self.call("template", &args)?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !text.contains(reason) {
            bail!("{} is not refused with {reason:?}: {text}", set.join(" "));
        }
        Ok(())
    }
}

fn kubernetes(values: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(values)?;
    let named = text.lines().next().unwrap_or_default();
    let named = named.strip_prefix("# kubernetes ");
    Ok(named.unwrap_or(KUBERNETES).to_owned())
}

/// The first line that differs from a golden file.
fn difference(golden: &Path, rendered: &str) -> Option<String> {
    let expected = fs::read_to_string(golden).unwrap_or_default();
    if expected == rendered {
        return None;
    }
    let mut pairs = expected.lines().zip(rendered.lines());
    let number = pairs.position(|(before, now)| before != now);
    let number = number.unwrap_or(expected.lines().count().min(rendered.lines().count()));
    let line = |text: &str| text.lines().nth(number).unwrap_or("(nothing)").to_owned();
    Some(format!(
        "{}:{}\n  before: {}\n  now:    {}",
        golden.display(),
        number + 1,
        line(&expected),
        line(rendered)
    ))
}

/// The helm in `LEGATE_HELM`, on `PATH`, or built with the programs of a cluster.
fn helm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    if let Some(named) = workspace::variable("LEGATE_HELM") {
        return Ok(named.into());
    }
    let path = workspace::variable("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join("helm"));
    match found.find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => kind::helm(workspace)
            .context("helm is required: put it on PATH, set LEGATE_HELM, or install Go"),
    }
}
