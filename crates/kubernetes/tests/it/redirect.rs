//! Traffic redirection: configurations and their rules, and real packets in namespaces of their own.

mod packets;
mod pod;
mod rules;
