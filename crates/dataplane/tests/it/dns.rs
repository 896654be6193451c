//! The DNS proxy between real sockets and a fake server.

mod harness;
mod stop;
mod tcp;
mod udp;
