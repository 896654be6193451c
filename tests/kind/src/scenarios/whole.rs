//! Changes of the whole mesh: its operator, its server, an upgrade of the chart, and its removal.
//! Applications are not affected.

use anyhow::ensure;

use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, Load, ask_until_answered, intend, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "the_operator_is_killed",
        run: the_operator_is_killed,
    },
    Scenario {
        name: "the_server_is_killed_and_keeps_its_state",
        run: the_server_is_killed_and_keeps_its_state,
    },
    Scenario {
        name: "an_upgrade_of_the_chart_loses_no_request",
        run: an_upgrade_of_the_chart_loses_no_request,
    },
    // The last one, because it removes the mesh.
    Scenario {
        name: "uninstalling_leaves_nothing_in_the_way",
        run: uninstalling_leaves_nothing_in_the_way,
    },
];

/// Two services in the mesh, with continuous requests between them.
fn load<'a>(
    space: &'a Namespace<'a>,
    api: &'static str,
    name: &'static str,
) -> anyhow::Result<Load<'a>> {
    speaks_http(space, api)?;
    intend(space, name, api, "allow")?;
    App::new(api).run(space)?;
    Load::start(space, name, &format!("http://{api}/"))
}

fn kill(release: &Namespace, component: &str) -> anyhow::Result<()> {
    let words = ["delete", "pods", "--selector", component];
    release
        .kubectl(&[&words[..], &["--grace-period=0", "--force"]].concat())
        .map(|_| ())
}

fn the_operator_is_killed(space: &Namespace) -> anyhow::Result<()> {
    let load = load(space, "operated-api", "operated-load")?;
    let release = mesh::namespace(space.cluster);
    kill(&release, "component=operator")?;
    // Pods created meanwhile wait for it.
    let scale = ["scale", "deployment/operated-api", "--replicas=3"];
    space.kubectl(&scale)?;
    release.rolled_out("deployment/legate-operator")?;
    space.rolled_out("deployment/operated-api")?;
    let answers = crate::cluster::eventually("all three answer", || {
        let seen = load.seen()?;
        ensure!(seen.answers.len() == 3, "{seen:?}");
        Ok(seen)
    })?;
    ensure!(answers.failed == 0, "{answers:?}");
    Ok(())
}

fn the_server_is_killed_and_keeps_its_state(space: &Namespace) -> anyhow::Result<()> {
    let load = load(space, "kept-api", "kept-load")?;
    let registered = mesh::registered(space.cluster, "kept-api")?;
    let release = mesh::namespace(space.cluster);
    kill(&release, "component=server")?;
    release.rolled_out("statefulset/legate-server")?;
    let kept = mesh::registered(space.cluster, "kept-api")?;
    ensure!(kept == registered, "{registered:?} {kept:?}");
    // Its services, intentions and signing keys persist: new clients are accepted.
    App::new("kept-late").run(space)?;
    intend(space, "kept-late", "kept-late-api", "allow")?;
    speaks_http(space, "kept-late-api")?;
    App::new("kept-late-api").run(space)?;
    ask_until_answered(space, "kept-late", "http://kept-late-api/")?;
    load.without_failure().map(|_| ())
}

fn an_upgrade_of_the_chart_loses_no_request(space: &Namespace) -> anyhow::Result<()> {
    let load = load(space, "upgraded-api", "upgraded-load")?;
    // All its pods are replaced.
    mesh::OWN.upgrade(&["global.logLevel=debug", "global.extraLabels.upgraded=yes"])?;
    let replaced = mesh::namespace(space.cluster).pods("upgraded=yes")?;
    let of = |part: &str| replaced.iter().filter(|pod| pod.contains(part)).count();
    ensure!(of("-operator-") == 2 && of("-server-") == 1, "{replaced:?}");
    App::new("upgraded-late").run(space)?;
    let seen = load.without_failure();
    mesh::OWN.upgrade(&[])?;
    seen.map(|_| ())
}

fn uninstalling_leaves_nothing_in_the_way(space: &Namespace) -> anyhow::Result<()> {
    mesh::OWN.uninstall()?;
    mesh::assert_no_webhook_of(space.cluster, mesh::OWN.name)?;
    // A pod that requests a sidecar starts without one.
    App::new("left-app").run(space)?;
    let namespace = mesh::OWN.namespace;
    let words = ["delete", "namespace", namespace, "--wait=false"];
    space.cluster.kubectl(&words).map(|_| ())
}
