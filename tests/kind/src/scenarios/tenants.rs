//! Kubernetes namespaces mapped to namespaces of the mesh: names are independent.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, ask_until_answered, ask_until_refused, intend, resource, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "two_namespaces_have_services_of_one_name",
    run: two_namespaces_have_services_of_one_name,
}];

/// The other of the two namespaces.
const OTHER: &str = "mirrored-other";
/// The prefix of the mesh's namespaces.
const PREFIX: &str = "k8s-";

fn two_namespaces_have_services_of_one_name(space: &Namespace) -> anyhow::Result<()> {
    // The release's namespace may still be terminating after an earlier scenario.
    let gone = format!("namespace/{}", mesh::OWN.namespace);
    let words = ["wait", &gone, "--for=delete", "--timeout=120s"];
    space.cluster.kubectl(&words)?;
    let prefix = format!("connectInject.consulNamespaces.mirroringK8SPrefix={PREFIX}");
    mesh::OWN.upgrade(&["global.enableConsulNamespaces=true", &prefix])?;
    let other = Namespace::create(space.cluster, OTHER)?;
    let shown = apart(space, &other);
    let shown = shown.map_err(|error| error.context(other.describe()));
    for each in [space, &other] {
        each.kubectl(&["delete", "serviceintentions,servicedefaults", "--all"])?;
    }
    let uninstalled = mesh::OWN.uninstall();
    shown.and(uninstalled)?;
    other.delete()
}

fn apart(space: &Namespace, other: &Namespace) -> anyhow::Result<()> {
    for each in [space, other] {
        speaks_http(each, "same-api")?;
        App::new("same-api").run(each)?;
        App::new("same-web").run(each)?;
    }
    for each in [space, other] {
        let path = format!("/v1/health/service/same-api?ns={PREFIX}{}", each.name);
        let instances = mesh::get(space.cluster, &path)?;
        ensure!(instances.as_array().map(Vec::len) == Some(1), "{instances}");
    }
    let none = mesh::get(space.cluster, "/v1/health/service/same-api")?;
    ensure!(none == json!([]), "{none}");

    // An intention of the same name in each.
    intend(space, "same-web", "same-api", "allow")?;
    intend(other, "same-web", "same-api", "deny")?;
    let url = "http://same-api/";
    answered_by(space, &ask_until_answered(space, "same-web", url)?)?;
    ask_until_refused(other, "same-web", url)?;

    // A service called from another namespace must allow that caller.
    let across = format!("http://same-api.{}/", space.name);
    ask_until_refused(other, "same-web", &across)?;
    let sources = json!([
        {"name": "same-web", "action": "allow"},
        {"name": "same-web", "namespace": format!("{PREFIX}{OTHER}"), "action": "allow"},
    ]);
    let spec = json!({"destination": {"name": "same-api"}, "sources": sources});
    space.apply(&resource("ServiceIntentions", "same-api", &spec))?;
    let answer = ask_until_answered(other, "same-web", &across)?;
    answered_by(space, &answer)?;
    let caller = answer["caller"].as_str().unwrap_or_default();
    let namespace = format!("/ns/{PREFIX}{OTHER}/");
    ensure!(caller.contains(&namespace), "{answer}");
    ask_until_refused(other, "same-web", url)
}

/// Checks that a pod of this namespace has responded.
fn answered_by(space: &Namespace, answer: &Value) -> anyhow::Result<()> {
    let pods = space.pods("app=same-api")?;
    let own = pods.iter().any(|pod| answer["instance"] == pod.as_str());
    ensure!(own, "{answer} is of none of {pods:?}");
    Ok(())
}
