//! Tests of the built binary as users start it, and of its parts on real sockets.

#[cfg(test)]
mod dns;
#[cfg(test)]
mod envoy_side;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod log;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod relay_limits;
#[cfg(test)]
mod restart_metrics;
#[cfg(test)]
mod run;
#[cfg(test)]
mod running;
#[cfg(test)]
mod session_ready;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod signals;
