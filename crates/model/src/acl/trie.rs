//! The rules about names of one resource, found by name: a prefix trie.

use patricia_tree::PatriciaMap;

use crate::acl::resource::Access;

/// The rules that end at one place of the trie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Leaf {
    /// About this name.
    exact: Option<Access>,
    /// About all names that start with this one.
    prefix: Option<Access>,
}

impl Leaf {
    fn rules(self) -> impl Iterator<Item = Access> {
        self.prefix.into_iter().chain(self.exact)
    }
}

/// The rules about names of one resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trie(PatriciaMap<Leaf>);

impl PartialEq for Trie {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for Trie {}

impl Trie {
    /// Adds a rule. Of two about the same names the one that takes precedence stays.
    pub(crate) fn add(&mut self, name: &str, prefix: bool, access: Access) {
        let mut leaf = self.0.get(name).copied().unwrap_or_default();
        let rule = match prefix {
            true => &mut leaf.prefix,
            false => &mut leaf.exact,
        };
        *rule = (*rule).max(Some(access));
        self.0.insert(name, leaf);
    }

    /// The rule that decides about a name: the one about just this name, else the one about the
    /// longest prefix.
    pub(crate) fn rule(&self, name: &str) -> Option<Access> {
        if let Some(exact) = self.0.get(name).and_then(|leaf| leaf.exact) {
            return Some(exact);
        }
        self.longest_prefix(name)
    }

    /// The rule about the longest prefix of a name.
    fn longest_prefix(&self, name: &str) -> Option<Access> {
        let above = self.0.common_prefix_values(name.as_bytes());
        above.filter_map(|leaf| leaf.prefix).last()
    }

    /// Whether some name is permitted: one rule that permits is enough. Without, the rule about all
    /// names decides.
    pub(crate) fn any(&self, wanted: Access) -> Option<bool> {
        if self.rules().any(|rule| rule.permits(wanted)) {
            return Some(true);
        }
        self.of_all().map(|_| false)
    }

    /// Whether every name is permitted: one rule that denies is enough against it. Without, the rule
    /// about all names decides.
    pub(crate) fn all(&self, wanted: Access) -> Option<bool> {
        if self.rules().any(|rule| !rule.permits(wanted)) {
            return Some(false);
        }
        self.of_all().map(|_| true)
    }

    /// Whether every name that starts with a prefix is permitted.
    pub(crate) fn below(&self, prefix: &str, wanted: Access) -> Option<bool> {
        let above = self.longest_prefix(prefix);
        let mut below = self.0.iter_prefix(prefix.as_bytes());
        if below.any(|(_, leaf)| leaf.rules().any(|rule| !rule.permits(wanted))) {
            return Some(false);
        }
        above.map(|rule| rule.permits(wanted))
    }

    /// The rule about all names.
    fn of_all(&self) -> Option<Access> {
        self.0.get("").and_then(|leaf| leaf.prefix)
    }

    fn rules(&self) -> impl Iterator<Item = Access> {
        self.0.values().flat_map(|leaf| leaf.rules())
    }
}
