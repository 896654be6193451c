//! Registration and deregistration of nodes, services and checks, for the catalog, the agent, transactions and
//! the settings: validation, permissions, and merging with existing registrations. Functions of a transaction,
//! independent of the API.

pub(crate) mod checks;
pub(crate) mod rights;
pub(crate) mod services;
