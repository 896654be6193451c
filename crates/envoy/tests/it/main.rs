//! Bootstrap documents and supervision with a real Envoy.

#[cfg(test)]
mod adoption;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bootstrap;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod early_end;
#[cfg(test)]
mod epochs;
#[cfg(test)]
mod load;
#[cfg(test)]
mod parent_death;
#[cfg(test)]
mod place;
#[cfg(test)]
mod supervision;
