//! Limits on signing: requests per second, or concurrent requests. Requests that would wait too long
//! are refused, so that no queue builds up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::CaError;
use crate::settings::Common;

/// The maximum wait of a request, as in Consul.
const WAIT: Duration = Duration::from_millis(500);

/// The maximum interval between requests, that is, the minimum rate that is enforced.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// State of the limits, which may change between requests.
#[derive(Debug, Default)]
pub(crate) struct SigningLimit {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The interval between requests, and the earliest time of the next one.
    next: Option<(Duration, Instant)>,
    /// The limit on concurrent requests and its semaphore.
    places: Option<(usize, Arc<Semaphore>)>,
}

/// Permission to sign; released when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

impl SigningLimit {
    /// Waits for permission.
    ///
    /// # Errors
    ///
    /// [`CaError::RateLimited`] when the wait would be too long.
    pub(crate) async fn turn(&self, limits: &Common) -> Result<Turn, CaError> {
        if limits.csr_per_second > 0.0 {
            let apart = Duration::try_from_secs_f64(1.0 / limits.csr_per_second);
            let at = self.reserve(apart.map_or(MAX_INTERVAL, |apart| apart.min(MAX_INTERVAL)))?;
            sleep_until(at).await;
            return Ok(Turn { _place: None });
        }
        if limits.csr_concurrent == 0 {
            return Ok(Turn { _place: None });
        }
        let places = self.places(limits.csr_concurrent);
        match timeout(WAIT, places.acquire_owned()).await {
            Ok(Ok(place)) => Ok(Turn {
                _place: Some(place),
            }),
            _ => Err(CaError::RateLimited),
        }
    }

    /// Reserves the next time slot; slots are `apart` from each other. After a change of the rate,
    /// the old reservations are ignored.
    fn reserve(&self, apart: Duration) -> Result<Instant, CaError> {
        let now = Instant::now();
        let mut state = self.lock();
        let next = state.next.filter(|(known, _)| *known == apart);
        let at = next.map_or(now, |(_, next)| next.max(now));
        if at > now + WAIT {
            return Err(CaError::RateLimited);
        }
        state.next = Some((apart, at + apart));
        Ok(at)
    }

    fn places(&self, count: usize) -> Arc<Semaphore> {
        let mut state = self.lock();
        match &state.places {
            Some((known, places)) if *known == count => Arc::clone(places),
            _ => {
                let places = Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
                state.places = Some((count, Arc::clone(&places)));
                places
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete before a panic is possible.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CaConfig;
    use crate::settings::Settings;

    fn limits(per_second: f64, concurrent: usize) -> Common {
        let settings = Settings::parse(&CaConfig::default().configuration()).unwrap();
        Common {
            csr_per_second: per_second,
            csr_concurrent: concurrent,
            ..settings.common
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_lets_a_few_wait_and_refuses_the_rest() {
        let limit = SigningLimit::default();
        let limits = limits(10.0, 0);
        let began = Instant::now();
        let turns = (0..20).map(|_| limit.turn(&limits));
        let turns = futures_util::future::join_all(turns).await;
        let served = turns.iter().filter(|turn| turn.is_ok()).count();
        assert_eq!(served, 6, "at once, and every 100 ms until half a second");
        assert_eq!(began.elapsed(), WAIT);
        assert!(matches!(turns[19], Err(CaError::RateLimited)));
        tokio::time::sleep(Duration::from_millis(200)).await;
        limit.turn(&limits).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_released() {
        let limit = SigningLimit::default();
        let limits = limits(0.0, 2);
        let held = (
            limit.turn(&limits).await.unwrap(),
            limit.turn(&limits).await.unwrap(),
        );
        assert!(matches!(
            limit.turn(&limits).await,
            Err(CaError::RateLimited)
        ));
        drop(held.0);
        limit.turn(&limits).await.unwrap();
    }
}
