//! The everyday command: a whole mesh on one machine, and administration.
