//! Bootstrap documents and supervision with a real Envoy.

#[cfg(test)]
mod bootstrap;
#[cfg(test)]
mod parent_death;
#[cfg(test)]
mod supervision;
