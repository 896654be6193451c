//! Gateways of Kubernetes clusters, which have rows of their own in the store, in the types of
//! `legate_routes`. They are served as they are written.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_model::ServiceName;
use legate_routes::Listener;
use legate_store::ReadTxn;

use super::certificates::{CertificateSource, GatewayCertificate};
use super::compile::Compiled;

/// What a gateway serves, if it has rows. An `api-gateway` of the same name is not read then, not
/// even if the rows serve nothing: who takes routes away does not want others in their place.
pub(super) fn compiled(txn: &ReadTxn<'_>, gateway: &ServiceName) -> Option<Compiled> {
    if !txn.is_gateway(&gateway.name) {
        return None;
    }
    let listeners = txn.gateway_listeners(&gateway.name);
    let datagrams = txn.gateway_datagrams(&gateway.name);
    let backends = listeners.iter().flat_map(|one| one.backends());
    let backends = backends.chain(datagrams.iter().flat_map(|one| one.backends()));
    let backends: BTreeSet<_> = backends.collect();
    let backends = backends.into_iter().map(Arc::clone).collect();
    Some(Compiled {
        certificates: certificates(txn, gateway, &listeners),
        backends: Arc::new(backends),
        is_of_cluster: true,
        listeners,
        datagrams,
        ..Compiled::default()
    })
}

/// The secrets that the listeners name, each once. One that is missing is `None`.
fn certificates(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    listeners: &[Arc<Listener>],
) -> Vec<Arc<Option<GatewayCertificate>>> {
    let names: BTreeSet<_> = listeners.iter().flat_map(|one| one.secrets()).collect();
    let found = names.into_iter().map(|name| {
        let argument = format!("{}/{name}", gateway.name);
        txn.shared("secret of a gateway", &argument, |txn| {
            let secret = txn.gateway_secret(&gateway.name, name)?;
            let source = CertificateSource::Inline {
                certificate: secret.certificate.clone(),
                key: secret.private_key.clone(),
            };
            Some(GatewayCertificate {
                secret: name.to_owned(),
                expires: source.expires(),
                source,
            })
        })
    });
    found.collect()
}
