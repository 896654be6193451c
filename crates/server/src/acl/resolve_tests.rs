use std::sync::Arc;

use futures_util::FutureExt;
use legate_model::Secret;
use legate_model::acl::{Policy, PolicyLink, Token};
use legate_store::{Command, Store};

use super::*;

const SETTING: Setting<'_> = Setting {
    datacenter: "dc1",
    default: DefaultPolicy::Deny,
};

fn apply(store: &Store, command: Command) {
    let applied = store.apply(command).now_or_never();
    applied
        .expect("nothing to wait for")
        .expect("it is accepted");
}

fn policy(rules: &str) -> Command {
    Command::UpsertPolicy(Box::new(Policy {
        id: "p".to_owned(),
        name: "p".to_owned(),
        rules: rules.to_owned(),
        ..Policy::default()
    }))
}

fn token(accessor: &str) -> Command {
    Command::UpsertToken(Box::new(Token {
        accessor_id: accessor.to_owned(),
        secret_id: Secret::new(accessor),
        policies: vec![PolicyLink {
            id: "p".to_owned(),
            name: String::new(),
        }],
        ..Token::default()
    }))
}

fn resolved(store: &Store, kept: &Kept, accessor: &str) -> Result<Authorizer, AclError> {
    let state = store.state();
    let txn = state.read();
    let token = txn.token_by_accessor(accessor).expect("it is there");
    SETTING.of_stored(&txn, &token, kept)
}

/// The cached result of a token, to detect recomputation.
fn kept_for(kept: &Kept, accessor: &str) -> *const Resolved {
    let kept = kept.0.lock().expect("nobody panicked");
    Arc::as_ptr(&kept.young[accessor])
}

#[test]
fn permissions_are_cached_until_a_row_they_depend_on_changes() {
    let (store, kept) = (Store::new(), Kept::default());
    apply(&store, policy("service \"a\" { policy = \"write\" }"));
    apply(&store, token("t"));
    assert!(resolved(&store, &kept, "t").unwrap().service_write("a"));
    let first = kept_for(&kept, "t");
    // Another token does not invalidate the cached result.
    apply(&store, token("u"));
    assert!(resolved(&store, &kept, "t").unwrap().service_write("a"));
    assert_eq!(kept_for(&kept, "t"), first);
    apply(&store, policy("service \"a\" { policy = \"deny\" }"));
    assert!(!resolved(&store, &kept, "t").unwrap().service_read("a"));
    apply(&store, Command::DeletePolicy { id: "p".to_owned() });
    assert_eq!(
        resolved(&store, &kept, "t").unwrap(),
        Authorizer::deny_all()
    );
}

#[test]
fn a_policy_that_cannot_be_read_permits_nothing() {
    let (store, kept) = (Store::new(), Kept::default());
    // A policy in a newer server's format.
    apply(&store, policy("new_resource \"a\" { policy = \"deny\" }"));
    apply(&store, token("t"));
    let error = resolved(&store, &kept, "t").unwrap_err().to_string();
    assert!(
        error.contains("policy \"p\"") && error.contains("new_resource"),
        "{error}"
    );
}

#[test]
fn the_cache_is_bounded() {
    let kept = Kept::default();
    let resolved: Arc<Resolved> = Arc::new(Ok((Authorizer::deny_all(), Sources::new())));
    for number in 0..3 * KEPT {
        kept.keep(&number.to_string(), &resolved);
    }
    let generations = kept.0.lock().expect("nobody panicked");
    assert!(generations.young.len() + generations.old.len() <= 2 * KEPT);
    assert!(generations.young.contains_key(&(3 * KEPT - 1).to_string()));
}
