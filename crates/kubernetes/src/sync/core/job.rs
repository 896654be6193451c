//! What is handed out to be done, how it can end, and what people are told.

use std::collections::BTreeMap;

use crate::sync::catalog::NodeState;
use crate::sync::difference::Call;
use crate::sync::facts::Key;
use crate::sync::wanted::Reason;

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Find out which nodes the catalog has.
    ListNodes,
    /// Read one node with its instances and checks.
    ReadNode(String),
    /// Remove a node, if really nothing is on it.
    RemoveNode(String),
    /// Make these calls, in this order.
    Pod(Key, Vec<Call>),
    /// Remove tokens of pods that are gone. These are there, with their uids.
    SweepTokens(BTreeMap<Key, String>),
}

/// How one call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// A server says no, and why.
    Refused(String),
    /// These servers have no such call.
    Unserved,
    /// Nobody answered, or nobody can at the moment. It may have been done.
    Unreachable(String),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// [`Job::ListNodes`]: the names.
    Nodes(Result<Vec<String>, String>),
    /// [`Job::ReadNode`]: the node, where there is one.
    Node(String, Result<Option<NodeState>, String>),
    /// [`Job::RemoveNode`]: whether it is gone.
    Removed(String, bool),
    /// [`Job::Pod`]: the calls that were made, and how each ended. Those after are not made.
    Pod(Key, Vec<(Call, Outcome)>),
    /// [`Job::SweepTokens`]
    Swept,
}

/// An event for people, on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: String,
    /// What happened.
    pub reason: Reason,
}
