//! DNS state shared by all DNS listeners: the current settings, which a reload replaces, and the limit on
//! requests that wait for recursors.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::dns::DnsSettings;

/// Maximum requests that wait for recursors.
const MAX_WAITING: usize = 256;

/// The current settings of all DNS listeners, and the requests that wait for recursors. All of [`DnsSettings`]
/// can be replaced while the server runs; the domains cannot.
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

/// Permits to wait for recursors.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WAITING)))
    }

    /// Takes a permit; `None` if there is none left.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}
