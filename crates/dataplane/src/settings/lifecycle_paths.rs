//! The fixed paths of the lifecycle port. The graceful paths must not match any of them.

/// Prefix of the TCP check. The port of a local application follows it.
pub(crate) const TCP_CHECK: &str = "/check/tcp/";

/// All fixed paths.
pub(super) const PATHS: [&str; 10] = [
    "/live", "/healthz", "/ready", "/readyz", "/startup", "/restart", "/drain", "/status",
    "/metrics", TCP_CHECK,
];

/// Whether `path` matches `pattern`. A pattern that ends with a slash matches everything below it.
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
