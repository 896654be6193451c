//! Traffic redirection: configurations and their rules, and real packets in separate network
//! namespaces.

mod packets;
mod pod;
mod rules;
