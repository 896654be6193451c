//! Checks whether a certificate is valid and not overdue for renewal.

use std::time::SystemTime;

use crate::kubernetes::table::{duration, time};

/// The remaining validity of a certificate.
pub(super) enum Validity {
    /// "until …".
    Good(String),
    /// "has expired …".
    Bad(String),
}

/// Certificates are renewed when at least a third of their lifetime remains, so less than a tenth
/// means that the renewal is overdue.
pub(super) fn validity(not_before: SystemTime, not_after: SystemTime, now: SystemTime) -> Validity {
    if now < not_before {
        let from = time(not_before);
        return Validity::Bad(format!("is valid from {from} only: check the clocks"));
    }
    let until = time(not_after);
    let life = not_after.duration_since(not_before).unwrap_or_default();
    match not_after.duration_since(now) {
        Err(past) => {
            let ago = duration(past.duration());
            Validity::Bad(format!("has expired at {until}, {ago} ago"))
        }
        Ok(left) if left < life / 10 => {
            Validity::Bad(format!("expires soon, at {until}, in {}", duration(left)))
        }
        Ok(left) => Validity::Good(format!("until {until}, for {}", duration(left))),
    }
}
