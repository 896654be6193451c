//! `DataplaneService`: the bootstrap parameters that a sidecar requires before it starts Envoy.

use legate_api::dataplane::dataplane_service_server::DataplaneService;
use legate_api::dataplane::get_envoy_bootstrap_params_request::NodeSpec;
use legate_api::dataplane::{
    DataplaneFeatureSupport, DataplaneFeatures, GetEnvoyBootstrapParamsRequest,
    GetEnvoyBootstrapParamsResponse, GetSupportedDataplaneFeaturesRequest,
    GetSupportedDataplaneFeaturesResponse,
};
use legate_api::json;
use legate_model::Opaque;
use legate_model::acl::Access;
use legate_model::json::is_too_deep;
use legate_model::{CheckServiceNode, Tenancy, TenancyName};
use legate_proxycfg::merge_central_config;
use legate_store::{ReadTxn, Reader};
use tonic::{Request, Response, Status};

use super::{access_logs, auth};
use crate::acl::Rights;

/// All features that a dataplane may query, and whether this server supports them.
const FEATURES: [(DataplaneFeatures, bool); 4] = [
    (DataplaneFeatures::WatchServers, true),
    (DataplaneFeatures::EdgeCertificateManagement, true),
    (DataplaneFeatures::EnvoyBootstrapConfiguration, true),
    (DataplaneFeatures::Fips, false),
];

pub(super) struct Service {
    store: Reader,
    rights: Rights,
    datacenter: String,
}

impl Service {
    pub(super) fn new(store: Reader, rights: Rights, datacenter: String) -> Self {
        Self {
            store,
            rights,
            datacenter,
        }
    }
}

#[tonic::async_trait]
impl DataplaneService for Service {
    async fn get_supported_dataplane_features(
        &self,
        request: Request<GetSupportedDataplaneFeaturesRequest>,
    ) -> Result<Response<GetSupportedDataplaneFeaturesResponse>, Status> {
        auth::any_valid_token(&self.rights, auth::token(request.metadata()))?;
        let support = |(feature, supported): (DataplaneFeatures, bool)| DataplaneFeatureSupport {
            feature_name: feature.into(),
            supported,
        };
        Ok(Response::new(GetSupportedDataplaneFeaturesResponse {
            supported_dataplane_features: FEATURES.map(support).into(),
        }))
    }

    async fn get_envoy_bootstrap_params(
        &self,
        request: Request<GetEnvoyBootstrapParamsRequest>,
    ) -> Result<Response<GetEnvoyBootstrapParamsResponse>, Status> {
        let token = auth::token(request.metadata()).to_owned();
        let access = auth::authorizer(&self.rights, &token)?;
        let request = request.into_inner();
        let namespace = tenant("namespace", &request.namespace)?;
        let named = Tenancy::new(&tenant("partition", &request.partition)?, &namespace);
        let tenancy = match namespace.is_empty() {
            true => self.rights.own_namespace(&token, named),
            false => named,
        };
        let access = access.within(&tenancy);
        auth::unless_some(&access, Access::Read, proxy(&request))?;
        let state = self.store.state();
        let state = state.read().within(tenancy.clone());
        let found = find(&state, &request)?;
        let service = &found.service.service;
        if !access.service_read(service) {
            return Err(auth::denied("service:read", service));
        }
        let merged = merge_central_config(&found.service, &state);
        let identity = merged.identity().to_owned();
        let config = readable(&merged.proxy.config, service);
        #[expect(deprecated, reason = "older dataplanes read the old name of identity")]
        let response = GetEnvoyBootstrapParamsResponse {
            service: identity.clone(),
            identity,
            namespace: tenancy.namespace.as_ref().to_owned(),
            partition: tenancy.partition.as_ref().to_owned(),
            datacenter: self.datacenter.clone(),
            config: Some(json::to_struct(&config)),
            node_name: found.node.node.clone(),
            access_logs: access_logs::of(&merged.proxy.access_logs),
        };
        Ok(Response::new(response))
    }
}

/// The settings without values that are nested too deeply for the decoders of dataplanes. No setting of the bootstrap
/// is nested; such values may have been stored by an older server.
fn readable(config: &Opaque, service: &str) -> Opaque {
    let mut config = config.clone();
    config.retain(|key, value| {
        let too_deep = is_too_deep(value);
        if too_deep {
            tracing::warn!(
                service, key,
                "a setting in Config is nested too deeply for dataplanes and is not sent to them: remove it"
            );
        }
        !too_deep
    });
    config
}

/// Parses a namespace or partition in a request.
fn tenant(field: &str, name: &str) -> Result<TenancyName, Status> {
    let name = name.parse::<TenancyName>();
    let refused = |reason: String| Status::invalid_argument(format!("{field}: {reason}"));
    match name {
        Ok(name) if name.is_every() => Err(refused("\"*\" is not permitted: name one".to_owned())),
        Ok(name) => Ok(name),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// The id of the proxy in the request.
fn proxy(request: &GetEnvoyBootstrapParamsRequest) -> &str {
    #[expect(deprecated, reason = "older dataplanes send the old name of proxy_id")]
    let old = &request.service_id;
    match old.is_empty() {
        true => &request.proxy_id,
        false => old,
    }
}

/// The registration named by node and id in the request.
fn find(
    state: &ReadTxn<'_>,
    request: &GetEnvoyBootstrapParamsRequest,
) -> Result<CheckServiceNode, Status> {
    let proxy = proxy(request);
    let node = match &request.node_spec {
        Some(NodeSpec::NodeId(id)) if !id.is_empty() => state
            .node_by_id(id)
            .ok_or_else(|| no_node("ID", id, "proxy-node-id"))?,
        Some(NodeSpec::NodeName(name)) if !name.is_empty() => state
            .node(name)
            .ok_or_else(|| no_node("name", name, "proxy-node-name"))?,
        _ => {
            return Err(Status::invalid_argument(
                "Node ID or name required to lookup the service: set proxy-node-name or \
                 proxy-node-id of the dataplane",
            ));
        }
    };
    state.instance(&node.node, proxy).ok_or_else(|| {
        Status::not_found(format!(
            "Service not found: no service with ID {proxy:?} is registered on node {:?}; register \
             the proxy first, or correct the dataplane's setting proxy-id",
            node.node
        ))
    })
}

fn no_node(by: &str, value: &str, setting: &str) -> Status {
    Status::not_found(format!(
        "node not found: the catalog has no node with {by} {value:?}; register the proxy first, or \
         correct the dataplane's setting {setting}"
    ))
}
