//! The mesh CA: roots, and leaf certificates that are renewed before they expire.
