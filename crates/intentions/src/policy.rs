//! Converts all intentions of a destination into rules for an access filter.
//!
//! A filter has one action and a list of rules in no particular order. Precedence is therefore
//! expressed by exceptions: the rule of a source excludes sources with their own intention, and a
//! permission excludes requests that an earlier one decides with the other action.
//!
//! A request that matches an intention or permission with action allow, but lacks the required token,
//! is denied. No later permission and no default allows it.

use std::sync::Arc;

use legate_model::{
    HttpPermission, Intention, IntentionAction as Action, IntentionPermission, JwtRequirement,
    ServiceName, WILDCARD,
};

use crate::order::{covers, deciding, is_wide};

/// The layer of the filter that enforces the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Connections. Intentions with permissions, or with required tokens, deny all connections.
    L4,
    /// Requests.
    L7,
}

/// The rules for one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Action for traffic that a rule matches: the opposite of the default, which applies to all
    /// other traffic. `Allow` without rules therefore denies everything.
    pub filter_action: Action,
    /// The rules, the most specific first. They do not overlap where one excludes the other.
    pub rules: Vec<Rule>,
}

/// Selects traffic that the filter's action applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The callers.
    pub source: SourceMatch,
    /// Condition on the intention's token.
    pub token: Token,
    /// Condition on the request.
    pub permissions: Permissions,
}

/// Condition on a request's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// No condition.
    Any,
    /// The request has a token that meets the requirement.
    Valid(JwtRequirement),
    /// The request has no token that meets the requirement.
    Invalid(JwtRequirement),
}

/// A set of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceMatch {
    /// The peer whose services they are, by its local name; `None` means this cluster.
    pub peer: Option<Arc<str>>,
    /// The partition; for a peer that which is peered here.
    pub partition: Arc<str>,
    /// The namespace; `None` means all of the partition.
    pub namespace: Option<Arc<str>>,
    /// The service; `None` means all of the namespace.
    pub name: Option<Arc<str>>,
    /// Excluded callers.
    pub except: Vec<SourceMatch>,
}

/// A set of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permissions {
    /// Every request, and every connection.
    All,
    /// Requests that match any of these rules; never empty.
    List(Vec<PermissionRule>),
}

/// Requests that match one permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRule {
    /// The permission's conditions.
    pub shape: Shape,
    /// Condition on the permission's token.
    pub token: Token,
    /// Excluded shapes, because an earlier permission decides them.
    pub except: Vec<Shape>,
}

/// Conditions of a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The conditions.
    pub http: HttpPermission,
    /// Whether the permission denies. If so, an absent header satisfies an inverted condition on its
    /// value, so that omitting the header does not bypass the denial. If the permission allows, it
    /// does not. These are the semantics of Envoy and Consul.
    pub refused: bool,
}

impl SourceMatch {
    fn new(source: &ServiceName) -> Self {
        let exact = |name: &Arc<str>| Some(name.clone()).filter(|name| **name != *WILDCARD);
        let peer = Some(source.tenancy.peer.clone());
        SourceMatch {
            peer: peer.filter(|peer| !peer.is_empty()),
            partition: source.tenancy.partition.clone(),
            namespace: exact(&source.tenancy.namespace),
            name: exact(&source.name),
            except: Vec::new(),
        }
    }
}

/// Rules for the intentions of one destination, in any order.
///
/// `default` applies to sources without an intention, and to requests that match none of an
/// intention's permissions.
pub fn policy(intentions: &[Arc<Intention>], default: Action, layer: Layer) -> Policy {
    let mut rules = Vec::new();
    let mut earlier: Vec<ServiceName> = Vec::new();
    for (named, intention) in deciding(intentions) {
        let mut source = SourceMatch::new(&named);
        if is_wide(&named) {
            let own = earlier.iter().filter(|other| covers(&named, other));
            source.except = own.map(SourceMatch::new).collect();
        }
        earlier.push(named);
        rules.extend(of_intention(&intention, &source, default, layer));
    }
    Policy {
        filter_action: match default {
            Action::Deny => Action::Allow,
            Action::Allow => Action::Deny,
        },
        rules,
    }
}

/// The rules of one intention; empty if the default has the same effect.
fn of_intention(
    intention: &Intention,
    source: &SourceMatch,
    default: Action,
    layer: Layer,
) -> Vec<Rule> {
    let rule = |token, permissions| Rule {
        source: source.clone(),
        token,
        permissions,
    };
    let jwt = intention.jwt.as_ref();
    let is_for_requests = intention.action.is_none() || jwt.is_some();
    let action = match intention.action {
        Some(Action::Deny) => Some(Action::Deny),
        _ if is_for_requests && layer == Layer::L4 => Some(Action::Deny),
        action => action,
    };
    match (action, jwt, default) {
        (Some(Action::Allow), Some(jwt), Action::Deny) => {
            vec![rule(Token::Valid(jwt.clone()), Permissions::All)]
        }
        (Some(Action::Allow), Some(jwt), Action::Allow) => {
            vec![rule(Token::Invalid(jwt.clone()), Permissions::All)]
        }
        (Some(action), ..) if action == default => Vec::new(),
        (Some(_), ..) => vec![rule(Token::Any, Permissions::All)],
        (None, jwt, Action::Deny) => {
            let token = jwt.map_or(Token::Any, |jwt| Token::Valid(jwt.clone()));
            let list = permissions(&intention.permissions, default);
            list.map(|list| rule(token, list)).into_iter().collect()
        }
        (None, jwt, Action::Allow) => {
            let without = jwt.map(|jwt| rule(Token::Invalid(jwt.clone()), Permissions::All));
            let list = permissions(&intention.permissions, default);
            let list = list.map(|list| rule(Token::Any, list));
            without.into_iter().chain(list).collect()
        }
    }
}

/// The permissions that differ from the default, each without the requests that earlier ones decide.
/// `None` if there are none, so that only the default applies.
fn permissions(list: &[IntentionPermission], default: Action) -> Option<Permissions> {
    let mut rules = Vec::new();
    let mut decided = Vec::new();
    for permission in list {
        let jwt = match permission.action {
            Action::Allow => permission.jwt.as_ref(),
            Action::Deny => None,
        };
        let shape = Shape {
            http: permission.http.clone(),
            refused: permission.action == Action::Deny,
        };
        let token = match (permission.action, jwt, default) {
            (action, None, default) if action == default => None,
            (_, None, _) => Some(Token::Any),
            (_, Some(jwt), Action::Deny) => Some(Token::Valid(jwt.clone())),
            (_, Some(jwt), Action::Allow) => Some(Token::Invalid(jwt.clone())),
        };
        rules.extend(token.map(|token| PermissionRule {
            shape: shape.clone(),
            token,
            except: decided.clone(),
        }));
        // Traffic that the filter's rules match needs no exception, since one match is sufficient.
        // With a token, the rule does not match all requests of the shape, and later rules must not
        // match the rest.
        if permission.action == default || jwt.is_some() {
            decided.push(shape);
        }
    }
    (!rules.is_empty()).then_some(Permissions::List(rules))
}
