//! One question: may this source open a connection?

use std::sync::Arc;

use legate_model::{Intention, IntentionAction as Action, ServiceName};

use crate::order::{covers, sort};

/// An answer, with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the connection is let through.
    pub action: Action,
    /// The intention that decided; `None` when the default did.
    pub matched: Option<Arc<Intention>>,
    /// For people and for the API's `Reason`.
    pub reason: String,
}

/// Whether `source` may connect, by the intentions of one destination in any order.
///
/// The first intention for the source decides, `default` when there is none. An intention with
/// permissions decides about requests, not connections, and so does one that lets requests through
/// with a token only: here they count as refusals.
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
