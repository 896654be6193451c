//! The namespace of a scenario, with kubectl operations in it.

use anyhow::Context;
use serde_json::Value;

use crate::cluster::{Cluster, LIMIT};

/// A namespace that exists while its scenario runs.
pub(crate) struct Namespace<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) name: String,
}

impl<'a> Namespace<'a> {
    /// Creates it, after deleting one left by an earlier run.
    pub(crate) fn create(cluster: &'a Cluster, name: &str) -> anyhow::Result<Self> {
        let space = Self {
            cluster,
            name: name.to_owned(),
        };
        cluster.kubectl(&["delete", "namespace", name, "--ignore-not-found"])?;
        cluster.kubectl(&["create", "namespace", name])?;
        Ok(space)
    }

    /// Runs kubectl in the namespace and returns its output.
    pub(crate) fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        let here = ["--namespace", &self.name];
        self.cluster.kubectl(&[&here[..], words].concat())
    }

    /// Applies manifests.
    pub(crate) fn apply(&self, manifests: &str) -> anyhow::Result<()> {
        let words = ["--namespace", &self.name, "apply", "--filename", "-"];
        self.cluster.kubectl_with(manifests, &words).map(|_| ())
    }

    /// Objects in the namespace as JSON.
    pub(crate) fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let here = ["--namespace", &self.name];
        self.cluster.json(&[&here[..], words].concat())
    }

    /// Waits until all pods of a Deployment or StatefulSet, such as `deployment/api`, are updated
    /// and ready.
    pub(crate) fn rolled_out(&self, workload: &str) -> anyhow::Result<()> {
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        self.kubectl(&["rollout", "status", workload, &limit])
            .map(|_| ())
    }

    /// Waits for a condition of an object: `wait("pod/api", "condition=Ready")`.
    pub(crate) fn wait(&self, object: &str, condition: &str) -> anyhow::Result<()> {
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        let condition = format!("--for={condition}");
        self.kubectl(&["wait", object, &condition, &limit])
            .map(|_| ())
    }

    /// Names of the pods with a label, without terminating ones.
    pub(crate) fn pods(&self, label: &str) -> anyhow::Result<Vec<String>> {
        let pods = self.json(&["get", "pods", "--selector", label])?;
        let pods = pods["items"].as_array().context("pods are a list")?;
        let live = pods
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let names = live.filter_map(|pod| pod["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// The output of a command in a container: `exec("deployment/web", "web", &["mesh-app", …])`.
    pub(crate) fn exec(
        &self,
        pod: &str,
        container: &str,
        words: &[&str],
    ) -> anyhow::Result<String> {
        self.kubectl(&[&["exec", pod, "--container", container, "--"], words].concat())
    }

    /// Sends a request to a Service here, such as `server:8500`, through the API server.
    pub(crate) fn put(&self, service: &str, path: &str, body: &Value) -> anyhow::Result<String> {
        let name = &self.name;
        let url = format!("/api/v1/namespaces/{name}/services/{service}/proxy{path}");
        let words = ["replace", "--raw", &url, "--filename", "-"];
        self.cluster.kubectl_with(&body.to_string(), &words)
    }

    /// Describes all pods after a failure.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for words in [
            &["get", "all", "--output", "wide"][..],
            &["get", "events", "--sort-by=.lastTimestamp"],
        ] {
            text += &format!("# kubectl {}\n{}\n", words.join(" "), self.print(words));
        }
        let names = ["get", "pods", "--output", "name"];
        for pod in self.print(&names).lines() {
            let words = ["logs", pod, "--all-containers", "--prefix", "--tail=40"];
            text += &format!("# kubectl {}\n{}\n", words.join(" "), self.print(&words));
        }
        text
    }

    /// Deletes it without waiting for its pods.
    pub(crate) fn delete(&self) -> anyhow::Result<()> {
        let words = ["delete", "namespace", &self.name, "--wait=false"];
        self.cluster.kubectl(&words).map(|_| ())
    }

    fn print(&self, words: &[&str]) -> String {
        self.kubectl(words)
            .unwrap_or_else(|error| format!("{error:#}"))
    }
}
