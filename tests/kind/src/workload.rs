//! Applications in the mesh as users define them, and the load that calls them.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::namespace::Namespace;

/// The HTTP port of an application.
pub(crate) const PORT: u16 = 8080;

/// A Deployment with a Service and ServiceAccount of the same name. Names are unique in the catalog
/// across namespaces, so each scenario has its own.
pub(crate) struct App {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    /// Arguments of `mesh-app`.
    pub(crate) arguments: Vec<String>,
    /// Annotations under `consul.hashicorp.com/` in addition to `connect-inject`.
    pub(crate) annotations: Vec<(&'static str, String)>,
    /// Additional fields of the container.
    pub(crate) container: Value,
}

impl App {
    /// An application that serves HTTP under its pod's name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            replicas: 1,
            arguments: vec!["serve".to_owned()],
            annotations: Vec::new(),
            container: json!({}),
        }
    }

    pub(crate) fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds an annotation to its pods.
    pub(crate) fn annotation(mut self, name: &'static str, value: &str) -> Self {
        self.annotations.push((name, value.to_owned()));
        self
    }

    /// Sets a field of its container, such as `readinessProbe`.
    pub(crate) fn container(mut self, name: &str, value: Value) -> Self {
        self.container[name] = value;
        self
    }

    /// Applies it and waits until its pods are ready.
    pub(crate) fn run(&self, space: &Namespace) -> anyhow::Result<()> {
        space.apply(&self.manifests().to_string())?;
        space.rolled_out(&format!("deployment/{}", self.name))
    }

    /// Applies only its Service and ServiceAccount.
    pub(crate) fn apply_without_pods(&self, space: &Namespace) -> anyhow::Result<()> {
        let manifests = self.manifests();
        for one in [&manifests["items"][0], &manifests["items"][1]] {
            space.apply(&one.to_string())?;
        }
        Ok(())
    }

    /// One of its pods, without a controller.
    pub(crate) fn pod(&self, name: &str) -> Value {
        let mut pod = self.template();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(name);
        pod
    }

    /// Its manifests.
    pub(crate) fn manifests(&self) -> Value {
        let name = &self.name;
        let labels = json!({"app": name});
        json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}]},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "replicas": self.replicas,
                    "selector": {"matchLabels": labels},
                    "template": self.template(),
                },
            },
        ]})
    }

    /// Its pod template.
    pub(crate) fn template(&self) -> Value {
        let mut annotations = json!({"consul.hashicorp.com/connect-inject": "true"});
        for (name, value) in &self.annotations {
            annotations[format!("consul.hashicorp.com/{name}")] = json!(value);
        }
        let mut container = json!({
            "name": "app",
            "image": "localhost/mesh-app:test",
            "imagePullPolicy": "Never",
            "args": self.arguments,
            "ports": [{"containerPort": PORT}],
        });
        for (name, value) in self.container.as_object().into_iter().flatten() {
            container[name] = value.clone();
        }
        json!({
            "metadata": {"labels": {"app": self.name}, "annotations": annotations},
            "spec": {"serviceAccountName": self.name, "containers": [container]},
        })
    }
}

/// A custom resource of the mesh.
pub(crate) fn resource(kind: &str, name: &str, spec: &Value) -> String {
    let resource = json!({
        "apiVersion": "consul.hashicorp.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    });
    resource.to_string()
}

/// Creates an intention: `allow` or `deny`.
pub(crate) fn intend(space: &Namespace, from: &str, to: &str, action: &str) -> anyhow::Result<()> {
    let sources = json!([{"name": from, "action": action}]);
    let spec = json!({"destination": {"name": to}, "sources": sources});
    space.apply(&resource("ServiceIntentions", to, &spec))?;
    space.wait(&format!("serviceintentions/{to}"), "condition=Synced")
}

/// Sets the service's protocol to HTTP.
pub(crate) fn speaks_http(space: &Namespace, name: &str) -> anyhow::Result<()> {
    let spec = json!({"protocol": "http"});
    space.apply(&resource("ServiceDefaults", name, &spec))?;
    space.wait(&format!("servicedefaults/{name}"), "condition=Synced")
}

/// An application's response to a caller: `{"instance": …, "caller": …}`.
pub(crate) fn ask(space: &Namespace, from: &str, url: &str) -> anyhow::Result<Value> {
    let pod = format!("deployment/{from}");
    let answer = space.exec(&pod, "app", &["mesh-app", "get", url])?;
    Ok(serde_json::from_str(&answer)?)
}

/// The same, retried until there is a response.
pub(crate) fn ask_until_answered(
    space: &Namespace,
    from: &str,
    url: &str,
) -> anyhow::Result<Value> {
    eventually(&format!("{from} asks {url}"), || ask(space, from, url))
}

/// Waits until a caller is refused.
pub(crate) fn ask_until_refused(space: &Namespace, from: &str, url: &str) -> anyhow::Result<()> {
    eventually(&format!("{from} is refused by {url}"), || {
        match ask(space, from, url) {
            Ok(answer) => Err(anyhow::anyhow!("{answer}")),
            // The error must come from the caller's program, which shows that the caller is running.
            Err(error) if format!("{error:#}").contains("error: ") => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// Checks the caller's identity as reported by Envoy.
pub(crate) fn assert_caller(answer: &Value, name: &str) -> anyhow::Result<()> {
    let caller = answer["caller"].as_str().unwrap_or_default();
    ensure!(caller.starts_with("spiffe://"), "{answer}");
    ensure!(caller.ends_with(&format!("/svc/{name}")), "{answer}");
    Ok(())
}

/// Continuous requests from a pod.
pub(crate) struct Load<'a> {
    space: &'a Namespace<'a>,
    name: String,
}

/// The results of requests.
#[derive(Debug)]
pub(crate) struct LoadResults {
    /// Number of responses by instance.
    pub(crate) answers: BTreeMap<String, u64>,
    pub(crate) failed: u64,
    /// The first failures.
    pub(crate) failures: Vec<String>,
}

impl<'a> Load<'a> {
    /// Starts it in the mesh, waits for the first response, and clears the results.
    pub(crate) fn start(space: &'a Namespace<'a>, name: &str, url: &str) -> anyhow::Result<Self> {
        Self::of(space, App::new(name).arguments(&["load", url]))
    }

    /// The same with an application whose arguments are those of a load.
    pub(crate) fn of(space: &'a Namespace<'a>, app: App) -> anyhow::Result<Self> {
        app.run(space)?;
        let name = app.name;
        let load = Self { space, name };
        eventually("the load is answered", || {
            let seen = load.seen()?;
            ensure!(!seen.answers.is_empty(), "{seen:?}");
            Ok(())
        })?;
        load.reset()?;
        Ok(load)
    }

    /// Ends it.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        let words = ["scale", "deployment", &self.name, "--replicas=0"];
        self.space.kubectl(&words).map(|_| ())
    }

    /// Clears the results.
    pub(crate) fn reset(&self) -> anyhow::Result<()> {
        self.get("/reset").map(|_| ())
    }

    /// The results since the last reset.
    pub(crate) fn seen(&self) -> anyhow::Result<LoadResults> {
        let seen: Value = serde_json::from_str(&self.get("/")?)?;
        let answers = seen["answers"].as_object().context("answers")?;
        let answers = answers
            .iter()
            .map(|(instance, count)| (instance.clone(), count.as_u64().unwrap_or_default()));
        let failures = seen["failures"].as_array().context("failures")?;
        let failures = failures.iter().filter_map(Value::as_str);
        Ok(LoadResults {
            answers: answers.collect(),
            failed: seen["failed"].as_u64().context("failed")?,
            failures: failures.map(str::to_owned).collect(),
        })
    }

    /// The results, which must contain responses and no failure.
    pub(crate) fn without_failure(&self) -> anyhow::Result<LoadResults> {
        let seen = self.seen()?;
        ensure!(
            seen.failed == 0,
            "{} requests failed, these first:\n{}",
            seen.failed,
            seen.failures.join("\n")
        );
        ensure!(!seen.answers.is_empty(), "nothing was answered");
        Ok(seen)
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let pod = format!("deployment/{}", self.name);
        let url = format!("http://127.0.0.1:8090{path}");
        self.space.exec(&pod, "app", &["mesh-app", "get", &url])
    }
}
