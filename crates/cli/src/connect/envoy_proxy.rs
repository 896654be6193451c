//! Finds the proxy for an Envoy, and its registration, through the agent or the catalog.

use anyhow::{Context, bail};
use serde_json::Value;

use super::envoy_flags::{Which, kind_of};
use crate::output::{list, quoted, text};
use crate::server_api::{Api, encoded, encoded_path};

/// The proxy, as selected by flags and the agent.
pub(super) struct Proxy {
    pub(super) id: String,
    /// The service of the sidecar, or the gateway.
    pub(super) stands_for: String,
    /// The kind of a gateway to be registered.
    pub(super) kind: Option<&'static str>,
}

/// A registered proxy.
pub(super) struct Registered {
    pub(super) service: Value,
    pub(super) datacenter: String,
}

impl Which {
    /// Finds the proxy among those of the agent if its id is not given.
    pub(super) async fn proxy(&self, api: &Api, register: bool) -> anyhow::Result<Proxy> {
        let sidecar_for = self.given(&self.sidecar_for, "CONNECT_SIDECAR_FOR");
        let kind = match self.gateway() {
            "" => None,
            gateway => Some(kind_of(gateway)?),
        };
        let mut name = match (self.service.as_str(), kind) {
            ("", Some(kind)) => kind.to_owned(),
            (name, _) => name.to_owned(),
        };
        let id = match (
            self.given(&self.proxy_id, "CONNECT_PROXY_ID"),
            &sidecar_for,
            kind,
        ) {
            (Some(id), ..) => id,
            (None, Some(service), _) => sidecar_of(api, service).await?,
            (None, None, Some(_)) if register => name.clone(),
            (None, None, Some(kind)) => {
                let gateway = only_gateway(api, kind).await?;
                name = text(&gateway, "Service").to_owned();
                text(&gateway, "ID").to_owned()
            }
            (None, None, None) => bail!(
                "No proxy ID specified. One of -proxy-id, -sidecar-for, or -gateway is required"
            ),
        };
        let stands_for = match (sidecar_for, kind) {
            (Some(service), _) => service,
            (None, Some(_)) => name,
            (None, None) => id.clone(),
        };
        Ok(Proxy {
            id,
            stands_for,
            kind,
        })
    }
}

/// The id of the only sidecar proxy of a service.
async fn sidecar_of(api: &Api, service: &str) -> anyhow::Result<String> {
    let services = api.get("/v1/agent/services").value().await;
    let services =
        services.with_context(|| format!("Failed looking up sidecar proxy info for {service}"))?;
    let is_sidecar = |one: &&Value| {
        let of = text(&one["Proxy"], "DestinationServiceID");
        one["Kind"] == "connect-proxy" && of.eq_ignore_ascii_case(service)
    };
    let services = services
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, one)| one);
    let ids: Vec<&str> = services
        .filter(is_sidecar)
        .map(|one| text(one, "ID"))
        .collect();
    match ids.as_slice() {
        [] => bail!("No sidecar proxy registered for {service}"),
        [id] => Ok((*id).to_owned()),
        several => bail!(
            "More than one sidecar proxy registered for {service}.\n    Start proxy with -proxy-id \
             and one of the following IDs: {}",
            several.join(", ")
        ),
    }
}

/// The only gateway of a kind.
async fn only_gateway(api: &Api, kind: &str) -> anyhow::Result<Value> {
    let ask = api
        .get("/v1/agent/services")
        .query("filter", format!("Kind == `{kind}`"));
    let services = ask.value().await;
    let services = services.with_context(|| format!("Failed looking up {kind} instances"))?;
    let mut services = services
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, one)| one);
    match (services.next(), services.next()) {
        (None, _) => bail!("No {kind} services registered with this agent"),
        (Some(one), None) => Ok(one.clone()),
        _ => bail!(
            "Cannot lookup the {kind}'s proxy ID because multiple are registered with the agent"
        ),
    }
}

/// The registration of a proxy, from the agent or from a node.
pub(super) async fn registration(api: &Api, node: &str, id: &str) -> anyhow::Result<Registered> {
    if node.is_empty() {
        let service = api
            .get(format!("/v1/agent/service/{}", encoded_path(id)))
            .value()
            .await;
        let service = service.context("failed fetch proxy config from local agent")?;
        return Ok(Registered {
            datacenter: text(&service, "Datacenter").to_owned(),
            service,
        });
    }
    let ask = api.get(format!("/v1/catalog/node-services/{}", encoded(node)));
    let ask = ask.query("filter", format!("ID == {}", quoted(id)));
    let found = ask.flag("merge-central-config", true).value().await;
    let found = found
        .with_context(|| format!("failed to fetch proxy config from catalog for node {node:?}"))?;
    match list(&found, "Services") {
        [] => bail!("Proxy service with ID {id:?} not found"),
        [service] => Ok(Registered {
            service: service.clone(),
            datacenter: text(&found["Node"], "Datacenter").to_owned(),
        }),
        _ => bail!("Expected to find only one proxy service with ID {id:?}, but more were found"),
    }
}
