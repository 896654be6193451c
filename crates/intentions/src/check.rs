//! Authorization of a single connection.

use std::sync::Arc;

use legate_model::{Intention, IntentionAction as Action, ServiceName};

use crate::order::{covers, sort};

/// A decision and its basis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the connection is allowed or denied.
    pub action: Action,
    /// The matching intention; `None` if the default applies.
    pub matched: Option<Arc<Intention>>,
    /// Explanation for users and for the API's `Reason`.
    pub reason: String,
}

/// Decides whether `source` may connect, from the intentions of one destination in any order.
///
/// The first matching intention applies, or `default` without a match. An intention with permissions,
/// or one that requires a token, depends on requests rather than connections and therefore denies the
/// connection here.
pub fn check(intentions: &[Arc<Intention>], source: &ServiceName, default: Action) -> Decision {
    let mut sorted = intentions.to_vec();
    sort(&mut sorted);
    let is_for = |i: &Arc<Intention>| covers(&i.source(), source);
    let Some(intention) = sorted.into_iter().find(is_for) else {
        return Decision {
            action: default,
            matched: None,
            reason: format!(
                "no intention matches \"{source}\": the default policy is to {default}"
            ),
        };
    };
    let names = format!("{} => {}", intention.source(), intention.destination());
    let (action, reason) = match intention.action {
        Some(Action::Allow) if intention.jwt.is_some() => (
            Action::Deny,
            format!(
                "matched the intention {names}, which lets requests through that carry a JSON Web \
                 Token, and no connection"
            ),
        ),
        Some(action) => (
            action,
            format!("matched the intention {names}, which is to {action}"),
        ),
        None => (
            Action::Deny,
            format!(
                "matched the intention {names}, whose permissions depend on the request, not on \
                 the connection"
            ),
        ),
    };
    Decision {
        action,
        matched: Some(intention),
        reason,
    }
}
