//! Connections whose clients have not proved yet who they are. Anyone can open them, also through a gateway, behind
//! which all clients have one address. So there are few of them at a time, and a new one ends the oldest: who needs
//! much longer for a handshake than others do yields to them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use legate_runtime::CancellationToken;

/// The largest number at a time.
pub(crate) const MOST: usize = 256;

/// The connections, the oldest first.
#[derive(Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    all: VecDeque<(u64, CancellationToken)>,
    next: u64,
}

/// One of them. Dropping it makes room.
pub(crate) struct Arrival {
    arrivals: Arrivals,
    number: u64,
    /// Cancelled when it has to yield.
    pub(crate) yields: CancellationToken,
}

impl Arrivals {
    /// Adds a connection, and ends the oldest if there are too many.
    pub(crate) fn add(&self) -> Arrival {
        let yields = CancellationToken::new();
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.push_back((number, yields.clone()));
        if waiting.all.len() > MOST
            && let Some((_, oldest)) = waiting.all.pop_front()
        {
            oldest.cancel();
        }
        drop(waiting);
        Arrival {
            arrivals: self.clone(),
            number,
            yields,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut waiting = self.arrivals.lock();
        waiting.all.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_one_ends_the_oldest() {
        let arrivals = Arrivals::default();
        let mut all: Vec<_> = (0..MOST).map(|_| arrivals.add()).collect();
        assert!(all.iter().all(|one| !one.yields.is_cancelled()));
        all.push(arrivals.add());
        let ended = |all: &[Arrival]| all.iter().filter(|one| one.yields.is_cancelled()).count();
        assert_eq!(ended(&all), 1);
        assert!(all[0].yields.is_cancelled());
        // Those that are done make room.
        all.drain(..2);
        all.push(arrivals.add());
        assert_eq!(ended(&all), 0);
    }
}
