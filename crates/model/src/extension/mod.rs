//! The supported extensions of Envoy's configuration, and their arguments.
//!
//! `proxy-defaults` and `service-defaults` name an extension and its free-form arguments. This module
//! parses and validates them; their effect on resources is implemented where resources are built.
//! Arguments that could not work with any proxy are refused here, so that they are never stored.

mod arguments;
mod direction;
mod ext_authz;
mod lua;
mod otel_access_logging;
mod property_override;
mod target;
mod wasm;

pub use direction::Direction;
pub use ext_authz::{
    AuthorizationRequest, AuthorizationResponse, BodyBuffer, ExtAuthz, ExtAuthzConfig, HttpService,
    InsertLocation, InsertOptions, StringMatcher,
};
pub use lua::Lua;
pub use otel_access_logging::{OtelAccessLog, OtelAccessLogging, RetryBackOff, RetryPolicy};
pub use property_override::{PatchedResource, PropertyOverride, PropertyPatch, ResourceFilter};
pub use target::{Address, GrpcService, HeaderValue, Target, TargetService};
pub use wasm::{
    CapabilityRestriction, EnvironmentVariables, Wasm, WasmCode, WasmLocal, WasmPlugin,
    WasmProtocol, WasmRemote, WasmRetryBackOff, WasmRetryPolicy, WasmUri, WasmVm,
};

use crate::invalid::Invalid;
use crate::json::nesting::validate_nesting;
use crate::proxy::EnvoyExtension;
use arguments::read;

const EXT_AUTHZ: &str = "builtin/ext-authz";
const LUA: &str = "builtin/lua";
const OTEL_ACCESS_LOGGING: &str = "builtin/otel-access-logging";
const PROPERTY_OVERRIDE: &str = "builtin/property-override";
const WASM: &str = "builtin/wasm";

/// The supported extensions.
pub(crate) const SERVED: &[&str] = &[EXT_AUTHZ, LUA, OTEL_ACCESS_LOGGING, PROPERTY_OVERRIDE, WASM];

/// Consul's extension for AWS Lambda functions.
const LAMBDA: &str = "builtin/aws/lambda";

/// An extension with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Extension {
    /// `builtin/lua`.
    Lua(Lua),
    /// `builtin/ext-authz`.
    ExtAuthz(Box<ExtAuthz>),
    /// `builtin/wasm`.
    Wasm(Box<Wasm>),
    /// `builtin/property-override`.
    PropertyOverride(PropertyOverride),
    /// `builtin/otel-access-logging`.
    OtelAccessLogging(Box<OtelAccessLogging>),
}

impl Extension {
    /// Parses an extension's arguments.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the invalid field of the extension. The paths and values of
    /// property-override are not checked against Envoy's messages here.
    pub fn read(extension: &EnvoyExtension) -> Result<Self, Invalid> {
        let arguments = &extension.arguments;
        match extension.name.as_str() {
            LUA => read(arguments, Lua::validate).map(Self::Lua),
            EXT_AUTHZ => {
                read(arguments, ExtAuthz::validate).map(|one| Self::ExtAuthz(Box::new(one)))
            }
            WASM => read(arguments, Wasm::validate).map(|one| Self::Wasm(Box::new(one))),
            PROPERTY_OVERRIDE => {
                read(arguments, PropertyOverride::validate).map(Self::PropertyOverride)
            }
            OTEL_ACCESS_LOGGING => read(arguments, OtelAccessLogging::validate)
                .map(|one| Self::OtelAccessLogging(Box::new(one))),
            name => Err(unserved(name)),
        }
    }

    /// The upstreams that the arguments refer to.
    pub fn services_mut(&mut self) -> Vec<&mut TargetService> {
        match self {
            Self::Lua(_) => Vec::new(),
            Self::ExtAuthz(authz) => {
                let config = &mut authz.config;
                let grpc = config.grpc_service.iter_mut();
                let grpc = grpc.map(|service| &mut service.target);
                let http = config.http_service.iter_mut();
                let targets = grpc.chain(http.map(|service| &mut service.target));
                targets.map(|target| &mut target.service).collect()
            }
            Self::Wasm(wasm) => {
                let code = &mut wasm.plugin_config.vm_config.code;
                vec![&mut code.remote.http_uri.service]
            }
            Self::PropertyOverride(patches) => {
                let patches = patches.patches.iter_mut();
                let services = patches.flat_map(|patch| &mut patch.resource_filter.services);
                services.collect()
            }
            Self::OtelAccessLogging(log) => {
                let service = log.config.grpc_service.iter_mut();
                service.map(|service| &mut service.target.service).collect()
            }
        }
    }
}

fn unserved(name: &str) -> Invalid {
    let served = SERVED.join(", ");
    let reason = match name {
        "" => "it is required".to_owned(),
        LAMBDA => format!("{LAMBDA} is not served: proxies call no functions of AWS; remove it"),
        other => format!("name {other:?} is not a built-in extension: there are {served}"),
    };
    Invalid::new("Name", reason)
}

/// Refuses unsupported extensions.
pub(crate) fn validate_extensions(extensions: &[EnvoyExtension]) -> Result<(), Invalid> {
    for (i, extension) in extensions.iter().enumerate() {
        validate_nesting("Arguments", &extension.arguments)
            .and_then(|()| Extension::read(extension))
            .map_err(|error| error.within(format!("EnvoyExtensions[{i}]")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
