//! Config entries and intentions.

use legate_model::{ConfigEntry, ConfigKind, IntentionAction, ServiceName};

use super::{apply, defaults, intention, refuse};
use crate::{Command, Rejected, Store};

fn upsert(entry: Box<ConfigEntry>, cas: Option<u64>) -> Command {
    Command::UpsertConfigEntry { entry, cas }
}

fn delete(name: &str, cas: Option<u64>) -> Command {
    Command::DeleteConfigEntry {
        kind: ConfigKind::ServiceDefaults,
        name: name.to_owned(),
        cas,
    }
}

#[test]
fn compare_and_set_writes_only_what_was_seen() {
    let store = Store::new();
    let web = |protocol| defaults("web", protocol);
    refuse(&store, upsert(web("http"), Some(7)));
    let made = apply(&store, upsert(web("http"), Some(0)));
    let late = refuse(&store, upsert(web("grpc"), Some(0)));
    let Rejected::CasMismatch { actual, .. } = late else {
        panic!("{late}");
    };
    assert_eq!(actual, made.index);

    let same = apply(&store, upsert(web("http"), Some(made.index)));
    assert!(
        !same.changed,
        "identical, and still what the caller has seen"
    );
    let changed = apply(&store, upsert(web("grpc"), Some(made.index)));
    refuse(&store, delete("web", Some(made.index)));
    apply(&store, delete("web", Some(changed.index)));
    assert!(
        store
            .state()
            .read()
            .config_entry(ConfigKind::ServiceDefaults, "web")
            .is_none()
    );
    assert!(!apply(&store, delete("web", None)).changed);
}

#[test]
fn kinds_are_listed_apart() {
    let store = Store::new();
    apply(&store, upsert(defaults("web", "http"), None));
    apply(&store, upsert(defaults("api", "http"), None));
    apply(&store, intention("web", "api", IntentionAction::Allow));
    let state = store.state();
    let state = state.read();
    let names = |kind| -> Vec<String> {
        let entries = state.config_entries(kind);
        entries
            .iter()
            .map(|entry| entry.name().to_owned())
            .collect()
    };
    assert_eq!(names(ConfigKind::ServiceDefaults), ["api", "web"]);
    assert_eq!(names(ConfigKind::ServiceIntentions), ["api"]);
    assert!(names(ConfigKind::Mesh).is_empty());
}

#[test]
fn intentions_live_in_the_entry_of_their_destination() {
    let store = Store::new();
    apply(&store, intention("web", "api", IntentionAction::Deny));
    apply(&store, intention("*", "api", IntentionAction::Allow));
    apply(&store, intention("*", "*", IntentionAction::Deny));
    apply(&store, intention("web", "*", IntentionAction::Allow));

    let state = store.state();
    let state = state.read();
    let pairs: Vec<_> = state
        .intentions_for("api")
        .iter()
        .map(|i| {
            (
                i.source_name.clone(),
                i.destination_name.clone(),
                i.precedence,
            )
        })
        .collect();
    let expected = [
        ("web", "api", 9),
        ("*", "api", 8),
        ("web", "*", 6),
        ("*", "*", 5),
    ];
    assert_eq!(
        pairs,
        expected.map(|(s, d, p)| (s.to_owned(), d.to_owned(), p))
    );
    assert_eq!(state.intentions_for("other").len(), 2);
    assert_eq!(state.intentions_for("*").len(), 2);
    assert_eq!(state.intentions().len(), 4);

    let entry = state.config_entry(ConfigKind::ServiceIntentions, "api");
    let Some(ConfigEntry::ServiceIntentions(entry)) = entry.as_deref() else {
        panic!("the entry is there");
    };
    assert_eq!(entry.sources.len(), 2);
}

#[test]
fn removing_the_last_intention_removes_the_entry() {
    let store = Store::new();
    let action = |store: &Store| {
        let found = store.state().read().intention(&"web".into(), "api");
        found.and_then(|intention| intention.action)
    };
    apply(&store, intention("web", "api", IntentionAction::Deny));
    assert_eq!(action(&store), Some(IntentionAction::Deny));
    apply(&store, intention("web", "api", IntentionAction::Allow));
    assert_eq!(action(&store), Some(IntentionAction::Allow));
    assert!(!apply(&store, intention("web", "api", IntentionAction::Allow)).changed);

    let remove = || Command::DeleteIntention {
        source: "web".to_owned(),
        destination: "api".to_owned(),
    };
    apply(&store, remove());
    let state = store.state();
    let state = state.read();
    assert!(state.intentions().is_empty());
    assert!(
        state
            .config_entry(ConfigKind::ServiceIntentions, "api")
            .is_none()
    );
    assert!(!apply(&store, remove()).changed);
}

#[test]
fn intention_sources_are_case_sensitive() {
    let store = Store::new();
    apply(&store, intention("web", "api", IntentionAction::Deny));
    apply(&store, intention("Web", "API", IntentionAction::Allow));
    let state = store.state();
    let state = state.read();
    let action = |source| {
        state
            .intention(&ServiceName::from(source), "api")
            .and_then(|i| i.action)
    };
    assert_eq!(action("web"), Some(IntentionAction::Deny));
    assert_eq!(action("Web"), Some(IntentionAction::Allow));
    assert_eq!(action("WEB"), None);
    assert_eq!(state.intentions_for("api").len(), 2);
}
