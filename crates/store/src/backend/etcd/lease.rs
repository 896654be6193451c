//! The election: the lease of the server that leads, which commits and runs the tasks of the leader.
//!
//! Each server has a lease in etcd. The leader's key belongs to the lease of one of them. If that
//! server does not renew its lease, etcd removes the key, and another server creates it.
//!
//! The lease only decides who should commit. That a former leader cannot is ensured by the head,
//! which every commit is guarded by.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use legate_runtime::CancellationToken;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tonic::Status;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::request_op::Request;
use super::api::{
    Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};
use super::client::{Client, Failed};
use super::follow::{Health, mark_away};
use super::layout::{Layout, Leader};
use crate::leadership::Leadership;

/// The TTL of a lease. etcd notices the end within another half second.
pub(super) const TTL: Duration = Duration::from_secs(3);
/// The interval between renewals.
const RENEW: Duration = Duration::from_secs(1);
/// The timeout of one call to one member: a renewal can be repeated at another member before the
/// lease expires.
pub(super) const ATTEMPT: Duration = Duration::from_secs(1);
/// The timeout of all calls of a renewal.
const ROUND: Duration = Duration::from_millis(2500);
/// The timeout for revoking the lease when the server stops.
const RELEASE: Duration = Duration::from_secs(1);
/// The number of attempts to create the leader's key in one round.
const CONTESTS: usize = 3;

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lead {
    Nobody,
    /// This server, until this time.
    Me(Instant),
    /// The server that others reach at this address.
    Other(String),
}

/// The task that holds the lease.
pub(super) struct Lease {
    pub(super) client: Client,
    pub(super) layout: Layout,
    /// Where other servers reach this one.
    pub(super) address: String,
    pub(super) leadership: Leadership,
    pub(super) lead: watch::Sender<Lead>,
    /// The leader's key has changed.
    pub(super) changed: Arc<Notify>,
    pub(super) health: watch::Sender<Health>,
    /// The id of the lease in etcd, `None` while there is none.
    pub(super) id: Option<i64>,
}

impl Lease {
    /// Renews the lease until the token is cancelled, then revokes it.
    pub(super) async fn run(mut self, token: CancellationToken) {
        let mut warned = false;
        let mut failures = 0;
        loop {
            let asked = Instant::now();
            let round = token.run_until_cancelled(self.round(asked)).await;
            match round {
                None => break,
                Some(Ok(())) => (warned, failures) = (false, 0),
                Some(Err(failed)) => {
                    self.missed();
                    failures += 1;
                    match failed {
                        Failed::Refused(reason) if !warned => {
                            warned = true;
                            tracing::warn!(reason, "the lease in etcd cannot be held");
                        }
                        Failed::Away(reason) if failures > 1 => {
                            mark_away(&self.health, asked, &reason);
                        }
                        _ => {}
                    }
                }
            }
            let pause = timeout(RENEW, self.changed.notified());
            if token.run_until_cancelled(pause).await.is_none() {
                break;
            }
        }
        self.leadership.hold_until(None);
        self.tell(Lead::Nobody);
        self.release().await;
    }

    /// The lease was not renewed.
    fn missed(&self) {
        let over = |lead: &Lead| matches!(lead, Lead::Me(until) if *until <= Instant::now());
        if over(&self.lead.borrow()) {
            self.tell(Lead::Nobody);
        }
    }

    fn tell(&self, news: Lead) {
        self.lead.send_if_modified(|lead| {
            let changed = *lead != news;
            *lead = news;
            changed
        });
    }

    async fn round(&mut self, asked: Instant) -> Result<(), Failed> {
        let deadline = asked + ROUND;
        let id = match self.id {
            Some(id) if self.renew(deadline, id).await? => id,
            _ => {
                self.id = None;
                self.grant(deadline).await?
            }
        };
        self.id = Some(id);
        let lead = self.contest(deadline, id, asked).await?;
        self.leadership.hold_until(match lead {
            Lead::Me(until) => Some(until),
            _ => None,
        });
        self.tell(lead);
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

    /// Creates the leader's key unless it exists. Returns who leads.
    async fn contest(&self, deadline: Instant, id: i64, asked: Instant) -> Result<Lead, Failed> {
        for _ in 0..CONTESTS {
            let request = RangeRequest {
                key: self.layout.leader(),
                ..RangeRequest::default()
            };
            let answer = self.client.range(deadline, request).await?;
            let existing = answer.kvs.into_iter().next();
            // The leader with the address of this server is its predecessor, which has ended,
            // because this server listens there.
            let replaced = match existing {
                // etcd starts the TTL when it receives the request, which is later.
                Some(kv) if kv.lease == id => return Ok(Lead::Me(asked + TTL)),
                Some(kv) => match serde_json::from_slice::<Leader>(&kv.value) {
                    Ok(leader) if leader.address != self.address => {
                        return Ok(Lead::Other(leader.address));
                    }
                    _ => Some(kv),
                },
                None => None,
            };
            self.create(deadline, id, replaced.as_ref()).await?;
        }
        Ok(Lead::Nobody)
    }

    /// Creates the leader's key, or replaces it at this revision. The caller reads the outcome.
    async fn create(
        &self,
        deadline: Instant,
        id: i64,
        replaced: Option<&KeyValue>,
    ) -> Result<(), Failed> {
        let key = self.layout.leader();
        let leader = Leader {
            address: self.address.clone(),
        };
        let put = PutRequest {
            key: key.clone(),
            // A struct of strings always serializes.
            value: serde_json::to_vec(&leader).unwrap_or_default(),
            lease: id,
        };
        let revision = replaced.map_or(0, |kv| kv.mod_revision);
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key,
                target_union: Some(TargetUnion::ModRevision(revision)),
            }],
            success: vec![RequestOp {
                request: Some(Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        self.client.txn(deadline, &mut 0, &request).await.map(drop)
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
