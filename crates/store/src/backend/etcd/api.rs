//! etcd's messages and clients, generated from `proto/etcd.proto`.

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    rustdoc::all,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its documentation is in the .proto file"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

pub(crate) use generated::*;
