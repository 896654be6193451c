//! Interpolation of variables in names: `${value.team}-api`. Variables only; no functions or
//! arithmetic.

use crate::acl::variables::Variables;

/// A template that cannot be interpolated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpolationError {
    /// A `${` without a closing `}`.
    #[error("the template {template:?} has ${{ at byte {at} without a closing }}")]
    Unclosed {
        /// The template.
        template: String,
        /// Byte offset of the `${`.
        at: usize,
    },
    /// A variable that the auth method does not have.
    #[error(
        "the template {template:?} uses {name:?}, which is not a variable here (known: {known})"
    )]
    Unknown {
        /// The template.
        template: String,
        /// The variable.
        name: String,
        /// The known variables.
        known: String,
    },
}

/// Replaces every `${name}` with the variable's value in lower case, as Consul does, because service
/// names are in lower case. `$${` is an escaped `${`.
///
/// # Errors
///
/// [`InterpolationError`] names the template and the variable.
pub fn interpolate(template: &str, variables: &Variables) -> Result<String, InterpolationError> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = &from[2..];
            continue;
        }
        out.push_str(before);
        let Some(end) = from.find('}') else {
            return Err(InterpolationError::Unclosed {
                template: template.to_owned(),
                at: template.len() - from.len(),
            });
        };
        let name = from[2..end].trim();
        match variables.values.get(name) {
            Some(value) => out.push_str(&value.to_lowercase()),
            None => {
                return Err(InterpolationError::Unknown {
                    template: template.to_owned(),
                    name: name.to_owned(),
                    known: variables.names(),
                });
            }
        }
        rest = &from[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        Variables {
            values: [("value.team".to_owned(), "Red".to_owned())].into(),
            lists: [("list.groups".to_owned(), vec![])].into(),
            ..Variables::default()
        }
    }

    #[test]
    fn variables_are_replaced() {
        for (template, result) in [
            ("web", "web"),
            ("", ""),
            ("${value.team}-api", "red-api"),
            ("a-${ value.team }-${value.team}", "a-red-red"),
            ("$${value.team}", "${value.team}"),
            ("$x }", "$x }"),
            // Only interpolated values are converted to lower case.
            ("Team-${value.team}", "Team-red"),
        ] {
            assert_eq!(interpolate(template, &variables()).as_deref(), Ok(result));
        }
    }

    #[test]
    fn errors_name_the_mistake() {
        let error = interpolate("a-${value.tem}", &variables())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("value.tem") && error.contains("value.team, list.groups"),
            "{error}"
        );
        let error = interpolate("a-${value.team", &variables()).unwrap_err();
        assert!(
            matches!(error, InterpolationError::Unclosed { at: 2, .. }),
            "{error}"
        );
        // A list has no single value.
        assert!(interpolate("${list.groups}", &variables()).is_err());
    }
}
