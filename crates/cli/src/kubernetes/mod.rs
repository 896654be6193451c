//! `legate check` and `legate proxy`: inspects a mesh on Kubernetes and its sidecars through the user's
//! kubeconfig.
//!
//! Drivers collect facts from the API server and, by port-forward, from pods; findings and output are
//! pure functions of the facts. Nothing in the cluster is changed.

pub(crate) mod check;
mod dump;
mod forward;
pub(crate) mod proxy;
mod sidecar;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use kube::api::{ListParams, ObjectList};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The timeout of a response from the API server.
const API_LIMIT: Duration = Duration::from_secs(20);
/// The page size of lists, which is kubectl's.
const PAGE: u32 = 500;
/// How many pods are queried concurrently.
const PODS_AT_A_TIME: usize = 16;

/// Selects the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Cluster {
    /// Kubeconfig file. Default: KUBECONFIG, else ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: the current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for users
    Text,
    /// JSON for programs
    Json,
}

impl Cluster {
    /// A client with the user's permissions.
    ///
    /// # Errors
    ///
    /// If there is no usable kubeconfig.
    async fn client(&self) -> anyhow::Result<Client> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(file, &options).await?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await?,
            None => Config::infer()
                .await
                .context("select a cluster with KUBECONFIG or --kubeconfig")?,
        };
        Ok(Client::try_from(config)?)
    }
}

/// The API server's response, or why it failed, in the API server's words if possible.
async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(API_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(words(&error)),
        Err(_) => Err(format!(
            "the API server did not respond within {} s",
            API_LIMIT.as_secs()
        )),
    }
}

/// The error as text.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        // The client's outer errors name only the library that failed.
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(inner) = source {
                let inner_text = inner.to_string();
                if !text.contains(&inner_text) {
                    text = format!("{text}: {inner_text}");
                }
                source = inner.source();
            }
            text
        }
    }
}

/// All pages of a list.
async fn pages<K: Clone, F, C>(params: ListParams, mut page: F) -> Result<Vec<K>, String>
where
    F: FnMut(ListParams) -> C,
    C: Future<Output = kube::Result<ObjectList<K>>>,
{
    let mut items = Vec::new();
    let mut params = params.limit(PAGE);
    loop {
        let list = answer(page(params.clone())).await?;
        items.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(items),
        }
    }
}
