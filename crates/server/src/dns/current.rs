//! How DNS answers now, and how many clients may wait for other servers: what all addresses at which DNS
//! answers have together, and what a reload changes. It answers nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::dns::DnsSettings;

/// Most clients at one time that wait for other servers.
const MAX_WAITING: usize = 256;

/// The settings that count now, for all addresses at which DNS answers, and who waits for other servers
/// there. All of [`DnsSettings`] can be set anew while the server runs; the domains cannot.
#[derive(Debug, Clone)]
pub(crate) struct CurrentDns {
    settings: Arc<ArcSwap<DnsSettings>>,
    pub(super) places: Places,
}

impl CurrentDns {
    pub(crate) fn new(settings: DnsSettings) -> Self {
        Self {
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            places: Places::new(),
        }
    }

    pub(crate) fn get(&self) -> Arc<DnsSettings> {
        self.settings.load_full()
    }

    pub(crate) fn set(&self, settings: DnsSettings) {
        self.settings.store(Arc::new(settings));
    }
}

/// Who may ask other servers now.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WAITING)))
    }

    /// `None` when too many wait already.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}
