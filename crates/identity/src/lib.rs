//! Keys, certificates and TLS configurations: the only crate that sees private keys.
