//! Host names of listeners and routes.

/// Whether a listener's host name covers that of a route, both in lower case: `*` covers everything
/// and `*.` with a name covers all names below that name, but not the name itself.
pub fn covers(listener: &str, route: &str) -> bool {
    match listener.strip_prefix('*') {
        Some("") => true,
        Some(suffix) => route.len() > suffix.len() && route.ends_with(suffix),
        None => listener == route,
    }
}

/// Whether a text can be a host name of a TLS handshake: labels of letters, digits, dashes and
/// underscores, the first of which may be `*`.
pub fn is_host(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_inner);
    let name = text.strip_prefix("*.").unwrap_or(text);
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_covers_what_is_below_it() {
        for (listener, route, expected) in [
            ("*", "a.test", true),
            ("a.test", "a.test", true),
            ("a.test", "b.a.test", false),
            ("*.a.test", "b.a.test", true),
            ("*.a.test", "c.b.a.test", true),
            ("*.a.test", "a.test", false),
            ("*.a.test", "ba.test", false),
            ("*.a.test", "*.b.a.test", true),
        ] {
            assert_eq!(covers(listener, route), expected, "{listener} {route}");
        }
    }

    #[test]
    fn names_of_people_are_not_hosts() {
        for host in ["a", "a.test", "*.a.test", "1.2.3.4", "_a.test"] {
            assert!(is_host(host), "{host}");
        }
        let long = "a".repeat(64);
        for text in ["", "*", "a..b", "A Company", "a.*.test", "a.test.", &long] {
            assert!(!is_host(text), "{text}");
        }
    }
}
