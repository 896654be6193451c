//! All destinations that one source may call.

use std::collections::HashMap;

use legate_model::{
    IntentionAction as Action, ServiceIntentions, ServiceName, SourceIntention, Tenancy, WILDCARD,
};

use crate::order::covers;

/// The decisions of intentions about one source, for any destination.
///
/// An intention with permissions counts as allowed: the destination decides about single requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Decision for destinations without a matching intention.
    default: bool,
    /// Decisions by the destination's tenancy and its name in lower case or `*`. Decisions for every
    /// namespace of a partition are stored under the namespace `*`.
    named: HashMap<Tenancy, HashMap<String, bool>>,
}

impl Reach {
    /// Evaluates `entries`, in any order, for `source`. `default` applies without a match.
    pub fn new<'a>(
        entries: impl IntoIterator<Item = &'a ServiceIntentions>,
        source: &ServiceName,
        default: Action,
    ) -> Self {
        let mut reach = Self {
            default: default == Action::Allow,
            named: HashMap::new(),
        };
        for entry in entries {
            let destination = entry.destination();
            if let Some(allowed) = decision(&entry.sources, source, &destination.tenancy) {
                let names = reach.named.entry(destination.tenancy).or_default();
                names.insert(destination.name.to_lowercase(), allowed);
            }
        }
        reach
    }

    /// Whether the source may connect to a destination, or send it some requests.
    pub fn allows(&self, destination: &ServiceName) -> bool {
        let ServiceName { tenancy, name } = destination;
        let every = || {
            let every = Tenancy {
                namespace: WILDCARD.into(),
                ..tenancy.clone()
            };
            self.named.get(&every)?.get(WILDCARD)
        };
        let of_namespace = self.named.get(tenancy);
        let exact = of_namespace.and_then(|names| names.get(&name.to_lowercase()));
        let any = || of_namespace.and_then(|names| names.get(WILDCARD));
        let decided = exact.or_else(any).or_else(every);
        decided.copied().unwrap_or(self.default)
    }
}

/// The decision of one destination's entry: that of the most specific matching source.
fn decision(sources: &[SourceIntention], source: &ServiceName, own: &Tenancy) -> Option<bool> {
    let alike = sources
        .iter()
        .filter(|one| one.name == WILDCARD || *one.name == *source.name);
    let named = alike.map(|one| (one, one.service(own)));
    let fitting = named.filter(|(_, name)| covers(name, source));
    let every = |name: &ServiceName| {
        let parts = name.exact().into_iter();
        parts.filter(|part| *part == WILDCARD).count()
    };
    let (decides, _) = fitting.min_by_key(|(_, name)| every(name))?;
    Some(decides.action != Some(Action::Deny))
}
