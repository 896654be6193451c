//! Decides by the identity of the other side, as Envoy's network RBAC filter does.
//!
//! It never uses a regular expression engine: the expressions that servers send have a shape of their own, and an
//! expression of another shape is not served. It looks at the URIs of a certificate only. Envoy compares DNS names and
//! the subject as well; a pattern begins with `spiffe://`, so no honest certificate has one there that matches.

use std::collections::BTreeMap;

use crate::model::{Chain, Filter};

/// The rules of a filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// What happens to a connection that a policy matches; the opposite happens to all others.
    pub action: Action,
    /// The policies by name. Each permits every destination.
    pub policies: BTreeMap<String, Vec<Principal>>,
}

/// What happens to a connection that a policy matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is allowed.
    Allow,
    /// It is denied.
    Deny,
}

/// Whom a policy matches.
#[derive(Debug, Clone, PartialEq)]
pub enum Principal {
    /// Everybody, also without TLS.
    Any,
    /// Whom all of them match.
    All(Vec<Principal>),
    /// Whom one of them matches.
    OneOf(Vec<Principal>),
    /// Whom it does not match.
    Not(Box<Principal>),
    /// Peers with a certificate that has a URI of this pattern.
    Uri(Pattern),
}

/// The other side of a connection with TLS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Peer {
    /// The URIs in its verified certificate. Empty if it has presented none.
    pub uris: Vec<String>,
}

impl Rules {
    /// Whether a peer may connect, and the policy that matched, the first by name. `None` is a connection without TLS:
    /// no pattern matches it.
    ///
    /// Without policies, [`Action::Allow`] allows nobody, and [`Action::Deny`] everybody.
    pub fn allows(&self, peer: Option<&Peer>) -> (bool, Option<&str>) {
        let mut policies = self.policies.iter();
        let policy = policies.find(|(_, principals)| one_of(principals, peer));
        let allowed = policy.is_some() == (self.action == Action::Allow);
        (allowed, policy.map(|(name, _)| name.as_str()))
    }
}

impl Principal {
    fn matches(&self, peer: Option<&Peer>) -> bool {
        match self {
            Self::Any => true,
            Self::All(all) => all.iter().all(|one| one.matches(peer)),
            Self::OneOf(all) => one_of(all, peer),
            Self::Not(other) => !other.matches(peer),
            Self::Uri(pattern) => {
                peer.is_some_and(|peer| peer.uris.iter().any(|uri| pattern.matches(uri)))
            }
        }
    }
}

fn one_of(principals: &[Principal], peer: Option<&Peer>) -> bool {
    principals.iter().any(|one| one.matches(peer))
}

/// What the filters of a chain decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// Whether the connection may continue.
    pub allowed: bool,
    /// The index in [`Chain::filters`] of the filter that has decided: that denied it, or the last RBAC filter.
    pub filter: Option<usize>,
    /// The policy that matched in that filter.
    pub policy: Option<&'a str>,
}

/// Asks the RBAC filters of a chain in order; each has to allow. A chain without such filters allows everybody.
pub fn authorize<'a>(chain: &'a Chain, peer: Option<&Peer>) -> Verdict<'a> {
    let mut verdict = Verdict {
        allowed: true,
        filter: None,
        policy: None,
    };
    for (index, filter) in chain.filters.iter().enumerate() {
        let Filter::Rbac(rbac) = filter else {
            continue;
        };
        let rules = rbac.rules.as_ref();
        let (allowed, policy) = rules.map_or((true, None), |rules| rules.allows(peer));
        verdict = Verdict {
            allowed,
            filter: Some(index),
            policy,
        };
        if !allowed {
            break;
        }
    }
    verdict
}

/// What every pattern begins with.
const SCHEME: &str = "spiffe://";
/// The longest expression: a group of 10,000 trust domains fits.
const MAX_EXPRESSION: usize = 1 << 20;
/// How deep groups may be nested.
const MAX_DEPTH: usize = 8;

/// A pattern of URIs: texts, and parts of any text. Parsed from a regular expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// What follows [`SCHEME`].
    atoms: Vec<Atom>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Atom {
    /// This text.
    Text(String),
    /// Any one character but a line feed (`.`); Consul does not escape the dots of a trust domain.
    Character,
    /// One character or more, none of which is a slash (`[^/]+`).
    Segment,
    /// Any text without a line feed (`.*`).
    Anything,
    /// One of these (`(?:a|b)`).
    OneOf(Vec<Vec<Atom>>),
}

impl Pattern {
    /// A regular expression of a shape that servers send; `None` for another.
    ///
    /// It begins with `^` and the literal `spiffe://`, and ends with `$`; both anchors may be missing, because the
    /// whole URI is compared. Between them are literals (a backslash escapes ASCII punctuation), `.`, `[^/]+`, `.*`,
    /// and groups of alternatives.
    pub fn parse(regex: &str) -> Option<Self> {
        if regex.len() > MAX_EXPRESSION {
            return None;
        }
        let regex = regex.strip_prefix('^').unwrap_or(regex);
        let mut parser = Parser { rest: regex };
        let mut alternatives = parser.alternatives(0)?;
        if !matches!(parser.rest, "" | "$") || alternatives.len() != 1 {
            return None;
        }
        let mut atoms = alternatives.pop()?;
        let Some(Atom::Text(first)) = atoms.first_mut() else {
            return None;
        };
        *first = first.strip_prefix(SCHEME)?.to_owned();
        Some(Self { atoms })
    }

    /// Whether the whole of a URI matches.
    pub fn matches(&self, uri: &str) -> bool {
        uri.strip_prefix(SCHEME).is_some_and(|rest| {
            let ends = ends(&self.atoms, rest, vec![0]);
            ends.last() == Some(&rest.len())
        })
    }
}

/// Where a match of some atoms may end that begins at one of these offsets. Offsets are in order and come once.
fn ends(atoms: &[Atom], text: &str, starts: Vec<usize>) -> Vec<usize> {
    let mut at = starts;
    for atom in atoms {
        if at.is_empty() {
            break;
        }
        at = step(atom, text, at);
    }
    at
}

fn step(atom: &Atom, text: &str, mut starts: Vec<usize>) -> Vec<usize> {
    let rest = |start: usize| text.get(start..).unwrap_or_default();
    match atom {
        Atom::Text(expected) => {
            starts.retain(|start| rest(*start).starts_with(expected.as_str()));
            for start in &mut starts {
                *start += expected.len();
            }
            starts
        }
        Atom::Character => {
            let next = |start: usize| {
                let character = rest(start).chars().next().filter(|c| *c != '\n')?;
                Some(start + character.len_utf8())
            };
            starts.into_iter().filter_map(next).collect()
        }
        Atom::Segment => spread(text, &starts, '/', 1),
        Atom::Anything => spread(text, &starts, '\n', 0),
        Atom::OneOf(alternatives) => {
            let mut all = Vec::new();
            for atoms in alternatives {
                // Most groups are of texts, and most texts do not match.
                if let Some(Atom::Text(text)) = atoms.first()
                    && !starts
                        .iter()
                        .any(|start| rest(*start).starts_with(text.as_str()))
                {
                    continue;
                }
                all.extend(ends(atoms, text, starts.clone()));
            }
            all.sort_unstable();
            all.dedup();
            all
        }
    }
}

/// The offsets that are at least so many characters behind a start, with none of these characters in between.
fn spread(text: &str, starts: &[usize], until: char, least: usize) -> Vec<usize> {
    let mut all = Vec::new();
    // The end of the last run: its offsets are there already.
    let mut known = None;
    for start in starts {
        if known.is_some_and(|known| *start <= known) {
            continue;
        }
        let Some(rest) = text.get(*start..) else {
            continue;
        };
        let end = start + rest.find(until).unwrap_or(rest.len());
        let offsets = rest.char_indices().map(|(offset, _)| start + offset);
        let offsets = offsets.chain([text.len()]).skip(least);
        all.extend(offsets.take_while(|offset| *offset <= end));
        known = Some(end);
    }
    all
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    /// Alternatives up to the end of the group, or of the expression.
    fn alternatives(&mut self, depth: usize) -> Option<Vec<Vec<Atom>>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut all = vec![Vec::new()];
        while let Some(next) = self.rest.chars().next() {
            let atoms = all.last_mut()?;
            match next {
                ')' | '$' => break,
                '|' => {
                    self.skip("|");
                    all.push(Vec::new());
                }
                '(' => {
                    let _ = self.skip("(?:") || self.skip("(");
                    let group = self.alternatives(depth + 1)?;
                    if !self.skip(")") {
                        return None;
                    }
                    atoms.push(Atom::OneOf(group));
                }
                '[' if self.skip("[^/]+") => atoms.push(Atom::Segment),
                '.' if self.skip(".*") => atoms.push(Atom::Anything),
                '.' if self.skip(".") => atoms.push(Atom::Character),
                _ => {
                    let character = self.literal()?;
                    match atoms.last_mut() {
                        Some(Atom::Text(text)) => text.push(character),
                        _ => atoms.push(Atom::Text(character.into())),
                    }
                }
            }
        }
        Some(all)
    }

    fn literal(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let mut character = characters.next()?;
        match character {
            '\\' => {
                character = characters.next()?;
                if !character.is_ascii_punctuation() {
                    return None;
                }
            }
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                return None;
            }
            _ => {}
        }
        self.rest = characters.as_str();
        Some(character)
    }

    fn skip(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::model::{ChainMatch, Rbac, TcpProxy};

    /// The verdict of a regular expression engine on the whole text.
    fn engine(pattern: &str, text: &str) -> bool {
        Regex::new(&format!("^(?:{pattern})$"))
            .unwrap()
            .is_match(text)
    }

    fn pattern(regex: &str) -> Pattern {
        Pattern::parse(regex).unwrap()
    }

    fn peer(uri: &str) -> Peer {
        Peer {
            uris: vec![uri.to_owned()],
        }
    }

    #[test]
    fn reads_what_servers_write() {
        let id = "spiffe://c1.consul/ns/default/dc/dc1/svc/web";
        for (regex, matches) in [
            (r"^spiffe://c1\.consul/ns/default/dc/[^/]+/svc/web$", true),
            (r"^spiffe://c1.consul/ns/default/dc/[^/]+/svc/web$", true),
            (r"^spiffe://c1\.consul/ns/default/dc/[^/]+/svc/we$", false),
            (r"^spiffe://c1\.consul/ns/[^/]+/dc/[^/]+/svc/[^/]+$", true),
            (
                r"^spiffe://c1\.consul/ap/shop/ns/team/dc/[^/]+/svc/[^/]+$",
                false,
            ),
            (r"^spiffe://c1\.consul/gateway/mesh/dc/[^/]+$", false),
            (r"^spiffe://(?:c1\.consul|c2\.consul)/.*$", true),
            (r"^spiffe://(?:c2\.consul)/.*$", false),
            (r"^spiffe://[^/]+/ns/default/dc/[^/]+/svc/[^/]+$", true),
            (
                r"^spiffe://[^/]+.[^/]+/ns/default/dc/[^/]+/svc/[^/]+$",
                true,
            ),
        ] {
            assert_eq!(pattern(regex).matches(id), matches, "{regex}");
            assert_eq!(engine(regex, id), matches, "{regex}");
        }
    }

    #[test]
    fn refuses_other_shapes() {
        let deep = format!("^spiffe://{}a{}$", "(".repeat(9), ")".repeat(9));
        for regex in [
            "",
            "^$",
            ".*",
            "^https://a$",
            "^spiffe://a+$",
            "^spiffe://a*",
            "^spiffe://[^/]*$",
            "^spiffe://[^/]+?$",
            "^spiffe://.*?$",
            "^spiffe://.+$",
            "^spiffe://[a-z]+$",
            r"^spiffe://\d$",
            "^spiffe://a(?i)b$",
            "^spiffe://(?i:a)$",
            "^spiffe://(a",
            "^spiffe://a)$",
            "^spiffe://(a)?$",
            "^spiffe://a$b",
            "^spiffe://a|b$",
            "^spiffe://a{2}$",
            "(?:spiffe://a)",
            "^spiffe://a\\",
            &deep,
        ] {
            assert_eq!(Pattern::parse(regex), None, "{regex}");
        }
    }

    #[test]
    fn many_trust_domains_fit() {
        let domains: Vec<_> = (0..10_000).map(|n| format!(r"d{n}\.consul")).collect();
        let all = pattern(&format!("^spiffe://(?:{})/.*$", domains.join("|")));
        assert!(all.matches("spiffe://d9999.consul/ns/a"));
        assert!(!all.matches("spiffe://d10000.consul/ns/a"));
    }

    #[test]
    fn rules_without_policies() {
        let rules = |action| Rules {
            action,
            policies: BTreeMap::new(),
        };
        let peer = peer("spiffe://a/b");
        for peer in [None, Some(&peer)] {
            assert_eq!(rules(Action::Allow).allows(peer), (false, None));
            assert_eq!(rules(Action::Deny).allows(peer), (true, None));
        }
    }

    #[test]
    fn peers_without_identity_match_no_pattern() {
        let uri = Principal::Uri(pattern("^spiffe://.*$"));
        let matches = |principal: &Principal, peer: Option<&Peer>| principal.matches(peer);
        let nobody = Peer::default();
        for peer in [None, Some(&nobody)] {
            assert!(!matches(&uri, peer));
            assert!(matches(&Principal::Not(Box::new(uri.clone())), peer));
            assert!(matches(&Principal::Any, peer));
        }
        assert!(matches(&uri, Some(&peer("spiffe://a"))));
        // One of several is enough.
        let several = Peer {
            uris: vec!["https://a".to_owned(), "spiffe://a".to_owned()],
        };
        assert!(matches(&uri, Some(&several)));
    }

    #[test]
    fn every_filter_has_to_allow() {
        let filter = |action, policies: &[(&str, &str)]| {
            let policies = policies
                .iter()
                .map(|(name, regex)| ((*name).to_owned(), vec![Principal::Uri(pattern(regex))]));
            Filter::Rbac(Arc::new(Rbac {
                stat_prefix: String::new(),
                rules: Some(Rules {
                    action,
                    policies: policies.collect(),
                }),
            }))
        };
        let chain = Chain {
            name: String::new(),
            matches: Arc::new(ChainMatch::default()),
            tls: None,
            handshake_timeout: std::time::Duration::ZERO,
            filters: vec![
                Filter::SniCluster,
                filter(Action::Deny, &[("bad", "^spiffe://a/bad$")]),
                filter(
                    Action::Allow,
                    &[("all", "^spiffe://a/.*$"), ("b", "^spiffe://b/.*$")],
                ),
            ],
            tcp: TcpProxy {
                stat_prefix: String::new(),
                clusters: Vec::new(),
                max_connect_attempts: 1,
                idle_timeout: None,
                max_duration: None,
                access_logs: Vec::new(),
            },
        };
        let verdict = |uri: &str| {
            let peer = peer(uri);
            let verdict = authorize(&chain, Some(&peer));
            let policy = verdict.policy.map(str::to_owned);
            (verdict.allowed, verdict.filter, policy)
        };
        assert_eq!(
            verdict("spiffe://a/bad"),
            (false, Some(1), Some("bad".to_owned()))
        );
        assert_eq!(
            verdict("spiffe://a/good"),
            (true, Some(2), Some("all".to_owned()))
        );
        assert_eq!(
            verdict("spiffe://b/x"),
            (true, Some(2), Some("b".to_owned()))
        );
        assert_eq!(verdict("spiffe://c/x"), (false, Some(2), None));
        assert!(!authorize(&chain, None).allowed);
    }

    /// Expressions of the shape, nested.
    fn expressions() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            4 => "[a-c/]{1,3}",
            1 => Just(r"\.".to_owned()),
            1 => Just(r"\/".to_owned()),
            1 => Just(".".to_owned()),
            2 => Just("[^/]+".to_owned()),
            2 => Just(".*".to_owned()),
        ];
        let sequence = proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat());
        sequence.prop_recursive(3, 24, 4, |inner| {
            let group = (
                proptest::collection::vec(inner.clone(), 1..4),
                any::<bool>(),
            );
            let group = group.prop_map(|(all, named)| {
                let open = if named { "(" } else { "(?:" };
                format!("{open}{})", all.join("|"))
            });
            prop_oneof![
                group,
                proptest::collection::vec(inner, 0..3).prop_map(|all| all.concat()),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        /// The verdict is that of a regular expression engine.
        #[test]
        fn same_verdict_as_an_engine(
            expression in expressions(),
            texts in proptest::collection::vec("[abc./\né]{0,10}", 1..20),
        ) {
            let regex = format!("^spiffe://{expression}$");
            let pattern = Pattern::parse(&regex);
            prop_assert!(pattern.is_some(), "{regex}");
            let pattern = pattern.unwrap();
            let engine = Regex::new(&format!("^(?:spiffe://{expression})$")).unwrap();
            for text in texts {
                for text in [format!("spiffe://{text}"), text] {
                    prop_assert_eq!(pattern.matches(&text), engine.is_match(&text), "{} on {:?}", &regex, text);
                }
            }
        }

        /// Identities and patterns as they are written.
        #[test]
        fn same_verdict_on_identities(
            pattern_parts in proptest::array::uniform4("([a-c]|\\[\\^/\\]\\+)"),
            id_parts in proptest::array::uniform4("[a-c]{1,2}"),
            escape in any::<bool>(),
        ) {
            let dot = if escape { r"\." } else { "." };
            let [domain, namespace, datacenter, service] = &pattern_parts;
            let regex = format!("^spiffe://{domain}{dot}consul/ns/{namespace}/dc/{datacenter}/svc/{service}$");
            let [domain, namespace, datacenter, service] = &id_parts;
            let id = format!("spiffe://{domain}.consul/ns/{namespace}/dc/{datacenter}/svc/{service}");
            prop_assert_eq!(pattern(&regex).matches(&id), engine(&regex, &id), "{} on {}", &regex, &id);
        }

        /// Nothing panics, and what is accepted is what an engine takes.
        #[test]
        fn any_expression(expression in "[\\^$.|?*+()\\[\\]{}/a-c\\\\é-]{0,16}", text in "[a-c/.]{0,8}") {
            let regex = format!("^spiffe://{expression}");
            if let Some(pattern) = Pattern::parse(&regex) {
                let text = format!("spiffe://{text}");
                prop_assert_eq!(pattern.matches(&text), engine(&regex, &text), "{} on {}", &regex, &text);
            }
        }
    }
}
