//! Changes of the CA: on request of operators, and periodically. The provider, which may be remote,
//! prepares each change; a single transaction then applies it, provided that the CA has not been
//! changed concurrently. Prepared objects that were not used are found by the next attempt.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_identity::CertificateInfo;
use legate_model::{CaConfiguration, CaRoot, Secret};
use legate_runtime::CancellationToken;
use legate_store::{CaState, Leadership, WriteTxn, Writer};
use tokio::sync::Mutex;

use crate::authority::{Signer, Stored, mesh};
use crate::first::root_entry;
use crate::provider::{self, Established, Provider};
use crate::rotation;
use crate::settings::{ProviderSettings, Settings};
use crate::{Ca, CaError};

/// Lifetime of the certificates that link an old root to a new one, as in Consul.
const LINK_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Interval of periodic maintenance.
const TICK: Duration = Duration::from_secs(60);

/// Changes the CA. Clones are handles to the same one.
#[derive(Clone)]
pub struct CaManager {
    pub(crate) ca: Ca,
    writer: Writer,
    /// Held during a change of the CA.
    turn: Arc<Mutex<()>>,
}

impl std::fmt::Debug for CaManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaManager").finish_non_exhaustive()
    }
}

impl CaManager {
    /// A manager that changes this CA in the writer's store.
    #[must_use]
    pub fn new(ca: Ca, writer: Writer) -> CaManager {
        let turn = Arc::default();
        CaManager { ca, writer, turn }
    }

    /// The configuration without secrets.
    ///
    /// # Errors
    ///
    /// When the store has no CA.
    pub fn configuration(&self) -> Result<CaConfiguration, CaError> {
        Ok(self.ca.stored()?.configuration.hidden())
    }

    /// Changes the configuration. If this results in another root, the new root is cross-signed by
    /// the previous one, which remains trusted until its leaves have expired.
    ///
    /// # Errors
    ///
    /// When the configuration is refused or does not work. Nothing has changed then.
    pub async fn reconfigure(&self, asked: CaConfiguration) -> Result<(), CaError> {
        let _turn = self.turn.try_lock().map_err(|_| CaError::Busy)?;
        let stored = self.ca.stored()?;
        let before = &stored.configuration;
        let mut asked = asked.revealed(before);
        if !asked.state.is_empty() && asked.state != before.state {
            return Err(CaError::StateReadOnly);
        }
        if self.ca.primary().is_some() {
            Settings::may_be_secondary(&asked)?;
        }
        let was_secondary = self.was_secondary(&stored.ca);
        if asked.provider == before.provider && asked.config == before.config && !was_secondary {
            return Ok(());
        }
        let settings = Settings::parse(&asked);
        let settings = settings.map_err(CaError::configure)?;
        let signer = self.ca.present_signer();
        if let Ok(signer) = &signer {
            settings.may_follow(&signer.settings)?;
        }
        asked.state = state(&settings, &asked, before);
        let signer = signer.ok();
        let next = self.next(&stored, &settings, &asked, signer.as_deref());
        let next = next.await?;
        let rotated = next.roots.active_root_id != stored.ca.roots.active_root_id;
        self.commit(Some(&stored), next, Some(asked)).await?;
        if rotated {
            tracing::info!("activated another root: leaves are renewed within a minute");
        }
        if let Some(signer) = signer
            && let Err(error) = signer.provider.clean_up(&settings).await
        {
            tracing::warn!(%error, "cannot clean up the old provider: remove its intermediate by hand");
        }
        Ok(())
    }

    /// The CA with the new settings.
    async fn next(
        &self,
        stored: &Stored,
        settings: &Settings,
        asked: &CaConfiguration,
        signer: Option<&Signer>,
    ) -> Result<CaState, CaError> {
        let ca = &stored.ca;
        let keeps = |signer: &Signer| keeps_root(&signer.settings, settings);
        let keeps = signer.is_some_and(keeps) && !self.was_secondary(ca);
        let mut next = match keeps || self.ca.primary().is_some() {
            // In a secondary datacenter another intermediate follows, if it is needed.
            true => CaState::clone(ca),
            false => {
                let mesh = mesh(ca, self.ca.clock());
                let provider = provider::of_new(settings, false, &mesh).await;
                let provider = provider.map_err(CaError::configure)?;
                // First, because Vault may sign leaves with the same mount before and after.
                let link = match asked.force_without_cross_signing {
                    true => None,
                    false => self.link(ca, provider.as_ref(), settings, signer).await?,
                };
                let established = provider.establish().await.map_err(CaError::configure)?;
                self.with_root(ca, &established, settings, link)?
            }
        };
        rotation::signs_leaves(&mut next, settings.common.leaf_ttl);
        Ok(next)
    }

    /// Whether the CA is that of a secondary datacenter, and this one is not secondary any more.
    fn was_secondary(&self, ca: &CaState) -> bool {
        ca.secondary.is_some() && self.ca.primary().is_none()
    }

    /// The CA with a provider's root. `link` is that root, cross-signed by the active one.
    fn with_root(
        &self,
        ca: &CaState,
        established: &Established,
        settings: &Settings,
        link: Option<String>,
    ) -> Result<CaState, CaError> {
        let now = self.ca.clock().now();
        let mut root = root_entry(established, settings, &ca.cluster_id, now)?;
        let key = established.key.clone();
        let active = ca.roots.active();
        if let Some(active) = active.filter(|active| active.id == root.id) {
            root.intermediate_certs = with_intermediates(active, &root.intermediate_certs, now);
            return Ok(rotation::replace_active(ca, root, key));
        }
        if let Some(link) = link {
            root.intermediate_certs.insert(0, link);
        }
        Ok(rotation::rotate(ca, root, key, now))
    }

    /// The new provider's root, cross-signed by the active root. `None` if both are the same root, or
    /// if the active one has expired, so that its signature would be worthless.
    async fn link(
        &self,
        ca: &CaState,
        new: &dyn Provider,
        settings: &Settings,
        old: Option<&Signer>,
    ) -> Result<Option<String>, CaError> {
        let now = self.ca.clock().now();
        let found = Established {
            root_pem: new.find_root().await.map_err(CaError::configure)?,
            intermediate: None,
            key: Secret::default(),
        };
        let root = root_entry(&found, settings, &ca.cluster_id, now);
        let root = root.map_err(CaError::configure)?;
        let active = ca.roots.active();
        if active.is_none_or(|active| active.id == root.id || now > active.not_after) {
            return Ok(None);
        }
        let old = old.ok_or(CaError::NoCrossSigning)?.provider.as_ref();
        if !old.cross_signs() {
            return Err(CaError::NoCrossSigning);
        }
        let profile = self.ca.profile(LINK_TTL);
        old.cross_sign(&root.root_cert, profile).await.map(Some)
    }

    /// Applies a change unless the CA has been changed since `stored` was read. `None`: there was none.
    pub(crate) async fn commit(
        &self,
        stored: Option<&Stored>,
        next: CaState,
        configuration: Option<CaConfiguration>,
    ) -> Result<(), CaError> {
        let old = stored.cloned();
        let change = move |txn: &mut WriteTxn| -> Result<bool, CaError> {
            let (ca, now) = (txn.read().ca(), txn.read().ca_configuration());
            let same = match &old {
                None => ca.is_none(),
                Some(old) => {
                    ca.as_deref() == Some(&*old.ca)
                        && now.is_none_or(|now| now == old.configuration)
                }
            };
            if !same {
                return Ok(false);
            }
            txn.put_ca(next.clone());
            if let Some(configuration) = &configuration {
                txn.put_ca_configuration(configuration.clone());
            }
            Ok(true)
        };
        let (_, changed) = self.writer.write(change).await?;
        changed.then_some(()).ok_or(CaError::Changed)
    }

    /// Runs periodic maintenance until the token is cancelled. One of several servers removes expired
    /// roots and renews the intermediate; each server renews its own access to the provider.
    ///
    /// # Errors
    ///
    /// Never; failures are retried.
    pub async fn run(
        self,
        leadership: Leadership,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let due = async {
            loop {
                if leadership.is_held()
                    && self.ca.is_created()
                    && let Err(error) = self.maintain().await
                {
                    tracing::warn!(%error, "maintenance of the CA failed: trying again");
                }
                let wait = match self.ca.present_signer() {
                    Ok(signer) => signer.provider.keep().await,
                    Err(_) => None,
                };
                tokio::time::sleep(wait.map_or(TICK, |wait| wait.min(TICK))).await;
            }
        };
        stop.run_until_cancelled(due).await.unwrap_or(Ok(()))
    }

    async fn maintain(&self) -> Result<(), CaError> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Ok(());
        };
        let signer = self.ca.present_signer()?;
        let (now, ttl) = (self.ca.clock().now(), signer.settings.common.leaf_ttl);
        let stored = self.ca.stored()?;
        if let Some(next) = rotation::pruned(&stored.ca, now, ttl) {
            self.commit(Some(&stored), next, None).await?;
            tracing::info!("removed certificates of the CA that are no longer needed");
        }
        let stored = self.ca.stored()?;
        let root = stored.ca.roots.active();
        let (Some(root), ProviderSettings::Vault(_)) = (root, &signer.settings.provider) else {
            return Ok(());
        };
        // An expired intermediate may have been removed.
        let fresh = match root.intermediate_certs.last() {
            Some(last) => {
                let last = CertificateInfo::from_pem(last)?;
                last.subject_key_id == root.signing_key_id && !rotation::half_over(&last, now)
            }
            None => false,
        };
        // An incomplete change may have left another intermediate in Vault.
        if fresh && signer.provider.is_ready().await? {
            return Ok(());
        }
        let Some(intermediate) = signer.provider.renew_intermediate().await? else {
            return Ok(());
        };
        let established = Established {
            root_pem: root.root_cert.clone(),
            intermediate: Some(intermediate),
            key: Secret::default(),
        };
        let next = self.with_root(&stored.ca, &established, &signer.settings, None)?;
        self.commit(Some(&stored), next, None).await?;
        tracing::info!("renewed the intermediate that signs leaves");
        Ok(())
    }
}

/// The provider's `State`. Only the built-in provider has one, and only tests of clients set it.
fn state(
    settings: &Settings,
    asked: &CaConfiguration,
    before: &CaConfiguration,
) -> BTreeMap<String, String> {
    match &settings.provider {
        ProviderSettings::BuiltIn(own) => match &own.test_state {
            Some(state) => state.clone(),
            None if asked.provider == before.provider => before.state.clone(),
            None => BTreeMap::new(),
        },
        ProviderSettings::Vault(_) => BTreeMap::new(),
    }
}

/// Whether the built-in provider retains its root.
fn keeps_root(before: &Settings, after: &Settings) -> bool {
    match (&before.provider, &after.provider) {
        (ProviderSettings::BuiltIn(old), ProviderSettings::BuiltIn(new)) => {
            old.private_key == new.private_key
                && old.root_cert == new.root_cert
                && before.common.key == after.common.key
        }
        _ => false,
    }
}

/// The intermediates of a root that are still valid, followed by `more`.
fn with_intermediates(root: &CaRoot, more: &[String], now: SystemTime) -> Vec<String> {
    let old = root.intermediate_certs.iter();
    let old = old.filter(|pem| rotation::is_alive(pem, now) && !more.contains(pem));
    old.chain(more).cloned().collect()
}
