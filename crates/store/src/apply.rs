//! The one function that changes tables: a state and a command in, the next state out.

use std::collections::BTreeSet;

use crate::command::{Applied, CaState, Command, Rejected};
use crate::state::State;
use crate::topic::Topic;

/// What one command touches, and the index it gets when it changes anything.
pub(crate) struct Changes {
    /// The index of the rows that the command writes.
    pub(crate) index: u64,
    touched: BTreeSet<Topic>,
}

impl Changes {
    /// Records that rows of a topic changed.
    pub(crate) fn touch(&mut self, topic: Topic) {
        self.touched.insert(topic);
    }
}

/// What came of a command.
pub(crate) struct Outcome {
    /// The next state; `None` when the command changed nothing.
    pub(crate) state: Option<State>,
    /// The topics to wake.
    pub(crate) touched: BTreeSet<Topic>,
    pub(crate) applied: Applied,
}

/// Applies a command to a copy of the state. The same arguments give the same outcome.
pub(crate) fn apply(state: &State, command: Command) -> Result<Outcome, Rejected> {
    let mut next = state.clone();
    let mut changes = Changes {
        index: state.index() + 1,
        touched: BTreeSet::new(),
    };
    let serial = change(&mut next, command, &mut changes)?;
    let changed = serial > 0 || !changes.touched.is_empty();
    if changed {
        next.commit(changes.index, &changes.touched);
    }
    Ok(Outcome {
        applied: Applied {
            index: if changed {
                changes.index
            } else {
                state.index()
            },
            changed,
            serial,
        },
        state: changed.then_some(next),
        touched: changes.touched,
    })
}

/// Returns the serial number that the command took, or 0.
fn change(next: &mut State, command: Command, changes: &mut Changes) -> Result<u64, Rejected> {
    let State {
        catalog,
        entries,
        access,
        ..
    } = next;
    match command {
        Command::Register(registration) => catalog.register(*registration, changes)?,
        Command::Deregister(what) => catalog.deregister(&what, changes),
        Command::UpsertConfigEntry { entry, cas } => entries.upsert(*entry, cas, changes)?,
        Command::DeleteConfigEntry { kind, name, cas } => {
            entries.delete(kind, &name, cas, changes)?;
        }
        Command::UpsertIntention(intention) => entries.upsert_intention(*intention, changes)?,
        Command::DeleteIntention {
            source,
            destination,
        } => entries.delete_intention(&source, &destination, changes)?,
        Command::SetCa(ca) => set_ca(next, *ca, changes),
        Command::ReserveSerial => return next.reserve_serial(),
        Command::UpsertToken(token) => access.upsert_token(*token, changes)?,
        Command::DeleteToken(key) => access.delete_token(&key, changes),
        Command::UpsertAuthMethod(method) => access.upsert_method(*method, changes)?,
        Command::DeleteAuthMethod { name } => access.delete_method(&name, changes),
        Command::UpsertBindingRule(rule) => access.upsert_rule(*rule, changes)?,
        Command::DeleteBindingRule { id } => access.delete_rule(&id, changes),
        Command::All(commands) => {
            let mut serial = 0;
            for command in commands {
                serial = change(next, command, changes)?.max(serial);
            }
            return Ok(serial);
        }
    }
    Ok(0)
}

fn set_ca(next: &mut State, mut ca: CaState, changes: &mut Changes) {
    let old = next.ca();
    for root in &mut ca.roots.roots {
        let known = old.and_then(|old| old.roots.roots.iter().find(|r| r.id == root.id));
        root.create_index = known.map_or(changes.index, |r| r.create_index);
        root.modify_index = known.map_or(changes.index, |r| r.modify_index);
        if known.is_some_and(|known| known != root) {
            root.modify_index = changes.index;
        }
    }
    // A number must never be given away twice, whatever the caller has counted.
    ca.serial = ca.serial.max(old.map_or(0, |old| old.serial));
    if old != Some(&ca) {
        changes.touch(Topic::CaRoots);
        next.replace_ca(ca);
    }
}
