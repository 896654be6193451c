//! What registers and deregisters nodes, services and checks, for the catalog, the agent, transactions and
//! the settings alike: who may, what is acceptable, and what becomes of what was there before. These are
//! functions of a transaction; where a request came from is not known here.

pub(crate) mod checks;
pub(crate) mod rights;
pub(crate) mod services;
