//! Brings what an older server stored to the format of this one.
//!
//! | format | what is new in it |
//! |---|---|
//! | 1 | the first |
//! | 2 | virtual IPs; in older rows nobody has one |

use crate::state::State;
use crate::write::{Changes, WriteTxn};

/// What a store of an older format holds in the format of this server, one index later, and what
/// that changes.
pub(crate) fn upgraded(old: &State) -> (State, Changes) {
    let mut txn = WriteTxn::on(old);
    let index = txn.index();
    // There are more virtual IPs than fit in memory with their services. Without one left, later
    // registrations say so.
    let (mut state, changes) = match txn.give_virtual_ips() {
        Ok(()) => txn.into_parts(),
        Err(_) => (old.clone(), Changes::default()),
    };
    state.set_index(index);
    (state, changes)
}
