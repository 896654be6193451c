//! Replication from one store to another: whatever is lost, repeated or restarted, in the end both have the same rows.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use legate_model::acl::{
    AuthMethod, BindingRule, GLOBAL_MANAGEMENT_ID, Policy, PolicyLink, Role, RoleLink, Token,
    TokenLocality,
};
use legate_model::{
    CheckServiceNode, ConfigKind, IntentionAction, Namespace, Secret, ServiceInstance, ServiceKind,
    Tenancy,
};
use proptest::prelude::*;

use super::{attempt, defaults, intention};
use crate::{
    Command, Position, Replication, State, Store, Tenant, TokenKey, Unavailable, WriteTxn,
};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const IDS: [&str; 3] = ["p1", "p2", "p3"];

/// A write at the primary.
#[derive(Debug, Clone)]
enum Change {
    Command(Box<Command>),
    Namespace {
        name: &'static str,
        exists: bool,
    },
    /// The number of mesh gateways of a datacenter; 0: they are forgotten.
    Gateways(&'static str, u16),
    /// A snapshot of this number of changes ago is restored.
    Restore(usize),
}

/// What happens to the secondary.
#[derive(Debug, Clone)]
enum Event {
    Change(Change),
    /// An answer is applied. `upto`: only this number of rows, since the server is stopped then.
    Round {
        upto: Option<usize>,
    },
    /// A round whose answer is applied twice.
    Repeat,
    Restart,
    /// A snapshot of the secondary is restored.
    Restore,
    /// Rows of the secondary alone.
    Local,
    Emptied,
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = || prop::sample::select(IDS.to_vec());
    let links = || prop::collection::btree_set(id(), 0..3);
    let link = |id: &str| PolicyLink {
        id: id.to_owned(),
        name: String::new(),
    };
    let locality = prop::sample::select(vec![TokenLocality::Local, TokenLocality::Global]);
    let command = prop_oneof![
        3 => (id(), id(), any::<bool>()).prop_map(|(id, name, more)| {
            Command::UpsertPolicy(Box::new(Policy {
                id: id.to_owned(),
                name: name.to_owned(),
                description: if more { "more".to_owned() } else { String::new() },
                ..Policy::default()
            }))
        }),
        2 => id().prop_map(|id| Command::DeletePolicy { id: id.to_owned() }),
        2 => (id(), id(), links()).prop_map(move |(id, name, links)| {
            Command::UpsertRole(Box::new(Role {
                id: id.to_owned(),
                name: name.to_owned(),
                policies: links.into_iter().map(link).collect(),
                ..Role::default()
            }))
        }),
        1 => id().prop_map(|id| Command::DeleteRole { id: id.to_owned() }),
        3 => (id(), id(), links(), any::<bool>()).prop_map(move |(id, role, links, local)| {
            Command::UpsertToken(Box::new(Token {
                accessor_id: format!("{id}{local}"),
                secret_id: Secret::new(format!("{role}{id}{local}")),
                policies: links.into_iter().map(link).collect(),
                roles: vec![RoleLink { id: role.to_owned(), name: String::new() }],
                local,
                ..Token::default()
            }))
        }),
        2 => (id(), any::<bool>()).prop_map(|(id, local)| {
            Command::DeleteToken(TokenKey::Accessor(format!("{id}{local}")))
        }),
        2 => (id(), locality).prop_map(|(name, token_locality)| {
            Command::UpsertAuthMethod(Box::new(AuthMethod {
                name: name.to_owned(),
                token_locality,
                ..AuthMethod::default()
            }))
        }),
        1 => id().prop_map(|name| Command::DeleteAuthMethod { name: name.to_owned() }),
        2 => (id(), id()).prop_map(|(id, method)| {
            Command::UpsertBindingRule(Box::new(BindingRule {
                id: id.to_owned(),
                auth_method: method.to_owned(),
                ..BindingRule::default()
            }))
        }),
        1 => id().prop_map(|id| Command::DeleteBindingRule { id: id.to_owned() }),
        2 => (id(), id()).prop_map(|(s, d)| intention(s, d, IntentionAction::Deny)),
        1 => (id(), id()).prop_map(|(source, destination)| Command::DeleteIntention {
            source: source.to_owned(),
            destination: destination.to_owned(),
        }),
        2 => (id(), any::<bool>()).prop_map(|(name, http)| Command::UpsertConfigEntry {
            entry: defaults(name, if http { "http" } else { "tcp" }),
            cas: None,
        }),
        1 => id().prop_map(|name| Command::DeleteConfigEntry {
            kind: ConfigKind::ServiceDefaults,
            name: name.to_owned(),
            cas: None,
        }),
    ];
    let namespace = (prop::sample::select(vec!["n1", "n2"]), any::<bool>());
    prop_oneof![
        20 => command.prop_map(|command| Change::Command(Box::new(command))),
        2 => namespace.prop_map(|(name, exists)| Change::Namespace { name, exists }),
        2 => (prop::sample::select(vec!["dc2", "dc3"]), 0..4u16)
            .prop_map(|(datacenter, number)| Change::Gateways(datacenter, number)),
        1 => (0..20usize).prop_map(Change::Restore),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => any_change().prop_map(Event::Change),
        4 => prop::option::weighted(0.3, 0..6usize).prop_map(|upto| Event::Round { upto }),
        1 => Just(Event::Repeat),
        1 => Just(Event::Restart),
        1 => Just(Event::Restore),
        1 => Just(Event::Local),
        1 => Just(Event::Emptied),
    ]
}

/// Operations of a store in memory complete at once.
fn done<T>(operation: impl Future<Output = T>) -> T {
    operation.now_or_never().unwrap()
}

fn write(store: &Store, transaction: impl FnMut(&mut WriteTxn) + Send + 'static) {
    let mut transaction = transaction;
    let written = store.write(move |txn| {
        transaction(txn);
        Ok::<_, Unavailable>(())
    });
    done(written).unwrap();
}

fn restore(store: &Store, snapshot: &[u8]) {
    let snapshot = store.read_snapshot(std::io::Cursor::new(snapshot)).unwrap();
    done(store.restore(snapshot)).unwrap();
}

fn saved(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.save(&mut bytes).unwrap();
    bytes
}

fn in_namespace(name: &str) -> Tenancy {
    Tenancy::default().in_namespace(&name.parse().unwrap())
}

fn gateway(port: u16) -> CheckServiceNode {
    let service = ServiceInstance {
        kind: ServiceKind::MeshGateway,
        port,
        ..ServiceInstance::default()
    };
    CheckServiceNode {
        node: Arc::default(),
        service: Arc::new(service),
        checks: Vec::new(),
    }
}

/// Removes what deleted namespaces contain, as each datacenter does by itself.
fn empty(store: &Store) {
    write(store, |txn| {
        for tenant in txn.read().tenants_to_remove() {
            txn.remove_tenant(&tenant, 1000);
        }
    });
}

/// A secondary that follows a primary.
struct Pair {
    primary: Store,
    secondary: Store,
    position: Position,
    last: Option<Replication>,
    snapshots: Vec<Vec<u8>>,
    before: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let secondary = Store::new();
        Self {
            before: saved(&secondary),
            primary: Store::new(),
            secondary,
            position: Position::default(),
            last: None,
            snapshots: Vec::new(),
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Command(command) => {
                let command = Command::clone(command);
                // Refused ones change nothing.
                let _ = attempt(&self.primary, command);
            }
            Change::Namespace { name, exists } => {
                let (name, exists) = (*name, *exists);
                write(&self.primary, move |txn| {
                    let namespace = Namespace {
                        name: name.parse().unwrap(),
                        ..Namespace::default()
                    };
                    let tenant = Tenant::Namespace(in_namespace(name));
                    // While it is deleted it cannot be created.
                    let _ = match exists {
                        true => txn.put_namespace(namespace).map(drop),
                        false => txn.mark_deleted(&tenant, NOW),
                    };
                });
                empty(&self.primary);
            }
            Change::Gateways(datacenter, number) => {
                let (datacenter, number) = (*datacenter, *number);
                let gateways: Vec<_> = (0..number).map(gateway).collect();
                write(&self.primary, move |txn| match number {
                    0 => txn.remove_mesh_gateways(datacenter),
                    _ => txn.put_mesh_gateways(datacenter, &gateways, NOW),
                });
            }
            Change::Restore(ago) => {
                let at = self.snapshots.len().checked_sub(1 + ago);
                if let Some(at) = at {
                    restore(&self.primary, &self.snapshots[at].clone());
                }
            }
        }
        self.snapshots.push(saved(&self.primary));
    }

    /// One round. Returns whether all rows could be applied.
    fn round(&mut self, upto: Option<usize>) -> bool {
        let since = self.position.ask(&self.secondary.state());
        let state = self.primary.state();
        let answer = state.read().replication(&since, true).unwrap();
        // As it is sent.
        let answer: Replication =
            serde_json::from_str(&serde_json::to_string(&answer).unwrap()).unwrap();
        let begun = answer.clone();
        let begun = self
            .secondary
            .write(move |txn| Ok::<_, Unavailable>(txn.begin_to_follow(&begun)));
        assert_eq!(done(begun).unwrap().1, Ok(()));
        let complete = apply_rows(&self.secondary, &answer, upto);
        if upto.is_none() && complete {
            self.position.advance(&answer);
            if !answer.is_empty() {
                let answer = answer.clone();
                write(&self.secondary, move |txn| txn.set_followed(&answer));
            }
        }
        self.last = Some(answer);
        complete
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Change(change) => self.change(change),
            Event::Round { upto } => {
                self.round(*upto);
            }
            Event::Repeat => {
                if self.round(None) {
                    let index = self.secondary.state().index();
                    apply_rows(&self.secondary, &self.last.clone().unwrap(), None);
                    assert_eq!(self.secondary.state().index(), index, "nothing is written");
                }
            }
            Event::Restart => self.position = Position::default(),
            Event::Restore => restore(&self.secondary, &self.before.clone()),
            Event::Local => {
                self.before = saved(&self.secondary);
                write(&self.secondary, |txn| {
                    txn.put_token(Token {
                        accessor_id: "own".to_owned(),
                        secret_id: Secret::new("own"),
                        local: true,
                        ..Token::default()
                    })
                    .unwrap();
                });
            }
            Event::Emptied => empty(&self.secondary),
        }
    }
}

fn apply_rows(store: &Store, answer: &Replication, upto: Option<usize>) -> bool {
    let removal = answer.clone();
    write(
        store,
        move |txn| {
            while !txn.remove_unreplicated(&removal, 2, NOW) {}
        },
    );
    let rows = answer.rows.iter().take(upto.unwrap_or(usize::MAX));
    let mut complete = true;
    for row in rows {
        let row = row.clone();
        let written = store.write(move |txn| Ok::<_, Unavailable>(txn.replicate(&row, NOW)));
        let (_, replicated) = done(written).unwrap();
        complete &= replicated.is_ok();
    }
    complete
}

/// The replicated rows, without the indexes, which differ.
fn comparable(state: &State) -> Vec<String> {
    let txn = state.read();
    let global = |method: &str| {
        let method = txn.auth_method(method);
        method.is_some_and(|method| !method.token_locality.is_local())
    };
    let mut rows = Vec::new();
    let mut add = |row: serde_json::Value| {
        let mut row = row;
        if let Some(fields) = row.as_object_mut() {
            fields.remove("CreateIndex");
            fields.remove("ModifyIndex");
        }
        rows.push(row.to_string());
    };
    for policy in txn
        .policies()
        .iter()
        .filter(|row| row.id != GLOBAL_MANAGEMENT_ID)
    {
        add(serde_json::to_value(&**policy).unwrap());
    }
    for role in txn.roles() {
        add(serde_json::to_value(&*role).unwrap());
    }
    for token in txn.tokens().iter().filter(|token| !token.local) {
        add(serde_json::to_value(&**token).unwrap());
    }
    for method in txn
        .auth_methods()
        .iter()
        .filter(|method| global(&method.name))
    {
        add(serde_json::to_value(&**method).unwrap());
    }
    for rule in txn
        .all_binding_rules()
        .iter()
        .filter(|rule| global(&rule.auth_method))
    {
        add(serde_json::to_value(&**rule).unwrap());
    }
    for namespace in txn.namespaces() {
        add(serde_json::to_value(&*namespace).unwrap());
    }
    for state in txn.federation_states() {
        add(serde_json::to_value(&*state).unwrap());
    }
    for kind in [ConfigKind::ServiceDefaults, ConfigKind::ServiceIntentions] {
        for entry in txn.config_entries(kind) {
            add(serde_json::to_value(&*entry).unwrap());
        }
    }
    rows
}

proptest! {
    #[test]
    fn a_secondary_ends_with_the_rows_of_its_primary(
        events in prop::collection::vec(any_event(), 0..80)
    ) {
        let mut pair = Pair::new();
        for event in &events {
            pair.handle(event);
        }
        empty(&pair.secondary);
        // What is still being deleted takes another round.
        for _ in 0..3 {
            pair.round(None);
            empty(&pair.secondary);
        }
        prop_assert!(pair.round(None));
        prop_assert_eq!(comparable(&pair.secondary.state()), comparable(&pair.primary.state()));
        let since = pair.position.ask(&pair.secondary.state());
        let state = pair.primary.state();
        prop_assert!(state.read().replication(&since, true).unwrap().is_empty());
    }
}

#[test]
fn rows_are_not_taken_from_a_server_that_is_behind_or_of_another_mesh() {
    let mut pair = Pair::new();
    pair.change(&Change::Namespace {
        name: "n1",
        exists: true,
    });
    assert!(pair.round(None));
    let refused = |mesh: &str, index: u64| {
        let mut answer = Replication::default();
        (answer.mesh, answer.index) = (mesh.to_owned(), index);
        let begun = pair
            .secondary
            .write(move |txn| Ok::<_, Unavailable>(txn.begin_to_follow(&answer)));
        done(begun).unwrap().1.unwrap_err().to_string()
    };
    assert!(refused("", 1).contains("is behind"));
    assert!(refused("other", 100).contains("start this datacenter once without"));
    // A datacenter that becomes a secondary does not lose what the primary does not know.
    write(&pair.secondary, |txn| txn.unset_followed());
    assert!(refused("other", 100).contains("namespace n1"));
    pair.handle(&Event::Restart);
    assert!(pair.round(None), "the primary has it");
}
