//! The built-in proxy as a whole, compared with Envoy.

mod differential;
