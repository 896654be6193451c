//! Upgrades stored data of older servers to the current format.
//!
//! | format | what is new in it |
//! |---|---|
//! | 1 | the first |
//! | 2 | virtual IPs; older rows have none |
//! | 3 | policies and roles: older tokens name their one policy, newer ones have its id; virtual IPs that were assigned by hand |
//! | 4 | how agents run checks; no agent runs the checks of older rows |
//! | 5 | prepared queries; older rows have none |
//! | 6 | keys and values, sessions, lock delays, coordinates of nodes, more kinds of config entries, the autopilot configuration, peerings; older rows have none, and services of older rows count as registered over the API, not by an agent's files; a server that starts makes the first configuration of the CA |
//! | 7 | namespaces and partitions; older rows are of the default ones |
//! | 8 | what gateways of clusters serve; older rows have none |
//! | 9 | what the proxies of these gateways have acknowledged; older rows name no generations |
//! | 10 | the log of a file; older servers would lose what is in it; what gateways of clusters serve on UDP |
//! | 11 | the CA of a secondary datacenter; older servers would sign with a key that is not the root's |
//! | 12 | the mesh gateways of all datacenters; older rows have none |
//! | 13 | what is imported from peers, and their trust bundles and streams; older rows have none |

use crate::state::{Changes, State};
use crate::write::WriteTxn;

/// Converts the state of a store with an older format to the current one, at the next index. Also
/// returns the changes.
pub(crate) fn upgraded(old: &State) -> (State, Changes) {
    let mut txn = WriteTxn::on(old);
    let index = txn.index();
    // Without a free virtual IP this step is skipped; later registrations report the error.
    if txn.allocate_virtual_ips().is_err() {
        txn = WriteTxn::on(old);
    }
    txn.link_policies_by_id();
    let (mut state, changes) = txn.into_parts();
    state.set_index(index);
    (state, changes)
}
