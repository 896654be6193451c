//! Several servers that share an etcd outside of the cluster.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::host::{Process, address_towards, api_server, free_ports};
use crate::mesh::{self, Release};
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, Load, ask_until_answered, ask_until_refused, resource, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "three_servers_share_an_etcd",
    run: three_servers_share_an_etcd,
}];

/// The release and its namespace.
const RELEASE: &str = "several";
const SEVERAL: Release = Release {
    name: RELEASE,
    namespace: RELEASE,
};

fn three_servers_share_an_etcd(space: &Namespace) -> anyhow::Result<()> {
    // Only one operator may inject the pods of a cluster.
    mesh::OWN.uninstall()?;
    let etcd = Etcd::start(space.cluster)?;
    // Pods in a release's namespace are not injected.
    let release = Namespace::create(space.cluster, RELEASE)?;
    let shown = install(&release, &etcd).and_then(|()| servers_are_killed(space, &release));
    let shown = shown.map_err(|error| error.context(release.describe()).context(etcd.log()));
    // Uninstalled also after a failure, because its webhook would block later pods of this cluster.
    let uninstalled = SEVERAL.uninstall();
    shown.and(uninstalled)?;
    mesh::assert_no_webhook_of(space.cluster, RELEASE)?;
    release.delete()
}

fn install(release: &Namespace, etcd: &Etcd) -> anyhow::Result<()> {
    let key = format!("--from-literal=key={}", "5e".repeat(32));
    release.kubectl(&["create", "secret", "generic", "store-key", &key])?;
    SEVERAL.upgrade(&[
        "server.replicas=3",
        &format!("server.etcd.endpoints[0]=http://{}", etcd.client),
        "server.encryptionKey.secretName=store-key",
    ])
}

/// Kills each server in turn, then all at once. A write through one is visible in the others, and no
/// request of an application fails.
fn servers_are_killed(space: &Namespace, release: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "several-api")?;
    web_may(space, "deny")?;
    App::new("several-api").run(space)?;
    App::new("several-web").run(space)?;
    let url = "http://several-api/";
    let load = Load::start(space, "several-load", url)?;
    let kill = |servers: &[&str]| {
        let words = ["delete", "pods", "--grace-period=0", "--force"];
        release.kubectl(&[&words[..], servers].concat())
    };
    let all = [
        "several-legate-server-0",
        "several-legate-server-1",
        "several-legate-server-2",
    ];
    for server in all {
        kill(&[server])?;
        web_may(space, "allow")?;
        ask_until_answered(space, "several-web", url)?;
        release.rolled_out("statefulset/several-legate-server")?;
        web_may(space, "deny")?;
        ask_until_refused(space, "several-web", url)?;
    }
    kill(&all)?;
    release.rolled_out("statefulset/several-legate-server")?;
    App::new("several-late").run(space)?;
    ask_until_refused(space, "several-web", url)?;
    load.without_failure()?;
    space.kubectl(&["delete", "serviceintentions,servicedefaults", "--all"])?;
    Ok(())
}

/// Sets the intention for `several-web`; the load's requests are always allowed.
fn web_may(space: &Namespace, action: &str) -> anyhow::Result<()> {
    let spec = json!({
        "destination": {"name": "several-api"},
        "sources": [
            {"name": "several-load", "action": "allow"}, {"name": "several-web", "action": action},
        ],
    });
    space.apply(&resource("ServiceIntentions", "several-api", &spec))?;
    space.wait("serviceintentions/several-api", "condition=Synced")
}

/// A single member, stopped on drop.
struct Etcd {
    process: Process,
    client: SocketAddr,
    _folder: TempDir,
}

impl Etcd {
    fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let address: IpAddr = address_towards(api_server(cluster)?)?;
        let [client, peer] = free_ports(address)?;
        let (client, peer) = (
            SocketAddr::new(address, client),
            SocketAddr::new(address, peer),
        );
        let folder = TempDir::new()?;
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir")
            .arg(folder.path().join("data"))
            .args(["--name", "one", "--initial-cluster"])
            .arg(format!("one=http://{peer}"));
        for (option, address) in [
            ("--listen-client-urls", client),
            ("--advertise-client-urls", client),
            ("--listen-peer-urls", peer),
            ("--initial-advertise-peer-urls", peer),
        ] {
            etcd.arg(option).arg(format!("http://{address}"));
        }
        Ok(Self {
            process: Process::start(etcd, folder.path())?,
            client,
            _folder: folder,
        })
    }

    fn log(&self) -> String {
        format!("# etcd\n{}", self.process.log())
    }
}
