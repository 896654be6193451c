//! Settings of leader election: the Lease and its timing.

use std::time::Duration;

/// The lease to hold.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The holder's identity: the pod's name. No other process may use it at the same time.
    pub identity: String,
    /// Durations and intervals.
    pub times: Times,
}

/// Timing of a lease. The defaults are those of Kubernetes' own controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// After this long without a change others acquire the lease. Default 15 s.
    pub duration: Duration,
    /// The holder stops after this long without a renewal. Default 10 s. At least
    /// [`REQUEST_TIME`](crate::servers::REQUEST_TIME) less than `duration`.
    pub renew_within: Duration,
    /// The interval between reads of the lease. Default 2 s.
    pub retry: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            duration: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}
