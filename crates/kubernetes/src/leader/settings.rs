//! Which lease to hold, and its times.

use std::time::Duration;

/// The lease to hold.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who holds it: the pod's name. No other process may use it at the same time.
    pub identity: String,
    /// How long, and how often.
    pub times: Times,
}

/// Times of a lease. The defaults are those of Kubernetes' own controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Others take the lease when it has not changed for this long. Default 15 s.
    pub duration: Duration,
    /// The holder stops when it could not renew for this long. Default 10 s. At least
    /// [`REQUEST_TIME`](crate::servers::REQUEST_TIME) less than `duration`.
    pub renew_within: Duration,
    /// Between two looks at the lease. Default 2 s.
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
