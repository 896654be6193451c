//! Validation of names.

/// Name for every service in an intention.
pub const WILDCARD: &str = "*";

/// The maximum length of names and ids in bytes, as they are keys of tables, topics and metrics.
const MAX_NAME: usize = 512;
/// The maximum length of names in ACL identities, in bytes.
const MAX_IDENTITY: usize = 256;

/// An invalid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a {what}: {reason}")]
pub struct InvalidName {
    name: String,
    what: &'static str,
    reason: &'static str,
}

/// Rules for all names: not empty, no control characters, and a single URI path segment.
fn validate(name: &str, what: &'static str) -> Result<(), InvalidName> {
    let fail = |reason| {
        Err(InvalidName {
            name: name.to_owned(),
            what,
            reason,
        })
    };
    if name.len() > MAX_NAME {
        return Err(too_long(name, what));
    }
    if name.is_empty() {
        return fail("it must not be empty");
    }
    if name.chars().any(char::is_control) {
        return fail("control characters are not allowed");
    }
    if name.contains('/') {
        return fail("a slash is not allowed, because the name becomes a segment of URIs");
    }
    if name.trim() != name {
        return fail("spaces at the start or end are not allowed");
    }
    Ok(())
}

fn too_long(name: &str, what: &'static str) -> InvalidName {
    let start: String = name.chars().take(32).collect();
    InvalidName {
        name: format!("{start}…"),
        what,
        reason: "at most 512 bytes are allowed",
    }
}

/// Validates the id of an instance or check, which may be empty.
pub(crate) fn validate_length(id: &str) -> Result<(), InvalidName> {
    match id.len() > MAX_NAME {
        true => Err(too_long(id, "id")),
        false => Ok(()),
    }
}

/// Validates a service name of the catalog: not empty, not `*`, no control characters or slashes.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_service_name(name: &str) -> Result<(), InvalidName> {
    const WHAT: &str = "service name";
    validate(name, WHAT)?;
    if name == WILDCARD {
        return Err(InvalidName {
            name: name.to_owned(),
            what: WHAT,
            reason: "it is the wildcard for every service and cannot be registered",
        });
    }
    Ok(())
}

/// Validates a node name: not empty, no control characters or slashes.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_node_name(name: &str) -> Result<(), InvalidName> {
    validate(name, "node name")
}

/// Validates a datacenter name: lower-case letters, digits, `-` and `_`.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_datacenter(name: &str) -> Result<(), InvalidName> {
    const WHAT: &str = "datacenter name";
    validate(name, WHAT)?;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if !name.bytes().all(allowed) || name.len() > 64 {
        return Err(InvalidName {
            name: name.to_owned(),
            what: WHAT,
            reason: "only lower-case letters, digits, - and _ are allowed, at most 64",
        });
    }
    Ok(())
}

/// Validates the destination of an upstream: a service name that cannot be mistaken for an upstream
/// id.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_upstream(name: &str) -> Result<(), InvalidName> {
    const WHAT: &str = "upstream destination";
    validate(name, WHAT)?;
    let reason = match name {
        WILDCARD => "an upstream refers to one service, so \"*\" is not allowed",
        _ if name.contains('?') => {
            "a question mark is not allowed, because it starts ?dc= and ?peer="
        }
        _ => return Ok(()),
    };
    Err(InvalidName {
        name: name.to_owned(),
        what: WHAT,
        reason,
    })
}

/// Validates a name in an intention: a service, or `*` for all services.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_intention_name(name: &str) -> Result<(), InvalidName> {
    const WHAT: &str = "service name in an intention";
    validate(name, WHAT)?;
    if name != WILDCARD && name.contains('*') {
        return Err(InvalidName {
            name: name.to_owned(),
            what: WHAT,
            reason: "a wildcard stands alone: \"*\" means every service, parts cannot be matched",
        });
    }
    Ok(())
}

/// Validates the name of a config entry that does not belong to one service: not empty, no control
/// characters or slashes.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub(crate) fn validate_entry_name(name: &str) -> Result<(), InvalidName> {
    validate(name, "name of a config entry")
}

/// Validates the name of a JWT provider: not empty, no control characters or slashes.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub(crate) fn validate_jwt_provider(name: &str) -> Result<(), InvalidName> {
    validate(name, "name of a JWT provider")
}

/// Validates a service or node name in an ACL identity: at most 256 lower-case letters, digits, `-`
/// and `_`, starting and ending with a letter or digit.
///
/// # Errors
///
/// [`InvalidName`] contains the rule.
pub fn validate_identity_name(name: &str) -> Result<(), InvalidName> {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().last()];
    let valid = name.len() <= MAX_IDENTITY
        && ends.iter().all(|end| end.is_some_and(alphanumeric))
        && name.bytes().all(|b| alphanumeric(b) || b"-_".contains(&b));
    if valid {
        return Ok(());
    }
    Err(InvalidName {
        name: name.to_owned(),
        what: "name for an identity",
        reason: "only lower-case letters, digits, - and _ are allowed, at most 256, starting and \
                 ending with a letter or digit",
    })
}

/// Validates an auth method's name: at most 128 letters, digits, `-` and `_`.
pub(crate) fn validate_auth_method(name: &str) -> Result<(), InvalidName> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if (1..=128).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(InvalidName {
        name: name.to_owned(),
        what: "name of an auth method",
        reason: "only letters, digits, - and _ are allowed, from 1 to 128",
    })
}

/// Whether a text is a UUID in its usual form, as node ids are.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_accepted() {
        for name in ["web", "Web_1.eu", "münze", "a b", &"x".repeat(300)] {
            assert_eq!(validate_service_name(name), Ok(()), "{name}");
            assert_eq!(validate_node_name(name), Ok(()), "{name}");
            assert_eq!(validate_upstream(name), Ok(()), "{name}");
            assert_eq!(validate_intention_name(name), Ok(()), "{name}");
        }
        assert_eq!(validate_intention_name("*"), Ok(()));
        assert_eq!(validate_identity_name("web-1_x"), Ok(()));
        assert_eq!(validate_identity_name(&"x".repeat(256)), Ok(()));
        assert_eq!(validate_datacenter("dc-1_x"), Ok(()));
    }

    #[test]
    fn other_names_are_refused_with_the_reason() {
        for (result, part) in [
            (validate_service_name(""), "must not be empty"),
            (validate_service_name("*"), "every service"),
            (validate_service_name("a/b"), "slash"),
            (validate_service_name("a\nb"), "control characters"),
            (validate_service_name(" a"), "spaces"),
            (validate_node_name(""), "must not be empty"),
            (validate_node_name("a\u{7f}"), "control characters"),
            (validate_node_name(&"x".repeat(513)), "at most 512"),
            (validate_service_name(&"x".repeat(100_000)), "at most 512"),
            (validate_upstream("*"), "one service"),
            (validate_upstream("a?dc=b"), "question mark"),
            (validate_intention_name("we*"), "wildcard stands alone"),
            (validate_identity_name(""), "lower-case"),
            (validate_identity_name("Web"), "lower-case"),
            (validate_identity_name("-web"), "starting and ending"),
            (validate_identity_name(&"x".repeat(257)), "at most 256"),
            (validate_datacenter("DC"), "lower-case"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
