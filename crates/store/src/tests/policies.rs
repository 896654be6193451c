//! Policies, roles and the links to them: examples, and sequences of random changes compared with a
//! naive model.

use std::collections::BTreeMap;

use legate_model::Secret;
use legate_model::acl::{
    GLOBAL_MANAGEMENT, GLOBAL_MANAGEMENT_ID, Policy, PolicyLink, Role, RoleLink, Token,
};
use proptest::prelude::*;

use super::{apply, attempt, refuse, watch, woken};
use crate::{Command, ReadTxn, Rejected, State, Store, TokenKey};

fn policy(id: &str, name: &str, rules: &str) -> Command {
    Command::UpsertPolicy(Box::new(Policy {
        id: id.to_owned(),
        name: name.to_owned(),
        rules: rules.to_owned(),
        ..Policy::default()
    }))
}

fn policy_link(id: &str, name: &str) -> PolicyLink {
    let (id, name) = (id.to_owned(), name.to_owned());
    PolicyLink { id, name }
}

fn role_link(id: &str, name: &str) -> RoleLink {
    let (id, name) = (id.to_owned(), name.to_owned());
    RoleLink { id, name }
}

fn role(id: &str, name: &str, policies: Vec<PolicyLink>) -> Command {
    Command::UpsertRole(Box::new(Role {
        id: id.to_owned(),
        name: name.to_owned(),
        policies,
        ..Role::default()
    }))
}

fn token(id: &str, policies: Vec<PolicyLink>, roles: Vec<RoleLink>) -> Command {
    Command::UpsertToken(Box::new(Token {
        accessor_id: id.to_owned(),
        secret_id: Secret::new(format!("secret-{id}")),
        policies,
        roles,
        ..Token::default()
    }))
}

#[test]
fn builtin_policies_need_no_row() {
    let store = Store::new();
    let state = store.state();
    let names: Vec<String> = state
        .read()
        .policies()
        .iter()
        .map(|p| p.name.clone())
        .collect();
    assert_eq!(names, [GLOBAL_MANAGEMENT, "builtin/global-read-only"]);
    assert_eq!(
        state.read().policy_by_name("Global-Management").unwrap().id,
        GLOBAL_MANAGEMENT_ID
    );
    let mut watched = watch(&store, |txn| txn.policy_by_name(GLOBAL_MANAGEMENT));
    let rules = state
        .read()
        .policy(GLOBAL_MANAGEMENT_ID)
        .unwrap()
        .rules
        .clone();
    apply(&store, policy(GLOBAL_MANAGEMENT_ID, "admins", &rules));
    assert!(woken(&mut watched));
    let state = store.state();
    assert!(state.read().policy_by_name(GLOBAL_MANAGEMENT).is_none());
    assert_eq!(
        state.read().policy_by_name("admins").unwrap().id,
        GLOBAL_MANAGEMENT_ID
    );
    assert_eq!(state.read().policies().len(), 2);
    // The name is free now.
    apply(&store, policy("p", GLOBAL_MANAGEMENT, ""));
}

#[test]
fn a_name_belongs_to_one() {
    let store = Store::new();
    apply(&store, policy("p", "web", ""));
    let taken = refuse(&store, policy("q", "WEB", ""));
    assert_eq!(
        taken.to_string(),
        "Invalid Policy: A Policy with Name \"WEB\" already exists"
    );
    let taken = refuse(&store, policy("q", "builtin/global-read-only", ""));
    assert!(matches!(taken, Rejected::NameTaken { .. }));
    apply(&store, role("r", "ops", Vec::new()));
    let taken = refuse(&store, role("s", "ops", Vec::new()));
    assert_eq!(
        taken.to_string(),
        "Invalid Role: A Role with Name \"ops\" already exists"
    );
    assert!(!apply(&store, policy("p", "web", "")).changed);
    assert!(!apply(&store, role("r", "ops", Vec::new())).changed);
}

#[test]
fn links_follow_renames_and_removals() {
    let store = Store::new();
    apply(&store, policy("p", "web", ""));
    apply(
        &store,
        role(
            "r",
            "ops",
            vec![policy_link("", "web"), policy_link("p", "")],
        ),
    );
    let linked = token(
        "t",
        vec![policy_link("", "web")],
        vec![role_link("", "ops")],
    );
    apply(&store, linked);
    let shown = |txn: &ReadTxn<'_>| {
        let token = txn.token_by_accessor("t").unwrap();
        txn.shown_token(&token)
    };
    let mut watched = watch(&store, shown);
    apply(&store, policy("p", "api", ""));
    assert!(woken(&mut watched));
    let now = || shown(&store.state().read());
    assert_eq!(now().policies, [policy_link("p", "api")]);
    assert_eq!(now().roles, [role_link("r", "ops")]);
    let mut watched = watch(&store, shown);
    let id = || "p".to_owned();
    apply(&store, Command::DeletePolicy { id: id() });
    assert!(woken(&mut watched));
    assert_eq!(now().policies, []);
    apply(&store, Command::DeleteRole { id: "r".to_owned() });
    assert_eq!(now().roles, []);
    assert!(!apply(&store, Command::DeletePolicy { id: id() }).changed);

    let missing = refuse(&store, token("u", vec![policy_link("", "web")], Vec::new()));
    assert_eq!(missing.to_string(), "No such ACL policy with name \"web\"");
    let missing = refuse(&store, token("u", Vec::new(), vec![role_link("x", "")]));
    assert_eq!(missing.to_string(), "No such ACL role with ID \"x\"");
}

const IDS: [&str; 3] = ["1", "2", "3"];
const NAMES: [&str; 3] = ["a", "b", GLOBAL_MANAGEMENT];

#[derive(Debug, Clone)]
enum Change {
    Policy(&'static str, &'static str, bool),
    NoPolicy(&'static str),
    Role(&'static str, &'static str, Vec<PolicyLink>),
    NoRole(&'static str),
    Token(&'static str, Vec<PolicyLink>, Vec<RoleLink>),
    NoToken(&'static str),
}

impl Change {
    fn command(self) -> Command {
        match self {
            Change::Policy(id, name, rules) => {
                policy(id, name, if rules { "acl = \"read\"" } else { "" })
            }
            Change::NoPolicy(id) => Command::DeletePolicy { id: id.to_owned() },
            Change::Role(id, name, links) => role(id, name, links),
            Change::NoRole(id) => Command::DeleteRole { id: id.to_owned() },
            Change::Token(id, policies, roles) => token(id, policies, roles),
            Change::NoToken(id) => Command::DeleteToken(TokenKey::Accessor(id.to_owned())),
        }
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = || prop::sample::select(IDS.to_vec());
    let name = || prop::sample::select(NAMES.to_vec());
    let policies = || {
        let link = (id(), name(), any::<bool>()).prop_map(|(id, name, by_id)| {
            if by_id {
                policy_link(id, name)
            } else {
                policy_link("", name)
            }
        });
        prop::collection::vec(link, 0..3)
    };
    let roles = || {
        let link = (id(), name(), any::<bool>()).prop_map(|(id, name, by_id)| {
            if by_id {
                role_link(id, name)
            } else {
                role_link("", name)
            }
        });
        prop::collection::vec(link, 0..3)
    };
    prop_oneof![
        3 => (id(), name(), any::<bool>()).prop_map(|(i, n, r)| Change::Policy(i, n, r)),
        1 => id().prop_map(Change::NoPolicy),
        3 => (id(), name(), policies()).prop_map(|(i, n, p)| Change::Role(i, n, p)),
        1 => id().prop_map(Change::NoRole),
        3 => (id(), policies(), roles()).prop_map(|(i, p, r)| Change::Token(i, p, r)),
        1 => id().prop_map(Change::NoToken),
    ]
}

/// A model without indexes.
#[derive(Default, Clone, Debug)]
struct Naive {
    policies: BTreeMap<String, (String, bool)>,
    roles: BTreeMap<String, (String, Vec<String>)>,
    tokens: BTreeMap<String, (Vec<String>, Vec<String>)>,
}

impl Naive {
    fn policy(&self, link: &PolicyLink) -> Option<String> {
        if link.id.is_empty() {
            let mut stored = self.policies.iter();
            let found = stored.find(|(_, (name, _))| *name == link.name);
            let builtin = (link.name == GLOBAL_MANAGEMENT).then(|| GLOBAL_MANAGEMENT_ID.to_owned());
            return found.map(|(id, _)| id.clone()).or(builtin);
        }
        self.policies
            .contains_key(&link.id)
            .then(|| link.id.clone())
    }

    fn role(&self, link: &RoleLink) -> Option<String> {
        if link.id.is_empty() {
            let mut stored = self.roles.iter();
            return stored
                .find(|(_, (name, _))| *name == link.name)
                .map(|(id, _)| id.clone());
        }
        self.roles.contains_key(&link.id).then(|| link.id.clone())
    }

    /// `None` if the change must be refused.
    fn changed(&self, change: &Change) -> Option<Self> {
        let mut next = self.clone();
        let once = |ids: Vec<String>| {
            let mut all: Vec<String> = Vec::new();
            for id in ids {
                if !all.contains(&id) {
                    all.push(id);
                }
            }
            all
        };
        let policies = |links: &Vec<PolicyLink>| {
            let ids: Option<Vec<String>> = links.iter().map(|link| self.policy(link)).collect();
            ids.map(once)
        };
        match change {
            Change::Policy(id, name, rules) => {
                let others = self.policies.iter().filter(|(other, _)| other != id);
                if *name == GLOBAL_MANAGEMENT || others.into_iter().any(|(_, (n, _))| n == name) {
                    return None;
                }
                next.policies
                    .insert((*id).to_owned(), ((*name).to_owned(), *rules));
            }
            Change::NoPolicy(id) => drop(next.policies.remove(*id)),
            Change::Role(id, name, links) => {
                let others = self.roles.iter().filter(|(other, _)| other != id);
                if others.into_iter().any(|(_, (n, _))| n == name) {
                    return None;
                }
                let row = ((*name).to_owned(), policies(links)?);
                next.roles.insert((*id).to_owned(), row);
            }
            Change::NoRole(id) => drop(next.roles.remove(*id)),
            Change::Token(id, links, roles) => {
                let ids: Option<Vec<String>> = roles.iter().map(|link| self.role(link)).collect();
                next.tokens
                    .insert((*id).to_owned(), (policies(links)?, once(ids?)));
            }
            Change::NoToken(id) => drop(next.tokens.remove(*id)),
        }
        Some(next)
    }

    fn shown(&self, policies: &[String]) -> Vec<PolicyLink> {
        let name = |id: &String| match id.as_str() {
            GLOBAL_MANAGEMENT_ID => Some(GLOBAL_MANAGEMENT.to_owned()),
            id => self.policies.get(id).map(|(name, _)| name.clone()),
        };
        let link = |id: &String| Some(policy_link(id, &name(id)?));
        policies.iter().filter_map(link).collect()
    }
}

fn assert_same(state: &State, naive: &Naive) {
    let state = state.read();
    assert_eq!(state.policies().len(), naive.policies.len() + 2);
    let roles: Vec<_> = state.roles().iter().map(|role| role.id.clone()).collect();
    assert_eq!(roles, naive.roles.keys().cloned().collect::<Vec<_>>());
    assert_eq!(state.tokens().len(), naive.tokens.len());
    for id in IDS {
        let stored = state
            .policy(id)
            .map(|p| (p.name.clone(), !p.rules.is_empty()));
        assert_eq!(stored, naive.policies.get(id).cloned());
        let shown = state.role(id).map(|role| state.shown_role(&role));
        let expected = naive.roles.get(id);
        assert_eq!(
            shown.map(|role| (role.name, role.policies)),
            expected.map(|(name, links)| (name.clone(), naive.shown(links)))
        );
        let shown = state
            .token_by_accessor(id)
            .map(|token| state.shown_token(&token));
        let role = |id: &String| Some(role_link(id, &naive.roles.get(id)?.0));
        assert_eq!(
            shown.map(|token| (token.policies, token.roles)),
            naive.tokens.get(id).map(|(policies, roles)| (
                naive.shown(policies),
                roles.iter().filter_map(role).collect()
            ))
        );
    }
    for name in NAMES {
        let by_name = naive.policy(&policy_link("", name));
        assert_eq!(state.policy_by_name(name).map(|p| p.id.clone()), by_name);
        let by_name = naive.role(&role_link("", name));
        assert_eq!(state.role_by_name(name).map(|r| r.id.clone()), by_name);
    }
}

/// The answers to all questions.
fn answers(txn: &ReadTxn<'_>, of: usize) -> String {
    let id = IDS[of % 3];
    let name = NAMES[of % 3];
    match of / 3 {
        0 => format!("{:?}", txn.policy(id)),
        1 => format!("{:?}", txn.policy_by_name(name)),
        2 => format!("{:?}", txn.role(id).map(|role| txn.shown_role(&role))),
        3 => format!("{:?}", txn.role_by_name(name)),
        4 => format!(
            "{:?}",
            txn.token_by_accessor(id)
                .map(|token| txn.shown_token(&token))
        ),
        5 => format!("{:?}", txn.policies()),
        _ => format!("{:?}", txn.roles()),
    }
}

proptest! {
    #[test]
    fn links_and_wake_ups_follow_the_changes(
        changes in prop::collection::vec(any_change(), 1..40),
    ) {
        let store = Store::new();
        let mut naive = Naive::default();
        for change in changes {
            let before = store.state();
            let asked: Vec<_> = (0..21)
                .map(|of| {
                    let txn = before.read();
                    let answer = answers(&txn, of);
                    (of, answer, store.watch(&txn.into_reads()))
                })
                .collect();
            let expected = naive.changed(&change);
            let outcome = attempt(&store, change.command());
            prop_assert_eq!(outcome.is_ok(), expected.is_some(), "{:?}", outcome);
            naive = expected.unwrap_or(naive);
            assert_same(&store.state(), &naive);
            for (of, answer, mut watch) in asked {
                let differs = answers(&store.state().read(), of) != answer;
                prop_assert!(woken(&mut watch) || !differs, "question {} sleeps on", of);
            }
        }
    }
}
