//! Stores with a real etcd: sharing between servers, and failures of etcd.

mod cluster;
mod failures;
mod model;
mod sharing;
