//! `DNSService`: DNS messages over gRPC, for dataplanes that serve DNS to an application.

use legate_api::dns::dns_service_server::DnsService;
use legate_api::dns::{Protocol, QueryRequest, QueryResponse};
use tonic::{Request, Response, Status};

use super::auth;
use crate::acl::Rights;
use crate::dns::{Client, Responder, Transport};

pub(super) struct Service {
    responder: Responder,
    rights: Rights,
}

impl Service {
    pub(super) fn new(responder: Responder, rights: Rights) -> Self {
        Self { responder, rights }
    }
}

#[tonic::async_trait]
impl DnsService for Service {
    async fn query(
        &self,
        request: Request<QueryRequest>,
    ) -> Result<Response<QueryResponse>, Status> {
        // Names without a namespace or partition are looked up in the dataplane's own.
        let tenancy = auth::own_tenancy(request.metadata(), &self.rights)?;
        let client = |transport| Client {
            token: auth::token(request.metadata()).to_owned(),
            tenancy: tenancy.clone(),
            source: request
                .remote_addr()
                .map(|client| client.ip().to_canonical()),
            transport,
            translate_for: self.responder.translates_for(),
        };
        let message = request.get_ref();
        let client = match message.protocol() {
            Protocol::Tcp => client(Transport::Tcp),
            Protocol::Udp => client(Transport::Udp),
            Protocol::UnsetUnspecified => {
                return Err(Status::invalid_argument(
                    "protocol is not set: it must be PROTOCOL_TCP or PROTOCOL_UDP",
                ));
            }
        };
        match self.responder.query(client, &message.msg).await {
            Ok(Some(msg)) => Ok(Response::new(QueryResponse { msg: msg.into() })),
            Ok(None) => Err(Status::invalid_argument(
                "msg is a DNS response: only queries are answered",
            )),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }
}
