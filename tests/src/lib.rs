//! Scenarios over a whole mesh with real Envoys.
