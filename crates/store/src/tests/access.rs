//! Tokens, auth methods, binding rules, and the CA.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_model::acl::{AuthMethod, BindingRule, Token};
use legate_model::{CaRoot, CaRoots, Secret};

use super::{apply, refuse, watch, woken};
use crate::{CaState, Command, Rejected, Store, TokenKey};

pub(super) fn token(accessor: &str, secret: &str, method: &str) -> Command {
    Command::UpsertToken(Box::new(Token {
        accessor_id: accessor.to_owned(),
        secret_id: Secret::new(secret),
        auth_method: method.to_owned(),
        ..Token::default()
    }))
}

pub(super) fn method(name: &str) -> Command {
    Command::UpsertAuthMethod(Box::new(AuthMethod {
        name: name.to_owned(),
        ..AuthMethod::default()
    }))
}

fn rule(id: &str, method: &str) -> Command {
    Command::UpsertBindingRule(Box::new(BindingRule {
        id: id.to_owned(),
        auth_method: method.to_owned(),
        ..BindingRule::default()
    }))
}

#[test]
fn a_token_is_found_by_both_halves() {
    let store = Store::new();
    apply(&store, token("a", "secret", ""));
    assert!(!apply(&store, token("a", "secret", "")).changed);
    let state = store.state();
    let state = state.read();
    assert_eq!(
        state
            .token_by_secret("secret")
            .expect("it is there")
            .accessor_id,
        "a"
    );
    assert!(
        state.token_by_secret("SECRET").is_none(),
        "secrets are compared exactly"
    );
    assert!(state.token_by_accessor("a").is_some());

    apply(&store, token("a", "changed", ""));
    assert!(store.state().read().token_by_secret("secret").is_none());
    let taken = refuse(&store, token("b", "changed", ""));
    assert_eq!(taken, Rejected::SecretTaken);
    assert!(!format!("{taken} {taken:?}").contains("changed"));

    apply(
        &store,
        Command::DeleteToken(TokenKey::Secret(Secret::new("changed"))),
    );
    assert!(store.state().read().tokens().is_empty());
    let gone = TokenKey::Accessor("a".to_owned());
    assert!(!apply(&store, Command::DeleteToken(gone)).changed);
}

#[test]
fn an_auth_method_takes_its_rules_and_tokens_along() {
    let store = Store::new();
    let lonely = refuse(&store, rule("r", "jwt"));
    assert!(matches!(lonely, Rejected::MissingAuthMethod { .. }));
    apply(&store, method("jwt"));
    apply(&store, method("other"));
    apply(&store, rule("r", "jwt"));
    apply(&store, rule("s", "other"));
    apply(&store, token("a", "1", "jwt"));
    apply(&store, token("b", "2", ""));
    let name = "jwt".to_owned();
    apply(&store, Command::DeleteAuthMethod { name });
    let state = store.state();
    let state = state.read();
    assert!(state.auth_method("jwt").is_none());
    assert!(state.binding_rules("jwt").is_empty());
    assert_eq!(state.all_binding_rules().len(), 1);
    assert!(state.token_by_accessor("a").is_none());
    assert!(state.token_by_accessor("b").is_some());
}

pub(super) fn ca(root: &str) -> Command {
    let root = CaRoot {
        id: root.to_owned(),
        name: root.to_owned(),
        serial_number: 1,
        signing_key_id: String::new(),
        external_trust_domain: String::new(),
        not_before: SystemTime::UNIX_EPOCH,
        not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
        root_cert: String::new(),
        intermediate_certs: Vec::new(),
        active: true,
        private_key_type: String::new(),
        private_key_bits: 0,
        create_index: 0,
        modify_index: 0,
    };
    Command::SetCa(Box::new(CaState {
        roots: Arc::new(CaRoots {
            active_root_id: root.id.clone(),
            trust_domain: "x.consul".to_owned(),
            roots: vec![root],
        }),
        signing_key: Secret::new("a private key"),
        cluster_id: "x".to_owned(),
        lives: std::collections::BTreeMap::new(),
        secondary: None,
    }))
}

#[test]
fn new_roots_wake_those_who_read_them() {
    let store = Store::new();
    apply(&store, ca("r1"));
    let mut roots = watch(&store, |txn| txn.ca_roots());
    assert!(!apply(&store, ca("r1")).changed);
    apply(&store, token("a", "secret", ""));
    assert!(!woken(&mut roots));

    apply(&store, ca("r2"));
    assert!(woken(&mut roots));
    let state = store.state();
    let state = state.read();
    assert_eq!(
        state.ca_roots().expect("there are roots").active_root_id,
        "r2"
    );
    assert!(!format!("{:?}", state.ca()).contains("a private key"));
}
