//! The paths of the lifecycle port, which graceful paths must not stand for.

/// Below it stands the number of a port of this machine: whether it accepts connections.
pub(crate) const TCP_CHECK: &str = "/check/tcp/";

/// The paths that are always there.
pub(super) const PATHS: [&str; 10] = [
    "/live", "/healthz", "/ready", "/readyz", "/startup", "/restart", "/drain", "/status",
    "/metrics", TCP_CHECK,
];

/// A path that ends with a slash stands for everything below it.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    path == pattern || (pattern.ends_with('/') && path.starts_with(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_slash_stands_for_everything_below() {
        assert!(matches("/stop", "/stop"));
        assert!(!matches("/stop", "/stop/now") && !matches("/stop", "/"));
        assert!(matches("/stop/", "/stop/now") && matches("/stop/", "/stop/"));
        assert!(!matches("/stop/", "/stop"));
    }
}
