//! The built-in proxy as a whole, beside Envoy.

mod differential;
