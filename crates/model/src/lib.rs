//! The nouns of the mesh: nodes, services, checks, proxies, intentions, config entries, identities.
