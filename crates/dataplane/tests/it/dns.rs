//! The DNS proxy between real sockets and a fake server.

mod harness;
mod outage;
mod stop;
mod tcp;
mod udp;
