//! `builtin/lua`: a script for requests and responses of the listeners of one direction.

use envoy_types::pb::envoy::config::core::v3::{DataSource, data_source};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::filters::http::lua::v3::Lua as LuaFilter;
use legate_model::extension::Lua;

use super::filters;
use crate::encode;
use crate::listener::http_filter;

/// Adds the filter to HTTP connection managers; other chains stay unchanged.
pub(super) fn change(lua: &Lua, listener: &mut Listener) -> Result<(), String> {
    let filter = LuaFilter {
        default_source_code: Some(DataSource {
            specifier: Some(data_source::Specifier::InlineString(lua.script.clone())),
            ..DataSource::default()
        }),
        ..LuaFilter::default()
    };
    let filter = http_filter("envoy.filters.http.lua", encode::any(&filter));
    filters::each_manager(listener, |manager| {
        filters::insert_last(&mut manager.http_filters, filter.clone())
    })?;
    Ok(())
}
