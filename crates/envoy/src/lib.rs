//! Envoy's bootstrap document, its process, and its admin interface.
