//! Composes the parts of each kind of proxy from its snapshot, with one function per kind. A new
//! kind is a file with such a function and a line in [`compose`].

mod api_gateway;
mod backends;
mod change;
mod datagrams;
mod egress;
mod frontends;
mod ingress_gateway;
mod mesh_gateway;
mod peering;
mod peers;
mod services;
mod sidecar;
mod terminating_gateway;
mod transparent;
mod upstream;

use legate_proxycfg::{
    ApiGateway, IngressGateway, Kind, MeshGateway, Sidecar, Snapshot, TerminatingGateway,
};

use crate::composer::Composer;

/// Adds the parts of a proxy. `last` is the snapshot that the composer's previous set was made
/// from.
pub(crate) fn compose(composer: &mut Composer<'_>, snapshot: &Snapshot, last: Option<&Snapshot>) {
    let proxy = &snapshot.proxy;
    match &snapshot.kind {
        Kind::Sidecar(own) => {
            let last = last.and_then(|last| Some((&last.proxy, Sidecar::of(last)?)));
            sidecar::compose(composer, proxy, own, last);
        }
        Kind::IngressGateway(own) => {
            let last = last.and_then(|last| Some((&last.proxy, IngressGateway::of(last)?)));
            ingress_gateway::compose(composer, proxy, own, last);
        }
        Kind::ApiGateway(own) => {
            let last = last.and_then(|last| Some((&last.proxy, ApiGateway::of(last)?)));
            api_gateway::compose(composer, proxy, own, last);
        }
        Kind::MeshGateway(own) => {
            let last = last.and_then(|last| Some((&last.proxy, MeshGateway::of(last)?)));
            mesh_gateway::compose(composer, proxy, own, last);
        }
        Kind::TerminatingGateway(own) => {
            let last = last.and_then(|last| Some((&last.proxy, TerminatingGateway::of(last)?)));
            terminating_gateway::compose(composer, proxy, own, last);
        }
    }
}
