//! Counts open connections per client address and in total, and enforces the limits. Accepts and reads nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Minimum interval between log lines about rejections, because rejected clients retry.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Connection limits of one API. Further connections are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimit {
    /// Maximum connections in total.
    pub in_all: usize,
    /// Maximum connections per client address. IPv6 addresses are counted by their /64 prefix, because a single
    /// client usually controls all addresses in it.
    pub per_address: usize,
}

impl ApiLimit {
    /// Lowers the total to at most `most`, and the limit per address in proportion.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        if self.in_all <= most {
            return self;
        }
        let per_address = self.per_address.saturating_mul(most) / self.in_all;
        Self {
            in_all: most,
            per_address: per_address.max(1),
        }
    }
}

/// The open connections of one API.
#[derive(Debug)]
pub struct Admission {
    api: &'static str,
    limit: ApiLimit,
    flag: Option<&'static str>,
    open: Mutex<Open>,
    /// Notified when the last connection closes.
    empty: Notify,
}

#[derive(Debug, Default)]
struct Open {
    by_address: HashMap<IpAddr, usize>,
    all: usize,
    /// Rejections since the last log line.
    refused: usize,
    logged: Option<Instant>,
}

/// The permit of an open connection. Dropping it releases the permit.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    /// No connections are open. `api` is the API's name in logs. `flag` raises the total; with `-per-address`, the limit
    /// of an address.
    pub fn new(api: &'static str, limit: ApiLimit, flag: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            api,
            limit,
            flag,
            open: Mutex::default(),
            empty: Notify::new(),
        })
    }

    /// Takes a permit for a connection of `client`; `None` if a limit is reached.
    pub fn admit(self: &Arc<Self>, client: IpAddr) -> Option<Permit> {
        let address = counted_as(client);
        let mut open = self.lock();
        let of_address = open.by_address.get(&address).copied().unwrap_or_default();
        if open.all >= self.limit.in_all || of_address >= self.limit.per_address {
            self.log_refusal(&mut open, client, of_address);
            return None;
        }
        open.all += 1;
        open.by_address.insert(address, of_address + 1);
        Some(Permit {
            admission: self.clone(),
            address,
        })
    }

    fn log_refusal(&self, open: &mut Open, client: IpAddr, of_address: usize) {
        open.refused += 1;
        let now = Instant::now();
        if open.logged.is_some_and(|last| now - last < LOG_EVERY) {
            return;
        }
        open.logged = Some(now);
        let refused = std::mem::take(&mut open.refused);
        let (api, in_all) = (self.api, open.all);
        if of_address >= self.limit.per_address {
            let raise = self.flag.map(|flag| {
                format!("; if many clients share the address, raise {flag}-per-address")
            });
            let raise = raise.unwrap_or_default();
            tracing::warn!(
                api, %client, open = of_address, refused,
                "connections are rejected: this client address has reached its limit{raise}"
            );
        } else {
            let raise = self.flag.map(|flag| {
                format!("; raise {flag} or the limit of open files, or start another server")
            });
            let raise = raise.unwrap_or_default();
            tracing::warn!(
                api, %client, open = in_all, refused,
                "connections are rejected: this server has reached its limit{raise}"
            );
        }
    }

    /// Waits until no connection is open.
    pub async fn emptied(&self) {
        loop {
            let empty = self.empty.notified();
            if self.lock().all == 0 {
                return;
            }
            empty.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.admission.lock();
        open.all -= 1;
        if let Some(of_address) = open.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                open.by_address.remove(&self.address);
            }
        }
        if open.all == 0 {
            self.admission.empty.notify_waiters();
        }
    }
}

/// The address under which a client is counted. For IPv6, its /64 prefix.
fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(in_all: usize, per_address: usize) -> Arc<Admission> {
        let limit = ApiLimit {
            in_all,
            per_address,
        };
        Admission::new("test", limit, None)
    }

    #[tokio::test]
    async fn closed_connections_release_their_permits() {
        let admission = admission(5, 3);
        let [one, other, third] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut places: Vec<_> = (0..9).filter_map(|_| admission.admit(one)).collect();
        assert_eq!(places.len(), 3);
        let others = [admission.admit(other), admission.admit(third)];
        assert!(others.iter().all(Option::is_some));
        assert!(admission.admit(third).is_none(), "there are five");
        places.pop();
        assert!(admission.admit(third).is_some());
        drop((places, others));
        assert!(admission.lock().by_address.is_empty());
        admission.emptied().await;
    }

    #[tokio::test]
    async fn emptied_waits_for_the_last_connection() {
        let admission = admission(5, 3);
        let place = admission.admit(IpAddr::from([192, 0, 2, 1]));
        let waits = admission.emptied();
        let closes = async {
            tokio::task::yield_now().await;
            drop(place);
        };
        tokio::join!(waits, closes);
    }

    #[test]
    fn addresses_that_one_client_has_count_as_one() {
        let same = |one: &str, other: &str| {
            counted_as(one.parse().unwrap()) == counted_as(other.parse().unwrap())
        };
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
    }
}
