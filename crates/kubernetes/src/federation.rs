//! The Secret with which secondary datacenters join this one. Its name and keys are those of consul-k8s.
//!
//! The leader writes it as soon as everything in it is known, and again when the CA, the token or the addresses of mesh
//! gateways change.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::Ipv6Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use legate_model::CheckServiceNode;
use legate_runtime::{Backoff, BackoffPolicy};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::acl_init::replication_secret;
use crate::certificates::{SigningCa, copy_secret};
use crate::leader::Lead;
use crate::servers::{Path, Servers};

/// How often it is compared.
const EVERY: Duration = Duration::from_secs(30);
/// The backoff until everything is known.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(500),
    multiplier: 1.5,
    jitter: 0.3,
    cap: Duration::from_secs(10),
};

/// What the Secret is made from.
#[derive(Debug, Clone)]
pub struct Options {
    /// The chart's full name.
    pub full_name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// The datacenter, which is the primary.
    pub datacenter: String,
    /// Whether there is a replication token, which `acl-init` makes.
    pub replication_token: bool,
    /// The CA that all datacenters have.
    pub ca: watch::Receiver<Option<SigningCa>>,
}

/// Keeps the Secret as long as `lead` holds.
///
/// # Errors
///
/// None: failures are retried.
pub async fn run(
    client: Client,
    servers: Servers,
    lead: Lead,
    options: Options,
) -> Result<(), Infallible> {
    let mut changes = options.ca.clone();
    let keeper = Keeper {
        secrets: Api::namespaced(client, &options.namespace),
        servers,
        options,
    };
    let keep = async {
        let (mut backoff, mut reported) = (Backoff::new(RETRY), String::new());
        loop {
            let pause = match keeper.write().await {
                Ok(()) => {
                    backoff.reset();
                    reported.clear();
                    EVERY
                }
                Err(reason) => {
                    if reason != reported {
                        tracing::warn!(reason, "the Secret for secondary datacenters has to wait");
                        reported = reason;
                    }
                    backoff.next(rand::random())
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = changes.changed() => {}
            }
        }
    };
    let _: Option<()> = lead.token().run_until_cancelled(keep).await;
    Ok(())
}

struct Keeper {
    secrets: Api<Secret>,
    servers: Servers,
    options: Options,
}

/// The used fields of a federation state.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    state: State,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    mesh_gateways: Option<Vec<CheckServiceNode>>,
}

impl Keeper {
    async fn write(&self) -> Result<(), String> {
        let Options {
            full_name,
            datacenter,
            ..
        } = &self.options;
        let ca = self.options.ca.borrow().clone();
        let ca = ca.ok_or("the CA of the servers is not known yet")?;
        let config = json!({
            "primary_datacenter": datacenter,
            "primary_gateways": self.gateways().await?,
        })
        .to_string();
        let token = self.token().await?;
        let mut data = vec![
            ("caCert", ca.certificates.as_str()),
            ("caKey", ca.key.expose()),
            ("serverConfigJSON", &config),
        ];
        data.extend(
            token
                .iter()
                .map(|token| ("replicationToken", token.as_str())),
        );
        copy_secret(&self.secrets, &format!("{full_name}-federation"), &data)
            .await
            .map_err(|error| error.to_string())
    }

    /// The WAN addresses of the gateways that lead to servers, sorted.
    async fn gateways(&self) -> Result<BTreeSet<String>, String> {
        let path = Path::of(["internal", "federation-state", &self.options.datacenter]);
        let answer = self.servers.find_json::<Answer>(&path).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let gateways = answer.and_then(|answer| answer.state.mesh_gateways);
        let gateways = gateways.iter().flatten();
        let federated = gateways.filter(|gateway| gateway.service.exposes_servers());
        let addresses = federated.map(|gateway| {
            let (host, port) = gateway.wan_address();
            match host.parse::<Ipv6Addr>() {
                Ok(address) => format!("[{address}]:{port}"),
                Err(_) => format!("{host}:{port}"),
            }
        });
        let addresses: BTreeSet<String> = addresses.collect();
        match addresses.is_empty() {
            true => Err("no mesh gateway is registered yet".to_owned()),
            false => Ok(addresses),
        }
    }

    async fn token(&self) -> Result<Option<String>, String> {
        if !self.options.replication_token {
            return Ok(None);
        }
        let name = replication_secret(&self.options.full_name);
        let held = self.secrets.get_opt(&name).await;
        let held = held.map_err(|error| format!("the Secret {name} cannot be read: {error}"))?;
        let bytes = held.and_then(|secret| secret.data?.remove("token"));
        let token = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
        let token = token.ok_or_else(|| format!("acl-init has not made the Secret {name} yet"))?;
        Ok(Some(token))
    }
}
