//! The jobs of the driver, their outcomes, and the events for users.

use std::collections::BTreeMap;

use crate::sync::catalog::NodeState;
use crate::sync::difference::Call;
use crate::sync::facts::Key;
use crate::sync::wanted::Reason;

/// A job for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// List the nodes of the catalog.
    ListNodes,
    /// Read one node with its instances and checks.
    ReadNode(String),
    /// Remove a node if it has no instances or checks.
    RemoveNode(String),
    /// Make these calls for a pod, in this order.
    Pod(Key, Vec<Call>),
    /// Remove the tokens of deleted pods. These pods exist, with their uids.
    SweepTokens(BTreeMap<Key, String>),
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call succeeded.
    Done,
    /// The server refused, for this reason.
    Refused(String),
    /// The servers do not have this call.
    Unserved,
    /// No server responded or was able to serve. The call may have had its effect.
    Unreachable(String),
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// [`Job::ListNodes`]: the names, or the error.
    Nodes(Result<Vec<String>, String>),
    /// [`Job::ReadNode`]: the node, if it exists.
    Node(String, Result<Option<NodeState>, String>),
    /// [`Job::RemoveNode`]: whether the node is gone.
    Removed(String, bool),
    /// [`Job::Pod`]: the calls that were made, with their outcomes. After a failure the rest is
    /// skipped.
    Pod(Key, Vec<(Call, Outcome)>),
    /// [`Job::SweepTokens`]
    Swept,
}

/// An event on a pod, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: String,
    /// The reason and message.
    pub reason: Reason,
}
