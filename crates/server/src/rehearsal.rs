//! Whether a server could start with its settings, without starting one: everything is written to an empty
//! store in memory.
//!
//! Not examined is what is outside of the settings: whether addresses are free, the contents of files that
//! they name, a CA provider other than the built-in one, and the rows of the server's store. Namespaces and
//! services to which the settings refer are taken to exist there.

use std::sync::Arc;

use legate_ca::Ca;
use legate_model::{Namespace, ServiceInstance, Tenancy};
use legate_runtime::Clock;
use legate_store::{Registration, Store, WriteError, WriteTxn};

use crate::certificate::{self, Renewed};
use crate::config::ServerConfig;
use crate::operations::TlsPolicy;
use crate::own_node;
use crate::seed::seed;
use crate::start_error::StartError;
use crate::telemetry;

/// The provider of the CA that needs nothing outside of the settings.
const BUILT_IN_CA: &str = "consul";

/// Whether a server could start with these settings.
///
/// # Errors
/// [`StartError`] names the setting at fault.
pub async fn rehearse(config: &ServerConfig) -> Result<(), StartError> {
    legate_model::name::validate_datacenter(&config.datacenter)?;
    legate_model::name::validate_node_name(&config.node_name)?;
    let clock = Clock::system();
    let config = Arc::new(config.clone());
    telemetry::acceptable(&config, &clock)?;
    let store = Store::new();
    if config.ca.provider == BUILT_IN_CA || config.primary().is_some() {
        let ca = Ca::initialise(
            &store,
            &config.datacenter,
            clock.clone(),
            config.ca_settings(),
        );
        let (_, tls) = Renewed::issue(&ca.await?, &clock, &config).await?;
        let listeners = [
            (config.https, &config.https_policy),
            (config.grpc_tls, &config.grpc_tls_policy),
        ];
        for (_, policy) in listeners.iter().filter(|(at, _)| at.is_some()) {
            // The authorities of clients are in files.
            let policy = TlsPolicy {
                verify_incoming: false,
                ..TlsPolicy::clone(policy)
            };
            certificate::with_policy(&tls, &policy)?;
        }
    }
    let outside = Arc::clone(&config);
    let assumed = store.write(move |txn| assume(txn, &outside)).await;
    assumed.map_err(|reason| StartError::Registration {
        what: "a namespace or service".to_owned(),
        reason: reason.to_string(),
    })?;
    seed(&config, &store, &clock).await.map(drop)
}

/// Adds the namespaces and services to which the settings refer and which they do not define.
fn assume(txn: &mut WriteTxn, config: &ServerConfig) -> Result<(), WriteError> {
    let agent = &config.agent;
    let of_services = agent.services.iter();
    let of_services = of_services.map(|one| (&one.partition, &one.namespace));
    let of_checks = agent
        .checks
        .iter()
        .map(|one| (&one.partition, &one.namespace));
    for (partition, namespace) in of_services.chain(of_checks) {
        if partition.is_default() && !namespace.is_default() && !namespace.is_every() {
            txn.put_namespace(Namespace {
                name: namespace.clone(),
                ..Namespace::default()
            })?;
        }
    }
    let node = own_node::registration(config);
    for check in &agent.checks {
        let tenancy = Tenancy::new(&check.partition, &check.namespace);
        let is_one = tenancy.is_default_partition() && !check.namespace.is_every();
        if check.service_id.is_empty() || !is_one {
            continue;
        }
        let service = ServiceInstance {
            id: check.service_id.clone(),
            service: "assumed".to_owned(),
            ..ServiceInstance::default()
        };
        let registration = Registration {
            service: Some(service),
            checks: Vec::new(),
            ..node.clone()
        };
        txn.in_tenancy(&tenancy, |txn| txn.register(registration))?;
    }
    Ok(())
}
