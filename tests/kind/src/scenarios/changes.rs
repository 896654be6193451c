//! Changes of a service under continuous load.

use anyhow::{Context, ensure};
use serde_json::json;

use crate::cluster::eventually;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, Load, PORT, intend, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_rolling_update_loses_no_request",
        run: a_rolling_update_loses_no_request,
    },
    Scenario {
        name: "a_killed_pod_is_replaced",
        run: a_killed_pod_is_replaced,
    },
];

/// The application exits immediately on SIGTERM: the sidecars on both sides avoid failed requests.
fn a_rolling_update_loses_no_request(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "rolled-api")?;
    intend(space, "rolled-load", "rolled-api", "allow")?;
    let ready = json!({"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1});
    App::new("rolled-api")
        .replicas(2)
        .container("readinessProbe", ready)
        .run(space)?;
    let before = space.pods("app=rolled-api")?;
    let load = Load::start(space, "rolled-load", "http://rolled-api/")?;
    space.kubectl(&["rollout", "restart", "deployment/rolled-api"])?;
    space.rolled_out("deployment/rolled-api")?;
    for pod in &before {
        space.wait(&format!("pod/{pod}"), "delete")?;
    }
    let seen = load.without_failure()?;
    let new = seen.answers.keys().filter(|pod| !before.contains(*pod));
    ensure!(new.count() == 2, "{seen:?}");
    Ok(())
}

fn a_killed_pod_is_replaced(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "killed-api")?;
    intend(space, "killed-load", "killed-api", "allow")?;
    App::new("killed-api").replicas(2).run(space)?;
    let load = Load::start(space, "killed-load", "http://killed-api/")?;
    let before = space.pods("app=killed-api")?;
    let pod = before.first().context("there is a pod")?;
    space.kubectl(&["delete", "pod", pod, "--grace-period=0", "--force"])?;
    space.rolled_out("deployment/killed-api")?;
    eventually("the one in its place answers, and nothing fails", || {
        load.reset()?;
        std::thread::sleep(std::time::Duration::from_secs(1));
        let seen = load.without_failure()?;
        ensure!(
            seen.answers.len() == 2 && !seen.answers.contains_key(pod),
            "{seen:?}"
        );
        Ok(())
    })
}
