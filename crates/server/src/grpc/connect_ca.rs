//! `ConnectCAService`: the mesh's roots, and leaf certificates for authorized callers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream;
use legate_api::connectca::connect_ca_service_server::ConnectCaService;
use legate_api::connectca::{
    CaRoot, SignRequest, SignResponse, WatchRootsRequest, WatchRootsResponse,
};
use legate_ca::{Ca, CaError, CheckedRequest};
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{CaRoots, ServiceKind, SpiffeId};
use legate_runtime::CancellationToken;
use legate_store::{Reader, RootLife};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::auth;
use crate::acl::Rights;
use crate::handles::Handles;

/// The maximum CSR, in bytes. One with a 16,384-bit RSA key takes 6 KB.
const MAX_CSR: usize = 64 * 1024;

pub(super) struct Service {
    ca: Ca,
    store: Reader,
    rights: Rights,
    datacenter: String,
    connect: bool,
    stop: CancellationToken,
}

impl Service {
    pub(super) fn new(handles: &Handles, stop: CancellationToken) -> Self {
        Self {
            ca: handles.ca.clone(),
            store: handles.store.reader(),
            rights: handles.rights(),
            datacenter: handles.config.datacenter.clone(),
            connect: handles.config.connect,
            stop,
        }
    }

    fn enabled(&self) -> Result<(), Status> {
        self.connect.then_some(()).ok_or_else(|| {
            Status::failed_precondition("Connect must be enabled in order to use this endpoint")
        })
    }

    /// Checks that `access` permits a certificate with the requested identity and names.
    fn authorise(&self, request: &CheckedRequest<'_>, access: &Authorizer) -> Result<(), Status> {
        let (id, here) = (request.identity(), &self.datacenter);
        let access = access.within(&id.tenancy());
        match id {
            SpiffeId::Service { service, .. } if access.service_write(service) => Ok(()),
            SpiffeId::Service { service, .. } => Err(auth::denied("service:write", service)),
            SpiffeId::MeshGateway { .. } if access.mesh_write() => self.registered(request),
            SpiffeId::MeshGateway { .. } => Err(auth::denied("mesh:write", here)),
            SpiffeId::Server { .. } if access.acl_write() => Ok(()),
            SpiffeId::Server { .. } => Err(auth::denied("acl:write", here)),
            SpiffeId::Signing { .. } => Err(Status::invalid_argument(
                "invalid CSR: it names the authority itself",
            )),
        }
    }

    /// Checks that the DNS names for a mesh gateway are addresses of registered ones.
    fn registered(&self, request: &CheckedRequest<'_>) -> Result<(), Status> {
        if request.dns_names().is_empty() {
            return Ok(());
        }
        let state = self.store.state();
        let state = state.read().within(request.identity().tenancy());
        let instances = state.instances_with_nodes();
        let gateways = instances.iter().map(|(_, instance)| instance);
        let gateways = gateways.filter(|one| one.kind == ServiceKind::MeshGateway);
        let known: BTreeSet<String> = gateways
            .flat_map(|one| {
                let tagged = one.tagged_addresses.values().map(|tagged| &tagged.address);
                tagged.chain([&one.address])
            })
            .map(|address| address.to_ascii_lowercase())
            .collect();
        let mut names = request.dns_names().iter();
        match names.find(|name| !known.contains(&name.to_ascii_lowercase())) {
            None => Ok(()),
            Some(name) => Err(Status::invalid_argument(format!(
                "invalid CSR: no mesh gateway is registered with the address {name:?}: register it, or leave the \
                 DNS name out"
            ))),
        }
    }
}

/// Invalid requests get the error text; internal errors are logged, and the client gets a general text.
fn sign_status(error: &CaError) -> Status {
    if error.is_invalid_request() {
        return Status::invalid_argument(error.to_string());
    }
    if matches!(error, CaError::RateLimited) {
        return Status::resource_exhausted(error.to_string());
    }
    tracing::error!(%error, "a certificate could not be signed");
    Status::internal("the certificate could not be signed; see the server's log")
}

#[tonic::async_trait]
impl ConnectCaService for Service {
    type WatchRootsStream = Pin<Box<dyn Stream<Item = Result<WatchRootsResponse, Status>> + Send>>;

    async fn watch_roots(
        &self,
        request: Request<WatchRootsRequest>,
    ) -> Result<Response<Self::WatchRootsStream>, Status> {
        self.enabled()?;
        let token = auth::token(request.metadata()).to_owned();
        auth::any_valid_token(&self.rights, &token)?;
        let end = auth::ended(self.rights.clone(), token.clone(), self.stop.clone());
        let watch = RootsWatch {
            end: Box::pin(end),
            store: self.store.clone(),
            rights: self.rights.clone(),
            token,
            sent: None,
        };
        let responses = stream::unfold(Some(watch), |watch| async {
            let mut watch = watch?;
            match watch.next().await {
                Ok(response) => Some((Ok(response), Some(watch))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        self.enabled()?;
        let access = auth::authorizer(&self.rights, auth::token(request.metadata()))?;
        // Callers that may not have any certificate must not cause the cost of verifying a signature.
        if !access.some(Resource::Service, Access::Write)
            && !access.mesh_write()
            && !access.acl_write()
        {
            return Err(auth::denied("service:write", "any service"));
        }
        let csr = request.into_inner().csr;
        if csr.is_empty() {
            return Err(Status::invalid_argument("CSR is required"));
        }
        if csr.len() > MAX_CSR {
            return Err(Status::invalid_argument(format!(
                "the CSR has {} bytes: {MAX_CSR} are allowed",
                csr.len()
            )));
        }
        let ca = &self.ca;
        let request = ca.check_csr(&csr).map_err(|error| sign_status(&error))?;
        self.authorise(&request, &access)?;
        let signed = ca.sign_csr(&request).await;
        let cert_pem = signed.map_err(|error| sign_status(&error))?;
        Ok(Response::new(SignResponse { cert_pem }))
    }
}

/// A watch of the roots.
struct RootsWatch {
    store: Reader,
    rights: Rights,
    token: String,
    /// Completes when the watch must end. Created once per watch: if it restarted with each change of the
    /// roots, frequent changes would postpone the token check.
    end: Pin<Box<dyn Future<Output = Status> + Send>>,
    sent: Option<Arc<CaRoots>>,
}

impl RootsWatch {
    /// Returns the current roots at once, then waits for each change.
    async fn next(&mut self) -> Result<WatchRootsResponse, Status> {
        loop {
            let state = self.store.state();
            let txn = state.read();
            let (Some(roots), Some(ca)) = (txn.ca_roots(), txn.ca()) else {
                return Err(Status::failed_precondition(
                    "Connect CA is not yet initialized",
                ));
            };
            if self.sent.as_ref() != Some(&roots) {
                auth::any_valid_token(&self.rights, &self.token)?;
                let response = response(&roots, &ca.lives);
                self.sent = Some(roots);
                return Ok(response);
            }
            let mut changes = self.store.watch(&txn.into_reads());
            drop(state);
            tokio::select! {
                () = changes.changed() => {}
                status = &mut self.end => return Err(status),
            }
        }
    }
}

fn response(roots: &CaRoots, lives: &BTreeMap<String, RootLife>) -> WatchRootsResponse {
    let root = |root: &legate_model::CaRoot| CaRoot {
        id: root.id.clone(),
        name: root.name.clone(),
        serial_number: root.serial_number,
        signing_key_id: root.signing_key_id.clone(),
        root_cert: root.root_cert.clone(),
        intermediate_certs: root.intermediate_certs.clone(),
        active: root.active,
        rotated_out_at: lives
            .get(&root.id)
            .and_then(|life| life.rotated_out)
            .map(Into::into),
    };
    WatchRootsResponse {
        active_root_id: roots.active_root_id.clone(),
        trust_domain: roots.trust_domain.clone(),
        roots: roots.roots.iter().map(root).collect(),
    }
}
