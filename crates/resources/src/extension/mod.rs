//! Envoy extensions: changes that users configure for generated resources.
//!
//! Each extension is a function on one encoded resource. Extensions are applied in order to every
//! matching part of a proxy, after the part was made from the snapshot. Resources without a
//! matching extension are not decoded. A resource fails if a required extension cannot be applied
//! to it. Extensions add filters and change fields; none removes TLS or access rules.

mod ext_authz;
mod fields;
mod filters;
mod local;
mod lua;
mod otel;
pub(crate) mod part_id;
mod property_override;
mod proxy;
mod wasm;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::google::protobuf::Any;
use legate_envoy_json::canonical;
use legate_model::extension::{Direction, Extension};
use legate_model::{EnvoyExtension, ServiceName, Tenancy};
use legate_proxycfg::{Sidecar, Snapshot};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names;
use crate::resource_type::Type;
use local::LocalCluster;
use part_id::PartId;
pub use property_override::check;
use proxy::Proxy;

/// One extension of a proxy.
#[derive(Debug)]
struct Loaded {
    name: String,
    required: bool,
    /// Its parsed arguments, or the error in them.
    extension: Result<Extension, String>,
    /// The cluster of the local program that it calls.
    local: Option<LocalCluster>,
}

/// All extensions of one proxy.
#[derive(Debug)]
pub(crate) struct Extensions {
    all: Vec<Loaded>,
    proxy: Proxy,
    /// Digest of all inputs of the extensions.
    digest: [u8; 32],
}

impl Extensions {
    /// The extensions of a snapshot's proxy; the previous ones if they are the same. `None` without
    /// extensions, and for gateways: as in Consul, those of services apply to their sidecars only.
    pub(crate) fn of(
        memo: &Memo,
        snapshot: &Snapshot,
        previous: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let list = &snapshot.proxy.instance.proxy.envoy_extensions;
        if list.is_empty() || Sidecar::of(snapshot).is_none() {
            return None;
        }
        let own = &snapshot.proxy.id.tenancy;
        let mut all: Vec<Loaded> = list.iter().map(|one| Loaded::read(one, own)).collect();
        local::name(all.iter_mut().filter_map(|one| one.local.as_mut()));
        let services: BTreeSet<&str> = all.iter().filter_map(Loaded::service).collect();
        let proxy = Proxy::of(memo, snapshot, services);
        let digest = digest(list, own, &proxy);
        match previous.filter(|previous| previous.digest == digest) {
            Some(previous) => Some(Arc::clone(previous)),
            None => Some(Arc::new(Self { all, proxy, digest })),
        }
    }

    /// Applies all matching extensions to a resource.
    pub(crate) fn apply(
        &self,
        memo: &Memo,
        place: PartId<'_>,
        base: Arc<EncodedResource>,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        self.apply_from(0, memo, place, base, warnings)
    }

    fn apply_from(
        &self,
        first: usize,
        memo: &Memo,
        place: PartId<'_>,
        base: Arc<EncodedResource>,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        let concerned = self.all[first..].iter().filter(|one| one.concerns(place));
        let concerned: Vec<&Loaded> = concerned.collect();
        if concerned.is_empty() {
            return Ok(base);
        }
        let inbound = place.direction() == Direction::Inbound;
        let input = (&*base.version, &self.digest, first, place.upstream, inbound);
        if let Some(known) = memo.find(&input) {
            return Ok(known);
        }
        let Ok(mut message) = Any::decode(base.body.clone()) else {
            return Ok(base);
        };
        let (before, warned) = (message.value.clone(), warnings.len());
        for one in concerned {
            match one.change(&self.proxy, place, &message.value) {
                Ok(changed) => message.value = changed,
                Err(reason) if one.required => {
                    return Err(GenerateError::Extension {
                        name: one.name.clone(),
                        reason,
                    });
                }
                Err(reason) => warnings.push(format!(
                    "EnvoyExtensions: {} is not applied to {}: {reason}",
                    one.name, place.name
                )),
            }
        }
        message.value = canonical(&message.type_url, &message.value);
        if message.value == canonical(&message.type_url, &before) {
            return Ok(base);
        }
        let body = Bytes::from(message.encode_to_vec());
        let resource = encode::from_body(Arc::clone(&base.name), body, base.children.clone());
        Ok(match warnings.len() == warned {
            true => memo.keep(&input, resource),
            // Not memoised, because a warning has to be repeated each time.
            false => Arc::new(resource),
        })
    }

    /// The extensions that add a cluster, by index, with the name of the cluster.
    pub(crate) fn with_cluster(&self) -> Vec<(usize, &str)> {
        let mut seen = BTreeSet::new();
        let all = self.all.iter().enumerate();
        let own = all.filter_map(|(at, one)| Some((at, one.local.as_ref()?.name.as_str())));
        own.filter(|(_, name)| seen.insert(*name)).collect()
    }

    /// The cluster that an extension adds, changed by that extension and the ones after it.
    pub(crate) fn cluster(
        &self,
        at: usize,
        memo: &Memo,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Arc<EncodedResource>>, GenerateError> {
        let Some(local) = self.all.get(at).and_then(|one| one.local.as_ref()) else {
            return Ok(None);
        };
        let place = PartId {
            kind: Type::Cluster,
            name: &local.name,
            upstream: None,
        };
        let base = memo.get(local, |local| Ok(local.resource()))?;
        self.apply_from(at, memo, place, base, warnings).map(Some)
    }
}

fn digest(list: &[EnvoyExtension], own: &Tenancy, proxy: &Proxy) -> [u8; 32] {
    let mut hash = Sha256::new();
    // Values that were parsed from JSON can always be serialized.
    hash.update(serde_json::to_vec(list).unwrap_or_default());
    hash.update(
        serde_json::to_vec(&(proxy.protocol.as_str(), &proxy.clusters)).unwrap_or_default(),
    );
    hash.update(serde_json::to_vec(&(&*own.partition, &*own.namespace)).unwrap_or_default());
    hash.finalize().into()
}

impl Loaded {
    /// Parses an extension of a proxy in this tenancy. Services in it are renamed as upstreams are
    /// named.
    fn read(extension: &EnvoyExtension, own: &Tenancy) -> Self {
        let mut read = Extension::read(extension).map_err(|error| error.to_string());
        let named = read
            .as_mut()
            .map_or_else(|_| Vec::new(), Extension::services_mut);
        for service in named.into_iter().filter(|one| !one.name.is_empty()) {
            let tenancy = own.resolve(&service.partition, &service.namespace);
            let full = ServiceName::new(&tenancy, &service.name);
            service.name = names::seen_from(own, &full);
        }
        Self {
            name: extension.name.clone(),
            required: extension.required,
            local: read.as_ref().ok().and_then(LocalCluster::of),
            extension: read,
        }
    }

    /// The upstream that the extension calls.
    fn service(&self) -> Option<&str> {
        let target = match self.extension.as_ref().ok()? {
            Extension::ExtAuthz(authz) => authz.config.target()?,
            Extension::OtelAccessLogging(log) => &log.config.grpc_service.as_ref()?.target,
            Extension::Wasm(wasm) => {
                let remote = &wasm.plugin_config.vm_config.code.remote;
                let service = &remote.http_uri.service.name;
                return (!service.is_empty()).then_some(service);
            }
            Extension::Lua(_) | Extension::PropertyOverride(_) => return None,
        };
        Some(target.service.name.as_str()).filter(|name| !name.is_empty())
    }

    fn concerns(&self, place: PartId<'_>) -> bool {
        match &self.extension {
            // The target of an invalid extension is unknown: a required one fails every part,
            // another one only causes a warning on the public listener.
            Err(_) => self.required || place.is_listener(Direction::Inbound),
            Ok(Extension::Lua(lua)) => place.is_listener(lua.listener),
            Ok(Extension::ExtAuthz(authz)) => place.is_listener(authz.listener_type.or_inbound()),
            Ok(Extension::Wasm(wasm)) => place.is_listener(wasm.listener_type),
            Ok(Extension::OtelAccessLogging(log)) => {
                place.is_listener(log.listener_type.or_inbound())
            }
            Ok(Extension::PropertyOverride(patches)) => property_override::concerns(patches, place),
        }
    }

    /// The encoded message after the change, or the reason why it cannot be changed.
    fn change(&self, proxy: &Proxy, place: PartId<'_>, message: &[u8]) -> Result<Vec<u8>, String> {
        let extension = self.extension.as_ref().map_err(Clone::clone)?;
        if let Extension::PropertyOverride(patches) = extension {
            return property_override::change(patches, place, message);
        }
        let mut listener = Listener::decode(message)
            .map_err(|error| format!("the listener cannot be decoded: {error}"))?;
        let local = self.local.as_ref().map(|local| local.name.as_str());
        match extension {
            Extension::Lua(script) => lua::change(script, &mut listener),
            Extension::ExtAuthz(authz) => {
                let target = authz.config.target().ok_or("it has no target")?;
                let cluster = proxy.cluster(target, local)?;
                ext_authz::change(authz, self.required, cluster, place, &mut listener)
            }
            Extension::OtelAccessLogging(log) => {
                let service = log.config.grpc_service.as_ref().ok_or("it has no target")?;
                let cluster = proxy.cluster(&service.target, local)?;
                otel::change(log, service, cluster, &mut listener)
            }
            Extension::Wasm(wasm) => wasm::change(wasm, self.required, proxy, &mut listener),
            Extension::PropertyOverride(_) => Ok(()),
        }?;
        Ok(listener.encode_to_vec())
    }
}
