//! A listener of a terminating gateway: one filter chain for each server name by which callers reach
//! a service, subset or destination. All other connections are closed.
//!
//! Consul's last chain leads to the cluster that the server name names, whatever it is. Here it
//! leads nowhere, so that no connection passes a service's access rules.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::inbound::{self, Access, Inbound};
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names;
use crate::telemetry::Telemetry;

/// The name of no cluster. Envoy closes connections to it.
const NOWHERE: &str = "";

/// A listener.
#[derive(Hash)]
pub(crate) struct TerminatingListener<'a> {
    /// The name of its address.
    pub(crate) address: &'a str,
    pub(crate) bind: &'a Bind,
    /// In order of their server names.
    pub(crate) chains: &'a [ServiceChain<'a>],
    pub(crate) telemetry: &'a Telemetry,
}

/// The chain of a target, by the server names of its callers.
#[derive(Hash)]
pub(crate) struct ServiceChain<'a> {
    /// At least one.
    pub(crate) server_names: Vec<String>,
    pub(crate) inbound: Inbound<'a>,
}

/// The listener.
pub(crate) fn listener(
    memo: &Memo,
    input: &TerminatingListener<'_>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(input, |input| {
        let name = format!("{}:{}", input.address, input.bind.suffix());
        let routes = input.chains.iter().filter(|one| match one.inbound.access {
            Access::Requests { .. } => true,
            Access::Connections(_) => false,
        });
        let routes: Vec<&str> = routes.map(|one| &*one.inbound.routes).collect();
        Ok(encode::resource(&name, &build(&name, input), &routes))
    })
}

fn build(name: &str, input: &TerminatingListener<'_>) -> Listener {
    let chains = input.chains.iter().map(|one| FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            // Envoy compares server names in lower case.
            server_names: one
                .server_names
                .iter()
                .map(|name| name.to_lowercase())
                .collect(),
            ..FilterChainMatch::default()
        }),
        ..inbound::chain(&one.inbound, None, Vec::new())
    });
    let stats = names::stat_prefix("terminating_gateway.", input.address);
    let closed = listener::tcp_proxy(&stats, NOWHERE, 1, false, input.telemetry);
    let others = FilterChain {
        filters: vec![closed],
        ..FilterChain::default()
    };
    Listener {
        listener_filters: vec![listener::tls_inspector()],
        ..listener::listener(
            name,
            input.bind,
            TrafficDirection::Inbound,
            false,
            input.telemetry,
            chains.chain([others]).collect(),
        )
    }
}
