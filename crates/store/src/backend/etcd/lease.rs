//! Leader election: the lease of the one server that runs the tasks of the leader.
//!
//! Each server has a lease in etcd and tries to create the leader's key with it. If the leader does
//! not renew its lease, etcd removes the key, and another server creates it.

use std::time::Duration;

use futures_util::stream;
use legate_runtime::CancellationToken;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::request_op::Request;
use super::api::response_op::Response;
use super::api::{
    Compare, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};
use super::client::{Client, Failed};
use super::layout::Layout;
use crate::leadership::Leadership;

/// The TTL of a lease.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// The interval between renewals.
const RENEW: Duration = Duration::from_secs(3);
/// The timeout for revoking the lease when the server stops.
const RELEASE: Duration = Duration::from_secs(1);

/// The task that holds the lease.
pub(super) struct Lease {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) leadership: Leadership,
    /// The id of the lease in etcd, `None` while there is none.
    pub(super) id: Option<i64>,
}

impl Lease {
    /// Renews the lease until the token is cancelled, then revokes it.
    pub(super) async fn run(mut self, token: CancellationToken) {
        let mut warned = false;
        loop {
            let round = token.run_until_cancelled(self.round()).await;
            match round {
                None => break,
                Some(Ok(())) => warned = false,
                // The follower reports that etcd is away.
                Some(Err(Failed::Refused(reason))) if !warned => {
                    warned = true;
                    tracing::warn!(reason, "the lease in etcd cannot be held");
                }
                Some(Err(_)) => {}
            }
            if token.run_until_cancelled(sleep(RENEW)).await.is_none() {
                break;
            }
        }
        self.leadership.hold_until(None);
        self.release().await;
    }

    async fn round(&mut self) -> Result<(), Failed> {
        let asked = Instant::now();
        let id = match self.id {
            Some(id) if self.renew(asked + RENEW, id).await? => id,
            _ => {
                self.id = None;
                self.grant(asked + RENEW).await?
            }
        };
        self.id = Some(id);
        let led = self.lead(asked + RENEW, id).await?;
        // etcd starts the TTL when it receives the request, which is later.
        self.leadership.hold_until(led.then(|| asked + TTL));
        Ok(())
    }

    async fn grant(&self, deadline: Instant) -> Result<i64, Failed> {
        let ttl = i64::try_from(TTL.as_secs()).unwrap_or(i64::MAX);
        let granted = self.client.call(deadline, |connection| {
            let request = connection.request(LeaseGrantRequest { ttl });
            async move { connection.lease().lease_grant(request).await }
        });
        Ok(granted.await?.id)
    }

    /// Renews the lease. Returns whether it still exists.
    async fn renew(&self, deadline: Instant, id: i64) -> Result<bool, Failed> {
        let renewed = self.client.call(deadline, |connection| async move {
            let requests = stream::once(async move { LeaseKeepAliveRequest { id } });
            let request = connection.request(requests);
            let answers = connection.lease().lease_keep_alive(request).await?;
            let answer = answers.into_inner().message().await?;
            answer
                .map(tonic::Response::new)
                .ok_or_else(|| Status::unavailable("no answer to the renewal of a lease"))
        });
        Ok(renewed.await?.ttl > 0)
    }

    /// Creates the leader's key unless it exists. Returns whether it belongs to this server.
    async fn lead(&self, deadline: Instant, id: i64) -> Result<bool, Failed> {
        let key = self.layout.leader();
        let operation = |request| RequestOp {
            request: Some(request),
        };
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Create.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::CreateRevision(0)),
            }],
            success: vec![operation(Request::RequestPut(PutRequest {
                key: key.clone(),
                value: id.to_string().into_bytes(),
                lease: id,
            }))],
            failure: vec![operation(Request::RequestRange(RangeRequest {
                key,
                ..RangeRequest::default()
            }))],
        };
        let answer = self.client.txn(deadline, &mut 0, &request).await?;
        let leader = answer
            .responses
            .into_iter()
            .find_map(|op| match op.response {
                Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
                None => None,
            });
        Ok(answer.succeeded || leader.is_some_and(|leader| leader.lease == id))
    }

    async fn release(&self) {
        let Some(id) = self.id else {
            return;
        };
        let revoked = self.client.call(Instant::now() + RELEASE, |connection| {
            let request = connection.request(LeaseRevokeRequest { id });
            async move { connection.lease().lease_revoke(request).await }
        });
        // Otherwise the lease expires.
        drop(revoked.await);
    }
}
