//! `builtin/wasm`: a WebAssembly filter, for HTTP requests or for TCP connections.

use envoy_types::pb::envoy::config::core::v3::{
    AsyncDataSource, DataSource, HttpUri, RemoteDataSource, RetryPolicy, async_data_source,
    data_source, http_uri,
};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm as HttpWasm;
use envoy_types::pb::envoy::extensions::filters::network::wasm::v3::Wasm as NetworkWasm;
use envoy_types::pb::envoy::extensions::wasm::v3::{
    CapabilityRestrictionConfig, EnvironmentVariables, PluginConfig, SanitizationConfig, VmConfig,
    plugin_config,
};
use envoy_types::pb::google::protobuf::{Any, StringValue, UInt32Value};
use legate_model::extension::{
    CapabilityRestriction, Wasm, WasmPlugin, WasmProtocol, WasmRemote, WasmRetryPolicy, WasmVm,
};

use super::filters;
use super::proxy::Proxy;
use crate::duration::{self, proto_duration};
use crate::encode;
use crate::listener::{http_filter, network_filter};

/// An HTTP filter is added to chains with a connection manager, a network filter to the others.
pub(super) fn change(
    wasm: &Wasm,
    required: bool,
    proxy: &Proxy,
    listener: &mut Listener,
) -> Result<(), String> {
    // As in Consul, the filter is skipped if the service has another protocol.
    if (wasm.protocol == WasmProtocol::Http) != proxy.protocol.is_http() {
        return Ok(());
    }
    let plugin = plugin(&wasm.plugin_config, required, proxy)?;
    if wasm.protocol == WasmProtocol::Http {
        let config = HttpWasm {
            config: Some(plugin),
        };
        let filter = http_filter("envoy.filters.http.wasm", encode::any(&config));
        filters::each_manager(listener, |manager| {
            filters::insert_last(&mut manager.http_filters, filter.clone())
        })?;
        return Ok(());
    }
    let config = NetworkWasm {
        config: Some(plugin),
    };
    let filter = network_filter("envoy.filters.network.wasm", encode::any(&config));
    for chain in filters::chains(listener) {
        if !filters::change_manager(chain, &mut |_| Ok(()))? {
            filters::insert_last(&mut chain.filters, filter.clone())?;
        }
    }
    Ok(())
}

#[expect(
    deprecated,
    reason = "supported by all Envoy versions that Consul supports, unlike their successors"
)]
fn plugin(plugin: &WasmPlugin, required: bool, proxy: &Proxy) -> Result<PluginConfig, String> {
    Ok(PluginConfig {
        name: plugin.name.clone(),
        root_id: plugin.root_id.clone(),
        vm: Some(plugin_config::Vm::VmConfig(machine(
            &plugin.vm_config,
            proxy,
        )?)),
        configuration: text(&plugin.configuration),
        capability_restriction_config: capabilities(&plugin.capability_restriction_configuration),
        fail_open: !required,
        ..PluginConfig::default()
    })
}

fn machine(machine: &WasmVm, proxy: &Proxy) -> Result<VmConfig, String> {
    let runtime = match machine.runtime.as_str() {
        "" => "v8",
        runtime => runtime,
    };
    let variables = &machine.environment_variables;
    let has_variables = !variables.host_env_keys.is_empty() || !variables.key_values.is_empty();
    Ok(VmConfig {
        vm_id: machine.vm_id.clone(),
        runtime: format!("envoy.wasm.runtime.{runtime}"),
        code: Some(code(machine, proxy)?),
        configuration: text(&machine.configuration),
        environment_variables: has_variables.then(|| EnvironmentVariables {
            host_env_keys: variables.host_env_keys.clone(),
            key_values: variables.key_values.clone().into_iter().collect(),
        }),
        ..VmConfig::default()
    })
}

fn code(machine: &WasmVm, proxy: &Proxy) -> Result<AsyncDataSource, String> {
    use async_data_source::Specifier;
    let local = &machine.code.local.filename;
    let specifier = match local.is_empty() {
        true => Specifier::Remote(remote(&machine.code.remote, proxy)?),
        false => Specifier::Local(DataSource {
            specifier: Some(data_source::Specifier::Filename(local.clone())),
            ..DataSource::default()
        }),
    };
    Ok(AsyncDataSource {
        specifier: Some(specifier),
    })
}

fn remote(remote: &WasmRemote, proxy: &Proxy) -> Result<RemoteDataSource, String> {
    let uri = &remote.http_uri;
    let cluster = proxy.upstream(&uri.service.name)?;
    Ok(RemoteDataSource {
        http_uri: Some(HttpUri {
            uri: uri.uri.clone(),
            http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster(cluster.to_owned())),
            timeout: Some(proto_duration(uri.timeout())),
        }),
        // Envoy compares lower-case digits.
        sha256: remote.sha256.to_ascii_lowercase(),
        retry_policy: retry(&remote.retry_policy),
    })
}

fn retry(policy: &WasmRetryPolicy) -> Option<RetryPolicy> {
    let base = policy.retry_back_off.base();
    let back_off = base.map(|base| duration::back_off(base, policy.retry_back_off.max()));
    let times = (policy.num_retries > 0).then_some(UInt32Value {
        value: policy.num_retries,
    });
    (back_off.is_some() || times.is_some()).then(|| RetryPolicy {
        retry_back_off: back_off,
        num_retries: times,
        ..RetryPolicy::default()
    })
}

fn capabilities(restriction: &CapabilityRestriction) -> Option<CapabilityRestrictionConfig> {
    let allowed = &restriction.allowed_capabilities;
    (!allowed.is_empty()).then(|| CapabilityRestrictionConfig {
        allowed_capabilities: allowed
            .keys()
            .map(|name| (name.clone(), SanitizationConfig::default()))
            .collect(),
    })
}

fn text(value: &str) -> Option<Any> {
    (!value.is_empty()).then(|| {
        encode::any(&StringValue {
            value: value.to_owned(),
        })
    })
}
