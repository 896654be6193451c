//! Everything that one source may call.

use std::collections::HashMap;

use legate_model::{
    IntentionAction as Action, ServiceIntentions, ServiceName, SourceIntention, Tenancy, WILDCARD,
};

use crate::order::covers;

/// What intentions say about one source, whatever the destination.
///
/// An intention with permissions counts as leave: which requests it allows decides the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Where no intention is for the destination.
    default: bool,
    /// By the destination's tenancy, and its name in lower case or `*`. What is for every namespace of a
    /// partition is in the namespace `*`.
    named: HashMap<Tenancy, HashMap<String, bool>>,
}

impl Reach {
    /// What `entries`, in any order, say about `source`. `default` decides where none does.
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

    /// Whether the source may connect to a destination, or ask it for something.
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

/// What the intentions of one destination say: of those that are for the source, the one for the fewest.
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
