//! What is removed while the Gateway API is not enabled: frontends that were written before. Nobody
//! would keep their endpoints up to date, and callers would go on to use them.

use std::convert::Infallible;

use http::StatusCode;
use kube::Client;
use legate_runtime::Backoff;

use super::fronts::AllAcknowledged;
use super::rows::is_frontend;
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::sync::cluster_uid;
use crate::watch::API_SERVER;

/// Removes the frontends of this cluster, as long as `lead` holds.
///
/// # Errors
///
/// None: failures are retried.
pub async fn remove_frontends(
    client: Client,
    servers: Servers,
    lead: Lead,
) -> Result<(), Infallible> {
    let work = work(&client, &servers, &lead);
    lead.token().run_until_cancelled(work).await;
    Ok(())
}

async fn work(client: &Client, servers: &Servers, lead: &Lead) {
    let cluster = cluster_uid(client).await;
    let mut backoff = Backoff::new(API_SERVER);
    while let Err(error) = remove(&cluster, servers, lead).await {
        // Consul's servers have no frontends.
        if error.status() == Some(StatusCode::NOT_FOUND) {
            return;
        }
        tracing::warn!(%error, "cannot remove the frontends of Services: retrying");
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}

async fn remove(cluster: &str, servers: &Servers, lead: &Lead) -> Result<(), ServersError> {
    const GATEWAYS: [&str; 2] = ["internal", "legate"];
    let path = Path::of(GATEWAYS.into_iter().chain(["gateways", "status"]));
    let all: AllAcknowledged = servers.get_json(&path).await?;
    for name in frontends_of(cluster, &all) {
        if !lead.holds() {
            return Ok(());
        }
        let path = Path::of(GATEWAYS.into_iter().chain(["gateway", name]));
        servers.delete(&path).await?;
        tracing::info!(name, "removed a frontend: the Gateway API is not enabled");
    }
    Ok(())
}

/// The frontends that the servers have of a cluster.
fn frontends_of<'a>(cluster: &str, all: &'a AllAcknowledged) -> Vec<&'a str> {
    let own = all.iter().filter(|(_, stored)| stored.owner == cluster);
    let names = own.map(|(name, _)| name.as_str());
    names.filter(|name| is_frontend(name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use http::Method;

    use super::*;
    use crate::servers::tests::Fake;

    #[test]
    fn gateways_and_other_clusters_keep_what_they_have() {
        let all = json!({
            "_cart.shop": {"Owner": "own"},
            "_cart.shop.web": {"Owner": "own"},
            "_cart.stock": {"Owner": "another"},
            "shop--edge-legate": {"Owner": "own"},
        });
        let all = serde_json::from_value(all).unwrap();
        assert_eq!(frontends_of("own", &all), ["_cart.shop", "_cart.shop.web"]);
    }

    #[tokio::test]
    async fn only_frontends_of_this_cluster_are_removed() {
        let fake = Fake::start(|seen| match seen.method {
            Method::GET => {
                let all = json!({
                    "_cart.shop": {"Owner": "own"},
                    "_cart.stock": {"Owner": "another"},
                    "shop--edge-legate": {"Owner": "own"},
                });
                (200, all.to_string())
            }
            _ => (200, "true".to_owned()),
        });
        let fake = fake.await;
        remove("own", &fake.servers(), &Lead::forever())
            .await
            .unwrap();
        let path = "/v1/internal/legate/gateway/_cart.shop".to_owned();
        let expected = ("DELETE".to_owned(), path, String::new());
        assert_eq!(fake.changes(), [expected]);
    }
}
