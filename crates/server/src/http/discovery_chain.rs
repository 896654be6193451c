//! `/v1/discovery-chain`: the compiled discovery chain of a service.

use axum::extract::Path;
use axum::response::Response;
use legate_discovery_chain::{Chain, Overrides, Request, compile};
use legate_model::{ChainOverrides, ServiceName};
use legate_proxycfg::StoredEntries;
use legate_store::ReadTxn;
use serde::Serialize;

use super::call::Call;
use crate::api_error::ApiError;

/// `GET /v1/discovery-chain/:service`
pub(super) async fn get(Path(service): Path<String>, call: Call) -> Result<Response, ApiError> {
    show(&call, &service, Overrides::default()).await
}

/// `POST /v1/discovery-chain/:service`, with overrides.
pub(super) async fn get_with(
    Path(service): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let wanted: ChainOverrides = call.decode()?;
    let overrides = Overrides {
        mesh_gateway: wanted.override_mesh_gateway.mode,
        protocol: wanted.protocol()?,
        connect_timeout: wanted.override_connect_timeout,
    };
    show(&call, &service, overrides).await
}

async fn show(call: &Call, service: &str, overrides: Overrides) -> Result<Response, ApiError> {
    ApiError::require(
        call.authorizer()?.service_read(service),
        "service:read",
        service,
    )?;
    // The datacenter of the caller for which the chain is compiled.
    let of_caller = call.params.get("compile-dc").filter(|dc| !dc.is_empty());
    let datacenter = of_caller.unwrap_or(&call.config.datacenter);
    let read = |state: &ReadTxn<'_>| chain(state, service, datacenter, overrides);
    let answer = call.read(read).await?;
    match &answer.value {
        Ok(shown) => call.answer(answer.index, shown, false),
        Err(reason) => Err(ApiError::internal(reason.clone())),
    }
}

/// A chain in Consul's format.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown {
    chain: WithAddresses,
}

#[derive(Serialize)]
struct WithAddresses {
    #[serde(flatten)]
    chain: Chain,
    /// `null` if empty, as in Go.
    #[serde(rename = "AutoVirtualIPs")]
    automatic: Option<Vec<String>>,
    #[serde(rename = "ManualVirtualIPs")]
    manual: Option<Vec<String>>,
}

fn chain(
    state: &ReadTxn<'_>,
    service: &str,
    datacenter: &str,
    overrides: Overrides,
) -> Result<Shown, String> {
    let roots = state.ca_roots();
    let trust_domain = roots.and_then(|roots| roots.trust_domain.parse().ok());
    let trust_domain = trust_domain.ok_or("the mesh has no CA roots yet: retry later")?;
    let request = Request {
        service: &ServiceName::new(state.tenancy(), service),
        datacenter,
        trust_domain: &trust_domain,
        overrides,
    };
    let chain = compile(&request, &StoredEntries(state)).map_err(|error| error.to_string())?;
    let list = |addresses: Vec<String>| (!addresses.is_empty()).then_some(addresses);
    let automatic = state.virtual_ip(service).into_iter();
    let manual = state.manual_virtual_ips(service).into_iter();
    Ok(Shown {
        chain: WithAddresses {
            chain,
            automatic: list(automatic.map(|ip| ip.address().to_string()).collect()),
            manual: list(manual.map(|ip| ip.to_string()).collect()),
        },
    })
}
