//! Delta xDS: joins the stream service with this server's ACLs.

use std::sync::Arc;

use legate_proxycfg::{ProxyId, Snapshot};
use legate_runtime::{BoxError, CancellationToken};
use legate_xds::{StreamAuthorizer, XdsConfig, XdsService};
use tonic::Status;

use super::{AUTH_CHECK, auth};
use crate::context::Context;

/// The service of one server.
pub(super) fn service(
    context: &Arc<Context>,
    stop: CancellationToken,
) -> Result<XdsService, BoxError> {
    let config = XdsConfig {
        auth_check: AUTH_CHECK,
        node_name: context.config.node_name.as_str().into(),
        stop,
    };
    let authorizer = Arc::new(Tokens {
        context: context.clone(),
    });
    let (manager, generator) = (context.manager.clone(), context.generator.clone());
    let service = XdsService::new(manager, generator, authorizer, config, &context.registry)?;
    Ok(service)
}

/// A proxy's configuration holds its service's private key: `service:write` on that service.
struct Tokens {
    context: Arc<Context>,
}

impl StreamAuthorizer for Tokens {
    fn authenticate(&self, token: &str) -> Result<(), Status> {
        auth::authorizer(&self.context, token).map(|_| ())
    }

    fn authorize_proxy(&self, token: &str, proxy: &ProxyId) -> Result<(), Status> {
        let state = self.context.store.state();
        match state.read().instance(&proxy.node, &proxy.service_id) {
            Some(found) => self.service_write(token, found.service.identity()),
            None => self.authenticate(token),
        }
    }

    fn authorize(&self, token: &str, snapshot: &Snapshot) -> Result<(), Status> {
        self.service_write(token, snapshot.instance.identity())
    }
}

impl Tokens {
    fn service_write(&self, token: &str, service: &str) -> Result<(), Status> {
        if auth::authorizer(&self.context, token)?.service_write(service) {
            Ok(())
        } else {
            Err(auth::denied("service:write", service))
        }
    }
}
