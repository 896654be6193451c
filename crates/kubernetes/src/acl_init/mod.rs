//! `acl-init`: a Job that runs once for each state of the chart. It bootstraps the servers' ACLs and
//! creates the auth methods, rules and policies with which pods, the operator and gateways log in, and in a primary
//! datacenter the token for others. In a secondary one it writes with that token. It is idempotent, resumes after a
//! crash, and deletes nothing that others have created.

mod failure;
mod gateways;
mod objects;
mod options;
#[cfg(test)]
mod tests;
mod token;
mod write;

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::Client;
use legate_runtime::Scope;
use tokio::time::{Instant, sleep, timeout_at};

use self::failure::Failure;
pub use self::gateways::GatewayName;
use self::objects::Objects;
pub(crate) use self::options::replication_secret;
pub use self::options::{Options, SecondaryFlags};
use self::write::Writer;
use crate::servers::{Credentials, Servers};

/// The pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Every how many attempts the current obstacle is logged.
const SAID_EVERY: u32 = 10;
/// The deadline for closing connections at the end.
const END: Duration = Duration::from_secs(5);

/// Retries until the work is done.
///
/// # Errors
/// If a user has to act, with the action; or if the deadline has passed.
pub fn run(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    legate_runtime::block_on(runtime, async {
        let config = kube::Config::infer().await.context(
            "cannot determine the address of the API server: run acl-init in a pod with a service account token, \
             or set KUBECONFIG",
        )?;
        let client = Client::try_from(config).context("cannot talk to the API server")?;
        initialise(&options, client).await
    })
}

/// The same with a client of the API server.
///
/// # Errors
/// As [`run`].
pub async fn initialise(options: &Options, client: Client) -> anyhow::Result<()> {
    let scope = Scope::new("acl-init");
    // Each request sets its own token.
    let servers = Servers::new(options.servers.options(Credentials::None)?, scope.spawner())?;
    let done = tokio::select! {
        done = attempts(options, &client, &servers) => done,
        failure = scope.failed() => Err(anyhow::Error::from(failure).context("a connection failed")),
    };
    // Drops idle connections, so that the scope can end.
    drop(servers);
    if let Err(error) = scope.stop(END).await {
        tracing::debug!(%error, "connections");
    }
    done
}

/// Retries until the work is done, cannot be done, or the deadline has passed.
async fn attempts(options: &Options, client: &Client, servers: &Servers) -> anyhow::Result<()> {
    let deadline = Instant::now() + options.timeout;
    let mut waits_for = String::new();
    let mut said = 0;
    loop {
        let attempt = timeout_at(deadline, attempt(options, client, servers)).await;
        match attempt {
            Ok(Ok(())) => {
                tracing::info!("access control is set up");
                return Ok(());
            }
            Ok(Err(Failure::Final(error))) => bail!(error),
            Ok(Err(Failure::Later(error))) => {
                if error != waits_for || said == SAID_EVERY {
                    tracing::info!(reason = error, "waiting");
                    said = 0;
                }
                said += 1;
                waits_for = error;
            }
            Err(_) => {}
        }
        if Instant::now() + PAUSE >= deadline {
            bail!("not done within --timeout: {waits_for}");
        }
        sleep(PAUSE).await;
    }
}

/// Performs all remaining steps.
async fn attempt(options: &Options, client: &Client, servers: &Servers) -> Result<(), Failure> {
    let token = token::choose(client, options).await?;
    let secondary = options.secondary();
    match secondary {
        Some(secondary) => token::replicated(servers, secondary, &token).await?,
        None => token::introduce(servers, options, &token).await?,
    }
    let reviewer = token::reviewer(client, options).await?;
    let tenants = &options.servers.tenants();
    let objects = Objects::new(options, tenants, &reviewer);
    let token = &token;
    let writer = Writer {
        servers,
        token,
        primary: secondary.map(|secondary| secondary.primary),
    };
    writer.tenants(tenants, &objects).await?;
    writer.write(&objects).await?;
    if options.create_replication_token {
        let secret = token::of_replication(client, options).await?;
        writer
            .token(&secret, objects::replication_policy(options))
            .await?;
    }
    Ok(())
}
