//! Everything that one source may call.

use std::collections::HashMap;

use legate_model::{ServiceIntentions, SourceIntention, WILDCARD};

use crate::Action;

/// What intentions say about one source, whatever the destination.
///
/// An intention with permissions counts as leave: which requests it allows decides the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Where no intention is for the destination by its name.
    any: bool,
    /// By the destination's name in lower case.
    named: HashMap<String, bool>,
}

impl Reach {
    /// What `entries`, in any order, say about `source`. `default` decides where none does.
    pub fn new<'a>(
        entries: impl IntoIterator<Item = &'a ServiceIntentions>,
        source: &str,
        default: Action,
    ) -> Self {
        let mut reach = Self {
            any: default == Action::Allow,
            named: HashMap::new(),
        };
        for entry in entries {
            let Some(allowed) = decision(&entry.sources, source) else {
                continue;
            };
            if entry.name == WILDCARD {
                reach.any = allowed;
            } else {
                reach.named.insert(entry.name.to_lowercase(), allowed);
            }
        }
        reach
    }

    /// Whether the source may connect to a destination, or ask it for something.
    pub fn allows(&self, destination: &str) -> bool {
        let named = self.named.get(&destination.to_lowercase());
        named.copied().unwrap_or(self.any)
    }
}

/// What the intentions of one destination say: the one for the source, else the one for all.
fn decision(sources: &[SourceIntention], source: &str) -> Option<bool> {
    let of = |name: &str| sources.iter().find(|one| one.name == name);
    let decides = of(source).or_else(|| of(WILDCARD))?;
    Some(decides.action != Some(Action::Deny))
}
