//! All intentions of a destination as rules for an access filter.
//!
//! A filter knows one action and a list of rules, any of which may match first. So precedence is
//! turned into exceptions: a rule for every source leaves out the sources that have their own
//! intention, and a permission leaves out the requests that an earlier one decides the other way.

use std::sync::Arc;

use legate_model::{HttpPermission, Intention, IntentionPermission, WILDCARD};

use crate::{Action, deciding};

/// What the filter that enforces the rules can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Connections. An intention with permissions refuses all of them.
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
    /// What is asked for.
    pub permissions: Permissions,
}

/// A set of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceMatch {
    /// The service; `None` is every service of the mesh.
    pub name: Option<String>,
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
    pub http: HttpPermission,
    /// Shapes that are left out because an earlier permission decides them the other way.
    pub except: Vec<HttpPermission>,
}

impl SourceMatch {
    fn new(name: &str) -> Self {
        SourceMatch {
            name: (name != WILDCARD).then(|| name.to_owned()),
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
    let mut earlier: Vec<SourceMatch> = Vec::new();
    for intention in deciding(intentions) {
        let mut source = SourceMatch::new(&intention.source_name);
        let own = source.clone();
        if source.name.is_none() {
            source.except.clone_from(&earlier);
        }
        earlier.push(own);
        let permissions = match intention.action {
            Some(action) => (action != default).then_some(Permissions::All),
            None if layer == Layer::L4 => (Action::Deny != default).then_some(Permissions::All),
            None => permissions(&intention.permissions, default),
        };
        rules.extend(permissions.map(|permissions| Rule {
            source,
            permissions,
        }));
    }
    Policy {
        filter_action: match default {
            Action::Deny => Action::Allow,
            Action::Allow => Action::Deny,
        },
        rules,
    }
}

/// The permissions that differ from the default, each without what earlier ones decide as the
/// default does. `None` when no such permission is left: then the default holds throughout.
fn permissions(list: &[IntentionPermission], default: Action) -> Option<Permissions> {
    let mut rules = Vec::new();
    let mut defaulted = Vec::new();
    for permission in list {
        if permission.action == default {
            defaulted.push(permission.http.clone());
        } else {
            rules.push(PermissionRule {
                http: permission.http.clone(),
                except: defaulted.clone(),
            });
        }
    }
    (!rules.is_empty()).then_some(Permissions::List(rules))
}
