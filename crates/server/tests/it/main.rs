//! Started servers, talked to by real clients.

mod acl;
mod dns;
mod grpc;
mod http;
mod http_acl;
mod http_bad_input;
mod http_client;
mod http_mesh;
mod lifecycle;
