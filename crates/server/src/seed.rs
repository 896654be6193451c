//! Rows written at startup: the server's own node, what its settings register, and the initial management
//! token. Also applies reloaded definitions.

use std::collections::BTreeSet;

use legate_model::acl::{Authorizer, Token};
use legate_model::{
    CheckStatus, CheckType, ConfigEntry, NodeCoordinate, Secret, ServiceDefinition, Tenancy,
};
use legate_runtime::Clock;
use legate_store::{
    Command, Deregistration, Registration, Source, Store, Unavailable, Watch, WriteError, WriteTxn,
};
use uuid::Uuid;

use crate::acl;
use crate::api_error::ApiError;
use crate::config::{Definitions, ServerConfig};
use crate::entries::change::{Change, acceptable_entry};
use crate::own_node;
use crate::problems::Problems;
use crate::registration::checks::{may_run, register_check};
use crate::registration::services::{acceptable, register_definition, require_own_partition};
use crate::start_error::StartError;

/// Writes all of them. What exists as it should be is not written again. Returns the definitions whose namespaces do
/// not exist, which are not registered.
///
/// # Errors
/// [`StartError`] names the setting that is refused or cannot be stored.
pub(crate) async fn seed(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
) -> Result<Definitions, StartError> {
    own_rows(config, store, clock).await?;
    let agent = &config.agent;
    let definitions = Definitions {
        services: agent.services.clone(),
        checks: agent.checks.clone(),
        ..Definitions::default()
    };
    judge(config, &definitions)?;
    let (present, missing) = by_namespace(store, definitions);
    define(config, store, &present).await?;
    Ok(missing)
}

/// Whether an earlier start has written the server's own node.
pub(crate) fn is_seeded(config: &ServerConfig, store: &Store) -> bool {
    store.state().read().node(&config.node_name).is_some()
}

/// The rows other than the definitions of services and checks, which a reload replaces.
pub(crate) async fn own_rows(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
) -> Result<(), StartError> {
    let refused = |what| move |source| StartError::Refused { what, source };
    let registration = own_node::registration(config);
    let named = config.agent.node_id.is_some();
    let has_coordinate = config.agent.coordinate;
    store
        .write(move |txn| {
            let mut registration = registration.clone();
            let node = &mut registration.node;
            // Keep the id if the node exists already: another server with this name may have registered it.
            if !named && let Some(known) = txn.read().node(&node.node) {
                node.id.clone_from(&known.id);
            }
            let name = registration.node.node.clone();
            txn.apply(Command::Register(Box::new(registration)))?;
            if has_coordinate && txn.read().coordinate(&name).is_none() {
                txn.put_coordinate(NodeCoordinate {
                    node: name,
                    ..NodeCoordinate::default()
                });
            }
            Ok::<_, WriteError>(())
        })
        .await
        .map_err(refused("the server's own node"))?;
    if config.primary().is_none() && store.state().read().followed().is_some() {
        store
            .write(|txn| {
                txn.unset_followed();
                Ok::<_, WriteError>(())
            })
            .await
            .map_err(refused("that no primary datacenter is followed any more"))?;
    }
    if let Some(primary) = config.primary() {
        // As in Consul.
        if config.acl.initial_management.is_some() || !config.agent.config_entries.is_empty() {
            tracing::info!(
                primary,
                "the initial management token and config entries of the settings are only written in the primary datacenter"
            );
        }
        return Ok(());
    }
    if let Some(token) = acl::initial_token(config, clock.now()) {
        if Uuid::parse_str(token.secret_id.expose()).is_err() {
            tracing::warn!(
                "the secret of the initial management token is not a UUID: use one that cannot be guessed"
            );
        }
        // As in Consul, the operator may choose any secret; the format is enforced for all other tokens.
        let unnamed = Token {
            secret_id: Secret::default(),
            ..token.clone()
        };
        unnamed.validate()?;
        store
            .write(move |txn| {
                // As in Consul, a token with this secret remains as it is.
                if txn
                    .read()
                    .token_by_secret(token.secret_id.expose())
                    .is_none()
                {
                    txn.put_token(token.clone())?;
                }
                Ok::<_, WriteError>(())
            })
            .await
            .map_err(refused("the initial management token"))?;
    }
    register_entries(config, store).await
}

/// Divides definitions into those whose namespaces exist and the others.
fn by_namespace(store: &Store, definitions: Definitions) -> (Definitions, Definitions) {
    let state = store.state();
    let exists = |tenancy: Tenancy| {
        let here = state.read().within(tenancy);
        here.require_tenancy().is_ok()
    };
    let services = definitions.services.into_iter();
    let (services, no_services) = services.partition(|one| exists(tenancy_of_service(one)));
    let checks = definitions.checks.into_iter();
    let (checks, no_checks) = checks.partition(|one| exists(tenancy_of_check(one)));
    let of = |services, checks| Definitions {
        services,
        checks,
        ..Definitions::default()
    };
    (of(services, checks), of(no_services, no_checks))
}

/// Registers the definitions whose namespaces exist by now. Returns the others, and those that could not be
/// registered, which are reported.
pub(crate) async fn define_missing(
    config: &ServerConfig,
    store: &Store,
    definitions: Definitions,
    problems: &Problems,
) -> Definitions {
    let (present, mut missing) = by_namespace(store, definitions);
    let node = &config.node_name;
    let settle = |what: &str, written: Result<(), String>| match written {
        Ok(()) => {
            tracing::info!("registered {what}, whose namespace exists by now");
            problems.solved(what);
            true
        }
        Err(reason) => {
            tracing::warn!(
                reason,
                "cannot register {what} of the settings; trying again"
            );
            problems.report(what, reason);
            false
        }
    };
    for service in present.services {
        let (one, node) = (service.clone(), node.clone());
        let written = store
            .write(move |txn| define_service(txn, &node, &one))
            .await;
        let written = written.map(drop).map_err(|error| error.text().to_owned());
        if !settle(&service_name(&service), written) {
            missing.services.push(service);
        }
    }
    for check in present.checks {
        let (one, node) = (check.clone(), node.clone());
        let written = store.write(move |txn| define_check(txn, &node, &one)).await;
        let written = written.map(drop).map_err(|error| error.text().to_owned());
        if !settle(&check_name(&check), written) {
            missing.checks.push(check);
        }
    }
    missing
}

/// Reports definitions that are not registered, because their namespaces do not exist.
pub(crate) fn report_missing(store: &Store, missing: &Definitions, problems: &Problems) {
    let services = missing.services.iter();
    let services = services.map(|one| (service_name(one), tenancy_of_service(one)));
    let checks = missing.checks.iter();
    let checks = checks.map(|one| (check_name(one), tenancy_of_check(one)));
    for (what, tenancy) in services.chain(checks) {
        let Err(error) = require_tenancy(store, &tenancy) else {
            continue;
        };
        let reason = error.text();
        tracing::error!(
            reason,
            "{what} of the settings is not registered until its namespace exists"
        );
        problems.report(&what, reason);
    }
}

/// Forgets the problems of definitions.
pub(crate) fn solved(definitions: &Definitions, problems: &Problems) {
    let services = definitions.services.iter().map(service_name);
    for what in services.chain(definitions.checks.iter().map(check_name)) {
        problems.solved(&what);
    }
}

/// A watch of the namespaces of definitions.
pub(crate) fn watch_namespaces(store: &Store, definitions: &Definitions) -> Watch {
    let state = store.state();
    let txn = state.read();
    let services = definitions.services.iter().map(tenancy_of_service);
    for tenancy in services.chain(definitions.checks.iter().map(tenancy_of_check)) {
        // Only the read matters, which is recorded.
        let _ = txn.in_tenancy(&tenancy, |txn| txn.require_tenancy());
    }
    store.reader().watch(&txn.into_reads())
}

/// Marks the server's own node as having left.
///
/// # Errors
/// If the store cannot be written.
pub(crate) async fn leave(config: &ServerConfig, store: &Store) -> Result<(), StartError> {
    if !config.agent.registers_itself {
        return Ok(());
    }
    let left = Registration {
        service: None,
        checks: vec![own_node::serf_health(
            CheckStatus::Critical,
            "Agent not live or unreachable",
        )],
        ..own_node::registration(config)
    };
    let node = config.node_name.clone();
    let what = "that the node has left".to_owned();
    write(store, what, move |txn| {
        let mut left = left.clone();
        // If the node has been deregistered, there is nothing to update.
        let Some(known) = txn.read().node(&node) else {
            return Ok(());
        };
        left.node = (*known).clone();
        txn.register(left)?;
        Ok(())
    })
    .await
}

/// Writes the config entries one by one, so that an error names its entry.
async fn register_entries(config: &ServerConfig, store: &Store) -> Result<(), StartError> {
    for entry in &config.agent.config_entries {
        let what = format!("config entry {} {:?}", entry.kind().as_str(), entry.name());
        let (entry, datacenter) = (entry.clone(), config.datacenter.clone());
        write(store, what, move |txn| {
            register_entry(txn, entry.clone(), &datacenter)
        })
        .await?;
    }
    Ok(())
}

/// Creates an entry unless one of its kind and name exists. The usual validation applies.
fn register_entry(
    txn: &mut WriteTxn,
    mut entry: ConfigEntry,
    datacenter: &str,
) -> Result<(), ApiError> {
    acceptable_entry(&entry)?;
    entry.normalise();
    let read = txn.read().within(entry.full_name().tenancy);
    if read.config_entry(entry.kind(), entry.name()).is_some() {
        return Ok(());
    }
    drop(read);
    let entry = Box::new(entry);
    Change::Put { entry, cas: None }
        .apply(txn, datacenter)
        .map(|_| ())
}

/// Registers what the configuration files define and deregisters what an earlier version of them defined, in
/// one transaction. Registrations made through the API stay.
pub(crate) async fn define(
    config: &ServerConfig,
    store: &Store,
    definitions: &Definitions,
) -> Result<(), StartError> {
    judge(config, definitions)?;
    let tenancies = definitions.services.iter();
    let tenancies = tenancies.map(|one| (service_name(one), tenancy_of_service(one)));
    let of_checks = definitions.checks.iter();
    let of_checks = of_checks.map(|one| (check_name(one), tenancy_of_check(one)));
    for (what, tenancy) in tenancies.chain(of_checks) {
        require_tenancy(store, &tenancy).map_err(|error| refused(what, &error))?;
    }
    let (services, checks) = defined_ids(config, definitions)?;
    let (definitions, node) = (definitions.clone(), config.node_name.clone());
    let define = move |txn: &mut WriteTxn| {
        for own in txn.read().tenancies_here() {
            txn.in_tenancy(&own, |txn| {
                remove_undefined_here(txn, &node, &services, &checks);
            });
        }
        for service in &definitions.services {
            let failed = |error| Undefined::new(service_name(service), &error);
            define_service(txn, &node, service).map_err(failed)?;
        }
        for check in &definitions.checks {
            let failed = |error| Undefined::new(check_name(check), &error);
            define_check(txn, &node, check).map_err(failed)?;
        }
        Ok::<_, Undefined>(())
    };
    store.write(define).await?;
    Ok(())
}

fn refused(what: String, error: &ApiError) -> StartError {
    StartError::Registration {
        what,
        reason: error.text().to_owned(),
    }
}

/// Validates definitions without the store.
fn judge(config: &ServerConfig, definitions: &Definitions) -> Result<(), StartError> {
    let scripts = config.agent.check_settings.scripts;
    for service in &definitions.services {
        let judged = acceptable(service)
            .and_then(|()| require_own_partition(&tenancy_of_service(service)))
            .and_then(|()| may_run(service.all_checks(), scripts, Source::Files));
        judged.map_err(|error| refused(service_name(service), &error))?;
    }
    for check in &definitions.checks {
        let judged = check.validate().map_err(ApiError::from);
        let judged = judged
            .and_then(|()| require_own_partition(&tenancy_of_check(check)))
            .and_then(|()| may_run([check], scripts, Source::Files));
        judged.map_err(|error| refused(check_name(check), &error))?;
    }
    Ok(())
}

/// Why a definition from the files could not be written.
struct Undefined {
    what: String,
    reason: String,
    unavailable: bool,
}

impl Undefined {
    fn new(what: String, error: &ApiError) -> Self {
        Self {
            what,
            reason: error.text().to_owned(),
            unavailable: error.is_unavailable(),
        }
    }
}

impl From<Unavailable> for Undefined {
    fn from(error: Unavailable) -> Self {
        Self::new("a service or check".to_owned(), &error.into())
    }
}

impl From<Undefined> for StartError {
    fn from(undefined: Undefined) -> Self {
        let Undefined { what, reason, .. } = undefined;
        match undefined.unavailable {
            true => StartError::NotStored { what, reason },
            false => StartError::Registration { what, reason },
        }
    }
}

fn define_service(
    txn: &mut WriteTxn,
    node: &str,
    service: &ServiceDefinition,
) -> Result<(), ApiError> {
    let (all, source) = (Authorizer::manage_all(), Source::Files);
    txn.in_tenancy(&tenancy_of_service(service), |txn| {
        txn.read().require_tenancy()?;
        register_definition(txn, &all, node, service.clone(), false, source)
    })
}

fn define_check(txn: &mut WriteTxn, node: &str, check: &CheckType) -> Result<(), ApiError> {
    let all = Authorizer::manage_all();
    txn.in_tenancy(&tenancy_of_check(check), |txn| {
        txn.read().require_tenancy()?;
        register_check(txn, &all, node, check.clone(), Source::Files)
    })
}

/// A definition's namespace must exist.
fn require_tenancy(store: &Store, tenancy: &Tenancy) -> Result<(), ApiError> {
    let state = store.state();
    Ok(state.read().within(tenancy.clone()).require_tenancy()?)
}

fn tenancy_of_service(service: &ServiceDefinition) -> Tenancy {
    Tenancy::new(&service.partition, &service.namespace)
}

fn tenancy_of_check(check: &CheckType) -> Tenancy {
    Tenancy::new(&check.partition, &check.namespace)
}

fn service_name(service: &ServiceDefinition) -> String {
    format!("service {:?}", service.service_id())
}

fn check_name(check: &CheckType) -> String {
    format!("check {:?}", check.name)
}

/// The ids of the services and checks that the files define.
fn defined_ids(
    config: &ServerConfig,
    definitions: &Definitions,
) -> Result<(DefinedIds, DefinedIds), StartError> {
    let node = &config.node_name;
    let mut services = BTreeSet::new();
    let mut checks = BTreeSet::new();
    for service in &definitions.services {
        // Only ids are used, so the ports of sidecars do not matter.
        let parts = service.clone().into_parts(node, &BTreeSet::new());
        let parts = parts.map_err(|invalid| StartError::Registration {
            what: service_name(service),
            reason: invalid.to_string(),
        })?;
        for (instance, defined) in [Some(parts.service), parts.sidecar].into_iter().flatten() {
            let own = tenancy_of_service(service);
            services.insert((own.clone(), instance.id.to_lowercase()));
            let defined = defined.iter().map(|one| one.check.check_id.to_lowercase());
            checks.extend(defined.map(|id| (own.clone(), id)));
        }
    }
    let alone = definitions.checks.iter();
    checks.extend(alone.map(|check| {
        let id = check.clone().into_defined(node).check.check_id;
        let own = match check.service_id.is_empty() {
            true => tenancy_of_check(check).of_partition(),
            false => tenancy_of_check(check),
        };
        (own, id.to_lowercase())
    }));
    Ok((services, checks))
}

/// Ids in lower case, with their tenancy.
type DefinedIds = BTreeSet<(Tenancy, String)>;

/// Removes services and checks that no file defines any more, in one namespace.
fn remove_undefined_here(
    txn: &mut WriteTxn,
    node: &str,
    services: &DefinedIds,
    checks: &DefinedIds,
) {
    let own = txn.read().tenancy().clone();
    let is_among = |all: &DefinedIds, id: &str| all.contains(&(own.clone(), id.to_lowercase()));
    let known = txn.read().services_from_files(node);
    for id in known.iter().filter(|id| !is_among(services, id)) {
        tracing::info!(service = id, "no file defines the service any more");
        txn.deregister(&Deregistration {
            node: node.to_owned(),
            service_id: Some(id.clone()),
            check_id: None,
        });
    }
    for check in txn.read().agent_checks(node) {
        if check.source == Source::Files && !is_among(checks, &check.check_id) {
            txn.deregister(&Deregistration {
                node: node.to_owned(),
                service_id: None,
                check_id: Some(check.check_id),
            });
        }
    }
}

async fn write(
    store: &Store,
    what: String,
    transaction: impl FnMut(&mut WriteTxn) -> Result<(), ApiError> + Send + 'static,
) -> Result<(), StartError> {
    let written = store.write(transaction).await;
    written
        .map(|_| ())
        .map_err(|error| Undefined::new(what, &error).into())
}
