//! Finds control-plane servers, logs in, and holds a session that survives server changes.
