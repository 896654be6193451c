//! Envoy format strings with command operators such as `%REQ(X-USER)%`, in access logs and header
//! values. Envoy refuses resources with misplaced percent signs. The set of commands depends on
//! Envoy's version and is not checked here.

use serde_json::Value;

/// # Errors
///
/// Validates a format string. The error locates the first percent sign that Envoy would refuse.
pub(crate) fn validate(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let command = &rest[at + 1..];
        let after = command.strip_prefix('%').or_else(|| after(command));
        let Some(after) = after else {
            let position = text.len() - command.len() - 1;
            return Err(format!(
                "no Envoy command starts at the percent sign at position {position} of {text:?}: a \
                 command is like %PROTOCOL% or %REQ(X-USER)%, and %% is a percent sign"
            ));
        };
        rest = after;
    }
    Ok(())
}

/// Validates all texts in a document, except object keys.
///
/// # Errors
///
/// As for [`validate`].
pub(crate) fn validate_all(document: &Value) -> Result<(), String> {
    match document {
        Value::String(text) => validate(text),
        Value::Array(items) => items.iter().try_for_each(validate_all),
        Value::Object(fields) => fields.values().try_for_each(validate_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Skips a command whose opening percent sign was consumed: name, arguments in parentheses and
/// length. Envoy's `%([A-Z0-9_]+)(\(.*?\))?(:[0-9]+)?%`.
fn after(command: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let rest = command.trim_start_matches(is_name);
    if rest.len() == command.len() {
        return None;
    }
    let Some(arguments) = rest.strip_prefix('(') else {
        return after_length(rest);
    };
    let line = arguments.split('\n').next().unwrap_or_default();
    let mut ends = line.match_indices(')');
    ends.find_map(|(at, _)| after_length(&arguments[at + 1..]))
}

fn after_length(rest: &str) -> Option<&str> {
    let digits = rest.strip_prefix(':').and_then(|length| {
        let rest = length.trim_start_matches(|c: char| c.is_ascii_digit());
        (rest.len() < length.len()).then_some(rest)
    });
    digits.unwrap_or(rest).strip_prefix('%')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expectations are those of a real Envoy 1.38.
    #[test]
    fn commands_are_validated_as_in_envoy() {
        for text in [
            "",
            "plain",
            "%%",
            "a%%b",
            "%PROTOCOL%",
            "%PROTOCOL()%",
            "%START_TIME(%s)%",
            "%START_TIME(%Y/%m)% %PROTOCOL%",
            "%REQ(X?Y):10%",
            "%REQ(:PATH)%%PROTOCOL%",
            "{x}",
        ] {
            assert_eq!(validate(text), Ok(()), "{text}");
        }
        for text in [
            "%",
            "100%",
            "%PROTOCOL",
            "%protocol%",
            "%REQ(a",
            "%REQ(a)",
            "%REQ(X):a%",
            "%REQ(X):%",
            "%A B%",
            "%START_TIME(%Y/%m)%%",
            "%REQ(a\n)%",
        ] {
            assert!(validate(text).is_err(), "{text}");
        }
        let error = validate("ü 100%").unwrap_err();
        assert!(error.contains("position 6 of \"ü 100%\""), "{error}");
    }

    #[test]
    fn access_logs_are_validated() {
        for logs in [
            serde_json::json!({"TextFormat": "100%"}),
            serde_json::json!({"JSONFormat": "{\"a\": [\"100%\"]}"}),
        ] {
            let entry = serde_json::json!({
                "Kind": "proxy-defaults", "Name": "global", "AccessLogs": logs,
            });
            let entry: crate::ConfigEntry = serde_json::from_value(entry).unwrap();
            let error = entry.validate().unwrap_err().to_string();
            assert!(error.contains("Format: no Envoy command starts"), "{error}");
        }
    }

    #[test]
    fn documents_are_validated_recursively() {
        let document = |text: &str| serde_json::json!({"%": 1, "a": ["b", {"c": text}]});
        assert_eq!(validate_all(&document("%PROTOCOL%")), Ok(()));
        assert!(validate_all(&document("%")).is_err());
    }
}
