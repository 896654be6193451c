//! Inserts and changes filters of listeners.

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener, filter};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter,
};
use legate_model::extension::{InsertLocation, InsertOptions};
use prost::{Message, Name};

use crate::encode;
use crate::names::{HTTP_CONNECTION_MANAGER, ROUTER, TCP_PROXY};

/// A filter with a name.
pub(super) trait Named {
    /// The terminal filter, which must be the last one in Envoy.
    const LAST: &'static str;

    fn name(&self) -> &str;
}

impl Named for Filter {
    const LAST: &'static str = TCP_PROXY;

    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for HttpFilter {
    const LAST: &'static str = ROUTER;

    fn name(&self) -> &str {
        &self.name
    }
}

/// Inserts a filter before the terminal one.
pub(super) fn insert_last<F: Named>(filters: &mut Vec<F>, filter: F) -> Result<(), String> {
    insert(filters, filter, &InsertOptions::default())
}

/// Inserts a filter at the configured position.
pub(super) fn insert<F: Named>(
    filters: &mut Vec<F>,
    filter: F,
    options: &InsertOptions,
) -> Result<(), String> {
    use InsertLocation as At;
    let name = match options.location {
        At::Default => F::LAST,
        _ => &options.filter_name,
    };
    let mut all = filters.iter();
    let first = || all.clone().position(|one| one.name() == name);
    let place = match options.location {
        At::First => Some(0),
        At::Last => Some(filters.len()),
        At::Default | At::BeforeFirstMatch => first(),
        At::AfterFirstMatch => first().map(|at| at + 1),
        At::BeforeLastMatch => all.rposition(|one| one.name() == name),
        At::AfterLastMatch => all.rposition(|one| one.name() == name).map(|at| at + 1),
    };
    let place = place.ok_or_else(|| {
        let new = filter.name();
        format!("failed to insert {new:?} filter: there is no filter {name:?}")
    })?;
    if place == filters.len() {
        return Err(format!(
            "failed to insert {:?} filter: Envoy takes no filter after {:?}",
            filter.name(),
            F::LAST
        ));
    }
    filters.insert(place, filter);
    Ok(())
}

/// The filter chains that extensions apply to. The default chain of an outbound listener is
/// excluded: its traffic leaves the mesh.
pub(super) fn chains(listener: &mut Listener) -> impl Iterator<Item = &mut FilterChain> {
    let inbound = listener.traffic_direction() == TrafficDirection::Inbound;
    let default = listener.default_filter_chain.as_mut().filter(|_| inbound);
    listener.filter_chains.iter_mut().chain(default)
}

fn is_manager(filter: &Filter) -> bool {
    match &filter.config_type {
        Some(filter::ConfigType::TypedConfig(config)) => {
            config.type_url == HttpConnectionManager::type_url()
        }
        _ => filter.name == HTTP_CONNECTION_MANAGER,
    }
}

/// Changes the connection managers of a listener. Returns the number of chains with one.
pub(super) fn each_manager(
    listener: &mut Listener,
    mut change: impl FnMut(&mut HttpConnectionManager) -> Result<(), String>,
) -> Result<usize, String> {
    let mut changed = 0;
    for chain in chains(listener) {
        if change_manager(chain, &mut change)? {
            changed += 1;
        }
    }
    Ok(changed)
}

/// Changes the connection manager of a chain. Returns whether it has one.
pub(super) fn change_manager(
    chain: &mut FilterChain,
    change: &mut impl FnMut(&mut HttpConnectionManager) -> Result<(), String>,
) -> Result<bool, String> {
    let mut filters = chain.filters.iter_mut();
    // By type: in listeners that users write it may have any name.
    let Some(filter) = filters.find(|filter| is_manager(filter)) else {
        return Ok(false);
    };
    let Some(filter::ConfigType::TypedConfig(config)) = &mut filter.config_type else {
        return Err("the connection manager has no configuration".to_owned());
    };
    let mut manager = HttpConnectionManager::decode(config.value.as_slice())
        .map_err(|error| format!("the connection manager cannot be decoded: {error}"))?;
    change(&mut manager)?;
    *config = encode::any(&manager);
    Ok(true)
}
