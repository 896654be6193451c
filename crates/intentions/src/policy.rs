//! All intentions of a destination as rules for an access filter.
//!
//! A filter knows one action and a list of rules, any of which may match first. So precedence is
//! turned into exceptions: a rule for every source leaves out the sources that have their own
//! intention, and a permission leaves out the requests that an earlier one decides the other way.
//!
//! What fits an intention or a permission that lets through, and lacks the token that it asks for,
//! is refused. No later permission and no default lets it through.

use std::sync::Arc;

use legate_model::{
    HttpPermission, Intention, IntentionAction as Action, IntentionPermission, JwtRequirement,
    ServiceName, WILDCARD,
};

use crate::order::{covers, deciding, is_wide};

/// What the filter that enforces the rules can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Connections. An intention with permissions refuses all of them, and so does one that asks for
    /// a token.
    L4,
    /// Requests.
    L7,
}

/// The rules for one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What happens to what a rule matches; the opposite of the default, which happens to the rest.
    /// So `Allow` without rules refuses everything.
    pub filter_action: Action,
    /// The rules, the more specific first. None matches what another one leaves out on purpose.
    pub rules: Vec<Rule>,
}

/// Which traffic the filter's action applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Who calls.
    pub source: SourceMatch,
    /// What has to be so with the token of the intention.
    pub token: Token,
    /// What is asked for.
    pub permissions: Permissions,
}

/// What a rule asks of a request's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// Nothing.
    Any,
    /// The request has one that meets the requirement.
    Valid(JwtRequirement),
    /// The request has none that meets the requirement.
    Invalid(JwtRequirement),
}

/// A set of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceMatch {
    /// The partition.
    pub partition: Arc<str>,
    /// The namespace; `None` is every one of the partition.
    pub namespace: Option<Arc<str>>,
    /// The service; `None` is every service of the namespace.
    pub name: Option<Arc<str>>,
    /// Those that are left out.
    pub except: Vec<SourceMatch>,
}

/// A set of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permissions {
    /// Every request, and every connection.
    All,
    /// Those that any of the rules matches; never empty.
    List(Vec<PermissionRule>),
}

/// Requests of one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRule {
    /// The shape.
    pub shape: Shape,
    /// What has to be so with the token of the permission.
    pub token: Token,
    /// Shapes that are left out because an earlier permission decides them.
    pub except: Vec<Shape>,
}

/// The shape of a permission's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The conditions.
    pub http: HttpPermission,
    /// Whether the permission refuses them. Then a header that is absent meets an inverted condition
    /// on its value, so that leaving it out is no way around the refusal. Where the permission lets
    /// requests through, it does not: Envoy's rule, and Consul's.
    pub refused: bool,
}

impl SourceMatch {
    fn new(source: &ServiceName) -> Self {
        let exact = |name: &Arc<str>| Some(name.clone()).filter(|name| **name != *WILDCARD);
        SourceMatch {
            partition: source.tenancy.partition.clone(),
            namespace: exact(&source.tenancy.namespace),
            name: exact(&source.name),
            except: Vec::new(),
        }
    }
}

/// The rules for the intentions of one destination, in any order.
///
/// `default` decides about sources without an intention, and about requests that none of an
/// intention's permissions fits.
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

/// The rules of one intention; none where the default says the same.
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

/// The permissions that differ from the default, each without what earlier ones decide. `None` when
/// no such permission is left: then the default holds throughout.
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
        // What the filter's rules match needs no exception: one match decides. With a token, some
        // requests of the shape are not matched, and later rules must not match them either.
        if permission.action == default || jwt.is_some() {
            decided.push(shape);
        }
    }
    (!rules.is_empty()).then_some(Permissions::List(rules))
}
