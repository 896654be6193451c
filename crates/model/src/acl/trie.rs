//! Prefix trie of the rules about one resource's names.

use patricia_tree::PatriciaMap;

use crate::acl::resource::Access;

/// Rules at one node of the trie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Leaf {
    /// Rule for this exact name.
    exact: Option<Access>,
    /// Rule for names with this prefix.
    prefix: Option<Access>,
}

impl Leaf {
    fn rules(self) -> impl Iterator<Item = Access> {
        self.prefix.into_iter().chain(self.exact)
    }
}

/// The rules about one resource's names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trie(PatriciaMap<Leaf>);

impl PartialEq for Trie {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for Trie {}

impl Trie {
    /// Adds a rule. Of two rules for the same names, the one with precedence is retained.
    pub(crate) fn add(&mut self, name: &str, prefix: bool, access: Access) {
        let mut leaf = self.0.get(name).copied().unwrap_or_default();
        let rule = match prefix {
            true => &mut leaf.prefix,
            false => &mut leaf.exact,
        };
        *rule = (*rule).max(Some(access));
        self.0.insert(name, leaf);
    }

    /// The rule for a name: an exact match, otherwise the longest prefix.
    pub(crate) fn rule(&self, name: &str) -> Option<Access> {
        if let Some(exact) = self.0.get(name).and_then(|leaf| leaf.exact) {
            return Some(exact);
        }
        self.longest_prefix(name)
    }

    /// The rule for the longest matching prefix.
    fn longest_prefix(&self, name: &str) -> Option<Access> {
        let above = self.0.common_prefix_values(name.as_bytes());
        above.filter_map(|leaf| leaf.prefix).last()
    }

    /// Whether some name is permitted: true if any rule permits it, otherwise false if a rule applies
    /// to all names. `None` if undecided.
    pub(crate) fn any(&self, wanted: Access) -> Option<bool> {
        if self.rules().any(|rule| rule.permits(wanted)) {
            return Some(true);
        }
        self.of_all().map(|_| false)
    }

    /// Whether every name is permitted: false if any rule denies one, otherwise true if a rule applies
    /// to all names. `None` if undecided.
    pub(crate) fn all(&self, wanted: Access) -> Option<bool> {
        if self.rules().any(|rule| !rule.permits(wanted)) {
            return Some(false);
        }
        self.of_all().map(|_| true)
    }

    /// Whether every name with a prefix is permitted.
    pub(crate) fn below(&self, prefix: &str, wanted: Access) -> Option<bool> {
        let above = self.longest_prefix(prefix);
        let mut below = self.0.iter_prefix(prefix.as_bytes());
        if below.any(|(_, leaf)| leaf.rules().any(|rule| !rule.permits(wanted))) {
            return Some(false);
        }
        above.map(|rule| rule.permits(wanted))
    }

    /// The rule for all names.
    fn of_all(&self) -> Option<Access> {
        self.0.get("").and_then(|leaf| leaf.prefix)
    }

    fn rules(&self) -> impl Iterator<Item = Access> {
        self.0.values().flat_map(|leaf| leaf.rules())
    }
}
