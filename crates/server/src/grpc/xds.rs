//! Delta xDS: connects the stream service with this server's ACLs.

use std::sync::Arc;

use legate_model::Tenancy;
use legate_model::acl::Access;
use legate_proxycfg::{ProxyId, Snapshot};
use legate_runtime::{BoxError, CancellationToken, Pool};
use legate_store::Reader;
use legate_xds::{StreamAuthorizer, XdsConfig, XdsService};
use tonic::Status;

use super::auth::{self, AUTH_CHECK};
use crate::acl::Rights;
use crate::handles::Handles;

/// Builds the xDS service.
pub(super) fn service(handles: &Handles, stop: CancellationToken) -> Result<XdsService, BoxError> {
    let config = XdsConfig {
        auth_check: AUTH_CHECK,
        node_name: handles.config.node_name.as_str().into(),
        stop,
        proxies: handles.proxies.clone(),
    };
    let authorizer = Arc::new(Tokens {
        store: handles.store.reader(),
        rights: handles.rights(),
    });
    let (manager, generator) = (handles.manager.clone(), handles.generator.clone());
    let (pool, registry) = (Pool::new(handles.spawner.clone()), &handles.registry);
    let service = XdsService::new(manager, generator, pool, authorizer, config, registry)?;
    Ok(service)
}

/// Requires `service:write` on a proxy's service, because its configuration contains the service's private key.
struct Tokens {
    store: Reader,
    rights: Rights,
}

impl StreamAuthorizer for Tokens {
    fn authenticate(&self, token: &str) -> Result<(), Status> {
        auth::authorizer(&self.rights, token).map(|_| ())
    }

    fn authorize_proxy(&self, token: &str, proxy: &ProxyId) -> Result<(), Status> {
        let access = auth::authorizer(&self.rights, token)?;
        auth::unless_some(&access, Access::Write, &proxy.service_id)?;
        let state = self.store.state();
        let txn = state.read().within(proxy.tenancy.clone());
        match txn.instance(&proxy.node, &proxy.service_id) {
            Some(found) => self.service_write(token, &proxy.tenancy, found.service.identity()),
            None => Ok(()),
        }
    }

    fn authorize(&self, token: &str, snapshot: &Snapshot) -> Result<(), Status> {
        let tenancy = &snapshot.proxy.id.tenancy;
        self.service_write(token, tenancy, snapshot.proxy.instance.identity())
    }

    /// A terminating gateway presents the certificates of its services.
    fn permitted(&self, token: &str, snapshot: &Snapshot) -> Result<Option<Snapshot>, Status> {
        let access = auth::authorizer(&self.rights, token)?;
        Ok(snapshot
            .restricted(|service| access.within(&service.tenancy).service_write(&service.name)))
    }
}

impl Tokens {
    fn service_write(&self, token: &str, tenancy: &Tenancy, service: &str) -> Result<(), Status> {
        let access = auth::authorizer(&self.rights, token)?.within(tenancy);
        if access.service_write(service) {
            Ok(())
        } else {
            Err(auth::denied("service:write", service))
        }
    }
}
