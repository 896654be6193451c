//! Everything that one source may call.

use std::collections::HashMap;

use legate_model::{ServiceIntentions, ServiceName, SourceIntention, Tenancy, WILDCARD};

use crate::{Action, covers};

/// What intentions say about one source, whatever the destination.
///
/// An intention with permissions counts as leave: which requests it allows decides the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Where no intention is for the destination.
    default: bool,
    /// By the destination in lower case, or what stands for it.
    named: HashMap<ServiceName, bool>,
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
                let name = destination.name.to_lowercase();
                let destination = ServiceName::new(&destination.tenancy, &name);
                reach.named.insert(destination, allowed);
            }
        }
        reach
    }

    /// Whether the source may connect to a destination, or ask it for something.
    pub fn allows(&self, destination: &ServiceName) -> bool {
        let own = &destination.tenancy;
        let exact = ServiceName::new(own, &destination.name.to_lowercase());
        let every = Tenancy {
            namespace: WILDCARD.into(),
            ..own.clone()
        };
        let wider = [
            ServiceName::new(own, WILDCARD),
            ServiceName::new(&every, WILDCARD),
        ];
        let mut all = [exact].into_iter().chain(wider);
        let decided = all.find_map(|name| self.named.get(&name).copied());
        decided.unwrap_or(self.default)
    }
}

/// What the intentions of one destination say: of those that are for the source, the one for the fewest.
fn decision(sources: &[SourceIntention], source: &ServiceName, own: &Tenancy) -> Option<bool> {
    let named = sources.iter().map(|one| (one, one.service(own)));
    let fitting = named.filter(|(_, name)| covers(name, source));
    let every = |name: &ServiceName| {
        name.exact()
            .iter()
            .filter(|part| **part == WILDCARD)
            .count()
    };
    let (decides, _) = fitting.min_by_key(|(_, name)| every(name))?;
    Some(decides.action != Some(Action::Deny))
}
