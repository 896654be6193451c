//! The task of a secondary datacenter that follows the CA of the primary.

use std::convert::Infallible;
use std::time::Duration;

use legate_identity::intermediate_request;
use legate_model::{CaConfiguration, CaRoots, Secret};
use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken};
use legate_store::Leadership;
use tokio::time::{sleep, timeout};

use crate::authority::Stored;
use crate::intermediate::verified;
use crate::provider::{Mesh, generate};
use crate::secondary::{self, Step};
use crate::settings::Settings;
use crate::{CaError, CaManager};

/// How long the primary waits for other roots before it answers. The clock and the settings are looked at again then.
const WAIT: Duration = Duration::from_secs(60);
/// The time in which an answer must arrive, besides the wait.
const ANSWER: Duration = Duration::from_secs(30);
/// The least time between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// The roots of the primary datacenter, as one of its servers has them.
#[derive(Debug, Clone)]
pub struct PrimaryRoots {
    /// The roots.
    pub roots: CaRoots,
    /// Their index, to wait for others. Servers with the same roots may have different ones.
    pub index: u64,
    /// The index of the server's state when it was asked: a server whose index is lower than that of another one is
    /// behind.
    pub state: u64,
}

/// The servers of the primary datacenter.
pub trait Primary: Send + Sync {
    /// The roots. Waits up to `wait` for an index other than `index`; with index 0 it does not wait.
    fn roots(
        &self,
        index: u64,
        wait: Duration,
    ) -> impl Future<Output = Result<PrimaryRoots, BoxError>> + Send;

    /// Signs a request for an intermediate that is valid for `ttl`, see [`CaManager::sign_intermediate`].
    fn sign(
        &self,
        csr_pem: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<String, BoxError>> + Send;
}

impl CaManager {
    /// Follows the primary until the token is cancelled: adopts its roots, and has it sign the intermediate of this
    /// datacenter. Of several servers the leader does. Failures are retried; `report` gets the last one, and `None` after
    /// a success and on servers that are not the leader.
    ///
    /// # Errors
    ///
    /// Never.
    pub async fn follow(
        self,
        primary: impl Primary,
        leadership: Leadership,
        report: impl Fn(Option<&CaError>),
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let follow = async {
            let mut backoff = Backoff::new(BackoffPolicy::DATACENTER);
            let mut index = 0;
            let mut newest = Newest::default();
            loop {
                if !leadership.is_held() {
                    report(None);
                    leadership.held().await;
                }
                match self.follow_once(&primary, index, &mut newest).await {
                    Ok(next) => {
                        index = next;
                        backoff.reset();
                        report(None);
                        sleep(PAUSE).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the CA of this datacenter cannot follow the primary's: trying again");
                        index = 0;
                        report(Some(&error));
                        sleep(backoff.next(rand::random())).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(follow).await;
        Ok(())
    }

    /// Asks for the roots, and takes the steps that are due. Returns the index for the next time; 0 after a change of the
    /// CA here.
    async fn follow_once(
        &self,
        primary: &impl Primary,
        index: u64,
        newest: &mut Newest,
    ) -> Result<u64, CaError> {
        let mut changed = self.ca.watch();
        let asked = timeout(WAIT + ANSWER, primary.roots(index, WAIT));
        let PrimaryRoots {
            roots,
            index: next,
            state,
        } = tokio::select! {
            answer = asked => self.answered(answer)?,
            () = changed.changed() => return Ok(0),
        };
        let roots = secondary::consistent(roots).map_err(|reason| self.unusable(reason))?;
        let cluster_id = secondary::cluster_id(&roots);
        if let Some(followed) = self
            .ca
            .followed()
            .filter(|followed| *followed != cluster_id)
        {
            return Err(self.unusable(format!(
                "its cluster id is {cluster_id}, and {followed} was followed: see the problem of replication"
            )));
        }
        newest
            .accept(cluster_id, state)
            .map_err(|reason| self.unusable(reason))?;
        self.adopt(&roots).await?;
        self.request(primary, &roots).await?;
        // An index that decreased is of another store.
        Ok(if next < index { 0 } else { next })
    }

    /// What is next, and the CA that it is next for.
    fn step(&self, roots: &CaRoots) -> Result<(Step, Option<Stored>, Settings), CaError> {
        let stored = match self.ca.stored() {
            Ok(stored) => Some(stored),
            Err(CaError::Missing) => None,
            Err(error) => return Err(error),
        };
        let settings = match kept(stored.as_ref()) {
            Some(kept) => Settings::parse(kept)?,
            None => Settings::parse(&self.ca.first_configuration())?,
        };
        let ca = stored.as_ref().map(|stored| &*stored.ca);
        let now = self.ca.clock().now();
        let step = secondary::next_step(ca, roots, settings.common.key, now);
        Ok((step, stored, settings))
    }

    async fn adopt(&self, roots: &CaRoots) -> Result<(), CaError> {
        let (Step::Adopt, Some(stored), _) = self.step(roots)? else {
            return Ok(());
        };
        let Some(own) = &stored.ca.secondary else {
            return Ok(());
        };
        let next = secondary::adopted(&stored.ca, own, roots, self.ca.clock().now());
        self.commit(Some(&stored), next, None).await?;
        tracing::info!("adopted the roots of the primary datacenter");
        Ok(())
    }

    async fn request(&self, primary: &impl Primary, roots: &CaRoots) -> Result<(), CaError> {
        let (Step::Request, stored, settings) = self.step(roots)? else {
            return Ok(());
        };
        let Some(root) = roots.active() else {
            return Ok(());
        };
        let mesh = Mesh {
            cluster_id: secondary::cluster_id(roots),
            clock: self.ca.clock().clone(),
        };
        let key = generate(settings.common.key).await?;
        let name = mesh.secondary_name("legate", rand::random());
        let csr = intermediate_request(&key, &name, &mesh.uri())?;
        let asked = timeout(ANSWER, primary.sign(&csr, settings.common.intermediate_ttl));
        let signed = self.answered(asked.await)?;
        let now = self.ca.clock().now();
        let signed = verified(&signed, &key, root, &mesh.uri(), now);
        let signed = signed.map_err(|reason| {
            self.unusable(format!(
                "it signed an intermediate that cannot be used: {reason}"
            ))
        })?;
        let before = stored.as_ref().map(|stored| &*stored.ca);
        if before.is_some_and(|ca| ca.roots.trust_domain != roots.trust_domain) {
            tracing::warn!(
                trust_domain = roots.trust_domain,
                "this datacenter joins the mesh of the primary: its services get identities of another trust domain"
            );
        }
        let signer = (signed, Secret::new(key.to_pem()));
        let ttl = settings.common.leaf_ttl;
        let next = secondary::installed(before, roots, signer, ttl, now);
        let configuration = match kept(stored.as_ref()) {
            Some(_) => None,
            None => Some(self.ca.first_configuration()),
        };
        self.commit(stored.as_ref(), next, configuration).await?;
        tracing::info!(
            "the primary datacenter signed the certificate by which this one signs leaves"
        );
        Ok(())
    }

    fn answered<T, E>(&self, answer: Result<Result<T, BoxError>, E>) -> Result<T, CaError> {
        match answer {
            Ok(answer) => answer.map_err(|error| self.unusable(error.to_string())),
            Err(_) => Err(self.unusable("it did not answer in time".to_owned())),
        }
    }

    fn unusable(&self, reason: String) -> CaError {
        let datacenter = self.ca.primary().unwrap_or_default().to_owned();
        CaError::Primary { datacenter, reason }
    }
}

/// The newest state of the primary that was seen.
#[derive(Default)]
struct Newest {
    cluster_id: String,
    state: u64,
}

impl Newest {
    /// Refuses what a server answers that is behind the others of its cluster, such as one that is cut off from them.
    fn accept(&mut self, cluster_id: String, state: u64) -> Result<(), String> {
        if cluster_id == self.cluster_id && state < self.state {
            let newest = self.state;
            return Err(format!(
                "one of its servers is behind: it has index {state}, and another one had {newest} already"
            ));
        }
        *self = Self { cluster_id, state };
        Ok(())
    }
}

/// The stored configuration. That of a datacenter that was independent is not kept if it is about its own root.
fn kept(stored: Option<&Stored>) -> Option<&CaConfiguration> {
    let configuration = stored.map(|stored| &*stored.configuration);
    configuration.filter(|one| Settings::may_be_secondary(one).is_ok())
}

#[cfg(test)]
mod tests;
