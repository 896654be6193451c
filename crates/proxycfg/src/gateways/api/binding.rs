//! Which routes are bound to which listeners of a gateway.
//!
//! A route is bound to the listeners that its parents name, or to all of a gateway, if they have
//! its protocol and a host name in common. As in Consul, nothing is bound to a gateway of which any
//! listener refers to something missing, and a route of which any service cannot be behind it is
//! not bound at all.

use std::sync::Arc;

use legate_model::{ApiGateway, ApiGatewayListener, ConfigEntry, ConfigKind, ServiceName};
use legate_store::ReadTxn;

use super::attached::{self, Attached};
use super::listener::{self, References};
use super::route::{self, Route, RouteId};

/// What is bound to one gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Binding {
    /// In the order of the entry.
    pub(super) listeners: Vec<Bound>,
    /// Each parent of each route that names the gateway.
    pub(super) attempts: Vec<Attempt>,
}

/// What is bound to one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) tcp: bool,
    pub(super) references: Arc<References>,
    /// The oldest first.
    pub(super) routes: Vec<Fitting>,
}

/// A route that a listener could serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fitting {
    pub(super) route: RouteId,
    /// Whether it is bound. If not, the route or the gateway is not in order, and requests for the
    /// route must not reach what other routes name.
    pub(super) bound: bool,
}

/// The attempt to bind a route by one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) route: RouteId,
    /// The listener that is named; empty for all.
    pub(super) section: String,
    /// Whether it is bound to any listener.
    pub(super) bound: bool,
    /// The reason if it is not bound everywhere that it should be, in Consul's words.
    pub(super) error: Option<String>,
}

impl Binding {
    /// Whether everything exists that the gateway refers to.
    pub(super) fn is_accepted(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.all(|one| one.references.unresolved.is_none())
    }
}

impl Bound {
    /// Whether more routes are bound than the listener can serve. It then serves none.
    pub(super) fn is_conflicted(&self) -> bool {
        self.tcp && self.bound().count() > 1
    }

    /// The routes that are bound.
    pub(super) fn bound(&self) -> impl Iterator<Item = &RouteId> {
        let bound = self.routes.iter().filter(|one| one.bound);
        bound.map(|one| &one.route)
    }
}

/// What is bound to a gateway; `None` if there is no such entry.
pub(super) fn binding(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    datacenter: &str,
) -> Arc<Option<Binding>> {
    let argument = format!("{}/{datacenter}", gateway.name);
    txn.in_tenancy(&gateway.tenancy, |txn| {
        txn.shared("binding of an API gateway", &argument, |txn| {
            match &*txn.config_entry(ConfigKind::ApiGateway, &gateway.name)? {
                ConfigEntry::ApiGateway(entry) => Some(bind(txn, gateway, entry, datacenter)),
                _ => None,
            }
        })
    })
}

fn bind(txn: &ReadTxn<'_>, name: &ServiceName, gateway: &ApiGateway, datacenter: &str) -> Binding {
    let mut binding = Binding::default();
    for (place, listener) in gateway.listeners.iter().enumerate() {
        binding.listeners.push(Bound {
            name: listener.name.clone(),
            port: listener.port,
            tcp: listener.protocol == "tcp",
            references: listener::references(txn, name, place),
            ..Bound::default()
        });
    }
    let accepted = binding.is_accepted();
    for Attached { id, entry } in &*attached::routes(txn, name) {
        let Some(route) = Route::of(entry) else {
            continue;
        };
        let obstacle = match (accepted, &*route::usable(txn, id, datacenter)) {
            (false, _) => Some(format!(
                "failed to bind route to gateway {}: gateway has not been accepted",
                gateway.name
            )),
            (true, Err(_)) => Some(format!(
                "failed to bind route to gateway {}: route has not been accepted",
                gateway.name
            )),
            (true, Ok(())) => route.missing_provider(txn).map(|provider| {
                format!(
                    "failed to bind route to gateway {}: JWT provider {provider:?} not found",
                    gateway.name
                )
            }),
        };
        let parents = route.parents().iter();
        for parent in parents.filter(|one| one.resolve(&id.name.tenancy) == *name) {
            let target = (gateway, &mut binding);
            attempt(
                target,
                (id, &route),
                &parent.section_name,
                obstacle.as_deref(),
            );
        }
    }
    binding
}

/// Binds a route by one of its parents. `obstacle` is why it can be bound to none of the listeners.
fn attempt(
    (gateway, binding): (&ApiGateway, &mut Binding),
    (id, route): (&RouteId, &Route<'_>),
    section: &str,
    obstacle: Option<&str>,
) {
    let mut attempt = Attempt {
        route: id.clone(),
        section: section.to_owned(),
        bound: false,
        error: None,
    };
    for (listener, bound) in gateway.listeners.iter().zip(&mut binding.listeners) {
        if !section.is_empty() && section != listener.name {
            continue;
        }
        let fits = fits(gateway, listener, route, id, section);
        if fits == Ok(true) {
            attempt.bound |= obstacle.is_none();
            let fitting = Fitting {
                route: id.clone(),
                bound: obstacle.is_none(),
            };
            // All parents of a route come one after another.
            if bound.routes.last() != Some(&fitting) {
                bound.routes.push(fitting);
            }
        }
        let error = obstacle.map(str::to_owned).or(fits.err());
        attempt.error = attempt.error.or(error);
    }
    if !attempt.bound && attempt.error.is_none() {
        attempt.error = Some(format!(
            "failed to bind route {} to gateway {} with listener '{section}'",
            id.name.name, gateway.name
        ));
    }
    binding.attempts.push(attempt);
}

/// Whether a listener can serve a route. An error is reported even if another listener can.
fn fits(
    gateway: &ApiGateway,
    listener: &ApiGatewayListener,
    route: &Route<'_>,
    id: &RouteId,
    section: &str,
) -> Result<bool, String> {
    if let Route::Http(route) = route
        && listener::hosts(listener, route).is_empty()
    {
        return Err(format!(
            "failed to bind route to gateway {}: listener {} is does not have any hostnames that \
             match the route",
            gateway.name, listener.name
        ));
    }
    if listener.protocol == route.protocol() {
        return Ok(true);
    }
    match section {
        "" => Ok(false),
        _ => Err(format!(
            "failed to bind route {} to gateway {}: listener {} is not a {} listener",
            id.name.name,
            gateway.name,
            listener.name,
            route.protocol()
        )),
    }
}
