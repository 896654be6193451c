//! Namespaces of Kubernetes as namespaces of the mesh: names are each one's own.

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

/// The other one of the two.
const OTHER: &str = "mirrored-other";
/// What the mesh's namespaces begin with.
const PREFIX: &str = "k8s-";

fn two_namespaces_have_services_of_one_name(space: &Namespace) -> anyhow::Result<()> {
    // An earlier scenario may have left the release's namespace while it is being deleted.
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

    // One intention of the same name in each.
    intend(space, "same-web", "same-api", "allow")?;
    intend(other, "same-web", "same-api", "deny")?;
    let url = "http://same-api/";
    answered_by(space, &ask_until_answered(space, "same-web", url)?)?;
    ask_until_refused(other, "same-web", url)?;

    // Whoever is called in another namespace has to allow just that caller.
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

/// Checks that a pod of this namespace has answered.
fn answered_by(space: &Namespace, answer: &Value) -> anyhow::Result<()> {
    let pods = space.pods("app=same-api")?;
    let own = pods.iter().any(|pod| answer["instance"] == pod.as_str());
    ensure!(own, "{answer} is of none of {pods:?}");
    Ok(())
}
