//! How many pages are put together at one time, and which of them ends when another one is asked
//! for: readers that do not read must not keep out those that do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::time::Instant;

/// Pages that are put together at one time.
const PAGES: usize = 4;

/// How long a page waits for its reader before it may have to make room.
const UNREAD: Duration = Duration::from_secs(1);

/// The pages of now. Copies share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots(Arc<Mutex<Vec<Arc<Shared>>>>);

#[derive(Debug, Default)]
struct Shared {
    /// Since when the page waits for its reader.
    unread: Mutex<Option<Instant>>,
    end: CancellationToken,
}

/// The place of one page, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    shared: Arc<Shared>,
    slots: Slots,
}

impl Slots {
    /// A place for one more page. Where all are taken it is that of the page which has waited
    /// longest for its reader; none when all readers read.
    pub(super) fn take(&self) -> Option<Slot> {
        let mut pages = self.pages();
        if pages.len() >= PAGES {
            let waiting = pages.iter().enumerate();
            let waiting = waiting.filter_map(|(at, page)| Some(((*page.unread())?, at)));
            let (since, at) = waiting.min()?;
            if since.elapsed() < UNREAD {
                return None;
            }
            pages.remove(at).end.cancel();
        }
        let shared = Arc::new(Shared::default());
        pages.push(Arc::clone(&shared));
        Some(Slot {
            shared,
            slots: self.clone(),
        })
    }

    fn pages(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn unread(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Cancelled when the page has to end.
    pub(super) fn end(&self) -> CancellationToken {
        self.shared.end.clone()
    }

    /// Waits for the reader with this.
    pub(super) async fn unread<T>(&self, taken: impl Future<Output = T>) -> T {
        *self.shared.unread() = Some(Instant::now());
        let taken = taken.await;
        *self.shared.unread() = None;
        taken
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let own = |page: &Arc<Shared>| Arc::ptr_eq(page, &self.shared);
        self.slots.pages().retain(|page| !own(page));
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_who_has_not_read_for_a_while_makes_room() {
        let slots = Slots::default();
        let taken: Vec<_> = (0..PAGES).map(|_| slots.take().unwrap()).collect();
        taken[0].unread(ready(())).await;
        assert!(slots.take().is_none(), "all read");
        tokio::select! {
            biased;
            () = taken[2].unread(pending()) => {}
            () = async {
                advance(Duration::from_millis(10)).await;
                let waits = timeout(UNREAD * 2, taken[1].unread(pending::<()>()));
                assert!(slots.take().is_none(), "nobody has waited for long");
                assert!(waits.await.is_err());
            } => {}
        }
        let _fifth = slots.take().expect("two have waited");
        let ended: Vec<_> = taken.iter().map(|slot| slot.end().is_cancelled()).collect();
        assert_eq!(ended, [false, false, true, false], "the longest");
        drop(taken);
        assert_eq!(slots.pages().len(), 1);
    }
}
