//! Stores over a real etcd: what several servers see of each other, and what they do when etcd
//! fails.

mod cluster;
mod failures;
mod model;
mod sharing;
