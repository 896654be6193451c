//! `legate check` and `legate proxy`: what a mesh on Kubernetes and its sidecars look like from a
//! terminal, through the user's kubeconfig.
//!
//! Drivers collect facts from the API server and, by port-forward, from pods; what is wrong and what is
//! printed are pure functions of these. Nothing in the cluster is changed.

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

/// How long the API server may take for one answer.
const API_LIMIT: Duration = Duration::from_secs(20);
/// Objects in one page of a list; kubectl's number.
const PAGE: u32 = 500;
/// Pods that are asked at the same time.
const PODS_AT_A_TIME: usize = 16;

/// Which cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Cluster {
    /// Kubeconfig file. Default: those that KUBECONFIG names, else ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

impl Cluster {
    /// A client with the user's rights.
    ///
    /// # Errors
    ///
    /// When there is no usable kubeconfig.
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
                .context("name a cluster with KUBECONFIG or --kubeconfig")?,
        };
        Ok(Client::try_from(config)?)
    }
}

/// An answer of the API server, or why there is none: its own words where it gave some.
async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(API_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(words(&error)),
        Err(_) => Err(format!(
            "the API server did not answer within {} s",
            API_LIMIT.as_secs()
        )),
    }
}

/// What went wrong, for people.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        // The outer errors of the client say only which library failed.
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
