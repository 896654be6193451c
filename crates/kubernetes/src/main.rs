//! `legate-k8s`.
fn main() {}
